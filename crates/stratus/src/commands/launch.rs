//! `stratus launch`: training on other machines, and bringing the runs back as they grow.

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
use stratus_launch::{Job, Kind, Needs, Parcel, Program, Record, Settings, Target};
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
    /// Runs of the experiment, one after the other; their seeds follow each other
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = repetitions())]
    pub repetitions: u64,
    /// The data are there already, at the path that the experiment names
    #[arg(long)]
    pub data_there: bool,
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
        Some(Action::Fetch { id }) => return watch::fetch(&find(id)?, output),
        Some(Action::Stop { id }) => return watch::stop(&find(id)?, output),
        Some(Action::Resume { id }) => return resume(&find(id)?, output),
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
            resume(&record, output)
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
    stratus_launch::open(settings, folder.join("ssh"))
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
    repetitions: u64,
    program: (&Program, &str),
) -> Job {
    let (program, folder) = program;
    let mut environment = settings.environment.clone();
    for (variable, path) in &program.libraries {
        environment.entry((*variable).to_owned()).or_insert_with(|| format!("{folder}/{path}"));
    }
    let experiments = (0..repetitions).map(|number| {
        let mut experiment = experiment.clone();
        experiment.train.seed = experiment.train.seed.wrapping_add(number);
        experiment.to_toml()
    });
    let (id, program) = (id.to_owned(), format!("{folder}/stratus"));
    Job { id, program, environment, experiments: experiments.collect() }
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
    let program = program()?;
    let name = experiment.name().to_owned();
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |now| now.as_secs());
    let plain: String = name.chars().filter(char::is_ascii_alphanumeric).take(40).collect();
    let id = format!("{}-{now:x}-{:x}", plain.to_lowercase(), std::process::id());
    if arguments.dry_run {
        return show(settings, &id, experiment, &parcels, &program, arguments.repetitions, output);
    }
    let target = open(settings);
    output.message(&format!("{}: checking, and bringing what is not there yet", settings.name));
    let brought: Vec<Parcel> = parcels.iter().map(|(_, parcel)| parcel.clone()).collect();
    let prepared = target.prepare(&Needs { program: &program, parcels: &brought })?;
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
    let experiment = there(experiment, &parcels, folders);
    let job = job(settings, &id, &experiment, arguments.repetitions, (&program, of_program));
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
fn resume(record: &Record, output: &Output) -> Result {
    let target = open(&settings(&record.target)?);
    target.submit(&record.root, &record.job())?;
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
    repetitions: u64,
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
    let root = &settings.folder;
    let folder = |parcel: &Parcel| format!("{root}/{}", parcel.folder());
    let folders: Vec<String> = parcels.iter().map(|(_, parcel)| folder(parcel)).collect();
    let experiment = there(experiment, parcels, &folders);
    let job = job(settings, id, &experiment, repetitions, (program, &folder(&program.parcel)));
    let all = std::iter::once(&program.parcel).chain(parcels.iter().map(|(_, parcel)| parcel));
    let files = all.flat_map(|parcel| {
        parcel.items.iter().map(move |item| File {
            path: format!("{}/{}", parcel.folder(), item.path),
            from: &item.source,
            bytes: item.size,
            sha256: &item.hash,
        })
    });
    let planned = Planned { target: &settings.name, folder: root, files: files.collect(), job: job.files() };
    output.document(&planned, || {
        let machine = match &settings.kind {
            Kind::Local => "this machine".to_owned(),
            Kind::Ssh(ssh) => format!("ssh {}", ssh.host),
        };
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
