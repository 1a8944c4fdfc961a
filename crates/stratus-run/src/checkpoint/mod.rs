//! Checkpoints: everything that a run needs to resume bit-identically.
//!
//! Files of `checkpoints/<iteration, ten digits>/`:
//!
//! | file | content |
//! |---|---|
//! | `weights.safetensors` | parameters and running statistics under torchvision's names |
//! | `optimizer.safetensors` | tensors of the optimiser, named by the caller |
//! | `averaged.safetensors` | moving average of the weights, under their names; only if there is one |
//! | `state.json` | [`State`]: position in training, libraries, totals |
//! | `manifest.json` | length and SHA-256 of the other files |
//!
//! Weights are f32 (kernels OIHW), `num_batches_tracked` is i64.
//!
//! A checkpoint is written into a temporary folder, synced and renamed, so that it is complete or absent; the
//! previous one stays until the new one is safe. Loading takes the newest checkpoint that verifies, and
//! reports the skipped ones with the reason.

mod describe;
mod state;
mod tensors;

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use stratus_base::checksum::{hex, sha256_hex};
use stratus_base::read_at_most;

pub use describe::CheckpointInfo;
pub use state::{BestCheckpoint, State};
pub use stratus_weights::{Tensor, TensorRef, Values, write_safetensors};
pub use tensors::{read_safetensors, weights_sha256};

use crate::atomic::{self, FaultableFile, MAX_JSON_BYTES};
use crate::layout::{AVERAGED, MANIFEST, OPTIMIZER, STATE, WEIGHTS};
use crate::{Error, Result};

const VERSION: u32 = 1;

/// The length and checksum of each file of a checkpoint.
#[derive(Debug, Serialize, Deserialize)]
struct Manifest {
    version: u32,
    files: BTreeMap<String, FileEntry>,
}

#[derive(Debug, Serialize, Deserialize)]
struct FileEntry {
    bytes: u64,
    sha256: String,
}

/// The checkpoints to keep once a new one is safe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Retention {
    /// The number of newest checkpoints to keep, including the new one; at least one.
    pub last: usize,
    /// The iteration of a checkpoint that is always kept, such as the best so far.
    pub pinned: Option<u64>,
}

impl Default for Retention {
    fn default() -> Self {
        Self { last: 2, pinned: None }
    }
}

/// The result of [`Checkpoints::save`].
#[derive(Debug)]
pub struct SavedCheckpoint {
    /// The checkpoint's folder.
    pub path: PathBuf,
    /// The checksum of the weights, see [`weights_sha256`].
    pub weights_sha256: String,
    /// Bytes written.
    pub bytes: u64,
    /// The reasons why older checkpoints could not be removed; the new one is safe nevertheless.
    pub prune_error: Option<Error>,
}

/// A checkpoint in memory.
#[derive(Clone, Debug, PartialEq)]
pub struct Checkpoint {
    /// Its folder.
    pub path: PathBuf,
    /// The state of the run.
    pub state: State,
    /// Parameters and running statistics, by name.
    pub weights: Vec<Tensor>,
    /// The optimiser's tensors, by name.
    pub optimizer: Vec<Tensor>,
    /// The moving average of the weights, under their names, if the run has one.
    pub averaged: Option<Vec<Tensor>>,
}

impl Checkpoint {
    /// The weights to evaluate and export: the averaged ones, if any.
    #[must_use]
    pub fn evaluation_weights(&self) -> &[Tensor] {
        self.averaged.as_ref().unwrap_or(&self.weights)
    }

    /// The file of [`Self::evaluation_weights`].
    #[must_use]
    pub fn evaluation_weights_file(&self) -> PathBuf {
        self.path.join(if self.averaged.is_some() { AVERAGED } else { WEIGHTS })
    }
}

/// The tensors of a checkpoint to be saved.
#[derive(Clone, Debug, Default)]
pub struct Tensors<'a> {
    /// Parameters and running statistics.
    pub weights: Vec<TensorRef<'a>>,
    /// The optimiser's tensors.
    pub optimizer: Vec<TensorRef<'a>>,
    /// The moving average of the weights, under their names, if there is one.
    pub averaged: Option<Vec<TensorRef<'a>>>,
}

/// A checkpoint that was skipped.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DamagedCheckpoint {
    /// Its folder.
    pub path: PathBuf,
    /// The reason.
    pub reason: String,
}

/// The result of [`Checkpoints::load_latest`].
#[derive(Debug)]
pub struct Recovery {
    /// The newest checkpoint that verifies, if any.
    pub checkpoint: Option<Checkpoint>,
    /// Newer checkpoints that do not verify, newest first.
    pub skipped: Vec<DamagedCheckpoint>,
}

/// The checkpoints of a run.
#[derive(Clone, Debug)]
pub struct Checkpoints {
    folder: PathBuf,
}

impl Checkpoints {
    /// The checkpoints in `folder`, which need not exist yet.
    #[must_use]
    pub fn new(folder: impl Into<PathBuf>) -> Self {
        Self { folder: folder.into() }
    }

    /// The iterations of all checkpoints, ascending. Some may be damaged.
    pub fn list(&self) -> Result<Vec<u64>> {
        let entries = match fs::read_dir(&self.folder) {
            Ok(entries) => entries,
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(e) => return Err(Error::io("read the folder", &self.folder)(e)),
        };
        let mut found = Vec::new();
        for entry in entries {
            let name = entry.map_err(Error::io("read the folder", &self.folder))?.file_name();
            let iteration = name.to_str().and_then(|name| name.parse().ok());
            found.extend(iteration.filter(|&i| name.to_str() == Some(&folder_name(i))));
        }
        found.sort_unstable();
        Ok(found)
    }

    /// The folder of an iteration's checkpoint.
    #[must_use]
    pub fn path(&self, iteration: u64) -> PathBuf {
        self.folder.join(folder_name(iteration))
    }

    /// Saves a checkpoint of `state.iteration`, then removes those that need not be kept.
    ///
    /// `state.weights_sha256` is filled in. Checkpoints of later iterations are removed too: the run
    /// restarted before them because they were damaged, or because the user requested it. If saving fails,
    /// older checkpoints are untouched.
    pub fn save(
        &self,
        state: &State,
        tensors: &Tensors<'_>,
        retention: &Retention,
    ) -> Result<SavedCheckpoint> {
        fs::create_dir_all(&self.folder).map_err(Error::io("create the folder", &self.folder))?;
        let path = self.path(state.iteration);
        let temporary = atomic::temporary_path(&path)?;
        let written = write_folder(&temporary, state, tensors).and_then(|done| {
            self.publish(&temporary, &path)?;
            Ok(done)
        });
        let (weights_sha256, bytes) = match written {
            Ok(done) => done,
            Err(error) => {
                // If the removal fails, the next holder of the lock removes the folder.
                let _ = fs::remove_dir_all(&temporary);
                return Err(error);
            }
        };
        let prune_error = self.prune(state.iteration, retention).err();
        Ok(SavedCheckpoint { path, weights_sha256, bytes, prune_error })
    }

    /// Renames the finished folder to its final name.
    fn publish(&self, temporary: &Path, path: &Path) -> Result<()> {
        let old = if path.exists() {
            // A folder cannot be renamed over a non-empty folder.
            let old = atomic::temporary_path(path)?;
            fs::rename(path, &old).map_err(Error::io("replace", path))?;
            Some(old)
        } else {
            None
        };
        fs::rename(temporary, path).map_err(Error::io("replace", path))?;
        atomic::sync_folder(&self.folder)?;
        old.map_or(Ok(()), |old| fs::remove_dir_all(&old).map_err(Error::io("remove", &old)))
    }

    fn prune(&self, newest: u64, retention: &Retention) -> Result<()> {
        // A removal may have failed before, for example without free descriptors.
        atomic::clean(&self.folder)?;
        let all = self.list()?;
        let older = all.iter().rev().filter(|&&i| i < newest && Some(i) != retention.pinned);
        let later = all.iter().filter(|&&i| i > newest);
        older.skip(retention.last.max(1) - 1).chain(later).try_for_each(|&iteration| self.remove(iteration))
    }

    /// Removes every checkpoint, for a run that restarts in a directory where an earlier start was killed.
    pub fn remove_all(&self) -> Result<()> {
        self.list()?.into_iter().try_for_each(|iteration| self.remove(iteration))
    }

    fn remove(&self, iteration: u64) -> Result<()> {
        let path = self.path(iteration);
        // The folder is renamed first, so that a kill during removal leaves no damaged checkpoint.
        let removed = atomic::temporary_path(&path)?;
        fs::rename(&path, &removed).map_err(Error::io("remove", &path))?;
        fs::remove_dir_all(&removed).map_err(Error::io("remove", &removed))
    }

    /// Loads the newest checkpoint that verifies.
    ///
    /// # Errors
    /// If the folder cannot be listed, or a checkpoint cannot be read although it may be whole, for example
    /// without permission or without free descriptors: falling back to an older checkpoint would then lose
    /// work for no reason. A failing disk is such an error only if no checkpoint can be read.
    pub fn load_latest(&self) -> Result<Recovery> {
        let (mut damaged, mut disk_error) = (Vec::new(), None);
        for &iteration in self.list()?.iter().rev() {
            let error = match self.load(iteration) {
                Ok(checkpoint) => return Ok(Recovery { checkpoint: Some(checkpoint), skipped: damaged }),
                Err(error) => error,
            };
            damaged.push(DamagedCheckpoint { path: self.path(iteration), reason: reason(&error) });
            match read_failure(&error) {
                ReadFailure::Damage => {}
                ReadFailure::Disk => disk_error = disk_error.or(Some(error)),
                ReadFailure::Access => return Err(error),
            }
        }
        disk_error.map_or(Ok(Recovery { checkpoint: None, skipped: damaged }), Err)
    }

    /// Loads and verifies the checkpoint of one iteration.
    pub fn load(&self, iteration: u64) -> Result<Checkpoint> {
        let path = self.path(iteration);
        let manifest: Manifest = parse(&path.join(MANIFEST), &read(&path.join(MANIFEST), MAX_JSON_BYTES)?)?;
        check_version(&path.join(MANIFEST), manifest.version)?;
        let verified = |name: &str| -> Result<Vec<u8>> {
            let file = path.join(name);
            let entry = manifest
                .files
                .get(name)
                .ok_or_else(|| damaged(&path.join(MANIFEST), format!("no {name}")))?;
            let bytes = read(&file, entry.bytes)?;
            if bytes.len() as u64 != entry.bytes {
                return Err(damaged(
                    &file,
                    format!("it has {} bytes instead of {}", bytes.len(), entry.bytes),
                ));
            }
            if sha256_hex([bytes.as_slice()]) != entry.sha256 {
                return Err(damaged(&file, "its SHA-256 does not match the manifest"));
            }
            Ok(bytes)
        };
        let state: State = parse(&path.join(STATE), &verified(STATE)?)?;
        check_version(&path.join(STATE), state.version)?;
        if state.iteration != iteration {
            return Err(damaged(&path.join(STATE), format!("it belongs to iteration {}", state.iteration)));
        }
        let tensors = |name: &str| {
            read_safetensors(&verified(name)?).map_err(|reason| damaged(&path.join(name), reason))
        };
        let (weights, optimizer) = (tensors(WEIGHTS)?, tensors(OPTIMIZER)?);
        let averaged = manifest.files.contains_key(AVERAGED).then(|| tensors(AVERAGED)).transpose()?;
        Ok(Checkpoint { path, state, weights, optimizer, averaged })
    }
}

/// The causes why a checkpoint cannot be loaded.
enum ReadFailure {
    /// A file is missing or its content is wrong.
    Damage,
    /// The disk cannot read a file.
    Disk,
    /// The file may be whole, and another attempt may succeed.
    Access,
}

fn read_failure(error: &Error) -> ReadFailure {
    /// `EIO` of Linux and macOS, which has no [`io::ErrorKind`].
    const INPUT_OUTPUT_ERROR: i32 = 5;
    let Error::Io { source, .. } = error else { return ReadFailure::Damage };
    match source.kind() {
        io::ErrorKind::NotFound | io::ErrorKind::NotADirectory | io::ErrorKind::IsADirectory => {
            ReadFailure::Damage
        }
        _ if cfg!(unix) && source.raw_os_error() == Some(INPUT_OUTPUT_ERROR) => ReadFailure::Disk,
        _ => ReadFailure::Access,
    }
}

fn folder_name(iteration: u64) -> String {
    format!("{iteration:010}")
}

/// Writes and syncs all files of a checkpoint; returns the checksum of the weights and the bytes written.
fn write_folder(folder: &Path, state: &State, tensors: &Tensors<'_>) -> Result<(String, u64)> {
    fs::create_dir(folder).map_err(Error::io("create the folder", folder))?;
    let Tensors { weights, optimizer, averaged } = tensors;
    let weights_sha256 = weights_sha256(weights).map_err(Error::io("write", folder))?;
    let mut files = BTreeMap::new();
    let all = [(WEIGHTS, Some(weights)), (OPTIMIZER, Some(optimizer)), (AVERAGED, averaged.as_ref())];
    for (name, tensors) in all {
        let Some(tensors) = tensors else { continue };
        let entry =
            write_hashed(&folder.join(name), |out| write_safetensors(out, tensors, &BTreeMap::new()))?;
        files.insert(name.to_string(), entry);
    }
    let state = State { version: VERSION, weights_sha256, ..state.clone() };
    let path = folder.join(STATE);
    let json = serde_json::to_vec_pretty(&state).map_err(|e| Error::invalid(&path, e.to_string()))?;
    files.insert(STATE.to_string(), write_hashed(&path, |out| out.write_all(&json))?);
    let bytes = files.values().map(|entry| entry.bytes).sum();
    let path = folder.join(MANIFEST);
    let json = serde_json::to_vec_pretty(&Manifest { version: VERSION, files })
        .map_err(|e| Error::invalid(&path, e.to_string()))?;
    atomic::write_synced(&path, |out| out.write_all(&json).map_err(Error::io("write", &path)))?;
    atomic::sync_folder(folder)?;
    Ok((state.weights_sha256, bytes))
}

fn write_hashed(path: &Path, content: impl FnOnce(&mut dyn Write) -> io::Result<()>) -> Result<FileEntry> {
    let file = FaultableFile::create(path).map_err(Error::io("create", path))?;
    let mut out = BufWriter::with_capacity(1 << 18, HashingWriter { file, hasher: Sha256::new(), bytes: 0 });
    content(&mut out).and_then(|()| out.flush()).map_err(|e| match e.kind() {
        io::ErrorKind::InvalidInput => Error::invalid(path, e.to_string()),
        _ => Error::io("write", path)(e),
    })?;
    let HashingWriter { file, hasher, bytes } =
        out.into_inner().map_err(|e| Error::io("write", path)(e.into_error()))?;
    file.sync().map_err(Error::io("sync", path))?;
    Ok(FileEntry { bytes, sha256: hex(&hasher.finalize()) })
}

struct HashingWriter {
    file: FaultableFile,
    hasher: Sha256,
    bytes: u64,
}

impl Write for HashingWriter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let n = self.file.write(bytes)?;
        self.hasher.update(&bytes[..n]);
        self.bytes += n as u64;
        Ok(n)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

/// Reads a file, which is damaged if it has more than `max_bytes` bytes.
fn read(path: &Path, max_bytes: u64) -> Result<Vec<u8>> {
    read_at_most(path, max_bytes).map_err(|error| match error.kind() {
        io::ErrorKind::InvalidData => damaged(path, error.to_string()),
        _ => Error::io("read", path)(error),
    })
}

fn parse<T: for<'a> Deserialize<'a>>(path: &Path, bytes: &[u8]) -> Result<T> {
    serde_json::from_slice(bytes).map_err(|error| damaged(path, atomic::unexpected_json(&error)))
}

fn check_version(path: &Path, version: u32) -> Result<()> {
    if version == VERSION {
        return Ok(());
    }
    Err(damaged(path, format!("unsupported format version {version}; expected {VERSION}")))
}

fn damaged(path: &Path, reason: impl Into<String>) -> Error {
    Error::damaged(path, reason, "resume from an earlier checkpoint, or restore it from a copy")
}

fn reason(error: &Error) -> String {
    match error {
        Error::Damaged { path, reason, .. } => {
            format!("{}: {reason}", path.file_name().unwrap_or_default().to_string_lossy())
        }
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests;
