//! CIFAR-10 and CIFAR-100, with small generated files.

use std::fs;
use std::path::Path;

use stratus_data::{OpenOptions, Scratch, Split, open, stats};

fn any() -> OpenOptions {
    OpenOptions { verify: false, ..OpenOptions::default() }
}

/// Creates records with these label bytes; pixel p of record r is r × 10 + p × 7.
fn records(labels: &[&[u8]]) -> Vec<u8> {
    let pixels = |record: usize| (0..3072).map(move |pixel| (record * 10 + pixel * 7) as u8);
    labels
        .iter()
        .enumerate()
        .flat_map(|(record, label)| label.iter().copied().chain(pixels(record)))
        .collect()
}

fn cifar10(root: &Path, folder: &str) {
    fs::create_dir_all(root.join(folder)).unwrap();
    for batch in 1..=5u8 {
        let content = records(&[&[batch], &[batch + 4]]);
        fs::write(root.join(folder).join(format!("data_batch_{batch}.bin")), content).unwrap();
    }
    fs::write(root.join(folder).join("test_batch.bin"), records(&[&[3]])).unwrap();
}

fn open_error(name: &str, root: &Path, split: Split, options: &OpenOptions) -> String {
    let message = open(name, root, split, options).map(|_| ()).unwrap_err().to_string();
    message.replace(&root.display().to_string(), "ROOT")
}

#[test]
fn reads_five_batches_as_one_training_set() {
    for folder in ["cifar-10-batches-bin", "."] {
        let directory = tempfile::tempdir().unwrap();
        cifar10(directory.path(), folder);
        let train = open("cifar10", directory.path(), Split::Train, &any()).unwrap();
        assert_eq!((train.len(), train.classes(), train.sample_shape()), (10, 10, Some([3, 32, 32])));
        let labels: Vec<u32> = (0..10).map(|index| train.label(index).unwrap()).collect();
        assert_eq!(labels, [1, 5, 2, 6, 3, 7, 4, 8, 5, 9]);
        let mut scratch = Scratch::default();
        let last = train.read(9, &mut scratch).unwrap();
        assert_eq!((last.label, last.pixels.len(), &last.pixels[..3]), (9, 3072, [10, 17, 24].as_slice()));
        assert_eq!(train.class_name(5), "dog");
        assert_eq!(train.resident_bytes(), 10 * 3073);
        assert!(train.read(10, &mut scratch).is_err() && train.read(usize::MAX, &mut scratch).is_err());
        for split in [Split::Validation, Split::Test] {
            let test = open("cifar10", directory.path(), split, &any()).unwrap();
            assert_eq!((test.len(), test.label(0).unwrap()), (1, 3));
            stats::compute_stats(test.as_ref(), 2).unwrap();
        }
    }
}

#[test]
fn reads_coarse_labels_of_cifar100() {
    let directory = tempfile::tempdir().unwrap();
    fs::create_dir(directory.path().join("cifar-100-binary")).unwrap();
    fs::write(directory.path().join("cifar-100-binary/train.bin"), records(&[&[19, 99], &[0, 5]])).unwrap();
    let labels = |name: &str| {
        let set = open(name, directory.path(), Split::Train, &any()).unwrap();
        let mut scratch = Scratch::default();
        assert_eq!(set.read(1, &mut scratch).unwrap().pixels[..2], [10, 17]);
        (set.classes(), set.label(0).unwrap(), set.label(1).unwrap())
    };
    assert_eq!(labels("cifar100"), (100, 99, 5));
    assert_eq!(labels("cifar100_coarse"), (20, 19, 0));
}

#[test]
fn reports_errors_with_their_file() {
    let directory = tempfile::tempdir().unwrap();
    let root = directory.path();
    assert_eq!(
        open_error("cifar10", root, Split::Train, &any()),
        "ROOT: `cifar-10-batches-bin/data_batch_1.bin` not found, which the train split of `cifar10` needs; \
         pass the folder of the files, or fetch `cifar10` into this one"
    );
    cifar10(root, ".");
    assert_eq!(
        open_error("cifar10", root, Split::Train, &OpenOptions::default()),
        "ROOT/data_batch_1.bin: has 6146 bytes, expected 30730000; fetch `cifar10` again"
    );
    let third = root.join("data_batch_3.bin");
    fs::write(&third, &records(&[&[1], &[2]])[..6000]).unwrap();
    assert_eq!(
        open_error("cifar10", root, Split::Train, &any()),
        "ROOT/data_batch_3.bin: 6000 bytes is not a multiple of the record size 3073; fetch `cifar10` \
         again"
    );
    fs::write(&third, records(&[&[1], &[10]])).unwrap();
    assert_eq!(
        open_error("cifar10", root, Split::Train, &any()),
        "ROOT/data_batch_3.bin: sample 1 has label 10, but labels go from 0 to 9; the file is damaged or \
         belongs to another data set"
    );
    fs::write(root.join("test_batch.bin"), vec![0; 30_730_000]).unwrap();
    let message = open_error("cifar10", root, Split::Test, &OpenOptions::default());
    assert!(message.contains("not the file published for `cifar10`"), "{message}");
    fs::write(root.join("test_batch.bin"), "").unwrap();
    assert_eq!(open_error("cifar10", root, Split::Test, &any()), "ROOT: no samples; expected at least one");
}
