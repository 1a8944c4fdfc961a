//! The heartbeat of a worker.

use super::relay::{RELAY_VAR, RelayConnection, SocketPlace};
use super::{
    DEVICE_FAILED_PREFIX, DEVICE_FAILED_WORD, EXITED_PREFIX, EXITS_VAR, HEARTBEAT_FOLDER_VAR,
    HEARTBEAT_INTERVAL, HEARTBEAT_TIMEOUT, LAUNCHER_FILE, MAX_DEVICE_WAIT, POLL_INTERVAL, RANK_0_PRINT_TIME,
    RANK_0_TIMEOUTS, SOCKET_FILE, STOP_FILE, WorkersError, age, all_devices_failed, write_heartbeat,
};
use crate::{EpochResult, Observer, TrainingProgress};
use std::io::Write;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

/// The heartbeat of a worker, with its iteration.
#[derive(Clone, Debug, Default)]
pub struct Heartbeat {
    iteration: Arc<AtomicU64>,
    /// Set once the last heartbeat is sent. Locked while one is sent, so that none follows the last one.
    ended: Arc<Mutex<bool>>,
    device_failed: Arc<AtomicBool>,
    launcher: LauncherLink,
    /// The folder of exit codes of a launcher of another kind.
    exits: Option<PathBuf>,
}

/// The way to the launching process.
#[derive(Clone, Debug, Default)]
enum LauncherLink {
    /// No launching process of ours.
    #[default]
    None,
    /// It is on this machine.
    Folder { folder: PathBuf, rank: usize },
    /// It may be on another machine.
    Relay(Arc<RelayConnection>),
}

impl Heartbeat {
    /// Starts to send heartbeats, if a launching process asks for them, and to watch that process. `stop` is
    /// set when it requests a stop or has exited.
    pub(super) fn start(rank: usize, stop: Arc<AtomicBool>) -> Result<Self, WorkersError> {
        let gone = |source| WorkersError::LauncherGone { rank, source };
        let launcher = if let Some(folder) = std::env::var_os(HEARTBEAT_FOLDER_VAR).map(PathBuf::from) {
            let connected = UnixStream::connect(folder.join(SOCKET_FILE)).and_then(|mut socket| {
                socket.write_all(&[rank.to_string().as_bytes(), b"\n"].concat())?;
                // Standard input, which workers do not read. The system closes the files of a process in the
                // order of their numbers: the launching process sees the end of this worker before
                // `mpiexec` sees the end of its own connection, and ends the others.
                rustix::stdio::dup2_stdin(&socket).map_err(Into::into)
            });
            connected.map_err(gone)?;
            LauncherLink::Folder { folder, rank }
        } else if let Ok(variable) = std::env::var(RELAY_VAR) {
            let place = SocketPlace::StandardInput;
            let opened = RelayConnection::open(&variable, rank, Arc::clone(&stop), place);
            LauncherLink::Relay(opened.map_err(gone)?)
        } else {
            return Ok(Self { exits: exits_folder(), ..Self::default() });
        };
        let heartbeat = Self { launcher, ..Self::default() };
        let beats = heartbeat.clone();
        std::thread::spawn(move || {
            while beats.beat(beats.word()) {
                if let LauncherLink::Folder { folder, .. } = &beats.launcher
                    && (folder.join(STOP_FILE).exists()
                        || age(&folder.join(LAUNCHER_FILE)).is_none_or(|age| age > HEARTBEAT_TIMEOUT))
                {
                    stop.store(true, Ordering::Relaxed);
                }
                std::thread::sleep(HEARTBEAT_INTERVAL);
            }
        });
        Ok(heartbeat)
    }

    /// The word of a heartbeat.
    fn word(&self) -> &'static str {
        if self.device_failed.load(Ordering::Relaxed) { DEVICE_FAILED_WORD } else { "at" }
    }

    /// Records that the device of this worker has failed, and waits for a short time for the others. Returns
    /// whether the devices of all of `count` workers have failed: then none is lost, and each would fail
    /// again.
    #[must_use]
    pub fn all_devices_failed(&self, rank: usize, count: usize) -> bool {
        self.device_failed.store(true, Ordering::Relaxed);
        self.beat(DEVICE_FAILED_WORD);
        if let Some(folder) = &self.exits {
            // Without the record, the worker counts as lost.
            let _ = std::fs::write(device_record(folder, rank), "");
        }
        let started = Instant::now();
        while started.elapsed() < MAX_DEVICE_WAIT {
            let all = match (&self.launcher, &self.exits) {
                (LauncherLink::None, None) => return false,
                (LauncherLink::None, Some(folder)) => {
                    (0..count).all(|rank| device_record(folder, rank).exists())
                }
                (LauncherLink::Folder { folder, .. }, _) => all_devices_failed(folder, count),
                (LauncherLink::Relay(relay), _) => relay.all_devices_failed(),
            };
            if all {
                // The others must see it too, before this worker's last heartbeat replaces this one.
                std::thread::sleep(2 * HEARTBEAT_INTERVAL);
                return true;
            }
            std::thread::sleep(POLL_INTERVAL);
        }
        false
    }

    /// Sends a heartbeat, unless the last one was sent. Returns whether it was sent.
    fn beat(&self, word: &str) -> bool {
        let ended = self.lock_ended();
        if !*ended {
            self.send(word);
        }
        !*ended
    }

    fn lock_ended(&self) -> MutexGuard<'_, bool> {
        self.ended.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn send(&self, word: &str) {
        let text = format!("{word} {}", self.iteration.load(Ordering::Relaxed));
        // The launching process reports a missing heartbeat.
        match &self.launcher {
            LauncherLink::None => {}
            LauncherLink::Folder { folder, rank, .. } => {
                let _ = write_heartbeat(folder, *rank, &text);
            }
            LauncherLink::Relay(relay) => {
                let _ = relay.send(&text);
            }
        }
    }

    /// The exit code of rank 0, once it has ended by itself.
    fn first_exit(&self) -> Option<i32> {
        match &self.launcher {
            LauncherLink::None => None,
            LauncherLink::Folder { folder, .. } => {
                let heartbeat = std::fs::read_to_string(folder.join("0")).ok()?;
                heartbeat.split(' ').next()?.strip_prefix(EXITED_PREFIX)?.parse().ok()
            }
            LauncherLink::Relay(relay) => relay.first_exit(),
        }
    }

    /// Waits in ranks above 0 for rank 0 to print the common error. Returns whether it did; otherwise, this
    /// process has to print its own.
    #[must_use]
    pub fn rank_0_reports(&self, rank: usize) -> bool {
        if rank == 0 {
            return false;
        }
        let started = Instant::now();
        let is_alone = matches!(self.launcher, LauncherLink::None);
        while started.elapsed() < RANK_0_TIMEOUTS[usize::from(is_alone)] {
            if self.first_exit().is_some_and(|code| code != 0) {
                std::thread::sleep(RANK_0_PRINT_TIME);
                return true;
            }
            std::thread::sleep(POLL_INTERVAL);
        }
        false
    }

    /// The last iteration that was recorded; 0 before the first.
    #[must_use]
    pub fn iteration(&self) -> u64 {
        self.iteration.load(Ordering::Relaxed)
    }

    /// Records that the worker exits on its own, with an exit code.
    pub fn end(&self, code: u8) {
        let mut ended = self.lock_ended();
        *ended = true;
        self.send(&format!("{EXITED_PREFIX}{code}"));
    }

    /// Records the exit code of training for a launcher of another kind, which reports only one code of all
    /// workers: in the folder that an environment variable names, if it is set.
    pub fn record_exit(&self, rank: usize, code: u8) {
        if let Some(folder) = exits_folder() {
            // Without the record, the worker counts as lost.
            let _ = std::fs::write(folder.join(rank.to_string()), format!("{code}\n"));
        }
    }
}

/// The folder [`EXITS_VAR`], if it is set.
fn exits_folder() -> Option<PathBuf> {
    std::env::var_os(EXITS_VAR).filter(|folder| !folder.is_empty()).map(PathBuf::from)
}

/// The record in a folder of exit codes that the device of a worker has failed.
fn device_record(folder: &Path, rank: usize) -> PathBuf {
    folder.join(format!("{DEVICE_FAILED_PREFIX}{rank}"))
}

/// An observer that also records the iteration for heartbeats.
pub struct HeartbeatObserver<'a> {
    /// The wrapped observer.
    pub observer: &'a mut dyn Observer,
    /// The heartbeat.
    pub heartbeat: Heartbeat,
}

impl Observer for HeartbeatObserver<'_> {
    fn iteration(&mut self, progress: &TrainingProgress) {
        self.heartbeat.iteration.store(progress.iteration, Ordering::Relaxed);
        self.observer.iteration(progress);
    }
    fn epoch(&mut self, result: &EpochResult) {
        self.observer.epoch(result);
    }
    fn info(&mut self, text: &str) {
        self.observer.info(text);
    }
    fn warn(&mut self, text: &str) {
        self.observer.warn(text);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Workers that `srun` started only share the folder of exit codes.
    #[test]
    fn devices_of_all_workers_fail_without_a_launching_process() {
        let folder = tempfile::tempdir().unwrap();
        let worker = || Heartbeat { exits: Some(folder.path().to_owned()), ..Heartbeat::default() };
        assert!(!worker().all_devices_failed(0, 2));
        assert!(worker().all_devices_failed(1, 2));
        assert!(!Heartbeat::default().all_devices_failed(0, 1));
    }

    #[test]
    fn no_heartbeat_follows_the_last_one() {
        let folder = tempfile::tempdir().unwrap();
        let launcher = LauncherLink::Folder { folder: folder.path().to_owned(), rank: 1 };
        let worker = Heartbeat { launcher, ..Heartbeat::default() };
        let written = || std::fs::read_to_string(folder.path().join("1")).unwrap();
        assert!(worker.beat("at"));
        assert_eq!(written(), "at 0");
        worker.end(2);
        assert!(!worker.beat("at"));
        assert_eq!(written(), "ended:2 0");
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
    }
}
