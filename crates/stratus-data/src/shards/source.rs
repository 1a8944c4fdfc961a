//! Reading shards from a folder, or from a remote store.

use std::fs::{self, File};
use std::io::{self, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use stratus_store::{Cache, RetryPolicy, Store, StoreError, is_address};

use super::index::{INDEX_FILE, MAX_INDEX_BYTES, MemberRange, Shard, ShardIndex};
use super::remote::RemoteShards;
use super::scan::digest;
use crate::archive::{ReadAt, find_path};
use crate::datasets::entry::OpenOptions;
use crate::datasets::split::Split;
use crate::decode::MAX_IMAGE_FILE_BYTES;
use crate::error::DataError;

/// The maximum number of open shards of a folder: a few windows of the loader.
const MAX_OPEN_SHARDS: usize = 64;

/// A folder or a store for shards.
#[derive(Debug)]
pub(crate) enum ShardLocation {
    /// A local folder.
    Folder(PathBuf),
    /// A remote store.
    Store(Store),
}

impl ShardLocation {
    /// Parses a path or an address.
    pub(crate) fn parse(root: &Path, policy: RetryPolicy) -> Result<Self, DataError> {
        let Some(address) = root.to_str().filter(|text| is_address(text)) else {
            return Ok(Self::Folder(root.to_owned()));
        };
        let store = Store::open_with_policy(address, policy)?;
        Ok(match store.local_root() {
            Some(folder) => Self::Folder(folder.to_owned()),
            None => Self::Store(store),
        })
    }

    /// The path or address for messages, without secrets.
    pub(crate) fn display_path(&self) -> PathBuf {
        match self {
            Self::Folder(folder) => folder.clone(),
            Self::Store(store) => PathBuf::from(store.address()),
        }
    }

    /// Reads the index; `None` if there is none.
    pub(crate) fn index(&self) -> Result<Option<ShardIndex>, DataError> {
        match self {
            Self::Folder(folder) => ShardIndex::read(folder),
            Self::Store(store) => match store.read(INDEX_FILE, MAX_INDEX_BYTES) {
                Ok(text) => ShardIndex::parse(&text, &self.display_path().join(INDEX_FILE)).map(Some),
                Err(StoreError::NotFound { .. }) => Ok(None),
                Err(error) => Err(error.into()),
            },
        }
    }
}

/// The shards of a split.
#[derive(Debug)]
pub(crate) struct ShardSource {
    shards: Arc<[Shard]>,
    files: ShardFiles,
}

#[derive(Debug)]
enum ShardFiles {
    /// In a local folder.
    Folder(Folder),
    /// In a remote store.
    Remote(RemoteShards),
}

/// A folder of shards.
#[derive(Debug)]
struct Folder {
    path: PathBuf,
    /// Open shards, the most recently used last.
    open: Mutex<Vec<(usize, Arc<Mutex<File>>)>>,
}

impl Folder {
    /// Reads at an offset of a shard.
    fn read_at(&self, number: usize, name: &str, offset: u64, out: &mut [u8]) -> io::Result<()> {
        let file = self.file(number, name)?;
        let mut file = lock(&file);
        file.seek(SeekFrom::Start(offset))?;
        file.read_exact(out)
    }

    fn file(&self, number: usize, name: &str) -> io::Result<Arc<Mutex<File>>> {
        let mut open = lock(&self.open);
        let entry = match open.iter().position(|(other, _)| *other == number) {
            Some(at) => open.remove(at),
            None => {
                if open.len() == MAX_OPEN_SHARDS {
                    open.remove(0);
                }
                (number, Arc::new(Mutex::new(File::open(self.path.join(name))?)))
            }
        };
        let file = Arc::clone(&entry.1);
        open.push(entry);
        Ok(file)
    }
}

impl ShardSource {
    /// The shards of a split. While training, `window` of them are read at a time.
    pub(crate) fn new(
        location: ShardLocation,
        shards: Vec<Shard>,
        split: Split,
        window: usize,
        options: &OpenOptions,
    ) -> Result<Self, DataError> {
        let shards: Arc<[Shard]> = shards.into();
        let files = match location {
            ShardLocation::Folder(path) => ShardFiles::Folder(Folder { path, open: Mutex::new(Vec::new()) }),
            ShardLocation::Store(store) => {
                let Some(folder) = &options.cache else {
                    let problem =
                        "is not set, and there is no default cache folder; set a folder for copies of shards";
                    return Err(DataError::InvalidOption { key: "data.cache", problem: problem.to_owned() });
                };
                let cache = Cache::new(folder, options.cache_bytes)?;
                let cache_bytes = options.cache_bytes;
                ShardFiles::Remote(RemoteShards::new(
                    store,
                    cache,
                    cache_bytes,
                    Arc::clone(&shards),
                    split,
                    window,
                )?)
            }
        };
        Ok(Self { shards, files })
    }

    /// The shards.
    pub(crate) fn shards(&self) -> &[Shard] {
        &self.shards
    }

    /// Announces the shards that are read now, and the next ones.
    pub(crate) fn announce(&self, now: &[u32], next: &[u32]) {
        if let ShardFiles::Remote(remote) = &self.files {
            remote.announce(now, next);
        }
    }

    /// The name of a shard for messages: its path or address.
    pub(crate) fn name(&self, shard: &Shard) -> String {
        self.path(shard).display().to_string()
    }

    fn path(&self, shard: &Shard) -> PathBuf {
        match &self.files {
            ShardFiles::Folder(folder) => folder.path.join(&shard.name),
            ShardFiles::Remote(remote) => {
                PathBuf::from(format!("{}/{}", remote.store().address().trim_end_matches('/'), shard.name))
            }
        }
    }

    /// The file sizes of the shards, if they are known without reading them.
    pub(crate) fn lengths(&self) -> Result<Option<Vec<u64>>, DataError> {
        match &self.files {
            ShardFiles::Folder(folder) => {
                let length = |shard: &Shard| {
                    let path = folder.path.join(&shard.name);
                    let metadata = fs::metadata(&path);
                    metadata
                        .map(|metadata| metadata.len())
                        .map_err(|cause| DataError::Unreadable { path, cause })
                };
                self.shards.iter().map(length).collect::<Result<_, _>>().map(Some)
            }
            ShardFiles::Remote(remote) => {
                let entries = match remote.store().list("") {
                    Ok(entries) => entries,
                    // The sizes are checked while fetching instead.
                    Err(StoreError::Unsupported { .. }) => return Ok(None),
                    Err(error) => return Err(error.into()),
                };
                let length = |shard: &Shard| {
                    let found = entries.binary_search_by(|entry| entry.path.cmp(&shard.name));
                    let found = found.map_err(|_| StoreError::NotFound { file: self.name(shard) })?;
                    Ok(entries[found].bytes)
                };
                self.shards.iter().map(length).collect::<Result<_, DataError>>().map(Some)
            }
        }
    }

    /// Returns whether the shards are remote, so that only verified copies are read.
    pub(crate) fn is_remote(&self) -> bool {
        matches!(self.files, ShardFiles::Remote(_))
    }

    /// Length and SHA-256 of a shard. Remote shards were verified when they were fetched.
    pub(crate) fn digest(&self, number: usize) -> Result<(u64, String), DataError> {
        let shard = &self.shards[number];
        match &self.files {
            ShardFiles::Folder(folder) => digest(&folder.path.join(&shard.name)),
            ShardFiles::Remote(remote) => remote.copy(number).map(|_| (shard.bytes, shard.sha256.clone())),
        }
    }

    /// Reads a file of shard `number` into `out`.
    pub(crate) fn read(&self, number: usize, range: MemberRange, out: &mut Vec<u8>) -> Result<(), DataError> {
        let path = || self.path(&self.shards[number]);
        if u64::from(range.1) > MAX_IMAGE_FILE_BYTES {
            let problem = format!("a member has {} bytes, more than {MAX_IMAGE_FILE_BYTES}", range.1);
            return Err(DataError::Invalid { path: path(), problem });
        }
        let shard = &self.shards[number];
        if let Some(map) = shard.sparse_map(range) {
            map.check_proportion(u64::from(range.1))
                .map_err(|problem| DataError::Invalid { path: path(), problem })?;
        }
        out.resize(range.1 as usize, 0);
        let mut read = |archive: ReadAt<'_>| match shard.sparse_map(range) {
            Some(map) => map.read_at(archive, 0, out),
            None => archive(range.offset(), out),
        };
        let read = match &self.files {
            ShardFiles::Folder(folder) => {
                read(&mut |offset, out| folder.read_at(number, &shard.name, offset, out))
            }
            ShardFiles::Remote(remote) => {
                let copy = remote.copy(number)?;
                read(&mut |offset, out| copy.read_at(offset, out))
            }
        };
        read.map_err(|cause| DataError::Unreadable { path: path(), cause })
    }

    /// The name of a member of shard `number`, if it can be read without fetching.
    pub(crate) fn member(&self, number: usize, range: MemberRange) -> Option<String> {
        let Shard { name, bytes, .. } = &self.shards[number];
        let offset = range.offset();
        match &self.files {
            ShardFiles::Folder(folder) => {
                find_path(&mut |at, out| folder.read_at(number, name, at, out), *bytes, offset)
            }
            ShardFiles::Remote(remote) => {
                let copy = remote.locked(number)?;
                find_path(&mut |at, out| copy.read_at(at, out), *bytes, offset)
            }
        }
    }
}

/// Ignores poisoning: every read seeks first.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
