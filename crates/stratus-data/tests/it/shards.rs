//! Packing data sets into shards and reading them: nothing is lost, packing is deterministic, and damage is
//! detected.

use std::fs::{self, File};
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use stratus_data::datasets::IGNORED;
use stratus_data::shards::{self, PackOptions, PackResize, PackSplit, PackedSplit, ShardIndex};
use stratus_data::{
    DataError, Dataset, Element, Loader, LoaderConfig, Normalisation, OpenOptions, Order, Orientation,
    PixelOrder, Sample, Scratch, Split, TargetKind, open, stats,
};

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/images").join(name)
}

/// Two classes with 24 training images and a validation image each.
fn photographs(root: &Path) {
    let files =
        ["colour.jpg", "grey.jpg", "turned.jpg", "progressive.jpg", "palette.png", "turned_webp.webp"];
    for class in ["ant", "cat"] {
        for split in ["train", "val"] {
            fs::create_dir_all(root.join(split).join(class)).unwrap();
        }
        for copy in 0..4 {
            for (at, file) in files.iter().enumerate() {
                let name = format!("train/{class}/{copy}{at}{}", &file[file.len() - 4..]);
                fs::copy(fixture(file), root.join(name)).unwrap();
            }
        }
        fs::copy(fixture("colour.jpg"), root.join("val").join(class).join("a.jpg")).unwrap();
    }
}

/// Shards of a few samples.
fn small() -> PackOptions {
    PackOptions { shard_bytes: 24 << 10, shuffle: Some(3), ..PackOptions::default() }
}

fn pack(name: &str, from: &Path, to: &Path, options: &PackOptions) -> Result<Vec<PackedSplit>, DataError> {
    let parts = shards::open_splits(name, from, &OpenOptions::default())?;
    shards::pack(&parts, to, options, &mut |_| {})
}

fn shards_of(root: &Path, split: Split) -> Box<dyn Dataset> {
    open("shards", root, split, &OpenOptions::default()).unwrap()
}

fn open_error(root: &Path, split: Split) -> String {
    let message = open("shards", root, split, &OpenOptions::default()).map(|_| ()).unwrap_err().to_string();
    message.replace(&root.display().to_string(), "ROOT")
}

fn skipping() -> OpenOptions {
    OpenOptions { skip_damaged: true, ..OpenOptions::default() }
}

/// The files of a folder, sorted by name.
fn content(folder: &Path) -> Vec<(String, Vec<u8>)> {
    let entries = fs::read_dir(folder).unwrap().map(Result::unwrap);
    let mut files: Vec<_> = entries
        .map(|entry| (entry.file_name().into_string().unwrap(), fs::read(entry.path()).unwrap()))
        .collect();
    files.sort();
    files
}

/// The members of an archive, as read by another program.
fn members(shard: &Path) -> Vec<(String, Vec<u8>)> {
    let mut archive = tar::Archive::new(File::open(shard).unwrap());
    let read = |entry: std::io::Result<tar::Entry<'_, File>>| {
        let mut entry = entry.unwrap();
        assert_eq!((entry.header().mtime().unwrap(), entry.header().uid().unwrap()), (0, 0));
        let mut content = Vec::new();
        entry.read_to_end(&mut content).unwrap();
        (entry.path().unwrap().display().to_string(), content)
    };
    archive.entries().unwrap().map(read).collect()
}

/// Writes an archive of these members.
fn archive(path: &Path, members: &[(&str, &[u8])]) {
    let mut builder = tar::Builder::new(File::create(path).unwrap());
    for (name, content) in members {
        let mut header = tar::Header::new_gnu();
        header.set_size(content.len() as u64);
        header.set_mode(0o644);
        builder.append_data(&mut header, name, *content).unwrap();
    }
    builder.finish().unwrap();
}

#[test]
fn folder_round_trips_through_shards() {
    let directory = tempfile::tempdir().unwrap();
    let (from, to) = (directory.path().join("set"), directory.path().join("shards"));
    photographs(&from);
    let packed = pack("folder", &from, &to, &small()).unwrap();
    let sizes: Vec<_> = packed.iter().map(|part| (part.split, part.samples, part.skipped)).collect();
    assert_eq!(sizes, [(Split::Train, 48, 0), (Split::Validation, 2, 0)]);
    assert!(packed[0].shards > 3, "{packed:?}");
    let names: Vec<_> = content(&to).into_iter().map(|(name, _)| name).collect();
    let train = (0..packed[0].shards).map(|shard| format!("train-{shard:06}.tar"));
    let expected: Vec<_> = ["index.json".to_owned()].into_iter().chain(train).collect();
    assert_eq!(names[..names.len() - 1], expected);
    assert_eq!(names.last().unwrap(), "val-000000.tar");

    let source = open("folder", &from, Split::Train, &OpenOptions::default()).unwrap();
    let set = shards_of(&to, Split::Train);
    assert_eq!((set.len(), set.classes(), set.class_name(1)), (48, 2, "cat".to_owned()));
    assert_eq!((set.sample_shape(), set.normalisation()), (None, source.normalisation()));
    assert_eq!(stats::compute_stats(set.as_ref(), 2).unwrap().samples_per_class, [24, 24]);
    let (mut ours, mut theirs) = (Scratch::default(), Scratch::default());
    let mut seen = [false; 48];
    for index in 0..48 {
        // A sample's name is its index in the source.
        let name = set.sample_name(index);
        let number: usize = name.rsplit('/').next().unwrap().split('.').next().unwrap().parse().unwrap();
        assert!(!std::mem::replace(&mut seen[number], true));
        let file = set.encoded(index, &mut ours).unwrap().unwrap().to_vec();
        assert_eq!(source.encoded(number, &mut theirs).unwrap().unwrap(), file);
        assert_eq!(set.read(index, &mut ours).unwrap(), source.read(number, &mut theirs).unwrap());
        assert_eq!(set.label(index).unwrap(), source.label(number).unwrap());
    }
    assert!(set.damaged().is_empty() && set.verify_files().unwrap().is_empty());

    // Other programs expect image and class of a sample to be adjacent.
    let first = members(&to.join("train-000000.tar"));
    for pair in first.chunks(2) {
        let (key, extension) = pair[0].0.split_once('.').unwrap();
        assert_eq!((key.len(), pair[1].0.clone()), (6, format!("{key}.cls")));
        assert!(["jpg", "png", "webp"].contains(&extension));
        let label = source.label(key.parse().unwrap()).unwrap();
        assert_eq!(pair[1].1, label.to_string().as_bytes());
    }
    // Every shard contains both classes.
    for shard in &ShardIndex::read(&to).unwrap().unwrap().splits["train"] {
        assert!(shard.labels.contains(&0) && shard.labels.contains(&1), "{}", shard.name);
        assert!(shard.bytes <= small().shard_bytes);
    }
}

#[test]
fn packing_is_deterministic() {
    let directory = tempfile::tempdir().unwrap();
    let at = |name: &str| directory.path().join(name);
    photographs(&at("set"));
    for to in ["a", "b"] {
        pack("folder", &at("set"), &at(to), &small()).unwrap();
    }
    assert_eq!(content(&at("a")), content(&at("b")));
    pack("folder", &at("set"), &at("c"), &PackOptions { shuffle: Some(4), ..small() }).unwrap();
    assert_ne!(content(&at("a")), content(&at("c")));
    // Unshuffled.
    pack("folder", &at("set"), &at("d"), &PackOptions { shuffle: None, ..small() }).unwrap();
    let set = shards_of(&at("d"), Split::Train);
    let labels: Vec<u32> = (0..48).map(|index| set.label(index).unwrap()).collect();
    assert!(labels.is_sorted());
    // Repacked shards have the same samples.
    pack("shards", &at("d"), &at("e"), &PackOptions { shuffle: None, ..small() }).unwrap();
    let shards_alone =
        |folder: &str| content(&at(folder)).into_iter().filter(|(name, _)| name.ends_with(".tar"));
    assert!(shards_alone("d").eq(shards_alone("e")));
}

/// Images that are too large become smaller upright JPEG files; all others, names and labels stay unchanged.
#[test]
fn packing_resizes_large_images() {
    let directory = tempfile::tempdir().unwrap();
    let at = |name: &str| directory.path().join(name);
    photographs(&at("set"));
    for class in ["ant", "cat"] {
        fs::copy(fixture("scene_420.jpg"), at("set").join("train").join(class).join("scene.jpg")).unwrap();
    }
    // An upright image of 203 × 301 pixels, and one of 301 × 203 by its orientation.
    let file = fs::read(fixture("scene_444.jpg")).unwrap();
    let exif = b"\xff\xe1\0\x1eExif\0\0MM\0*\0\0\0\x08\0\x01\x01\x12\0\x03\0\0\0\x01\0\x06\0\0";
    let rotated = [&file[..2], exif, &file[2..]].concat();
    fs::write(at("set/train/cat/turned.jpg"), rotated).unwrap();
    let settings = PackResize { side: 100, quality: 92 };
    let options = PackOptions { resize: Some(settings), ..small() };
    let packed = pack("folder", &at("set"), &at("a"), &options).unwrap();
    let [resized, none] = [&packed[0], &packed[1]].map(|part| part.resized.clone().unwrap());
    assert_eq!((resized.settings, resized.images, none.images), (settings, 3, 0));
    assert!(resized.bytes < resized.bytes_before && none.bytes == none.bytes_before, "{resized:?}");
    let index = ShardIndex::read(&at("a")).unwrap().unwrap();
    assert_eq!(index.resized.unwrap().bytes, resized.bytes + none.bytes);
    pack("folder", &at("set"), &at("b"), &options).unwrap();
    assert_eq!(content(&at("a")), content(&at("b")));

    let source = open("folder", &at("set"), Split::Train, &OpenOptions::default()).unwrap();
    let set = shards_of(&at("a"), Split::Train);
    assert_eq!((set.len(), source.len()), (51, 51));
    let (mut ours, mut theirs) = (Scratch::default(), Scratch::default());
    let mut smaller = 0;
    for sample in 0..set.len() {
        let name = set.sample_name(sample);
        let number: usize = name.rsplit('/').next().unwrap().split('.').next().unwrap().parse().unwrap();
        assert_eq!(set.label(sample).unwrap(), source.label(number).unwrap());
        let large = source.read(number, &mut theirs).unwrap().upright_size();
        if large == [16, 24] || large == [24, 16] {
            let file = set.encoded(sample, &mut ours).unwrap().unwrap().to_vec();
            assert_eq!(source.encoded(number, &mut theirs).unwrap().unwrap(), file);
            continue;
        }
        let small = set.read(sample, &mut ours).unwrap();
        let expected = if large == [203, 301] { [3, 100, 148] } else { [3, 148, 100] };
        assert_eq!((small.shape, small.orientation), (expected, Orientation::default()));
        smaller += 1;
    }
    assert_eq!(smaller, 3);

    // Both look the same: compare the centres at a third of the size.
    let images = |set: Box<dyn Dataset>, number_of: &dyn Fn(usize) -> usize| {
        let config = LoaderConfig {
            shape: Some([3, 64, 64]),
            order: Order::Sequential,
            element: Element::U8,
            ..LoaderConfig::new(51)
        };
        let numbers: Vec<usize> = (0..51).map(number_of).collect();
        let batch = Loader::new(Arc::from(set), config).unwrap().next().unwrap().unwrap();
        let mut found = vec![Vec::new(); 51];
        for (image, number) in batch.images.chunks_exact(3 * 64 * 64).zip(numbers) {
            found[number] = image.to_vec();
        }
        found.concat()
    };
    let number = |sample: usize| {
        let name = set.sample_name(sample);
        name.rsplit('/').next().unwrap().split('.').next().unwrap().parse().unwrap()
    };
    let (packed, original) =
        (images(shards_of(&at("a"), Split::Train), &number), images(source, &|number| number));
    let difference: f64 = packed.iter().zip(&original).map(|(&a, &b)| f64::from(a.abs_diff(b))).sum();
    let mean = difference / packed.len() as f64;
    assert!(mean <= 0.2, "{mean}");
}

#[test]
fn rejects_resizing_of_masks() {
    let directory = tempfile::tempdir().unwrap();
    let part = PackSplit { split: Split::Train, set: Box::new(Made { masks: true }) };
    let options = PackOptions { resize: Some(PackResize { side: 1, quality: 90 }), ..small() };
    let error = shards::pack(&[part], directory.path(), &options, &mut |_| {}).unwrap_err().to_string();
    assert_eq!(error, "--resize: cannot resize data sets with masks; remove this option");
}

/// Images of one size in planes, optionally with masks.
struct Made {
    masks: bool,
}

impl Dataset for Made {
    fn name(&self) -> &str {
        "made"
    }
    fn len(&self) -> usize {
        5
    }
    fn classes(&self) -> usize {
        3
    }
    fn sample_shape(&self) -> Option<[usize; 3]> {
        Some([3, 2, 3])
    }
    fn label(&self, index: usize) -> Result<u32, DataError> {
        Ok(if self.masks { IGNORED } else { index as u32 % 3 })
    }
    fn read<'a>(&'a self, index: usize, scratch: &'a mut Scratch) -> Result<Sample<'a>, DataError> {
        scratch.decoded = (0..18).map(|at| (index * 18 + at) as u8).collect();
        scratch.mask = vec![0, 1, 2, 255, index as u8 % 3, 1];
        Ok(Sample {
            pixels: &scratch.decoded,
            shape: [3, 2, 3],
            dct_scaled: None,
            order: PixelOrder::Planes,
            orientation: Orientation::default(),
            label: self.label(index)?,
            mask: self.masks.then_some(scratch.mask.as_slice()),
        })
    }
    fn has_masks(&self) -> bool {
        self.masks
    }
    fn normalisation(&self) -> Normalisation {
        Normalisation { mean: vec![0.1, 0.2, 0.3], std: vec![0.4, 0.5, 0.6] }
    }
    fn resident_bytes(&self) -> u64 {
        0
    }
}

#[test]
fn pixels_and_masks_round_trip_through_png() {
    for masks in [false, true] {
        let directory = tempfile::tempdir().unwrap();
        let part = || PackSplit { split: Split::Train, set: Box::new(Made { masks }) };
        shards::pack(&[part()], directory.path(), &small(), &mut |_| {}).unwrap();
        let set = shards_of(directory.path(), Split::Train);
        assert_eq!((set.sample_shape(), set.has_masks(), set.classes()), (Some([3, 2, 3]), masks, 3));
        assert_eq!(set.normalisation(), Made { masks }.normalisation());
        let (mut ours, mut theirs) = (Scratch::default(), Scratch::default());
        for index in 0..5 {
            let number = set.sample_name(index).rsplit('/').next().unwrap()[..6].parse().unwrap();
            let sample = set.read(index, &mut ours).unwrap();
            let made = Made { masks };
            let expected = made.read(number, &mut theirs).unwrap();
            assert_eq!(
                (sample.label, sample.mask, sample.shape),
                (expected.label, expected.mask, expected.shape)
            );
            let planes: Vec<u8> = (0..18).map(|at| sample.pixels[at % 6 * 3 + at / 6]).collect();
            assert_eq!(planes, expected.pixels);
        }
        let extensions: Vec<_> = members(&directory.path().join("train-000000.tar"))[..2]
            .iter()
            .map(|(name, _)| name.split_once('.').unwrap().1.to_owned())
            .collect();
        assert_eq!(extensions, if masks { ["png", "seg.png"] } else { ["png", "cls"] });
    }
}

#[test]
fn keeps_existing_shards_and_restarts_interrupted_packing() {
    let directory = tempfile::tempdir().unwrap();
    let (from, to) = (directory.path().join("set"), directory.path().join("shards"));
    photographs(&from);
    pack("folder", &from, &to, &small()).unwrap();
    let before = content(&to);
    let message = pack("folder", &from, &to, &small()).unwrap_err().to_string();
    assert!(
        message.ends_with(
            "already contains an `index.json` of shards; choose another folder or pass --overwrite"
        )
    );
    assert_eq!(content(&to), before);
    pack("folder", &from, &to, &PackOptions { shard_bytes: 1 << 20, overwrite: true, ..small() }).unwrap();
    assert_eq!(content(&to).len(), 3);

    // Packing interrupted by an unreadable file leaves no index, and an incomplete folder is not read.
    let damaged = from.join("train/cat/00.jpg");
    let whole = fs::read(&damaged).unwrap();
    let parts = shards::open_splits("folder", &from, &OpenOptions::default()).unwrap();
    fs::write(&damaged, b"").unwrap();
    let over = PackOptions { overwrite: true, ..small() };
    let message = shards::pack(&parts, &to, &over, &mut |_| {}).unwrap_err().to_string();
    assert!(message.contains("train/cat/00.jpg: the file is empty"), "{message}");
    assert!(!to.join("index.json").exists());
    assert_eq!(open_error(&to, Split::Train), "ROOT: packing was interrupted; pack the data set again");
    // The file can be skipped.
    let packed =
        shards::pack(&parts, &to, &PackOptions { skip_damaged: true, ..small() }, &mut |_| {}).unwrap();
    assert_eq!((packed[0].samples, packed[0].skipped), (47, 1));
    fs::write(&damaged, whole).unwrap();
    pack("folder", &from, &to, &over).unwrap();
    assert_eq!(content(&to), before);

    // Shards of another program.
    let other = directory.path().join("other");
    fs::create_dir(&other).unwrap();
    archive(&other.join("train-000.tar"), &[]);
    let message = pack("folder", &from, &other, &small()).unwrap_err().to_string();
    assert!(message.contains("already contains shards such as `train-000.tar`"), "{message}");
}

#[test]
fn detects_shards_that_differ_from_their_index() {
    let directory = tempfile::tempdir().unwrap();
    let (from, to) = (directory.path().join("set"), directory.path().join("shards"));
    photographs(&from);
    pack("folder", &from, &to, &small()).unwrap();
    let shard = to.join("train-000001.tar");
    let whole = fs::read(&shard).unwrap();
    fs::write(&shard, &whole[..whole.len() / 2]).unwrap();
    assert_eq!(
        open_error(&to, Split::Train),
        format!(
            "ROOT: damaged shards (1):\n  ROOT/train-000001.tar: has {} bytes, but {} in the index\npack or \
             copy them again",
            whole.len() / 2,
            whole.len()
        )
    );
    let set = open("shards", &to, Split::Train, &skipping()).unwrap();
    let damaged = set.damaged();
    assert!(!damaged.is_empty() && damaged.len() < 48);
    let first = damaged[0].0 as usize;
    let mut scratch = Scratch::default();
    assert!(matches!(set.read(first, &mut scratch), Err(DataError::BadSample { .. })));
    assert!(set.read(first - 1, &mut scratch).is_ok());

    // Checksums detect a flipped bit.
    let mut flipped = whole.clone();
    flipped[700] ^= 1;
    fs::write(&shard, flipped).unwrap();
    let found = shards_of(&to, Split::Train).verify_files().unwrap();
    assert_eq!(found.len(), 1);
    assert!(
        found[0].0.ends_with("train-000001.tar") && found[0].1.contains("but the index has"),
        "{found:?}"
    );
    fs::remove_file(&shard).unwrap();
    assert!(open_error(&to, Split::Train).starts_with("ROOT/train-000001.tar: No such file"));
}

#[test]
fn scans_shards_without_an_index_once() {
    let directory = tempfile::tempdir().unwrap();
    let root = directory.path();
    let (jpeg, png) = (fs::read(fixture("colour.jpg")).unwrap(), fs::read(fixture("bits.png")).unwrap());
    archive(
        &root.join("mine-train-0001.tar"),
        &[
            ("deep/b.0.JPG", &jpeg),
            ("deep/a.cls", b"2\n"),
            ("deep/a.json", b"{}"),
            ("deep/a.png", &png),
            ("deep/._a.png", b"nothing"),
            ("c.jpeg", &jpeg),
            ("c.cls", b"0"),
        ],
    );
    archive(&root.join("mine-train-0000.tar"), &[("z.jpg", &jpeg), ("z.cls", b"1")]);
    archive(&root.join("mine-validation-0000.tar"), &[("a.cls", b"1"), ("a.jpg", &jpeg)]);
    archive(&root.join("unrelated.tar"), &[("x", b"y")]);
    // `b.0.JPG` has the key `b` and an extension that is not an image's.
    let message = open_error(root, Split::Train);
    assert_eq!(
        message,
        "`shards`: damaged samples in the train split (1):\n  ROOT/mine-train-0001.tar/deep/b: missing \
         image: no .jpg, .jpeg, .png or .webp\n\
         replace or remove them, or set data.on_bad_sample = \"skip\" to train without them"
    );
    let set = open("shards", root, Split::Train, &skipping()).unwrap();
    assert_eq!((set.len(), set.classes(), set.damaged().len()), (4, 3, 1));
    let labels: Vec<u32> = (0..4).map(|index| set.label(index).unwrap()).collect();
    assert_eq!(labels, [1, 0, 2, 0]);
    let mut scratch = Scratch::default();
    assert_eq!(set.encoded(2, &mut scratch).unwrap().unwrap(), png);
    assert!(set.sample_name(2).ends_with("mine-train-0001.tar/deep/a.png"));
    assert_eq!(shards_of(root, Split::Validation).len(), 1);
    assert_eq!(shards_of(root, Split::Test).len(), 1);

    // The index is only written without problems.
    let message = shards::index_folder(root).unwrap_err().to_string();
    assert!(message.contains("damaged shards (1)"), "{message}");
    archive(&root.join("mine-train-0001.tar"), &[("a.cls", b"2"), ("a.png", &png)]);
    shards::index_folder(root).unwrap();
    let set = shards_of(root, Split::Train);
    assert_eq!((set.len(), set.classes()), (2, 3));
    assert!(set.verify_files().unwrap().is_empty());
}

#[test]
fn lists_problems_of_shards_without_an_index() {
    let directory = tempfile::tempdir().unwrap();
    let root = directory.path();
    let message = open_error(root, Split::Train);
    assert_eq!(
        message,
        "ROOT: neither `index.json` nor shards named train-*.tar, val-*.tar or test-*.tar found"
    );
    let jpeg = fs::read(fixture("colour.jpg")).unwrap();
    archive(
        &root.join("train-0.tar"),
        &[
            ("a.jpg", &jpeg),
            ("a.cls", b"0"),
            ("b.jpg", &jpeg),
            ("c.jpg", &jpeg),
            ("c.cls", b"cat"),
            ("d.jpg", &jpeg),
            ("d.cls", b"4000000"),
            ("e.jpg", &jpeg[..700]),
            ("e.cls", b"1"),
            ("a.jpg", &jpeg),
            ("a.cls", b"0"),
        ],
    );
    archive(&root.join("train-1.tar"), &[("f.jpg", &jpeg), ("f.cls", b"1"), ("g.jpg", &jpeg)]);
    let cut = fs::read(root.join("train-1.tar")).unwrap();
    fs::write(root.join("train-1.tar"), &cut[..cut.len() - 2048]).unwrap();
    assert_eq!(
        open_error(root, Split::Train),
        "`shards`: damaged samples in the train split (6):\
         \n  ROOT/train-0.tar/b: missing label: no .cls\
         \n  ROOT/train-0.tar/c: .cls file contains `cat`, expected a class index\
         \n  ROOT/train-0.tar/d: label is 4000000, expected 0 to 999999\
         \n  ROOT/train-0.tar/e: the file ends before the image does\
         \n  ROOT/train-0.tar/a: duplicate sample name in the shard\
         \n  ROOT/train-1.tar: the archive ends at byte 3072, inside g.jpg\
         \nreplace or remove them, or set data.on_bad_sample = \"skip\" to train without them"
    );
    assert_eq!(
        open_error(root, Split::Validation),
        "ROOT: no shards named val-*.tar or valid-*.tar or validation-*.tar or test-*.tar"
    );
    let set = open("shards", root, Split::Train, &skipping()).unwrap();
    let damaged: Vec<u32> = set.damaged().iter().map(|(index, _)| *index).collect();
    assert_eq!((set.len(), set.classes(), damaged), (8, 2, vec![1, 2, 3, 4, 5, 7]));
}

#[test]
fn targets_round_trip_with_their_names() {
    for (name, text, kind) in [
        (
            "labels",
            "path,split,scratch,dent\n1.png,train,1,\n2.png,train,0,1\n3.png,val,1,0\n",
            TargetKind::Labels,
        ),
        (
            "numbers",
            "path,split,age,\"height, m\"\n1.png,train,-1.5,0.1\n2.png,train,,16777216\n3.png,val,2,3e-30\n",
            TargetKind::Numbers,
        ),
    ] {
        let directory = tempfile::tempdir().unwrap();
        let (from, to) = (directory.path().join(name), directory.path().join("shards"));
        fs::create_dir_all(&from).unwrap();
        fs::write(from.join("labels.csv"), text).unwrap();
        for number in 1..=3 {
            fs::copy(fixture("palette.png"), from.join(format!("{number}.png"))).unwrap();
        }
        let unshuffled = PackOptions { shuffle: None, ..small() };
        pack("table", &from, &to, &unshuffled).unwrap();
        for split in [Split::Train, Split::Validation] {
            let stored = open("table", &from, split, &OpenOptions::default()).unwrap();
            let packed = shards_of(&to, split);
            assert_eq!(packed.target_kind(), Some(kind));
            assert_eq!((packed.len(), packed.classes()), (stored.len(), stored.classes()));
            for index in 0..stored.len() {
                assert_eq!(packed.class_name(index % 2), stored.class_name(index % 2));
                let bits = |set: &dyn Dataset| {
                    set.targets(index).unwrap().iter().map(|target| target.to_bits()).collect::<Vec<_>>()
                };
                assert_eq!(bits(packed.as_ref()), bits(stored.as_ref()));
                assert_eq!(packed.read(index, &mut Scratch::default()).unwrap().label, IGNORED);
            }
        }
        let files = members(&to.join("train-000000.tar"));
        let expected: &[u8] = match kind {
            TargetKind::Labels => b"{\"scratch\":1.0,\"dent\":null}",
            TargetKind::Numbers => b"{\"age\":-1.5,\"height, m\":0.1}",
        };
        assert_eq!((files[1].0.as_str(), files[1].1.as_slice()), ("000000.json", expected));
        let index = fs::read_to_string(to.join("index.json")).unwrap();
        assert!(index.contains("\"version\":3") && index.contains("\"target_kind\":"), "{index}");
        let damaged = index.replacen("\"targets\":[", "\"targets\":[0,", 1);
        fs::write(to.join("index.json"), damaged).unwrap();
        let message = open_error(&to, Split::Train);
        assert!(message.ends_with("2 images of 2 targets, but 5 targets"), "{message}");
    }
}
