//! A folder of files behind an address: retries, resumed downloads, checks.

use std::fmt;
use std::io::{self, Read, Write};
use std::path::Path;
use std::sync::Arc;

use crate::address::{Address, path_problem};
use crate::backend::{Failure, FileInfo, StoreBackend};
use crate::error::disk;
use crate::http::Http;
use crate::local::Local;
#[cfg(feature = "objects")]
use crate::objects;
use crate::retry::Retries;
use crate::secret::Secrets;
use crate::sftp::Sftp;
use crate::web::Web;
use crate::{RetryPolicy, StoreError};

/// Bytes that are read from a store at a time.
const BLOCK: usize = 1 << 18;

/// How many redirects of a web server are followed.
const MOST_REDIRECTS: u32 = 10;

/// A folder of files: on this machine or behind an address. Clones share one connection pool.
#[derive(Clone)]
pub struct Store(Arc<Inner>);

struct Inner {
    address: String,
    kind: Kind,
    retry_policy: RetryPolicy,
}

enum Kind {
    Local(Local),
    Remote(Box<dyn StoreBackend>),
}

/// A file of a store.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Entry {
    /// Its path relative to the store, `/` between its parts.
    pub path: String,
    /// Its size in bytes.
    pub bytes: u64,
}

impl fmt::Debug for Store {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_tuple("Store").field(&self.0.address).finish()
    }
}

impl Store {
    /// The folder at `address`: a path, `file:///path`, `https://host/path`, or `s3://bucket/prefix`, and
    /// likewise `az://` (Azure Blob), `gs://` (Google Cloud Storage), `swift://` (OpenStack Swift), or
    /// `sftp://user@host:port/path` (`~/` at its beginning is the home folder). Nothing is asked of the other
    /// side yet.
    ///
    /// What follows a `?` in a web address is a secret, and part of every request. All other credentials come
    /// from the environment variables and files that each service's own tools use; behind `sftp://` the
    /// system's `ssh` signs in, or the program that `STRATUS_SSH` names.
    ///
    /// # Errors
    ///
    /// [`StoreError::Address`] where it is none; [`StoreError::Disk`] where a folder of this machine is not
    /// there.
    pub fn open(address: &str) -> Result<Self, StoreError> {
        Self::open_with(address, RetryPolicy::default())
    }

    /// As [`open`](Self::open), with another retry policy than the default.
    ///
    /// # Errors
    ///
    /// As [`open`](Self::open).
    pub fn open_with(address: &str, retry_policy: RetryPolicy) -> Result<Self, StoreError> {
        let (address, kind, retry_policy) = match Address::parse(address)? {
            Address::Local(path) => {
                let info = path.metadata().map_err(disk(&path, "cannot be read"))?;
                if !info.is_dir() {
                    let cause = io::Error::new(io::ErrorKind::NotADirectory, "it is not a folder");
                    return Err(disk(&path, "cannot be read")(cause));
                }
                // A failing disk does not recover while one waits.
                let retry_policy =
                    RetryPolicy { give_up_after: RetryPolicy::ONCE.give_up_after, ..retry_policy };
                (path.display().to_string(), Kind::Local(Local::new(path)), retry_policy)
            }
            Address::Http { shown, base, query } => {
                let mut secrets = Secrets::default();
                secrets.add_query(query.as_deref().unwrap_or_default());
                let http =
                    Http::new(Web::new(retry_policy, secrets, MOST_REDIRECTS), shown.clone(), base, query);
                (shown, Kind::Remote(Box::new(http)), retry_policy)
            }
            Address::Sftp { login, root } => {
                let sftp = Sftp::new(login, root, address.to_owned(), retry_policy);
                (address.to_owned(), Kind::Remote(Box::new(sftp)), retry_policy)
            }
            #[cfg(not(feature = "objects"))]
            Address::Objects { .. } => {
                let problem = "this program was built without stores of objects; build it with `make build`";
                return Err(StoreError::Unsupported { address: address.to_owned(), problem });
            }
            #[cfg(feature = "objects")]
            Address::Objects { service, container, prefix } => {
                let objects = objects::open(service, &container, &prefix, address.to_owned(), retry_policy)?;
                (address.to_owned(), Kind::Remote(Box::new(objects)), retry_policy)
            }
        };
        Ok(Self(Arc::new(Inner { address, kind, retry_policy })))
    }

    /// The address as it may be shown: without any secret.
    #[must_use]
    pub fn address(&self) -> &str {
        &self.0.address
    }

    /// The folder, where it is one of this machine.
    #[must_use]
    pub fn is_local(&self) -> Option<&Path> {
        match &self.0.kind {
            Kind::Local(local) => Some(local.root()),
            Kind::Remote(_) => None,
        }
    }

    /// Every file whose path begins with `prefix`, in folders of folders too, sorted by path. `""` lists all,
    /// `train/` a folder.
    ///
    /// # Errors
    ///
    /// [`StoreError`]: the store cannot be reached or cannot be listed; a file has a name that would lead out
    /// of the store.
    pub fn list(&self, prefix: &str) -> Result<Vec<Entry>, StoreError> {
        let folder = prefix.strip_suffix('/').unwrap_or(prefix);
        if !prefix.is_empty() {
            self.check(folder)?;
        }
        let mut entries = self.retry(self.address(), |_| {
            let mut entries = Vec::new();
            self.backend().list(prefix, &mut |entry| entries.push(entry))?;
            Ok(entries)
        })?;
        for entry in &entries {
            self.check(&entry.path)?;
        }
        entries.sort_unstable();
        Ok(entries)
    }

    /// A file's size; `None` where there is no such file.
    ///
    /// # Errors
    ///
    /// [`StoreError`]: the path is none, the store cannot be reached, it does not say how large the file is.
    pub fn bytes(&self, path: &str) -> Result<Option<u64>, StoreError> {
        Ok(self.info(path)?.map(|info| info.bytes))
    }

    /// A small file, whole.
    ///
    /// # Errors
    ///
    /// [`StoreError::TooLarge`] where it has more than `most` bytes; as [`download`](Self::download).
    pub fn read(&self, path: &str, most: u64) -> Result<Vec<u8>, StoreError> {
        let info = self.expect(path)?;
        if info.bytes > most {
            return Err(StoreError::TooLarge { file: self.file(path), bytes: info.bytes, most });
        }
        // The size is the other side's word: memory is taken as the bytes come.
        let mut content = Vec::new();
        self.copy(path, &info, 0, &mut content, &mut |_| {})?;
        Ok(content)
    }

    /// Fills `out` with the file's bytes from `offset` on.
    ///
    /// # Errors
    ///
    /// [`StoreError::TooShort`] where the file ends before `out` is full; as [`download`](Self::download).
    pub fn read_at(&self, path: &str, offset: u64, out: &mut [u8]) -> Result<(), StoreError> {
        self.check(path)?;
        let length = out.len() as u64;
        let Some(end) = offset.checked_add(length) else {
            return Err(StoreError::TooShort { file: self.file(path), offset, end: u64::MAX, bytes: 0 });
        };
        let mut filled = 0;
        let file = self.file(path);
        self.retry(&file, |retries| {
            let missing = (out.len() - filled) as u64;
            if missing == 0 {
                return Ok(());
            }
            let mut from = self.backend().open(path, end - missing, missing)?;
            while filled < out.len() {
                match from.read(&mut out[filled..]) {
                    Ok(0) => {
                        // Did it end, or did the connection?
                        let bytes = self.backend().info(path)?.map_or(0, |info| info.bytes);
                        return Err(if bytes < end {
                            StoreError::TooShort { file: self.file(path), offset, end, bytes }.into()
                        } else {
                            Failure::Transient(format!(
                                "the connection ended {} bytes early",
                                out.len() - filled
                            ))
                        });
                    }
                    Ok(count) => {
                        filled += count;
                        retries.progress();
                    }
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                    Err(error) => return Err(self.broken(path, error)),
                }
            }
            Ok(())
        })
    }

    /// Copies a file to `to`, and returns its size. Where the connection breaks, the copy resumes at the byte
    /// reached. `progress` is told the bytes copied so far.
    ///
    /// # Errors
    ///
    /// [`StoreError`]: there is no such file, it cannot be read, retries are exhausted, it changed while it
    /// was read, `to` failed.
    pub fn download(
        &self,
        path: &str,
        to: &mut dyn Write,
        progress: &mut dyn FnMut(u64),
    ) -> Result<u64, StoreError> {
        let info = self.expect(path)?;
        self.copy(path, &info, 0, to, progress)?;
        Ok(info.bytes)
    }

    /// Stores the `bytes` bytes that `from` has as a file, whole or not at all; one that is there is
    /// replaced.
    ///
    /// # Errors
    ///
    /// [`StoreError`]: the store cannot be written, `from` has fewer or more bytes.
    pub fn upload(&self, path: &str, from: &mut dyn Read, bytes: u64) -> Result<(), StoreError> {
        self.check(path)?;
        match self.backend().write(path, from, bytes) {
            Ok(()) => Ok(()),
            Err(Failure::Permanent(error)) => Err(error),
            Err(Failure::Transient(cause)) => Err(StoreError::Refused {
                file: self.file(path),
                cause,
                advice: "try again later".to_owned(),
            }),
        }
    }

    /// Size and version of a file; `None` where there is none.
    pub(crate) fn info(&self, path: &str) -> Result<Option<FileInfo>, StoreError> {
        self.check(path)?;
        self.retry(&self.file(path), |_| self.backend().info(path))
    }

    /// Size and version of a file that must be there.
    pub(crate) fn expect(&self, path: &str) -> Result<FileInfo, StoreError> {
        self.info(path)?.ok_or_else(|| StoreError::NotFound { file: self.file(path) })
    }

    /// Copies a file from byte `done` to its end, as `info` announced it. `progress` is told the bytes done
    /// so far.
    pub(crate) fn copy(
        &self,
        path: &str,
        info: &FileInfo,
        mut done: u64,
        to: &mut dyn Write,
        progress: &mut dyn FnMut(u64),
    ) -> Result<(), StoreError> {
        let file = self.file(path);
        let mut block = vec![0; BLOCK.min(usize::try_from(info.bytes).unwrap_or(BLOCK).max(1))];
        let mut broken = false;
        self.retry(&file, |retries| {
            if done == info.bytes {
                return Ok(());
            }
            // What is there now may be another file than the one that was begun.
            if broken && self.backend().info(path)?.as_ref() != Some(info) {
                return Err(self.changed(path).into());
            }
            broken = true;
            let mut from = self.backend().open(path, done, info.bytes - done)?;
            while done < info.bytes {
                let most = usize::try_from(info.bytes - done).unwrap_or(block.len()).min(block.len());
                let count = match from.read(&mut block[..most]) {
                    Ok(0) if self.is_local().is_some() => return Err(self.changed(path).into()),
                    Ok(0) => {
                        let bytes = info.bytes;
                        return Err(Failure::Transient(format!(
                            "the connection ended after {done} of {bytes} bytes"
                        )));
                    }
                    Ok(count) => count,
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                    Err(error) => return Err(self.broken(path, error)),
                };
                to.write_all(&block[..count]).map_err(|cause| StoreError::Stream {
                    file: file.clone(),
                    action: "the destination cannot be written",
                    cause,
                })?;
                done += count as u64;
                retries.progress();
                progress(done);
            }
            Ok(())
        })
    }

    /// Calls `attempt` until it succeeds, fails permanently, or the retry policy is exhausted.
    fn retry<T>(
        &self,
        file: &str,
        mut attempt: impl FnMut(&mut Retries) -> Result<T, Failure>,
    ) -> Result<T, StoreError> {
        let mut retries = Retries::new(self.0.retry_policy);
        loop {
            match attempt(&mut retries) {
                Ok(value) => return Ok(value),
                Err(Failure::Permanent(error)) => return Err(error),
                Err(Failure::Transient(cause)) => retries.wait().map_err(|end| StoreError::GaveUp {
                    file: file.to_owned(),
                    cause,
                    tries: end.tries,
                    waited: end.waited,
                })?,
            }
        }
    }

    fn backend(&self) -> &dyn StoreBackend {
        match &self.0.kind {
            Kind::Local(local) => local,
            Kind::Remote(remote) => &**remote,
        }
    }

    pub(crate) fn retry_policy(&self) -> RetryPolicy {
        self.0.retry_policy
    }

    /// Reading stopped: a connection may be better the next time, a disk is not.
    fn broken(&self, path: &str, error: io::Error) -> Failure {
        match self.is_local() {
            Some(root) => disk(&root.join(path), "cannot be read")(error).into(),
            None => Failure::of_io(error),
        }
    }

    fn changed(&self, path: &str) -> StoreError {
        let problem = "it was changed while it was read; start again".to_owned();
        StoreError::Wrong { file: self.file(path), problem }
    }

    /// A file's address, as it is shown.
    pub(crate) fn file(&self, path: &str) -> String {
        format!("{}/{path}", self.address().trim_end_matches('/'))
    }

    fn check(&self, path: &str) -> Result<(), StoreError> {
        path_problem(path).map_or(Ok(()), |problem| {
            Err(StoreError::Path { address: self.address().to_owned(), path: path.to_owned(), problem })
        })
    }
}
