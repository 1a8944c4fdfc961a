//! Training on synthetic data, and on a folder of image files with a damaged one.

#![cfg(unix)]

use crate::common::{CommandOutput, TestDir, root, summary};
use serde_json::Value;
use std::fs;

/// A small network on the reference backend.
const SMALL: &[&str] =
    &["train", "digits", "--json", "--set", "train.device=reference", "--set", "model.width=4"];

fn with<'a>(settings: &[&'a str]) -> Vec<&'a str> {
    let settings = settings.iter().flat_map(|&setting| ["--set", setting]);
    SMALL.iter().copied().chain(settings).collect()
}

#[test]
fn network_learns_synthetic_images() {
    let dir = TestDir::without_kernel_cache();
    let arguments = with(&[
        "data.name=synthetic",
        "data.shape=[2, 8, 8]",
        "data.synthetic.images=640",
        "data.synthetic.validation_images=100",
        "data.synthetic.classes=4",
        "data.augment.shift=1",
        "data.augment.cutout=2",
        "train.batch_size=32",
        "train.epochs=3",
        "optimiser.learning_rate=0.2",
    ]);
    let ran = dir.run(&arguments).expect(0);
    let report: Value = serde_json::from_str(&ran.out).unwrap();
    let top1 = report["summary"]["final"]["val_top1"].as_f64().unwrap();
    assert!(top1 > 0.9, "{top1}");
    assert_eq!(report["summary"]["dataset"], "synthetic");
    assert_eq!(report["summary"]["bad_samples"], Value::Null);
}

/// Covers full batches, the smaller last batch of an epoch, and micro-batches.
#[test]
fn network_learns_with_mixup_and_cutmix() {
    let dir = TestDir::without_kernel_cache();
    let settings = with(&[
        "data.name=synthetic",
        "data.shape=[2, 8, 8]",
        "data.synthetic.images=616",
        "data.synthetic.validation_images=100",
        "data.synthetic.classes=4",
        "data.augment.mixup=0.5",
        "data.augment.cutmix=1",
        "data.drop_last=false",
        "train.batch_size=32",
        "train.epochs=4",
        "optimiser.learning_rate=0.2",
    ]);
    for more in [&[][..], &["--set", "train.micro_batches=2"]] {
        let ran = dir.run(&[&settings[..], more].concat()).expect(0);
        let report: Value = serde_json::from_str(&ran.out).unwrap();
        let last = &report["summary"]["final"];
        let top1 = last["val_top1"].as_f64().unwrap();
        assert!(top1 > 0.9, "{top1}");
        // Confident predictions are wrong for most mixed images.
        let (mixed, alone) = (last["train_loss"].as_f64().unwrap(), last["val_loss"].as_f64().unwrap());
        assert!(mixed > 2.0 * alone, "{mixed} {alone}");
    }
}

/// Settings to train an epoch on the images of [`write_images`].
const ONE_EPOCH: [&str; 5] = [
    "data.name=folder",
    "data.path=images",
    "data.shape=[3, 12, 12]",
    "train.batch_size=3",
    "train.epochs=1",
];

/// The report of [`write_images`], up to the pictures that are also in another split.
const UNDAMAGED: &str = "train: 6 images, 0 damaged, 1 repeated\nvalidation: 6 images, 0 damaged,";

/// Writes training and validation images of two classes, three each, into the folder `images`.
fn write_images(dir: &TestDir) {
    let fixtures = root().join("crates/stratus-data/tests/fixtures/images");
    for split in ["train", "val"] {
        for (class, files) in
            [("a", ["colour.jpg", "turned.jpg", "cmyk.jpg"]), ("b", ["grey.jpg", "deep.png", "palette.png"])]
        {
            let folder = dir.path("images").join(split).join(class);
            fs::create_dir_all(&folder).unwrap();
            files.iter().for_each(|file| {
                fs::copy(fixtures.join(file), folder.join(file)).unwrap();
            });
        }
    }
}

#[test]
fn damaged_images_of_a_folder_are_listed_and_skipped() {
    let dir = TestDir::without_kernel_cache();
    write_images(&dir);
    let check = ["data", "check", "folder", "--path", "images"];
    let ran = dir.run(&check).expect(0);
    assert!(ran.out.starts_with(UNDAMAGED), "{}", ran.out);
    let damaged = fs::read(dir.path("images/train/a/colour.jpg")).unwrap();
    fs::write(dir.path("images/train/b/0.jpg"), &damaged[..700]).unwrap();
    let ran = dir.run(&check).expect(1);
    let problem = "images/train/b/0.jpg: the file ends before the image does";
    let expected =
        format!("train: 7 images, 1 damaged, 1 repeated\n  {problem}\nvalidation: 6 images, 0 damaged,");
    assert!(ran.out.starts_with(&expected), "{}", ran.out);

    let settings = [
        "data.name=folder",
        "data.path=images",
        "data.shape=[3, 12, 12]",
        "data.augment.random_resized_crop=true",
        "data.augment.flip=true",
        "data.workers=2",
        "train.batch_size=3",
        "train.epochs=2",
    ];
    let ran = dir.run(&with(&settings)).expect(1);
    assert!(ran.err.contains("`folder`: damaged samples in the train split (1):"), "{}", ran.err);
    assert!(ran.err.contains(problem), "{}", ran.err);
    assert!(!dir.path("runs").exists());
    let ran = dir.run(&[with(&settings), vec!["--set", "data.on_bad_sample=skip"]].concat()).expect(0);
    let report: Value = serde_json::from_str(&ran.out).unwrap();
    let bad = &report["summary"]["bad_samples"];
    assert_eq!((bad["count"].as_u64(), bad["listed"].as_array().unwrap().len()), (Some(1), 1));
    assert_eq!(bad["listed"][0]["sample"], "images/train/b/0.jpg");
    assert!(ran.err.contains("skipping 1 damaged image;"), "{}", ran.err);
}

/// Other files are named and do not matter; an archive is checked like the folder in it.
#[test]
fn archives_are_checked_like_folders_and_other_files_are_ignored() {
    let dir = TestDir::without_kernel_cache();
    write_images(&dir);
    fs::write(dir.path("images/train/a/README.txt"), "text").unwrap();
    fs::write(dir.path("images/train/b/notes.csv"), "a,b").unwrap();
    let damaged = fs::read(dir.path("images/train/a/colour.jpg")).unwrap();
    fs::write(dir.path("images/train/b/0.jpg"), &damaged[..700]).unwrap();
    let mut names = Vec::new();
    for folder in ["train/a", "train/b", "val/a", "val/b"] {
        let entries = fs::read_dir(dir.path("images").join(folder)).unwrap();
        names.extend(entries.map(|entry| format!("{folder}/{}", entry.unwrap().file_name().display())));
    }
    let mut tar = tar::Builder::new(fs::File::create(dir.path("images.tar")).unwrap());
    let mut zip = rawzip::ZipArchiveWriter::new(fs::File::create(dir.path("images.zip")).unwrap());
    for name in &names {
        let path = dir.path("images").join(name);
        tar.append_path_with_name(&path, name).unwrap();
        let (mut entry, config) = zip.new_file(name).start().unwrap();
        let mut writer = config.wrap(&mut entry);
        std::io::Write::write_all(&mut writer, &fs::read(&path).unwrap()).unwrap();
        let (_, descriptor) = writer.finish().unwrap();
        entry.finish(descriptor).unwrap();
    }
    tar.finish().unwrap();
    zip.finish().unwrap();
    let ran = dir.run(&["data", "check", "images"]).expect(1);
    let first: Vec<&str> = ran.out.lines().take(4).collect();
    assert_eq!(
        first,
        [
            "train: 7 images, 1 damaged, 1 repeated, 2 other files",
            "  images/train/b/0.jpg: the file ends before the image does",
            "  images/train/a/README.txt: not an image, ignored",
            "  images/train/b/notes.csv: not an image, ignored",
        ]
    );
    for archive in ["images.tar", "images.zip"] {
        let found = dir.run(&["data", "check", archive]).expect(1);
        assert_eq!(found.out.replace(archive, "images"), ran.out);
        assert_eq!(found.err, ran.err);
    }
    // An archive that cannot be read names its problem.
    let whole = fs::read(dir.path("images.zip")).unwrap();
    fs::write(dir.path("cut.zip"), &whole[..whole.len() / 2]).unwrap();
    let ran = dir.run(&["data", "check", "cut.zip"]).expect(1);
    assert!(ran.err.contains("cut.zip: the zip archive has no directory"), "{}", ran.err);
    fs::write(dir.path("images.tar.gz"), b"\x1f\x8b\x08\0\0\0").unwrap();
    let ran = dir.run(&["data", "check", "images.tar.gz"]).expect(1);
    assert!(ran.err.contains("unpack it: mkdir images && tar -xzf"), "{}", ran.err);
    // Training warns once.
    fs::remove_file(dir.path("images/train/b/0.jpg")).unwrap();
    let ran = dir.run(&with(&ONE_EPOCH)).expect(0);
    let warning = "ignoring 2 files that are not images: images/train/a/README.txt, \
                   images/train/b/notes.csv";
    assert_eq!(ran.err.matches(warning).count(), 1, "{}", ran.err);
}

#[test]
fn pictures_in_two_classes_or_two_splits_are_listed() {
    let dir = TestDir::without_kernel_cache();
    write_images(&dir);
    let check = ["data", "check", "folder", "--path", "images"];
    let ran = dir.run(&check).expect(0);
    let pairs: String =
        ["a/cmyk.jpg", "a/colour.jpg", "a/turned.jpg", "b/deep.png", "b/grey.jpg", "b/palette.png"]
            .map(|file| {
                // The turned image has the same pixels, and an orientation.
                let other = file.replace("turned", "colour");
                format!("\n  images/val/{file}: the same image, in another split: images/train/{other}")
            })
            .concat();
    assert_eq!(ran.out, format!("{UNDAMAGED} 6 also in another split, 1 repeated{pairs}\n"));

    fs::copy(dir.path("images/train/a/cmyk.jpg"), dir.path("images/train/b/copy.jpg")).unwrap();
    fs::copy(dir.path("images/train/a/cmyk.jpg"), dir.path("images/train/a/again.jpg")).unwrap();
    let ran = dir.run(&check).expect(1);
    let train = "train: 8 images, 0 damaged, 1 also in another class, 2 repeated\n  \
                 images/train/b/copy.jpg: the same image, in another class: images/train/a/again.jpg\n";
    assert!(ran.out.starts_with(train), "{}", ran.out);
    let hint = "hint: decide which class each image has, and remove it from the other";
    assert!(ran.err.contains("found 1 problem") && ran.err.contains(hint), "{}", ran.err);
}

#[test]
fn a_palette_needs_masks_and_is_never_replaced() {
    let dir = TestDir::without_kernel_cache();
    write_images(&dir);
    fs::write(dir.path("colours.txt"), "1 2 3 a").unwrap();
    let show = ["data", "show", "images", "--palette", "colours.txt", "--out"];
    let ran = dir.run(&[&show[..], &["sheet.png"]].concat()).expect(2);
    let expected = "--palette has no effect: the data set has classes, not masks";
    assert!(ran.err.contains(expected), "{}", ran.err);
    assert!(!dir.path("sheet.png").exists());
    dir.run(&[&show[..], &["colours.txt", "--overwrite"]].concat()).expect(2);
    assert_eq!(fs::read(dir.path("colours.txt")).unwrap(), b"1 2 3 a");
}

/// Decoders differ in the rounding of pixels.
#[test]
fn run_records_its_jpeg_decoder_and_rejects_another() {
    let dir = TestDir::without_kernel_cache();
    write_images(&dir);
    let without = |arguments: &[&str]| {
        let mut command = dir.command(arguments);
        CommandOutput::new(command.env("STRATUS_LIBJPEG", "none").output().unwrap()).expect(0)
    };
    without(&[with(&ONE_EPOCH), vec!["--out", "run"]].concat());
    let text = |name: &str| fs::read_to_string(dir.path("run").join(name)).unwrap();
    let state: Value = serde_json::from_str(&text("checkpoints/0000000002/state.json")).unwrap();
    assert_eq!(state["libraries"]["jpeg"], "zune-jpeg 0.5");
    let machine: Value = serde_json::from_str(&text("machine.json")).unwrap();
    assert_eq!(machine["libraries"]["zune-jpeg"]["version"], "0.5");
    assert!(text("log.txt").contains("JPEG files are decoded by zune-jpeg 0.5"), "{}", text("log.txt"));

    // Trains one more epoch with the same decoder and with another.
    let more = |epochs: u32| {
        let experiment = text("experiment.toml")
            .replace(&format!("epochs = {}\n", epochs - 1), &format!("epochs = {epochs}\n"));
        fs::write(dir.path("run/experiment.toml"), experiment).unwrap();
        fs::remove_file(dir.path("run/summary.json")).unwrap();
    };
    let resume = ["train", "run"];
    more(2);
    let same = without(&resume);
    assert!(!same.err.contains("another decoder"), "{}", same.err);
    more(3);
    let other = dir.run(&resume).expect(0);
    let found = dir
        .run(&["doctor", "--no-measure"])
        .out
        .lines()
        .any(|line| line.starts_with("libjpeg-turbo") && !line.contains("not found"));
    let expected = "the run used zune-jpeg 0.5, now libjpeg-turbo ";
    assert_eq!(other.err.contains(expected), found, "{}", other.err);
    assert_eq!(text("log.txt").contains(expected), found);
    assert_eq!(summary(&dir.path("run"))["resumed"], 2);

    // Resuming to the same epoch decodes nothing, but the weights depend on the earlier decoder.
    let decoder = |iteration: u32| {
        let state = text(&format!("checkpoints/{iteration:010}/state.json"));
        serde_json::from_str::<Value>(&state).unwrap()["libraries"]["jpeg"].as_str().unwrap().to_owned()
    };
    let before = decoder(6);
    for split in ["train", "val"] {
        let folder = dir.path("images").join(split);
        for file in ["a/colour.jpg", "a/turned.jpg", "a/cmyk.jpg", "b/grey.jpg"] {
            fs::copy(folder.join("b/palette.png"), folder.join(file)).unwrap();
        }
    }
    more(4);
    // Other images of the same classes are accepted only by a run without a record of its data set.
    dir.run(&resume).expect(2);
    fs::remove_file(dir.path("run/data.json")).unwrap();
    dir.run(&resume).expect(0);
    assert_eq!(decoder(8), before);
}

#[test]
fn fast_decoding_is_recorded_or_rejected() {
    let dir = TestDir::without_kernel_cache();
    write_images(&dir);
    let settings = [
        "data.name=folder",
        "data.path=images",
        "data.shape=[3, 6, 6]",
        "data.decode=fast",
        "train.batch_size=3",
        "train.epochs=1",
    ];
    let arguments = [with(&settings), vec!["--out", "run"]].concat();
    let rejected = dir.command(&arguments).env("STRATUS_LIBJPEG", "none").output().unwrap();
    let rejected = CommandOutput::new(rejected).expect(2);
    let expected = "data.decode: `fast` needs libjpeg-turbo, but zune-jpeg 0.5 is in use; set";
    assert!(rejected.err.contains(expected), "{}", rejected.err);
    let doctor = dir.run(&["doctor", "--no-measure"]).out;
    if !doctor.lines().any(|line| line.starts_with("libjpeg-turbo") && !line.contains("not found")) {
        eprintln!("SKIPPED with libjpeg-turbo, which is not found");
        return;
    }
    dir.run(&arguments).expect(0);
    let text = |name: &str| fs::read_to_string(dir.path("run").join(name)).unwrap();
    let state: Value = serde_json::from_str(&text("checkpoints/0000000002/state.json")).unwrap();
    let decoder = state["libraries"]["jpeg"].as_str().unwrap();
    assert!(decoder.starts_with("libjpeg-turbo ") && decoder.ends_with(", fast"), "{decoder}");
    assert!(text("log.txt").contains(&format!("JPEG files are decoded by {decoder}")), "{}", text("log.txt"));

    // Trains one more epoch, decoded to other pixels.
    let experiment = text("experiment.toml").replace("epochs = 1\n", "epochs = 2\n");
    let experiment = experiment.replace("decode = \"fast\"", "decode = \"exact\"");
    fs::write(dir.path("run/experiment.toml"), experiment).unwrap();
    fs::remove_file(dir.path("run/summary.json")).unwrap();
    let other = dir.run(&["train", "run"]).expect(0);
    assert!(other.err.contains(&format!("the run used {decoder}, now libjpeg-turbo ")));
}

#[test]
fn pack_resizes_images() {
    let dir = TestDir::without_kernel_cache();
    write_images(&dir);
    let small = ["data", "shard", "images", "small", "--resize", "8", "--quality", "80"];
    let ran = dir.run(&small).expect(0);
    assert!(ran.out.contains("; 6 downscaled: ") && ran.out.contains(" % of "), "{}", ran.out);
    let index = fs::read_to_string(dir.path("small/index.json")).unwrap();
    let index: Value = serde_json::from_str(&index).unwrap();
    let resized = &index["resized"];
    assert_eq!((resized["side"].as_u64(), resized["quality"].as_u64()), (Some(8), Some(80)));
    assert!(resized["bytes"].as_u64() > Some(0) && resized["images"] == 12, "{resized}");
    let ran = dir.run(&["data", "check", "shards", "--path", "small"]).expect(0);
    assert!(ran.out.starts_with(UNDAMAGED), "{}", ran.out);
    let ran = dir.run(&["data", "shard", "images", "other", "--quality", "80"]).expect(2);
    assert!(ran.err.contains("--resize"), "{}", ran.err);
}

#[test]
fn packed_shards_train_like_the_folder() {
    let dir = TestDir::without_kernel_cache();
    write_images(&dir);
    let pack = ["data", "shard", "images", "shards", "--json"];
    let ran = dir.run(&pack).expect(0);
    let packed: Value = serde_json::from_str(&ran.out).unwrap();
    assert_eq!((packed[0]["split"].as_str(), packed[0]["images"].as_u64()), (Some("train"), Some(6)));
    assert_eq!((packed[1]["split"].as_str(), packed[1]["shards"].as_u64()), (Some("validation"), Some(1)));
    let ran = dir.run(&pack).expect(1);
    assert!(ran.err.contains("already contains an `index.json` of shards"), "{}", ran.err);
    let ran = dir.run(&["data", "check", "shards", "--path", "shards"]).expect(0);
    assert!(ran.out.starts_with(UNDAMAGED), "{}", ran.out);

    let settings = ["data.shape=[3, 12, 12]", "data.workers=2", "train.batch_size=4", "train.epochs=2"];
    let from = with(&[settings.as_slice(), &["data.name=shards", "data.path=shards"]].concat());
    let ran = dir.run(&from).expect(0);
    let report: Value = serde_json::from_str(&ran.out).unwrap();
    assert_eq!(report["summary"]["dataset"], "shards");

    // Flips a bit outside the image data.
    let shard = dir.path("shards/val-000000.tar");
    let mut bytes = fs::read(&shard).unwrap();
    bytes[300] ^= 1;
    fs::write(&shard, bytes).unwrap();
    let ran = dir.run(&["data", "check", "shards", "--path", "shards"]).expect(1);
    assert!(ran.out.contains("shards/val-000000.tar: has "), "{}", ran.out);
    assert!(ran.err.contains("found 1 problem"), "{}", ran.err);
    // The index is rebuilt from the existing shards.
    fs::remove_file(dir.path("shards/index.json")).unwrap();
    let ran = dir.run(&["data", "shard", "--index-only", "shards"]).expect(1);
    assert!(ran.err.contains("invalid tar header at byte"), "{}", ran.err);
    dir.run(&["data", "shard", "images", "shards", "--overwrite"]).expect(0);
    let index = fs::read(dir.path("shards/index.json")).unwrap();
    fs::remove_file(dir.path("shards/index.json")).unwrap();
    dir.run(&["data", "shard", "--index-only", "shards"]).expect(0);
    let again: Value = serde_json::from_slice(&fs::read(dir.path("shards/index.json")).unwrap()).unwrap();
    let index: Value = serde_json::from_slice(&index).unwrap();
    assert_eq!(again["splits"], index["splits"]);
    let ran = dir.run(&["data", "shard", "--index-only", "shards"]).expect(1);
    assert!(ran.err.contains("index.json already exists; pass --overwrite to replace it"), "{}", ran.err);
    dir.run(&["data", "shard", "--index-only", "shards", "--overwrite"]).expect(0);
}

#[test]
fn rejects_addresses_with_credentials_without_printing_them() {
    let dir = TestDir::without_kernel_cache();
    let from = with(&["data.name=shards", "data.path=http://127.0.0.1:1/packed?signature=hidden"]);
    let ran = dir.run(&from).expect(2);
    assert!(ran.err.contains("data.path has a query string, which may be a secret"), "{}", ran.err);
    assert!(!ran.err.contains("hidden") && !ran.out.contains("hidden"), "{}", ran.err);
    assert!(!dir.path("runs").exists());
}
