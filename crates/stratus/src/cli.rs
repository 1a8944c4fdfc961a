//! The arguments: global flags and the list of commands.

use crate::commands::{
    bench, calibrate, collect, completions, config, data, doctor, eval, forecast, infer, launch, man, model,
    plan, report, runs, sweep, train,
};
use crate::errors::{Failure, Result};
use crate::output::Output;
use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Args, Parser, Subcommand};
use stratus_base::text::shell_word;
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

/// The flags of every command.
#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = "Global options")]
pub struct Globals {
    /// Print the result as one JSON document
    #[arg(long, global = true)]
    pub json: bool,
    /// Override a configuration key; repeatable (`stratus config keys` lists the keys)
    #[arg(long = "set", global = true, value_name = "KEY=VALUE", value_parser = parse_key_value)]
    pub set: Vec<(String, String)>,
    /// Print only results, warnings and errors
    #[arg(short, long, global = true)]
    pub quiet: bool,
}

impl Globals {
    /// The keys that were set, except those in `without`, as flags to paste: ` --set KEY=VALUE` for each.
    #[must_use]
    pub fn as_set_flags(&self, without: &[&str]) -> String {
        let keys = self.set.iter().filter(|(key, _)| !without.contains(&key.as_str()));
        keys.map(|(key, value)| format!(" --set {}", shell_word(&format!("{key}={value}")))).collect()
    }
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
            Command::Completions(arguments) => completions::run(arguments, output),
            Command::Man(arguments) => man::run(arguments, output),
            Command::Doctor(arguments) => doctor::run(arguments, output, &LibraryProbes::detect()),
        }
    }
}

/// Parses `KEY=VALUE`, the argument of `--set`.
///
/// # Errors
/// If there is no `=`, or no key before it.
pub fn parse_key_value(argument: &str) -> std::result::Result<(String, String), String> {
    match argument.split_once('=') {
        Some((key, value)) if !key.trim().is_empty() => Ok((key.trim().to_owned(), value.to_owned())),
        _ => Err("expected KEY=VALUE, like train.epochs=3".to_owned()),
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
    use super::Arguments;
    use clap::CommandFactory;

    #[test]
    fn arguments_are_consistent() {
        Arguments::command().debug_assert();
    }
}
