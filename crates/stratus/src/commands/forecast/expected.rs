//! The forecast of a launch.

use super::planning::Planner;
use super::{RowError, forecast_machine, here, machines};
use crate::errors::{Failure, Result};
use crate::output::Output;
use stratus_experiment::Experiment;
use stratus_forecast::catalogue::THIS_MACHINE;
use stratus_forecast::forecast::Forecast;
use stratus_forecast::model::Framework;
use stratus_forecast::shipped;

/// Forecasts an experiment on a machine: one of the catalogue, this one (`here`), or the one of a calibration
/// file.
///
/// # Errors
/// If the machine is not found, or the experiment cannot run on it.
pub(in crate::commands) fn forecast_training(
    experiment: &Experiment,
    machine: &str,
    output: &Output,
) -> Result<Forecast> {
    let catalogue = machines::catalogue(None)?;
    let mut profiles = shipped::profiles()?;
    let found = machines::find_machines(&[machine.to_owned()], &catalogue, &mut profiles)?;
    let not_found = || Failure::usage(format!("no machine named `{machine}`"));
    let found = found.first().ok_or_else(not_found)?;
    let mut planner = Planner::new(experiment.clone(), Framework::Stratus, None, None)?;
    let batch = experiment.train.batch_size;
    let expected = if found.name == THIS_MACHINE {
        let probed = here::probe_kernels(&planner, batch, output)?;
        here::forecast_from_probe(found, &probed, &mut planner)?
    } else {
        forecast_machine(found, batch, &mut planner, &profiles).map_err(|problem| match problem {
            RowError::Machine(error) => error.into(),
            RowError::Fatal(failure) => failure,
        })?
    };
    planner.notes().iter().chain(&expected.warnings).for_each(|note| output.message(note));
    Ok(expected)
}
