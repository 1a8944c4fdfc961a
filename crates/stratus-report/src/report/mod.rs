//! The content of a report as data, for the page, the tables and the JSON document.
//!
//! A run is streamed once: curves have a bounded number of points for any length of the run. A run that
//! cannot be read becomes a [`Problem`]; the others are reported nevertheless.

mod advice;
mod compare;
mod cost;
mod curves;
mod diff;
mod memory;
mod published;
mod statistics;
mod usage;

pub use compare::{Comparison, ComparisonRow, Repetitions};
pub(crate) use compare::{apply_batch_scaling, differing_keys, flatten, is_ignored_key, settings};
pub use cost::{LayerWork, Peaks, RooflineData, RooflinePoint};
pub use curves::{Curve, Curves, LayerCurve};
pub use diff::{Change, Diff, LayerDiff, PhaseDiff, TimeUnit};
pub use memory::{BlockKind, MemoryBlock, MemoryMap};
pub use published::{PublishedComparison, PublishedComparisonRow, PublishedFigure, PublishedTable};
pub use usage::UsageCurves;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde::Serialize;
use stratus_run::RunDir;
use stratus_run::csv::{CsvReader, EpochRow, Task};
use stratus_run::machine::Machine;
use stratus_run::summary::Status;

use crate::Result;
use crate::accounting::{Accounting, AccountingOptions};
use crate::collect::RunRecord;

/// The report on one or several runs.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// The readable runs, in the given order.
    pub runs: Vec<RunReport>,
    /// The comparison of several runs.
    pub comparison: Option<Comparison>,
    /// The time differences of the first two runs, if requested.
    pub diff: Option<Diff>,
    /// The comparison with published figures, if a table was given.
    #[serde(rename = "against")]
    pub published: Option<PublishedComparison>,
    /// Runs, or parts of runs, that could not be read.
    pub problems: Vec<Problem>,
}

/// Data that is missing from a report.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Problem {
    /// The run directory.
    pub run: PathBuf,
    /// The missing data.
    pub what: String,
    /// The reason.
    pub reason: String,
}

/// The report on one run.
#[derive(Clone, Debug, Serialize)]
pub struct RunReport {
    /// A unique name: the shortest distinguishing suffix of its path.
    pub label: String,
    /// Configuration, machine, summary, progress.
    #[serde(rename = "experiment")]
    pub record: RunRecord,
    /// A summary of the time of an iteration, in one sentence.
    pub headline: String,
    /// The task of the network.
    pub task: Task,
    /// The breakdown of the time of an iteration.
    pub accounting: Accounting,
    /// The epochs.
    pub epochs: Vec<Epoch>,
    /// Loss, accuracy and times over the iterations.
    pub curves: Curves,
    /// Arithmetic and memory traffic per layer; `None` if the plan cannot be read.
    pub work: Option<RooflineData>,
    /// Memory over an iteration; `None` if the plan cannot be read.
    pub memory: Option<MemoryMap>,
    /// Utilisation of the machine; `None` without samples.
    pub usage: Option<UsageCurves>,
    /// Suggestions, the most promising first.
    pub advice: Vec<String>,
}

/// A row of `epochs.csv`.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Epoch {
    /// The epoch, from 1.
    pub epoch: u32,
    /// The last iteration of the epoch, if `iterations.csv` has it.
    pub last_iteration: Option<u64>,
    /// Mean training loss of the epoch.
    pub train_loss: f64,
    /// Training accuracy of the epoch, of samples or pixels.
    pub train_accuracy: f64,
    /// Validation loss, if evaluated.
    pub val_loss: Option<f64>,
    /// Validation accuracy, if evaluated.
    pub val_accuracy: Option<f64>,
    /// The metric by which runs are compared, if evaluated: accuracy, or mean IoU for segmentation.
    pub val_score: Option<f64>,
    /// Seconds since the start of the run.
    pub elapsed_s: f64,
}

impl Epoch {
    fn from_row(task: Task, row: EpochRow) -> Self {
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

/// The metric by which runs of a task are compared.
#[must_use]
pub fn score_name(task: Task) -> &'static str {
    match task {
        Task::Classification => "top-1",
        Task::Segmentation => "mean IoU",
    }
}

impl Report {
    /// Reads the runs in `paths`. Mean times exclude the first `skip` iterations, or [`crate::default_skip`].
    /// `here` is a machine with known peaks, which replace those that a run on it did not record.
    ///
    /// Data that cannot be read becomes a [`Problem`] of the report, not an error.
    #[must_use]
    pub fn read(paths: &[PathBuf], skip: Option<u64>, here: Option<&Machine>) -> Self {
        let (mut runs, mut problems) = (Vec::new(), Vec::new());
        for (path, label) in paths.iter().zip(labels(paths)) {
            match RunReport::read(path, label, skip, here, &mut problems) {
                Ok(run) => runs.push(run),
                Err(error) => problems.push(Problem {
                    run: path.clone(),
                    what: "the run".to_owned(),
                    reason: error.to_string(),
                }),
            }
        }
        let comparison = (runs.len() > 1).then(|| Comparison::new(&runs));
        Self { runs, comparison, diff: None, published: None, problems }
    }

    /// Compares published figures with the runs.
    pub fn compare_with_published(&mut self, table: &PublishedTable) {
        self.published = Some(PublishedComparison::new(table, &self.runs));
    }

    /// Compares the times of two runs by layer, without the first `skip` iterations. A timeline that cannot
    /// be read becomes a [`Problem`]; for any other number of runs this does nothing.
    pub fn compare_times(&mut self, skip: Option<u64>) {
        let [before, after] = &self.runs[..] else { return };
        match Diff::between(before, after, skip) {
            Ok(diff) => self.diff = Some(diff),
            Err(error) => self.problems.push(Problem {
                run: after.record.path.clone(),
                what: "time differences".to_owned(),
                reason: error.to_string(),
            }),
        }
    }
}

impl RunReport {
    fn read(
        path: &Path,
        label: String,
        skip: Option<u64>,
        here: Option<&Machine>,
        problems: &mut Vec<Problem>,
    ) -> Result<Self> {
        let run = RunDir::open(path)?;
        let experiment = RunRecord::read(&run, skip)?;
        let mut missing = |what: &str, reason: String| {
            problems.push(Problem { run: path.to_owned(), what: what.to_owned(), reason });
        };
        let accounting = Accounting::for_run(&run, &AccountingOptions { skip }).unwrap_or_else(|error| {
            missing("times per layer", error.to_string());
            Accounting::default()
        });
        let (task, mut epochs) = read_epochs(&run).unwrap_or_else(|error| {
            missing("epochs", error.to_string());
            (Task::default(), Vec::new())
        });
        let curves = Curves::read(&run, &accounting).unwrap_or_else(|error| {
            missing("curves over the iterations", error.to_string());
            Curves::default()
        });
        for epoch in &mut epochs {
            epoch.last_iteration = curves.epoch_ends.get(&epoch.epoch).copied();
        }
        let peaks = experiment.machine.as_ref().map(|machine| peaks(machine, here)).unwrap_or_default();
        let (work, memory) = match cost::read_plan(&run) {
            Ok(plan) => {
                let work = RooflineData::new(&plan, &accounting, peaks);
                (Some(work), Some(MemoryMap::from_plan(&plan)))
            }
            Err(reason) => {
                missing("arithmetic, roofline and memory per layer", reason);
                (None, None)
            }
        };
        let usage = UsageCurves::read(&run).unwrap_or_else(|error| {
            missing("utilisation of the machine", error.to_string());
            None
        });
        let headline = advice::headline(&accounting);
        let mut report = Self {
            label,
            record: experiment.without_identity(),
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

    /// Returns whether the run is still being written.
    #[must_use]
    pub fn is_running(&self) -> bool {
        self.record.status == Status::Running
    }
}

/// The epochs of a run, and the task detected from their columns.
fn read_epochs(run: &RunDir) -> Result<(Task, Vec<Epoch>)> {
    let rows = CsvReader::<EpochRow>::open(&run.epochs())?;
    let task = rows.task();
    let epochs =
        rows.map(|row| row.map(|row| Epoch::from_row(task, row))).collect::<stratus_run::Result<_>>()?;
    Ok((task, epochs))
}

/// The peaks that a run recorded, or else the known peaks of the same machine.
fn peaks(machine: &Machine, here: Option<&Machine>) -> Peaks {
    let recorded = Peaks::from_machine(machine);
    let is_same = |here: &&Machine| {
        machine.identity.uuid.is_some()
            && machine.identity == here.identity
            && machine.cpu.model == here.cpu.model
    };
    match here.filter(is_same) {
        Some(here) if recorded == Peaks::default() => Peaks::from_machine(here),
        _ => recorded,
    }
}

/// The shortest unique suffix of each path, in whole names.
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
    fn labels_distinguish_runs() {
        let paths = ["/a/runs/digits/1", "/b/runs/digits/1", "/b/runs/digits/2"].map(PathBuf::from);
        assert_eq!(labels(&paths), ["a/runs/digits/1", "b/runs/digits/1", "digits/2"]);
        assert_eq!(labels(&[PathBuf::from("/digits")]), ["//digits"]);
    }
}
