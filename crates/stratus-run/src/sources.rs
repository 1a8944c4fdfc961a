//! `sources.json`: the external files that a run started from. Only the teacher is needed to resume it: its
//! checkpoints have the weights, and the layer file is copied.

use std::fs::File;
use std::path::Path;

use serde::{Deserialize, Serialize};
use stratus_base::checksum::{sha256_hex, sha256_of_reader};

use crate::{Error, Result, atomic};

/// The content of `sources.json`. Every key is always written, `null` for a file that the run does not have.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sources {
    /// The file of the initial weights.
    pub weights: Option<Source>,
    /// The layer file.
    pub network: Option<Source>,
    /// The weights of the teacher.
    pub teacher: Option<Source>,
}

/// The state of a file at the start of the run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Source {
    /// Its path.
    pub path: String,
    /// Its length.
    pub bytes: u64,
    /// Its SHA-256 in lower-case hexadecimal.
    pub sha256: String,
}

impl Sources {
    /// Reads `sources.json`; returns no sources if it is missing.
    pub fn read(path: &Path) -> Result<Self> {
        if path.exists() { atomic::read_json(path) } else { Ok(Self::default()) }
    }

    /// Replaces `sources.json`.
    pub fn write(&self, path: &Path) -> Result<()> {
        atomic::write_json(path, self)
    }
}

impl Source {
    /// Describes a file; reads it once, as a stream.
    pub fn from_file(path: &Path) -> Result<Self> {
        let file = File::open(path).map_err(Error::io("open", path))?;
        let (bytes, sha256) = sha256_of_reader(file).map_err(Error::io("read", path))?;
        Ok(Self { path: path.display().to_string(), bytes, sha256 })
    }

    /// Describes a file whose content is `bytes`.
    #[must_use]
    pub fn from_bytes(path: &Path, bytes: &[u8]) -> Self {
        let sha256 = sha256_hex([bytes]);
        Self { path: path.display().to_string(), bytes: bytes.len() as u64, sha256 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn file_and_its_bytes_give_the_same_source() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("abc");
        std::fs::write(&path, "abc").unwrap();
        let source = Source::from_file(&path).unwrap();
        // The example of FIPS 180-2.
        assert_eq!(source.sha256, "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
        assert_eq!(source, Source::from_bytes(&path, b"abc"));
        assert_eq!(source.bytes, 3);
    }

    #[test]
    fn survives_a_round_trip_and_a_missing_file_is_empty() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("sources.json");
        assert_eq!(Sources::read(&path).unwrap(), Sources::default());
        let sources =
            Sources { weights: Some(Source::from_bytes(Path::new("w.pth"), b"1")), ..Sources::default() };
        sources.write(&path).unwrap();
        assert_eq!(Sources::read(&path).unwrap(), sources);
        std::fs::write(&path, "[").unwrap();
        assert!(Sources::read(&path).unwrap_err().to_string().contains("sources.json is damaged"));
    }
}
