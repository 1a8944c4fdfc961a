//! An ONNX file in memory.

use crate::error::{Problem, Result};
use crate::import::{ImportOptions, ImportedNetwork, import};
use crate::proto;
use crate::tensor::ModelFolder;
use crate::wire::MAX_FILE_BYTES;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

/// An ONNX model in memory, not decoded yet.
#[derive(Debug)]
pub struct Model {
    path: PathBuf,
    bytes: Vec<u8>,
    /// The folder of external weights.
    folder: Option<ModelFolder>,
}

impl Model {
    /// Reads a file. External weights are read only from its folder or, if it is a symbolic link, from the
    /// folder of the target.
    ///
    /// # Errors
    /// If the file cannot be read, or exceeds the size limit of ONNX files.
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        let path = path.as_ref();
        let read = || {
            let file = File::open(path).map_err(Problem::io("open"))?;
            let length = file.metadata().map_err(Problem::io("inspect"))?.len();
            let mut bytes = Vec::new();
            usize::try_from(length.min(MAX_FILE_BYTES))
                .ok()
                .and_then(|length| bytes.try_reserve_exact(length).ok())
                .ok_or_else(|| {
                    Problem::io("allocate memory for it")(std::io::Error::other("the memory is exhausted"))
                })?;
            // Reading one byte more than the limit detects larger files without reading them whole.
            file.take(MAX_FILE_BYTES + 1).read_to_end(&mut bytes).map_err(Problem::io("read"))?;
            if bytes.len() as u64 > MAX_FILE_BYTES {
                return Err(Problem::Limit { items: "bytes", limit: MAX_FILE_BYTES });
            }
            Ok(bytes)
        };
        let bytes = read().map_err(|problem| problem.in_file(path))?;
        Ok(Self { path: path.to_owned(), bytes, folder: Some(ModelFolder::for_model(path)) })
    }

    /// Takes a file that is already in memory. Errors refer to it as `path`. External weights are an error.
    #[must_use]
    pub fn from_bytes(path: impl AsRef<Path>, bytes: Vec<u8>) -> Self {
        Self { path: path.as_ref().to_owned(), bytes, folder: None }
    }

    /// Converts the model to a network with its weights.
    ///
    /// # Errors
    /// If the file is damaged or unsupported. All unsupported nodes are listed.
    pub fn import(&self, options: &ImportOptions) -> Result<ImportedNetwork> {
        proto::Model::read(&self.bytes)
            .and_then(|model| import(&model, self.folder.as_ref(), options))
            .map_err(|problem| problem.in_file(&self.path))
    }
}
