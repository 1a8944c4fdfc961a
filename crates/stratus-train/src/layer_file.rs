//! Reads layer files.

use crate::TrainError;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use stratus_graph::{Graph, layer_file};

/// The path and content of a layer file.
#[derive(Clone, Debug, PartialEq)]
pub struct LayerFile {
    /// Its path.
    pub path: PathBuf,
    /// Its content.
    pub text: String,
}

impl LayerFile {
    /// Reads a layer file and the network that it describes.
    ///
    /// # Errors
    /// If it cannot be read, or is invalid.
    pub fn read(path: &Path) -> Result<(Self, Graph), TrainError> {
        Self::read_for(path, None)
    }

    /// Reads a layer file for images of another shape, `[C, H, W]`, than the file's.
    ///
    /// # Errors
    /// As [`Self::read`], and if a layer does not support the shape that results.
    pub fn read_for(path: &Path, images: Option<[usize; 3]>) -> Result<(Self, Graph), TrainError> {
        let fault = |problem: String| TrainError::LayerFile { path: path.to_owned(), problem };
        let mut text = String::new();
        // One byte more than the size limit is enough to detect a file that is too large.
        File::open(path)
            .and_then(|file| file.take(layer_file::MAX_FILE_BYTES as u64 + 1).read_to_string(&mut text))
            .map_err(|error| fault(error.to_string()))?;
        let graph = layer_file::parse_with_input(&text, images).map_err(|error| fault(error.to_string()))?;
        Ok((Self { path: path.to_owned(), text }, graph))
    }
}
