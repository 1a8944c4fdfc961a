//! Shards without an index: their headers are read through once.

use std::collections::{BTreeMap, HashSet};
use std::fs::{self, File};
use std::io::{Read, Seek, SeekFrom};
use std::num::NonZero;
use std::path::Path;
use std::thread;

use stratus_base::checksum::sha256_of_reader;

use super::index::{INDEX_FILE, Index, MemberRange, Shard};
use super::{EXTENSION, MOST_CLASSES, UNFINISHED, is_shard_name, speaks_of_a_split, split_of};
use crate::archive::{Content, Entries, Entry, Found, Kind, ReadAt, SparseMap, Tree};
use crate::datasets::packed::expect_unpacked_name;
use crate::datasets::{Scratch, is_hidden};
use crate::decode::LARGEST_FILE;
use crate::error::DataError;
use crate::transform::pixels::Normalisation;

/// The most bytes of a `.cls` file.
const LARGEST_CLASS: u64 = 32;
/// How many problems a message lists.
pub(crate) const LISTED: usize = 20;

/// A sample that cannot be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Problem {
    /// Its index in the split.
    pub sample: u32,
    /// What a person calls it.
    pub name: String,
    /// What is wrong with it.
    pub problem: String,
}

/// The result of scanning a folder of shards.
#[derive(Debug)]
pub(crate) struct ScannedShards {
    pub index: Index,
    /// Unreadable samples of each split; the index has them without a position.
    pub problems: BTreeMap<String, Vec<Problem>>,
}

/// A shard, from its headers.
#[derive(Default)]
struct ScannedShard {
    bytes: u64,
    samples: Vec<ScannedSample>,
    /// The maps of files with holes, by the blocks before the file.
    sparse: BTreeMap<u32, SparseMap>,
    /// Where the classes of samples are written.
    classes: Vec<(usize, MemberRange)>,
    /// Members that are links: their sample, what they are of it, and their path.
    links: Vec<(usize, Role, Vec<u8>)>,
}

/// The part that a member has in its sample.
#[derive(Clone, Copy)]
enum Role {
    Image,
    Mask,
    /// A class, by its place in `classes`.
    Class(usize),
}

/// A sample, from its members.
#[derive(Default)]
struct ScannedSample {
    key: String,
    label: Option<u32>,
    image: Option<MemberRange>,
    mask: Option<MemberRange>,
    /// The first of its members, for messages.
    first: MemberRange,
    problem: Option<String>,
}

/// Reads the headers of all shards in a folder. With `verify` every image's beginning and end are looked at.
///
/// # Errors
///
/// [`DataError`]: there are no shards, or a file cannot be read; what is wrong with samples is no error here.
pub(crate) fn scan(folder: &Path, verify: bool) -> Result<ScannedShards, DataError> {
    let damaged = |problem| DataError::Damaged { path: folder.to_owned(), problem };
    if folder.join(UNFINISHED).exists() {
        let problem = "packing these shards was interrupted; pack the data set again".to_owned();
        return Err(damaged(problem));
    }
    let names = shard_names(folder)?;
    if names.is_empty() {
        let problem = format!(
            "holds neither `{INDEX_FILE}` nor shards named train-*{EXTENSION}, val-*{EXTENSION} or \
             test-*{EXTENSION}"
        );
        return Err(damaged(problem));
    }
    let threads = thread::available_parallelism().map_or(1, NonZero::get).min(names.len());
    let look = |first: usize| {
        let of_this = names.iter().skip(first).step_by(threads);
        of_this.map(|name| scan_shard(&folder.join(name), verify)).collect::<Result<Vec<_>, _>>()
    };
    let mut by_thread = thread::scope(|scope| {
        let workers: Vec<_> = (1..threads).map(|first| scope.spawn(move || look(first))).collect();
        let mut all = vec![look(0)?.into_iter()];
        for worker in workers {
            // A panic goes on in this thread.
            all.push(worker.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))?.into_iter());
        }
        Ok::<_, DataError>(all)
    })?;
    // Shard n was thread n's, modulo their number.
    let shards =
        names.iter().enumerate().filter_map(|(at, name)| Some((name, by_thread[at % threads].next()?)));
    let shards: Vec<(&String, ScannedShard)> = shards.collect();

    let whole = || {
        let samples = shards.iter().flat_map(|(_, shard)| &shard.samples);
        samples.filter(|sample| sample.problem.is_none())
    };
    if whole().any(|sample| sample.mask.is_some() && sample.label.is_none()) {
        let problem = "samples have masks, and without an index nothing says how many classes there are; \
                       pack the data set with `stratus data shard`";
        return Err(damaged(problem.to_owned()));
    }
    let classes = whole().filter_map(|sample| sample.label).max().map_or(1, |label| label + 1);
    let classes = (0..classes).map(|class| class.to_string()).collect();
    // Those of ImageNet, as for folders.
    let normalisation = Normalisation { mean: vec![0.485, 0.456, 0.406], std: vec![0.229, 0.224, 0.225] };
    let mut index = Index::new("webdataset", classes, None, normalisation, false);
    let mut problems: BTreeMap<String, Vec<Problem>> = BTreeMap::new();
    for (name, ScannedShard { bytes, samples, sparse, .. }) in shards {
        if samples.is_empty() {
            continue;
        }
        let split = split_of(name).unwrap_or_default();
        let before: usize = index.splits.get(split).into_iter().flatten().map(Shard::samples).sum();
        let mut shard = Shard {
            name: name.clone(),
            bytes,
            sha256: String::new(),
            labels: Vec::with_capacity(samples.len()),
            images: Vec::with_capacity(samples.len()),
            masks: Vec::new(),
            sparse: sparse.into_iter().collect(),
        };
        for (at, sample) in samples.into_iter().enumerate() {
            shard.labels.push(sample.label.unwrap_or_default());
            shard.images.push(sample.image.filter(|_| sample.problem.is_none()).unwrap_or(sample.first));
            if let Some(problem) = sample.problem {
                let sample_number = u32::try_from(before + at)
                    .map_err(|_| damaged(format!("more than {} samples in `{split}`", u32::MAX)))?;
                let name = format!("{}/{}", folder.join(name).display(), sample.key);
                problems.entry(split.to_owned()).or_default().push(Problem {
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

/// Writes the index of shards that have none: their headers, and the checksums of the files.
///
/// # Errors
///
/// [`DataError`]: there are no shards; samples that cannot be read, the first listed.
pub fn index_folder(folder: &Path) -> Result<Index, DataError> {
    let ScannedShards { mut index, problems } = scan(folder, true)?;
    let all: Vec<&Problem> = problems.values().flatten().collect();
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

/// The first problems, as messages list them.
fn listed<'a>(problems: impl Iterator<Item = &'a Problem>) -> Vec<(String, String)> {
    problems.take(LISTED).map(|problem| (problem.name.clone(), problem.problem.clone())).collect()
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
        // Shards that are compressed would be passed over.
        if name.to_str().is_some_and(speaks_of_a_split) {
            expect_unpacked_name(&entry.path())?;
        }
        let name = name.to_str().filter(|name| is_shard_name(name) && split_of(name).is_some());
        names.extend(name.map(str::to_owned));
    }
    names.sort_unstable();
    Ok(names)
}

/// The length of a shard and its samples, in order.
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
            sample.problem = Some("a sample of this name is in the shard twice".to_owned());
        }
    }
    if !shard.links.is_empty() {
        let tree = Tree::read(&mut read_at, length);
        shard.follow_links(&tree);
    }
    // Classes are read when all headers are.
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
            (None, _) => Some("has no image: no .jpg, .jpeg or .png".to_owned()),
            (_, false) => Some("has no label: no .cls".to_owned()),
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
    /// Adds the entries of an archive. An error ends them; those before it are added.
    fn add_all(&mut self, mut entries: Entries<'_>) -> Result<(), String> {
        while let Some(entry) = entries.next()? {
            self.add(&entry)?;
        }
        Ok(())
    }

    /// Adds an entry to the sample that it belongs to.
    fn add(&mut self, entry: &Entry<'_>) -> Result<(), String> {
        if entry.kind == Kind::Folder || entry.path.split(|&byte| byte == b'/').any(is_hidden) {
            return Ok(());
        }
        let path = std::str::from_utf8(entry.path)
            .map_err(|_| format!("the name {} is not UTF-8", String::from_utf8_lossy(entry.path)))?;
        let file = path.rsplit('/').next().unwrap_or_default();
        let Some((_, extension)) = file.split_once('.') else { return Ok(()) };
        let key = &path[..path.len() - extension.len() - 1];
        // The range of a link is found later.
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
        let (role, taken) = match extension.to_ascii_lowercase().as_str() {
            "jpg" | "jpeg" | "png" => (Role::Image, sample.image.replace(range).is_some()),
            "seg.png" => (Role::Mask, sample.mask.replace(range).is_some()),
            "cls" => {
                let taken = self.classes.last().is_some_and(|(last, _)| *last == number);
                self.classes.push((number, range));
                (Role::Class(self.classes.len() - 1), taken)
            }
            _ => return Ok(()),
        };
        if taken {
            sample.problem = Some(format!("has two members for one thing: .{extension}"));
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

    /// The range of a file.
    fn range(&mut self, content: &Content, path: &str) -> Result<MemberRange, String> {
        let range = MemberRange::new(content.offset, content.bytes)
            .ok_or_else(|| format!("{path} is too large, or lies too far behind"))?;
        if let Some(map) = &content.map {
            self.sparse.insert(range.0, map.clone());
        }
        Ok(range)
    }

    /// Where the bytes of a range are.
    fn content(&self, range: MemberRange) -> Content {
        Content { offset: range.offset(), bytes: u64::from(range.1), map: self.sparse.get(&range.0).cloned() }
    }

    /// Finds the files that members are links to.
    fn follow_links(&mut self, tree: &Result<Tree, String>) {
        for (number, role, path) in std::mem::take(&mut self.links) {
            let name = String::from_utf8_lossy(&path).into_owned();
            let found = match tree {
                Ok(tree) => match tree.find(Tree::ROOT, &path) {
                    Ok(Some(Found::File(content))) => self.range(&content, &name),
                    Ok(_) => Err(format!("{name} is a link, and not to a file")),
                    Err(problem) => Err(format!("{name} {problem}")),
                },
                Err(problem) => Err(format!("{name} is a link, which is not followed: {problem}")),
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
    if content.bytes > LARGEST_CLASS {
        return Err(format!("its .cls has {} bytes, too many for a number", content.bytes));
    }
    let mut text = vec![0; content.bytes as usize];
    content.read_at(read_at, 0, &mut text).map_err(|error| error.to_string())?;
    let number = std::str::from_utf8(&text).ok().and_then(|text| text.trim().parse::<u64>().ok());
    let number = number.ok_or_else(|| {
        format!(
            "its .cls holds `{}`, not the number of a class",
            String::from_utf8_lossy(&text).escape_debug()
        )
    })?;
    u32::try_from(number)
        .ok()
        .filter(|&label| label < MOST_CLASSES)
        .ok_or_else(|| format!("its label is {number}; labels go from 0 to {}", MOST_CLASSES - 1))
}

/// Whether an image looks whole by its beginning and its end; decodes it where they cannot tell.
fn probe(read_at: ReadAt<'_>, content: &Content, scratch: &mut Scratch) -> Result<(), String> {
    let bytes = content.bytes;
    if bytes > LARGEST_FILE {
        return Err(format!("the file has {bytes} bytes, more than {LARGEST_FILE}"));
    }
    let mut within = |offset: u64, out: &mut [u8]| {
        content.read_at(read_at, offset, out).map_err(|error| error.to_string())
    };
    let Scratch { encoded, decoded, images, .. } = scratch;
    images.probe(&mut within, bytes, encoded, decoded).map(|_| ())
}
