//! The exclusive lock of a run directory: an operating-system lock on a file, which permits one writer at a
//! time.
//!
//! The operating system releases the lock when its process ends for any reason; the file remains and has no
//! meaning by itself. It contains the process id of the writer, for the error of a second writer.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::layout::LOCK;
use crate::{Error, Result};

/// The right to write a run directory, until dropped or the process ends.
#[derive(Debug)]
pub struct Lock {
    file: File,
    path: PathBuf,
}

impl Lock {
    /// Acquires the lock of the run directory `run`; the error names the process that holds it.
    pub fn acquire(run: &Path) -> Result<Self> {
        let path = run.join(LOCK);
        let mut file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(&path)
            .map_err(Error::io("open", &path))?;
        // A process that only queries the lock holds it for an instant, so retry.
        let mut attempts = 5;
        loop {
            match file.try_lock() {
                Ok(()) => break,
                Err(TryLockError::WouldBlock) if attempts > 1 => {
                    attempts -= 1;
                    std::thread::sleep(Duration::from_millis(20));
                }
                Err(TryLockError::WouldBlock) => {
                    return Err(Error::Locked { path: run.to_path_buf(), pid: read_pid(&mut file) });
                }
                Err(TryLockError::Error(e)) => return Err(Error::io("lock", &path)(e)),
            }
        }
        let io = |result: std::io::Result<()>| result.map_err(Error::io("write", &path));
        io(file.set_len(0))?;
        io(file.seek(SeekFrom::Start(0)).map(drop))?;
        io(writeln!(file, "{}", std::process::id()))?;
        Ok(Self { file, path })
    }

    /// The lock file.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for Lock {
    fn drop(&mut self) {
        // Closing the file is not enough: a child process that inherited it would keep the lock.
        let _ = self.file.unlock();
    }
}

/// The state of the lock of a run directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LockState {
    /// No process holds it.
    Free,
    /// A process holds it; its id, if the lock file has it.
    Held(Option<u32>),
}

/// The state of the lock of the run directory `run`, without acquiring it.
pub fn lock_state(run: &Path) -> Result<LockState> {
    let path = run.join(LOCK);
    let mut file = match File::open(&path) {
        Ok(file) => file,
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(LockState::Free),
        Err(e) => return Err(Error::io("open", &path)(e)),
    };
    match file.try_lock_shared() {
        Ok(()) => Ok(LockState::Free),
        Err(TryLockError::WouldBlock) => Ok(LockState::Held(read_pid(&mut file))),
        Err(TryLockError::Error(e)) => Err(Error::io("lock", &path)(e)),
    }
}

fn read_pid(file: &mut File) -> Option<u32> {
    let mut text = String::new();
    file.seek(SeekFrom::Start(0)).ok()?;
    file.take(32).read_to_string(&mut text).ok()?;
    text.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refuses_a_second_writer_until_the_first_ends() {
        let run = tempfile::tempdir().unwrap();
        assert_eq!(lock_state(run.path()).unwrap(), LockState::Free);
        let lock = Lock::acquire(run.path()).unwrap();
        assert_eq!(lock_state(run.path()).unwrap(), LockState::Held(Some(std::process::id())));
        let error = Lock::acquire(run.path()).unwrap_err().to_string();
        assert!(error.contains(&format!("(pid {})", std::process::id())), "{error}");
        drop(lock);
        assert_eq!(lock_state(run.path()).unwrap(), LockState::Free);
        Lock::acquire(run.path()).unwrap();
    }

    /// The process that the test below kills; not a separate test.
    #[test]
    fn hold_until_killed() {
        let Ok(run) = std::env::var("STRATUS_TEST_HOLD_LOCK") else { return };
        let _lock = Lock::acquire(Path::new(&run)).unwrap();
        std::fs::write(Path::new(&run).join("held"), b"").unwrap();
        std::thread::sleep(Duration::from_secs(60));
    }

    #[test]
    fn killed_writer_releases_the_lock() {
        let run = tempfile::tempdir().unwrap();
        let mut child = std::process::Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "lock::tests::hold_until_killed"])
            .env("STRATUS_TEST_HOLD_LOCK", run.path())
            .stdout(std::process::Stdio::null())
            .spawn()
            .unwrap();
        while !run.path().join("held").exists() {
            assert!(child.try_wait().unwrap().is_none(), "the child ended early");
            std::thread::sleep(Duration::from_millis(5));
        }
        let refused = Lock::acquire(run.path());
        assert!(
            matches!(refused, Err(Error::Locked { pid: Some(pid), .. }) if pid == child.id()),
            "{refused:?}"
        );
        child.kill().unwrap();
        child.wait().unwrap();
        Lock::acquire(run.path()).unwrap();
    }
}
