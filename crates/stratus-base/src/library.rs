//! Finding a C library that is loaded at run time.

use std::fmt::Display;
use std::path::{Path, PathBuf};

/// A C library and where it is looked for.
#[derive(Clone, Copy, Debug)]
pub struct LibrarySearch {
    /// Its name, for messages.
    pub name: &'static str,
    /// The environment variable that names the library's file, or a folder that holds it.
    pub environment: &'static str,
    /// The names that the file may have on this system, the preferred one first.
    pub files: &'static [&'static str],
    /// The folder below the project where `make deps` puts it, such as `.deps/onednn/lib`.
    pub dependency_folder: &'static str,
    /// The folder where Homebrew puts it on macOS.
    pub homebrew_folder: &'static str,
}

/// No usable library was found.
#[derive(Clone, Debug, thiserror::Error)]
#[error("no usable {name} was found; looked at {}", tried.join("; "))]
pub struct NotFound {
    /// The library's name.
    pub name: &'static str,
    /// Each path with the reason why its file cannot be used.
    pub tried: Vec<String>,
}

impl LibrarySearch {
    /// The paths, in the order in which they are tried: only those of the environment variable where it is
    /// set; else the dependency folder (see [`below_ancestors`]), conda, the system's search path (a bare
    /// file name), Homebrew.
    #[must_use]
    pub fn candidates(&self) -> Vec<PathBuf> {
        let in_folder = |folder: &Path| self.files.iter().map(|file| folder.join(file)).collect::<Vec<_>>();
        if let Some(named) = std::env::var_os(self.environment).map(PathBuf::from) {
            return if named.is_dir() { in_folder(&named) } else { vec![named] };
        }
        let preferred = self.files.iter().take(1);
        let mut paths: Vec<PathBuf> = preferred
            .flat_map(|file| below_ancestors(&Path::new(self.dependency_folder).join(file)))
            .collect();
        if let Some(prefix) = std::env::var_os("CONDA_PREFIX") {
            paths.extend(in_folder(&Path::new(&prefix).join("lib")));
        }
        paths.extend(self.files.iter().map(PathBuf::from));
        if cfg!(target_os = "macos") {
            paths.extend(in_folder(Path::new(self.homebrew_folder)));
        }
        paths
    }

    /// Loads the first candidate that `load` accepts. `is_absent` says whether an error means that there is
    /// no such file.
    ///
    /// # Errors
    /// Every path with its reason, where none can be used.
    pub fn load_first<T, E: Display>(
        &self,
        load: impl Fn(&Path) -> Result<T, E>,
        is_absent: impl Fn(&E) -> bool,
    ) -> Result<T, NotFound> {
        let mut tried = Vec::new();
        for path in self.candidates() {
            match load(&path) {
                Ok(library) => return Ok(library),
                Err(error) if is_absent(&error) && path.components().count() == 1 => {
                    tried.push(format!("{} on the system's library path (not there)", path.display()));
                }
                Err(error) => tried.push(error.to_string()),
            }
        }
        Err(NotFound { name: self.name, tried })
    }
}

/// `relative` where it exists: in the folders above the running program, in the working folder, in the
/// folders above that.
#[must_use]
pub fn below_ancestors(relative: &Path) -> Vec<PathBuf> {
    let program = std::env::current_exe().ok();
    let working = std::env::current_dir().ok();
    let above = program.iter().flat_map(|path| path.ancestors().skip(1));
    let mut found = Vec::new();
    for folder in above.chain(working.iter().flat_map(|path| path.ancestors())) {
        let path = folder.join(relative);
        if path.exists() && !found.contains(&path) {
            found.push(path);
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    const SEARCH: LibrarySearch = LibrarySearch {
        name: "libnone",
        environment: "STRATUS_BASE_NO_SUCH_VARIABLE",
        files: &["libnone.so.1", "libnone.so.2"],
        dependency_folder: ".deps/none/lib",
        homebrew_folder: "/opt/homebrew/lib",
    };

    #[test]
    fn the_systems_search_path_is_always_tried_and_every_reason_is_listed() {
        let paths = SEARCH.candidates();
        assert!(
            paths.contains(&PathBuf::from("libnone.so.1")) && paths.contains(&PathBuf::from("libnone.so.2"))
        );
        let error = SEARCH.load_first(|_| Err::<(), _>("absent"), |_| true).unwrap_err().to_string();
        assert!(error.starts_with("no usable libnone was found; looked at "), "{error}");
        assert!(
            error.contains("libnone.so.1 on the system's library path (not there); libnone.so.2 on"),
            "{error}"
        );
        let second = |path: &Path| if path.ends_with("libnone.so.2") { Ok(2) } else { Err("damaged") };
        assert_eq!(SEARCH.load_first(second, |_| false).unwrap(), 2);
    }

    #[test]
    fn files_above_the_program_are_found_once() {
        let program = std::env::current_exe().unwrap();
        let name = Path::new(program.file_name().unwrap());
        assert_eq!(below_ancestors(name), std::slice::from_ref(&program));
    }
}
