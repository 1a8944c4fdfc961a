//! An SFTP session over the system's `ssh`.
//!
//! `ssh` uses the user's configuration, agent, keys, known hosts and jump hosts, and must never prompt
//! (`BatchMode`). One thread reads packets, so that a silent server can be detected; another collects
//! `stderr`.

use std::collections::{HashMap, HashSet};
use std::io::{self, Read, Write};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use super::wire::{MAX_PACKET_BYTES, Packet, PacketReader, request, response, status};
use crate::address::SshLogin;
use stratus_base::ssh;

/// The maximum size of the kept end of `stderr`.
const MAX_STDERR_BYTES: usize = 4096;

/// The time to wait for the rest of `stderr` once `ssh` has ended.
const STDERR_TIMEOUT: Duration = Duration::from_millis(500);

/// The maximum number of received packets in the queue.
const MAX_QUEUED_PACKETS: usize = 64;

/// The error of a request or a connection.
#[derive(Debug)]
pub(super) enum SftpError {
    /// The connection broke; a new one may work.
    Disconnected(String),
    /// A retry would fail in the same way.
    Permanent(String),
    /// The server responded with an error status.
    Status(u32, String),
}

pub(super) struct Connection {
    process: Child,
    input: Option<ChildStdin>,
    packets: Receiver<io::Result<Vec<u8>>>,
    stderr: Arc<Mutex<Vec<u8>>>,
    /// Disconnected when `stderr` is closed.
    stderr_ended: Receiver<()>,
    idle_timeout: Duration,
    next: u32,
    /// Responses that arrived before they were waited for, by request number.
    early: HashMap<u32, Vec<u8>>,
    extensions: HashSet<Vec<u8>>,
}

impl Drop for Connection {
    fn drop(&mut self) {
        // The process may have ended already.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

impl Connection {
    pub(super) fn open(login: &SshLogin, idle_timeout: Duration) -> Result<Self, SftpError> {
        let program = ssh::program();
        let mut command = Command::new(&program);
        let seconds = idle_timeout.as_secs().clamp(1, 20);
        command.args(["-x", "-a", "-T", "-o", "BatchMode=yes", "-o", "ClearAllForwardings=yes"]);
        command.arg("-o").arg(format!("ConnectTimeout={seconds}"));
        command.arg("-o").arg(format!("ServerAliveInterval={seconds}"));
        if let Some(port) = login.port {
            command.arg("-p").arg(port.to_string());
        }
        if let Some(user) = &login.user {
            command.arg("-l").arg(user);
        }
        command.args(["-s", "--", &login.host, "sftp"]);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut process = command.spawn().map_err(|error| {
            let program = program.to_string_lossy();
            SftpError::Permanent(format!("cannot run `{program}`: {error}; {}", ssh::start_hint(&program)))
        })?;
        let (input, output, errors) = (process.stdin.take(), process.stdout.take(), process.stderr.take());
        let (sender, packets) = mpsc::sync_channel(MAX_QUEUED_PACKETS);
        let stderr = Arc::new(Mutex::new(Vec::new()));
        let kept = Arc::clone(&stderr);
        // Both threads end when the process does, which closes the pipes.
        thread::spawn(move || {
            let Some(mut output) = output else { return };
            loop {
                let packet = read_packet(&mut output);
                let is_last = packet.is_err();
                if sender.send(packet).is_err() || is_last {
                    return;
                }
            }
        });
        let (until_it_ends, stderr_ended) = mpsc::channel();
        thread::spawn(move || {
            let _until_it_ends: Sender<()> = until_it_ends;
            let mut block = [0; 1024];
            let Some(mut errors) = errors else { return };
            while let Ok(count @ 1..) = errors.read(&mut block) {
                let mut kept = kept.lock().unwrap_or_else(PoisonError::into_inner);
                kept.extend_from_slice(&block[..count]);
                let surplus = kept.len().saturating_sub(MAX_STDERR_BYTES);
                kept.drain(..surplus);
            }
        });
        let (next, early, extensions) = (0, HashMap::new(), HashSet::new());
        let mut connection =
            Self { process, input, packets, stderr, stderr_ended, idle_timeout, next, early, extensions };
        connection.handshake()?;
        Ok(connection)
    }

    fn handshake(&mut self) -> Result<(), SftpError> {
        self.send(Packet::new(request::INIT).number(3))?;
        let packet = self.receive()?;
        let mut parts = PacketReader(&packet);
        if (parts.byte(), parts.number().is_some_and(|version| version >= 3))
            != (Some(response::VERSION), true)
        {
            return Err(SftpError::Permanent(
                "the response is not SFTP; does a login script print something?".to_owned(),
            ));
        }
        while let (Some(name), Some(_)) = (parts.text(), parts.text()) {
            self.extensions.insert(name.to_vec());
        }
        Ok(())
    }

    pub(super) fn supports(&self, extension: &str) -> bool {
        self.extensions.contains(extension.as_bytes())
    }

    /// Sends a request without waiting for its response, and returns its number. `rest` appends the fields
    /// after the number.
    pub(super) fn send_request(
        &mut self,
        kind: u8,
        rest: impl FnOnce(Packet) -> Packet,
    ) -> Result<u32, SftpError> {
        let number = self.next;
        self.next = self.next.wrapping_add(1);
        self.send(rest(Packet::new(kind).number(number)))?;
        Ok(number)
    }

    /// Waits for the response to a request. Returns its kind and the fields after the number. A status other
    /// than OK is an error.
    pub(super) fn wait(&mut self, number: u32) -> Result<(u8, Vec<u8>), SftpError> {
        let packet = loop {
            if let Some(packet) = self.early.remove(&number) {
                break packet;
            }
            let packet = self.receive()?;
            let mut parts = PacketReader(&packet);
            let (Some(_), Some(answered)) = (parts.byte(), parts.number()) else { return Err(malformed()) };
            self.early.insert(answered, packet);
        };
        let mut parts = PacketReader(&packet[5..]);
        if packet[0] == response::STATUS {
            let code = parts.number().ok_or_else(malformed)?;
            if code != status::OK {
                let text = String::from_utf8_lossy(parts.text().unwrap_or_default()).into_owned();
                return Err(SftpError::Status(code, text));
            }
        }
        Ok((packet[0], packet[5..].to_vec()))
    }

    /// Sends a request and waits for its response.
    pub(super) fn call(
        &mut self,
        kind: u8,
        rest: impl FnOnce(Packet) -> Packet,
    ) -> Result<(u8, Vec<u8>), SftpError> {
        let number = self.send_request(kind, rest)?;
        self.wait(number)
    }

    /// Sends a request that opens a handle.
    pub(super) fn handle(
        &mut self,
        kind: u8,
        rest: impl FnOnce(Packet) -> Packet,
    ) -> Result<Vec<u8>, SftpError> {
        match self.call(kind, rest)? {
            (response::HANDLE, rest) => Ok(PacketReader(&rest).text().ok_or_else(malformed)?.to_vec()),
            _ => Err(malformed()),
        }
    }

    fn send(&mut self, packet: Packet) -> Result<(), SftpError> {
        let packet = packet.finish();
        let sent = self.input.as_mut().map(|input| input.write_all(&packet).and_then(|()| input.flush()));
        match sent {
            Some(Ok(())) => Ok(()),
            _ => Err(self.ended()),
        }
    }

    fn receive(&mut self) -> Result<Vec<u8>, SftpError> {
        match self.packets.recv_timeout(self.idle_timeout) {
            Ok(Ok(packet)) => Ok(packet),
            Ok(Err(error)) if error.kind() == io::ErrorKind::InvalidData => Err(malformed()),
            Ok(Err(_)) | Err(RecvTimeoutError::Disconnected) => Err(self.ended()),
            Err(RecvTimeoutError::Timeout) => Err(SftpError::Disconnected(format!(
                "the server did not respond for {} s",
                self.idle_timeout.as_secs()
            ))),
        }
    }

    /// The error after `ssh` has ended, with its message on `stderr`.
    fn ended(&mut self) -> SftpError {
        self.input = None;
        let _ = self.process.kill();
        let _ = self.process.wait();
        // `stderr` is another pipe and may lag. A shared connection (`ControlMaster`) can keep it open.
        let _ = self.stderr_ended.recv_timeout(STDERR_TIMEOUT);
        let stderr = self.stderr.lock().unwrap_or_else(PoisonError::into_inner);
        let stderr = String::from_utf8_lossy(&stderr);
        let lines = stderr.lines().map(str::trim).filter(|line| !line.is_empty());
        let text = lines.collect::<Vec<_>>().join(" / ");
        let text = if text.is_empty() { "the connection ended".to_owned() } else { format!("ssh: {text}") };
        // These messages of OpenSSH are for failures that a retry does not fix.
        let permanent = [
            "Permission denied",
            "Host key verification failed",
            "REMOTE HOST IDENTIFICATION HAS CHANGED",
            "Too many authentication failures",
            "Bad configuration option",
            "subsystem request failed",
            "no matching",
            "Bad owner or permissions",
        ];
        if permanent.iter().any(|known| text.contains(known)) {
            SftpError::Permanent(text)
        } else {
            SftpError::Disconnected(text)
        }
    }
}

fn malformed() -> SftpError {
    SftpError::Permanent("malformed response of the server".to_owned())
}

/// Reads a packet with kind, number and the rest, without the length.
fn read_packet(from: &mut impl Read) -> io::Result<Vec<u8>> {
    let mut length = [0; 4];
    from.read_exact(&mut length)?;
    let length = u32::from_be_bytes(length);
    if !(5..=MAX_PACKET_BYTES).contains(&length) {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "not a packet"));
    }
    let mut packet = vec![0; usize::try_from(length).unwrap_or(usize::MAX)];
    from.read_exact(&mut packet)?;
    Ok(packet)
}
