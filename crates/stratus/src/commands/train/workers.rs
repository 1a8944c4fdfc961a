//! Workers on this machine: `--workers N` starts them through `mpiexec`, which belongs to the MPI library
//! that they load, and looks after them. A process that `mpiexec`, `mpirun` or `srun` started joins the
//! others.
//!
//! Workers note once a second that they are alive, and where they are, in a folder that the starting process
//! has made, and look there whether they are to stop. So does that process: without it they stop too. One
//! that stands still is told by that; the others end with it, and the run is continued from its last
//! checkpoint. Which one was killed is told by a socket of each, which the system closes: of the others, that
//! the launcher ends then, it closes them later.

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
use stratus_exchange::{ExchangeError, Launched, Workers, launched};
use stratus_threads::keep_to_share;
use stratus_train::{EpochResult, Observer, TrainingProgress};

/// The environment variable that names the folder of heartbeats.
const FOLDER: &str = "STRATUS_WORKER_HEARTBEATS";
/// The environment variable that names the launcher.
const MPIEXEC: &str = "STRATUS_MPIEXEC";
/// What Open MPI's launcher is told, by variables of several of its versions: there may be more workers than
/// processors, and which processors a worker has is decided here.
const OPEN_MPI: [(&str, &str); 4] = [
    ("OMPI_MCA_rmaps_base_oversubscribe", "1"),
    ("OMPI_MCA_hwloc_base_binding_policy", "none"),
    ("PRTE_MCA_rmaps_default_mapping_policy", ":oversubscribe"),
    ("PRTE_MCA_hwloc_default_binding_policy", "none"),
];
/// The heartbeat of the process that started the workers, and its word that they are to stop.
const STARTED: &str = "started";
const STOP: &str = "stop";
/// The socket that each worker keeps open.
const ALIVE: &str = "alive";
/// How long the ends of workers are waited for when their launcher has ended.
const ENDS: Duration = Duration::from_secs(5);
/// Between two heartbeats.
const BEAT: Duration = Duration::from_secs(1);
/// A worker without a heartbeat for so long stands still: it ends all.
const SILENCE: Duration = Duration::from_secs(20);
/// The last heartbeat of a worker that has ended by itself begins with this; its exit code follows.
const ENDED: &str = "ended:";
/// Folders that are tried until one is new.
const ATTEMPTS: u32 = 100;
/// Between two looks at the processes.
const LOOK: Duration = Duration::from_millis(50);

/// Joins the workers that a launcher started with this process, where one did. Its heart beats from before
/// that on, so that one which is lost while they find each other is known too; `stop` is set where whoever
/// started it says so.
///
/// # Errors
/// Where there is no MPI, or another than the launcher's.
pub fn join(stop: &Arc<AtomicBool>) -> Result<Option<Joined>> {
    let Some(told) = launched() else { return Ok(None) };
    // Before any thread is started, which then keeps to it too.
    let kept = told.local.and_then(|[rank, size]| keep_to_share(rank, size));
    let processors = kept.or_else(|| std::thread::available_parallelism().ok().map(Into::into)).unwrap_or(1);
    let heartbeat = Heartbeat::begin(told.rank, Arc::clone(stop))?;
    let opened = Workers::open(move || Mpi::join(told));
    if let Err(error) = &opened {
        heartbeat.end(FAILED);
        leave_it_to_the_first(told.rank);
        if told.rank > 0 && matches!(error, ExchangeError::OtherLauncher { .. } | ExchangeError::Size(_)) {
            // The first has said so.
            std::process::exit(i32::from(FAILED));
        }
    }
    let workers = opened.map_err(Failure::failed)?;
    Ok(Some(Joined { told, workers: Arc::new(workers), processors, heartbeat }))
}

/// How long the others leave it to the first worker to say what is wrong: where its end can be seen, and
/// where it cannot.
const FIRST_SPEAKS: [Duration; 2] = [Duration::from_secs(10), Duration::from_secs(2)];
/// The first worker notes its end before it says why.
const SPEAKS_FOR: Duration = Duration::from_millis(500);

/// Waits where another worker is likely to fail of the same: it says so, and its end ends all. What it does
/// not know of is said after that.
pub fn leave_it_to_the_first(rank: usize) {
    if rank == 0 {
        return;
    }
    let first = std::env::var_os(FOLDER).map(|folder| Path::new(&folder).join("0"));
    let begun = Instant::now();
    while begun.elapsed() < FIRST_SPEAKS[usize::from(first.is_none())] {
        let heartbeat =
            first.as_ref().and_then(|file| std::fs::read_to_string(file).ok()).unwrap_or_default();
        let code = heartbeat.split(' ').next().and_then(|word| word.strip_prefix(ENDED));
        if code.is_some_and(|code| code != "0") {
            std::thread::sleep(SPEAKS_FOR);
            std::process::exit(i32::from(FAILED));
        }
        std::thread::sleep(LOOK);
    }
}

/// A process that has joined others.
pub struct Joined {
    /// What its launcher said.
    pub told: Launched,
    /// The others.
    pub workers: Arc<Workers>,
    /// Processors of this machine, for all its workers.
    pub processors: usize,
    /// That it is alive.
    pub heartbeat: Heartbeat,
}

/// Where a worker is, for its heartbeats.
#[derive(Clone, Debug, Default)]
pub struct Heartbeat {
    iteration: Arc<AtomicU64>,
    ended: Arc<AtomicBool>,
    file: Option<PathBuf>,
    /// Open as long as the process is there.
    _alive: Option<Arc<UnixStream>>,
}

impl Heartbeat {
    /// Begins to beat, where somebody listens, and to listen to whoever started this
    /// worker: `stop` is set where it says so, or is gone.
    fn begin(rank: usize, stop: Arc<AtomicBool>) -> Result<Self> {
        let Some(folder) = std::env::var_os(FOLDER).map(PathBuf::from) else { return Ok(Self::default()) };
        let alive = UnixStream::connect(folder.join(ALIVE)).and_then(|mut socket| {
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
                beats.note("at");
                if folder.join(STOP).exists() || age(&folder.join(STARTED)).is_none_or(|age| age > SILENCE) {
                    stop.store(true, Ordering::Relaxed);
                }
                std::thread::sleep(BEAT);
            }
        });
        Ok(heartbeat)
    }

    fn note(&self, word: &str) {
        if let Some(file) = &self.file {
            // A heartbeat that cannot be written is none: the other side says so.
            let _ = std::fs::write(file, format!("{word} {}", self.iteration.load(Ordering::Relaxed)));
        }
    }

    /// The worker ends by itself, with an exit code.
    pub fn end(&self, code: u8) {
        self.ended.store(true, Ordering::Relaxed);
        self.note(&format!("{ENDED}{code}"));
    }
}

/// An observer that also notes where training is.
pub struct WithHeartbeat<'a> {
    /// Who is told.
    pub observer: &'a mut dyn Observer,
    /// Where it is noted.
    pub heartbeat: Heartbeat,
}

impl Observer for WithHeartbeat<'_> {
    fn iteration(&mut self, progress: &TrainingProgress) {
        self.heartbeat.iteration.store(progress.iteration, Ordering::Relaxed);
        self.observer.iteration(progress);
    }
    fn epoch(&mut self, result: &EpochResult) {
        self.observer.epoch(result);
    }
    fn say(&mut self, text: &str) {
        self.observer.say(text);
    }
    fn warn(&mut self, text: &str) {
        self.observer.warn(text);
    }
}

/// Starts so many workers with this process's arguments, and waits for them.
///
/// # Errors
/// Where there is no MPI, or a worker was killed or stands still; what workers fail with, they say
/// themselves.
pub fn start(count: usize, output: &Output) -> Result {
    if !count.is_power_of_two() {
        return Err(Failure::usage(ExchangeError::Size(count)));
    }
    let Mpiexec { program, library } = Mpiexec::find()?;
    let heartbeats = Heartbeats::new()?;
    let stop = signals::stop_flag()?;
    let me = std::env::current_exe().map_err(|error| Failure::failed(format!("this program: {error}")))?;
    let mut command = Command::new(&program);
    command.arg("-n").arg(count.to_string()).arg(me).args(without_workers(std::env::args_os().skip(1)));
    // Its own group: the terminal's Ctrl-C is this process's, which passes it on.
    command.stdin(Stdio::null()).env(FOLDER, &heartbeats.folder).process_group(0);
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
        .map_err(|error| Failure::failed(format!("{} cannot be started: {error}", program.display())))?;
    let (mut told, mut beat) = (false, Instant::now());
    loop {
        if let Some(status) = child.try_wait().map_err(|error| Failure::failed(error.to_string()))? {
            let (code, failed, dead) = (status.code(), heartbeats.failed(count), heartbeats.dead());
            drop(heartbeats);
            return match (code, failed, dead) {
                (Some(0), ..) => Ok(()),
                // The worker has said why. The launcher's own code is that of whom it has killed then.
                (_, Some(code), _) => std::process::exit(i32::from(code)),
                (.., Some((rank, at))) => Err(Failure::lost(rank, at, "was killed")),
                (code, ..) => std::process::exit(code.unwrap_or(i32::from(FAILED))),
            };
        }
        if beat.elapsed() > BEAT {
            heartbeats.say(STARTED);
            beat = Instant::now();
        }
        if stop.load(Ordering::Relaxed) && !std::mem::replace(&mut told, true) {
            heartbeats.say(STOP);
            output.message("workers stop after this iteration, with a checkpoint");
        }
        if let Some((rank, at)) = heartbeats.silent(count) {
            end(&mut child);
            return Err(Failure::lost(rank, at, "has had no heartbeat for 20 s"));
        }
        std::thread::sleep(LOOK);
    }
}

/// Ends `mpiexec`, which ends its workers.
fn end(child: &mut Child) {
    let _ = child.kill();
    let _ = child.wait();
}

/// Arguments without `--workers`.
fn without_workers(
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

/// The launcher, and the library that it belongs to where that is known.
struct Mpiexec {
    program: PathBuf,
    library: Option<PathBuf>,
}

impl Mpiexec {
    /// As `STRATUS_MPIEXEC` says, beside the library that is loaded, or else on the path.
    fn find() -> Result<Self> {
        let library = std::env::var_os(SEARCH.environment).map(PathBuf::from);
        if let Some(program) = std::env::var_os(MPIEXEC).map(PathBuf::from) {
            return Ok(Self { program, library });
        }
        for library in SEARCH.candidates() {
            let beside = library.parent().and_then(Path::parent).map(|root| root.join("bin/mpiexec"));
            if let Some(program) = beside.filter(|program| library.is_file() && program.is_file()) {
                return Ok(Self { program, library: Some(library) });
            }
        }
        let path = std::env::var_os("PATH").unwrap_or_default();
        let found =
            std::env::split_paths(&path).map(|folder| folder.join("mpiexec")).find(|file| file.is_file());
        found.map(|program| Self { program, library }).ok_or_else(|| {
            Failure::failed("there is no mpiexec to start workers with")
                .hint("`make deps` brings MPICH into .deps; or install your system's mpich or openmpi")
        })
    }
}

/// How old a heartbeat is; `None` where there is none.
fn age(path: &Path) -> Option<Duration> {
    let written = std::fs::metadata(path).and_then(|data| data.modified()).ok()?;
    Some(SystemTime::now().duration_since(written).unwrap_or_default())
}

/// The folder of heartbeats.
struct Heartbeats {
    folder: PathBuf,
    begun: Instant,
    ends: Arc<Mutex<Ends>>,
}

/// Which workers have ended, as the system says.
#[derive(Default)]
struct Ends {
    began: usize,
    /// In the order in which they did.
    ended: Vec<usize>,
}

impl Ends {
    fn some_live(&self) -> bool {
        self.ended.len() < self.began
    }
}

/// Notes the ends of workers, who come to a socket.
fn listen(listener: UnixListener, ends: &Arc<Mutex<Ends>>) {
    let ends = Arc::clone(ends);
    std::thread::spawn(move || {
        for mut socket in listener.incoming().flatten() {
            let ends = Arc::clone(&ends);
            std::thread::spawn(move || {
                lock(&ends).began += 1;
                let mut said = String::new();
                // It ends when the other process does, however that is.
                let _ = socket.read_to_string(&mut said);
                let mut ends = lock(&ends);
                match said.trim().parse() {
                    Ok(rank) => ends.ended.push(rank),
                    Err(_) => ends.began -= 1,
                }
            });
        }
    });
}

fn lock(ends: &Mutex<Ends>) -> std::sync::MutexGuard<'_, Ends> {
    ends.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Heartbeats {
    fn new() -> Result<Self> {
        // Of this user alone, and new: others may write into the folder of temporary files.
        let (folder, begun) = (std::env::temp_dir(), std::process::id());
        let made = (0..ATTEMPTS).find_map(|attempt| {
            let folder = folder.join(format!("stratus-workers-{begun}-{attempt}"));
            let made = std::fs::DirBuilder::new().mode(0o700).create(&folder);
            match made {
                Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => None,
                made => Some(made.map(|()| folder)),
            }
        });
        let failed = |error| Failure::failed(format!("{}: {error}", folder.display()));
        let taken = || std::io::Error::from(std::io::ErrorKind::AlreadyExists);
        let folder = made.unwrap_or_else(|| Err(taken())).map_err(failed)?;
        let heartbeats = Self { folder, begun: Instant::now(), ends: Arc::default() };
        let socket = heartbeats.folder.join(ALIVE);
        let listener = UnixListener::bind(&socket)
            .map_err(|error| Failure::failed(format!("{}: {error}", socket.display())))?;
        listen(listener, &heartbeats.ends);
        heartbeats.say(STARTED);
        Ok(heartbeats)
    }

    /// Says something to the workers.
    fn say(&self, word: &str) {
        // Without it they stop by themselves.
        let _ = std::fs::write(self.folder.join(word), word);
    }

    /// The last heartbeat of a worker: its word and its iteration, and how old it is.
    fn of(&self, rank: usize) -> Option<(String, u64, Duration)> {
        let path = self.folder.join(rank.to_string());
        let text = std::fs::read_to_string(&path).ok()?;
        let (word, iteration) = text.split_once(' ')?;
        Some((word.to_owned(), iteration.parse().ok()?, age(&path)?))
    }

    /// The exit code of the first worker that ended by itself and not well.
    fn failed(&self, count: usize) -> Option<u8> {
        let mut codes = (0..count).filter_map(|rank| self.of(rank)?.0.strip_prefix(ENDED)?.parse().ok());
        codes.find(|code| *code != 0)
    }

    /// The first worker that began and did not end by itself; with the iteration of its last heartbeat.
    fn dead(&self) -> Option<(usize, u64)> {
        let begun = Instant::now();
        while begun.elapsed() < ENDS && lock(&self.ends).some_live() {
            std::thread::sleep(LOOK);
        }
        let ended = lock(&self.ends).ended.clone();
        let at = |rank| self.of(rank).map_or((false, 0), |(word, at, _)| (word.starts_with(ENDED), at));
        ended
            .into_iter()
            .map(|rank| (rank, at(rank)))
            .find(|(_, (by_itself, _))| !by_itself)
            .map(|(rank, (_, at))| (rank, at))
    }

    fn silent(&self, count: usize) -> Option<(usize, u64)> {
        if self.begun.elapsed() < SILENCE {
            return None;
        }
        let mut all = (0..count).filter_map(|rank| Some((rank, self.of(rank)?)));
        all.find(|(_, (word, _, age))| !word.starts_with(ENDED) && *age > SILENCE)
            .map(|(rank, (_, at, _))| (rank, at))
    }
}

impl Drop for Heartbeats {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

impl Failure {
    /// A worker is gone, and with it the others.
    fn lost(rank: usize, iteration: u64, how: &str) -> Self {
        Failure {
            code: INTERRUPTED,
            error: format!(
                "worker {rank} on this machine {how} after iteration {iteration}; the others were ended too"
            )
            .into(),
            hint: Some(
                "the last checkpoint is whole: continue the run with the same or another number of \
                        workers"
                    .to_owned(),
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_number_of_workers_is_left_out() {
        let given = ["train", "digits", "--workers", "4", "--set", "train.epochs=1", "--workers=2"];
        let left: Vec<_> = without_workers(given.into_iter().map(Into::into)).collect();
        assert_eq!(left, ["train", "digits", "--set", "train.epochs=1"]);
    }

    #[test]
    fn the_one_that_died_first_is_named() {
        let heartbeats = Heartbeats::new().unwrap();
        assert_eq!((heartbeats.dead(), heartbeats.silent(3), heartbeats.failed(3)), (None, None, None));
        let mut workers: Vec<UnixStream> = (0..3)
            .map(|rank| {
                std::fs::write(heartbeats.folder.join(rank.to_string()), format!("at {}", 7 + rank)).unwrap();
                let mut socket = UnixStream::connect(heartbeats.folder.join(ALIVE)).unwrap();
                socket.write_all(format!("{rank}\n").as_bytes()).unwrap();
                socket
            })
            .collect();
        let ends = |count: usize| {
            while lock(&heartbeats.ends).ended.len() < count {
                std::thread::sleep(LOOK);
            }
        };
        drop(workers.remove(2));
        ends(1);
        drop(workers.remove(0));
        ends(2);
        drop(workers);
        ends(3);
        assert_eq!(heartbeats.dead(), Some((2, 9)));
        std::fs::write(heartbeats.folder.join("2"), "ended:2 9").unwrap();
        assert_eq!((heartbeats.dead(), heartbeats.failed(3)), (Some((0, 7)), Some(2)));
    }
}
