//! A run is resumed only on the data set that it started with.

use crate::common::photographs;
use crate::common::tiny::copy;
use crate::common::{CommandOutput, TestDir, streets};
use png::ColorType;
use std::fs;

/// Trains the first of two epochs on photographs.
fn train_one_epoch(dir: &TestDir, run: &str) -> CommandOutput {
    let settings = photographs::SETTINGS.iter().flat_map(|setting| ["--set", setting]);
    let begin = ["train", "digits", "--out", run, "--data", "photographs", "--until-epoch", "1"];
    dir.run(&begin.into_iter().chain(settings).collect::<Vec<_>>()).expect(0)
}

/// A folder with photographs and a run that has trained one epoch on them.
fn trained_one_epoch() -> TestDir {
    let dir = photographs::test_dir();
    train_one_epoch(&dir, "run");
    dir
}

/// Checks that resuming the run is rejected and changes nothing, and returns the reported differences.
fn differences(dir: &TestDir, run: &str) -> Vec<String> {
    let files = ["summary.json", "epochs.csv", "iterations.csv", "classes.csv", "data.json"];
    let content = || files.map(|file| fs::read(dir.path(run).join(file)).ok());
    let before = content();
    let ran = dir.run(&["train", run]).expect(2);
    assert_eq!(content(), before);
    let expected = format!("error: {run} cannot be resumed: its data set has changed since it was started\n");
    let (_, rest) = ran.err.split_once(&expected).unwrap_or_else(|| panic!("{}", ran.err));
    let (listed, hint) = rest.split_once("hint: ").unwrap();
    let with = format!("`stratus train {run}/experiment.toml --weights {run}`");
    assert!(hint.contains("restore the data set") && hint.contains(&with), "{hint}");
    listed.lines().map(|line| line.trim().to_owned()).collect()
}

#[test]
fn resume_rejects_other_classes() {
    let dir = trained_one_epoch();
    fs::rename(dir.path("photographs/column"), dir.path("photographs/zebra")).unwrap();
    let found = differences(&dir, "run");
    assert_eq!(found[0], "classes: column, frame, row → frame, row, zebra");
    assert_eq!(
        found[1..],
        [
            "column/ was removed (6 files)",
            "zebra/ is new (6 files)",
            "column/ was removed (2 files)",
            "zebra/ is new (2 files)"
        ]
    );
    // The run keeps its class names.
    let classes = fs::read_to_string(dir.path("run/classes.csv")).unwrap();
    assert!(classes.contains("\n0,column,"), "{classes}");
    let measured = dir.run(&["eval", "run"]).expect(2).err;
    assert!(measured.contains("class `zebra` is not a class of the network"), "{measured}");
    // A new run with weights of other classes.
    let new = ["train", "run/experiment.toml", "--weights", "run", "--out", "new", "--until-epoch", "1"];
    let message = dir.run(&new).expect(0).err;
    assert!(message.contains("is reinitialised: class 0 is `column`"), "{message}");
    dir.run(&["train", "new"]).expect(0);
}

#[test]
fn resume_rejects_another_number_of_images() {
    let dir = trained_one_epoch();
    for class in ["column", "frame", "row"] {
        for image in 0..5 {
            let from = dir.path(&format!("photographs/{class}/{image}.png"));
            fs::copy(from, dir.path(&format!("photographs/{class}/more{image}.png"))).unwrap();
        }
    }
    let found = differences(&dir, "run");
    assert_eq!(
        found[..3],
        ["training images: 18 → 27", "validation images: 6 → 9", "iterations per epoch: 2 → 3",]
    );
    assert!(found[6].starts_with("and ") && found[6].ends_with(" more"), "{found:?}");

    let dir = trained_one_epoch();
    for class in ["column", "frame", "row"] {
        (0..5).for_each(|image| {
            fs::remove_file(dir.path(&format!("photographs/{class}/{image}.png"))).unwrap();
        });
    }
    let found = differences(&dir, "run");
    assert_eq!(found[..2], ["training images: 18 → 9", "validation images: 6 → 3"]);
    assert!(found.contains(&"iterations per epoch: 2 → 1".to_owned()), "{found:?}");
}

#[test]
fn resume_rejects_changed_files() {
    let dir = photographs::test_dir();
    let path = dir.path("photographs/row/3.png");
    let image = |text: &str, pixel: u8| {
        let mut encoder = png::Encoder::new(fs::File::create(&path).unwrap(), 12, 12);
        encoder.set_color(ColorType::Grayscale);
        encoder.add_text_chunk("Comment".to_owned(), text.to_owned()).unwrap();
        encoder.write_header().unwrap().write_image_data(&[pixel; 144]).unwrap();
        fs::metadata(&path).unwrap().len()
    };
    let length = image("one", 1);
    train_one_epoch(&dir, "run");
    let longer = image("one and more", 1);
    let expected = format!("row/3.png was {length} bytes, now {longer}");
    assert_eq!(differences(&dir, "run"), [expected]);
    assert_eq!(image("two", 1), length);
    assert_eq!(differences(&dir, "run"), ["row/3.png has the same length, but different content"]);
    image("one", 1);
    dir.run(&["train", "run"]).expect(0);
}

#[test]
fn resume_accepts_a_moved_data_set() {
    let (dir, elsewhere) = (trained_one_epoch(), photographs::test_dir());
    copy(&dir.path("run"), &elsewhere.path("run"));
    dir.run(&["train", "run"]).expect(0);
    elsewhere.run(&["train", "run"]).expect(0);
    let weights = |dir: &TestDir| crate::common::RunResult::read(&dir.path("run")).weights;
    assert_eq!(weights(&dir), weights(&elsewhere));
}

#[test]
fn resume_without_a_data_record_compares_classes_and_iterations() {
    let note = "run: this run was started by an older version that did not record the data set";
    let dir = trained_one_epoch();
    let record = fs::read(dir.path("run/data.json")).unwrap();
    fs::remove_file(dir.path("run/data.json")).unwrap();
    fs::rename(dir.path("photographs/column"), dir.path("photographs/zebra")).unwrap();
    assert_eq!(differences(&dir, "run"), ["classes: column, frame, row → frame, row, zebra"]);
    fs::rename(dir.path("photographs/zebra"), dir.path("photographs/column")).unwrap();
    for image in 0..5 {
        let from = dir.path(&format!("photographs/row/{image}.png"));
        fs::copy(from, dir.path(&format!("photographs/row/more{image}.png"))).unwrap();
    }
    assert_eq!(differences(&dir, "run"), ["iterations per epoch: 2 → 3"]);
    (0..5).for_each(|image| {
        fs::remove_file(dir.path(&format!("photographs/row/more{image}.png"))).unwrap();
    });
    // Resuming writes the record.
    let ran = dir.run(&["train", "run"]).expect(0);
    assert!(ran.err.contains(note), "{}", ran.err);
    assert_eq!(fs::read(dir.path("run/data.json")).unwrap(), record);
}

#[test]
fn resume_rejects_changed_masks() {
    let dir = TestDir::without_kernel_cache();
    streets::write_streets(&dir);
    let network = "name = \"seg\"\ninput = [3, 24, 32]\n[[layer]]\nname = \"conv\"\nop = \"conv2d\"\n\
                   out_channels = 11\nkernel = 3\npadding = 1\n";
    fs::write(dir.path("seg.toml"), network).unwrap();
    let settings = ["data.name=camvid", "train.device=reference", "train.batch_size=4"];
    let settings = settings.iter().flat_map(|setting| ["--set", setting]);
    let begin = ["train", "seg.toml", "--data", "set", "--epochs", "2", "--until-epoch", "1", "--out", "run"];
    dir.run(&begin.into_iter().chain(settings).collect::<Vec<_>>()).expect(0);
    let record: serde_json::Value =
        serde_json::from_slice(&fs::read(dir.path("run/data.json")).unwrap()).unwrap();
    let files = record["training"]["files"].as_array().unwrap();
    assert_eq!(files.len(), 2 * streets::TRAIN);
    let mask = files.iter().map(|file| file["path"].as_str().unwrap());
    let mask = mask.filter(|path| path.contains("annot")).nth(2).unwrap().to_owned();
    let path = dir.path("set").join(&mask);
    let length = fs::metadata(&path).unwrap().len();
    streets::write(&path, ColorType::Grayscale, &[3; streets::HEIGHT * streets::WIDTH]);
    let now = fs::metadata(&path).unwrap().len();
    assert_eq!(differences(&dir, "run"), [format!("{mask} was {length} bytes, now {now}")]);
}

/// Writes both splits of a data set in the format of COCO, with these class names.
fn write_coco(dir: &TestDir, training: [&str; 2], validation: [&str; 2]) {
    for (part, [one, other]) in [("train", training), ("val", validation)] {
        let pixels: Vec<u8> = (0..192).map(|at| at as u8).collect();
        let mut lists = [Vec::new(), Vec::new()];
        for image in 1..=4 {
            let path = dir.path(&format!("set/{part}/{image}.png"));
            streets::write_sized(&path, ColorType::Rgb, &pixels, [8, 8]);
            lists[0]
                .push(format!(r#"{{"id": {image}, "file_name": "{image}.png", "height": 8, "width": 8}}"#));
            lists[1].push(format!(
                r#"{{"id": {image}, "image_id": {image}, "category_id": {}, "area": 9, "iscrowd": 0,
                "bbox": [1, 1, 3, 3], "segmentation": [[1, 1, 4, 1, 4, 4, 1, 4]]}}"#,
                1 + image % 2
            ));
        }
        let [images, annotations] = lists.map(|list| list.join(", "));
        let json = format!(
            r#"{{"images": [{images}], "annotations": [{annotations}],
            "categories": [{{"id": 1, "name": "{one}"}}, {{"id": 2, "name": "{other}"}}]}}"#
        );
        fs::create_dir_all(dir.path("set/annotations")).unwrap();
        fs::write(dir.path(&format!("set/annotations/instances_{part}.json")), json).unwrap();
    }
}

#[test]
fn rejects_a_split_whose_classes_differ_from_the_network() {
    let dir = TestDir::without_kernel_cache();
    let network = "name = \"seg\"\ninput = [3, 8, 8]\n[[layer]]\nname = \"conv\"\nop = \"conv2d\"\n\
                   out_channels = 3\nkernel = 3\npadding = 1\n";
    fs::write(dir.path("seg.toml"), network).unwrap();
    let settings = ["data.name=coco", "train.device=reference", "train.batch_size=2"];
    let settings = settings.iter().flat_map(|setting| ["--set", setting]);
    let begin = ["train", "seg.toml", "--data", "set", "--epochs", "2", "--until-epoch", "1", "--out", "run"];
    let begin: Vec<&str> = begin.into_iter().chain(settings).collect();
    write_coco(&dir, ["cat", "dog"], ["dog", "cat"]);
    let rejected = dir.run(&begin).expect(2).err;
    let expected = "the training and validation splits of data set `coco` have different classes: classes: \
                    background, cat, dog → background, dog, cat";
    assert!(rejected.contains(expected), "{rejected}");
    write_coco(&dir, ["cat", "dog"], ["cat", "dog"]);
    dir.run(&begin).expect(0);
    write_coco(&dir, ["dog", "cat"], ["dog", "cat"]);
    assert_eq!(differences(&dir, "run")[0], "classes: background, cat, dog → background, dog, cat");
    let rejected = dir.run(&["eval", "run"]).expect(2).err;
    let expected = "its masks have different classes than the network: classes: background, cat, dog → \
                    background, dog, cat";
    assert!(rejected.contains(expected), "{rejected}");
}
