//! What a command works on: a built-in experiment, an experiment file, or a run.

use crate::cli::Globals;
use crate::errors::{Failure, Result};
use std::path::{Path, PathBuf};
use stratus_graph::zoo;
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
            return Err(Failure::usage(format!(
                "{} is not a run directory: it has no experiment.toml",
                path.display()
            ))
            .hint("give a directory like runs/digits/1"));
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
}
