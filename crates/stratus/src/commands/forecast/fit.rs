//! `stratus forecast fit`: fits profiles to measured step times.

use super::machines::catalogue;
use crate::errors::{Failure, Result};
use crate::output::{Output, table};
use crate::outputs::{Mark, Outputs, Overwrite, write_file};
use clap::Args;
use serde::Serialize;
use std::fs;
use std::path::{Path, PathBuf};
use stratus_forecast::catalogue::Catalogue;
use stratus_forecast::evaluate::Evaluation;
use stratus_forecast::measured::StepRecords;
use stratus_forecast::model::Framework;
use stratus_forecast::profile::Profile;
use stratus_forecast::steps::StepTable;

/// Arguments of `stratus forecast fit`.
#[derive(Args, Debug)]
pub struct FitArguments {
    /// CSV file with step times of TensorFlow in f32, with the columns gpu, gpu_memory_gb, model, image_size,
    /// batch_size and batch_s_median
    #[arg(long, value_name = "FILE", requires = "layers", required_unless_present = "steps")]
    times: Option<PathBuf>,
    /// File with the layers of the networks of --times
    #[arg(long, value_name = "FILE", requires = "times")]
    layers: Option<PathBuf>,
    /// CSV file with step times of Stratus, with the columns machine, cores, network, precision, batch,
    /// step_s, arithmetic_gflops and bandwidth_gb_s
    #[arg(long, value_name = "FILE", conflicts_with = "times")]
    steps: Option<PathBuf>,
    /// Description of the data, for the profiles [default: the file names]
    #[arg(long, value_name = "TEXT")]
    data: Option<String>,
    /// TOML file that adds or replaces catalogue rows
    #[arg(long, value_name = "FILE")]
    machines: Option<PathBuf>,
    /// Output folder for profiles
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
    /// Existing output files.
    #[command(flatten)]
    overwrite: Overwrite,
}

/// A profile that was written.
#[derive(Serialize)]
struct Fitted {
    file: String,
    machine: Option<String>,
    steps: usize,
    mean_percent: f64,
    covered_percent: f64,
}

/// Runs `stratus forecast fit`.
///
/// # Errors
/// If a table cannot be read, or has too few networks.
pub(super) fn run(arguments: &FitArguments, output: &Output) -> Result {
    let catalogue = catalogue(arguments.machines.as_deref())?;
    let profiles = match (&arguments.times, &arguments.layers, &arguments.steps) {
        (Some(times), Some(layers), _) => fit_tensorflow(times, layers, arguments, &catalogue)?,
        (_, _, Some(steps)) => fit_stratus(steps, arguments, &catalogue)?,
        _ => return Err(Failure::usage("fit needs --times and --layers, or --steps")),
    };
    fs::create_dir_all(&arguments.out)
        .map_err(|error| Failure::failed(format!("cannot create {}: {error}", arguments.out.display())))?;
    let name = |kind: &str, profile: &Profile| {
        let machine = profile.machine.as_deref().unwrap_or(kind);
        format!("{}-{}-{machine}.toml", profile.framework.name(), profile.precision)
    };
    let mut outputs = Outputs::new(arguments.overwrite);
    let read = [&arguments.times, &arguments.layers, &arguments.steps, &arguments.machines];
    read.into_iter().flatten().for_each(|path| outputs.protect(path));
    for (kind, profile) in &profiles {
        outputs.claim(&arguments.out.join(name(kind, profile)), "the profile", Mark::None)?;
    }
    let mut fitted = Vec::new();
    for (kind, profile) in &profiles {
        let file = name(kind, profile);
        let path = arguments.out.join(&file);
        write_file(&path, profile.to_toml())?;
        let validation = profile.validation;
        fitted.push(Fitted {
            file,
            machine: profile.machine.clone(),
            steps: validation.steps,
            mean_percent: validation.mean_percent,
            covered_percent: validation.covered_percent,
        });
    }
    output.print_wrapped(&fitted, || {
        let heading = ["profile", "steps", "mean error", "covered"].map(str::to_owned);
        let rows = fitted.iter().map(|fitted| {
            let Fitted { file, steps, mean_percent, covered_percent, .. } = fitted;
            let (mean, covered) = (format!("{mean_percent:.1} %"), format!("{covered_percent:.0} %"));
            [file.clone(), steps.to_string(), mean, covered]
        });
        table(&[heading].into_iter().chain(rows).collect::<Vec<_>>())
    })
}

/// Profiles with the kind of their machine: `gpu` or `cpu`.
type Profiles = Vec<(&'static str, Profile)>;

fn fit_tensorflow(
    times: &Path,
    layers: &Path,
    arguments: &FitArguments,
    catalogue: &Catalogue,
) -> Result<Profiles> {
    let names = [times, layers].map(|path| path.display().to_string());
    let measured = StepRecords::read_layer_table(times, layers, catalogue)?;
    let data = arguments.data.clone().unwrap_or_else(|| names.join(", "));
    let command = format!("stratus forecast fit --times {} --layers {}", names[0], names[1]);
    let evaluation = Evaluation::new(&measured, Framework::Tensorflow, true, false);
    let describe = (data.as_str(), command.as_str());
    let left_out = evaluation.leave_one_network_out()?;
    let mut profiles: Profiles = evaluation
        .profiles(&left_out, Framework::Tensorflow, "f32", describe)
        .into_iter()
        .map(|profile| ("gpu", profile))
        .collect();
    if measured.machines.len() > 2 {
        let left_out = evaluation.leave_one_machine_out()?;
        profiles.push(("gpu", evaluation.shared_profile(&left_out, Framework::Tensorflow, "f32", describe)));
    }
    Ok(profiles)
}

fn fit_stratus(steps: &Path, arguments: &FitArguments, catalogue: &Catalogue) -> Result<Profiles> {
    let name = steps.display().to_string();
    let table = StepTable::read(steps)?;
    let data = arguments.data.clone().unwrap_or_else(|| name.clone());
    let command = format!("stratus forecast fit --steps {name}");
    let mut profiles = Vec::new();
    for kind in table.groups(catalogue)? {
        let measured = table.records(&kind, catalogue)?;
        let evaluation = Evaluation::new(&measured, Framework::Stratus, kind.gpu, kind.matrix_units);
        let left_out = evaluation.leave_one_network_out_shared()?;
        let describe = (data.as_str(), command.as_str());
        let precision = kind.format.name();
        let mut profile = evaluation.shared_profile(&left_out, Framework::Stratus, precision, describe);
        profile.machine.clone_from(&kind.machine);
        profiles.push((if kind.gpu { "gpu" } else { "cpu" }, profile));
    }
    Ok(profiles)
}
