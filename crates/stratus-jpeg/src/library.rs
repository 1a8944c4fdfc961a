//! Finding the library.

use crate::ffi::{Library, LoadError};
use std::path::PathBuf;
use stratus_base::library::LibrarySearch;
pub use stratus_base::library::NotFound;

/// Names one library file, or a folder that holds it; looked at before everything else.
pub const ENVIRONMENT: &str = "STRATUS_LIBJPEG";

/// The file's names on this system, by the interface: Debian's and ours, then Ubuntu's.
#[cfg(target_os = "macos")]
pub const FILES: [&str; 2] = ["libjpeg.62.dylib", "libjpeg.8.dylib"];
/// The file's names on this system, by the interface: Debian's and ours, then Ubuntu's.
#[cfg(not(target_os = "macos"))]
pub const FILES: [&str; 2] = ["libjpeg.so.62", "libjpeg.so.8"];

const SEARCH: LibrarySearch = LibrarySearch {
    name: "libjpeg-turbo",
    environment: ENVIRONMENT,
    files: &FILES,
    dependency_folder: ".deps/libjpeg/lib",
    homebrew_folder: "/opt/homebrew/opt/jpeg-turbo/lib",
};

/// The paths, in the order in which they are tried: see [`LibrarySearch::candidates`].
#[must_use]
pub fn candidates() -> Vec<PathBuf> {
    SEARCH.candidates()
}

/// Loads the first library that can be used.
///
/// # Errors
/// Every path with its reason, where none can be used.
pub fn find() -> Result<Library, NotFound> {
    SEARCH.load_first(Library::load, |error| matches!(error, LoadError::Open { .. }))
}
