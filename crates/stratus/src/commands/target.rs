//! What a command works on: a built-in experiment, an experiment file, or a run.

use crate::cli::Globals;
use crate::errors::{Failure, Result};
use std::path::{Path, PathBuf};
use stratus_data::datasets::folder;
use stratus_graph::zoo;
use stratus_run::RunDir;
use stratus_train::Experiment;
use stratus_train::experiment::nearest;

/// What the argument named.
#[derive(Clone, Debug, PartialEq)]
pub enum Target {
    /// A built-in experiment or an experiment file, overrides applied.
    Experiment(Box<Experiment>),
    /// An existing run directory.
    Run(PathBuf),
}

impl Target {
    /// Finds out what an argument names. A network's name wins; `./digits` names a folder of that name.
    ///
    /// # Errors
    /// Where it names nothing, or a configuration is wrong.
    pub fn find(argument: &str, globals: &Globals) -> Result<Self> {
        let path = Path::new(argument);
        if let Ok(experiment) = Experiment::builtin(argument) {
            return Ok(Target::Experiment(Box::new(experiment.with_overrides(&globals.set)?)));
        }
        if path.is_dir() {
            if path.join("experiment.toml").is_file() {
                return Ok(Target::Run(path.to_owned()));
            }
            return Err(no_run(path));
        }
        if path.extension().is_some_and(|ending| ending.eq_ignore_ascii_case("onnx")) {
            return Err(Failure::usage(format!("{} is an ONNX model", path.display())).hint(format!(
                "make a layer file and weights of it: `stratus model import {} -o FOLDER`",
                path.display()
            )));
        }
        let is_file_name = path
            .extension()
            .is_some_and(|ending| ["toml", "xml"].iter().any(|known| ending.eq_ignore_ascii_case(known)));
        if !path.exists() && !is_file_name && path.components().count() > 1 {
            return Err(missing(path));
        }
        let looks_like_a_path = path.extension().is_some() || path.components().count() > 1;
        if path.exists() || looks_like_a_path {
            if std::fs::read_to_string(path).is_ok_and(|text| stratus_sweep::is_sweep(&text)) {
                let hint = format!("train it with `stratus sweep {}`", path.display());
                return Err(Failure::usage(format!("{} is a sweep", path.display())).hint(hint));
            }
            let experiment = Experiment::load(path)?.with_overrides(&globals.set)?;
            return Ok(Target::Experiment(Box::new(experiment)));
        }
        let known: Vec<&str> = Experiment::builtin_names().collect();
        let names = known.iter().copied().chain(zoo::NETWORKS.iter().map(|network| network.name));
        let hint = match nearest(argument, names) {
            Some(near) => format!("did you mean `{near}`?"),
            None => format!(
                "give an experiment file, a run directory or a built-in experiment: {}",
                known.join(", ")
            ),
        };
        Err(Failure::usage(format!("no experiment, file or run is named `{argument}`")).hint(hint))
    }

    /// The experiment: the one that was named, or that of the run. Overrides apply to both.
    ///
    /// # Errors
    /// Where a run's configuration cannot be read, or an override is wrong.
    pub fn experiment(&self, globals: &Globals) -> Result<Experiment> {
        match self {
            Target::Experiment(experiment) => Ok(experiment.as_ref().clone()),
            Target::Run(run) => {
                Ok(Experiment::load(&run.join("experiment.toml"))?.with_overrides(&globals.set)?)
            }
        }
    }

    /// The experiment, for what knows of one process alone.
    ///
    /// # Errors
    /// As [`Self::experiment`], and where the network is to be trained in stages.
    pub fn experiment_of_one_process(&self, globals: &Globals) -> Result<Experiment> {
        let experiment = self.experiment(globals)?;
        match experiment.train.stages {
            0 | 1 => Ok(experiment),
            stages => Err(Failure::usage(format!(
                "train.stages is {stages}; networks in stages are planned and trained, not timed or forecast"
            ))
            .hint("look at one process with --set train.stages=1")),
        }
    }
}
/// Runs that are named where there are several.
const NAMED: usize = 4;

/// The runs in a folder, in words; none where there are none. `deep`: and in the folders in it.
fn runs_in(folder: &Path, deep: bool) -> Option<String> {
    let runs = if deep { RunDir::find(folder) } else { RunDir::list(folder) }.ok()?;
    let names: Vec<String> = runs.iter().take(NAMED).map(|run| run.path().display().to_string()).collect();
    let more = runs.len().saturating_sub(NAMED);
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    (!names.is_empty()).then(|| format!("{}{more}", names.join(", ")))
}

/// A folder that is no run.
fn no_run(path: &Path) -> Failure {
    let failure =
        Failure::usage(format!("{} is not a run directory: it has no experiment.toml", path.display()));
    let hint = match runs_in(path, true) {
        Some(runs) => format!("name one of the runs in it: {runs}"),
        None if folder::holds_classes(path) => format!(
            "it holds photographs: train a network on them with `stratus train NETWORK --data {} --set \
             data.name=folder{}`",
            path.display(),
            if folder::holds_training_part(path) { "" } else { " --set data.split_seed=0" }
        ),
        None => "give a directory like runs/digits/1".to_owned(),
    };
    failure.hint(hint)
}

/// Neither a run nor an experiment file.
fn missing(path: &Path) -> Failure {
    let failure = Failure::usage(format!("there is no run or experiment at {}", path.display()));
    match path.parent().and_then(|folder| runs_in(folder, false)) {
        Some(runs) => failure.hint(format!("there are {runs}")),
        None => failure.hint("`stratus runs` lists the runs under runs/"),
    }
}
