//! A folder somewhere and its files.

use std::fmt;
use std::io::{self, Read, Write};
use std::path::Path;
use std::sync::Arc;

use crate::address::{Address, path_problem};
use crate::error::disk;
use crate::http::Http;
use crate::local::Local;
#[cfg(feature = "objects")]
use crate::objects;
use crate::patience::Struggle;
use crate::place::{About, Failure, Place};
use crate::secret::Secrets;
use crate::sftp::Sftp;
use crate::web::Web;
use crate::{Patience, StoreError};

/// Bytes that are read from a store at a time.
const BLOCK: usize = 1 << 18;

/// How many redirects of a web server are followed.
const MOST_REDIRECTS: u32 = 10;

/// A folder of files somewhere: on this machine or behind an address. Cloning is cheap and gives the same
/// folder.
#[derive(Clone)]
pub struct Store(Arc<Inner>);

struct Inner {
    address: String,
    kind: Kind,
    patience: Patience,
}

enum Kind {
    Local(Local),
    Remote(Box<dyn Place>),
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
        Self::open_with(address, Patience::default())
    }

    /// As [`open`](Self::open), with another patience than five minutes.
    ///
    /// # Errors
    ///
    /// As [`open`](Self::open).
    pub fn open_with(address: &str, patience: Patience) -> Result<Self, StoreError> {
        let (address, kind, patience) = match Address::parse(address)? {
            Address::Local(path) => {
                let about = path.metadata().map_err(disk(&path, "cannot be read"))?;
                if !about.is_dir() {
                    let cause = io::Error::new(io::ErrorKind::NotADirectory, "it is not a folder");
                    return Err(disk(&path, "cannot be read")(cause));
                }
                // A disk that fails does not get better while one waits.
                let patience = Patience { total: Patience::NONE.total, ..patience };
                (path.display().to_string(), Kind::Local(Local::new(path)), patience)
            }
            Address::Http { shown, base, query } => {
                let mut secrets = Secrets::default();
                secrets.add_query(query.as_deref().unwrap_or_default());
                let http = Http::new(Web::new(patience, secrets, MOST_REDIRECTS), shown.clone(), base, query);
                (shown, Kind::Remote(Box::new(http)), patience)
            }
            Address::Sftp { login, root } => {
                let sftp = Sftp::new(login, root, address.to_owned(), patience);
                (address.to_owned(), Kind::Remote(Box::new(sftp)), patience)
            }
            #[cfg(not(feature = "objects"))]
            Address::Objects { .. } => {
                let problem = "this program was built without stores of objects; build it with `make build`";
                return Err(StoreError::Unsupported { address: address.to_owned(), problem });
            }
            #[cfg(feature = "objects")]
            Address::Objects { service, container, prefix } => {
                let objects = objects::open(service, &container, &prefix, address.to_owned(), patience)?;
                (address.to_owned(), Kind::Remote(Box::new(objects)), patience)
            }
        };
        Ok(Self(Arc::new(Inner { address, kind, patience })))
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
        let mut entries = self.persist(self.address(), |_| {
            let mut entries = Vec::new();
            self.place().list(prefix, &mut |entry| entries.push(entry))?;
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
        Ok(self.about(path)?.map(|about| about.bytes))
    }

    /// A small file, whole.
    ///
    /// # Errors
    ///
    /// [`StoreError::TooLarge`] where it has more than `most` bytes; as [`download`](Self::download).
    pub fn read(&self, path: &str, most: u64) -> Result<Vec<u8>, StoreError> {
        let about = self.expect(path)?;
        if about.bytes > most {
            return Err(StoreError::TooLarge { file: self.file(path), bytes: about.bytes, most });
        }
        // The size is the other side's word: memory is taken as the bytes come.
        let mut content = Vec::new();
        self.copy(path, &about, 0, &mut content, &mut |_| {})?;
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
        self.persist(&file, |struggle| {
            let missing = (out.len() - filled) as u64;
            if missing == 0 {
                return Ok(());
            }
            let mut from = self.place().open(path, end - missing, missing)?;
            while filled < out.len() {
                match from.read(&mut out[filled..]) {
                    Ok(0) => {
                        // Did it end, or did the connection?
                        let bytes = self.place().about(path)?.map_or(0, |about| about.bytes);
                        return Err(if bytes < end {
                            StoreError::TooShort { file: self.file(path), offset, end, bytes }.into()
                        } else {
                            Failure::Later(format!("the connection ended {} bytes early", out.len() - filled))
                        });
                    }
                    Ok(count) => {
                        filled += count;
                        struggle.progress();
                    }
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                    Err(error) => return Err(self.broken(path, error)),
                }
            }
            Ok(())
        })
    }

    /// Copies a file to `to` in pieces, and returns its size. Where the connection breaks, it goes on at the
    /// byte it had reached. `progress` is told the bytes copied so far.
    ///
    /// # Errors
    ///
    /// [`StoreError`]: there is no such file, it may not be read, patience is at its end, it changed while it
    /// was read, `to` failed.
    pub fn download(
        &self,
        path: &str,
        to: &mut dyn Write,
        progress: &mut dyn FnMut(u64),
    ) -> Result<u64, StoreError> {
        let about = self.expect(path)?;
        self.copy(path, &about, 0, to, progress)?;
        Ok(about.bytes)
    }

    /// Stores the `bytes` bytes that `from` has as a file, whole or not at all; one that is there is
    /// replaced.
    ///
    /// # Errors
    ///
    /// [`StoreError`]: the store cannot be written, `from` has fewer or more bytes.
    pub fn upload(&self, path: &str, from: &mut dyn Read, bytes: u64) -> Result<(), StoreError> {
        self.check(path)?;
        match self.place().write(path, from, bytes) {
            Ok(()) => Ok(()),
            Err(Failure::Never(error)) => Err(error),
            Err(Failure::Later(cause)) => Err(StoreError::Refused {
                file: self.file(path),
                cause,
                advice: "try again later".to_owned(),
            }),
        }
    }

    /// What is known of a file; `None` where there is none.
    pub(crate) fn about(&self, path: &str) -> Result<Option<About>, StoreError> {
        self.check(path)?;
        self.persist(&self.file(path), |_| self.place().about(path))
    }

    /// What is known of a file that must be there.
    pub(crate) fn expect(&self, path: &str) -> Result<About, StoreError> {
        self.about(path)?.ok_or_else(|| StoreError::NotFound { file: self.file(path) })
    }

    /// The bytes of a file from `done` on, all that `about` announced. `progress` is told the bytes done so
    /// far.
    pub(crate) fn copy(
        &self,
        path: &str,
        about: &About,
        mut done: u64,
        to: &mut dyn Write,
        progress: &mut dyn FnMut(u64),
    ) -> Result<(), StoreError> {
        let file = self.file(path);
        let mut block = vec![0; BLOCK.min(usize::try_from(about.bytes).unwrap_or(BLOCK).max(1))];
        let mut broken = false;
        self.persist(&file, |struggle| {
            if done == about.bytes {
                return Ok(());
            }
            // What is there now may be another file than the one that was begun.
            if broken && self.place().about(path)?.as_ref() != Some(about) {
                return Err(self.changed(path).into());
            }
            broken = true;
            let mut from = self.place().open(path, done, about.bytes - done)?;
            while done < about.bytes {
                let most = usize::try_from(about.bytes - done).unwrap_or(block.len()).min(block.len());
                let count = match from.read(&mut block[..most]) {
                    Ok(0) if self.is_local().is_some() => return Err(self.changed(path).into()),
                    Ok(0) => {
                        let bytes = about.bytes;
                        return Err(Failure::Later(format!(
                            "the connection ended after {done} of {bytes} bytes"
                        )));
                    }
                    Ok(count) => count,
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                    Err(error) => return Err(self.broken(path, error)),
                };
                to.write_all(&block[..count]).map_err(|cause| StoreError::Stream {
                    file: file.clone(),
                    action: "what it is copied to cannot be written",
                    cause,
                })?;
                done += count as u64;
                struggle.progress();
                progress(done);
            }
            Ok(())
        })
    }

    /// Tries until it works, fails for good, or patience is at its end.
    fn persist<T>(
        &self,
        file: &str,
        mut attempt: impl FnMut(&mut Struggle) -> Result<T, Failure>,
    ) -> Result<T, StoreError> {
        let mut struggle = Struggle::new(self.0.patience);
        loop {
            match attempt(&mut struggle) {
                Ok(value) => return Ok(value),
                Err(Failure::Never(error)) => return Err(error),
                Err(Failure::Later(cause)) => struggle.wait().map_err(|end| StoreError::GaveUp {
                    file: file.to_owned(),
                    cause,
                    tries: end.tries,
                    waited: end.waited,
                })?,
            }
        }
    }

    fn place(&self) -> &dyn Place {
        match &self.0.kind {
            Kind::Local(local) => local,
            Kind::Remote(remote) => &**remote,
        }
    }

    pub(crate) fn patience(&self) -> Patience {
        self.0.patience
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
