//! Bit-identical results on any number of workers, by network and precision: a classifier of real digits, a
//! residual network and segmentation networks.

use super::has_mpi;
use super::kills::{iterations, rank_of, signal, wait_until, workers_of};
use crate::common::{CommandOutput, TestDir, digits, has_precision, rows, streets, summary};
use std::fs;
use std::path::Path;
use std::process::Stdio;

/// A network and its settings.
struct Case {
    network: &'static str,
    settings: &'static [&'static str],
}

/// An epoch of 59 batches, the last one smaller.
const DIGITS: Case = Case {
    network: "digits",
    settings: &["train.batch_size=256", "train.epochs=1", "checkpoint.every_seconds=0.05"],
};

/// Two epochs of 3 batches of 32 images and a smaller one; 2 images per part.
const RESNET18: Case = Case {
    network: "resnet18",
    settings: &[
        "data.name=synthetic",
        "data.shape=[3, 64, 64]",
        "data.synthetic.images=112",
        "data.synthetic.validation_images=18",
        "train.batch_size=32",
        "validation.batch_size=2",
        "train.epochs=2",
        "checkpoint.every_seconds=0.01",
    ],
};

/// Two images per part; an epoch has two batches.
const STREETS: [&str; 8] = [
    "data.name=camvid",
    "data.path=set",
    "data.shape=[3, 24, 32]",
    "train.batch_size=16",
    "train.class_weighting=median_frequency",
    "validation.batch_size=1",
    "train.epochs=4",
    "checkpoint.every_seconds=0.01",
];
const ERFNET: Case = Case { network: "erfnet", settings: &STREETS };
const FCN: Case = Case { network: "fcn_resnet18", settings: &STREETS };

/// The parts of a run that must not depend on the number of workers: weights, and tables without times.
fn result(run: &Path) -> Vec<String> {
    let summary = summary(run);
    assert_eq!(summary["status"], "completed", "{summary}");
    let mut result = vec![summary["weights_sha256"].as_str().unwrap().to_owned()];
    for table in ["iterations.csv", "epochs.csv", "classes.csv"] {
        let path = run.join(table);
        let text = fs::read_to_string(&path).unwrap();
        let header = text.lines().next().unwrap();
        result.push(header.to_owned());
        result.extend(rows(&path, header));
    }
    result
}

/// Training in eight parts, in a separate folder.
struct TrainedCase<'a> {
    dir: TestDir,
    case: &'a Case,
    precision: &'a str,
}

impl<'a> TrainedCase<'a> {
    fn new(case: &'a Case, precision: &'a str) -> Self {
        let dir = TestDir::without_kernel_cache();
        streets::write_streets_with(&dir, 32, 8);
        Self { dir, case, precision }
    }

    /// The arguments that start or resume the run.
    fn arguments(&self, run: &str, workers: usize, more: &[&str]) -> Vec<String> {
        let mut arguments = vec!["train".to_owned()];
        if self.dir.path(run).is_dir() {
            arguments.push(run.to_owned());
        } else {
            let own =
                [format!("train.precision={}", self.precision), format!("data.path={}", digits().display())];
            let settings = ["train.parts=8", "train.threads=1", "data.verify=false", &own[0], &own[1]];
            let settings = settings.iter().chain(self.case.settings).chain(more);
            arguments.extend([self.case.network, "--out", run].map(str::to_owned));
            arguments.extend(settings.flat_map(|setting| ["--set".to_owned(), (*setting).to_owned()]));
        }
        if workers > 1 {
            arguments.extend(["--workers".to_owned(), workers.to_string()]);
        }
        arguments
    }

    fn train(&self, run: &str, workers: usize, more: &[&str]) -> Vec<String> {
        let arguments = self.arguments(run, workers, more);
        self.dir.run(&arguments.iter().map(String::as_str).collect::<Vec<_>>()).expect(0);
        result(&self.dir.path(run))
    }

    /// Kills the last worker once `target` iterations are recorded.
    fn kill_after(&self, run: &str, workers: usize, more: &[&str], target: u64) {
        let mut command = self.dir.command(&[]);
        command.args(self.arguments(run, workers, more)).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let path = self.dir.path(run);
        let going = wait_until(&mut child, || iterations(&path) >= target);
        let all = workers_of(child.id());
        let last = all.into_iter().find(|&pid| rank_of(pid) == Some(workers - 1));
        if let (true, Some(pid)) = (going, last) {
            signal(pid, "KILL");
        }
        let ran = CommandOutput::new(child.wait_with_output().unwrap()).expect(75);
        assert!(
            ran.err.contains(&format!("worker {} on this machine was killed", workers - 1)),
            "{}",
            ran.err
        );
    }
}

/// Checks that one process and each number of workers have the same result.
fn assert_bit_identical(case: &Case, precision: &str, workers: &[usize], more: &[&str]) {
    let trained = TrainedCase::new(case, precision);
    let alone = trained.train("alone", 1, more);
    for &workers in workers {
        let shared = trained.train(&format!("on{workers}"), workers, more);
        assert_eq!(shared, alone, "{} in {precision} on {workers} workers", case.network);
    }
}

/// Checks a run that is killed on eight workers and on two, and completes on four.
fn assert_bit_identical_after_kills(case: &Case, precision: &str) {
    let trained = TrainedCase::new(case, precision);
    let alone = trained.train("alone", 1, &[]);
    trained.kill_after("moved", 8, &[], 2);
    trained.kill_after("moved", 2, &[], 4);
    assert_eq!(trained.train("moved", 4, &[]), alone, "{} in {precision}, continued", case.network);
}

/// In bf16 if the processor computes in it; counts of pixels and boundaries are summed over workers.
#[test]
fn segmentation_network_is_bit_identical_on_any_worker_count() {
    if has_mpi() {
        let precision = if has_precision("bf16") { "bf16" } else { "f32" };
        assert_bit_identical(&ERFNET, precision, &[2, 4], &["model.width=4"]);
    }
}

#[test]
#[ignore = "takes minutes; in `make test-all`"]
fn every_network_is_bit_identical_in_every_precision() {
    if !has_mpi() {
        return;
    }
    for case in [&DIGITS, &RESNET18, &FCN, &ERFNET] {
        for precision in ["f32", "bf16"].into_iter().filter(|precision| has_precision(precision)) {
            assert_bit_identical(case, precision, &[2, 4, 8], &[]);
            assert_bit_identical_after_kills(case, precision);
            eprintln!(
                "{} in {precision}: 1, 2, 4 and 8 workers, and killed on 8, on 2, ended on 4: the same",
                case.network
            );
        }
    }
}
