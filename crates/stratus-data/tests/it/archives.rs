//! An archive is read as the folder that it unpacks to, however it was packed.

use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};

use proptest::prelude::*;
use tar::{Builder, EntryType};

use crate::common::tars::{Packed, WAYS, Way, header, pack, put, put_records};
use crate::common::write_picture;
use stratus_data::datasets::folder;
use stratus_data::{Dataset, OpenOptions, Scratch, Split, SplitBy, open, shards};

/// The classes and samples of a split, or the message with which it is refused. The data set is called ROOT.
fn seen(root: &Path, wrapped: &str, split: Split, options: &OpenOptions) -> Result<Vec<String>, String> {
    let roots = [root.join(wrapped).display().to_string(), root.display().to_string()];
    let rooted =
        |text: String| roots.iter().fold(text, |text, root| text.replace(root.trim_end_matches('/'), "ROOT"));
    let set = open("folder", root, split, options).map_err(|error| rooted(error.to_string()))?;
    let mut scratch = Scratch::default();
    let mut seen: Vec<String> = (0..set.classes()).map(|class| set.class_name(class)).collect();
    for sample in 0..set.len() {
        let content = match set.encoded(sample, &mut scratch) {
            Ok(content) => format!("{:?}", content.unwrap()),
            Err(error) => rooted(error.to_string()),
        };
        let name = rooted(set.sample_name(sample));
        seen.push(format!("{name} {} {content}", set.label(sample).unwrap()));
    }
    Ok(seen)
}

/// Paths of files of a data set, some of them hidden, too deep, or no images.
fn path() -> impl Strategy<Value = String> {
    let part = prop::sample::select(vec!["train", "val", "Test", ".git", "notes"]);
    let class = prop::sample::select(vec!["ant", "bee", ".ipynb_checkpoints", "c\u{e4}t"]);
    let name = prop::sample::select(vec!["0.png", "1.JPG", "._0.png", "notes.txt", "deeper/2.png", "2.png"]);
    prop_oneof![
        9 => (part, class, name).prop_map(|(part, class, name)| format!("{part}/{class}/{name}")),
        1 => prop::sample::select(vec!["README", "train/list.txt", ".DS_Store"]).prop_map(str::to_owned),
    ]
}

/// Bytes with runs of zeros, some of them at the ends.
fn content() -> impl Strategy<Value = Vec<u8>> {
    let run = (any::<bool>(), 1..40_usize).prop_map(|(zero, bytes)| vec![if zero { 0 } else { 7 }; bytes]);
    prop::collection::vec(run, 0..60).prop_map(|runs| runs.concat())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_folder_and_its_archives_are_the_same(
        files in prop::collection::btree_map(path(), (content(), prop::sample::select(WAYS.to_vec())), 1..14),
        seed in 0..3_u64,
    ) {
        let directory = tempfile::tempdir().unwrap();
        let root = directory.path().join("set");
        let mut files = files;
        for path in ["train/ant/0.png", "val/ant/0.png"] {
            files.entry(path.to_owned()).or_insert_with(|| (vec![1, 0, 0, 2], Way::Plain));
        }
        for (path, (content, _)) in &files {
            let path = root.join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, content).unwrap();
        }
        let wrapped: Vec<(String, &Vec<u8>, Way)> =
            files.iter().map(|(path, (content, way))| (format!("my set/{path}"), content, *way)).collect();
        let entries: Vec<_> =
            wrapped.iter().map(|(path, content, way)| (path.as_str(), Packed::File(content, *way))).collect();
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
        for split in [Split::Train, Split::Validation, Split::Test] {
            for split_by in [SplitBy::Given, SplitBy::Seeded(seed), SplitBy::Whole] {
                for skip_damaged in [false, true] {
                    let options = OpenOptions { split_by: split_by.clone(), verify: false, skip_damaged,
                        ..OpenOptions::default() };
                    let expected = seen(&root, "", split, &options);
                    for (archive, wrapped) in &archives {
                        prop_assert_eq!(&seen(archive, wrapped, split, &options), &expected, "{:?}", archive);
                    }
                }
            }
        }
    }
}

/// A picture's file.
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

fn refused(path: &Path) -> String {
    let message = open("folder", path, Split::Train, &OpenOptions::default()).map(|_| ()).unwrap_err();
    message.to_string().replace(&path.display().to_string(), "ROOT")
}

#[test]
fn links_are_followed_within_the_archive() {
    let directory = tempfile::tempdir().unwrap();
    let (one, two, three) = (picture(1), picture(2), picture(3));
    let set = opened(&written(
        directory.path(),
        &[
            ("set/train/ant/0.png", Packed::File(&one, Way::Plain)),
            ("set/train/ant/1.png", Packed::HardLink("set/train/ant/0.png")),
            // The link above is to what stood here before.
            ("./set/train/ant/0.png", Packed::File(&two, Way::Plain)),
            ("set/train/ant/2.png", Packed::Symlink("../../.store/x")),
            ("set/train/bee", Packed::Symlink("../.store/b")),
            ("set/.store/x", Packed::File(&three, Way::Plain)),
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
fn links_that_lead_nowhere_are_named() {
    let directory = tempfile::tempdir().unwrap();
    let one = picture(1);
    for (target, why) in [
        ("/mnt/zebra", "it leads out of it"),
        ("../../../zebra", "it leads out of it"),
        ("../zebra", "nothing is there"),
        ("zebra", "there are too many links on the way"),
        ("ant/0.png/../../ant", "there is a file on the way"),
    ] {
        let class = written(
            directory.path(),
            &[("train/ant/0.png", Packed::File(&one, Way::Plain)), ("train/zebra", Packed::Symlink(target))],
        );
        let expected = format!(
            "ROOT/train/zebra: is a link to {target}, which cannot be followed in the archive ({why})"
        );
        assert!(refused(&class).starts_with(&expected), "{}", refused(&class));
    }
    let image = written(
        directory.path(),
        &[
            ("train/ant/0.png", Packed::HardLink("train/ant/1.png")),
            ("train/ant/1.png", Packed::File(&one, Way::Plain)),
            ("train/ant/2.png", Packed::Symlink("../../../2.png")),
        ],
    );
    let message = refused(&image);
    assert!(message.contains("damaged samples in the train split (2)"), "{message}");
    assert!(message.contains("ROOT/train/ant/0.png: is a hard link to train/ant/1.png, and"), "{message}");
    assert!(message.contains("ROOT/train/ant/2.png: is a link to ../../../2.png, which"), "{message}");
}

/// Anything but a file is damaged in a class folder, and passed over elsewhere.
#[test]
fn devices_and_fifos_are_no_images() {
    let directory = tempfile::tempdir().unwrap();
    let one = picture(1);
    let mut archive = pack(&[("train/ant/0.png", Packed::File(&one, Way::Plain))]);
    archive.truncate(archive.len() - 1024);
    put(&mut archive, &header("dev/null", EntryType::Char, 0), b"");
    let path = directory.path().join("set.tar");
    fs::write(&path, &archive).unwrap();
    assert_eq!(opened(&path).len(), 1);
    put(&mut archive, &header("train/ant/1.png", EntryType::Fifo, 0), b"");
    put(&mut archive, &header("train/ant/2.png/", EntryType::Directory, 0), b"");
    fs::write(&path, &archive).unwrap();
    let message = refused(&path);
    assert!(message.contains("ROOT/train/ant/1.png: not a file"), "{message}");
    assert!(message.contains("ROOT/train/ant/2.png: not a file"), "{message}");
}

#[test]
fn refuses_names_that_lead_out_of_the_archive() {
    let directory = tempfile::tempdir().unwrap();
    let one = picture(1);
    for name in ["../0.png", "train/ant/../../../0.png"] {
        let path = written(
            directory.path(),
            &[("train/ant/0.png", Packed::File(&one, Way::Plain)), (name, Packed::File(&one, Way::Pax))],
        );
        let expected = format!("ROOT: the archive holds `{name}`, which leads out of the folder");
        assert!(refused(&path).starts_with(&expected), "{}", refused(&path));
    }
}

/// A file with holes may claim to be longer than any memory.
#[test]
fn a_huge_file_with_holes_is_damaged_and_not_read() {
    let directory = tempfile::tempdir().unwrap();
    let one = picture(1);
    for version in [[0, 0], [0, 1], [1, 0]] {
        let mut archive = pack(&[("train/ant/0.png", Packed::File(&one, Way::Plain))]);
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
        let message = refused(&path);
        let expected = format!("ROOT/train/ant/1.png: the file has {} bytes, more than", u64::MAX);
        assert!(message.contains(&expected), "{message}");
    }
}

/// Archives of class folders, made inside the folder or outside, with other things beside them.
#[test]
fn the_folder_with_the_classes_is_found() {
    let directory = tempfile::tempdir().unwrap();
    let one = picture(1);
    let file = || Packed::File(&one, Way::Plain);
    let whole = OpenOptions { split_by: SplitBy::Whole, ..OpenOptions::default() };
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
        assert!(folder::holds_classes(&path), "{paths:?}");
        let is_train = paths.iter().any(|path| path.contains("train/cat"));
        assert_eq!(folder::holds_training_part(&path), is_train, "{paths:?}");
        assert_eq!(set.sample_name(0), format!("{}/{prefix}{}/0.png", path.display(), classes[0]));
    }
    // Which of two it is, nothing says.
    let path = written(directory.path(), &[("a/train/cat/0.png", file()), ("b/train/cat/0.png", file())]);
    assert!(refused(&path).starts_with("ROOT: holds no folder `train`, but `a`, `b`;"), "{}", refused(&path));
}

#[test]
fn names_that_are_not_utf_8_are_refused_where_they_count() {
    let directory = tempfile::tempdir().unwrap();
    let one = picture(1);
    let path = directory.path().join("set.tar");
    for (folder, counts) in [("train/ant", true), ("notes", false)] {
        let mut archive = pack(&[("train/ant/0.png", Packed::File(&one, Way::Plain))]);
        archive.truncate(archive.len() - 1024);
        let mut latin = header(&format!("{folder}/n?.png"), EntryType::Regular, one.len());
        latin.as_old_mut().name[folder.len() + 2] = 0xe4;
        latin.set_cksum();
        put(&mut archive, &latin, &one);
        fs::write(&path, &archive).unwrap();
        if counts {
            assert_eq!(refused(&path), "ROOT/train/ant/n\u{fffd}.png: its name is not UTF-8; rename it");
        } else {
            assert_eq!(opened(&path).len(), 1);
        }
    }
}

/// Data sets that are read from folders alone say so, and how to make one of the archive.
#[test]
fn other_data_sets_are_not_read_from_archives() {
    let directory = tempfile::tempdir().unwrap();
    let path = written(directory.path(), &[("train/ant/0.png", Packed::File(&picture(1), Way::Plain))]);
    for name in ["camvid", "cityscapes", "coco", "coco_labels", "cifar10", "mnist"] {
        assert_eq!(
            crate::common::refused(name, &path, Split::Train, &OpenOptions::default()),
            format!(
                "ROOT: is a file, and `{name}` is read from a folder; unpack it first, and name the folder: \
                 mkdir set && tar -xf set.tar -C set"
            )
        );
    }
    assert_eq!(
        crate::common::refused("shards", &path, Split::Train, &OpenOptions::default()),
        "ROOT: is a file, and `shards` is read from a folder; name the folder that the file is in"
    );
}

/// Shards whose members are packed in any way, are links, have holes, or are hidden.
#[test]
fn shards_are_read_however_they_were_packed() {
    let directory = tempfile::tempdir().unwrap();
    let root = directory.path();
    let pictures: Vec<Vec<u8>> = (0..WAYS.len())
        .map(|number| [picture(number as u8), vec![0; 900], vec![5], vec![0; 20]].concat())
        .collect();
    let paths: Vec<[String; 2]> = (0..WAYS.len())
        .map(|number| [format!("some/{number:03}.png"), format!("some/{number:03}.cls")])
        .collect();
    let mut entries = Vec::new();
    for (number, way) in WAYS.into_iter().enumerate() {
        entries.push((paths[number][0].as_str(), Packed::File(&pictures[number], way)));
        // The neighbours' names are written in another way.
        let other = WAYS[(number + 3) % WAYS.len()];
        entries.push((paths[number][1].as_str(), Packed::File(b"1", other)));
    }
    entries.push((".cache/0.png", Packed::File(b"no image", Way::Plain)));
    entries.push(("some/.x/0.png", Packed::File(b"no image", Way::Plain)));
    entries.push(("some/l.png", Packed::HardLink("some/007.png")));
    entries.push(("some/l.cls", Packed::Symlink("../classes/0")));
    entries.push(("classes/0", Packed::File(b"0", Way::Plain)));
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
        assert_eq!((set.len(), set.classes()), (WAYS.len() + 1, 2));
        for number in 0..WAYS.len() {
            assert_eq!(set.encoded(number, &mut scratch).unwrap().unwrap(), pictures[number], "{number}");
            assert_eq!(set.label(number).unwrap(), 1);
            assert_eq!(
                set.sample_name(number),
                format!("{}/{}", root.join("train-0.tar").display(), paths[number][0])
            );
        }
        assert_eq!(set.encoded(WAYS.len(), &mut scratch).unwrap().unwrap(), pictures[7]);
        assert_eq!(set.label(WAYS.len()).unwrap(), 0);
    }
    let mut text = String::new();
    fs::File::open(root.join("index.json")).unwrap().read_to_string(&mut text).unwrap();
    assert!(text.contains("\"version\":2") && text.contains("\"sparse\":"), "{text}");
}

#[test]
fn members_of_shards_that_are_no_files_are_named() {
    let directory = tempfile::tempdir().unwrap();
    let root = directory.path();
    let one = picture(1);
    let mut archive = pack(&[
        ("a.png", Packed::Symlink("/mnt/a.png")),
        ("a.cls", Packed::File(b"0", Way::Plain)),
        ("b.png", Packed::File(&one, Way::Plain)),
        ("b.cls", Packed::HardLink("x.cls")),
    ]);
    archive.truncate(archive.len() - 1024);
    put(&mut archive, &header("c.png", EntryType::Fifo, 0), b"");
    put(&mut archive, &header("c.cls", EntryType::Regular, 1), b"0");
    put(&mut archive, &header("d.png", EntryType::Regular, one.len()), &one);
    put(&mut archive, &header("d.cls", EntryType::Regular, 1), b"0");
    fs::write(root.join("train-0.tar"), archive).unwrap();
    let message = crate::common::refused("shards", root, Split::Train, &OpenOptions::default());
    assert!(message.contains("damaged samples in the train split (3)"), "{message}");
    for expected in [
        "ROOT/train-0.tar/a: a.png is a link to /mnt/a.png, which cannot be followed",
        "ROOT/train-0.tar/b: b.cls is a hard link to x.cls, and the archive has no such file before it",
        "ROOT/train-0.tar/c: c.png is a FIFO, not a file",
    ] {
        assert!(message.contains(expected), "{message}");
    }
}

/// A FIFO in a class folder on disk is damaged, and not waited for.
#[cfg(unix)]
#[test]
fn a_fifo_on_disk_is_no_image() {
    let directory = tempfile::tempdir().unwrap();
    let root = directory.path();
    write_picture(&root.join("train/ant/0.png"), [2, 2], 1);
    let made = std::process::Command::new("mkfifo").arg(root.join("train/ant/1.png")).status();
    assert!(made.is_ok_and(|status| status.success()));
    let message = refused(root);
    assert!(message.contains("ROOT/train/ant/1.png: not a file"), "{message}");
}
