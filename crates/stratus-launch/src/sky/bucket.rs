//! The bucket of a target, with uploaded files and saved runs.

use crate::fetch::{self, PendingFile};
use crate::{Error, FetchStats, FileSet, Result};
use sha2::{Digest, Sha256};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use stratus_base::printable;
use stratus_store::{Store, StoreError};

/// The maximum size of a small text file.
const MAX_SMALL_FILE_BYTES: u64 = 64 << 10;
/// The maximum size of a list of a run's files.
const MAX_FILE_LIST_BYTES: u64 = 32 << 20;
/// The number of bytes transferred to measure the bandwidth of a connection.
const PROBE_BYTES: u64 = 4 << 20;
/// Two alternating copies of a run, so that one is always complete.
const SAVE_SLOTS: [&str; 2] = ["run.0", "run.1"];

pub(super) struct Bucket {
    name: String,
    store: Store,
}

/// A saved copy of a run.
struct SavedRun {
    count: u64,
    slot: &'static str,
    /// The SHA-256 of each file by its path.
    hashes: HashMap<String, String>,
}

/// A reader that hashes the bytes read.
struct HashingReader<R> {
    from: R,
    hash: Sha256,
}

impl<R: Read> Read for HashingReader<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.from.read(buffer)?;
        self.hash.update(&buffer[..count]);
        Ok(count)
    }
}

impl Bucket {
    pub(super) fn open(name: &str, address: &str) -> Result<Self> {
        let path = Path::new(address);
        if path.is_absolute() {
            fs::create_dir_all(path).map_err(Error::file("create", path))?;
        }
        let failed = |error: StoreError| bucket_error(name, &error);
        Ok(Self { name: name.to_owned(), store: Store::open(address).map_err(failed)? })
    }

    fn failed(&self, error: &StoreError) -> Error {
        bucket_error(&self.name, error)
    }

    /// The sizes of the files below a folder, by path.
    fn list(&self, folder: &str) -> Result<BTreeMap<String, u64>> {
        // A local folder may not exist yet.
        if self.store.local_root().is_some_and(|root| !root.join(folder).is_dir()) {
            return Ok(BTreeMap::new());
        }
        let entries = self.store.list(&format!("{folder}/")).map_err(|error| self.failed(&error))?;
        Ok(entries.into_iter().map(|entry| (entry.path, entry.bytes)).collect())
    }

    fn read(&self, path: &str, max_bytes: u64) -> Result<Option<String>> {
        let failed = |error: StoreError| self.failed(&error);
        if self.store.size(path).map_err(failed)?.is_none() {
            return Ok(None);
        }
        let bytes = self.store.read(path, max_bytes).map_err(failed)?;
        Ok(Some(String::from_utf8_lossy(&bytes).into_owned()))
    }

    /// Reads a small text file; `None` if it does not exist.
    pub(super) fn text(&self, path: &str) -> Result<Option<String>> {
        self.read(path, MAX_SMALL_FILE_BYTES)
    }

    /// Reads a file that contains a number.
    pub(super) fn number(&self, path: &str) -> Result<Option<u64>> {
        Ok(self.text(path)?.and_then(|text| text.trim().parse().ok()))
    }

    pub(super) fn write(&self, path: &str, text: &str) -> Result<()> {
        let written = self.store.upload(path, &mut text.as_bytes(), text.len() as u64);
        written.map_err(|error| self.failed(&error))
    }

    /// Reads the first bytes of a file to measure the connection and returns their number.
    pub(super) fn first_bytes(&self, path: &str) -> Result<u64> {
        let failed = |error: StoreError| self.failed(&error);
        let bytes = self.store.size(path).map_err(failed)?.unwrap_or(0).min(PROBE_BYTES);
        let mut buffer = vec![0; bytes as usize];
        self.store.read_at(path, 0, &mut buffer).map_err(failed)?;
        Ok(bytes)
    }

    /// Uploads missing files and returns their number and size. An existing file of the same size is
    /// identical, since the folder is named by its content and uploads are atomic.
    pub(super) fn upload_missing(&self, file_sets: &[&FileSet]) -> Result<(usize, u64)> {
        let (mut files, mut bytes) = (0, 0);
        for file_set in file_sets {
            let folder = file_set.remote_folder();
            let sizes = self.list(&folder)?;
            for item in &file_set.files {
                let path = format!("{folder}/{}", item.path);
                if sizes.get(&path) == Some(&item.size) {
                    continue;
                }
                let file = File::open(&item.source).map_err(Error::file("read", &item.source))?;
                let mut from = HashingReader { from: file.take(item.size), hash: Sha256::new() };
                let sent = self.store.upload(&path, &mut from, item.size);
                sent.map_err(|error| self.failed(&error))?;
                if stratus_base::checksum::hex(&from.hash.finalize()) != item.hash {
                    // An empty file is uploaded again by the next launch.
                    self.write(&path, "")?;
                    let problem =
                        format!("{}: {} changed during the upload", self.name, item.source.display());
                    return Err(Error::target(
                        problem,
                        "do not change the file during the upload, and launch again",
                    ));
                }
                files += 1;
                bytes += item.size;
            }
        }
        Ok((files, bytes))
    }

    /// The saved copies of a run, newest first.
    fn saved_runs(&self, repetition: &str) -> Result<Vec<SavedRun>> {
        let mut all = Vec::new();
        for slot in SAVE_SLOTS {
            let Some(text) = self.read(&format!("{repetition}/{slot}.list"), MAX_FILE_LIST_BYTES)? else {
                continue;
            };
            let mut lines = text.lines();
            let Some(count) = lines.next().and_then(|line| line.trim().parse().ok()) else { continue };
            let mut hashes = HashMap::new();
            for line in lines {
                // The format of sha256sum; a line with an escaped name starts with a backslash.
                let found = line.split_once("  ").filter(|(hash, _)| hash.len() == 64);
                let Some((hash, path)) = found else {
                    let problem =
                        format!("{}: invalid line in the file list of a run: {}", self.name, printable(line));
                    return Err(Error::target(problem, "check the run in the bucket"));
                };
                hashes.insert(path.strip_prefix("./").unwrap_or(path).to_owned(), hash.to_owned());
            }
            all.push(SavedRun { count, slot, hashes });
        }
        all.sort_by_key(|saved| std::cmp::Reverse(saved.count));
        Ok(all)
    }

    /// Fetches the new files of the last saved copy of a repetition's run.
    pub(super) fn fetch(&self, repetition: &str, into: &Path) -> Result<FetchStats> {
        let mut fetched = FetchStats::default();
        let mut newest = None;
        for saved in self.saved_runs(repetition)? {
            let folder = format!("{repetition}/{}", saved.slot);
            let sizes = self.list(&folder)?;
            let size = |path: &String| sizes.get(&format!("{folder}/{path}"));
            // If a listed file is missing, this copy is incomplete, and the older one is used.
            let lines: Option<Vec<String>> =
                saved.hashes.keys().map(|path| Some(format!("{} {path}", size(path)?))).collect();
            if let Some(mut lines) = lines {
                lines.sort();
                newest = Some((folder, saved.hashes, lines.join("\n")));
                break;
            }
            fetched.changing += 1;
        }
        let Some((folder, hashes, list)) = newest else { return Ok(fetched) };
        fetched.changing = 0;
        let mut files = fetch::parse_file_list(&list, into, &self.name)?;
        let remote_paths: HashSet<PathBuf> = files.iter().map(|file| file.destination.clone()).collect();
        files.retain(|file| {
            let same_size = fs::metadata(&file.destination).is_ok_and(|local| local.len() == file.size);
            !same_size
                || fetch::hash_prefix(&file.destination, file.size).ok().as_ref() != hashes.get(&file.path)
        });
        fetch::check_local_space(into, files.iter().map(|file| file.size).sum(), &self.name)?;
        files.sort_by_key(|file| fetch::fetch_order(&file.path));
        for file in &files {
            self.download(&folder, file, hashes.get(&file.path), &mut fetched)?;
        }
        if fetched.changing == 0 {
            fetch::remove_old_files(into, &remote_paths)?;
        }
        Ok(fetched)
    }

    fn download(
        &self,
        folder: &str,
        file: &PendingFile,
        hash: Option<&String>,
        fetched: &mut FetchStats,
    ) -> Result<()> {
        let part = file.partial_path();
        if let Some(folder) = part.parent() {
            fs::create_dir_all(folder).map_err(Error::file("make", folder))?;
        }
        let mut out = File::create(&part).map_err(Error::file("write", &part))?;
        let path = format!("{folder}/{}", file.path);
        let bytes = self.store.download(&path, &mut out, &mut |_| {}).map_err(|error| self.failed(&error))?;
        out.sync_all().map_err(Error::file("write", &part))?;
        if fetch::hash_prefix(&part, bytes).ok().as_ref() != hash {
            // The file is being replaced in the bucket.
            fetched.changing += 1;
            return fs::remove_file(&part).map_err(Error::file("remove", &part));
        }
        fs::rename(&part, &file.destination).map_err(Error::file("write", &file.destination))?;
        fetched.files += 1;
        fetched.bytes += bytes;
        Ok(())
    }
}

fn bucket_error(name: &str, error: &StoreError) -> Error {
    Error::target(
        format!("{name}: cannot access the bucket: {}", printable(&error.to_string())),
        "set credentials as for the service's own tools: see docs/environment.md",
    )
}
