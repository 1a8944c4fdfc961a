//! Workers on this machine: `--workers N` starts and monitors them.
//!
//! The launcher is the `mpiexec` of the MPI library that the workers load. A process that `mpiexec`, `mpirun`
//! or `srun` started joins the others.
//!
//! Each worker writes a heartbeat with its iteration once a second to a folder of the launching process, and
//! checks there for the stop marker. The launching process writes a heartbeat too; without it, workers stop.
//! If a worker's heartbeat stops, all workers are stopped, and the run can be resumed from its last
//! checkpoint. Each worker also keeps a socket open. The first closed socket shows which worker was killed,
//! since `mpiexec` then ends the others.

use crate::errors::{FAILED, Failure, INTERRUPTED, Result};
use crate::output::Output;
use crate::signals;
use std::io::{Read, Write};
use std::os::unix::fs::DirBuilderExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime};
use stratus_exchange::mpi::{Mpi, SEARCH};
use stratus_exchange::{ExchangeError, LaunchInfo, WorkerGroup, launch_info};
use stratus_threads::pin_to_share;
use stratus_train::{EpochResult, Observer, TrainingProgress};

/// The environment variable that names the folder of heartbeats.
const HEARTBEAT_FOLDER_VAR: &str = "STRATUS_WORKER_HEARTBEATS";
/// The environment variable that names the launcher.
const MPIEXEC_VAR: &str = "STRATUS_MPIEXEC";
/// Settings of Open MPI's launcher, for several versions: more workers than CPUs are allowed, and Open MPI
/// binds no worker to CPUs, as workers bind themselves.
const OPEN_MPI: [(&str, &str); 4] = [
    ("OMPI_MCA_rmaps_base_oversubscribe", "1"),
    ("OMPI_MCA_hwloc_base_binding_policy", "none"),
    ("PRTE_MCA_rmaps_default_mapping_policy", ":oversubscribe"),
    ("PRTE_MCA_hwloc_default_binding_policy", "none"),
];
/// The heartbeat of the launching process.
const LAUNCHER_FILE: &str = "started";
const STOP_FILE: &str = "stop";
/// The socket that each worker keeps a connection to.
const SOCKET_FILE: &str = "alive";
/// The time to wait for workers to exit after their launcher has exited.
const EXIT_TIMEOUT: Duration = Duration::from_secs(5);
/// The time between two heartbeats.
const HEARTBEAT_INTERVAL: Duration = Duration::from_secs(1);
/// The time without a heartbeat after which a worker counts as hanging.
const HEARTBEAT_TIMEOUT: Duration = Duration::from_secs(20);
/// The prefix of the last heartbeat of a worker that exits on its own; the exit code follows.
const EXITED_PREFIX: &str = "ended:";
/// The maximum number of folder names to try until one is unused.
const MAX_FOLDER_ATTEMPTS: u32 = 100;
/// The time between two checks of the processes.
const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// Joins the workers that a launcher started together with this process; `None` if there is no launcher.
///
/// Heartbeats start before MPI is initialised, so that a worker that is lost meanwhile is noticed too. `stop`
/// is set when the launching process asks for it, or is gone.
///
/// # Errors
/// If MPI is not found, or differs from the launcher's.
pub fn join(stop: &Arc<AtomicBool>) -> Result<Option<WorkerContext>> {
    let Some(info) = launch_info() else { return Ok(None) };
    // Before any thread is started: threads inherit the CPU affinity.
    let kept = info.local.and_then(|[rank, size]| pin_to_share(rank, size));
    let cpus = kept.or_else(|| std::thread::available_parallelism().ok().map(Into::into)).unwrap_or(1);
    let heartbeat = Heartbeat::start(info.rank, Arc::clone(stop))?;
    let opened = WorkerGroup::open(move || Mpi::join(info));
    if let Err(error) = &opened {
        heartbeat.end(FAILED);
        let_rank_0_report(info.rank);
        if info.rank > 0
            && matches!(error, ExchangeError::LauncherMismatch { .. } | ExchangeError::NotPowerOfTwo(_))
        {
            // Rank 0 has reported it.
            std::process::exit(i32::from(FAILED));
        }
    }
    let workers = opened.map_err(Failure::failed)?;
    Ok(Some(WorkerContext { launch_info: info, workers: Arc::new(workers), cpus, heartbeat }))
}

/// The time that ranks above 0 wait for rank 0 to report an error: if its exit can be observed, and if not.
const RANK_0_TIMEOUTS: [Duration; 2] = [Duration::from_secs(10), Duration::from_secs(2)];
/// The time that rank 0 has to print its error after it has recorded its exit.
const RANK_0_PRINT_TIME: Duration = Duration::from_millis(500);

/// Waits in ranks above 0 for rank 0 to print the common error, and exits if it does; otherwise returns, so
/// that the caller prints its own.
pub fn let_rank_0_report(rank: usize) {
    if rank == 0 {
        return;
    }
    let first = std::env::var_os(HEARTBEAT_FOLDER_VAR).map(|folder| Path::new(&folder).join("0"));
    let started = Instant::now();
    while started.elapsed() < RANK_0_TIMEOUTS[usize::from(first.is_none())] {
        let heartbeat =
            first.as_ref().and_then(|file| std::fs::read_to_string(file).ok()).unwrap_or_default();
        let code = heartbeat.split(' ').next().and_then(|word| word.strip_prefix(EXITED_PREFIX));
        if code.is_some_and(|code| code != "0") {
            std::thread::sleep(RANK_0_PRINT_TIME);
            std::process::exit(i32::from(FAILED));
        }
        std::thread::sleep(POLL_INTERVAL);
    }
}

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
    /// Starts to write heartbeats if there is a folder for them, and to watch the launching process: `stop`
    /// is set when it asks for it, or is gone.
    fn start(rank: usize, stop: Arc<AtomicBool>) -> Result<Self> {
        let Some(folder) = std::env::var_os(HEARTBEAT_FOLDER_VAR).map(PathBuf::from) else {
            return Ok(Self::default());
        };
        let alive = UnixStream::connect(folder.join(SOCKET_FILE)).and_then(|mut socket| {
            socket.write_all(&[rank.to_string().as_bytes(), b"\n"].concat())?;
            Ok(Arc::new(socket))
        });
        let gone =
            |error| Failure::failed(format!("the process that started worker {rank} is gone: {error}"));
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

/// Starts `count` workers with this process's arguments, and waits for them.
///
/// # Errors
/// If MPI is not found, or a worker was killed or hangs; workers print their own errors.
pub fn start(count: usize, output: &Output) -> Result {
    if !count.is_power_of_two() {
        return Err(Failure::usage(ExchangeError::NotPowerOfTwo(count)));
    }
    let Mpiexec { program, library } = Mpiexec::find()?;
    let heartbeats = HeartbeatMonitor::new()?;
    let stop = signals::stop_flag()?;
    let this_program = std::env::current_exe()
        .map_err(|error| Failure::failed(format!("cannot find this program: {error}")))?;
    let mut command = Command::new(&program);
    command
        .arg("-n")
        .arg(count.to_string())
        .arg(this_program)
        .args(strip_workers_flag(std::env::args_os().skip(1)));
    // A new process group, so that Ctrl-C reaches only this process, which stops the workers.
    command.stdin(Stdio::null()).env(HEARTBEAT_FOLDER_VAR, &heartbeats.folder).process_group(0);
    if let Some(library) = &library {
        command.env(SEARCH.environment, library);
    }
    for (name, value) in OPEN_MPI {
        if std::env::var_os(name).is_none() {
            command.env(name, value);
        }
    }
    let mut child = command
        .spawn()
        .map_err(|error| Failure::failed(format!("cannot start {}: {error}", program.display())))?;
    let (mut is_stopping, mut last_heartbeat_at) = (false, Instant::now());
    loop {
        if let Some(status) = child.try_wait().map_err(|error| Failure::failed(error.to_string()))? {
            let (code, failed, killed) =
                (status.code(), heartbeats.first_exit_code(count), heartbeats.first_killed());
            drop(heartbeats);
            return match (code, failed, killed) {
                (Some(0), ..) => Ok(()),
                // The worker has printed its error. mpiexec returns the code of a worker that it killed.
                (_, Some(code), _) => std::process::exit(i32::from(code)),
                (.., Some((rank, at))) => Err(Failure::worker_lost(rank, at, "was killed")),
                (code, ..) => std::process::exit(code.unwrap_or(i32::from(FAILED))),
            };
        }
        if last_heartbeat_at.elapsed() > HEARTBEAT_INTERVAL {
            heartbeats.write_marker(LAUNCHER_FILE);
            last_heartbeat_at = Instant::now();
        }
        if stop.load(Ordering::Relaxed) && !std::mem::replace(&mut is_stopping, true) {
            heartbeats.write_marker(STOP_FILE);
            output.message("stopping after this iteration, with a checkpoint");
        }
        if let Some((rank, at)) = heartbeats.first_silent(count) {
            kill(&mut child);
            return Err(Failure::worker_lost(rank, at, "has had no heartbeat for 20 s"));
        }
        std::thread::sleep(POLL_INTERVAL);
    }
}

/// Kills `mpiexec`, which ends its workers.
fn kill(child: &mut Child) {
    let _ = child.kill();
    let _ = child.wait();
}

/// Returns the arguments without `--workers`.
fn strip_workers_flag(
    arguments: impl Iterator<Item = std::ffi::OsString>,
) -> impl Iterator<Item = std::ffi::OsString> {
    let mut is_value = false;
    arguments.filter(move |argument| {
        if std::mem::take(&mut is_value) {
            return false;
        }
        is_value = argument == "--workers";
        !is_value && !argument.as_encoded_bytes().starts_with(b"--workers=")
    })
}

/// The launcher, and the MPI library that it belongs to, if known.
struct Mpiexec {
    program: PathBuf,
    library: Option<PathBuf>,
}

impl Mpiexec {
    /// Finds the launcher: `STRATUS_MPIEXEC`, next to the MPI library, or in `PATH`.
    fn find() -> Result<Self> {
        let library = std::env::var_os(SEARCH.environment).map(PathBuf::from);
        if let Some(program) = std::env::var_os(MPIEXEC_VAR).map(PathBuf::from) {
            return Ok(Self { program, library });
        }
        for library in SEARCH.candidates() {
            let launcher = library.parent().and_then(Path::parent).map(|root| root.join("bin/mpiexec"));
            if let Some(program) = launcher.filter(|program| library.is_file() && program.is_file()) {
                return Ok(Self { program, library: Some(library) });
            }
        }
        let path = std::env::var_os("PATH").unwrap_or_default();
        let found =
            std::env::split_paths(&path).map(|folder| folder.join("mpiexec")).find(|file| file.is_file());
        found.map(|program| Self { program, library }).ok_or_else(|| {
            Failure::failed("cannot start workers: mpiexec not found")
                .with_hint("run `make deps`, which installs MPICH into .deps, or install mpich or openmpi")
        })
    }
}

/// The age of a heartbeat; `None` if there is none.
fn age(path: &Path) -> Option<Duration> {
    let written = std::fs::metadata(path).and_then(|data| data.modified()).ok()?;
    Some(SystemTime::now().duration_since(written).unwrap_or_default())
}

/// Monitors the heartbeats and sockets of workers.
struct HeartbeatMonitor {
    folder: PathBuf,
    started_at: Instant,
    exits: Arc<Mutex<WorkerExits>>,
}

/// The workers whose sockets were closed.
#[derive(Default)]
struct WorkerExits {
    connected: usize,
    /// Ranks in the order in which they exited.
    exited: Vec<usize>,
}

impl WorkerExits {
    fn any_alive(&self) -> bool {
        self.exited.len() < self.connected
    }
}

/// Records the exits of workers, which connect to a socket.
fn watch_sockets(listener: UnixListener, exits: &Arc<Mutex<WorkerExits>>) {
    let exits = Arc::clone(exits);
    std::thread::spawn(move || {
        for mut socket in listener.incoming().flatten() {
            let exits = Arc::clone(&exits);
            std::thread::spawn(move || {
                lock(&exits).connected += 1;
                let mut rank = String::new();
                // The system closes the socket when the worker exits for any reason.
                let _ = socket.read_to_string(&mut rank);
                let mut exits = lock(&exits);
                match rank.trim().parse() {
                    Ok(rank) => exits.exited.push(rank),
                    Err(_) => exits.connected -= 1,
                }
            });
        }
    });
}

fn lock(exits: &Mutex<WorkerExits>) -> std::sync::MutexGuard<'_, WorkerExits> {
    exits.lock().unwrap_or_else(PoisonError::into_inner)
}

impl HeartbeatMonitor {
    fn new() -> Result<Self> {
        // The folder must be new and private, since other users may write to the temporary folder.
        let (folder, process_id) = (std::env::temp_dir(), std::process::id());
        let created = (0..MAX_FOLDER_ATTEMPTS).find_map(|attempt| {
            let folder = folder.join(format!("stratus-workers-{process_id}-{attempt}"));
            let created = std::fs::DirBuilder::new().mode(0o700).create(&folder);
            match created {
                Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => None,
                created => Some(created.map(|()| folder)),
            }
        });
        let failed = |error| Failure::failed(format!("{}: {error}", folder.display()));
        let already_exists = || std::io::Error::from(std::io::ErrorKind::AlreadyExists);
        let folder = created.unwrap_or_else(|| Err(already_exists())).map_err(failed)?;
        let heartbeats = Self { folder, started_at: Instant::now(), exits: Arc::default() };
        let socket = heartbeats.folder.join(SOCKET_FILE);
        let listener = UnixListener::bind(&socket)
            .map_err(|error| Failure::failed(format!("{}: {error}", socket.display())))?;
        watch_sockets(listener, &heartbeats.exits);
        heartbeats.write_marker(LAUNCHER_FILE);
        Ok(heartbeats)
    }

    /// Writes a marker file for the workers.
    fn write_marker(&self, word: &str) {
        // Without the launching process's marker, workers stop on their own.
        let _ = std::fs::write(self.folder.join(word), word);
    }

    /// The last heartbeat of a worker: its word, its iteration, and its age.
    fn last_heartbeat(&self, rank: usize) -> Option<(String, u64, Duration)> {
        let path = self.folder.join(rank.to_string());
        let text = std::fs::read_to_string(&path).ok()?;
        let (word, iteration) = text.split_once(' ')?;
        Some((word.to_owned(), iteration.parse().ok()?, age(&path)?))
    }

    /// The first non-zero exit code of a worker that exited on its own.
    fn first_exit_code(&self, count: usize) -> Option<u8> {
        let mut codes = (0..count)
            .filter_map(|rank| self.last_heartbeat(rank)?.0.strip_prefix(EXITED_PREFIX)?.parse().ok());
        codes.find(|code| *code != 0)
    }

    /// The first worker that did not exit on its own, with the iteration of its last heartbeat.
    fn first_killed(&self) -> Option<(usize, u64)> {
        let started = Instant::now();
        while started.elapsed() < EXIT_TIMEOUT && lock(&self.exits).any_alive() {
            std::thread::sleep(POLL_INTERVAL);
        }
        let exited = lock(&self.exits).exited.clone();
        let at = |rank| {
            self.last_heartbeat(rank)
                .map_or((false, 0), |(word, at, _)| (word.starts_with(EXITED_PREFIX), at))
        };
        exited
            .into_iter()
            .map(|rank| (rank, at(rank)))
            .find(|(_, (by_itself, _))| !by_itself)
            .map(|(rank, (_, at))| (rank, at))
    }

    fn first_silent(&self, count: usize) -> Option<(usize, u64)> {
        if self.started_at.elapsed() < HEARTBEAT_TIMEOUT {
            return None;
        }
        let mut all = (0..count).filter_map(|rank| Some((rank, self.last_heartbeat(rank)?)));
        all.find(|(_, (word, _, age))| !word.starts_with(EXITED_PREFIX) && *age > HEARTBEAT_TIMEOUT)
            .map(|(rank, (_, at, _))| (rank, at))
    }
}

impl Drop for HeartbeatMonitor {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

impl Failure {
    /// The error for a lost worker.
    fn worker_lost(rank: usize, iteration: u64, how: &str) -> Self {
        Failure {
            code: INTERRUPTED,
            error: format!(
                "worker {rank} on this machine {how} after iteration {iteration}; stopped all workers"
            )
            .into(),
            hint: Some(
                "resume the run from its last checkpoint, with the same or another number of workers"
                    .to_owned(),
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn workers_flag_is_stripped_from_the_arguments() {
        let given = ["train", "digits", "--workers", "4", "--set", "train.epochs=1", "--workers=2"];
        let remaining: Vec<_> = strip_workers_flag(given.into_iter().map(Into::into)).collect();
        assert_eq!(remaining, ["train", "digits", "--set", "train.epochs=1"]);
    }

    #[test]
    fn first_killed_worker_is_named() {
        let heartbeats = HeartbeatMonitor::new().unwrap();
        assert_eq!(
            (heartbeats.first_killed(), heartbeats.first_silent(3), heartbeats.first_exit_code(3)),
            (None, None, None)
        );
        let mut workers: Vec<UnixStream> = (0..3)
            .map(|rank| {
                std::fs::write(heartbeats.folder.join(rank.to_string()), format!("at {}", 7 + rank)).unwrap();
                let mut socket = UnixStream::connect(heartbeats.folder.join(SOCKET_FILE)).unwrap();
                socket.write_all(format!("{rank}\n").as_bytes()).unwrap();
                socket
            })
            .collect();
        let ends = |count: usize| {
            while lock(&heartbeats.exits).exited.len() < count {
                std::thread::sleep(POLL_INTERVAL);
            }
        };
        drop(workers.remove(2));
        ends(1);
        drop(workers.remove(0));
        ends(2);
        drop(workers);
        ends(3);
        assert_eq!(heartbeats.first_killed(), Some((2, 9)));
        std::fs::write(heartbeats.folder.join("2"), "ended:2 9").unwrap();
        assert_eq!((heartbeats.first_killed(), heartbeats.first_exit_code(3)), (Some((0, 7)), Some(2)));
    }
}
