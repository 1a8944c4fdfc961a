//! Workers on one or several machines: starts them, joins them, and monitors them.
//!
//! The launcher is the `mpiexec` of the MPI library that the workers load. A process that `mpiexec`, `mpirun`
//! or `srun` started joins the others.
//!
//! Each worker writes a heartbeat with its iteration once a second to a folder of the launching process, and
//! checks there for the stop marker. The launching process writes a heartbeat too; without it, workers stop.
//! If a worker's heartbeat stops, all workers are stopped, and the run can be resumed from its last
//! checkpoint. Each worker also keeps a socket open. The first closed socket shows which worker was killed,
//! since `mpiexec` then ends the others.
//!
//! With `--hosts`, `mpiexec` starts workers on other machines by SSH. Their heartbeats come over TCP
//! (`relay.rs`) and are monitored in the same way.

mod error;
mod heartbeat;
mod hosts;
mod launch;
mod monitor;
mod relay;

pub use error::WorkersError;
pub use heartbeat::{Heartbeat, HeartbeatObserver};
pub use hosts::WorkerHosts;
pub use launch::{WorkersOutcome, run_workers};

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, SystemTime};
use stratus_exchange::mpi::Mpi;
use stratus_exchange::{ExchangeError, LaunchInfo, WorkerGroup, launch_info};
use stratus_threads::pin_to_share;

/// The environment variable that names the launcher of MPI.
const MPIEXEC_VAR: &str = "STRATUS_MPIEXEC";
/// The environment variable that names the folder of heartbeats.
const HEARTBEAT_FOLDER_VAR: &str = "STRATUS_WORKER_HEARTBEATS";
/// The environment variable that names the folder of exit codes, which the script of a launch reads.
const EXITS_VAR: &str = "STRATUS_WORKER_EXITS";
/// The environment variable with the number of seconds that workers have to connect.
const CONNECT_TIMEOUT_VAR: &str = "STRATUS_CONNECT_TIMEOUT";
/// The name of this machine in messages.
const THIS_MACHINE: &str = "this machine";
/// The prefix of files in the folder [`EXITS_VAR`] of workers whose device has failed; the rank follows. The
/// script reads exit codes from all files that are not hidden.
const DEVICE_FAILED_PREFIX: &str = ".device-failed-";
/// The heartbeat of the launching process.
const LAUNCHER_FILE: &str = "started";
/// The marker by which the launching process requests a stop.
const STOP_FILE: &str = "stop";
/// The socket that each worker keeps a connection to.
const SOCKET_FILE: &str = "alive";
/// The time between two heartbeats.
const HEARTBEAT_INTERVAL: Duration = Duration::from_secs(1);
/// The time without a heartbeat after which a worker counts as hanging.
const HEARTBEAT_TIMEOUT: Duration = Duration::from_secs(20);
/// The prefix of the last heartbeat of a worker that exits on its own; the exit code follows.
const EXITED_PREFIX: &str = "ended:";
/// The word of the heartbeats of a worker whose device has failed, until it exits.
const DEVICE_FAILED_WORD: &str = "failed";
/// The time that a worker whose device has failed waits for the others, to know whether theirs have too.
const MAX_DEVICE_WAIT: Duration = Duration::from_secs(3);
/// The time between two checks of the processes.
const POLL_INTERVAL: Duration = Duration::from_millis(50);
/// The time that ranks above 0 wait for rank 0 to report an error: if its exit can be observed, and if not.
const RANK_0_TIMEOUTS: [Duration; 2] = [Duration::from_secs(10), Duration::from_secs(2)];
/// The time that rank 0 has to print its error after it has recorded its exit.
const RANK_0_PRINT_TIME: Duration = Duration::from_millis(500);

/// The context of a process that is one of several workers.
pub struct WorkerContext {
    /// The rank and the number of workers, from the launcher.
    pub launch_info: LaunchInfo,
    /// The connection to the other workers.
    pub workers: Arc<WorkerGroup>,
    /// The number of CPUs that all workers of this machine may use together.
    pub cpus: usize,
    /// The heartbeat of the worker.
    pub heartbeat: Heartbeat,
}

impl WorkerContext {
    /// Joins the workers that a launcher started together with this process; `None` if there is no launcher.
    ///
    /// Heartbeats start before MPI is initialised, so that a worker that is lost meanwhile is noticed too.
    /// `stop` is set when the launching process requests a stop or has exited. If this process cannot join,
    /// it will exit with `failure_code`.
    ///
    /// # Errors
    /// If MPI is not found, or differs from the launcher's.
    pub fn join(stop: &Arc<AtomicBool>, failure_code: u8) -> Result<Option<Self>, WorkersError> {
        let Some(info) = launch_info() else { return Ok(None) };
        // Before any thread is started: threads inherit the CPU affinity.
        let shared = info.local.filter(|_| info.shares_cpus);
        let kept = shared.and_then(|[rank, size]| pin_to_share(rank, size));
        let cpus = kept.or_else(|| std::thread::available_parallelism().ok().map(Into::into)).unwrap_or(1);
        let heartbeat = Heartbeat::start(info.rank, Arc::clone(stop))?;
        let opened = WorkerGroup::open(move || Mpi::join(info));
        let workers = opened.map_err(|error| {
            heartbeat.end(failure_code);
            let is_common =
                matches!(error, ExchangeError::LauncherMismatch { .. } | ExchangeError::NotPowerOfTwo(_));
            match heartbeat.rank_0_reports(info.rank) || info.rank > 0 && is_common {
                true => WorkersError::Reported,
                false => WorkersError::Join(error),
            }
        })?;
        Ok(Some(Self { launch_info: info, workers: Arc::new(workers), cpus, heartbeat }))
    }
}

/// Replaces the heartbeat of a worker in a folder. Readers see the old one or the new one.
fn write_heartbeat(folder: &Path, rank: usize, text: &str) -> io::Result<()> {
    let part = folder.join(format!(".{rank}.tmp"));
    std::fs::write(&part, text)?;
    std::fs::rename(&part, folder.join(rank.to_string()))
}

/// Returns whether the devices of all of `count` workers have failed, by the heartbeats in a folder.
fn all_devices_failed(folder: &Path, count: usize) -> bool {
    let word = format!("{DEVICE_FAILED_WORD} ");
    let heartbeat = |rank: usize| std::fs::read_to_string(folder.join(rank.to_string()));
    (0..count).all(|rank| heartbeat(rank).is_ok_and(|text| text.starts_with(&word)))
}

/// The age of a heartbeat; `None` if there is none.
fn age(path: &Path) -> Option<Duration> {
    let written = std::fs::metadata(path).and_then(|data| data.modified()).ok()?;
    Some(SystemTime::now().duration_since(written).unwrap_or_default())
}
