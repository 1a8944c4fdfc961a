//! A run is continued on the data set that it began with, and on no other.

use crate::common::photographs;
use crate::common::tiny::copy;
use crate::common::{Place, Ran, streets};
use png::ColorType;
use std::fs;

/// Trains the first of two epochs on photographs.
fn begin(place: &Place, run: &str) -> Ran {
    let settings = photographs::SETTINGS.iter().flat_map(|setting| ["--set", setting]);
    let begin = ["train", "digits", "--out", run, "--data", "photographs", "--until-epoch", "1"];
    place.run(&begin.into_iter().chain(settings).collect::<Vec<_>>()).expect(0)
}

/// A place with photographs and a run on them that has trained one epoch.
fn begun() -> Place {
    let place = photographs::place();
    begin(&place, "run");
    place
}

/// Continuing the run is refused, and leaves it as it was. Returns what differs, a line each.
fn differences(place: &Place, run: &str) -> Vec<String> {
    let files = ["summary.json", "epochs.csv", "iterations.csv", "classes.csv", "data.json"];
    let content = || files.map(|file| fs::read(place.path(run).join(file)).ok());
    let before = content();
    let ran = place.run(&["train", run]).expect(2);
    assert_eq!(content(), before);
    let expected = format!("error: {run} cannot be continued: its data set has changed since it began\n");
    let (_, rest) = ran.err.split_once(&expected).unwrap_or_else(|| panic!("{}", ran.err));
    let (listed, hint) = rest.split_once("hint: ").unwrap();
    let with = format!("`stratus train {run}/experiment.toml --weights {run}`");
    assert!(hint.contains("restore the data set") && hint.contains(&with), "{hint}");
    listed.lines().map(|line| line.trim().to_owned()).collect()
}

#[test]
fn other_classes_are_refused() {
    let place = begun();
    fs::rename(place.path("photographs/column"), place.path("photographs/zebra")).unwrap();
    let found = differences(&place, "run");
    assert_eq!(found[0], "classes: column, frame, row → frame, row, zebra");
    assert_eq!(
        found[1..],
        [
            "column/ is no longer there (6 files)",
            "zebra/ is new (6 files)",
            "column/ is no longer there (2 files)",
            "zebra/ is new (2 files)"
        ]
    );
    // The names of the run's classes are still its own.
    let classes = fs::read_to_string(place.path("run/classes.csv")).unwrap();
    assert!(classes.contains("\n0,column,"), "{classes}");
    let measured = place.run(&["eval", "run"]).expect(2).err;
    assert!(measured.contains("class `zebra` is none that the network knows"), "{measured}");
    // A new run with these weights, which are those of other classes.
    let new = ["train", "run/experiment.toml", "--weights", "run", "--out", "new", "--until-epoch", "1"];
    let said = place.run(&new).expect(0).err;
    assert!(said.contains("begins anew: class 0 is `column`"), "{said}");
    place.run(&["train", "new"]).expect(0);
}

#[test]
fn more_or_fewer_images_are_refused() {
    let place = begun();
    for class in ["column", "frame", "row"] {
        for image in 0..5 {
            let from = place.path(&format!("photographs/{class}/{image}.png"));
            fs::copy(from, place.path(&format!("photographs/{class}/more{image}.png"))).unwrap();
        }
    }
    let found = differences(&place, "run");
    assert_eq!(
        found[..3],
        ["training images: 18 → 27", "validation images: 6 → 9", "iterations of an epoch: 2 → 3",]
    );
    assert!(found[6].starts_with("and ") && found[6].ends_with(" more"), "{found:?}");

    let place = begun();
    for class in ["column", "frame", "row"] {
        (0..5).for_each(|image| {
            fs::remove_file(place.path(&format!("photographs/{class}/{image}.png"))).unwrap();
        });
    }
    let found = differences(&place, "run");
    assert_eq!(found[..2], ["training images: 18 → 9", "validation images: 6 → 3"]);
    assert!(found.contains(&"iterations of an epoch: 2 → 1".to_owned()), "{found:?}");
}

#[test]
fn files_of_another_length_or_content_are_refused() {
    let place = photographs::place();
    let path = place.path("photographs/row/3.png");
    let image = |text: &str, pixel: u8| {
        let mut encoder = png::Encoder::new(fs::File::create(&path).unwrap(), 12, 12);
        encoder.set_color(ColorType::Grayscale);
        encoder.add_text_chunk("Comment".to_owned(), text.to_owned()).unwrap();
        encoder.write_header().unwrap().write_image_data(&[pixel; 144]).unwrap();
        fs::metadata(&path).unwrap().len()
    };
    let length = image("one", 1);
    begin(&place, "run");
    let longer = image("one and more", 1);
    let expected = format!("row/3.png was {length} bytes, now {longer}");
    assert_eq!(differences(&place, "run"), [expected]);
    assert_eq!(image("two", 1), length);
    assert_eq!(differences(&place, "run"), ["row/3.png has another content, of the same length"]);
    image("one", 1);
    place.run(&["train", "run"]).expect(0);
}

#[test]
fn a_copy_elsewhere_is_the_same_data_set() {
    let (place, elsewhere) = (begun(), photographs::place());
    copy(&place.path("run"), &elsewhere.path("run"));
    place.run(&["train", "run"]).expect(0);
    elsewhere.run(&["train", "run"]).expect(0);
    let weights = |place: &Place| crate::common::Result::of(&place.path("run")).weights;
    assert_eq!(weights(&place), weights(&elsewhere));
}

#[test]
fn a_run_without_a_record_is_compared_as_far_as_it_tells() {
    let note = "run: an older version of the program began this run and did not record its data set";
    let place = begun();
    let record = fs::read(place.path("run/data.json")).unwrap();
    fs::remove_file(place.path("run/data.json")).unwrap();
    fs::rename(place.path("photographs/column"), place.path("photographs/zebra")).unwrap();
    assert_eq!(differences(&place, "run"), ["classes: column, frame, row → frame, row, zebra"]);
    fs::rename(place.path("photographs/zebra"), place.path("photographs/column")).unwrap();
    for image in 0..5 {
        let from = place.path(&format!("photographs/row/{image}.png"));
        fs::copy(from, place.path(&format!("photographs/row/more{image}.png"))).unwrap();
    }
    assert_eq!(differences(&place, "run"), ["iterations of an epoch: 2 → 3"]);
    (0..5).for_each(|image| {
        fs::remove_file(place.path(&format!("photographs/row/more{image}.png"))).unwrap();
    });
    // A run that is continued has a record from then on.
    let ran = place.run(&["train", "run"]).expect(0);
    assert!(ran.err.contains(note), "{}", ran.err);
    assert_eq!(fs::read(place.path("run/data.json")).unwrap(), record);
}

#[test]
fn changed_masks_are_refused() {
    let place = Place::bare();
    streets::streets(&place);
    let network = "name = \"seg\"\ninput = [3, 24, 32]\n[[layer]]\nname = \"conv\"\nop = \"conv2d\"\n\
                   out_channels = 11\nkernel = 3\npadding = 1\n";
    fs::write(place.path("seg.toml"), network).unwrap();
    let settings = ["data.name=camvid", "train.device=reference", "train.batch_size=4"];
    let settings = settings.iter().flat_map(|setting| ["--set", setting]);
    let begin = ["train", "seg.toml", "--data", "set", "--epochs", "2", "--until-epoch", "1", "--out", "run"];
    place.run(&begin.into_iter().chain(settings).collect::<Vec<_>>()).expect(0);
    let record: serde_json::Value =
        serde_json::from_slice(&fs::read(place.path("run/data.json")).unwrap()).unwrap();
    let files = record["training"]["files"].as_array().unwrap();
    assert_eq!(files.len(), 2 * streets::TRAIN);
    let mask = files.iter().map(|file| file["path"].as_str().unwrap());
    let mask = mask.filter(|path| path.contains("annot")).nth(2).unwrap().to_owned();
    let path = place.path("set").join(&mask);
    let length = fs::metadata(&path).unwrap().len();
    streets::write(&path, ColorType::Grayscale, &[3; streets::HEIGHT * streets::WIDTH]);
    let now = fs::metadata(&path).unwrap().len();
    assert_eq!(differences(&place, "run"), [format!("{mask} was {length} bytes, now {now}")]);
}

/// Writes both parts of a data set in COCO's format, a class for every pixel or for an image.
fn put_coco(place: &Place, training: [&str; 2], validation: [&str; 2]) {
    for (part, [one, other]) in [("train", training), ("val", validation)] {
        let pixels: Vec<u8> = (0..192).map(|at| at as u8).collect();
        let mut lists = [Vec::new(), Vec::new()];
        for image in 1..=4 {
            let path = place.path(&format!("set/{part}/{image}.png"));
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
        fs::create_dir_all(place.path("set/annotations")).unwrap();
        fs::write(place.path(&format!("set/annotations/instances_{part}.json")), json).unwrap();
    }
}

#[test]
fn both_parts_and_whatever_is_measured_have_the_classes_of_the_network() {
    let place = Place::bare();
    let network = "name = \"seg\"\ninput = [3, 8, 8]\n[[layer]]\nname = \"conv\"\nop = \"conv2d\"\n\
                   out_channels = 3\nkernel = 3\npadding = 1\n";
    fs::write(place.path("seg.toml"), network).unwrap();
    let settings = ["data.name=coco", "train.device=reference", "train.batch_size=2"];
    let settings = settings.iter().flat_map(|setting| ["--set", setting]);
    let begin = ["train", "seg.toml", "--data", "set", "--epochs", "2", "--until-epoch", "1", "--out", "run"];
    let begin: Vec<&str> = begin.into_iter().chain(settings).collect();
    put_coco(&place, ["cat", "dog"], ["dog", "cat"]);
    let refused = place.run(&begin).expect(2).err;
    let expected = "the classes of the training part of data set `coco` are not those of its validation \
                    part: classes: background, cat, dog → background, dog, cat";
    assert!(refused.contains(expected), "{refused}");
    put_coco(&place, ["cat", "dog"], ["cat", "dog"]);
    place.run(&begin).expect(0);
    put_coco(&place, ["dog", "cat"], ["dog", "cat"]);
    assert_eq!(differences(&place, "run")[0], "classes: background, cat, dog → background, dog, cat");
    let refused = place.run(&["eval", "run"]).expect(2).err;
    let expected = "its masks have other classes than the network: classes: background, cat, dog → \
                    background, dog, cat";
    assert!(refused.contains(expected), "{refused}");
}
