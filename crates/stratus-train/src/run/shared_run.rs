//! The run directory of several workers. Worker 0 writes it, and the others read it.
//!
//! A worker on a machine that does not see this directory gets a copy of the files that workers read. The
//! copy is a private temporary folder of this worker, which also takes the files that the worker writes. It
//! is removed when the worker ends.

use super::process_group::ProcessGroup;
use crate::{Observer, TrainError};
use serde::{Deserialize, Serialize};
use std::ffi::OsString;
use std::fs::{self, DirBuilder, File};
use std::io::{self, ErrorKind, Read, Write};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Component, Path, PathBuf};
use stratus_base::Secret;
use stratus_base::text::counted;
use stratus_exchange::WorkerGroup;
use stratus_run::RunDir;
use stratus_run::checkpoint::Checkpoints;
use stratus_run::layout::{CHECKPOINTS, CLASSES, DATA, EXPERIMENT, NETWORK, PLAN, SOURCES, SUMMARY};

/// The files of a run, besides its checkpoint, that every worker reads when the run is resumed.
const READ_FILES: [&str; 7] = [PLAN, DATA, SOURCES, NETWORK, CLASSES, SUMMARY, EXPERIMENT];
/// The first part of the names of copies, and their lock.
const COPY_PREFIX: &str = "stratus-run-";
const COPY_LOCK: &str = "lock";
/// The number of bytes of a file that are sent at a time.
const CHUNK_BYTES: usize = 16 << 20;

/// The files that workers need of a run whose directory they do not see.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SharedFiles {
    /// None: all workers have already read what they need.
    None,
    /// Those that are read when a run is resumed.
    ForResume,
}

/// The run directory of a worker.
pub(super) struct SharedRun {
    /// The run, or its copy on this machine.
    pub run: RunDir,
    /// The folder that this worker writes.
    pub own: RunDir,
    /// The copy, which is removed on drop.
    pub copy: Option<RunCopy>,
}

/// A private temporary folder in place of a run directory; removed on drop.
pub(super) struct RunCopy {
    folder: PathBuf,
    /// Locked while the worker lives.
    _lock: File,
}

impl RunCopy {
    /// Creates a folder in `folder`, where it removes those of workers that were killed.
    fn create(folder: &Path) -> Result<Self, TrainError> {
        remove_abandoned(folder);
        let created = Secret::random().and_then(|secret| {
            let folder = folder.join(format!("{COPY_PREFIX}{}", secret.as_str()));
            DirBuilder::new().mode(0o700).create(&folder)?;
            // A file with the name of the lock is always locked, unless its worker has died.
            let unnamed = folder.join(format!("{COPY_LOCK}.new"));
            let lock = File::create_new(&unnamed)?;
            lock.lock()?;
            fs::rename(unnamed, folder.join(COPY_LOCK))?;
            Ok(Self { folder, _lock: lock })
        });
        created.map_err(file_error("create a folder in", folder))
    }

    /// The directory of the run.
    fn run(&self) -> PathBuf {
        self.folder.join("run")
    }

    /// Removes the checkpoint, once it is loaded.
    pub(super) fn remove_checkpoints(&self) {
        // The whole folder is removed at the end.
        let _ = fs::remove_dir_all(self.run().join(CHECKPOINTS));
    }
}

impl Drop for RunCopy {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.folder);
    }
}

/// Removes copies whose workers have died.
fn remove_abandoned(folder: &Path) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let is_copy = entry.file_name().to_string_lossy().starts_with(COPY_PREFIX);
        let lock = is_copy.then(|| File::open(entry.path().join(COPY_LOCK)).ok()).flatten();
        if lock.is_some_and(|lock| lock.try_lock().is_ok()) {
            // Those of other users stay.
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}

/// A file by which workers find out whether they see the run directory; removed on drop. Its name is that of
/// a temporary file, so that the next holder of the run's lock removes one that a killed worker left.
struct Probe {
    path: PathBuf,
}

impl Probe {
    fn create(run: &RunDir) -> Result<Self, TrainError> {
        let created = Secret::random().and_then(|secret| {
            let path = run.path().join(format!(".workers.{}.tmp", secret.as_str()));
            // So that other machines see it on a network file system.
            File::create_new(&path)?.sync_all()?;
            Ok(Self { path })
        });
        created.map_err(file_error("create a file in", run.path()))
    }
}

impl Drop for Probe {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
    }
}

/// A file that worker 0 sends: its path in the run directory, and its size.
#[derive(Deserialize, Serialize)]
struct SentFile {
    path: PathBuf,
    bytes: u64,
}

fn file_error<'a>(action: &'static str, path: &'a Path) -> impl FnOnce(io::Error) -> TrainError + 'a {
    move |error| stratus_run::Error::io(action, path)(error).into()
}

impl ProcessGroup {
    /// The run directory of every worker. `path` is that of worker 0, which has the run. Workers that do not
    /// see it get copies of `files`.
    ///
    /// # Errors
    /// If worker 0 has no run there, a file cannot be read or written, or a worker has disconnected.
    pub(super) fn share_run(
        &self,
        path: &Path,
        files: SharedFiles,
        observer: &mut dyn Observer,
    ) -> Result<SharedRun, TrainError> {
        let Some(workers) = self.workers() else {
            let run = RunDir::open(path)?;
            return Ok(SharedRun { own: run.clone(), run, copy: None });
        };
        let probe = match self.is_first() {
            true => Some(Probe::create(&RunDir::open(path)?)?),
            false => None,
        };
        let sent = probe.as_ref().map(|probe| probe.path.as_os_str().as_bytes().to_vec());
        let probed = PathBuf::from(OsString::from_vec(workers.broadcast(sent.unwrap_or_default())?));
        let sees_run = workers.all_gather(&[u8::from(probed.exists())])?;
        drop(probe);
        let blind: Vec<usize> = (1..sees_run.len()).filter(|&rank| sees_run[rank] == [0]).collect();
        let run = probed.parent().unwrap_or(path);
        if self.is_first() && !blind.is_empty() {
            observer.info(&format!(
                "{} of {} {} {}; they get copies of its files",
                blind.len(),
                counted(sees_run.len() as u64, "worker"),
                if blind.len() == 1 { "does not see" } else { "do not see" },
                run.display()
            ));
        }
        let sends = files == SharedFiles::ForResume && !blind.is_empty();
        let opened = match sends && self.is_first() {
            true => RunDir::open(run).map_err(TrainError::from).and_then(|run| open_files(&run)),
            false => Ok(Vec::new()),
        };
        // The others would wait for files that cannot be opened.
        let opened = self.agree(opened)?;
        if !blind.contains(&workers.rank()) {
            let sent = match sends {
                true if self.is_first() => send(opened, workers),
                true => receive(None, workers),
                false => Ok(()),
            };
            self.agree(sent)?;
            let run = RunDir::open(run)?;
            return Ok(SharedRun { own: self.worker_folder(&run)?, run, copy: None });
        }
        let copy = RunCopy::create(&std::env::temp_dir());
        let received = match files {
            SharedFiles::ForResume => receive(copy.as_ref().ok(), workers),
            SharedFiles::None => Ok(()),
        };
        let copy = self.agree(received.and(copy))?;
        let run = match files {
            SharedFiles::ForResume => RunDir::open(&copy.run())?,
            SharedFiles::None => RunDir::create_at(&copy.run())?,
        };
        Ok(SharedRun { own: self.worker_folder(&run)?, run, copy: Some(copy) })
    }

    /// The run that worker 0 was started with, given the one that this worker was started with; `None` if it
    /// was started with an experiment, or with something that is neither. A run counts in worker 0, since the
    /// others may not see its directory.
    ///
    /// # Errors
    /// If a worker has disconnected.
    pub fn run_of_first(&self, own: Option<&Path>) -> Result<Option<PathBuf>, TrainError> {
        let path = own.map(|path| path.as_os_str().as_bytes().to_vec()).unwrap_or_default();
        let path = self.workers().map_or(Ok(path.clone()), |workers| workers.broadcast(path))?;
        Ok((!path.is_empty()).then(|| PathBuf::from(OsString::from_vec(path))))
    }
}

/// Opens the files of a run that workers read, with the newest good checkpoint: each with its path.
fn open_files(run: &RunDir) -> Result<Vec<(SentFile, PathBuf, File)>, TrainError> {
    let mut paths: Vec<PathBuf> = READ_FILES.iter().map(PathBuf::from).collect();
    let checkpoints = Checkpoints::new(run.checkpoints());
    if let Some(checkpoint) = checkpoints.load_latest()?.checkpoint {
        let folder = checkpoints.path(checkpoint.state.iteration);
        for entry in fs::read_dir(&folder).map_err(file_error("read the folder", &folder))? {
            let path = entry.map_err(file_error("read the folder", &folder))?.path();
            paths.extend(path.strip_prefix(run.path()).ok().map(Path::to_owned));
        }
    }
    let mut opened = Vec::new();
    for path in paths {
        let source = run.path().join(&path);
        match File::open(&source).and_then(|file| Ok((file.metadata()?.len(), file))) {
            Ok((bytes, file)) => opened.push((SentFile { path, bytes }, source, file)),
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            Err(error) => return Err(file_error("read", &source)(error)),
        }
    }
    Ok(opened)
}

/// Sends opened files. A file that cannot be read is an error after all were sent, since the others wait for
/// its bytes.
fn send(opened: Vec<(SentFile, PathBuf, File)>, workers: &WorkerGroup) -> Result<(), TrainError> {
    let list: Vec<&SentFile> = opened.iter().map(|(sent, ..)| sent).collect();
    workers.broadcast(serde_json::to_vec(&list).unwrap_or_default())?;
    let mut outcome = Ok(());
    for (sent, source, mut file) in opened {
        let mut left = sent.bytes;
        while left > 0 {
            let mut chunk = vec![0; left.min(CHUNK_BYTES as u64) as usize];
            if outcome.is_ok() {
                outcome = file.read_exact(&mut chunk).map_err(file_error("read", &source));
            }
            left -= chunk.len() as u64;
            workers.broadcast(chunk)?;
        }
    }
    outcome
}

/// Receives the files that worker 0 sends; without a copy, they are not stored. A file that cannot be written
/// is an error after all were received, so that the others get theirs.
fn receive(copy: Option<&RunCopy>, workers: &WorkerGroup) -> Result<(), TrainError> {
    let list = workers.broadcast(Vec::new())?;
    let list: Vec<SentFile> = serde_json::from_slice(&list).unwrap_or_default();
    let mut outcome = Ok(());
    for SentFile { path, bytes } in list {
        let is_plain = path.components().all(|part| matches!(part, Component::Normal(_)));
        let target = copy.map(|copy| copy.run().join(&path)).filter(|_| is_plain && outcome.is_ok());
        let mut file = None;
        if let Some(target) = &target {
            match create(target) {
                Ok(created) => file = Some(created),
                Err(error) => outcome = Err(file_error("write", target)(error)),
            }
        }
        let mut left = bytes;
        while left > 0 {
            let chunk = workers.broadcast(Vec::new())?;
            // Worker 0 sends no empty chunk.
            left = left.saturating_sub(chunk.len().max(1) as u64);
            if let (Some(open), Some(target)) = (&mut file, &target)
                && let Err(error) = open.write_all(&chunk)
            {
                outcome = Err(file_error("write", target)(error));
                file = None;
            }
        }
    }
    outcome
}

/// Creates a file with its folders.
fn create(path: &Path) -> io::Result<File> {
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder)?;
    }
    File::create_new(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_of_killed_workers_are_removed() {
        let folder = tempfile::tempdir().unwrap();
        let alive = RunCopy::create(folder.path()).unwrap();
        let killed = RunCopy::create(folder.path()).unwrap();
        fs::create_dir_all(killed.run().join(CHECKPOINTS)).unwrap();
        let killed_path = killed.folder.clone();
        // The system releases the lock, but nothing removes the folder.
        killed._lock.unlock().unwrap();
        std::mem::forget(killed);
        let other = folder.path().join(format!("{COPY_PREFIX}being-created"));
        fs::create_dir(&other).unwrap();
        let new = RunCopy::create(folder.path()).unwrap();
        assert!(!killed_path.exists() && alive.folder.exists() && new.folder.exists() && other.exists());
        let paths = [alive.folder.clone(), new.folder.clone()];
        drop((alive, new));
        assert!(!paths.iter().any(|path| path.exists()));
    }
}
