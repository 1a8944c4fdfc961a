//! Layer files and external weights on the command line: training, evaluation, export, and resuming without
//! them.

#![cfg(unix)]

use crate::common::tiny::{NET, arguments, copy, write_data};
use crate::common::{CommandOutput, RunResult, TestDir, without_registries};
use std::fs;
use std::path::Path;
use std::sync::OnceLock;
use stratus_run::checkpoint::{Checkpoints, Tensor, read_safetensors};

/// A folder with a run `first` of the network, and a run `second` that starts from its weights and freezes
/// the stem.
struct FinetunedRuns {
    dir: TestDir,
    first: CommandOutput,
    second: CommandOutput,
}

fn finetuned_runs() -> &'static FinetunedRuns {
    static TUNED: OnceLock<FinetunedRuns> = OnceLock::new();
    TUNED.get_or_init(|| {
        let dir = TestDir::without_kernel_cache();
        write_data(&dir.path("data"));
        fs::create_dir(dir.path("nets")).unwrap();
        fs::write(dir.path("nets/net.toml"), NET).unwrap();
        let train = ["train", "nets/net.toml", "--out", "first"];
        let first = dir.run(&arguments(&train, &["train.epochs=1"])).expect(0);
        // The layer file is next to the experiment, the weights are in the working directory.
        let experiment = "[model]\nname = \"net.toml\"\nfreeze = [\"stem\"]\n[checkpoint]\nkeep = 9\n";
        fs::write(dir.path("nets/tune.toml"), experiment).unwrap();
        let train = ["train", "nets/tune.toml", "--weights", "first", "--out", "second"];
        let second = dir.run(&arguments(&train, &["train.epochs=3"])).expect(0);
        FinetunedRuns { dir, first, second }
    })
}

fn weights(run: &Path) -> Vec<Tensor> {
    Checkpoints::new(run.join("checkpoints")).load_latest().unwrap().checkpoint.unwrap().weights
}

fn json(path: &Path) -> serde_json::Value {
    serde_json::from_slice(&fs::read(path).unwrap()).unwrap()
}

/// Copies `second` as it was when `iteration` was its newest checkpoint.
fn rolled_back(dir: &TestDir, name: &str, iteration: u64) -> std::path::PathBuf {
    let run = dir.path(name);
    copy(&dir.path("second"), &run);
    let checkpoints = Checkpoints::new(run.join("checkpoints"));
    for later in checkpoints.list().unwrap().into_iter().filter(|&i| i > iteration) {
        fs::remove_dir_all(checkpoints.path(later)).unwrap();
    }
    run
}

#[test]
fn layer_file_is_trained_and_copied_into_the_run() {
    let FinetunedRuns { dir, first, .. } = finetuned_runs();
    assert!(
        first.err.contains("network    tiny, ") && first.err.contains("device     reference backend, f32, "),
        "{}",
        first.err
    );
    let run = dir.path("first");
    assert_eq!(fs::read_to_string(run.join("network.toml")).unwrap(), NET);
    let experiment = fs::read_to_string(run.join("experiment.toml")).unwrap();
    for line in ["name = \"tiny\"", "name = \"network.toml\"", "classes = 10", "freeze = []"] {
        assert!(experiment.lines().any(|written| written == line), "{line}: {experiment}");
    }
    let sources = json(&run.join("sources.json"));
    assert_eq!(sources["network"]["path"], "nets/net.toml");
    assert_eq!(sources["network"]["bytes"], NET.len());
    assert!(sources["weights"].is_null());
    let summary = crate::common::summary(&run);
    assert_eq!((&summary["model"], &summary["experiment"]), (&"tiny".into(), &"tiny".into()));
    // Without --out, runs are written to a folder named after the network.
    dir.run(&arguments(&["train", "nets/net.toml", "-q"], &["train.epochs=1"])).expect(0);
    assert_eq!(RunResult::read(&dir.path("runs/tiny/1")), RunResult::read(&run));
    // Every command that takes experiments accepts the file.
    let plan = dir.run(&arguments(&["plan", "nets/net.toml", "--dump", "program"], &[])).expect(0);
    assert!(plan.out.contains("body.norm+body.relu"), "{}", plan.out);
    let bench = dir.run(&arguments(&["bench", "kernels", "first", "--rounds", "1"], &[])).expect(0);
    assert!(bench.out.contains("body.conv"), "{}", bench.out);
    let show = dir.run(&["model", "show", "nets/net.toml"]).expect(0);
    assert!(show.out.starts_with("tiny on 1x12x12\n"), "{}", show.out);
}

#[test]
fn run_starts_from_the_weights_of_another_run() {
    let FinetunedRuns { dir, second, .. } = finetuned_runs();
    let (run, file) = (dir.path("second"), "first/checkpoints/0000000005/weights.safetensors");
    assert!(second.err.contains(&format!("\nweights    of {file}\n")), "{}", second.err);
    let sources = json(&run.join("sources.json"));
    assert_eq!(sources["weights"]["path"], file);
    let log = fs::read_to_string(run.join("log.txt")).unwrap();
    let sha256 = sources["weights"]["sha256"].as_str().unwrap();
    assert!(log.contains(&format!("starting from {file}, sha256 {sha256}\n")), "{log}");
    // The first checkpoint has the initial weights. Only the frozen stem keeps them, statistics included.
    let (before, after) = (weights(&dir.path("first")), weights(&run));
    let start = Checkpoints::new(run.join("checkpoints")).load(0).unwrap();
    for tensor in before.iter().filter(|tensor| !tensor.name.ends_with("num_batches_tracked")) {
        let same = |tensors: &[Tensor]| tensors.contains(tensor);
        assert!(same(&start.weights), "{}", tensor.name);
        assert_eq!(same(&after), tensor.name.starts_with("stem."), "{}", tensor.name);
    }
    assert!(start.optimizer.iter().all(|tensor| !tensor.name.starts_with("stem.")));
    let plan = fs::read_to_string(run.join("plan.json")).unwrap();
    assert!(!plan.contains("stem.conv.weight:gradient"));
    assert!(fs::read_to_string(run.join("experiment.toml")).unwrap().contains("weights = \"first\"\n"));
}

#[test]
fn finetuned_run_resumes_without_its_source_run() {
    let FinetunedRuns { dir, .. } = finetuned_runs();
    let expected = RunResult::read(&dir.path("second"));
    for iteration in [0, 5] {
        let elsewhere = TestDir::without_kernel_cache();
        copy(&dir.path("data"), &elsewhere.path("data"));
        let run = rolled_back(dir, &format!("rolled_{iteration}"), iteration);
        // A folder without the layer file and the weights.
        let ran = elsewhere.run(&["train", run.to_str().unwrap()]).expect(0);
        assert!(ran.err.contains(&format!("resumed after iteration {iteration}\n")), "{}", ran.err);
        assert_eq!(RunResult::read(&run), expected);
    }
}

#[test]
fn resume_rejects_a_changed_layer_file() {
    let FinetunedRuns { dir, .. } = finetuned_runs();
    let run = rolled_back(dir, "changed", 5);
    fs::write(run.join("network.toml"), NET.replace("p = 0.1", "p = 0.2")).unwrap();
    let ran = dir.run(&["train", "changed"]).expect(2);
    assert!(ran.err.starts_with("error: changed/network.toml has sha256 "), "{}", ran.err);
    fs::remove_file(run.join("network.toml")).unwrap();
    let ran = dir.run(&["train", "changed"]).expect(2);
    assert!(ran.err.starts_with("error: network.toml: "), "{}", ran.err);
}

#[test]
fn exported_weights_evaluate_like_the_run() {
    let FinetunedRuns { dir, .. } = finetuned_runs();
    let export = ["model", "export", "second", "--safetensors", "out.safetensors", "--json"];
    let exported: serde_json::Value = serde_json::from_str(&dir.run(&export).expect(0).out).unwrap();
    let tensors = read_safetensors(&fs::read(dir.path("out.safetensors")).unwrap()).unwrap();
    assert_eq!(tensors, weights(&dir.path("second")));
    let run: serde_json::Value =
        serde_json::from_str(&dir.run(&["eval", "second", "--json"]).expect(0).out).unwrap();
    assert_eq!(exported["weights_sha256"], run["weights_sha256"]);
    let eval = arguments(&["eval", "nets/net.toml", "--weights", "out.safetensors", "--json"], &[]);
    let file: serde_json::Value = serde_json::from_str(&dir.run(&eval).expect(0).out).unwrap();
    for key in ["samples", "loss", "top1", "top5"] {
        assert_eq!(file[key], run[key], "{key}");
    }
    // The run, evaluated with the weights of another run.
    let eval = arguments(&["eval", "second", "--weights", "first", "--json"], &[]);
    let other: serde_json::Value = serde_json::from_str(&dir.run(&eval).expect(0).out).unwrap();
    assert_ne!(other["loss"], run["loss"]);
    // If the newest checkpoint is damaged, the weights of the previous one are used, with a warning.
    let older = Checkpoints::new(rolled_back(dir, "older", 5).join("checkpoints")).path(5);
    copy(&dir.path("second"), &dir.path("damaged"));
    let checkpoints = Checkpoints::new(dir.path("damaged/checkpoints"));
    for later in checkpoints.list().unwrap().into_iter().filter(|&iteration| iteration > 5) {
        fs::write(checkpoints.path(later).join("manifest.json"), "").unwrap();
    }
    let eval = arguments(&["eval", "nets/net.toml", "--weights", "damaged", "--json"], &[]);
    let ran = dir.run(&eval).expect(0);
    assert!(ran.err.contains("warning: checkpoint damaged/checkpoints/00000000"), "{}", ran.err);
    assert!(ran.err.contains(" is damaged: manifest.json"), "{}", ran.err);
    let found: serde_json::Value = serde_json::from_str(&ran.out).unwrap();
    let sha256 = stratus_run::sources::Source::from_file(&older.join("weights.safetensors")).unwrap().sha256;
    assert_eq!(found["file_sha256"], sha256);
    // A network by name: initial values, and the values of a file.
    let network = ["model", "export", "digits", "--safetensors", "digits.safetensors"];
    let ran = dir.run(&network).expect(0);
    assert!(ran.err.contains("exporting digits untrained (initial weights, seed 1)"), "{}", ran.err);
    let again = ["model", "export", "digits", "--weights", "digits.safetensors", "--safetensors", "again"];
    assert_eq!(dir.run(&again).expect(0).err, "");
    assert_eq!(fs::read(dir.path("again")).unwrap(), fs::read(dir.path("digits.safetensors")).unwrap());
}

/// The whitening layer computes its weights from the images: its outputs are uncorrelated with variance 1, it
/// keeps them when frozen, and it is an error if there are no images.
#[test]
fn whitening_layer_decorrelates_the_images() {
    let dir = TestDir::without_kernel_cache();
    write_data(&dir.path("data"));
    let net = "name = \"white\"\ninput = [1, 12, 12]\n[[layer]]\nname = \"stem\"\nop = \"conv2d\"\n\
               out_channels = 8\nkernel = 2\nbias = false\nweight_init = \"whitening\"\n[[layer]]\nname = \
               \"gelu\"\nop = \"gelu\"\n\
               [[layer]]\nname = \"flatten\"\n\
               op = \"flatten\"\n[[layer]]\nname = \"fc\"\nop = \"linear\"\nout_features = 10\n";
    fs::write(dir.path("white.toml"), net).unwrap();
    let settings = ["train.epochs=1", "model.freeze=stem", "data.mean=[0.25]", "data.std=[0.5]"];
    dir.run(&arguments(&["train", "white.toml", "--out", "run"], &settings)).expect(0);
    let weights = weights(&dir.path("run"));
    let stem = weights.iter().find(|tensor| tensor.name == "stem.weight").unwrap();
    let stratus_run::checkpoint::Values::F32(filters) = &stem.values else { panic!("{stem:?}") };
    assert_eq!(stem.shape, [8, 1, 2, 2]);
    assert!(filters[..16].iter().zip(&filters[16..]).all(|(a, b)| *a == -*b));
    // There are few enough images that all patches are used.
    let images = fs::read(dir.path("data/train-images-idx3-ubyte")).unwrap();
    let mut responses = vec![Vec::new(); 4];
    for image in images[16..].chunks_exact(144) {
        for (row, column) in (0..11).flat_map(|row| (0..11).map(move |column| (row, column))) {
            let pixel = |at: usize| {
                let value = image[(row + at / 2) * 12 + column + at % 2];
                (f64::from(value) / 255.0 - 0.25) / 0.5
            };
            for (filter, responses) in filters.chunks_exact(4).zip(&mut responses) {
                responses.push((0..4).map(|at| f64::from(filter[at]) * pixel(at)).sum::<f64>());
            }
        }
    }
    let mean = |values: &[f64]| values.iter().sum::<f64>() / values.len() as f64;
    for responses in &mut responses {
        let middle = mean(responses);
        responses.iter_mut().for_each(|response| *response -= middle);
    }
    for (i, a) in responses.iter().enumerate() {
        for (j, b) in responses.iter().enumerate() {
            let products: Vec<f64> = a.iter().zip(b).map(|(a, b)| a * b).collect();
            let expected = f64::from(u8::from(i == j));
            assert!((mean(&products) - expected).abs() < 0.1, "{i}, {j}: {}", mean(&products));
        }
    }
    let rejected = dir.run(&["model", "export", "white.toml", "--safetensors", "x"]).expect(2);
    let (message, expected) = (
        rejected.err.lines().skip_while(|line| line.starts_with("warning")).collect::<Vec<_>>().join("\n"),
        "error: the initial values of `stem.weight` depend on training images\n\
         hint: train the network, and use the run or its weights",
    );
    assert_eq!(message, expected);
    // Training that starts from the weights of the run does not recompute them.
    let again = ["train", "white.toml", "--weights", "run", "--out", "again"];
    dir.run(&arguments(&again, &[&settings[..], &["train.seed=9"]].concat())).expect(0);
    assert!(self::weights(&dir.path("again")).contains(stem));
}

/// A checkpoint contains the state of every optimiser.
#[test]
fn every_optimiser_learns_and_resumes_bit_identical() {
    let FinetunedRuns { dir, .. } = finetuned_runs();
    for (name, rate, states) in [
        ("adam", "0.01", &[":exp_avg", ":exp_avg_sq"][..]),
        ("adamw", "0.01", &[":exp_avg", ":exp_avg_sq"]),
        ("adagrad", "0.05", &[":sum"]),
        ("adadelta", "1", &[":square_avg", ":acc_delta"]),
    ] {
        let (rule, rate) = (format!("optimiser.name={name}"), format!("optimiser.learning_rate={rate}"));
        let settings = [&rule, &rate, "optimiser.weight_decay=0.001", "train.epochs=4", "checkpoint.keep=9"];
        dir.run(&arguments(&["train", "nets/net.toml", "--out", name], &settings)).expect(0);
        let run = dir.path(name);
        let epochs = fs::read_to_string(run.join("epochs.csv")).unwrap();
        let losses: Vec<f64> =
            epochs.lines().skip(1).map(|line| line.split(',').nth(1).unwrap().parse().unwrap()).collect();
        assert!(losses.len() == 4 && losses[3] < 0.8 * losses[0], "{name}: {losses:?}");
        let checkpoints = Checkpoints::new(run.join("checkpoints"));
        let remembered = checkpoints.load_latest().unwrap().checkpoint.unwrap().optimizer;
        for state in states {
            let tensor = remembered.iter().find(|tensor| tensor.name == format!("fc.weight{state}")).unwrap();
            assert_eq!(tensor.shape, [10, 72], "{}", tensor.name);
        }
        let trained =
            |tensor: &&Tensor| !tensor.name.contains("running") && !tensor.name.ends_with("tracked");
        assert_eq!(remembered.len(), states.len() * weights(&run).iter().filter(trained).count());
        let again = dir.path(&format!("{name}_again"));
        copy(&run, &again);
        let checkpoints = Checkpoints::new(again.join("checkpoints"));
        for later in checkpoints.list().unwrap().into_iter().filter(|&iteration| iteration > 5) {
            fs::remove_dir_all(checkpoints.path(later)).unwrap();
        }
        let ran = dir.run(&["train", again.to_str().unwrap()]).expect(0);
        assert!(ran.err.contains("resumed after iteration 5\n"), "{}", ran.err);
        assert_eq!(RunResult::read(&again), RunResult::read(&run), "{name}");
    }
}

#[test]
fn rejects_weights_and_layer_files_that_do_not_fit() {
    let FinetunedRuns { dir, .. } = finetuned_runs();
    fs::write(dir.path("nets/seven.toml"), NET.replace("out_features = 10", "out_features = 7")).unwrap();
    fs::write(dir.path("nets/wide.toml"), NET.replace("[1, 12, 12]", "[1, 16, 16]")).unwrap();
    fs::write(dir.path("nets/broken.toml"), NET.replace("conv2d", "conv3d")).unwrap();
    fs::write(dir.path("nets/other.toml"), NET.replace("body.", "trunk.")).unwrap();
    let run = "first";
    let cases: &[(&[&str], &[&str])] = &[
        (&["train", "nets/net.toml"], &["model.freeze=stm"]),
        (&["train", "nets/net.toml"], &["model.freeze=stem,body,aux,fc"]),
        (&["train", "nets/net.toml"], &["model.width=3"]),
        (&["train", "nets/net.toml"], &["model.classes=11"]),
        (&["train", "nets/seven.toml"], &[]),
        (&["train", "nets/wide.toml"], &[]),
        (&["train", "nets/broken.toml"], &[]),
        (&["train", "nets/absent.toml"], &[]),
        (&["train", "nets/other.toml", "--weights", run], &[]),
        (&["train", "nets/net.toml", "--weights", ""], &[]),
        (&["eval", "nets/net.toml"], &[]),
        (&["eval", "nets/other.toml", "--weights", run], &[]),
        (&["model", "export", run, "--safetensors", "x", "--weights", run], &[]),
        (&["model", "export", "digits", "--safetensors", "x", "--checkpoint", "3"], &[]),
        (&["model", "export", "digts", "--safetensors", "x"], &[]),
    ];
    let mut shown = Vec::new();
    for (command, more) in cases {
        let ran = dir.run(&arguments(command, more)).expect(2);
        assert_eq!(ran.out, "");
        let settings: Vec<String> = more.iter().map(|setting| format!(" --set {setting}")).collect();
        let names: Vec<&str> = stratus_graph::layer_file::operation_names().collect();
        let err = without_registries(&ran.err).replace(&names.join(", "), "[all operations]");
        shown.push(format!("$ stratus {}{}\n{err}", command.join(" "), settings.concat()));
    }
    let ran = dir.run(&["train", "first", "--weights", "second"]).expect(2);
    shown.push(format!("$ stratus train first --weights second\n{}", ran.err));
    for (file, code) in [("absent.pth", 1), ("nets/net.toml", 1), ("data", 2)] {
        let ran = dir.run(&arguments(&["train", "nets/net.toml", "--weights", file], &[])).expect(code);
        assert_eq!(ran.out, "");
        shown.push(format!("$ stratus train nets/net.toml --weights {file}\n{}", ran.err));
    }
    insta::assert_snapshot!(shown.join("\n"));
}
