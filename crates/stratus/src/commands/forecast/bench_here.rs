//! `stratus bench forecast --here`: compares forecasts with measured steps on this machine. The forecasts are
//! made from kernels timed separately, or from a calibration.

use crate::commands::target::RunOrExperiment;
use crate::errors::Result;
use crate::globals::Globals;
use crate::output::{Output, table};
use serde::Serialize;
use std::path::Path;
use std::time::Instant;
use stratus_engine::StartupMonitor;
use stratus_experiment::Experiment;
use stratus_forecast::calibration::Calibration;
use stratus_forecast::forecast::{forecast, probed_interval};
use stratus_forecast::model::Framework;
use stratus_forecast::profile::Interval;
use stratus_train::bench::Bench;
use stratus_train::bench::probe::{ProbeReport, probe};
use stratus_train::forecast::Planner;
use stratus_train::input::open_datasets;

/// Seconds of measured steps per case.
const MEASURE_S: f64 = 2.0;
const MIN_STEPS: usize = 3;

/// The time of whole steps.
#[derive(Serialize)]
struct StepTiming {
    measured_s: f64,
    /// The number of measured steps.
    steps: usize,
    /// Half the interquartile range, in percent of the median.
    measured_spread_percent: f64,
    #[serde(skip)]
    precision: String,
}

/// A network with a batch size and a precision.
#[derive(Serialize)]
struct ForecastCase {
    network: String,
    batch: usize,
    precision: String,
    forecast_s: f64,
    #[serde(skip)]
    interval: Interval,
    #[serde(flatten)]
    measured: StepTiming,
    /// The error of the forecast, in percent of the measured step.
    error_percent: f64,
    /// True if the measured step is in the forecast's interval.
    covered: bool,
    planning_s: f64,
    probing_s: f64,
}

/// The evaluation of all cases.
#[derive(Serialize)]
struct HereEvaluation {
    library: String,
    cells: Vec<ForecastCase>,
    mean_percent: f64,
    worst_percent: f64,
    /// The percentage of cases within their interval.
    covered_percent: f64,
}

/// The cases to compare.
pub struct HereOptions<'a> {
    /// The experiments.
    pub experiments: &'a [String],
    /// The batch sizes; if empty, each experiment's.
    pub batches: &'a [u32],
    /// The precisions; if empty, each experiment's.
    pub precisions: &'a [String],
    /// A calibration file, whose forecasts are compared instead of timing kernels.
    pub calibrated: Option<&'a Path>,
    /// Repetitions; the shortest time counts, as other load only makes steps longer.
    pub rounds: u32,
}

/// Forecasts and measures each case in turn, on synthetic images.
///
/// # Errors
/// If an experiment is invalid, or does not fit into memory.
pub fn run(options: &HereOptions<'_>, globals: &Globals, output: &Output) -> Result {
    let calibrated = options.calibrated.map(Calibration::read).transpose()?;
    let mut all = Vec::new();
    for name in options.experiments {
        let experiment = RunOrExperiment::resolve(name, globals)?.experiment(globals)?;
        let default = [experiment.train.precision.to_string()];
        let precisions = if options.precisions.is_empty() { &default[..] } else { options.precisions };
        for precision in precisions {
            let key = ("train.precision".to_owned(), precision.clone());
            let experiment = experiment.clone().with_overrides(&[key])?;
            let batches = options.batches.iter().map(|&batch| batch as usize);
            let batches = if options.batches.is_empty() {
                vec![experiment.train.batch_size]
            } else {
                batches.collect()
            };
            all.extend(batches.into_iter().map(|batch| with_synthetic_data(&experiment, batch)));
        }
    }
    let (mut cells, mut library) = (Vec::<ForecastCase>::new(), String::new());
    for round in 0..options.rounds {
        for (at, experiment) in all.iter().enumerate() {
            if round == 0 {
                let (cell, found) = forecast_and_measure(experiment, calibrated.as_ref(), output)?;
                cells.push(cell);
                library = found;
            } else {
                let repeat = StepTiming::of(experiment, output)?;
                cells[at].keep_faster(repeat);
            }
            let ForecastCase { network, precision, batch, forecast_s, measured, error_percent, .. } =
                &cells[at];
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
    let evaluated = HereEvaluation {
        library,
        mean_percent: errors.clone().sum::<f64>() / cells.len().max(1) as f64,
        worst_percent: errors.fold(0.0, f64::max),
        covered_percent: 100.0 * covered as f64 / cells.len().max(1) as f64,
        cells,
    };
    output.print_wrapped(&evaluated, || render(&evaluated))
}

/// A forecast of a step.
struct StepForecast {
    library: String,
    step: Interval,
    planning_s: f64,
    probing_s: f64,
}

/// Forecasts a step from kernels timed separately.
fn forecast_by_probe(experiment: &Experiment, output: &Output) -> Result<StepForecast> {
    let mut warn = |text: &str| output.warning(text);
    let ProbeReport { step_s, spread, library, planning_s, probing_s, .. } =
        probe(experiment, &open_datasets(experiment)?, &StartupMonitor::default(), &mut warn)?;
    Ok(StepForecast { library, step: probed_interval(step_s, spread), planning_s, probing_s })
}

/// Forecasts a step from a calibration, which may be of another machine.
fn forecast_by_calibration(experiment: &Experiment, calibration: &Calibration) -> Result<StepForecast> {
    let started = Instant::now();
    let mut planner = Planner::new(experiment.clone(), Framework::Stratus, None, None)?;
    let machine = calibration.machine();
    let format = planner.format(&machine)?;
    let plan = planner.plan(&machine.processor, format, experiment.train.batch_size)?;
    let row = forecast(&machine, format, &plan, &planner.length(), &calibration.profiles)?;
    let step = Interval { seconds: row.step_s, low: row.low_s, high: row.high_s };
    let library = format!("{}, {}", machine.name, calibration.machine.library);
    Ok(StepForecast { library, step, planning_s: started.elapsed().as_secs_f64(), probing_s: 0.0 })
}

/// The experiment with synthetic images; their content does not affect the time of a step.
fn with_synthetic_data(experiment: &Experiment, batch: usize) -> Experiment {
    let mut experiment = experiment.clone();
    experiment.train.batch_size = batch;
    experiment.data.name = "synthetic".to_owned();
    experiment.data.path = None;
    experiment.synthetic.images = 2 * batch;
    experiment.synthetic.validation_images = batch;
    experiment
}

impl StepTiming {
    fn of(experiment: &Experiment, output: &Output) -> Result<Self> {
        let mut bench = Bench::new(experiment, &mut |text| output.warning(text))?;
        let mut measured = bench.time_steps_for(MEASURE_S, MIN_STEPS)?;
        measured.sort_by(f64::total_cmp);
        let quantile = |part: f64| measured[(part * (measured.len() - 1) as f64).round() as usize];
        let (measured_s, steps) = (quantile(0.5), measured.len());
        let measured_spread_percent = 50.0 * (quantile(0.75) - quantile(0.25)) / measured_s;
        Ok(Self { measured_s, steps, measured_spread_percent, precision: bench.precision().to_string() })
    }
}

impl ForecastCase {
    fn new(experiment: &Experiment, forecast: &StepForecast, measured: StepTiming) -> Self {
        let step = forecast.step;
        let mut cell = Self {
            network: experiment.model.name.clone(),
            batch: experiment.train.batch_size,
            precision: measured.precision.clone(),
            forecast_s: step.seconds,
            interval: step,
            error_percent: 0.0,
            covered: false,
            planning_s: forecast.planning_s,
            probing_s: forecast.probing_s,
            measured,
        };
        cell.update_error();
        cell
    }

    fn update_error(&mut self) {
        let measured_s = self.measured.measured_s;
        self.error_percent = 100.0 * (self.forecast_s / measured_s - 1.0);
        self.covered = self.interval.contains(measured_s);
    }

    fn keep_faster(&mut self, repeat: StepTiming) {
        if repeat.measured_s < self.measured.measured_s {
            self.measured = repeat;
            self.update_error();
        }
    }
}

fn forecast_and_measure(
    experiment: &Experiment,
    calibration: Option<&Calibration>,
    output: &Output,
) -> Result<(ForecastCase, String)> {
    let forecast = match calibration {
        Some(calibration) => forecast_by_calibration(experiment, calibration)?,
        None => forecast_by_probe(experiment, output)?,
    };
    let cell = ForecastCase::new(experiment, &forecast, StepTiming::of(experiment, output)?);
    Ok((cell, forecast.library))
}

fn render(evaluated: &HereEvaluation) -> String {
    let heading = [
        "network",
        "precision",
        "batch",
        "forecast, ms",
        "measured, ms",
        "error",
        "steps",
        "planning, s",
        "probing, s",
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
    let HereEvaluation { library, mean_percent, worst_percent, covered_percent, .. } = evaluated;
    format!(
        "{}{library}: mean error {mean_percent:.1} %, worst {worst_percent:.1} %; \
         {covered_percent:.0} % within the interval\n",
        table(&[heading].into_iter().chain(rows).collect::<Vec<_>>())
    )
}
