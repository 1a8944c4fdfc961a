//! The index of a folder of shards: `index.json`.
//!
//! ```json
//! {"format": "stratus-shards", "version": 1, "source": "folder", "classes": ["ant", "cat"], "shape": null,
//!  "normalisation": {"mean": [0.485, 0.456, 0.406], "std": [0.229, 0.224, 0.225]}, "masks": false,
//!  "splits": {"train": [{"name": "train-000000.tar", "bytes": 10240, "sha256": "…", "labels": [1, 0],
//!                        "images": [[1, 1913], [7, 2304]], "masks": []}]}}
//! ```
//!
//! `labels` holds the class of each sample, in the order of the shard. `images` and `masks` hold the position
//! of each file: 512-byte blocks before it, and its length in bytes. Data sets with masks have no labels. If
//! images were resized, `"resized": {"side": 256, "quality": 92, "images": 100, "bytes_before": 11300000,
//! "bytes": 3200000}` holds the settings, the number of resized images, and the sizes before and after.
//!
//! Data sets with several labels or numbers per sample have `"target_kind": "labels"` (or `"numbers"`), their
//! names in `classes`, and no labels. `targets` of a shard then holds `[N, T]` numbers, row by row, with
//! `null` for missing ones. The index's version is then 3.
//!
//! Sparse files, which other programs may have packed, are listed in their shard's `sparse`: `[[1, [{"at": 0,
//! "offset": 512, "bytes": 4096}]]]` has the blocks before a file, and the ranges that are stored: their
//! offsets in the file and in the shard, and their lengths. The index's version is then 2.

use std::collections::{BTreeMap, HashSet};
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::path::Path;

use serde::{Deserialize, Serialize};

use super::names::is_shard_name;
use super::resize::PackResizeReport;
use crate::archive::{BLOCK, SparseMap};
use crate::dataset::TargetKind;
use crate::error::DataError;
use crate::transform::pixels::Normalisation;

/// The index's file name.
pub const INDEX_FILE: &str = "index.json";
/// The maximum size of an index: about fifty million samples.
pub(super) const MAX_INDEX_BYTES: u64 = 1 << 30;
const FORMAT: &str = "stratus-shards";
const VERSION: u32 = 1;
/// The version of indices with sparse files, which readers of version 1 would read incorrectly.
const SPARSE_VERSION: u32 = 2;
/// The version of indices with targets.
const TARGETS_VERSION: u32 = 3;

/// The index of a folder of shards.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ShardIndex {
    format: String,
    version: u32,
    /// The data set that was packed, by its name in the registry.
    pub source: String,
    /// The names of the classes: label 0, 1, ….
    pub classes: Vec<String>,
    /// Channels, height, width of every image; `None` if they differ.
    pub shape: Option<[usize; 3]>,
    /// The mean and deviation commonly used with the data set.
    pub normalisation: Normalisation,
    /// True if samples have masks instead of labels.
    pub masks: bool,
    /// The kind of the targets, if samples have targets instead of labels or masks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target_kind: Option<TargetKind>,
    /// The resizing of images; not written if there was none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resized: Option<PackResizeReport>,
    /// The shards of each split, in order. Split names are the prefixes of shard names.
    pub splits: BTreeMap<String, Vec<Shard>>,
}

/// One archive.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Shard {
    /// The file name in the folder.
    pub name: String,
    /// The file's length.
    pub bytes: u64,
    /// SHA-256 of the file, hexadecimal.
    pub sha256: String,
    /// The class of each sample; empty if samples have masks or targets.
    pub labels: Vec<u32>,
    /// The targets of each sample, `[N, T]`; NaN if missing.
    #[serde(default, skip_serializing_if = "Vec::is_empty", with = "null_for_nan")]
    pub targets: Vec<f32>,
    /// The position of each image.
    pub images: Vec<MemberRange>,
    /// The position of each mask; empty without masks.
    pub masks: Vec<MemberRange>,
    /// The maps of sparse files, by the blocks before the file, ascending.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) sparse: Vec<(u32, SparseMap)>,
}

/// The position of a file in a shard: 512-byte blocks before it, and its length in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemberRange(pub u32, pub u32);

impl MemberRange {
    /// The offset of the file in bytes.
    #[must_use]
    pub fn offset(self) -> u64 {
        u64::from(self.0) * BLOCK
    }

    /// The position of `bytes` bytes at `offset`; `None` if the file exceeds 4 GiB or the shard 2 TiB.
    pub(super) fn new(offset: u64, bytes: u64) -> Option<Self> {
        Some(Self(u32::try_from(offset / BLOCK).ok()?, u32::try_from(bytes).ok()?))
    }
}

impl Shard {
    /// The number of samples.
    #[must_use]
    pub fn samples(&self) -> usize {
        self.images.len()
    }

    /// The map of a sparse file.
    pub(crate) fn sparse_map(&self, range: MemberRange) -> Option<&SparseMap> {
        let at = self.sparse.binary_search_by_key(&range.0, |(block, _)| *block).ok()?;
        Some(&self.sparse[at].1)
    }

    /// Returns whether a file ends within the first `length` bytes of the shard.
    pub(crate) fn is_within(&self, range: MemberRange, length: u64) -> bool {
        match self.sparse_map(range) {
            Some(map) => map.is_within(u64::from(range.1), length),
            None => range.offset() + u64::from(range.1) <= length,
        }
    }

    /// Frees unused capacity.
    pub(super) fn shrink(&mut self) {
        self.labels.shrink_to_fit();
        self.targets.shrink_to_fit();
        self.images.shrink_to_fit();
        self.masks.shrink_to_fit();
    }

    /// Memory in bytes.
    pub(crate) fn resident_bytes(&self) -> u64 {
        let ranges = size_of::<MemberRange>() * (self.images.capacity() + self.masks.capacity());
        let texts = self.name.capacity() + self.sha256.capacity();
        let maps: u64 = self.sparse.iter().map(|(_, map)| map.resident_bytes() + 24).sum();
        let numbers = 4 * (self.labels.capacity() + self.targets.capacity());
        (size_of::<Self>() + texts + numbers + ranges) as u64 + maps
    }

    fn check(&self, classes: usize, masks: bool, targets: Option<TargetKind>) -> Result<(), String> {
        if !is_shard_name(&self.name) {
            return Err("the name is not that of a .tar file in the folder".to_owned());
        }
        if self.sha256.len() != 64 || !self.sha256.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            return Err("`sha256` is not 64 hexadecimal digits".to_owned());
        }
        let samples = self.images.len();
        if samples == 0 {
            return Err("no samples".to_owned());
        }
        let expected = match (masks, targets) {
            (true, _) => (0, samples),
            (false, None) => (samples, 0),
            (false, Some(_)) => (0, 0),
        };
        let found = (self.labels.len(), self.masks.len());
        if found != expected {
            return Err(format!("{samples} images, but {} labels and {} masks", found.0, found.1));
        }
        let expected = if targets.is_some() { samples.checked_mul(classes) } else { Some(0) };
        if Some(self.targets.len()) != expected {
            return Err(format!("{samples} images of {classes} targets, but {} targets", self.targets.len()));
        }
        let is_invalid = |target: &f32| match targets {
            Some(TargetKind::Labels) => !target.is_nan() && !(0.0..=1.0).contains(target),
            _ => target.is_infinite(),
        };
        if let Some(at) = self.targets.iter().position(is_invalid) {
            return Err(format!("sample {} has the target {}", at / classes, self.targets[at]));
        }
        if let Some(at) = self.labels.iter().position(|&label| label as usize >= classes) {
            return Err(format!(
                "sample {at} has label {}, but there are {classes} classes",
                self.labels[at]
            ));
        }
        if !self.sparse.is_sorted_by_key(|(block, _)| *block) {
            return Err("sparse files are not in order".to_owned());
        }
        let ends_after = |range: &MemberRange| !self.is_within(*range, self.bytes);
        match self.images.iter().chain(&self.masks).position(ends_after) {
            Some(at) => Err(format!("sample {} is beyond the end of the shard", at % samples)),
            None => Ok(()),
        }
    }
}

impl ShardIndex {
    /// An index without shards.
    pub(super) fn new(
        source: &str,
        classes: Vec<String>,
        shape: Option<[usize; 3]>,
        normalisation: Normalisation,
        masks: bool,
    ) -> Self {
        let splits = BTreeMap::new();
        let (format, version, source) = (FORMAT.to_owned(), VERSION, source.to_owned());
        Self {
            format,
            version,
            source,
            classes,
            shape,
            normalisation,
            masks,
            target_kind: None,
            resized: None,
            splits,
        }
    }

    /// Reads the index of a folder; `None` if there is none.
    ///
    /// # Errors
    ///
    /// [`DataError`]: an unreadable or invalid file.
    pub fn read(folder: &Path) -> Result<Option<Self>, DataError> {
        let path = folder.join(INDEX_FILE);
        let unreadable = |cause| DataError::Unreadable { path: path.clone(), cause };
        let file = match File::open(&path) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(unreadable(error)),
        };
        let mut text = Vec::new();
        file.take(MAX_INDEX_BYTES + 1).read_to_end(&mut text).map_err(unreadable)?;
        Self::parse(&text, &path).map(Some)
    }

    /// Parses an index.
    ///
    /// # Errors
    ///
    /// [`DataError::Invalid`].
    pub(super) fn parse(text: &[u8], path: &Path) -> Result<Self, DataError> {
        let invalid = |problem| DataError::Invalid { path: path.to_owned(), problem };
        if text.len() as u64 > MAX_INDEX_BYTES {
            return Err(invalid(format!("larger than {MAX_INDEX_BYTES} bytes, too large for an index")));
        }
        let parsed: Result<Self, _> = serde_json::from_slice(text);
        let mut index = parsed.map_err(|error| invalid(format!("not an index of shards: {error}")))?;
        index.check().map_err(|problem| invalid(format!("invalid index: {problem}")))?;
        index.splits.values_mut().flatten().for_each(Shard::shrink);
        Ok(index)
    }

    fn check(&self) -> Result<(), String> {
        if self.format != FORMAT || !(VERSION..=TARGETS_VERSION).contains(&self.version) {
            let (format, version) = (&self.format, self.version);
            return Err(format!(
                "format is `{format}` {version}, expected `{FORMAT}` {VERSION} to {TARGETS_VERSION}"
            ));
        }
        if self.classes.is_empty() {
            return Err("no classes".to_owned());
        }
        if self.masks && self.target_kind.is_some() {
            return Err("both `masks` and `target_kind`".to_owned());
        }
        if !self.normalisation.is_valid(self.normalisation.mean.len()) || self.normalisation.mean.is_empty() {
            return Err("invalid `normalisation`".to_owned());
        }
        let mut names = HashSet::new();
        for shard in self.splits.values().flatten() {
            shard
                .check(self.classes.len(), self.masks, self.target_kind)
                .map_err(|problem| format!("shard `{}`: {problem}", shard.name))?;
            if !names.insert(shard.name.as_str()) {
                return Err(format!("duplicate shard `{}`", shard.name));
            }
        }
        for (split, shards) in &self.splits {
            let samples: u64 = shards.iter().map(|shard| shard.samples() as u64).sum();
            if u32::try_from(samples).is_err() {
                return Err(format!("split `{split}` has {samples} samples, more than {}", u32::MAX));
            }
        }
        Ok(())
    }

    /// Checks that an index of `samples` samples with `targets` targets each can be read again, as far as
    /// that is known before packing: a target takes two bytes at least.
    ///
    /// # Errors
    ///
    /// A sentence with the sizes.
    pub(super) fn check_target_count(samples: usize, targets: usize) -> Result<(), String> {
        let bytes = 2 * (samples as u64).saturating_mul(targets as u64);
        if bytes <= MAX_INDEX_BYTES {
            return Ok(());
        }
        Err(format!(
            "{targets} labels or numbers of {samples} images exceed the index of shards, which has at most \
             {MAX_INDEX_BYTES} bytes; select columns with data.columns, or do not pack this data set"
        ))
    }

    /// Declares the targets that samples have instead of labels.
    pub(super) fn set_target_kind(&mut self, kind: Option<TargetKind>) {
        if kind.is_some() {
            self.version = TARGETS_VERSION;
        }
        self.target_kind = kind;
    }

    /// Adds a split's shards.
    pub(super) fn push(&mut self, split: &str, shard: Shard) {
        if !shard.sparse.is_empty() {
            self.version = self.version.max(SPARSE_VERSION);
        }
        self.splits.entry(split.to_owned()).or_default().push(shard);
    }

    /// Writes the index into a folder, atomically.
    pub(super) fn write(&self, folder: &Path) -> Result<(), DataError> {
        let (path, part) = (folder.join(INDEX_FILE), folder.join(format!("{INDEX_FILE}.part")));
        let unwritable = |cause| DataError::Unwritable { path: path.clone(), cause };
        let text = self.text().map_err(unwritable)?;
        let write = || {
            let mut file = File::create(&part)?;
            file.write_all(&text)?;
            file.sync_all()?;
            fs::rename(&part, &path)
        };
        write().map_err(unwritable)
    }

    /// The serialised index.
    ///
    /// # Errors
    ///
    /// If it were too large to be read again.
    pub(super) fn text(&self) -> io::Result<Vec<u8>> {
        let mut text = serde_json::to_vec(self)?;
        text.push(b'\n');
        if text.len() as u64 > MAX_INDEX_BYTES {
            let problem = format!(
                "the index would have {} bytes, more than {MAX_INDEX_BYTES}; pack fewer images, labels or \
                 numbers",
                text.len()
            );
            return Err(io::Error::other(problem));
        }
        Ok(text)
    }
}

/// Numbers with `null` for NaN, which JSON does not have.
mod null_for_nan {
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    pub(super) fn serialize<S: Serializer>(numbers: &[f32], serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(numbers.iter().map(|number| Number(*number)))
    }

    /// A number, or `null` for NaN. Small whole numbers are written without a decimal point: most targets are
    /// labels, which then take two bytes.
    struct Number(f32);

    impl Serialize for Number {
        fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
            let Self(number) = *self;
            let is_negative_zero = number == 0.0 && number.is_sign_negative();
            if number.is_nan() {
                serializer.serialize_none()
            } else if number.fract() == 0.0 && number.abs() < MAX_WHOLE && !is_negative_zero {
                serializer.serialize_i32(number as i32)
            } else {
                serializer.serialize_f32(number)
            }
        }
    }

    /// Whole numbers below this are exact in `f32`.
    const MAX_WHOLE: f32 = 16_777_216.0;

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<f32>, D::Error> {
        let numbers = Vec::<Option<f32>>::deserialize(deserializer)?;
        Ok(numbers.into_iter().map(|number| number.unwrap_or(f32::NAN)).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shard(name: &str, samples: u32) -> Shard {
        Shard {
            name: name.to_owned(),
            bytes: u64::from(samples) * 120_000,
            sha256: "0123456789abcdef".repeat(4),
            labels: (0..samples).map(|sample| sample * 7 % 3).collect(),
            targets: Vec::new(),
            images: (0..samples).map(|sample| MemberRange(1 + sample * 230, 110_000 + sample)).collect(),
            masks: Vec::new(),
            sparse: Vec::new(),
        }
    }

    fn index(shards: Vec<Shard>) -> ShardIndex {
        let classes = (0..3).map(|class| format!("class {class}")).collect();
        let mut index = ShardIndex::new("folder", classes, None, Normalisation::unit(3), false);
        index.splits.insert("train".to_owned(), shards);
        index
    }

    fn error_after(change: impl FnOnce(&mut ShardIndex)) -> String {
        let mut index = index(vec![shard("train-000000.tar", 4), shard("train-000001.tar", 2)]);
        change(&mut index);
        let text = index.text().unwrap();
        ShardIndex::parse(&text, Path::new("index.json")).unwrap_err().to_string()
    }

    fn first(index: &mut ShardIndex) -> &mut Shard {
        &mut index.splits.get_mut("train").unwrap()[0]
    }

    #[test]
    fn index_round_trips() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(ShardIndex::read(folder.path()).unwrap(), None);
        let index = index(vec![shard("train-000000.tar", 4), shard("train-000001.tar", 2)]);
        index.write(folder.path()).unwrap();
        assert_eq!(ShardIndex::read(folder.path()).unwrap(), Some(index));
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    }

    #[test]
    fn rejects_invalid_indices() {
        let messages = [
            error_after(|index| index.version = 4),
            error_after(|index| index.classes.clear()),
            error_after(|index| first(index).name = "../train-000000.tar".to_owned()),
            error_after(|index| first(index).name = "train-000001.tar".to_owned()),
            error_after(|index| first(index).sha256.truncate(60)),
            error_after(|index| first(index).labels[2] = 3),
            error_after(|index| first(index).labels.truncate(3)),
            error_after(|index| first(index).images[3] = MemberRange(u32::MAX, u32::MAX)),
            error_after(|index| index.normalisation.std[0] = 0.0),
        ];
        let expected = [
            "format is `stratus-shards` 4, expected `stratus-shards` 1 to 3",
            "no classes",
            "shard `../train-000000.tar`: the name is not that of a .tar file in the folder",
            "duplicate shard `train-000001.tar`",
            "shard `train-000000.tar`: `sha256` is not 64 hexadecimal digits",
            "shard `train-000000.tar`: sample 2 has label 3, but there are 3 classes",
            "shard `train-000000.tar`: 4 images, but 3 labels and 0 masks",
            "shard `train-000000.tar`: sample 3 is beyond the end of the shard",
            "invalid `normalisation`",
        ];
        for (message, expected) in messages.iter().zip(expected) {
            assert_eq!(message, &format!("index.json: invalid index: {expected}"));
        }
        let message = ShardIndex::parse(b"{\"format\": 1}", Path::new("index.json")).unwrap_err().to_string();
        assert!(message.starts_with("index.json: not an index of shards: invalid type"), "{message}");
    }

    #[test]
    fn targets_are_written_exactly_and_briefly() {
        let targets = vec![0.0, 1.0, f32::NAN, 0.5, -3.0, -0.0, 1e-7, 3e38, 16_777_215.0, 33_554_432.0];
        let mut index = index(Vec::new());
        index.set_target_kind(Some(TargetKind::Numbers));
        index.classes = vec!["number".to_owned()];
        index.push("train", Shard { labels: Vec::new(), targets: targets.clone(), ..shard("a.tar", 10) });
        let text = index.text().unwrap();
        let written = String::from_utf8(text.clone()).unwrap();
        assert!(
            written.contains("\"targets\":[0,1,null,0.5,-3,-0.0,1e-7,3e+38,16777215,33554432.0]"),
            "{written}"
        );
        let read = ShardIndex::parse(&text, Path::new("index.json")).unwrap();
        let bits = |targets: &[f32]| targets.iter().map(|target| target.to_bits()).collect::<Vec<_>>();
        assert_eq!(bits(&read.splits["train"][0].targets), bits(&targets));
    }

    #[test]
    fn indices_too_large_to_be_read_are_refused_before_packing() {
        assert_eq!(ShardIndex::check_target_count(13_000_000, 40), Ok(()));
        let problem = ShardIndex::check_target_count(13_500_000, 40).unwrap_err();
        assert!(problem.starts_with("40 labels or numbers of 13500000 images exceed the index"), "{problem}");
    }

    /// ImageNet: 1.3 million samples in a thousand shards.
    #[test]
    fn a_million_samples_fit_in_twenty_megabytes() {
        let text =
            index((0..1000).map(|at| shard(&format!("train-{at:06}.tar"), 1300)).collect()).text().unwrap();
        let started = std::time::Instant::now();
        let index = ShardIndex::parse(&text, Path::new("index.json")).unwrap();
        println!("{} bytes opened in {:?}", text.len(), started.elapsed());
        let bytes: u64 = index.splits["train"].iter().map(Shard::resident_bytes).sum();
        // 4 + 8 bytes per sample, and 300 per shard.
        assert!(bytes < 1_300_000 * 12 + 1000 * 300, "{bytes}");
        assert!(text.len() < 40 << 20, "{}", text.len());
    }
}
