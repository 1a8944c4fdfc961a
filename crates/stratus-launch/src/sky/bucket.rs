//! The bucket of a target: what is brought lies there, and what comes back.

use crate::fetch::{self, Wanted};
use crate::{Error, Fetched, Parcel, Result};
use sha2::{Digest, Sha256};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use stratus_base::printable;
use stratus_store::{Store, StoreError};

/// The most bytes of a small text.
const TEXT: u64 = 64 << 10;
/// The most bytes of a list of a run's files.
const LIST: u64 = 32 << 20;
/// So many bytes measure a connection.
const MEASURED: u64 = 4 << 20;
/// The places by turns in which a run is kept.
const PLACES: [&str; 2] = ["run.0", "run.1"];

pub(super) struct Bucket {
    name: String,
    store: Store,
}

/// A run as it was kept once.
struct Kept {
    count: u64,
    place: &'static str,
    /// The SHA-256 of each file by its path.
    hashes: HashMap<String, String>,
}

/// Hashes what is read through it.
struct Hashed<R> {
    from: R,
    hash: Sha256,
}

impl<R: Read> Read for Hashed<R> {
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
            fs::create_dir_all(path).map_err(Error::file("make", path))?;
        }
        let failed = |error: StoreError| wrong(name, &error);
        Ok(Self { name: name.to_owned(), store: Store::open(address).map_err(failed)? })
    }

    fn failed(&self, error: &StoreError) -> Error {
        wrong(&self.name, error)
    }

    /// The files below a folder by their paths, with their sizes.
    fn list(&self, folder: &str) -> Result<BTreeMap<String, u64>> {
        // A folder of a disk may not be there yet.
        if self.store.is_local().is_some_and(|root| !root.join(folder).is_dir()) {
            return Ok(BTreeMap::new());
        }
        let entries = self.store.list(&format!("{folder}/")).map_err(|error| self.failed(&error))?;
        Ok(entries.into_iter().map(|entry| (entry.path, entry.bytes)).collect())
    }

    fn read(&self, path: &str, most: u64) -> Result<Option<String>> {
        let failed = |error: StoreError| self.failed(&error);
        if self.store.bytes(path).map_err(failed)?.is_none() {
            return Ok(None);
        }
        let bytes = self.store.read(path, most).map_err(failed)?;
        Ok(Some(String::from_utf8_lossy(&bytes).into_owned()))
    }

    /// A small text; none where there is none.
    pub(super) fn text(&self, path: &str) -> Result<Option<String>> {
        self.read(path, TEXT)
    }

    /// A number that stands alone in a file.
    pub(super) fn number(&self, path: &str) -> Result<Option<u64>> {
        Ok(self.text(path)?.and_then(|text| text.trim().parse().ok()))
    }

    pub(super) fn write(&self, path: &str, text: &str) -> Result<()> {
        let written = self.store.upload(path, &mut text.as_bytes(), text.len() as u64);
        written.map_err(|error| self.failed(&error))
    }

    /// Reads the first bytes of a file, as many as measure a connection; how many there were.
    pub(super) fn first_bytes(&self, path: &str) -> Result<u64> {
        let failed = |error: StoreError| self.failed(&error);
        let bytes = self.store.bytes(path).map_err(failed)?.unwrap_or(0).min(MEASURED);
        let mut buffer = vec![0; bytes as usize];
        self.store.read_at(path, 0, &mut buffer).map_err(failed)?;
        Ok(bytes)
    }

    /// Brings the files that are not there: how many, how many bytes. Their folder is named by what is in
    /// them, and a file appears whole: one that is there with its size is the same.
    pub(super) fn bring(&self, parcels: &[&Parcel]) -> Result<(usize, u64)> {
        let (mut files, mut bytes) = (0, 0);
        for parcel in parcels {
            let folder = parcel.folder();
            let there = self.list(&folder)?;
            for item in &parcel.items {
                let path = format!("{folder}/{}", item.path);
                if there.get(&path) == Some(&item.size) {
                    continue;
                }
                let file = File::open(&item.source).map_err(Error::file("read", &item.source))?;
                let mut from = Hashed { from: file.take(item.size), hash: Sha256::new() };
                let sent = self.store.upload(&path, &mut from, item.size);
                sent.map_err(|error| self.failed(&error))?;
                if stratus_base::checksum::hex(&from.hash.finalize()) != item.hash {
                    // So that the next launch sends it.
                    self.write(&path, "")?;
                    let problem =
                        format!("{}: {} changed while it was sent", self.name, item.source.display());
                    return Err(Error::target(problem, "leave the file as it is, and launch again"));
                }
                files += 1;
                bytes += item.size;
            }
        }
        Ok((files, bytes))
    }

    /// What was kept of a run, the newest first.
    fn kept(&self, repetition: &str) -> Result<Vec<Kept>> {
        let mut all = Vec::new();
        for place in PLACES {
            let Some(text) = self.read(&format!("{repetition}/{place}.list"), LIST)? else { continue };
            let mut lines = text.lines();
            let Some(count) = lines.next().and_then(|line| line.trim().parse().ok()) else { continue };
            let mut hashes = HashMap::new();
            for line in lines {
                // As sha256sum writes it: a name that it had to escape begins otherwise.
                let found = line.split_once("  ").filter(|(hash, _)| hash.len() == 64);
                let Some((hash, path)) = found else {
                    let problem = format!(
                        "{}: a list of a run has a line that is none: {}",
                        self.name,
                        printable(line)
                    );
                    return Err(Error::target(problem, "see what happened to the run in the bucket"));
                };
                hashes.insert(path.strip_prefix("./").unwrap_or(path).to_owned(), hash.to_owned());
            }
            all.push(Kept { count, place, hashes });
        }
        all.sort_by_key(|kept| std::cmp::Reverse(kept.count));
        Ok(all)
    }

    /// Brings what is new of a repetition's run, as it was kept last.
    pub(super) fn fetch(&self, repetition: &str, into: &Path) -> Result<Fetched> {
        let mut fetched = Fetched::default();
        let mut newest = None;
        for kept in self.kept(repetition)? {
            let folder = format!("{repetition}/{}", kept.place);
            let there = self.list(&folder)?;
            let size = |path: &String| there.get(&format!("{folder}/{path}"));
            // A list that is ahead of its files: what was kept before is whole.
            let lines: Option<Vec<String>> =
                kept.hashes.keys().map(|path| Some(format!("{} {path}", size(path)?))).collect();
            if let Some(mut lines) = lines {
                lines.sort();
                newest = Some((folder, kept.hashes, lines.join("\n")));
                break;
            }
            fetched.changing += 1;
        }
        let Some((folder, hashes, list)) = newest else { return Ok(fetched) };
        fetched.changing = 0;
        let mut wanted = fetch::listed(&list, into, &self.name)?;
        let there: HashSet<PathBuf> = wanted.iter().map(|file| file.to.clone()).collect();
        wanted.retain(|file| {
            let here = fs::metadata(&file.to).is_ok_and(|here| here.len() == file.size);
            !here || fetch::hash_of(&file.to, file.size).ok().as_ref() != hashes.get(&file.path)
        });
        fetch::room(into, wanted.iter().map(|file| file.size).sum(), &self.name)?;
        // Checkpoints last: rows that are ahead of them do no harm.
        wanted.sort_by_key(|file| file.path.starts_with(stratus_run::layout::CHECKPOINTS));
        for file in &wanted {
            self.take(&folder, file, hashes.get(&file.path), &mut fetched)?;
        }
        if fetched.changing == 0 {
            fetch::remove_old_checkpoints(into, &there)?;
        }
        Ok(fetched)
    }

    fn take(&self, folder: &str, file: &Wanted, hash: Option<&String>, fetched: &mut Fetched) -> Result<()> {
        let part = file.part();
        if let Some(folder) = part.parent() {
            fs::create_dir_all(folder).map_err(Error::file("make", folder))?;
        }
        let mut out = File::create(&part).map_err(Error::file("write", &part))?;
        let path = format!("{folder}/{}", file.path);
        let bytes = self.store.download(&path, &mut out, &mut |_| {}).map_err(|error| self.failed(&error))?;
        out.sync_all().map_err(Error::file("write", &part))?;
        if fetch::hash_of(&part, bytes).ok().as_ref() != hash {
            // It is being written anew.
            fetched.changing += 1;
            return fs::remove_file(&part).map_err(Error::file("remove", &part));
        }
        fs::rename(&part, &file.to).map_err(Error::file("write", &file.to))?;
        fetched.files += 1;
        fetched.bytes += bytes;
        Ok(())
    }
}

fn wrong(name: &str, error: &StoreError) -> Error {
    Error::target(
        format!("{name}: the bucket: {}", printable(&error.to_string())),
        "its credentials are those of the service's own tools: see docs/data.md",
    )
}
