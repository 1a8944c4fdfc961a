//! Forecasts against measured steps on this machine. The forecasts are made from kernels timed separately, or
//! from a calibration.

use super::Bench;
use super::probe::{ProbeReport, probe};
use crate::TrainError;
use crate::forecast::Planner;
use crate::input::open_datasets;
use serde::Serialize;
use std::time::Instant;
use stratus_engine::StartupMonitor;
use stratus_experiment::Experiment;
use stratus_forecast::calibration::Calibration;
use stratus_forecast::forecast::{forecast, probed_interval};
use stratus_forecast::model::Framework;
use stratus_forecast::profile::Interval;

/// Seconds of measured steps per case.
const MEASURE_S: f64 = 2.0;
const MIN_STEPS: usize = 3;

/// The time of whole steps.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct StepTiming {
    /// Median seconds.
    pub measured_s: f64,
    /// The number of measured steps.
    pub steps: usize,
    /// Half the interquartile range, in percent of the median.
    pub measured_spread_percent: f64,
    /// The precision of the step.
    #[serde(skip)]
    pub precision: String,
}

/// A network with a batch size and a precision.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ForecastCase {
    /// The network's name.
    pub network: String,
    /// Samples per step.
    pub batch: usize,
    /// The precision.
    pub precision: String,
    /// The forecast seconds of a step.
    pub forecast_s: f64,
    /// The forecast with its interval.
    #[serde(skip)]
    pub interval: Interval,
    /// The measured step.
    #[serde(flatten)]
    pub measured: StepTiming,
    /// The error of the forecast, in percent of the measured step.
    pub error_percent: f64,
    /// True if the measured step is in the forecast's interval.
    pub covered: bool,
    /// Seconds of planning.
    pub planning_s: f64,
    /// Seconds of timing kernels.
    pub probing_s: f64,
}

/// The evaluation of all cases.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct StepEvaluation {
    /// The library or machine that the forecasts are for.
    pub library: String,
    /// The cases.
    pub cells: Vec<ForecastCase>,
    /// The mean absolute error, in percent.
    pub mean_percent: f64,
    /// The largest absolute error, in percent.
    pub worst_percent: f64,
    /// The percentage of cases within their interval.
    pub covered_percent: f64,
}

impl StepEvaluation {
    /// Forecasts and measures each experiment in turn, on synthetic images. The forecasts are those of
    /// `calibration`, or made from kernels timed separately. Of `rounds` measurements the shortest counts, as
    /// other load only makes steps longer. `measured` is called after each.
    ///
    /// # Errors
    /// If an experiment is invalid, or does not fit into memory.
    pub fn new(
        experiments: &[Experiment],
        calibration: Option<&Calibration>,
        rounds: u32,
        measured: &mut dyn FnMut(&ForecastCase),
        warn: &mut dyn FnMut(&str),
    ) -> Result<Self, TrainError> {
        let (mut cells, mut library) = (Vec::<ForecastCase>::new(), String::new());
        for round in 0..rounds {
            for (at, experiment) in experiments.iter().enumerate() {
                if round == 0 {
                    let forecast = match calibration {
                        Some(calibration) => forecast_by_calibration(experiment, calibration)?,
                        None => forecast_by_probe(experiment, warn)?,
                    };
                    cells.push(ForecastCase::new(experiment, &forecast, StepTiming::new(experiment, warn)?));
                    library = forecast.library;
                } else {
                    cells[at].keep_faster(StepTiming::new(experiment, warn)?);
                }
                measured(&cells[at]);
            }
        }
        let covered = cells.iter().filter(|cell| cell.covered).count();
        let errors = cells.iter().map(|cell| cell.error_percent.abs());
        Ok(Self {
            library,
            mean_percent: errors.clone().sum::<f64>() / cells.len().max(1) as f64,
            worst_percent: errors.fold(0.0, f64::max),
            covered_percent: 100.0 * covered as f64 / cells.len().max(1) as f64,
            cells,
        })
    }
}

/// A forecast of a step.
struct StepForecast {
    library: String,
    step: Interval,
    planning_s: f64,
    probing_s: f64,
}

/// Forecasts a step from kernels timed separately.
fn forecast_by_probe(
    experiment: &Experiment,
    warn: &mut dyn FnMut(&str),
) -> Result<StepForecast, TrainError> {
    let ProbeReport { step_s, spread, library, planning_s, probing_s, .. } =
        probe(experiment, &open_datasets(experiment)?, &StartupMonitor::default(), warn)?;
    Ok(StepForecast { library, step: probed_interval(step_s, spread), planning_s, probing_s })
}

/// Forecasts a step from a calibration, which may be of another machine.
fn forecast_by_calibration(
    experiment: &Experiment,
    calibration: &Calibration,
) -> Result<StepForecast, TrainError> {
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

/// The experiment with this batch and synthetic images, whose content does not affect the time of a step.
#[must_use]
pub fn with_synthetic_data(experiment: &Experiment, batch: usize) -> Experiment {
    let mut experiment = experiment.clone();
    experiment.train.batch_size = batch;
    experiment.data.name = "synthetic".to_owned();
    experiment.data.path = None;
    experiment.synthetic.images = 2 * batch;
    experiment.synthetic.validation_images = batch;
    experiment
}

impl StepTiming {
    fn new(experiment: &Experiment, warn: &mut dyn FnMut(&str)) -> Result<Self, TrainError> {
        let mut bench = Bench::new(experiment, warn)?;
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
