//! Emulated GPUs that sum gradients directly, by an emulated NCCL.

use super::gpus::{machine, train};
use super::has_mpi;
use crate::common::{RunResult, TestDir};
use std::ffi::OsString;
use std::fs;

const VERSION: &str = "2.27.5";
const FAST: [&str; 1] = ["train.exchange=fast"];

/// A machine with emulated GPUs and NCCL.
fn machine_with_nccl(gpus: u32, version: &str) -> TestDir {
    let mut dir = machine(gpus);
    dir.variables.push(("STRATUS_EMULATED_NCCL", OsString::from(version)));
    dir
}

/// The line of the exchange.
fn exchange_line(err: &str) -> String {
    let mut lines = err.lines().filter(|line| line.contains("exchange  "));
    let line = lines.next().unwrap_or_default().to_owned();
    assert_eq!(lines.next(), None, "more than once: {err}");
    line
}

#[test]
fn gpus_sum_directly_with_the_bits_of_one_process() {
    if !has_mpi() {
        return;
    }
    let mut dir = machine_with_nccl(4, VERSION);
    train(&dir, "alone", "2", &[], &[]).expect(0);
    let alone = RunResult::read(&dir.path("alone"));
    for (out, workers, stages) in [("2", "2", "1"), ("4", "4", "1"), ("pipelines", "4", "2")] {
        let settings = [format!("train.stages={stages}")];
        let ran = train(&dir, out, "2", &[settings[0].as_str()], &["--workers", workers]).expect(0);
        assert!(exchange_line(&ran.err).ends_with("NCCL 2.27.5"), "{}", ran.err);
        assert!(RunResult::read(&dir.path(out)) == alone, "{out}");
        let log = fs::read_to_string(dir.path(out).join("log.txt")).unwrap();
        assert!(log.contains("exchange: NCCL 2.27.5"), "{log}");
    }
    // A run begins with NCCL and ends without it.
    train(&dir, "moved", "2", &[], &["--workers", "4", "--until-epoch", "1"]).expect(0);
    dir.variables.retain(|(name, _)| *name != "STRATUS_EMULATED_NCCL");
    let ran = dir.run(&["train", "moved", "--workers", "2"]).expect(0);
    assert!(exchange_line(&ran.err).ends_with("through host memory: NCCL was not found"), "{}", ran.err);
    assert!(RunResult::read(&dir.path("moved")) == alone);
}

#[test]
fn gpus_without_a_usable_nccl_use_host_memory() {
    if !has_mpi() {
        return;
    }
    for (gpus, version, reason) in [
        (2, "2.7.8", "NCCL 2.7.8 is too old, 2.14 is needed"),
        (2, "x\u{1b}[2J", "NCCL has the unknown version `x\\u{1b}[2J`"),
        (1, VERSION, "workers share a GPU"),
    ] {
        let dir = machine_with_nccl(gpus, version);
        let ran = train(&dir, "run", "1", &[], &["--workers", "2"]).expect(0);
        let line = exchange_line(&ran.err);
        assert!(line.ends_with(&format!("through host memory: {reason}")), "{}", ran.err);
        assert!(!ran.err.contains('\u{1b}'), "{}", ran.err);
        let refused = train(&dir, "fast", "1", &FAST, &["--workers", "2"]).expect(2);
        let message = format!("train.exchange = \"fast\" cannot be used: {reason}");
        assert_eq!(refused.err.matches(&message).count(), 1, "{}", refused.err);
        assert!(refused.err.contains("nvidia-nccl-cu12"), "{}", refused.err);
        assert!(!dir.path("fast").exists());
    }
}

/// One of the GPUs cannot join the others, which is known only when they try.
#[test]
fn gpus_that_cannot_join_use_host_memory() {
    if !has_mpi() {
        return;
    }
    let mut dir = machine_with_nccl(4, VERSION);
    train(&dir, "alone", "1", &[], &[]).expect(0);
    dir.variables.push(("STRATUS_EMULATED_NCCL_FAILURE", OsString::from("0")));
    let ran = train(&dir, "joined", "1", &[], &["--workers", "4"]).expect(0);
    let line = exchange_line(&ran.err);
    assert!(line.contains("through host memory: NCCL 2.27.5: "), "{line}");
    assert!(line.ends_with("this GPU cannot join others"), "{line}");
    assert!(RunResult::read(&dir.path("joined")) == RunResult::read(&dir.path("alone")));
    let refused = train(&dir, "fast", "1", &FAST, &["--workers", "4"]).expect(2);
    assert_eq!(refused.err.matches("train.exchange = \"fast\" cannot be used").count(), 1, "{}", refused.err);
}

/// Two equal runs have the same bits here, but not those of exact sums.
#[test]
fn fast_sums_are_announced_and_recorded() {
    if !has_mpi() {
        return;
    }
    let dir = machine_with_nccl(4, VERSION);
    let four = ["--workers", "4"];
    train(&dir, "exact", "2", &[], &four).expect(0);
    for out in ["first", "second"] {
        let ran = train(&dir, out, "2", &FAST, &four).expect(0);
        let line = exchange_line(&ran.err);
        assert!(line.contains("NCCL 2.27.5; NCCL chooses the order of sums: results depend on"), "{line}");
    }
    let first = RunResult::read(&dir.path("first"));
    assert!(RunResult::read(&dir.path("second")) == first);
    assert!(RunResult::read(&dir.path("exact")).weights != first.weights);
    let recorded = fs::read_to_string(dir.path("first/experiment.toml")).unwrap();
    assert!(recorded.contains("exchange = \"fast\""), "{recorded}");
    train(&dir, "moved", "2", &FAST, &[&four[..], &["--until-epoch", "1"]].concat()).expect(0);
    let ran = dir.run(&["train", "moved", "--workers", "2"]).expect(0);
    let warning = "resuming with 2 workers instead of 4: with train.exchange = \"fast\" results depend on";
    assert!(ran.err.contains(warning), "{}", ran.err);
    let both = ["train.exchange=fast", "train.exchange_type=bf16"];
    let ran = train(&dir, "both", "1", &both, &four).expect(0);
    assert!(ran.err.contains("sent as bf16, and NCCL chooses the order"), "{}", ran.err);
    let ran = train(&dir, "one", "1", &both, &[]).expect(0);
    for key in ["train.exchange = \"fast\"", "train.exchange_type = \"bf16\""] {
        assert!(ran.err.contains(&format!("{key} has no effect with one worker")), "{}", ran.err);
    }
}

#[test]
fn workers_on_cpus_refuse_fast_sums() {
    if !has_mpi() {
        return;
    }
    let dir = TestDir::new();
    let more = ["--set", "train.exchange=fast", "--workers", "2"];
    let refused = super::train(&dir, "refused", 1, &more).expect(2);
    let message = "train.exchange = \"fast\" cannot be used: workers on CPUs do not use NCCL";
    assert_eq!(refused.err.matches(message).count(), 1, "{}", refused.err);
    assert!(!dir.path("refused").exists());
    let plan = ["plan", "digits", "--set", "data.name=synthetic", "--set", "data.synthetic.images=64"];
    let planned = dir.run(&[&plan[..], &["--set", "train.batch_size=32"], &more].concat()).expect(0);
    assert_eq!(planned.err.matches(message).count(), 1, "{}", planned.err);
}

/// The other GPUs of a lost one do not wait for it.
#[test]
fn a_lost_gpu_ends_direct_sums() {
    if !has_mpi() {
        return;
    }
    let mut dir = machine_with_nccl(4, VERSION);
    train(&dir, "alone", "2", &[], &[]).expect(0);
    let alone = RunResult::read(&dir.path("alone"));
    for (rank, workers, runs) in [(1, "2", "8"), (0, "4", "7")] {
        let name = format!("failed-{rank}");
        dir.variables.push(("STRATUS_EMULATED_GPU_FAILURE", OsString::from(format!("{rank}:{runs}"))));
        let ran = train(&dir, &name, "2", &[], &["--workers", workers]).expect(75);
        dir.variables.pop();
        assert_eq!(ran.err.matches(&format!("worker {rank} on ")).count(), 1, "{}", ran.err);
        assert_eq!(ran.err.matches("the emulation failed: the GPU is lost").count(), 1, "{}", ran.err);
        dir.run(&["train", &name, "--workers", workers]).expect(0);
        assert!(RunResult::read(&dir.path(&name)) == alone, "{name}");
    }
}
