//! Errors of workers, with hints.

use super::{CONNECT_TIMEOUT_VAR, MPIEXEC_VAR, THIS_MACHINE};
use std::io;
use std::path::PathBuf;
use stratus_base::library::LibraryNotFound;
use stratus_exchange::ExchangeError;

/// An error of starting, joining or monitoring workers.
#[derive(Debug, thiserror::Error)]
pub enum WorkersError {
    /// The number of workers is not supported.
    #[error(transparent)]
    Count(ExchangeError),
    /// A variable names a library of MPI that cannot be used.
    #[error(transparent)]
    Library(#[from] LibraryNotFound),
    /// There is no launcher of MPI.
    #[error("cannot start workers: mpiexec not found")]
    NoLauncher,
    /// The path of this program is unknown.
    #[error("cannot find this program: {0}")]
    ThisProgram(#[source] io::Error),
    /// The launcher cannot be started.
    #[error("cannot start {}: {source}", program.display())]
    Start {
        /// The launcher.
        program: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// The launcher cannot be waited for. Its workers stop by themselves, without its heartbeat.
    #[error("cannot wait for {}: {source}; the workers stop by themselves", program.display())]
    Wait {
        /// The launcher.
        program: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// The folder of heartbeats, or its socket, cannot be created.
    #[error("cannot create {}: {source}", path.display())]
    Folder {
        /// The folder or socket.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// The variable with the time to connect is invalid.
    #[error("{CONNECT_TIMEOUT_VAR}: `{value}` is not a number of seconds from 1 to {max}")]
    ConnectTimeout {
        /// Its value.
        value: String,
        /// The maximum number of seconds.
        max: u64,
    },
    /// The list of hosts is invalid.
    #[error("--hosts: {problem}")]
    HostList {
        /// The problem.
        problem: String,
    },
    /// A host cannot run workers.
    #[error("host {host} {problem}")]
    Host {
        /// The host.
        host: String,
        /// The problem, a phrase such as "cannot be reached".
        problem: String,
        /// The suggested fix.
        hint: String,
    },
    /// The folder that the first host must see cannot be written.
    #[error("cannot write to {}, which the first host must see: {source}", path.display())]
    Shared {
        /// The folder.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// The launcher does not know the options of MPICH's.
    #[error("--hosts needs the mpiexec of MPICH, but {} is not", program.display())]
    NotHydra {
        /// The launcher.
        program: PathBuf,
    },
    /// No connections of workers can be accepted.
    #[error("cannot listen for heartbeats of workers: {source}")]
    Listen {
        /// The cause.
        source: io::Error,
    },
    /// The launching process has exited, or is unreachable.
    #[error("worker {rank} cannot reach the process that started it: {source}")]
    LauncherGone {
        /// The rank of this worker.
        rank: usize,
        /// The cause.
        source: io::Error,
    },
    /// This process cannot join the other workers.
    #[error(transparent)]
    Join(ExchangeError),
    /// This process cannot join the other workers, and rank 0 has printed the reason.
    #[error("the first worker has printed the reason")]
    Reported,
    /// A worker was started, but has never connected; all others were stopped.
    #[error("worker {rank} on {host} has not connected within {seconds} s; stopped all workers")]
    NotConnected {
        /// The rank of the worker.
        rank: usize,
        /// Its host, or "this machine".
        host: String,
        /// The time that it had.
        seconds: u64,
    },
    /// A worker is lost; all others were stopped.
    #[error("worker {rank} on {host} {reason} after iteration {iteration}; stopped all workers")]
    Lost {
        /// The rank of the worker.
        rank: usize,
        /// Its host, or "this machine".
        host: String,
        /// The iteration of its last heartbeat.
        iteration: u64,
        /// The reason, a phrase such as "was killed".
        reason: &'static str,
    },
}

impl WorkersError {
    /// The suggested fix, if there is one.
    #[must_use]
    pub fn hint(&self) -> Option<String> {
        let hint = match self {
            Self::Library(error) => return error.hint(),
            Self::Host { hint, .. } => return Some(hint.clone()),
            Self::NotHydra { .. } => {
                "run `make deps`, set STRATUS_MPIEXEC to MPICH's mpiexec, or start `mpirun --host` yourself"
            }
            Self::Start { .. } if std::env::var_os(MPIEXEC_VAR).is_some_and(|value| !value.is_empty()) => {
                return Some(format!("set {MPIEXEC_VAR} to the program mpiexec, or unset it"));
            }
            Self::NoLauncher => {
                "run `make deps`, which installs MPICH into .deps, or install mpich or openmpi"
            }
            Self::Folder { .. } => "set TMPDIR to a folder that this user may write to",
            Self::NotConnected { host, .. } => {
                let slow = format!("if the program starts slowly, set {CONNECT_TIMEOUT_VAR} to more seconds");
                return Some(match host == THIS_MACHINE {
                    true => slow,
                    false => format!("{slow}; if the host hangs, leave it out of --hosts"),
                });
            }
            Self::Wait { .. } | Self::Lost { .. } => {
                "resume the run from its last checkpoint, with the same or another number of workers"
            }
            _ => return None,
        };
        Some(hint.to_owned())
    }
}
