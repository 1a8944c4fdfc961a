//! The report on one run.

use std::panic::resume_unwind;
use std::path::{Path, PathBuf};
use std::thread;

use serde::Serialize;
use stratus_engine::memory_map::MemoryMap;
use stratus_run::RunDir;
use stratus_run::csv::{CsvReader, EpochRow, LabelColumns, NumberColumns, Task};
use stratus_run::labels::RunLabels;
use stratus_run::machine::Machine;
use stratus_run::summary::Status;

use super::advice;
use super::checkpoints::{self, CheckpointRow};
use super::cost::{self, Peaks, RooflineData};
use super::curves::Curves;
use super::network::Network;
use super::optimised::OptimisedReport;
use super::score::val_score;
use super::tree::LayerTree;
use super::usage::UsageCurves;
use super::validation::ValidationReport;
use crate::accounting::{Accounting, AccountingOptions};
use crate::collect::RunRecord;
use crate::{Error, Result};

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

impl Problem {
    /// A run that cannot be read at all.
    fn of_run(path: &Path, error: &Error) -> Self {
        Self { run: path.to_owned(), what: "the run".to_owned(), reason: error.to_string() }
    }
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
    /// The layers as a tree, and the data flow between them.
    pub layers: LayerReport,
    /// Utilisation of the machine; `None` without samples.
    pub usage: Option<UsageCurves>,
    /// The checkpoints, ascending.
    pub checkpoints: Vec<CheckpointRow>,
    /// The errors of the network on validation data; `None` if the run kept nothing.
    pub validation: Option<ValidationReport>,
    /// The variants of its network, if `stratus optimise` made it of another run.
    pub optimised: Option<OptimisedReport>,
    /// Suggestions, the most promising first.
    pub advice: Vec<String>,
}

/// The layers of a run.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct LayerReport {
    /// The layers and the blocks that contain them.
    pub tree: LayerTree,
    /// The data flow between the layers; `None` if the plan cannot be read.
    pub network: Option<Network>,
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
    /// Training accuracy of the epoch, of samples, pixels or labels; R² for regression.
    pub train_accuracy: f64,
    /// Validation loss, if evaluated.
    pub val_loss: Option<f64>,
    /// Validation accuracy, if evaluated; R² for regression.
    pub val_accuracy: Option<f64>,
    /// The [`Score`](super::Score) of the validation, if evaluated.
    pub val_score: Option<f64>,
    /// Several labels: their measures, if evaluated.
    #[serde(flatten)]
    pub labels: LabelColumns,
    /// Regression: the errors, if evaluated.
    #[serde(flatten)]
    pub numbers: NumberColumns,
    /// Seconds since the start of the run.
    pub elapsed_s: f64,
}

impl Epoch {
    fn from_row(task: Task, row: EpochRow) -> Self {
        let val_score = val_score(task, &row);
        let EpochRow { epoch, train_loss, train_accuracy, val_loss, val_accuracy, .. } = row;
        let last_iteration = None;
        Self {
            epoch,
            last_iteration,
            train_loss,
            train_accuracy,
            val_loss,
            val_accuracy,
            val_score,
            labels: row.labels,
            numbers: row.numbers,
            elapsed_s: row.elapsed_s,
        }
    }
}

impl RunReport {
    /// Reads a run; `None` if that is impossible. Mean times exclude the first `skip` iterations, or
    /// [`crate::default_skip`]; `here` is as for [`Report::read`](super::Report::read).
    ///
    /// Data that cannot be read becomes a [`Problem`].
    #[must_use]
    pub fn read(
        path: &Path,
        label: String,
        skip: Option<u64>,
        here: Option<&Machine>,
    ) -> (Option<Self>, Vec<Problem>) {
        let mut problems = Vec::new();
        let run = match Self::read_facts(path, label, skip, here, &mut problems) {
            Ok(mut run) => {
                run.headline = advice::headline(&run.accounting);
                run.advice = advice::advice(&run);
                Some(run)
            }
            Err(error) => {
                problems.push(Problem::of_run(path, &error));
                None
            }
        };
        (run, problems)
    }

    /// Reads what a [`Comparison`](super::Comparison) of several runs needs, which takes a tenth of the time:
    /// as [`RunReport::read`], but without times per layer, curves over the iterations, plan and utilisation.
    #[must_use]
    pub fn read_for_comparison(path: &Path, label: String) -> (Option<Self>, Vec<Problem>) {
        let mut problems = Vec::new();
        let run = Self::read_results(path, label, &mut problems);
        let run = run.map_err(|error| problems.push(Problem::of_run(path, &error))).ok();
        (run, problems)
    }

    fn read_results(path: &Path, label: String, problems: &mut Vec<Problem>) -> Result<Self> {
        let run = RunDir::open(path)?;
        let record = RunRecord::read(&run, None)?.without_identity();
        let mut missing = |what: &str, reason: String| {
            problems.push(Problem { run: path.to_owned(), what: what.to_owned(), reason });
        };
        let accounting =
            Accounting::wall_for_run(&run, &AccountingOptions::default()).unwrap_or_else(|error| {
                missing("times of iterations", error.to_string());
                Accounting::default()
            });
        let (task, mut epochs) = read_epochs(&run).unwrap_or_else(|error| {
            missing("epochs", error.to_string());
            (Task::default(), Vec::new())
        });
        let curves = Curves::read_iterations(&run).unwrap_or_else(|error| {
            missing("curves over the iterations", error.to_string());
            Curves::default()
        });
        for epoch in &mut epochs {
            epoch.last_iteration = curves.epoch_ends.get(&epoch.epoch).copied();
        }
        let optimised = OptimisedReport::read(&run, &mut missing);
        Ok(Self {
            label,
            record,
            headline: String::new(),
            task,
            accounting,
            epochs,
            curves: Curves::default(),
            work: None,
            memory: None,
            layers: LayerReport::default(),
            usage: None,
            checkpoints: Vec::new(),
            validation: None,
            optimised,
            advice: Vec::new(),
        })
    }

    /// Reads a run, without headline and suggestions.
    fn read_facts(
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
        if let Err(error) = RunLabels::read(&run.labels()) {
            missing("name, note and tags", error.to_string());
        }
        // The timeline takes about as long to read as all other files, which are read meanwhile.
        let read_others = || (read_epochs(&run), cost::read_plan(&run), Curves::read_iterations(&run));
        let (accounting, (epochs, plan, curves)) = thread::scope(|scope| {
            let accounting = scope.spawn(|| Accounting::for_run(&run, &AccountingOptions { skip }));
            let others = read_others();
            (accounting.join().unwrap_or_else(|panic| resume_unwind(panic)), others)
        });
        let accounting = accounting.unwrap_or_else(|error| {
            missing("times per layer", error.to_string());
            Accounting::default()
        });
        let (task, mut epochs) = epochs.unwrap_or_else(|error| {
            missing("epochs", error.to_string());
            (Task::default(), Vec::new())
        });
        let peaks = experiment.machine.as_ref().map(|machine| peaks(machine, here)).unwrap_or_default();
        let (work, memory, network) = match plan {
            Ok(plan) => {
                let work = RooflineData::new(&plan, &accounting, peaks);
                let network = Network::new(&plan, &accounting);
                (Some(work), Some(MemoryMap::from_plan(&plan)), Some(network))
            }
            Err(reason) => {
                missing("arithmetic, roofline, memory per layer and the data flow", reason);
                (None, None, None)
            }
        };
        let tree = LayerTree::new(&accounting, work.as_ref(), network.as_ref());
        let with_layers = |mut curves: Curves| curves.read_layers(&run, &accounting, &tree).map(|()| curves);
        let curves = curves.and_then(with_layers).unwrap_or_else(|error| {
            missing("curves over the iterations", error.to_string());
            Curves::default()
        });
        for epoch in &mut epochs {
            epoch.last_iteration = curves.epoch_ends.get(&epoch.epoch).copied();
        }
        let usage = UsageCurves::read(&run, &mut missing).unwrap_or_else(|error| {
            missing("utilisation of the machine", error.to_string());
            None
        });
        let best = experiment.summary.as_ref().and_then(|summary| summary.best.as_ref());
        let checkpoints = checkpoints::read(&run, best).unwrap_or_else(|error| {
            missing("checkpoints", error.to_string());
            Vec::new()
        });
        let validation = ValidationReport::read(&run, task, &mut missing);
        let optimised = OptimisedReport::read(&run, &mut missing);
        Ok(Self {
            label,
            record: experiment.without_identity(),
            headline: String::new(),
            task,
            accounting,
            epochs,
            curves,
            work,
            memory,
            layers: LayerReport { tree, network },
            usage,
            checkpoints,
            validation,
            optimised,
            advice: Vec::new(),
        })
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
