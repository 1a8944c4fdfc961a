//! A folder of files at an address, with retries, resumed downloads and checks.

use std::fmt;
use std::io::{self, Read, Write};
use std::path::Path;
use std::sync::Arc;

use crate::address::{Address, path_problem};
use crate::backend::{Entry, Failure, FileInfo, StoreBackend, file_address};
use crate::error::local_io;
use crate::http::HttpStore;
use crate::local::LocalStore;
#[cfg(feature = "objects")]
use crate::objects;
use crate::retry::Retries;
use crate::secret::Secrets;
use crate::sftp::SftpStore;
use crate::web::HttpClient;
use crate::{RetryPolicy, StoreError};

/// The bytes read from a store at a time.
const READ_BLOCK_BYTES: usize = 1 << 18;

/// The maximum number of redirects of a web server.
const MAX_REDIRECTS: u32 = 10;

/// A local or remote folder of files. Clones share one connection pool.
#[derive(Clone)]
pub struct Store(Arc<Inner>);

struct Inner {
    address: String,
    kind: StoreKind,
    retry_policy: RetryPolicy,
}

enum StoreKind {
    Local(LocalStore),
    Remote(Box<dyn StoreBackend>),
}

impl fmt::Debug for Store {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_tuple("Store").field(&self.0.address).finish()
    }
}

impl Store {
    /// Opens the folder at `address`: a path, `file:///path`, `https://host/path`, `s3://bucket/prefix`, the
    /// same with `az://` (Azure Blob), `gs://` (Google Cloud Storage) or `swift://` (OpenStack Swift), or
    /// `sftp://user@host:port/path`, in which a leading `~/` is the home folder. Sends no request yet.
    ///
    /// The query string of a web address is secret, and part of every request. All other credentials come
    /// from the environment variables and files that the tools of each service use. For `sftp://`, the
    /// system's `ssh` signs in, or the program in `STRATUS_SSH`.
    ///
    /// # Errors
    ///
    /// [`StoreError::Address`] if the address is invalid; [`StoreError::LocalIo`] if a local folder does not
    /// exist.
    pub fn open(address: &str) -> Result<Self, StoreError> {
        Self::open_with_policy(address, RetryPolicy::default())
    }

    /// Like [`open`](Self::open), with the given retry policy.
    ///
    /// # Errors
    ///
    /// Like [`open`](Self::open).
    pub fn open_with_policy(address: &str, retry_policy: RetryPolicy) -> Result<Self, StoreError> {
        let (address, kind, retry_policy) = match Address::parse(address)? {
            Address::Local(path) => {
                let info = path.metadata().map_err(local_io(&path, "cannot be read"))?;
                if !info.is_dir() {
                    let cause = io::Error::new(io::ErrorKind::NotADirectory, "not a folder");
                    return Err(local_io(&path, "cannot be read")(cause));
                }
                // A failing disk does not recover, so retries would only delay the error.
                let retry_policy =
                    RetryPolicy { give_up_after: RetryPolicy::ONCE.give_up_after, ..retry_policy };
                (path.display().to_string(), StoreKind::Local(LocalStore::new(path)), retry_policy)
            }
            Address::Http { redacted, base, query } => {
                let mut secrets = Secrets::default();
                secrets.add_query(query.as_deref().unwrap_or_default());
                let http = HttpStore::new(
                    HttpClient::new(retry_policy, secrets, MAX_REDIRECTS),
                    redacted.clone(),
                    base,
                    query,
                );
                (redacted, StoreKind::Remote(Box::new(http)), retry_policy)
            }
            Address::Sftp { login, root } => {
                let sftp = SftpStore::new(login, root, address.to_owned(), retry_policy);
                (address.to_owned(), StoreKind::Remote(Box::new(sftp)), retry_policy)
            }
            #[cfg(not(feature = "objects"))]
            Address::Objects { .. } => {
                let problem = "built without object stores; rebuild with `make build`";
                return Err(StoreError::Unsupported { address: address.to_owned(), problem });
            }
            #[cfg(feature = "objects")]
            Address::Objects { service, container, prefix } => {
                let objects = objects::open(service, &container, &prefix, address.to_owned(), retry_policy)?;
                (address.to_owned(), StoreKind::Remote(Box::new(objects)), retry_policy)
            }
        };
        Ok(Self(Arc::new(Inner { address, kind, retry_policy })))
    }

    /// The address without secrets.
    #[must_use]
    pub fn address(&self) -> &str {
        &self.0.address
    }

    /// The folder, if it is local.
    #[must_use]
    pub fn local_root(&self) -> Option<&Path> {
        match &self.0.kind {
            StoreKind::Local(local) => Some(local.root()),
            StoreKind::Remote(_) => None,
        }
    }

    /// Lists every file whose path begins with `prefix`, recursively, sorted by path. `""` lists all files,
    /// `train/` a folder.
    ///
    /// # Errors
    ///
    /// If the store cannot be reached or listed, or a path leads out of the store.
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

    /// The size of a file in bytes, or `None` if it does not exist.
    ///
    /// # Errors
    ///
    /// If the path is invalid, the store cannot be reached, or it does not report the size.
    pub fn size(&self, path: &str) -> Result<Option<u64>, StoreError> {
        Ok(self.info(path)?.map(|info| info.bytes))
    }

    /// Reads a whole file of at most `max_bytes` bytes.
    ///
    /// # Errors
    ///
    /// [`StoreError::TooLarge`] if the file has more than `max_bytes` bytes; otherwise like
    /// [`download`](Self::download).
    pub fn read(&self, path: &str, max_bytes: u64) -> Result<Vec<u8>, StoreError> {
        let info = self.require_info(path)?;
        if info.bytes > max_bytes {
            return Err(StoreError::TooLarge { file: self.file(path), bytes: info.bytes, max: max_bytes });
        }
        // The announced size is not trusted: memory grows with the received bytes.
        let mut content = Vec::new();
        self.copy(path, &info, 0, &mut content, &mut |_| {})?;
        Ok(content)
    }

    /// Fills `out` with the bytes of a file from `offset`.
    ///
    /// # Errors
    ///
    /// [`StoreError::TooShort`] if the file ends before `out` is full; otherwise like
    /// [`download`](Self::download).
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
                        // Distinguish the end of the file from the end of the connection.
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

    /// Copies a file to `to`, and returns its size. The copy resumes after a connection failure. `progress`
    /// receives the bytes copied so far.
    ///
    /// # Errors
    ///
    /// If the file does not exist, cannot be read or changes meanwhile, retries are exhausted, or `to` fails.
    pub fn download(
        &self,
        path: &str,
        to: &mut dyn Write,
        progress: &mut dyn FnMut(u64),
    ) -> Result<u64, StoreError> {
        let info = self.require_info(path)?;
        self.copy(path, &info, 0, to, progress)?;
        Ok(info.bytes)
    }

    /// Stores the `bytes` bytes of `from` as a file, atomically. An existing file is replaced.
    ///
    /// # Errors
    ///
    /// If the store cannot be written, or `from` has fewer or more bytes.
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

    /// Size and version of a file, or `None` if it does not exist.
    pub(crate) fn info(&self, path: &str) -> Result<Option<FileInfo>, StoreError> {
        self.check(path)?;
        self.retry(&self.file(path), |_| self.backend().info(path))
    }

    /// Size and version of a file, or an error if it does not exist.
    pub(crate) fn require_info(&self, path: &str) -> Result<FileInfo, StoreError> {
        self.info(path)?.ok_or_else(|| StoreError::NotFound { file: self.file(path) })
    }

    /// Copies the file of size and version `info` from byte `done` to its end. `progress` receives the bytes
    /// copied so far.
    pub(crate) fn copy(
        &self,
        path: &str,
        info: &FileInfo,
        mut done: u64,
        to: &mut dyn Write,
        progress: &mut dyn FnMut(u64),
    ) -> Result<(), StoreError> {
        let file = self.file(path);
        let mut block =
            vec![0; READ_BLOCK_BYTES.min(usize::try_from(info.bytes).unwrap_or(READ_BLOCK_BYTES).max(1))];
        let mut is_retry = false;
        self.retry(&file, |retries| {
            if done == info.bytes {
                return Ok(());
            }
            // The file may have been replaced after the connection failed.
            if is_retry && self.backend().info(path)?.as_ref() != Some(info) {
                return Err(self.changed(path).into());
            }
            is_retry = true;
            let mut from = self.backend().open(path, done, info.bytes - done)?;
            while done < info.bytes {
                let max = usize::try_from(info.bytes - done).unwrap_or(block.len()).min(block.len());
                let count = match from.read(&mut block[..max]) {
                    Ok(0) if self.local_root().is_some() => return Err(self.changed(path).into()),
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
                to.write_all(&block[..count]).map_err(|cause| StoreError::StreamIo {
                    file: file.clone(),
                    action: "cannot write the destination",
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
                Err(Failure::Transient(cause)) => {
                    retries.wait().map_err(|end| StoreError::RetriesExhausted {
                        file: file.to_owned(),
                        cause,
                        attempts: end.attempts,
                        waited: end.waited,
                    })?;
                }
            }
        }
    }

    fn backend(&self) -> &dyn StoreBackend {
        match &self.0.kind {
            StoreKind::Local(local) => local,
            StoreKind::Remote(remote) => &**remote,
        }
    }

    pub(crate) fn retry_policy(&self) -> RetryPolicy {
        self.0.retry_policy
    }

    /// The failure of a read: transient if the store is remote.
    fn broken(&self, path: &str, error: io::Error) -> Failure {
        match self.local_root() {
            Some(root) => local_io(&root.join(path), "cannot be read")(error).into(),
            None => Failure::from_io(error),
        }
    }

    fn changed(&self, path: &str) -> StoreError {
        let problem = "the file changed during the read; try again".to_owned();
        StoreError::Unexpected { file: self.file(path), problem }
    }

    /// The address of a file without secrets.
    pub(crate) fn file(&self, path: &str) -> String {
        file_address(self.address(), path)
    }

    fn check(&self, path: &str) -> Result<(), StoreError> {
        path_problem(path).map_or(Ok(()), |problem| {
            Err(StoreError::Path { address: self.address().to_owned(), path: path.to_owned(), problem })
        })
    }
}
