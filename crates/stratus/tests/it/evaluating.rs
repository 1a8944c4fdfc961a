//! Photographs in folders of classes: divided or not, and what a run's weights are measured on.

use crate::common::photographs::put_photographs;
use crate::common::{Place, Ran};
use serde_json::Value;

const SETTINGS: &[&str] = &[
    "data.name=folder",
    "data.shape=[1, 12, 12]",
    "data.augment.shift=2",
    "train.device=reference",
    "model.width=4",
    "train.batch_size=9",
    "train.epochs=3",
];

fn train(place: &Place, more: &[&str]) -> Ran {
    let settings = SETTINGS.iter().flat_map(|setting| ["--set", setting]);
    let begin = ["train", "digits", "--out", "run", "--data", "photographs"];
    place.run(&begin.into_iter().chain(settings).chain(more.iter().copied()).collect::<Vec<_>>())
}

/// The scores as JSON, and as text.
fn eval(place: &Place, more: &[&str]) -> (Value, String) {
    let text = place.run(&[&["eval", "run"], more].concat()).expect(0);
    let json = place.run(&[&["eval", "run", "--json"], more].concat()).expect(0);
    (serde_json::from_str(&json.out).unwrap(), text.out)
}

fn number(scores: &Value, key: &str) -> f64 {
    scores[key].as_f64().unwrap()
}

#[test]
fn photographs_without_parts_say_how_they_are_divided() {
    let place = Place::bare();
    put_photographs(&place, "photographs");
    let remedy = "photographs: holds the folders of 3 classes (column, frame, row) and no folder `train`; \
                  add `--set data.split_seed=0`";
    let ran = train(&place, &[]).expect(1);
    assert!(ran.err.contains(remedy), "{}", ran.err);
    // Looking at images needs no parts, nor the name of the data set.
    for named in [&["photographs"][..], &["folder", "--path", "photographs"]] {
        let ran = place.run(&[&["data", "check"], named].concat()).expect(0);
        assert_eq!(ran.out, "all: 30 images, 0 damaged\n");
        let ran = place.run(&[&["data", "stats"], named].concat()).expect(0);
        assert!(ran.out.starts_with("all") && ran.out.contains("30 images"), "{}", ran.out);
        let sheet = ["--out", "sheet.png", "--count", "3", "--set", "data.shape=[1,12,12]"];
        place.run(&[&["data", "show"], named, &sheet].concat()).expect(0);
    }
    let ran = place.run(&["data", "check", "folder", "--path", "photographs", "--set", "data.split_seed=0"]);
    let parts = "train: 18 images, 0 damaged\nvalidation: 6 images, 0 damaged\ntest: 6 images, 0 damaged\n";
    assert_eq!(ran.expect(0).out, parts);
    train(&place, &["--set", "data.split_seed=0"]).expect(0);
    let undivided = ["eval", "run", "--data", "photographs", "--split", "val", "--set", "data.split_seed="];
    let ran = place.run(&undivided).expect(1);
    assert!(ran.err.contains(remedy), "{}", ran.err);
    // An image a class is enough to train on alone.
    let single = place.path("single/cat");
    std::fs::create_dir_all(&single).unwrap();
    std::fs::copy(place.path("photographs/row/0.png"), single.join("0.png")).unwrap();
    let ran = place.run(&["data", "check", "folder", "--path", "single", "--set", "data.split_seed=0"]);
    let ran = ran.expect(1);
    assert!(ran.err.contains("needs at least 3 images to have any in the validation part"), "{}", ran.err);
}

#[test]
fn any_part_of_any_folder_is_measured_and_said() {
    let place = Place::bare();
    put_photographs(&place, "photographs");
    train(&place, &["--set", "data.split_seed=0"]).expect(0);
    let (own, text) = eval(&place, &[]);
    let said = "measured on  6 images of the validation part of photographs\n             divided by \
                data.split_seed = 0\n";
    assert!(text.contains(said), "{text}");
    // Of three classes, five are all.
    assert!(text.contains("top-1") && !text.contains("top-5"), "{text}");
    let expected = serde_json::json!({
        "data": "folder", "path": "photographs", "part": "validation", "images": 6, "split_seed": 0,
        "validated_on": false,
    });
    assert_eq!((&own["measured"], number(&own, "samples")), (&expected, 6.0));
    let parts = ["train", "val", "test"].map(|part| eval(&place, &["--split", part]).0);
    assert_eq!(parts.each_ref().map(|scores| number(scores, "samples")), [18.0, 6.0, 6.0]);
    assert_eq!(own["loss"], parts[1]["loss"]);
    // Augmentation is training's.
    let still = eval(&place, &["--split", "train", "--set", "data.augment.shift=0"]).0;
    assert_eq!(still["loss"], parts[0]["loss"]);
    // A folder that is named is not divided by the run's seed.
    let (all, text) = eval(&place, &["--data", "photographs"]);
    assert!(text.contains("measured on  30 images, all of photographs\n"), "{text}");
    assert_eq!((&all["measured"]["part"], &all["measured"]["split_seed"]), (&"all".into(), &Value::Null));
    let sum: f64 = parts.iter().map(|scores| number(scores, "loss") * number(scores, "samples")).sum();
    assert!((number(&all, "loss") * 30.0 - sum).abs() < 1e-3 * sum, "{all} {parts:?}");
    let ran = place.run(&["eval", "run", "--data", "./photographs"]).expect(0);
    assert!(ran.err.contains("warning: the run was trained on images among these"), "{}", ran.err);
    assert_eq!(place.run(&["eval", "run", "--split", "test"]).expect(0).err, "");
    let whole = eval(&place, &["--split", "all"]).0;
    assert_eq!(whole["loss"], all["loss"]);
    let test = eval(&place, &["--data", "photographs", "--split", "test"]).0;
    assert_eq!(test["loss"], parts[2]["loss"]);
    let ran = place.run(&["eval", "run", "--split", "half"]).expect(2);
    assert!(ran.err.contains("give train, val, test or all"), "{}", ran.err);
}

/// Fewer images than a batch, of fewer classes, which have other numbers there.
#[test]
fn classes_are_known_by_their_names() {
    let place = Place::bare();
    put_photographs(&place, "photographs");
    train(&place, &["--set", "data.split_seed=0"]).expect(0);
    let copy = |from: &str, to: &str| {
        std::fs::create_dir_all(place.path(to).parent().unwrap()).unwrap();
        std::fs::copy(place.path(from), place.path(to)).unwrap();
    };
    for image in 0..2 {
        copy(&format!("photographs/row/{image}.png"), &format!("other/row/{image}.png"));
    }
    let scores = eval(&place, &["--data", "other", "--csv", "classes.csv"]).0;
    assert_eq!(number(&scores, "samples"), 2.0);
    let classes = std::fs::read_to_string(place.path("classes.csv")).unwrap();
    let counts: Vec<String> =
        classes.lines().skip(1).map(|line| line.split(',').take(3).collect::<Vec<_>>().join(" ")).collect();
    assert_eq!(counts, ["0 column 0", "1 frame 0", "2 row 2"]);
    copy("photographs/row/2.png", "other/cross/2.png");
    let ran = place.run(&["eval", "run", "--data", "other"]).expect(2);
    assert!(
        ran.err.contains("class `cross` is none that the network knows: column, frame, row"),
        "{}",
        ran.err
    );
    // What comes in parts is measured by its validation images, unless more is asked for.
    for image in 0..3 {
        copy(&format!("photographs/row/{image}.png"), &format!("parts/train/row/{image}.png"));
    }
    copy("photographs/row/7.png", "parts/Valid/row/7.png");
    for (more, images, part) in [
        (&[][..], 1, "1 image of the validation part of parts"),
        (&["--split", "all"], 4, "4 images, all of parts"),
        (
            &["--split", "test"],
            1,
            "1 image of the test part of parts\n             which is its validation part too",
        ),
    ] {
        let (scores, text) = eval(&place, &[&["--data", "parts"], more].concat());
        assert_eq!(scores["measured"]["images"], images);
        assert!(text.contains(&format!("measured on  {part}\n")), "{text}");
    }
    let (eval, test) = (place.run(&["eval", "run"]).expect(0), place.run(&["test", "run"]).expect(0));
    assert_eq!(eval.out, test.out);
}

/// How an image becomes the network's input goes along with its weights.
#[test]
fn what_a_network_wants_of_images_travels_with_its_weights() {
    let place = Place::bare();
    put_photographs(&place, "photographs");
    train(&place, &["--set", "data.split_seed=0", "--set", "data.resize=17"]).expect(0);
    place.run(&["model", "export", "run", "--safetensors", "net.safetensors"]).expect(0);
    let exported = place.run(&["model", "export", "run", "--onnx", "net.onnx", "--json"]).expect(0);
    let metadata = serde_json::from_str::<Value>(&exported.out).unwrap()["metadata"].clone();
    let said = ["class_names", "input_shape", "resize", "crop"].map(|key| metadata[key].as_str().unwrap());
    assert_eq!(said, [r#"["column","frame","row"]"#, "[1,12,12]", "17", "center"]);
    let infer = |arguments: &[&str]| {
        let ran =
            place.run(&[&["infer"], arguments, &["photographs/row/3.png", "--json"]].concat()).expect(0);
        serde_json::from_str::<Value>(&ran.out).unwrap()["images"][0]["top"].clone()
    };
    let file = ["digits", "--weights", "net.safetensors", "--set", "data.shape=[1, 12, 12]"];
    let settings = ["--set", "model.width=4", "--set", "model.classes=3", "--set", "train.device=reference"];
    let of_file = [&file[..], &settings].concat();
    assert_eq!(infer(&of_file), infer(&["run"]));
    assert_ne!(infer(&[&of_file[..], &["--set", "data.resize=12"]].concat()), infer(&["run"]));
}
