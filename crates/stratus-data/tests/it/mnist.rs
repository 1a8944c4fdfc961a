//! MNIST: the files of this repository, and small generated files.

use std::fs;
use std::path::{Path, PathBuf};

use stratus_data::datasets::mnist::Mnist;
use stratus_data::{DataError, Dataset, OpenOptions, Scratch, Split, open, stats};

fn repository_files() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../data/mnist")
}

fn any() -> OpenOptions {
    OpenOptions { verify: false, ..OpenOptions::default() }
}

fn idx(dimensions: &[u32], data: &[u8]) -> Vec<u8> {
    let mut bytes = vec![0, 0, 8, dimensions.len() as u8];
    bytes.extend(dimensions.iter().flat_map(|dimension| dimension.to_be_bytes()));
    bytes.extend(data);
    bytes
}

fn open_small(images: &[u8], labels: &[u8]) -> Result<Mnist, DataError> {
    let directory = tempfile::tempdir().unwrap();
    fs::write(directory.path().join("train-images-idx3-ubyte"), images).unwrap();
    fs::write(directory.path().join("train-labels-idx1-ubyte"), labels).unwrap();
    Mnist::open(directory.path(), Split::Train, &any())
}

fn message(images: &[u8], labels: &[u8]) -> String {
    let message = open_small(images, labels).unwrap_err().to_string();
    // The directory differs from run to run.
    message.split_inclusive(' ').map(|word| word.rsplit('/').next().unwrap()).collect()
}

/// Counts, first labels and class frequencies of the published digits, as in the literature.
#[test]
fn reads_the_published_digits() {
    let train = open("mnist", &repository_files(), Split::Train, &OpenOptions::default()).unwrap();
    assert_eq!(
        (train.name(), train.len(), train.classes(), train.sample_shape()),
        ("mnist", 60_000, 10, Some([1, 28, 28]))
    );
    assert_eq!((0..6).map(|i| train.label(i).unwrap()).collect::<Vec<_>>(), [5, 0, 4, 1, 9, 2]);
    assert_eq!(
        stats::compute_stats(train.as_ref(), 2).unwrap().samples_per_class,
        [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]
    );
    let measured = stats::compute_stats(train.as_ref(), 3).unwrap().channels.unwrap();
    let usual = train.normalisation();
    assert!((measured.mean[0] - usual.mean[0]).abs() < 5e-5, "{measured:?}");
    assert!((measured.std[0] - usual.std[0]).abs() < 5e-5, "{measured:?}");
    let mut scratch = Scratch::default();
    let first = train.read(0, &mut scratch).unwrap();
    assert_eq!((first.pixels.len(), first.label), (784, 5));
    assert_eq!(first.pixels[5 * 28 + 12..5 * 28 + 18], [3, 18, 18, 18, 126, 136]);
    let error = train.read(60_000, &mut scratch).unwrap_err();
    assert_eq!(error.to_string(), "sample 60000 is out of range: `mnist` has 60000 samples");
    assert_eq!(train.resident_bytes(), 60_000 * 785);

    for split in [Split::Validation, Split::Test] {
        let test = open("mnist", &repository_files(), split, &OpenOptions::default()).unwrap();
        assert_eq!(test.len(), 10_000);
        assert_eq!((0..6).map(|i| test.label(i).unwrap()).collect::<Vec<_>>(), [7, 2, 1, 0, 4, 1]);
    }
}

#[test]
fn rejects_other_content_unless_verification_is_off() {
    let directory = tempfile::tempdir().unwrap();
    let root = directory.path();
    fs::write(root.join("t10k-images-idx3-ubyte"), idx(&[1, 2, 2], &[1, 2, 3, 4])).unwrap();
    fs::copy(repository_files().join("t10k-labels-idx1-ubyte.gz"), root.join("t10k-labels-idx1-ubyte.gz"))
        .unwrap();
    let error = Mnist::open(root, Split::Test, &OpenOptions::default()).unwrap_err().to_string();
    assert!(error.contains("t10k-images-idx3-ubyte: not the file published for `mnist`"), "{error}");
    assert!(error.contains("data.verify = false"), "{error}");
    fs::write(root.join("t10k-labels-idx1-ubyte"), idx(&[1], &[9])).unwrap();
    let other = Mnist::open(root, Split::Test, &any()).unwrap();
    assert_eq!((other.len(), other.sample_shape(), other.label(0).unwrap()), (1, Some([1, 2, 2]), 9));
}

#[test]
fn reports_mismatched_files() {
    assert_eq!(
        message(&idx(&[2, 1, 1], &[1, 2]), &idx(&[3], &[0, 1, 2])),
        "train-images-idx3-ubyte holds 2 images, but train-labels-idx1-ubyte holds 3 labels; \
         both must belong to the same split of the same data set"
    );
    assert_eq!(
        message(&idx(&[2, 1, 1], &[1, 2]), &idx(&[2], &[0, 10])),
        "train-labels-idx1-ubyte: sample 1 has label 10, but labels go from 0 to 9; \
         the file is damaged or belongs to another data set"
    );
    for dimensions in [[0, 28, 28], [0, 0, 0]] {
        assert_eq!(
            message(&idx(&dimensions, &[]), &idx(&[0], &[])),
            "train-images-idx3-ubyte: no samples; expected at least one"
        );
    }
    assert_eq!(
        message(&idx(&[2], &[0, 1]), &idx(&[2], &[0, 1])),
        "train-images-idx3-ubyte: has 1 dimensions, expected 3; check that images and labels are not swapped"
    );
}

#[test]
fn reports_a_missing_file() {
    let directory = tempfile::tempdir().unwrap();
    let error = Mnist::open(directory.path(), Split::Validation, &any()).unwrap_err().to_string();
    assert_eq!(
        error.strip_prefix(&directory.path().display().to_string()).unwrap(),
        ": neither `t10k-images-idx3-ubyte` nor `t10k-images-idx3-ubyte.gz` found, which the validation \
         split of `mnist` needs; pass the folder of the files, or fetch `mnist` into this one"
    );
}
