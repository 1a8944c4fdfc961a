//! Finding the oneDNN library.

use crate::ffi::{Context, LoadError};
use std::path::PathBuf;
pub use stratus_base::library::LibraryNotFound;
use stratus_base::library::LibrarySearch;

/// The variable that names a library file or its folder; takes precedence over everything else.
pub const ENVIRONMENT: &str = "STRATUS_ONEDNN";

/// The file's name on this system.
#[cfg(target_os = "macos")]
pub const FILE: &str = "libdnnl.3.dylib";
/// The file's name on this system.
#[cfg(not(target_os = "macos"))]
pub const FILE: &str = "libdnnl.so.3";

const SEARCH: LibrarySearch = LibrarySearch {
    name: "oneDNN 3.x",
    environment: ENVIRONMENT,
    files: &[FILE],
    dependency_folder: ".deps/onednn/lib",
    homebrew_folder: "/opt/homebrew/lib",
};

/// The paths in the order in which they are tried: see [`LibrarySearch::candidates`].
#[must_use]
pub fn candidates() -> Vec<PathBuf> {
    SEARCH.candidates()
}

/// Checks that the variable, if set, names the library or a folder that contains it.
///
/// # Errors
/// [`LibraryNotFound::Named`].
pub fn check_named() -> Result<(), LibraryNotFound> {
    SEARCH.check_named()
}

/// Loads the first usable library.
///
/// # Errors
/// Every path with its reason, if none is usable.
pub fn find() -> Result<Context, LibraryNotFound> {
    SEARCH.load_first(Context::load, |error| matches!(error, LoadError::Open { .. }))
}
