//! Shards without an index: all headers are read once.

use std::collections::{BTreeMap, HashSet};
use std::fs::{self, File};
use std::io::{Read, Seek, SeekFrom};
use std::num::NonZero;
use std::path::Path;
use std::thread;

use stratus_base::checksum::sha256_of_reader;

use super::index::{INDEX_FILE, MemberRange, Shard, ShardIndex};
use super::names::{EXTENSION, UNFINISHED_MARKER, is_shard_name, names_a_split, split_in_name};
use crate::archive::{Content, Entries, Entry, Found, Kind, ReadAt, SparseMap, Tree};
use crate::dataset::Scratch;
use crate::datasets::files::is_hidden;
use crate::datasets::packed::reject_archive_name;
use crate::decode::MAX_IMAGE_FILE_BYTES;
use crate::error::DataError;
use crate::transform::pixels::Normalisation;

/// The maximum size of a `.cls` file.
const MAX_CLS_FILE_BYTES: u64 = 32;
/// The maximum number of classes that can be inferred from labels without an index.
const MAX_CLASSES: u32 = 1_000_000;
/// The maximum number of problems in a message.
pub(crate) const MAX_LISTED_PROBLEMS: usize = 20;

/// A sample that cannot be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct DamagedSample {
    /// Its index in the split.
    pub sample: u32,
    /// Its name for messages.
    pub name: String,
    /// The problem.
    pub problem: String,
}

/// The result of scanning a folder of shards.
#[derive(Debug)]
pub(crate) struct ScannedShards {
    pub index: ShardIndex,
    /// Damaged samples of each split; the index has no position for them.
    pub problems: BTreeMap<String, Vec<DamagedSample>>,
}

/// A shard, from its headers.
#[derive(Default)]
struct ScannedShard {
    bytes: u64,
    samples: Vec<ScannedSample>,
    /// The maps of sparse files, by the blocks before the file.
    sparse: BTreeMap<u32, SparseMap>,
    /// The samples with a class file, and its position.
    classes: Vec<(usize, MemberRange)>,
    /// Members that are links: their sample, role and path.
    links: Vec<(usize, Role, Vec<u8>)>,
}

/// The role of a member in its sample.
#[derive(Clone, Copy)]
enum Role {
    Image,
    Mask,
    /// A class, by its index in `classes`.
    Class(usize),
}

/// A sample, from its members.
#[derive(Default)]
struct ScannedSample {
    key: String,
    label: Option<u32>,
    image: Option<MemberRange>,
    mask: Option<MemberRange>,
    /// The first member, for messages.
    first: MemberRange,
    problem: Option<String>,
}

/// Reads the headers of all shards in a folder. With `verify` the beginning and end of every image are
/// checked.
///
/// # Errors
///
/// [`DataError`]: no shards, or an unreadable file. Damaged samples are not errors.
pub(crate) fn scan(folder: &Path, verify: bool) -> Result<ScannedShards, DataError> {
    let invalid = |problem| DataError::Invalid { path: folder.to_owned(), problem };
    if folder.join(UNFINISHED_MARKER).exists() {
        let problem = "packing was interrupted; pack the data set again".to_owned();
        return Err(invalid(problem));
    }
    let names = shard_names(folder)?;
    if names.is_empty() {
        let problem = format!(
            "neither `{INDEX_FILE}` nor shards named train-*{EXTENSION}, val-*{EXTENSION} or \
             test-*{EXTENSION} found"
        );
        return Err(invalid(problem));
    }
    let threads = thread::available_parallelism().map_or(1, NonZero::get).min(names.len());
    let scan_every = |first: usize| {
        let assigned = names.iter().skip(first).step_by(threads);
        assigned.map(|name| scan_shard(&folder.join(name), verify)).collect::<Result<Vec<_>, _>>()
    };
    let mut by_thread = thread::scope(|scope| {
        let workers: Vec<_> = (1..threads).map(|first| scope.spawn(move || scan_every(first))).collect();
        let mut all = vec![scan_every(0)?.into_iter()];
        for worker in workers {
            // A panic is propagated.
            all.push(worker.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))?.into_iter());
        }
        Ok::<_, DataError>(all)
    })?;
    // Thread t scanned the shards t, t + threads, ….
    let shards =
        names.iter().enumerate().filter_map(|(at, name)| Some((name, by_thread[at % threads].next()?)));
    let shards: Vec<(&String, ScannedShard)> = shards.collect();

    let intact = || {
        let samples = shards.iter().flat_map(|(_, shard)| &shard.samples);
        samples.filter(|sample| sample.problem.is_none())
    };
    if intact().any(|sample| sample.mask.is_some() && sample.label.is_none()) {
        let problem = "samples have masks, but without an index the number of classes is unknown; \
                       pack the data set with `stratus data shard`";
        return Err(invalid(problem.to_owned()));
    }
    let classes = intact().filter_map(|sample| sample.label).max().map_or(1, |label| label + 1);
    let classes = (0..classes).map(|class| class.to_string()).collect();
    // The values of ImageNet, like for folders.
    let normalisation = Normalisation { mean: vec![0.485, 0.456, 0.406], std: vec![0.229, 0.224, 0.225] };
    let mut index = ShardIndex::new("webdataset", classes, None, normalisation, false);
    let mut problems: BTreeMap<String, Vec<DamagedSample>> = BTreeMap::new();
    for (name, ScannedShard { bytes, samples, sparse, .. }) in shards {
        if samples.is_empty() {
            continue;
        }
        let split = split_in_name(name).unwrap_or_default();
        let before: usize = index.splits.get(split).into_iter().flatten().map(Shard::samples).sum();
        let mut shard = Shard {
            name: name.clone(),
            bytes,
            sha256: String::new(),
            labels: Vec::with_capacity(samples.len()),
            targets: Vec::new(),
            images: Vec::with_capacity(samples.len()),
            masks: Vec::new(),
            sparse: sparse.into_iter().collect(),
        };
        for (at, sample) in samples.into_iter().enumerate() {
            shard.labels.push(sample.label.unwrap_or_default());
            shard.images.push(sample.image.filter(|_| sample.problem.is_none()).unwrap_or(sample.first));
            if let Some(problem) = sample.problem {
                let sample_number = u32::try_from(before + at)
                    .map_err(|_| invalid(format!("more than {} samples in `{split}`", u32::MAX)))?;
                let name = format!("{}/{}", folder.join(name).display(), sample.key);
                problems.entry(split.to_owned()).or_default().push(DamagedSample {
                    sample: sample_number,
                    name: name.trim_end_matches('/').to_owned(),
                    problem,
                });
            }
        }
        index.push(split, shard);
    }
    Ok(ScannedShards { index, problems })
}

/// Writes the index of shards without one: from their headers, with the checksums of the files.
///
/// # Errors
///
/// [`DataError`]: no shards, or damaged samples, the first of them listed.
pub fn index_folder(folder: &Path) -> Result<ShardIndex, DataError> {
    let ScannedShards { mut index, problems } = scan(folder, true)?;
    let all: Vec<&DamagedSample> = problems.values().flatten().collect();
    if !all.is_empty() {
        return Err(DataError::BadShards {
            path: folder.to_owned(),
            count: all.len(),
            listed: listed(all.into_iter()),
        });
    }
    for shard in index.splits.values_mut().flatten() {
        (_, shard.sha256) = digest(&folder.join(&shard.name))?;
    }
    index.write(folder)?;
    Ok(index)
}

/// The first problems, for messages.
fn listed<'a>(problems: impl Iterator<Item = &'a DamagedSample>) -> Vec<(String, String)> {
    problems
        .take(MAX_LISTED_PROBLEMS)
        .map(|problem| (problem.name.clone(), problem.problem.clone()))
        .collect()
}

/// Length and SHA-256 of a file.
pub(crate) fn digest(path: &Path) -> Result<(u64, String), DataError> {
    let unreadable = |cause| DataError::Unreadable { path: path.to_owned(), cause };
    sha256_of_reader(File::open(path).map_err(unreadable)?).map_err(unreadable)
}

/// The shards in a folder, by name.
pub(super) fn shard_names(folder: &Path) -> Result<Vec<String>, DataError> {
    let unreadable = |cause| DataError::Unreadable { path: folder.to_owned(), cause };
    let mut names = Vec::new();
    for entry in fs::read_dir(folder).map_err(unreadable)? {
        let entry = entry.map_err(unreadable)?;
        let name = entry.file_name();
        // Compressed shards would be skipped silently.
        if name.to_str().is_some_and(names_a_split) {
            reject_archive_name(&entry.path())?;
        }
        let name = name.to_str().filter(|name| is_shard_name(name) && split_in_name(name).is_some());
        names.extend(name.map(str::to_owned));
    }
    names.sort_unstable();
    Ok(names)
}

/// Scans a shard: its length and its samples, in order.
fn scan_shard(path: &Path, verify: bool) -> Result<ScannedShard, DataError> {
    let unreadable = |cause| DataError::Unreadable { path: path.to_owned(), cause };
    let mut file = File::open(path).map_err(unreadable)?;
    let length = file.metadata().map_err(unreadable)?.len();
    let mut shard = ScannedShard { bytes: length, ..ScannedShard::default() };
    let mut read_at = |offset: u64, out: &mut [u8]| {
        file.seek(SeekFrom::Start(offset))?;
        file.read_exact(out)
    };
    let outcome = shard.add_all(Entries::new(&mut read_at, 0, length));
    let mut keys = HashSet::new();
    for sample in &mut shard.samples {
        if !keys.insert(sample.key.as_str()) {
            sample.problem = Some("duplicate sample name in the shard".to_owned());
        }
    }
    if !shard.links.is_empty() {
        let tree = Tree::read(&mut read_at, length);
        shard.follow_links(&tree);
    }
    // Classes are read after all headers.
    for (sample, range) in std::mem::take(&mut shard.classes) {
        let content = shard.content(range);
        let sample = &mut shard.samples[sample];
        if sample.problem.is_none() {
            match read_class(&mut read_at, &content) {
                Ok(label) => sample.label = Some(label),
                Err(problem) => sample.problem = Some(problem),
            }
        }
    }
    let mut scratch = Scratch::default();
    for at in 0..shard.samples.len() {
        let sample = &shard.samples[at];
        if sample.problem.is_some() {
            continue;
        }
        let problem = match (sample.image, sample.label.is_some() || sample.mask.is_some()) {
            (None, _) => Some("missing image: no .jpg, .jpeg, .png or .webp".to_owned()),
            (_, false) => Some("missing label: no .cls".to_owned()),
            (Some(image), true) if verify => probe(&mut read_at, &shard.content(image), &mut scratch).err(),
            _ => None,
        };
        shard.samples[at].problem = problem;
    }
    if let Err(problem) = outcome {
        shard.samples.push(ScannedSample { problem: Some(problem), ..ScannedSample::default() });
    }
    Ok(shard)
}

impl ScannedShard {
    /// Adds the entries of an archive, up to the first error.
    fn add_all(&mut self, mut entries: Entries<'_>) -> Result<(), String> {
        while let Some(entry) = entries.next()? {
            self.add(&entry)?;
        }
        Ok(())
    }

    /// Adds an entry to its sample.
    fn add(&mut self, entry: &Entry<'_>) -> Result<(), String> {
        if entry.kind == Kind::Folder || entry.path.split(|&byte| byte == b'/').any(is_hidden) {
            return Ok(());
        }
        let path = std::str::from_utf8(entry.path)
            .map_err(|_| format!("the name {} is not UTF-8", String::from_utf8_lossy(entry.path)))?;
        let file = path.rsplit('/').next().unwrap_or_default();
        let Some((_, extension)) = file.split_once('.') else { return Ok(()) };
        let key = &path[..path.len() - extension.len() - 1];
        // The ranges of links are resolved later.
        let range = match &entry.kind {
            Kind::File(content) => self.range(content, path)?,
            _ => MemberRange::default(),
        };
        if self.samples.last().is_none_or(|sample| sample.key != key) {
            self.samples.push(ScannedSample {
                key: key.to_owned(),
                first: range,
                ..ScannedSample::default()
            });
        }
        let number = self.samples.len() - 1;
        let sample = &mut self.samples[number];
        let (role, is_duplicate) = match extension.to_ascii_lowercase().as_str() {
            "jpg" | "jpeg" | "png" | "webp" => (Role::Image, sample.image.replace(range).is_some()),
            "seg.png" => (Role::Mask, sample.mask.replace(range).is_some()),
            "cls" => {
                let is_duplicate = self.classes.last().is_some_and(|(last, _)| *last == number);
                self.classes.push((number, range));
                (Role::Class(self.classes.len() - 1), is_duplicate)
            }
            _ => return Ok(()),
        };
        if is_duplicate {
            sample.problem = Some(format!("duplicate member .{extension}"));
        }
        match entry.kind {
            Kind::Special(name) => sample.problem = Some(format!("{path} is {name}, not a file")),
            Kind::SymbolicLink(_) | Kind::HardLink(_) => {
                self.links.push((number, role, entry.path.to_owned()));
            }
            Kind::File(_) | Kind::Folder => {}
        }
        Ok(())
    }

    /// Records a file and returns its range.
    fn range(&mut self, content: &Content, path: &str) -> Result<MemberRange, String> {
        let range = MemberRange::new(content.offset, content.bytes)
            .ok_or_else(|| format!("{path} exceeds 4 GiB or is beyond 2 TiB"))?;
        if let Some(map) = &content.map {
            self.sparse.insert(range.0, map.clone());
        }
        Ok(range)
    }

    /// The content of a range.
    fn content(&self, range: MemberRange) -> Content {
        Content {
            offset: range.offset(),
            bytes: u64::from(range.1),
            map: self.sparse.get(&range.0).cloned(),
            zip: None,
        }
    }

    /// Resolves the members that are links.
    fn follow_links(&mut self, tree: &Result<Tree, String>) {
        for (number, role, path) in std::mem::take(&mut self.links) {
            let name = String::from_utf8_lossy(&path).into_owned();
            let found = match tree {
                Ok(tree) => match tree.find(Tree::ROOT, &path) {
                    Ok(Some(Found::File(content))) => self.range(&content, &name),
                    Ok(_) => Err(format!("{name} is a link, but not to a file")),
                    Err(problem) => Err(format!("{name} {problem}")),
                },
                Err(problem) => Err(format!("{name} is a link that cannot be followed: {problem}")),
            };
            let sample = &mut self.samples[number];
            match (found, role) {
                (Ok(range), Role::Image) => sample.image = Some(range),
                (Ok(range), Role::Mask) => sample.mask = Some(range),
                (Ok(range), Role::Class(at)) => self.classes[at].1 = range,
                (Err(problem), _) => _ = sample.problem.get_or_insert(problem),
            }
        }
    }
}

fn read_class(read_at: ReadAt<'_>, content: &Content) -> Result<u32, String> {
    if content.bytes > MAX_CLS_FILE_BYTES {
        return Err(format!(".cls file has {} bytes, too many for a class", content.bytes));
    }
    let mut text = vec![0; content.bytes as usize];
    content.read_at(read_at, 0, &mut text).map_err(|error| error.to_string())?;
    let number = std::str::from_utf8(&text).ok().and_then(|text| text.trim().parse::<u64>().ok());
    let number = number.ok_or_else(|| {
        format!(
            ".cls file contains `{}`, expected a class index",
            String::from_utf8_lossy(&text).escape_debug()
        )
    })?;
    u32::try_from(number)
        .ok()
        .filter(|&label| label < MAX_CLASSES)
        .ok_or_else(|| format!("label is {number}, expected 0 to {}", MAX_CLASSES - 1))
}

/// Checks the beginning and end of an image; decodes it if these are not sufficient.
fn probe(read_at: ReadAt<'_>, content: &Content, scratch: &mut Scratch) -> Result<(), String> {
    let bytes = content.bytes;
    if bytes > MAX_IMAGE_FILE_BYTES {
        return Err(format!("the file has {bytes} bytes, more than {MAX_IMAGE_FILE_BYTES}"));
    }
    content.map.as_ref().map_or(Ok(()), |map| map.check_proportion(bytes))?;
    let mut read = |offset: u64, out: &mut [u8]| {
        content.read_at(read_at, offset, out).map_err(|error| error.to_string())
    };
    let Scratch { encoded, decoded, images, .. } = scratch;
    images.probe(&mut read, bytes, encoded, decoded).map(|_| ())
}
