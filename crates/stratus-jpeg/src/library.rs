//! Finding the library.

use crate::ffi::{Library, LoadError};
use std::path::{Path, PathBuf};

/// Names one library file, or a folder that holds it; looked at before everything else.
pub const ENVIRONMENT: &str = "STRATUS_LIBJPEG";

/// The file's names on this system, by the interface: Debian's and ours, then Ubuntu's.
#[cfg(target_os = "macos")]
pub const FILES: [&str; 2] = ["libjpeg.62.dylib", "libjpeg.8.dylib"];
/// The file's names on this system, by the interface: Debian's and ours, then Ubuntu's.
#[cfg(not(target_os = "macos"))]
pub const FILES: [&str; 2] = ["libjpeg.so.62", "libjpeg.so.8"];

/// Where libjpeg-turbo was looked for and what was found there.
#[derive(Debug, thiserror::Error)]
#[error("no usable libjpeg-turbo was found; looked at {}", tried.join("; "))]
pub struct NotFound {
    /// Each place with the reason why it would not do.
    pub tried: Vec<String>,
}

/// The places, in the order they are tried: [`ENVIRONMENT`] alone where it is set; `.deps/libjpeg/lib` (where `make deps` puts it) in the
/// folders above the program, in the working folder and in those above it; conda; the system's own search path; Homebrew.
#[must_use]
pub fn candidates() -> Vec<PathBuf> {
    if let Some(named) = std::env::var_os(ENVIRONMENT).map(PathBuf::from) {
        return if named.is_dir() { FILES.map(|file| named.join(file)).to_vec() } else { vec![named] };
    }
    let mut paths = Vec::new();
    let program = std::env::current_exe().ok();
    let above = program.iter().flat_map(|path| path.ancestors().skip(1));
    let working = std::env::current_dir().ok();
    for folder in above.chain(working.iter().flat_map(|path| path.ancestors())) {
        let path = folder.join(".deps/libjpeg/lib").join(FILES[0]);
        if path.exists() && !paths.contains(&path) {
            paths.push(path);
        }
    }
    if let Some(prefix) = std::env::var_os("CONDA_PREFIX") {
        paths.extend(FILES.map(|file| Path::new(&prefix).join("lib").join(file)));
    }
    paths.extend(FILES.map(PathBuf::from));
    if cfg!(target_os = "macos") {
        paths.extend(FILES.map(|file| Path::new("/opt/homebrew/opt/jpeg-turbo/lib").join(file)));
    }
    paths
}

/// Loads the first library that will do.
///
/// # Errors
/// Every place with its reason, where none will.
pub fn find() -> Result<Library, NotFound> {
    let mut tried = Vec::new();
    for path in candidates() {
        match Library::load(&path) {
            Ok(library) => return Ok(library),
            Err(LoadError::Open { path, .. }) if path.components().count() == 1 => {
                tried.push(format!("{} on the system's library path (not there)", path.display()));
            }
            Err(error) => tried.push(error.to_string()),
        }
    }
    Err(NotFound { tried })
}
