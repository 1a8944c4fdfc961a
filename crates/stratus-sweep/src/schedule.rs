//! The order in which rows are trained, and what is made of how each ended.

use std::path::Path;

use stratus_run::RunDir;
use stratus_run::csv::{self, EpochRow};
use stratus_run::summary::{Status as RunStatus, Summary};
use stratus_train::Experiment;

use crate::{Error, Halving, Result, Row, Status, Sweep, lost};

/// How the training of a row ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ended {
    /// As its run says: at its end, or after the epoch that was asked for.
    AsItsRunSays,
    /// Stopped on request.
    Interrupted,
    /// It needs more memory than there is; why.
    DoesNotFit(String),
    /// It failed; why.
    Failed(String),
}

/// Trains rows, and is told how the sweep goes on.
pub trait Trainer {
    /// Whether the sweep is to stop: no other row is begun.
    fn is_stopped(&self) -> bool;

    /// A row is begun, or continued.
    fn begins(&mut self, sweep: &Sweep, row: &Row);

    /// Why an experiment cannot be trained in the memory that there is, where that is known beforehand.
    fn shortage(&mut self, experiment: &Experiment) -> Option<String>;

    /// Trains the run `run` from wherever it is, or begins it, to its end or to the end of epoch `until`.
    fn train(&mut self, experiment: &Experiment, run: &Path, until: Option<u64>) -> Ended;

    /// A row is settled, or was interrupted.
    fn ended(&mut self, sweep: &Sweep, row: &Row);
}

impl Sweep {
    /// Trains every row that is not settled; returns whether the sweep was stopped before its end.
    ///
    /// # Errors
    /// Where the sweep's directory cannot be written, or no run measures what cells are judged by. How a row
    /// ends is none.
    pub fn train(&mut self, trainer: &mut dyn Trainer) -> Result<bool> {
        let epochs = self.definition.cells.iter().map(|cell| cell.experiment.train.epochs).max().unwrap_or(0);
        let rungs = self.definition.halving.map_or(Vec::new(), |halving| halving.rungs(epochs));
        let mut left: Vec<usize> = (1..=self.definition.cells.len()).collect();
        for rung in &rungs {
            if self.train_cells(&left, Some(*rung), trainer)? {
                return Ok(true);
            }
            left = self.judge(left, *rung, trainer)?;
        }
        self.train_cells(&left, None, trainer)
    }

    /// Gives rows that failed another chance.
    ///
    /// # Errors
    /// Where the sweep's directory cannot be written.
    pub fn retry_failed(&mut self) -> Result<()> {
        for at in 0..self.rows().len() {
            if matches!(self.rows()[at].status, Status::Failed | Status::DoesNotFit) {
                self.set(at, Status::Waiting, String::new())?;
            }
        }
        Ok(())
    }

    fn train_cells(
        &mut self,
        cells: &[usize],
        until: Option<u64>,
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
            let run = self.run_of(&row);
            if until.is_some_and(|until| epochs(&run).last().is_some_and(|row| u64::from(row.epoch) >= until))
            {
                continue;
            }
            let experiment = self.definition.cells[row.cell - 1].repetition(row.repetition);
            trainer.begins(self, &row);
            self.set(at, Status::Running, String::new())?;
            let begun = RunDir::is_run(&run);
            let ended = match (!begun).then(|| trainer.shortage(&experiment)).flatten() {
                Some(shortage) => Ended::DoesNotFit(shortage),
                None => trainer.train(&experiment, &run, until),
            };
            let (status, reason) = match ended {
                Ended::DoesNotFit(reason) => (Status::DoesNotFit, reason),
                Ended::Failed(reason) => (Status::Failed, reason),
                Ended::Interrupted => (Status::Interrupted, "it can be continued".to_owned()),
                Ended::AsItsRunSays => match Summary::read(&run.join(stratus_run::layout::SUMMARY)) {
                    Ok(summary) if summary.status == RunStatus::Completed => match lost::completed(&run) {
                        Ok(()) => (Status::Completed, String::new()),
                        // Its checkpoint is that of the end: to continue it changes nothing.
                        Err(loss) => (Status::Failed, loss.to_string()),
                    },
                    Ok(_) => (Status::Interrupted, until.map_or(String::new(), paused)),
                    Err(error) => (Status::Failed, error.to_string()),
                },
            };
            self.set(at, status, reason)?;
            trainer.ended(self, &self.rows()[at].clone());
            if status == Status::Interrupted && trainer.is_stopped() {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Stops the cells that did worse until the end of epoch `rung`; returns the others. What it decides
    /// follows from the runs alone.
    fn judge(&mut self, cells: Vec<usize>, rung: u64, trainer: &mut dyn Trainer) -> Result<Vec<usize>> {
        let Some(halving) = self.definition.halving else { return Ok(cells) };
        let judged: Vec<(usize, Option<f64>)> = cells
            .into_iter()
            .filter_map(|cell| {
                let rows = self.rows().iter().filter(|row| row.cell == cell);
                let measured: Vec<Option<f64>> =
                    rows.filter_map(|row| measured(&halving, &self.run_of(row), rung)).collect();
                // A cell without a run that came so far takes no place of others.
                (!measured.is_empty()).then(|| (cell, mean(&measured)))
            })
            .collect();
        let measures: Vec<Option<f64>> = judged.iter().map(|(_, measured)| *measured).collect();
        if !measures.is_empty() && measures.iter().all(Option::is_none) {
            // Of another task, say: to stop any of them would be arbitrary.
            return Err(Error::Directory {
                path: self.path().join(crate::DEFINITION),
                problem: format!(
                    "no run has measured `{}` by the end of epoch {rung}",
                    halving.metric.as_str()
                ),
                hint: "name a column of the runs' epochs.csv in sweep.halving.metric, and begin anew"
                    .to_owned(),
            });
        }
        let kept = halving.survivors(&measures);
        let left: Vec<usize> = kept.iter().map(|&at| judged[at].0).collect();
        for at in 0..self.rows().len() {
            let row = &self.rows()[at];
            let Some(&(_, value)) = judged.iter().find(|(cell, _)| *cell == row.cell) else { continue };
            if row.status.is_settled() || left.contains(&row.cell) {
                continue;
            }
            let value = value.map_or("–".to_owned(), |value| format!("{value:.4}"));
            let name = halving.metric.as_str();
            let reason =
                format!("after epoch {rung}: {name} {value}, {} of {} went on", left.len(), judged.len());
            self.set(at, Status::StoppedEarly, reason)?;
            trainer.ended(self, &self.rows()[at].clone());
        }
        Ok(left)
    }
}

fn paused(until: u64) -> String {
    format!("waits after epoch {until} for the other cells")
}

/// The epochs of a run, as far as they can be read.
fn epochs(run: &Path) -> Vec<EpochRow> {
    csv::read(&run.join(stratus_run::layout::EPOCHS)).unwrap_or_default()
}

/// What a run measured last until the end of an epoch; `None` where it has not come so far. Training that
/// ended early by itself counts with its last epoch.
fn measured(halving: &Halving, run: &Path, until: u64) -> Option<Option<f64>> {
    let rows = epochs(run);
    let ended = rows.last().is_some_and(|row| u64::from(row.epoch) >= until)
        || Summary::read(&run.join(stratus_run::layout::SUMMARY))
            .is_ok_and(|summary| summary.status == RunStatus::Completed);
    let before = rows.iter().filter(|row| u64::from(row.epoch) <= until);
    ended.then(|| before.filter_map(|row| halving.metric.of(row)).next_back())
}

/// The mean of what was measured.
fn mean(values: &[Option<f64>]) -> Option<f64> {
    let known: Vec<f64> = values.iter().flatten().copied().collect();
    (!known.is_empty()).then(|| known.iter().sum::<f64>() / known.len() as f64)
}

#[cfg(test)]
pub(crate) mod tests;
