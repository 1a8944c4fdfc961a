//! Runs of a segmentation network from a layer file are resumed, moved, evaluated, used for inference and
//! exported like runs of a built-in network.

#![cfg(unix)]

use crate::common::{CommandOutput, TestDir, last_epoch, streets, summary, tiny};
use std::fs;

/// Writes a network that predicts a class for every pixel.
fn write_network(dir: &TestDir, name: &str, classes: usize) {
    let text = format!(
        "name = \"net\"\ninput = [3, 24, 32]\n[[layer]]\nname = \"stem\"\nop = \"conv2d\"\nout_channels = \
         4\nkernel = 3\npadding = 1\n[[layer]]\nname = \"relu\"\nop = \"relu\"\n[[layer]]\nname = \
         \"head\"\nop = \"conv2d\"\nout_channels = {classes}\nkernel = 1\n"
    );
    fs::write(dir.path(name), text).unwrap();
}

const CAMVID: [&str; 8] =
    ["--data", "set", "--set", "data.name=camvid", "--batch", "2", "--set", "train.threads=1"];

fn train(dir: &TestDir, network: &str, out: &str, more: &[&str]) -> CommandOutput {
    dir.run(&[&["train", network, "--out", out, "--epochs", "2"], &CAMVID[..], more].concat())
}

fn weights(dir: &TestDir, run: &str) -> String {
    let summary = summary(&dir.path(run));
    assert_eq!(summary["status"], "completed", "{summary}");
    summary["weights_sha256"].as_str().unwrap().to_owned()
}

/// Runs every command on a run of `network`; names of files start with `prefix`.
fn test_every_command(dir: &TestDir, network: &str, prefix: &str) {
    let [whole, cut, moved] = ["whole", "cut", "moved"].map(|name| format!("{prefix}-{name}"));
    train(dir, network, &whole, &[]).expect(0);
    train(dir, network, &cut, &["--until-epoch", "1"]).expect(0);
    // The run contains a copy of the layer file.
    fs::rename(dir.path(&cut), dir.path(&moved)).unwrap();
    dir.run(&["train", &moved]).expect(0);
    assert_eq!(weights(dir, &moved), weights(dir, &whole));

    let measured = dir.run(&["eval", &moved, "--json"]).expect(0).out;
    let measured: serde_json::Value = serde_json::from_str(&measured).unwrap();
    let trained = last_epoch(&dir.path(&whole), "val_miou");
    let miou = measured["miou"].as_f64().unwrap();
    assert!((miou - trained).abs() <= 1e-5 * trained, "{miou} and {trained}");
    let masks = format!("{prefix}-masks");
    dir.run(&["infer", &moved, "set/val/8.png", "--raw", "--out", &masks]).expect(0);
    let mask = streets::grey(&dir.path(&masks).join("8.png"));
    assert!(mask.iter().all(|&class| usize::from(class) < streets::CLASSES));

    for command in [
        &["plan", moved.as_str()][..],
        &["forecast", &moved, "--on", "h100-80gb-sxm", "--json"],
        &["bench", "kernels", &moved],
        &["report", &moved, "--out", "page.html"],
        &["collect", &moved],
        &["model", "export", &moved, "--onnx", &format!("{prefix}.onnx")],
    ] {
        dir.run(command).expect(0);
    }
}

#[test]
fn segmentation_layer_file_works_with_every_command() {
    let dir = TestDir::without_kernel_cache();
    streets::write_streets(&dir);
    write_network(&dir, "net.toml", streets::CLASSES);
    test_every_command(&dir, "net.toml", "own");
    // The same with the layer file of an imported ONNX model.
    dir.run(&["model", "import", "own.onnx", "--out", "imported"]).expect(0);
    test_every_command(&dir, "imported/own.toml", "imported");
}

#[test]
fn layer_file_without_a_data_set_is_an_error_that_names_the_keys() {
    let dir = TestDir::without_kernel_cache();
    streets::write_streets(&dir);
    write_network(&dir, "net.toml", streets::CLASSES);
    // A classifier that would accept the images of MNIST, the default of other networks.
    let digits = "name = \"d\"\ninput = [1, 28, 28]\n[[layer]]\nname = \"f\"\nop = \"flatten\"\n\
                  [[layer]]\nname = \"fc\"\nop = \"linear\"\nout_features = 5\n";
    fs::write(dir.path("d.toml"), digits).unwrap();
    let experiment = "[model]\nname = \"net.toml\"\n[train]\nepochs = 1\n";
    fs::write(dir.path("experiment.toml"), experiment).unwrap();
    let net = "error: no data set is set: net.toml takes images of 3x24x32 and predicts one of 11 classes \
               for each pixel\nhint: images with masks: --set data.name=camvid --data FOLDER, or cityscapes \
               or coco\n";
    let net_in_set = net.replace("FOLDER", "set");
    let d = "error: no data set is set: d.toml takes images of 1x28x28 and predicts one of 5 classes\nhint: \
             photographs in class folders: --set data.name=folder --data FOLDER\n    generated images: --set \
             data.name=synthetic --set data.synthetic.classes=5\n";
    for (arguments, expected) in [
        (&["train", "net.toml"][..], net),
        (&["train", "d.toml"], d),
        (&["train", "experiment.toml"], net),
        (&["train", "net.toml", "--data", "set"], &net_in_set),
        (&["plan", "net.toml"], net),
        (&["plan", "d.toml", "--batch", "8"], d),
        (&["bench", "kernels", "d.toml"], d),
        (&["bench", "data", "d.toml"], d),
        (&["launch", "local", "net.toml"], net),
    ] {
        let ran = dir.run(arguments).expect(2);
        assert!(ran.err.contains(expected), "{arguments:?}: {}\n{expected}", ran.err);
        assert!(!dir.path("runs").exists(), "{arguments:?}");
    }
    let ran = dir.run(&["forecast", "net.toml", "--on", "h100-80gb-sxm"]).expect(0);
    let note = "no data set is set: assuming images of the layer file's shape; set the number of images with";
    assert!((ran.out + &ran.err).contains(note));
    let ran = dir.run(&["plan", "net.toml", "--largest-batch", "--memory-limit", "64MiB"]).expect(0);
    assert!(ran.err.contains("no data set is set: assuming images of 3×24×32 and 11 classes"), "{}", ran.err);
    // The hint works, and a built-in experiment brings its data set.
    let synthetic = ["--set", "data.name=synthetic", "--set", "data.synthetic.classes=5"];
    dir.run(&[&["plan", "d.toml", "--batch", "8"][..], &synthetic].concat()).expect(0);
    tiny::write_data(&dir.path("data"));
    let digits = ["train", "digits", "--data", "data", "--batch", "32", "--set", "data.verify=false"];
    let network = ["--set", "model.name=net.toml"];
    // The width of the built-in experiment is that of its own network; only one that is given is an error.
    let ran = dir.run(&[&digits[..], &network, &["--set", "model.width=8"]].concat()).expect(2);
    assert!(
        ran.err.contains("model.width is 8, but net.toml sets the sizes of its layers itself"),
        "{}",
        ran.err
    );
    let ran = dir.run(&[&digits[..], &network].concat()).expect(2);
    let expected = "net.toml takes images of 3x24x32, but data set `mnist` has 1x12x12";
    assert!(ran.err.contains(expected), "{}", ran.err);
}

#[test]
fn rejects_class_counts_that_differ_from_the_layer_file() {
    let dir = TestDir::without_kernel_cache();
    streets::write_streets(&dir);
    write_network(&dir, "net.toml", streets::CLASSES);
    let message = train(&dir, "net.toml", "run", &["--set", "model.classes=12"]).expect(2).err;
    let expected = "error: model.classes is 12, but the network of net.toml has 11 classes\nhint: leave \
                    model.classes unset, or give layer `head` in net.toml 12 outputs\n";
    assert!(message.ends_with(expected), "{message}");
    // The number of classes of the layer file is accepted.
    train(&dir, "net.toml", "run", &["--set", "model.classes=11", "--until-epoch", "1"]).expect(0);
    // The output has enough elements, but too few classes.
    write_network(&dir, "few.toml", 5);
    let message = train(&dir, "few.toml", "few", &[]).expect(2).err;
    let expected = "error: the network of few.toml has 5 outputs, but data set `camvid` has 11 classes and \
                    needs 11 outputs\n";
    assert!(message.contains(expected), "{message}");
}
