//! The heartbeat of a worker.

use super::relay::{RELAY_VAR, RelayConnection, SocketPlace};
use super::{
    DEVICE_FAILED_WORD, EXITED_PREFIX, EXITS_VAR, HEARTBEAT_FOLDER_VAR, HEARTBEAT_INTERVAL,
    HEARTBEAT_TIMEOUT, LAUNCHER_FILE, MAX_DEVICE_WAIT, POLL_INTERVAL, RANK_0_PRINT_TIME, RANK_0_TIMEOUTS,
    SOCKET_FILE, STOP_FILE, WorkersError, age, all_devices_failed,
};
use crate::{EpochResult, Observer, TrainingProgress};
use std::io::Write;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Instant;

/// The heartbeat of a worker, with its iteration.
#[derive(Clone, Debug, Default)]
pub struct Heartbeat {
    iteration: Arc<AtomicU64>,
    ended: Arc<AtomicBool>,
    device_failed: Arc<AtomicBool>,
    launcher: LauncherLink,
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
            return Ok(Self::default());
        };
        let heartbeat = Self { launcher, ..Self::default() };
        let beats = heartbeat.clone();
        std::thread::spawn(move || {
            while !beats.ended.load(Ordering::Relaxed) {
                beats.write_heartbeat(beats.word());
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
    pub fn all_devices_failed(&self, count: usize) -> bool {
        self.device_failed.store(true, Ordering::Relaxed);
        self.write_heartbeat(DEVICE_FAILED_WORD);
        let started = Instant::now();
        while started.elapsed() < MAX_DEVICE_WAIT {
            let all = match &self.launcher {
                LauncherLink::None => return false,
                LauncherLink::Folder { folder, .. } => all_devices_failed(folder, count),
                LauncherLink::Relay(relay) => relay.all_devices_failed(),
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

    fn write_heartbeat(&self, word: &str) {
        let text = format!("{word} {}", self.iteration.load(Ordering::Relaxed));
        // The launching process reports a missing heartbeat.
        match &self.launcher {
            LauncherLink::None => {}
            LauncherLink::Folder { folder, rank, .. } => {
                let _ = std::fs::write(folder.join(rank.to_string()), text);
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
        self.ended.store(true, Ordering::Relaxed);
        self.write_heartbeat(&format!("{EXITED_PREFIX}{code}"));
    }

    /// Records the exit code of training for a launcher of another kind, which reports only one code of all
    /// workers: in the folder [`EXITS_VAR`], if it is set.
    pub fn record_exit(&self, rank: usize, code: u8) {
        if let Some(folder) = std::env::var_os(EXITS_VAR).filter(|folder| !folder.is_empty()) {
            // Without the record, the worker counts as lost.
            let _ = std::fs::write(PathBuf::from(folder).join(rank.to_string()), format!("{code}\n"));
        }
    }
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
