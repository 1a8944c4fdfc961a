//! The same bits on any number of workers, by network and number format: a classifier of real digits, a
//! residual network, and networks that give a class for every pixel.

use super::has_mpi;
use super::kills::{iterations, rank_of, signal, wait_until, workers_of};
use crate::common::{Place, Ran, root, rows, streets, summary};
use std::fs;
use std::path::Path;
use std::process::Stdio;

/// A network, and what a training of it is told.
struct Case {
    network: &'static str,
    settings: &'static [&'static str],
}

/// An epoch of 59 batches, of which the last is smaller.
const DIGITS: Case = Case {
    network: "digits",
    settings: &["train.batch_size=1024", "train.epochs=1", "checkpoint.every_seconds=0.05"],
};

/// Two epochs of 3 batches of 32 images and a smaller one, 2 for a part.
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

/// Two images for a part; an epoch has two batches.
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

/// What must not depend on the number of workers: weights, and the rows of each table but for times.
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

/// A training in eight parts, in a place of its own.
struct Trained<'a> {
    place: Place,
    case: &'a Case,
    precision: &'a str,
}

impl<'a> Trained<'a> {
    fn new(case: &'a Case, precision: &'a str) -> Self {
        let place = Place::bare();
        streets::streets_of(&place, 32, 8);
        Self { place, case, precision }
    }

    /// The arguments that begin the run, or go on with it.
    fn arguments(&self, run: &str, workers: usize, more: &[&str]) -> Vec<String> {
        let mut arguments = vec!["train".to_owned()];
        if self.place.path(run).is_dir() {
            arguments.push(run.to_owned());
        } else {
            let own = [
                format!("train.precision={}", self.precision),
                format!("data.path={}", root().join("data/mnist").display()),
            ];
            let settings = ["train.parts=8", "train.threads=1", &own[0], &own[1]];
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
        self.place.run(&arguments.iter().map(String::as_str).collect::<Vec<_>>()).expect(0);
        result(&self.place.path(run))
    }

    /// Kills the last worker once so many iterations are written down.
    fn kill_after(&self, run: &str, workers: usize, more: &[&str], target: u64) {
        let mut command = self.place.command(&[]);
        command.args(self.arguments(run, workers, more)).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let path = self.place.path(run);
        let going = wait_until(&mut child, || iterations(&path) >= target);
        let all = workers_of(child.id());
        let last = all.into_iter().find(|&pid| rank_of(pid) == Some(workers - 1));
        if let (true, Some(pid)) = (going, last) {
            signal(pid, "KILL");
        }
        let ran = Ran::of(child.wait_with_output().unwrap()).expect(75);
        assert!(
            ran.err.contains(&format!("worker {} on this machine was killed", workers - 1)),
            "{}",
            ran.err
        );
    }
}

/// One process, and as many workers as are named, end alike.
fn the_same_on(case: &Case, precision: &str, workers: &[usize], more: &[&str]) {
    let trained = Trained::new(case, precision);
    let alone = trained.train("alone", 1, more);
    for &workers in workers {
        let shared = trained.train(&format!("on{workers}"), workers, more);
        assert_eq!(shared, alone, "{} in {precision} on {workers} workers", case.network);
    }
}

/// A run that is killed on eight workers and on two, and ends on four.
fn the_same_after_kills(case: &Case, precision: &str) {
    let trained = Trained::new(case, precision);
    let alone = trained.train("alone", 1, &[]);
    trained.kill_after("moved", 8, &[], 2);
    trained.kill_after("moved", 2, &[], 4);
    assert_eq!(trained.train("moved", 4, &[]), alone, "{} in {precision}, continued", case.network);
}

/// A class for every pixel, in bf16: what was counted of pixels and boundaries is put together.
#[test]
fn a_segmentation_network_gives_the_same_bits() {
    if has_mpi() {
        the_same_on(&ERFNET, "bf16", &[2, 4], &["model.width=4"]);
    }
}

#[test]
#[ignore = "takes minutes; in `make test-all`"]
fn every_network_gives_the_same_bits_in_every_format() {
    if !has_mpi() {
        return;
    }
    for case in [&DIGITS, &RESNET18, &FCN, &ERFNET] {
        for precision in ["f32", "bf16"] {
            the_same_on(case, precision, &[2, 4, 8], &[]);
            the_same_after_kills(case, precision);
            eprintln!(
                "{} in {precision}: 1, 2, 4 and 8 workers, and killed on 8, on 2, ended on 4: the same",
                case.network
            );
        }
    }
}
