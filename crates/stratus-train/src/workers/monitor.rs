//! Monitors the heartbeats and sockets of workers.

use super::{EXITED_PREFIX, HEARTBEAT_TIMEOUT, LAUNCHER_FILE, POLL_INTERVAL, SOCKET_FILE, WorkersError, age};
use mio::net::{UnixListener, UnixStream};
use mio::{Events, Interest, Poll, Token};
use std::collections::BTreeMap;
use std::io::{self, ErrorKind, Read};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// The time to wait for workers to exit after their launcher has exited.
const EXIT_TIMEOUT: Duration = Duration::from_secs(5);
/// The maximum number of folder names to try until one is unused.
const MAX_FOLDER_ATTEMPTS: u32 = 100;

/// Monitors the heartbeats and sockets of workers.
pub(super) struct HeartbeatMonitor {
    pub folder: PathBuf,
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

/// The token of the listening socket; those of connections follow.
const LISTENER: Token = Token(0);
/// The maximum number of events to take at a time; more are taken by the next call, in order.
const MAX_EVENTS: usize = 256;

/// Records the exits of workers, which connect to a socket and send their rank. The system closes the socket
/// when a worker exits for any reason.
///
/// One thread takes the events, in the order in which the system reports them: when a worker is killed, its
/// launcher kills the others at once, and only the order tells which was the first.
struct SocketWatch {
    poll: Poll,
    listener: UnixListener,
    connections: BTreeMap<Token, Connection>,
    next_token: usize,
    exits: Arc<Mutex<WorkerExits>>,
}

struct Connection {
    socket: UnixStream,
    /// The rank as text, as far as it was read.
    rank: Vec<u8>,
}

impl Connection {
    /// Reads what has come. Returns whether the socket is closed.
    fn is_closed(&mut self) -> bool {
        let mut buffer = [0; 64];
        loop {
            match self.socket.read(&mut buffer) {
                Ok(0) => return true,
                Ok(length) if self.rank.len() + length <= buffer.len() => {
                    self.rank.extend_from_slice(&buffer[..length]);
                }
                Ok(_) => return true,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return false,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(_) => return true,
            }
        }
    }
}

impl SocketWatch {
    fn new(socket: &Path, exits: &Arc<Mutex<WorkerExits>>) -> io::Result<Self> {
        let poll = Poll::new()?;
        let mut listener = UnixListener::bind(socket)?;
        poll.registry().register(&mut listener, LISTENER, Interest::READABLE)?;
        let exits = Arc::clone(exits);
        Ok(Self { poll, listener, connections: BTreeMap::new(), next_token: LISTENER.0 + 1, exits })
    }

    /// Takes events for as long as the process lives.
    fn run(mut self) {
        let mut events = Events::with_capacity(MAX_EVENTS);
        loop {
            match self.poll.poll(&mut events, None) {
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                // Workers are then watched by their heartbeats only.
                Err(_) => return,
                Ok(()) => {}
            }
            for event in &events {
                if event.token() == LISTENER { self.accept() } else { self.receive(event.token()) }
            }
        }
    }

    fn accept(&mut self) {
        while let Ok((mut socket, _)) = self.listener.accept() {
            let token = Token(self.next_token);
            self.next_token += 1;
            if self.poll.registry().register(&mut socket, token, Interest::READABLE).is_ok() {
                self.connections.insert(token, Connection { socket, rank: Vec::new() });
                lock(&self.exits).connected += 1;
            }
        }
    }

    fn receive(&mut self, token: Token) {
        if !self.connections.get_mut(&token).is_some_and(Connection::is_closed) {
            return;
        }
        let Some(Connection { rank, .. }) = self.connections.remove(&token) else { return };
        let rank = String::from_utf8(rank).ok().and_then(|text| text.trim().parse().ok());
        let mut exits = lock(&self.exits);
        match rank {
            Some(rank) => exits.exited.push(rank),
            None => exits.connected -= 1,
        }
    }
}

fn lock(exits: &Mutex<WorkerExits>) -> std::sync::MutexGuard<'_, WorkerExits> {
    exits.lock().unwrap_or_else(PoisonError::into_inner)
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
        let heartbeats = Self { folder, started_at: Instant::now(), exits: Arc::default() };
        let socket = heartbeats.folder.join(SOCKET_FILE);
        let watch = SocketWatch::new(&socket, &heartbeats.exits)
            .map_err(|source| WorkersError::Folder { path: socket.clone(), source })?;
        std::thread::spawn(|| watch.run());
        heartbeats.write_marker(LAUNCHER_FILE);
        Ok(heartbeats)
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

    /// The first worker that did not exit on its own, with the iteration of its last heartbeat.
    pub fn first_killed(&self) -> Option<(usize, u64)> {
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
        while lock(&heartbeats.exits).connected < 3 {
            std::thread::sleep(POLL_INTERVAL);
        }
        // As fast as a launcher that kills all others.
        for rank in [2, 0, 0] {
            drop(workers.remove(rank));
        }
        assert_eq!(heartbeats.first_killed(), Some((2, 9)));
        std::fs::write(heartbeats.folder.join("2"), "ended:2 9").unwrap();
        assert_eq!((heartbeats.first_killed(), heartbeats.first_exit_code(3)), (Some((0, 7)), Some(2)));
    }
}
