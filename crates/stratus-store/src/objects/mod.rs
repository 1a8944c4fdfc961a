//! Stores of objects: S3, Azure Blob, Google Cloud Storage and OpenStack Swift, through OpenDAL.
//!
//! OpenDAL knows their protocols and signatures; requests are sent by our own [`Web`], so that all stores
//! have one TLS, one patience and one way to keep secrets. Its functions are futures, which nothing here
//! overlaps: each is run to its end where it is called, and `tokio` is only there for the files of
//! credentials that OpenDAL reads.

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

use crate::backend::{Failure, FileInfo, StoreBackend};
use crate::secret::Secrets;
use crate::web::RequestError;
use crate::{Entry, StoreError};

pub(crate) use services::open;

/// Bytes of an upload that are in memory at a time; files up to it are one request.
const PART: usize = 16 << 20;

/// The most parts that every service puts together to one object.
const MOST_PARTS: u64 = 900;

pub(crate) struct Objects {
    operator: Operator,
    /// As it may be shown.
    address: String,
    secrets: Secrets,
    /// Where credentials are looked for.
    advice: &'static str,
    /// Objects that are parts of others.
    hidden: Option<&'static str>,
}

impl Objects {
    fn file(&self, path: &str) -> String {
        format!("{}/{path}", self.address.trim_end_matches('/'))
    }

    /// What went wrong with `file`.
    fn failure(&self, file: String, error: &opendal::Error) -> Failure {
        let mut source = error.source();
        while let Some(cause) = source {
            if let Some(error) = cause.downcast_ref::<RequestError>() {
                return error.of(file);
            }
            source = cause.source();
        }
        let message = self.secrets.hide(error.message());
        match error.kind() {
            ErrorKind::NotFound => StoreError::NotFound { file }.into(),
            ErrorKind::PermissionDenied => {
                // An answer to HEAD has no text.
                let text = if message.is_empty() { String::new() } else { format!(": {message}") };
                let cause = format!("the server refused it (401 or 403){text}");
                StoreError::Refused { file, cause, advice: self.advice.to_owned() }.into()
            }
            _ if error.is_temporary() => Failure::Transient(message),
            _ => {
                // What the sources say is often all there is to know of missing credentials.
                let mut causes = vec![message];
                let mut source = error.source();
                while let Some(cause) = source.filter(|_| causes.len() < 4) {
                    causes.push(self.secrets.hide(&cause.to_string()));
                    source = cause.source();
                }
                causes.dedup();
                StoreError::Refused { file, cause: causes.join(": "), advice: self.advice.to_owned() }.into()
            }
        }
    }

    /// Runs what OpenDAL has to do for `path`.
    fn run<T>(&self, path: &str, future: impl Future<Output = opendal::Result<T>>) -> Result<T, Failure> {
        runtime().map_err(|error| self.no_runtime(path, &error))?.block_on(future).map_err(|error| {
            let file = self.file(path);
            self.failure(file, &error)
        })
    }

    fn no_runtime(&self, path: &str, error: &io::Error) -> StoreError {
        StoreError::Wrong { file: self.file(path), problem: format!("a runtime cannot be made: {error}") }
    }

    fn write_parts(&self, path: &str, from: &mut dyn Read, bytes: u64, part: usize) -> Result<(), Failure> {
        let mut writer =
            self.run(path, async { self.operator.writer_with(path).chunk(part).concurrent(1).await })?;
        let written = self.fill(path, from, bytes, part, |block| self.run(path, writer.write(block)));
        match written {
            Ok(()) => self.run(path, writer.close()).map(drop),
            Err(failure) => {
                // The parts that are there are no file; the first error is the one that says why.
                let _ = self.run(path, writer.abort());
                Err(failure)
            }
        }
    }

    /// Hands over the source in parts, and sees that it has exactly `bytes` bytes.
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
            let left = (bytes - done).min(part as u64);
            let last = done + left == bytes;
            let mut block = Vec::new();
            // One byte more than announced shows that there is too much.
            let most = left + u64::from(last);
            from.take(most).read_to_end(&mut block).map_err(|cause| StoreError::Stream {
                file: self.file(path),
                action: "the source cannot be read",
                cause,
            })?;
            if block.len() as u64 != left {
                let found = done + block.len() as u64;
                return Err(StoreError::wrong_source(self.file(path), found, bytes).into());
            }
            done += left;
            write(block)?;
            if last {
                return Ok(());
            }
        }
    }
}

impl StoreBackend for Objects {
    fn list(&self, prefix: &str, found: &mut dyn FnMut(Entry)) -> Result<(), Failure> {
        let folder = prefix.rsplit_once('/').map_or(String::new(), |(folder, _)| format!("{folder}/"));
        let mut list =
            self.run(&folder, async { self.operator.lister_with(&folder).recursive(true).await })?;
        while let Some(entry) = self.run(&folder, async { list.next().await.transpose() })? {
            let (path, info) = entry.into_parts();
            // What ends with a slash marks a folder.
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
        let mut content = Content { store: self, stream, block: Buffer::new() };
        // The request is sent by the first read.
        let first = runtime()
            .map_err(|error| self.no_runtime(path, &error))?
            .block_on(async { content.stream.next().await.transpose() });
        match first {
            Ok(block) => content.block = block.unwrap_or_default(),
            // It ends before what is asked for; whoever reads sees that.
            Err(error) if error.kind() == ErrorKind::RangeNotSatisfied => return Ok(Box::new(io::empty())),
            Err(error) => return Err(self.failure(self.file(path), &error)),
        }
        Ok(Box::new(content))
    }

    fn write(&self, path: &str, from: &mut dyn Read, bytes: u64) -> Result<(), Failure> {
        if bytes <= PART as u64 {
            return self.fill(path, from, bytes, PART, |block| {
                self.run(path, self.operator.write(path, block)).map(drop)
            });
        }
        let part = usize::try_from(bytes.div_ceil(MOST_PARTS)).unwrap_or(usize::MAX).max(PART);
        self.write_parts(path, from, bytes, part)
    }
}

/// An object's bytes as they come.
struct Content<'a> {
    store: &'a Objects,
    stream: BufferStream,
    block: Buffer,
}

impl Read for Content<'_> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        if self.block.is_empty() {
            let next = runtime()?.block_on(async { self.stream.next().await.transpose() });
            // A connection that breaks, or an object that ends early: whoever reads asks again, and sees
            // which it is.
            let next = next.map_err(|error| io::Error::other(self.store.secrets.hide(error.message())))?;
            self.block = next.unwrap_or_default();
        }
        self.block.read(out)
    }
}

/// The runtime that OpenDAL's futures run on. Any number of threads use it at once.
fn runtime() -> io::Result<Arc<Runtime>> {
    static RUNTIME: OnceLock<Arc<Runtime>> = OnceLock::new();
    if let Some(runtime) = RUNTIME.get() {
        return Ok(Arc::clone(runtime));
    }
    let runtime = Arc::new(Builder::new_current_thread().max_blocking_threads(1).build()?);
    Ok(Arc::clone(RUNTIME.get_or_init(|| runtime)))
}
