//! `stratus launch`: training on other machines, and bringing the runs back as they grow.

mod cost;
mod lease;
mod release;
mod watch;

use super::target::Target as Named;
use crate::cli::Globals;
use crate::errors::{Failure, Result};
use crate::output::{Output, bytes};
use clap::{Args, Subcommand};
use serde::Serialize;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};
use stratus_data::store::is_address;
use stratus_launch::{Job, Needs, Parcel, Program, Record, Resources, Settings, Target};
use stratus_run::RunDir;
use stratus_train::Experiment;

/// Where runs arrive, and records of launches lie.
const RUNS: &str = "runs";
/// The most repetitions.
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
    /// A built-in experiment, an experiment file, a layer file, or a run that was launched, to go on with
    #[arg(value_name = "EXPERIMENT|RUN", required = true)]
    pub experiment: Option<String>,
    /// Runs of the experiment, whose seeds follow each other
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = repetitions())]
    pub repetitions: u64,
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

/// What `stratus launch TARGET EXPERIMENT` reports.
#[derive(Serialize)]
struct Launched<'a> {
    id: &'a str,
    target: &'a str,
    folder: &'a str,
    runs: &'a [PathBuf],
    sent_files: usize,
    sent_bytes: u64,
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
        Named::Experiment(experiment) => launch(&settings, &experiment, arguments, output),
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

/// Files that the experiment names, to be brought: the key's value there follows from what is brought.
fn parcels(experiment: &Experiment, data_there: bool) -> Result<Vec<(&'static str, Parcel)>> {
    let mut parcels = Vec::new();
    let mut add = |key: &'static str, path: &Path| -> Result {
        if path.exists() {
            parcels.push((key, Parcel::of_path("data", path)?));
            return Ok(());
        }
        let hint = match key {
            DATA => "name the data with data.path; --data-there, where they lie on the target already",
            _ => "the file is brought from here: it must be there",
        };
        Err(Failure::usage(format!("{key}: there is nothing at {}", path.display())).hint(hint))
    };
    if let Some(path) = experiment.layer_file() {
        add(NETWORK, path)?;
    }
    if let Some(weights) = experiment.model.weights.as_deref() {
        add(WEIGHTS, Path::new(weights))?;
    }
    if !data_there && !is_elsewhere(experiment) {
        add(DATA, &experiment.data_path())?;
    }
    Ok(parcels)
}

/// Whether the data are made up, or behind an address.
fn is_elsewhere(experiment: &Experiment) -> bool {
    experiment.data.name == "synthetic" || experiment.data_path().to_str().is_some_and(is_address)
}

const NETWORK: &str = "model.name";
const WEIGHTS: &str = "model.weights";
const DATA: &str = "data.path";

/// The experiment as it is trained there: `folders` are absolute.
fn there(experiment: &Experiment, parcels: &[(&'static str, Parcel)], folders: &[String]) -> Experiment {
    let mut experiment = experiment.clone();
    for ((key, parcel), folder) in parcels.iter().zip(folders) {
        let here = match *key {
            NETWORK => experiment.layer_file().map(Path::to_owned),
            WEIGHTS => experiment.model.weights.as_ref().map(PathBuf::from),
            _ => Some(experiment.data_path()),
        };
        let path = match &parcel.items[..] {
            [item] if here.is_some_and(|here| here.is_file()) => format!("{folder}/{}", item.path),
            _ => folder.clone(),
        };
        match *key {
            NETWORK => experiment.model.name = path,
            WEIGHTS => experiment.model.weights = Some(path),
            _ => experiment.data.path = Some(path),
        }
    }
    experiment
}

/// The program that this process is.
fn program() -> Result<Program> {
    let path = std::env::current_exe()
        .map_err(|error| Failure::failed(format!("cannot find this program: {error}")))?;
    let libraries = [
        (stratus_onednn::ENVIRONMENT, stratus_onednn::candidates()),
        (stratus_jpeg::ENVIRONMENT, stratus_jpeg::candidates()),
    ];
    Ok(Program::new(&path, &libraries)?)
}

/// The job of an experiment, in a target's folder.
fn job(
    settings: &Settings,
    id: &str,
    experiment: &Experiment,
    (repetitions, resources): (u64, Resources),
    (program, folder): (&Program, &str),
) -> Job {
    let mut environment = settings.environment.clone();
    for (variable, path) in &program.libraries {
        environment.entry((*variable).to_owned()).or_insert_with(|| format!("{folder}/{path}"));
    }
    let experiments = (0..repetitions).map(|number| {
        let mut experiment = experiment.clone();
        experiment.train.seed = experiment.train.seed.wrapping_add(number);
        experiment.to_toml()
    });
    Job {
        id: id.to_owned(),
        program: format!("{folder}/stratus"),
        environment,
        experiments: experiments.collect(),
        resources,
        stop: None,
        notify: settings.notify.clone(),
        hosts: Vec::new(),
        only: None,
    }
}

fn launch(
    settings: &Settings,
    experiment: &Experiment,
    arguments: &LaunchArguments,
    output: &Output,
) -> Result {
    let path = experiment.data_path();
    if arguments.data_there && !is_elsewhere(experiment) && !path.is_absolute() {
        let problem = format!("--data-there: {} is no path from the root", path.display());
        return Err(Failure::usage(problem).hint("name the folder there: --set data.path=/…"));
    }
    let parcels = parcels(experiment, arguments.data_there)?;
    let end = arguments.until.as_deref().map(lease::until).transpose()?;
    let limits = (end.map(lease::left_s), arguments.anyway);
    let cost = cost::of(settings, experiment, arguments.repetitions, limits, output)?;
    let of_repetitions = (arguments.repetitions, cost.resources);
    let program = program()?;
    let name = experiment.name().to_owned();
    let now = now();
    let plain: String = name.chars().filter(char::is_ascii_alphanumeric).take(40).collect();
    let id = format!("{}-{now:x}-{:x}", plain.to_lowercase(), std::process::id());
    if arguments.dry_run {
        return show(settings, &id, experiment, &parcels, &program, of_repetitions, output);
    }
    let target = open(settings);
    output.message(&format!("{}: checking, and bringing what is not there yet", settings.name));
    let brought: Vec<Parcel> = parcels.iter().map(|(_, parcel)| parcel.clone()).collect();
    let repetitions = usize::try_from(arguments.repetitions).unwrap_or(usize::MAX);
    let (resources, same_kind) = (cost.resources, arguments.same_kind);
    let needs = Needs { program: &program, parcels: &brought, repetitions, resources, same_kind };
    let prepared = target.prepare(&needs)?;
    prepared.notes.iter().for_each(|note| output.message(note));
    let sent = match prepared.files {
        0 => "everything was there".to_owned(),
        files => format!("{files} files were sent, {}", bytes(prepared.bytes)),
    };
    output.message(&format!("{}: {sent}", settings.name));
    let folders: Vec<String> =
        prepared.folders.iter().map(|folder| format!("{}/{folder}", prepared.root)).collect();
    let [of_program, folders @ ..] = &folders[..] else {
        return Err(Failure::failed("the target has no folder for the program"));
    };
    let run_bytes = lease::run_bytes(experiment)?;
    let experiment = there(experiment, &parcels, folders);
    let mut job = job(settings, &id, &experiment, of_repetitions, (&program, of_program));
    let leased = match end {
        None => None,
        Some(end) => {
            let come = run_bytes.saturating_mul(arguments.repetitions);
            Some(lease::lease(end, target.link(&job.program)?, come, &settings.name, output)?)
        }
    };
    job.stop = leased.map(|lease| lease.stop);
    if !prepared.hosts.is_empty() {
        job.hosts = prepared.hosts.iter().cycle().take(repetitions).cloned().collect();
    }
    let runs = (0..arguments.repetitions)
        .map(|_| RunDir::create(Path::new(RUNS), &name).map(|run| run.path().to_owned()))
        .collect::<stratus_run::Result<Vec<_>>>()?;
    let record = Record {
        id: id.clone(),
        target: settings.name.clone(),
        root: prepared.root.clone(),
        launched: now,
        program: job.program.clone(),
        environment: job.environment.clone(),
        runs,
        experiments: job.experiments.clone(),
        resources: job.resources,
        lease: leased,
        run_bytes,
        expected_s: cost.expected_s,
        released: None,
        done: Vec::new(),
        hosts: job.hosts.clone(),
        ready: prepared.hosts.clone(),
    };
    // Before the start: what was started is known here, whatever happens.
    record.write(Path::new(RUNS))?;
    target.submit(&prepared.root, &job)?;
    let launched = Launched {
        id: &id,
        target: &settings.name,
        folder: &prepared.root,
        runs: &record.runs,
        sent_files: prepared.files,
        sent_bytes: prepared.bytes,
    };
    output.result(&launched, || {
        let runs: Vec<String> = record.runs.iter().map(|run| run.display().to_string()).collect();
        format!(
            "launched {id} on {}; it outlives this connection\nnext: `stratus launch logs -f {id}`,\n      \
             `stratus launch fetch {id}`, which brings {}\n",
            settings.name,
            runs.join(", ")
        )
    })
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

/// What would be sent and started.
fn show(
    settings: &Settings,
    id: &str,
    experiment: &Experiment,
    parcels: &[(&'static str, Parcel)],
    program: &Program,
    of_repetitions: (u64, Resources),
    output: &Output,
) -> Result {
    #[derive(Serialize)]
    struct File<'a> {
        path: String,
        from: &'a Path,
        bytes: u64,
        sha256: &'a str,
    }
    #[derive(Serialize)]
    struct Planned<'a> {
        target: &'a str,
        folder: &'a str,
        files: Vec<File<'a>>,
        job: Vec<(String, String)>,
    }
    let root = &settings.root();
    let folder = |parcel: &Parcel| format!("{root}/{}", parcel.folder());
    let folders: Vec<String> = parcels.iter().map(|(_, parcel)| folder(parcel)).collect();
    let experiment = there(experiment, parcels, &folders);
    let job = job(settings, id, &experiment, of_repetitions, (program, &folder(&program.parcel)));
    let all = std::iter::once(&program.parcel).chain(parcels.iter().map(|(_, parcel)| parcel));
    let files = all.flat_map(|parcel| {
        parcel.items.iter().map(move |item| File {
            path: format!("{}/{}", parcel.folder(), item.path),
            from: &item.source,
            bytes: item.size,
            sha256: &item.hash,
        })
    });
    let of_job = open(settings).files(&job);
    let planned = Planned { target: &settings.name, folder: root, files: files.collect(), job: of_job };
    output.document(&planned, || {
        let machine = settings.kind.machine();
        let mut text =
            format!("{}: {machine}, in {root}\n\nfiles, where they are not there yet:\n", settings.name);
        for file in &planned.files {
            text.push_str(&format!(
                "{:>10}  {}  from {}\n",
                bytes(file.bytes),
                file.path,
                file.from.display()
            ));
        }
        for (path, content) in &planned.job {
            text.push_str(&format!("\njobs/{id}/{path}:\n{content}"));
        }
        text
    })
}
