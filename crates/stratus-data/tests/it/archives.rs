//! An archive is read as the folder that it unpacks to, however it was packed.

use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};

use proptest::prelude::*;
use tar::{Builder, EntryType, Header};

use crate::common::write_picture;
use stratus_data::datasets::folder;
use stratus_data::{Dataset, OpenOptions, Scratch, Split, SplitBy, open, shards};

/// An entry that is written by hand: its path, and what it is.
enum Packed<'a> {
    File(&'a [u8], Way),
    Symlink(&'a str),
    HardLink(&'a str),
}

/// How a file is packed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    Plain,
    /// With `./` before its name.
    Dotted,
    /// From the root folder on.
    Absolute,
    /// With a name in an entry of its own, as GNU tar does with long ones.
    LongName,
    /// With name and size in records of the pax format.
    Pax,
    /// In the two fields of a ustar header.
    Ustar,
    /// With a size in base 256.
    Base256,
    /// With holes, as the formats of GNU tar have them.
    SparseGnu,
    SparsePax([u8; 2]),
}

const WAYS: [Way; 11] = [
    Way::Plain,
    Way::Dotted,
    Way::Absolute,
    Way::LongName,
    Way::Pax,
    Way::Ustar,
    Way::Base256,
    Way::SparseGnu,
    Way::SparsePax([0, 0]),
    Way::SparsePax([0, 1]),
    Way::SparsePax([1, 0]),
];

/// The ranges between runs of zeros, and their bytes one after the other. The file's end is marked by an
/// empty range where it is a hole.
fn ranges(content: &[u8]) -> (Vec<[usize; 2]>, Vec<u8>) {
    let (mut ranges, mut stored): (Vec<[usize; 2]>, Vec<u8>) = (Vec::new(), Vec::new());
    for (at, &byte) in content.iter().enumerate().filter(|(_, byte)| **byte != 0) {
        match ranges.last_mut() {
            Some([from, bytes]) if *from + *bytes == at => *bytes += 1,
            _ => ranges.push([at, 1]),
        }
        stored.push(byte);
    }
    if content.last() == Some(&0) {
        ranges.push([content.len(), 0]);
    }
    (ranges, stored)
}

fn header(path: &str, kind: EntryType, bytes: usize) -> Header {
    let mut header = if kind == EntryType::XHeader { Header::new_ustar() } else { Header::new_gnu() };
    header.set_entry_type(kind);
    header.set_mode(0o644);
    header.set_size(bytes as u64);
    header.as_old_mut().name[..path.len()].copy_from_slice(path.as_bytes());
    header.set_cksum();
    header
}

fn put(archive: &mut Vec<u8>, header: &Header, content: &[u8]) {
    archive.extend(header.as_bytes());
    archive.extend(content);
    archive.resize(archive.len().next_multiple_of(512), 0);
}

fn put_records(archive: &mut Vec<u8>, records: &[(&str, String)]) {
    let mut content = Vec::new();
    for (key, value) in records {
        let rest = key.len() + value.len() + 3;
        let length = (1..).find(|length| (rest + length.to_string().len()) == *length).unwrap();
        content.extend(format!("{length} {key}={value}\n").bytes());
    }
    let header = header("PaxHeaders/x", EntryType::XHeader, content.len());
    put(archive, &header, &content);
}

/// Packs a file with a map of its holes.
fn put_sparse(archive: &mut Vec<u8>, path: &str, content: &[u8], way: Way) {
    let (ranges, stored) = ranges(content);
    let number = |number: usize| format!("{number:011o}\0");
    match way {
        Way::SparsePax(version) => {
            let size = content.len().to_string();
            let (made_up, mut map) = ("GNUSparseFile.7/0.png", Vec::new());
            match version {
                [0, 0] => {
                    let mut records =
                        vec![("GNU.sparse.size", size), ("GNU.sparse.numblocks", ranges.len().to_string())];
                    for [at, bytes] in &ranges {
                        records.push(("GNU.sparse.offset", at.to_string()));
                        records.push(("GNU.sparse.numbytes", bytes.to_string()));
                    }
                    records.push(("path", path.to_owned()));
                    put_records(archive, &records);
                }
                [0, 1] => {
                    let numbers: Vec<String> = ranges.iter().flatten().map(usize::to_string).collect();
                    put_records(
                        archive,
                        &[
                            ("GNU.sparse.size", size),
                            ("GNU.sparse.numblocks", ranges.len().to_string()),
                            ("GNU.sparse.name", path.to_owned()),
                            ("GNU.sparse.map", numbers.join(",")),
                        ],
                    );
                }
                [major, minor] => {
                    put_records(
                        archive,
                        &[
                            ("GNU.sparse.major", major.to_string()),
                            ("GNU.sparse.minor", minor.to_string()),
                            ("GNU.sparse.name", path.to_owned()),
                            ("GNU.sparse.realsize", size),
                        ],
                    );
                    map.extend(format!("{}\n", ranges.len()).bytes());
                    ranges.iter().flatten().for_each(|number| map.extend(format!("{number}\n").bytes()));
                    map.resize(map.len().next_multiple_of(512), 0);
                }
            }
            map.extend(stored);
            let header = header(made_up, EntryType::Regular, map.len());
            put(archive, &header, &map);
        }
        _ => {
            let mut header = header(path, EntryType::GNUSparse, stored.len());
            let table = |field: &mut [u8], [at, bytes]: &[usize; 2]| {
                field[..12].copy_from_slice(number(*at).as_bytes());
                field[12..24].copy_from_slice(number(*bytes).as_bytes());
            };
            let bytes = header.as_mut_bytes();
            bytes[483..495].copy_from_slice(number(content.len()).as_bytes());
            let (first, rest) = ranges.split_at(ranges.len().min(4));
            bytes[386..482].chunks_exact_mut(24).zip(first).for_each(|(field, range)| table(field, range));
            bytes[482] = u8::from(!rest.is_empty());
            header.set_cksum();
            archive.extend(header.as_bytes());
            let blocks = rest.chunks(21);
            let last = blocks.len();
            for (at, ranges) in blocks.enumerate() {
                let mut block = [0; 512];
                block.chunks_exact_mut(24).zip(ranges).for_each(|(field, range)| table(field, range));
                block[504] = u8::from(at + 1 < last);
                archive.extend(block);
            }
            archive.extend(stored);
            archive.resize(archive.len().next_multiple_of(512), 0);
        }
    }
}

fn pack(entries: &[(&str, Packed<'_>)]) -> Vec<u8> {
    let mut archive = Vec::new();
    for (path, packed) in entries {
        match packed {
            Packed::File(content, way) => {
                let plain = |path: &str| header(path, EntryType::Regular, content.len());
                match way {
                    Way::Plain => put(&mut archive, &plain(path), content),
                    Way::Dotted => put(&mut archive, &plain(&format!("././{path}")), content),
                    Way::Absolute => put(&mut archive, &plain(&format!("/{path}")), content),
                    Way::LongName => {
                        let name = header("././@LongLink", EntryType::GNULongName, path.len() + 1);
                        put(&mut archive, &name, format!("{path}\0").as_bytes());
                        put(&mut archive, &plain("train/cut"), content);
                    }
                    Way::Pax => {
                        let records = [("path", (*path).to_owned()), ("size", content.len().to_string())];
                        put_records(&mut archive, &records);
                        put(&mut archive, &header("train/cut", EntryType::Regular, 0), content);
                    }
                    Way::Ustar => {
                        let (folder, name) = path.rsplit_once('/').unwrap();
                        let mut header = Header::new_ustar();
                        header.set_size(content.len() as u64);
                        header.set_entry_type(EntryType::Regular);
                        header.as_old_mut().name[..name.len()].copy_from_slice(name.as_bytes());
                        header.as_ustar_mut().unwrap().prefix[..folder.len()]
                            .copy_from_slice(folder.as_bytes());
                        header.set_cksum();
                        put(&mut archive, &header, content);
                    }
                    Way::Base256 => {
                        let mut header = plain(path);
                        header.as_old_mut().size = [0; 12];
                        header.as_old_mut().size[0] = 0x80;
                        header.as_old_mut().size[8..].copy_from_slice(&(content.len() as u32).to_be_bytes());
                        header.set_cksum();
                        put(&mut archive, &header, content);
                    }
                    Way::SparseGnu | Way::SparsePax(_) => put_sparse(&mut archive, path, content, *way),
                }
            }
            Packed::Symlink(target) | Packed::HardLink(target) => {
                let is_hard = matches!(packed, Packed::HardLink(_));
                let kind = if is_hard { EntryType::Link } else { EntryType::Symlink };
                let mut header = header(path, kind, 0);
                header.as_old_mut().linkname[..target.len()].copy_from_slice(target.as_bytes());
                header.set_cksum();
                put(&mut archive, &header, b"");
            }
        }
    }
    archive.resize(archive.len() + 1024, 0);
    archive
}

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
