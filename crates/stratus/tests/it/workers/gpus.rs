//! Several workers on emulated GPUs: real processes that exchange sums and messages as on GPUs, whose kernels
//! run on the CPU.

use super::has_mpi;
use crate::common::tiny::{self, write_data};
use crate::common::{CommandOutput, RunResult, TestDir};
use std::ffi::OsString;
use std::fs;

const PARTS: [&str; 3] = ["train.parts=8", "train.device=gpu", "train.precision=f32"];

/// A folder with the tiny network and its images, on a machine with `gpus` emulated GPUs.
pub(super) fn machine(gpus: u32) -> TestDir {
    let mut dir = TestDir::without_kernel_cache();
    dir.variables.push(("STRATUS_EMULATED_GPUS", OsString::from(gpus.to_string())));
    write_data(&dir.path("data"));
    fs::write(dir.path("tiny.toml"), tiny::NET).unwrap();
    dir
}

/// Trains the tiny network.
pub(super) fn train(
    dir: &TestDir,
    out: &str,
    epochs: &str,
    settings: &[&str],
    more: &[&str],
) -> CommandOutput {
    let command = ["train", "tiny.toml", "--out", out, "--epochs", epochs];
    let settings = [&PARTS[..], settings].concat();
    dir.run(&[&tiny::arguments(&command, &settings)[..], more].concat())
}

/// Trains on one, two, four and eight GPUs; a run that is stopped on eight and ends on two; and with averaged
/// weights, clipping and bf16.
#[test]
fn gpu_count_does_not_change_the_bits() {
    if !has_mpi() {
        return;
    }
    let dir = machine(8);
    train(&dir, "alone", "2", &[], &[]).expect(0);
    let alone = RunResult::read(&dir.path("alone"));
    for workers in ["2", "4", "8"] {
        let ran = train(&dir, workers, "2", &[], &["--workers", workers]).expect(0);
        assert!(ran.out.contains("exchange with other workers"), "{}", ran.out);
        assert!(!ran.err.contains(" share one GPU"), "{}", ran.err);
        assert!(RunResult::read(&dir.path(workers)) == alone, "{workers} GPUs");
    }
    train(&dir, "moved", "2", &[], &["--workers", "8", "--until-epoch", "1"]).expect(0);
    dir.run(&["train", "moved", "--workers", "2"]).expect(0);
    assert!(RunResult::read(&dir.path("moved")) == alone, "from eight GPUs to two");

    let recipe = ["train.precision=bf16", "train.ema_decay=0.9", "train.clip_norm=0.5"];
    train(&dir, "recipe", "1", &recipe, &[]).expect(0);
    train(&dir, "recipe-4", "1", &recipe, &["--workers", "4"]).expect(0);
    assert!(RunResult::read(&dir.path("recipe-4")) == RunResult::read(&dir.path("recipe")));
}

/// Stages and pipelines of stages: labels and activations travel between GPUs.
#[test]
fn stages_on_gpus_do_not_change_the_bits() {
    if !has_mpi() {
        return;
    }
    let dir = machine(4);
    train(&dir, "alone", "2", &[], &[]).expect(0);
    let alone = RunResult::read(&dir.path("alone"));
    for workers in ["2", "4"] {
        train(&dir, workers, "2", &["train.stages=2"], &["--workers", workers]).expect(0);
        assert!(RunResult::read(&dir.path(workers)) == alone, "{workers} GPUs");
    }
}

/// Two workers of one GPU take turns, which is reported once.
#[test]
fn workers_may_share_a_gpu() {
    if !has_mpi() {
        return;
    }
    let dir = machine(1);
    train(&dir, "alone", "1", &[], &[]).expect(0);
    let ran = train(&dir, "two", "1", &[], &["--workers", "2"]).expect(0);
    let message = "2 workers share one GPU";
    assert_eq!(ran.err.matches(message).count(), 1, "{}", ran.err);
    assert!(RunResult::read(&dir.path("two")) == RunResult::read(&dir.path("alone")));
}

/// A worker whose GPU fails is named with the driver's error; the run can be resumed, with fewer GPUs too.
#[test]
fn a_lost_gpu_is_named_and_the_run_resumes() {
    if !has_mpi() {
        return;
    }
    let mut dir = machine(4);
    train(&dir, "alone", "2", &[], &[]).expect(0);
    let alone = RunResult::read(&dir.path("alone"));
    // Runs of programs: five iterations of an epoch, and the first of the next.
    for (rank, workers, runs) in [(1, "2", "8"), (0, "2", "8"), (3, "4", "7")] {
        let name = format!("failed-{rank}-{workers}");
        dir.variables.push(("STRATUS_EMULATED_GPU_FAILURE", OsString::from(format!("{rank}:{runs}"))));
        let ran = train(&dir, &name, "2", &[], &["--workers", workers]).expect(75);
        dir.variables.pop();
        assert_eq!(ran.err.matches(&format!("worker {rank} on ")).count(), 1, "{}", ran.err);
        assert_eq!(ran.err.matches("the emulation failed: the GPU is lost").count(), 1, "{}", ran.err);
        assert!(ran.err.contains("resume the run from its last checkpoint"), "{}", ran.err);
        dir.run(&["train", &name, "--workers", "2"]).expect(0);
        assert!(RunResult::read(&dir.path(&name)) == alone, "{name}");
    }
}
