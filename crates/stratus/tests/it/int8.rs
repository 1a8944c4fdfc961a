//! `stratus optimise --int8` chooses layers that run in int8; `infer`, `eval` and `bench infer` use
//! them.

use crate::common::{RunResult, SplitMix64, TestDir, json, train_arguments};
use std::fs;
use std::process::Stdio;
use std::thread::sleep;
use std::time::Duration;

/// The layers do not depend on measured times.
const INT8: [&str; 7] = ["optimise", "run", "--int8=all", "--out", "bytes", "--calibration-images", "32"];

/// The kernels of the network, by `bench infer`.
fn kernels(dir: &TestDir, run: &str) -> Vec<String> {
    let arguments = ["bench", "infer", run, "--runs", "1", "--batch", "1", "--json"];
    let report = json(&dir.run(&arguments).expect(0).out);
    let steps = report["batches"][0]["steps"].as_array().unwrap();
    steps.iter().map(|step| step["kernel"].as_str().unwrap().to_owned()).collect()
}

#[test]
fn a_quantised_run_computes_with_bytes_wherever_it_is_used() {
    let dir = TestDir::trained();
    let report = json(&dir.run(&[&INT8[..], &["--json"]].concat()).expect(0).out);
    let quantisation = &report["quantisation"];
    let names = |list: &str, key: &str| -> Vec<String> {
        let list = quantisation[list].as_array().unwrap();
        list.iter().map(|layer| layer[key].as_str().unwrap().to_owned()).collect()
    };
    assert_eq!(names("layers", "layer"), ["layer2.0", "layer3.0"]);
    assert_eq!(names("kept", "layer"), ["layer1.0", "fc"]);
    assert_eq!(names("kept", "reason")[0], "it reads the images");
    assert!(report["pruning"].is_null());
    // The variant is measured as it is used: its accuracy is that of `eval`.
    let variants = report["variants"].as_array().unwrap();
    let variant = variants.last().unwrap();
    assert!(variant["variant"].as_str().unwrap().starts_with("int8 and "), "{variant}");
    let evaluated = json(&dir.run(&["eval", "bytes", "--json"]).expect(0).out);
    assert_eq!(evaluated["measures"]["top1"], variant["measure"]);
    let lost = variants[0]["measure"].as_f64().unwrap() - variant["measure"].as_f64().unwrap();
    assert!(lost < 0.005, "{lost}");
    assert!(variant["bytes"].as_u64() < variants[0]["bytes"].as_u64());
    assert_eq!(
        kernels(&dir, "bytes").iter().filter(|kernel| kernel.starts_with("quantised_conv2d")).count(),
        2
    );
    assert!(!kernels(&dir, "run").iter().any(|kernel| kernel.contains("quantise")));
    // The weights and the history are those of the run.
    assert_eq!(RunResult::read(&dir.path("bytes")), RunResult::read(&dir.path("run")));
    // The model has the bytes; it is made for other programs.
    let sizes = ["run.onnx", "bytes/network.onnx"].map(|model| {
        if model == "run.onnx" {
            dir.run(&["model", "export", "run", "--onnx", model]).expect(0);
        }
        fs::metadata(dir.path(model)).unwrap().len()
    });
    assert!(sizes[1] < sizes[0], "{sizes:?}");
    dir.run(&["report", "bytes"]).expect(0);
    // The same request again keeps the choice; another is refused.
    let chosen = fs::read(dir.path("bytes/optimise/quantisation.json")).unwrap();
    dir.run(&INT8).expect(0);
    assert_eq!(fs::read(dir.path("bytes/optimise/quantisation.json")).unwrap(), chosen);
    let error = dir.run(&[&INT8[..], &["--keep", "3"]].concat()).expect(2).err;
    assert!(error.contains("bytes was begun by another request: `int8`"), "{error}");
}

#[test]
fn a_pruned_network_is_quantised_too_and_kills_do_not_change_it() {
    let kills = std::env::var("STRATUS_KILLS").map_or(4, |kills| kills.parse::<u64>().unwrap().min(20));
    let dir = TestDir::trained();
    let prune = ["--prune", "0.4", "--granularity", "4", "--calibration-batches", "4"];
    let request = [&INT8[..], &prune].concat();
    dir.run(&request).expect(0);
    let read = |file: &str| fs::read(dir.path("bytes").join(file)).unwrap();
    let expected = (RunResult::read(&dir.path("bytes")), read("optimise/quantisation.json"));
    let names: Vec<String> = String::from_utf8(read("variants.csv"))
        .unwrap()
        .lines()
        .skip(1)
        .map(|line| line.split(' ').next().unwrap().to_owned())
        .collect();
    assert!(names.contains(&"original".to_owned()) && names.last().unwrap() == "pruned", "{names:?}");
    fs::rename(dir.path("bytes"), dir.path("uninterrupted")).unwrap();
    let mut random = SplitMix64(11);
    for _ in 0..kills {
        let mut command = dir.command(&request);
        let mut child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        sleep(Duration::from_millis(random.next_below(2000)));
        child.kill().unwrap();
        child.wait().unwrap();
    }
    dir.run(&request).expect(0);
    assert_eq!((RunResult::read(&dir.path("bytes")), read("optimise/quantisation.json")), expected);
}

/// A residual block with an activation that no int8 layer includes.
const RESIDUAL: &str = r#"
name = "residual"
input = [1, 28, 28]

[[layer]]
name = "stem"
op = "conv2d"
out_channels = 8
kernel = 3
stride = 2
padding = 1

[[layer]]
name = "stem_relu"
op = "relu"

[[layer]]
name = "a"
op = "conv2d"
out_channels = 8
kernel = 3
padding = 1

[[layer]]
name = "silu"
op = "silu"

[[layer]]
name = "b"
op = "conv2d"
out_channels = 8
kernel = 1

[[layer]]
name = "sum"
op = "add"
inputs = ["b", "stem_relu"]

[[layer]]
name = "sum_relu"
op = "relu"

[[layer]]
name = "mean"
op = "adaptive_avg_pool2d"
output = 1

[[layer]]
name = "flatten"
op = "flatten"

[[layer]]
name = "fc"
op = "linear"
out_features = 10
"#;

/// Without int8, inference fuses the convolutions with the sum and the activation; they are chosen all the
/// same.
#[test]
fn convolutions_before_sums_and_activations_are_quantised() {
    let dir = TestDir::new();
    fs::write(dir.path("residual.toml"), RESIDUAL).unwrap();
    let arguments = train_arguments("run", 1, &["--set", "data.name=mnist"]);
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let arguments: Vec<&str> =
        arguments.into_iter().map(|word| if word == "digits" { "residual.toml" } else { word }).collect();
    dir.run(&arguments).expect(0);
    assert!(kernels(&dir, "run").iter().any(|kernel| kernel == "conv2d_add_activation_inference"));
    let report = json(&dir.run(&[&INT8[..], &["--json"]].concat()).expect(0).out);
    let names = |list: &str| -> Vec<String> {
        let list = report["quantisation"][list].as_array().unwrap();
        list.iter().map(|layer| layer["layer"].as_str().unwrap().to_owned()).collect()
    };
    let mut found = [names("layers"), names("kept")].concat();
    found.sort();
    assert_eq!(found, ["a", "b", "fc", "stem"]);
    assert!(names("layers").contains(&"a".to_owned()), "{report}");
    assert!(kernels(&dir, "bytes").iter().any(|kernel| kernel.starts_with("quantised_conv2d")));
}

#[test]
fn impossible_quantisations_are_refused() {
    let dir = TestDir::trained();
    let refused = |arguments: &[&str], code: i32, message: &str| {
        let error = dir.run(arguments).expect(code).err;
        assert!(error.contains(message), "{arguments:?}: {error}");
    };
    refused(&["optimise", "run", "--int8=most"], 2, "most");
    refused(&["optimise", "run", "--prune", "0.3", "--keep", "1"], 2, "--int8");
    refused(&["optimise", "run", "--int8", "--keep=-1"], 2, "0 to 100");
    refused(&["optimise", "run", "--epochs", "3"], 2, "--prune");
    let moved = format!("data.path={}", dir.path("moved").display());
    let mut no_images = INT8.to_vec();
    no_images.extend(["--set", &moved]);
    refused(&no_images, 1, "moved");
    assert!(!dir.path("bytes").exists());
    // A damaged record is not ignored.
    dir.run(&INT8).expect(0);
    fs::write(dir.path("bytes/optimise/quantisation.json"), "{\"precision\": 3}").unwrap();
    for command in [&["eval", "bytes"][..], &["bench", "infer", "bytes"]] {
        refused(command, 1, "quantisation.json");
    }
    let unknown = r#"{"weights_sha256": "SHA", "precision": "f32", "kept": [], "ranges": {},
        "layers": [{"layer": "x", "divergence": 0, "ms": null}]}"#;
    fs::write(dir.path("bytes/optimise/quantisation.json"), unknown).unwrap();
    refused(&["eval", "bytes"], 2, "other weights");
    let weights = RunResult::read(&dir.path("bytes")).weights;
    let record = unknown.replace("SHA", &weights);
    fs::write(dir.path("bytes/optimise/quantisation.json"), record).unwrap();
    refused(&["eval", "bytes"], 1, "`x`");
}

#[test]
fn the_choice_holds_for_the_weights_that_it_was_made_for() {
    let dir = TestDir::new();
    dir.train("run", 2, &[]).expect(0);
    let mut checkpoints: Vec<String> = fs::read_dir(dir.path("run/checkpoints"))
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    checkpoints.sort();
    let earlier = checkpoints[0].trim_start_matches('0').to_owned();
    // A copy would show the results of other weights.
    let error = dir.run(&[&INT8[..], &["--checkpoint", &earlier]].concat()).expect(2).err;
    assert!(error.contains("not after") && !dir.path("bytes").exists(), "{error}");
    dir.run(&INT8).expect(0);
    // After further training, only the unquantised network would be right.
    let record = dir.path("bytes/optimise/quantisation.json");
    let chosen = fs::read_to_string(&record).unwrap();
    let weights = RunResult::read(&dir.path("bytes")).weights;
    fs::write(&record, chosen.replace(&weights, &"0".repeat(weights.len()))).unwrap();
    let error = dir.run(&["bench", "infer", "bytes", "--runs", "1"]).expect(2).err;
    assert!(error.contains("chosen for other weights") && error.contains("stratus optimise"), "{error}");
    dir.run(&INT8).expect(0);
    assert_eq!(fs::read_to_string(&record).unwrap(), chosen);
}
