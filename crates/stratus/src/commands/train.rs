//! `stratus train`: a run from its start, or from where it was interrupted, to its end.

pub(super) mod workers;

use super::memory::MemoryLimit;
use super::often::Often;
use super::target::Target;
use crate::cli::Globals;
use crate::errors::{Failure, INTERRUPTED, Result};
use crate::machine::Survey;
use crate::output::Output;
use crate::progress::Progress;
use crate::signals;
use clap::Args;
use serde::Serialize;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;
use stratus_report::accounting::{self, Accounting};
use stratus_report::run_table;
use stratus_run::summary::Summary;
use stratus_train::experiment::XmlExperiment;
use stratus_train::run::{self, Options, ProcessGroup};
use workers::{Heartbeat, WithHeartbeat};

/// Layers in the table at the end.
const LAYERS: usize = 10;

/// Arguments of `stratus train`.
#[derive(Args, Debug)]
pub struct TrainArguments {
    /// A built-in experiment (digits), an experiment file, a layer file, or a run directory to continue
    #[arg(value_name = "EXPERIMENT|RUN")]
    pub target: String,
    /// Of an experiment file in XML: keys on top of it, such as batch_size=64,epochs_number=3
    #[arg(value_name = "KEY=VALUE,…")]
    pub settings: Vec<String>,
    /// The keys that everybody sets.
    #[command(flatten)]
    pub often: Often,
    /// Begin with these weights: a safetensors file, a PyTorch state dict (.pth), or another run
    #[arg(long, value_name = "FILE|RUN")]
    pub weights: Option<String>,
    /// Directory of the run; without it the next free number under runs/EXPERIMENT/
    #[arg(long, value_name = "DIR")]
    pub out: Option<PathBuf>,
    /// Stop after this epoch, with a checkpoint; the schedule remains that of all epochs
    #[arg(long, value_name = "EPOCH", value_parser = clap::value_parser!(u64).range(1..))]
    pub until_epoch: Option<u64>,
    /// Train a run on, to this epoch, where its learning rate does not depend on how many there are
    #[arg(long, value_name = "EPOCHS", value_parser = clap::value_parser!(u64).range(1..))]
    pub extend_to: Option<u64>,
    /// How long this may take, like 6h, or until when, like 2026-12-01T08:00Z: `train.deadline`, of a run
    /// that is continued too
    #[arg(long, value_name = "TIME", allow_hyphen_values = true)]
    pub deadline: Option<String>,
    /// What the run may cost in all: `train.budget`, of a run that is continued too
    #[arg(long, value_name = "PRICE", allow_hyphen_values = true)]
    pub budget: Option<String>,
    /// Share batches out among so many processes on this machine, a power of two; see `train.parts`. With
    /// `train.stages`, the network
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub workers: Option<u16>,
    /// Measure kernels anew instead of repeating the choices kept for this machine and network
    #[arg(long)]
    pub remeasure: bool,
    /// The most memory.
    #[command(flatten)]
    pub memory: MemoryLimit,
    /// Stop, as by SIGTERM, when standard input ends: a program that started this one can ask it to stop, and
    /// it stops when that program is gone
    #[arg(long, hide = true)]
    pub stop_with_stdin: bool,
}

/// What `stratus train` reports.
#[derive(Serialize)]
struct Report<'a> {
    run: String,
    summary: &'a Summary,
    accounting: &'a Accounting,
}

/// Runs `stratus train`.
///
/// # Errors
/// What stopped training, or that it was interrupted.
pub fn run(arguments: &TrainArguments, globals: &Globals, output: &Output) -> Result {
    let process_begun = Some(Instant::now());
    if let Some(count @ 2..) = arguments.workers {
        return workers::start(usize::from(count), output);
    }
    let stop = signals::stop_flag()?;
    let joined = workers::join(&stop)?;
    let rank = joined.as_ref().map_or(0, |joined| joined.told.rank);
    // One worker speaks for all.
    let output = &if rank == 0 { *output } else { output.silent() };
    let heartbeat = joined.as_ref().map(|joined| joined.heartbeat.clone()).unwrap_or_default();
    let group =
        joined.as_ref().map(|joined| ProcessGroup::new(Arc::clone(&joined.workers), joined.processors));
    let outcome =
        train(arguments, globals, output, (process_begun, stop), group.unwrap_or_default(), &heartbeat);
    heartbeat.end(outcome.as_ref().map_or_else(|failure| failure.code, |()| 0));
    let all_end = outcome.as_ref().map_or_else(|failure| failure.code == INTERRUPTED, |()| true);
    if let Some(joined) = joined.filter(|_| all_end) {
        joined.workers.leave().map_err(Failure::failed)?;
        if rank > 0 {
            // The first worker says that all were interrupted.
            return Ok(());
        }
    }
    if outcome.is_err() {
        workers::leave_it_to_the_first(rank);
    }
    outcome
}

fn train(
    arguments: &TrainArguments,
    globals: &Globals,
    output: &Output,
    (process_begun, stop): (Option<Instant>, Arc<AtomicBool>),
    group: ProcessGroup,
    heartbeat: &Heartbeat,
) -> Result {
    let short = arguments.often.given().next().map(|(flag, ..)| flag);
    let globals = &arguments.often.before(globals);
    let given = [("train.deadline", &arguments.deadline), ("train.budget", &arguments.budget)];
    let allowance: Vec<(String, String)> =
        given.into_iter().filter_map(|(key, value)| Some((key.to_owned(), value.clone()?))).collect();
    let target = if XmlExperiment::is_one(Path::new(&arguments.target)) {
        let path = Path::new(&arguments.target);
        Target::Experiment(Box::new(super::xml::experiment(path, &arguments.settings, globals, output)?))
    } else {
        super::xml::refuse(&arguments.settings)?;
        Target::find(&arguments.target, globals)?
    };
    stratus_engine::phases::stop_with(Some(Arc::clone(&stop)));
    if arguments.stop_with_stdin {
        signals::stop_with_stdin(Arc::clone(&stop));
    }
    let TrainArguments { out, remeasure, until_epoch, .. } = arguments;
    let options = Options {
        out: out.clone(),
        remeasure: *remeasure,
        stop: Arc::clone(&stop),
        extend_to: arguments.extend_to,
        until_epoch: *until_epoch,
        process_begun,
        allowance: allowance.clone(),
        group,
    };
    let mut shown = Progress::new(*output);
    let mut progress = WithHeartbeat { observer: &mut shown, heartbeat: heartbeat.clone() };
    let finished = match target {
        Target::Experiment(mut experiment) => {
            if arguments.extend_to.is_some() {
                return Err(Failure::usage("--extend-to is for a run, this begins one")
                    .hint("say how long to train with --epochs"));
            }
            if let Some(weights) = &arguments.weights {
                experiment.model.weights = Some(super::weights::setting(weights)?);
            }
            arguments.memory.apply(&mut experiment);
            let experiment = experiment.with_overrides(&allowance)?;
            run::start(&experiment, &options, Survey::of_this_machine().machine, &mut progress)?
        }
        Target::Run(path) => {
            let flags = [
                (short.unwrap_or_default(), short.is_some()),
                ("--out", arguments.out.is_some()),
                ("--weights", arguments.weights.is_some()),
                ("--memory-limit", arguments.memory.memory_limit.is_some()),
                ("--set", !globals.set.is_empty()),
            ];
            if let Some((what, _)) = flags.iter().find(|(_, given)| *given) {
                let path = path.display();
                return Err(Failure::usage(format!("{what} cannot be given to a run that is continued"))
                    .hint(format!(
                        "a continued run keeps its configuration: train it longer with --extend-to EPOCHS, \
                         or begin a new one with its weights: `stratus train {path}/experiment.toml \
                         --weights {path}`"
                    )));
            }
            run::resume(&path, &options, &mut progress)?
        }
    };
    drop(shown);
    match arguments.until_epoch {
        Some(epoch)
            if finished.interrupted
                && !stop.load(Ordering::Relaxed)
                && u64::from(finished.summary.epochs) >= epoch =>
        {
            let path = finished.run.path().display();
            output.message(&format!("stopped after epoch {epoch}; continue with `stratus train {path}`"));
        }
        _ if finished.interrupted => return Err(Failure::interrupted(finished.run.path())),
        _ => {}
    }
    if output.is_silent() {
        return Ok(());
    }
    let accounting = Accounting::of(&finished.run, &accounting::Options::default())?;
    let run = finished.run.path().display().to_string();
    output.result(&Report { run, summary: &finished.summary, accounting: &accounting }, || {
        let table = accounting::render(&accounting, Some(LAYERS), output.width());
        let path = finished.run.path().display();
        let result = run_table::render(&finished.summary, &finished.run, output.width());
        let next = format!(
            "next: `stratus report {path}` for a page of it,\n      `stratus collect {path}` for every layer"
        );
        format!("{result}\n{table}\n{next}\n")
    })
}
