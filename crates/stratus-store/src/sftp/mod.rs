//! A folder on an SFTP server (version 3).
//!
//! The system's `ssh` connects and runs the server's `sftp` subsystem. Idle connections are reused. Reads are
//! pipelined to hide latency: up to [`MAX_REQUESTS_IN_FLIGHT`] requests of [`REQUEST_BYTES`] are in flight.

mod connection;
mod wire;

use std::collections::VecDeque;
use std::io::{self, Read};
use std::process;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Instant, SystemTime};

use self::connection::{Connection, SftpError};
use self::wire::{Attributes, FileType, Packet, PacketReader, mode, request, response, status};
use crate::address::SshLogin;
use crate::backend::{Failure, FileInfo, StoreBackend, file_address, read_block};
use crate::local::{MAX_FOLDER_DEPTH, TEMP_PREFIX_SUFFIX, is_temporary};
use crate::retry::{FIRST_CONTACT_TIMEOUT, Retries};
use crate::{Entry, RetryPolicy, StoreError};

/// The bytes of a read or write request, which every server accepts.
const REQUEST_BYTES: u32 = 32 << 10;

/// The maximum number of read requests in flight, for 2 MiB.
const MAX_REQUESTS_IN_FLIGHT: usize = 64;

/// The bytes of an upload that are sent again after a connection failure.
const UPLOAD_PIECE_BYTES: usize = 1 << 20;

/// A folder entry: name and attributes.
type NamedEntry = (Vec<u8>, Attributes);

pub(crate) struct SftpStore {
    login: SshLogin,
    /// The folder without a trailing `/`, absolute or relative to the home folder.
    root: String,
    /// The redacted address.
    address: String,
    retry_policy: RetryPolicy,
    /// Idle connections.
    idle: Mutex<Vec<Connection>>,
    /// True if there ever was a connection.
    has_connected: AtomicBool,
    /// The time of creation, close to the first attempt to connect.
    since: Instant,
}

impl SftpStore {
    pub(crate) fn new(login: SshLogin, root: String, address: String, retry_policy: RetryPolicy) -> Self {
        let (idle, has_connected) = (Mutex::new(Vec::new()), AtomicBool::new(false));
        Self { login, root, address, retry_policy, idle, has_connected, since: Instant::now() }
    }

    fn connect(&self, path: &str) -> Result<Connection, Failure> {
        if let Some(connection) = self.idle.lock().unwrap_or_else(PoisonError::into_inner).pop() {
            return Ok(connection);
        }
        let connection = Connection::open(&self.login, self.retry_policy.idle_timeout);
        match connection {
            Ok(connection) => {
                self.has_connected.store(true, Ordering::Relaxed);
                Ok(connection)
            }
            // The name of a host that never responded may be misspelt, so fail early.
            Err(SftpError::Disconnected(cause)) if !self.has_connected.load(Ordering::Relaxed) => {
                let waited = self.since.elapsed();
                if waited < FIRST_CONTACT_TIMEOUT.min(self.retry_policy.give_up_after) {
                    return Err(Failure::Transient(cause));
                }
                Err(StoreError::RetriesExhausted { file: self.file(path), cause, attempts: 1, waited }.into())
            }
            Err(error) => Err(self.failure(path, error)),
        }
    }

    /// Returns a connection without open requests to the pool.
    fn return_to_pool(&self, connection: Connection) {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner).push(connection);
    }

    /// Runs `operation` on a connection, and returns the connection to the pool if it is still usable.
    fn with_connection<T>(
        &self,
        path: &str,
        operation: impl FnOnce(&mut Connection) -> Result<T, SftpError>,
    ) -> Result<T, Failure> {
        let mut connection = self.connect(path)?;
        let result = operation(&mut connection);
        if matches!(result, Ok(_) | Err(SftpError::Status(..))) {
            self.return_to_pool(connection);
        }
        result.map_err(|error| self.failure(path, error))
    }

    fn failure(&self, path: &str, error: SftpError) -> Failure {
        let file = self.file(path);
        match error {
            SftpError::Disconnected(cause) => {
                // The idle connections are to the same server.
                self.idle.lock().unwrap_or_else(PoisonError::into_inner).clear();
                Failure::Transient(cause)
            }
            SftpError::Permanent(cause) => {
                let login = &self.login;
                let (user, port) = (login.user.as_deref(), login.port);
                let user = user.map_or(String::new(), |user| format!(" -l {user}"));
                let port = port.map_or(String::new(), |port| format!(" -p {port}"));
                let advice = format!("`ssh{user}{port} {}` must work without prompting", login.host);
                StoreError::Refused { file, cause, advice }.into()
            }
            SftpError::Status(status::NO_SUCH_FILE, _) => StoreError::NotFound { file }.into(),
            SftpError::Status(code, text) => {
                let advice = match code {
                    status::PERMISSION_DENIED => "the user lacks the permission on the server",
                    _ => "check that the folder exists on the server and that its disk is not full",
                };
                let cause = format!("the server responded: {} (status {code})", text.trim());
                StoreError::Refused { file, cause, advice: advice.to_owned() }.into()
            }
        }
    }

    fn file(&self, path: &str) -> String {
        file_address(&self.address, path)
    }

    /// The path on the server.
    fn server_path(&self, path: &str) -> Vec<u8> {
        let separator = if self.root.is_empty() || path.is_empty() || self.root == "/" { "" } else { "/" };
        let full_path = format!("{}{separator}{path}", self.root);
        if full_path.is_empty() { b".".to_vec() } else { full_path.into_bytes() }
    }

    fn attributes(&self, path: &str) -> Result<Option<Attributes>, Failure> {
        let found = self.with_connection(path, |connection| {
            match connection.call(request::STAT, |packet| packet.text(&self.server_path(path)))? {
                (response::ATTRIBUTES, rest) => Ok(PacketReader(&rest).attributes()),
                _ => Ok(None),
            }
        });
        match found {
            Ok(Some(found)) => Ok(Some(found)),
            Ok(None) => Err(self.failure(path, SftpError::Permanent("malformed attributes".to_owned()))),
            Err(Failure::Permanent(StoreError::NotFound { .. })) => Ok(None),
            Err(failure) => Err(failure),
        }
    }

    /// Lists a folder. `None` if it does not exist.
    fn names(&self, folder: &str) -> Result<Option<Vec<NamedEntry>>, Failure> {
        let found = self.with_connection(folder, |connection| {
            let handle =
                connection.handle(request::OPEN_FOLDER, |packet| packet.text(&self.server_path(folder)))?;
            let mut names = Vec::new();
            loop {
                let rest = match connection.call(request::READ_FOLDER, |packet| packet.text(&handle)) {
                    Ok((response::NAME, rest)) => rest,
                    Ok(_) => return Err(SftpError::Permanent("malformed folder listing".to_owned())),
                    Err(SftpError::Status(status::EOF, _)) => break,
                    Err(error) => return Err(error),
                };
                let mut parts = PacketReader(&rest);
                for _ in 0..parts.number().unwrap_or(0) {
                    let name = (|| {
                        let name = parts.text()?.to_vec();
                        parts.text()?;
                        Some((name, parts.attributes()?))
                    })();
                    let name =
                        name.ok_or_else(|| SftpError::Permanent("malformed folder listing".to_owned()))?;
                    if name.0 != b"." && name.0 != b".." {
                        names.push(name);
                    }
                }
            }
            connection.call(request::CLOSE, |packet| packet.text(&handle))?;
            Ok(names)
        });
        match found {
            Err(Failure::Permanent(StoreError::NotFound { .. })) => Ok(None),
            found => found.map(Some),
        }
    }

    fn walk(
        &self,
        folder: &str,
        prefix: &str,
        depth: usize,
        found: &mut dyn FnMut(Entry),
    ) -> Result<(), Failure> {
        if depth > MAX_FOLDER_DEPTH {
            let problem =
                format!("folders nest deeper than {MAX_FOLDER_DEPTH}; is there a symbolic-link loop?");
            return Err(StoreError::Unexpected { file: self.file(folder), problem }.into());
        }
        let Some(names) = self.names(folder)? else {
            // No path begins with the prefix.
            let file = self.file(folder);
            return if folder.is_empty() { Err(StoreError::NotFound { file }.into()) } else { Ok(()) };
        };
        for (name, mut info) in names {
            let Ok(name) = String::from_utf8(name) else {
                let problem = "a file name in this folder is not UTF-8; rename the file".to_owned();
                return Err(StoreError::Unexpected { file: self.file(folder), problem }.into());
            };
            if is_temporary(&name) {
                continue;
            }
            let path = if folder.is_empty() { name } else { format!("{folder}/{name}") };
            if info.file_type() == FileType::Link {
                match self.attributes(&path)? {
                    Some(target) => info = target,
                    // This is a broken link.
                    None => continue,
                }
            }
            let folder_path = format!("{path}/");
            match info.file_type() {
                FileType::Folder if folder_path.starts_with(prefix) || prefix.starts_with(&folder_path) => {
                    self.walk(&path, prefix, depth + 1, found)?;
                }
                FileType::File if path.starts_with(prefix) => {
                    found(Entry { path, bytes: info.bytes.unwrap_or(0) });
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// Creates the parent folders of a file.
    fn make_folders(&self, connection: &mut Connection, path: &str) -> Result<(), SftpError> {
        for (end, _) in path.match_indices('/') {
            let folder = self.server_path(&path[..end]);
            match connection.call(request::MAKE_FOLDER, |packet| packet.text(&folder).number(0)) {
                // Servers report an existing folder as a generic failure. If the folder does not exist, the
                // next request fails.
                Ok(_) | Err(SftpError::Status(..)) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Retries `operation` within the policy, on a new connection after each connection failure.
    fn retry<T>(
        &self,
        path: &str,
        mut operation: impl FnMut(&mut Connection) -> Result<T, SftpError>,
    ) -> Result<T, Failure> {
        let mut retries = Retries::new(self.retry_policy);
        loop {
            match self.with_connection(path, &mut operation) {
                Err(Failure::Transient(cause)) => retries.wait().map_err(|end| {
                    let file = self.file(path);
                    StoreError::RetriesExhausted { file, cause, attempts: end.attempts, waited: end.waited }
                })?,
                result => return result,
            }
        }
    }

    /// Uploads to the temporary file `temp_path`, one piece at a time.
    fn upload_to_temp(
        &self,
        path: &str,
        temp_path: &[u8],
        from: &mut dyn Read,
        bytes: u64,
    ) -> Result<(), Failure> {
        let open = |packet: Packet| packet.text(temp_path).number(mode::WRITE | mode::CREATE).number(0);
        let mut done = 0;
        loop {
            let (piece, last) = read_block(from, bytes, done, UPLOAD_PIECE_BYTES, || self.file(path))?;
            self.retry(path, |connection| {
                if done == 0 {
                    self.make_folders(connection, path)?;
                }
                let handle = connection.handle(request::OPEN, open)?;
                let mut in_flight = Vec::new();
                let mut offset = done;
                for block in piece.chunks(REQUEST_BYTES as usize) {
                    in_flight.push(connection.send_request(request::WRITE, |packet| {
                        packet.text(&handle).long(offset).text(block)
                    })?);
                    offset += block.len() as u64;
                }
                // Wait for all responses: then the connection is reusable even if one is an error.
                let mut written = Ok(());
                for number in in_flight {
                    match connection.wait(number) {
                        Err(error @ SftpError::Status(..)) => written = Err(error),
                        other => drop(other?),
                    }
                }
                if last && connection.supports("fsync@openssh.com") {
                    let sync = |packet: Packet| packet.text(b"fsync@openssh.com").text(&handle);
                    written = written.and(connection.call(request::EXTENDED, sync).map(drop));
                }
                connection.call(request::CLOSE, |packet| packet.text(&handle))?;
                written
            })?;
            done += piece.len() as u64;
            if last {
                return Ok(());
            }
        }
    }

    /// Renames a complete file to its final name, atomically if the server supports that.
    fn put_in_place(&self, path: &str, temp_path: &[u8]) -> Result<(), Failure> {
        let target = self.server_path(path);
        let renamed = self.with_connection(path, |connection| {
            const ATOMIC: &str = "posix-rename@openssh.com";
            if connection.supports(ATOMIC) {
                return connection
                    .call(request::EXTENDED, |packet| {
                        packet.text(ATOMIC.as_bytes()).text(temp_path).text(&target)
                    })
                    .map(drop);
            }
            // The standard rename does not replace an existing file.
            match connection.call(request::REMOVE, |packet| packet.text(&target)) {
                Ok(_) | Err(SftpError::Status(status::NO_SUCH_FILE | status::UNSUPPORTED, _)) => {}
                Err(error) => return Err(error),
            }
            connection.call(request::RENAME, |packet| packet.text(temp_path).text(&target)).map(drop)
        });
        match renamed {
            Err(Failure::Transient(cause)) => Err(StoreError::Refused {
                file: self.file(path),
                cause,
                advice: "connection lost before the final rename; upload again".to_owned(),
            }
            .into()),
            result => result,
        }
    }
}

impl StoreBackend for SftpStore {
    fn list(&self, prefix: &str, found: &mut dyn FnMut(Entry)) -> Result<(), Failure> {
        self.walk(prefix.rsplit_once('/').map_or("", |(folder, _)| folder), prefix, 0, found)
    }

    fn info(&self, path: &str) -> Result<Option<FileInfo>, Failure> {
        let found = self.attributes(path)?.filter(|found| found.file_type() == FileType::File);
        let Some(found) = found else { return Ok(None) };
        let Some(bytes) = found.bytes else {
            let problem = "the server does not report the size".to_owned();
            return Err(StoreError::Unexpected { file: self.file(path), problem }.into());
        };
        Ok(Some(FileInfo { bytes, version: found.changed.map(|seconds| seconds.to_string()) }))
    }

    fn open(&self, path: &str, offset: u64, length: u64) -> Result<Box<dyn Read + '_>, Failure> {
        let Some(end) = offset.checked_add(length) else { return Ok(Box::new(io::empty())) };
        let mut connection = self.connect(path)?;
        let opened = connection.handle(request::OPEN, |packet| {
            packet.text(&self.server_path(path)).number(mode::READ).number(0)
        });
        let handle = match opened {
            Ok(handle) => handle,
            Err(error) => {
                if matches!(error, SftpError::Status(..)) {
                    self.return_to_pool(connection);
                }
                return Err(self.failure(path, error));
            }
        };
        let (path, in_flight, block) = (path.to_owned(), VecDeque::new(), Vec::new());
        let connection = Some(connection);
        Ok(Box::new(SftpReader {
            store: self,
            path,
            connection,
            handle,
            next: offset,
            end,
            in_flight,
            block,
            at: 0,
        }))
    }

    fn write(&self, path: &str, from: &mut dyn Read, bytes: u64) -> Result<(), Failure> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        // The time keeps names unique among machines.
        let time =
            SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |since| since.as_nanos());
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name =
            format!("{}{}-{time:x}-{number}{}", TEMP_PREFIX_SUFFIX.0, process::id(), TEMP_PREFIX_SUFFIX.1);
        let temp_path = match path.rsplit_once('/') {
            Some((folder, _)) => self.server_path(&format!("{folder}/{name}")),
            None => self.server_path(&name),
        };
        let written = self
            .upload_to_temp(path, &temp_path, from, bytes)
            .and_then(|()| self.put_in_place(path, &temp_path));
        if written.is_err() {
            // Best effort: the first error is the one to report.
            let _ = self.with_connection(path, |connection| {
                connection.call(request::REMOVE, |packet| packet.text(&temp_path))
            });
        }
        written
    }
}

/// A reader of a file that requests many blocks ahead.
struct SftpReader<'a> {
    store: &'a SftpStore,
    path: String,
    /// `None` after a failure.
    connection: Option<Connection>,
    handle: Vec<u8>,
    /// The first byte that has not been requested.
    next: u64,
    end: u64,
    /// The pending requests: number, offset and bytes.
    in_flight: VecDeque<(u32, u64, u32)>,
    block: Vec<u8>,
    at: usize,
}

impl SftpReader<'_> {
    /// Returns the next block, which is empty at the end of the file.
    fn fetch(&mut self) -> Result<Vec<u8>, SftpError> {
        let Some(connection) = &mut self.connection else {
            return Err(SftpError::Disconnected("the connection is closed".to_owned()));
        };
        while self.in_flight.len() < MAX_REQUESTS_IN_FLIGHT && self.next < self.end {
            let count = u32::try_from(self.end - self.next).unwrap_or(REQUEST_BYTES).min(REQUEST_BYTES);
            let offset = self.next;
            let number = connection
                .send_request(request::READ, |packet| packet.text(&self.handle).long(offset).number(count))?;
            self.in_flight.push_back((number, offset, count));
            self.next += u64::from(count);
        }
        let Some((number, offset, count)) = self.in_flight.pop_front() else { return Ok(Vec::new()) };
        let block = match connection.wait(number) {
            Ok((response::DATA, rest)) => PacketReader(&rest).text().map(<[u8]>::to_vec),
            Ok(_) => None,
            Err(SftpError::Status(status::EOF, _)) => Some(Vec::new()),
            Err(error) => return Err(error),
        };
        let block = block.filter(|block| block.len() <= count as usize);
        let block = block.ok_or_else(|| SftpError::Permanent("malformed read response".to_owned()))?;
        if block.len() < count as usize {
            // A short read is allowed: drop the pending responses and continue at the new offset.
            for (number, ..) in std::mem::take(&mut self.in_flight) {
                if let Err(error @ (SftpError::Disconnected(_) | SftpError::Permanent(_))) =
                    connection.wait(number)
                {
                    return Err(error);
                }
            }
            self.next = offset + block.len() as u64;
            if block.is_empty() {
                self.end = self.next;
            }
        }
        Ok(block)
    }
}

impl Read for SftpReader<'_> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        if self.at == self.block.len() {
            self.at = 0;
            self.block = Vec::new();
            self.block = self.fetch().map_err(|error| {
                self.connection = None;
                self.store.failure(&self.path, error).into_io()
            })?;
        }
        let count = out.len().min(self.block.len() - self.at);
        out[..count].copy_from_slice(&self.block[self.at..self.at + count]);
        self.at += count;
        Ok(count)
    }
}

impl Drop for SftpReader<'_> {
    fn drop(&mut self) {
        let Some(mut connection) = self.connection.take().filter(|_| self.in_flight.is_empty()) else {
            return;
        };
        if connection.call(request::CLOSE, |packet| packet.text(&self.handle)).is_ok() {
            self.store.return_to_pool(connection);
        }
    }
}
