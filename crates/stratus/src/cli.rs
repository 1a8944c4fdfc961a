//! The arguments: the list of commands.

use crate::commands::{
    bench, calibrate, collect, completions, config, data, doctor, eval, forecast, infer, launch, man, model,
    plan, report, runs, sweep, train,
};
use crate::errors::{Failure, Result};
use crate::globals::Globals;
use crate::output::Output;
use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{CommandFactory, Parser, Subcommand};
use stratus_experiment::foreign_names;
use stratus_train::libraries::LibraryProbes;

/// Train convolutional networks and see where every millisecond goes.
#[derive(Debug, Parser)]
#[command(
    name = "stratus",
    version,
    max_term_width = 100,
    arg_required_else_help = true,
    disable_help_subcommand = true,
    after_help = "Exit codes: 0 success, 1 failure, 2 usage or configuration error, \
                  75 interrupted, can be resumed."
)]
pub struct Arguments {
    /// The flags of every command.
    #[command(flatten)]
    pub globals: Globals,
    /// The command.
    #[command(subcommand)]
    pub command: Command,
}

/// The commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Train a network, or resume a run
    Train(train::TrainArguments),
    /// Evaluate weights on labelled images
    #[command(alias = "test", alias = "val", alias = "validate", alias = "evaluate")]
    Eval(eval::EvalArguments),
    /// Run inference on images and videos
    #[command(alias = "predict")]
    Infer(infer::InferArguments),
    /// Show the plan and memory of a training run without running it
    Plan(plan::PlanArguments),
    /// Estimate time, memory and cost of a training run on this or another machine
    Forecast(Box<forecast::ForecastArguments>),
    /// Calibrate forecasts for this machine (about five minutes)
    Calibrate(calibrate::CalibrateArguments),
    /// List and show networks, import and export ONNX
    Model(model::ModelArguments),
    /// Benchmark kernels, data loading, communication and forecasts
    Bench(bench::BenchArguments),
    /// Download, check and inspect data sets
    Data(data::DataArguments),
    /// Export tables from run directories, including running ones
    Collect(collect::CollectArguments),
    /// Report on runs as HTML, Markdown, CSV or SVG
    Report(report::ReportArguments),
    /// List, filter and delete runs
    Runs(runs::RunsArguments),
    /// Train every combination of configuration values and compare the runs
    Sweep(sweep::SweepArguments),
    /// Train on other machines and fetch the runs as they progress
    Launch(launch::LaunchArguments),
    /// Show configurations and explain their keys
    Config(config::ConfigArguments),
    /// Print a shell completion script: `source <(stratus completions bash)`
    Completions(completions::CompletionsArguments),
    /// Write the manual pages to a folder
    Man(man::ManArguments),
    /// Report on this machine: CPU, memory, libraries, measured peaks
    Doctor(doctor::DoctorArguments),
}

impl Command {
    /// Runs the command.
    ///
    /// # Errors
    /// The command's failure, with its exit code.
    pub fn run(&self, globals: &Globals, output: &Output) -> Result {
        match self {
            Command::Train(arguments) => train::run(arguments, globals, output),
            Command::Eval(arguments) => eval::run(arguments, globals, output),
            Command::Infer(arguments) => infer::run(arguments, globals, output),
            Command::Plan(arguments) => plan::run(arguments, globals, output),
            Command::Forecast(arguments) => forecast::run(arguments, globals, output),
            Command::Calibrate(arguments) => calibrate::run(arguments, globals, output),
            Command::Model(arguments) => model::run(arguments, globals, output),
            Command::Bench(arguments) => bench::run(arguments, globals, output),
            Command::Data(arguments) => data::run(arguments, globals, output),
            Command::Collect(arguments) => collect::run(arguments, output),
            Command::Report(arguments) => report::run(arguments, output, &LibraryProbes::detect()),
            Command::Runs(arguments) => runs::run(arguments, output),
            Command::Sweep(arguments) => sweep::run(arguments, globals, output),
            Command::Launch(arguments) => launch::run(arguments, globals, output),
            Command::Config(arguments) => config::run(arguments, globals, output),
            Command::Completions(arguments) => completions::run(arguments, &mut Arguments::command(), output),
            Command::Man(arguments) => man::run(arguments, Arguments::command(), output),
            Command::Doctor(arguments) => doctor::run(arguments, output, &LibraryProbes::detect()),
        }
    }
}

/// The error for an unknown flag that other frameworks have, with its name in Stratus; `None` if clap's own
/// message is as good.
#[must_use]
pub fn explain_foreign_flag(error: &clap::Error) -> Option<Failure> {
    if error.kind() != ErrorKind::UnknownArgument {
        return None;
    }
    let ContextValue::String(given) = error.get(ContextKind::InvalidArg)? else { return None };
    let name = given.trim_start_matches('-').split('=').next().unwrap_or_default();
    let hint = match name {
        "gpu" | "gpus" | "cuda" | "ngpu" | "num-gpus" => "use `--device gpu`".to_owned(),
        "cpu" | "no-cuda" => "use `--device cpu`".to_owned(),
        "resume" | "continue" | "checkpoint-dir" => {
            "to resume a run, name its directory: `stratus train RUN`".to_owned()
        }
        _ => format!("set the key `{0}`: `--set {0}=…`", foreign_names::key_of(name)?),
    };
    Some(Failure::usage(format!("unknown flag `{given}`")).with_hint(hint))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_are_consistent() {
        Arguments::command().debug_assert();
    }
}
