//! Shards without an index: their headers are read through once.

use std::collections::{BTreeMap, HashSet};
use std::fs::{self, File};
use std::io::{self, Read, Seek, SeekFrom};
use std::num::NonZero;
use std::path::Path;
use std::thread;

use stratus_base::checksum::sha256_of_reader;

use super::archive::{Member, ReadAt, each_file};
use super::index::{INDEX_FILE, Index, MemberRange, Shard};
use super::{EXTENSION, MOST_CLASSES, UNFINISHED, is_shard_name, speaks_of_a_split, split_of};
use crate::datasets::packed::expect_unpacked_name;
use crate::datasets::{Scratch, files};
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
    let shards: Vec<(&String, (u64, Vec<ScannedSample>))> = shards.collect();

    let whole =
        || shards.iter().flat_map(|(_, (_, samples))| samples).filter(|sample| sample.problem.is_none());
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
    for (name, (bytes, samples)) in shards {
        if samples.is_empty() {
            continue;
        }
        let split = split_of(name).unwrap_or_default();
        let all = index.splits.entry(split.to_owned()).or_default();
        let before: usize = all.iter().map(Shard::samples).sum();
        let mut shard = Shard {
            name: name.clone(),
            bytes,
            sha256: String::new(),
            labels: Vec::with_capacity(samples.len()),
            images: Vec::with_capacity(samples.len()),
            masks: Vec::new(),
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
        all.push(shard);
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
fn scan_shard(path: &Path, verify: bool) -> Result<(u64, Vec<ScannedSample>), DataError> {
    let unreadable = |cause| DataError::Unreadable { path: path.to_owned(), cause };
    let mut file = File::open(path).map_err(unreadable)?;
    let length = file.metadata().map_err(unreadable)?.len();
    let mut samples: Vec<ScannedSample> = Vec::new();
    // Classes are read when all headers are.
    let mut classes: Vec<(usize, MemberRange)> = Vec::new();
    let mut read_at = |offset: u64, out: &mut [u8]| {
        file.seek(SeekFrom::Start(offset))?;
        file.read_exact(out)
    };
    let outcome = each_file(&mut read_at, length, &mut |member| add(&mut samples, &mut classes, member));
    let mut keys = HashSet::new();
    for sample in &mut samples {
        if !keys.insert(sample.key.as_str()) {
            sample.problem = Some("a sample of this name is in the shard twice".to_owned());
        }
    }
    for (sample, range) in classes {
        let sample = &mut samples[sample];
        match read_class(&mut read_at, range) {
            Ok(label) => sample.label = Some(label),
            Err(problem) => _ = sample.problem.get_or_insert(problem),
        }
    }
    let mut scratch = Scratch::default();
    for sample in samples.iter_mut().filter(|sample| sample.problem.is_none()) {
        sample.problem = match (sample.image, sample.label.is_some() || sample.mask.is_some()) {
            (None, _) => Some("has no image: no .jpg, .jpeg or .png".to_owned()),
            (_, false) => Some("has no label: no .cls".to_owned()),
            (Some(image), true) if verify => probe(&mut read_at, image, &mut scratch).err(),
            _ => None,
        };
    }
    if let Err(problem) = outcome {
        samples.push(ScannedSample { problem: Some(problem), ..ScannedSample::default() });
    }
    Ok((length, samples))
}

/// Adds a member to the sample that it belongs to.
fn add(
    samples: &mut Vec<ScannedSample>,
    classes: &mut Vec<(usize, MemberRange)>,
    member: Member<'_>,
) -> Result<(), String> {
    let file = member.path.rsplit('/').next().unwrap_or_default();
    let Some((_, extension)) = file.split_once('.') else { return Ok(()) };
    if files::is_hidden(file) {
        return Ok(());
    }
    let key = &member.path[..member.path.len() - extension.len() - 1];
    let range = MemberRange::new(member.offset, member.bytes)
        .ok_or_else(|| format!("{} is too large, or lies too far behind", member.path))?;
    if samples.last().is_none_or(|sample| sample.key != key) {
        samples.push(ScannedSample { key: key.to_owned(), first: range, ..ScannedSample::default() });
    }
    let number = samples.len() - 1;
    let sample = &mut samples[number];
    let taken = match extension.to_ascii_lowercase().as_str() {
        "jpg" | "jpeg" | "png" => sample.image.replace(range).is_some(),
        "seg.png" => sample.mask.replace(range).is_some(),
        "cls" => {
            let taken = classes.last().is_some_and(|(last, _)| *last == number);
            classes.push((number, range));
            taken
        }
        _ => false,
    };
    if taken {
        sample.problem = Some(format!("has two members for one thing: .{extension}"));
    }
    Ok(())
}

fn read_class(read_at: ReadAt<'_>, range: MemberRange) -> Result<u32, String> {
    if u64::from(range.1) > LARGEST_CLASS {
        return Err(format!("its .cls has {} bytes, too many for a number", range.1));
    }
    let mut text = vec![0; range.1 as usize];
    read_at(range.offset(), &mut text).map_err(|error| error.to_string())?;
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
fn probe(read_at: ReadAt<'_>, range: MemberRange, scratch: &mut Scratch) -> Result<(), String> {
    let bytes = u64::from(range.1);
    if bytes > LARGEST_FILE {
        return Err(format!("the file has {bytes} bytes, more than {LARGEST_FILE}"));
    }
    let mut within = |offset: u64, out: &mut [u8]| {
        read_at(range.offset() + offset, out).map_err(|error: io::Error| error.to_string())
    };
    let Scratch { encoded, decoded, images, .. } = scratch;
    images.probe(&mut within, bytes, encoded, decoded).map(|_| ())
}
