//! Runs that learn from a teacher: `train.teacher`, and `stratus optimise --teacher`.

#![cfg(unix)]

use crate::common::streets;
use crate::common::tiny::{NET, arguments, copy, write_data};
use crate::common::{CommandOutput, RunResult, TestDir, has_precision, summary};
use std::fs;
use std::path::Path;

/// A folder with the images of `tiny`, the layer files `net.toml` and the larger `large.toml`, and a run
/// `teacher` of the latter.
fn with_teacher() -> TestDir {
    let dir = TestDir::without_kernel_cache();
    write_data(&dir.path("data"));
    fs::write(dir.path("net.toml"), NET).unwrap();
    let large = NET.replace("out_channels = 4", "out_channels = 9").replace("\"tiny\"", "\"large\"");
    fs::write(dir.path("large.toml"), large).unwrap();
    train(&dir, "large.toml", "teacher", 4, &[]).expect(0);
    dir
}

fn train(dir: &TestDir, net: &str, out: &str, epochs: u32, more: &[&str]) -> CommandOutput {
    let epochs = format!("train.epochs={epochs}");
    dir.run(&arguments(&["train", net, "--out", out], &[&[epochs.as_str()], more].concat()))
}

const TEACHER: &str = "train.teacher=teacher";

fn json(text: &str) -> serde_json::Value {
    serde_json::from_str(text).unwrap()
}

fn read_json(path: &Path) -> serde_json::Value {
    json(&fs::read_to_string(path).unwrap())
}

#[test]
fn a_run_with_a_teacher_accounts_for_it_and_resumes_to_the_same_bits() {
    let dir = with_teacher();
    let ran = train(&dir, "net.toml", "whole", 3, &[TEACHER]).expect(0);
    assert!(ran.err.contains("teacher    teacher, large; 50 % of the loss, temperature 2\n"), "{}", ran.err);
    let expected = RunResult::read(&dir.path("whole"));
    let source = &read_json(&dir.path("whole/sources.json"))["teacher"];
    let weights = dir.path("teacher").join("checkpoints/0000000020/weights.safetensors");
    assert_eq!(source["bytes"], fs::metadata(weights).unwrap().len());
    let log = fs::read_to_string(dir.path("whole/log.txt")).unwrap();
    let sha256 = source["sha256"].as_str().unwrap();
    assert!(log.contains(&format!("weights.safetensors, sha256 {sha256}\n")), "{log}");
    // The teacher is a row of the account, and nothing is unattributed for its sake.
    let account = json(&dir.run(&["collect", "whole", "--json"]).expect(0).out)[0]["accounting"].clone();
    let phases = account["phases"].as_array().unwrap();
    let teacher = phases.iter().find(|row| row["phase"] == "teacher").unwrap();
    assert!(teacher["cost"]["mean_ms"].as_f64().unwrap() > 0.0, "{teacher}");
    let layers = account["layers"].as_array().unwrap();
    assert!(layers.iter().all(|row| !row["layer"].as_str().unwrap().contains("teacher")), "{layers:?}");
    // Checkpoints have the weights of the network alone.
    let listed = dir.run(&["model", "export", "whole", "--safetensors", "whole.safetensors"]).expect(0);
    assert!(!listed.out.contains("teacher:"));
    let exported = fs::read(dir.path("whole.safetensors")).unwrap();
    assert!(!exported.windows(8).any(|bytes| bytes == b"teacher:"));
    // Interrupted after each epoch.
    let setting = ["--until-epoch", "1"];
    let first = arguments(&["train", "net.toml", "--out", "parts"], &["train.epochs=3", TEACHER]);
    dir.run(&[&first[..], &setting].concat()).expect(0);
    dir.run(&["train", "parts", "--until-epoch", "2"]).expect(0);
    dir.run(&["train", "parts"]).expect(0);
    assert_eq!(RunResult::read(&dir.path("parts")), expected);
    // It is evaluated, shown and reported without its teacher.
    fs::rename(dir.path("teacher"), dir.path("elsewhere")).unwrap();
    let evaluated = json(&dir.run(&["eval", "whole", "--json"]).expect(0).out);
    assert_eq!(evaluated["measures"]["top1"], summary(&dir.path("whole"))["final"]["val_top1"]);
    dir.run(&["report", "whole"]).expect(0);
    dir.run(&["collect", "whole"]).expect(0);
}

#[test]
fn the_teacher_changes_what_is_learnt_unless_its_weight_is_0() {
    let dir = with_teacher();
    let result = |out: &str, more: &[&str]| {
        train(&dir, "net.toml", out, 2, more).expect(0);
        RunResult::read(&dir.path(out))
    };
    let own = result("own", &[]);
    let taught = result("taught", &[TEACHER]);
    assert_ne!(own.weights, taught.weights);
    let hotter = result("hotter", &[TEACHER, "train.teacher_temperature=4"]);
    assert!(hotter.weights != taught.weights && hotter.weights != own.weights);
    // A teacher that does not count is not even opened.
    assert_eq!(result("none", &["train.teacher=missing", "train.teacher_weight=0"]), own);
    assert!(!fs::read_to_string(dir.path("none/plan.json")).unwrap().contains("teacher:"));
    // Micro-batches have the loss of the batch; dropout and batch norm differ.
    let parts = result("micro", &[TEACHER, "train.micro_batches=4"]);
    let loss = |result: &RunResult| result.iterations[0].split(',').nth(2).unwrap().parse::<f64>().unwrap();
    assert!((loss(&parts) - loss(&taught)).abs() < 0.2 * loss(&taught), "{parts:?} {taught:?}");
}

#[test]
fn another_or_a_missing_teacher_is_refused_at_a_resume() {
    let dir = with_teacher();
    let first = arguments(&["train", "net.toml", "--out", "run"], &["train.epochs=2", TEACHER]);
    dir.run(&[&first[..], &["--until-epoch", "1"]].concat()).expect(0);
    let before = fs::read(dir.path("run/summary.json")).unwrap();
    fs::rename(dir.path("teacher"), dir.path("saved")).unwrap();
    let error = dir.run(&["train", "run"]).expect(2).err;
    assert!(error.contains("train.teacher: teacher is not a run directory"), "{error}");
    // The same path, another training.
    train(&dir, "large.toml", "teacher", 4, &["train.seed=9"]).expect(0);
    let error = dir.run(&["train", "run"]).expect(2).err;
    assert!(error.contains("but the run started with") && error.contains("weights.safetensors"), "{error}");
    assert_eq!(fs::read(dir.path("run/summary.json")).unwrap(), before);
    fs::remove_dir_all(dir.path("teacher")).unwrap();
    fs::rename(dir.path("saved"), dir.path("teacher")).unwrap();
    dir.run(&["train", "run"]).expect(0);
}

#[test]
fn teachers_that_do_not_fit_are_refused_before_anything_is_written() {
    let dir = with_teacher();
    let refused = |net: &str, more: &[&str], expected: &str| {
        for command in [&["train", net, "--out", "out"][..], &["plan", net]] {
            let error = dir.run(&arguments(command, more)).expect(2).err;
            assert!(error.contains(expected), "{expected}: {error}");
            assert!(error.contains("hint: "), "{error}");
            assert!(!dir.path("out").exists(), "{error}");
        }
    };
    for missing in ["missing", "../teacher", "net.toml", "data", "te\"acher", "<script>"] {
        let setting = format!("train.teacher={missing}");
        refused("net.toml", &[&setting], "train.teacher: ");
    }
    // It has not finished.
    let first = arguments(&["train", "large.toml", "--out", "begun"], &["train.epochs=2"]);
    dir.run(&[&first[..], &["--until-epoch", "1"]].concat()).expect(0);
    refused("net.toml", &["train.teacher=begun"], "train.teacher: the run begun is interrupted");
    // Images of another size or normalisation, or other classes.
    let size = NET.replace("[1, 12, 12]", "[1, 10, 12]");
    fs::write(dir.path("size.toml"), size).unwrap();
    refused("size.toml", &[TEACHER, "data.shape=[1,10,12]"], "images of 1×12×12, but tiny has 1×10×12");
    refused("net.toml", &[TEACHER, "data.mean=[0.5]"], "was trained with data.mean = ");
    refused("net.toml", &[TEACHER, "data.std=[0.5]"], "was trained with data.std = ");
    let five = NET.replace("out_features = 10", "out_features = 5");
    fs::write(dir.path("five.toml"), five).unwrap();
    let synthetic = [
        "data.name=synthetic",
        "data.synthetic.classes=5",
        "data.synthetic.images=64",
        "data.synthetic.validation_images=32",
        "data.shape=[1,12,12]",
    ];
    train(&dir, "five.toml", "five", 1, &synthetic).expect(0);
    refused("net.toml", &["train.teacher=five"], "outputs of 5, but tiny has 10");
    copy(&dir.path("teacher"), &dir.path("renamed"));
    let names = fs::read_to_string(dir.path("renamed/classes.csv")).unwrap();
    fs::write(dir.path("renamed/classes.csv"), names.replacen("\n0,0,", "\n0,zero,", 1)).unwrap();
    refused("net.toml", &["train.teacher=renamed"], "class 0 of renamed is \"zero\"");
    // Its checkpoint is damaged.
    copy(&dir.path("teacher"), &dir.path("damaged"));
    let weights = dir.path("damaged/checkpoints/0000000020/weights.safetensors");
    let mut bytes = fs::read(&weights).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    fs::write(&weights, bytes).unwrap();
    refused("net.toml", &["train.teacher=damaged"], "damaged");
    // What has no teacher yet.
    refused("net.toml", &[TEACHER, "train.stages=2", "train.parts=2"], "train.stages = 2");
    refused("net.toml", &[TEACHER, "first_stage.network=large.toml"], "`first_stage.network`");
    for invalid in ["train.teacher_weight=1.5", "train.teacher_weight=nan", "train.teacher_temperature=0"] {
        refused("net.toml", &[TEACHER, invalid], invalid.split_once('=').unwrap().0);
    }
}

#[test]
fn plans_forecasts_and_benchmarks_include_the_teacher() {
    let dir = with_teacher();
    let plan = dir.run(&arguments(&["plan", "net.toml", "--dump", "program"], &[TEACHER])).expect(0).out;
    assert!(plan.contains("teacher:body.conv") && plan.contains("distillation_loss"), "{plan}");
    let bytes = |more: &[&str]| {
        let dumped = dir.run(&arguments(&["plan", "net.toml", "--dump", "plan", "--json"], more)).expect(0);
        json(&dumped.out)["arena_bytes"].as_u64().unwrap()
    };
    assert!(bytes(&[TEACHER]) > bytes(&[]));
    let kernels = dir.run(&arguments(&["bench", "kernels", "net.toml", "--rounds", "1"], &[TEACHER]));
    assert!(kernels.expect(0).out.contains("teacher:"));
    let on = ["forecast", "net.toml", "--on", "v100-16gb", "--json"];
    let step = |more: &[&str]| {
        let settings = ["data.name=mnist", "data.path=data", "data.verify=false"];
        let settings = settings.iter().chain(more).flat_map(|setting| ["--set", setting]);
        let told = dir.run(&on.iter().copied().chain(settings).collect::<Vec<_>>()).expect(0);
        json(&told.out)["machines"][0]["step_s"].as_f64().unwrap()
    };
    assert!(step(&[TEACHER]) > step(&[]));
    let other = [&on[..], &["--framework", "tensorflow", "--set", TEACHER]].concat();
    let error = dir.run(&arguments(&other, &[])).expect(2).err;
    assert!(error.contains("train.teacher") && error.contains("tensorflow"), "{error}");
}

/// On the CPU, with several workers.
#[test]
fn the_number_of_workers_does_not_change_the_results() {
    let dir = TestDir::new();
    dir.train("teacher", 1, &[]).expect(0);
    let result = |out: &str, workers: &str| {
        let settings = ["train.parts=2", TEACHER, "model.width=6"];
        let settings = settings.iter().flat_map(|setting| ["--set", setting]);
        let more: Vec<&str> = settings.chain(["--workers", workers]).collect();
        dir.train(out, 1, &more).expect(0);
        (summary(&dir.path(out))["weights_sha256"].clone(), summary(&dir.path(out))["final"].clone())
    };
    assert_eq!(result("one", "1"), result("two", "2"));
}

#[test]
fn the_network_before_pruning_teaches_the_smaller_one() {
    let dir = TestDir::new();
    dir.train("run", 1, &[]).expect(0);
    let prune = ["optimise", "run", "--prune", "0.4", "--granularity", "4", "--calibration-batches=2"];
    let optimise = |out: &str, more: &[&str]| dir.run(&[&prune[..], &["--out", out], more].concat());
    optimise("plain", &[]).expect(0);
    let told = optimise("taught", &["--teacher"]).expect(0).err;
    assert!(told.contains("/run, digits; 50 % of the loss"), "{told}");
    let [plain, taught] = ["plain", "taught"].map(|run| RunResult::read(&dir.path(run)).weights);
    assert_ne!(plain, taught);
    assert_eq!(read_json(&dir.path("taught/optimise/request.json"))["teacher"], true);
    let weights = &read_json(&dir.path("taught/optimise/request.json"))["weights"]["sha256"];
    assert_eq!(read_json(&dir.path("taught/sources.json"))["teacher"]["sha256"], *weights);
    // Another request is refused, and so are contradictions.
    let error = optimise("plain", &["--teacher"]).expect(2).err;
    assert!(error.contains("`teacher` was false, not true"), "{error}");
    let error = optimise("new", &["--teacher", "--set", "train.teacher_weight=0"]).expect(2).err;
    assert!(error.contains("contradicts --teacher") && !dir.path("new").exists(), "{error}");
    dir.run(&["optimise", "run", "--int8", "--teacher"]).expect(2);
    optimise("new", &["--teacher", "--checkpoint", "best"]).expect(2);
}

/// A network without decoder cannot teach one with it; one of the same outputs can, in f32 and in bf16.
#[test]
fn a_segmentation_network_learns_from_another_one() {
    let dir = TestDir::without_kernel_cache();
    streets::write_streets(&dir);
    let train = |out: &str, network: &str, more: &[&str]| {
        streets::train(&dir, out, network, &[&["train.epochs=2"], more].concat())
    };
    train("teacher", "fcn_resnet18", &["model.width=6"]).expect(0);
    let [of_f32, of_bf16] = ["f32", "bf16"].map(|precision| {
        if !has_precision(precision) {
            return None;
        }
        let precision_key = format!("train.precision={precision}");
        let more = [TEACHER, precision_key.as_str(), "train.teacher_weight=0.8"];
        train(precision, "fcn_resnet18", &more).expect(0);
        summary(&dir.path(precision))["final"]["train_loss"].as_f64()
    });
    let of_f32 = of_f32.unwrap();
    assert!(of_bf16.is_none_or(|of_bf16| (of_f32 - of_bf16).abs() < 0.05 * of_f32), "{of_f32}, {of_bf16:?}");
    train("plain", "fcn_resnet18", &[]).expect(0);
    let hash = |run: &str| summary(&dir.path(run))["weights_sha256"].clone();
    assert_ne!(hash("plain"), hash("f32"));
    let error = train("encoder", "erfnet_encoder", &[TEACHER]).expect(2).err;
    assert!(error.contains("train.teacher: teacher, fcn_resnet18 has outputs of "), "{error}");
    write_data(&dir.path("data"));
    fs::write(dir.path("net.toml"), NET.replace("[1, 12, 12]", "[3, 24, 32]")).unwrap();
    let more = [TEACHER, "data.shape=[3,24,32]"];
    let error = dir.run(&arguments(&["train", "net.toml", "--out", "classes"], &more)).expect(2).err;
    assert!(error.contains("train.teacher: ") || error.contains("takes images of"), "{error}");
}
