//! Reads files of bounded size.

use crate::error::{Error, Result};
use std::fs::File;
use std::io::Read;
use std::path::Path;

/// Reads a file up to one byte beyond `max_bytes`, so that an endless file is rejected by its parser.
pub(crate) fn read(path: &Path, max_bytes: usize) -> Result<String> {
    let mut text = String::new();
    File::open(path)
        .and_then(|file| file.take(max_bytes as u64 + 1).read_to_string(&mut text))
        .map_err(|error| Error::Read { file: path.display().to_string(), problem: error.to_string() })?;
    Ok(text)
}
