//! An archive is read like the folder that it unpacks to, for every encoding.

use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};

use proptest::prelude::*;
use tar::{Builder, EntryType};

use crate::common::tars::{FILE_ENCODINGS, FileEncoding, Packed, header, pack, put, put_records};
use crate::common::{write_picture, zips};
use stratus_data::datasets::folder;
use stratus_data::{Dataset, OpenOptions, Scratch, Split, SplitMethod, open, shards};

/// The classes and samples of a split, or the error message, with the data set replaced by ROOT.
fn listed(root: &Path, wrapped: &str, split: Split, options: &OpenOptions) -> Result<Vec<String>, String> {
    let roots = [root.join(wrapped).display().to_string(), root.display().to_string()];
    let rooted =
        |text: String| roots.iter().fold(text, |text, root| text.replace(root.trim_end_matches('/'), "ROOT"));
    let set = open("folder", root, split, options).map_err(|error| rooted(error.to_string()))?;
    let mut scratch = Scratch::default();
    let mut lines: Vec<String> = (0..set.classes()).map(|class| set.class_name(class)).collect();
    for sample in 0..set.len() {
        let content = match set.encoded(sample, &mut scratch) {
            Ok(content) => format!("{:?}", content.unwrap()),
            Err(error) => rooted(error.to_string()),
        };
        let name = rooted(set.sample_name(sample));
        lines.push(format!("{name} {} {content}", set.label(sample).unwrap()));
    }
    Ok(lines)
}

/// File paths of a data set, some of them hidden, too deep, or not images.
fn path() -> impl Strategy<Value = String> {
    let part = prop::sample::select(vec!["train", "val", "Test", ".git", "notes"]);
    let class = prop::sample::select(vec!["ant", "bee", ".ipynb_checkpoints", "c\u{e4}t"]);
    let name = prop::sample::select(vec!["0.png", "1.JPG", "._0.png", "notes.txt", "deeper/2.png", "2.png"]);
    prop_oneof![
        9 => (part, class, name).prop_map(|(part, class, name)| format!("{part}/{class}/{name}")),
        1 => prop::sample::select(vec!["README", "train/list.txt", ".DS_Store"]).prop_map(str::to_owned),
    ]
}

/// Bytes with runs of zeros, some at the ends.
fn content() -> impl Strategy<Value = Vec<u8>> {
    let run = (any::<bool>(), 1..40_usize).prop_map(|(zero, bytes)| vec![if zero { 0 } else { 7 }; bytes]);
    prop::collection::vec(run, 0..60).prop_map(|runs| runs.concat())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn reads_a_folder_and_its_archives_alike(
        files in prop::collection::btree_map(
            path(),
            (content(), prop::sample::select(FILE_ENCODINGS.to_vec())),
            1..14,
        ),
        seed in 0..3_u64,
    ) {
        let directory = tempfile::tempdir().unwrap();
        let root = directory.path().join("set");
        let mut files = files;
        for path in ["train/ant/0.png", "val/ant/0.png"] {
            files.entry(path.to_owned()).or_insert_with(|| (vec![1, 0, 0, 2], FileEncoding::Plain));
        }
        for (path, (content, _)) in &files {
            let path = root.join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, content).unwrap();
        }
        let wrapped: Vec<(String, &Vec<u8>, FileEncoding)> = files
            .iter()
            .map(|(path, (content, encoding))| (format!("my set/{path}"), content, *encoding))
            .collect();
        let entries: Vec<_> = wrapped
            .iter()
            .map(|(path, content, encoding)| (path.as_str(), Packed::File(content, *encoding)))
            .collect();
        let by_hand = directory.path().join("by-hand.tar");
        fs::write(&by_hand, pack(&entries)).unwrap();
        let mut archives = vec![(by_hand, "my set")];
        for (name, at, wrapped) in [("dot.tar", "", ""), ("named.tar", "named", "named")] {
            let path = directory.path().join(name);
            let mut builder = Builder::new(fs::File::create(&path).unwrap());
            builder.append_dir_all(at, &root).unwrap();
            builder.finish().unwrap();
            archives.push((path, wrapped));
        }
        for (name, top, deflated) in [("stored.zip", "", false), ("deflated.zip", "my set/", true)] {
            let path = directory.path().join(name);
            let names = files.keys().map(|name| format!("{top}{name}"));
            let entries: Vec<_> = names.zip(files.values().map(|(content, _)| content.as_slice())).collect();
            fs::write(&path, zips::pack(&entries, deflated)).unwrap();
            archives.push((path, top.trim_end_matches('/')));
        }
        for split in [Split::Train, Split::Validation, Split::Test] {
            for split_by in [SplitMethod::Published, SplitMethod::Seeded(seed), SplitMethod::Unsplit] {
                for skip_damaged in [false, true] {
                    let options = OpenOptions { split_method: split_by.clone(), verify: false, skip_damaged,
                        ..OpenOptions::default() };
                    let expected = listed(&root, "", split, &options);
                    for (archive, wrapped) in &archives {
                        let found = listed(archive, wrapped, split, &options);
                        prop_assert_eq!(&found, &expected, "{:?}", archive);
                    }
                }
            }
        }
    }
}

/// An image file.
fn picture(number: u8) -> Vec<u8> {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("a.png");
    write_picture(&path, [3, 5], number);
    fs::read(path).unwrap()
}

fn written(directory: &Path, entries: &[(&str, Packed<'_>)]) -> PathBuf {
    let path = directory.join("set.tar");
    fs::write(&path, pack(entries)).unwrap();
    path
}

fn opened(path: &Path) -> Box<dyn Dataset> {
    open("folder", path, Split::Train, &OpenOptions::default()).unwrap()
}

fn open_error(path: &Path) -> String {
    let message = open("folder", path, Split::Train, &OpenOptions::default()).map(|_| ()).unwrap_err();
    message.to_string().replace(&path.display().to_string(), "ROOT")
}

#[test]
fn follows_links_within_the_archive() {
    let directory = tempfile::tempdir().unwrap();
    let (one, two, three) = (picture(1), picture(2), picture(3));
    let set = opened(&written(
        directory.path(),
        &[
            ("set/train/ant/0.png", Packed::File(&one, FileEncoding::Plain)),
            ("set/train/ant/1.png", Packed::HardLink("set/train/ant/0.png")),
            // The link above refers to the previous content of this path.
            ("./set/train/ant/0.png", Packed::File(&two, FileEncoding::Plain)),
            ("set/train/ant/2.png", Packed::Symlink("../../.store/x")),
            ("set/train/bee", Packed::Symlink("../.store/b")),
            ("set/.store/x", Packed::File(&three, FileEncoding::Plain)),
            ("set/.store/b/0.png", Packed::Symlink(".//../x")),
            ("set/notes", Packed::Symlink("/nowhere")),
        ],
    ));
    let mut scratch = Scratch::default();
    let contents: Vec<Vec<u8>> =
        (0..set.len()).map(|sample| set.encoded(sample, &mut scratch).unwrap().unwrap().to_vec()).collect();
    assert_eq!(contents, [two, one, three.clone(), three]);
    assert_eq!((set.classes(), set.class_name(1)), (2, "bee".to_owned()));
}

#[test]
fn reports_broken_links() {
    let directory = tempfile::tempdir().unwrap();
    let one = picture(1);
    for (target, why) in [
        ("/mnt/zebra", "outside the archive"),
        ("../../../zebra", "outside the archive"),
        ("../zebra", "not in the archive"),
        ("zebra", "too many links"),
        ("ant/0.png/../../ant", "a parent is not a folder"),
    ] {
        let class = written(
            directory.path(),
            &[
                ("train/ant/0.png", Packed::File(&one, FileEncoding::Plain)),
                ("train/zebra", Packed::Symlink(target)),
            ],
        );
        let expected = format!("ROOT/train/zebra: is a broken link to {target} ({why})");
        assert!(open_error(&class).starts_with(&expected), "{}", open_error(&class));
    }
    let image = written(
        directory.path(),
        &[
            ("train/ant/0.png", Packed::HardLink("train/ant/1.png")),
            ("train/ant/1.png", Packed::File(&one, FileEncoding::Plain)),
            ("train/ant/2.png", Packed::Symlink("../../../2.png")),
        ],
    );
    let message = open_error(&image);
    assert!(message.contains("damaged samples in the train split (2)"), "{message}");
    assert!(message.contains("ROOT/train/ant/0.png: is a hard link to train/ant/1.png, but"), "{message}");
    assert!(message.contains("ROOT/train/ant/2.png: is a broken link to ../../../2.png ("), "{message}");
}

/// Entries other than files are damaged in class folders, and ignored elsewhere.
#[test]
fn rejects_devices_and_fifos() {
    let directory = tempfile::tempdir().unwrap();
    let one = picture(1);
    let mut archive = pack(&[("train/ant/0.png", Packed::File(&one, FileEncoding::Plain))]);
    archive.truncate(archive.len() - 1024);
    put(&mut archive, &header("dev/null", EntryType::Char, 0), b"");
    let path = directory.path().join("set.tar");
    fs::write(&path, &archive).unwrap();
    assert_eq!(opened(&path).len(), 1);
    put(&mut archive, &header("train/ant/1.png", EntryType::Fifo, 0), b"");
    put(&mut archive, &header("train/ant/2.png/", EntryType::Directory, 0), b"");
    fs::write(&path, &archive).unwrap();
    let message = open_error(&path);
    assert!(message.contains("ROOT/train/ant/1.png: not a file"), "{message}");
    assert!(message.contains("ROOT/train/ant/2.png: not a file"), "{message}");
}

#[test]
fn rejects_paths_outside_the_archive() {
    let directory = tempfile::tempdir().unwrap();
    let one = picture(1);
    for name in ["../0.png", "train/ant/../../../0.png"] {
        let path = written(
            directory.path(),
            &[
                ("train/ant/0.png", Packed::File(&one, FileEncoding::Plain)),
                (name, Packed::File(&one, FileEncoding::Pax)),
            ],
        );
        let expected = format!("ROOT: archive member `{name}` is outside the destination folder");
        assert!(open_error(&path).starts_with(&expected), "{}", open_error(&path));
    }
}

/// A sparse file may claim to be larger than any memory.
#[test]
fn huge_sparse_file_is_damaged_and_not_read() {
    let directory = tempfile::tempdir().unwrap();
    let one = picture(1);
    for version in [[0, 0], [0, 1], [1, 0]] {
        let mut archive = pack(&[("train/ant/0.png", Packed::File(&one, FileEncoding::Plain))]);
        archive.truncate(archive.len() - 1024);
        let size = u64::MAX.to_string();
        let mut records = vec![("GNU.sparse.size", size), ("GNU.sparse.map", "0,4".to_owned())];
        if version == [1, 0] {
            records[1] = ("GNU.sparse.major", "1".to_owned());
            records.push(("GNU.sparse.minor", "0".to_owned()));
        }
        put_records(&mut archive, &records);
        let content = if version == [1, 0] {
            [&b"1\n0\n4\n"[..], &[0; 506], b"abcd"].concat()
        } else {
            b"abcd".to_vec()
        };
        put(&mut archive, &header("train/ant/1.png", EntryType::Regular, content.len()), &content);
        let path = directory.path().join("set.tar");
        fs::write(&path, &archive).unwrap();
        let message = open_error(&path);
        let expected = format!("ROOT/train/ant/1.png: the file has {} bytes, more than", u64::MAX);
        assert!(message.contains(&expected), "{message}");
    }
}

/// Archives of class folders, packed from inside or outside the folder, with other files.
#[test]
fn finds_the_folder_with_the_classes() {
    let directory = tempfile::tempdir().unwrap();
    let one = picture(1);
    let file = || Packed::File(&one, FileEncoding::Plain);
    let whole = OpenOptions { split_method: SplitMethod::Unsplit, ..OpenOptions::default() };
    for (paths, prefix, classes) in [
        (&["cat/0.png", "dog/0.png"][..], "", &["cat", "dog"][..]),
        (&["cat/0.png", "README"], "", &["cat"]),
        (&["photos/cat/0.png", "photos/dog/0.png"], "photos/", &["cat", "dog"]),
        (&["photos/cat/0.png", "photos/README", "licence.txt"], "photos/", &["cat"]),
        (&["photos/cat/0.png", "__MACOSX/photos/cat/._0.png", "._photos"], "photos/", &["cat"]),
        (&["photos/cat/0.png", ".thumbs/cat/0.png"], "photos/", &["cat"]),
        (&["a/Data/x/train/cat/0.png", "a/Annotations/x/train/cat/0.xml"], "a/Data/x/train/", &["cat"]),
        (&["a/train/cat/0.png", "figures/0.png"], "a/train/", &["cat"]),
        (&["train/cat/0.png", "photos/train/dog/0.png"], "train/", &["cat"]),
        (&["cat/0.png", "dog/0.png", "dog/train/x/0.txt"], "", &["cat", "dog"]),
    ] {
        let entries: Vec<_> = paths.iter().map(|path| (*path, file())).collect();
        let path = written(directory.path(), &entries);
        let skip = OpenOptions { skip_damaged: true, ..whole.clone() };
        let set = open("folder", &path, Split::Validation, &skip).unwrap();
        let found: Vec<String> = (0..set.classes()).map(|class| set.class_name(class)).collect();
        assert_eq!(found, classes, "{paths:?}");
        assert!(folder::looks_like_class_folder(&path), "{paths:?}");
        let is_train = paths.iter().any(|path| path.contains("train/cat"));
        assert_eq!(folder::has_training_folder(&path), is_train, "{paths:?}");
        assert_eq!(set.sample_name(0), format!("{}/{prefix}{}/0.png", path.display(), classes[0]));
    }
    // Two candidates are ambiguous.
    let path = written(directory.path(), &[("a/train/cat/0.png", file()), ("b/train/cat/0.png", file())]);
    assert!(
        open_error(&path).starts_with("ROOT: no folder `train`, found `a`, `b`;"),
        "{}",
        open_error(&path)
    );
}

#[test]
fn rejects_used_names_that_are_not_utf8() {
    let directory = tempfile::tempdir().unwrap();
    let one = picture(1);
    let path = directory.path().join("set.tar");
    for (folder, counts) in [("train/ant", true), ("notes", false)] {
        let mut archive = pack(&[("train/ant/0.png", Packed::File(&one, FileEncoding::Plain))]);
        archive.truncate(archive.len() - 1024);
        let mut latin = header(&format!("{folder}/n?.png"), EntryType::Regular, one.len());
        latin.as_old_mut().name[folder.len() + 2] = 0xe4;
        latin.set_cksum();
        put(&mut archive, &latin, &one);
        fs::write(&path, &archive).unwrap();
        if counts {
            assert_eq!(open_error(&path), "ROOT/train/ant/n\u{fffd}.png: name is not UTF-8; rename it");
        } else {
            assert_eq!(opened(&path).len(), 1);
        }
    }
}

/// Data sets that need a folder reject archives with the command to unpack them.
#[test]
fn other_data_sets_cannot_be_read_from_archives() {
    let directory = tempfile::tempdir().unwrap();
    let path =
        written(directory.path(), &[("train/ant/0.png", Packed::File(&picture(1), FileEncoding::Plain))]);
    for name in ["camvid", "cityscapes", "coco", "coco_labels", "coco_multilabel", "cifar10", "mnist"] {
        assert_eq!(
            crate::common::open_error(name, &path, Split::Train, &OpenOptions::default()),
            format!(
                "ROOT: is a file, but `{name}` needs a folder; unpack it: mkdir set && tar -xf set.tar -C set"
            )
        );
    }
    assert_eq!(
        crate::common::open_error("shards", &path, Split::Train, &OpenOptions::default()),
        "ROOT: is a file, but `shards` needs a folder; pass the folder that contains the file"
    );
}

/// Shards with members that are packed in various ways, links, sparse, or hidden.
#[test]
fn reads_shards_of_every_tar_format() {
    let directory = tempfile::tempdir().unwrap();
    let root = directory.path();
    let pictures: Vec<Vec<u8>> = (0..FILE_ENCODINGS.len())
        .map(|number| [picture(number as u8), vec![0; 900], vec![5], vec![0; 20]].concat())
        .collect();
    let paths: Vec<[String; 2]> = (0..FILE_ENCODINGS.len())
        .map(|number| [format!("some/{number:03}.png"), format!("some/{number:03}.cls")])
        .collect();
    let mut entries = Vec::new();
    for (number, encoding) in FILE_ENCODINGS.into_iter().enumerate() {
        entries.push((paths[number][0].as_str(), Packed::File(&pictures[number], encoding)));
        // The names of neighbours are encoded differently.
        let other = FILE_ENCODINGS[(number + 3) % FILE_ENCODINGS.len()];
        entries.push((paths[number][1].as_str(), Packed::File(b"1", other)));
    }
    entries.push((".cache/0.png", Packed::File(b"no image", FileEncoding::Plain)));
    entries.push(("some/.x/0.png", Packed::File(b"no image", FileEncoding::Plain)));
    entries.push(("some/l.png", Packed::HardLink("some/007.png")));
    entries.push(("some/l.cls", Packed::Symlink("../classes/0")));
    entries.push(("classes/0", Packed::File(b"0", FileEncoding::Plain)));
    fs::write(root.join("train-0.tar"), pack(&entries)).unwrap();
    let options = OpenOptions { verify: false, ..OpenOptions::default() };
    let mut scratch = Scratch::default();
    for indexed in [false, true] {
        if indexed {
            fs::remove_file(root.join("index.json")).ok();
            let index = shards::index_folder(root).map_err(|error| error.to_string());
            assert!(index.is_ok(), "{index:?}");
        }
        let set = open("shards", root, Split::Train, &options).unwrap();
        assert_eq!((set.len(), set.classes()), (FILE_ENCODINGS.len() + 1, 2));
        for number in 0..FILE_ENCODINGS.len() {
            assert_eq!(set.encoded(number, &mut scratch).unwrap().unwrap(), pictures[number], "{number}");
            assert_eq!(set.label(number).unwrap(), 1);
            assert_eq!(
                set.sample_name(number),
                format!("{}/{}", root.join("train-0.tar").display(), paths[number][0])
            );
        }
        assert_eq!(set.encoded(FILE_ENCODINGS.len(), &mut scratch).unwrap().unwrap(), pictures[7]);
        assert_eq!(set.label(FILE_ENCODINGS.len()).unwrap(), 0);
    }
    let mut text = String::new();
    fs::File::open(root.join("index.json")).unwrap().read_to_string(&mut text).unwrap();
    assert!(text.contains("\"version\":2") && text.contains("\"sparse\":"), "{text}");
}

#[test]
fn reports_shard_members_that_are_not_files() {
    let directory = tempfile::tempdir().unwrap();
    let root = directory.path();
    let one = picture(1);
    let mut archive = pack(&[
        ("a.png", Packed::Symlink("/mnt/a.png")),
        ("a.cls", Packed::File(b"0", FileEncoding::Plain)),
        ("b.png", Packed::File(&one, FileEncoding::Plain)),
        ("b.cls", Packed::HardLink("x.cls")),
    ]);
    archive.truncate(archive.len() - 1024);
    put(&mut archive, &header("c.png", EntryType::Fifo, 0), b"");
    put(&mut archive, &header("c.cls", EntryType::Regular, 1), b"0");
    put(&mut archive, &header("d.png", EntryType::Regular, one.len()), &one);
    put(&mut archive, &header("d.cls", EntryType::Regular, 1), b"0");
    fs::write(root.join("train-0.tar"), archive).unwrap();
    let message = crate::common::open_error("shards", root, Split::Train, &OpenOptions::default());
    assert!(message.contains("damaged samples in the train split (3)"), "{message}");
    for expected in [
        "ROOT/train-0.tar/a: a.png is a broken link to /mnt/a.png",
        "ROOT/train-0.tar/b: b.cls is a hard link to x.cls, but the archive has no such file before it",
        "ROOT/train-0.tar/c: c.png is a FIFO, not a file",
    ] {
        assert!(message.contains(expected), "{message}");
    }
}

/// A FIFO in a class folder on disk is damaged and does not block.
#[cfg(unix)]
#[test]
fn rejects_a_fifo_on_disk() {
    let directory = tempfile::tempdir().unwrap();
    let root = directory.path();
    write_picture(&root.join("train/ant/0.png"), [2, 2], 1);
    let made = std::process::Command::new("mkfifo").arg(root.join("train/ant/1.png")).status();
    assert!(made.is_ok_and(|status| status.success()));
    let message = open_error(root);
    assert!(message.contains("ROOT/train/ant/1.png: not a file"), "{message}");
}
