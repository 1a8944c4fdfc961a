//! `stratus launch`: trains on other machines, and fetches the runs as they progress.

mod estimate;
mod fetch;
mod release;
mod search;
mod start;
mod until;
mod watch;
mod workers;

use super::common_keys::{CommonKeyArguments, KeyFlags};
use super::data::location::locate;
use super::labels::LabelArguments;
use super::target::RunOrExperiment;
use crate::errors::{Failure, Result};
use crate::globals::Globals;
use crate::output::Output;
use clap::{Args, Subcommand};
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};
use stratus_base::text::shell_path;
use stratus_launch::{
    Job, LaunchEventKind, LaunchRecord, LaunchSpec, Lease, MAX_RUNS, Target, TargetSettings,
};
use stratus_run::labels::RunLabels;
use stratus_run::layout::{LABELS, RUNS};

/// The maximum number of workers of a run.
const MAX_WORKERS: u64 = 1024;

/// Arguments of `stratus launch`.
#[derive(Args, Debug)]
#[command(
    args_conflicts_with_subcommands = true,
    subcommand_negates_reqs = true,
    arg_required_else_help = true
)]
pub struct LaunchArguments {
    /// The subcommand; without it, a launch is started.
    #[command(subcommand)]
    pub command: Option<LaunchCommand>,
    /// Target: `local`, or a name from ./targets.toml or ~/.config/stratus/targets.toml
    #[arg(value_name = "TARGET", required = true)]
    pub target: Option<String>,
    /// Built-in experiment, experiment file, layer file or sweep, or a launched run to resume
    #[arg(value_name = "EXPERIMENT|SWEEP|RUN", required = true)]
    pub experiment: Option<String>,
    /// Common configuration keys.
    #[command(flatten)]
    pub common: CommonKeyArguments,
    /// Number of runs, with consecutive seeds
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = repetitions())]
    pub repetitions: u64,
    /// Number of workers per run, all on one machine; for several machines, set `nodes` of the target
    #[arg(long, value_name = "N", value_parser = worker_count())]
    pub workers: Option<u64>,
    /// Do not upload data; read it from the experiment's data.path on the target
    #[arg(long, alias = "data-there")]
    pub remote_data: bool,
    /// Lease: end time, like "2026-12-01 08:00" (UTC), or duration, like 6h; training stops early enough to
    /// fetch the runs
    #[arg(long, value_name = "TIME", allow_hyphen_values = true)]
    pub until: Option<String>,
    /// Use only hosts with the same CPU model as the first; other models may choose other kernels, whose
    /// results differ in the last bits
    #[arg(long, alias = "same-kind")]
    pub same_cpu: bool,
    /// Launch even if the forecast exceeds the device's memory or the lease
    #[arg(long, alias = "anyway")]
    pub force: bool,
    /// Show what would be uploaded and started, then exit
    #[arg(long)]
    pub dry_run: bool,
    /// Labels of the runs.
    #[command(flatten)]
    pub labels: LabelArguments,
}

fn repetitions() -> clap::builder::RangedU64ValueParser {
    clap::value_parser!(u64).range(1..=MAX_RUNS)
}

fn worker_count() -> clap::builder::RangedU64ValueParser {
    clap::value_parser!(u64).range(1..=MAX_WORKERS)
}

/// Subcommands of `stratus launch`.
#[derive(Debug, Subcommand)]
pub enum LaunchCommand {
    /// Show the status of a launch
    Status {
        /// Launch, or one of its runs [default: the last launch]
        #[arg(value_name = "ID")]
        id: Option<String>,
    },
    /// Show the training log
    Logs {
        /// Launch, or one of its runs [default: the last launch]
        #[arg(value_name = "ID")]
        id: Option<String>,
        /// Repetition [default: the running one, or the last that ran]
        #[arg(long, value_name = "N")]
        repetition: Option<usize>,
        /// Follow until the launch ends
        #[arg(short, long)]
        follow: bool,
    },
    /// Fetch new files of the runs
    Fetch {
        /// Launch, or one of its runs [default: the last launch]
        #[arg(value_name = "ID")]
        id: Option<String>,
        /// Follow until the launch ends, then release the target if it has a release command
        #[arg(short, long)]
        follow: bool,
    },
    /// Save a checkpoint and stop training
    Stop {
        /// Launch, or one of its runs [default: the last launch]
        #[arg(value_name = "ID")]
        id: Option<String>,
    },
    /// Resume stopped, killed or failed repetitions
    Resume {
        /// Launch, or one of its runs [default: the last launch]
        #[arg(value_name = "ID")]
        id: Option<String>,
        /// Lease: end time or duration
        #[arg(long, value_name = "TIME", allow_hyphen_values = true)]
        until: Option<String>,
    },
    /// Fetch and verify all files, then run the target's release command
    Release {
        /// Launch, or one of its runs [default: the last launch]
        #[arg(value_name = "ID")]
        id: Option<String>,
        /// Release even if a repetition is unfinished
        #[arg(long, alias = "anyway")]
        force: bool,
    },
    /// List launches and their status
    List,
}

/// Runs `stratus launch`.
///
/// # Errors
/// If the target or the experiment is invalid, or the target cannot be reached or used.
pub fn run(arguments: &LaunchArguments, globals: &Globals, output: &Output) -> Result {
    let find = |id: &Option<String>| LaunchRecord::find(Path::new(RUNS), id.as_deref());
    match &arguments.command {
        Some(LaunchCommand::Status { id }) => return watch::status(&find(id)?, output),
        Some(LaunchCommand::Logs { id, repetition, follow }) => {
            return watch::logs(&find(id)?, *repetition, *follow);
        }
        Some(LaunchCommand::Fetch { id, follow: false }) => return watch::fetch(&find(id)?, output),
        Some(LaunchCommand::Fetch { id, follow: true }) => return watch::follow(&find(id)?, output),
        Some(LaunchCommand::Stop { id }) => return watch::stop(&find(id)?, output),
        Some(LaunchCommand::Resume { id, until }) => return resume(&find(id)?, until.as_deref(), output),
        Some(LaunchCommand::Release { id, force }) => return release::release(&find(id)?, *force, output),
        Some(LaunchCommand::List) => return watch::list(&LaunchRecord::all(Path::new(RUNS))?, output),
        None => {}
    }
    let (Some(name), Some(experiment)) = (&arguments.target, &arguments.experiment) else {
        return Err(Failure::usage("missing target or experiment: `stratus launch TARGET EXPERIMENT`"));
    };
    let settings = find_target(name)?;
    let first_flag = arguments.common.flags().first().map_or("--set", |flag| flag.flag);
    let globals = &arguments.common.prepend_to(globals)?;
    if let Some(mut spec) = LaunchSpec::of_sweep(experiment, arguments.repetitions, &globals.set)? {
        spec.cells.iter_mut().chain(&mut spec.later_cells).for_each(locate);
        return start::launch(&settings, spec, arguments, output);
    }
    match RunOrExperiment::resolve(experiment, globals)? {
        RunOrExperiment::Run(run) => {
            let record =
                LaunchRecord::find(Path::new(RUNS), Some(&run.display().to_string())).map_err(|_| {
                    Failure::usage(format!("{} was not launched from here", run.display())).with_hint(
                        format!(
                            "resume it with `stratus train {}`, or launch an experiment with its weights: \
                     --set model.weights={}",
                            shell_path(&run),
                            shell_path(&run)
                        ),
                    )
                })?;
            if record.target != *name {
                let problem = format!("{} is on {}, not on {name}", run.display(), record.target);
                return Err(Failure::usage(problem).with_hint(format!(
                    "resume it there: `stratus launch {} {}`",
                    record.target,
                    shell_path(&run)
                )));
            }
            if let Some(flag) = arguments.labels.first_flag() {
                return Err(Failure::usage(format!("{flag} cannot be used when resuming")).with_hint(
                    format!("a run keeps its labels; `stratus runs tag {}` changes them", shell_path(&run)),
                ));
            }
            if !globals.set.is_empty() {
                return Err(Failure::usage(format!("{first_flag} cannot be used when resuming")));
            }
            resume(&record, arguments.until.as_deref(), output)
        }
        RunOrExperiment::Experiment(experiment) => {
            let spec = LaunchSpec::of_experiment(*experiment, arguments.repetitions);
            start::launch(&settings, spec, arguments, output)
        }
    }
}

/// The settings of a target, from the project's file or the user's.
fn find_target(name: &str) -> Result<TargetSettings> {
    let files: Vec<PathBuf> = std::iter::once(PathBuf::from(stratus_launch::TARGETS_FILE))
        .chain(stratus_launch::user_targets_file())
        .collect();
    Ok(stratus_launch::find_target(name, &files)?)
}

/// Opens a target.
fn open_target(settings: &TargetSettings) -> Box<dyn Target> {
    let folder = stratus_train::cache_folder().unwrap_or_else(|| PathBuf::from(".stratus-cache"));
    stratus_launch::open_target(settings, &folder.join("ssh"))
}

/// Seconds since 1970.
fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |now| now.as_secs())
}

/// Resumes the unfinished repetitions of a launch.
fn resume(record: &LaunchRecord, until: Option<&str>, output: &Output) -> Result {
    let settings = find_target(&record.target)?;
    let target = open_target(&settings);
    let leased = match until {
        None => record.lease,
        Some(until) => {
            let end = until::parse_until(until)?;
            let bytes_to_fetch = record.run_bytes.saturating_mul(record.runs.len() as u64);
            let link = target.measure_link(&record.program)?;
            let (lease, explanation) = Lease::plan(end, link, bytes_to_fetch, &settings.name)?;
            output.message(&explanation);
            Some(lease)
        }
    };
    if leased.is_some_and(|lease| lease.ends_at <= now()) {
        let LaunchRecord { id, target, .. } = record;
        return Err(Failure::usage(format!("{id}: the lease on {target} has expired"))
            .with_hint(format!("set a new lease: `stratus launch resume {id} --until 6h`")));
    }
    if record.search.is_some() {
        let record = LaunchRecord { lease: leased, ..record.clone() };
        return search::resume(&record, target.as_ref(), &settings, output);
    }
    let lock = record.lock(Path::new(RUNS))?;
    // Another process may have changed the record meanwhile.
    let found = LaunchRecord::find(Path::new(RUNS), Some(&record.id))?;
    let mut record = LaunchRecord { lease: leased, released: None, ..found };
    let job = record.job(settings.notify);
    restart(&mut record, target.as_ref(), &job, output)?;
    drop(lock);
    Ok(())
}

/// Starts the repetitions of a job that do not run, and writes the record, which the caller has locked.
///
/// # Errors
/// If the target cannot be reached, or the launch is running.
fn restart(record: &mut LaunchRecord, target: &dyn Target, job: &Job, output: &Output) -> Result {
    let runs = Path::new(RUNS);
    if record.host_by_repetition.is_empty() {
        target.submit(&record.root, job)?;
        record.write(runs)?;
    } else {
        let done = target.reschedule(record, job, true, &mut |record| record.write(runs))?;
        record.write(runs)?;
        done.iter().for_each(|line| output.message(line));
        if done.is_empty() && target.state(record)?.is_running {
            let problem = format!("{} is already running on {}", record.id, record.target);
            return Err(Failure::failed(problem).with_hint(format!("`stratus launch status {}`", record.id)));
        }
    }
    let text = format!("resumed {} on {}", record.id, record.target);
    output.message(&text);
    watch::add_events(record, LaunchEventKind::Resumed, &[text], output);
    Ok(())
}

/// Writes labels into folders that have none yet: local run directories, or the directory of a sweep.
fn write_labels(folders: &[PathBuf], labels: &RunLabels) -> Result {
    for folder in folders.iter().filter(|folder| !labels.is_empty() && !folder.join(LABELS).exists()) {
        std::fs::create_dir_all(folder)
            .map_err(|error| Failure::failed(format!("cannot create {}: {error}", folder.display())))?;
        labels.write(&folder.join(LABELS))?;
    }
    Ok(())
}
