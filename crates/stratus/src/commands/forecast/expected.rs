//! What a launch is expected to take.

use super::planning::Planner;
use super::{Problem, here, machines, row};
use crate::errors::{Failure, Result};
use crate::output::Output;
use stratus_forecast::catalogue::HERE;
use stratus_forecast::forecast::Forecast;
use stratus_forecast::model::Framework;
use stratus_forecast::shipped;
use stratus_train::Experiment;

/// What an experiment takes on a machine of the catalogue, on this one (`here`), or on one whose file
/// `stratus calibrate` wrote.
///
/// # Errors
/// Where there is no such machine, or the experiment cannot run on it.
pub(in crate::commands) fn expected(
    experiment: &Experiment,
    machine: &str,
    output: &Output,
) -> Result<Forecast> {
    let catalogue = machines::catalogue(None)?;
    let mut profiles = shipped::profiles()?;
    let found = machines::named(&[machine.to_owned()], &catalogue, &mut profiles)?;
    let none = || Failure::usage(format!("no machine is named `{machine}`"));
    let found = found.first().ok_or_else(none)?;
    let mut planner = Planner::new(experiment.clone(), Framework::Stratus, None, None)?;
    let batch = experiment.train.batch_size;
    let expected = if found.name == HERE {
        let probed = here::measure(&planner, batch, output)?;
        here::row(found, &probed, &mut planner)?
    } else {
        row(found, batch, &mut planner, &profiles).map_err(|problem| match problem {
            Problem::Machine(error) => error.into(),
            Problem::Command(failure) => failure,
        })?
    };
    planner.notes().iter().chain(&expected.warnings).for_each(|note| output.message(note));
    Ok(expected)
}
