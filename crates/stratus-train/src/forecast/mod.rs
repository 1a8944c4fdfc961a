//! Forecasts of an experiment: lowered for machines that need not be present, or timed kernel by kernel on
//! this one.
//!
//! ```text
//! Experiment, machine of the catalogue ──Planner──▶ work, memory ──profile──▶ Forecast
//! Experiment, this machine             ──probe──▶ seconds of each kernel  ──▶ Forecast
//! ```

mod calibrated_runs;
mod here;
mod machines;
mod planner;
mod run_times;
mod scaling;
mod supply;

pub use calibrated_runs::compare_run;
pub use here::{forecast_from_probe, layers_from_probe, probe_kernels};
pub use machines::find_machines;
pub use planner::Planner;
pub use run_times::RunTimes;
pub use scaling::{step_from_probe, step_from_profile, step_from_run};
pub use supply::{LastDecoding, SupplyInputs};

use crate::TrainError;
use stratus_engine::StartupMonitor;
use stratus_experiment::Experiment;
use stratus_forecast::catalogue::{Catalogue, Machine, THIS_MACHINE};
use stratus_forecast::choice::{self, Evidence};
use stratus_forecast::forecast::{self, Forecast, LayerForecast};
use stratus_forecast::model::Framework;
use stratus_forecast::peaks::{NumberFormat, peaks};
use stratus_forecast::profile::Profile;
use stratus_forecast::published::{self, PublishedStep};
use stratus_forecast::shipped;

/// The reason that a machine has no forecast.
#[derive(Debug, thiserror::Error)]
pub enum ForecastError {
    /// The machine is not suitable.
    #[error(transparent)]
    Unsuitable(stratus_forecast::Error),
    /// The experiment cannot be planned for any machine.
    #[error(transparent)]
    Experiment(#[from] TrainError),
}

impl From<ForecastError> for TrainError {
    fn from(error: ForecastError) -> Self {
        match error {
            ForecastError::Unsuitable(error) => error.into(),
            ForecastError::Experiment(error) => error,
        }
    }
}

/// Forecasts training with batches of `batch` images on a machine other than this one.
///
/// # Errors
/// If the machine is not suitable, or the experiment cannot be planned.
pub fn forecast_on(
    machine: &Machine,
    batch: usize,
    planner: &mut Planner,
    profiles: &[Profile],
) -> Result<Forecast, ForecastError> {
    let format = planner.format(machine).map_err(ForecastError::Unsuitable)?;
    let plan = planner.plan(&machine.processor, format, batch)?;
    forecast::forecast(machine, format, &plan, &planner.length(), profiles).map_err(ForecastError::Unsuitable)
}

/// The measurements behind the forecast of a machine other than this one.
///
/// # Errors
/// If the machine is not suitable.
pub fn evidence_of(
    machine: &Machine,
    planner: &Planner,
    profiles: &[Profile],
) -> Result<Evidence, TrainError> {
    let format = planner.format(machine)?;
    Ok(choice::evidence(planner.framework(), profiles, machine, format)?.1)
}

/// Corrects the forecasts of a machine by published times of training iterations, each with its experiment:
/// the profile to put before all others, and the ratio of published to forecast time of each row.
///
/// # Errors
/// If the machine is not suitable, or an experiment cannot be planned.
pub fn correct_by_published(
    machine: &Machine,
    format: NumberFormat,
    steps: &[(Experiment, PublishedStep)],
    profiles: &[Profile],
    data: &str,
) -> Result<(Profile, Vec<f64>), TrainError> {
    let (profile, _) = choice::choose(profiles, &machine.processor, format)?;
    let peaks = peaks(&machine.processor, format)?;
    let mut ratios = Vec::new();
    for (experiment, step) in steps {
        let mut planner = Planner::new(experiment.clone(), Framework::Stratus, None, None)?;
        let plan = planner.plan(&machine.processor, format, step.batch)?;
        ratios.push(step.seconds / profile.estimate_work(&plan.train, &peaks).0.seconds);
    }
    let name = machine.processor.name();
    Ok((published::corrected(&profile, name, format.name(), &ratios, data), ratios))
}

/// The forecast of each layer, in execution order.
///
/// # Errors
/// As [`forecast_on`].
pub fn layers_on(
    machine: &Machine,
    batch: usize,
    planner: &mut Planner,
    profiles: &[Profile],
) -> Result<Vec<LayerForecast>, TrainError> {
    let format = planner.format(machine)?;
    let plan = planner.plan(&machine.processor, format, batch)?;
    Ok(forecast::layers(machine, format, (plan.framework, &plan.train), profiles)?)
}

/// Forecasts an experiment on a machine: one of the catalogue, this one (`here`), or the one of a calibration
/// file. Also returns notes on its assumptions; `warn` is called while kernels are timed here. `last` is that
/// of the previous experiment.
///
/// # Errors
/// If the machine is not found, or the experiment cannot run on it.
pub fn forecast_training(
    experiment: &Experiment,
    machine: &str,
    monitor: &StartupMonitor,
    warn: &mut dyn FnMut(&str),
    last: &mut LastDecoding,
) -> Result<(Forecast, Vec<String>), TrainError> {
    let mut profiles = shipped::profiles()?;
    let machine = machines::find_machine(machine, &Catalogue::builtin()?, &mut profiles)?;
    let mut planner = Planner::new(experiment.clone(), Framework::Stratus, None, None)?;
    let decoding = last.of(experiment);
    planner.set_supply(&SupplyInputs { decoding, ..SupplyInputs::default() });
    last.remember(experiment, planner.length().supply.decoding);
    let batch = experiment.train.batch_size;
    let expected = if machine.name == THIS_MACHINE {
        let probed = probe_kernels(&planner, batch, monitor, warn)?;
        forecast_from_probe(&machine, &probed, &mut planner)?
    } else {
        forecast_on(&machine, batch, &mut planner, &profiles)?
    };
    let supply = expected.supply_note().map(|note| format!("{}: {note}", expected.name));
    let notes = planner.notes().iter().chain(&expected.warnings).cloned().chain(supply).collect();
    Ok((expected, notes))
}
