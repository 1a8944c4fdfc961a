//! Training on data that is made up, and on a folder of image files with a damaged one.

#![cfg(unix)]

use crate::common::{Place, Ran, root, summary};
use serde_json::Value;
use std::fs;

/// A small network on the backend that needs nothing.
const SMALL: &[&str] =
    &["train", "digits", "--json", "--set", "train.device=reference", "--set", "model.width=4"];

fn with<'a>(settings: &[&'a str]) -> Vec<&'a str> {
    let settings = settings.iter().flat_map(|&setting| ["--set", setting]);
    SMALL.iter().copied().chain(settings).collect()
}

#[test]
fn a_network_learns_what_is_made_up() {
    let place = Place::bare();
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
    let ran = place.run(&arguments).expect(0);
    let report: Value = serde_json::from_str(&ran.out).unwrap();
    let top1 = report["summary"]["final"]["val_top1"].as_f64().unwrap();
    assert!(top1 > 0.9, "{top1}");
    assert_eq!(report["summary"]["dataset"], "synthetic");
    assert_eq!(report["summary"]["bad_samples"], Value::Null);
}

/// Whole batches, the smaller last one of an epoch, and micro-batches.
#[test]
fn a_network_learns_from_images_that_are_mixed() {
    let place = Place::bare();
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
        let ran = place.run(&[&settings[..], more].concat()).expect(0);
        let report: Value = serde_json::from_str(&ran.out).unwrap();
        let last = &report["summary"]["final"];
        let top1 = last["val_top1"].as_f64().unwrap();
        assert!(top1 > 0.9, "{top1}");
        // A network that answers with certainty is wrong about most of what is mixed.
        let (mixed, alone) = (last["train_loss"].as_f64().unwrap(), last["val_loss"].as_f64().unwrap());
        assert!(mixed > 2.0 * alone, "{mixed} {alone}");
    }
}

/// Two classes of three images each, to train on and to validate with, in the folder `images`.
fn put_images(place: &Place) {
    let fixtures = root().join("crates/stratus-data/tests/fixtures/images");
    for split in ["train", "val"] {
        for (class, files) in
            [("a", ["colour.jpg", "turned.jpg", "cmyk.jpg"]), ("b", ["grey.jpg", "deep.png", "palette.png"])]
        {
            let folder = place.path("images").join(split).join(class);
            fs::create_dir_all(&folder).unwrap();
            files.iter().for_each(|file| {
                fs::copy(fixtures.join(file), folder.join(file)).unwrap();
            });
        }
    }
}

#[test]
fn a_folder_is_checked_and_trained_on_without_what_is_damaged() {
    let place = Place::bare();
    put_images(&place);
    let check = ["data", "check", "folder", "--path", "images"];
    let ran = place.run(&check).expect(0);
    assert_eq!(ran.out, "train: 6 images, 0 damaged\nvalidation: 6 images, 0 damaged\n");
    let damaged = fs::read(place.path("images/train/a/colour.jpg")).unwrap();
    fs::write(place.path("images/train/b/0.jpg"), &damaged[..700]).unwrap();
    let ran = place.run(&check).expect(1);
    let problem = "images/train/b/0.jpg: the file ends before the image does";
    assert_eq!(
        ran.out,
        format!("train: 7 images, 1 damaged\n  {problem}\nvalidation: 6 images, 0 damaged\n")
    );

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
    let ran = place.run(&with(&settings)).expect(1);
    assert!(ran.err.contains("`folder`: damaged samples in the train split (1):"), "{}", ran.err);
    assert!(ran.err.contains(problem), "{}", ran.err);
    assert!(!place.path("runs").exists());
    let ran = place.run(&[with(&settings), vec!["--set", "data.on_bad_sample=skip"]].concat()).expect(0);
    let report: Value = serde_json::from_str(&ran.out).unwrap();
    let bad = &report["summary"]["bad_samples"];
    assert_eq!((bad["count"].as_u64(), bad["listed"].as_array().unwrap().len()), (Some(1), 1));
    assert_eq!(bad["listed"][0]["sample"], "images/train/b/0.jpg");
    assert!(ran.err.contains("damaged images are left out (1)"), "{}", ran.err);
}

/// Pixels differ by rounding from one library to the next.
#[test]
fn a_run_knows_what_decoded_its_jpeg_files() {
    let place = Place::bare();
    put_images(&place);
    let settings = [
        "data.name=folder",
        "data.path=images",
        "data.shape=[3, 12, 12]",
        "train.batch_size=3",
        "train.epochs=1",
    ];
    let without = |arguments: &[&str]| {
        let mut command = place.command(arguments);
        Ran::of(command.env("STRATUS_LIBJPEG", "none").output().unwrap()).expect(0)
    };
    without(&[with(&settings), vec!["--out", "run"]].concat());
    let text = |name: &str| fs::read_to_string(place.path("run").join(name)).unwrap();
    let state: Value = serde_json::from_str(&text("checkpoints/0000000002/state.json")).unwrap();
    assert_eq!(state["libraries"]["jpeg"], "zune-jpeg 0.5");
    let machine: Value = serde_json::from_str(&text("machine.json")).unwrap();
    assert_eq!(machine["libraries"]["zune-jpeg"]["version"], "0.5");
    assert!(text("log.txt").contains("JPEG files are decoded by zune-jpeg 0.5"), "{}", text("log.txt"));

    // An epoch more, by the same library and by another.
    let more = |epochs: u32| {
        let experiment = text("experiment.toml")
            .replace(&format!("epochs = {}\n", epochs - 1), &format!("epochs = {epochs}\n"));
        fs::write(place.path("run/experiment.toml"), experiment).unwrap();
        fs::remove_file(place.path("run/summary.json")).unwrap();
    };
    let resume = ["train", "run"];
    more(2);
    let same = without(&resume);
    assert!(!same.err.contains("another decoder"), "{}", same.err);
    more(3);
    let other = place.run(&resume).expect(0);
    let found = place
        .run(&["doctor", "--no-measure"])
        .out
        .lines()
        .any(|line| line.starts_with("libjpeg-turbo") && !line.contains("not found"));
    let told = "its JPEG files were decoded by zune-jpeg 0.5, and are now by libjpeg-turbo ";
    assert_eq!(other.err.contains(told), found, "{}", other.err);
    assert_eq!(text("log.txt").contains(told), found);
    assert_eq!(summary(&place.path("run"))["resumed"], 2);

    // And one that meets none: the weights come from what was decoded before.
    let decoder = |iteration: u32| {
        let state = text(&format!("checkpoints/{iteration:010}/state.json"));
        serde_json::from_str::<Value>(&state).unwrap()["libraries"]["jpeg"].as_str().unwrap().to_owned()
    };
    let before = decoder(6);
    for split in ["train", "val"] {
        let folder = place.path("images").join(split);
        for file in ["a/colour.jpg", "a/turned.jpg", "a/cmyk.jpg", "b/grey.jpg"] {
            fs::copy(folder.join("b/palette.png"), folder.join(file)).unwrap();
        }
    }
    more(4);
    // Other images of the same classes: only a run without a record of its data set goes on with them.
    place.run(&resume).expect(2);
    fs::remove_file(place.path("run/data.json")).unwrap();
    place.run(&resume).expect(0);
    assert_eq!(decoder(8), before);
}

#[test]
fn fast_decoding_is_recorded_and_refused_where_it_cannot_be() {
    let place = Place::bare();
    put_images(&place);
    let settings = [
        "data.name=folder",
        "data.path=images",
        "data.shape=[3, 6, 6]",
        "data.decode=fast",
        "train.batch_size=3",
        "train.epochs=1",
    ];
    let arguments = [with(&settings), vec!["--out", "run"]].concat();
    let refused = place.command(&arguments).env("STRATUS_LIBJPEG", "none").output().unwrap();
    let refused = Ran::of(refused).expect(2);
    let told =
        "data.decode: is fast, but zune-jpeg 0.5 decodes JPEG files here, which cannot reduce them; set";
    assert!(refused.err.contains(told), "{}", refused.err);
    let doctor = place.run(&["doctor", "--no-measure"]).out;
    if !doctor.lines().any(|line| line.starts_with("libjpeg-turbo") && !line.contains("not found")) {
        eprintln!("SKIPPED with libjpeg-turbo, which is not found");
        return;
    }
    place.run(&arguments).expect(0);
    let text = |name: &str| fs::read_to_string(place.path("run").join(name)).unwrap();
    let state: Value = serde_json::from_str(&text("checkpoints/0000000002/state.json")).unwrap();
    let decoder = state["libraries"]["jpeg"].as_str().unwrap();
    assert!(decoder.starts_with("libjpeg-turbo ") && decoder.ends_with(", fast"), "{decoder}");
    assert!(text("log.txt").contains(&format!("JPEG files are decoded by {decoder}")), "{}", text("log.txt"));

    // An epoch more, decoded to other pixels.
    let experiment = text("experiment.toml").replace("epochs = 1\n", "epochs = 2\n");
    let experiment = experiment.replace("decode = \"fast\"", "decode = \"exact\"");
    fs::write(place.path("run/experiment.toml"), experiment).unwrap();
    fs::remove_file(place.path("run/summary.json")).unwrap();
    let other = place.run(&["train", "run"]).expect(0);
    assert!(other.err.contains(&format!("were decoded by {decoder}, and are now by libjpeg-turbo ")));
}

#[test]
fn images_are_packed_smaller() {
    let place = Place::bare();
    put_images(&place);
    let small = ["data", "shard", "images", "small", "--resize", "8", "--quality", "80"];
    let ran = place.run(&small).expect(0);
    assert!(ran.out.contains("; 6 made smaller: ") && ran.out.contains(" % of "), "{}", ran.out);
    let index = fs::read_to_string(place.path("small/index.json")).unwrap();
    let index: Value = serde_json::from_str(&index).unwrap();
    let resized = &index["resized"];
    assert_eq!((resized["side"].as_u64(), resized["quality"].as_u64()), (Some(8), Some(80)));
    assert!(resized["bytes"].as_u64() > Some(0) && resized["images"] == 12, "{resized}");
    let ran = place.run(&["data", "check", "shards", "--path", "small"]).expect(0);
    assert_eq!(ran.out, "train: 6 images, 0 damaged\nvalidation: 6 images, 0 damaged\n");
    let ran = place.run(&["data", "shard", "images", "other", "--quality", "80"]).expect(2);
    assert!(ran.err.contains("--resize"), "{}", ran.err);
}

#[test]
fn a_folder_is_packed_into_shards_and_trained_from_there() {
    let place = Place::bare();
    put_images(&place);
    let pack = ["data", "shard", "images", "shards", "--json"];
    let ran = place.run(&pack).expect(0);
    let packed: Value = serde_json::from_str(&ran.out).unwrap();
    assert_eq!((packed[0]["split"].as_str(), packed[0]["images"].as_u64()), (Some("train"), Some(6)));
    assert_eq!((packed[1]["split"].as_str(), packed[1]["shards"].as_u64()), (Some("validation"), Some(1)));
    let ran = place.run(&pack).expect(1);
    assert!(ran.err.contains("there is an `index.json` of shards already"), "{}", ran.err);
    let ran = place.run(&["data", "check", "shards", "--path", "shards"]).expect(0);
    assert_eq!(ran.out, "train: 6 images, 0 damaged\nvalidation: 6 images, 0 damaged\n");

    let settings = ["data.shape=[3, 12, 12]", "data.workers=2", "train.batch_size=4", "train.epochs=2"];
    let from = with(&[settings.as_slice(), &["data.name=shards", "data.path=shards"]].concat());
    let ran = place.run(&from).expect(0);
    let report: Value = serde_json::from_str(&ran.out).unwrap();
    assert_eq!(report["summary"]["dataset"], "shards");

    // A flipped bit in what no image is made of.
    let shard = place.path("shards/val-000000.tar");
    let mut bytes = fs::read(&shard).unwrap();
    bytes[300] ^= 1;
    fs::write(&shard, bytes).unwrap();
    let ran = place.run(&["data", "check", "shards", "--path", "shards"]).expect(1);
    assert!(ran.out.contains("shards/val-000000.tar: has "), "{}", ran.out);
    assert!(ran.err.contains("what is wrong with the data set: 1"), "{}", ran.err);
    // The index is made again from what is there.
    fs::remove_file(place.path("shards/index.json")).unwrap();
    let ran = place.run(&["data", "shard", "--index-only", "shards"]).expect(1);
    assert!(ran.err.contains("is not a tar header, or is damaged"), "{}", ran.err);
    place.run(&["data", "shard", "images", "shards", "--overwrite"]).expect(0);
    let index = fs::read(place.path("shards/index.json")).unwrap();
    fs::remove_file(place.path("shards/index.json")).unwrap();
    place.run(&["data", "shard", "--index-only", "shards"]).expect(0);
    let again: Value = serde_json::from_slice(&fs::read(place.path("shards/index.json")).unwrap()).unwrap();
    let index: Value = serde_json::from_slice(&index).unwrap();
    assert_eq!(again["splits"], index["splits"]);
    let ran = place.run(&["data", "shard", "--index-only", "shards"]).expect(1);
    assert!(ran.err.contains("index.json exists; replace it with --overwrite"), "{}", ran.err);
    place.run(&["data", "shard", "--index-only", "shards", "--overwrite"]).expect(0);
}

#[test]
fn an_address_with_a_secret_is_refused_and_never_shown() {
    let place = Place::bare();
    let from = with(&["data.name=shards", "data.path=http://127.0.0.1:1/packed?signature=hidden"]);
    let ran = place.run(&from).expect(2);
    assert!(ran.err.contains("data.path: what follows the `?` of an address may be a secret"), "{}", ran.err);
    assert!(!ran.err.contains("hidden") && !ran.out.contains("hidden"), "{}", ran.err);
    assert!(!place.path("runs").exists());
}
