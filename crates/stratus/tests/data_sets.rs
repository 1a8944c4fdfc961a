//! Training on data that is made up, and on a folder of image files with a damaged one.

#![cfg(unix)]
#![allow(clippy::unwrap_used)]

mod common;

use common::{Place, root};
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
    ]);
    let ran = place.run(&arguments).expect(0);
    let report: Value = serde_json::from_str(&ran.out).unwrap();
    let top1 = report["summary"]["final"]["val_top1"].as_f64().unwrap();
    assert!(top1 > 0.9, "{top1}");
    assert_eq!(report["summary"]["dataset"], "synthetic");
    assert_eq!(report["summary"]["bad_samples"], Value::Null);
}

#[test]
fn a_folder_is_checked_and_trained_on_without_what_is_damaged() {
    let place = Place::bare();
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
    let check = ["data", "check", "folder", "--path", "images"];
    let ran = place.run(&check).expect(0);
    assert_eq!(ran.out, "train: 6 images, 0 damaged\nvalidation: 6 images, 0 damaged\n");
    let damaged = fs::read(fixtures.join("colour.jpg")).unwrap();
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
