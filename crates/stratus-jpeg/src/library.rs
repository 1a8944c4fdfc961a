//! The search for libjpeg-turbo.

use crate::ffi::{Library, LoadError};
use std::path::PathBuf;
pub use stratus_base::library::LibraryNotFound;
use stratus_base::library::LibrarySearch;

/// The environment variable with the library file, or with a folder that contains it. It takes precedence
/// over all other places.
pub const LIBRARY_VARIABLE: &str = "STRATUS_LIBJPEG";

/// The file names on this system by ABI: that of Debian and `make deps`, then that of Ubuntu.
#[cfg(target_os = "macos")]
pub const LIBRARY_FILES: [&str; 2] = ["libjpeg.62.dylib", "libjpeg.8.dylib"];
/// The file names on this system by ABI: that of Debian and `make deps`, then that of Ubuntu.
#[cfg(not(target_os = "macos"))]
pub const LIBRARY_FILES: [&str; 2] = ["libjpeg.so.62", "libjpeg.so.8"];

const SEARCH: LibrarySearch = LibrarySearch {
    name: "libjpeg-turbo",
    environment: LIBRARY_VARIABLE,
    files: &LIBRARY_FILES,
    dependency_folder: ".deps/libjpeg/lib",
    homebrew_folder: "/opt/homebrew/opt/jpeg-turbo/lib",
};

/// The paths in the order of the search, see [`LibrarySearch::candidates`].
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
/// If no library is usable; the error lists every path with the reason.
pub fn find() -> Result<Library, LibraryNotFound> {
    SEARCH.load_first(Library::load, |error| matches!(error, LoadError::Open { .. }))
}
