//! Launched sweeps in which results decide which cells are trained, and for how long: TPE and halving.
//!
//! ```text
//! results of fetched runs ──▶ cells.csv              Sweep::record_outcome
//! cells.csv, runs, running steps ──▶ next steps      Sweep::next_step
//! next steps ──▶ record                              repetitions, each with its goal
//! record ──▶ target                                  Target::reschedule, Target::extend
//! ```
//!
//! A repetition is in progress if it is in the record, has not been fetched at its goal, and has not failed.
//! The record is written before anything is started, and a drawn cell is in `cells.csv` before it is in the
//! record, so a launch that is killed at any moment continues with the same cells.

use crate::{LaunchRecord, LaunchState, RepetitionState, RepetitionStatus, Result, UploadedPaths};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::PathBuf;
use stratus_experiment::Experiment;
use stratus_sweep::{OUT_OF_MEMORY_PREFIX, RowOutcome, Status, Step, Sweep};

/// The goal of a repetition that is trained to its end.
const END: &str = "end";

/// The part of a launch's record that belongs to the search of a sweep.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct SearchRecord {
    /// The directory of the sweep.
    pub sweep: PathBuf,
    /// The epoch until which each repetition is trained; 0 for its end.
    pub until_epochs: Vec<u64>,
    /// The paths of uploaded files on the target.
    pub uploaded_paths: UploadedPaths,
}

/// The changes of a record by [`LaunchRecord::advance`].
#[derive(Debug, Default)]
pub struct SearchAdvance {
    /// The repetitions to start, new ones and those that are trained further.
    pub started: Vec<usize>,
    /// True if the sweep has ended.
    pub is_over: bool,
    /// Messages about the started steps.
    pub messages: Vec<String>,
}

impl SearchRecord {
    /// The goal of each repetition.
    pub(crate) fn goals(&self) -> Vec<String> {
        let goal = |epoch: &u64| if *epoch == 0 { END.to_owned() } else { epoch.to_string() };
        self.until_epochs.iter().map(goal).collect()
    }

    /// The epoch until which a repetition is trained; `None` for its end.
    fn until_epoch(&self, repetition: usize) -> Option<u64> {
        self.until_epochs.get(repetition - 1).copied().filter(|epoch| *epoch > 0)
    }
}

impl LaunchRecord {
    /// Records the results of a search's repetitions, of which `state` is known. If `starts_steps`, adds the
    /// next steps while fewer than `slots` repetitions are in progress; `complete` fills in the keys of new
    /// experiments that depend on this machine. The caller writes the record, then starts the repetitions.
    ///
    /// # Errors
    /// If the sweep cannot be read or written, no run has its metric, or a cell needs a file that was not
    /// uploaded.
    pub fn advance(
        &mut self,
        state: Option<&LaunchState>,
        slots: usize,
        starts_steps: bool,
        complete: &dyn Fn(&mut Experiment),
    ) -> Result<SearchAdvance> {
        let runs = self.runs.len();
        let Some(search) = &mut self.search else { return Ok(SearchAdvance::default()) };
        // Each run has an epoch, unless somebody has edited the record.
        search.until_epochs.resize(runs, 0);
        let mut sweep = Sweep::open(&search.sweep)?;
        let mut in_progress = self.record_results(&mut sweep, state)?;
        let mut advance = SearchAdvance::default();
        // Cells that are compared together are queued together. The first cells of TPE follow from the seed
        // alone, so they are trained even if nobody fetches the results.
        let slots = match sweep.definition.halving {
            Some(halving) if halving.is_asynchronous => slots,
            Some(_) => usize::MAX,
            None if self.runs.is_empty() => slots.max(sweep.rows().len()),
            None => slots,
        };
        while starts_steps && in_progress.len() < slots.max(1) {
            let Some(step) = sweep.next_step(&steps_of(&sweep, &in_progress))? else {
                advance.is_over = in_progress.is_empty();
                break;
            };
            let rows = sweep.rows_of(step);
            if rows.is_empty() {
                break;
            }
            for at in rows {
                let number = self.add_step(&sweep, at, step, state, complete)?;
                in_progress.insert(number, (step.cell, step.until_epoch));
                advance.started.push(number);
            }
            advance.messages.push(describe_step(&sweep, step));
        }
        Ok(advance)
    }

    /// Sets failed rows of a search to be trained again.
    ///
    /// # Errors
    /// If the sweep cannot be read or written.
    pub fn retry_failed(&self) -> Result<()> {
        let Some(search) = &self.search else { return Ok(()) };
        let mut sweep = Sweep::open(&search.sweep)?;
        for at in self.runs.iter().filter_map(|run| sweep.row_at(run)).collect::<Vec<_>>() {
            if matches!(sweep.rows()[at].status, Status::Failed | Status::DoesNotFit) {
                sweep.record_start(at)?;
            }
        }
        Ok(())
    }

    /// Returns whether rows of a search are not settled, or cells not drawn.
    ///
    /// # Errors
    /// If the sweep cannot be read.
    pub fn has_open_rows(&self) -> Result<bool> {
        let Some(search) = &self.search else { return Ok(false) };
        let (definition, rows, _) = Sweep::inspect(&search.sweep)?;
        let is_drawn = definition.cells.len() == definition.final_cells();
        Ok(!is_drawn || rows.iter().any(|row| !row.status.is_settled()))
    }

    /// The repetitions of a search that are in progress.
    ///
    /// # Errors
    /// If the sweep cannot be read.
    pub fn repetitions_in_progress(&self) -> Result<Vec<usize>> {
        let Some(search) = &self.search else { return Ok(Vec::new()) };
        let (_, rows, _) = Sweep::inspect(&search.sweep)?;
        let is_open = |run: &PathBuf| {
            let row = rows.iter().find(|row| search.sweep.join(Sweep::relative_run_path(row)) == *run);
            row.is_some_and(|row| !row.status.is_settled())
        };
        let numbers =
            (1..).zip(&self.runs).filter(|(number, run)| !self.done.contains(number) && is_open(run));
        Ok(numbers.map(|(number, _)| number).collect())
    }

    /// Records the results of repetitions that have ended, and returns the cell and the goal of those in
    /// progress.
    fn record_results(
        &self,
        sweep: &mut Sweep,
        state: Option<&LaunchState>,
    ) -> Result<BTreeMap<usize, (usize, Option<u64>)>> {
        let mut in_progress = BTreeMap::new();
        let Some(search) = &self.search else { return Ok(in_progress) };
        for (number, run) in (1..).zip(&self.runs) {
            let Some(at) = sweep.row_at(run) else { continue };
            if sweep.rows()[at].status.is_settled() {
                continue;
            }
            let until_epoch = search.until_epoch(number);
            let failure = state.and_then(|state| failure_of(state.repetitions.get(number - 1)?));
            if self.done.contains(&number) {
                sweep.record_outcome(at, RowOutcome::Succeeded, until_epoch)?;
            } else if let Some(outcome) = failure {
                sweep.record_outcome(at, outcome, until_epoch)?;
            } else {
                sweep.record_start(at)?;
                in_progress.insert(number, (sweep.rows()[at].cell, until_epoch));
            }
        }
        Ok(in_progress)
    }

    /// Adds the repetition that trains a row of a step, or sets its new goal, and returns its number.
    fn add_step(
        &mut self,
        sweep: &Sweep,
        at: usize,
        step: Step,
        state: Option<&LaunchState>,
        complete: &dyn Fn(&mut Experiment),
    ) -> Result<usize> {
        let row = &sweep.rows()[at];
        let run = sweep.run_path(row);
        let known = self.runs.iter().position(|other| *other == run);
        let host = self.choose_host(known, state);
        let Some(search) = &mut self.search else { return Ok(0) };
        let until_epoch = step.until_epoch.unwrap_or(0);
        if let Some(known) = known {
            let number = known + 1;
            search.until_epochs[known] = until_epoch;
            self.done.retain(|done| *done != number);
            if let (Some(host), Some(current)) = (host, self.host_by_repetition.get_mut(known)) {
                *current = host;
            }
            return Ok(number);
        }
        let mut experiment = sweep.definition.cells[row.cell - 1].repetition(row.repetition);
        complete(&mut experiment);
        let remote = search.uploaded_paths.remote_experiment(&experiment)?;
        search.until_epochs.push(until_epoch);
        self.experiments.push(remote.to_toml());
        self.runs.push(run);
        self.host_by_repetition.extend(host);
        Ok(self.runs.len())
    }

    /// The host with the fewest repetitions in progress, for targets with several hosts. Unreachable ones
    /// come last; of equal ones, the host that has the repetition comes first.
    fn choose_host(&self, known: Option<usize>, state: Option<&LaunchState>) -> Option<String> {
        let current = known.and_then(|known| self.host_by_repetition.get(known));
        let load = |host: &&String| {
            let mut is_unreachable = false;
            let mut count = 0;
            for (number, _) in (1_usize..).zip(&self.host_by_repetition).filter(|(_, name)| name == host) {
                let one = state.and_then(|state| state.repetitions.get(number - 1));
                is_unreachable |= one.is_some_and(|one| one.status == RepetitionStatus::Unknown);
                let has_failed = one.is_some_and(|one| one.status == RepetitionStatus::Failed);
                count += usize::from(!self.done.contains(&number) && !has_failed);
            }
            (is_unreachable, count, current != Some(*host))
        };
        self.prepared_hosts.iter().min_by_key(load).cloned()
    }
}

/// The outcome of a repetition whose training failed; `None` if it did not.
fn failure_of(one: &RepetitionState) -> Option<RowOutcome> {
    let reason = || match &one.queue {
        Some(queue) if one.last_line.is_empty() => queue.clone(),
        _ => one.last_line.clone(),
    };
    (one.status == RepetitionStatus::Failed).then(|| match one.last_line.contains(OUT_OF_MEMORY_PREFIX) {
        true => RowOutcome::DoesNotFit(reason()),
        false => RowOutcome::Failed(reason()),
    })
}

/// The steps of the cells in progress.
fn steps_of(sweep: &Sweep, in_progress: &BTreeMap<usize, (usize, Option<u64>)>) -> Vec<Step> {
    let mut steps: Vec<Step> = Vec::new();
    for (cell, until_epoch) in in_progress.values().copied() {
        if cell <= sweep.definition.cells.len() && steps.iter().all(|step| step.cell != cell) {
            steps.push(Step { cell, until_epoch });
        }
    }
    steps
}

/// Formats a step: `cell 3 (width=8): trained to epoch 2`.
fn describe_step(sweep: &Sweep, step: Step) -> String {
    let name = sweep.definition.cell_name(&sweep.definition.cells[step.cell - 1]);
    let goal = step.until_epoch.map_or("its end".to_owned(), |epoch| format!("epoch {epoch}"));
    format!("cell {} ({name}): trained to {goal}", step.cell)
}

#[cfg(test)]
mod tests;
