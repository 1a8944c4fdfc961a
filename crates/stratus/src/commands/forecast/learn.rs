//! `stratus calibrate --learn`: runs' steps against what a calibration forecasts of them.

use super::machines::calibration;
use super::planning::Planner;
use crate::cli::Globals;
use crate::commands::calibrate::write;
use crate::commands::target::Target;
use crate::errors::{Failure, Result};
use crate::output::{Output, table};
use serde::Serialize;
use std::path::{Path, PathBuf};
use stratus_forecast::calibration::Calibration;
use stratus_forecast::model::Framework;
use stratus_forecast::peaks::{Format, peaks};
use stratus_forecast::profile::{ComparedRun, Profile};
use stratus_run::RunDir;
use stratus_run::csv::{self, IterationRow};
use stratus_run::machine::Machine;
use stratus_run::summary::Summary;

/// The fewest steps of a run, the first not counted.
const FEWEST: usize = 5;

/// What was learnt of a run.
#[derive(Serialize)]
struct Learnt {
    run: String,
    precision: String,
    #[serde(flatten)]
    compared: ComparedRun,
    /// By how much the forecast without any run was more than what came.
    error_percent: f64,
}

#[derive(Serialize)]
struct Report {
    file: String,
    runs: Vec<Learnt>,
}

/// Adds runs to a file.
///
/// # Errors
/// Where the file is no calibration, or a run was on another machine or is too short.
pub fn run(file: &Path, runs: &[PathBuf], globals: &Globals, output: &Output) -> Result {
    let mut calibration = calibration(file)?;
    let mut learnt = Vec::new();
    for run in runs {
        let (format, compared) = compare(&calibration, run, globals)?;
        calibration.learn(format, compared.clone())?;
        let error_percent = 100.0 * (compared.forecast_s / compared.measured_s - 1.0);
        let (run, precision) = (run.display().to_string(), format.name().to_owned());
        learnt.push(Learnt { run, precision, compared, error_percent });
    }
    write(file, &calibration)?;
    let report = Report { file: file.display().to_string(), runs: learnt };
    output.result(&report, || {
        let heading = ["run", "network", "batch", "type", "forecast, ms", "measured, ms", "error"];
        let rows = report.runs.iter().map(|learnt| {
            let ComparedRun { network, batch, forecast_s, measured_s } = &learnt.compared;
            vec![
                learnt.run.clone(),
                network.clone(),
                batch.to_string(),
                learnt.precision.clone(),
                format!("{:.1}", forecast_s * 1e3),
                format!("{:.1}", measured_s * 1e3),
                format!("{:+.1} %", learnt.error_percent),
            ]
        });
        let heading = heading.map(str::to_owned).to_vec();
        format!("{}added to {}\n", table(&[heading].into_iter().chain(rows).collect::<Vec<_>>()), report.file)
    })
}

fn compare(calibration: &Calibration, path: &Path, globals: &Globals) -> Result<(Format, ComparedRun)> {
    let name = path.display();
    let refuse = |problem: String, hint: &str| Failure::usage(format!("{name}: {problem}")).hint(hint);
    if !path.join("summary.json").is_file() {
        return Err(refuse("it is no run that has ended".to_owned(), "`stratus runs` lists runs"));
    }
    let run = RunDir::open(path)?;
    let summary = Summary::read(&run.summary())?;
    let processor = &calibration.machine.processor;
    let machine = Machine::read(&run.machine())?;
    if machine.cpu.model != processor.title
        && !processor.models.iter().any(|of| machine.cpu.model.contains(of.trim()))
        || summary.threads as usize != processor.cores
    {
        return Err(refuse(
            format!(
                "it ran on {} with {} threads, the file is of {} with {}",
                machine.cpu.model, summary.threads, processor.title, processor.cores
            ),
            "learn from runs on the machine that was calibrated",
        ));
    }
    let experiment = Target::find(&path.display().to_string(), globals)?.experiment(globals)?;
    let format = Format::parse(&summary.precision)
        .ok_or_else(|| refuse(format!("it computes in {}", summary.precision), "take another run"))?;
    let profile = calibration.profiles.iter().find(|profile| profile.precision == format.name());
    let profile = profile.ok_or_else(|| {
        refuse(format!("{} was not calibrated in {format}", processor.name), "calibrate it again")
    })?;
    let per_epoch = csv::read::<IterationRow>(&run.iterations())?;
    // The first iteration of each process finds nothing in a cache; the last batch of an epoch may be
    // smaller.
    let mut steps: Vec<f64> = per_epoch
        .windows(2)
        .filter(|pair| pair[0].epoch == pair[1].epoch)
        .skip(1)
        .map(|pair| pair[0].train_s + pair[0].unattributed_s)
        .collect();
    if steps.len() < FEWEST {
        return Err(refuse(
            format!("it has {} steps to learn from, which takes {FEWEST}", steps.len()),
            "train it for longer",
        ));
    }
    steps.sort_by(f64::total_cmp);
    let network = experiment.model.name.clone();
    let batch = experiment.train.batch_size;
    let mut planner = Planner::new(experiment, Framework::Stratus, None, None)?;
    let of_machine = calibration.machine().processor;
    let plan = planner.plan(&of_machine, format, batch)?;
    let without = Profile { runs: Vec::new(), ..profile.clone() };
    let forecast_s = without.work(&plan.train, &peaks(&of_machine, format)?).0.seconds;
    Ok((format, ComparedRun { network, batch: batch as u64, forecast_s, measured_s: steps[steps.len() / 2] }))
}
