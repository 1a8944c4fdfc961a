//! Compiles native kernels to machine code, with a cache on disk.

use crate::ffi::nvrtc;
use crate::processor::Source;
use sha2::{Digest, Sha256};
use std::path::{Path, PathBuf};
use stratus_base::checksum::hex;

/// Compiles native kernels for one compute capability.
pub(crate) struct Compiler {
    /// The compute capability, as 90 for 9.0.
    capability: u32,
    /// NVRTC's version, which the machine code depends on.
    version: String,
    /// The cache folder of `FILE-HASH.cubin` files.
    cache: Option<PathBuf>,
}

impl Compiler {
    /// Creates a compiler for a compute capability, as 90 for 9.0.
    ///
    /// # Errors
    /// NVRTC's error message.
    pub fn new(capability: u32, cache: Option<PathBuf>) -> Result<Self, String> {
        Ok(Self { capability, version: nvrtc::version()?, cache })
    }

    /// The compute capability of the compiled code.
    pub fn capability(&self) -> u32 {
        self.capability
    }

    /// The machine code of a source, and whether it was cached, in which case it may be damaged.
    ///
    /// # Errors
    /// The compiler's messages.
    pub fn code(&self, source: &Source) -> Result<(Vec<u8>, bool), String> {
        let text = source.text();
        match self.file(source, &text).and_then(|path| std::fs::read(path).ok()) {
            Some(code) => Ok((code, true)),
            None => Ok((self.compile_text(source, &text)?, false)),
        }
    }

    /// Compiles a source without reading the cache, and caches the result.
    ///
    /// # Errors
    /// The compiler's messages.
    pub fn compile(&self, source: &Source) -> Result<Vec<u8>, String> {
        self.compile_text(source, &source.text())
    }

    fn compile_text(&self, source: &Source, text: &str) -> Result<Vec<u8>, String> {
        let code = nvrtc::compile(text, source.file, &source.architecture(self.capability))?;
        if let Some(path) = self.file(source, text) {
            // If caching fails, the next process compiles again.
            let _ = write_atomically(&path, &code);
        }
        Ok(code)
    }

    fn file(&self, source: &Source, text: &str) -> Option<PathBuf> {
        let key = format!("{} {}\n{text}", self.version, source.architecture(self.capability));
        let sum = hex(&Sha256::digest(key.as_bytes())[..16]);
        Some(self.cache.as_ref()?.join(format!("{}-{sum}.cubin", source.file)))
    }
}

/// Writes a file so that a reader never sees it incomplete.
pub(crate) fn write_atomically(path: &Path, code: &[u8]) -> std::io::Result<()> {
    if let Some(folder) = path.parent() {
        std::fs::create_dir_all(folder)?;
    }
    let unfinished = path.with_extension(format!("{}.part", std::process::id()));
    std::fs::write(&unfinished, code)?;
    std::fs::rename(&unfinished, path)
}
