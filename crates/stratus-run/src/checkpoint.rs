//! Checkpoints: everything a run needs to continue with the same bits.
//!
//! `checkpoints/<iteration, ten digits>/` holds
//!
//! | file | content |
//! |---|---|
//! | `weights.safetensors` | parameters and running statistics under torchvision's names |
//! | `optimizer.safetensors` | the optimiser's tensors, named by the caller |
//! | `averaged.safetensors` | the moving average of the weights, under their names; only where there is one |
//! | `state.json` | [`State`]: position in training, libraries, totals |
//! | `manifest.json` | length and SHA-256 of those above |
//!
//! Weights are f32 (kernels OIHW), `num_batches_tracked` is i64.
//!
//! A checkpoint is written into a temporary folder, synced and renamed, so that it is complete or absent; the
//! one before it stays until the new one is safe. Loading takes the newest that verifies, and reports which
//! did not and why.

mod state;
mod tensors;

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, BufWriter, Read, Write};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use stratus_base::checksum::{hex, sha256_hex};

pub use state::{Best, State};
pub use stratus_weights::{Tensor, TensorRef, Values, write_safetensors};
pub use tensors::{read_safetensors, weights_sha256};

use crate::atomic::{self, Guarded};
use crate::{Error, Result};

/// The weights' file.
pub const WEIGHTS: &str = "weights.safetensors";
/// The optimiser's file.
pub const OPTIMIZER: &str = "optimizer.safetensors";
/// The averaged weights' file.
pub const AVERAGED: &str = "averaged.safetensors";
/// The state's file.
pub const STATE: &str = "state.json";
/// The checksums' file.
pub const MANIFEST: &str = "manifest.json";

const VERSION: u32 = 1;
/// The longest `state.json` or `manifest.json` that is read.
const JSON_LIMIT: u64 = 64 << 20;

/// The length and checksum of each file of a checkpoint.
#[derive(Debug, Serialize, Deserialize)]
struct Manifest {
    version: u32,
    files: BTreeMap<String, Entry>,
}

#[derive(Debug, Serialize, Deserialize)]
struct Entry {
    bytes: u64,
    sha256: String,
}

/// Which checkpoints stay when a new one is safe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Retention {
    /// So many of the newest, the new one included; at least one.
    pub last: usize,
    /// The iteration of one that stays in any case, such as the best so far.
    pub pinned: Option<u64>,
}

impl Default for Retention {
    fn default() -> Self {
        Self { last: 2, pinned: None }
    }
}

/// What [`Checkpoints::save`] has done.
#[derive(Debug)]
pub struct SavedCheckpoint {
    /// The checkpoint's folder.
    pub path: PathBuf,
    /// The checksum of the weights, see [`weights_sha256`].
    pub weights_sha256: String,
    /// Bytes written.
    pub bytes: u64,
    /// Why older checkpoints could not be removed, if they could not. The new one is safe all the same.
    pub not_pruned: Option<Error>,
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
    /// The moving average of the weights, under their names, where the run has one.
    pub averaged: Option<Vec<Tensor>>,
}

impl Checkpoint {
    /// The weights that are measured and exported: the averaged ones where there are such.
    #[must_use]
    pub fn measured(&self) -> &[Tensor] {
        self.averaged.as_ref().unwrap_or(&self.weights)
    }

    /// The file of those.
    #[must_use]
    pub fn measured_file(&self) -> PathBuf {
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

/// A checkpoint that was passed over.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DamagedCheckpoint {
    /// Its folder.
    pub path: PathBuf,
    /// What is wrong with it.
    pub reason: String,
}

/// What [`Checkpoints::load_latest`] has found.
#[derive(Debug)]
pub struct Recovery {
    /// The newest checkpoint that verifies; none if there is no such.
    pub checkpoint: Option<Checkpoint>,
    /// Newer ones that do not, newest first.
    pub damaged: Vec<DamagedCheckpoint>,
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

    /// The iterations that have a checkpoint, ascending. They may be damaged.
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

    /// Saves a checkpoint of `state.iteration`, then removes those that need not stay.
    ///
    /// `state.weights_sha256` is filled in. Checkpoints of later iterations are removed too: the run went
    /// back behind them, as they were damaged or the user chose to. If saving fails, older checkpoints are
    /// untouched.
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
            self.install(&temporary, &path)?;
            Ok(done)
        });
        let (weights_sha256, bytes) = match written {
            Ok(done) => done,
            Err(error) => {
                // Best effort: the next holder of the lock would remove it too.
                let _ = fs::remove_dir_all(&temporary);
                return Err(error);
            }
        };
        let not_pruned = self.prune(state.iteration, retention).err();
        Ok(SavedCheckpoint { path, weights_sha256, bytes, not_pruned })
    }

    /// Gives the finished folder its name.
    fn install(&self, temporary: &Path, path: &Path) -> Result<()> {
        let old = if path.exists() {
            // A folder cannot be renamed over one that is not empty.
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
        let all = self.list()?;
        let older = all.iter().rev().filter(|&&i| i < newest && Some(i) != retention.pinned);
        let later = all.iter().filter(|&&i| i > newest);
        older.skip(retention.last.max(1) - 1).chain(later).try_for_each(|&iteration| self.remove(iteration))
    }

    /// Removes every checkpoint: for a run that starts anew in a directory where an earlier start was killed.
    pub fn remove_all(&self) -> Result<()> {
        self.list()?.into_iter().try_for_each(|iteration| self.remove(iteration))
    }

    fn remove(&self, iteration: u64) -> Result<()> {
        let path = self.path(iteration);
        // Renamed first, so that a kill on the way leaves no damaged checkpoint.
        let gone = atomic::temporary_path(&path)?;
        fs::rename(&path, &gone).map_err(Error::io("remove", &path))?;
        fs::remove_dir_all(&gone).map_err(Error::io("remove", &gone))
    }

    /// Loads the newest checkpoint that verifies.
    ///
    /// Fails only if permission to read is missing: going back to an older one would then lose work for no
    /// reason.
    pub fn load_latest(&self) -> Result<Recovery> {
        let mut damaged = Vec::new();
        for &iteration in self.list()?.iter().rev() {
            match self.load(iteration) {
                Ok(checkpoint) => return Ok(Recovery { checkpoint: Some(checkpoint), damaged }),
                Err(Error::Io { action, path, source })
                    if source.kind() == io::ErrorKind::PermissionDenied =>
                {
                    return Err(Error::Io { action, path, source });
                }
                Err(error) => {
                    damaged.push(DamagedCheckpoint { path: self.path(iteration), reason: reason(&error) });
                }
            }
        }
        Ok(Recovery { checkpoint: None, damaged })
    }

    /// Loads and verifies the checkpoint of one iteration.
    pub fn load(&self, iteration: u64) -> Result<Checkpoint> {
        let path = self.path(iteration);
        let manifest: Manifest =
            parse(&path.join(MANIFEST), &read_at_most(&path.join(MANIFEST), JSON_LIMIT)?)?;
        check_version(&path.join(MANIFEST), manifest.version)?;
        let verified = |name: &str| -> Result<Vec<u8>> {
            let file = path.join(name);
            let entry = manifest
                .files
                .get(name)
                .ok_or_else(|| damaged(&path.join(MANIFEST), format!("no {name}")))?;
            let bytes = read_at_most(&file, entry.bytes)?;
            if bytes.len() as u64 != entry.bytes {
                return Err(damaged(
                    &file,
                    format!("it has {} bytes instead of {}", bytes.len(), entry.bytes),
                ));
            }
            if sha256_hex([bytes.as_slice()]) != entry.sha256 {
                return Err(damaged(&file, "its SHA-256 is not the recorded one"));
            }
            Ok(bytes)
        };
        let state: State = parse(&path.join(STATE), &verified(STATE)?)?;
        check_version(&path.join(STATE), state.version)?;
        if state.iteration != iteration {
            return Err(damaged(&path.join(STATE), format!("it is of iteration {}", state.iteration)));
        }
        let tensors = |name: &str| {
            read_safetensors(&verified(name)?).map_err(|reason| damaged(&path.join(name), reason))
        };
        let (weights, optimizer) = (tensors(WEIGHTS)?, tensors(OPTIMIZER)?);
        let averaged = manifest.files.contains_key(AVERAGED).then(|| tensors(AVERAGED)).transpose()?;
        Ok(Checkpoint { path, state, weights, optimizer, averaged })
    }
}

fn folder_name(iteration: u64) -> String {
    format!("{iteration:010}")
}

/// Writes and syncs all files of a checkpoint; gives the weights' checksum and the bytes written.
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

fn write_hashed(path: &Path, content: impl FnOnce(&mut dyn Write) -> io::Result<()>) -> Result<Entry> {
    let file = Guarded::create(path).map_err(Error::io("create", path))?;
    let mut out = BufWriter::with_capacity(1 << 18, Hashing { file, hasher: Sha256::new(), bytes: 0 });
    content(&mut out).and_then(|()| out.flush()).map_err(|e| match e.kind() {
        io::ErrorKind::InvalidInput => Error::invalid(path, e.to_string()),
        _ => Error::io("write", path)(e),
    })?;
    let Hashing { file, hasher, bytes } =
        out.into_inner().map_err(|e| Error::io("write", path)(e.into_error()))?;
    file.sync().map_err(Error::io("sync", path))?;
    Ok(Entry { bytes, sha256: hex(&hasher.finalize()) })
}

struct Hashing {
    file: Guarded,
    hasher: Sha256,
    bytes: u64,
}

impl Write for Hashing {
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

/// Reads a file, and one byte beyond `limit` at most.
fn read_at_most(path: &Path, limit: u64) -> Result<Vec<u8>> {
    let file = File::open(path).map_err(Error::io("open", path))?;
    let length = file.metadata().map_err(Error::io("inspect", path))?.len().min(limit);
    let mut bytes = Vec::new();
    // A failed reservation is a refusal here, not the end of the process.
    usize::try_from(length)
        .ok()
        .and_then(|length| bytes.try_reserve_exact(length.saturating_add(1)).ok())
        .ok_or_else(|| Error::io("read", path)(io::ErrorKind::OutOfMemory.into()))?;
    file.take(limit.saturating_add(1)).read_to_end(&mut bytes).map_err(Error::io("read", path))?;
    Ok(bytes)
}

fn parse<T: for<'a> Deserialize<'a>>(path: &Path, bytes: &[u8]) -> Result<T> {
    serde_json::from_slice(bytes).map_err(|e| damaged(path, format!("not the JSON it should be ({e})")))
}

fn check_version(path: &Path, version: u32) -> Result<()> {
    if version == VERSION {
        return Ok(());
    }
    Err(damaged(path, format!("its format is version {version}, this program reads {VERSION}")))
}

fn damaged(path: &Path, reason: impl Into<String>) -> Error {
    Error::damaged(path, reason, "continue from an earlier checkpoint, or restore it from a copy")
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
