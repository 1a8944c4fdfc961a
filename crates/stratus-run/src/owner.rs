//! The process that trains a run, and the request to stop it, as Ctrl-C does.
//!
//! A process id alone proves nothing: the process may have ended, and another one may have its number. The
//! operating system's own records do: the process has the lock file of this very run open, and holds the
//! exclusive lock on it.

use std::fmt;
use std::fs::{self, Metadata};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rustix::io::Errno;
use rustix::process::{Pid, Signal, geteuid, kill_process};

use crate::layout::LOCK;
use crate::lock::{LockState, lock_state};

/// The folder in which the operating system describes its processes.
const PROC: &str = "/proc";
/// The position of the start time in `/proc/PID/stat`, counted from the state, after the name.
const START_FIELD: usize = 19;

/// The process that holds the lock of a run, verified.
#[derive(Debug)]
pub struct Owner {
    pid: Pid,
    /// The start time in clock ticks since the system started. With the id, it identifies a process.
    start: u64,
    /// The process itself, if the system has such handles: no other process can take its place.
    handle: Option<OwnedFd>,
}

/// The reason why the process that trains a run cannot be asked to stop.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OwnerError {
    /// No process holds the lock.
    #[error("no process trains this run")]
    Ended,
    /// The lock is held, but not by the process that the lock file names, as far as this machine knows.
    #[error("it is trained by a process that is not visible here: on another machine or in a container")]
    Elsewhere,
    /// The lock is held, and the system does not tell which process holds it, as macOS.
    #[error("this system does not tell which process trains it: stop it with Ctrl-C in its terminal{}",
        or_kill(*pid))]
    NotVerifiable {
        /// The process id in the lock file, which may be that of another process by now.
        pid: Option<u32>,
    },
    /// The process belongs to another user.
    #[error("it is trained by a process of another user (pid {pid})")]
    OtherUser {
        /// The process id.
        pid: u32,
    },
    /// The process holds the lock for another purpose, such as removing the run.
    #[error("process {pid} uses this run, but does not train it")]
    NotTraining {
        /// The process id.
        pid: u32,
    },
    /// The system refused.
    #[error("cannot signal process {pid}: {reason}")]
    Refused {
        /// The process id.
        pid: u32,
        /// The error of the operating system.
        reason: String,
    },
    /// The lock file has other names, so the process that holds it may train another run.
    #[error("its run.lock is a link to that of another run")]
    Linked,
    /// The lock file cannot be read.
    #[error("{0}")]
    Lock(String),
}

impl Owner {
    /// The process that trains the run in the directory `run`.
    ///
    /// # Errors
    /// If no process does, or not one that may be asked to stop.
    pub fn find(run: &Path) -> Result<Self, OwnerError> {
        let lock = match fs::symlink_metadata(run.join(LOCK)) {
            Ok(lock) => lock,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Err(OwnerError::Ended),
            Err(error) => return Err(OwnerError::Lock(error.to_string())),
        };
        // A copy of a run may share the file with it: its process is not that of the copy.
        if !lock.is_file() || lock.nlink() > 1 {
            return Err(OwnerError::Linked);
        }
        let pid = match lock_state(run) {
            Ok(LockState::Held(pid)) if !describes_processes(Path::new(PROC)) => {
                return Err(OwnerError::NotVerifiable { pid });
            }
            Ok(LockState::Held(pid)) => pid,
            Ok(LockState::Free) => return Err(OwnerError::Ended),
            Err(error) => return Err(OwnerError::Lock(error.to_string())),
        };
        let pid = pid.and_then(|pid| Pid::from_raw(i32::try_from(pid).ok()?)).ok_or(OwnerError::Elsewhere)?;
        // The handle comes first, so that it cannot be that of a later process.
        let handle = open_handle(pid)?;
        let process = Process::new(pid);
        let start = process.start().ok_or(OwnerError::Elsewhere)?;
        if process.user() != Some(this_user()) {
            return Err(process.other_user());
        }
        match process.holds_lock(&lock) {
            Ok(true) => {}
            Ok(false) => return Err(OwnerError::Elsewhere),
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                return Err(process.other_user());
            }
            Err(_) => return Err(OwnerError::Elsewhere),
        }
        if !process.handles(Signal::TERM) {
            return Err(OwnerError::NotTraining { pid: process.number() });
        }
        Ok(Self { pid, start, handle })
    }

    /// The process id.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.pid.as_raw_nonzero().get().unsigned_abs()
    }

    /// Asks the process to save a checkpoint and stop. Asking again changes nothing, unlike a second Ctrl-C,
    /// which ends the process at once.
    ///
    /// # Errors
    /// If the process ended meanwhile, or the system refuses.
    pub fn request_stop(&self) -> Result<(), OwnerError> {
        let sent = match &self.handle {
            Some(handle) => send_to_handle(handle),
            // Without handles, the start time tells a later process with the same id.
            None if Process::new(self.pid).start() != Some(self.start) => return Err(OwnerError::Ended),
            None => kill_process(self.pid, Signal::TERM),
        };
        sent.map_err(|errno| match errno {
            Errno::SRCH => OwnerError::Ended,
            other => OwnerError::Refused { pid: self.pid(), reason: io::Error::from(other).to_string() },
        })
    }
}

/// Another way to stop the process that a lock file names.
fn or_kill(pid: Option<u32>) -> String {
    pid.map_or(String::new(), |pid| format!(", or with `kill -TERM {pid}` if process {pid} is a training"))
}

/// Returns whether the system describes its processes in a folder, as Linux does.
fn describes_processes(folder: &Path) -> bool {
    folder.join("self/stat").exists()
}

/// The user id of this process.
#[must_use]
pub fn this_user() -> u32 {
    geteuid().as_raw()
}

/// Returns whether a file belongs to the user of this process. A link counts itself.
#[must_use]
pub fn is_of_this_user(path: &Path) -> bool {
    fs::symlink_metadata(path).is_ok_and(|facts| facts.uid() == this_user())
}

/// A handle of a process; `None` if the system has no such handles.
#[cfg(target_os = "linux")]
fn open_handle(pid: Pid) -> Result<Option<OwnedFd>, OwnerError> {
    use rustix::process::{PidfdFlags, pidfd_open};
    match pidfd_open(pid, PidfdFlags::empty()) {
        Ok(handle) => Ok(Some(handle)),
        Err(Errno::SRCH | Errno::INVAL) => Err(OwnerError::Elsewhere),
        Err(_) => Ok(None),
    }
}

#[cfg(not(target_os = "linux"))]
fn open_handle(_: Pid) -> Result<Option<OwnedFd>, OwnerError> {
    Ok(None)
}

#[cfg(target_os = "linux")]
fn send_to_handle(handle: &OwnedFd) -> rustix::io::Result<()> {
    rustix::process::pidfd_send_signal(handle, Signal::TERM)
}

#[cfg(not(target_os = "linux"))]
fn send_to_handle(_: &OwnedFd) -> rustix::io::Result<()> {
    Err(Errno::NOSYS)
}

/// A process, as the operating system describes it.
struct Process {
    pid: Pid,
    folder: PathBuf,
}

impl Process {
    fn new(pid: Pid) -> Self {
        Self { pid, folder: Path::new(PROC).join(pid.as_raw_nonzero().to_string()) }
    }

    fn number(&self) -> u32 {
        self.pid.as_raw_nonzero().get().unsigned_abs()
    }

    fn other_user(&self) -> OwnerError {
        OwnerError::OtherUser { pid: self.number() }
    }

    /// The start time.
    fn start(&self) -> Option<u64> {
        start_in(&fs::read_to_string(self.folder.join("stat")).ok()?)
    }

    /// The effective user.
    fn user(&self) -> Option<u32> {
        fs::metadata(&self.folder).ok().map(|facts| facts.uid())
    }

    /// Returns whether the process has the file `lock` open, with the exclusive lock on it.
    fn holds_lock(&self, lock: &Metadata) -> io::Result<bool> {
        for entry in fs::read_dir(self.folder.join("fd"))? {
            let entry = entry?;
            // Closed meanwhile, or no file.
            let Ok(facts) = fs::metadata(entry.path()) else { continue };
            if (facts.dev(), facts.ino()) != (lock.dev(), lock.ino()) {
                continue;
            }
            let info = fs::read_to_string(self.folder.join("fdinfo").join(entry.file_name()))?;
            if has_exclusive_lock(&info) {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Returns whether the process has a handler for a signal, which would end it otherwise.
    fn handles(&self, signal: Signal) -> bool {
        fs::read_to_string(self.folder.join("status")).is_ok_and(|status| is_caught(signal, &status))
    }
}

impl fmt::Debug for Process {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "Process({})", self.number())
    }
}

/// The start time in the text of `/proc/PID/stat`. The name in parentheses may contain anything.
fn start_in(stat: &str) -> Option<u64> {
    let (_, after_name) = stat.rsplit_once(')')?;
    after_name.split_whitespace().nth(START_FIELD)?.parse().ok()
}

/// Returns whether the text of `/proc/PID/fdinfo/FD` lists an exclusive lock: `lock: 1: FLOCK ADVISORY WRITE
/// …`.
fn has_exclusive_lock(info: &str) -> bool {
    info.lines().filter_map(|line| line.strip_prefix("lock:")).any(|lock| {
        let words: Vec<&str> = lock.split_whitespace().collect();
        words.contains(&"FLOCK") && words.contains(&"WRITE") && !words.contains(&"->")
    })
}

/// Returns whether the text of `/proc/PID/status` lists a signal as caught.
fn is_caught(signal: Signal, status: &str) -> bool {
    let mask = status.lines().find_map(|line| line.strip_prefix("SigCgt:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    mask.is_some_and(|mask| mask >> (signal.as_raw() - 1) & 1 == 1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lock::Lock;
    use std::process::{Child, Command, Stdio};

    /// A process that locks the file of a run, and names itself in it. `trap` handles SIGTERM.
    fn holder(run: &Path, trap: bool) -> Child {
        let trap = if trap { "trap 'touch \"$0/stopped\"; exit 0' TERM;" } else { "" };
        let script = format!(
            "{trap} exec 9<>\"$0/{LOCK}\"; flock 9; echo $$ >\"$0/{LOCK}\"; touch \"$0/held\"; \
             while :; do sleep 0.05 9>&-; done"
        );
        let mut command = Command::new("bash");
        command.args(["-c", &script]).arg(run).stdout(Stdio::null()).stderr(Stdio::null());
        let mut child = command.spawn().unwrap();
        while !run.join("held").exists() {
            assert!(child.try_wait().unwrap().is_none(), "the holder ended early");
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
        child
    }

    fn end(mut child: Child) {
        child.kill().unwrap();
        child.wait().unwrap();
    }

    #[test]
    fn the_holder_is_asked_to_stop() {
        let run = tempfile::tempdir().unwrap();
        assert_eq!(Owner::find(run.path()).unwrap_err(), OwnerError::Ended);
        let mut child = holder(run.path(), true);
        let owner = Owner::find(run.path()).unwrap();
        assert_eq!(owner.pid(), child.id());
        owner.request_stop().unwrap();
        assert!(child.wait().unwrap().success());
        assert!(run.path().join("stopped").exists());
        assert_eq!(owner.request_stop().unwrap_err(), OwnerError::Ended, "it is no other process");
        assert_eq!(Owner::find(run.path()).unwrap_err(), OwnerError::Ended);
    }

    /// As on a shared disk: the lock is held, but the id in the file is that of another process here.
    #[test]
    fn other_processes_are_never_taken_for_the_holder() {
        let run = tempfile::tempdir().unwrap();
        let mut bystander = Command::new("sleep").arg("60").spawn().unwrap();
        let lock = Lock::acquire(run.path()).unwrap();
        for text in [bystander.id().to_string(), "1".into(), "0".into(), "-1".into(), "4294967295".into()] {
            fs::write(run.path().join(LOCK), &text).unwrap();
            let error = Owner::find(run.path()).unwrap_err();
            assert!(matches!(error, OwnerError::Elsewhere | OwnerError::OtherUser { .. }), "{text}: {error}");
        }
        fs::write(run.path().join(LOCK), "\u{1b}[31m not a number").unwrap();
        assert_eq!(Owner::find(run.path()).unwrap_err(), OwnerError::Elsewhere);
        drop(lock);
        assert!(bystander.try_wait().unwrap().is_none(), "no signal was sent");
        end(bystander);
    }

    /// A process with the lock of one run is not the holder of another.
    #[test]
    fn the_lock_must_be_that_of_the_run() {
        let (run, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let child = holder(other.path(), true);
        let lock = Lock::acquire(run.path()).unwrap();
        fs::write(run.path().join(LOCK), child.id().to_string()).unwrap();
        assert_eq!(Owner::find(run.path()).unwrap_err(), OwnerError::Elsewhere);
        assert!(Owner::find(other.path()).is_ok());
        drop(lock);
        end(child);
    }

    /// As in a copy of a run by hard links, or a folder from elsewhere with a link.
    #[test]
    fn the_holder_of_a_linked_lock_is_that_of_another_run() {
        let run = tempfile::tempdir().unwrap();
        let mut child = holder(run.path(), true);
        for link in [std::os::unix::fs::symlink::<PathBuf, PathBuf>, fs::hard_link::<PathBuf, PathBuf>] {
            let copy = tempfile::tempdir_in(run.path()).unwrap();
            link(run.path().join(LOCK), copy.path().join(LOCK)).unwrap();
            assert_eq!(Owner::find(copy.path()).unwrap_err(), OwnerError::Linked);
        }
        assert!(Owner::find(run.path()).is_ok(), "the copies were removed");
        assert!(child.try_wait().unwrap().is_none(), "no signal was sent");
        end(child);
    }

    #[test]
    fn a_process_that_the_signal_would_kill_is_not_signalled() {
        let run = tempfile::tempdir().unwrap();
        let child = holder(run.path(), false);
        let pid = child.id();
        assert_eq!(Owner::find(run.path()).unwrap_err(), OwnerError::NotTraining { pid });
        end(child);
    }

    /// As on macOS, where no process has a folder: it may well be one of this machine.
    #[test]
    fn a_system_without_descriptions_of_processes_is_named() {
        let empty = tempfile::tempdir().unwrap();
        assert!(!describes_processes(empty.path()) && !describes_processes(&empty.path().join("absent")));
        assert!(describes_processes(Path::new(PROC)));
        let messages = [Some(7), None].map(|pid| OwnerError::NotVerifiable { pid }.to_string());
        assert!(messages[0].ends_with("in its terminal, or with `kill -TERM 7` if process 7 is a training"));
        assert!(messages[1].ends_with("stop it with Ctrl-C in its terminal"), "{messages:?}");
    }

    #[test]
    fn descriptions_of_processes_are_read() {
        let fields: Vec<String> = (4..=40).map(|field| format!("{field}")).collect();
        let stat = format!("7 (a) b) S {}", fields.join(" "));
        assert_eq!(start_in(&stat), Some(22), "field 22 of the manual");
        for text in ["", "7 (a", "7 (a) S 1", "7 (a) S x x x x x x x x x x x x x x x x x x x x"] {
            assert_eq!(start_in(text), None, "{text}");
        }
        assert!(has_exclusive_lock("pos:\t0\nlock:\t1: FLOCK  ADVISORY  WRITE 7 fe:00:1 0 EOF\n"));
        for text in [
            "",
            "lock:",
            "lock:\t1: FLOCK  ADVISORY  READ 7 fe:00:1 0 EOF",
            "lock:\t1: POSIX  ADVISORY  WRITE 7 fe:00:1 0 EOF",
            "lock:\t1: -> FLOCK  ADVISORY  WRITE 7 fe:00:1 0 EOF",
        ] {
            assert!(!has_exclusive_lock(text), "{text}");
        }
        assert!(is_caught(Signal::TERM, "SigIgn:\t0\nSigCgt:\t0000000000004000\n"));
        assert!(!is_caught(Signal::TERM, "SigCgt:\t0000000000000002\n") && !is_caught(Signal::TERM, ""));
    }
}
