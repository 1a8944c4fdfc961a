//! The fingerprint of a data set, which detects changed samples.
//!
//! | compared | how |
//! |---|---|
//! | classes, number of samples | all |
//! | labels or targets; outlines, and pixels that are in memory | SHA-256 |
//! | names and lengths of files, in order | SHA-256 of each folder, and a list |
//! | shards | SHA-256 of each, from their index |
//! | content of other files | SHA-256 of up to [`MAX_HASHED_SAMPLES`] samples, about [`MAX_HASHED_BYTES`] |
//!
//! Paths are relative to the data set's root, so that copies have the same fingerprint. Modification times
//! are not compared, because copies have others.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::num::NonZero;
use std::thread;

use sha2::{Digest, Sha256};
use stratus_base::checksum::{hex, sha256_hex};
use stratus_random::{Purpose, Stream};

use crate::dataset::{Dataset, FileDetail, IGNORED, Scratch};
use crate::parallel::for_each_parallel;

/// The maximum number of samples whose files are hashed. In larger data sets, one sample is
/// selected from each of this many equal ranges, by a fixed seed.
pub const MAX_HASHED_SAMPLES: usize = 1000;
/// The approximate maximum size of hashed content, in bytes.
pub const MAX_HASHED_BYTES: u64 = 32 << 20;
/// The maximum number of listed files; if there are more, only hashed ones are listed.
pub const MAX_LISTED_FILES: usize = 20_000;

/// The seed that selects samples. Changing it would invalidate every recorded fingerprint.
const SEED: u64 = 1;
/// The length that marks a missing file.
const MISSING: u64 = u64::MAX;

/// The fingerprint of one split of a data set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fingerprint {
    /// The number of samples.
    pub samples: u64,
    /// The classes, in order.
    pub classes: Vec<String>,
    /// SHA-256 of the labels, or of the targets.
    pub labels_sha256: String,
    /// SHA-256 of the sample data in memory other than labels.
    pub memory_sha256: String,
    /// The folders with files of the samples, by path.
    pub folders: Vec<FolderFingerprint>,
    /// Files, by path: all, or those with a hash if there are more than [`MAX_LISTED_FILES`].
    pub files: Vec<FileFingerprint>,
}

/// The files of one folder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FolderFingerprint {
    /// The path below the root; empty for the root itself.
    pub path: String,
    /// The number of files.
    pub files: u64,
    /// Their total length in bytes.
    pub bytes: u64,
    /// SHA-256 of their names and lengths, in the order of samples.
    pub sha256: String,
}

/// One file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileFingerprint {
    /// The path below the root.
    pub path: String,
    /// The length in bytes; `None` if the file is missing.
    pub bytes: Option<u64>,
    /// SHA-256 of the content, if it was hashed.
    pub sha256: Option<String>,
}

/// Sums over the files of a folder.
#[derive(Default)]
struct Folder {
    files: u64,
    bytes: u64,
    hash: Sha256,
}

impl Fingerprint {
    /// The fingerprint of an open data set. Reads the length of every file, on all cores, and the content of
    /// some.
    #[must_use]
    pub fn compute(set: &dyn Dataset) -> Self {
        let mut labels = Sha256::new();
        for index in 0..set.len() {
            // Samples without a label are reported as damaged elsewhere.
            labels.update(set.label(index).unwrap_or(IGNORED).to_le_bytes());
        }
        if let Some(kind) = set.target_kind() {
            labels.update([kind as u8]);
            for index in 0..set.len() {
                for target in set.targets(index).unwrap_or_default() {
                    // All NaNs mean the same: a missing target.
                    let target = if target.is_nan() { f32::NAN } else { *target };
                    labels.update(target.to_bits().to_le_bytes());
                }
            }
        }
        let mut memory = Sha256::new();
        set.hash_memory(&mut memory);
        let lengths = file_lengths(set);
        let hashes = hash_contents(set, &lengths);
        let (folders, files) = files(set, &lengths, hashes);
        Self {
            samples: set.len() as u64,
            classes: (0..set.classes()).map(|class| set.class_name(class)).collect(),
            labels_sha256: hex(&labels.finalize()),
            memory_sha256: hex(&memory.finalize()),
            folders,
            files,
        }
    }
}

fn threads() -> usize {
    thread::available_parallelism().map_or(1, NonZero::get)
}

/// The lengths of each sample's files.
fn file_lengths(set: &dyn Dataset) -> Vec<Vec<u64>> {
    let found = for_each_parallel(set.len(), threads(), |(scratch, all): &mut (Scratch, Vec<_>), index| {
        let mut lengths = Vec::new();
        set.stored_files(index, scratch, FileDetail::Length, &mut |file| {
            lengths.push(file.bytes.unwrap_or(MISSING));
        });
        if !lengths.is_empty() {
            all.push((index, lengths));
        }
        Ok::<_, Infallible>(())
    });
    let mut lengths = vec![Vec::new(); set.len()];
    let Ok(found) = found;
    for (index, of_sample) in found.into_iter().flat_map(|(_, all)| all) {
        lengths[index] = of_sample;
    }
    lengths
}

/// The samples whose content is hashed, ascending: spread over the whole data set, fewer if they are large.
fn select_samples(lengths: &[Vec<u64>]) -> Vec<usize> {
    let len = lengths.len();
    let count = len.min(MAX_HASHED_SAMPLES);
    let first_of = |stratum: usize| stratum * len / count;
    let candidates: Vec<usize> = (0..count)
        .map(|stratum| {
            let (first, end) = (first_of(stratum), first_of(stratum + 1));
            let range = u32::try_from(end - first).unwrap_or(u32::MAX);
            first + Stream::new(SEED, Purpose::Fingerprint, stratum as u64, 0).below(range) as usize
        })
        .filter(|&index| !lengths[index].is_empty())
        .collect();
    let bytes = |&index: &usize| -> u64 { lengths[index].iter().filter(|&&bytes| bytes != MISSING).sum() };
    let step = candidates.iter().map(bytes).sum::<u64>().div_ceil(MAX_HASHED_BYTES).max(1);
    candidates.into_iter().step_by(usize::try_from(step).unwrap_or(usize::MAX)).collect()
}

/// The path and the SHA-256 of the files of the selected samples.
fn hash_contents(set: &dyn Dataset, lengths: &[Vec<u64>]) -> BTreeMap<String, String> {
    let selected = select_samples(lengths);
    let hashed =
        for_each_parallel(selected.len(), threads(), |(scratch, all): &mut (Scratch, Vec<_>), at| {
            set.stored_files(selected[at], scratch, FileDetail::Content, &mut |file| {
                if let Some(content) = file.content {
                    all.push((file.path.to_owned(), sha256_hex([content])));
                }
            });
            Ok::<_, Infallible>(())
        });
    let Ok(hashed) = hashed;
    hashed.into_iter().flat_map(|(_, all)| all).collect()
}

/// The folders and the files of a data set.
fn files(
    set: &dyn Dataset,
    lengths: &[Vec<u64>],
    mut hashes: BTreeMap<String, String>,
) -> (Vec<FolderFingerprint>, Vec<FileFingerprint>) {
    let archives = set.archives();
    let count = archives.len() + lengths.iter().map(Vec::len).sum::<usize>();
    let mut folders: BTreeMap<String, Folder> = BTreeMap::new();
    let mut files: BTreeMap<String, FileFingerprint> = BTreeMap::new();
    let mut add = |path: &str, bytes: Option<u64>, sha256: Option<String>| {
        let (folder, name) = path.rsplit_once('/').unwrap_or(("", path));
        if !folders.contains_key(folder) {
            folders.insert(folder.to_owned(), Folder::default());
        }
        if let Some(folder) = folders.get_mut(folder) {
            folder.files += 1;
            folder.bytes += bytes.unwrap_or(0);
            folder.hash.update(name);
            folder.hash.update([0]);
            folder.hash.update(bytes.unwrap_or(MISSING).to_le_bytes());
        }
        if count <= MAX_LISTED_FILES || sha256.is_some() {
            files.insert(path.to_owned(), FileFingerprint { path: path.to_owned(), bytes, sha256 });
        }
    };
    for (path, bytes, sha256) in archives {
        add(&path, Some(bytes), sha256);
    }
    let mut scratch = Scratch::default();
    for index in (0..lengths.len()).filter(|&index| !lengths[index].is_empty()) {
        let mut lengths = lengths[index].iter().copied();
        set.stored_files(index, &mut scratch, FileDetail::Path, &mut |file| {
            let bytes = lengths.next().filter(|&bytes| bytes != MISSING);
            add(file.path, bytes, hashes.remove(file.path));
        });
    }
    let folders = folders.into_iter().map(|(path, Folder { files, bytes, hash })| FolderFingerprint {
        path,
        files,
        bytes,
        sha256: hex(&hash.finalize()),
    });
    (folders.collect(), files.into_values().collect())
}
