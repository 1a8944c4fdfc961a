//! Preprocessing and class names that are stored with weights, in evaluation, inference and training.

use crate::common::photographs::{run_with_columns, test_dir, train};
use crate::common::streets::{self, write_streets};
use crate::common::{CommandOutput, TestDir};
use serde_json::Value;
use std::fs;

/// The settings of the network of [`trained`].
const NETWORK: &[&str] =
    &["data.name=folder", "data.shape=[1, 12, 12]", "model.width=4", "train.device=reference"];

/// A folder with photographs, a run that has learned them, and its exported weights.
fn trained(settings: &[&str]) -> TestDir {
    let dir = test_dir();
    let settings = [&["train.epochs=20", "optimiser.learning_rate=0.1"], settings].concat();
    train(&dir, "run", &settings, None).expect(0);
    dir.run(&["model", "export", "run", "--safetensors", "net.safetensors"]).expect(0);
    dir
}

fn with(command: &[&str], more: &[&str]) -> Vec<String> {
    let settings = NETWORK.iter().chain(more).flat_map(|setting| ["--set", setting]);
    command.iter().copied().chain(settings).map(str::to_owned).collect()
}

fn run(dir: &TestDir, command: &[&str], more: &[&str]) -> CommandOutput {
    let all = with(command, more);
    dir.run(&all.iter().map(String::as_str).collect::<Vec<_>>())
}

fn scores(ran: &CommandOutput) -> (f64, f64, u64) {
    let report: Value = serde_json::from_str(&ran.out).unwrap();
    let number = |key: &str| report[key].as_f64().unwrap();
    (number("top1"), number("loss"), report["samples"].as_u64().unwrap())
}

/// Copies classes of the photographs to another folder, with new names.
fn copy_classes(dir: &TestDir, to: &str, classes: &[(&str, &str)]) {
    for (from, name) in classes {
        let folder = dir.path(to).join(name);
        fs::create_dir_all(&folder).unwrap();
        for image in 0..4 {
            let file = format!("{image}.png");
            fs::copy(dir.path(&format!("photographs/{from}/{file}")), folder.join(&file)).unwrap();
        }
    }
}

#[test]
fn eval_takes_normalisation_resize_and_classes_from_weights() {
    let dir = trained(&["data.mean=[0.2]", "data.std=[0.05]", "data.resize=14"]);
    copy_classes(&dir, "two", &[("frame", "frame"), ("row", "row")]);
    let of_run = |data: &str| scores(&dir.run(&["eval", "run", "--json", "--data", data]).expect(0));
    for weights in ["net.safetensors", "run"] {
        for data in ["photographs", "two"] {
            let ran = run(&dir, &["eval", "digits", "--weights", weights, "--json", "--data", data], &[]);
            let ran = ran.expect(0);
            assert_eq!(ran.err, "", "{weights} {data}");
            assert_eq!(scores(&ran), of_run(data), "{weights} {data}");
        }
    }
    let (top1, _, samples) = of_run("two");
    assert_eq!((top1, samples), (1.0, 8));
    // `infer` preprocesses images in the same way.
    let ran = run(&dir, &["infer", "digits", "two/row", "--weights", "net.safetensors", "--top", "1"], &[]);
    assert!(ran.expect(0).out.lines().take(4).all(|line| line.contains("  row ")));
}

#[test]
fn set_keys_override_recorded_preprocessing_with_a_warning() {
    let dir = trained(&["data.mean=[0.2]", "data.std=[0.05]"]);
    let eval = ["eval", "digits", "--weights", "net.safetensors", "--data", "photographs", "--json"];
    let infer = ["infer", "digits", "photographs/row", "--weights", "net.safetensors", "--json"];
    let recorded = scores(&run(&dir, &eval, &[]).expect(0));
    for command in [&eval[..], &infer] {
        let ran = run(&dir, command, &["data.mean=[0.9]"]).expect(0);
        let message = "warning: data.mean is [0.9], but net.safetensors records [0.2]\n";
        assert_eq!(ran.err, message);
    }
    assert_ne!(scores(&run(&dir, &eval, &["data.mean=[0.9]"]).expect(0)), recorded);
    // Recorded values cause no warning.
    let same = run(&dir, &eval, &["data.mean=[0.2]", "data.std=[0.05]"]).expect(0);
    assert_eq!((scores(&same), same.err.as_str()), (recorded, ""));
    // The keys of a run are not set by the user if it is evaluated with other weights.
    train(&dir, "other", &["data.mean=[0.7]", "data.std=[0.3]"], None).expect(0);
    let with_run = ["eval", "other", "--weights", "net.safetensors", "--data", "photographs", "--json"];
    let ran = dir.run(&with_run).expect(0);
    assert_eq!((scores(&ran), ran.err.as_str()), (recorded, ""));
}

#[test]
fn eval_rejects_classes_unknown_to_the_weights() {
    let dir = trained(&[]);
    copy_classes(&dir, "zebra", &[("column", "column"), ("frame", "frame"), ("row", "zebra")]);
    let eval = |weights: &str, data: &str, more: &[&str]| {
        run(&dir, &["eval", "digits", "--weights", weights, "--data", data], more)
    };
    let ran = eval("net.safetensors", "zebra", &[]).expect(2);
    assert!(
        ran.err.contains("class `zebra` is not a class of the network: column, frame, row"),
        "{}",
        ran.err
    );
    // Without names, fewer classes cannot be matched.
    copy_classes(&dir, "two", &[("frame", "frame"), ("row", "row")]);
    let file = fs::read(dir.path("net.safetensors")).unwrap();
    let unnamed = String::from_utf8_lossy(&file).contains("class_names");
    assert!(unnamed);
    let renamed: Vec<u8> = replaced(&file, b"class_names", b"class_other");
    fs::write(dir.path("unnamed.safetensors"), renamed).unwrap();
    let ran = eval("unnamed.safetensors", "two", &["model.classes=3"]).expect(2);
    assert!(ran.err.contains("two has 2 classes, but the network has 3"), "{}", ran.err);
    assert!(ran.err.contains("record no class names"), "{}", ran.err);
    eval("unnamed.safetensors", "photographs", &[]).expect(0);
}

/// Replaces bytes by others of the same length.
fn replaced(bytes: &[u8], from: &[u8], to: &[u8]) -> Vec<u8> {
    let at = bytes.windows(from.len()).position(|part| part == from).unwrap();
    [&bytes[..at], to, &bytes[at + from.len()..]].concat()
}

#[test]
fn classifier_is_reinitialised_for_other_class_names() {
    let dir = trained(&[]);
    let tune = |out: &str, data: &str| {
        let command = ["train", "digits", "--weights", "net.safetensors", "--out", out, "--data", data];
        let settings = ["data.split_seed=0", "train.batch_size=3", "train.epochs=1"];
        let all = with(&command, &settings);
        run_with_columns(&dir, &all.iter().map(String::as_str).collect::<Vec<_>>(), None).expect(0).err
    };
    copy_classes(&dir, "same", &[("column", "column"), ("frame", "frame"), ("row", "row")]);
    copy_classes(&dir, "zebra", &[("column", "zebra"), ("frame", "frame"), ("row", "row")]);
    copy_classes(&dir, "order", &[("column", "z"), ("frame", "column"), ("row", "frame")]);
    assert!(!tune("1", "same").contains("reinitialised"));
    let message = tune("2", "zebra");
    assert!(
        message
            .contains("reinitialised: class 0 is `column` in net.safetensors, but `frame` in the data set"),
        "{message}"
    );
    let log = fs::read_to_string(dir.path("2/log.txt")).unwrap();
    assert!(log.contains("reinitialised: class 0 is `column`"), "{log}");
    let message = tune("3", "order");
    assert!(
        message.contains("reinitialised: class 2 is `row` in net.safetensors, but `z` in the data set"),
        "{message}"
    );
}

#[test]
fn eval_rejects_masks_of_other_classes() {
    let dir = TestDir::without_kernel_cache();
    write_streets(&dir);
    streets::train(&dir, "run", "fcn_resnet18", &["train.epochs=1", "train.device=reference"]).expect(0);
    dir.run(&["model", "export", "run", "--safetensors", "net.safetensors"]).expect(0);
    let settings = streets::arguments("unused", "fcn_resnet18", &["train.device=reference"])[4..].to_vec();
    let eval = |weights: &str, more: &[&str]| {
        let begin = [&["eval", "fcn_resnet18", "--weights", weights, "--json"], more].concat();
        let all: Vec<&str> = begin.into_iter().chain(settings.iter().map(String::as_str)).collect();
        dir.run(&all)
    };
    let loss =
        |ran: &CommandOutput| serde_json::from_str::<Value>(&ran.out).unwrap()["loss"].as_f64().unwrap();
    let of_run = dir.run(&["eval", "run", "--json"]).expect(0);
    assert_eq!(loss(&eval("net.safetensors", &[]).expect(0)), loss(&of_run));
    // Renames the first class.
    let file = fs::read(dir.path("net.safetensors")).unwrap();
    let metadata: Value = {
        let length = u64::from_le_bytes(*file.first_chunk().unwrap()) as usize;
        serde_json::from_slice::<Value>(&file[8..8 + length]).unwrap()["__metadata__"].clone()
    };
    let names: Vec<String> = serde_json::from_str(metadata["class_names"].as_str().unwrap()).unwrap();
    let other = "x".repeat(names[0].len());
    let renamed = replaced(&file, names[0].as_bytes(), other.as_bytes());
    fs::write(dir.path("other.safetensors"), renamed).unwrap();
    for more in [&[][..], &["--window", "24x32"]] {
        let ran = eval("other.safetensors", more).expect(2);
        let message = format!(
            "its masks have different classes than the network: classes: 11 → 11; the first \
                            difference is class 0: {other} → {}",
            names[0]
        );
        assert!(ran.err.contains(&message), "{}", ran.err);
    }
}
