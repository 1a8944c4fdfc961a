//! Data sets without published splits are split by a seed or by lists, independently of their storage.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use crate::common::{open_error, write_labels, write_picture};
use stratus_data::{Dataset, OpenOptions, Split, SplitMethod, open};

const SPLITS: [Split; 3] = [Split::Train, Split::Validation, Split::Test];

/// Ten images of ants and five of cats, in a folder each.
fn set(root: &Path) {
    for (class, count) in [("ant", 10), ("cat", 5)] {
        (0..count)
            .for_each(|number| write_picture(&root.join(format!("{class}/{number}.png")), [2, 2], number));
    }
}

fn with(split_method: SplitMethod) -> OpenOptions {
    OpenOptions { split_method, ..OpenOptions::default() }
}

/// The class and file of every sample.
fn names(set: &dyn Dataset) -> Vec<String> {
    let name = |index| set.sample_name(index).rsplit('/').take(2).collect::<Vec<_>>().join(" of ");
    (0..set.len()).map(name).collect()
}

fn opened(root: &Path, split: Split, options: &OpenOptions) -> Vec<String> {
    names(open("folder", root, split, options).unwrap().as_ref())
}

#[test]
fn seed_splits_each_class() {
    let directory = tempfile::tempdir().unwrap();
    let root = directory.path().join("set");
    set(&root);
    let tar = directory.path().join("set.tar");
    let mut archive = tar::Builder::new(fs::File::create(&tar).unwrap());
    archive.append_dir_all("set", &root).unwrap();
    archive.finish().unwrap();
    let mut all = BTreeSet::new();
    for (split, ants, cats) in [(Split::Train, 6, 3), (Split::Validation, 2, 1), (Split::Test, 2, 1)] {
        let part = opened(&root, split, &with(SplitMethod::Seeded(7)));
        let count_of = |class: &str| part.iter().filter(|name| name.ends_with(class)).count();
        assert_eq!((count_of("ant"), count_of("cat")), (ants, cats));
        assert_eq!(opened(&tar, split, &with(SplitMethod::Seeded(7))), part);
        assert_ne!(opened(&root, split, &with(SplitMethod::Seeded(8))), part);
        all.extend(part);
    }
    assert_eq!(all.len(), 15);
    // Classes below `train` are split in the same way.
    let train = directory.path().join("nested/train");
    set(&train);
    let nested = opened(train.parent().unwrap(), Split::Train, &with(SplitMethod::Seeded(7)));
    assert_eq!(nested, opened(&root, Split::Train, &with(SplitMethod::Seeded(7))));
    let few = OpenOptions { images_per_class: Some(2), ..with(SplitMethod::Seeded(7)) };
    assert_eq!(opened(&root, Split::Train, &few).len(), 4);
    assert_eq!(opened(&root, Split::Test, &few).len(), 3);
    let sample = open("folder", &root, Split::Train, &few).unwrap().sample_name(0);
    assert!(sample.starts_with(&format!("{}/ant/", root.display())), "{sample}");
}

/// With three images, a class has one for validation; with five, one for the test.
#[test]
fn reports_why_a_split_is_impossible() {
    let directory = tempfile::tempdir().unwrap();
    let root = directory.path();
    for class in ["ant", "bee", "cat", "dog", "elk"] {
        write_picture(&root.join(format!("{class}/1.png")), [2, 2], 1);
    }
    let seeded = with(SplitMethod::Seeded(0));
    assert_eq!(opened(root, Split::Train, &seeded).len(), 5);
    let few = "ROOT: too few images to split: the validation split needs 3 per class, but 5 classes have \
               fewer (5 images of 5 classes): ant (1), bee (1), cat (1), dog (1), …; add images, select \
               classes with data.classes, or split the images with data.lists";
    assert_eq!(open_error("folder", root, Split::Validation, &seeded), few);
    // Also if damaged samples are skipped.
    let skipping = OpenOptions { skip_damaged: true, ..seeded.clone() };
    assert_eq!(open_error("folder", root, Split::Validation, &skipping), few);
    for number in 2..5 {
        write_picture(&root.join(format!("bee/{number}.png")), [2, 2], number);
    }
    let message = open_error("folder", root, Split::Validation, &seeded);
    assert!(
        message.contains(
            "but 4 classes have fewer (8 images of 5 classes): ant (1), cat (1), dog (1), elk (1); "
        ),
        "{message}"
    );
    let [only] = &opened(root, Split::Validation, &skipping)[..] else { panic!("one of four") };
    assert!(only.ends_with("of bee"), "{only}");
    let message = open_error("folder", root, Split::Test, &skipping);
    assert!(message.contains("(8 images of 5 classes)"), "{message}");
    assert!(message.contains("the test split needs 5 per class"), "{message}");
}

#[test]
fn splits_by_lists() {
    let directory = tempfile::tempdir().unwrap();
    let root = directory.path();
    set(root);
    let beside = tempfile::tempdir().unwrap();
    let list = |name: &str, text: &str| -> PathBuf {
        fs::write(beside.path().join(name), text).unwrap();
        beside.path().join(name)
    };
    let train = list("train", "cat/1.png\nant/3.png\n\n/data/set/train/ant/0.png\n");
    let validation = list("validation", "ant/9.png\ncat/0.png");
    let lists = with(SplitMethod::Lists(vec![train.clone(), validation]));
    assert_eq!(opened(root, Split::Train, &lists), ["0.png of ant", "3.png of ant", "1.png of cat"]);
    for split in [Split::Validation, Split::Test] {
        assert_eq!(opened(root, split, &lists), ["9.png of ant", "0.png of cat"]);
    }
    for (text, problem) in [
        ("ant/10.png", "line 1: `ant/10.png`: no such image"),
        ("ant/0.png\nbee/0.png", "line 2: `bee/0.png`: unknown class `bee`"),
        ("0.png", "line 1: expected `<class>/<file>`, found `0.png`"),
        ("../ant/..", "line 1: path `../ant/..` is outside the data set folder"),
        ("ant/0.png\nant/0.png", "1 duplicate images"),
    ] {
        fs::write(&train, text).unwrap();
        let message = open_error("folder", root, Split::Train, &lists);
        assert!(message.ends_with(problem), "{message}");
    }
    fs::write(&train, "").unwrap();
    assert!(open_error("folder", root, Split::Train, &lists).contains("classes without images (2)"));
    fs::remove_file(&train).unwrap();
    assert!(open_error("folder", root, Split::Train, &lists).contains("No such file"));
}

#[test]
fn splits_image_pairs() {
    let directory = tempfile::tempdir().unwrap();
    let root = directory.path();
    let mut list = String::new();
    for number in 0..5 {
        write_picture(&root.join(format!("train/{number}.png")), [1, 1], number);
        write_labels(&root.join(format!("trainannot/{number}.png")), [1, 1], &[number]);
        list.push_str(&format!("train/{number}.png trainannot/{number}.png\n"));
    }
    fs::write(root.join("train.txt"), &list).unwrap();
    fs::write(root.join("mine.txt"), &list[..list.len() / 5]).unwrap();
    let open = |split, split_by| open("camvid", root, split, &with(split_by)).unwrap();
    let parts = SPLITS.map(|split| names(open(split, SplitMethod::Seeded(3)).as_ref()));
    assert_eq!(parts.each_ref().map(Vec::len), [3, 1, 1]);
    assert_eq!(parts.concat().into_iter().collect::<BTreeSet<_>>().len(), 5);
    let lists = SplitMethod::Lists(vec![root.join("train.txt"), root.join("mine.txt")]);
    let lengths = SPLITS.map(|split| open(split, lists.clone()).len());
    assert_eq!(lengths, [5, 1, 1]);
}

#[test]
fn rejects_splitting_of_published_splits() {
    let error = |name| open_error(name, Path::new("nowhere"), Split::Train, &with(SplitMethod::Seeded(1)));
    for name in ["mnist", "coco", "synthetic"] {
        assert_eq!(error(name), format!("data.split_seed: `{name}` has published splits; remove this key"));
    }
    let lists = with(SplitMethod::Lists(Vec::new()));
    let message = open_error("cifar10", Path::new("nowhere"), Split::Train, &lists);
    assert!(message.starts_with("data.lists: "), "{message}");
    let directory = tempfile::tempdir().unwrap();
    let message = open_error("camvid", directory.path(), Split::Train, &with(SplitMethod::Seeded(1)));
    assert!(message.starts_with("ROOT: neither train.txt nor val.txt nor test.txt nor 701_StillsRaw_full/"));
}
