//! The results of a sweep, read without locking it: for pages that are shown while it trains.

use std::path::{Path, PathBuf};

use stratus_experiment::{Direction, EpochMetric};
use stratus_run::csv::EpochRow;

use crate::directory::relative_run_path;
use crate::schedule::{best_epoch, mean, metric_in};
use crate::{Definition, Result, Row, Status, Sweep};

/// The files of a sweep at a moment. It cannot be trained or changed.
#[derive(Clone, Debug)]
pub struct SweepSnapshot {
    path: PathBuf,
    /// The parsed sweep file.
    pub definition: Definition,
    /// The rows: one per cell and repetition.
    pub rows: Vec<Row>,
}

/// The results of the cells of a sweep, from its runs.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SweepResults {
    /// The result of each cell: the best epoch of [`Definition::objective`], as the mean of the repetitions.
    /// `None` for cells without one.
    pub cells: Vec<Option<f64>>,
    /// The cell with the best result, from 1.
    pub best: Option<usize>,
    /// The rounds of halving, in the order of their epochs; empty without halving.
    pub rounds: Vec<Round>,
}

/// The cells that were compared after an epoch.
#[derive(Clone, Debug, PartialEq)]
pub struct Round {
    /// The epoch.
    pub epoch: u64,
    /// The cells that have reached it, the best first.
    pub cells: Vec<RoundCell>,
}

/// A cell in a round.
#[derive(Clone, Debug, PartialEq)]
pub struct RoundCell {
    /// The cell, from 1.
    pub cell: usize,
    /// The metric after the epoch, as the mean of the repetitions.
    pub metric: Option<f64>,
    /// The outcome for the cell.
    pub outcome: RoundOutcome,
}

/// The outcome for a cell that was compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RoundOutcome {
    /// It is trained further.
    Continues,
    /// It was stopped, since others did better.
    Stopped,
    /// It failed.
    Failed,
    /// The others have not got as far yet.
    Undecided,
}

impl RoundOutcome {
    /// The name in documents.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Continues => "continues",
            Self::Stopped => "stopped",
            Self::Failed => "failed",
            Self::Undecided => "undecided",
        }
    }
}

impl Definition {
    /// The metric by which cells are compared: that of the search, or else that of halving.
    #[must_use]
    pub fn objective(&self) -> Option<EpochMetric> {
        let of_search = self.search.as_ref().and_then(|search| search.objective);
        of_search.or(self.halving.map(|halving| halving.metric))
    }
}

impl SweepSnapshot {
    /// Reads the sweep in a directory, without waiting for a process that trains it. `cells.csv` is replaced
    /// as a whole, so that it is never half-written.
    ///
    /// # Errors
    /// If the directory is not a sweep, or its files are damaged or do not match.
    pub fn read(path: &Path) -> Result<Self> {
        let (definition, rows) = Sweep::read(path)?;
        Ok(Self { path: path.to_owned(), definition, rows })
    }

    /// The directory of a row's run, whether it exists or not.
    #[must_use]
    pub fn run_path(&self, row: &Row) -> PathBuf {
        self.path.join(relative_run_path(row))
    }

    /// The results of the cells. `epochs_of` returns the rows of `epochs.csv` of a run; none if it cannot be
    /// read.
    pub fn results(&self, mut epochs_of: impl FnMut(&Path) -> Vec<EpochRow>) -> SweepResults {
        let Some(objective) = self.definition.objective() else { return SweepResults::default() };
        let mut runs: Vec<Vec<CellRun<'_>>> = self.definition.cells.iter().map(|_| Vec::new()).collect();
        for row in &self.rows {
            let epochs = if row.run.is_empty() { Vec::new() } else { epochs_of(&self.run_path(row)) };
            if let Some(of_cell) = runs.get_mut(row.cell - 1) {
                of_cell.push(CellRun { row, epochs });
            }
        }
        let result = |of_cell: &Vec<CellRun<'_>>| {
            let counted = of_cell.iter().filter(|run| run.row.status != Status::Failed);
            mean(&counted.map(|run| best_epoch(objective, &run.epochs, u64::MAX)).collect::<Vec<_>>())
        };
        let cells: Vec<Option<f64>> = runs.iter().map(result).collect();
        let best = best_of(objective.direction(), &cells);
        SweepResults { cells, best, rounds: self.rounds(&runs) }
    }

    /// The rounds of halving.
    fn rounds(&self, runs: &[Vec<CellRun<'_>>]) -> Vec<Round> {
        let Some(halving) = self.definition.halving else { return Vec::new() };
        let epochs = self.definition.cells.iter().map(|cell| cell.experiment.train.epochs).max();
        let round = |epoch: u64| {
            let reached = runs.iter().zip(1..).filter_map(|(of_cell, cell)| {
                let values: Vec<Option<f64>> = of_cell
                    .iter()
                    .filter_map(|run| {
                        metric_in(&halving, &run.epochs, epoch, || run.row.status == Status::Completed)
                    })
                    .collect();
                (!values.is_empty()).then(|| (cell, of_cell, mean(&values)))
            });
            let reached: Vec<(usize, &Vec<CellRun<'_>>, Option<f64>)> = reached.collect();
            let metrics: Vec<Option<f64>> = reached.iter().map(|(.., metric)| *metric).collect();
            // Of cells that are compared all at once, those that were not stopped continue.
            let stopped = reached.iter().any(|(_, runs, _)| has_stopped_at(runs, epoch));
            let is_decided = stopped && !halving.is_asynchronous;
            let ranked = halving.ranking(&metrics).into_iter().map(|at| {
                let (cell, runs, metric) = reached[at];
                RoundCell { cell, metric, outcome: outcome_at(runs, epoch, is_decided) }
            });
            Round { epoch, cells: ranked.collect() }
        };
        halving.rungs(epochs.unwrap_or(0)).into_iter().map(round).collect()
    }
}

/// A run of a cell, with its epochs.
struct CellRun<'a> {
    row: &'a Row,
    epochs: Vec<EpochRow>,
}

impl CellRun<'_> {
    fn last_epoch(&self) -> u64 {
        self.epochs.last().map_or(0, |row| u64::from(row.epoch))
    }
}

/// Returns whether a cell was stopped after an epoch.
fn has_stopped_at(runs: &[CellRun<'_>], epoch: u64) -> bool {
    let is_stopped = |run: &CellRun<'_>| run.row.status == Status::StoppedEarly;
    runs.iter().any(is_stopped) && runs.iter().all(|run| run.last_epoch() <= epoch)
}

/// The outcome for a cell that has reached an epoch.
fn outcome_at(runs: &[CellRun<'_>], epoch: u64, is_decided: bool) -> RoundOutcome {
    let has_gone_on = |run: &CellRun<'_>| run.row.status == Status::Completed || run.last_epoch() > epoch;
    let is_open = runs.iter().any(|run| !run.row.status.is_settled());
    if runs.iter().any(has_gone_on) {
        RoundOutcome::Continues
    } else if has_stopped_at(runs, epoch) {
        RoundOutcome::Stopped
    } else if !is_open {
        RoundOutcome::Failed
    } else if is_decided {
        RoundOutcome::Continues
    } else {
        RoundOutcome::Undecided
    }
}

/// The cell with the best of the results, from 1; the first of several.
pub(crate) fn best_of(direction: Direction, cells: &[Option<f64>]) -> Option<usize> {
    let known = (1..).zip(cells).filter_map(|(cell, result)| Some((cell, (*result)?)));
    let better = |best: (usize, f64), next: (usize, f64)| {
        if direction.improvement(next.1, best.1) > 0.0 { next } else { best }
    };
    known.reduce(better).map(|(cell, _)| cell)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::schedule::tests::{SWEEP, create};

    fn row(epoch: u32, val_loss: f64) -> EpochRow {
        EpochRow { epoch, val_loss: Some(val_loss), ..EpochRow::default() }
    }

    fn snapshot(text: &str) -> SweepSnapshot {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("sweep");
        drop(create(&path, text));
        SweepSnapshot::read(&path).unwrap()
    }

    /// Sets the status of a cell's only row, and gives it a run.
    fn set(snapshot: &mut SweepSnapshot, cell: usize, status: Status) {
        let row = snapshot.rows.iter_mut().find(|row| row.cell == cell).unwrap();
        (row.status, row.run) = (status, format!("runs/{cell}/1"));
    }

    fn cell_of(run: &Path) -> usize {
        run.parent().unwrap().file_name().unwrap().to_str().unwrap().parse().unwrap()
    }

    const HALVING: &str = "[model]\nname = \"digits\"\n[train]\nepochs = 4\n[sweep.keys]\n\
                           \"model.width\" = [8, 12, 16, 24]\n[sweep.halving]\nmetric = \"val_loss\"\n";

    #[test]
    fn rounds_tell_which_cells_continued() {
        let mut sweep = snapshot(HALVING);
        let outcomes = |sweep: &SweepSnapshot, epochs: [u32; 5]| {
            // The loss of cell 1 is the lowest.
            let read = |run: &Path| {
                let cell = cell_of(run);
                (1..=epochs[cell]).map(|epoch| row(epoch, cell as f64 / f64::from(epoch))).collect()
            };
            let results = sweep.results(read);
            let named = |round: &Round| {
                let cells = round.cells.iter().map(|cell| (cell.cell, cell.outcome.name()));
                (round.epoch, cells.collect::<Vec<_>>())
            };
            (results.best, results.rounds.iter().map(named).collect::<Vec<_>>())
        };
        assert_eq!(outcomes(&sweep, [0; 5]), (None, vec![(1, Vec::new()), (2, Vec::new())]));
        for cell in 1..=2 {
            set(&mut sweep, cell, Status::Interrupted);
        }
        let undecided = vec![(1, "undecided"), (2, "undecided")];
        assert_eq!(
            outcomes(&sweep, [0, 1, 1, 0, 0]),
            (Some(1), vec![(1, undecided.clone()), (2, Vec::new())])
        );
        set(&mut sweep, 3, Status::StoppedEarly);
        set(&mut sweep, 4, Status::Failed);
        let first = vec![(1, "continues"), (2, "continues"), (3, "stopped"), (4, "failed")];
        let (_, rounds) = outcomes(&sweep, [0, 1, 1, 1, 1]);
        assert_eq!(rounds[0].1, first, "the next round has not begun");
        set(&mut sweep, 1, Status::Completed);
        set(&mut sweep, 2, Status::StoppedEarly);
        let (best, rounds) = outcomes(&sweep, [0, 4, 2, 1, 1]);
        assert_eq!((best, &rounds[0].1), (Some(1), &first));
        assert_eq!(rounds[1], (2, vec![(1, "continues"), (2, "stopped")]));
    }

    #[test]
    fn a_sweep_and_its_snapshot_have_the_same_best_cell() {
        use stratus_run::csv::{CsvWriter, Task};
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("sweep");
        // A grid that is halved has no search, but the metric of halving.
        let sweep = create(&path, HALVING);
        for (cell, val_loss) in [(1, 0.5), (2, 0.25), (3, 0.25), (4, f64::NAN)] {
            let row = sweep.rows().iter().find(|row| row.cell == cell).unwrap();
            let run = sweep.run_path(row);
            std::fs::create_dir_all(&run).unwrap();
            let mut epochs = CsvWriter::open(&run.join("epochs.csv"), Task::Classification).unwrap();
            epochs.append(&self::row(1, val_loss)).unwrap();
            epochs.flush().unwrap();
        }
        assert_eq!(sweep.best_cell(), Some((2, 0.25)));
        drop(sweep);
        let mut snapshot = SweepSnapshot::read(&path).unwrap();
        (1..=4).for_each(|cell| set(&mut snapshot, cell, Status::Completed));
        let results =
            snapshot.results(|run| stratus_run::csv::read(&run.join("epochs.csv")).unwrap_or_default());
        assert_eq!(results.best, Some(2));
    }

    #[test]
    fn results_are_means_of_best_epochs_without_failed_runs() {
        let mut sweep = snapshot(
            "[model]\nname = \"digits\"\n[sweep]\nrepetitions = 2\nsearch = \"random\"\ntrials = 2\n\
             objective = \"val_loss\"\n[sweep.keys]\n\"model.width\" = [8, 12, 16, 24]\n",
        );
        for row in &mut sweep.rows {
            (row.status, row.run) = (Status::Completed, format!("runs/{}/{}", row.cell, row.repetition));
        }
        let read = |run: &Path| match run.strip_prefix(run.ancestors().nth(3).unwrap()).unwrap().to_str() {
            Some("runs/1/1") => vec![row(1, 4.0), row(2, 2.0), row(3, 3.0)],
            Some("runs/1/2") => vec![row(1, f64::NAN), row(2, 4.0)],
            _ => Vec::new(),
        };
        let results = sweep.results(read);
        assert_eq!((results.cells, results.best), (vec![Some(3.0), None], Some(1)));
        sweep.rows[1].status = Status::Failed;
        assert_eq!(sweep.results(read).cells, [Some(2.0), None]);
        // A grid without objective has none.
        let grid = snapshot(SWEEP);
        assert_eq!(grid.definition.objective(), None);
        assert_eq!(grid.results(|_| vec![row(1, 1.0)]), SweepResults::default());
    }
}
