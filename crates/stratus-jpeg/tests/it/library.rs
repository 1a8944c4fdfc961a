//! What is no libjpeg-turbo is refused, and why; what is one says what it is.

use crate::common::libraries;
use std::path::Path;
use stratus_jpeg::{Library, LoadError};

#[test]
fn a_library_says_what_it_is() {
    for library in libraries() {
        assert!(library.path().is_file(), "{library:?}");
        let version = library.version().unwrap();
        assert!(
            version.split('.').count() >= 3 && version.starts_with(|first: char| first.is_ascii_digit()),
            "{version}"
        );
    }
}

#[test]
fn what_is_none_is_refused() {
    let missing = Library::load(Path::new("/nowhere/libjpeg.so.62")).unwrap_err();
    assert!(matches!(missing, LoadError::Open { .. }), "{missing}");
    let text = Library::load(&Path::new(env!("CARGO_MANIFEST_DIR")).join("Cargo.toml")).unwrap_err();
    assert!(matches!(text, LoadError::Open { .. }), "{text}");
    if cfg!(target_os = "linux") {
        let other = Library::load(Path::new("libc.so.6")).unwrap_err().to_string();
        assert_eq!(
            other,
            "libc.so.6 has no function jpeg_crop_scanline: it is not libjpeg-turbo 1.5 or newer"
        );
    }
}
