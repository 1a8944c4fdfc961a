//! The folders of the running program's installation.
//!
//! An installation has the layout of a Unix prefix, as an archive of `make dist` and a Python environment
//! with the wheel do:
//!
//! ```text
//! PREFIX/bin/stratus            the program
//! PREFIX/lib/stratus/           libraries: libdnnl.so.3, libgomp.so.1, libjpeg.so.62
//! PREFIX/share/stratus/         data: mnist/
//! ```
//!
//! A program that Cargo built in a checkout uses the checkout's `.deps` and `data` too. The working
//! folder is never searched: on a shared machine, other users may write to it.

use std::path::{Path, PathBuf};

/// The path of the running program, with symbolic links resolved.
#[must_use]
pub fn program() -> Option<PathBuf> {
    let program = std::env::current_exe().ok()?;
    Some(program.canonicalize().unwrap_or(program))
}

/// The folder above the program's folder, such as `~/.cargo` or a Python environment. `None` if every user
/// may write to it.
#[must_use]
pub fn prefix() -> Option<PathBuf> {
    prefix_of(&program()?)
}

fn prefix_of(program: &Path) -> Option<PathBuf> {
    let prefix = program.parent()?.parent()?;
    (!is_world_writable(prefix)).then(|| prefix.to_owned())
}

/// The folders in which `program` looks for its libraries: its own, then `lib/stratus` and `lib` of its
/// prefix, unless every user may write to them.
#[must_use]
pub fn library_folders(program: &Path) -> Vec<PathBuf> {
    let own = program.parent().filter(|folder| !is_world_writable(folder)).map(Path::to_owned);
    let lib = prefix_of(program).map(|prefix| prefix.join("lib"));
    own.into_iter().chain(lib.iter().flat_map(|lib| [lib.join("stratus"), lib.clone()])).collect()
}

/// The folder `share/stratus/<name>` of the running program's prefix, else `data/<name>` of the checkout in
/// which it was built; the first that exists. Neither is written to.
#[must_use]
pub fn data_folder(name: &str) -> Option<PathBuf> {
    let checkout = program().and_then(|program| checkout_of(&program));
    data_folder_in(prefix(), checkout, name)
}

fn data_folder_in(prefix: Option<PathBuf>, checkout: Option<PathBuf>, name: &str) -> Option<PathBuf> {
    let data = [prefix.map(|prefix| prefix.join("share/stratus")), checkout.map(|root| root.join("data"))];
    let usable = |folder: &PathBuf| folder.is_dir() && !is_world_writable(folder);
    data.into_iter().flatten().map(|data| data.join(name)).find(usable)
}

/// The checkout of Stratus in which Cargo built the running program. With a target folder elsewhere, it is
/// known only to programs that Cargo runs.
#[must_use]
pub fn checkout() -> Option<PathBuf> {
    let cargo = || std::env::var_os("CARGO_MANIFEST_DIR").map(PathBuf::from);
    program().and_then(|program| checkout_of(&program)).or_else(|| checkout_of(&cargo()?))
}

/// The checkout in whose `target` folder `program` is. Folders that every user may write to, such as `/tmp`,
/// are not checkouts, unless every user may replace the program too.
#[must_use]
pub fn checkout_of(program: &Path) -> Option<PathBuf> {
    let is_checkout = |folder: &&Path| {
        folder.join("crates/stratus/Cargo.toml").is_file()
            && folder.join("scripts/deps.sh").is_file()
            && (!is_world_writable(folder) || is_replaceable(program))
    };
    program.ancestors().skip(1).find(is_checkout).map(Path::to_owned)
}

/// The command that installs the libraries for the running program.
#[must_use]
pub fn libraries_command() -> String {
    match (checkout(), prefix()) {
        (Some(checkout), _) => format!("make -C {} deps", checkout.display()),
        (None, Some(prefix)) => format!("make deps PREFIX={}", prefix.display()),
        (None, None) => "make deps".to_owned(),
    }
}

#[cfg(unix)]
fn is_world_writable(folder: &Path) -> bool {
    use std::os::unix::fs::PermissionsExt;
    folder.metadata().is_ok_and(|metadata| metadata.permissions().mode() & 0o002 != 0)
}

#[cfg(not(unix))]
fn is_world_writable(_: &Path) -> bool {
    false
}

/// Returns whether every user may replace the program, as in a container whose `umask` is 0.
fn is_replaceable(program: &Path) -> bool {
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        // In a folder with the sticky bit, only its owner may replace a file.
        let is_open = |metadata: std::fs::Metadata| metadata.permissions().mode() & 0o1002 == 0o0002;
        program.parent().and_then(|folder| folder.metadata().ok()).is_some_and(is_open)
    }
    #[cfg(not(unix))]
    {
        let _ = program;
        false
    }
}

#[cfg(test)]
mod tests {
    use super::{checkout_of, data_folder_in, library_folders};
    use std::fs;
    use std::path::Path;

    #[test]
    fn libraries_are_beside_the_program_or_in_lib_above_it() {
        let folders = library_folders(Path::new("/opt/stratus/bin/stratus"));
        let expected = ["/opt/stratus/bin", "/opt/stratus/lib/stratus", "/opt/stratus/lib"];
        assert_eq!(folders, expected.map(Path::new));
        assert_eq!(library_folders(Path::new("/stratus")), [Path::new("/")]);
        assert!(library_folders(Path::new("/")).is_empty());
        #[cfg(unix)]
        {
            use std::os::unix::fs::PermissionsExt;
            let root = tempfile::tempdir().unwrap();
            fs::create_dir(root.path().join("bin")).unwrap();
            let folders = || library_folders(&root.path().join("bin/stratus"));
            assert_eq!(folders().len(), 3);
            fs::set_permissions(root.path(), fs::Permissions::from_mode(0o1777)).unwrap();
            assert_eq!(folders(), [root.path().join("bin")], "every user could plant a library");
        }
    }

    #[test]
    fn data_is_in_the_prefix_or_in_the_checkout() {
        let root = tempfile::tempdir().unwrap();
        let (prefix, checkout) = (root.path().join("usr"), root.path().join("stratus"));
        let found = || data_folder_in(Some(prefix.clone()), Some(checkout.clone()), "mnist");
        assert_eq!(found(), None);
        let in_checkout = checkout.join("data/mnist");
        fs::create_dir_all(&in_checkout).unwrap();
        assert_eq!(found(), Some(in_checkout.clone()));
        let installed = prefix.join("share/stratus/mnist");
        fs::create_dir_all(&installed).unwrap();
        assert_eq!(found(), Some(installed.clone()));
        assert_eq!(data_folder_in(None, None, "mnist"), None);
        #[cfg(unix)]
        {
            use std::os::unix::fs::PermissionsExt;
            fs::set_permissions(&installed, fs::Permissions::from_mode(0o777)).unwrap();
            assert_eq!(found(), Some(in_checkout.clone()), "every user could plant images");
            fs::set_permissions(&in_checkout, fs::Permissions::from_mode(0o1777)).unwrap();
            assert_eq!(found(), None);
        }
    }

    #[test]
    fn checkout_is_above_the_program_and_writable_by_its_owner_only() {
        let root = tempfile::tempdir().unwrap();
        let checkout = root.path().join("stratus");
        let program = checkout.join("target/release/stratus");
        for file in ["crates/stratus/Cargo.toml", "scripts/deps.sh"] {
            let file = checkout.join(file);
            fs::create_dir_all(file.parent().unwrap()).unwrap();
            assert_eq!(checkout_of(&program), None);
            fs::write(file, "").unwrap();
        }
        assert_eq!(checkout_of(&program), Some(checkout.clone()));
        assert_eq!(checkout_of(&root.path().join("other/stratus")), None);
        #[cfg(unix)]
        {
            use std::os::unix::fs::PermissionsExt;
            let set_mode = |folder: &Path, mode| {
                fs::set_permissions(folder, fs::Permissions::from_mode(mode)).unwrap();
            };
            set_mode(&checkout, 0o777);
            assert_eq!(checkout_of(&program), None, "every user could plant a library");
            fs::create_dir_all(program.parent().unwrap()).unwrap();
            set_mode(program.parent().unwrap(), 0o777);
            assert_eq!(checkout_of(&program), Some(checkout), "or replace the program");
            set_mode(program.parent().unwrap(), 0o1777);
            assert_eq!(checkout_of(&program), None, "the program is its owner's");
        }
    }
}
