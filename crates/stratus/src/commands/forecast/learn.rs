//! `stratus calibrate --learn`: corrects a calibration with the step times of runs.

use super::machines::read_calibration;
use super::planning::Planner;
use crate::cli::Globals;
use crate::commands::calibrate::write_calibration;
use crate::commands::target::RunOrExperiment;
use crate::errors::{Failure, Result};
use crate::output::{Output, table};
use serde::Serialize;
use std::path::{Path, PathBuf};
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

/// A run whose step times correct a calibration.
#[derive(Serialize)]
struct LearnedRun {
    run: String,
    precision: String,
    #[serde(flatten)]
    compared: ComparedRun,
    /// The error of the forecast without runs, in percent of the measured time.
    error_percent: f64,
}

#[derive(Serialize)]
struct Report {
    file: String,
    runs: Vec<LearnedRun>,
}

/// Adds runs to a calibration file.
///
/// # Errors
/// If the file is not a calibration, or a run is of another machine, or too short.
pub fn run(file: &Path, runs: &[PathBuf], globals: &Globals, output: &Output) -> Result {
    let mut calibration = read_calibration(file)?;
    let mut learned = Vec::new();
    for run in runs {
        let (format, compared) = compare_run(&calibration, run, globals)?;
        calibration.add_run(format, compared.clone())?;
        let error_percent = 100.0 * (compared.forecast_s / compared.measured_s - 1.0);
        let (run, precision) = (run.display().to_string(), format.name().to_owned());
        learned.push(LearnedRun { run, precision, compared, error_percent });
    }
    write_calibration(file, &calibration)?;
    let report = Report { file: file.display().to_string(), runs: learned };
    output.print_wrapped(&report, || {
        let heading = ["run", "network", "batch", "precision", "forecast, ms", "measured, ms", "error"];
        let rows = report.runs.iter().map(|learned| {
            let ComparedRun { network, batch, forecast_s, measured_s } = &learned.compared;
            vec![
                learned.run.clone(),
                network.clone(),
                batch.to_string(),
                learned.precision.clone(),
                format!("{:.1}", forecast_s * 1e3),
                format!("{:.1}", measured_s * 1e3),
                format!("{:+.1} %", learned.error_percent),
            ]
        });
        let heading = heading.map(str::to_owned).to_vec();
        format!("{}added to {}\n", table(&[heading].into_iter().chain(rows).collect::<Vec<_>>()), report.file)
    })
}

fn compare_run(
    calibration: &Calibration,
    path: &Path,
    globals: &Globals,
) -> Result<(NumberFormat, ComparedRun)> {
    let name = path.display();
    let invalid = |problem: String, hint: &str| Failure::usage(format!("{name}: {problem}")).with_hint(hint);
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
    let experiment = RunOrExperiment::resolve(&path.display().to_string(), globals)?.experiment(globals)?;
    let format = NumberFormat::parse(&summary.precision)
        .ok_or_else(|| invalid(format!("unsupported precision {}", summary.precision), "use another run"))?;
    let profile = calibration.profiles.iter().find(|profile| profile.precision == format.name());
    let profile = profile.ok_or_else(|| {
        invalid(format!("{} was not calibrated in {format}", processor.name), "calibrate the machine again")
    })?;
    let per_epoch = csv::read::<IterationRow>(&run.iterations())?;
    // The first iteration of each process runs with cold caches; the last batch of an epoch may be smaller.
    let mut steps: Vec<f64> = per_epoch
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
