//! The record of images and classes that travels with weights: measured by, shown by, trained from.

use crate::common::photographs::{place, shown, train};
use crate::common::streets::{self, streets};
use crate::common::{Place, Ran};
use serde_json::Value;
use std::fs;

/// The network of [`trained`] without a run.
const NETWORK: &[&str] =
    &["data.name=folder", "data.shape=[1, 12, 12]", "model.width=4", "train.device=reference"];

/// A place with photographs, a run that knows them, and its weights.
fn trained(settings: &[&str]) -> Place {
    let place = place();
    let settings = [&["train.epochs=20", "optimiser.learning_rate=0.1"], settings].concat();
    train(&place, "run", &settings, None).expect(0);
    place.run(&["model", "export", "run", "--safetensors", "net.safetensors"]).expect(0);
    place
}

fn with(command: &[&str], more: &[&str]) -> Vec<String> {
    let settings = NETWORK.iter().chain(more).flat_map(|setting| ["--set", setting]);
    command.iter().copied().chain(settings).map(str::to_owned).collect()
}

fn run(place: &Place, command: &[&str], more: &[&str]) -> Ran {
    let all = with(command, more);
    place.run(&all.iter().map(String::as_str).collect::<Vec<_>>())
}

fn scores(ran: &Ran) -> (f64, f64, u64) {
    let report: Value = serde_json::from_str(&ran.out).unwrap();
    let number = |key: &str| report[key].as_f64().unwrap();
    (number("top1"), number("loss"), report["samples"].as_u64().unwrap())
}

/// Copies classes of the photographs to another folder, under these names.
fn copy_classes(place: &Place, to: &str, classes: &[(&str, &str)]) {
    for (from, name) in classes {
        let folder = place.path(to).join(name);
        fs::create_dir_all(&folder).unwrap();
        for image in 0..4 {
            let file = format!("{image}.png");
            fs::copy(place.path(&format!("photographs/{from}/{file}")), folder.join(&file)).unwrap();
        }
    }
}

#[test]
fn eval_takes_normalisation_resize_and_classes_from_weights() {
    let place = trained(&["data.mean=[0.2]", "data.std=[0.05]", "data.resize=14"]);
    copy_classes(&place, "two", &[("frame", "frame"), ("row", "row")]);
    let of_run = |data: &str| scores(&place.run(&["eval", "run", "--json", "--data", data]).expect(0));
    for weights in ["net.safetensors", "run"] {
        for data in ["photographs", "two"] {
            let ran = run(&place, &["eval", "digits", "--weights", weights, "--json", "--data", data], &[]);
            let ran = ran.expect(0);
            assert_eq!(ran.err, "", "{weights} {data}");
            assert_eq!(scores(&ran), of_run(data), "{weights} {data}");
        }
    }
    let (top1, _, samples) = of_run("two");
    assert_eq!((top1, samples), (1.0, 8));
    // `infer` sees the same images.
    let ran = run(&place, &["infer", "digits", "two/row", "--weights", "net.safetensors", "--top", "1"], &[]);
    assert!(ran.expect(0).out.lines().take(4).all(|line| line.contains("  row ")));
}

#[test]
fn keys_that_are_set_go_before_what_weights_record_and_that_is_said() {
    let place = trained(&["data.mean=[0.2]", "data.std=[0.05]"]);
    let eval = ["eval", "digits", "--weights", "net.safetensors", "--data", "photographs", "--json"];
    let infer = ["infer", "digits", "photographs/row", "--weights", "net.safetensors", "--json"];
    let recorded = scores(&run(&place, &eval, &[]).expect(0));
    for command in [&eval[..], &infer] {
        let ran = run(&place, command, &["data.mean=[0.9]"]).expect(0);
        let said = "warning: data.mean is [0.9]; net.safetensors records [0.2]\n";
        assert_eq!(ran.err, said);
    }
    assert_ne!(scores(&run(&place, &eval, &["data.mean=[0.9]"]).expect(0)), recorded);
    // As it is recorded, nothing is to be said.
    let same = run(&place, &eval, &["data.mean=[0.2]", "data.std=[0.05]"]).expect(0);
    assert_eq!((scores(&same), same.err.as_str()), (recorded, ""));
    // A run whose network other weights are measured with has keys that nobody set.
    train(&place, "other", &["data.mean=[0.7]", "data.std=[0.3]"], None).expect(0);
    let with_run = ["eval", "other", "--weights", "net.safetensors", "--data", "photographs", "--json"];
    let ran = place.run(&with_run).expect(0);
    assert_eq!((scores(&ran), ran.err.as_str()), (recorded, ""));
}

#[test]
fn eval_refuses_classes_that_weights_do_not_know() {
    let place = trained(&[]);
    copy_classes(&place, "zebra", &[("column", "column"), ("frame", "frame"), ("row", "zebra")]);
    let eval = |weights: &str, data: &str, more: &[&str]| {
        run(&place, &["eval", "digits", "--weights", weights, "--data", data], more)
    };
    let ran = eval("net.safetensors", "zebra", &[]).expect(2);
    assert!(
        ran.err.contains("class `zebra` is none that the network knows: column, frame, row"),
        "{}",
        ran.err
    );
    // Without names, fewer classes could be any.
    copy_classes(&place, "two", &[("frame", "frame"), ("row", "row")]);
    let file = fs::read(place.path("net.safetensors")).unwrap();
    let unnamed = String::from_utf8_lossy(&file).contains("class_names");
    assert!(unnamed);
    let renamed: Vec<u8> = replaced(&file, b"class_names", b"class_other");
    fs::write(place.path("unnamed.safetensors"), renamed).unwrap();
    let ran = eval("unnamed.safetensors", "two", &["model.classes=3"]).expect(2);
    assert!(ran.err.contains("two has 2 classes, the network 3"), "{}", ran.err);
    assert!(ran.err.contains("record no names of classes"), "{}", ran.err);
    eval("unnamed.safetensors", "photographs", &[]).expect(0);
}

/// Bytes with others of the same length in the place of some.
fn replaced(bytes: &[u8], from: &[u8], to: &[u8]) -> Vec<u8> {
    let at = bytes.windows(from.len()).position(|part| part == from).unwrap();
    [&bytes[..at], to, &bytes[at + from.len()..]].concat()
}

#[test]
fn a_classifier_begins_anew_where_classes_have_other_names() {
    let place = trained(&[]);
    let tune = |out: &str, data: &str| {
        let command = ["train", "digits", "--weights", "net.safetensors", "--out", out, "--data", data];
        let settings = ["data.split_seed=0", "train.batch_size=3", "train.epochs=1"];
        let all = with(&command, &settings);
        shown(&place, &all.iter().map(String::as_str).collect::<Vec<_>>(), None).expect(0).err
    };
    copy_classes(&place, "same", &[("column", "column"), ("frame", "frame"), ("row", "row")]);
    copy_classes(&place, "zebra", &[("column", "zebra"), ("frame", "frame"), ("row", "row")]);
    copy_classes(&place, "order", &[("column", "z"), ("frame", "column"), ("row", "frame")]);
    assert!(!tune("1", "same").contains("anew"));
    let said = tune("2", "zebra");
    assert!(
        said.contains("anew: class 0 is `column` in net.safetensors, and `frame` in the data set"),
        "{said}"
    );
    let log = fs::read_to_string(place.path("2/log.txt")).unwrap();
    assert!(log.contains("anew: class 0 is `column`"), "{log}");
    let said = tune("3", "order");
    assert!(said.contains("anew: class 2 is `row` in net.safetensors, and `z` in the data set"), "{said}");
}

#[test]
fn masks_of_other_classes_are_not_measured() {
    let place = Place::bare();
    streets(&place);
    streets::train(&place, "run", "fcn_resnet18", &["train.epochs=1", "train.device=reference"]).expect(0);
    place.run(&["model", "export", "run", "--safetensors", "net.safetensors"]).expect(0);
    let settings = streets::arguments("unused", "fcn_resnet18", &["train.device=reference"])[4..].to_vec();
    let eval = |weights: &str, more: &[&str]| {
        let begin = [&["eval", "fcn_resnet18", "--weights", weights, "--json"], more].concat();
        let all: Vec<&str> = begin.into_iter().chain(settings.iter().map(String::as_str)).collect();
        place.run(&all)
    };
    let loss = |ran: &Ran| serde_json::from_str::<Value>(&ran.out).unwrap()["loss"].as_f64().unwrap();
    let of_run = place.run(&["eval", "run", "--json"]).expect(0);
    assert_eq!(loss(&eval("net.safetensors", &[]).expect(0)), loss(&of_run));
    // The first class is called otherwise.
    let file = fs::read(place.path("net.safetensors")).unwrap();
    let metadata: Value = {
        let length = u64::from_le_bytes(*file.first_chunk().unwrap()) as usize;
        serde_json::from_slice::<Value>(&file[8..8 + length]).unwrap()["__metadata__"].clone()
    };
    let names: Vec<String> = serde_json::from_str(metadata["class_names"].as_str().unwrap()).unwrap();
    let other = "x".repeat(names[0].len());
    let renamed = replaced(&file, names[0].as_bytes(), other.as_bytes());
    fs::write(place.path("other.safetensors"), renamed).unwrap();
    for more in [&[][..], &["--window", "24x32"]] {
        let ran = eval("other.safetensors", more).expect(2);
        let said = format!(
            "its masks have other classes than the network: classes: 11 → 11; the first that \
                            differs is number 0: {other} → {}",
            names[0]
        );
        assert!(ran.err.contains(&said), "{}", ran.err);
    }
}
