//! Packing a data set into shards. The same data set, options and seed give the same bytes.
//!
//! Files are copied unchanged, or resized; samples without a file are encoded as PNG. A marker file in the
//! folder shows that packing is unfinished. The index is written last. Interrupted packing is detected and
//! starts over.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};
use stratus_base::checksum::hex;
use stratus_random::{Purpose, Stream};
use tar::Header;

use super::index::{MemberRange, Shard, ShardIndex};
use super::names::EXTENSION;
use super::png::encode;
use super::resize::{ImageShrinker, PackResize, PackResizeReport};
use super::target::PackTarget;
use crate::archive::BLOCK;
use crate::dataset::{Dataset, Sample, Scratch};
use crate::datasets::entry::OpenOptions;
use crate::datasets::registry;
use crate::datasets::split::Split;
use crate::decode;
use crate::error::DataError;
use crate::geometry::Orientation;
use crate::transform::pixels::PixelOrder;

/// The end of an archive: two blocks of zeros.
const END_OF_ARCHIVE: [u8; 2 * BLOCK as usize] = [0; 2 * BLOCK as usize];

/// Options for packing a data set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PackOptions {
    /// The maximum size of a shard in bytes, unless a single sample is larger.
    pub shard_bytes: u64,
    /// The seed that shuffles the samples, so that a shard contains many classes; `None` keeps the order of
    /// the data set.
    pub shuffle: Option<u64>,
    /// The resizing of images; `None` keeps them unchanged.
    pub resize: Option<PackResize>,
    /// True if existing shards are replaced.
    pub overwrite: bool,
    /// True if unreadable samples are skipped instead of being an error.
    pub skip_damaged: bool,
    /// The folder for a shard until it is uploaded.
    pub staging: PathBuf,
}

impl Default for PackOptions {
    fn default() -> Self {
        Self {
            shard_bytes: 256 << 20,
            shuffle: Some(1),
            resize: None,
            overwrite: false,
            skip_damaged: false,
            staging: std::env::temp_dir(),
        }
    }
}

/// A split to pack.
pub struct PackSplit {
    /// The split, which names the shards.
    pub split: Split,
    /// The samples.
    pub set: Box<dyn Dataset>,
}

/// The result of packing a split.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PackedSplit {
    /// The split.
    pub split: Split,
    /// The number of archives.
    pub shards: usize,
    /// The number of samples in them.
    pub samples: usize,
    /// The number of skipped unreadable samples.
    pub skipped: usize,
    /// The size of all archives in bytes.
    pub bytes: u64,
    /// The resizing of images.
    pub resized: Option<PackResizeReport>,
}

/// Progress of packing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PackProgress<'a> {
    /// The shard that was completed.
    pub shard: &'a str,
    /// The number of packed samples of the split.
    pub samples: usize,
    /// The number of samples of the split.
    pub total: usize,
}

/// Opens the splits of a data set: training, validation, and test where it differs from validation.
///
/// # Errors
///
/// Like [`registry::open`].
pub fn open_splits(name: &str, root: &Path, options: &OpenOptions) -> Result<Vec<PackSplit>, DataError> {
    let mut parts: Vec<PackSplit> = Vec::new();
    for split in [Split::Train, Split::Validation, Split::Test] {
        let set = registry::open(name, root, split, options)?;
        let mut known = false;
        for part in &parts {
            known |= is_same_split(part.set.as_ref(), set.as_ref())?;
        }
        if !known {
            parts.push(PackSplit { split, set });
        }
    }
    Ok(parts)
}

/// Returns whether two splits hold the same data: data sets published in two splits use the second for
/// validation and test.
fn is_same_split(a: &dyn Dataset, b: &dyn Dataset) -> Result<bool, DataError> {
    if a.len() != b.len() || a.sample_name(0) != b.sample_name(0) {
        return Ok(false);
    }
    let (mut left, mut right) = (Scratch::default(), Scratch::default());
    match (a.read(0, &mut left), b.read(0, &mut right)) {
        (Ok(left), Ok(right)) => Ok(left == right),
        (
            Err(DataError::BadSample { problem: left, .. }),
            Err(DataError::BadSample { problem: right, .. }),
        ) => Ok(left == right),
        (Ok(_), Err(DataError::BadSample { .. })) | (Err(DataError::BadSample { .. }), Ok(_)) => Ok(false),
        (Err(error), _) | (_, Err(error)) => Err(error),
    }
}

/// Packs the splits of a data set into shards in `root`, a folder, which is created, or the address of a
/// store, and writes the index.
///
/// # Errors
///
/// [`DataError::DestinationInUse`]; splits with different classes; samples that cannot be read;
/// [`DataError::Unwritable`].
pub fn pack(
    parts: &[PackSplit],
    root: &Path,
    options: &PackOptions,
    progress: &mut dyn FnMut(PackProgress<'_>),
) -> Result<Vec<PackedSplit>, DataError> {
    let first = parts.first().ok_or_else(|| DataError::Empty { origin: "no splits to pack".to_owned() })?;
    let set = first.set.as_ref();
    let classes: Vec<String> = (0..set.classes()).map(|class| set.class_name(class)).collect();
    for part in parts {
        let same = part.set.classes() == classes.len()
            && part.set.has_masks() == set.has_masks()
            && part.set.target_kind() == set.target_kind()
            && classes.iter().enumerate().all(|(class, name)| part.set.class_name(class) == *name);
        if !same {
            let problem = format!("the {} and {} splits have different classes", first.split, part.split);
            return Err(DataError::Invalid { path: PathBuf::from(set.name()), problem });
        }
    }
    if set.target_kind().is_some() {
        let samples = parts.iter().map(|part| part.set.len()).sum();
        ShardIndex::check_target_count(samples, classes.len())
            .map_err(|problem| DataError::Invalid { path: PathBuf::from(set.name()), problem })?;
    }
    if options.resize.is_some() && set.has_masks() {
        let problem = "cannot resize data sets with masks; remove this option".to_owned();
        return Err(DataError::InvalidOption { key: "--resize", problem });
    }
    let shapes = parts.iter().map(|part| part.set.sample_shape());
    let shape = set.sample_shape().filter(|shape| shapes.clone().all(|other| other == Some(*shape)));
    // Resized images have another shape.
    let fits = |[_, height, width]: &[usize; 3]| {
        options.resize.is_none_or(|resize| resize.side >= *height.min(width))
    };
    let shape = shape.filter(fits);
    let mut index = ShardIndex::new(set.name(), classes, shape, set.normalisation(), set.has_masks());
    index.set_target_kind(set.target_kind());
    let target = PackTarget::prepare(root, options.overwrite, &options.staging)?;
    let mut packed = Vec::new();
    for part in parts {
        let (shards, skipped, resized) = pack_split(part, &target, options, progress)?;
        if let Some(resized) = &resized {
            let all = index.resized.get_or_insert(PackResizeReport {
                images: 0,
                bytes_before: 0,
                bytes: 0,
                ..*resized
            });
            all.images += resized.images;
            all.bytes_before += resized.bytes_before;
            all.bytes += resized.bytes;
        }
        packed.push(PackedSplit {
            split: part.split,
            shards: shards.len(),
            samples: shards.iter().map(Shard::samples).sum(),
            skipped,
            bytes: shards.iter().map(|shard| shard.bytes).sum(),
            resized,
        });
        index.splits.insert(shard_prefix(part.split).to_owned(), shards);
    }
    target.finish(&index)?;
    Ok(packed)
}

/// The prefix of the names of a split's shards.
fn shard_prefix(split: Split) -> &'static str {
    match split {
        Split::Train => "train",
        Split::Validation => "val",
        Split::Test => "test",
    }
}

/// Packs a split. Returns its shards, the number of skipped samples, and the statistics of resizing.
fn pack_split(
    part: &PackSplit,
    target: &PackTarget,
    options: &PackOptions,
    progress: &mut dyn FnMut(PackProgress<'_>),
) -> Result<(Vec<Shard>, usize, Option<PackResizeReport>), DataError> {
    let set = part.set.as_ref();
    let mut order: Vec<u32> = (0..set.len() as u32).collect();
    if let Some(seed) = options.shuffle {
        Stream::new(seed, Purpose::Pack, part.split as u64, 0).shuffle(&mut order);
    }
    // A sample's name is its index in the data set, so that it can be found again.
    let digits = (set.len() - 1).to_string().len().max(6);
    let (mut shards, mut writer, mut skipped) = (Vec::new(), None::<Writer>, 0);
    let (mut scratch, mut files) = (Scratch::default(), SampleFiles::default());
    let mut resized =
        options.resize.map(|settings| PackResizeReport { settings, images: 0, bytes_before: 0, bytes: 0 });
    for (done, &sample) in order.iter().enumerate() {
        match files.collect(set, sample as usize, options.resize, &mut scratch) {
            Ok(before) => {
                if let Some(resized) = &mut resized {
                    resized.images += u64::from(before.is_some());
                    resized.bytes_before += before.unwrap_or(files.image.len() as u64);
                    resized.bytes += files.image.len() as u64;
                }
            }
            Err(DataError::BadSample { .. }) if options.skip_damaged => {
                skipped += 1;
                continue;
            }
            Err(error) => return Err(error),
        }
        if let Some(full) = writer.take_if(|writer| writer.bytes + files.bytes() > options.shard_bytes) {
            shards.push(full.finish(target)?);
            report(progress, &shards, done, set.len());
        }
        let writer = match &mut writer {
            Some(writer) => writer,
            None => {
                let name = format!("{}-{:06}{EXTENSION}", shard_prefix(part.split), shards.len());
                writer.insert(Writer::create(target.folder(), name)?)
            }
        };
        writer.add(&format!("{sample:0digits$}"), &files)?;
    }
    let last =
        writer.ok_or_else(|| DataError::Empty { origin: format!("{} of `{}`", part.split, set.name()) })?;
    shards.push(last.finish(target)?);
    report(progress, &shards, set.len(), set.len());
    Ok((shards, skipped, resized))
}

fn report(progress: &mut dyn FnMut(PackProgress<'_>), shards: &[Shard], samples: usize, total: usize) {
    if let Some(shard) = shards.last() {
        progress(PackProgress { shard: &shard.name, samples, total });
    }
}

/// The files of a sample.
#[derive(Default)]
struct SampleFiles {
    image: Vec<u8>,
    extension: &'static str,
    /// The class, if there is no mask.
    label: Option<u32>,
    /// The targets, and their file; empty if there are none.
    targets: Vec<f32>,
    json: Vec<u8>,
    /// The mask file; empty if there is none.
    mask: Vec<u8>,
    planes: Vec<u8>,
    shrinker: ImageShrinker,
    resized: Vec<u8>,
}

impl SampleFiles {
    /// Collects a sample's files. Raw pixels become PNG, oversized images JPEG. Returns the original length
    /// if the image was resized.
    fn collect(
        &mut self,
        set: &dyn Dataset,
        index: usize,
        resize: Option<PackResize>,
        scratch: &mut Scratch,
    ) -> Result<Option<u64>, DataError> {
        let bad_sample = |problem| DataError::BadSample { sample: set.sample_name(index), problem };
        let copied = match set.encoded(index, scratch)? {
            Some(file) => {
                self.extension = decode::extension(file).map_err(bad_sample)?;
                self.image.clear();
                self.image.extend_from_slice(file);
                true
            }
            None => false,
        };
        self.mask.clear();
        self.targets.clear();
        self.json.clear();
        self.label = None;
        if set.target_kind().is_some() {
            self.targets.extend_from_slice(set.targets(index)?);
            if self.targets.len() != set.classes() {
                return Err(bad_sample(format!("has {} targets", self.targets.len())));
            }
            self.write_json(set).map_err(|error| bad_sample(error.to_string()))?;
        } else if !set.has_masks() {
            self.label = Some(set.label(index)?);
        }
        if copied && !set.has_masks() && resize.is_none() {
            return Ok(None);
        }
        let sample = set.read(index, scratch)?;
        sample.check(set, index)?;
        if !copied {
            self.encode(&sample).map_err(bad_sample)?;
        }
        if let Some(mask) = sample.mask {
            let [_, height, width] = sample.shape;
            encode(mask, 1, [height, width], &mut self.mask).map_err(bad_sample)?;
        } else if set.has_masks() {
            return Err(bad_sample("the mask is missing".to_owned()));
        }
        let Some(settings) = resize else { return Ok(None) };
        if !self.shrinker.shrink(&sample, settings, &mut self.resized).map_err(bad_sample)? {
            return Ok(None);
        }
        self.extension = "jpg";
        std::mem::swap(&mut self.image, &mut self.resized);
        Ok(Some(self.resized.len() as u64))
    }

    /// Writes the targets as an object with their names, in their order.
    fn write_json(&mut self, set: &dyn Dataset) -> io::Result<()> {
        self.json.push(b'{');
        for (at, target) in self.targets.iter().enumerate() {
            if at > 0 {
                self.json.push(b',');
            }
            serde_json::to_writer(&mut self.json, &set.class_name(at))?;
            self.json.push(b':');
            serde_json::to_writer(&mut self.json, &(!target.is_nan()).then_some(*target))?;
        }
        self.json.push(b'}');
        Ok(())
    }

    /// Encodes the image of a sample without a file.
    fn encode(&mut self, sample: &Sample<'_>) -> Result<(), String> {
        let [channels, height, width] = sample.shape;
        if sample.orientation != Orientation::default() {
            return Err("it is not upright, which cannot be stored in a PNG".to_owned());
        }
        let pixels = match sample.order {
            PixelOrder::Interleaved => sample.pixels,
            PixelOrder::Planes => {
                let plane = height * width;
                self.planes.clear();
                for pixel in 0..plane {
                    self.planes.extend((0..channels).map(|channel| sample.pixels[channel * plane + pixel]));
                }
                &self.planes
            }
        };
        self.extension = "png";
        encode(pixels, channels, [height, width], &mut self.image)
    }

    /// The size of the files in an archive, in bytes.
    fn bytes(&self) -> u64 {
        let member = |bytes: usize| BLOCK + (bytes as u64).next_multiple_of(BLOCK);
        let label = if self.label.is_some() { member(1) } else { 0 };
        let mask = if self.mask.is_empty() { 0 } else { member(self.mask.len()) };
        let json = if self.json.is_empty() { 0 } else { member(self.json.len()) };
        member(self.image.len()) + label + mask + json + END_OF_ARCHIVE.len() as u64
    }
}

/// An archive that is being written.
struct Writer {
    path: PathBuf,
    file: BufWriter<File>,
    hasher: Sha256,
    /// The number of bytes written.
    bytes: u64,
    shard: Shard,
}

impl Writer {
    fn create(folder: &Path, name: String) -> Result<Self, DataError> {
        let path = folder.join(&name);
        let file =
            File::create(&path).map_err(|cause| DataError::Unwritable { path: path.clone(), cause })?;
        let shard = Shard {
            name,
            bytes: 0,
            sha256: String::new(),
            labels: Vec::new(),
            targets: Vec::new(),
            images: Vec::new(),
            masks: Vec::new(),
            sparse: Vec::new(),
        };
        let file = BufWriter::with_capacity(1 << 20, file);
        Ok(Self { path, file, hasher: Sha256::new(), bytes: 0, shard })
    }

    /// Adds a sample.
    fn add(&mut self, key: &str, files: &SampleFiles) -> Result<(), DataError> {
        let image = self.member(&format!("{key}.{}", files.extension), &files.image)?;
        self.shard.images.push(image);
        if let Some(label) = files.label {
            self.member(&format!("{key}.cls"), label.to_string().as_bytes())?;
            self.shard.labels.push(label);
        }
        if !files.json.is_empty() {
            self.member(&format!("{key}.json"), &files.json)?;
            self.shard.targets.extend_from_slice(&files.targets);
        }
        if !files.mask.is_empty() {
            let mask = self.member(&format!("{key}.seg.png"), &files.mask)?;
            self.shard.masks.push(mask);
        }
        Ok(())
    }

    /// Writes a file with its header, padded to a whole block.
    fn member(&mut self, name: &str, content: &[u8]) -> Result<MemberRange, DataError> {
        let mut header = Header::new_ustar();
        let range = MemberRange::new(self.bytes + BLOCK, content.len() as u64).ok_or_else(|| {
            let problem = "exceeds the maximum size of a shard; lower --shard-mib".to_owned();
            DataError::Invalid { path: self.path.clone(), problem }
        })?;
        header.set_path(name).map_err(|cause| self.unwritable(cause))?;
        header.set_size(content.len() as u64);
        header.set_mode(0o644);
        header.set_mtime(0);
        header.set_uid(0);
        header.set_gid(0);
        header.set_cksum();
        let padding = (content.len() as u64).next_multiple_of(BLOCK) as usize - content.len();
        let parts = [header.as_bytes().as_slice(), content, &END_OF_ARCHIVE[..padding]];
        parts.into_iter().try_for_each(|part| self.write(part)).map_err(|cause| self.unwritable(cause))?;
        Ok(range)
    }

    fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.hasher.update(bytes);
        self.bytes += bytes.len() as u64;
        self.file.write_all(bytes)
    }

    fn unwritable(&self, cause: io::Error) -> DataError {
        DataError::Unwritable { path: self.path.clone(), cause }
    }

    /// Ends the archive and uploads it if required.
    fn finish(mut self, target: &PackTarget) -> Result<Shard, DataError> {
        let ended = self.write(&END_OF_ARCHIVE).and_then(|()| self.file.flush());
        ended.and_then(|()| self.file.get_ref().sync_all()).map_err(|cause| self.unwritable(cause))?;
        let Self { hasher, bytes, mut shard, .. } = self;
        shard.bytes = bytes;
        shard.sha256 = hex(&hasher.finalize());
        shard.shrink();
        target.upload_shard(&shard)?;
        Ok(shard)
    }
}
