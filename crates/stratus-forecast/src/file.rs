//! Reads files of bounded size.

use crate::error::{Error, Result};
use std::path::Path;
use stratus_base::read_text_at_most;

/// Reads a text of at most `max_bytes` bytes.
pub(crate) fn read(path: &Path, max_bytes: usize) -> Result<String> {
    read_text_at_most(path, max_bytes as u64)
        .map_err(|error| Error::Read { file: path.display().to_string(), problem: error.to_string() })
}
