//! Object stores: S3, Azure Blob, Google Cloud Storage and OpenStack Swift, through OpenDAL.
//!
//! OpenDAL implements the protocols and signatures. Our own [`HttpClient`](crate::web::HttpClient) sends the
//! requests, so that all stores share TLS, retries and redaction. The futures of OpenDAL run to completion
//! one at a time; `tokio` is only needed for the credential files that OpenDAL reads.

mod environment;
mod services;
mod swift;
mod transport;

use std::error::Error;
use std::future::Future;
use std::io::{self, Read};
use std::sync::{Arc, OnceLock};

use futures::StreamExt;
use opendal::{Buffer, BufferStream, ErrorKind, Operator};
use tokio::runtime::{Builder, Runtime};

use crate::backend::{Failure, FileInfo, StoreBackend, file_address, read_block};
use crate::secret::Secrets;
use crate::web::RequestError;
use crate::{Entry, StoreError};

pub(crate) use services::open;

/// Reads the answer of a server that signs in for `fuzz/`.
#[cfg(fuzzing)]
pub(crate) fn fuzz_swift(answer: &[u8]) {
    swift::fuzz(answer);
}

/// The bytes of an upload in memory at a time. Files up to this size are uploaded with one request.
const UPLOAD_PART_BYTES: usize = 16 << 20;

/// The maximum number of parts of an object, which every service supports.
const MAX_UPLOAD_PARTS: u64 = 900;

pub(crate) struct ObjectStore {
    operator: Operator,
    /// The redacted address.
    address: String,
    secrets: Secrets,
    /// The hint for missing credentials.
    advice: &'static str,
    /// The prefix of objects that are parts of others.
    hidden: Option<&'static str>,
}

impl ObjectStore {
    fn file(&self, path: &str) -> String {
        file_address(&self.address, path)
    }

    /// Converts an error of OpenDAL to the failure of `file`.
    fn failure(&self, file: String, error: &opendal::Error) -> Failure {
        let mut source = error.source();
        while let Some(cause) = source {
            if let Some(error) = cause.downcast_ref::<RequestError>() {
                return error.to_failure(file);
            }
            source = cause.source();
        }
        let message = self.secrets.redact(error.message());
        match error.kind() {
            ErrorKind::NotFound => StoreError::NotFound { file }.into(),
            ErrorKind::PermissionDenied => {
                // A response to HEAD has no text.
                let text = if message.is_empty() { String::new() } else { format!(": {message}") };
                let cause = format!("the server refused access (401 or 403){text}");
                StoreError::Refused { file, cause, advice: self.advice.to_owned() }.into()
            }
            _ if error.is_temporary() => Failure::Transient(message),
            _ => {
                // Only the sources explain missing credentials.
                let mut causes = vec![message];
                let mut source = error.source();
                while let Some(cause) = source.filter(|_| causes.len() < 4) {
                    causes.push(self.secrets.redact(&cause.to_string()));
                    source = cause.source();
                }
                causes.dedup();
                StoreError::Refused { file, cause: causes.join(": "), advice: self.advice.to_owned() }.into()
            }
        }
    }

    /// Runs a future of OpenDAL for `path` to completion.
    fn run<T>(&self, path: &str, future: impl Future<Output = opendal::Result<T>>) -> Result<T, Failure> {
        runtime().map_err(|error| self.no_runtime(path, &error))?.block_on(future).map_err(|error| {
            let file = self.file(path);
            self.failure(file, &error)
        })
    }

    fn no_runtime(&self, path: &str, error: &io::Error) -> StoreError {
        StoreError::Unexpected {
            file: self.file(path),
            problem: format!("cannot create the runtime: {error}"),
        }
    }

    fn write_parts(&self, path: &str, from: &mut dyn Read, bytes: u64, part: usize) -> Result<(), Failure> {
        let mut writer =
            self.run(path, async { self.operator.writer_with(path).chunk(part).concurrent(1).await })?;
        let written = self.fill(path, from, bytes, part, |block| self.run(path, writer.write(block)));
        match written {
            Ok(()) => self.run(path, writer.close()).map(drop),
            Err(failure) => {
                // Best effort: the first error is the one to report.
                let _ = self.run(path, writer.abort());
                Err(failure)
            }
        }
    }

    /// Passes the source to `write` in parts, and checks that it has exactly `bytes` bytes.
    fn fill(
        &self,
        path: &str,
        from: &mut dyn Read,
        bytes: u64,
        part: usize,
        mut write: impl FnMut(Vec<u8>) -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        let mut done = 0;
        loop {
            let (block, is_last) = read_block(from, bytes, done, part, || self.file(path))?;
            done += block.len() as u64;
            write(block)?;
            if is_last {
                return Ok(());
            }
        }
    }
}

impl StoreBackend for ObjectStore {
    fn list(&self, prefix: &str, found: &mut dyn FnMut(Entry)) -> Result<(), Failure> {
        let folder = prefix.rsplit_once('/').map_or(String::new(), |(folder, _)| format!("{folder}/"));
        let mut list =
            self.run(&folder, async { self.operator.lister_with(&folder).recursive(true).await })?;
        while let Some(entry) = self.run(&folder, async { list.next().await.transpose() })? {
            let (path, info) = entry.into_parts();
            // A trailing slash marks a folder.
            let hidden = self.hidden.is_some_and(|hidden| path.starts_with(hidden));
            if info.is_file() && !path.ends_with('/') && path.starts_with(prefix) && !hidden {
                found(Entry { path, bytes: info.content_length() });
            }
        }
        Ok(())
    }

    fn info(&self, path: &str) -> Result<Option<FileInfo>, Failure> {
        let info = match self.run(path, self.operator.stat(path)) {
            Err(Failure::Permanent(StoreError::NotFound { .. })) => return Ok(None),
            info => info?,
        };
        let version = info.etag().map(str::to_owned);
        let version = version.or_else(|| info.last_modified().map(|time| time.to_string()));
        Ok(info.is_file().then(|| FileInfo {
            bytes: info.content_length(),
            version: version.map(|version| version.escape_debug().to_string()),
        }))
    }

    fn open(&self, path: &str, offset: u64, length: u64) -> Result<Box<dyn Read + '_>, Failure> {
        let Some(end) = offset.checked_add(length).filter(|_| length > 0) else {
            return Ok(Box::new(io::empty()));
        };
        let stream =
            self.run(path, async { self.operator.reader(path).await?.into_stream(offset..end).await })?;
        let mut reader = ObjectReader { store: self, stream, block: Buffer::new() };
        // The request is sent by the first read.
        let first = runtime()
            .map_err(|error| self.no_runtime(path, &error))?
            .block_on(async { reader.stream.next().await.transpose() });
        match first {
            Ok(block) => reader.block = block.unwrap_or_default(),
            // The object ends before `offset`; the caller detects the missing bytes.
            Err(error) if error.kind() == ErrorKind::RangeNotSatisfied => return Ok(Box::new(io::empty())),
            Err(error) => return Err(self.failure(self.file(path), &error)),
        }
        Ok(Box::new(reader))
    }

    fn write(&self, path: &str, from: &mut dyn Read, bytes: u64) -> Result<(), Failure> {
        if bytes <= UPLOAD_PART_BYTES as u64 {
            return self.fill(path, from, bytes, UPLOAD_PART_BYTES, |block| {
                self.run(path, self.operator.write(path, block)).map(drop)
            });
        }
        let part =
            usize::try_from(bytes.div_ceil(MAX_UPLOAD_PARTS)).unwrap_or(usize::MAX).max(UPLOAD_PART_BYTES);
        self.write_parts(path, from, bytes, part)
    }
}

/// A reader of an object.
struct ObjectReader<'a> {
    store: &'a ObjectStore,
    stream: BufferStream,
    block: Buffer,
}

impl Read for ObjectReader<'_> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        if self.block.is_empty() {
            let next = runtime()?.block_on(async { self.stream.next().await.transpose() });
            // The connection broke or the object is shorter: the caller retries and detects the case.
            let next = next.map_err(|error| io::Error::other(self.store.secrets.redact(error.message())))?;
            self.block = next.unwrap_or_default();
        }
        self.block.read(out)
    }
}

/// The runtime for the futures of OpenDAL, shared by all threads.
fn runtime() -> io::Result<Arc<Runtime>> {
    static RUNTIME: OnceLock<Arc<Runtime>> = OnceLock::new();
    if let Some(runtime) = RUNTIME.get() {
        return Ok(Arc::clone(runtime));
    }
    let runtime = Arc::new(Builder::new_current_thread().max_blocking_threads(1).build()?);
    Ok(Arc::clone(RUNTIME.get_or_init(|| runtime)))
}
