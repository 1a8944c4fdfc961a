//! Finding NVIDIA's libraries.
//!
//! cudarc only uses the system's search path. Many machines have the libraries elsewhere, most often in a
//! Python environment: these are loaded first, after which the dynamic loader finds them by name.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use stratus_base::installation::checkout;
use stratus_base::library::{LibraryNotFound, python_environments};

/// The environment variable with the folders of the libraries, separated as in `PATH`. It replaces the
/// default folders; the system's search path follows.
pub const ENVIRONMENT: &str = "STRATUS_CUDA";

/// A library that is loaded at run time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Library {
    /// The driver: `libcuda.so.1`.
    Driver,
    /// The compiler: `libnvrtc.so.*`.
    Nvrtc,
    /// Matrix products: `libcublas.so.*`.
    Cublas,
    /// Convolutions: `libcudnn.so.9`.
    Cudnn,
}

impl Library {
    /// All libraries, in the order of loading.
    pub const ALL: [Self; 4] = [Self::Driver, Self::Nvrtc, Self::Cublas, Self::Cudnn];

    /// Its common name.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Driver => "CUDA driver",
            Self::Nvrtc => "NVRTC",
            Self::Cublas => "cuBLAS",
            Self::Cudnn => "cuDNN",
        }
    }

    /// The prefixes of its file names, newest first, after those of its dependencies.
    fn files(self) -> &'static [&'static [&'static str]] {
        match self {
            Self::Driver => &[],
            // NVRTC loads its builtins by a name that includes the minor version.
            Self::Nvrtc => &[&["libnvrtc-builtins.so."], &["libnvrtc.so.13", "libnvrtc.so.12"]],
            Self::Cublas => {
                &[&["libcublasLt.so.13", "libcublasLt.so.12"], &["libcublas.so.13", "libcublas.so.12"]]
            }
            Self::Cudnn => &[&["libcudnn.so.9"]],
        }
    }

    /// Returns whether the library can be loaded.
    #[must_use]
    pub fn is_loadable(self) -> bool {
        preload();
        // SAFETY: the functions only open the library; its initialisers are those that any use of it would
        // run.
        unsafe {
            match self {
                Self::Driver => cudarc::driver::sys::is_culib_present(),
                Self::Nvrtc => cudarc::nvrtc::sys::is_culib_present(),
                Self::Cublas => cudarc::cublas::sys::is_culib_present(),
                Self::Cudnn => cudarc::cudnn::sys::is_culib_present(),
            }
        }
    }
}

/// The folders that are searched before the system's search path. If [`ENVIRONMENT`] is set, only its
/// folders; else CUDA's own, those of conda and of the active Python environment, and `.deps/nvrtc/lib` of
/// the checkout in which the program was built.
#[must_use]
pub fn folders() -> Vec<PathBuf> {
    // An empty variable counts as not set.
    let variable = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let named = named_folders(std::env::var_os(ENVIRONMENT).as_deref());
    if !named.is_empty() {
        return named;
    }
    let mut folders = Vec::new();
    folders.extend(["CUDA_HOME", "CUDA_PATH"].iter().filter_map(|name| Some(variable(name)?.join("lib64"))));
    folders.push(PathBuf::from("/usr/local/cuda/lib64"));
    folders.extend(variable("CONDA_PREFIX").map(|prefix| prefix.join("lib")));
    for environment in python_environments(|name| std::env::var_os(name)) {
        // `lib/python3.12/site-packages/nvidia/cudnn/lib`
        let pythons = entries(&environment.join("lib")).filter(|path| names(path, "python3"));
        for python in pythons {
            let packages = entries(&python.join("site-packages/nvidia"));
            folders.extend(packages.map(|package| package.join("lib")).filter(|folder| folder.is_dir()));
        }
    }
    // The folder where `make deps` installs NVRTC is last: a version installed with the driver's CUDA knows
    // the GPU better.
    folders.extend(checkout().map(|checkout| checkout.join(".deps/nvrtc/lib")));
    folders
}

/// The folders in [`ENVIRONMENT`]. Empty parts are omitted, so that nothing is searched relative to the
/// working folder.
fn named_folders(value: Option<&OsStr>) -> Vec<PathBuf> {
    let folders = value.into_iter().flat_map(std::env::split_paths);
    folders.filter(|folder| !folder.as_os_str().is_empty()).collect()
}

/// Checks that the folders in [`ENVIRONMENT`] exist, and that at least one contains a library of CUDA.
///
/// # Errors
/// [`LibraryNotFound::Named`], with the first folder that does not exist, or the first without libraries.
pub fn check_named_folders() -> Result<(), LibraryNotFound> {
    check_folders(&named_folders(std::env::var_os(ENVIRONMENT).as_deref()))
}

fn check_folders(folders: &[PathBuf]) -> Result<(), LibraryNotFound> {
    let error = |folder: &Path, problem: &str| LibraryNotFound::Named {
        variable: ENVIRONMENT,
        path: folder.to_owned(),
        problem: problem.to_owned(),
        expected: "the folders of NVRTC, cuBLAS and cuDNN, separated by `:`".to_owned(),
    };
    if let Some(absent) = folders.iter().find(|folder| !folder.is_dir()) {
        return Err(error(absent, "which is not a folder"));
    }
    let mut prefixes = Library::ALL.iter().flat_map(|library| library.files()).copied().flatten();
    let is_used =
        prefixes.any(|prefix| folders.iter().any(|folder| entries(folder).any(|path| names(&path, prefix))));
    match folders.first() {
        Some(first) if !is_used => Err(error(first, "without libraries of CUDA in it")),
        _ => Ok(()),
    }
}

fn entries(folder: &Path) -> impl Iterator<Item = PathBuf> + use<> {
    let mut paths: Vec<PathBuf> = std::fs::read_dir(folder)
        .into_iter()
        .flatten()
        .filter_map(|entry| Some(entry.ok()?.path()))
        .collect();
    paths.sort();
    paths.into_iter()
}

fn names(path: &Path, prefix: &str) -> bool {
    path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(prefix))
}

/// Loads the libraries in [`folders`], once.
#[cfg(unix)]
fn preload() {
    use libloading::os::unix::{Library as Opened, RTLD_GLOBAL, RTLD_NOW};
    static ONCE: std::sync::Once = std::sync::Once::new();
    ONCE.call_once(|| {
        let folders = folders();
        for file in Library::ALL.iter().flat_map(|library| library.files()) {
            let paths = file.iter().flat_map(|name| {
                folders.iter().flat_map(move |folder| entries(folder).filter(move |path| names(path, name)))
            });
            for path in paths.filter(|path| path.is_file()) {
                // SAFETY: the initialisers of NVIDIA's libraries are those that any use of them would run.
                // The handle is forgotten, so the library is never unloaded.
                if let Ok(library) = unsafe { Opened::open(Some(&path), RTLD_NOW | RTLD_GLOBAL) } {
                    std::mem::forget(library);
                    break;
                }
            }
        }
    });
}

/// On other systems only the search path is used.
#[cfg(not(unix))]
fn preload() {}

/// Opens the first library of these names in one of the [`folders`], or else on the system's search path.
pub(super) fn open(names: &[&str]) -> Option<libloading::Library> {
    let folders = folders();
    let paths = names.iter().flat_map(|name| folders.iter().map(move |folder| folder.join(name)));
    let paths = paths.filter(|path| path.is_file()).chain(names.iter().map(PathBuf::from));
    // SAFETY: the initialisers of NVIDIA's libraries are those that any use of them would run.
    paths.into_iter().find_map(|path| unsafe { libloading::Library::new(path) }.ok())
}

#[cfg(test)]
mod tests {
    use super::{check_folders, named_folders};
    use std::path::PathBuf;

    #[test]
    fn named_folders_must_exist_and_hold_a_library() {
        let root = tempfile::tempdir().unwrap();
        let folder = root.path().to_owned();
        assert!(check_folders(&[]).is_ok());
        let absent = check_folders(&[folder.clone(), folder.join("absent")]).unwrap_err();
        assert_eq!(
            absent.to_string(),
            format!("STRATUS_CUDA names {}/absent, which is not a folder", folder.display())
        );
        let empty = check_folders(std::slice::from_ref(&folder)).unwrap_err().to_string();
        assert!(empty.ends_with(", without libraries of CUDA in it"), "{empty}");
        std::fs::write(folder.join("libcudnn.so.9"), "").unwrap();
        assert!(check_folders(&[folder]).is_ok());
    }

    #[test]
    fn empty_parts_name_no_folder() {
        let named = |text: &str| named_folders(Some(text.as_ref()));
        assert!(named("").is_empty() && named(":").is_empty() && named_folders(None).is_empty());
        assert_eq!(named(":/a::/b"), ["/a", "/b"].map(PathBuf::from));
    }
}
