//! MNIST: 60,000 + 10,000 handwritten digits of 28×28 grey pixels, kept in memory as stored.
//!
//! Y. LeCun, L. Bottou, Y. Bengio, P. Haffner: "Gradient-based learning applied to document recognition",
//! 1998. With `data.verify = false`, other data in the same four files and format are read too, of any image
//! size.

use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};

use crate::dataset::{Dataset, Sample, Scratch};
use crate::datasets::entry::{DatasetEntry, OpenOptions, PublishedFile, UnpackedFile};
use crate::datasets::split::Split;
use crate::error::DataError;
use crate::geometry::Orientation;
use crate::idx::{self, ExpectedFormat, Idx, IdxElement};
use crate::transform::pixels::{Normalisation, PixelOrder};

const NAME: &str = "mnist";
const CLASSES: usize = 10;

/// The registry entry.
pub static ENTRY: DatasetEntry = DatasetEntry {
    name: NAME,
    summary: "70,000 handwritten digits, 28×28×1, 10 classes",
    open: |root, split, options| Ok(Box::new(Mnist::open(root, split, options)?)),
    files: &FILES,
    mirrors: &[
        "https://ossci-datasets.s3.amazonaws.com/mnist/",
        "https://storage.googleapis.com/cvdf-datasets/mnist/",
    ],
};

/// Training images, training labels, test images, test labels.
static FILES: [PublishedFile<'static>; 4] = [
    PublishedFile {
        name: "train-images-idx3-ubyte.gz",
        bytes: 9_912_422,
        sha256: "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
        unpacked: Some(TRAIN_IMAGES),
        members: &[],
    },
    PublishedFile {
        name: "train-labels-idx1-ubyte.gz",
        bytes: 28_881,
        sha256: "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
        unpacked: Some(TRAIN_LABELS),
        members: &[],
    },
    PublishedFile {
        name: "t10k-images-idx3-ubyte.gz",
        bytes: 1_648_877,
        sha256: "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
        unpacked: Some(TEST_IMAGES),
        members: &[],
    },
    PublishedFile {
        name: "t10k-labels-idx1-ubyte.gz",
        bytes: 4_542,
        sha256: "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
        unpacked: Some(TEST_LABELS),
        members: &[],
    },
];

const TRAIN_IMAGES: UnpackedFile<'static> = UnpackedFile {
    name: "train-images-idx3-ubyte",
    bytes: 47_040_016,
    sha256: "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
};
const TRAIN_LABELS: UnpackedFile<'static> = UnpackedFile {
    name: "train-labels-idx1-ubyte",
    bytes: 60_008,
    sha256: "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
};
const TEST_IMAGES: UnpackedFile<'static> = UnpackedFile {
    name: "t10k-images-idx3-ubyte",
    bytes: 7_840_016,
    sha256: "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
};
const TEST_LABELS: UnpackedFile<'static> = UnpackedFile {
    name: "t10k-labels-idx1-ubyte",
    bytes: 10_008,
    sha256: "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
};

/// One split of MNIST in memory.
#[derive(Clone, Debug)]
pub struct Mnist {
    /// (N, 1, H, W).
    images: Vec<u8>,
    /// (N).
    labels: Vec<u8>,
    height: usize,
    width: usize,
    /// The published checksum of the images, if it was verified.
    verified: Option<&'static str>,
}

impl Mnist {
    /// Opens the training files or, for both other splits, the test files in `root`, each packed (`.gz`) or
    /// not.
    ///
    /// The checksums are of the unpacked content, so repacked files pass.
    ///
    /// # Errors
    ///
    /// [`DataError`]: a file is missing, damaged, or (with `options.verify`) not the published one; images
    /// and labels do not match.
    pub fn open(root: &Path, split: Split, options: &OpenOptions) -> Result<Self, DataError> {
        let (published, labels) = match split {
            Split::Train => (TRAIN_IMAGES, TRAIN_LABELS),
            Split::Validation | Split::Test => (TEST_IMAGES, TEST_LABELS),
        };
        // Locate both files before reading either: unpacking the images takes a moment.
        let images_path = locate(root, split, &published)?;
        let labels_path = locate(root, split, &labels)?;
        let labels = read(&labels_path, 1, &labels, options)?;
        let images = read(&images_path, 3, &published, options)?;
        let verified = options.verify.then_some(published.sha256);
        Ok(Self { verified, ..Self::from_idx(images, &images_path, labels, &labels_path)? })
    }

    fn from_idx(images: Idx, images_path: &Path, labels: Idx, labels_path: &Path) -> Result<Self, DataError> {
        let &[count, height, width] = images.dimensions.as_slice() else {
            return Err(DataError::Empty { origin: images_path.display().to_string() });
        };
        if labels.data.len() != count {
            return Err(DataError::CountMismatch {
                images_path: images_path.to_owned(),
                images: count,
                labels_path: labels_path.to_owned(),
                labels: labels.data.len(),
            });
        }
        if images.data.is_empty() {
            return Err(DataError::Empty { origin: images_path.display().to_string() });
        }
        if let Some(index) = labels.data.iter().position(|&label| usize::from(label) >= CLASSES) {
            return Err(DataError::LabelOutOfRange {
                origin: labels_path.display().to_string(),
                index,
                label: u32::from(labels.data[index]),
                classes: CLASSES,
            });
        }
        Ok(Self { images: images.data, labels: labels.data, height, width, verified: None })
    }

    fn out_of_range(&self, index: usize) -> DataError {
        DataError::SampleOutOfRange { dataset: NAME.to_owned(), index, len: self.labels.len() }
    }
}

/// Finds a file, or its packed form.
fn locate(root: &Path, split: Split, file: &UnpackedFile<'_>) -> Result<PathBuf, DataError> {
    [file.name.to_owned(), format!("{}.gz", file.name)]
        .into_iter()
        .map(|name| root.join(name))
        .find(|path| path.exists())
        .ok_or_else(|| DataError::MissingFile {
            dataset: NAME.to_owned(),
            split,
            root: root.to_owned(),
            file: file.name.to_owned(),
        })
}

fn read(
    path: &Path,
    dimensions: u8,
    file: &UnpackedFile<'_>,
    options: &OpenOptions,
) -> Result<Idx, DataError> {
    let idx = idx::read(path, ExpectedFormat { element: IdxElement::U8, dimensions })?;
    if options.verify {
        let found = idx.sha256();
        if found != file.sha256 {
            return Err(DataError::Checksum {
                dataset: NAME.to_owned(),
                path: path.to_owned(),
                expected: file.sha256.to_owned(),
                found,
            });
        }
    }
    Ok(idx)
}

impl Dataset for Mnist {
    fn name(&self) -> &str {
        NAME
    }

    fn len(&self) -> usize {
        self.labels.len()
    }

    fn classes(&self) -> usize {
        CLASSES
    }

    fn sample_shape(&self) -> Option<[usize; 3]> {
        Some([1, self.height, self.width])
    }

    fn label(&self, index: usize) -> Result<u32, DataError> {
        self.labels.get(index).map(|&label| u32::from(label)).ok_or_else(|| self.out_of_range(index))
    }

    fn read<'a>(&'a self, index: usize, _: &'a mut Scratch) -> Result<Sample<'a>, DataError> {
        let label = self.label(index)?;
        let bytes = self.height * self.width;
        let pixels =
            self.images.get(index * bytes..(index + 1) * bytes).ok_or_else(|| self.out_of_range(index))?;
        Ok(Sample {
            pixels,
            shape: [1, self.height, self.width],
            dct_scaled: None,
            order: PixelOrder::Planes,
            orientation: Orientation::default(),
            label,
            mask: None,
        })
    }

    fn hash_memory(&self, hash: &mut Sha256) {
        match self.verified {
            // The content is that of the published files.
            Some(sha256) => hash.update(sha256),
            None => {
                for extent in [self.height, self.width] {
                    hash.update((extent as u64).to_le_bytes());
                }
                hash.update(&self.images);
            }
        }
    }

    fn normalisation(&self) -> Normalisation {
        Normalisation { mean: vec![0.1307], std: vec![0.3081] }
    }

    fn resident_bytes(&self) -> u64 {
        (self.images.capacity() + self.labels.capacity()) as u64
    }
}
