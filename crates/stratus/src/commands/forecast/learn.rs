//! `stratus calibrate --learn`: corrects a calibration with the step times of runs.

use crate::errors::Result;
use crate::globals::Globals;
use crate::output::{Output, table};
use crate::outputs::write_file;
use serde::Serialize;
use std::path::{Path, PathBuf};
use stratus_forecast::calibration::Calibration;
use stratus_forecast::profile::ComparedRun;
use stratus_train::forecast::compare_run;

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
    let mut calibration = Calibration::read(file)?;
    let mut learned = Vec::new();
    for run in runs {
        let (format, compared) = compare_run(&calibration, run, &globals.set)?;
        calibration.add_run(format, compared.clone())?;
        let error_percent = 100.0 * (compared.forecast_s / compared.measured_s - 1.0);
        let (run, precision) = (run.display().to_string(), format.name().to_owned());
        learned.push(LearnedRun { run, precision, compared, error_percent });
    }
    write_file(file, calibration.to_toml()?)?;
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
