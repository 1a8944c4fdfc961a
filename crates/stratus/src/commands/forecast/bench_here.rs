//! `stratus bench forecast --here`: forecasts from kernels timed alone, or from a calibration, against whole
//! steps on this machine.

use super::machines::calibration;
use super::planning::Planner;
use crate::cli::Globals;
use crate::commands::target::Target;
use crate::errors::Result;
use crate::output::{Output, table};
use serde::Serialize;
use std::path::Path;
use std::time::Instant;
use stratus_forecast::calibration::Calibration;
use stratus_forecast::forecast::{forecast, measured_interval};
use stratus_forecast::model::Framework;
use stratus_forecast::profile::Interval;
use stratus_train::bench::Bench;
use stratus_train::bench::probe::{Probed, probe};
use stratus_train::experiment::Experiment;
use stratus_train::input::open_datasets;

/// Seconds of whole steps for each cell, and how many there are at least.
const SECONDS: f64 = 2.0;
const FEWEST: usize = 3;

/// Whole steps.
#[derive(Serialize)]
struct Measured {
    measured_s: f64,
    /// How many steps were measured.
    steps: usize,
    /// Half of what the middle half of them spans, of the median.
    measured_spread_percent: f64,
    #[serde(skip)]
    precision: String,
}

/// A network at a batch size in a number format.
#[derive(Serialize)]
struct Cell {
    network: String,
    batch: usize,
    precision: String,
    forecast_s: f64,
    #[serde(skip)]
    interval: Interval,
    #[serde(flatten)]
    measured: Measured,
    /// Of the measured step.
    error_percent: f64,
    /// Whether the measured step lies in the forecast's interval.
    covered: bool,
    planning_s: f64,
    probing_s: f64,
}

/// All cells.
#[derive(Serialize)]
struct Evaluated {
    library: String,
    cells: Vec<Cell>,
    mean_percent: f64,
    worst_percent: f64,
    /// Cells within their interval.
    covered_percent: f64,
}

/// What is compared.
pub struct Asked<'a> {
    /// Experiments.
    pub experiments: &'a [String],
    /// Batch sizes; none: that of each experiment.
    pub batches: &'a [u32],
    /// Number formats; none: what the experiment asks for.
    pub precisions: &'a [String],
    /// What `stratus calibrate` wrote of this machine: its forecasts are compared, and no kernel is timed.
    pub calibrated: Option<&'a Path>,
    /// How often all are measured; the shortest steps count, as what else a machine does makes them longer.
    pub rounds: u32,
}

/// Forecasts and measures each cell in turn, on synthetic images.
///
/// # Errors
/// Where an experiment is not in order, or does not fit.
pub fn run(asked: &Asked<'_>, globals: &Globals, output: &Output) -> Result {
    let calibrated = asked.calibrated.map(calibration).transpose()?;
    let mut all = Vec::new();
    for name in asked.experiments {
        let experiment = Target::find(name, globals)?.experiment(globals)?;
        let own = [experiment.train.precision.to_string()];
        let precisions = if asked.precisions.is_empty() { &own[..] } else { asked.precisions };
        for precision in precisions {
            let key = ("train.precision".to_owned(), precision.clone());
            let experiment = experiment.clone().with_overrides(&[key])?;
            let batches = asked.batches.iter().map(|&batch| batch as usize);
            let batches =
                if asked.batches.is_empty() { vec![experiment.train.batch_size] } else { batches.collect() };
            all.extend(batches.into_iter().map(|batch| synthetic(&experiment, batch)));
        }
    }
    let (mut cells, mut library) = (Vec::<Cell>::new(), String::new());
    for round in 0..asked.rounds {
        for (at, experiment) in all.iter().enumerate() {
            if round == 0 {
                let (cell, with) = cell(experiment, calibrated.as_ref(), output)?;
                cells.push(cell);
                library = with;
            } else {
                let again = Measured::of(experiment, output)?;
                cells[at].improve(again);
            }
            let Cell { network, precision, batch, forecast_s, measured, error_percent, .. } = &cells[at];
            output.message(&format!(
                "{network} {precision} batch {batch}: {:.1} ms forecast, {:.1} ms measured, \
                 {error_percent:+.1} %",
                forecast_s * 1e3,
                measured.measured_s * 1e3
            ));
        }
    }
    let covered = cells.iter().filter(|cell| cell.covered).count();
    let errors = cells.iter().map(|cell| cell.error_percent.abs());
    let evaluated = Evaluated {
        library,
        mean_percent: errors.clone().sum::<f64>() / cells.len().max(1) as f64,
        worst_percent: errors.fold(0.0, f64::max),
        covered_percent: 100.0 * covered as f64 / cells.len().max(1) as f64,
        cells,
    };
    output.result(&evaluated, || render(&evaluated))
}

/// A forecast of a step.
struct Foreseen {
    library: String,
    step: Interval,
    planning_s: f64,
    probing_s: f64,
}

/// By the kernels timed alone.
fn probed(experiment: &Experiment, output: &Output) -> Result<Foreseen> {
    let mut warn = |text: &str| output.warning(text);
    let Probed { step_s, spread, library, planning_s, probing_s, .. } =
        probe(experiment, &open_datasets(experiment)?, &mut warn)?;
    Ok(Foreseen { library, step: measured_interval(step_s, spread), planning_s, probing_s })
}

/// By what is known of the machine, which need not be this one.
fn calibrated(experiment: &Experiment, calibration: &Calibration) -> Result<Foreseen> {
    let begun = Instant::now();
    let mut planner = Planner::new(experiment.clone(), Framework::Stratus, None, None)?;
    let machine = calibration.machine();
    let format = planner.format(&machine)?;
    let plan = planner.plan(&machine.processor, format, experiment.train.batch_size)?;
    let row = forecast(&machine, format, &plan, &planner.length(), &calibration.profiles)?;
    let step = Interval { seconds: row.step_s, low: row.low_s, high: row.high_s };
    let library = format!("{}, {}", machine.name, calibration.machine.library);
    Ok(Foreseen { library, step, planning_s: begun.elapsed().as_secs_f64(), probing_s: 0.0 })
}

/// Nothing of a step depends on what the images show.
fn synthetic(experiment: &Experiment, batch: usize) -> Experiment {
    let mut experiment = experiment.clone();
    experiment.train.batch_size = batch;
    experiment.data.name = "synthetic".to_owned();
    experiment.data.path = None;
    experiment.synthetic.images = 2 * batch;
    experiment.synthetic.validation_images = batch;
    experiment
}

impl Measured {
    fn of(experiment: &Experiment, output: &Output) -> Result<Self> {
        let mut bench = Bench::new(experiment, &mut |text| output.warning(text))?;
        let mut measured = bench.steps_for(SECONDS, FEWEST)?;
        measured.sort_by(f64::total_cmp);
        let at = |part: f64| measured[(part * (measured.len() - 1) as f64).round() as usize];
        let (measured_s, steps) = (at(0.5), measured.len());
        let measured_spread_percent = 50.0 * (at(0.75) - at(0.25)) / measured_s;
        Ok(Self { measured_s, steps, measured_spread_percent, precision: bench.precision().to_string() })
    }
}

impl Cell {
    fn new(experiment: &Experiment, foreseen: &Foreseen, measured: Measured) -> Self {
        let step = foreseen.step;
        let mut cell = Self {
            network: experiment.model.name.clone(),
            batch: experiment.train.batch_size,
            precision: measured.precision.clone(),
            forecast_s: step.seconds,
            interval: step,
            error_percent: 0.0,
            covered: false,
            planning_s: foreseen.planning_s,
            probing_s: foreseen.probing_s,
            measured,
        };
        cell.judge();
        cell
    }

    fn judge(&mut self) {
        let measured_s = self.measured.measured_s;
        self.error_percent = 100.0 * (self.forecast_s / measured_s - 1.0);
        self.covered = self.interval.holds(measured_s);
    }

    fn improve(&mut self, again: Measured) {
        if again.measured_s < self.measured.measured_s {
            self.measured = again;
            self.judge();
        }
    }
}

fn cell(
    experiment: &Experiment,
    calibration: Option<&Calibration>,
    output: &Output,
) -> Result<(Cell, String)> {
    let foreseen = match calibration {
        Some(calibration) => calibrated(experiment, calibration)?,
        None => probed(experiment, output)?,
    };
    let cell = Cell::new(experiment, &foreseen, Measured::of(experiment, output)?);
    Ok((cell, foreseen.library))
}

fn render(evaluated: &Evaluated) -> String {
    let heading = [
        "network",
        "type",
        "batch",
        "forecast, ms",
        "measured, ms",
        "error",
        "steps",
        "planned, s",
        "timed, s",
    ];
    let rows = evaluated.cells.iter().map(|cell| {
        vec![
            cell.network.clone(),
            cell.precision.clone(),
            cell.batch.to_string(),
            format!("{:.1}", cell.forecast_s * 1e3),
            format!("{:.1} ± {:.1} %", cell.measured.measured_s * 1e3, cell.measured.measured_spread_percent),
            format!("{:+.1} %", cell.error_percent),
            cell.measured.steps.to_string(),
            format!("{:.1}", cell.planning_s),
            format!("{:.1}", cell.probing_s),
        ]
    });
    let heading = heading.map(str::to_owned).to_vec();
    let Evaluated { library, mean_percent, worst_percent, covered_percent, .. } = evaluated;
    format!(
        "{}{library}: mean error {mean_percent:.1} %, worst {worst_percent:.1} %; \
         {covered_percent:.0} % within the interval\n",
        table(&[heading].into_iter().chain(rows).collect::<Vec<_>>())
    )
}
