//! Folders and archives of image files: layout, classes, damage, and that the loader's batches depend on
//! nothing but seed and place.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::common;
use stratus_data::{
    Augment, BatchBuffer, ColourJitter, Dataset, LastBatch, Loader, LoaderConfig, OpenOptions, Order,
    ResizedCrop, Scratch, Split, SplitBy, open, stats,
};

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/images").join(name)
}

/// Two classes, of six and four training images, and a validation image each; beside them what is no sample.
fn set(root: &Path) {
    let put = |from: &str, to: &str| {
        let to = root.join(to);
        fs::create_dir_all(to.parent().unwrap()).unwrap();
        fs::copy(fixture(from), to).unwrap();
    };
    for (number, from) in
        ["colour.jpg", "cmyk.jpg", "grey.jpg", "progressive.jpg", "turned.jpg", "palette.png"]
            .iter()
            .enumerate()
    {
        put(from, &format!("train/cat/{number}.JPEG"));
    }
    for (number, from) in ["deep.png", "transparent.png", "bits.png", "grey_png.png"].iter().enumerate() {
        put(from, &format!("train/ant/{number}.png"));
    }
    put("colour.jpg", "val/cat/a.jpg");
    put("colour_png.png", "val/ant/b.png");
    fs::write(root.join("train/cat/.hidden"), "no image").unwrap();
    fs::write(root.join("train/README"), "no class").unwrap();
}

/// The same as one archive, its members out of order.
fn archive(root: &Path, to: &Path) {
    let mut archive = tar::Builder::new(fs::File::create(to).unwrap());
    let mut files: Vec<PathBuf> = Vec::new();
    for split in ["val", "train"] {
        for class in ["cat", "ant"] {
            let folder = root.join(split).join(class);
            files.extend(fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()));
        }
    }
    files.sort_by_key(|path| path.file_name().unwrap().to_owned());
    for path in files {
        let name = Path::new("some/set").join(path.strip_prefix(root).unwrap());
        archive.append_path_with_name(&path, name).unwrap();
    }
    archive.finish().unwrap();
}

fn names(set: &dyn Dataset) -> Vec<String> {
    let name = |index| set.sample_name(index).rsplit('/').take(2).collect::<Vec<_>>().join("<");
    (0..set.len()).map(name).collect()
}

fn refused(root: &Path, split: Split, options: &OpenOptions) -> String {
    let message = open("folder", root, split, options).map(|_| ()).unwrap_err().to_string();
    message.replace(&root.display().to_string(), "ROOT")
}

#[test]
fn a_folder_and_its_archive_are_the_same() {
    let directory = tempfile::tempdir().unwrap();
    let root = directory.path().join("set");
    set(&root);
    let tar = directory.path().join("set.tar");
    archive(&root, &tar);
    let options = OpenOptions::default();
    for split in [Split::Train, Split::Validation, Split::Test] {
        let (folder, archive) =
            (open("folder", &root, split, &options).unwrap(), open("folder", &tar, split, &options).unwrap());
        assert_eq!(names(folder.as_ref()), names(archive.as_ref()));
        assert_eq!(
            (folder.classes(), folder.class_name(0), folder.class_name(1)),
            (2, "ant".into(), "cat".into())
        );
        let (mut one, mut other) = (Scratch::default(), Scratch::default());
        for index in 0..folder.len() {
            assert_eq!(folder.read(index, &mut one).unwrap(), archive.read(index, &mut other).unwrap());
        }
        assert_eq!(stats::survey(folder.as_ref(), 1).unwrap(), stats::survey(archive.as_ref(), 3).unwrap());
    }
    let train = open("folder", &root, Split::Train, &options).unwrap();
    assert_eq!(names(train.as_ref())[3..5], ["3.png<ant", "0.JPEG<cat"]);
    assert_eq!(stats::survey(train.as_ref(), 2).unwrap().samples_per_class, [4, 6]);
    assert!(train.read(10, &mut Scratch::default()).is_err());
}

#[test]
fn classes_and_images_can_be_limited() {
    let directory = tempfile::tempdir().unwrap();
    let root = directory.path();
    set(root);
    let list = root.join("classes.txt");
    let with = |text: &str| {
        fs::write(&list, text).unwrap();
        OpenOptions { class_list: Some(list.clone()), images_per_class: Some(2), ..OpenOptions::default() }
    };
    let train = open("folder", root, Split::Train, &with("cat\n\n ant \n")).unwrap();
    assert_eq!(names(train.as_ref()), ["0.JPEG<cat", "1.JPEG<cat", "0.png<ant", "1.png<ant"]);
    assert_eq!((train.label(0).unwrap(), train.label(2).unwrap()), (0, 1));
    let one = open("folder", root, Split::Validation, &with("ant")).unwrap();
    assert_eq!((one.classes(), names(one.as_ref())), (1, vec!["b.png<ant".to_owned()]));
    assert_eq!(
        refused(root, Split::Train, &with("cat\ncta")),
        "ROOT/classes.txt: line 2: there is no class `cta` to train on, did you mean `cat`?"
    );
    assert_eq!(
        refused(root, Split::Train, &with("cat\ncat")),
        "ROOT/classes.txt: line 2: class `cat` is named twice"
    );
    assert_eq!(
        refused(root, Split::Train, &with("\n")),
        "ROOT/classes.txt: names no class; write one a line"
    );
    assert_eq!(
        refused(root, Split::Train, &with("../val/cat")),
        "ROOT/classes.txt: line 1: there is no class `../val/cat` to train on"
    );
}

#[test]
fn what_is_missing_or_damaged_is_listed_before_anything_is_read() {
    let directory = tempfile::tempdir().unwrap();
    let root = directory.path();
    assert_eq!(
        refused(root, Split::Train, &OpenOptions::default()),
        "ROOT: holds no folder `train`; the layout is train/<class>/<image> and val/<class>/<image>, or \
         <class>/<image>, which data.split_seed divides"
    );
    set(root);
    fs::create_dir(root.join("train/bee")).unwrap();
    assert_eq!(
        refused(root, Split::Train, &OpenOptions::default()),
        "ROOT/train: classes without an image (1): bee; remove them, or name the classes to use with \
         data.classes"
    );
    fs::remove_dir(root.join("train/bee")).unwrap();
    let whole = fs::read(fixture("colour.jpg")).unwrap();
    fs::write(root.join("train/cat/1.JPEG"), &whole[..780]).unwrap();
    fs::write(root.join("train/cat/3.JPEG"), "").unwrap();
    fs::write(root.join("train/ant/notes.txt"), "text").unwrap();
    let message = refused(root, Split::Train, &OpenOptions::default());
    let lines: Vec<&str> = message.lines().collect();
    assert_eq!(lines[0], "`folder`: damaged samples in the train split (3):");
    assert_eq!(lines[1], "  ROOT/train/ant/notes.txt: neither a JPEG nor a PNG file");
    assert_eq!(lines[2], "  ROOT/train/cat/1.JPEG: the file ends before the image does");
    assert_eq!(lines[3], "  ROOT/train/cat/3.JPEG: the file is empty");
    assert!(lines[4].contains("data.on_bad_sample = \"skip\""), "{message}");

    let options = OpenOptions { skip_damaged: true, ..OpenOptions::default() };
    let train: Arc<dyn Dataset> = open("folder", root, Split::Train, &options).unwrap().into();
    assert_eq!(train.damaged().iter().map(|(index, _)| *index).collect::<Vec<_>>(), [4, 6, 8]);
    let decoded = stats::survey(train.as_ref(), 3).unwrap().damaged;
    assert_eq!(decoded, train.damaged());
    let settings = LoaderConfig {
        shape: Some([3, 8, 8]),
        order: Order::Sequential,
        last: LastBatch::Keep,
        epochs: Some(1),
        ..LoaderConfig::new(11)
    };
    let error = Loader::new(Arc::clone(&train), settings.clone()).unwrap().next().unwrap_err().to_string();
    assert!(error.contains("train/ant/notes.txt: neither a JPEG nor a PNG file"), "{error}");
    let mut loader = Loader::new(train, LoaderConfig { skip_bad: true, ..settings }).unwrap();
    let batch = loader.next().unwrap().unwrap();
    assert_eq!(batch.labels[..], [0, 0, 0, 0, -1, 1, -1, 1, -1, 1, 1]);
    let row = |row: usize| &batch.images.elements::<f32>()[row * 192..(row + 1) * 192];
    assert!(row(4).iter().all(|&value| value == 0.0) && row(5).iter().any(|&value| value != 0.0));
    assert_eq!(loader.skipped().into_keys().collect::<Vec<_>>(), [4, 6, 8]);
}

/// What a folder without parts lacks is said with what to do, of an archive too.
#[test]
fn classes_that_are_not_divided_are_told_how() {
    let directory = tempfile::tempdir().unwrap();
    let root = directory.path().join("set");
    let put = |to: &str| {
        fs::create_dir_all(root.join(to).parent().unwrap()).unwrap();
        fs::copy(fixture("colour.jpg"), root.join(to)).unwrap();
    };
    put("1.jpg");
    let remedy = "; add `--set data.split_seed=0`, which divides each class into 60 % training, 20 % \
                  validation and 20 % test images, or sort the images into train/<class>/ and val/<class>/";
    let options = OpenOptions::default();
    assert_eq!(
        refused(&root, Split::Train, &options),
        "ROOT: holds images and no folders; the folder that an image lies in is its class: sort them into \
         train/<class>/ and val/<class>/, or into <class>/, which data.split_seed divides"
    );
    ["bee/1.JPG", "ant/1.jpg", "cat/1.jpg", "dog/1.jpg", "elk/1.jpg"].iter().for_each(|to| put(to));
    let found = "ROOT: holds the folders of 5 classes (ant, bee, cat, dog, …) and no folder ";
    assert_eq!(refused(&root, Split::Train, &options), format!("{found}`train`{remedy}"));
    assert_eq!(
        refused(&root, Split::Validation, &options),
        format!("{found}`train`{remedy}"),
        "training comes first"
    );
    let tar = directory.path().join("set.tar");
    let mut archive = tar::Builder::new(fs::File::create(&tar).unwrap());
    archive.append_dir_all("photographs", &root).unwrap();
    archive.finish().unwrap();
    assert_eq!(refused(&tar, Split::Train, &options), format!("{found}`train`{remedy}"));
    let whole = OpenOptions { split_by: SplitBy::Whole, images_per_class: Some(0), ..options.clone() };
    for path in [&root, &tar] {
        assert_eq!(open("folder", path, Split::Validation, &whole).unwrap().len(), 5);
    }
    // Parts under other names are parts.
    for (from, to) in [("ant", "Train/ant"), ("bee", "Train/bee"), ("cat", "TEST/ant"), ("dog", "valid/bee")]
    {
        fs::create_dir_all(root.join(to).parent().unwrap()).unwrap();
        fs::rename(root.join(from), root.join(to)).unwrap();
    }
    for (split, expected) in [
        (Split::Train, &["1.jpg<ant", "1.JPG<bee"][..]),
        (Split::Validation, &["1.jpg<bee"]),
        (Split::Test, &["1.jpg<ant"]),
    ] {
        let any = OpenOptions { skip_damaged: true, ..options.clone() };
        assert_eq!(names(open("folder", &root, split, &any).unwrap().as_ref()), expected);
    }
    fs::rename(root.join("valid"), root.join("elk/valid")).unwrap();
    fs::rename(root.join("TEST"), root.join("elk/test")).unwrap();
    assert_eq!(
        refused(&root, Split::Validation, &options),
        format!("ROOT: holds `Train` and no folder `val`, `valid`, `validation`, `test`{remedy}")
    );
    fs::rename(root.join("Train"), root.join("test")).unwrap();
    assert_eq!(
        refused(&root, Split::Train, &options),
        "ROOT: holds no folder `train`, but `elk`, `test`; the layout is train/<class>/<image> and \
         val/<class>/<image>, or <class>/<image>, which data.split_seed divides"
    );
}

#[test]
fn archives_that_are_none_or_cut_are_refused() {
    let directory = tempfile::tempdir().unwrap();
    let root = directory.path().join("set");
    set(&root);
    let tar = directory.path().join("set.tar");
    archive(&root, &tar);
    let whole = fs::read(&tar).unwrap();
    for end in [100, 700, whole.len() / 2] {
        fs::write(&tar, &whole[..end]).unwrap();
        let message = refused(&tar, Split::Train, &OpenOptions::default());
        let is_named =
            end < 512 || message.starts_with(&format!("ROOT: the archive ends at byte {end}, within "));
        assert!(is_named && message.starts_with("ROOT: "), "{message}");
    }
    fs::write(&tar, [b'x'; 2048]).unwrap();
    let message = refused(&tar, Split::Train, &OpenOptions::default());
    assert_eq!(message, "ROOT: is not a tar archive: it does not begin with a header");
}

fn all(set: &Arc<dyn Dataset>, config: LoaderConfig) -> Vec<BatchBuffer> {
    let mut loader = Loader::new(Arc::clone(set), config).unwrap();
    let mut batches = Vec::new();
    while let Some(buffer) = loader.next().unwrap() {
        batches.push(buffer.clone());
        loader.recycle(buffer);
    }
    batches
}

/// Every augmentation at once, from files and from an archive: the same bytes for any number of workers and
/// wherever a run is resumed.
#[test]
fn workers_and_resuming_change_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let root = directory.path().join("set");
    set(&root);
    let tar = directory.path().join("set.tar");
    archive(&root, &tar);
    let opened = |path: &Path| -> Arc<dyn Dataset> {
        open("folder", path, Split::Train, &OpenOptions::default()).unwrap().into()
    };
    let config = LoaderConfig {
        seed: 3,
        shape: Some([3, 12, 10]),
        augment: Augment {
            shift: 2,
            flip: true,
            cutout: 3,
            resized_crop: Some(ResizedCrop::default()),
            rotation: 20.0,
            zoom: Some([0.5, 2.0]),
            colour: ColourJitter { brightness: 0.4, contrast: 0.4, saturation: 0.4, hue: 0.1 },
            ..Augment::default()
        },
        last: LastBatch::Keep,
        epochs: Some(3),
        ..LoaderConfig::new(4)
    };
    let contents = |batches: &[BatchBuffer]| {
        let content =
            |b: &BatchBuffer| (b.epoch, b.index, b.images.to_vec(), b.labels.clone(), b.indices.clone());
        batches.iter().map(content).collect::<Vec<_>>()
    };
    let expected = contents(&all(&opened(&root), config.clone()));
    assert_eq!(expected.len(), 9);
    assert_ne!(expected[0].2, expected[3].2);
    for path in [&root, &tar] {
        let set = opened(path);
        for workers in [1, 2, 4] {
            let batches = all(&set, LoaderConfig { workers, slots: 5, ..config.clone() });
            assert_eq!(contents(&batches), expected, "{workers} workers");
        }
        for done in [1, 4, 8] {
            let start = stratus_data::Position { epoch: done as u32 / 3, batch: done as u64 % 3 };
            let batches = all(&set, LoaderConfig { start, workers: 2, ..config.clone() });
            assert_eq!(contents(&batches), expected[done..], "resumed after {done}");
        }
    }
}

#[test]
fn images_of_any_size_need_a_shape() {
    let directory = tempfile::tempdir().unwrap();
    set(directory.path());
    let train: Arc<dyn Dataset> =
        open("folder", directory.path(), Split::Train, &OpenOptions::default()).unwrap().into();
    let refuse = |config| Loader::new(Arc::clone(&train), config).unwrap_err().to_string();
    let config = LoaderConfig::new(2);
    assert_eq!(refuse(config.clone()), "shape: is not set, but the images of `folder` have no common size");
    assert_eq!(
        refuse(LoaderConfig { shape: Some([2, 8, 8]), ..config.clone() }),
        "shape: is 2×8×8, but the images of `folder` cannot be given 2 channels"
    );
    assert_eq!(
        refuse(LoaderConfig { shape: Some([3, 8, 9]), resize: Some(8), ..config }),
        "resize: is 8 pixels, of which 8×9 cannot be cut out; set at least 9"
    );
}

/// A link to a class that leads nowhere is named; links that lead somewhere are followed.
#[cfg(unix)]
#[test]
fn dead_links_are_named() {
    use std::os::unix::fs::symlink;
    let directory = tempfile::tempdir().unwrap();
    let (root, elsewhere) = (directory.path().join("set"), directory.path().join("elsewhere"));
    for split in ["train", "val"] {
        for class in ["ant", "bee"] {
            common::write_picture(&root.join(split).join(class).join("a.png"), [2, 2], 1);
        }
    }
    common::write_picture(&elsewhere.join("b.png"), [2, 2], 2);
    symlink(&elsewhere, root.join("train/cat")).unwrap();
    let options = OpenOptions::default();
    let set = open("folder", &root, Split::Train, &options).unwrap();
    assert_eq!((set.classes(), set.len()), (3, 3));

    symlink("/nowhere/zebra", root.join("train/zebra")).unwrap();
    let skip = OpenOptions { skip_damaged: true, verify: false, ..OpenOptions::default() };
    for options in [&options, &skip] {
        for split in [Split::Train, Split::Validation] {
            let message = common::refused("folder", &root, split, options);
            let expected = "ROOT/train/zebra: is a link to /nowhere/zebra, which cannot be followed (";
            assert!(message.starts_with(expected), "{message}");
        }
    }
    fs::remove_file(root.join("train/zebra")).unwrap();
    // A link that a copy has made a text. Other texts are no classes.
    fs::write(root.join("train/zebra"), "/nowhere/zebra").unwrap();
    for (name, text) in
        [("NOTES", "/a and /b"), ("list.txt", "/a"), ("LICENSE", "see ../LICENSE"), ("none", "")]
    {
        fs::write(root.join("train").join(name), text).unwrap();
    }
    let message = common::refused("folder", &root, Split::Train, &options);
    let expected = "ROOT/train/zebra: is a text that holds the path /nowhere/zebra, as a link becomes where";
    assert!(message.starts_with(expected), "{message}");
    fs::remove_file(root.join("train/zebra")).unwrap();
    assert_eq!(open("folder", &root, Split::Train, &options).unwrap().classes(), 3);
    // A link beside the parts that nothing needs, and a part that is a link.
    symlink("/nowhere/notes", root.join("notes")).unwrap();
    assert!(open("folder", &root, Split::Train, &options).is_ok());
    fs::rename(root.join("val"), directory.path().join("val")).unwrap();
    symlink("/nowhere/val", root.join("val")).unwrap();
    let message = common::refused("folder", &root, Split::Validation, &options);
    assert!(message.starts_with("ROOT/val: is a link to /nowhere/val"), "{message}");
}

#[test]
fn packed_data_sets_are_to_be_unpacked_first() {
    let directory = tempfile::tempdir().unwrap();
    for (name, begin, command) in [
        ("set.tar.gz", &b"\x1f\x8b\x08\0\0\0"[..], "mkdir set && tar -xzf set.tar.gz -C set"),
        ("Set.TGZ", b"\x1f\x8b\x08\0\0\0", "mkdir Set && tar -xzf Set.TGZ -C Set"),
        ("set.tar.zst", b"\x28\xb5\x2f\xfd\0\0", "mkdir set && tar --zstd -xf set.tar.zst -C set"),
        ("set.tar.xz", b"\xfd7zXZ\0", "mkdir set && tar -xJf set.tar.xz -C set"),
        ("set.tar.bz2", b"BZh91A", "mkdir set && tar -xjf set.tar.bz2 -C set"),
        ("set.zip", b"PK\x03\x04\0\0", "mkdir set && unzip -q set.zip -d set"),
        ("empty.zip", b"PK\x05\x06\0\0", "mkdir empty && unzip -q empty.zip -d empty"),
        ("set", b"PK\x03\x04\0\0", "mkdir unpacked && unzip -q set -d unpacked"),
        ("set.tar.lz", b"LZIP\x01\0", "mkdir set && tar --lzip -xf set.tar.lz -C set"),
        ("set.tar.lz4", b"\x04\x22\x4d\x18\0\0", "mkdir set && tar -I lz4 -xf set.tar.lz4 -C set"),
        ("set.tar.lzma", b"\x5d\0\0\x80\0\0", "mkdir set && tar --lzma -xf set.tar.lzma -C set"),
        ("set.tar.Z", b"\x1f\x9d\x90\0\0\0", "mkdir set && tar -xZf set.tar.Z -C set"),
    ] {
        let path = directory.path().join(name);
        fs::write(&path, begin).unwrap();
        for data in ["folder", "coco", "cityscapes", "camvid", "shards"] {
            let message = common::refused(data, &path, Split::Train, &OpenOptions::default());
            assert!(message.ends_with(command) && message.contains("unpack it first"), "{data}: {message}");
        }
    }
    // Shards of which some are compressed are not read without these.
    let shards = directory.path().join("shards");
    fs::create_dir(&shards).unwrap();
    fs::write(shards.join("train-000000.tar"), [0; 1024]).unwrap();
    fs::write(shards.join("train-000001.tar.gz"), b"\x1f\x8b\x08\0\0\0").unwrap();
    let message = common::refused("shards", &shards, Split::Train, &OpenOptions::default());
    assert!(message.contains("train-000001.tar.gz: is compressed by gzip"), "{message}");
}
