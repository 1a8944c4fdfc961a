//! `stratus calibrate`: measures a profile of this machine, for forecasts of networks that never ran here.

use super::forecast::learn;
use crate::errors::{Failure, Result};
use crate::globals::Globals;
use crate::output::{Output, table};
use crate::outputs::{Mark, Outputs, Overwrite, write_file};
use clap::Args;
use serde::Serialize;
use std::path::{Path, PathBuf};
use std::time::Instant;
use stratus_base::text::shell_word;
use stratus_experiment::Experiment;
use stratus_forecast::calibration::CalibratedMachine;
use stratus_forecast::profile::Profile;
use stratus_train::bench::calibrate::{CalibrationMeasurement, KERNELS_HEADER};
use stratus_train::device;

/// Arguments of `stratus calibrate`.
#[derive(Args, Debug)]
pub struct CalibrateArguments {
    /// Calibration file to write, or with --learn to correct
    #[arg(long, value_name = "FILE", default_value = "machine.toml")]
    out: PathBuf,
    /// Name of the machine in forecasts [default: the name of its CPU]
    #[arg(long, value_name = "NAME")]
    name: Option<String>,
    /// Duration of the measurement in minutes
    #[arg(long, value_name = "MINUTES", default_value_t = 4.5, value_parser = parse_minutes)]
    minutes: f64,
    /// Also write the time of each kernel to this file, as CSV
    #[arg(long, value_name = "FILE.csv")]
    kernels: Option<PathBuf>,
    /// Measure nothing; only correct the file given by --out with the step times of these runs
    #[arg(long, value_name = "RUNS", num_args = 1.., conflicts_with_all = ["name", "minutes", "kernels"])]
    learn: Vec<PathBuf>,
    /// Existing output files.
    #[command(flatten)]
    overwrite: Overwrite,
}

fn parse_minutes(text: &str) -> std::result::Result<f64, String> {
    match text.parse() {
        Ok(minutes) if (0.1..=60.0).contains(&minutes) => Ok(minutes),
        _ => Err("must be a number from 0.1 to 60".to_owned()),
    }
}

/// The result of `stratus calibrate`.
#[derive(Serialize)]
struct Report {
    file: String,
    machine: CalibratedMachine,
    networks: usize,
    seconds: f64,
    /// The lowest and the highest speed of the machine meanwhile, relative to the median.
    speeds: [f64; 2],
    profiles: Vec<FormatSummary>,
}

#[derive(Serialize)]
struct FormatSummary {
    precision: String,
    kernels: usize,
    mean_percent: f64,
    covered_percent: f64,
}

/// Runs `stratus calibrate`.
///
/// # Errors
/// If a file cannot be read or written, or the device is a GPU.
pub fn run(arguments: &CalibrateArguments, globals: &Globals, output: &Output) -> Result {
    if !arguments.learn.is_empty() {
        return learn::run(&arguments.out, &arguments.learn, globals, output);
    }
    let started = Instant::now();
    for path in [Some(&arguments.out), arguments.kernels.as_ref()].into_iter().flatten() {
        check_writable(path)?;
    }
    let mut outputs = Outputs::new(arguments.overwrite);
    outputs.claim(&arguments.out, "the profile", Mark::None)?;
    arguments
        .kernels
        .iter()
        .try_for_each(|path| outputs.claim(path, "the table of kernels", Mark::Table(&[KERNELS_HEADER])))?;
    let experiment = Experiment::default().with_overrides(&globals.set)?;
    let device = device::open(&experiment.train)?;
    device.warnings.iter().for_each(|warning| output.warning(warning));
    let mut progress = |text: &str| output.message(text);
    let (name, setting) = (arguments.name.as_deref(), experiment.train.precision);
    let measured = CalibrationMeasurement::run(&device, name, setting, arguments.minutes, &mut progress)?;
    if let Some(path) = &arguments.kernels {
        write_file(path, measured.kernels_csv())?;
    }
    let calibration = measured.fit()?;
    write_file(&arguments.out, calibration.to_toml()?)?;
    let kernels = |profile: &Profile| profile.correction.groups.values().map(|group| group.rows.len()).sum();
    let profiles = calibration.profiles.iter().map(|profile| FormatSummary {
        precision: profile.precision.clone(),
        kernels: kernels(profile),
        mean_percent: profile.validation.mean_percent,
        covered_percent: profile.validation.covered_percent,
    });
    let report = Report {
        file: arguments.out.display().to_string(),
        networks: measured.networks(),
        seconds: started.elapsed().as_secs_f64(),
        speeds: measured.speeds(),
        profiles: profiles.collect(),
        machine: calibration.machine,
    };
    output.print_wrapped(&report, || render(&report))
}

/// Checks that a file can be written, before anything is measured.
fn check_writable(path: &Path) -> Result {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let problem = if path.is_dir() { "is a folder" } else { "folder not found" };
    if path.is_dir() || !folder.is_dir() {
        return Err(Failure::usage(format!("cannot write {}: {problem}", path.display()))
            .with_hint("name a file in an existing folder"));
    }
    Ok(())
}

fn render(report: &Report) -> String {
    let heading =
        ["precision", "networks", "kernels", "held-out error", "in 80 % interval"].map(str::to_owned);
    let rows = report.profiles.iter().map(|profile| {
        [
            profile.precision.clone(),
            report.networks.to_string(),
            profile.kernels.to_string(),
            format!("{:.1} %", profile.mean_percent),
            format!("{:.0} %", profile.covered_percent),
        ]
    });
    let CalibratedMachine { library, processor, .. } = &report.machine;
    format!(
        "{}{}: {library}, {:.0} GB/s, measured in {:.0} s\n\
         the machine's speed varied from {:.2} to {:.2} of its median, for which times are corrected\n\
         forecast with `stratus forecast EXPERIMENT --on {}`\n",
        table(&[heading].into_iter().chain(rows).collect::<Vec<_>>()),
        processor.name,
        processor.bandwidth_gb_s,
        report.seconds,
        report.speeds[0],
        report.speeds[1],
        shell_word(&report.file)
    )
}
