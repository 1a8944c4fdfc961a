//! Heartbeats of workers on other machines, over TCP.
//!
//! The launching process listens, and hands what a worker sends to the monitor of this machine, as if the
//! worker ran here: its heartbeats become the file of its rank, and the monitor watches its connection. In
//! return, each worker gets a line a second, with a request to stop or the exit code of rank 0 if there is
//! one. No clocks of two machines are compared, and no file system is shared. A connection begins with a
//! secret that the launching process passes to its workers.

use super::monitor::{HeartbeatMonitor, SocketRegistry};
use super::{
    DEVICE_FAILED_WORD, EXITED_PREFIX, HEARTBEAT_INTERVAL, HEARTBEAT_TIMEOUT, STOP_FILE, WorkersError,
    all_devices_failed, write_heartbeat,
};
use std::io::{self, BufRead, BufReader, ErrorKind, Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::os::fd::{AsFd, BorrowedFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use stratus_base::Secret;
use stratus_base::exit_code::INTERRUPTED;
use stratus_run::machine::host_name;

/// The environment variable with the secret, the port and the addresses of the launching process.
pub(super) const RELAY_VAR: &str = "STRATUS_WORKER_RELAY";
/// The line that asks a worker to stop.
const STOP_LINE: &str = "stop";
/// The line of a second in which nothing is asked.
const IDLE_LINE: &str = "idle";
/// The maximum length of a line.
const MAX_LINE_BYTES: u64 = 128;
/// The time that a new connection has to send its first line.
const GREETING_TIMEOUT: Duration = Duration::from_secs(10);
/// The time to connect to an address.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// The time that a worker has to stop by itself after its launching process is gone.
const MAX_STOP_TIME: Duration = Duration::from_secs(120);
/// The maximum number of connections besides those of the workers, which have not sent the secret.
const MAX_UNAUTHENTICATED: usize = 64;

/// The listening side, in the launching process.
pub(super) struct Relay {
    secret: Secret,
    port: u16,
}

/// The state that the threads of the listening side share.
struct Listening {
    secret: Secret,
    folder: PathBuf,
    workers: usize,
    sockets: Arc<SocketRegistry>,
    connections: AtomicUsize,
}

impl Relay {
    /// Listens for `workers` workers of a monitor.
    pub(super) fn start(monitor: &HeartbeatMonitor, workers: usize) -> Result<Self, WorkersError> {
        let failed = |source| WorkersError::Listen { source };
        let any =
            [SocketAddr::from((Ipv6Addr::UNSPECIFIED, 0)), SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0))];
        let listener = TcpListener::bind(&any[..]).map_err(failed)?;
        let (port, secret) =
            (listener.local_addr().map_err(failed)?.port(), Secret::random().map_err(failed)?);
        let listening = Arc::new(Listening {
            secret: secret.clone(),
            folder: monitor.folder.clone(),
            workers,
            sockets: Arc::clone(&monitor.sockets),
            connections: AtomicUsize::new(0),
        });
        std::thread::spawn(move || {
            for connection in listener.incoming() {
                // The connection may have ended before it was accepted.
                let Ok(connection) = connection else {
                    std::thread::sleep(Duration::from_millis(10));
                    continue;
                };
                listening.accept(connection);
            }
        });
        Ok(Self { secret, port })
    }

    /// The value of [`RELAY_VAR`], with the addresses by which workers may reach this machine.
    pub(super) fn variable(&self, addresses: &[IpAddr]) -> String {
        let mut words = vec![self.secret.as_str().to_owned(), self.port.to_string()];
        words.extend(addresses.iter().map(ToString::to_string));
        words.push(Ipv4Addr::LOCALHOST.to_string());
        words.extend(host_name());
        words.join(" ")
    }
}

impl Listening {
    fn accept(self: &Arc<Self>, connection: TcpStream) {
        if self.connections.fetch_add(1, Ordering::Relaxed) >= self.workers + MAX_UNAUTHENTICATED {
            self.connections.fetch_sub(1, Ordering::Relaxed);
            return;
        }
        let listening = Arc::clone(self);
        std::thread::spawn(move || {
            // The end of a connection is what counts; its reason does not.
            let _ = listening.serve(connection);
            listening.connections.fetch_sub(1, Ordering::Relaxed);
        });
    }

    /// Passes the heartbeats of a worker on, until its connection ends.
    fn serve(&self, connection: TcpStream) -> io::Result<()> {
        connection.set_nodelay(true)?;
        connection.set_read_timeout(Some(GREETING_TIMEOUT))?;
        let mut lines = BufReader::new(connection.try_clone()?);
        let greeting = read_line(&mut lines)?;
        let rank = greeting.split_once(' ').filter(|(secret, _)| self.secret.equals(secret));
        let rank = rank.and_then(|(_, rank)| rank.parse::<usize>().ok()).filter(|rank| *rank < self.workers);
        let rank = rank.ok_or(ErrorKind::PermissionDenied)?;
        connection.set_read_timeout(None)?;
        let _watched = self.sockets.watch(&connection, rank)?;
        let (mut answers, folder, workers) = (connection, self.folder.clone(), self.workers);
        std::thread::spawn(move || {
            while answers.write_all(answer(&folder, workers).as_bytes()).is_ok() {
                std::thread::sleep(HEARTBEAT_INTERVAL);
            }
        });
        loop {
            let line = read_line(&mut lines)?;
            write_heartbeat(&self.folder, rank, &line)?;
        }
    }
}

/// The line for a worker: the exit code of rank 0, the failure of the devices of all workers, a request to
/// stop, or none of these.
fn answer(folder: &Path, workers: usize) -> String {
    let first = std::fs::read_to_string(folder.join("0")).unwrap_or_default();
    let word = first.split(' ').next().filter(|word| word.starts_with(EXITED_PREFIX));
    match word {
        Some(word) => format!("{word}\n"),
        None if all_devices_failed(folder, workers) => format!("{DEVICE_FAILED_WORD}\n"),
        None if folder.join(STOP_FILE).exists() => format!("{STOP_LINE}\n"),
        None => format!("{IDLE_LINE}\n"),
    }
}

/// Reads a line without its end. A longer one than any that is sent is an error.
fn read_line(lines: &mut impl BufRead) -> io::Result<String> {
    let mut line = String::new();
    lines.take(MAX_LINE_BYTES).read_line(&mut line)?;
    match line.strip_suffix('\n') {
        Some(line) => Ok(line.to_owned()),
        None => Err(ErrorKind::UnexpectedEof.into()),
    }
}

/// The socket of a worker. Nothing else in its process refers to it, so that it is closed when its number is.
#[derive(Debug)]
enum RelaySocket {
    /// Standard input, which the system closes first when the process ends.
    StandardInput,
    /// A socket of a process with several.
    #[cfg(test)]
    Own(TcpStream),
}

impl AsFd for RelaySocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::StandardInput => rustix::stdio::stdin(),
            #[cfg(test)]
            Self::Own(socket) => socket.as_fd(),
        }
    }
}

impl Read for &RelaySocket {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        Ok(rustix::io::read(*self, buffer)?)
    }
}

impl Write for &RelaySocket {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        Ok(rustix::io::write(*self, bytes)?)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// The place of the socket of a connection among the files of the process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SocketPlace {
    /// It becomes standard input, which workers do not read. The system closes the files of a process in the
    /// order of their numbers: the launching process sees the end of this worker before `mpiexec` sees the
    /// end of its own connection, and ends the others.
    StandardInput,
    /// It keeps its number.
    #[cfg(test)]
    Any,
}

impl SocketPlace {
    fn put(self, socket: TcpStream) -> io::Result<RelaySocket> {
        match self {
            Self::StandardInput => {
                rustix::stdio::dup2_stdin(&socket)?;
                // Only standard input is left.
                drop(socket);
                Ok(RelaySocket::StandardInput)
            }
            #[cfg(test)]
            Self::Any => Ok(RelaySocket::Own(socket)),
        }
    }
}

/// The connection of a worker to the launching process.
#[derive(Debug)]
pub(super) struct RelayConnection {
    socket: RelaySocket,
    /// Held while a line is sent.
    sending: Mutex<()>,
    /// The exit code of rank 0; -1 while it runs.
    first_exit: AtomicI32,
    all_devices_failed: AtomicBool,
}

impl RelayConnection {
    /// Connects to the launching process that [`RELAY_VAR`] describes. `stop` is set when it asks for a stop,
    /// or is silent or gone.
    pub(super) fn open(
        variable: &str,
        rank: usize,
        stop: Arc<AtomicBool>,
        place: SocketPlace,
    ) -> io::Result<Arc<Self>> {
        let mut words = variable.split(' ');
        let (secret, port) = words.next().zip(words.next()).ok_or(ErrorKind::InvalidInput)?;
        let port: u16 = port.parse().map_err(|_| ErrorKind::InvalidInput)?;
        let mut last = io::Error::from(ErrorKind::InvalidInput);
        for address in words {
            match connect(address, port, &format!("{secret} {rank}\n")) {
                Ok(socket) => return Ok(Self::watch(place.put(socket)?, stop)),
                Err(error) => last = error,
            }
        }
        Err(last)
    }

    fn watch(socket: RelaySocket, stop: Arc<AtomicBool>) -> Arc<Self> {
        let connection = Arc::new(Self {
            socket,
            sending: Mutex::new(()),
            first_exit: AtomicI32::new(-1),
            all_devices_failed: AtomicBool::new(false),
        });
        let watched = Arc::clone(&connection);
        std::thread::spawn(move || {
            let mut lines = BufReader::new(&watched.socket);
            // Ends with an error if the launching process is silent or gone.
            while let Ok(line) = read_line(&mut lines) {
                let first = line.strip_prefix(EXITED_PREFIX).and_then(|code| code.parse().ok());
                if let Some(code) = first {
                    watched.first_exit.store(code, Ordering::Relaxed);
                }
                if line == DEVICE_FAILED_WORD {
                    watched.all_devices_failed.store(true, Ordering::Relaxed);
                }
                if line == STOP_LINE {
                    stop.store(true, Ordering::Relaxed);
                }
            }
            stop.store(true, Ordering::Relaxed);
            // The other workers may be unreachable too, and this one would wait for them for ever. The run
            // can be resumed from its last checkpoint.
            std::thread::sleep(MAX_STOP_TIME);
            std::process::exit(i32::from(INTERRUPTED));
        });
        connection
    }

    /// Sends a heartbeat.
    pub(super) fn send(&self, text: &str) -> io::Result<()> {
        let _sending = self.sending.lock().unwrap_or_else(PoisonError::into_inner);
        (&self.socket).write_all(format!("{text}\n").as_bytes())
    }

    /// Returns whether the devices of all workers have failed.
    pub(super) fn all_devices_failed(&self) -> bool {
        self.all_devices_failed.load(Ordering::Relaxed)
    }

    /// The exit code of rank 0, once it has ended by itself.
    pub(super) fn first_exit(&self) -> Option<i32> {
        let code = self.first_exit.load(Ordering::Relaxed);
        (code >= 0).then_some(code)
    }
}

/// Connects and greets, and waits for the first answer, which shows that the greeting was accepted.
fn connect(host: &str, port: u16, greeting: &str) -> io::Result<TcpStream> {
    let mut last = io::Error::from(ErrorKind::NotFound);
    for address in (host, port).to_socket_addrs()? {
        let connected = TcpStream::connect_timeout(&address, CONNECT_TIMEOUT).and_then(|mut connection| {
            connection.set_nodelay(true)?;
            connection.set_read_timeout(Some(HEARTBEAT_TIMEOUT))?;
            connection.set_write_timeout(Some(HEARTBEAT_TIMEOUT))?;
            connection.write_all(greeting.as_bytes())?;
            // Byte by byte, so that what follows is left in the socket.
            read_line(&mut BufReader::with_capacity(1, &connection))?;
            Ok(connection)
        });
        match connected {
            Ok(connected) => return Ok(connected),
            Err(error) => last = error,
        }
    }
    Err(last)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::Shutdown;
    use std::time::Instant;

    impl RelayConnection {
        /// Closes the connection, as the system does when the process ends.
        fn shut_down(&self) {
            let RelaySocket::Own(socket) = &self.socket else { panic!("the socket is standard input") };
            socket.shutdown(Shutdown::Both).unwrap();
        }
    }

    fn wait_until(mut condition: impl FnMut() -> bool) {
        let started = Instant::now();
        while !condition() {
            assert!(started.elapsed() < Duration::from_secs(60), "timed out");
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    #[test]
    fn worker_on_another_machine_is_monitored_like_a_local_one() {
        let monitor = HeartbeatMonitor::new().unwrap();
        let relay = Relay::start(&monitor, 2).unwrap();
        let variable = relay.variable(&["192.0.2.1".parse().unwrap()][..0]);
        let stop = Arc::new(AtomicBool::new(false));
        let open = |rank| RelayConnection::open(&variable, rank, Arc::clone(&stop), SocketPlace::Any);
        let (first, second) = (open(0).unwrap(), open(1).unwrap());
        second.send("at 7").unwrap();
        wait_until(|| std::fs::read_to_string(monitor.folder.join("1")).is_ok_and(|text| text == "at 7"));
        assert!(!stop.load(Ordering::Relaxed) && second.first_exit().is_none());
        monitor.write_marker(STOP_FILE);
        wait_until(|| stop.load(Ordering::Relaxed));
        assert!(!first.all_devices_failed());
        second.send("failed 7").unwrap();
        first.send("failed 7").unwrap();
        wait_until(|| first.all_devices_failed() && second.all_devices_failed());
        second.send("at 7").unwrap();
        first.send("ended:2 9").unwrap();
        wait_until(|| second.first_exit() == Some(2));
        assert_eq!(monitor.first_exit_code(2), Some(2));
        // A worker whose connection ends without a last word was killed.
        second.shut_down();
        first.shut_down();
        monitor.wait_for_exits();
        assert_eq!(monitor.first_killed(), Some((1, 7)));
    }

    /// The launcher of a host kills its workers within microseconds of the first.
    #[test]
    fn first_of_many_connections_that_end_at_once_is_named() {
        const WORKERS: usize = 16;
        for first in 0..WORKERS {
            let monitor = HeartbeatMonitor::new().unwrap();
            let relay = Relay::start(&monitor, WORKERS).unwrap();
            let variable = relay.variable(&[]);
            let stop = Arc::new(AtomicBool::new(false));
            let open = |rank| RelayConnection::open(&variable, rank, Arc::clone(&stop), SocketPlace::Any);
            let all: Vec<_> = (0..WORKERS).map(|rank| open(rank).unwrap()).collect();
            all[first].shut_down();
            all.iter().enumerate().filter(|(rank, _)| *rank != first).for_each(|(_, one)| one.shut_down());
            monitor.wait_for_exits();
            assert_eq!(monitor.first_killed(), Some((first, 0)));
        }
    }

    #[test]
    fn strangers_and_damaged_variables_are_refused() {
        let monitor = HeartbeatMonitor::new().unwrap();
        let relay = Relay::start(&monitor, 2).unwrap();
        let good = relay.variable(&[]);
        let stop = Arc::new(AtomicBool::new(false));
        let secret = "0".repeat(64);
        let other = good.replacen(relay.secret.as_str(), &secret, 1);
        for (variable, rank) in [
            ("", 0),
            ("a", 0),
            ("a b", 0),
            ("a 99999 127.0.0.1", 0),
            (&other, 0),
            (&good, 2),
            (&good, usize::MAX),
        ] {
            let opened = RelayConnection::open(variable, rank, Arc::clone(&stop), SocketPlace::Any);
            assert!(opened.is_err(), "{variable} {rank}");
        }
        // A connection that never ends its line is cut.
        let mut endless = TcpStream::connect(("127.0.0.1", relay.port)).unwrap();
        endless.write_all(&[b'x'; 4096]).unwrap();
        endless.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        assert!(!matches!(endless.read(&mut [0]), Ok(1..)));
        assert!(!monitor.folder.join("2").exists());
        assert_eq!(monitor.first_killed(), None);
    }
}
