//! Asynchronous successive halving.
//!
//! L. Li, K. Jamieson, A. Rostamizadeh et al.: "A system for massively parallel hyperparameter tuning",
//! MLSys 2020 (arXiv:1810.05934). A rung is an epoch at which cells are ranked. A cell continues from a rung
//! as soon as it is among the best `1/factor` of the cells that have reached it, so no cell waits for all
//! others. If no cell can continue, the next one is started.
//!
//! ```text
//! factor = 2, rungs at epochs 1 and 2:   cell 1 to 1, cell 2 to 1, the better of them to 2, cell 3 to 1, …
//! ```
//!
//! A decision depends only on the epochs and metrics of the runs. A sweep that was killed has at most one
//! cell between two rungs. It is trained to the next rung first, which gives the state of a sweep that was
//! not killed.

use super::{Step, Trainer, epochs, stop_reason};
use crate::{Halving, Result, Row, Status, Sweep};

impl Sweep {
    /// Trains the cells of a sweep with asynchronous halving. Returns whether the sweep was stopped.
    pub(super) fn train_asynchronously(
        &mut self,
        halving: &Halving,
        trainer: &mut dyn Trainer,
    ) -> Result<bool> {
        if self.repeat_lost_rows(trainer)? {
            return Ok(true);
        }
        if self.has_rows_to_repeat() {
            // The run was interrupted alone; the sweep is resumed later.
            return Ok(false);
        }
        while let Some(step) = self.next_asynchronous_step(halving, &[])? {
            if self.train_cells(&[step.cell], step.until_epoch, trainer)? {
                return Ok(true);
            }
            if !self.has_taken(step) {
                // As above.
                return Ok(false);
            }
        }
        let stopped = self.stop_other_cells(halving)?;
        stopped.into_iter().for_each(|at| trainer.on_end(self, &self.rows()[at].clone()));
        Ok(false)
    }

    /// The next step, while others train the steps `running`; `None` if no further cell can continue or be
    /// started.
    pub(super) fn next_asynchronous_step(
        &mut self,
        halving: &Halving,
        running: &[Step],
    ) -> Result<Option<Step>> {
        let cells = 1..=self.definition.cells.len();
        let is_free = |cell: &usize| running.iter().all(|step| step.cell != *cell);
        // Cells that were not started come last.
        let is_started = |cell: &usize| is_free(cell) && self.has_started(*cell);
        if let Some(step) =
            cells.clone().filter(is_started).find_map(|cell| self.unfinished_step(halving, cell))
        {
            return Ok(Some(step));
        }
        if let Some(step) = self.promotion(halving, running)? {
            return Ok(Some(step));
        }
        let waiting = cells.clone().filter(is_free).find_map(|cell| self.unfinished_step(halving, cell));
        if waiting.is_some() {
            return Ok(waiting);
        }
        if let Some(cell) = self.draw_next_cell(running)? {
            return Ok(self.unfinished_step(halving, cell));
        }
        // With few cells, `1/factor` of them may be none; the best one is trained to its end.
        let is_completed = self.rows().iter().any(|row| row.status == Status::Completed);
        let is_over = is_completed || !running.is_empty();
        Ok(if is_over { None } else { self.last_promotion(halving) })
    }

    /// Returns whether a row of the cell was started or settled.
    fn has_started(&self, cell: usize) -> bool {
        self.rows().iter().any(|row| row.cell == cell && row.status != Status::Waiting)
    }

    /// The rungs of a cell.
    pub(super) fn rungs_of(&self, halving: &Halving, cell: usize) -> Vec<u64> {
        halving.rungs(self.definition.cells[cell - 1].experiment.train.epochs)
    }

    /// The greatest number of epochs of the cell's runs.
    fn epochs_of(&self, cell: usize) -> u64 {
        let rows = self.rows().iter().filter(|row| row.cell == cell);
        let last =
            rows.map(|row| epochs(&self.run_path(row)).last().map_or(0, |epoch| u64::from(epoch.epoch)));
        last.max().unwrap_or(0)
    }

    /// The training that a cell between two rungs needs to reach the next one; `None` if it is at a rung.
    fn unfinished_step(&self, halving: &Halving, cell: usize) -> Option<Step> {
        let furthest = self.epochs_of(cell);
        let until_epoch = self.rungs_of(halving, cell).into_iter().find(|&rung| rung >= furthest);
        let step = Step { cell, until_epoch };
        (!self.has_taken(step)).then_some(step)
    }

    /// Returns whether every row of the step's cell is settled or has reached the step's epoch.
    pub(super) fn has_taken(&self, step: Step) -> bool {
        let mut rows = self.rows().iter().filter(|row| row.cell == step.cell);
        rows.all(|row| row.status.is_settled() || self.has_row_taken(row, step))
    }

    /// Returns whether a row has reached the step's epoch.
    pub(super) fn has_row_taken(&self, row: &Row, step: Step) -> bool {
        let reached = || epochs(&self.run_path(row)).last().map_or(0, |epoch| u64::from(epoch.epoch));
        step.until_epoch.is_some_and(|until| reached() >= until)
    }

    /// The best cell of the highest rung from which one may continue.
    fn promotion(&self, halving: &Halving, running: &[Step]) -> Result<Option<Step>> {
        for rung in self.all_rungs(halving).into_iter().rev() {
            let ranked = self.ranked_at(halving, rung, running);
            if !ranked.is_empty() && ranked.iter().all(|(_, metric)| metric.is_none()) {
                let name = halving.metric.as_str();
                let problem = format!("no run has the metric `{name}` by the end of epoch {rung}");
                return Err(self.metric_error(problem, "sweep.halving.metric"));
            }
            let best = &ranked[..ranked.len() / halving.factor];
            let is_free = |cell: usize| running.iter().all(|step| step.cell != cell);
            let is_next = |cell: usize| is_free(cell) && self.is_paused_at(cell, rung);
            if let Some(&(cell, _)) = best.iter().find(|(cell, _)| is_next(*cell)) {
                return Ok(Some(self.step_after(halving, cell, rung)));
            }
        }
        Ok(None)
    }

    /// The best cell that is paused at the highest rung.
    fn last_promotion(&self, halving: &Halving) -> Option<Step> {
        self.all_rungs(halving).into_iter().rev().find_map(|rung| {
            let ranked = self.ranked_at(halving, rung, &[]);
            let (cell, _) = *ranked.iter().find(|(cell, _)| self.is_paused_at(*cell, rung))?;
            Some(self.step_after(halving, cell, rung))
        })
    }

    /// The step of a cell that continues from a rung.
    fn step_after(&self, halving: &Halving, cell: usize, rung: u64) -> Step {
        let until_epoch = self.rungs_of(halving, cell).into_iter().find(|&next| next > rung);
        Step { cell, until_epoch }
    }

    /// The rungs of all cells.
    fn all_rungs(&self, halving: &Halving) -> Vec<u64> {
        let epochs = self.definition.cells.iter().map(|cell| cell.experiment.train.epochs).max();
        halving.rungs(epochs.unwrap_or(0))
    }

    /// The cells that have reached a rung with their metrics, the best first. Ties keep their order. Cells of
    /// the steps `running` count up to the rung before.
    fn ranked_at(&self, halving: &Halving, rung: u64, running: &[Step]) -> Vec<(usize, Option<f64>)> {
        let cells =
            (1..=self.definition.cells.len()).filter(|cell| self.trained_until(*cell, running) >= rung);
        let reached: Vec<(usize, Option<f64>)> =
            cells.filter_map(|cell| Some((cell, self.metric_of_cell(halving, cell, rung)?))).collect();
        let metrics: Vec<Option<f64>> = reached.iter().map(|(_, metric)| *metric).collect();
        halving.ranking(&metrics).into_iter().map(|at| reached[at]).collect()
    }

    /// Returns whether a cell may continue and has been trained exactly to a rung.
    fn is_paused_at(&self, cell: usize, rung: u64) -> bool {
        let is_open = self.rows().iter().any(|row| row.cell == cell && !row.status.is_settled());
        is_open && self.epochs_of(cell) == rung
    }

    /// Stops the cells that did not continue, and returns the indices of their rows.
    pub(super) fn stop_other_cells(&mut self, halving: &Halving) -> Result<Vec<usize>> {
        let mut stopped = Vec::new();
        for at in 0..self.rows().len() {
            let row = self.rows()[at].clone();
            if row.status.is_settled() {
                continue;
            }
            let rung = self.epochs_of(row.cell);
            let ranked = self.ranked_at(halving, rung, &[]);
            let metric = ranked.iter().find(|(cell, _)| *cell == row.cell).and_then(|(_, metric)| *metric);
            let is_further = |cell: usize| {
                self.epochs_of(cell) > rung
                    || self.rows().iter().any(|row| row.cell == cell && row.status == Status::Completed)
            };
            let kept = ranked.iter().filter(|(cell, _)| is_further(*cell)).count();
            let reason = stop_reason(halving, rung, metric, kept, ranked.len());
            self.set_status(at, Status::StoppedEarly, reason)?;
            stopped.push(at);
        }
        Ok(stopped)
    }
}
