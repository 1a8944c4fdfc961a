//! Tar shards: see [`crate::shards`]. Samples are read from the shards in place, or where these lie elsewhere
//! from their copies; only the index is in memory.

use std::path::Path;

use sha2::{Digest, Sha256};

use super::coding::mask_of_numbers;
use super::{
    Dataset, DatasetEntry, FileDetail, Groups, OpenOptions, RegionRequest, Sample, Scratch, Split,
    StoredFile, refuse_damaged,
};
use crate::decode::{self, Decoded};
use crate::error::DataError;
use crate::shards::{self, INDEX_FILE, Index, MemberRange, Problem, Shard, ShardLocation, Source};
use crate::transform::frame::Region;
use crate::transform::pixels::{Normalisation, PixelOrder};

const NAME: &str = "shards";

/// The registry's entry.
pub static ENTRY: DatasetEntry = DatasetEntry {
    name: NAME,
    summary: "tar shards (WebDataset): what `stratus data shard` packs, or others: train-*.tar, val-*.tar",
    open: |root, split, options| Ok(Box::new(Shards::open(root, split, options)?)),
    files: &[],
    mirrors: &[],
};

/// One split of a data set in tar shards.
#[derive(Debug)]
pub struct Shards {
    source: Source,
    classes: Vec<String>,
    shape: Option<[usize; 3]>,
    normalisation: Normalisation,
    masks: bool,
    /// The first sample of each shard.
    firsts: Vec<u32>,
    len: usize,
    /// Shards whose samples are shuffled among each other.
    window: usize,
    damaged: Vec<(u32, String)>,
    /// What the damaged samples are called.
    names: Vec<String>,
}

impl Shards {
    /// Opens a split: by the index, with which the shards' lengths are compared, or where there is none by
    /// all shards' headers. Every image's beginning and end are then looked at, unless `options.verify` is
    /// off.
    ///
    /// # Errors
    ///
    /// [`DataError`]: there are no shards of this split; shards that are not what the index says; damaged
    /// samples, all counted and the first listed.
    pub fn open(root: &Path, split: Split, options: &OpenOptions) -> Result<Self, DataError> {
        let location = ShardLocation::of(root, options.retry_policy())?;
        let root = location.shown();
        let (index, problems) = match (location.index()?, &location) {
            (Some(index), _) => (index, None),
            (None, ShardLocation::Folder(folder)) => {
                let scanned = shards::scan(folder, options.verify)?;
                (scanned.index, Some(scanned.problems))
            }
            (None, ShardLocation::Store(_)) => {
                let problem = format!(
                    "holds no `{INDEX_FILE}`, which shards in a store need; write it where they are, with \
                     `stratus data shard --index-only`"
                );
                return Err(DataError::Damaged { path: root, problem });
            }
        };
        let Index { classes, shape, normalisation, masks, mut splits, .. } = index;
        let names = shards::split_names(split);
        let found = names.iter().find_map(|&name| splits.remove_entry(name));
        let Some((name, shards)) = found.filter(|(_, shards)| !shards.is_empty()) else {
            let names: Vec<String> = names.iter().map(|name| format!("{name}-*.tar")).collect();
            let problem = format!("holds no shards {}", names.join(" or "));
            return Err(DataError::Damaged { path: root, problem });
        };
        let mut len = 0;
        let mut firsts = Vec::with_capacity(shards.len());
        for shard in &shards {
            firsts.push(len as u32);
            len += shard.samples();
        }
        if u32::try_from(len).is_err() {
            let problem = format!("its `{name}` shards have {len} samples, more than {}", u32::MAX);
            return Err(DataError::Damaged { path: root, problem });
        }
        let mut set = Self {
            source: Source::new(location, shards, split, options.shuffle_shards.max(1), options)?,
            classes,
            shape,
            normalisation,
            masks,
            firsts,
            len,
            window: options.shuffle_shards.max(1),
            damaged: Vec::new(),
            names: Vec::new(),
        };
        let problems = match problems {
            Some(mut problems) => problems.remove(&name).unwrap_or_default(),
            None => set.compare_lengths(&root, options)?,
        };
        for Problem { sample, name, problem } in problems {
            set.damaged.push((sample, problem));
            set.names.push(name);
        }
        if !options.skip_damaged {
            refuse_damaged(&set, split)?;
        }
        Ok(set)
    }

    /// Compares the shards' lengths with the index; where damaged samples are skipped, gives those that lie
    /// beyond a shard's end.
    fn compare_lengths(&self, root: &Path, options: &OpenOptions) -> Result<Vec<Problem>, DataError> {
        let (mut wrong, mut beyond) = (Vec::new(), Vec::new());
        let lengths = self.source.lengths()?.unwrap_or_default();
        for ((number, shard), length) in self.source.shards().iter().enumerate().zip(lengths) {
            if length == shard.bytes {
                continue;
            }
            let problem = format!("has {length} bytes, {} in the index", shard.bytes);
            for (at, image) in shard.images.iter().enumerate() {
                let mask = shard.masks.get(at).copied().unwrap_or_default();
                if ![*image, mask].iter().all(|range| shard.is_within(*range, length)) {
                    let sample = self.firsts[number] + at as u32;
                    let name = self.sample_name(sample as usize);
                    beyond.push(Problem { sample, name, problem: format!("the shard {problem}") });
                }
            }
            wrong.push((self.source.name(shard), problem));
        }
        // Where shards are fetched, one that is not whole never arrives.
        if wrong.is_empty() || options.skip_damaged && !self.source.is_remote() {
            return Ok(beyond);
        }
        let count = wrong.len();
        wrong.truncate(shards::LISTED);
        Err(DataError::BadShards { path: root.to_owned(), count, listed: wrong })
    }

    /// The number of the shard that holds a sample, the shard, and the sample's place in it.
    fn locate(&self, index: usize) -> Result<(usize, &Shard, usize), DataError> {
        if index >= self.len {
            return Err(DataError::NoSuchSample { dataset: NAME.to_owned(), index, len: self.len });
        }
        // The first shard begins with sample 0.
        let number = self.firsts.partition_point(|&first| first as usize <= index) - 1;
        Ok((number, &self.source.shards()[number], index - self.firsts[number] as usize))
    }

    fn bad(&self, index: usize, problem: String) -> DataError {
        DataError::BadSample { sample: self.sample_name(index), problem }
    }

    /// What is known to be wrong with a sample.
    fn problem(&self, index: usize) -> Option<usize> {
        self.damaged.binary_search_by_key(&index, |(sample, _)| *sample as usize).ok()
    }

    /// Reads a sample's image file.
    fn read_image(&self, index: usize, out: &mut Vec<u8>) -> Result<(usize, &Shard, usize), DataError> {
        let (number, shard, at) = self.locate(index)?;
        if let Some(known) = self.problem(index) {
            return Err(self.bad(index, self.damaged[known].1.clone()));
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

    /// The shard, and the name that the image has in it where that can be read.
    fn sample_name(&self, index: usize) -> String {
        if let Some(known) = self.problem(index) {
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

    fn read<'a>(&'a self, index: usize, scratch: &'a mut Scratch) -> Result<Sample<'a>, DataError> {
        self.read_region(index, scratch, &|shape, _| Region::of(shape))
    }

    fn read_region<'a>(
        &'a self,
        index: usize,
        scratch: &'a mut Scratch,
        wanted: RegionRequest<'_>,
    ) -> Result<Sample<'a>, DataError> {
        let Scratch { encoded, decoded, mask, images, .. } = scratch;
        let (number, shard, at) = self.read_image(index, encoded)?;
        let wanted = |image: &Decoded| wanted(image.shape, image.orientation);
        let image =
            images.decode_region(encoded, decoded, &wanted).map_err(|problem| self.bad(index, problem))?;
        let [height, width] = image.stored_size();
        let mask = match shard.masks.get(at) {
            Some(&range) => {
                self.source.read(number, range, encoded)?;
                let bad = |problem| self.bad(index, format!("its mask: {problem}"));
                let labels = decode::decode_labels(encoded, mask).map_err(bad)?;
                let size = [labels.height, labels.width];
                if size != [height, width] {
                    let problem = format!("the mask is {}×{}, the image {height}×{width}", size[0], size[1]);
                    return Err(self.bad(index, problem));
                }
                mask_of_numbers(&labels, self.classes.len(), mask).map_err(bad)?;
                Some(mask.as_slice())
            }
            None => None,
        };
        Ok(Sample {
            pixels: decoded,
            shape: image.shape,
            reduced: image.reduced,
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
        Some(Groups { firsts: &self.firsts, window: self.window })
    }

    fn expect(&self, now: &[u32], next: &[u32]) {
        self.source.expect(now, next);
    }

    /// Samples of shards whose content no index records.
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

    fn damaged_files(&self) -> Result<Vec<(String, String)>, DataError> {
        let mut damaged = Vec::new();
        let shards = self.source.shards().iter().enumerate();
        for (number, shard) in shards.filter(|(_, shard)| !shard.sha256.is_empty()) {
            let (bytes, sha256) = self.source.digest(number)?;
            if bytes != shard.bytes || !sha256.eq_ignore_ascii_case(&shard.sha256) {
                let problem = format!(
                    "has {bytes} bytes with the SHA-256 {sha256}; the index says {} with {}",
                    shard.bytes, shard.sha256
                );
                damaged.push((self.source.name(shard), problem));
            }
        }
        Ok(damaged)
    }

    fn masks(&self) -> bool {
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
        shards + classes + damaged + names + 4 * self.firsts.capacity() as u64
    }
}
