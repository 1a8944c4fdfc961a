//! CIFAR-10 and CIFAR-100 (Krizhevsky, "Learning multiple layers of features from tiny images", 2009) in
//! their binary form: records of one label (CIFAR-100: the coarse one, then the fine one) and 3,072 pixels in
//! planes of red, green and blue.
//!
//! The checksums of the archives are from TensorFlow Datasets (`url_checksums/cifar10.txt`, `cifar100.txt`),
//! those of the files in them from the Ruby port of torchvision.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};
use stratus_base::checksum::sha256_hex;

use crate::dataset::{Dataset, Sample, Scratch};
use crate::datasets::entry::{DatasetEntry, OpenOptions, PublishedFile, UnpackedFile};
use crate::datasets::split::Split;
use crate::error::DataError;
use crate::geometry::Orientation;
use crate::transform::pixels::{Normalisation, PixelOrder};

const SHAPE: [usize; 3] = [3, 32, 32];
const IMAGE_BYTES: usize = 3 * 32 * 32;
/// The maximum size of a file that differs from the published one.
const MAX_FILE_BYTES: u64 = 192 << 20;

/// The registry entry of CIFAR-10.
pub static CIFAR10: DatasetEntry = DatasetEntry {
    name: "cifar10",
    summary: "60,000 photographs, 32×32×3, 10 classes",
    open: |root, split, options| Ok(Box::new(Cifar::open(&CIFAR10_VARIANT, root, split, options)?)),
    files: &[PublishedFile {
        name: "cifar-10-binary.tar.gz",
        bytes: 170_052_171,
        sha256: "c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd",
        unpacked: None,
        members: &CIFAR10_FILES,
    }],
    mirrors: &["https://www.cs.toronto.edu/~kriz/"],
};

/// The registry entry of CIFAR-100 with fine labels.
pub static CIFAR100: DatasetEntry = DatasetEntry {
    name: "cifar100",
    summary: "60,000 photographs, 32×32×3, 100 classes",
    open: |root, split, options| Ok(Box::new(Cifar::open(&CIFAR100_VARIANT, root, split, options)?)),
    files: &CIFAR100_ARCHIVE,
    mirrors: &["https://www.cs.toronto.edu/~kriz/"],
};

/// The registry entry of CIFAR-100 with coarse labels.
pub static CIFAR100_COARSE: DatasetEntry = DatasetEntry {
    name: "cifar100_coarse",
    summary: "the photographs of cifar100, 20 classes of five each",
    open: |root, split, options| Ok(Box::new(Cifar::open(&CIFAR100_COARSE_VARIANT, root, split, options)?)),
    files: &CIFAR100_ARCHIVE,
    mirrors: &["https://www.cs.toronto.edu/~kriz/"],
};

static CIFAR100_ARCHIVE: [PublishedFile<'static>; 1] = [PublishedFile {
    name: "cifar-100-binary.tar.gz",
    bytes: 168_513_733,
    sha256: "58a81ae192c23a4be8b1804d68e518ed807d710a4eb253b1f2a199162a40d8ec",
    unpacked: None,
    members: &CIFAR100_FILES,
}];

const fn unpacked_file(name: &'static str, bytes: u64, sha256: &'static str) -> UnpackedFile<'static> {
    UnpackedFile { name, bytes, sha256 }
}

/// Five training files and one test file.
static CIFAR10_FILES: [UnpackedFile<'static>; 6] = [
    unpacked_file(
        "cifar-10-batches-bin/data_batch_1.bin",
        30_730_000,
        "cee916563c9f80d84e3cc88e17fdc0941787f1244f00a67874d45b261883ada5",
    ),
    unpacked_file(
        "cifar-10-batches-bin/data_batch_2.bin",
        30_730_000,
        "a591ca11fa1708a91ee40f54b3da4784ccd871ecf2137de63f51ada8b3fa57ed",
    ),
    unpacked_file(
        "cifar-10-batches-bin/data_batch_3.bin",
        30_730_000,
        "bbe8596564c0f86427f876058170b84dac6670ddf06d79402899d93ceea26f67",
    ),
    unpacked_file(
        "cifar-10-batches-bin/data_batch_4.bin",
        30_730_000,
        "014e562d6e23c72197cc727519169a60359f5eccd8945ad5a09d710285ff4e48",
    ),
    unpacked_file(
        "cifar-10-batches-bin/data_batch_5.bin",
        30_730_000,
        "755304fc0b379caeae8c14f0dac912fbc7d6cd469eb67a1029a08a39453a9add",
    ),
    unpacked_file(
        "cifar-10-batches-bin/test_batch.bin",
        30_730_000,
        "8e2eb146ae340b09e24670f29cabc6326dba54da8789dab6768acf480273f65b",
    ),
];

static CIFAR100_FILES: [UnpackedFile<'static>; 2] = [
    unpacked_file(
        "cifar-100-binary/train.bin",
        153_700_000,
        "f31298fc616915fa142368359df1c4ca2ae984d6915ca468b998a5ec6aeebf29",
    ),
    unpacked_file(
        "cifar-100-binary/test.bin",
        30_740_000,
        "d8b1e6b7b3bee4020055f0699b111f60b1af1e262aeb93a0b659061746f8224a",
    ),
];

/// The differences between the data sets.
#[derive(Debug)]
struct CifarVariant {
    name: &'static str,
    train: &'static [UnpackedFile<'static>],
    test: &'static [UnpackedFile<'static>],
    /// The number of label bytes of a record.
    labels: usize,
    /// The index of the label byte that is used.
    label: usize,
    classes: usize,
    class_names: &'static [&'static str],
    mean: [f32; 3],
    std: [f32; 3],
}

static CIFAR10_VARIANT: CifarVariant = CifarVariant {
    name: "cifar10",
    train: CIFAR10_FILES.split_at(5).0,
    test: CIFAR10_FILES.split_at(5).1,
    labels: 1,
    label: 0,
    classes: 10,
    class_names: &["airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"],
    mean: [0.4914, 0.4822, 0.4465],
    std: [0.2470, 0.2435, 0.2616],
};

static CIFAR100_VARIANT: CifarVariant = CifarVariant {
    name: "cifar100",
    train: CIFAR100_FILES.split_at(1).0,
    test: CIFAR100_FILES.split_at(1).1,
    labels: 2,
    label: 1,
    classes: 100,
    class_names: &[],
    mean: [0.5071, 0.4865, 0.4409],
    std: [0.2673, 0.2564, 0.2762],
};

static CIFAR100_COARSE_VARIANT: CifarVariant =
    CifarVariant { name: "cifar100_coarse", label: 0, classes: 20, ..CIFAR100_VARIANT };

/// One split of a CIFAR data set in memory.
#[derive(Clone, Debug)]
pub struct Cifar {
    variant: &'static CifarVariant,
    /// The records of all files, concatenated.
    records: Vec<u8>,
    /// The published files, if the content was verified.
    verified: Option<&'static [UnpackedFile<'static>]>,
}

impl Cifar {
    fn open(
        variant: &'static CifarVariant,
        root: &Path,
        split: Split,
        options: &OpenOptions,
    ) -> Result<Self, DataError> {
        let files = if split == Split::Train { variant.train } else { variant.test };
        // Locate all files before reading any.
        let paths =
            files.iter().map(|file| variant.locate(root, split, file)).collect::<Result<Vec<_>, _>>()?;
        let mut records = Vec::new();
        for (file, path) in files.iter().zip(&paths) {
            variant.read(path, file, options, &mut records)?;
        }
        if records.is_empty() {
            return Err(DataError::Empty { origin: root.display().to_string() });
        }
        Ok(Self { variant, records, verified: options.verify.then_some(files) })
    }

    fn record(&self, index: usize) -> Result<&[u8], DataError> {
        let bytes = self.variant.record_bytes();
        let first = index.checked_mul(bytes);
        first.and_then(|first| self.records.get(first..first.checked_add(bytes)?)).ok_or_else(|| {
            DataError::SampleOutOfRange { dataset: self.variant.name.to_owned(), index, len: self.len() }
        })
    }
}

impl CifarVariant {
    fn record_bytes(&self) -> usize {
        self.labels + IMAGE_BYTES
    }

    /// Finds a file at its path in the archive, or directly in the folder.
    fn locate(&self, root: &Path, split: Split, file: &UnpackedFile<'_>) -> Result<PathBuf, DataError> {
        let short = file.name.rsplit('/').next().unwrap_or(file.name);
        [file.name, short].map(|name| root.join(name)).into_iter().find(|path| path.exists()).ok_or_else(
            || DataError::MissingMember {
                dataset: self.name.to_owned(),
                split,
                root: root.to_owned(),
                file: file.name.to_owned(),
            },
        )
    }

    /// Appends the records of a file.
    fn read(
        &self,
        path: &Path,
        file: &UnpackedFile<'_>,
        options: &OpenOptions,
        records: &mut Vec<u8>,
    ) -> Result<(), DataError> {
        let unreadable = |cause| DataError::Unreadable { path: path.to_owned(), cause };
        let source = File::open(path).map_err(unreadable)?;
        let bytes = source.metadata().map_err(unreadable)?.len();
        let record = self.record_bytes() as u64;
        let problem = if options.verify && bytes != file.bytes {
            Some(format!("has {bytes} bytes, expected {}", file.bytes))
        } else if !bytes.is_multiple_of(record) {
            Some(format!("{bytes} bytes is not a multiple of the record size {record}"))
        } else if bytes > MAX_FILE_BYTES {
            Some(format!("has {bytes} bytes, more than any file of `{}`", self.name))
        } else {
            None
        };
        if let Some(problem) = problem {
            let problem = format!("{problem}; fetch `{}` again", self.name);
            return Err(DataError::Invalid { path: path.to_owned(), problem });
        }
        let begin = records.len();
        records.reserve_exact(bytes as usize);
        source.take(bytes).read_to_end(records).map_err(unreadable)?;
        let content = &records[begin..];
        if content.len() as u64 != bytes {
            let problem = format!("truncated while it was read: {} of {bytes} bytes", content.len());
            return Err(DataError::Invalid { path: path.to_owned(), problem });
        }
        if options.verify {
            let found = sha256_hex([content]);
            if found != file.sha256 {
                return Err(DataError::Checksum {
                    dataset: self.name.to_owned(),
                    path: path.to_owned(),
                    expected: file.sha256.to_owned(),
                    found,
                });
            }
        }
        for (index, record) in content.chunks_exact(self.record_bytes()).enumerate() {
            if usize::from(record[self.label]) >= self.classes {
                return Err(DataError::LabelOutOfRange {
                    origin: path.display().to_string(),
                    index,
                    label: u32::from(record[self.label]),
                    classes: self.classes,
                });
            }
        }
        Ok(())
    }
}

impl Dataset for Cifar {
    fn name(&self) -> &str {
        self.variant.name
    }

    fn len(&self) -> usize {
        self.records.len() / self.variant.record_bytes()
    }

    fn classes(&self) -> usize {
        self.variant.classes
    }

    fn class_name(&self, class: usize) -> String {
        self.variant.class_names.get(class).map_or_else(|| class.to_string(), |&name| name.to_owned())
    }

    fn sample_shape(&self) -> Option<[usize; 3]> {
        Some(SHAPE)
    }

    fn label(&self, index: usize) -> Result<u32, DataError> {
        Ok(u32::from(self.record(index)?[self.variant.label]))
    }

    fn read<'a>(&'a self, index: usize, _: &'a mut Scratch) -> Result<Sample<'a>, DataError> {
        let record = self.record(index)?;
        Ok(Sample {
            pixels: &record[self.variant.labels..],
            shape: SHAPE,
            dct_scaled: None,
            order: PixelOrder::Planes,
            orientation: Orientation::default(),
            label: u32::from(record[self.variant.label]),
            mask: None,
        })
    }

    fn hash_memory(&self, hash: &mut Sha256) {
        match self.verified {
            // The content equals the published files.
            Some(files) => files.iter().for_each(|file| hash.update(file.sha256)),
            None => hash.update(&self.records),
        }
    }

    /// The commonly published values, over all pixels of the training images.
    fn normalisation(&self) -> Normalisation {
        Normalisation { mean: self.variant.mean.to_vec(), std: self.variant.std.to_vec() }
    }

    fn resident_bytes(&self) -> u64 {
        self.records.capacity() as u64
    }
}
