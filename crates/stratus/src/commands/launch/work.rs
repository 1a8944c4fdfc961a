//! What is launched: the experiments, and where their runs arrive.

use super::{LaunchArguments, MOST, RUNS};
use crate::errors::{Failure, Result};
use std::path::{Path, PathBuf};
use stratus_run::RunDir;
use stratus_sweep::{Definition, Sweep};
use stratus_train::Experiment;

/// What is launched.
pub(super) struct Work {
    /// What it is called.
    pub name: String,
    /// Experiments that differ in more than the seed; of each as many repetitions.
    pub cells: Vec<Experiment>,
    pub repetitions: u64,
    /// The sweep that they make, and the text that its directory begins with.
    sweep: Option<(Definition, String)>,
}

impl Work {
    /// An experiment and its repetitions.
    pub fn of_experiment(experiment: Experiment, repetitions: u64) -> Self {
        let name = experiment.name().to_owned();
        Self { name, cells: vec![experiment], repetitions, sweep: None }
    }

    /// What the argument names, where that is a sweep: a built-in one, or a sweep file.
    ///
    /// # Errors
    /// Where the sweep is wrong, or can only be trained here.
    pub fn of_sweep(
        argument: &str,
        arguments: &LaunchArguments,
        set: &[(String, String)],
    ) -> Result<Option<Self>> {
        let path = Path::new(argument);
        if Sweep::is_sweep(path) {
            return Err(Failure::usage(format!("{argument} is a sweep that was begun"))
                .hint("continue it here with `stratus sweep`; launch the sweep file to train it elsewhere"));
        }
        let builtin = stratus_sweep::builtin(argument);
        let read = || std::fs::read_to_string(path).ok().filter(|text| stratus_sweep::is_sweep(text));
        let Some(text) = builtin.map(|builtin| builtin.text.to_owned()).or_else(read) else {
            return Ok(None);
        };
        if arguments.repetitions != 1 {
            return Err(Failure::usage("--repetitions is for an experiment")
                .hint("a sweep says how many itself: `repetitions` in its section [sweep]"));
        }
        let shown = match builtin {
            Some(builtin) => PathBuf::from(format!("built-in sweep {}", builtin.name)),
            None => path.to_owned(),
        };
        let mut definition = Definition::parse(&text, &shown, set)?;
        if let Some(builtin) = builtin {
            builtin.name.clone_into(&mut definition.name);
        }
        if definition.halving.is_some() {
            return Err(Failure::usage(format!("{argument}: its runs are compared while they are trained"))
                .hint("train it with `stratus sweep`, or take `halving` out of it"));
        }
        let count = definition.cells.len() * definition.repetitions;
        if count as u64 > MOST {
            return Err(Failure::usage(format!("{argument} has {count} runs, a launch {MOST} at most")));
        }
        let text = definition.with_command(&text, &shown)?;
        let cells = definition.cells.iter().map(|cell| cell.experiment.clone()).collect();
        let (name, repetitions) = (definition.name.clone(), definition.repetitions as u64);
        Ok(Some(Self { name, cells, repetitions, sweep: Some((definition, text)) }))
    }

    /// How many runs it has.
    pub fn runs(&self) -> u64 {
        self.cells.len() as u64 * self.repetitions
    }

    /// Makes the directories that the runs arrive in; of a sweep also the sweep's, which is returned.
    ///
    /// # Errors
    /// Where one cannot be made, or there is a sweep of that name already.
    pub fn make_directories(&self) -> Result<(Vec<PathBuf>, Option<PathBuf>)> {
        let Some((definition, text)) = &self.sweep else {
            let runs = (0..self.repetitions)
                .map(|_| RunDir::create(Path::new(RUNS), &self.name).map(|run| run.path().to_owned()))
                .collect::<stratus_run::Result<Vec<_>>>()?;
            return Ok((runs, None));
        };
        let folder = Path::new("sweeps").join(&definition.name);
        let sweep = Sweep::create(&folder, definition.clone(), text)?;
        let runs = sweep.rows().iter().map(|row| sweep.run_of(row)).collect();
        Ok((runs, Some(folder)))
    }

    /// Whether the directories can be made.
    ///
    /// # Errors
    /// Where there is a sweep of that name already.
    pub fn check(&self) -> Result {
        let Some((definition, _)) = &self.sweep else { return Ok(()) };
        let folder = Path::new("sweeps").join(&definition.name);
        if Sweep::is_sweep(&folder) {
            return Err(Failure::usage(format!("{}: there is a sweep already", folder.display()))
                .hint("rename the sweep file, or move that folder"));
        }
        Ok(())
    }
}
