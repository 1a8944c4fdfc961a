//! The heartbeat of a worker.

use super::{
    EXITED_PREFIX, HEARTBEAT_FOLDER_VAR, HEARTBEAT_INTERVAL, HEARTBEAT_TIMEOUT, LAUNCHER_FILE, SOCKET_FILE,
    STOP_FILE, WorkersError, age,
};
use crate::{EpochResult, Observer, TrainingProgress};
use std::io::Write;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// The heartbeat of a worker, with its iteration.
#[derive(Clone, Debug, Default)]
pub struct Heartbeat {
    iteration: Arc<AtomicU64>,
    ended: Arc<AtomicBool>,
    file: Option<PathBuf>,
    /// Open as long as the process lives.
    _alive: Option<Arc<UnixStream>>,
}

impl Heartbeat {
    /// Starts to write heartbeats, if there is a folder for them, and to watch the launching process. `stop`
    /// is set when that process requests a stop or has exited.
    pub(super) fn start(rank: usize, stop: Arc<AtomicBool>) -> Result<Self, WorkersError> {
        let Some(folder) = std::env::var_os(HEARTBEAT_FOLDER_VAR).map(PathBuf::from) else {
            return Ok(Self::default());
        };
        let alive = UnixStream::connect(folder.join(SOCKET_FILE)).and_then(|mut socket| {
            socket.write_all(&[rank.to_string().as_bytes(), b"\n"].concat())?;
            Ok(Arc::new(socket))
        });
        let gone = |source| WorkersError::LauncherGone { rank, source };
        let (_alive, file) = (Some(alive.map_err(gone)?), Some(folder.join(rank.to_string())));
        let heartbeat = Self { file, _alive, ..Self::default() };
        let beats = heartbeat.clone();
        std::thread::spawn(move || {
            while !beats.ended.load(Ordering::Relaxed) {
                beats.write_heartbeat("at");
                if folder.join(STOP_FILE).exists()
                    || age(&folder.join(LAUNCHER_FILE)).is_none_or(|age| age > HEARTBEAT_TIMEOUT)
                {
                    stop.store(true, Ordering::Relaxed);
                }
                std::thread::sleep(HEARTBEAT_INTERVAL);
            }
        });
        Ok(heartbeat)
    }

    fn write_heartbeat(&self, word: &str) {
        if let Some(file) = &self.file {
            // The launching process reports a missing heartbeat.
            let _ = std::fs::write(file, format!("{word} {}", self.iteration.load(Ordering::Relaxed)));
        }
    }

    /// Records that the worker exits on its own, with an exit code.
    pub fn end(&self, code: u8) {
        self.ended.store(true, Ordering::Relaxed);
        self.write_heartbeat(&format!("{EXITED_PREFIX}{code}"));
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
