//! Folders and archives of image files: layout, classes, damage, and batches that depend only on seed and
//! position.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::common;
use stratus_data::{
    Augment, BatchBuffer, ColourJitter, Dataset, LastBatch, Loader, LoaderConfig, OpenOptions, Order,
    ResizedCrop, Scratch, Split, SplitMethod, open, stats,
};

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/images").join(name)
}

/// Two classes, with six and four training images and one validation image each, and files that are not
/// samples.
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

/// Packs the folder into an archive, with unsorted members.
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

fn open_error(root: &Path, split: Split, options: &OpenOptions) -> String {
    let message = open("folder", root, split, options).map(|_| ()).unwrap_err().to_string();
    message.replace(&root.display().to_string(), "ROOT")
}

#[test]
fn reads_a_folder_and_its_archive_alike() {
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
        assert_eq!(
            stats::compute_stats(folder.as_ref(), 1).unwrap(),
            stats::compute_stats(archive.as_ref(), 3).unwrap()
        );
    }
    let train = open("folder", &root, Split::Train, &options).unwrap();
    assert_eq!(names(train.as_ref())[3..5], ["3.png<ant", "0.JPEG<cat"]);
    assert_eq!(stats::compute_stats(train.as_ref(), 2).unwrap().samples_per_class, [4, 6]);
    assert!(train.read(10, &mut Scratch::default()).is_err());
}

#[test]
fn limits_classes_and_images() {
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
        open_error(root, Split::Train, &with("cat\ncta")),
        "ROOT/classes.txt: line 2: unknown class `cta`, did you mean `cat`?"
    );
    assert_eq!(
        open_error(root, Split::Train, &with("cat\ncat")),
        "ROOT/classes.txt: line 2: duplicate class `cat`"
    );
    assert_eq!(
        open_error(root, Split::Train, &with("\n")),
        "ROOT/classes.txt: no class names; expected one per line"
    );
    assert_eq!(
        open_error(root, Split::Train, &with("../val/cat")),
        "ROOT/classes.txt: line 1: unknown class `../val/cat`"
    );
}

#[test]
fn lists_missing_and_damaged_files_on_open() {
    let directory = tempfile::tempdir().unwrap();
    let root = directory.path();
    assert_eq!(
        open_error(root, Split::Train, &OpenOptions::default()),
        "ROOT: no folder `train`; expected train/<class>/<image> and val/<class>/<image>, or <class>/<image> \
         with data.split_seed"
    );
    set(root);
    fs::create_dir(root.join("train/bee")).unwrap();
    assert_eq!(
        open_error(root, Split::Train, &OpenOptions::default()),
        "ROOT/train: classes without images (1): bee; remove them, or select classes with data.classes"
    );
    fs::remove_dir(root.join("train/bee")).unwrap();
    let whole = fs::read(fixture("colour.jpg")).unwrap();
    fs::write(root.join("train/cat/1.JPEG"), &whole[..780]).unwrap();
    fs::write(root.join("train/cat/3.JPEG"), "").unwrap();
    fs::write(root.join("train/ant/notes.png"), "text").unwrap();
    let message = open_error(root, Split::Train, &OpenOptions::default());
    let lines: Vec<&str> = message.lines().collect();
    assert_eq!(lines[0], "`folder`: damaged samples in the train split (3):");
    assert_eq!(lines[1], "  ROOT/train/ant/notes.png: not a JPEG, PNG or WebP file");
    assert_eq!(lines[2], "  ROOT/train/cat/1.JPEG: the file ends before the image does");
    assert_eq!(lines[3], "  ROOT/train/cat/3.JPEG: the file is empty");
    assert!(lines[4].contains("data.on_bad_sample = \"skip\""), "{message}");

    let options = OpenOptions { skip_damaged: true, ..OpenOptions::default() };
    let train: Arc<dyn Dataset> = open("folder", root, Split::Train, &options).unwrap().into();
    assert_eq!(train.damaged().iter().map(|(index, _)| *index).collect::<Vec<_>>(), [4, 6, 8]);
    let decoded = stats::compute_stats(train.as_ref(), 3).unwrap().damaged;
    assert_eq!(decoded, train.damaged());
    let settings = LoaderConfig {
        shape: Some([3, 8, 8]),
        order: Order::Sequential,
        last: LastBatch::Keep,
        epochs: Some(1),
        ..LoaderConfig::new(11)
    };
    let error = Loader::new(Arc::clone(&train), settings.clone()).unwrap().next().unwrap_err().to_string();
    assert!(error.contains("train/ant/notes.png: not a JPEG, PNG or WebP file"), "{error}");
    let mut loader = Loader::new(train, LoaderConfig { skip_damaged: true, ..settings }).unwrap();
    let batch = loader.next().unwrap().unwrap();
    assert_eq!(batch.labels[..], [0, 0, 0, 0, -1, 1, -1, 1, -1, 1, 1]);
    let row = |row: usize| &batch.images.elements::<f32>()[row * 192..(row + 1) * 192];
    assert!(row(4).iter().all(|&value| value == 0.0) && row(5).iter().any(|&value| value != 0.0));
    assert_eq!(loader.skipped().into_keys().collect::<Vec<_>>(), [4, 6, 8]);
}

/// Other files between the images are no samples, on disk and in archives. A file with the name or the
/// content of an image is one, and may be damaged.
#[test]
fn ignores_files_that_are_no_images() {
    let directory = tempfile::tempdir().unwrap();
    let root = directory.path().join("set");
    set(&root);
    let before = names(open("folder", &root, Split::Train, &OpenOptions::default()).unwrap().as_ref());
    for (name, content) in [
        ("ant/README.txt", &b"<script>alert(1)</script>"[..]),
        ("ant/a\nb.csv", b"a,b"),
        ("ant/empty", b""),
        ("cat/notes.json", b"{}"),
        ("cat/clip.mp4", b"\0\0\0\x18ftypisom\0\0\0\0isomiso2"),
    ] {
        fs::write(root.join("train").join(name), content).unwrap();
    }
    let tar = directory.path().join("set.tar");
    archive(&root, &tar);
    for path in [&root, &tar] {
        for (verify, images_per_class) in [(true, None), (false, None), (true, Some(1))] {
            let options = OpenOptions { verify, images_per_class, ..OpenOptions::default() };
            let train = open("folder", path, Split::Train, &options).unwrap();
            if images_per_class.is_none() {
                assert_eq!(names(train.as_ref()), before);
                assert_eq!(train.ignored_files().count(), 5);
                let warning = train.ignored_files().warning().unwrap();
                assert!(warning.starts_with("ignoring 5 files that are not images: "), "{warning}");
                assert!(warning.contains("train/ant/a\\nb.csv, ") && !warning.contains('\n'), "{warning}");
            }
            let count = images_per_class.map_or(before.len(), |most| most * train.classes());
            assert_eq!(train.len(), count);
            let validation = open("folder", path, Split::Validation, &options).unwrap();
            assert_eq!(validation.ignored_files().warning(), None);
        }
    }
    // An image without an extension, a picture of another format, and a text with the name of one.
    fs::copy(fixture("colour.jpg"), root.join("train/ant/unnamed")).unwrap();
    fs::write(root.join("train/ant/w.dat"), "GIF89a").unwrap();
    fs::write(root.join("train/ant/x.gif"), "text").unwrap();
    fs::write(root.join("train/ant/y.webp"), "text").unwrap();
    archive(&root, &tar);
    let options = OpenOptions { skip_damaged: true, ..OpenOptions::default() };
    for path in [&root, &tar] {
        let train = open("folder", path, Split::Train, &options).unwrap();
        assert_eq!((train.len(), train.ignored_files().count()), (before.len() + 4, 5));
        let problems: Vec<&str> = train.damaged().iter().map(|(_, problem)| problem.as_str()).collect();
        assert_eq!(
            problems,
            [
                "a GIF image, which is not supported: convert it to JPEG or PNG",
                "not a JPEG, PNG or WebP file",
                "not a JPEG, PNG or WebP file",
            ]
        );
    }
}

/// Errors about missing splits include a hint, also for archives.
#[test]
fn explains_how_to_split_class_folders() {
    let directory = tempfile::tempdir().unwrap();
    let root = directory.path().join("set");
    let put = |to: &str| {
        fs::create_dir_all(root.join(to).parent().unwrap()).unwrap();
        fs::copy(fixture("colour.jpg"), root.join(to)).unwrap();
    };
    put("1.jpg");
    let remedy = "; add `--set data.split_seed=0` to split each class into 60 % training, 20 % validation \
                  and 20 % test images, or move the images to train/<class>/ and val/<class>/";
    let options = OpenOptions::default();
    assert_eq!(
        open_error(&root, Split::Train, &options),
        "ROOT: found images but no class folders; move them to train/<class>/ and val/<class>/, or to \
         <class>/ with data.split_seed"
    );
    ["bee/1.JPG", "ant/1.jpg", "cat/1.jpg", "dog/1.jpg", "elk/1.jpg"].iter().for_each(|to| put(to));
    let found = "ROOT: found 5 class folders (ant, bee, cat, dog, …), but no folder ";
    assert_eq!(open_error(&root, Split::Train, &options), format!("{found}`train`{remedy}"));
    assert_eq!(
        open_error(&root, Split::Validation, &options),
        format!("{found}`train`{remedy}"),
        "the training split is checked first"
    );
    let tar = directory.path().join("set.tar");
    let mut archive = tar::Builder::new(fs::File::create(&tar).unwrap());
    archive.append_dir_all("photographs", &root).unwrap();
    archive.finish().unwrap();
    assert_eq!(open_error(&tar, Split::Train, &options), format!("{found}`train`{remedy}"));
    let whole =
        OpenOptions { split_method: SplitMethod::Unsplit, images_per_class: Some(0), ..options.clone() };
    for path in [&root, &tar] {
        assert_eq!(open("folder", path, Split::Validation, &whole).unwrap().len(), 5);
    }
    // Split folders may have other names.
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
        open_error(&root, Split::Validation, &options),
        format!("ROOT: found `Train`, but no folder `val`, `valid`, `validation`, `test`{remedy}")
    );
    fs::rename(root.join("Train"), root.join("test")).unwrap();
    assert_eq!(
        open_error(&root, Split::Train, &options),
        "ROOT: no folder `train`, found `elk`, `test`; expected train/<class>/<image> and \
         val/<class>/<image>, or <class>/<image> with data.split_seed"
    );
}

#[test]
fn rejects_truncated_archives_and_other_files() {
    let directory = tempfile::tempdir().unwrap();
    let root = directory.path().join("set");
    set(&root);
    let tar = directory.path().join("set.tar");
    archive(&root, &tar);
    let whole = fs::read(&tar).unwrap();
    for end in [100, 700, whole.len() / 2] {
        fs::write(&tar, &whole[..end]).unwrap();
        let message = open_error(&tar, Split::Train, &OpenOptions::default());
        let is_named =
            end < 512 || message.starts_with(&format!("ROOT: the archive ends at byte {end}, inside "));
        assert!(is_named && message.starts_with("ROOT: "), "{message}");
    }
    fs::write(&tar, [b'x'; 2048]).unwrap();
    let message = open_error(&tar, Split::Train, &OpenOptions::default());
    assert_eq!(message, "ROOT: not a tar archive: it does not begin with a header");
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

/// All augmentations at once, from files and from an archive: the same bytes for any number of workers and
/// after resuming.
#[test]
fn batches_do_not_depend_on_workers_or_resuming() {
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
fn requires_a_shape_for_images_of_any_size() {
    let directory = tempfile::tempdir().unwrap();
    set(directory.path());
    let train: Arc<dyn Dataset> =
        open("folder", directory.path(), Split::Train, &OpenOptions::default()).unwrap().into();
    let error = |config| Loader::new(Arc::clone(&train), config).unwrap_err().to_string();
    let config = LoaderConfig::new(2);
    assert_eq!(error(config.clone()), "shape: must be set, because the images of `folder` differ in size");
    assert_eq!(
        error(LoaderConfig { shape: Some([2, 8, 8]), ..config.clone() }),
        "shape: is 2×8×8, but the images of `folder` cannot be converted to 2 channels"
    );
    assert_eq!(
        error(LoaderConfig { shape: Some([3, 8, 9]), resize: Some(8), ..config }),
        "resize: is 8, smaller than the crop 8×9; set at least 9"
    );
}

/// Broken links to classes are reported; valid links are followed.
#[cfg(unix)]
#[test]
fn reports_broken_links() {
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
            let message = common::open_error("folder", &root, split, options);
            let expected = "ROOT/train/zebra: is a broken link to /nowhere/zebra (";
            assert!(message.starts_with(expected), "{message}");
        }
    }
    fs::remove_file(root.join("train/zebra")).unwrap();
    // A link that a copy has turned into a text file. Other text files are not classes.
    fs::write(root.join("train/zebra"), "/nowhere/zebra").unwrap();
    for (name, text) in
        [("NOTES", "/a and /b"), ("list.txt", "/a"), ("LICENSE", "see ../LICENSE"), ("none", "")]
    {
        fs::write(root.join("train").join(name), text).unwrap();
    }
    let message = common::open_error("folder", &root, Split::Train, &options);
    let expected =
        "ROOT/train/zebra: is a text file with the path /nowhere/zebra, probably a link that was not";
    assert!(message.starts_with(expected), "{message}");
    fs::remove_file(root.join("train/zebra")).unwrap();
    assert_eq!(open("folder", &root, Split::Train, &options).unwrap().classes(), 3);
    // A broken link that is not needed, and one that is a split folder.
    symlink("/nowhere/notes", root.join("notes")).unwrap();
    assert!(open("folder", &root, Split::Train, &options).is_ok());
    fs::rename(root.join("val"), directory.path().join("val")).unwrap();
    symlink("/nowhere/val", root.join("val")).unwrap();
    let message = common::open_error("folder", &root, Split::Validation, &options);
    assert!(message.starts_with("ROOT/val: is a broken link to /nowhere/val"), "{message}");
}

#[test]
fn compressed_archives_must_be_unpacked() {
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
            let message = common::open_error(data, &path, Split::Train, &OpenOptions::default());
            if data == "folder" && command.contains("unzip") {
                // These are read in place, but end after their first bytes.
                assert!(message.contains("the zip archive has no directory"), "{message}");
                continue;
            }
            assert!(message.ends_with(command) && message.contains("unpack it: "), "{data}: {message}");
        }
    }
    // Shards are not read if some of them are compressed.
    let shards = directory.path().join("shards");
    fs::create_dir(&shards).unwrap();
    fs::write(shards.join("train-000000.tar"), [0; 1024]).unwrap();
    fs::write(shards.join("train-000001.tar.gz"), b"\x1f\x8b\x08\0\0\0").unwrap();
    let message = common::open_error("shards", &shards, Split::Train, &OpenOptions::default());
    assert!(message.contains("train-000001.tar.gz: is compressed by gzip"), "{message}");
}
