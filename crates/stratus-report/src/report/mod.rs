//! What a report says, as data: everything that the page, the tables and the JSON document show.
//!
//! A run is read once, in a stream: curves keep a bounded number of points whatever the run's length. A run
//! that cannot be read becomes a [`Problem`]; the others are reported all the same.

mod advice;
mod against;
mod compare;
mod cost;
mod curves;
mod diff;
mod memory;
mod statistics;
mod usage;

pub use against::{Against, AgainstRow, Published, Reference};
pub use compare::{Comparison, ComparisonRow, Repetitions};
pub(crate) use compare::{differing, flatten, is_place, settings, settle_rate};
pub use cost::{LayerWork, Peaks, Point, Work};
pub use curves::{Curve, Curves, LayerCurve};
pub use diff::{Change, Diff, LayerDiff, Per, PhaseDiff};
pub use memory::{Block, BlockKind, MemoryMap};
pub use usage::UsageCurves;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde::Serialize;
use stratus_run::RunDir;
use stratus_run::csv::{CsvReader, EpochRow, Task};
use stratus_run::machine::Machine;
use stratus_run::summary::Status;

use crate::Result;
use crate::accounting::{Accounting, Options};
use crate::collect::Experiment;

/// The report on one or several runs.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// Runs that could be read, in the order they were given.
    pub runs: Vec<RunReport>,
    /// How they compare; none of a single run.
    pub comparison: Option<Comparison>,
    /// What became faster or slower from the first run to the second, where that was asked for.
    pub diff: Option<Diff>,
    /// Published figures beside those of the runs, where a table of them was given.
    pub against: Option<Against>,
    /// Runs that could not be read, or parts of runs.
    pub problems: Vec<Problem>,
}

/// Something that is missing from a report, and why.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Problem {
    /// The run directory.
    pub run: PathBuf,
    /// What is missing.
    pub what: String,
    /// Why.
    pub reason: String,
}

/// The report on one run.
#[derive(Clone, Debug, Serialize)]
pub struct RunReport {
    /// A name that no other run of the report has: the shortest end of its path that tells it apart.
    pub label: String,
    /// Configuration, machine, summary, progress.
    pub experiment: Experiment,
    /// Where the time went, in one sentence.
    pub headline: String,
    /// What the network learns to say of an image.
    pub task: Task,
    /// Where the time of an iteration went.
    pub accounting: Accounting,
    /// Epoch by epoch.
    pub epochs: Vec<Epoch>,
    /// Loss, accuracy and times over the iterations.
    pub curves: Curves,
    /// Arithmetic and memory traffic per layer; none where the plan cannot be read.
    pub work: Option<Work>,
    /// Memory over one iteration; none where the plan cannot be read.
    pub memory: Option<MemoryMap>,
    /// How the machine was used; none of a run that sampled nothing.
    pub usage: Option<UsageCurves>,
    /// What to try next, the most promising first.
    pub advice: Vec<String>,
}

/// A row of `epochs.csv`.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Epoch {
    /// The epoch, from 1.
    pub epoch: u32,
    /// The epoch's last iteration, where `iterations.csv` has it.
    pub last_iteration: Option<u64>,
    /// Mean loss over the epoch's iterations.
    pub train_loss: f64,
    /// Share of right answers over the epoch's iterations: of samples, or of their pixels.
    pub train_accuracy: f64,
    /// Loss on the validation data, where it was measured.
    pub val_loss: Option<f64>,
    /// Share of right answers on the validation data, where it was measured.
    pub val_accuracy: Option<f64>,
    /// What runs of the task are compared by, where it was measured: the share of right answers, or of
    /// segmentation mean IoU.
    pub val_score: Option<f64>,
    /// Seconds since the run began.
    pub elapsed_s: f64,
}

impl Epoch {
    fn of(task: Task, row: EpochRow) -> Self {
        let EpochRow { epoch, train_loss, train_accuracy, val_loss, val_accuracy, elapsed_s, .. } = row;
        let val_score = match task {
            Task::Classification => val_accuracy,
            Task::Segmentation => row.val_miou,
        };
        let last_iteration = None;
        Self {
            epoch,
            last_iteration,
            train_loss,
            train_accuracy,
            val_loss,
            val_accuracy,
            val_score,
            elapsed_s,
        }
    }
}

/// What runs of a task are compared by.
#[must_use]
pub fn score_name(task: Task) -> &'static str {
    match task {
        Task::Classification => "top-1",
        Task::Segmentation => "mean IoU",
    }
}

impl Report {
    /// Reads the runs in `paths`. `skip` first iterations are left out of mean times, or
    /// [`crate::default_skip`]. `here` is a machine whose peaks are known: they stand in for those that a run
    /// on it did not record.
    ///
    /// What cannot be read is a [`Problem`] of the report, not an error.
    #[must_use]
    pub fn of(paths: &[PathBuf], skip: Option<u64>, here: Option<&Machine>) -> Self {
        let (mut runs, mut problems) = (Vec::new(), Vec::new());
        for (path, label) in paths.iter().zip(labels(paths)) {
            match RunReport::of(path, label, skip, here, &mut problems) {
                Ok(run) => runs.push(run),
                Err(error) => problems.push(Problem {
                    run: path.clone(),
                    what: "the run".to_owned(),
                    reason: error.to_string(),
                }),
            }
        }
        let comparison = (runs.len() > 1).then(|| Comparison::of(&runs));
        Self { runs, comparison, diff: None, against: None, problems }
    }

    /// Holds published figures against the runs.
    pub fn hold_against(&mut self, reference: &Reference) {
        self.against = Some(Against::of(reference, &self.runs));
    }

    /// Compares the times of two runs, layer by layer, `skip` first iterations left out. A timeline that
    /// cannot be read is a [`Problem`]; of another number of runs there is nothing to compare.
    pub fn compare_times(&mut self, skip: Option<u64>) {
        let [before, after] = &self.runs[..] else { return };
        match Diff::of(before, after, skip) {
            Ok(diff) => self.diff = Some(diff),
            Err(error) => self.problems.push(Problem {
                run: after.experiment.path.clone(),
                what: "the difference of times".to_owned(),
                reason: error.to_string(),
            }),
        }
    }
}

impl RunReport {
    fn of(
        path: &Path,
        label: String,
        skip: Option<u64>,
        here: Option<&Machine>,
        problems: &mut Vec<Problem>,
    ) -> Result<Self> {
        let run = RunDir::open(path)?;
        let experiment = Experiment::of(&run, skip)?;
        let mut missing = |what: &str, reason: String| {
            problems.push(Problem { run: path.to_owned(), what: what.to_owned(), reason });
        };
        let accounting = Accounting::of(&run, &Options { skip }).unwrap_or_else(|error| {
            missing("times per layer", error.to_string());
            Accounting::default()
        });
        let (task, mut epochs) = read_epochs(&run).unwrap_or_else(|error| {
            missing("epochs", error.to_string());
            (Task::default(), Vec::new())
        });
        let curves = Curves::of(&run, &accounting).unwrap_or_else(|error| {
            missing("curves over the iterations", error.to_string());
            Curves::default()
        });
        for epoch in &mut epochs {
            epoch.last_iteration = curves.epoch_ends.get(&epoch.epoch).copied();
        }
        let peaks = experiment.machine.as_ref().map(|machine| peaks(machine, here)).unwrap_or_default();
        let (work, memory) = match cost::read_plan(&run) {
            Ok(plan) => {
                let work = Work::of(&plan, &accounting, peaks);
                (Some(work), Some(MemoryMap::of(&plan)))
            }
            Err(reason) => {
                missing("arithmetic, roofline and memory per layer", reason);
                (None, None)
            }
        };
        let usage = UsageCurves::of(&run).unwrap_or_else(|error| {
            missing("usage of the machine", error.to_string());
            None
        });
        let headline = advice::headline(&accounting);
        let mut report = Self {
            label,
            experiment: experiment.without_identity(),
            headline,
            task,
            accounting,
            epochs,
            curves,
            work,
            memory,
            usage,
            advice: Vec::new(),
        };
        report.advice = advice::advice(&report);
        Ok(report)
    }

    /// Whether more may still be written to the run.
    #[must_use]
    pub fn is_running(&self) -> bool {
        self.experiment.status == Status::Running
    }
}

/// A run's epochs, and the task that their columns belong to.
fn read_epochs(run: &RunDir) -> Result<(Task, Vec<Epoch>)> {
    let rows = CsvReader::<EpochRow>::open(&run.epochs())?;
    let task = rows.task();
    let epochs = rows.map(|row| row.map(|row| Epoch::of(task, row))).collect::<stratus_run::Result<_>>()?;
    Ok((task, epochs))
}

/// The peaks that a run recorded, else those of the same machine.
fn peaks(machine: &Machine, here: Option<&Machine>) -> Peaks {
    let recorded = Peaks::of(machine);
    let is_same = |here: &&Machine| {
        machine.identity.uuid.is_some()
            && machine.identity == here.identity
            && machine.cpu.model == here.cpu.model
    };
    match here.filter(is_same) {
        Some(here) if recorded == Peaks::default() => Peaks::of(here),
        _ => recorded,
    }
}

/// For each path the shortest end of it, in whole names, that no other path has.
fn labels(paths: &[PathBuf]) -> Vec<String> {
    let names = |path: &Path| -> Vec<String> {
        let path = path.canonicalize().unwrap_or_else(|_| path.to_owned());
        path.iter().map(|name| name.to_string_lossy().into_owned()).collect()
    };
    let all: Vec<Vec<String>> = paths.iter().map(|path| names(path)).collect();
    let end = |names: &[String], length: usize| names[names.len() - length.min(names.len())..].join("/");
    let longest = all.iter().map(Vec::len).max().unwrap_or(0);
    let mut labels: Vec<String> = all.iter().map(|names| end(names, 2)).collect();
    for length in 3..=longest {
        let mut uses: BTreeMap<&str, usize> = BTreeMap::new();
        for label in &labels {
            *uses.entry(label).or_default() += 1;
        }
        let shared: Vec<bool> = labels.iter().map(|label| uses[label.as_str()] > 1).collect();
        if !shared.contains(&true) {
            break;
        }
        for ((label, names), _) in labels.iter_mut().zip(&all).zip(&shared).filter(|(_, shared)| **shared) {
            *label = end(names, length);
        }
    }
    labels
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_tell_runs_apart() {
        let paths = ["/a/runs/digits/1", "/b/runs/digits/1", "/b/runs/digits/2"].map(PathBuf::from);
        assert_eq!(labels(&paths), ["a/runs/digits/1", "b/runs/digits/1", "digits/2"]);
        assert_eq!(labels(&[PathBuf::from("/digits")]), ["//digits"]);
    }
}
