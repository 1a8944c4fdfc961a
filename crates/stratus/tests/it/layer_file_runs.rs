//! The life of a run of a segmentation network from a layer file: it is continued, moved, measured, shown
//! images and exported as a run of a built-in network is.

#![cfg(unix)]

use crate::common::{Place, Ran, last_epoch, streets, summary};
use std::fs;

/// A network that gives one of CamVid's classes for every pixel.
fn write_network(place: &Place, name: &str, classes: usize) {
    let text = format!(
        "name = \"net\"\ninput = [3, 24, 32]\n[[layer]]\nname = \"stem\"\nop = \"conv2d\"\nout_channels = \
         4\nkernel = 3\npadding = 1\n[[layer]]\nname = \"relu\"\nop = \"relu\"\n[[layer]]\nname = \
         \"head\"\nop = \"conv2d\"\nout_channels = {classes}\nkernel = 1\n"
    );
    fs::write(place.path(name), text).unwrap();
}

const CAMVID: [&str; 8] =
    ["--data", "set", "--set", "data.name=camvid", "--batch", "2", "--set", "train.threads=1"];

fn train(place: &Place, network: &str, out: &str, more: &[&str]) -> Ran {
    place.run(&[&["train", network, "--out", out, "--epochs", "2"], &CAMVID[..], more].concat())
}

fn weights(place: &Place, run: &str) -> String {
    let summary = summary(&place.path(run));
    assert_eq!(summary["status"], "completed", "{summary}");
    summary["weights_sha256"].as_str().unwrap().to_owned()
}

/// Takes a run of `network` through its life, under the names that begin with `prefix`.
fn live(place: &Place, network: &str, prefix: &str) {
    let [whole, cut, moved] = ["whole", "cut", "moved"].map(|name| format!("{prefix}-{name}"));
    train(place, network, &whole, &[]).expect(0);
    train(place, network, &cut, &["--until-epoch", "1"]).expect(0);
    // The copy of the layer file is in the run.
    fs::rename(place.path(&cut), place.path(&moved)).unwrap();
    place.run(&["train", &moved]).expect(0);
    assert_eq!(weights(place, &moved), weights(place, &whole));

    let measured = place.run(&["eval", &moved, "--json"]).expect(0).out;
    let measured: serde_json::Value = serde_json::from_str(&measured).unwrap();
    let trained = last_epoch(&place.path(&whole), "val_miou");
    let miou = measured["miou"].as_f64().unwrap();
    assert!((miou - trained).abs() <= 1e-5 * trained, "{miou} and {trained}");
    let masks = format!("{prefix}-masks");
    place.run(&["infer", &moved, "set/val/8.png", "--raw", "--out", &masks]).expect(0);
    let mask = streets::grey(&place.path(&masks).join("8.png"));
    assert!(mask.iter().all(|&class| usize::from(class) < streets::CLASSES));

    for command in [
        &["plan", moved.as_str()][..],
        &["forecast", &moved, "--on", "h100-80gb-sxm", "--json"],
        &["bench", "kernels", &moved],
        &["report", &moved, "--out", "page.html"],
        &["collect", &moved],
        &["model", "export", &moved, "--onnx", &format!("{prefix}.onnx")],
    ] {
        place.run(command).expect(0);
    }
}

#[test]
fn a_segmentation_run_of_a_layer_file_lives_like_one_of_a_built_in_network() {
    let place = Place::bare();
    streets::streets(&place);
    write_network(&place, "net.toml", streets::CLASSES);
    live(&place, "net.toml", "own");
    // The same of what an ONNX model was imported as.
    place.run(&["model", "import", "own.onnx", "--out", "imported"]).expect(0);
    live(&place, "imported/own.toml", "imported");
}

#[test]
fn refuses_classes_that_a_layer_file_does_not_have() {
    let place = Place::bare();
    streets::streets(&place);
    write_network(&place, "net.toml", streets::CLASSES);
    let said = train(&place, "net.toml", "run", &["--set", "model.classes=12"]).expect(2).err;
    let expected = "error: model.classes is 12, and the network of net.toml has 11 classes\nhint: leave \
                    model.classes unset, or give layer `head` in net.toml 12 outputs\n";
    assert!(said.ends_with(expected), "{said}");
    // As many as it has change nothing.
    train(&place, "net.toml", "run", &["--set", "model.classes=11", "--until-epoch", "1"]).expect(0);
    // Of all elements of the output there are enough, of classes there are not.
    write_network(&place, "few.toml", 5);
    let said = train(&place, "few.toml", "few", &[]).expect(2).err;
    let expected = "error: the network of few.toml has 5 classes, data set `camvid` has 11 classes\n";
    assert!(said.contains(expected), "{said}");
}
