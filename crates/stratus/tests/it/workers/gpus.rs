//! Several workers on emulated GPUs: real processes that exchange sums and messages as on GPUs, whose kernels
//! run on the CPU.

use super::has_mpi;
use super::kills::{EXIT_TIMEOUT, failures, print_times};
use crate::common::tiny::{self, write_data};
use crate::common::{CommandOutput, RunResult, TestDir};
use std::ffi::OsString;
use std::fs;
use std::time::SystemTime;

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

    let synchronised = ["train.synchronise_batch_norm=true"];
    train(&dir, "synchronised", "1", &synchronised, &[]).expect(0);
    train(&dir, "synchronised-4", "1", &synchronised, &["--workers", "4"]).expect(0);
    let result = RunResult::read(&dir.path("synchronised-4"));
    assert!(result == RunResult::read(&dir.path("synchronised")));

    let recipe = ["train.precision=bf16", "train.ema_decay=0.9", "train.clip_norm=0.5"];
    train(&dir, "recipe", "1", &recipe, &[]).expect(0);
    train(&dir, "recipe-4", "1", &recipe, &["--workers", "4"]).expect(0);
    assert!(RunResult::read(&dir.path("recipe-4")) == RunResult::read(&dir.path("recipe")));
}

/// The plan of a GPU's worker has the exchange, and the pinned memory through which it is copied.
#[test]
fn plan_counts_the_pinned_memory_of_a_gpu() {
    let dir = machine(4);
    let plan = |settings: &[&str], more: &[&str]| -> serde_json::Value {
        let settings = [&PARTS[..], settings].concat();
        let arguments = tiny::arguments(&["plan", "tiny.toml", "--json"], &settings);
        serde_json::from_str(&dir.run(&[&arguments[..], more].concat()).expect(0).out).unwrap()
    };
    let shared = plan(&[], &["--workers", "4"])["shared"].clone();
    let number = |key: &str| shared[key].as_u64().unwrap();
    assert!(number("exchanged_bytes") > 0, "{shared}");
    assert_eq!(number("sent_bytes"), 2 * (number("exchanged_bytes") - number("exchanged_bytes") / 4));
    // Every bucket of the batch, and of the last one of an epoch, if that is smaller.
    let buckets = number("pinned_bytes") / number("exchanged_bytes");
    assert!((1..=2).contains(&buckets), "{shared}");
    // They may also be summed by the GPUs, in 1.5 times the largest one.
    let sizes = shared["buckets"].as_array().unwrap().iter().map(|bucket| bucket["bytes"].as_u64().unwrap());
    assert!(number("direct_sum_bytes") >= sizes.max().unwrap() * 3 / 2, "{shared}");
    // Two pipelines of two stages: times are estimated, and values are copied in both directions.
    let pipelines = plan(&["train.stages=2"], &["--workers", "4"]);
    for stage in pipelines["stages"].as_array().unwrap() {
        assert!(stage["time_share"].is_null() && stage["pinned_bytes"].as_u64() > Some(0), "{stage}");
        assert!(stage["exchange"]["bytes"].as_u64() > Some(0), "{stage}");
    }
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

/// `train.parts` is the number of workers unless it is set, with stages too, in `plan` and in `train`.
#[test]
fn stages_without_parts_have_one_part_per_worker() {
    if !has_mpi() {
        return;
    }
    let dir = machine(2);
    let settings = ["train.device=gpu", "train.precision=f32", "train.stages=2"];
    for command in [&["plan", "tiny.toml"][..], &["train", "tiny.toml", "--out", "run", "--epochs", "1"]] {
        dir.run(&[&tiny::arguments(command, &settings)[..], &["--workers", "2"]].concat()).expect(0);
    }
    let experiment = fs::read_to_string(dir.path("run/experiment.toml")).unwrap();
    assert!(experiment.lines().any(|line| line == "parts = 2"), "{experiment}");
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

/// With GPUs of different kinds, the worker with the oldest chooses the kernels of all, which is reported
/// once. Of the same generation, it is the slowest.
#[test]
fn worker_with_the_oldest_gpu_chooses_the_kernels() {
    if !has_mpi() {
        return;
    }
    let mut dir = machine(1);
    for (gpus, oldest) in [("8,4", 1), ("4,8", 0)] {
        dir.variables.push(("STRATUS_EMULATED_GPUS", OsString::from(gpus)));
        let ran = train(&dir, gpus, "1", &[], &["--workers", "2"]).expect(0);
        dir.variables.pop();
        let message = format!("worker {oldest} has the oldest, so it chooses the kernels of all");
        assert_eq!(ran.err.replace("\n  ", " ").matches(&message).count(), 1, "{}", ran.err);
        assert!(ran.err.contains("emulated with 8 multiprocessors"), "{}", ran.err);
    }
}

/// A worker whose GPU fails is named with the driver's error; the run can be resumed, with fewer GPUs too.
/// `STRATUS_KILLS` is the number of failures.
#[test]
fn a_lost_gpu_is_named_and_the_run_resumes() {
    if !has_mpi() {
        return;
    }
    let mut dir = machine(4);
    train(&dir, "alone", "2", &[], &[]).expect(0);
    let alone = RunResult::read(&dir.path("alone"));
    // Runs of programs: five iterations of an epoch, and the first of the next.
    let cases = [(1, "2", "8"), (0, "2", "8"), (3, "4", "7"), (2, "4", "3"), (0, "4", "5")];
    let mut times = Vec::new();
    for (number, (rank, workers, runs)) in (0..failures()).zip(cases.into_iter().cycle()) {
        let name = format!("failed-{number}");
        dir.variables.push(("STRATUS_EMULATED_GPU_FAILURE", OsString::from(format!("{rank}:{runs}"))));
        let ran = train(&dir, &name, "2", &[], &["--workers", workers]).expect(75);
        // The last row is written before the failure.
        let last_row = fs::metadata(dir.path(&name).join("iterations.csv")).unwrap().modified().unwrap();
        let ended = SystemTime::now().duration_since(last_row).unwrap_or_default();
        assert!(ended < EXIT_TIMEOUT, "{ended:?}");
        times.push(ended);
        dir.variables.pop();
        let host = fs::read_to_string("/proc/sys/kernel/hostname").unwrap();
        let named = format!("worker {rank} on {}: ", host.trim());
        assert_eq!(ran.err.matches(&named).count(), 1, "{named}: {}", ran.err);
        assert_eq!(ran.err.matches("the emulation failed: the GPU is lost").count(), 1, "{}", ran.err);
        assert!(ran.err.contains("resume the run from its last checkpoint"), "{}", ran.err);
        dir.run(&["train", &name, "--workers", "2"]).expect(0);
        assert!(RunResult::read(&dir.path(&name)) == alone, "{name}");
    }
    print_times("a lost GPU", times);
}

/// An error that the devices of all workers have is no loss of one: it has its own exit code, and is printed
/// once.
#[test]
fn error_of_all_gpus_exits_with_1() {
    if !has_mpi() {
        return;
    }
    let mut dir = machine(4);
    dir.variables.push(("STRATUS_EMULATED_GPU_FAILURE", OsString::from("all:3")));
    let ran = train(&dir, "failed", "2", &[], &["--workers", "4"]).expect(1);
    assert_eq!(ran.err.matches("the emulation failed: the GPU is lost").count(), 1, "{}", ran.err);
    assert!(!ran.err.contains("resume the run"), "{}", ran.err);
}
