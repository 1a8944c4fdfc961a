//! Packing a data set into shards. The same data set, options and seed give the same bytes.
//!
//! Files are copied unchanged, or made smaller; samples without a file are encoded as PNG. A marker file in
//! the folder says that packing is unfinished. The index is written last. Interrupted packing is detected and
//! starts over.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};
use stratus_base::checksum::hex;
use stratus_random::{Purpose, Stream};
use tar::Header;

use super::EXTENSION;
use super::index::{Index, MemberRange, Shard};
use super::png::encode;
use super::smaller::{Resized, Shrinker, Smaller};
use super::target::PackTarget;
use crate::archive::BLOCK;
use crate::datasets::{self, Dataset, OpenOptions, Sample, Scratch, Split};
use crate::decode;
use crate::error::DataError;
use crate::transform::frame::Orientation;
use crate::transform::pixels::PixelOrder;

/// The end of an archive: two blocks of zeros.
const END: [u8; 2 * BLOCK as usize] = [0; 2 * BLOCK as usize];

/// How a data set is packed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PackOptions {
    /// The most bytes of a shard, unless a single sample has more.
    pub shard_bytes: u64,
    /// The seed that shuffles the samples, so that a shard holds many classes; `None` keeps the order of the
    /// data set.
    pub shuffle: Option<u64>,
    /// How images are made smaller; `None` leaves them as they are.
    pub smaller: Option<Smaller>,
    /// Whether existing shards are replaced.
    pub overwrite: bool,
    /// Whether unreadable samples are left out instead of being an error.
    pub skip_damaged: bool,
    /// The folder for a shard until it is uploaded.
    pub staging: PathBuf,
}

impl Default for PackOptions {
    fn default() -> Self {
        Self {
            shard_bytes: 256 << 20,
            shuffle: Some(1),
            smaller: None,
            overwrite: false,
            skip_damaged: false,
            staging: std::env::temp_dir(),
        }
    }
}

/// A split to be packed.
pub struct Part {
    /// The split, which names the shards.
    pub split: Split,
    /// Its samples.
    pub set: Box<dyn Dataset>,
}

/// The result of packing a split.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PackedPart {
    /// The split.
    pub split: Split,
    /// Archives written.
    pub shards: usize,
    /// Samples in them.
    pub samples: usize,
    /// Unreadable samples that were left out.
    pub left_out: usize,
    /// Bytes of all archives.
    pub bytes: u64,
    /// How images were made smaller.
    pub resized: Option<Resized>,
}

/// Progress of packing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PackProgress<'a> {
    /// The shard that was completed.
    pub shard: &'a str,
    /// Samples of its split that are packed.
    pub samples: usize,
    /// Samples of the split.
    pub of: usize,
}

/// Opens the splits of a data set: training, validation, and test where it differs from validation.
///
/// # Errors
///
/// As [`datasets::open`]; classes that differ between the parts.
pub fn open_parts(name: &str, root: &Path, options: &OpenOptions) -> Result<Vec<Part>, DataError> {
    let mut parts: Vec<Part> = Vec::new();
    for split in [Split::Train, Split::Validation, Split::Test] {
        let set = datasets::open(name, root, split, options)?;
        let mut known = false;
        for part in &parts {
            known |= is_same(part.set.as_ref(), set.as_ref())?;
        }
        if !known {
            parts.push(Part { split, set });
        }
    }
    Ok(parts)
}

/// Whether two parts are one, opened twice: what a data set is published in two parts gives its second for
/// two splits.
fn is_same(a: &dyn Dataset, b: &dyn Dataset) -> Result<bool, DataError> {
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

/// Packs a data set's parts into shards in `root`, a folder, which is made, or the address of a store, and
/// writes the index.
///
/// # Errors
///
/// [`DataError::Occupied`] where something is there; samples that cannot be read; [`DataError::Unwritable`].
pub fn pack(
    parts: &[Part],
    root: &Path,
    options: &PackOptions,
    progress: &mut dyn FnMut(PackProgress<'_>),
) -> Result<Vec<PackedPart>, DataError> {
    let first = parts.first().ok_or_else(|| DataError::Empty { origin: "nothing to pack".to_owned() })?;
    let set = first.set.as_ref();
    let classes: Vec<String> = (0..set.classes()).map(|class| set.class_name(class)).collect();
    for part in parts {
        let same = part.set.classes() == classes.len()
            && part.set.masks() == set.masks()
            && classes.iter().enumerate().all(|(class, name)| part.set.class_name(class) == *name);
        if !same {
            let problem = format!("the {} and {} parts have different classes", first.split, part.split);
            return Err(DataError::Damaged { path: PathBuf::from(set.name()), problem });
        }
    }
    if options.smaller.is_some() && set.masks() {
        let problem = "would make images smaller than their masks; leave it out".to_owned();
        return Err(DataError::Option { key: "--resize", problem });
    }
    let shapes = parts.iter().map(|part| part.set.sample_shape());
    let shape = set.sample_shape().filter(|shape| shapes.clone().all(|other| other == Some(*shape)));
    // Those that were made smaller have another.
    let fits = |[_, height, width]: &[usize; 3]| {
        options.smaller.is_none_or(|smaller| smaller.side >= *height.min(width))
    };
    let shape = shape.filter(fits);
    let mut index = Index::new(set.name(), classes, shape, set.normalisation(), set.masks());
    let target = PackTarget::prepare(root, options)?;
    let mut packed = Vec::new();
    for part in parts {
        let (shards, left_out, resized) = pack_part(part, &target, options, progress)?;
        if let Some(resized) = &resized {
            let all =
                index.resized.get_or_insert(Resized { images: 0, bytes_before: 0, bytes: 0, ..*resized });
            all.images += resized.images;
            all.bytes_before += resized.bytes_before;
            all.bytes += resized.bytes;
        }
        packed.push(PackedPart {
            split: part.split,
            shards: shards.len(),
            samples: shards.iter().map(Shard::samples).sum(),
            left_out,
            bytes: shards.iter().map(|shard| shard.bytes).sum(),
            resized,
        });
        index.splits.insert(stem(part.split).to_owned(), shards);
    }
    target.finish(&index)?;
    Ok(packed)
}

/// What the shards of a split are called.
fn stem(split: Split) -> &'static str {
    match split {
        Split::Train => "train",
        Split::Validation => "val",
        Split::Test => "test",
    }
}

/// The shards of a part, how many samples were left out, and how images were made smaller.
fn pack_part(
    part: &Part,
    target: &PackTarget,
    options: &PackOptions,
    progress: &mut dyn FnMut(PackProgress<'_>),
) -> Result<(Vec<Shard>, usize, Option<Resized>), DataError> {
    let set = part.set.as_ref();
    let mut order: Vec<u32> = (0..set.len() as u32).collect();
    if let Some(seed) = options.shuffle {
        Stream::new(seed, Purpose::Pack, part.split as u64, 0).shuffle(&mut order);
    }
    // A sample's name is its number in the data set, by which it is found again.
    let digits = (set.len() - 1).to_string().len().max(6);
    let (mut shards, mut writer, mut left_out) = (Vec::new(), None::<Writer>, 0);
    let (mut scratch, mut files) = (Scratch::default(), Files::default());
    let mut resized = options.smaller.map(|how| Resized { how, images: 0, bytes_before: 0, bytes: 0 });
    for (done, &sample) in order.iter().enumerate() {
        match files.take(set, sample as usize, options.smaller, &mut scratch) {
            Ok(before) => {
                if let Some(resized) = &mut resized {
                    resized.images += u64::from(before.is_some());
                    resized.bytes_before += before.unwrap_or(files.image.len() as u64);
                    resized.bytes += files.image.len() as u64;
                }
            }
            Err(DataError::BadSample { .. }) if options.skip_damaged => {
                left_out += 1;
                continue;
            }
            Err(error) => return Err(error),
        }
        if let Some(whole) = writer.take_if(|writer| writer.bytes + files.bytes() > options.shard_bytes) {
            shards.push(whole.finish(target)?);
            tell(progress, &shards, done, set.len());
        }
        let writer = match &mut writer {
            Some(writer) => writer,
            None => {
                let name = format!("{}-{:06}{EXTENSION}", stem(part.split), shards.len());
                writer.insert(Writer::create(target.folder(), name)?)
            }
        };
        writer.add(&format!("{sample:0digits$}"), &files)?;
    }
    let last =
        writer.ok_or_else(|| DataError::Empty { origin: format!("{} of `{}`", part.split, set.name()) })?;
    shards.push(last.finish(target)?);
    tell(progress, &shards, set.len(), set.len());
    Ok((shards, left_out, resized))
}

fn tell(progress: &mut dyn FnMut(PackProgress<'_>), shards: &[Shard], samples: usize, of: usize) {
    if let Some(shard) = shards.last() {
        progress(PackProgress { shard: &shard.name, samples, of });
    }
}

/// The files of a sample.
#[derive(Default)]
struct Files {
    image: Vec<u8>,
    extension: &'static str,
    /// The class, where there is no mask.
    label: Option<u32>,
    /// Empty where there is none.
    mask: Vec<u8>,
    planes: Vec<u8>,
    shrinker: Shrinker,
    smaller: Vec<u8>,
}

impl Files {
    /// Takes a sample's files; what is no file becomes a PNG, what is too large a JPEG. Returns the length of
    /// the file that was made smaller.
    fn take(
        &mut self,
        set: &dyn Dataset,
        index: usize,
        smaller: Option<Smaller>,
        scratch: &mut Scratch,
    ) -> Result<Option<u64>, DataError> {
        let bad = |problem| DataError::BadSample { sample: set.sample_name(index), problem };
        let copied = match set.encoded(index, scratch)? {
            Some(file) => {
                self.extension = decode::extension(file).map_err(bad)?;
                self.image.clear();
                self.image.extend_from_slice(file);
                true
            }
            None => false,
        };
        self.mask.clear();
        self.label = if set.masks() { None } else { Some(set.label(index)?) };
        if copied && !set.masks() && smaller.is_none() {
            return Ok(None);
        }
        let sample = set.read(index, scratch)?;
        sample.check(set, index)?;
        if !copied {
            self.encode(&sample).map_err(bad)?;
        }
        if let Some(mask) = sample.mask {
            let [_, height, width] = sample.shape;
            encode(mask, 1, [height, width], &mut self.mask).map_err(bad)?;
        } else if set.masks() {
            return Err(bad("it has no mask".to_owned()));
        }
        let Some(how) = smaller else { return Ok(None) };
        if !self.shrinker.shrink(&sample, how, &mut self.smaller).map_err(bad)? {
            return Ok(None);
        }
        self.extension = "jpg";
        std::mem::swap(&mut self.image, &mut self.smaller);
        Ok(Some(self.smaller.len() as u64))
    }

    /// The image of a sample that is no file.
    fn encode(&mut self, sample: &Sample<'_>) -> Result<(), String> {
        let [channels, height, width] = sample.shape;
        if sample.orientation != Orientation::default() {
            return Err("it is not upright, which a PNG cannot say".to_owned());
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

    /// Bytes that they take in an archive.
    fn bytes(&self) -> u64 {
        let member = |bytes: usize| BLOCK + (bytes as u64).next_multiple_of(BLOCK);
        let label = if self.label.is_some() { member(1) } else { 0 };
        let mask = if self.mask.is_empty() { 0 } else { member(self.mask.len()) };
        member(self.image.len()) + label + mask + END.len() as u64
    }
}

/// An archive that is being written.
struct Writer {
    path: PathBuf,
    file: BufWriter<File>,
    hasher: Sha256,
    /// Bytes written.
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
            images: Vec::new(),
            masks: Vec::new(),
            sparse: Vec::new(),
        };
        let file = BufWriter::with_capacity(1 << 20, file);
        Ok(Self { path, file, hasher: Sha256::new(), bytes: 0, shard })
    }

    /// Adds a sample.
    fn add(&mut self, key: &str, files: &Files) -> Result<(), DataError> {
        let image = self.member(&format!("{key}.{}", files.extension), &files.image)?;
        self.shard.images.push(image);
        if let Some(label) = files.label {
            self.member(&format!("{key}.cls"), label.to_string().as_bytes())?;
            self.shard.labels.push(label);
        }
        if !files.mask.is_empty() {
            let mask = self.member(&format!("{key}.seg.png"), &files.mask)?;
            self.shard.masks.push(mask);
        }
        Ok(())
    }

    /// Writes a file with its header, and the rest of its last block.
    fn member(&mut self, name: &str, content: &[u8]) -> Result<MemberRange, DataError> {
        let mut header = Header::new_ustar();
        let range = MemberRange::new(self.bytes + BLOCK, content.len() as u64).ok_or_else(|| {
            let problem = "grows larger than shards can be; make smaller ones with --shard-mib".to_owned();
            DataError::Damaged { path: self.path.clone(), problem }
        })?;
        header.set_path(name).map_err(|cause| self.unwritable(cause))?;
        header.set_size(content.len() as u64);
        header.set_mode(0o644);
        header.set_mtime(0);
        header.set_uid(0);
        header.set_gid(0);
        header.set_cksum();
        let rest = (content.len() as u64).next_multiple_of(BLOCK) as usize - content.len();
        let parts = [header.as_bytes().as_slice(), content, &END[..rest]];
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

    /// Ends the archive and puts it in its place.
    fn finish(mut self, target: &PackTarget) -> Result<Shard, DataError> {
        let ended = self.write(&END).and_then(|()| self.file.flush());
        ended.and_then(|()| self.file.get_ref().sync_all()).map_err(|cause| self.unwritable(cause))?;
        let Self { hasher, bytes, mut shard, .. } = self;
        shard.bytes = bytes;
        shard.sha256 = hex(&hasher.finalize());
        shard.shrink();
        target.keep(&shard)?;
        Ok(shard)
    }
}
