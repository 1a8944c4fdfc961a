//! Pipelines: real processes, each with a stage of the network.

#![cfg(unix)]

use crate::common::{CommandOutput, RunResult, TestDir, streets, summary, validation_files};
use crate::workers::has_mpi;
use std::fs;

/// Averaged weights and mixed images, so that all kinds of data pass through the stages.
const SETTINGS: [&str; 8] = [
    "--set",
    "train.parts=4",
    "--set",
    "train.threads=1",
    "--set",
    "train.ema_decay=0.9",
    "--set",
    "data.augment.mixup=0.2",
];

fn train(dir: &TestDir, name: &str, epochs: u32, more: &[&str]) -> CommandOutput {
    dir.train(name, epochs, &[&SETTINGS[..], more].concat())
}

/// Trains in one process, in two and four stages, and a run that changes from four stages to two to one
/// process. Gradients are clipped by the norm over all stages, also in the smaller last batch of an epoch.
#[test]
fn stage_count_does_not_change_the_bits() {
    if !has_mpi() {
        return;
    }
    let dir = TestDir::new();
    let clip = ["--set", "train.clip_norm=0.5"];
    train(&dir, "unclipped", 3, &[]).expect(0);
    train(&dir, "alone", 3, &clip).expect(0);
    let alone = RunResult::read(&dir.path("alone"));
    let files_alone = validation_files(&dir.path("alone"));
    assert!(RunResult::read(&dir.path("unclipped")) != alone, "gradients are clipped");
    for stages in ["2", "4"] {
        let set = format!("train.stages={stages}");
        let more = [&clip[..], &["--set", &set, "--workers", stages]].concat();
        let ran = train(&dir, stages, 3, &more).expect(0);
        assert_eq!(ran.out.matches("digits on mnist: completed").count(), 1, "{}", ran.out);
        assert!(ran.out.contains("exchange with other workers"), "{}", ran.out);
        let message = format!("{stages} processes, one per pipeline stage");
        assert_eq!(ran.err.matches(&message).count(), 1, "{}", ran.err);
        assert!(RunResult::read(&dir.path(stages)) == alone, "{stages} stages");
        // Of validations, stages keep the tables, which are those of one process, and no images.
        let files = validation_files(&dir.path(stages));
        assert_eq!(files.keys().collect::<Vec<_>>(), ["classes.csv", "confusion.csv"]);
        assert!(files.iter().all(|(name, bytes)| files_alone.get(name) == Some(bytes)), "{stages} stages");
    }
    let four = ["--set", "train.stages=4", "--workers", "4", "--until-epoch", "1"];
    train(&dir, "moved", 3, &[&clip[..], &four].concat()).expect(0);
    dir.run(&["train", "moved", "--workers", "2", "--until-epoch", "2"]).expect(0);
    dir.run(&["train", "moved"]).expect(0);
    assert!(RunResult::read(&dir.path("moved")) == alone, "from four stages to two to one process");
    // One process evaluates the run, with the kernels of all stages.
    let measured = |run: &str| -> serde_json::Value {
        serde_json::from_str(&dir.run(&["eval", run, "--json"]).expect(0).out).unwrap()
    };
    let (four, alone) = (measured("4"), measured("alone"));
    assert!(four["loss"].is_number(), "{four}");
    assert_eq!([&four["loss"], &four["top1"]], [&alone["loss"], &alone["top1"]]);
}

/// Two pipelines of two stages divide the parts of each batch; the run resumes with one pipeline.
#[test]
fn several_pipelines_do_not_change_the_bits() {
    if !has_mpi() {
        return;
    }
    let dir = TestDir::new();
    let clip = ["--set", "train.clip_norm=0.5"];
    train(&dir, "alone", 2, &clip).expect(0);
    let alone = RunResult::read(&dir.path("alone"));
    let files_alone = validation_files(&dir.path("alone"));
    let stages = [&clip[..], &["--set", "train.stages=2", "--workers", "4"]].concat();
    let ran = train(&dir, "four", 2, &stages).expect(0);
    let message = "4 processes: 2 pipelines of 2 stages, each for 2 of 4 parts";
    assert_eq!(ran.err.matches(message).count(), 1, "{}", ran.err);
    assert!(RunResult::read(&dir.path("four")) == alone);
    let files = validation_files(&dir.path("four"));
    assert!(files.iter().all(|(name, bytes)| files_alone.get(name) == Some(bytes)));
    train(&dir, "moved", 2, &[&stages[..], &["--until-epoch", "1"]].concat()).expect(0);
    dir.run(&["train", "moved", "--workers", "2"]).expect(0);
    assert!(RunResult::read(&dir.path("moved")) == alone, "from two pipelines to one");
    // Every pipeline needs as many parts as stages.
    let eight = [&clip[..], &["--set", "train.stages=2", "--workers", "8"]].concat();
    let refused = train(&dir, "refused", 2, &eight).expect(2);
    let expected = "each of 4 pipelines of 2 stages needs at least 2 parts of a batch, but train.parts = 4";
    assert_eq!(refused.err.matches(expected).count(), 1, "{}", refused.err);
}

/// External weights give the same result in stages and in one process.
#[test]
fn pipeline_starts_from_the_weights_of_another_run() {
    if !has_mpi() {
        return;
    }
    let dir = TestDir::new();
    train(&dir, "first", 1, &[]).expect(0);
    train(&dir, "alone", 1, &["--weights", "first"]).expect(0);
    let stages = ["--weights", "first", "--set", "train.stages=2", "--workers", "2"];
    train(&dir, "two", 1, &stages).expect(0);
    assert!(RunResult::read(&dir.path("two")) == RunResult::read(&dir.path("alone")));
}

/// Masks and class weights travel to the last stage, and the scores of pixels, classes and boundaries back.
#[test]
fn segmentation_in_stages_is_that_of_one_process() {
    if !has_mpi() {
        return;
    }
    let dir = TestDir::without_kernel_cache();
    streets::write_streets_with(&dir, 16, 6);
    let settings =
        ["train.parts=4", "train.threads=1", "train.epochs=2", "train.class_weighting=median_frequency"];
    for network in ["erfnet", "deeplabv3plus_resnet18"] {
        let train = |out: &str, stages: &str, more: &[&str]| {
            let stages = format!("train.stages={stages}");
            let batch = ["train.batch_size=16", &stages];
            let arguments = streets::arguments(out, network, &[&settings[..], &batch].concat());
            let arguments: Vec<&str> =
                arguments.iter().map(String::as_str).chain(more.iter().copied()).collect();
            dir.run(&arguments).expect(0)
        };
        let tables = |run: &str| {
            let text = |file: &str| fs::read_to_string(dir.path(run).join(file)).unwrap();
            let losses = |text: String| -> Vec<String> {
                let columns = |line: &str| line.split(',').take(5).collect::<Vec<_>>().join(",");
                text.lines().map(columns).collect()
            };
            (losses(text("iterations.csv")), losses(text("epochs.csv")), text("classes.csv"))
        };
        let weights = |run: &str| summary(&dir.path(run))["weights_sha256"].clone();
        let [alone, two] = ["1", "2"].map(|stages| format!("{network}-{stages}"));
        train(&alone, "1", &[]);
        train(&two, "2", &["--workers", "2"]);
        assert!(weights(&alone).is_string());
        assert_eq!(weights(&two), weights(&alone), "{network}");
        assert_eq!(tables(&two), tables(&alone), "{network}");
    }
}

/// Each error is printed once, before the first iteration.
#[test]
fn rejects_settings_that_pipelines_do_not_support() {
    if !has_mpi() {
        return;
    }
    let dir = TestDir::new();
    for (settings, workers, expected) in [
        (&["train.stages=2"][..], None, "train.stages is 2, but there is 1 process"),
        (&["train.stages=4"], Some("2"), "train.stages is 4, but there are 2 processes"),
        (&["train.stages=3"], None, "`train.stages` = 3 is not a power of two"),
        (&["train.stages=8", "train.parts=4"], Some("8"), "train.stages = 8 exceeds train.parts = 4"),
        (&["train.stages=16", "train.parts=16", "data.drop_last=true"], Some("16"), "stages, got 16"),
        (
            &["train.stages=2", "train.memory_limit_mib=1"],
            Some("2"),
            "in 2 stages of 4 parts, the largest stage of digits needs",
        ),
        (
            &["train.stages=2", "train.parts=0", "train.activations_kib=256"],
            None,
            "`train.activations_kib` cannot be combined with train.stages = 2",
        ),
        (
            &["train.stages=2", "validation.mirror=true"],
            None,
            "`validation.mirror` cannot be combined with train.stages = 2",
        ),
        (
            &["train.stages=2", "train.parts=0", "train.micro_batches=2"],
            None,
            "`train.micro_batches` cannot be combined with train.stages = 2",
        ),
    ] {
        let workers = workers.iter().flat_map(|workers| ["--workers", workers]);
        let more: Vec<&str> = workers.chain(settings.iter().flat_map(|setting| ["--set", setting])).collect();
        let ran = train(&dir, "refused", 1, &more).expect(2);
        assert_eq!(ran.err.matches(expected).count(), 1, "{more:?}: {}", ran.err);
        assert!(!dir.path("refused").exists(), "{more:?}");
    }
}

/// Commands that support only one process report it.
#[test]
fn forecast_rejects_pipeline_stages() {
    let dir = TestDir::new();
    let set = ["--set", "train.stages=2", "--set", "train.parts=4"];
    for command in [&["forecast", "digits"][..], &["bench", "kernels", "digits"]] {
        let ran = dir.run(&[command, &set[..]].concat()).expect(2);
        assert!(ran.err.contains("train.stages = 2 is not supported by this command"), "{}", ran.err);
    }
}

/// The plan shows where the network is cut.
#[test]
fn plan_lists_pipeline_stages() {
    let dir = TestDir::new();
    let mut arguments = crate::common::train_arguments("unused", 1, &SETTINGS);
    arguments.drain(2..4);
    arguments[0] = "plan".to_owned();
    arguments.extend(["--set".to_owned(), "train.stages=2".to_owned()]);
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let planned = dir.run(&arguments).expect(0).out;
    assert!(planned.contains("digits in 2 stages, batches in 4 parts"), "{planned}");
    assert!(planned.contains("pipeline bubble: 20.0 %"), "{planned}");
    // Layers are timed on a CPU.
    assert!(planned.lines().any(|line| line.starts_with("stage") && line.contains("time")), "{planned}");
    let json = |more: &[&str]| -> serde_json::Value {
        let arguments = [&arguments[..], more, &["--json"]].concat();
        serde_json::from_str(&dir.run(&arguments).expect(0).out).unwrap()
    };
    let stages = json(&[])["stages"].as_array().unwrap().clone();
    let shares: f64 = stages.iter().map(|stage| stage["time_share"].as_f64().unwrap()).sum();
    assert!((shares - 1.0).abs() < 1e-9 && stages.len() == 2, "{stages:?}");
    assert!(stages.iter().all(|stage| stage["recomputed_share"] == 0.0 && stage["exchange"].is_null()));
    // With two pipelines, each stage exchanges its gradients.
    let pipelines = json(&["--workers", "4"]);
    let exchanged = |key: &str| -> u64 {
        let stages = pipelines["stages"].as_array().unwrap();
        stages.iter().map(|stage| stage["exchange"][key].as_u64().unwrap()).sum()
    };
    assert!(exchanged("buckets") >= 2, "{pipelines}");
    assert_eq!(exchanged("sent_bytes"), exchanged("bytes"));
}

/// A limit below what stages need makes them recompute; the result stays the same, also after an
/// interruption. The times by which the network was cut are recorded.
#[test]
fn stages_in_a_memory_limit_do_not_change_the_bits() {
    if !has_mpi() {
        return;
    }
    let dir = TestDir::new();
    let settings = [
        "model.width=8",
        "data.name=synthetic",
        "data.shape=[3, 32, 32]",
        "data.synthetic.images=256",
        "data.synthetic.validation_images=20",
        "data.synthetic.classes=4",
        "train.batch_size=128",
        "train.epochs=2",
        "train.threads=1",
        "train.parts=4",
    ];
    let settings: Vec<&str> = settings.iter().flat_map(|setting| ["--set", *setting]).collect();
    let run = |begin: &[&str], more: &[&str]| dir.run(&[begin, &settings[..], more].concat());
    let stages = ["--set", "train.stages=2"];
    let planned = |more: &[&str]| -> serde_json::Value {
        let more = [&stages[..], more, &["--json"]].concat();
        serde_json::from_str(&run(&["plan", "resnet18_cifar"], &more).expect(0).out).unwrap()
    };
    let largest = |plan: &serde_json::Value| {
        let stages = plan["stages"].as_array().unwrap();
        stages.iter().map(|stage| stage["arena_bytes"].as_u64().unwrap()).max().unwrap()
    };
    let limit_mib = (largest(&planned(&[])) * 8 / 10) >> 20;
    let limit = format!("{limit_mib}MiB");
    assert!(largest(&planned(&["--memory-limit", &limit])) <= limit_mib << 20);
    run(&["train", "resnet18_cifar", "--out", "alone"], &[]).expect(0);
    let limited = [&stages[..], &["--workers", "2", "--memory-limit", &limit, "--until-epoch", "1"]].concat();
    run(&["train", "resnet18_cifar", "--out", "two"], &limited).expect(0);
    let plan: serde_json::Value =
        serde_json::from_slice(&fs::read(dir.path("two").join("plan.json")).unwrap()).unwrap();
    assert!(plan["arena_bytes"].as_u64().unwrap() <= limit_mib << 20);
    let times = plan["layer_times"].as_object().unwrap();
    assert!(times.len() > 10 && times.values().all(|seconds| seconds.as_f64().unwrap() > 0.0), "{times:?}");
    dir.run(&["train", "two", "--workers", "2"]).expect(0);
    let resumed: serde_json::Value =
        serde_json::from_slice(&fs::read(dir.path("two").join("plan.json")).unwrap()).unwrap();
    assert_eq!(resumed["layer_times"], plan["layer_times"]);
    assert!(RunResult::read(&dir.path("two")) == RunResult::read(&dir.path("alone")));
}
