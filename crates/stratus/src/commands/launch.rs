//! `stratus launch`: training on other machines, and bringing the runs back as they grow.

mod bring;
mod cost;
mod lease;
mod release;
mod start;
mod watch;
mod work;

use super::target::Target as Named;
use crate::cli::Globals;
use crate::errors::{Failure, Result};
use crate::output::Output;
use clap::{Args, Subcommand};
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};
use stratus_launch::{Record, Settings, Target};
use work::Work;

/// Where runs arrive, and records of launches lie.
const RUNS: &str = "runs";
/// The most processes for a run.
const MOST_WORKERS: u64 = 1024;
/// The most runs.
const MOST: u64 = 1000;

/// Arguments of `stratus launch`.
#[derive(Args, Debug)]
#[command(
    args_conflicts_with_subcommands = true,
    subcommand_negates_reqs = true,
    arg_required_else_help = true
)]
pub struct LaunchArguments {
    /// What else to do with launches.
    #[command(subcommand)]
    pub action: Option<Action>,
    /// Where to train: `local`, or a name of targets.toml, here or in ~/.config/stratus/
    #[arg(value_name = "TARGET", required = true)]
    pub target: Option<String>,
    /// A built-in experiment, an experiment file, a layer file, a sweep, or a run that was launched, to go on
    /// with
    #[arg(value_name = "EXPERIMENT|SWEEP|RUN", required = true)]
    pub experiment: Option<String>,
    /// Runs of the experiment, whose seeds follow each other
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = repetitions())]
    pub repetitions: u64,
    /// Processes there that train each run together, on one machine
    #[arg(long, value_name = "N", value_parser = workers())]
    pub workers: Option<u64>,
    /// The data are there already, at the path that the experiment names
    #[arg(long)]
    pub data_there: bool,
    /// The target may be used until then, like "2026-12-01 08:00" (UTC), or for so long, like 6h: training
    /// stops early enough for the runs to come back
    #[arg(long, value_name = "TIME", allow_hyphen_values = true)]
    pub until: Option<String>,
    /// Of a list of hosts, use only those with the processor of the first: another one may choose other
    /// kernels, which differ in the last bits
    #[arg(long)]
    pub same_kind: bool,
    /// Launch also what the forecast says cannot fit
    #[arg(long)]
    pub anyway: bool,
    /// Show what would be sent and started, and touch nothing
    #[arg(long)]
    pub dry_run: bool,
}

fn repetitions() -> clap::builder::RangedU64ValueParser {
    clap::value_parser!(u64).range(1..=MOST)
}

fn workers() -> clap::builder::RangedU64ValueParser {
    clap::value_parser!(u64).range(1..=MOST_WORKERS)
}

/// What else `stratus launch` does.
#[derive(Debug, Subcommand)]
pub enum Action {
    /// Say how a launch stands
    Status {
        /// The launch, or one of its runs [default: the last]
        #[arg(value_name = "ID")]
        id: Option<String>,
    },
    /// Show what the training says
    Logs {
        /// The launch, or one of its runs [default: the last]
        #[arg(value_name = "ID")]
        id: Option<String>,
        /// Which repetition [default: the one that is trained, or the last that was]
        #[arg(long, value_name = "N")]
        repetition: Option<usize>,
        /// Go on until the launch ends
        #[arg(short, long)]
        follow: bool,
    },
    /// Bring the runs, or what is new of them
    Fetch {
        /// The launch, or one of its runs [default: the last]
        #[arg(value_name = "ID")]
        id: Option<String>,
        /// Go on until the launch ends; where its target has a command for that, release it then
        #[arg(short, long)]
        follow: bool,
    },
    /// Stop the training there, with a checkpoint
    Stop {
        /// The launch, or one of its runs [default: the last]
        #[arg(value_name = "ID")]
        id: Option<String>,
    },
    /// Go on with what was stopped, killed or failed
    Resume {
        /// The launch, or one of its runs [default: the last]
        #[arg(value_name = "ID")]
        id: Option<String>,
        /// The target may be used until then, or for so long
        #[arg(long, value_name = "TIME", allow_hyphen_values = true)]
        until: Option<String>,
    },
    /// Give the machine back: bring and compare everything, and run the target's command
    Release {
        /// The launch, or one of its runs [default: the last]
        #[arg(value_name = "ID")]
        id: Option<String>,
        /// Also where a repetition is not trained to its end
        #[arg(long)]
        anyway: bool,
    },
    /// List launches and how they stand
    List,
}

/// Runs `stratus launch`.
///
/// # Errors
/// Where the target or the experiment is wrong, or the target cannot be reached or used.
pub fn run(arguments: &LaunchArguments, globals: &Globals, output: &Output) -> Result {
    let find = |id: &Option<String>| Record::find(Path::new(RUNS), id.as_deref());
    match &arguments.action {
        Some(Action::Status { id }) => return watch::status(&find(id)?, output),
        Some(Action::Logs { id, repetition, follow }) => {
            return watch::logs(&find(id)?, *repetition, *follow);
        }
        Some(Action::Fetch { id, follow: false }) => return watch::fetch(&find(id)?, output),
        Some(Action::Fetch { id, follow: true }) => return watch::follow(&find(id)?, output),
        Some(Action::Stop { id }) => return watch::stop(&find(id)?, output),
        Some(Action::Resume { id, until }) => return resume(&find(id)?, until.as_deref(), output),
        Some(Action::Release { id, anyway }) => return release::release(&find(id)?, *anyway, output),
        Some(Action::List) => return watch::list(&Record::all(Path::new(RUNS))?, output),
        None => {}
    }
    let (Some(name), Some(experiment)) = (&arguments.target, &arguments.experiment) else {
        return Err(Failure::usage("say where to train what: `stratus launch TARGET EXPERIMENT`"));
    };
    let settings = settings(name)?;
    if let Some(work) = Work::of_sweep(experiment, arguments, &globals.set)? {
        return start::launch(&settings, &work, arguments, output);
    }
    match Named::find(experiment, globals)? {
        Named::Run(run) => {
            let record = Record::find(Path::new(RUNS), Some(&run.display().to_string())).map_err(|_| {
                Failure::usage(format!("{} was not launched from here", run.display())).hint(format!(
                    "continue it with `stratus train {}`, or launch an experiment that begins with its \
                     weights: --set model.weights={}",
                    run.display(),
                    run.display()
                ))
            })?;
            if record.target != *name {
                let problem = format!("{} is on {}, not on {name}", run.display(), record.target);
                return Err(Failure::usage(problem).hint(format!(
                    "go on there: `stratus launch {} {}`",
                    record.target,
                    run.display()
                )));
            }
            if !globals.set.is_empty() {
                return Err(Failure::usage("--set cannot be given to a run that is continued"));
            }
            resume(&record, arguments.until.as_deref(), output)
        }
        Named::Experiment(experiment) => {
            let work = Work::of_experiment(*experiment, arguments.repetitions);
            start::launch(&settings, &work, arguments, output)
        }
    }
}

/// The target of a name: from the project's file, then the user's.
fn settings(name: &str) -> Result<Settings> {
    let files: Vec<PathBuf> =
        std::iter::once(PathBuf::from(stratus_launch::FILE)).chain(stratus_launch::user_file()).collect();
    Ok(stratus_launch::find(name, &files)?)
}

/// The target of these settings.
fn open(settings: &Settings) -> Box<dyn Target> {
    let cache = std::env::var_os("STRATUS_CACHE").map(PathBuf::from);
    let home = || Some(PathBuf::from(std::env::var_os("HOME")?).join(".cache/stratus"));
    let folder = cache.or_else(home).unwrap_or_else(|| PathBuf::from(".stratus-cache"));
    stratus_launch::open(settings, &folder.join("ssh"))
}

/// Seconds since 1970.
fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |now| now.as_secs())
}

/// Goes on with a launch, or what is left of it.
fn resume(record: &Record, until: Option<&str>, output: &Output) -> Result {
    let settings = settings(&record.target)?;
    let target = open(&settings);
    let leased = match until {
        None => record.lease,
        Some(until) => {
            let end = lease::until(until)?;
            let come = record.run_bytes.saturating_mul(record.runs.len() as u64);
            Some(lease::lease(end, target.link(&record.program)?, come, &settings.name, output)?)
        }
    };
    if leased.is_some_and(|lease| lease.until <= now()) {
        let Record { id, target, .. } = record;
        return Err(Failure::usage(format!("{id}: the lease of {target} is over"))
            .hint(format!("say how long it may be used now: `stratus launch resume {id} --until 6h`")));
    }
    let lock = record.lock(Path::new(RUNS))?;
    // Others may have changed it meanwhile.
    let found = Record::find(Path::new(RUNS), Some(&record.id))?;
    let mut record = Record { lease: leased, released: None, ..found };
    let job = record.job(settings.notify);
    if record.hosts.is_empty() {
        target.submit(&record.root, &job)?;
        record.write(Path::new(RUNS))?;
    } else {
        let done = target.tend(&mut record, &job, true, &mut |record| record.write(Path::new(RUNS)))?;
        record.write(Path::new(RUNS))?;
        done.iter().for_each(|line| output.message(line));
        if done.is_empty() && target.state(&record)?.alive {
            let problem = format!("{}: {} is being trained already", settings.name, record.id);
            return Err(Failure::failed(problem).hint(format!("`stratus launch status {}`", record.id)));
        }
    }
    drop(lock);
    output.message(&format!("{} goes on, on {}", record.id, record.target));
    Ok(())
}
