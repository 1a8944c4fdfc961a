//! Networks to ONNX and back on the command line. What onnxruntime makes of the files is
//! `scripts/check-onnx.sh`'s to say.

use crate::common::{PER_EPOCH, Place, root};
use serde_json::Value;
use std::fs;
use std::path::Path;
use stratus_weights::WeightsFile;

fn fixture(name: &str) -> String {
    root().join("crates/stratus-onnx/tests/fixtures").join(name).display().to_string()
}

fn json(text: &str) -> Value {
    serde_json::from_str(text).unwrap()
}

/// The tensors of a file, counters left out, by name.
fn tensors(path: &Path) -> Vec<(String, Vec<f32>)> {
    let file = WeightsFile::open(path).unwrap();
    let mut found: Vec<_> =
        file.floats().map(|tensor| (tensor.name.clone(), file.read(tensor).unwrap())).collect();
    found.sort_by(|a, b| a.0.cmp(&b.0));
    found
}

#[test]
fn a_run_goes_to_onnx_and_comes_back() {
    let place = Place::new();
    place.train("run", 1, &[]).expect(0);
    let ran = place.run(&["model", "export", "run", "--onnx", "digits.onnx"]).expect(0);
    assert_eq!(ran.err, "");
    assert!(ran.out.contains(&format!("run after {PER_EPOCH} iterations")), "{}", ran.out);
    assert!(ran.out.contains("\ninput         batch x 1x28x28\noutput        batch x 10\n"), "{}", ran.out);

    let ran = place.run(&["model", "import", "digits.onnx", "-o", "net"]).expect(0);
    assert_eq!(ran.err, "");
    assert!(
        ran.out.ends_with(
            "Train it:    stratus train EXPERIMENT.toml --set model.name=net/digits.toml \
             --weights net/digits.safetensors\n"
        ),
        "{}",
        ran.out
    );
    let checkpoint = place.path(&format!("run/checkpoints/{PER_EPOCH:010}/weights.safetensors"));
    let learnt = tensors(&checkpoint);
    assert_eq!(tensors(&place.path("net/digits.safetensors")), learnt);
    // The same layers, but for the first values, which a model does not say.
    let shown = |name: &str| place.run(&["model", "show", name]).expect(0).out;
    assert_eq!(shown("net/digits.toml"), shown("digits"));

    // The layer file with its weights is the same network: the same bytes but for none.
    let again = [
        "model",
        "export",
        "net/digits.toml",
        "--weights",
        "net/digits.safetensors",
        "--onnx",
        "2.onnx",
        "--json",
    ];
    let report = json(&place.run(&again).expect(0).out);
    assert_eq!((&report["network"], &report["operator_set"]), (&Value::from("digits"), &Value::from(17)));
    assert_eq!(fs::read(place.path("2.onnx")).unwrap(), fs::read(place.path("digits.onnx")).unwrap());

    let refused = |arguments: &[&str]| {
        let all = [&["model", "export", "run", "--onnx", "3.onnx"], arguments].concat();
        let ran = place.run(&all);
        assert!(!place.path("3.onnx").exists());
        (ran.code, ran.err)
    };
    let (code, said) = refused(&["--set", "model.width=4"]);
    assert_eq!(code, Some(2));
    assert!(said.starts_with("error: --set cannot be given to a run that is exported"), "{said}");
    let (code, said) = refused(&["--checkpoint", "3"]);
    assert_eq!(code, Some(1));
    assert!(said.contains("checkpoints/0000000003"), "{said}");
}

#[test]
fn a_network_without_weights_says_so() {
    let place = Place::bare();
    let export = |more: &[&str]| {
        let all = [&["model", "export", "resnet18_cifar", "--set", "model.width=4"], more].concat();
        place.run(&all).expect(0)
    };
    let ran = export(&["--onnx", "a.onnx"]);
    assert!(
        ran.err.starts_with("warning: resnet18_cifar is exported with the initial values of seed "),
        "{}",
        ran.err
    );
    export(&["--onnx", "b.onnx"]);
    export(&["--onnx", "c.onnx", "--set", "train.seed=7"]);
    let bytes = |name: &str| fs::read(place.path(name)).unwrap();
    assert!(bytes("a.onnx") == bytes("b.onnx") && bytes("a.onnx") != bytes("c.onnx"));

    // Weights of another width do not fit, and what stood there stays.
    place.run(&["model", "import", "a.onnx", "-o", "narrow.toml"]).expect(0);
    let weights = ["--weights", "narrow.safetensors", "--onnx", "a.onnx"];
    let ran = place.run(&[&["model", "export", "resnet18_cifar"], weights.as_slice()].concat()).expect(1);
    assert!(ran.err.starts_with("error: narrow.safetensors does not fit resnet18_cifar: "), "{}", ran.err);
    assert_eq!(bytes("a.onnx"), bytes("b.onnx"));
    assert_eq!(fs::read_dir(place.folder.path()).unwrap().count(), 5);
}

#[test]
fn models_of_others_are_taken() {
    let place = Place::bare();
    let ran = place.run(&["model", "import", &fixture("tensorflow.onnx"), "-o", "net"]).expect(0);
    assert_eq!(
        ran.err,
        "note: the last node, Softmax `softmax`, is left out: the loss has a softmax of its own\n"
    );
    assert!(ran.out.contains("7 layers from 2x11x11 to 5, "), "{}", ran.out);
    // Its weights lie in a file beside it.
    let report = json(
        &place.run(&["model", "import", &fixture("dynamo.onnx"), "-o", "net/d.toml", "--json"]).expect(0).out,
    );
    assert_eq!(report["layer_file"], "net/d.toml");
    assert_eq!(report["input"], serde_json::json!([2, 14, 14]));
    let mut names: Vec<String> = fs::read_dir(place.path("net"))
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    assert_eq!(names, ["d.safetensors", "d.toml", "tensorflow.safetensors", "tensorflow.toml"]);
}

#[test]
fn what_cannot_be_taken_leaves_nothing_behind() {
    let place = Place::bare();
    fs::write(place.path("page.onnx"), "<html>not found</html>").unwrap();
    let refused = |code: i32, arguments: &[&str]| {
        let ran = place.run(&[&["model"], arguments].concat()).expect(code);
        assert_eq!(ran.out, "");
        assert_eq!(fs::read_dir(place.folder.path()).unwrap().count(), 1, "{arguments:?}");
        ran.err
    };
    let import = |file: &str| refused(1, &["import", file, "-o", "net"]);
    assert!(import("page.onnx").starts_with("error: page.onnx: this is no ONNX model, or it is damaged: "));
    assert!(import("absent.onnx").starts_with("error: absent.onnx: cannot open: "));
    let said = import(&fixture("refused.onnx"));
    assert!(said.contains("refused.onnx: 6 nodes cannot be imported:\n  Sub `normalise`: "), "{said}");
    let said = refused(1, &["import", &fixture("parts.onnx"), "-o", "net", "--input", "2,9,9"]);
    assert!(said.contains("has the width 8, 9 was given; give --input as the model has it"), "{said}");
    let said = refused(2, &["import", &fixture("parts.onnx"), "-o", "net", "--input", "2,9"]);
    assert!(said.contains("expected three whole numbers, like 3,224,224"), "{said}");
    let said = refused(2, &["export", "digts", "--onnx", "a.onnx"]);
    assert!(said.contains("did you mean `digits`?"), "{said}");
    let said = refused(2, &["export", "digits", "--onnx", "a.onnx", "--checkpoint", "3"]);
    assert!(said.starts_with("error: --checkpoint is of runs, and digits is no run directory"), "{said}");
    let said = refused(1, &["export", "digits", "--onnx", "none/a.onnx"]);
    assert!(said.contains("error: cannot create none/a.onnx: "), "{said}");
    let said = refused(1, &["export", "digits", "--onnx", "a.onnx", "--weights", "page.onnx"]);
    assert!(said.contains("error: page.onnx: this is a web page"), "{said}");
}
