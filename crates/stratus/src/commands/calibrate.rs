//! `stratus calibrate`: a profile of this machine, for forecasts of networks that never ran on it.

use super::doctor::Probes;
use super::forecast::learn;
use crate::cli::Globals;
use crate::errors::{Failure, Result};
use crate::machine::{Survey, peaks};
use crate::output::{Output, table};
use crate::outputs::{Mark, Outputs, Overwrite};
use clap::Args;
use serde::Serialize;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Instant, SystemTime, UNIX_EPOCH};
use stratus_engine::Precision;
use stratus_forecast::calibration::design::{Design, network};
use stratus_forecast::calibration::{Calibrated, Calibration, FEWEST, MeasuredNetwork, profile};
use stratus_forecast::catalogue::{Catalogue, Cpu, Processor};
use stratus_forecast::peaks::{Format, on_matrix_units};
use stratus_forecast::profile::Profile;
use stratus_forecast::work::{Kernel, Product};
use stratus_run::log;
use stratus_train::bench::calibrate::{self, Chosen};
use stratus_train::device::{self, OpenDevice};
use stratus_train::experiment::{Experiment, Precision as Asked};

/// Arguments of `stratus calibrate`.
#[derive(Args, Debug)]
pub struct CalibrateArguments {
    /// The file to write, or with --learn to add to
    #[arg(long, value_name = "FILE", default_value = "machine.toml")]
    out: PathBuf,
    /// The machine's name in forecasts; without it that of its processor
    #[arg(long, value_name = "NAME")]
    name: Option<String>,
    /// How long to measure
    #[arg(long, value_name = "MINUTES", default_value_t = 4.5, value_parser = minutes)]
    minutes: f64,
    /// Write what each kernel took to this file too, as CSV
    #[arg(long, value_name = "FILE.csv")]
    kernels: Option<PathBuf>,
    /// Measure nothing: add how long these runs' steps took to FILE, as what forecasts by it are off by
    #[arg(long, value_name = "RUNS", num_args = 1.., conflicts_with_all = ["name", "minutes", "kernels"])]
    learn: Vec<PathBuf>,
    /// Files that are replaced.
    #[command(flatten)]
    overwrite: Overwrite,
}

fn minutes(text: &str) -> std::result::Result<f64, String> {
    match text.parse() {
        Ok(minutes) if (0.1..=60.0).contains(&minutes) => Ok(minutes),
        _ => Err("it is a number from 0.1 to 60".to_owned()),
    }
}

/// A clock that nothing depends on: figures of a cycle are what was measured over it.
const GHZ: f64 = 3.0;
/// Networks at most.
const MOST: usize = 60;
/// The part of the time that fitting takes.
const FITTING: f64 = 0.05;
/// The part of the rest in which new networks are measured.
const NEW: f64 = 0.75;

/// What was written.
#[derive(Serialize)]
struct Report {
    file: String,
    machine: Calibrated,
    networks: usize,
    seconds: f64,
    profiles: Vec<OfFormat>,
}

#[derive(Serialize)]
struct OfFormat {
    precision: String,
    kernels: usize,
    mean_percent: f64,
    covered_percent: f64,
}

/// Runs `stratus calibrate`.
///
/// # Errors
/// Where a file cannot be read or written, or the machine computes on a GPU.
pub fn run(arguments: &CalibrateArguments, globals: &Globals, output: &Output) -> Result {
    if !arguments.learn.is_empty() {
        return learn::run(&arguments.out, &arguments.learn, globals, output);
    }
    let begun = Instant::now();
    for path in [Some(&arguments.out), arguments.kernels.as_ref()].into_iter().flatten() {
        writable(path)?;
    }
    let mut outputs = Outputs::new(arguments.overwrite);
    outputs.claim(&arguments.out, "the profile", Mark::None)?;
    arguments
        .kernels
        .iter()
        .try_for_each(|path| outputs.claim(path, "the table of kernels", Mark::Table(KERNELS_HEAD)))?;
    let experiment = Experiment::default().with_overrides(&globals.set)?;
    let device = device::open(&experiment.train)?;
    device.warnings.iter().for_each(|warning| output.warning(warning));
    if device.beside_cores {
        return Err(Failure::usage(format!(
            "{} computes here, and processors alone are calibrated",
            device.backend.describe()
        ))
        .hint(
            "calibrate the processor with --set train.device=cpu; `stratus forecast fit` fits a GPU's steps",
        ));
    }
    if device.libraries.is_empty() {
        return Err(Failure::usage("the reference backend would be measured, on which nobody trains")
            .hint("`make deps` installs oneDNN"));
    }
    let processor = processor(arguments.name.as_deref(), &device)?;
    let formats = formats(&processor, &device, experiment.train.precision)?;
    let seconds = 60.0 * arguments.minutes * (1.0 - FITTING);
    let measured = measure(&processor, &formats, &device, (begun, seconds), output)?;
    if let Some(path) = &arguments.kernels {
        fs::write(path, kernels_csv(&formats, &measured))
            .map_err(|error| Failure::failed(format!("cannot write {}: {error}", path.display())))?;
    }
    let data = format!(
        "{} networks of stratus calibrate, {}, {} s",
        measured.first().map_or(0, Vec::len),
        device.backend.describe(),
        begun.elapsed().as_secs()
    );
    let of = |(format, networks): (&Format, &Vec<MeasuredNetwork>)| {
        profile(networks, &processor, *format, (&data, "stratus calibrate"))
    };
    let profiles: Vec<Profile> =
        formats.iter().zip(&measured).map(of).collect::<std::result::Result<_, _>>()?;
    let machine = Calibrated { library: device.backend.describe(), processor };
    let calibration = Calibration { machine, profiles };
    write(&arguments.out, &calibration)?;
    let kernels = |profile: &Profile| profile.correction.groups.values().map(|group| group.rows.len()).sum();
    let profiles = calibration.profiles.iter().map(|profile| OfFormat {
        precision: profile.precision.clone(),
        kernels: kernels(profile),
        mean_percent: profile.validation.mean_percent,
        covered_percent: profile.validation.covered_percent,
    });
    let report = Report {
        file: arguments.out.display().to_string(),
        networks: measured.first().map_or(0, Vec::len),
        seconds: begun.elapsed().as_secs_f64(),
        profiles: profiles.collect(),
        machine: calibration.machine,
    };
    output.result(&report, || render(&report))
}

/// Nothing is measured for a file that cannot be written.
fn writable(path: &Path) -> Result {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    if path.is_dir() || !folder.is_dir() {
        return Err(Failure::usage(format!("cannot write {}: there is no such folder", path.display()))
            .hint("name a file in a folder that is there with --out FILE"));
    }
    Ok(())
}

/// Writes a calibration.
///
/// # Errors
/// Where it cannot be written.
pub(super) fn write(path: &Path, calibration: &Calibration) -> Result {
    fs::write(path, calibration.to_toml()?)
        .map_err(|error| Failure::failed(format!("cannot write {}: {error}", path.display())))
}

/// The machine's row, its peaks measured.
fn processor(name: Option<&str>, device: &OpenDevice) -> Result<Cpu> {
    let survey = Survey::of_this_machine();
    let measured = peaks::measure(&survey, &Probes::of_this_machine().compute);
    let cores = device.backend.threads().max(1);
    let model = survey.machine.cpu.model.clone();
    let found = Catalogue::builtin()?.cpu_of_model(&model, cores);
    let per_cycle = |name: &str| {
        let compute = measured.compute.iter().find(|compute| compute.name.contains(name))?;
        Some(compute.gflops / (GHZ * cores as f64))
    };
    let slug = || {
        let plain = model.to_lowercase().replace(|c: char| !c.is_ascii_alphanumeric(), "-");
        let words: Vec<&str> = plain.split('-').filter(|word| !word.is_empty()).take(4).collect();
        format!("{}-{cores}", if words.is_empty() { "processor".to_owned() } else { words.join("-") })
    };
    let missing = |what: &str| Failure::failed(format!("{what} could not be measured on this machine"));
    Ok(Cpu {
        name: name.map_or_else(slug, str::to_owned),
        base_ghz: GHZ,
        f32_flops_per_cycle: per_cycle("f32").ok_or_else(|| missing("arithmetic in f32"))?,
        bf16_flops_per_cycle: per_cycle("bf16"),
        bandwidth_gb_s: measured.memory_gb_per_second.ok_or_else(|| missing("memory"))?,
        memory_gib: survey.usable_memory().map(|bytes| bytes as f64 / f64::from(1 << 30)),
        second_level_kib: (device.tile_kib > 0).then_some(device.tile_kib / cores),
        source: "stratus calibrate: base_ghz is nominal".to_owned(),
        date: log::timestamp(SystemTime::now().max(UNIX_EPOCH)).chars().take(7).collect(),
        ..found.map_or_else(|| Cpu::unknown(&model, cores), |known| Cpu { cores, boost_ghz: None, ..known })
    })
}

/// What training computes in here: f32 and bf16, or as `train.precision` asks.
fn formats(processor: &Cpu, device: &OpenDevice, asked: Asked) -> Result<Vec<Format>> {
    let precisions = device.backend.precisions();
    let has_bf16 = precisions.contains(&Precision::Bf16) && processor.bf16_flops_per_cycle.is_some();
    match asked {
        Asked::Auto if has_bf16 => Ok(vec![Format::F32, Format::Bf16]),
        Asked::Auto | Asked::F32 => Ok(vec![Format::F32]),
        Asked::Bf16 if has_bf16 => Ok(vec![Format::Bf16]),
        Asked::Bf16 | Asked::F16 => {
            Err(Failure::usage(format!("{} does not train in {asked}", processor.name))
                .hint("leave train.precision as it is, or set it to f32"))
        }
    }
}

/// Networks in each format, until the time is up: in the first part of it new ones, then the same again and
/// again, of which the shortest steps count.
fn measure(
    processor: &Cpu,
    formats: &[Format],
    device: &OpenDevice,
    (begun, seconds): (Instant, f64),
    output: &Output,
) -> Result<Vec<Vec<MeasuredNetwork>>> {
    let of_machine = Processor::Cpu(processor.clone());
    let mut measured = vec![Vec::new(); formats.len()];
    let (mut designs, mut chosen): (Vec<Design>, Vec<Vec<Option<Chosen>>>) = Default::default();
    let measure = |design: &Design, format: Format, chosen: &mut Option<Chosen>| {
        calibrate::network(design, format, on_matrix_units(&of_machine, format), device, chosen)
    };
    let passed = || begun.elapsed().as_secs_f64() / seconds;
    while designs.len() < FEWEST || designs.len() < MOST && passed() < NEW {
        let design = network(designs.len()).map_err(Failure::failed)?;
        let mut kernels = vec![None; formats.len()];
        for ((format, of), kernels) in formats.iter().zip(&mut measured).zip(&mut kernels) {
            of.push(measure(&design, *format, kernels)?);
        }
        designs.push(design);
        chosen.push(kernels);
        output.message(&format!("network {}: {:.0} s", designs.len(), begun.elapsed().as_secs_f64()));
    }
    let mut rounds = 1;
    while passed() < 1.0 {
        for (at, (design, chosen)) in designs.iter().zip(&mut chosen).enumerate() {
            for ((format, of), chosen) in formats.iter().zip(&mut measured).zip(chosen) {
                if passed() < 1.0 {
                    of[at].improve(measure(design, *format, chosen)?);
                }
            }
        }
        rounds += 1;
        output.message(&format!("round {rounds}: {:.0} s", begun.elapsed().as_secs_f64()));
    }
    Ok(measured)
}

/// A row for each kernel.
/// The first line of the table of kernels.
const KERNELS_HEAD: &str = "precision,network,kernel,kind,flops,bytes,launches,rows,columns,depth,of_weights,\
                            padding,sizes,seconds\n";

fn kernels_csv(formats: &[Format], measured: &[Vec<MeasuredNetwork>]) -> String {
    let mut text = KERNELS_HEAD.to_owned();
    for (format, networks) in formats.iter().zip(measured) {
        for (network, of) in networks.iter().enumerate() {
            for (kernel, seconds) in &of.kernels {
                let Kernel { name, kind, flops, bytes, launches, sizes, .. } = kernel;
                let Product { rows, columns, depth, of_weights, padding } =
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
    let heading = ["type", "networks", "kernels", "network left out", "in 80 %"].map(str::to_owned);
    let rows = report.profiles.iter().map(|of| {
        [
            of.precision.clone(),
            report.networks.to_string(),
            of.kernels.to_string(),
            format!("{:.1} %", of.mean_percent),
            format!("{:.0} %", of.covered_percent),
        ]
    });
    let Calibrated { library, processor, .. } = &report.machine;
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
