//! Folders of images in zip archives, which are read in place.

use std::fs;
use std::path::{Path, PathBuf};

use crate::common::{open_error, zips};
use stratus_data::{Dataset, OpenOptions, Scratch, Split, open};

fn fixture(name: &str) -> Vec<u8> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/images");
    fs::read(folder.join(name)).unwrap()
}

/// Two classes with a JPEG and a PNG, and one of each in validation.
fn files() -> Vec<(String, Vec<u8>)> {
    let mut files = Vec::new();
    for split in ["train", "val"] {
        for (class, name) in [("ant", "tall_444.jpg"), ("bee", "colour_png.png")] {
            files.push((format!("set/{split}/{class}/{name}"), fixture(name)));
        }
    }
    files
}

fn written(folder: &Path, bytes: &[u8]) -> PathBuf {
    let path = folder.join("set.zip");
    fs::write(&path, bytes).unwrap();
    path
}

fn packed(files: &[(String, Vec<u8>)], deflated: bool) -> Vec<u8> {
    let files: Vec<(&str, &[u8])> =
        files.iter().map(|(name, bytes)| (name.as_str(), bytes.as_slice())).collect();
    zips::pack(&files, deflated)
}

fn error(path: &Path) -> String {
    open_error("folder", path, Split::Train, &OpenOptions::default())
}

/// All images of a split: name, pixels and label.
fn content(set: &dyn Dataset) -> Vec<(Vec<u8>, u32)> {
    let mut scratch = Scratch::default();
    let read = |index| {
        let sample = set.read(index, &mut scratch).unwrap();
        (sample.pixels.to_vec(), sample.label)
    };
    (0..set.len()).map(read).collect()
}

#[test]
fn reads_the_images_of_the_folder() {
    let directory = tempfile::tempdir().unwrap();
    for (name, bytes) in files() {
        let path = directory.path().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, bytes).unwrap();
    }
    for deflated in [false, true] {
        let path = written(directory.path(), &packed(&files(), deflated));
        for split in [Split::Train, Split::Validation] {
            let options = OpenOptions::default();
            let expected = open("folder", &directory.path().join("set"), split, &options).unwrap();
            let found = open("folder", &path, split, &options).unwrap();
            assert_eq!(content(found.as_ref()), content(expected.as_ref()));
            assert!(found.sample_name(0).ends_with("/ant/tall_444.jpg"), "{}", found.sample_name(0));
        }
    }
}

#[test]
fn rejects_truncated_archives_and_names_outside_the_folder() {
    let directory = tempfile::tempdir().unwrap();
    let whole = packed(&files(), true);
    for end in [4, 100, whole.len() / 2, whole.len() - 30] {
        let message = error(&written(directory.path(), &whole[..end]));
        assert!(message.contains("zip archive"), "{end}: {message}");
    }
    let mut escaping = files();
    escaping.push(("set/../../etc/x.png".to_owned(), fixture("colour_png.png")));
    let message = error(&written(directory.path(), &packed(&escaping, false)));
    assert!(message.contains("outside the destination folder"), "{message}");
}

/// Every damaged file is listed, and other files are read.
#[test]
fn lists_damaged_files() {
    let directory = tempfile::tempdir().unwrap();
    let mut all = files();
    // Zeros compress to a thousandth.
    all.push(("set/train/ant/zeros.png".to_owned(), vec![0; 40 << 20]));
    let message = error(&written(directory.path(), &packed(&all, true)));
    assert!(message.contains("damaged samples in the train split (1)"), "{message}");
    assert!(
        message.contains("zeros.png: the file has 41943040 bytes, but the archive contains"),
        "{message}"
    );

    for deflated in [false, true] {
        let mut archive = packed(&files(), deflated);
        let name = b"set/train/ant/tall_444.jpg";
        let at = archive.windows(name.len()).position(|window| window == name).unwrap() + name.len();
        // Within the picture, whose first and last bytes are intact.
        archive[at + 2000] ^= 0x5a;
        let path = written(directory.path(), &archive);
        let options = OpenOptions { verify: false, ..OpenOptions::default() };
        let set = open("folder", &path, Split::Train, &options).unwrap();
        let problem = set.read(0, &mut Scratch::default()).unwrap_err().to_string();
        assert!(problem.contains("tall_444.jpg"), "{problem}");
        assert!(set.read(1, &mut Scratch::default()).is_ok());
    }
}

/// The flags, the compression and the type of a file in the central directory.
#[test]
fn rejects_files_that_cannot_be_unpacked() {
    let directory = tempfile::tempdir().unwrap();
    let whole = packed(&files(), false);
    let entry = whole.windows(4).position(|window| window == b"PK\x01\x02").unwrap();
    // Offsets of the central directory's record: the creator, flags, compression, external attributes.
    for (at, bytes, problem) in [
        (8, &[1, 0][..], "an encrypted file"),
        (10, &[12, 0], "a file with a compression other than deflate"),
        (38, &[0, 0, 0xff, 0xa1], "a symbolic link in a zip archive"),
    ] {
        let mut archive = whole.clone();
        archive[entry + 5] = 3;
        archive[entry + at..entry + at + bytes.len()].copy_from_slice(bytes);
        let message = error(&written(directory.path(), &archive));
        let expected = format!("tall_444.jpg: not a file that can be read, but {problem}");
        assert!(message.contains(&expected), "{message}");
    }
}
