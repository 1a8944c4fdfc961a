//! Writing packed shards to a folder, or to a store, to which each complete shard is uploaded.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::process;

use stratus_store::{RetryPolicy, Store};

use super::index::{INDEX_FILE, Shard, ShardIndex};
use super::names::UNFINISHED_MARKER;
use super::scan::shard_names;
use super::source::ShardLocation;
use crate::error::DataError;

/// The destination of packed shards.
pub(super) enum PackTarget {
    /// A local folder, with a marker file while packing is unfinished.
    Folder(PathBuf),
    /// A remote store. A shard is staged locally until it is uploaded.
    Store { store: Store, staging: Staging },
}

/// A temporary folder, deleted on drop.
pub(super) struct Staging(PathBuf);

impl Drop for Staging {
    fn drop(&mut self) {
        // A leftover folder is harmless.
        let _ = fs::remove_dir_all(&self.0);
    }
}

impl PackTarget {
    /// Prepares the destination. In a folder, shards to be replaced are deleted, and the marker is created.
    /// For a store, shards are staged below `staging`.
    pub(super) fn prepare(root: &Path, overwrite: bool, staging: &Path) -> Result<Self, DataError> {
        match ShardLocation::parse(root, RetryPolicy::default())? {
            ShardLocation::Folder(folder) => {
                prepare_folder(&folder, overwrite)?;
                Ok(Self::Folder(folder))
            }
            ShardLocation::Store(store) => {
                if !overwrite && store.size(INDEX_FILE)?.is_some() {
                    let found = format!("already contains an `{INDEX_FILE}` of shards");
                    return Err(DataError::DestinationInUse { path: PathBuf::from(store.address()), found });
                }
                let folder = staging.join(format!("packing-{}", process::id()));
                fs::create_dir_all(&folder).map_err(unwritable(&folder))?;
                Ok(Self::Store { store, staging: Staging(folder) })
            }
        }
    }

    /// The folder to write shards to.
    pub(super) fn folder(&self) -> &Path {
        match self {
            Self::Folder(folder) => folder,
            Self::Store { staging, .. } => &staging.0,
        }
    }

    /// Uploads a complete shard, if the destination is a store.
    pub(super) fn upload_shard(&self, shard: &Shard) -> Result<(), DataError> {
        let Self::Store { store, staging } = self else { return Ok(()) };
        let path = staging.0.join(&shard.name);
        let mut file =
            File::open(&path).map_err(|cause| DataError::Unreadable { path: path.clone(), cause })?;
        store.upload(&shard.name, &mut file, shard.bytes)?;
        fs::remove_file(&path).map_err(unwritable(&path))
    }

    /// Writes the index, which completes packing.
    pub(super) fn finish(self, index: &ShardIndex) -> Result<(), DataError> {
        match &self {
            Self::Folder(folder) => {
                index.write(folder)?;
                let marker = folder.join(UNFINISHED_MARKER);
                fs::remove_file(&marker).map_err(unwritable(&marker))
            }
            Self::Store { store, staging } => {
                let text = index.text().map_err(unwritable(&staging.0))?;
                Ok(store.upload(INDEX_FILE, &mut text.as_slice(), text.len() as u64)?)
            }
        }
    }
}

fn unwritable(path: &Path) -> impl Fn(io::Error) -> DataError + '_ {
    |cause| DataError::Unwritable { path: path.to_owned(), cause }
}

fn prepare_folder(folder: &Path, overwrite: bool) -> Result<(), DataError> {
    fs::create_dir_all(folder).map_err(unwritable(folder))?;
    let (index, marker) = (folder.join(INDEX_FILE), folder.join(UNFINISHED_MARKER));
    let old = shard_names(folder)?;
    if !overwrite {
        let occupied = |found: String| Err(DataError::DestinationInUse { path: folder.to_owned(), found });
        if index.exists() {
            return occupied(format!("already contains an `{INDEX_FILE}` of shards"));
        }
        // Shards of interrupted packing may be replaced.
        if let Some(shard) = old.first().filter(|_| !marker.exists()) {
            return occupied(format!("already contains shards such as `{shard}`"));
        }
    }
    let begin = || {
        File::create(&marker)?.sync_all()?;
        if index.exists() {
            fs::remove_file(&index)?;
        }
        old.iter().try_for_each(|name| fs::remove_file(folder.join(name)))
    };
    begin().map_err(unwritable(folder))
}
