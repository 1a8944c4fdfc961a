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
use stratus_train::experiment::habits;

/// Trains convolutional networks and accounts for every millisecond of it.
#[derive(Debug, Parser)]
#[command(
    name = "stratus",
    version,
    max_term_width = 100,
    arg_required_else_help = true,
    disable_help_subcommand = true,
    after_help = "Exit codes: 0 done, 1 failed, 2 wrong usage or configuration, 75 interrupted but resumable."
)]
pub struct Arguments {
    /// The flags that every command knows.
    #[command(flatten)]
    pub globals: Globals,
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// The flags that every command knows.
#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = "Global options")]
pub struct Globals {
    /// Print one JSON document on standard output instead of text
    #[arg(long, global = true)]
    pub json: bool,
    /// Override a configuration key; may be repeated (`stratus config keys` lists them)
    #[arg(long = "set", global = true, value_name = "KEY=VALUE", value_parser = key_value)]
    pub set: Vec<(String, String)>,
    /// Say nothing but results, warnings and errors
    #[arg(short, long, global = true)]
    pub quiet: bool,
}

impl Globals {
    /// The keys that were set, but those in `without`, as flags to paste: ` --set KEY=VALUE` for each.
    #[must_use]
    pub fn settings(&self, without: &[&str]) -> String {
        let keys = self.set.iter().filter(|(key, _)| !without.contains(&key.as_str()));
        keys.map(|(key, value)| format!(" --set {}", shell_word(&format!("{key}={value}")))).collect()
    }
}

/// The commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Train a network, or continue a run
    Train(train::TrainArguments),
    /// Measure weights on images with known classes: the validation images, or others
    #[command(alias = "test", alias = "val", alias = "validate", alias = "evaluate")]
    Eval(eval::EvalArguments),
    /// Show a trained network images: their classes, or a mask of each
    #[command(alias = "predict")]
    Infer(infer::InferArguments),
    /// Show what a training would do, without training: graph, program, plan
    Plan(plan::PlanArguments),
    /// Forecast time, memory and price of a training, here or on machines that are not here
    Forecast(Box<forecast::ForecastArguments>),
    /// Measure this machine, so that forecasts of networks that never ran hold for it: five minutes
    Calibrate(calibrate::CalibrateArguments),
    /// List the networks, show their layers, exchange them with ONNX
    Model(model::ModelArguments),
    /// Measure kernels, and what measuring costs
    Bench(bench::BenchArguments),
    /// Fetch data sets and look at them
    Data(data::DataArguments),
    /// Make tables out of run directories, also of those that are being written
    Collect(collect::CollectArguments),
    /// Show runs as a page, as tables or as charts: where the time and the memory went, how runs compare
    Report(report::ReportArguments),
    /// List runs: how they stand, what came of them, in what they differ; remove some
    Runs(runs::RunsArguments),
    /// Train an experiment for every combination of keys, repeated, and compare the runs
    Sweep(sweep::SweepArguments),
    /// Train on other machines: start there, watch, bring the runs back as they grow
    Launch(launch::LaunchArguments),
    /// Show configurations and the keys they are made of
    Config(config::ConfigArguments),
    /// Print what a shell completes the commands with: `source <(stratus completions bash)`
    Completions(completions::CompletionsArguments),
    /// Write the manual pages of the commands to a folder
    Man(man::ManArguments),
    /// Report on this machine: processor, memory, libraries, measured peaks
    Doctor(doctor::DoctorArguments),
}

impl Command {
    /// Runs the command.
    ///
    /// # Errors
    /// What the command failed with, with its exit code.
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
            Command::Report(arguments) => report::run(arguments, output, &doctor::Probes::of_this_machine()),
            Command::Runs(arguments) => runs::run(arguments, output),
            Command::Sweep(arguments) => sweep::run(arguments, globals, output),
            Command::Launch(arguments) => launch::run(arguments, globals, output),
            Command::Config(arguments) => config::run(arguments, globals, output),
            Command::Completions(arguments) => completions::run(arguments, output),
            Command::Man(arguments) => man::run(arguments, output),
            Command::Doctor(arguments) => doctor::run(arguments, output, &doctor::Probes::of_this_machine()),
        }
    }
}

/// A key and its value, as `--set` takes them.
///
/// # Errors
/// Where it is no such pair.
pub fn key_value(argument: &str) -> std::result::Result<(String, String), String> {
    match argument.split_once('=') {
        Some((key, value)) if !key.trim().is_empty() => Ok((key.trim().to_owned(), value.to_owned())),
        _ => Err("expected KEY=VALUE, like train.epochs=3".to_owned()),
    }
}

/// What a flag that other programs have is called here; none where clap's own words are as good.
#[must_use]
pub fn in_our_words(error: &clap::Error) -> Option<Failure> {
    if error.kind() != ErrorKind::UnknownArgument {
        return None;
    }
    let ContextValue::String(given) = error.get(ContextKind::InvalidArg)? else { return None };
    let name = given.trim_start_matches('-').split('=').next().unwrap_or_default();
    let hint = match name {
        "gpu" | "gpus" | "cuda" | "ngpu" | "num-gpus" => "`--device gpu` has a GPU compute".to_owned(),
        "cpu" | "no-cuda" => "`--device cpu` has the processors compute".to_owned(),
        "resume" | "continue" | "checkpoint-dir" => {
            "a run is continued by naming its directory: `stratus train RUN`".to_owned()
        }
        _ => format!("the key is `{0}`: give it as `--set {0}=…`", habits::key_of(name)?),
    };
    Some(Failure::usage(format!("`{given}` is no flag of this command")).hint(hint))
}

#[cfg(test)]
mod tests {
    use super::Arguments;
    use clap::CommandFactory;

    #[test]
    fn the_arguments_are_consistent() {
        Arguments::command().debug_assert();
    }
}
