//! `stratus calibrate`: measures a profile of this machine, for forecasts of networks that never ran here.

use super::doctor::LibraryProbes;
use super::forecast::learn;
use crate::cli::Globals;
use crate::errors::{Failure, Result};
use crate::machine::{MachineSurvey, peaks};
use crate::output::{Output, table};
use crate::outputs::{Mark, Outputs, Overwrite};
use clap::Args;
use serde::Serialize;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Instant, SystemTime, UNIX_EPOCH};
use stratus_engine::Precision;
use stratus_experiment::{Experiment, Precision as PrecisionSetting};
use stratus_forecast::calibration::design::{Design, network};
use stratus_forecast::calibration::{CalibratedMachine, Calibration, MIN_NETWORKS, MeasuredNetwork, profile};
use stratus_forecast::catalogue::{Catalogue, Cpu, Processor};
use stratus_forecast::peaks::{NumberFormat, on_matrix_units};
use stratus_forecast::profile::Profile;
use stratus_forecast::work::{Kernel, MatrixProduct};
use stratus_run::log;
use stratus_train::bench::calibrate::{self, ReusedChoices};
use stratus_train::device::{self, OpenDevice};

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

/// A nominal clock: only the product of GHz and FLOP/cycle matters.
const NOMINAL_GHZ: f64 = 3.0;
/// The maximum number of networks to measure.
const MAX_NETWORKS: usize = 60;
/// The fraction of the time for fitting.
const FIT_TIME_SHARE: f64 = 0.05;
/// The fraction of the remaining time for new networks; in the rest, networks are repeated.
const NEW_NETWORK_TIME_SHARE: f64 = 0.75;

/// The result of `stratus calibrate`.
#[derive(Serialize)]
struct Report {
    file: String,
    machine: CalibratedMachine,
    networks: usize,
    seconds: f64,
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
        .try_for_each(|path| outputs.claim(path, "the table of kernels", Mark::Table(KERNELS_HEADER)))?;
    let experiment = Experiment::default().with_overrides(&globals.set)?;
    let device = device::open(&experiment.train)?;
    device.warnings.iter().for_each(|warning| output.warning(warning));
    if device.is_accelerator {
        return Err(Failure::usage(format!(
            "cannot calibrate {}: only CPUs are supported",
            device.backend.describe()
        ))
        .with_hint(
            "calibrate the CPU with --set train.device=cpu; `stratus forecast fit` fits step times of GPUs",
        ));
    }
    if device.libraries.is_empty() {
        return Err(Failure::usage("cannot calibrate the reference backend")
            .with_hint("run `make deps`, which installs oneDNN"));
    }
    let processor = measured_cpu(arguments.name.as_deref(), &device)?;
    let formats = formats_to_calibrate(&processor, &device, experiment.train.precision)?;
    let seconds = 60.0 * arguments.minutes * (1.0 - FIT_TIME_SHARE);
    let measured = measure(&processor, &formats, &device, (started, seconds), output)?;
    if let Some(path) = &arguments.kernels {
        fs::write(path, kernels_to_csv(&formats, &measured))
            .map_err(|error| Failure::failed(format!("cannot write {}: {error}", path.display())))?;
    }
    let data = format!(
        "{} networks of stratus calibrate, {}, {} s",
        measured.first().map_or(0, Vec::len),
        device.backend.describe(),
        started.elapsed().as_secs()
    );
    let fit = |(format, networks): (&NumberFormat, &Vec<MeasuredNetwork>)| {
        profile(networks, &processor, *format, (&data, "stratus calibrate"))
    };
    let profiles: Vec<Profile> =
        formats.iter().zip(&measured).map(fit).collect::<std::result::Result<_, _>>()?;
    let machine = CalibratedMachine { library: device.backend.describe(), processor };
    let calibration = Calibration { machine, profiles };
    write_calibration(&arguments.out, &calibration)?;
    let kernels = |profile: &Profile| profile.correction.groups.values().map(|group| group.rows.len()).sum();
    let profiles = calibration.profiles.iter().map(|profile| FormatSummary {
        precision: profile.precision.clone(),
        kernels: kernels(profile),
        mean_percent: profile.validation.mean_percent,
        covered_percent: profile.validation.covered_percent,
    });
    let report = Report {
        file: arguments.out.display().to_string(),
        networks: measured.first().map_or(0, Vec::len),
        seconds: started.elapsed().as_secs_f64(),
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

/// Writes a calibration.
///
/// # Errors
/// If the file cannot be written.
pub(super) fn write_calibration(path: &Path, calibration: &Calibration) -> Result {
    fs::write(path, calibration.to_toml()?)
        .map_err(|error| Failure::failed(format!("cannot write {}: {error}", path.display())))
}

/// The catalogue row of this machine, with measured peaks.
fn measured_cpu(name: Option<&str>, device: &OpenDevice) -> Result<Cpu> {
    let survey = MachineSurvey::probe();
    let measured = peaks::measure(&survey, &LibraryProbes::detect().compute);
    let cores = device.backend.threads().max(1);
    let model = survey.machine.cpu.model.clone();
    let found = Catalogue::builtin()?.cpu_of_model(&model, cores);
    let per_cycle = |name: &str| {
        let compute = measured.compute.iter().find(|compute| compute.name.contains(name))?;
        Some(compute.gflops / (NOMINAL_GHZ * cores as f64))
    };
    let slug = || {
        let dashed = model.to_lowercase().replace(|c: char| !c.is_ascii_alphanumeric(), "-");
        let words: Vec<&str> = dashed.split('-').filter(|word| !word.is_empty()).take(4).collect();
        format!("{}-{cores}", if words.is_empty() { "processor".to_owned() } else { words.join("-") })
    };
    let missing = |what: &str| Failure::failed(format!("cannot measure {what} on this machine"));
    Ok(Cpu {
        name: name.map_or_else(slug, str::to_owned),
        base_ghz: NOMINAL_GHZ,
        f32_flops_per_cycle: per_cycle("f32").ok_or_else(|| missing("f32 arithmetic"))?,
        bf16_flops_per_cycle: per_cycle("bf16"),
        bandwidth_gb_s: measured.memory_gb_per_second.ok_or_else(|| missing("memory bandwidth"))?,
        memory_gib: survey.usable_memory().map(|bytes| bytes as f64 / f64::from(1 << 30)),
        second_level_kib: (device.tile_kib > 0).then_some(device.tile_kib / cores),
        source: "stratus calibrate: base_ghz is nominal".to_owned(),
        date: log::timestamp(SystemTime::now().max(UNIX_EPOCH)).chars().take(7).collect(),
        ..found.map_or_else(|| Cpu::unknown(&model, cores), |known| Cpu { cores, boost_ghz: None, ..known })
    })
}

/// The number formats to calibrate: f32 and bf16, or that of `train.precision`.
fn formats_to_calibrate(
    processor: &Cpu,
    device: &OpenDevice,
    setting: PrecisionSetting,
) -> Result<Vec<NumberFormat>> {
    let precisions = device.backend.precisions();
    let has_bf16 = precisions.contains(&Precision::Bf16) && processor.bf16_flops_per_cycle.is_some();
    match setting {
        PrecisionSetting::Auto if has_bf16 => Ok(vec![NumberFormat::F32, NumberFormat::Bf16]),
        PrecisionSetting::Auto | PrecisionSetting::F32 => Ok(vec![NumberFormat::F32]),
        PrecisionSetting::Bf16 if has_bf16 => Ok(vec![NumberFormat::Bf16]),
        PrecisionSetting::Bf16 | PrecisionSetting::F16 => {
            Err(Failure::usage(format!("{} does not train in {setting}", processor.name))
                .with_hint("leave train.precision unset, or set it to f32"))
        }
    }
}

/// Measures networks in each precision until the time is up: first new ones, then the same ones repeatedly;
/// the shortest time of each step counts.
fn measure(
    processor: &Cpu,
    formats: &[NumberFormat],
    device: &OpenDevice,
    (started, seconds): (Instant, f64),
    output: &Output,
) -> Result<Vec<Vec<MeasuredNetwork>>> {
    let processor = Processor::Cpu(processor.clone());
    let mut measured = vec![Vec::new(); formats.len()];
    let (mut designs, mut chosen): (Vec<Design>, Vec<Vec<Option<ReusedChoices>>>) = Default::default();
    let measure = |design: &Design, format: NumberFormat, chosen: &mut Option<ReusedChoices>| {
        calibrate::measure_network(design, format, on_matrix_units(&processor, format), device, chosen)
    };
    let elapsed_share = || started.elapsed().as_secs_f64() / seconds;
    while designs.len() < MIN_NETWORKS
        || designs.len() < MAX_NETWORKS && elapsed_share() < NEW_NETWORK_TIME_SHARE
    {
        let design = network(designs.len()).map_err(Failure::failed)?;
        let mut kernels = vec![None; formats.len()];
        for ((format, networks), kernels) in formats.iter().zip(&mut measured).zip(&mut kernels) {
            networks.push(measure(&design, *format, kernels)?);
        }
        designs.push(design);
        chosen.push(kernels);
        output.message(&format!("network {}: {:.0} s", designs.len(), started.elapsed().as_secs_f64()));
    }
    let mut rounds = 1;
    while elapsed_share() < 1.0 {
        for (at, (design, chosen)) in designs.iter().zip(&mut chosen).enumerate() {
            for ((format, networks), chosen) in formats.iter().zip(&mut measured).zip(chosen) {
                if elapsed_share() < 1.0 {
                    networks[at].keep_faster(measure(design, *format, chosen)?);
                }
            }
        }
        rounds += 1;
        output.message(&format!("round {rounds}: {:.0} s", started.elapsed().as_secs_f64()));
    }
    Ok(measured)
}

/// The header of the table of kernels.
const KERNELS_HEADER: &str = "precision,network,kernel,kind,flops,bytes,launches,rows,columns,depth,\
                              of_weights,padding,sizes,seconds\n";

fn kernels_to_csv(formats: &[NumberFormat], measured: &[Vec<MeasuredNetwork>]) -> String {
    let mut text = KERNELS_HEADER.to_owned();
    for (format, networks) in formats.iter().zip(measured) {
        for (network, measured) in networks.iter().enumerate() {
            for (kernel, seconds) in &measured.kernels {
                let Kernel { name, kind, flops, bytes, launches, features: sizes, .. } = kernel;
                let MatrixProduct { rows, columns, depth, of_weights, padding } =
                    kernel.product.unwrap_or_default();
                let sizes = sizes.map(|size| format!("{size:.3}")).join(" ");
                text += &format!(
                    "{format},{},{name},{},{flops},{bytes},{launches},{rows},{columns},{depth},{of_weights},\
                     {padding},{sizes},{seconds:.9}\n",
                    network + 1,
                    kind.name()
                );
            }
        }
    }
    text
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
         forecast with `stratus forecast EXPERIMENT --on {}`\n",
        table(&[heading].into_iter().chain(rows).collect::<Vec<_>>()),
        processor.name,
        processor.bandwidth_gb_s,
        report.seconds,
        report.file
    )
}
