//! Tar shards: see [`crate::shards`]. Samples are read in place, or from cached copies of remote shards; only
//! the index is in memory.

use std::path::Path;

use sha2::{Digest, Sha256};

use super::label_encoding::decode_index_mask;
use crate::dataset::{
    Dataset, FileDetail, Groups, RegionRequest, Sample, Scratch, StoredFile, TargetKind, reject_damaged,
};
use crate::datasets::entry::{DatasetEntry, OpenOptions};
use crate::datasets::split::Split;
use crate::decode::{self, Decoded};
use crate::error::DataError;
use crate::geometry::Region;
use crate::shards::{
    self, DamagedSample, INDEX_FILE, MemberRange, Shard, ShardIndex, ShardLocation, ShardSource,
};
use crate::transform::pixels::{Normalisation, PixelOrder};

const NAME: &str = "shards";

/// The registry entry.
pub static ENTRY: DatasetEntry = DatasetEntry {
    name: NAME,
    summary: "tar shards (WebDataset), packed by `stratus data shard` or other tools: train-*.tar, val-*.tar",
    open: |root, split, options| Ok(Box::new(Shards::open(root, split, options)?)),
    files: &[],
    mirrors: &[],
};

/// One split of a data set in tar shards.
#[derive(Debug)]
pub struct Shards {
    source: ShardSource,
    classes: Vec<String>,
    shape: Option<[usize; 3]>,
    normalisation: Normalisation,
    masks: bool,
    target_kind: Option<TargetKind>,
    /// The first sample of each shard.
    starts: Vec<u32>,
    len: usize,
    /// The number of shards whose samples are shuffled together.
    window: usize,
    damaged: Vec<(u32, String)>,
    /// The names of the damaged samples.
    names: Vec<String>,
}

impl Shards {
    /// Opens a split: by the index, whose lengths are compared with the shards, or without one by the headers
    /// of all shards. Then the beginning and end of every image are checked, unless `options.verify` is off.
    ///
    /// # Errors
    ///
    /// [`DataError`]: no shards of this split; shards that differ from the index; damaged samples, with their
    /// number and the first few.
    pub fn open(root: &Path, split: Split, options: &OpenOptions) -> Result<Self, DataError> {
        let location = ShardLocation::parse(root, options.retry_policy())?;
        let root = location.display_path();
        let (index, problems) = match (location.index()?, &location) {
            (Some(index), _) => (index, None),
            (None, ShardLocation::Folder(folder)) => {
                let scanned = shards::scan(folder, options.verify)?;
                (scanned.index, Some(scanned.problems))
            }
            (None, ShardLocation::Store(_)) => {
                let problem = format!(
                    "no `{INDEX_FILE}`, which remote shards need; write it where the shards are with \
                     `stratus data shard --index-only`"
                );
                return Err(DataError::Invalid { path: root, problem });
            }
        };
        let ShardIndex { classes, shape, normalisation, masks, target_kind, mut splits, .. } = index;
        let names = shards::split_names(split);
        let found = names.iter().find_map(|&name| splits.remove_entry(name));
        let Some((name, shards)) = found.filter(|(_, shards)| !shards.is_empty()) else {
            let names: Vec<String> = names.iter().map(|name| format!("{name}-*.tar")).collect();
            let problem = format!("no shards named {}", names.join(" or "));
            return Err(DataError::Invalid { path: root, problem });
        };
        let mut len = 0;
        let mut starts = Vec::with_capacity(shards.len());
        for shard in &shards {
            starts.push(len as u32);
            len += shard.samples();
        }
        if u32::try_from(len).is_err() {
            let problem = format!("the `{name}` shards have {len} samples, more than {}", u32::MAX);
            return Err(DataError::Invalid { path: root, problem });
        }
        let mut set = Self {
            source: ShardSource::new(location, shards, split, options.shuffle_shards.max(1), options)?,
            classes,
            shape,
            normalisation,
            masks,
            target_kind,
            starts,
            len,
            window: options.shuffle_shards.max(1),
            damaged: Vec::new(),
            names: Vec::new(),
        };
        let problems = match problems {
            Some(mut problems) => problems.remove(&name).unwrap_or_default(),
            None => set.compare_lengths(&root, options)?,
        };
        for DamagedSample { sample, name, problem } in problems {
            set.damaged.push((sample, problem));
            set.names.push(name);
        }
        if !options.skip_damaged {
            reject_damaged(&set, split)?;
        }
        Ok(set)
    }

    /// Compares the lengths of the shards with the index. If damaged samples are skipped, returns the samples
    /// beyond the end of a shard.
    fn compare_lengths(&self, root: &Path, options: &OpenOptions) -> Result<Vec<DamagedSample>, DataError> {
        let (mut mismatches, mut beyond) = (Vec::new(), Vec::new());
        let lengths = self.source.lengths()?.unwrap_or_default();
        for ((number, shard), length) in self.source.shards().iter().enumerate().zip(lengths) {
            if length == shard.bytes {
                continue;
            }
            let problem = format!("has {length} bytes, but {} in the index", shard.bytes);
            for (at, image) in shard.images.iter().enumerate() {
                let mask = shard.masks.get(at).copied().unwrap_or_default();
                if ![*image, mask].iter().all(|range| shard.is_within(*range, length)) {
                    let sample = self.starts[number] + at as u32;
                    let name = self.sample_name(sample as usize);
                    beyond.push(DamagedSample { sample, name, problem: format!("the shard {problem}") });
                }
            }
            mismatches.push((self.source.name(shard), problem));
        }
        // Remote shards of the wrong length are never fetched.
        if mismatches.is_empty() || options.skip_damaged && !self.source.is_remote() {
            return Ok(beyond);
        }
        let count = mismatches.len();
        mismatches.truncate(shards::MAX_LISTED_PROBLEMS);
        Err(DataError::BadShards { path: root.to_owned(), count, listed: mismatches })
    }

    /// The index of the shard that holds a sample, the shard, and the position of the sample in it.
    fn locate(&self, index: usize) -> Result<(usize, &Shard, usize), DataError> {
        if index >= self.len {
            return Err(DataError::SampleOutOfRange { dataset: NAME.to_owned(), index, len: self.len });
        }
        // The first shard begins with sample 0, so the result is at least 1.
        let number = self.starts.partition_point(|&first| first as usize <= index) - 1;
        Ok((number, &self.source.shards()[number], index - self.starts[number] as usize))
    }

    fn bad_sample(&self, index: usize, problem: String) -> DataError {
        DataError::BadSample { sample: self.sample_name(index), problem }
    }

    /// The index in `damaged` of a sample, if it is damaged.
    fn damaged_position(&self, index: usize) -> Option<usize> {
        self.damaged.binary_search_by_key(&index, |(sample, _)| *sample as usize).ok()
    }

    /// Reads a sample's image file.
    fn read_image(&self, index: usize, out: &mut Vec<u8>) -> Result<(usize, &Shard, usize), DataError> {
        let (number, shard, at) = self.locate(index)?;
        if let Some(known) = self.damaged_position(index) {
            return Err(self.bad_sample(index, self.damaged[known].1.clone()));
        }
        self.source.read(number, shard.images[at], out)?;
        Ok((number, shard, at))
    }
}

impl Dataset for Shards {
    fn name(&self) -> &str {
        NAME
    }

    fn len(&self) -> usize {
        self.len
    }

    fn classes(&self) -> usize {
        self.classes.len()
    }

    fn class_name(&self, class: usize) -> String {
        self.classes.get(class).cloned().unwrap_or_else(|| class.to_string())
    }

    fn sample_shape(&self) -> Option<[usize; 3]> {
        self.shape
    }

    /// The shard, and the member name of the image if it can be read.
    fn sample_name(&self, index: usize) -> String {
        if let Some(known) = self.damaged_position(index) {
            return self.names[known].clone();
        }
        let Ok((number, shard, at)) = self.locate(index) else { return format!("sample {index}") };
        let name = self.source.name(shard);
        match self.source.member(number, shard.images[at]) {
            Some(member) => format!("{name}/{member}"),
            None => format!("{name}, sample {at}"),
        }
    }

    fn label(&self, index: usize) -> Result<u32, DataError> {
        let (_, shard, at) = self.locate(index)?;
        Ok(shard.labels.get(at).copied().unwrap_or(super::IGNORED))
    }

    fn target_kind(&self) -> Option<TargetKind> {
        self.target_kind
    }

    fn targets(&self, index: usize) -> Result<&[f32], DataError> {
        let (_, shard, at) = self.locate(index)?;
        let width = self.classes.len();
        Ok(shard.targets.get(at * width..(at + 1) * width).unwrap_or_default())
    }

    fn read<'a>(&'a self, index: usize, scratch: &'a mut Scratch) -> Result<Sample<'a>, DataError> {
        self.read_region(index, scratch, &|shape, _| Region::whole(shape))
    }

    fn read_region<'a>(
        &'a self,
        index: usize,
        scratch: &'a mut Scratch,
        region: RegionRequest<'_>,
    ) -> Result<Sample<'a>, DataError> {
        let Scratch { encoded, decoded, mask, images, .. } = scratch;
        let (number, shard, at) = self.read_image(index, encoded)?;
        let region = |image: &Decoded| region(image.shape, image.orientation);
        let image = images
            .decode_region(encoded, decoded, &region)
            .map_err(|problem| self.bad_sample(index, problem))?;
        let [height, width] = image.stored_size();
        let mask = match shard.masks.get(at) {
            Some(&range) => {
                self.source.read(number, range, encoded)?;
                let bad_mask = |problem| self.bad_sample(index, format!("mask: {problem}"));
                let labels = decode::decode_labels(encoded, mask).map_err(bad_mask)?;
                let size = [labels.height, labels.width];
                if size != [height, width] {
                    let problem =
                        format!("the mask is {}×{}, but the image is {height}×{width}", size[0], size[1]);
                    return Err(self.bad_sample(index, problem));
                }
                decode_index_mask(&labels, self.classes.len(), mask).map_err(bad_mask)?;
                Some(mask.as_slice())
            }
            None => None,
        };
        Ok(Sample {
            pixels: decoded,
            shape: image.shape,
            dct_scaled: image.dct_scaled,
            order: PixelOrder::Interleaved,
            orientation: image.orientation,
            label: shard.labels.get(at).copied().unwrap_or(super::IGNORED),
            mask,
        })
    }

    fn encoded<'a>(&self, index: usize, scratch: &'a mut Scratch) -> Result<Option<&'a [u8]>, DataError> {
        self.read_image(index, &mut scratch.encoded)?;
        Ok(Some(&scratch.encoded))
    }

    fn groups(&self) -> Option<Groups<'_>> {
        Some(Groups { starts: &self.starts, window: self.window })
    }

    fn announce_groups(&self, now: &[u32], next: &[u32]) {
        self.source.announce(now, next);
    }

    /// Reports only samples of shards without a recorded checksum.
    fn stored_files(
        &self,
        index: usize,
        scratch: &mut Scratch,
        detail: FileDetail,
        report: &mut dyn FnMut(StoredFile<'_>),
    ) {
        let Ok((number, shard, at)) = self.locate(index) else { return };
        if !shard.sha256.is_empty() {
            return;
        }
        let ranges = [("image", shard.images.get(at)), ("mask", shard.masks.get(at))];
        for (kind, range) in ranges.into_iter().filter_map(|(kind, range)| Some((kind, *range?))) {
            let path = format!("{}/{kind} {at}", shard.name);
            let is_read = detail == FileDetail::Content
                && self.source.read(number, range, &mut scratch.encoded).is_ok();
            let content = is_read.then_some(scratch.encoded.as_slice());
            report(StoredFile { path: &path, bytes: Some(u64::from(range.1)), content });
        }
    }

    fn archives(&self) -> Vec<(String, u64, Option<String>)> {
        let sha256 = |shard: &Shard| (!shard.sha256.is_empty()).then(|| shard.sha256.to_ascii_lowercase());
        let shards = self.source.shards().iter();
        shards.map(|shard| (shard.name.clone(), shard.bytes, sha256(shard))).collect()
    }

    fn hash_memory(&self, hash: &mut Sha256) {
        for shard in self.source.shards() {
            for MemberRange(blocks, bytes) in shard.images.iter().chain(&shard.masks) {
                hash.update([blocks.to_le_bytes(), bytes.to_le_bytes()].as_flattened());
            }
        }
    }

    fn damaged(&self) -> &[(u32, String)] {
        &self.damaged
    }

    fn verify_files(&self) -> Result<Vec<(String, String)>, DataError> {
        let mut damaged = Vec::new();
        let shards = self.source.shards().iter().enumerate();
        for (number, shard) in shards.filter(|(_, shard)| !shard.sha256.is_empty()) {
            let (bytes, sha256) = self.source.digest(number)?;
            if bytes != shard.bytes || !sha256.eq_ignore_ascii_case(&shard.sha256) {
                let problem = format!(
                    "has {bytes} bytes and the SHA-256 {sha256}, but the index has {} bytes and {}",
                    shard.bytes, shard.sha256
                );
                damaged.push((self.source.name(shard), problem));
            }
        }
        Ok(damaged)
    }

    fn has_masks(&self) -> bool {
        self.masks
    }

    fn normalisation(&self) -> Normalisation {
        self.normalisation.clone()
    }

    fn resident_bytes(&self) -> u64 {
        let text = |text: &String| (text.capacity() + size_of::<String>()) as u64;
        let shards: u64 = self.source.shards().iter().map(Shard::resident_bytes).sum();
        let classes: u64 = self.classes.iter().map(text).sum();
        let damaged: u64 = self.damaged.iter().map(|(_, problem)| 4 + text(problem)).sum();
        let names: u64 = self.names.iter().map(text).sum();
        shards + classes + damaged + names + 4 * self.starts.capacity() as u64
    }
}
