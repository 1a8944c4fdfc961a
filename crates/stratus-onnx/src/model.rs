//! An ONNX file in memory.

use crate::error::{Problem, Result};
use crate::import::{Imported, Options, import};
use crate::proto;
use crate::tensor::Folder;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

/// The most bytes of a file: no protobuf message is longer.
pub(crate) const LONGEST: u64 = (1 << 31) - 1;

/// An ONNX model that was read and not yet looked into.
#[derive(Debug)]
pub struct Model {
    path: PathBuf,
    bytes: Vec<u8>,
    /// Where weights may lie that are in files of their own.
    folder: Option<Folder>,
}

impl Model {
    /// Reads a file. Weights in another file are read from the folder it lies in, or where it is a link from
    /// the folder that it leads to, and from nowhere else.
    ///
    /// # Errors
    /// Where it cannot be read, or is longer than an ONNX file can be.
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        let path = path.as_ref();
        let read = || {
            let file = File::open(path).map_err(Problem::io("open"))?;
            let length = file.metadata().map_err(Problem::io("inspect"))?.len();
            let mut bytes = Vec::new();
            usize::try_from(length.min(LONGEST))
                .ok()
                .and_then(|length| bytes.try_reserve_exact(length).ok())
                .ok_or_else(|| {
                    Problem::io("find the memory to read it")(std::io::ErrorKind::OutOfMemory.into())
                })?;
            // One byte more than there may be: whatever the path names, no more of it is read.
            file.take(LONGEST + 1).read_to_end(&mut bytes).map_err(Problem::io("read"))?;
            if bytes.len() as u64 > LONGEST {
                return Err(Problem::Limit { what: "bytes in it", limit: LONGEST });
            }
            Ok(bytes)
        };
        let bytes = read().map_err(|problem| problem.at(path))?;
        Ok(Self { path: path.to_owned(), bytes, folder: Some(Folder::of(path)) })
    }

    /// The same of a file that is in memory already; `path` is what errors call it. Weights in other files
    /// are refused.
    #[must_use]
    pub fn from_bytes(path: impl AsRef<Path>, bytes: Vec<u8>) -> Self {
        Self { path: path.as_ref().to_owned(), bytes, folder: None }
    }

    /// The network that the model computes, with its weights.
    ///
    /// # Errors
    /// Where the file is damaged, or is no network of the operations that layers compute: every node that is
    /// in the way is listed.
    pub fn import(&self, options: &Options) -> Result<Imported> {
        proto::Model::read(&self.bytes)
            .and_then(|model| import(&model, self.folder.as_ref(), options))
            .map_err(|problem| problem.at(&self.path))
    }
}
