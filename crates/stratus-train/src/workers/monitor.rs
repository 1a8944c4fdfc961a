//! Monitors the heartbeats and sockets of workers.

use super::{EXITED_PREFIX, HEARTBEAT_TIMEOUT, LAUNCHER_FILE, POLL_INTERVAL, SOCKET_FILE, WorkersError, age};
use mio::event::Event;
use mio::net::{TcpStream, UnixListener, UnixStream};
use mio::{Events, Interest, Poll, Registry, Token};
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::io::{self, ErrorKind, Read};
use std::net;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use stratus_base::printable;

/// The time that a worker has to connect, unless `STRATUS_CONNECT_TIMEOUT` is set.
const DEFAULT_CONNECT_TIMEOUT: Duration = Duration::from_secs(120);
/// The maximum number of seconds in `STRATUS_CONNECT_TIMEOUT`, one day.
const MAX_CONNECT_TIMEOUT_S: u64 = 86_400;
/// The time to wait for workers to exit after their launcher has exited.
const EXIT_TIMEOUT: Duration = Duration::from_secs(5);
/// The maximum number of folder names to try until one is unused.
const MAX_FOLDER_ATTEMPTS: u32 = 100;

/// Monitors the heartbeats and sockets of workers.
pub(super) struct HeartbeatMonitor {
    pub folder: PathBuf,
    pub sockets: Arc<SocketRegistry>,
    /// When the workers were started.
    started_at: Instant,
    /// The time that a worker has to connect.
    pub connect_timeout: Duration,
}

/// The token of the listening socket; those of connections follow.
const LISTENER: Token = Token(0);
/// The maximum number of events to take at a time; more are taken by the next call, in order.
const MAX_EVENTS: usize = 256;

/// The connections of workers and the order of their ends. The system closes a worker's socket when it exits
/// for any reason.
///
/// One thread takes the events, in the order in which the system reports them: when a worker is killed, its
/// launcher kills the others at once, and only the order tells which was the first.
pub(super) struct SocketRegistry {
    registry: Registry,
    watched: Mutex<WatchedSockets>,
}

/// The sockets of workers, and those that were closed.
struct WatchedSockets {
    connections: BTreeMap<Token, Connection>,
    next_token: Token,
    /// The number of workers that are connected, or whose last heartbeat is being read.
    alive: usize,
    /// Ranks in the order in which they exited.
    exited: Vec<usize>,
}

/// A connection of a worker.
enum Connection {
    /// Of a worker on this machine, which sends its rank as text; as far as it was read.
    Local(UnixStream, Vec<u8>),
    /// Of a worker on another machine, whose thread reads it.
    Remote(TcpStream, usize),
}

impl Connection {
    /// Returns whether the worker has closed the connection.
    fn is_closed(&mut self, event: &Event) -> bool {
        let (socket, rank) = match self {
            Self::Remote(..) => return event.is_read_closed() || event.is_error(),
            Self::Local(socket, rank) => (socket, rank),
        };
        let mut buffer = [0; 64];
        loop {
            match socket.read(&mut buffer) {
                Ok(0) => return true,
                Ok(length) if rank.len() + length <= buffer.len() => {
                    rank.extend_from_slice(&buffer[..length]);
                }
                Ok(_) => return true,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return false,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(_) => return true,
            }
        }
    }
}

impl SocketRegistry {
    fn watched(&self) -> MutexGuard<'_, WatchedSockets> {
        self.watched.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Watches the connection of a worker on another machine. The worker counts as alive until the result is
    /// dropped.
    pub fn watch(self: &Arc<Self>, connection: &net::TcpStream, rank: usize) -> io::Result<AliveWorker> {
        // Reads of the original must block, so that this one is never read.
        self.add(Connection::Remote(TcpStream::from_std(connection.try_clone()?), rank))?;
        Ok(AliveWorker(Arc::clone(self)))
    }

    fn add(&self, mut connection: Connection) -> io::Result<()> {
        // Locked while events of the connection could come.
        let mut watched = self.watched();
        let token = watched.next_token;
        watched.next_token.0 += 1;
        match &mut connection {
            Connection::Local(socket, _) => self.registry.register(socket, token, Interest::READABLE)?,
            Connection::Remote(socket, _) => self.registry.register(socket, token, Interest::READABLE)?,
        }
        watched.connections.insert(token, connection);
        watched.alive += 1;
        Ok(())
    }

    fn accept(&self, listener: &UnixListener) {
        while let Ok((socket, _)) = listener.accept() {
            // A worker that cannot be watched is monitored by its heartbeats only.
            let _ = self.add(Connection::Local(socket, Vec::new()));
        }
    }

    fn receive(&self, event: &Event) {
        let mut watched = self.watched();
        let connection = watched.connections.get_mut(&event.token());
        if !connection.is_some_and(|connection| connection.is_closed(event)) {
            return;
        }
        let rank = match watched.connections.remove(&event.token()) {
            None => return,
            Some(Connection::Remote(_, rank)) => Some(rank),
            Some(Connection::Local(_, rank)) => {
                watched.alive -= 1;
                String::from_utf8(rank).ok().and_then(|text| text.trim().parse().ok())
            }
        };
        watched.exited.extend(rank);
    }

    /// Takes events for as long as the process lives.
    fn run(&self, mut poll: Poll, listener: &UnixListener) {
        let mut events = Events::with_capacity(MAX_EVENTS);
        loop {
            match poll.poll(&mut events, None) {
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                // Workers are then watched by their heartbeats only.
                Err(_) => return,
                Ok(()) => {}
            }
            for event in &events {
                if event.token() == LISTENER { self.accept(listener) } else { self.receive(event) }
            }
        }
    }

    /// Starts the thread that takes the events of a listening socket and its connections.
    fn start(socket: &Path) -> io::Result<Arc<Self>> {
        let poll = Poll::new()?;
        let mut listener = UnixListener::bind(socket)?;
        poll.registry().register(&mut listener, LISTENER, Interest::READABLE)?;
        let watched = WatchedSockets {
            connections: BTreeMap::new(),
            next_token: Token(LISTENER.0 + 1),
            alive: 0,
            exited: Vec::new(),
        };
        let sockets = Arc::new(Self { registry: poll.registry().try_clone()?, watched: Mutex::new(watched) });
        let running = Arc::clone(&sockets);
        std::thread::spawn(move || running.run(poll, &listener));
        Ok(sockets)
    }
}

/// A worker on another machine, until its last heartbeat is read.
pub(super) struct AliveWorker(Arc<SocketRegistry>);

impl Drop for AliveWorker {
    fn drop(&mut self) {
        self.0.watched().alive -= 1;
    }
}

/// The time that a worker has to connect, from the value of `STRATUS_CONNECT_TIMEOUT`.
pub(super) fn connect_timeout(value: Option<&OsStr>) -> Result<Duration, WorkersError> {
    let Some(value) = value.filter(|value| !value.is_empty()) else { return Ok(DEFAULT_CONNECT_TIMEOUT) };
    let seconds = value.to_str().and_then(|value| value.parse().ok());
    match seconds.filter(|seconds| (1..=MAX_CONNECT_TIMEOUT_S).contains(seconds)) {
        Some(seconds) => Ok(Duration::from_secs(seconds)),
        None => {
            let value = printable(&value.to_string_lossy());
            Err(WorkersError::ConnectTimeout { value, max: MAX_CONNECT_TIMEOUT_S })
        }
    }
}

impl HeartbeatMonitor {
    pub fn new() -> Result<Self, WorkersError> {
        // The folder must be new and private, since other users may write to the temporary folder.
        let (folder, process_id) = (std::env::temp_dir(), std::process::id());
        let created = (0..MAX_FOLDER_ATTEMPTS).find_map(|attempt| {
            let folder = folder.join(format!("stratus-workers-{process_id}-{attempt}"));
            let created = std::fs::DirBuilder::new().mode(0o700).create(&folder);
            match created {
                Err(error) if error.kind() == ErrorKind::AlreadyExists => None,
                created => Some(created.map(|()| folder)),
            }
        });
        let failed = |source| WorkersError::Folder { path: folder.clone(), source };
        let already_exists = || io::Error::new(ErrorKind::AlreadyExists, "its temporary names are taken");
        let folder = created.unwrap_or_else(|| Err(already_exists())).map_err(failed)?;
        let socket = folder.join(SOCKET_FILE);
        let sockets = SocketRegistry::start(&socket).map_err(|source| {
            let _ = std::fs::remove_dir_all(&folder);
            WorkersError::Folder { path: socket, source }
        })?;
        let connect_timeout = DEFAULT_CONNECT_TIMEOUT;
        let heartbeats = Self { folder, sockets, started_at: Instant::now(), connect_timeout };
        heartbeats.write_marker(LAUNCHER_FILE);
        Ok(heartbeats)
    }

    /// Notes that the workers are started now.
    pub fn note_start(&mut self) {
        self.started_at = Instant::now();
    }

    /// Writes a marker file for the workers.
    pub fn write_marker(&self, word: &str) {
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
    pub fn first_exit_code(&self, count: usize) -> Option<u8> {
        let mut codes = (0..count)
            .filter_map(|rank| self.last_heartbeat(rank)?.0.strip_prefix(EXITED_PREFIX)?.parse().ok());
        codes.find(|code| *code != 0)
    }

    /// Waits for a short time until all workers have exited, after their launcher has.
    pub fn wait_for_exits(&self) {
        let started = Instant::now();
        while started.elapsed() < EXIT_TIMEOUT && self.sockets.watched().alive > 0 {
            std::thread::sleep(POLL_INTERVAL);
        }
    }

    /// The first worker that did not exit on its own, with the iteration of its last heartbeat.
    pub fn first_killed(&self) -> Option<(usize, u64)> {
        let exited = self.sockets.watched().exited.clone();
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

    /// The first worker that has not connected in time.
    pub fn first_missing(&self, count: usize) -> Option<usize> {
        if self.started_at.elapsed() < self.connect_timeout {
            return None;
        }
        (0..count).find(|rank| !self.folder.join(rank.to_string()).exists())
    }

    /// The first worker without a recent heartbeat, with the iteration of its last one.
    pub fn first_silent(&self, count: usize) -> Option<(usize, u64)> {
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::os::unix::net;

    #[test]
    fn first_killed_worker_is_named() {
        let heartbeats = HeartbeatMonitor::new().unwrap();
        assert_eq!(
            (heartbeats.first_killed(), heartbeats.first_silent(3), heartbeats.first_exit_code(3)),
            (None, None, None)
        );
        let mut workers: Vec<_> = (0..3)
            .map(|rank| {
                std::fs::write(heartbeats.folder.join(rank.to_string()), format!("at {}", 7 + rank)).unwrap();
                let mut socket = net::UnixStream::connect(heartbeats.folder.join(SOCKET_FILE)).unwrap();
                socket.write_all(format!("{rank}\n").as_bytes()).unwrap();
                socket
            })
            .collect();
        while heartbeats.sockets.watched().alive < 3 {
            std::thread::sleep(POLL_INTERVAL);
        }
        // As fast as a launcher that kills all others.
        for rank in [2, 0, 0] {
            drop(workers.remove(rank));
        }
        heartbeats.wait_for_exits();
        assert_eq!(heartbeats.first_killed(), Some((2, 9)));
        std::fs::write(heartbeats.folder.join("2"), "ended:2 9").unwrap();
        assert_eq!((heartbeats.first_killed(), heartbeats.first_exit_code(3)), (Some((0, 7)), Some(2)));
    }

    #[test]
    fn worker_that_never_connects_is_missing() {
        let mut heartbeats = HeartbeatMonitor::new().unwrap();
        std::fs::write(heartbeats.folder.join("0"), "at 0").unwrap();
        assert_eq!(heartbeats.first_missing(2), None);
        heartbeats.started_at = Instant::now().checked_sub(DEFAULT_CONNECT_TIMEOUT).unwrap();
        assert_eq!(heartbeats.first_missing(2), Some(1));
        std::fs::write(heartbeats.folder.join("1"), "at 0").unwrap();
        assert_eq!(heartbeats.first_missing(2), None);
    }

    #[test]
    fn time_to_connect_is_a_number_of_seconds() {
        let parse = |value: &str| connect_timeout(Some(OsStr::new(value)));
        assert_eq!(connect_timeout(None).unwrap(), DEFAULT_CONNECT_TIMEOUT);
        assert_eq!(parse("").unwrap(), DEFAULT_CONNECT_TIMEOUT);
        assert_eq!(parse("600").unwrap(), Duration::from_secs(600));
        for value in ["0", "-1", "1.5", "ten", "86401", "99999999999999999999", "1\n"] {
            let message = parse(value).unwrap_err().to_string();
            assert!(message.starts_with("STRATUS_CONNECT_TIMEOUT: ") && !message.contains('\n'), "{message}");
        }
    }
}
