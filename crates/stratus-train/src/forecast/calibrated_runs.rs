//! Runs on a calibrated machine, whose step times correct its calibration.

use super::Planner;
use crate::TrainError;
use std::path::Path;
use stratus_experiment::Experiment;
use stratus_forecast::calibration::Calibration;
use stratus_forecast::model::Framework;
use stratus_forecast::peaks::{NumberFormat, peaks};
use stratus_forecast::profile::{ComparedRun, Profile};
use stratus_run::RunDir;
use stratus_run::csv::{self, IterationRow};
use stratus_run::layout::SUMMARY;
use stratus_run::machine::Machine;
use stratus_run::summary::Summary;

/// The minimum number of usable steps of a run.
const MIN_STEPS: usize = 5;

/// Compares the measured steps of a run with their forecast, to correct `calibration`. Also returns the run's
/// number format. `overrides` are keys of the run's experiment.
///
/// # Errors
/// If the run is of another machine, or too short, or its files cannot be read.
pub fn compare_run(
    calibration: &Calibration,
    path: &Path,
    overrides: &[(String, String)],
) -> Result<(NumberFormat, ComparedRun), TrainError> {
    let name = path.display();
    let invalid = |problem: String, hint: &str| TrainError::Configuration {
        problem: format!("{name}: {problem}"),
        hint: hint.to_owned(),
    };
    if !path.join(SUMMARY).is_file() {
        return Err(invalid("not a finished run".to_owned(), "`stratus runs` lists runs"));
    }
    let run = RunDir::open(path)?;
    let summary = Summary::read(&run.summary())?;
    let processor = &calibration.machine.processor;
    let machine = Machine::read(&run.machine())?;
    if machine.cpu.model != processor.title
        && !processor.models.iter().any(|of| machine.cpu.model.contains(of.trim()))
        || summary.threads as usize != processor.cores
    {
        return Err(invalid(
            format!(
                "it ran on {} with {} threads, but the calibration is of {} with {}",
                machine.cpu.model, summary.threads, processor.title, processor.cores
            ),
            "use runs of the calibrated machine",
        ));
    }
    let experiment = Experiment::load(&run.experiment())?.with_overrides(overrides)?;
    let format = NumberFormat::parse(&summary.precision)
        .ok_or_else(|| invalid(format!("unsupported precision {}", summary.precision), "use another run"))?;
    let profile = calibration.profiles.iter().find(|profile| profile.precision == format.name());
    let profile = profile.ok_or_else(|| {
        invalid(format!("{} was not calibrated in {format}", processor.name), "calibrate the machine again")
    })?;
    let rows = csv::read::<IterationRow>(&run.iterations())?;
    // The first iteration runs with cold caches; the last batch of an epoch may be smaller.
    let mut steps: Vec<f64> = rows
        .windows(2)
        .filter(|pair| pair[0].epoch == pair[1].epoch)
        .skip(1)
        .map(|pair| pair[0].train_s + pair[0].unattributed_s)
        .collect();
    if steps.len() < MIN_STEPS {
        return Err(invalid(
            format!("only {} usable steps, need {MIN_STEPS}", steps.len()),
            "use a longer run",
        ));
    }
    steps.sort_by(f64::total_cmp);
    let network = experiment.model.name.clone();
    let batch = experiment.train.batch_size;
    let mut planner = Planner::new(experiment, Framework::Stratus, None, None)?;
    let of_machine = calibration.machine().processor;
    let plan = planner.plan(&of_machine, format, batch)?;
    let without = Profile { runs: Vec::new(), ..profile.clone() };
    let forecast_s = without.estimate_work(&plan.train, &peaks(&of_machine, format)?).0.seconds;
    Ok((format, ComparedRun { network, batch: batch as u64, forecast_s, measured_s: steps[steps.len() / 2] }))
}
