//! `stratus train`: starts or resumes a run.

use super::common_keys::{CommonKeyArguments, KeyFlags};
use super::data::location::fetch_if_missing;
use super::labels::LabelArguments;
use super::memory::MemoryLimitArgument;
use super::target::RunOrExperiment;
use crate::errors::{FAILED, Failure, Result, is_launched};
use crate::globals::Globals;
use crate::output::Output;
use crate::progress::Progress;
use crate::signals;
use crate::workers;
use clap::Args;
use serde::Serialize;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;
use stratus_base::text::shell_path;
use stratus_experiment::XmlExperiment;
use stratus_report::accounting::{self, Accounting};
use stratus_report::run_table;
use stratus_run::labels::RunLabels;
use stratus_run::layout::RUNS;
use stratus_run::machine::Machine;
use stratus_run::summary::Summary;
use stratus_train::run::{self, ProcessGroup, RunOptions};
use stratus_train::workers::{Heartbeat, HeartbeatObserver, WorkerContext, WorkerHosts, WorkersError};

/// Layers in the final table of times.
const MAX_SHOWN_LAYERS: usize = 10;

/// Arguments of `stratus train`.
#[derive(Args, Debug)]
pub struct TrainArguments {
    /// Built-in experiment (like digits), experiment file, layer file, or run directory to resume
    #[arg(value_name = "EXPERIMENT|RUN")]
    pub target: String,
    /// For an XML experiment: settings that override it, like batch_size=64,epochs_number=3
    #[arg(value_name = "KEY=VALUE,…")]
    pub settings: Vec<String>,
    /// Common configuration keys.
    #[command(flatten)]
    pub common: CommonKeyArguments,
    /// Initial weights: a safetensors file, a PyTorch state dict (.pth), or another run
    #[arg(long, value_name = "FILE|RUN")]
    pub weights: Option<String>,
    /// Run directory [default: the next free number in runs/EXPERIMENT/]
    #[arg(long, value_name = "DIR")]
    pub out: Option<PathBuf>,
    /// Save a checkpoint and stop after this epoch; the learning-rate schedule still spans all epochs
    #[arg(long, value_name = "EPOCH", value_parser = clap::value_parser!(u64).range(1..))]
    pub until_epoch: Option<u64>,
    /// Extend a run to this number of epochs; its learning-rate schedule must not depend on that number
    #[arg(long, value_name = "EPOCHS", value_parser = clap::value_parser!(u64).range(1..))]
    pub extend_to: Option<u64>,
    /// Time limit, like 6h, or end time, like 2026-12-01T08:00Z: `train.deadline`; can be changed when
    /// resuming
    #[arg(long, value_name = "TIME", allow_hyphen_values = true)]
    pub deadline: Option<String>,
    /// Cost limit of the whole run: `train.budget`; can be changed when resuming
    #[arg(long, value_name = "PRICE", allow_hyphen_values = true)]
    pub budget: Option<String>,
    /// Number of data-parallel processes, a power of two (see `train.parts`), on this machine or on
    /// `--hosts`; with `train.stages`, a multiple of the number of stages
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub workers: Option<u16>,
    /// Machines of the workers, reached by SSH: like a,b, or with a number of workers each, a:2,b:6. The
    /// program, MPI and the data must be at the same path on each, and the first must see the run
    #[arg(long, value_name = "HOST,…", requires = "workers")]
    pub hosts: Option<String>,
    /// Re-measure kernels instead of using the cached selection
    #[arg(long)]
    pub remeasure: bool,
    /// Memory limit.
    #[command(flatten)]
    pub memory: MemoryLimitArgument,
    /// Labels of a new run.
    #[command(flatten)]
    pub labels: LabelArguments,
    /// Stop as on SIGTERM when standard input ends, so that this process ends with the one that started it
    #[arg(long, hide = true)]
    pub stop_with_stdin: bool,
}

/// The result of `stratus train`.
#[derive(Serialize)]
struct Report<'a> {
    run: String,
    summary: &'a Summary,
    accounting: &'a Accounting,
}

/// Runs `stratus train`.
///
/// # Errors
/// If training fails, or is interrupted.
pub fn run(arguments: &TrainArguments, globals: &Globals, output: &Output) -> Result {
    let process_started = Some(Instant::now());
    arguments.labels.labels()?;
    if let Some(count @ 2..) = arguments.workers {
        let hosts = worker_hosts(arguments, globals, usize::from(count))?;
        fetch_for_workers(arguments, globals, output)?;
        return workers::start(usize::from(count), hosts.as_ref(), output);
    }
    if arguments.hosts.is_some() {
        return Err(Failure::usage("--hosts needs at least two workers: --workers 2"));
    }
    let stop = signals::stop_flag()?;
    let joined = match WorkerContext::join(&stop, FAILED) {
        Err(WorkersError::Reported) => std::process::exit(i32::from(FAILED)),
        joined => joined?,
    };
    let rank = joined.as_ref().map_or(0, |joined| joined.launch_info.rank);
    // Only rank 0 prints.
    let output = &if rank == 0 { *output } else { output.silent() };
    let heartbeat = joined.as_ref().map(|joined| joined.heartbeat.clone()).unwrap_or_default();
    let group = joined.as_ref().map(|joined| ProcessGroup::new(Arc::clone(&joined.workers), joined.cpus));
    let outcome =
        train(arguments, globals, output, (process_started, stop), group.unwrap_or_default(), &heartbeat);
    // This worker alone knows the reason; the others only miss it. Before the first iteration there is
    // nothing to resume, and another start would fail in the same way.
    let device_failed = joined.as_ref().is_some_and(|joined| {
        heartbeat.iteration() > 0
            && outcome.as_ref().is_err_and(Failure::is_of_device)
            // An error of all devices is no loss of one, and would occur again.
            && !heartbeat.all_devices_failed(rank, joined.launch_info.size)
    });
    let outcome = if device_failed { outcome.map_err(|failure| failure.of_worker(rank)) } else { outcome };
    let code = outcome.as_ref().map_or_else(|failure| failure.code, |()| 0);
    heartbeat.end(code);
    heartbeat.record_exit(rank, code);
    let all_workers_end =
        !device_failed && outcome.as_ref().map_or_else(Failure::ends_all_workers, |()| true);
    if let Some(joined) = joined.filter(|_| all_workers_end) {
        match joined.workers.leave() {
            // Rank 0 reports the error.
            Ok(()) if rank > 0 => return Ok(()),
            Err(error) if outcome.is_ok() => return Err(Failure::failed(error)),
            // A lost connection, which the outcome names.
            Ok(()) | Err(_) => {}
        }
    }
    if outcome.is_err() && !device_failed && heartbeat.rank_0_reports(rank) {
        std::process::exit(i32::from(FAILED));
    }
    outcome
}

/// The hosts of `--hosts`, with the folder that they must share: the run, or the folder in which it will be
/// created.
fn worker_hosts(
    arguments: &TrainArguments,
    globals: &Globals,
    workers: usize,
) -> Result<Option<WorkerHosts>> {
    let Some(list) = &arguments.hosts else { return Ok(None) };
    let globals = &arguments.common.prepend_to(globals)?;
    let run = match (RunOrExperiment::resolve(&arguments.target, globals), &arguments.out) {
        (Ok(RunOrExperiment::Run(run)), _) => run,
        (_, Some(out)) => out.clone(),
        _ => PathBuf::from(RUNS),
    };
    let run = std::path::absolute(&run)
        .map_err(|error| Failure::failed(format!("cannot find the folder {}: {error}", run.display())))?;
    // The file system's root exists.
    let folder = run.ancestors().find(|folder| folder.is_dir()).unwrap_or(&run).to_owned();
    Ok(Some(WorkerHosts::parse(list, workers, folder)?))
}

/// Fetches a missing data set before several workers need it at the same time. They report all other errors.
fn fetch_for_workers(arguments: &TrainArguments, globals: &Globals, output: &Output) -> Result {
    let globals = &arguments.common.prepend_to(globals)?;
    match RunOrExperiment::resolve(&arguments.target, globals) {
        Ok(RunOrExperiment::Experiment(mut experiment)) => fetch_if_missing(&mut experiment, output),
        _ => Ok(()),
    }
}

fn train(
    arguments: &TrainArguments,
    globals: &Globals,
    output: &Output,
    (process_started, stop): (Option<Instant>, Arc<AtomicBool>),
    group: ProcessGroup,
    heartbeat: &Heartbeat,
) -> Result {
    let first_flag = arguments.common.flags().first().map(|flag| flag.flag);
    let globals = &arguments.common.prepend_to(globals)?;
    let given = [("train.deadline", &arguments.deadline), ("train.budget", &arguments.budget)];
    let limits: Vec<(String, String)> =
        given.into_iter().filter_map(|(key, value)| Some((key.to_owned(), value.clone()?))).collect();
    let target = if XmlExperiment::has_xml_extension(Path::new(&arguments.target)) {
        let path = Path::new(&arguments.target);
        let experiment = super::xml::load_experiment(path, &arguments.settings, globals, output)?;
        RunOrExperiment::of_experiment(experiment)
    } else {
        super::xml::reject_settings(&arguments.settings)?;
        let resolved = RunOrExperiment::resolve(&arguments.target, globals);
        let own = match &resolved {
            Ok(RunOrExperiment::Run(run)) => Some(run.as_path()),
            _ => None,
        };
        // Other machines may not see the run.
        group.run_of_first(own)?.map_or(resolved, |run| Ok(RunOrExperiment::Run(run)))?
    };
    if arguments.stop_with_stdin {
        signals::stop_with_stdin(Arc::clone(&stop));
    }
    let TrainArguments { out, remeasure, until_epoch, .. } = arguments;
    let mut display = Progress::new(*output);
    let options = RunOptions {
        out: out.clone(),
        remeasure: *remeasure,
        stop: Arc::clone(&stop),
        monitor: display.startup_monitor(),
        extend_to: arguments.extend_to,
        until_epoch: *until_epoch,
        process_started,
        limit_overrides: limits.clone(),
        group,
        labels: RunLabels::default(),
    };
    let mut progress = HeartbeatObserver { observer: &mut display, heartbeat: heartbeat.clone() };
    let finished = match target {
        RunOrExperiment::Experiment(mut experiment) => {
            if arguments.extend_to.is_some() {
                return Err(Failure::usage("--extend-to needs a run directory")
                    .with_hint("use --epochs for a new run"));
            }
            if let Some(weights) = &arguments.weights {
                experiment.model.weights = Some(super::weights::weights_setting(weights)?);
            }
            arguments.memory.apply(&mut experiment);
            if options.group.is_alone() {
                fetch_if_missing(&mut experiment, output)?;
            }
            let experiment = experiment.with_overrides(&limits)?;
            let labels = if options.group.is_first() {
                arguments.labels.labels_with_commit()?
            } else {
                RunLabels::default()
            };
            run::start(&experiment, &RunOptions { labels, ..options }, Machine::probe(), &mut progress)?
        }
        RunOrExperiment::Run(path) => {
            if let Some(flag) = arguments.labels.first_flag() {
                let path = shell_path(&path);
                return Err(Failure::usage(format!("{flag} cannot be used when resuming")).with_hint(
                    format!("a run keeps its labels; change them with `stratus runs tag {path}`"),
                ));
            }
            let flags = [
                (first_flag.unwrap_or_default(), first_flag.is_some()),
                ("--out", arguments.out.is_some()),
                ("--weights", arguments.weights.is_some()),
                ("--memory-limit", arguments.memory.memory_limit.is_some()),
                ("--set", !globals.set.is_empty()),
            ];
            if let Some((flag, _)) = flags.iter().find(|(_, given)| *given) {
                let path = shell_path(&path);
                return Err(Failure::usage(format!("{flag} cannot be used when resuming")).with_hint(
                    format!(
                        "a run keeps its configuration; train it longer with --extend-to EPOCHS, or start a \
                         new run from its weights: `stratus train {path}/experiment.toml --weights {path}`"
                    ),
                ));
            }
            run::resume(&path, &options, &mut progress)?
        }
    };
    drop(display);
    match arguments.until_epoch {
        Some(epoch)
            if finished.interrupted
                && !stop.load(Ordering::Relaxed)
                && u64::from(finished.summary.epochs) >= epoch =>
        {
            let resume = match is_launched() {
                true => String::new(),
                false => format!("; resume with `stratus train {}`", shell_path(finished.run.path())),
            };
            output.message(&format!("stopped after epoch {epoch}{resume}"));
        }
        _ if finished.interrupted => return Err(Failure::interrupted(finished.run.path())),
        _ => {}
    }
    if output.is_silent() {
        return Ok(());
    }
    super::gpus::throttled(&finished.run, output).iter().for_each(|line| output.warning(line));
    let accounting = Accounting::for_run(&finished.run, &accounting::AccountingOptions::default())?;
    let run = finished.run.path().display().to_string();
    output.print_wrapped(&Report { run, summary: &finished.summary, accounting: &accounting }, || {
        let table = accounting::render(&accounting, Some(MAX_SHOWN_LAYERS), output.width());
        let result = run_table::render(&finished.summary, &finished.run, output.width());
        if is_launched() {
            return format!("{result}\n{table}");
        }
        let path = shell_path(finished.run.path());
        format!(
            "{result}\n{table}\nnext: `stratus report {path}` for a report,\n      `stratus collect {path}` \
             for every layer\n"
        )
    })
}
