//! Forecasts against measured steps on this machine. The forecasts are made from kernels timed separately, or
//! from a calibration.

use super::probe::{ProbeReport, probe};
use super::speed_reference::SpeedReference;
use super::{Bench, median};
use crate::forecast::Planner;
use crate::input::open_datasets;
use crate::network::Network;
use crate::{TrainError, device};
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
    /// The forecast seconds of a step: the median over rounds.
    pub forecast_s: f64,
    /// The forecast with its interval.
    #[serde(skip)]
    pub interval: Interval,
    /// The measured step of the round with the median time.
    #[serde(flatten)]
    pub measured: StepTiming,
    /// The error of the forecast, in percent of the measured step.
    pub error_percent: f64,
    /// The speed of the machine when the step was measured, relative to its speed when its kernels were: the
    /// median over rounds. `None` for calibrations of earlier versions.
    pub speed: Option<f64>,
    /// The error of the forecast divided by `speed`, in percent of the measured step: the median over rounds.
    pub error_at_speed_percent: Option<f64>,
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
    /// The mean and the largest absolute error of forecasts at the machine's speed of the moment, in percent.
    pub at_speed_percent: Option<[f64; 2]>,
    /// The lowest and the highest time of the speed reference, relative to the median.
    pub reference_times: [f64; 2],
    /// The mean deviation of a measured step from its median over rounds, in percent: no forecast can be
    /// closer. `None` with fewer than three rounds.
    pub repeat_deviation_percent: Option<f64>,
    /// The percentage of cases within their interval.
    pub covered_percent: f64,
}

impl StepEvaluation {
    /// Forecasts and measures each experiment in turn, on synthetic images, `rounds` times. The forecasts are
    /// those of `calibration`, or made from kernels timed separately. `measured` is called after each.
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
        let mut repeats: Vec<Vec<Repeat>> = experiments.iter().map(|_| Vec::new()).collect();
        let mut reference = match experiments.first() {
            Some(experiment) => Some(ReferenceClock::new(experiment)?),
            None => None,
        };
        for _ in 0..rounds {
            for (experiment, repeats) in experiments.iter().zip(&mut repeats) {
                let Some(reference) = &mut reference else { continue };
                repeats.push(Repeat::measure(experiment, calibration, reference, warn)?);
                measured(&ForecastCase::new(experiment, &repeats[repeats.len() - 1..]));
            }
        }
        let cells = experiments.iter().zip(&repeats).filter(|(_, repeats)| !repeats.is_empty());
        let cells: Vec<_> = cells.map(|(experiment, all)| ForecastCase::new(experiment, all)).collect();
        let count = cells.len().max(1) as f64;
        let mean_and_worst = |errors: &[f64]| {
            let absolute = || errors.iter().map(|error| error.abs());
            [absolute().sum::<f64>() / count, absolute().fold(0.0, f64::max)]
        };
        let errors: Vec<f64> = cells.iter().map(|cell| cell.error_percent).collect();
        let at_speed: Option<Vec<f64>> = cells.iter().map(|cell| cell.error_at_speed_percent).collect();
        let [mean_percent, worst_percent] = mean_and_worst(&errors);
        Ok(Self {
            library: repeats.iter().flatten().next().map_or_else(String::new, |r| r.forecast.library.clone()),
            mean_percent,
            worst_percent,
            at_speed_percent: at_speed.as_deref().map(mean_and_worst),
            reference_times: reference.map_or([1.0, 1.0], |reference| reference.extremes()),
            repeat_deviation_percent: (rounds >= 3).then(|| repeat_deviation_percent(&repeats)),
            covered_percent: 100.0 * cells.iter().filter(|cell| cell.covered).count() as f64 / count,
            cells,
        })
    }
}

/// The mean deviation of a measured step from its median over rounds, in percent.
fn repeat_deviation_percent(repeats: &[Vec<Repeat>]) -> f64 {
    let (mut sum, mut count) = (0.0, 0.0_f64);
    for repeats in repeats {
        let seconds = || repeats.iter().map(|repeat| repeat.measured.measured_s);
        let median_s = median(&mut seconds().collect::<Vec<_>>());
        sum += seconds().map(|seconds| 100.0 * (seconds / median_s - 1.0).abs()).sum::<f64>();
        count += repeats.len() as f64;
    }
    sum / count.max(1.0)
}

/// The times of the speed reference, in order.
struct ReferenceClock {
    speed: SpeedReference,
    times: Vec<f64>,
}

impl ReferenceClock {
    fn new(experiment: &Experiment) -> Result<Self, TrainError> {
        let mut speed = SpeedReference::new(&device::open(&experiment.train)?)?;
        let times = vec![speed.measure()?];
        Ok(Self { speed, times })
    }

    /// The mean of the previous time and of the time now: that of what ran in between.
    fn since_last(&mut self) -> Result<f64, TrainError> {
        let now = self.speed.measure()?;
        let before = self.times.last().copied().unwrap_or(now);
        self.times.push(now);
        Ok(0.5 * (before + now))
    }

    fn extremes(&self) -> [f64; 2] {
        let median_s = median(&mut self.times.clone());
        let lowest = self.times.iter().copied().fold(f64::INFINITY, f64::min);
        [lowest / median_s, self.times.iter().copied().fold(0.0, f64::max) / median_s]
    }
}

/// A forecast and a measured step, one after the other.
struct Repeat {
    forecast: StepForecast,
    measured: StepTiming,
    /// The time of the speed reference meanwhile.
    measured_reference_s: f64,
}

impl Repeat {
    fn measure(
        experiment: &Experiment,
        calibration: Option<&Calibration>,
        reference: &mut ReferenceClock,
        warn: &mut dyn FnMut(&str),
    ) -> Result<Self, TrainError> {
        let mut forecast = match calibration {
            Some(calibration) => forecast_by_calibration(experiment, calibration)?,
            None => forecast_by_probe(experiment, warn)?,
        };
        let since_last = reference.since_last()?;
        if calibration.is_none() {
            forecast.reference_s = Some(since_last);
        }
        let measured = StepTiming::new(experiment, warn)?;
        Ok(Self { forecast, measured, measured_reference_s: reference.since_last()? })
    }

    /// The speed of the machine when the step was measured, relative to that of the forecast.
    fn speed(&self) -> Option<f64> {
        Some(self.forecast.reference_s? / self.measured_reference_s)
    }
}

/// A forecast of a step.
struct StepForecast {
    library: String,
    step: Interval,
    /// The time of the speed reference that the forecast is for.
    reference_s: Option<f64>,
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
    let step = probed_interval(step_s, spread);
    Ok(StepForecast { library, step, reference_s: None, planning_s, probing_s })
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
    let (reference_s, planning_s) = (calibration.machine.reference_s, started.elapsed().as_secs_f64());
    Ok(StepForecast { library, step, reference_s, planning_s, probing_s: 0.0 })
}

/// The experiment with this batch and synthetic images, whose content does not affect the time of a step.
/// There are no synthetic masks: segmentation keeps its data set.
///
/// # Errors
/// If the network is not found.
pub fn with_synthetic_data(experiment: &Experiment, batch: usize) -> Result<Experiment, TrainError> {
    let mut experiment = experiment.clone();
    experiment.train.batch_size = batch;
    let graph = Network::as_published(&experiment)?.graph;
    if graph.shape(graph.output).0.len() < 3 {
        experiment.data.name = "synthetic".to_owned();
        experiment.data.path = None;
        experiment.synthetic.images = 2 * batch;
        experiment.synthetic.validation_images = batch;
    }
    Ok(experiment)
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
    /// A case from at least one round.
    fn new(experiment: &Experiment, repeats: &[Repeat]) -> Self {
        let median_by = |value: &dyn Fn(&Repeat) -> f64| {
            let mut order: Vec<&Repeat> = repeats.iter().collect();
            order.sort_by(|a, b| value(a).total_cmp(&value(b)));
            order[(order.len() - 1) / 2]
        };
        let error_percent =
            |forecast_s: f64, measured: &StepTiming| 100.0 * (forecast_s / measured.measured_s - 1.0);
        let forecast = &median_by(&|repeat| repeat.forecast.step.seconds).forecast;
        let measured = &median_by(&|repeat| repeat.measured.measured_s).measured;
        let speeds: Option<Vec<f64>> = repeats.iter().map(Repeat::speed).collect();
        let errors = speeds.as_ref().map(|speeds| {
            let at_speed = repeats.iter().zip(speeds);
            at_speed.map(|(r, speed)| error_percent(r.forecast.step.seconds / speed, &r.measured)).collect()
        });
        Self {
            network: experiment.model.name.clone(),
            batch: experiment.train.batch_size,
            precision: measured.precision.clone(),
            forecast_s: forecast.step.seconds,
            interval: forecast.step,
            error_percent: error_percent(forecast.step.seconds, measured),
            speed: speeds.map(|mut speeds| median(&mut speeds)),
            error_at_speed_percent: errors.map(|mut errors: Vec<f64>| median(&mut errors)),
            covered: forecast.step.contains(measured.measured_s),
            planning_s: forecast.planning_s,
            probing_s: forecast.probing_s,
            measured: measured.clone(),
        }
    }
}
