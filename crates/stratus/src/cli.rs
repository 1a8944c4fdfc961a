//! The arguments: the list of commands.

use crate::brief_help;
#[cfg(feature = "ui")]
use crate::commands::ui;
use crate::commands::{
    bench, calibrate, collect, completions, config, data, doctor, eval, forecast, infer, launch, man, model,
    optimise, plan, report, runs, sweep, train,
};
use crate::errors::{Failure, Result};
use crate::examples::add_examples;
use crate::globals::Globals;
use crate::output::Output;
use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Args, CommandFactory, FromArgMatches, Parser, Subcommand};
use std::ffi::OsString;
use stratus_base::nearest;
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

impl Arguments {
    /// The program with all commands, and examples in their help.
    #[must_use]
    pub fn program() -> clap::Command {
        add_examples(Self::command())
    }

    /// Reads the words of a command line, of which the first is the name of the program.
    ///
    /// # Errors
    /// If they are invalid, or ask for help or the version.
    pub fn read(
        words: impl IntoIterator<Item = impl Into<OsString> + Clone>,
    ) -> std::result::Result<Self, clap::Error> {
        let words: Vec<OsString> = words.into_iter().map(Into::into).collect();
        let mut program = Self::program();
        if brief_help::is_asked_for(&words) {
            program = brief_help::shorten(program);
        }
        let matches = program.try_get_matches_from_mut(words)?;
        Self::from_arg_matches(&matches).map_err(|error| error.format(&mut program))
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
    /// Prune the network of a run, fine-tune it, and compare accuracy and speed
    #[command(alias = "optimize")]
    Optimise(optimise::OptimiseArguments),
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
    /// Show runs in a browser, live
    #[cfg(feature = "ui")]
    Ui(ui::UiArguments),
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
    /// Print the help of a command, like `stratus help data check`
    Help(HelpArguments),
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
            Command::Optimise(arguments) => optimise::run(arguments, globals, output),
            Command::Plan(arguments) => plan::run(arguments, globals, output),
            Command::Forecast(arguments) => forecast::run(arguments, globals, output),
            Command::Calibrate(arguments) => calibrate::run(arguments, globals, output),
            Command::Model(arguments) => model::run(arguments, globals, output),
            Command::Bench(arguments) => bench::run(arguments, globals, output),
            Command::Data(arguments) => data::run(arguments, globals, output),
            Command::Collect(arguments) => collect::run(arguments, output),
            Command::Report(arguments) => report::run(arguments, output, &LibraryProbes::detect()),
            Command::Runs(arguments) => runs::run(arguments, output),
            #[cfg(feature = "ui")]
            Command::Ui(arguments) => ui::run(arguments, output),
            Command::Sweep(arguments) => sweep::run(arguments, globals, output),
            Command::Launch(arguments) => launch::run(arguments, globals, output),
            Command::Config(arguments) => config::run(arguments, globals, output),
            Command::Completions(arguments) => completions::run(arguments, &mut Arguments::program(), output),
            Command::Man(arguments) => man::run(arguments, Arguments::program(), output),
            Command::Doctor(arguments) => doctor::run(arguments, output, &LibraryProbes::detect()),
            Command::Help(arguments) => print_help(&arguments.command),
        }
    }
}

/// Arguments of `stratus help`.
#[derive(Args, Debug)]
pub struct HelpArguments {
    /// Command, with its subcommand if it has any [default: the list of commands]
    #[arg(value_name = "COMMAND")]
    pub command: Vec<String>,
}

/// Prints the help of a command, exactly as its `--help` does.
///
/// # Errors
/// If there is no such command.
fn print_help(command: &[String]) -> Result {
    let words = command.iter().map(String::as_str);
    match Arguments::read(["stratus"].into_iter().chain(words).chain(["--help"])) {
        Err(error) if error.kind() == ErrorKind::DisplayHelp => {
            error.print().map_err(|error| Failure::failed(format!("cannot write the help: {error}")))
        }
        _ => {
            let problem = format!("no command named `{}`", command.join(" "));
            Err(Failure::usage(problem).with_hint(match nearest_command(command) {
                Some(nearest) => format!("did you mean `stratus help {nearest}`?"),
                None => "`stratus help` lists the commands".to_owned(),
            }))
        }
    }
}

/// The command with the nearest name; `None` if none is near.
fn nearest_command(command: &[String]) -> Option<String> {
    let program = Arguments::command();
    let mut parent = &program;
    let mut path = Vec::new();
    for word in command {
        let names = parent.get_subcommands().filter(|sub| !sub.is_hide_set()).map(clap::Command::get_name);
        let name = nearest(word, names)?;
        parent = parent.find_subcommand(name)?;
        path.push(name);
    }
    Some(path.join(" "))
}

/// The error for a command that belongs to another one, such as `export` to `model`; `None` if there is none.
#[must_use]
pub fn explain_nested_command(error: &clap::Error) -> Option<Failure> {
    if error.kind() != ErrorKind::InvalidSubcommand {
        return None;
    }
    let ContextValue::String(given) = error.get(ContextKind::InvalidSubcommand)? else { return None };
    let program = Arguments::command();
    let is_visible = |command: &&clap::Command| !command.is_hide_set();
    let parents = program.get_subcommands().filter(is_visible);
    let parents = parents.filter(|parent| parent.find_subcommand(given).as_ref().is_some_and(is_visible));
    let commands: Vec<String> =
        parents.map(|parent| format!("`stratus {} {given}`", parent.get_name())).collect();
    (!commands.is_empty()).then(|| {
        Failure::usage(format!("unknown command `{given}`"))
            .with_hint(format!("did you mean {}?", commands.join(" or ")))
    })
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

    #[test]
    fn short_flags_are_the_same_in_every_command() {
        let program = Arguments::command();
        let all = ["epochs", "batch", "lr", "data", "device", "seed"];
        for (path, flags) in [
            ("train", &all[..]),
            ("plan", &all),
            ("sweep", &all),
            ("launch", &all),
            ("forecast", &["epochs", "batch", "data", "device"]),
            ("eval", &["batch", "data", "device"]),
            ("bench kernels", &["batch", "data", "device"]),
            ("bench overhead", &["batch", "data", "device"]),
            ("bench data", &["batch", "data", "device"]),
            ("bench trace", &["batch", "data", "device"]),
            ("data check", &["data"]),
        ] {
            let command =
                path.split(' ').fold(&program, |command, word| command.find_subcommand(word).unwrap());
            for flag in flags {
                let is_flag = |name: &str| name == *flag;
                let has = command.get_arguments().any(|argument| {
                    argument.get_long_and_visible_aliases().unwrap_or_default().into_iter().any(is_flag)
                });
                assert!(has, "{path} --{flag}");
            }
        }
    }
}
