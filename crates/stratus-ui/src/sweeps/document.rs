//! The documents of the pages of sweeps.

use std::collections::BTreeMap;

use serde::Serialize;
use stratus_experiment::{Direction, EpochMetric};
use stratus_report::report::Score;
use stratus_sweep::{Row, Status, SweepSnapshot};

use super::ReadSweep;
use crate::index::{Entry, RunFigures, ScannedItem};

/// The name of the status of runs whose process was killed.
const KILLED: &str = "killed";

/// A sweep in the list.
#[derive(Debug, Serialize)]
pub struct SweepLine<'a> {
    id: &'a str,
    label: &'a str,
    /// The reason why it cannot be read.
    problem: Option<&'a str>,
    /// The swept keys.
    keys: &'a [String],
    /// `grid`, `random` or `tpe`, and whether bad cells are stopped early.
    method: String,
    /// Cells so far, and at the end.
    cells: [usize; 2],
    repetitions: usize,
    /// The number of runs of each status.
    statuses: BTreeMap<&'static str, usize>,
    best: Option<BestCell>,
}

/// The best cell.
#[derive(Debug, Serialize)]
struct BestCell {
    cell: usize,
    name: String,
    /// The measure that was compared, with its unit.
    measure: String,
    value: f64,
    /// Decimals to show.
    places: usize,
    /// The number of runs whose mean the value is.
    runs: usize,
}

/// The page of a sweep.
#[derive(Debug, Serialize)]
pub struct SweepDocument<'a> {
    #[serde(flatten)]
    line: SweepLine<'a>,
    version: String,
    /// The metric by which cells are compared.
    objective: Option<MetricName>,
    halving: Option<HalvingFacts>,
    /// The validation measure of the runs, as its name.
    measure: Option<Score>,
    /// `%` if its values are fractions, to be shown in percent; else nothing.
    measure_unit: &'static str,
    rows: Vec<CellFacts<'a>>,
    rounds: Vec<RoundFacts>,
}

#[derive(Debug, Serialize)]
struct MetricName {
    name: &'static str,
    is_higher_better: bool,
}

#[derive(Debug, Serialize)]
struct HalvingFacts {
    metric: MetricName,
    epochs: u64,
    factor: usize,
    is_asynchronous: bool,
}

/// A cell with its runs.
#[derive(Debug, Serialize)]
struct CellFacts<'a> {
    cell: usize,
    name: String,
    values: &'a [String],
    result: Option<f64>,
    runs: Vec<RunFacts<'a>>,
}

/// A run of a cell.
#[derive(Debug, Serialize)]
struct RunFacts<'a> {
    repetition: usize,
    status: &'static str,
    reason: &'a str,
    /// Damaged files of the run.
    problem: Option<&'a str>,
    #[serde(flatten)]
    figures: RunFigures<'a>,
}

/// A round of halving.
#[derive(Debug, Serialize)]
struct RoundFacts {
    epoch: u64,
    /// Cell, metric, outcome.
    cells: Vec<(usize, Option<f64>, &'static str)>,
}

impl MetricName {
    fn of(metric: EpochMetric) -> Self {
        let is_higher_better = metric.direction() == Direction::HigherIsBetter;
        Self { name: metric.as_str(), is_higher_better }
    }
}

impl<'a> SweepLine<'a> {
    /// The line of a sweep.
    pub fn new(item: &'a ScannedItem, read: &'a ReadSweep) -> Self {
        let (id, label) = (item.id().as_str(), item.found.label.as_str());
        let snapshot = match &*read.snapshot {
            Ok(snapshot) => snapshot,
            Err(reason) => {
                return Self {
                    id,
                    label,
                    problem: Some(reason),
                    keys: &[],
                    method: String::new(),
                    cells: [0; 2],
                    repetitions: 0,
                    statuses: BTreeMap::new(),
                    best: None,
                };
            }
        };
        let definition = &snapshot.definition;
        let mut statuses = BTreeMap::new();
        for (row, run) in snapshot.rows.iter().zip(&read.runs) {
            *statuses.entry(status_of(row, run.as_ref())).or_insert(0) += 1;
        }
        let method = definition.search.as_ref().map_or("grid", |search| search.method.name());
        let halving = match definition.halving {
            None => "",
            Some(halving) if halving.is_asynchronous => ", asynchronous halving",
            Some(_) => ", halving",
        };
        Self {
            id,
            label,
            problem: None,
            keys: &definition.keys,
            method: format!("{method}{halving}"),
            cells: [definition.cells.len(), definition.final_cells()],
            repetitions: definition.repetitions,
            statuses,
            best: best_cell(snapshot, read),
        }
    }
}

impl<'a> SweepDocument<'a> {
    /// The document of a sweep.
    pub fn new(item: &'a ScannedItem, read: &'a ReadSweep, version: String) -> Self {
        let line = SweepLine::new(item, read);
        let Ok(snapshot) = &*read.snapshot else {
            return Self {
                line,
                version,
                objective: None,
                halving: None,
                measure: None,
                measure_unit: "%",
                rows: Vec::new(),
                rounds: Vec::new(),
            };
        };
        let definition = &snapshot.definition;
        let mut rows: Vec<CellFacts<'_>> = definition
            .cells
            .iter()
            .zip(1..)
            .map(|(cell, number)| CellFacts {
                cell: number,
                name: definition.cell_name(cell),
                values: &cell.values,
                result: read.results.cells.get(number - 1).copied().flatten(),
                runs: Vec::new(),
            })
            .collect();
        for (row, run) in snapshot.rows.iter().zip(&read.runs) {
            if let Some(of_cell) = rows.get_mut(row.cell - 1) {
                of_cell.runs.push(RunFacts::new(row, run.as_ref()));
            }
        }
        let measure = read.runs.iter().flatten().find_map(|entry| entry.row.score.score);
        let rounds = read.results.rounds.iter().map(|round| RoundFacts {
            epoch: round.epoch,
            cells: round.cells.iter().map(|one| (one.cell, one.metric, one.outcome.name())).collect(),
        });
        Self {
            line,
            version,
            objective: definition.objective().map(MetricName::of),
            halving: definition.halving.map(|halving| HalvingFacts {
                metric: MetricName::of(halving.metric),
                epochs: halving.epochs,
                factor: halving.factor,
                is_asynchronous: halving.is_asynchronous,
            }),
            measure,
            measure_unit: measure.map_or("%", Score::unit),
            rows,
            rounds: rounds.collect(),
        }
    }
}

impl<'a> RunFacts<'a> {
    fn new(row: &'a Row, run: Option<&'a Entry>) -> Self {
        let facts = run.map(|entry| entry.row.as_ref());
        Self {
            repetition: row.repetition,
            status: status_of(row, run),
            reason: &row.reason,
            problem: facts.and_then(|run| run.problem.as_deref()),
            figures: RunFigures::of(facts),
        }
    }
}

/// The status of a row. The table of a sweep that was killed says that its run is training; the run itself
/// knows better.
fn status_of(row: &Row, run: Option<&Entry>) -> &'static str {
    let is_at_rest = || run.is_some_and(|entry| !matches!(entry.row.state, "running" | "completed"));
    if row.status == Status::Running && is_at_rest() { KILLED } else { row.status.name() }
}

/// The best cell by the metric of the sweep, or else by the validation measure, as the mean of its runs.
fn best_cell(snapshot: &SweepSnapshot, read: &ReadSweep) -> Option<BestCell> {
    let definition = &snapshot.definition;
    let name = |cell: usize| definition.cell_name(&definition.cells[cell - 1]);
    if let Some(objective) = definition.objective() {
        let cell = read.results.best?;
        let value = read.results.cells.get(cell - 1).copied().flatten()?;
        let of_cell = snapshot.rows.iter().zip(&read.runs);
        let of_cell = of_cell.filter(|(row, _)| row.cell == cell && row.status != Status::Failed);
        // A run that has just started has no value yet.
        let has_value = |run: &&Option<Entry>| run.as_ref().is_some_and(|run| run.row.progress.epochs > 0);
        let runs = of_cell.map(|(_, run)| run).filter(has_value).count();
        let measure = objective.as_str().to_owned();
        return Some(BestCell { cell, name: name(cell), measure, value, places: 4, runs });
    }
    let mut sums = vec![(0.0, 0_usize); definition.cells.len()];
    let mut measure = None;
    for (row, run) in snapshot.rows.iter().zip(&read.runs).filter(|(row, _)| row.status != Status::Failed) {
        let Some(score) = run.as_ref().map(|run| &run.row.score) else { continue };
        measure = measure.or(score.score);
        if let (Some(best), Some((sum, count))) = (score.best, sums.get_mut(row.cell - 1)) {
            *sum += best;
            *count += 1;
        }
    }
    let mut best: Option<(usize, f64, usize)> = None;
    for (cell, &(sum, count)) in (1..).zip(&sums) {
        let mean = sum / count as f64;
        if count > 0 && best.is_none_or(|(_, value, _)| mean > value) {
            best = Some((cell, mean, count));
        }
    }
    let (cell, value, runs) = best?;
    let measure = measure.unwrap_or(Score::Mixed { are_fractions: true });
    let (value, places) = (measure.number(value), measure.decimals());
    let measure = format!("validation {}", measure.title());
    Some(BestCell { cell, name: name(cell), measure, value, places, runs })
}
