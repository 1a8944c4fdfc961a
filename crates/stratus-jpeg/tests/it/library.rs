//! Loading of libjpeg-turbo and the rejection of other files.

use crate::common::libraries;
use std::path::Path;
use stratus_jpeg::{Library, LoadError};

#[test]
fn reports_path_and_version() {
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
fn rejects_other_files_and_libraries() {
    let missing = Library::load(Path::new("/nowhere/libjpeg.so.62")).unwrap_err();
    assert!(matches!(missing, LoadError::Open { .. }), "{missing}");
    let text = Library::load(&Path::new(env!("CARGO_MANIFEST_DIR")).join("Cargo.toml")).unwrap_err();
    assert!(matches!(text, LoadError::Open { .. }), "{text}");
    assert!(!text.to_string().contains("dlopen failed"), "the linker's message has the reason: {text}");
    if cfg!(target_os = "linux") {
        let other = Library::load(Path::new("libc.so.6")).unwrap_err().to_string();
        assert_eq!(other, "libc.so.6 is not libjpeg-turbo 1.5 or newer: no function jpeg_crop_scanline");
    }
}
