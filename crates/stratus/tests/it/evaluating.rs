//! Evaluation on photographs in class folders, with and without splits.

use crate::common::photographs::write_photographs;
use crate::common::{CommandOutput, TestDir};
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

fn train(dir: &TestDir, more: &[&str]) -> CommandOutput {
    let settings = SETTINGS.iter().flat_map(|setting| ["--set", setting]);
    let begin = ["train", "digits", "--out", "run", "--data", "photographs"];
    dir.run(&begin.into_iter().chain(settings).chain(more.iter().copied()).collect::<Vec<_>>())
}

/// Evaluates the run and returns the scores as JSON and as text.
fn eval(dir: &TestDir, more: &[&str]) -> (Value, String) {
    let text = dir.run(&[&["eval", "run"], more].concat()).expect(0);
    let json = dir.run(&[&["eval", "run", "--json"], more].concat()).expect(0);
    (serde_json::from_str(&json.out).unwrap(), text.out)
}

fn number(scores: &Value, key: &str) -> f64 {
    scores[key].as_f64().unwrap()
}

#[test]
fn eval_reports_the_split_of_an_undivided_folder() {
    let dir = TestDir::without_kernel_cache();
    write_photographs(&dir, "photographs");
    let remedy = "photographs: found 3 class folders (column, frame, row), but no folder `train`; \
                  add `--set data.split_seed=0`";
    let ran = train(&dir, &[]).expect(1);
    assert!(ran.err.contains(remedy), "{}", ran.err);
    // Inspecting images needs neither splits nor the name of the data set.
    for named in [&["photographs"][..], &["folder", "--path", "photographs"]] {
        let ran = dir.run(&[&["data", "check"], named].concat()).expect(0);
        assert_eq!(ran.out, "all: 30 images, 0 damaged\n");
        let ran = dir.run(&[&["data", "stats"], named].concat()).expect(0);
        assert!(ran.out.starts_with("all") && ran.out.contains("30 images"), "{}", ran.out);
        let sheet = ["--out", "sheet.png", "--count", "3", "--set", "data.shape=[1,12,12]"];
        dir.run(&[&["data", "show"], named, &sheet].concat()).expect(0);
    }
    let ran = dir.run(&["data", "check", "folder", "--path", "photographs", "--set", "data.split_seed=0"]);
    let parts = "train: 18 images, 0 damaged\nvalidation: 6 images, 0 damaged\ntest: 6 images, 0 damaged\n";
    assert_eq!(ran.expect(0).out, parts);
    train(&dir, &["--set", "data.split_seed=0"]).expect(0);
    let undivided = ["eval", "run", "--data", "photographs", "--split", "val", "--set", "data.split_seed="];
    let ran = dir.run(&undivided).expect(1);
    assert!(ran.err.contains(remedy), "{}", ran.err);
    // One image per class is only enough for training.
    let single = dir.path("single/cat");
    std::fs::create_dir_all(&single).unwrap();
    std::fs::copy(dir.path("photographs/row/0.png"), single.join("0.png")).unwrap();
    let ran = dir.run(&["data", "check", "folder", "--path", "single", "--set", "data.split_seed=0"]);
    let ran = ran.expect(1);
    assert!(ran.err.contains("the validation split needs 3 per class"), "{}", ran.err);
}

#[test]
fn eval_measures_any_split_of_any_folder() {
    let dir = TestDir::without_kernel_cache();
    write_photographs(&dir, "photographs");
    train(&dir, &["--set", "data.split_seed=0"]).expect(0);
    let (own, text) = eval(&dir, &[]);
    let message = "evaluated on  6 images of the validation split of photographs\n              split by \
                data.split_seed = 0\n";
    assert!(text.contains(message), "{text}");
    // For three classes, the top five are all classes.
    assert!(text.contains("top-1") && !text.contains("top-5"), "{text}");
    let expected = serde_json::json!({
        "data": "folder", "path": "photographs", "part": "validation", "images": 6, "split_seed": 0,
        "validated_on": false,
    });
    assert_eq!((&own["measured"], number(&own, "samples")), (&expected, 6.0));
    let parts = ["train", "val", "test"].map(|part| eval(&dir, &["--split", part]).0);
    assert_eq!(parts.each_ref().map(|scores| number(scores, "samples")), [18.0, 6.0, 6.0]);
    assert_eq!(own["loss"], parts[1]["loss"]);
    // Augmentation applies only to training.
    let still = eval(&dir, &["--split", "train", "--set", "data.augment.shift=0"]).0;
    assert_eq!(still["loss"], parts[0]["loss"]);
    // The seed of the run does not split a folder that is named on the command line.
    let (all, text) = eval(&dir, &["--data", "photographs"]);
    assert!(text.contains("evaluated on  30 images, all of photographs\n"), "{text}");
    assert_eq!((&all["measured"]["part"], &all["measured"]["split_seed"]), (&"all".into(), &Value::Null));
    let sum: f64 = parts.iter().map(|scores| number(scores, "loss") * number(scores, "samples")).sum();
    assert!((number(&all, "loss") * 30.0 - sum).abs() < 1e-3 * sum, "{all} {parts:?}");
    let ran = dir.run(&["eval", "run", "--data", "./photographs"]).expect(0);
    assert!(ran.err.contains("warning: these images include training images"), "{}", ran.err);
    assert_eq!(dir.run(&["eval", "run", "--split", "test"]).expect(0).err, "");
    let whole = eval(&dir, &["--split", "all"]).0;
    assert_eq!(whole["loss"], all["loss"]);
    let test = eval(&dir, &["--data", "photographs", "--split", "test"]).0;
    assert_eq!(test["loss"], parts[2]["loss"]);
    let ran = dir.run(&["eval", "run", "--split", "half"]).expect(2);
    assert!(ran.err.contains("use train, val, test or all"), "{}", ran.err);
}

/// The data set has fewer images than a batch, and fewer classes, with other indices.
#[test]
fn eval_matches_classes_by_name() {
    let dir = TestDir::without_kernel_cache();
    write_photographs(&dir, "photographs");
    train(&dir, &["--set", "data.split_seed=0"]).expect(0);
    let copy = |from: &str, to: &str| {
        std::fs::create_dir_all(dir.path(to).parent().unwrap()).unwrap();
        std::fs::copy(dir.path(from), dir.path(to)).unwrap();
    };
    for image in 0..2 {
        copy(&format!("photographs/row/{image}.png"), &format!("other/row/{image}.png"));
    }
    let scores = eval(&dir, &["--data", "other", "--csv", "classes.csv"]).0;
    assert_eq!(number(&scores, "samples"), 2.0);
    let classes = std::fs::read_to_string(dir.path("classes.csv")).unwrap();
    let counts: Vec<String> =
        classes.lines().skip(1).map(|line| line.split(',').take(3).collect::<Vec<_>>().join(" ")).collect();
    assert_eq!(counts, ["0 column 0", "1 frame 0", "2 row 2"]);
    copy("photographs/row/2.png", "other/cross/2.png");
    let ran = dir.run(&["eval", "run", "--data", "other"]).expect(2);
    assert!(
        ran.err.contains("class `cross` is not a class of the network: column, frame, row"),
        "{}",
        ran.err
    );
    // A data set with splits is evaluated on its validation images by default.
    for image in 0..3 {
        copy(&format!("photographs/row/{image}.png"), &format!("parts/train/row/{image}.png"));
    }
    copy("photographs/row/7.png", "parts/Valid/row/7.png");
    for (more, images, part) in [
        (&[][..], 1, "1 image of the validation split of parts"),
        (&["--split", "all"], 4, "4 images, all of parts"),
        (
            &["--split", "test"],
            1,
            "1 image of the test split of parts\n              also the validation split",
        ),
    ] {
        let (scores, text) = eval(&dir, &[&["--data", "parts"], more].concat());
        assert_eq!(scores["measured"]["images"], images);
        assert!(text.contains(&format!("evaluated on  {part}\n")), "{text}");
    }
    let (eval, test) = (dir.run(&["eval", "run"]).expect(0), dir.run(&["test", "run"]).expect(0));
    assert_eq!(eval.out, test.out);
}

/// The weights record how an image becomes the input of the network.
#[test]
fn exported_weights_keep_the_preprocessing() {
    let dir = TestDir::without_kernel_cache();
    write_photographs(&dir, "photographs");
    train(&dir, &["--set", "data.split_seed=0", "--set", "data.resize=17"]).expect(0);
    dir.run(&["model", "export", "run", "--safetensors", "net.safetensors"]).expect(0);
    let exported = dir.run(&["model", "export", "run", "--onnx", "net.onnx", "--json"]).expect(0);
    let metadata = serde_json::from_str::<Value>(&exported.out).unwrap()["metadata"].clone();
    let message = ["class_names", "input_shape", "resize", "crop"].map(|key| metadata[key].as_str().unwrap());
    assert_eq!(message, [r#"["column","frame","row"]"#, "[1,12,12]", "17", "center"]);
    let infer = |arguments: &[&str]| {
        let ran = dir.run(&[&["infer"], arguments, &["photographs/row/3.png", "--json"]].concat()).expect(0);
        serde_json::from_str::<Value>(&ran.out).unwrap()["images"][0]["top"].clone()
    };
    let file = ["digits", "--weights", "net.safetensors", "--set", "data.shape=[1, 12, 12]"];
    let settings = ["--set", "model.width=4", "--set", "model.classes=3", "--set", "train.device=reference"];
    let of_file = [&file[..], &settings].concat();
    assert_eq!(infer(&of_file), infer(&["run"]));
    assert_ne!(infer(&[&of_file[..], &["--set", "data.resize=12"]].concat()), infer(&["run"]));
}
