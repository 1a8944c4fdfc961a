//! Fingerprints: copies have the same fingerprint, and every change of a sample changes it.

use std::fs;
use std::path::Path;

use stratus_data::fingerprint::{Fingerprint, MAX_HASHED_SAMPLES, MAX_LISTED_FILES};
use stratus_data::shards::{self, INDEX_FILE, PackOptions};
use stratus_data::{OpenOptions, Split, SplitMethod, TableOptions, TargetKind, open};

use crate::common::{write_labels, write_picture};

fn fingerprint_by(name: &str, root: &Path, split: Split, options: &OpenOptions) -> Fingerprint {
    Fingerprint::compute(open(name, root, split, options).unwrap().as_ref())
}

/// The fingerprint of a data set, without verification.
fn fingerprint(name: &str, root: &Path, split: Split) -> Fingerprint {
    fingerprint_by(name, root, split, &OpenOptions { verify: false, ..OpenOptions::default() })
}

fn put_classes(root: &Path) {
    for (split, images) in [("train", 4), ("val", 2)] {
        for (class, name) in [(0, "cat"), (1, "dog"), (2, "eel")] {
            for image in 0..images {
                let path = root.join(format!("{split}/{name}/{image}.png"));
                write_picture(&path, [4, 4], class * 10 + image);
            }
        }
    }
}

/// Changes the last byte of a file.
fn change_in_place(path: &Path) {
    let mut bytes = fs::read(path).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    fs::write(path, bytes).unwrap();
}

fn file<'a>(fingerprint: &'a Fingerprint, path: &str) -> &'a stratus_data::fingerprint::FileFingerprint {
    fingerprint.files.iter().find(|file| file.path == path).unwrap()
}

#[test]
fn fingerprint_lists_files_and_is_portable() {
    let directory = tempfile::tempdir().unwrap();
    let (here, there) = (directory.path().join("here"), directory.path().join("there/photographs"));
    put_classes(&here);
    put_classes(&there);
    let before = fingerprint("folder", &here, Split::Train);
    assert_eq!((before.samples, before.files.len()), (12, 12));
    assert_eq!(before.classes, ["cat", "dog", "eel"]);
    let folders: Vec<_> = before.folders.iter().map(|folder| (folder.path.as_str(), folder.files)).collect();
    assert_eq!(folders, [("train/cat", 4), ("train/dog", 4), ("train/eel", 4)]);
    let length = fs::metadata(here.join("train/cat/3.png")).unwrap().len();
    assert_eq!(file(&before, "train/cat/3.png").bytes, Some(length));
    assert_eq!(before, fingerprint("folder", &there, Split::Train));

    change_in_place(&there.join("train/dog/2.png"));
    let after = fingerprint("folder", &there, Split::Train);
    assert_eq!(after.folders, before.folders);
    let differ: Vec<_> =
        after.files.iter().zip(&before.files).filter(|(now, before)| now != before).collect();
    assert_eq!(differ.len(), 1);
    assert_eq!(differ[0].0.path, "train/dog/2.png");

    fs::write(there.join("train/dog/2.png"), [0; 9]).unwrap();
    let after = fingerprint("folder", &there, Split::Train);
    assert_ne!(after.folders[1], before.folders[1]);
    assert_ne!(file(&after, "train/dog/2.png").bytes, file(&before, "train/dog/2.png").bytes);

    // A missing file has no length.
    fs::remove_file(there.join("train/dog/2.png")).unwrap();
    std::os::unix::fs::symlink("/nowhere", there.join("train/dog/2.png")).unwrap();
    assert_eq!(file(&fingerprint("folder", &there, Split::Train), "train/dog/2.png").bytes, None);
}

#[test]
fn archive_fingerprint_lists_the_files_of_its_folder() {
    let directory = tempfile::tempdir().unwrap();
    let (folder, archive) = (directory.path().join("set"), directory.path().join("set.tar"));
    put_classes(&folder);
    let mut tar = tar::Builder::new(fs::File::create(&archive).unwrap());
    tar.append_dir_all(".", &folder).unwrap();
    tar.finish().unwrap();
    for split in [Split::Train, Split::Validation] {
        assert_eq!(fingerprint("folder", &archive, split), fingerprint("folder", &folder, split));
    }
}

#[test]
fn class_list_and_seed_select_the_fingerprinted_samples() {
    let directory = tempfile::tempdir().unwrap();
    let root = directory.path().join("set");
    put_classes(&root);
    let list = directory.path().join("classes.txt");
    let classes = |names: &str| {
        fs::write(&list, names).unwrap();
        let options = OpenOptions { class_list: Some(list.clone()), ..OpenOptions::default() };
        fingerprint_by("folder", &root, Split::Train, &options)
    };
    let (one, other) = (classes("dog\ncat\n"), classes("cat\ndog\n"));
    assert_eq!((one.classes.as_slice(), one.samples), (&["dog".to_owned(), "cat".to_owned()][..], 8));
    assert_ne!(one.classes, other.classes);

    let split_by_seed = |seed| {
        let split_by = SplitMethod::Seeded(seed);
        let options = OpenOptions { split_method: split_by, ..OpenOptions::default() };
        fingerprint_by("folder", &root.join("train"), Split::Train, &options)
    };
    assert_eq!(split_by_seed(0), split_by_seed(0));
    assert!((1..5).any(|seed| split_by_seed(seed).files != split_by_seed(0).files));
}

#[test]
fn fingerprint_includes_masks() {
    let directory = tempfile::tempdir().unwrap();
    let root = directory.path();
    let list: String = (0..3).map(|image| format!("train/{image}.png trainannot/{image}.png\n")).collect();
    for image in 0..3 {
        write_picture(&root.join(format!("train/{image}.png")), [2, 2], image);
        write_labels(&root.join(format!("trainannot/{image}.png")), [2, 2], &[image, 0, 1, 11]);
    }
    fs::write(root.join("train.txt"), list).unwrap();
    let before = fingerprint("camvid", root, Split::Train);
    assert_eq!(before.files.len(), 6);
    change_in_place(&root.join("trainannot/1.png"));
    let after = fingerprint("camvid", root, Split::Train);
    assert_ne!(file(&after, "trainannot/1.png").sha256, file(&before, "trainannot/1.png").sha256);
    assert_eq!(file(&after, "train/1.png"), file(&before, "train/1.png"));
    fs::remove_file(root.join("trainannot/1.png")).unwrap();
    assert_eq!(file(&fingerprint("camvid", root, Split::Train), "trainannot/1.png").bytes, None);
}

#[test]
fn compares_annotations_by_meaning() {
    let directory = tempfile::tempdir().unwrap();
    let root = directory.path();
    write_picture(&root.join("train/1.png"), [8, 8], 1);
    let annotations = root.join("annotations/instances_train.json");
    fs::create_dir_all(annotations.parent().unwrap()).unwrap();
    let with = |corner: u32, category: u32, space: &str| {
        let json = format!(
            r#"{{"images": [{{"id": 1, "file_name": "1.png", "height": 8, "width": 8}}],{space}
            "categories": [{{"id": 1, "name": "cat"}}, {{"id": 2, "name": "dog"}}],
            "annotations": [{{"id": 1, "image_id": 1, "category_id": {category}, "area": 9, "iscrowd": 0,
            "bbox": [1, 1, 3, 3], "segmentation": [[1, 1, {corner}, 1, {corner}, 4, 1, 4]]}}]}}"#
        );
        fs::write(&annotations, json).unwrap();
        ["coco", "coco_labels"].map(|name| fingerprint(name, root, Split::Train))
    };
    let [masks, labels] = with(4, 1, "");
    assert_eq!((masks.classes.len(), labels.classes.len()), (3, 2));
    assert_eq!(masks.files[0].path, "train/1.png");
    assert_eq!(with(4, 1, " \n"), [masks.clone(), labels.clone()]);
    assert_ne!(with(5, 1, "")[0].memory_sha256, masks.memory_sha256);
    let [other_masks, other_labels] = with(4, 2, "");
    assert_ne!(other_masks.memory_sha256, masks.memory_sha256);
    assert_ne!(other_labels.labels_sha256, labels.labels_sha256);
}

#[test]
fn compares_pixels_and_labels_in_memory() {
    let directory = tempfile::tempdir().unwrap();
    let root = directory.path();
    let write = |label: u8, pixel: u8| {
        let images = [&[0, 0, 8, 3, 0, 0, 0, 2, 0, 0, 0, 1, 0, 0, 0, 2][..], &[1, 2, 3, pixel]].concat();
        let labels = [&[0, 0, 8, 1, 0, 0, 0, 2][..], &[1, label]].concat();
        fs::write(root.join("train-images-idx3-ubyte"), images).unwrap();
        fs::write(root.join("train-labels-idx1-ubyte"), labels).unwrap();
        fingerprint("mnist", root, Split::Train)
    };
    let before = write(0, 4);
    assert_eq!((before.samples, before.classes.len(), before.files.len()), (2, 10, 0));
    let (label, pixel) = (write(1, 4), write(0, 5));
    assert_ne!(label.labels_sha256, before.labels_sha256);
    assert_eq!(label.memory_sha256, before.memory_sha256);
    assert_ne!(pixel.memory_sha256, before.memory_sha256);

    for batch in 1..=5 {
        let record = |last: u8| [vec![batch], vec![7; 3071], vec![last]].concat();
        fs::write(root.join(format!("data_batch_{batch}.bin")), record(1)).unwrap();
    }
    let before = fingerprint("cifar10", root, Split::Train);
    change_in_place(&root.join("data_batch_3.bin"));
    let after = fingerprint("cifar10", root, Split::Train);
    assert_ne!(after.memory_sha256, before.memory_sha256);
    assert_eq!(after.labels_sha256, before.labels_sha256);
}

#[test]
fn compares_shards_by_index_or_samples() {
    let directory = tempfile::tempdir().unwrap();
    let (source, packed) = (directory.path().join("set"), directory.path().join("shards"));
    put_classes(&source);
    let pack = || {
        let _ = fs::remove_dir_all(&packed);
        let parts = shards::open_splits("folder", &source, &OpenOptions::default()).unwrap();
        shards::pack(&parts, &packed, &PackOptions::default(), &mut |_| ()).unwrap();
        fingerprint("shards", &packed, Split::Train)
    };
    let before = pack();
    assert_eq!((before.files.len(), before.files[0].path.as_str()), (1, "train-000000.tar"));
    assert!(before.files[0].sha256.is_some());
    let index = packed.join(INDEX_FILE);
    let text = fs::read_to_string(&index).unwrap();
    let at = text.find("\"labels\":[").unwrap() + 10;
    let mut changed = text.clone().into_bytes();
    changed[at] = if changed[at] == b'0' { b'1' } else { b'0' };
    fs::write(&index, changed).unwrap();
    assert_ne!(fingerprint("shards", &packed, Split::Train).labels_sha256, before.labels_sha256);
    fs::remove_file(&index).unwrap();
    let scanned = fingerprint("shards", &packed, Split::Train);
    assert_eq!((scanned.samples, scanned.files.len()), (12, 13));
    assert_eq!(scanned, fingerprint("shards", &packed, Split::Train));
    // Swap images of the same length.
    change_in_place(&source.join("train/dog/2.png"));
    assert_ne!(pack().files, before.files);
    fs::remove_file(&index).unwrap();
    assert_ne!(fingerprint("shards", &packed, Split::Train).files, scanned.files);
}

#[test]
fn compares_all_lengths_and_sampled_content_of_many_files() {
    let directory = tempfile::tempdir().unwrap();
    let root = directory.path();
    let count = MAX_LISTED_FILES + 1;
    fs::create_dir_all(root.join("train/cat")).unwrap();
    for image in 0..count {
        fs::write(root.join(format!("train/cat/{image:06}.png")), image.to_le_bytes()).unwrap();
    }
    let before = fingerprint("folder", root, Split::Train);
    assert_eq!((before.samples, before.folders[0].files), (count as u64, count as u64));
    assert_eq!(before.files.len(), MAX_HASHED_SAMPLES);
    assert!(before.files.iter().all(|file| file.sha256.is_some()));
    // The hashed files are spread over the folder, and always the same.
    assert!(before.files[0].path.as_str() < "train/cat/000050.png");
    assert!(before.files[MAX_HASHED_SAMPLES - 1].path.as_str() > "train/cat/019950.png");
    change_in_place(&root.join(&before.files[17].path));
    let after = fingerprint("folder", root, Split::Train);
    assert_eq!(after.folders, before.folders);
    assert_ne!(after.files[17], before.files[17]);
    let unread = (0..count).map(|image| format!("train/cat/{image:06}.png"));
    let unread = unread.filter(|path| before.files.iter().all(|file| file.path != *path)).nth(3).unwrap();
    fs::write(root.join(unread), [0; 9]).unwrap();
    assert_ne!(fingerprint("folder", root, Split::Train).folders, before.folders);
}

#[test]
fn targets_are_part_of_the_fingerprint() {
    let directory = tempfile::tempdir().unwrap();
    let root = directory.path();
    for number in 0..3 {
        write_picture(&root.join(format!("{number}.png")), [4, 4], number);
    }
    let with = |text: &str| {
        fs::write(root.join("labels.csv"), text).unwrap();
        let options = OpenOptions { split_method: SplitMethod::Unsplit, ..OpenOptions::default() };
        fingerprint_by("table", root, Split::Train, &options)
    };
    let before = with("path,a,b\n0.png,1,0\n1.png,0,\n2.png,1,1\n");
    assert_eq!((before.classes.as_slice(), before.files.len()), (&["a".to_owned(), "b".to_owned()][..], 3));
    // The same table in other words.
    assert_eq!(with("b;a;path\nno;yes;0.png\n;no;1.png\ntrue;1;./2.png\n").files, before.files);
    assert_eq!(with("path,a,b\n0.png,yes,no\n1.png,0,\n2.png,1,1.0\n"), before);
    for text in [
        "path,a,b\n0.png,1,0\n1.png,0,0\n2.png,1,1\n",
        "path,a,b\n0.png,1,0\n1.png,0,\n2.png,0,1\n",
        "path,a,b\n0.png,1,0\n1.png,0,\n2.png,1,1.5\n",
    ] {
        let after = with(text);
        assert_ne!(after.labels_sha256, before.labels_sha256, "{text}");
        assert_eq!(after.files, before.files);
    }
    // Numbers of the same values are another data set.
    let numbers = OpenOptions {
        table: TableOptions { kind: Some(TargetKind::Numbers), ..TableOptions::default() },
        split_method: SplitMethod::Unsplit,
        ..OpenOptions::default()
    };
    with("path,a,b\n0.png,1,0\n1.png,0,\n2.png,1,1\n");
    let as_numbers = fingerprint_by("table", root, Split::Train, &numbers);
    assert_ne!(as_numbers.labels_sha256, before.labels_sha256);
}
