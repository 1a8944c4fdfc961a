//! Finding the libraries.
//!
//! cudarc looks for them on the system's search path alone. Many machines have them elsewhere, most often in a Python environment: what is found
//! there is loaded before, and the loader then knows it by its name.

use std::path::{Path, PathBuf};

/// Names folders that hold the libraries, as `PATH` does; looked at before everything else.
pub const ENVIRONMENT: &str = "STRATUS_CUDA";

/// A library that is loaded at run time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Library {
    /// The driver: `libcuda.so.1`.
    Driver,
    /// The compiler.
    Nvrtc,
    /// Matrix products.
    Cublas,
    /// Convolutions.
    Cudnn,
}

impl Library {
    /// All of them, in the order in which they are looked for.
    pub const ALL: [Self; 4] = [Self::Driver, Self::Nvrtc, Self::Cublas, Self::Cudnn];

    /// What people call it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Driver => "CUDA driver",
            Self::Nvrtc => "NVRTC",
            Self::Cublas => "cuBLAS",
            Self::Cudnn => "cuDNN",
        }
    }

    /// What its files' names begin with, newest first; what it needs itself comes before it.
    fn files(self) -> &'static [&'static [&'static str]] {
        match self {
            Self::Driver => &[],
            // The compiler asks for its other half by name, with a minor version in it.
            Self::Nvrtc => &[&["libnvrtc-builtins.so."], &["libnvrtc.so.13", "libnvrtc.so.12"]],
            Self::Cublas => {
                &[&["libcublasLt.so.13", "libcublasLt.so.12"], &["libcublas.so.13", "libcublas.so.12"]]
            }
            Self::Cudnn => &[&["libcudnn.so.9"]],
        }
    }

    /// Whether it can be loaded.
    #[must_use]
    pub fn is_there(self) -> bool {
        preload();
        // SAFETY: the functions open the library and look at nothing in it; its initialisers are those that any use of it would run.
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

/// The folders that are looked at before the system's search path: those of [`ENVIRONMENT`] alone where it is set; CUDA's own; those of conda and of
/// the Python environment at hand; `.deps/nvrtc/lib` above the program and the working folder.
#[must_use]
pub fn folders() -> Vec<PathBuf> {
    let of = |name: &str| std::env::var_os(name).map(PathBuf::from);
    if let Some(named) = std::env::var_os(ENVIRONMENT) {
        return std::env::split_paths(&named).collect();
    }
    let mut folders = Vec::new();
    folders.extend(["CUDA_HOME", "CUDA_PATH"].iter().filter_map(|name| Some(of(name)?.join("lib64"))));
    folders.push(PathBuf::from("/usr/local/cuda/lib64"));
    folders.extend(of("CONDA_PREFIX").map(|prefix| prefix.join("lib")));
    for environment in ["VIRTUAL_ENV", "CONDA_PREFIX"].iter().filter_map(|name| of(name)) {
        // `lib/python3.12/site-packages/nvidia/cudnn/lib`
        let pythons = entries(&environment.join("lib")).filter(|path| names(path, "python3"));
        for python in pythons {
            let packages = entries(&python.join("site-packages/nvidia"));
            folders.extend(packages.map(|package| package.join("lib")).filter(|folder| folder.is_dir()));
        }
    }
    // Where `make deps` puts the compiler, last: what came with the driver's CUDA knows its GPU.
    let program = std::env::current_exe().ok();
    let working = std::env::current_dir().ok();
    for folder in program.iter().chain(&working).flat_map(|path| path.ancestors()) {
        let local = folder.join(".deps/nvrtc/lib");
        if local.is_dir() && !folders.contains(&local) {
            folders.push(local);
        }
    }
    folders
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

fn names(path: &Path, beginning: &str) -> bool {
    path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(beginning))
}

/// Loads what is found in [`folders`], once.
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
                // SAFETY: the initialisers of NVIDIA's libraries are what any use of them would run; the library stays loaded to the end, as the
                // handle is forgotten.
                if let Ok(library) = unsafe { Opened::open(Some(&path), RTLD_NOW | RTLD_GLOBAL) } {
                    std::mem::forget(library);
                    break;
                }
            }
        }
    });
}

/// Elsewhere they are found by the system's search path alone.
#[cfg(not(unix))]
fn preload() {}

/// The first library of these names that is in one of the [`folders`], or else on the system's search path.
pub(super) fn open(names: &[&str]) -> Option<libloading::Library> {
    let folders = folders();
    let paths = names.iter().flat_map(|name| folders.iter().map(move |folder| folder.join(name)));
    let paths = paths.filter(|path| path.is_file()).chain(names.iter().map(PathBuf::from));
    // SAFETY: the initialisers of NVIDIA's libraries are what any use of them would run.
    paths.into_iter().find_map(|path| unsafe { libloading::Library::new(path) }.ok())
}
