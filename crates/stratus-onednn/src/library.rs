//! Finding the library.

use crate::ffi::{Context, LoadError};
use std::path::{Path, PathBuf};

/// Names one library file, or a folder that holds it; looked at before everything else.
pub const ENVIRONMENT: &str = "STRATUS_ONEDNN";

/// The file's name on this system.
#[cfg(target_os = "macos")]
pub const FILE: &str = "libdnnl.3.dylib";
/// The file's name on this system.
#[cfg(not(target_os = "macos"))]
pub const FILE: &str = "libdnnl.so.3";

/// Where oneDNN was looked for and what was found there.
#[derive(Debug, thiserror::Error)]
#[error("no usable oneDNN 3.x was found; looked at {}", tried.join("; "))]
pub struct NotFound {
    /// Each place with the reason why it would not do.
    pub tried: Vec<String>,
}

/// The places, in the order they are tried: [`ENVIRONMENT`] alone where it is set; `.deps/onednn/lib` (where `make deps` puts it) in the
/// folders above the program, in the working folder and in those above it; conda; the system's own search path; Homebrew.
#[must_use]
pub fn candidates() -> Vec<PathBuf> {
    let mut paths = Vec::new();
    if let Some(named) = std::env::var_os(ENVIRONMENT).map(PathBuf::from) {
        paths.push(if named.is_dir() { named.join(FILE) } else { named });
        return paths;
    }
    let local = Path::new(".deps/onednn/lib").join(FILE);
    let program = std::env::current_exe().ok();
    let above = program.iter().flat_map(|path| path.ancestors().skip(1));
    let working = std::env::current_dir().ok();
    for folder in above.chain(working.iter().flat_map(|path| path.ancestors())) {
        let path = folder.join(&local);
        if path.exists() && !paths.contains(&path) {
            paths.push(path);
        }
    }
    if let Some(prefix) = std::env::var_os("CONDA_PREFIX") {
        paths.push(Path::new(&prefix).join("lib").join(FILE));
    }
    paths.push(PathBuf::from(FILE));
    if cfg!(target_os = "macos") {
        paths.push(Path::new("/opt/homebrew/lib").join(FILE));
    }
    paths
}

/// Loads the first library that will do.
///
/// # Errors
/// Every place with its reason, where none will.
pub fn find() -> Result<Context, NotFound> {
    let mut tried = Vec::new();
    for path in candidates() {
        match Context::load(&path) {
            Ok(context) => return Ok(context),
            Err(LoadError::Open { path, .. }) if path.components().count() == 1 => {
                tried.push(format!("{} on the system's library path (not there)", path.display()));
            }
            Err(error) => tried.push(error.to_string()),
        }
    }
    Err(NotFound { tried })
}
