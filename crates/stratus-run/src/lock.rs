//! One writer at a time: an exclusive lock of the operating system on a file of the run directory.
//!
//! The system drops the lock when its process ends, however it ends; the file stays and means nothing by
//! itself. It holds the writer's process id, for the message that a second writer gets.

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
    /// Takes the lock of the run directory `run`, or says which process holds it.
    pub fn acquire(run: &Path) -> Result<Self> {
        let path = run.join(LOCK);
        let mut file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(&path)
            .map_err(Error::io("open", &path))?;
        // A process that only asks who holds the lock has it for an instant: ask more than once.
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
        // Closing the file would do as well; a child that inherited it could keep it.
        let _ = self.file.unlock();
    }
}

/// Who writes a run directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Holder {
    /// Nobody.
    Nobody,
    /// A process, with its id if the lock file has it.
    Process(Option<u32>),
}

/// Asks who writes the run directory `run`, without taking it.
pub fn holder(run: &Path) -> Result<Holder> {
    let path = run.join(LOCK);
    let mut file = match File::open(&path) {
        Ok(file) => file,
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(Holder::Nobody),
        Err(e) => return Err(Error::io("open", &path)(e)),
    };
    match file.try_lock_shared() {
        Ok(()) => Ok(Holder::Nobody),
        Err(TryLockError::WouldBlock) => Ok(Holder::Process(read_pid(&mut file))),
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
    fn a_second_writer_is_refused_by_name_and_may_follow() {
        let run = tempfile::tempdir().unwrap();
        assert_eq!(holder(run.path()).unwrap(), Holder::Nobody);
        let lock = Lock::acquire(run.path()).unwrap();
        assert_eq!(holder(run.path()).unwrap(), Holder::Process(Some(std::process::id())));
        let error = Lock::acquire(run.path()).unwrap_err().to_string();
        assert!(error.contains(&format!("(pid {})", std::process::id())), "{error}");
        drop(lock);
        assert_eq!(holder(run.path()).unwrap(), Holder::Nobody);
        Lock::acquire(run.path()).unwrap();
    }

    /// Not a test of its own: what the test below kills.
    #[test]
    fn hold_until_killed() {
        let Ok(run) = std::env::var("STRATUS_TEST_HOLD_LOCK") else { return };
        let _lock = Lock::acquire(Path::new(&run)).unwrap();
        std::fs::write(Path::new(&run).join("held"), b"").unwrap();
        std::thread::sleep(Duration::from_secs(60));
    }

    #[test]
    fn a_killed_writer_leaves_the_run_free() {
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
