//! `stratus forecast`: what a training would take, on machines that nobody has yet and on this one.

mod absent;
pub mod bench;
pub mod bench_here;
mod conditions;
pub(super) mod expected;
mod fit;
mod here;
pub mod learn;
pub mod machines;
mod planning;
mod render;
mod request;
mod scaling;

use super::often::Often;
use super::target::Target;
use crate::cli::Globals;
use crate::errors::{Failure, Result};
use crate::output::Output;
use crate::outputs::{Mark, Outputs, Overwrite};
use clap::{Args, Subcommand, ValueEnum};
use conditions::ConditionsArguments;
use planning::Planner;
use request::{Form, request};
use scaling::ScalingArguments;
use serde::Serialize;
use std::path::{Path, PathBuf};
use stratus_base::text::shell_word;
use stratus_forecast::catalogue::{HERE, Machine};
use stratus_forecast::forecast::{self, Forecast, LayerForecast};
use stratus_forecast::model::Framework;
use stratus_forecast::profile::Profile;
use stratus_forecast::scaling::Scaled;
use stratus_forecast::shipped;
use stratus_forecast::wish::{Offer, Wish};
use stratus_report::page;
use stratus_train::bench::probe::Probed;

/// Arguments of `stratus forecast`.
#[derive(Args, Debug)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
pub struct ForecastArguments {
    /// Other things to do.
    #[command(subcommand)]
    action: Option<ForecastAction>,
    /// A built-in experiment, an experiment file or a run directory
    #[arg(value_name = "EXPERIMENT|RUN", required = true)]
    target: Option<String>,
    /// Batch sizes, like 16,32,64; without it that of the experiment
    #[arg(
        long,
        visible_alias = "batch-size",
        value_name = "SIZES",
        value_delimiter = ',',
        value_parser = clap::value_parser!(u32).range(1..=16_777_216)
    )]
    batch: Vec<u32>,
    /// Machines of the catalogue, like v100-16gb,g4dn.xlarge; `here` is this one, whose kernels are timed; a
    /// file that `stratus calibrate` wrote is the machine that it measured. Without it every cloud instance
    /// that can compute the experiment
    #[arg(long, value_name = "MACHINES", value_delimiter = ',')]
    on: Vec<String>,
    /// Whose time and memory: with TensorFlow, in f32 on GPUs
    #[arg(long, value_enum, default_value_t = Whose::Stratus, value_name = "FRAMEWORK")]
    framework: Whose,
    /// Epochs; without it those of the experiment
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u64).range(1..=1_000_000_000))]
    epochs: Option<u64>,
    /// Where the data are: `data.path`
    #[arg(long, value_name = "PATH")]
    data: Option<String>,
    /// Training images, where the data set is not here
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u64).range(1..=1_000_000_000_000))]
    images: Option<u64>,
    /// Validation images, where the data set is not here
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u64).range(0..=1_000_000_000_000))]
    validation_images: Option<u64>,
    /// What the bill depends on.
    #[command(flatten)]
    conditions: ConditionsArguments,
    /// Several devices.
    #[command(flatten)]
    scaling: ScalingArguments,
    /// What to recommend a machine by: fastest, cheapest, deadline=6h or budget=20
    #[arg(long, value_name = "WISH", default_value = "fastest")]
    want: String,
    /// A file with more rows for the machine catalogue, or others
    #[arg(long, value_name = "FILE")]
    machines: Option<PathBuf>,
    /// A profile that `stratus forecast fit` wrote; may be repeated
    #[arg(long, value_name = "FILE")]
    profile: Vec<PathBuf>,
    /// Show the time of each layer on the recommended machine
    #[arg(long)]
    layers: bool,
    /// Write a chart of time against price to this file, as SVG
    #[arg(long, value_name = "FILE.svg")]
    chart: Option<PathBuf>,
    /// Files that are replaced.
    #[command(flatten)]
    overwrite: Overwrite,
    /// Write the recommended machine as a request to whoever administers it, in Markdown
    #[arg(long, group = "form")]
    request: bool,
    /// Write it as the header of a batch job of Slurm
    #[arg(long, group = "form")]
    slurm: bool,
    /// Write it as a task of SkyPilot
    #[arg(long, group = "form")]
    sky: bool,
}

/// The framework that trains.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Whose {
    /// Stratus
    Stratus,
    /// TensorFlow
    Tensorflow,
}

impl From<Whose> for Framework {
    fn from(whose: Whose) -> Self {
        match whose {
            Whose::Stratus => Self::Stratus,
            Whose::Tensorflow => Self::Tensorflow,
        }
    }
}

impl ForecastArguments {
    fn form(&self) -> Option<Form> {
        match (self.request, self.slurm, self.sky) {
            (true, ..) => Some(Form::Request),
            (_, true, _) => Some(Form::Slurm),
            (.., true) => Some(Form::Sky),
            _ => None,
        }
    }
}

/// What else `stratus forecast` does.
#[derive(Debug, Subcommand)]
pub enum ForecastAction {
    /// Fit profiles to measured step times, and judge them by networks that they did not see
    Fit(fit::FitArguments),
    /// List the machine catalogue, with sources
    Machines(machines::MachinesArguments),
}

/// What is found out, as JSON.
#[derive(Serialize)]
struct Report {
    network: String,
    framework: &'static str,
    epochs: u64,
    images: Option<u64>,
    machines: Vec<Forecast>,
    recommendation: Option<Recommendation>,
    /// What was timed here, a batch size each.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    probes: Vec<Probed>,
    #[serde(skip_serializing_if = "Option::is_none")]
    layers: Option<Vec<LayerForecast>>,
    /// Numbers of devices of the recommended machine that train together.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    scaling: Vec<Scaled>,
    #[serde(skip_serializing_if = "Option::is_none")]
    request: Option<String>,
}

/// The machine to take.
#[derive(Serialize)]
struct Recommendation {
    name: String,
    batch: u64,
    #[serde(rename = "want")]
    wish: String,
}

/// Runs `stratus forecast`.
///
/// # Errors
/// Where the experiment is not in order, or a machine or wish is unknown.
pub fn run(arguments: &ForecastArguments, globals: &Globals, output: &Output) -> Result {
    match (&arguments.action, &arguments.target) {
        (Some(ForecastAction::Fit(arguments)), _) => fit::run(arguments, output),
        (Some(ForecastAction::Machines(arguments)), _) => machines::run(arguments, output),
        (None, Some(target)) => forecast(arguments, target, globals, output),
        (None, None) => Err(Failure::usage("give an experiment, like `stratus forecast resnet50`")),
    }
}

fn forecast(arguments: &ForecastArguments, target: &str, globals: &Globals, output: &Output) -> Result {
    let mut outputs = Outputs::new(arguments.overwrite);
    outputs.protect(target);
    arguments.machines.iter().chain(&arguments.profile).for_each(|path| outputs.protect(path));
    arguments.chart.iter().try_for_each(|path| outputs.claim(path, "the chart", Mark::None))?;
    let often = Often { data: arguments.data.clone(), ..Often::default() };
    let globals = &often.before(globals);
    let wish: Wish = arguments.want.parse()?;
    let catalogue = machines::catalogue(arguments.machines.as_deref())?;
    let mut profiles = shipped::profiles()?;
    for path in &arguments.profile {
        let text = machines::read(path)?;
        // One of the user's own comes before those of the same machine.
        profiles.insert(0, Profile::parse(&path.display().to_string(), &text)?);
    }
    let experiment = Target::find(target, globals)?.experiment_of_one_process(globals)?;
    let (machines, named) = match arguments.on.as_slice() {
        [] => (machines::affordable(&catalogue)?, false),
        names => (machines::named(names, &catalogue, &mut profiles)?, true),
    };
    let mut planner =
        Planner::new(experiment, arguments.framework.into(), arguments.images, arguments.epochs)?;
    let conditions = arguments.conditions.read(&planner)?;
    planner.bill(arguments.validation_images, conditions);
    let batches: Vec<usize> = match arguments.batch.as_slice() {
        [] => vec![planner.experiment().train.batch_size],
        batches => batches.iter().map(|&batch| batch as usize).collect(),
    };
    let mut rows = Vec::new();
    let mut probes = Vec::new();
    for machine in &machines {
        for &batch in &batches {
            if machine.name == HERE {
                let probed = here::measure(&planner, batch, output)?;
                rows.push(here::row(machine, &probed, &mut planner)?);
                probes.push(probed);
                continue;
            }
            match row(machine, batch, &mut planner, &profiles) {
                Ok(row) => rows.push(row),
                Err(Problem::Machine(_)) if !named => break,
                Err(Problem::Machine(error)) => return Err(error.into()),
                Err(Problem::Command(failure)) => return Err(failure),
            }
        }
    }
    planner.notes().iter().for_each(|note| output.message(note));
    let best = wish.best(&rows.iter().map(offer).collect::<Vec<_>>());
    let layers = match (arguments.layers, best) {
        (true, Some(best)) if rows[best].name == HERE => {
            let probed = probes.iter().find(|probed| probed.batch as u64 == rows[best].batch);
            probed.map(here::layers)
        }
        (true, Some(best)) => {
            let machine = machines.iter().find(|machine| machine.name == rows[best].name);
            machine.map(|machine| layers(machine, rows[best].batch, &mut planner, &profiles)).transpose()?
        }
        _ => None,
    };
    if let Some(path) = &arguments.chart {
        chart(path, &rows, best)?;
    }
    let asked = match (arguments.form(), best) {
        (Some(form), Some(best)) => {
            let machine = machines.iter().find(|machine| machine.name == rows[best].name);
            let named = (command(target, arguments, &rows[best], globals), planner.experiment());
            machine.map(|machine| request(form, named, machine, &rows[best])).transpose()?
        }
        (Some(_), None) => {
            return Err(Failure::failed(
                "none of these machines is what was asked for: there is nothing to request",
            ));
        }
        _ => None,
    };
    let scaling = match best.map(|best| &rows[best]) {
        Some(row) => {
            let machine = machines.iter().find(|machine| machine.name == row.name);
            let scaled = machine
                .map(|machine| arguments.scaling.scaled(row, machine, &mut planner, &profiles, &probes));
            scaled.transpose()?.unwrap_or_default()
        }
        None => Vec::new(),
    };
    let report = Report {
        scaling,
        request: asked,
        network: planner.experiment().model.name.clone(),
        framework: Framework::from(arguments.framework).name(),
        epochs: planner.length().epochs,
        images: planner.length().images,
        recommendation: best.map(|best| Recommendation {
            name: rows[best].name.clone(),
            batch: rows[best].batch,
            wish: arguments.want.clone(),
        }),
        machines: rows,
        probes,
        layers,
    };
    if let Some(request) = &report.request {
        return output.document(&report, || request.clone());
    }
    output.result(&report, || render::report(&report, output.narrow()))
}

/// Draws the rows that have a price and fit.
fn chart(path: &Path, rows: &[Forecast], best: Option<usize>) -> Result {
    let currency = rows.iter().find_map(|row| row.currency.as_deref()).unwrap_or_default();
    let offer = |(at, row): (usize, &Forecast)| {
        let hours = |seconds: Option<f64>| seconds.map(|seconds| seconds / 3600.0);
        let same_currency = row.currency.as_deref() == Some(currency) && row.fits != Some(false);
        let price = row.price.filter(|_| same_currency)?;
        let hours = [hours(row.total_low_s)?, hours(row.total_s)?, hours(row.total_high_s)?];
        Some(page::Offer { name: row.name.clone(), hours, price, best: best == Some(at) })
    };
    let offers: Vec<page::Offer> = rows.iter().enumerate().filter_map(offer).collect();
    if offers.is_empty() {
        return Err(Failure::usage("none of these machines has a price and a time that a chart could show")
            .hint("name cloud instances with --on, and the number of images with --images"));
    }
    std::fs::write(path, page::offers_svg(&offers, currency))
        .map_err(|error| Failure::failed(format!("cannot write {}: {error}", path.display())))
}

/// The command that trains what was forecast.
fn command(target: &str, arguments: &ForecastArguments, row: &Forecast, globals: &Globals) -> String {
    let mut command = format!("stratus train {}{}", shell_word(target), globals.settings(&[]));
    if let Some(epochs) = arguments.epochs {
        command += &format!(" --set train.epochs={epochs}");
    }
    if !arguments.batch.is_empty() {
        command += &format!(" --set train.batch_size={}", row.batch);
    }
    command
}

/// Why a row cannot be made: the machine's fault, or that of everything.
enum Problem {
    Machine(stratus_forecast::Error),
    Command(Failure),
}

fn row(
    machine: &Machine,
    batch: usize,
    planner: &mut Planner,
    profiles: &[Profile],
) -> std::result::Result<Forecast, Problem> {
    let format = planner.format(machine).map_err(Problem::Machine)?;
    let plan = planner.plan(&machine.processor, format, batch).map_err(Problem::Command)?;
    forecast::forecast(machine, format, &plan, &planner.length(), profiles).map_err(Problem::Machine)
}

fn layers(
    machine: &Machine,
    batch: u64,
    planner: &mut Planner,
    profiles: &[Profile],
) -> Result<Vec<LayerForecast>> {
    let format = planner.format(machine)?;
    let plan = planner.plan(&machine.processor, format, batch as usize)?;
    Ok(forecast::layers(machine, format, (plan.framework, &plan.train), profiles)?)
}

/// What a row offers: by the upper ends of its intervals, for an image where the number of images is unknown.
/// What may never be done is no offer.
fn offer(row: &Forecast) -> Option<Offer> {
    let seconds = match row.bill.is_empty() {
        true => row.high_s / row.batch.max(1) as f64,
        false => row.total_high_s?,
    };
    (row.fits != Some(false)).then_some(Offer { seconds, price: row.price_high })
}

impl From<stratus_forecast::Error> for Failure {
    fn from(error: stratus_forecast::Error) -> Self {
        let hint = error.hint();
        let failure = Failure::usage(error);
        match hint {
            Some(hint) => failure.hint(hint),
            None => failure,
        }
    }
}
