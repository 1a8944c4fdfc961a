//! Steps of a sweep: the trainings that several machines share.
//!
//! A machine that becomes free asks for the next step. The answer depends only on the rows, the runs, and the
//! steps that are running: of their cells, only what was known before these steps counts. So it does not
//! matter how much of a running step has been fetched, and a sweep whose machines report the same results in
//! the same order has the same cells.

use std::path::Path;

use super::{RowOutcome, status_after};
use crate::{Result, Status, Sweep};

/// The training of a cell, with all its repetitions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Step {
    /// The cell, from 1.
    pub cell: usize,
    /// The epoch after which cells are compared; `None` for the end of training.
    pub until_epoch: Option<u64>,
}

impl Sweep {
    /// The next step for a free machine, while others train the steps `running`. Without a running step,
    /// `None` means that the sweep has ended; cells that did not continue are then stopped.
    ///
    /// # Errors
    /// If the sweep's directory cannot be written, no run has the metric that ranks cells, or no other cell
    /// can be drawn.
    pub fn next_step(&mut self, running: &[Step]) -> Result<Option<Step>> {
        let Some(halving) = self.definition.halving.filter(|halving| halving.is_asynchronous) else {
            return self.next_synchronous_step(running);
        };
        let step = self.next_asynchronous_step(&halving, running)?;
        if step.is_none() && running.is_empty() {
            self.stop_other_cells(&halving)?;
        }
        Ok(step)
    }

    /// The next step if all cells are compared at once, or none is.
    fn next_synchronous_step(&mut self, running: &[Step]) -> Result<Option<Step>> {
        let epochs = self.definition.cells.iter().map(|cell| cell.experiment.train.epochs).max().unwrap_or(0);
        let rungs = self.definition.halving.map_or(Vec::new(), |halving| halving.rungs(epochs));
        let is_running = |cell: usize| running.iter().any(|step| step.cell == cell);
        let mut remaining: Vec<usize> = (1..=self.definition.cells.len()).collect();
        for until_epoch in rungs.into_iter().map(Some).chain([None]) {
            let steps = remaining.iter().map(|&cell| Step { cell, until_epoch });
            let mut open = steps.filter(|step| is_running(step.cell) || !self.has_taken(*step));
            if let Some(step) = open.clone().find(|step| !is_running(step.cell)) {
                return Ok(Some(step));
            }
            match until_epoch {
                // The others are compared when all have reached the epoch.
                Some(_) if open.next().is_some() => return Ok(None),
                Some(rung) => remaining = self.stop_worse_cells(remaining, rung)?.0,
                None => {}
            }
        }
        Ok(self.draw_next_cell(running)?.map(|cell| Step { cell, until_epoch: None }))
    }

    /// The epoch up to which a cell's results count while the steps `running` are trained.
    pub(super) fn trained_until(&self, cell: usize, running: &[Step]) -> u64 {
        let Some(step) = running.iter().find(|step| step.cell == cell) else { return u64::MAX };
        let rungs = self.definition.halving.map_or(Vec::new(), |halving| self.rungs_of(&halving, cell));
        let is_before = |rung: &u64| step.until_epoch.is_none_or(|until| *rung < until);
        rungs.into_iter().rfind(is_before).unwrap_or(0)
    }

    /// The indices of the rows that a step trains.
    #[must_use]
    pub fn rows_of(&self, step: Step) -> Vec<usize> {
        let trains = |at: &usize| {
            let row = &self.rows()[*at];
            row.cell == step.cell && !row.status.is_settled() && !self.has_row_taken(row, step)
        };
        (0..self.rows().len()).filter(trains).collect()
    }

    /// The index of the row whose run is at `path`; `None` if there is none.
    #[must_use]
    pub fn row_at(&self, path: &Path) -> Option<usize> {
        self.rows().iter().position(|row| self.run_path(row) == path)
    }

    /// Records that another machine trains a row.
    ///
    /// # Errors
    /// If the sweep's directory cannot be written.
    pub fn record_start(&mut self, at: usize) -> Result<()> {
        if self.rows()[at].status == Status::Running {
            return Ok(());
        }
        self.set_status(at, Status::Running, String::new())
    }

    /// Records the outcome of a row that another machine trained to its end or to the end of `until_epoch`,
    /// and whose run is here. Returns the row's status.
    ///
    /// # Errors
    /// If the sweep's directory cannot be written.
    pub fn record_outcome(
        &mut self,
        at: usize,
        outcome: RowOutcome,
        until_epoch: Option<u64>,
    ) -> Result<Status> {
        let run = self.run_path(&self.rows()[at]);
        let (status, reason) = status_after(&run, outcome, until_epoch);
        let row = &self.rows()[at];
        if (row.status, &row.reason) != (status, &reason) {
            self.set_status(at, status, reason)?;
        }
        Ok(status)
    }
}

#[cfg(test)]
mod tests;
