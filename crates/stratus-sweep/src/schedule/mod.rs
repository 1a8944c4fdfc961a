//! Trains the rows of a sweep in order and records their outcomes.

mod asynchronous;
mod repeat;
mod steps;

pub use steps::Step;

use std::path::Path;

use stratus_experiment::{EpochMetric, Experiment};
use stratus_run::RunDir;
use stratus_run::csv::{self, EpochRow};
use stratus_run::layout::{EPOCHS, SUMMARY, SWEEP};
use stratus_run::summary::{Status as RunStatus, Summary};

use crate::results::best_of;
use crate::search::{Observation, Search};
use crate::{Error, Halving, Result, Row, Status, Sweep, lost};

pub(crate) use repeat::reason_to_repeat;

/// The outcome of training a row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RowOutcome {
    /// Exit code 0: the run is completed, or paused after `until_epoch`; its summary says which.
    Succeeded,
    /// Stopped on request.
    Interrupted,
    /// Not enough memory; the reason.
    DoesNotFit(String),
    /// Training failed; the reason.
    Failed(String),
}

/// Trains rows and is notified of progress.
pub trait Trainer {
    /// Returns whether the sweep must stop. No further row is then started.
    fn is_stopped(&self) -> bool;

    /// Called before a row is started or resumed.
    fn on_start(&mut self, sweep: &Sweep, row: &Row);

    /// Returns the reason if an experiment is known not to fit in memory before it is trained.
    fn memory_shortage(&mut self, experiment: &Experiment) -> Option<String>;

    /// Starts or resumes the run at `run`, to its end or to the end of `until_epoch`.
    fn train(&mut self, experiment: &Experiment, run: &Path, until_epoch: Option<u64>) -> RowOutcome;

    /// Called after a row was settled or interrupted.
    fn on_end(&mut self, sweep: &Sweep, row: &Row);
}

impl Sweep {
    /// Trains every row that is not settled. Returns whether the sweep was stopped before its end.
    ///
    /// # Errors
    /// If the sweep's directory cannot be written, or no run has the metric that ranks cells. A row that
    /// fails is not an error.
    pub fn train(&mut self, trainer: &mut dyn Trainer) -> Result<bool> {
        if let Some(halving) = self.definition.halving.filter(|halving| halving.is_asynchronous) {
            return self.train_asynchronously(&halving, trainer);
        }
        let epochs = self.definition.cells.iter().map(|cell| cell.experiment.train.epochs).max().unwrap_or(0);
        let rungs = self.definition.halving.map_or(Vec::new(), |halving| halving.rungs(epochs));
        let mut remaining: Vec<usize> = (1..=self.definition.cells.len()).collect();
        for rung in &rungs {
            if self.train_cells(&remaining, Some(*rung), trainer)? {
                return Ok(true);
            }
            let (kept, stopped) = self.stop_worse_cells(remaining, *rung)?;
            stopped.into_iter().for_each(|at| trainer.on_end(self, &self.rows()[at].clone()));
            remaining = kept;
        }
        if self.train_cells(&remaining, None, trainer)? {
            return Ok(true);
        }
        // A row that was interrupted alone is resumed before its result counts.
        while self.rows().iter().all(|row| row.status.is_settled()) {
            let Some(cell) = self.draw_next_cell(&[])? else { break };
            if self.train_cells(&[cell], None, trainer)? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Adds the next cell of a search, drawn from the results so far; `None` if there is none. The results of
    /// the steps `running` do not count yet.
    fn draw_next_cell(&mut self, running: &[Step]) -> Result<Option<usize>> {
        if self.definition.cells.len() == self.definition.final_cells() {
            return Ok(None);
        }
        let results: Vec<(usize, Option<f64>)> = (1..=self.definition.cells.len())
            .filter_map(|cell| match self.trained_until(cell, running) {
                // Nothing is known of the cell yet.
                0 => None,
                epoch => Some((cell, self.result(cell, epoch))),
            })
            .collect();
        let has_run =
            self.rows().iter().any(|row| matches!(row.status, Status::Completed | Status::StoppedEarly));
        if let Some(search) = &self.definition.search
            && let Some(objective) = search.objective
            && has_run
            && results.iter().all(|(_, result)| result.is_none())
        {
            let problem = format!("no run has the objective `{}`", objective.as_str());
            return Err(self.metric_error(problem, "sweep.objective"));
        }
        let observe = |search: &Search| {
            let of_cell = |(cell, result): (usize, Option<f64>)| {
                search.observe(&self.definition.cells[cell - 1].values, result)
            };
            results.into_iter().filter_map(of_cell).collect()
        };
        let observations: Vec<Observation> = self.definition.search.as_ref().map_or(Vec::new(), observe);
        self.draw_cell(&observations)
    }

    /// The result of a cell: the objective's best epoch up to `until_epoch`, as the mean of the repetitions;
    /// `None` if no run of it has one.
    fn result(&self, cell: usize, until_epoch: u64) -> Option<f64> {
        self.result_by(self.definition.search.as_ref()?.objective?, cell, until_epoch)
    }

    /// The result of a cell by a metric, as [`Sweep::result`].
    fn result_by(&self, objective: EpochMetric, cell: usize, until_epoch: u64) -> Option<f64> {
        let best = |row: &Row| best_epoch(objective, &epochs(&self.run_path(row)), until_epoch);
        let rows = self.rows().iter().filter(|row| row.cell == cell && row.status != Status::Failed);
        mean(&rows.map(best).collect::<Vec<_>>())
    }

    /// The error for a metric that runs do not have, and the key that names it.
    fn metric_error(&self, problem: String, key: &str) -> Error {
        let hint = format!("set {key} to a column of epochs.csv and start a new sweep");
        Error::Directory { path: self.path().join(SWEEP), problem, hint }
    }

    /// The cell with the best result, and the value of
    /// [`Definition::objective`](crate::Definition::objective): its best epoch, as the mean of the
    /// repetitions. `None` without an objective or a result.
    #[must_use]
    pub fn best_cell(&self) -> Option<(usize, f64)> {
        let objective = self.definition.objective()?;
        let results: Vec<Option<f64>> =
            (1..=self.definition.cells.len()).map(|cell| self.result_by(objective, cell, u64::MAX)).collect();
        let best = best_of(objective.direction(), &results)?;
        Some((best, results[best - 1]?))
    }

    /// Sets rows that failed or did not fit to waiting.
    ///
    /// # Errors
    /// If the sweep's directory cannot be written.
    pub fn retry_failed(&mut self) -> Result<()> {
        for at in 0..self.rows().len() {
            if matches!(self.rows()[at].status, Status::Failed | Status::DoesNotFit) {
                self.set_status(at, Status::Waiting, String::new())?;
            }
        }
        Ok(())
    }

    fn train_cells(
        &mut self,
        cells: &[usize],
        until_epoch: Option<u64>,
        trainer: &mut dyn Trainer,
    ) -> Result<bool> {
        for at in 0..self.rows().len() {
            let row = self.rows()[at].clone();
            if row.status.is_settled() || !cells.contains(&row.cell) {
                continue;
            }
            if trainer.is_stopped() {
                return Ok(true);
            }
            let run = self.run_path(&row);
            let has_reached = |until| epochs(&run).last().is_some_and(|row| u64::from(row.epoch) >= until);
            if until_epoch.is_some_and(has_reached) {
                continue;
            }
            let (status, reason) = self.train_row(at, until_epoch, String::new(), trainer)?;
            self.set_status(at, status, reason)?;
            trainer.on_end(self, &self.rows()[at].clone());
            if status == Status::Interrupted && trainer.is_stopped() {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Trains a row and returns its new status with the reason. Until then, its reason is `running_reason`.
    fn train_row(
        &mut self,
        at: usize,
        until_epoch: Option<u64>,
        running_reason: String,
        trainer: &mut dyn Trainer,
    ) -> Result<(Status, String)> {
        let row = self.rows()[at].clone();
        let run = self.run_path(&row);
        let experiment = self.definition.cells[row.cell - 1].repetition(row.repetition);
        trainer.on_start(self, &row);
        self.set_status(at, Status::Running, running_reason)?;
        let is_started = RunDir::is_run(&run);
        let outcome = match (!is_started).then(|| trainer.memory_shortage(&experiment)).flatten() {
            Some(shortage) => RowOutcome::DoesNotFit(shortage),
            None => trainer.train(&experiment, &run, until_epoch),
        };
        Ok(status_after(&run, outcome, until_epoch))
    }

    /// Stops the worse cells after epoch `rung`. Returns the other cells, and the indices of the rows that it
    /// stopped. The ranking depends only on the runs.
    fn stop_worse_cells(&mut self, cells: Vec<usize>, rung: u64) -> Result<(Vec<usize>, Vec<usize>)> {
        let Some(halving) = self.definition.halving else { return Ok((cells, Vec::new())) };
        let ranked: Vec<(usize, Option<f64>)> = cells
            .into_iter()
            .filter_map(|cell| Some((cell, self.metric_of_cell(&halving, cell, rung)?)))
            .collect();
        let metrics: Vec<Option<f64>> = ranked.iter().map(|(_, metric)| *metric).collect();
        if !metrics.is_empty() && metrics.iter().all(Option::is_none) {
            // The metric may belong to another task; stopping any cell would be arbitrary.
            let name = halving.metric.as_str();
            let problem = format!("no run has the metric `{name}` by the end of epoch {rung}");
            return Err(self.metric_error(problem, "sweep.halving.metric"));
        }
        let kept = halving.survivors(&metrics);
        let remaining: Vec<usize> = kept.iter().map(|&at| ranked[at].0).collect();
        let mut stopped = Vec::new();
        for at in 0..self.rows().len() {
            let row = &self.rows()[at];
            let Some(&(_, value)) = ranked.iter().find(|(cell, _)| *cell == row.cell) else { continue };
            if row.status.is_settled() || remaining.contains(&row.cell) {
                continue;
            }
            let reason = stop_reason(&halving, rung, value, remaining.len(), ranked.len());
            self.set_status(at, Status::StoppedEarly, reason)?;
            stopped.push(at);
        }
        Ok((remaining, stopped))
    }

    /// The mean metric of a cell after an epoch; `None` if no run of it has reached the epoch.
    fn metric_of_cell(&self, halving: &Halving, cell: usize, epoch: u64) -> Option<Option<f64>> {
        let rows = self.rows().iter().filter(|row| row.cell == cell);
        let values: Vec<Option<f64>> =
            rows.filter_map(|row| metric_at(halving, &self.run_path(row), epoch)).collect();
        // Cells without a run at this epoch are not ranked.
        (!values.is_empty()).then(|| mean(&values))
    }
}

/// The status of a row and its reason after the training of its run ended, which was to be trained to its end
/// or to the end of `until_epoch`.
fn status_after(run: &Path, outcome: RowOutcome, until_epoch: Option<u64>) -> (Status, String) {
    match outcome {
        RowOutcome::DoesNotFit(reason) => (Status::DoesNotFit, reason),
        RowOutcome::Failed(reason) => (Status::Failed, reason),
        RowOutcome::Interrupted => (Status::Interrupted, "can be resumed".to_owned()),
        RowOutcome::Succeeded => match Summary::read(&run.join(SUMMARY)) {
            Ok(summary) if summary.status == RunStatus::Completed => match lost::check_completed(run) {
                Ok(()) => (Status::Completed, String::new()),
                // Its checkpoint is from the end of training, so resuming changes nothing.
                Err(loss) => (Status::Failed, loss.to_string()),
            },
            Ok(_) => (Status::Interrupted, until_epoch.map_or(String::new(), pause_reason)),
            Err(error) => (Status::Failed, error.to_string()),
        },
    }
}

/// The reason for stopping a cell after `rung`, where `kept` of `ranked` cells continue.
fn stop_reason(halving: &Halving, rung: u64, metric: Option<f64>, kept: usize, ranked: usize) -> String {
    let metric = metric.map_or("–".to_owned(), |value| format!("{value:.4}"));
    let name = halving.metric.as_str();
    format!("after epoch {rung}: {name} {metric}, {kept} of {ranked} cells continue")
}

/// The reason of a row that was trained to the end of an epoch.
fn pause_reason(until_epoch: u64) -> String {
    format!("paused after epoch {until_epoch}")
}

/// Returns the rows of `epochs.csv` of a run; empty if it cannot be read.
fn epochs(run: &Path) -> Vec<EpochRow> {
    csv::read(&run.join(EPOCHS)).unwrap_or_default()
}

/// Returns the last value of the metric up to the end of an epoch; `None` if the run has not reached it. A
/// completed run that stopped early counts with its last epoch.
fn metric_at(halving: &Halving, run: &Path, until_epoch: u64) -> Option<Option<f64>> {
    metric_in(halving, &epochs(run), until_epoch, || {
        Summary::read(&run.join(SUMMARY)).is_ok_and(|summary| summary.status == RunStatus::Completed)
    })
}

/// As [`metric_at`], of the epochs of a run.
pub(crate) fn metric_in(
    halving: &Halving,
    rows: &[EpochRow],
    until_epoch: u64,
    is_completed: impl FnOnce() -> bool,
) -> Option<Option<f64>> {
    let ended = rows.last().is_some_and(|row| u64::from(row.epoch) >= until_epoch) || is_completed();
    let up_to_epoch = rows.iter().filter(|row| u64::from(row.epoch) <= until_epoch);
    ended.then(|| up_to_epoch.filter_map(|row| halving.metric.value_in(row)).next_back())
}

/// The objective's best epoch of a run up to `until_epoch`; `None` if it has none.
pub(crate) fn best_epoch(objective: EpochMetric, rows: &[EpochRow], until_epoch: u64) -> Option<f64> {
    let better = |a: f64, b: f64| if objective.direction().improvement(a, b) > 0.0 { a } else { b };
    let epochs = rows.iter().filter(|row| u64::from(row.epoch) <= until_epoch);
    let values = epochs.filter_map(|row| objective.value_in(row));
    values.filter(|value| value.is_finite()).reduce(better)
}

/// The mean of the known values; `None` if there are none.
pub(crate) fn mean(values: &[Option<f64>]) -> Option<f64> {
    let known: Vec<f64> = values.iter().flatten().copied().collect();
    (!known.is_empty()).then(|| known.iter().sum::<f64>() / known.len() as f64)
}

#[cfg(test)]
pub(crate) mod tests;
