//! ONNX export and import on the command line. `scripts/check-onnx.sh` runs the files in onnxruntime.

use crate::common::{PER_EPOCH, SETTINGS, TestDir, digits, json, root};
use serde_json::Value;
use std::fs;
use std::path::Path;
use stratus_weights::WeightsFile;

fn fixture(name: &str) -> String {
    root().join("crates/stratus-onnx/tests/fixtures").join(name).display().to_string()
}

/// The tensors of a file by name, without counters.
fn tensors(path: &Path) -> Vec<(String, Vec<f32>)> {
    let file = WeightsFile::open(path).unwrap();
    let mut found: Vec<_> =
        file.float_tensors().map(|tensor| (tensor.name.clone(), file.read(tensor).unwrap())).collect();
    found.sort_by(|a, b| a.0.cmp(&b.0));
    found
}

#[test]
fn onnx_round_trip_keeps_the_weights() {
    let dir = TestDir::new();
    dir.train("run", 1, &[]).expect(0);
    let ran = dir.run(&["model", "export", "run", "--onnx", "digits.onnx"]).expect(0);
    assert_eq!(ran.err, "");
    assert!(ran.out.contains(&format!("run after {PER_EPOCH} iterations")), "{}", ran.out);
    assert!(ran.out.contains("\ninput         batch x 1x28x28\noutput        batch x 10\n"), "{}", ran.out);

    let ran = dir.run(&["model", "import", "digits.onnx", "-o", "net"]).expect(0);
    assert_eq!(ran.err, "");
    assert!(
        ran.out.ends_with(
            "`stratus train net/digits.toml --weights net/digits.safetensors --set data.name=NAME`\n"
        ),
        "{}",
        ran.out
    );
    let checkpoint = dir.path(&format!("run/checkpoints/{PER_EPOCH:010}/weights.safetensors"));
    let trained_tensors = tensors(&checkpoint);
    assert_eq!(tensors(&dir.path("net/digits.safetensors")), trained_tensors);
    // The same layers, except for initial values, which a model does not contain.
    let shown = |name: &str| dir.run(&["model", "show", name]).expect(0).out;
    assert_eq!(shown("net/digits.toml"), shown("digits"));

    // The layer file with its weights is the same network: its export has the same bytes.
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
    let report = json(&dir.run(&again).expect(0).out);
    assert_eq!((&report["network"], &report["operator_set"]), (&Value::from("digits"), &Value::from(17)));
    assert_eq!(fs::read(dir.path("2.onnx")).unwrap(), fs::read(dir.path("digits.onnx")).unwrap());

    let error_of = |arguments: &[&str]| {
        let all = [&["model", "export", "run", "--onnx", "3.onnx"], arguments].concat();
        let ran = dir.run(&all);
        assert!(!dir.path("3.onnx").exists());
        (ran.code, ran.err)
    };
    let (code, message) = error_of(&["--set", "model.width=4"]);
    assert_eq!(code, Some(2));
    assert!(message.starts_with("error: --set cannot be used with a run directory"), "{message}");
    let (code, message) = error_of(&["--checkpoint", "3"]);
    assert_eq!(code, Some(1));
    assert!(message.contains("checkpoint 3: not in run, which has checkpoints "), "{message}");
}

#[test]
fn export_without_weights_warns_of_initial_values() {
    let dir = TestDir::without_kernel_cache();
    let export = |more: &[&str]| {
        let all = [&["model", "export", "resnet18_cifar", "--set", "model.width=4"], more].concat();
        dir.run(&all).expect(0)
    };
    let ran = export(&["--onnx", "a.onnx"]);
    assert!(
        ran.err.starts_with("warning: exporting resnet18_cifar untrained (initial weights, seed "),
        "{}",
        ran.err
    );
    export(&["--onnx", "b.onnx"]);
    export(&["--onnx", "c.onnx", "--set", "train.seed=7"]);
    let bytes = |name: &str| fs::read(dir.path(name)).unwrap();
    assert!(bytes("a.onnx") == bytes("b.onnx") && bytes("a.onnx") != bytes("c.onnx"));

    // Weights of another width do not fit, and the existing file is kept.
    dir.run(&["model", "import", "a.onnx", "-o", "narrow.toml"]).expect(0);
    let weights = ["--weights", "narrow.safetensors", "--onnx", "a.onnx"];
    let ran = dir.run(&[&["model", "export", "resnet18_cifar"], weights.as_slice()].concat()).expect(1);
    assert!(ran.err.starts_with("error: narrow.safetensors does not fit resnet18_cifar: "), "{}", ran.err);
    assert_eq!(bytes("a.onnx"), bytes("b.onnx"));
    assert_eq!(fs::read_dir(dir.folder.path()).unwrap().count(), 5);
}

#[test]
fn imports_models_of_other_exporters() {
    let dir = TestDir::without_kernel_cache();
    let ran = dir.run(&["model", "import", &fixture("tensorflow.onnx"), "-o", "net"]).expect(0);
    assert_eq!(ran.err, "note: dropped the last node, Softmax `softmax`: the loss includes the softmax\n");
    assert!(ran.out.contains("7 layers from 2x11x11 to 5, "), "{}", ran.out);
    // The weights of this model are in a separate file.
    let report = json(
        &dir.run(&["model", "import", &fixture("dynamo.onnx"), "-o", "net/d.toml", "--json"]).expect(0).out,
    );
    assert_eq!(report["layer_file"], "net/d.toml");
    assert_eq!(report["input"], serde_json::json!([2, 14, 14]));
    let mut names: Vec<String> = fs::read_dir(dir.path("net"))
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    assert_eq!(names, ["d.safetensors", "d.toml", "tensorflow.safetensors", "tensorflow.toml"]);
}

/// A backbone of another program gets a head of this program's, and is trained with its own weights.
#[test]
fn backbone_is_fine_tuned_with_a_new_head() {
    let dir = TestDir::new();
    dir.train("run", 1, &[]).expect(0);
    dir.run(&["model", "export", "run", "--onnx", "digits.onnx"]).expect(0);
    let import = ["model", "import", "digits.onnx", "-o", "net"];
    let ran = dir.run(&[&import[..], &["--until", "no_layer"]].concat()).expect(1);
    assert!(ran.err.contains("no node is named `no_layer`; name a node or its output"), "{}", ran.err);
    let ran = dir.run(&[&import[..], &["--until", "layer3.2"]].concat()).expect(0);
    assert!(ran.err.starts_with("note: imported up to Relu `layer3.2`, dropped "), "{}", ran.err);
    let (_, head) = ran.out.split_once("begin with random values:\n\n").unwrap();
    let (head, next) = head.split_once("\nnext: ").unwrap();
    let layers = dir.path("net/digits.toml");
    let text = format!("{}\n{head}", fs::read_to_string(&layers).unwrap());
    fs::write(&layers, text).unwrap();
    // The command that is printed works, with the name of a data set.
    let command = next.split('`').find_map(|command| command.strip_prefix("stratus train ")).unwrap();
    let command = command.replace("NAME", "mnist");
    let data = format!("data.path={}", digits().display());
    let settings = [SETTINGS, &["train.epochs=1", &data]].concat();
    let settings = settings.into_iter().flat_map(|setting| ["--set", setting]);
    let arguments = ["train"].into_iter().chain(command.split(' ')).chain(["--out", "tuned"]);
    let ran = dir.run(&arguments.chain(settings).collect::<Vec<_>>()).expect(0);
    let message = "fc is initialised: net/digits.safetensors has only the other layers";
    assert!(ran.err.contains(message), "{}", ran.err);
    // Behind the network's own classifier, the new layer has another name.
    let until = [&["model", "import", "digits.onnx", "-o", "whole"][..], &["--until", "fc"]].concat();
    let ran = dir.run(&until).expect(0);
    assert!(ran.out.contains("\n\n[[layer]]\nname = \"fc_2\"\nop = \"linear\"\n"), "{}", ran.out);
}

#[test]
fn failed_import_leaves_no_files() {
    let dir = TestDir::without_kernel_cache();
    fs::write(dir.path("page.onnx"), "<html>not found</html>").unwrap();
    let error_of = |code: i32, arguments: &[&str]| {
        let ran = dir.run(&[&["model"], arguments].concat()).expect(code);
        assert_eq!(ran.out, "");
        assert_eq!(fs::read_dir(dir.folder.path()).unwrap().count(), 1, "{arguments:?}");
        ran.err
    };
    let import = |file: &str| error_of(1, &["import", file, "-o", "net"]);
    assert!(import("page.onnx").starts_with("error: page.onnx: not an ONNX model, or damaged: "));
    assert!(import("absent.onnx").starts_with("error: absent.onnx: cannot open: "));
    let message = import(&fixture("refused.onnx"));
    assert!(message.contains("refused.onnx: 4 nodes cannot be imported:\n  Softsign `act`: "), "{message}");
    let message = error_of(1, &["import", &fixture("parts.onnx"), "-o", "net", "--input", "2,1,1"]);
    assert!(message.contains("a node cannot be imported:"), "{message}");
    let message = error_of(1, &["import", &fixture("parts.onnx"), "-o", "net", "--input", "3,8,8"]);
    assert!(message.contains("has channels 2, not 3; pass the --input of the model"), "{message}");
    let message = error_of(2, &["import", &fixture("parts.onnx"), "-o", "net", "--input", "2,9"]);
    assert!(message.contains("expected three integers, like 3,224,224"), "{message}");
    let message = error_of(2, &["export", "digts", "--onnx", "a.onnx"]);
    assert!(message.contains("did you mean `digits`?"), "{message}");
    let message = error_of(2, &["export", "digits", "--onnx", "a.onnx", "--checkpoint", "3"]);
    assert!(
        message.starts_with("error: --checkpoint needs a run directory, and digits is not one"),
        "{message}"
    );
    let message = error_of(1, &["export", "digits", "--onnx", "none/a.onnx"]);
    assert!(message.contains("error: cannot create none/a.onnx: "), "{message}");
    let message = error_of(1, &["export", "digits", "--onnx", "a.onnx", "--weights", "page.onnx"]);
    assert!(message.contains("error: page.onnx: this is an HTML page instead of weights"), "{message}");
}
