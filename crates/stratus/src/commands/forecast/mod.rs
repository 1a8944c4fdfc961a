//! `stratus forecast`: estimates time, memory and cost of a training run on this or another machine.

pub mod bench;
pub mod bench_here;
mod choice;
mod conditions;
mod confined;
mod evidence;
mod fit;
pub mod learn;
pub mod machines;
#[cfg(feature = "ui")]
pub mod page;
mod render;
pub(super) mod request;
mod scaling;
mod within_limit;

use super::common_keys::{DataArgument, DeviceArgument, KeyFlag, KeyFlags};
use super::target::RunOrExperiment;
use crate::errors::{Failure, Result};
use crate::globals::Globals;
use crate::output::Output;
use crate::outputs::{Mark, Outputs, Overwrite, write_file};
use crate::progress::Progress;
use clap::{Args, Subcommand, ValueEnum};
use conditions::ConditionsArguments;
use request::{RequestFormat, render_request};
use scaling::ScalingArguments;
use serde::Serialize;
use std::path::{Path, PathBuf};
use stratus_base::text::shell_word;
use stratus_forecast::catalogue::{Machine, THIS_MACHINE};
use stratus_forecast::choice::Evidence;
use stratus_forecast::forecast::{Forecast, LayerForecast};
use stratus_forecast::model::Framework;
use stratus_forecast::objective::{Objective, Ranking};
use stratus_forecast::profile::Profile;
use stratus_forecast::scaling::ScaledStep;
use stratus_forecast::shipped;
use stratus_report::page::{MachinePoint, machines_svg};
use stratus_train::bench::probe::ProbeReport;
use stratus_train::forecast::{
    ForecastError, Planner, find_machines, forecast_from_probe, forecast_on, layers_from_probe, layers_on,
    probe_kernels,
};
use stratus_train::{Observer, TrainError};
use within_limit::WithinLimit;

/// The objective if none is given.
const DEFAULT_OBJECTIVE: &str = "value";

/// Arguments of `stratus forecast`.
#[derive(Args, Debug)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
pub struct ForecastArguments {
    /// The subcommand; without it, an experiment is forecast.
    #[command(subcommand)]
    command: Option<ForecastCommand>,
    /// Built-in experiment, experiment file or run directory
    #[arg(value_name = "EXPERIMENT|RUN", required = true)]
    target: Option<String>,
    /// Batch sizes, like 16,32,64 [default: the experiment's]
    #[arg(
        long,
        visible_alias = "batch-size",
        value_name = "SIZES",
        value_delimiter = ',',
        value_parser = clap::value_parser!(u32).range(1..=16_777_216)
    )]
    batch: Vec<u32>,
    /// Machines: names from the catalogue, like v100-16gb,g4dn.xlarge, calibration files (see `stratus
    /// calibrate`), or `here` to time kernels on this machine [default: all suitable cloud instances]
    #[arg(long, value_name = "MACHINES", value_delimiter = ',')]
    on: Vec<String>,
    /// Framework to forecast; tensorflow supports only f32 on GPUs
    #[arg(long, value_enum, default_value_t = FrameworkArg::Stratus, value_name = "FRAMEWORK")]
    framework: FrameworkArg,
    /// Number of epochs [default: the experiment's]
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u64).range(1..=1_000_000_000))]
    epochs: Option<u64>,
    /// Data folder.
    #[command(flatten)]
    data: DataArgument,
    /// Device, for `--on here`.
    #[command(flatten)]
    device: DeviceArgument,
    /// Number of training images, if the data set is not on this machine
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u64).range(1..=1_000_000_000_000))]
    images: Option<u64>,
    /// Number of validation images, if the data set is not on this machine
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u64).range(0..=1_000_000_000_000))]
    validation_images: Option<u64>,
    /// Cost inputs.
    #[command(flatten)]
    conditions: ConditionsArguments,
    /// Scaling over several devices.
    #[command(flatten)]
    scaling: ScalingArguments,
    /// Objective for choosing the machine: value (the lowest price within twice the shortest time), fastest,
    /// cheapest, deadline=6h or budget=20
    #[arg(long, alias = "want", value_name = "OBJECTIVE", default_value = DEFAULT_OBJECTIVE)]
    objective: String,
    /// The catalogue.
    #[command(flatten)]
    catalogue: machines::CatalogueArguments,
    /// Show all machines of the catalogue, not only the first 20 without those that others of the same GPU
    /// surpass
    #[arg(long)]
    all: bool,
    /// Profile written by `stratus forecast fit`; repeatable
    #[arg(long, value_name = "FILE")]
    profile: Vec<PathBuf>,
    /// CSV file with published times of training iterations on the machine of --on, which correct its data
    /// sheet; with the columns network, batch and milliseconds
    #[arg(long, value_name = "FILE.csv", requires = "on")]
    published: Option<PathBuf>,
    /// Show the measurements behind each row, and their errors
    #[arg(long)]
    evidence: bool,
    /// Show the time of each layer on the chosen machine
    #[arg(long)]
    layers: bool,
    /// Write a chart of time against price to this file, as SVG
    #[arg(long, value_name = "FILE.svg")]
    chart: Option<PathBuf>,
    /// Existing output files.
    #[command(flatten)]
    overwrite: Overwrite,
    /// Print a resource request for the chosen machine in Markdown
    #[arg(long, group = "form")]
    request: bool,
    /// Print a Slurm batch script for the chosen machine
    #[arg(long, group = "form")]
    slurm: bool,
    /// Print a SkyPilot task for the chosen machine
    #[arg(long, group = "form")]
    sky: bool,
    /// The run directory that is forecast, if nothing outside of it may be opened.
    #[arg(skip)]
    confined_to: Option<PathBuf>,
}

/// The argument of `--framework`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum FrameworkArg {
    /// Stratus
    Stratus,
    /// TensorFlow
    Tensorflow,
}

impl From<FrameworkArg> for Framework {
    fn from(argument: FrameworkArg) -> Self {
        match argument {
            FrameworkArg::Stratus => Self::Stratus,
            FrameworkArg::Tensorflow => Self::Tensorflow,
        }
    }
}

impl ForecastArguments {
    fn request_format(&self) -> Option<RequestFormat> {
        match (self.request, self.slurm, self.sky) {
            (true, ..) => Some(RequestFormat::Request),
            (_, true, _) => Some(RequestFormat::Slurm),
            (.., true) => Some(RequestFormat::Sky),
            _ => None,
        }
    }
}

/// Subcommands of `stratus forecast`.
#[derive(Debug, Subcommand)]
pub enum ForecastCommand {
    /// Fit profiles to measured step times and cross-validate them
    Fit(fit::FitArguments),
    /// List the machine catalogue with prices and sources
    Machines(machines::MachinesArguments),
}

/// The result of `stratus forecast`.
#[derive(Serialize)]
struct Report {
    network: String,
    framework: &'static str,
    epochs: u64,
    images: Option<u64>,
    machines: Vec<Forecast>,
    recommendation: Option<Recommendation>,
    /// The training that the nearest machine could do within the deadline or budget, if none meets it.
    #[serde(skip_serializing_if = "Option::is_none")]
    within_limit: Option<WithinLimit>,
    /// The rows in the order of the objective.
    #[serde(skip)]
    ranking: Ranking,
    #[serde(skip)]
    objective: Objective,
    #[serde(skip)]
    objective_text: String,
    #[serde(skip)]
    shows_all: bool,
    /// Machines without a row, with the reason.
    #[serde(skip)]
    #[cfg_attr(not(feature = "ui"), expect(dead_code, reason = "the page of forecasts shows them"))]
    left_out: Vec<(String, String)>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    evidence: Vec<Evidence>,
    /// The timed kernels of this machine, one entry per batch size.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    probes: Vec<ProbeReport>,
    #[serde(skip_serializing_if = "Option::is_none")]
    layers: Option<Vec<LayerForecast>>,
    /// The scaling over devices of the chosen machine.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    scaling: Vec<ScaledStep>,
    #[serde(skip_serializing_if = "Option::is_none")]
    request: Option<String>,
}

impl Report {
    /// The rows in the order of the objective, then those that are no candidates.
    fn in_order(&self) -> impl Iterator<Item = &Forecast> {
        self.order().map(|at| &self.machines[at])
    }

    /// The positions of the rows in this order.
    fn order(&self) -> impl Iterator<Item = usize> {
        let ranked = &self.ranking.order;
        let others = (0..self.machines.len()).filter(|at| !ranked.contains(at));
        ranked.iter().copied().chain(others)
    }
}

/// The chosen machine.
#[derive(Serialize)]
struct Recommendation {
    name: String,
    batch: u64,
    #[serde(rename = "want")]
    objective: String,
}

/// Runs `stratus forecast`.
///
/// # Errors
/// If the experiment is invalid, or a machine or objective is unknown.
pub fn run(arguments: &ForecastArguments, globals: &Globals, output: &Output) -> Result {
    match (&arguments.command, &arguments.target) {
        (Some(ForecastCommand::Fit(arguments)), _) => fit::run(arguments, output),
        (Some(ForecastCommand::Machines(arguments)), _) => machines::run(arguments, output),
        (None, Some(target)) => forecast(arguments, target, globals, output),
        (None, None) => Err(Failure::usage("missing experiment, like `stratus forecast resnet50`")),
    }
}

fn forecast(arguments: &ForecastArguments, target: &str, globals: &Globals, output: &Output) -> Result {
    arguments.scaling.check()?;
    let mut outputs = Outputs::new(arguments.overwrite);
    outputs.protect(target);
    arguments
        .catalogue
        .files()
        .chain(&arguments.profile)
        .chain(&arguments.published)
        .for_each(|path| outputs.protect(path));
    arguments.chart.iter().try_for_each(|path| outputs.claim(path, "the chart", Mark::None))?;
    let epochs = arguments.epochs.map(|epochs| epochs.to_string());
    let batches: Vec<String> = arguments.batch.iter().map(u32::to_string).collect();
    let batches = (!batches.is_empty()).then(|| batches.join(","));
    for (flag, key, value) in [("--epochs", "train.epochs", epochs), ("--batch", "train.batch_size", batches)]
    {
        let given = value.as_deref().map(|value| KeyFlag { flag, key, value });
        given.map_or(Ok(()), |given| given.check_agreement(globals))?;
    }
    let report = make_report(arguments, target, globals, output, &mut |note| output.message(note))?;
    if let Some(path) = &arguments.chart {
        write_chart(path, &report.machines, report.ranking.best())?;
    }
    if let Some(request) = &report.request {
        return output.print_verbatim(&report, || request.clone());
    }
    output.print_wrapped(&report, || render::render_report(&report, output.terminal_width()))
}

/// Forecasts an experiment on the machines. Assumptions are passed to `note` as they are made.
///
/// # Errors
/// If the experiment is invalid, or a machine or objective is unknown.
fn make_report(
    arguments: &ForecastArguments,
    target: &str,
    globals: &Globals,
    output: &Output,
    note: &mut dyn FnMut(&str),
) -> Result<Report> {
    let globals = &arguments.data.prepend_to(globals)?;
    let globals = &arguments.device.prepend_to(globals)?;
    let objective: Objective = arguments.objective.parse()?;
    let catalogue = arguments.catalogue.read(output)?;
    let mut profiles = shipped::profiles()?;
    for path in &arguments.profile {
        // The user's profiles take precedence over shipped ones of the same machine.
        profiles.insert(0, Profile::read(path)?);
    }
    let experiment = RunOrExperiment::resolve(target, globals)?.single_process_experiment(globals)?;
    let (machines, is_named) = match arguments.on.as_slice() {
        [] => (arguments.catalogue.select(catalogue.cloud_instances()?)?, false),
        names => (find_machines(names, &catalogue, &mut profiles)?, true),
    };
    let (framework, images, epochs) = (arguments.framework.into(), arguments.images, arguments.epochs);
    let mut planner = match &arguments.confined_to {
        Some(run) => {
            let experiment = confined::with_recorded_images(experiment, run)?;
            Planner::without_data_set(experiment, framework, images, epochs)?
        }
        None => Planner::new(experiment, framework, images, epochs)?,
    };
    let (conditions, supply) = arguments.conditions.read(&planner)?;
    planner.set_bill_inputs(arguments.validation_images, conditions);
    planner.set_supply(&supply);
    if let Some(path) = &arguments.published {
        evidence::add_published(path, &machines, &planner, &mut profiles, output)?;
    }
    let batches: Vec<usize> = match arguments.batch.as_slice() {
        [] => vec![planner.experiment().train.batch_size],
        batches => batches.iter().map(|&batch| batch as usize).collect(),
    };
    let mut rows = Vec::new();
    // The machine of each row.
    let mut machine_of: Vec<&Machine> = Vec::new();
    let (mut probes, mut left_out) = (Vec::new(), Vec::new());
    for machine in &machines {
        for &batch in &batches {
            if machine.name == THIS_MACHINE {
                // Shows the phase of the measurement on a terminal.
                let mut progress = Progress::new(*output);
                let monitor = progress.startup_monitor();
                let probed = probe_kernels(&planner, batch, &monitor, &mut |text| progress.warn(text))?;
                drop(progress);
                rows.push(forecast_from_probe(machine, &probed, &mut planner)?);
                probes.push(probed);
            } else {
                match forecast_on(machine, batch, &mut planner, &profiles) {
                    Ok(row) => rows.push(row),
                    Err(ForecastError::Unsuitable(reason)) if !is_named => {
                        left_out.push((machine.name.clone(), reason.to_string()));
                        break;
                    }
                    Err(error) => return Err(TrainError::from(error).into()),
                }
            }
            machine_of.push(machine);
        }
    }
    planner.notes().iter().for_each(|text| note(text));
    let probe_of = |row: &Forecast| {
        let is_here = row.name == THIS_MACHINE;
        probes.iter().find(|probed: &&ProbeReport| is_here && probed.batch as u64 == row.batch)
    };
    let ranking = choice::rank(&rows, objective);
    let best = ranking.best();
    let within_limit = match (best, ranking.order.first()) {
        (None, Some(&nearest)) => {
            let (row, machine) = (&rows[nearest], machine_of[nearest]);
            WithinLimit::find(objective, row, machine, &mut planner, (&profiles, probe_of(row)))?
        }
        _ => None,
    };
    let layers = match best.filter(|_| arguments.layers) {
        Some(best) => Some(match probe_of(&rows[best]) {
            Some(probed) => layers_from_probe(probed),
            None => layers_on(machine_of[best], rows[best].batch as usize, &mut planner, &profiles)?,
        }),
        None => None,
    };
    let request = match (arguments.request_format(), best) {
        (Some(format), Some(best)) => {
            let named = (train_command(target, arguments, &rows[best], globals), planner.experiment());
            Some(render_request(format, named, machine_of[best], &rows[best])?)
        }
        (Some(_), None) => {
            return Err(Failure::failed("no machine meets the objective: nothing to request"));
        }
        _ => None,
    };
    let scaling = match best {
        Some(best) => {
            arguments.scaling.scaled(&rows[best], machine_of[best], &mut planner, &profiles, &probes)?
        }
        None => Vec::new(),
    };
    let names: Vec<&str> = rows.iter().map(|row| row.name.as_str()).collect();
    let evidence = match arguments.evidence {
        true => evidence::collect(&machines, &names, &planner, &profiles, &probes)?,
        false => Vec::new(),
    };
    Ok(Report {
        evidence,
        left_out,
        ranking,
        within_limit,
        objective,
        objective_text: arguments.objective.clone(),
        shows_all: arguments.all || is_named,
        scaling,
        request,
        network: planner.experiment().model.name.clone(),
        framework: Framework::from(arguments.framework).name(),
        epochs: planner.length().epochs,
        images: planner.length().images,
        recommendation: best.map(|best| Recommendation {
            name: rows[best].name.clone(),
            batch: rows[best].batch,
            objective: arguments.objective.clone(),
        }),
        machines: rows,
        probes,
        layers,
    })
}

/// Writes a chart of the rows that fit and have a price.
fn write_chart(path: &Path, rows: &[Forecast], best: Option<usize>) -> Result {
    let currency = rows.iter().find_map(|row| row.cost.currency.as_deref()).unwrap_or_default();
    let offer = |(at, row): (usize, &Forecast)| {
        let hours = |seconds: Option<f64>| seconds.map(|seconds| seconds / 3600.0);
        let same_currency = row.cost.currency.as_deref() == Some(currency) && row.fits != Some(false);
        let price = row.cost.price.filter(|_| same_currency)?;
        let hours = [hours(row.total_low_s)?, hours(row.total_s)?, hours(row.total_high_s)?];
        Some(MachinePoint { name: row.name.clone(), hours, price, best: best == Some(at) })
    };
    let offers: Vec<MachinePoint> = rows.iter().enumerate().filter_map(offer).collect();
    if offers.is_empty() {
        return Err(Failure::usage("cannot draw the chart: no machine has a price and a total time")
            .with_hint("name cloud instances with --on, and set the number of images with --images"));
    }
    write_file(path, machines_svg(&offers, currency))
}

/// The command that trains the forecast experiment.
fn train_command(target: &str, arguments: &ForecastArguments, row: &Forecast, globals: &Globals) -> String {
    let mut command = format!("stratus train {}{}", shell_word(target), globals.as_set_flags(&[]));
    if let Some(epochs) = arguments.epochs {
        command += &format!(" --set train.epochs={epochs}");
    }
    if !arguments.batch.is_empty() {
        command += &format!(" --set train.batch_size={}", row.batch);
    }
    command
}

impl From<stratus_forecast::Error> for Failure {
    fn from(error: stratus_forecast::Error) -> Self {
        let hint = error.hint();
        let failure = Failure::usage(error);
        match hint {
            Some(hint) => failure.with_hint(hint),
            None => failure,
        }
    }
}
