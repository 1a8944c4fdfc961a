//! A folder behind SSH, by SFTP version 3.
//!
//! The system's `ssh` makes the connection and runs the server's `sftp` subsystem. Idle connections are kept
//! and reused. Reads are pipelined: up to `AHEAD` requests of `BLOCK` bytes are in flight, so that latency
//! costs little.

mod connection;
mod wire;

use std::collections::VecDeque;
use std::io::{self, Read};
use std::process;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Instant, SystemTime};

use self::connection::{Connection, SftpError};
use self::wire::{Attributes, Kind, Packet, PacketReader, mode, request, response, status};
use crate::address::Login;
use crate::backend::{Failure, FileInfo, StoreBackend};
use crate::local::{MOST_DEEP, UNFINISHED, is_unfinished};
use crate::retry::{FIRST_CONTACT, Retries};
use crate::{Entry, RetryPolicy, StoreError};

/// Bytes per read or write request: every server accepts this many.
const BLOCK: u32 = 32 << 10;

/// Read requests in flight: 2 MiB.
const AHEAD: usize = 64;

/// Bytes of an upload that are sent again after the connection broke.
const PIECE: usize = 1 << 20;

/// A folder entry: name and attributes.
type NamedEntry = (Vec<u8>, Attributes);

pub(crate) struct Sftp {
    login: Login,
    /// Without a trailing `/`, unless it is the root folder; relative paths are relative to the home folder.
    root: String,
    /// As it may be shown.
    address: String,
    retry_policy: RetryPolicy,
    /// Idle connections.
    idle: Mutex<Vec<Connection>>,
    /// Whether a connection was ever made, and when the first was tried.
    reached: AtomicBool,
    since: Instant,
}

impl Sftp {
    pub(crate) fn new(login: Login, root: String, address: String, retry_policy: RetryPolicy) -> Self {
        let (idle, reached) = (Mutex::new(Vec::new()), AtomicBool::new(false));
        Self { login, root, address, retry_policy, idle, reached, since: Instant::now() }
    }

    fn connect(&self, path: &str) -> Result<Connection, Failure> {
        if let Some(connection) = self.idle.lock().unwrap_or_else(PoisonError::into_inner).pop() {
            return Ok(connection);
        }
        let connection = Connection::open(&self.login, self.retry_policy.idle_timeout);
        match connection {
            Ok(connection) => {
                self.reached.store(true, Ordering::Relaxed);
                Ok(connection)
            }
            // A host that never answered may be misspelt, which the user should learn soon.
            Err(SftpError::Disconnected(cause)) if !self.reached.load(Ordering::Relaxed) => {
                let waited = self.since.elapsed();
                if waited < FIRST_CONTACT.min(self.retry_policy.give_up_after) {
                    return Err(Failure::Transient(cause));
                }
                Err(StoreError::GaveUp { file: self.file(path), cause, tries: 1, waited }.into())
            }
            Err(error) => Err(self.failure(path, error)),
        }
    }

    /// Returns a connection without open requests to the pool.
    fn keep(&self, connection: Connection) {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner).push(connection);
    }

    /// Runs `what` on a connection, and keeps the connection if it is still usable.
    fn with<T>(
        &self,
        path: &str,
        what: impl FnOnce(&mut Connection) -> Result<T, SftpError>,
    ) -> Result<T, Failure> {
        let mut connection = self.connect(path)?;
        let result = what(&mut connection);
        if matches!(result, Ok(_) | Err(SftpError::Status(..))) {
            self.keep(connection);
        }
        result.map_err(|error| self.failure(path, error))
    }

    fn failure(&self, path: &str, error: SftpError) -> Failure {
        let file = self.file(path);
        match error {
            SftpError::Disconnected(cause) => {
                // The idle connections lead to the same server.
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
                    _ => "look at the folder on the server: is it there, is its disk full?",
                };
                let cause = format!("the server answered: {} (status {code})", text.trim());
                StoreError::Refused { file, cause, advice: advice.to_owned() }.into()
            }
        }
    }

    fn file(&self, path: &str) -> String {
        format!("{}/{path}", self.address.trim_end_matches('/'))
    }

    /// A path as the server has it.
    fn at(&self, path: &str) -> Vec<u8> {
        let separator = if self.root.is_empty() || path.is_empty() || self.root == "/" { "" } else { "/" };
        let whole = format!("{}{separator}{path}", self.root);
        if whole.is_empty() { b".".to_vec() } else { whole.into_bytes() }
    }

    fn attributes(&self, path: &str) -> Result<Option<Attributes>, Failure> {
        let found = self.with(path, |connection| {
            match connection.call(request::STAT, |packet| packet.text(&self.at(path)))? {
                (response::ATTRIBUTES, rest) => Ok(PacketReader(&rest).attributes()),
                _ => Ok(None),
            }
        });
        match found {
            Ok(Some(found)) => Ok(Some(found)),
            Ok(None) => {
                Err(self.failure(path, SftpError::Permanent("its attributes are malformed".to_owned())))
            }
            Err(Failure::Permanent(StoreError::NotFound { .. })) => Ok(None),
            Err(failure) => Err(failure),
        }
    }

    /// The names in a folder; `None` where there is none.
    fn names(&self, folder: &str) -> Result<Option<Vec<NamedEntry>>, Failure> {
        let found = self.with(folder, |connection| {
            let handle = connection.handle(request::OPEN_FOLDER, |packet| packet.text(&self.at(folder)))?;
            let mut names = Vec::new();
            loop {
                let rest = match connection.call(request::READ_FOLDER, |packet| packet.text(&handle)) {
                    Ok((response::NAME, rest)) => rest,
                    Ok(_) => return Err(SftpError::Permanent("a folder listing is malformed".to_owned())),
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
                        name.ok_or_else(|| SftpError::Permanent("a folder listing is malformed".to_owned()))?;
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
        deep: usize,
        found: &mut dyn FnMut(Entry),
    ) -> Result<(), Failure> {
        if deep > MOST_DEEP {
            let problem = format!("folders are more than {MOST_DEEP} deep; does a link lead back?");
            return Err(StoreError::Wrong { file: self.file(folder), problem }.into());
        }
        let Some(names) = self.names(folder)? else {
            // The folder of a prefix that nothing begins with.
            let file = self.file(folder);
            return if folder.is_empty() { Err(StoreError::NotFound { file }.into()) } else { Ok(()) };
        };
        for (name, mut info) in names {
            let Ok(name) = String::from_utf8(name) else {
                let problem = "a name in it is not UTF-8; rename it".to_owned();
                return Err(StoreError::Wrong { file: self.file(folder), problem }.into());
            };
            if is_unfinished(&name) {
                continue;
            }
            let path = if folder.is_empty() { name } else { format!("{folder}/{name}") };
            if info.kind() == Kind::Link {
                match self.attributes(&path)? {
                    Some(target) => info = target,
                    // A link to nothing.
                    None => continue,
                }
            }
            let within = format!("{path}/");
            match info.kind() {
                Kind::Folder if within.starts_with(prefix) || prefix.starts_with(&within) => {
                    self.walk(&path, prefix, deep + 1, found)?;
                }
                Kind::File if path.starts_with(prefix) => {
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
            let folder = self.at(&path[..end]);
            match connection.call(request::MAKE_FOLDER, |packet| packet.text(&folder).number(0)) {
                // Usually it exists, which servers report as an unspecific status. If it does not, the next
                // request fails.
                Ok(_) | Err(SftpError::Status(..)) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Retries `what` by the policy, on a new connection each time the last one broke.
    fn retry<T>(
        &self,
        path: &str,
        mut what: impl FnMut(&mut Connection) -> Result<T, SftpError>,
    ) -> Result<T, Failure> {
        let mut retries = Retries::new(self.retry_policy);
        loop {
            match self.with(path, &mut what) {
                Err(Failure::Transient(cause)) => retries.wait().map_err(|end| {
                    let file = self.file(path);
                    StoreError::GaveUp { file, cause, tries: end.tries, waited: end.waited }
                })?,
                result => return result,
            }
        }
    }

    /// Uploads to the temporary file `beside`, one piece at a time.
    fn write_beside(
        &self,
        path: &str,
        beside: &[u8],
        from: &mut dyn Read,
        bytes: u64,
    ) -> Result<(), Failure> {
        let open = |packet: Packet| packet.text(beside).number(mode::WRITE | mode::CREATE).number(0);
        let mut done = 0;
        loop {
            let left = (bytes - done).min(PIECE as u64);
            let last = done + left == bytes;
            let mut piece = Vec::new();
            // Reading one byte more than announced detects a source that is too long.
            from.take(left + u64::from(last)).read_to_end(&mut piece).map_err(|cause| {
                StoreError::Stream { file: self.file(path), action: "the source cannot be read", cause }
            })?;
            if piece.len() as u64 != left {
                return Err(
                    StoreError::wrong_source(self.file(path), done + piece.len() as u64, bytes).into()
                );
            }
            self.retry(path, |connection| {
                if done == 0 {
                    self.make_folders(connection, path)?;
                }
                let handle = connection.handle(request::OPEN, open)?;
                let mut asked = Vec::new();
                let mut offset = done;
                for block in piece.chunks(BLOCK as usize) {
                    asked.push(connection.send_request(request::WRITE, |packet| {
                        packet.text(&handle).long(offset).text(block)
                    })?);
                    offset += block.len() as u64;
                }
                // Wait for all responses: then the connection is reusable even if one is an error.
                let mut written = Ok(());
                for number in asked {
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
            done += left;
            if last {
                return Ok(());
            }
        }
    }

    /// Renames a complete file to its final name, atomically where the server can.
    fn put_in_place(&self, path: &str, beside: &[u8]) -> Result<(), Failure> {
        let place = self.at(path);
        let bytes = self.with(path, |connection| {
            const ATOMIC: &str = "posix-rename@openssh.com";
            if connection.supports(ATOMIC) {
                return connection
                    .call(request::EXTENDED, |packet| {
                        packet.text(ATOMIC.as_bytes()).text(beside).text(&place)
                    })
                    .map(drop);
            }
            // Others do not replace a file.
            match connection.call(request::REMOVE, |packet| packet.text(&place)) {
                Ok(_) | Err(SftpError::Status(status::NO_SUCH_FILE | status::UNSUPPORTED, _)) => {}
                Err(error) => return Err(error),
            }
            connection.call(request::RENAME, |packet| packet.text(beside).text(&place)).map(drop)
        });
        match bytes {
            Err(Failure::Transient(cause)) => Err(StoreError::Refused {
                file: self.file(path),
                cause,
                advice: "the connection broke when all was written; store it again".to_owned(),
            }
            .into()),
            result => result,
        }
    }
}

impl StoreBackend for Sftp {
    fn list(&self, prefix: &str, found: &mut dyn FnMut(Entry)) -> Result<(), Failure> {
        self.walk(prefix.rsplit_once('/').map_or("", |(folder, _)| folder), prefix, 0, found)
    }

    fn info(&self, path: &str) -> Result<Option<FileInfo>, Failure> {
        let found = self.attributes(path)?.filter(|found| found.kind() == Kind::File);
        let Some(found) = found else { return Ok(None) };
        let Some(bytes) = found.bytes else {
            let problem = "the server does not say how large it is".to_owned();
            return Err(StoreError::Wrong { file: self.file(path), problem }.into());
        };
        Ok(Some(FileInfo { bytes, version: found.changed.map(|seconds| seconds.to_string()) }))
    }

    fn open(&self, path: &str, offset: u64, length: u64) -> Result<Box<dyn Read + '_>, Failure> {
        let Some(end) = offset.checked_add(length) else { return Ok(Box::new(io::empty())) };
        let mut connection = self.connect(path)?;
        let opened = connection
            .handle(request::OPEN, |packet| packet.text(&self.at(path)).number(mode::READ).number(0));
        let handle = match opened {
            Ok(handle) => handle,
            Err(error) => {
                if matches!(error, SftpError::Status(..)) {
                    self.keep(connection);
                }
                return Err(self.failure(path, error));
            }
        };
        let (path, asked, block) = (path.to_owned(), VecDeque::new(), Vec::new());
        let connection = Some(connection);
        Ok(Box::new(Content {
            store: self,
            path,
            connection,
            handle,
            next: offset,
            end,
            asked,
            block,
            at: 0,
        }))
    }

    fn write(&self, path: &str, from: &mut dyn Read, bytes: u64) -> Result<(), Failure> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        // Other machines write there too.
        let time =
            SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |since| since.as_nanos());
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("{}{}-{time:x}-{number}{}", UNFINISHED.0, process::id(), UNFINISHED.1);
        let beside = match path.rsplit_once('/') {
            Some((folder, _)) => self.at(&format!("{folder}/{name}")),
            None => self.at(&name),
        };
        let written =
            self.write_beside(path, &beside, from, bytes).and_then(|()| self.put_in_place(path, &beside));
        if written.is_err() {
            // It is only in the way now, and the first error is the one that says why.
            let _ =
                self.with(path, |connection| connection.call(request::REMOVE, |packet| packet.text(&beside)));
        }
        written
    }
}

/// A file's bytes as they come, many blocks of them asked for ahead.
struct Content<'a> {
    store: &'a Sftp,
    path: String,
    /// `None` once it is of no use any more.
    connection: Option<Connection>,
    handle: Vec<u8>,
    /// The first byte that was not asked for.
    next: u64,
    end: u64,
    /// Questions whose answers are to come: number, offset and bytes.
    asked: VecDeque<(u32, u64, u32)>,
    block: Vec<u8>,
    at: usize,
}

impl Content<'_> {
    /// The next block; an empty one where the file ends.
    fn fetch(&mut self) -> Result<Vec<u8>, SftpError> {
        let Some(connection) = &mut self.connection else {
            return Err(SftpError::Disconnected("the connection is gone".to_owned()));
        };
        while self.asked.len() < AHEAD && self.next < self.end {
            let count = u32::try_from(self.end - self.next).unwrap_or(BLOCK).min(BLOCK);
            let offset = self.next;
            let number = connection
                .send_request(request::READ, |packet| packet.text(&self.handle).long(offset).number(count))?;
            self.asked.push_back((number, offset, count));
            self.next += u64::from(count);
        }
        let Some((number, offset, count)) = self.asked.pop_front() else { return Ok(Vec::new()) };
        let block = match connection.wait(number) {
            Ok((response::DATA, rest)) => PacketReader(&rest).text().map(<[u8]>::to_vec),
            Ok(_) => None,
            Err(SftpError::Status(status::EOF, _)) => Some(Vec::new()),
            Err(error) => return Err(error),
        };
        let block = block.filter(|block| block.len() <= count as usize);
        let block = block.ok_or_else(|| SftpError::Permanent("the content makes no sense".to_owned()))?;
        if block.len() < count as usize {
            // Less than asked for, which a server may give: what was asked for behind it is not what comes
            // next.
            for (number, ..) in std::mem::take(&mut self.asked) {
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

impl Read for Content<'_> {
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

impl Drop for Content<'_> {
    fn drop(&mut self) {
        let Some(mut connection) = self.connection.take().filter(|_| self.asked.is_empty()) else { return };
        if connection.call(request::CLOSE, |packet| packet.text(&self.handle)).is_ok() {
            self.store.keep(connection);
        }
    }
}
