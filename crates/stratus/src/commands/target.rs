//! The target of a command: a built-in experiment, an experiment file, a run, or a network.

use super::data::location::locate;
use crate::errors::{Failure, Result};
use crate::globals::Globals;
use std::path::{Path, PathBuf};
use stratus_base::nearest;
use stratus_base::text::shell_path;
use stratus_data::datasets::folder;
use stratus_experiment::Experiment;
use stratus_graph::{Graph, zoo};
use stratus_run::RunDir;
use stratus_run::layout::EXPERIMENT;
use stratus_train::network::Network;

/// The target of a command.
#[derive(Clone, Debug, PartialEq)]
pub enum RunOrExperiment {
    /// A built-in experiment or an experiment file, with overrides applied.
    Experiment(Box<Experiment>),
    /// An existing run directory.
    Run(PathBuf),
}

impl RunOrExperiment {
    /// Resolves an argument. A built-in experiment takes precedence over a folder of the same name;
    /// `./digits` names the folder.
    ///
    /// # Errors
    /// If the target is not found, or its configuration is invalid.
    pub fn resolve(argument: &str, globals: &Globals) -> Result<Self> {
        Ok(match Self::resolve_as_written(argument, globals)? {
            RunOrExperiment::Experiment(experiment) => Self::of_experiment(*experiment),
            run => run,
        })
    }

    /// As [`Self::resolve`], without the folder of this machine in which the data set was found, so that the
    /// experiment is the same on every machine.
    ///
    /// # Errors
    /// As [`Self::resolve`].
    pub fn resolve_as_written(argument: &str, globals: &Globals) -> Result<Self> {
        let path = Path::new(argument);
        if let Ok(experiment) = Experiment::builtin(argument) {
            return Ok(RunOrExperiment::Experiment(Box::new(experiment.with_overrides(&globals.set)?)));
        }
        if path.is_dir() {
            if RunDir::is_run(path) {
                return Ok(RunOrExperiment::Run(path.to_owned()));
            }
            return Err(not_a_run_error(path));
        }
        if path.extension().is_some_and(|extension| extension.eq_ignore_ascii_case("onnx")) {
            return Err(Failure::usage(format!("{} is an ONNX model", path.display())).with_hint(format!(
                "convert it to a layer file and weights: `stratus model import {} -o FOLDER`",
                shell_path(path)
            )));
        }
        if stratus_data::is_image_file(path) {
            return Err(image_error(path));
        }
        let is_file_name = path.extension().is_some_and(|extension| {
            ["toml", "xml"].iter().any(|known| extension.eq_ignore_ascii_case(known))
        });
        if !path.exists() && !is_file_name && path.components().count() > 1 {
            return Err(not_found_error(path));
        }
        let looks_like_a_path = path.extension().is_some() || path.components().count() > 1;
        if path.exists() || looks_like_a_path {
            if stratus_sweep::read_definition(path).is_ok_and(|text| stratus_sweep::is_sweep(&text)) {
                let hint = format!("train it with `stratus sweep {}`", shell_path(path));
                return Err(Failure::usage(format!("{} is a sweep", path.display())).with_hint(hint));
            }
            let experiment = Experiment::load(path)?.with_overrides(&globals.set)?;
            return Ok(RunOrExperiment::Experiment(Box::new(experiment)));
        }
        let known: Vec<&str> = Experiment::builtin_names().collect();
        let names = known.iter().copied().chain(zoo::NETWORKS.iter().map(|network| network.name));
        let hint = match nearest(argument, names) {
            Some(name) => format!("did you mean `{name}`?"),
            None => format!(
                "name an experiment file, a run directory or a built-in experiment: {}",
                known.join(", ")
            ),
        };
        Err(Failure::usage(format!("no experiment, file or run named `{argument}`")).with_hint(hint))
    }

    /// An experiment, with the folder of its data set.
    pub fn of_experiment(mut experiment: Experiment) -> Self {
        locate(&mut experiment);
        RunOrExperiment::Experiment(Box::new(experiment))
    }

    /// The experiment, or the run's experiment, with overrides applied.
    ///
    /// # Errors
    /// If a run's configuration cannot be read, or an override is invalid.
    pub fn experiment(&self, globals: &Globals) -> Result<Experiment> {
        match self {
            RunOrExperiment::Experiment(experiment) => Ok(experiment.as_ref().clone()),
            RunOrExperiment::Run(run) => {
                Ok(Experiment::load(&run.join(EXPERIMENT))?.with_overrides(&globals.set)?)
            }
        }
    }

    /// The experiment, for commands that do not support pipeline stages.
    ///
    /// # Errors
    /// See [`Self::experiment`]; also if `train.stages` is more than 1.
    pub fn single_process_experiment(&self, globals: &Globals) -> Result<Experiment> {
        let experiment = self.experiment(globals)?;
        match experiment.train.stages {
            0 | 1 => Ok(experiment),
            stages => {
                Err(Failure::usage(format!("train.stages = {stages} is not supported by this command"))
                    .with_hint("use --set train.stages=1"))
            }
        }
    }
}

/// Finds a network of the zoo as published, with `--set` applied, or reads a layer file.
pub(super) fn find_network(name: &str, globals: &Globals) -> Result<Graph> {
    let mut experiment = Experiment::default().with_overrides(&globals.set)?;
    name.clone_into(&mut experiment.model.name);
    Ok(Network::as_published(&experiment)?.graph)
}

/// The runs at a path: itself, or those below it.
///
/// # Errors
/// If there are none; the hint names the nearest path if it does not exist.
pub(super) fn find_runs(path: &Path) -> Result<Vec<RunDir>> {
    let found = RunDir::find(path).map_err(|error| {
        let failure = Failure::usage(error);
        match nearest_path(path) {
            Some(near) => failure.with_hint(format!("did you mean {}?", shell_path(&near))),
            None => failure,
        }
    })?;
    if found.is_empty() {
        let failure = Failure::usage(format!("no runs in {}", path.display()));
        return Err(failure.with_hint("name a run directory, or a folder of run directories, like `runs`"));
    }
    Ok(found)
}

/// The existing path that a path which does not exist is nearest to, with at most one name misspelt.
pub(super) fn nearest_path(path: &Path) -> Option<PathBuf> {
    // The last ancestor of a relative path is empty.
    let is_missing = |path: &&Path| !path.as_os_str().is_empty() && !path.exists();
    let missing = path.ancestors().take_while(is_missing).last()?;
    let folder = missing.parent()?;
    let read = if folder.as_os_str().is_empty() { Path::new(".") } else { folder };
    let names: Vec<String> = std::fs::read_dir(read)
        .ok()?
        .take(MAX_NEAR_NAMES)
        .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
        .collect();
    let near = nearest(missing.file_name()?.to_str()?, names.iter().map(String::as_str))?;
    // Joining an empty rest would add a slash.
    let rest = path.strip_prefix(missing).ok()?;
    let found = folder.join(near);
    let found = if rest.as_os_str().is_empty() { found } else { found.join(rest) };
    found.exists().then_some(found)
}

/// The maximum number of names in a folder that are compared with a misspelt one.
const MAX_NEAR_NAMES: usize = 10_000;

/// The maximum number of runs that a hint names.
const MAX_NAMED_RUNS: usize = 4;

/// The runs in a folder, as text for a hint; `None` if there are none. `deep` also searches subfolders.
fn runs_in(folder: &Path, deep: bool) -> Option<String> {
    let runs = if deep { RunDir::find(folder) } else { RunDir::list(folder) }.ok()?;
    let names: Vec<String> =
        runs.iter().take(MAX_NAMED_RUNS).map(|run| run.path().display().to_string()).collect();
    let more = runs.len().saturating_sub(MAX_NAMED_RUNS);
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    (!names.is_empty()).then(|| format!("{}{more}", names.join(", ")))
}

/// The error for a folder that is not a run.
fn not_a_run_error(path: &Path) -> Failure {
    let failure =
        Failure::usage(format!("{} is not a run directory: it has no experiment.toml", path.display()));
    let hint = match runs_in(path, true) {
        Some(runs) => format!("name one of the runs in it: {runs}"),
        None if folder::looks_like_class_folder(path) => train_on_folder_hint(path),
        None => "name a directory like runs/digits/1".to_owned(),
    };
    failure.with_hint(hint)
}

/// The error for an image in place of an experiment.
fn image_error(path: &Path) -> Failure {
    let failure = Failure::usage(format!("{} is an image, not an experiment or a run", path.display()));
    // `photographs/cat/1.jpg` and `photographs/train/cat/1.jpg` belong to `photographs`.
    let folders = path.ancestors().skip(2).take(2).filter(|folder| !folder.as_os_str().is_empty());
    let holds_classes = |folder: &&Path| folder::looks_like_class_folder(folder);
    let with_splits = folders.clone().find(|folder| folder::has_training_folder(folder));
    match with_splits.or_else(|| folders.clone().find(holds_classes)) {
        Some(folder) => failure.with_hint(train_on_folder_hint(folder)),
        None => failure
            .with_hint(format!("to apply a trained network to it: `stratus infer RUN {}`", shell_path(path))),
    }
}

/// The command that trains on a folder of classes.
fn train_on_folder_hint(folder: &Path) -> String {
    format!(
        "to train on the images in {}: `stratus train NETWORK --data {} --set data.name=folder{}`",
        folder.display(),
        shell_path(folder),
        if folder::has_training_folder(folder) { "" } else { " --set data.split_seed=0" }
    )
}

/// The error for a path at which there is neither a run nor an experiment file.
fn not_found_error(path: &Path) -> Failure {
    let failure = Failure::usage(format!("run or experiment not found: {}", path.display()));
    match (path.parent().and_then(|folder| runs_in(folder, false)), nearest_path(path)) {
        (Some(runs), _) => failure.with_hint(format!("runs there: {runs}")),
        (None, Some(near)) => failure.with_hint(format!("did you mean {}?", shell_path(&near))),
        (None, None) => failure.with_hint("`stratus runs` lists the runs under runs/"),
    }
}
