//! The specification of a launch: its experiments, and the directories of their runs.

use crate::{Error, Result};
use std::path::{Path, PathBuf};
use stratus_experiment::Experiment;
use stratus_run::RunDir;
use stratus_run::layout::{RUNS, SWEEPS};
use stratus_sweep::{Definition, Sweep};

/// The maximum number of runs of a launch.
pub const MAX_RUNS: u64 = 1000;

/// The specification of a launch.
pub struct LaunchSpec {
    /// The name of the experiment or sweep.
    pub name: String,
    /// The experiments: one, or the cells of a sweep.
    pub cells: Vec<Experiment>,
    /// The number of repetitions of each experiment.
    pub repetitions: u64,
    /// Experiments that name the files of cells that are drawn later.
    pub later_cells: Vec<Experiment>,
    /// The sweep of the experiments, and the text of its `sweep.toml`.
    sweep: Option<(Definition, String)>,
}

impl LaunchSpec {
    /// A launch of one experiment.
    #[must_use]
    pub fn of_experiment(experiment: Experiment, repetitions: u64) -> Self {
        let name = experiment.name().to_owned();
        Self { name, cells: vec![experiment], repetitions, later_cells: Vec::new(), sweep: None }
    }

    /// A launch of a built-in sweep or a sweep file, with `overrides` of its keys. Returns `None` if the
    /// argument is not a sweep.
    ///
    /// # Errors
    /// If the sweep is invalid, or can only be trained on this machine.
    pub fn of_sweep(
        argument: &str,
        repetitions: u64,
        overrides: &[(String, String)],
    ) -> Result<Option<Self>> {
        let path = Path::new(argument);
        if Sweep::is_sweep(path) {
            return Err(Error::usage(
                format!("{argument} is the directory of a sweep"),
                "resume it here with `stratus sweep`, or launch the sweep file",
            ));
        }
        let builtin = stratus_sweep::builtin(argument);
        let read = || stratus_sweep::read_definition(path).ok().filter(|text| stratus_sweep::is_sweep(text));
        let Some(text) = builtin.map(|builtin| builtin.text.to_owned()).or_else(read) else {
            return Ok(None);
        };
        if repetitions != 1 {
            return Err(Error::usage(
                "--repetitions cannot be used with a sweep",
                "set `repetitions` in its section [sweep]",
            ));
        }
        let source = match builtin {
            Some(builtin) => PathBuf::from(format!("built-in sweep {}", builtin.name)),
            None => path.to_owned(),
        };
        let mut definition = Definition::parse(&text, &source, overrides)?;
        if let Some(builtin) = builtin {
            builtin.name.clone_into(&mut definition.name);
        }
        let count = definition.final_cells() * definition.repetitions;
        if count as u64 > MAX_RUNS {
            return Err(Error::usage(
                format!("{argument} has {count} runs, more than the {MAX_RUNS} of a launch"),
                "",
            ));
        }
        let text = definition.with_command(&text, &source)?;
        let cells = definition.cells.iter().map(|cell| cell.experiment.clone()).collect();
        let (name, repetitions) = (definition.name.clone(), definition.repetitions as u64);
        let later_cells = definition.experiments_of_later_cells()?;
        Ok(Some(Self { name, cells, repetitions, later_cells, sweep: Some((definition, text)) }))
    }

    /// The number of runs at the end.
    #[must_use]
    pub fn runs(&self) -> u64 {
        let cells = self.sweep.as_ref().map_or(self.cells.len(), |(definition, _)| definition.final_cells());
        cells as u64 * self.repetitions
    }

    /// Returns whether results decide which cells are trained, and for how long.
    #[must_use]
    pub fn depends_on_results(&self) -> bool {
        self.sweep.as_ref().is_some_and(|(definition, _)| {
            definition.halving.is_some() || definition.cells.len() < definition.final_cells()
        })
    }

    /// Creates the directories of the runs and of the sweep, and returns both.
    ///
    /// # Errors
    /// If one cannot be created, or there is already a sweep of that name.
    pub fn create_directories(&self) -> Result<(Vec<PathBuf>, Option<PathBuf>)> {
        let Some((definition, text)) = &self.sweep else {
            let runs = (0..self.repetitions)
                .map(|_| RunDir::create(Path::new(RUNS), &self.name).map(|run| run.path().to_owned()))
                .collect::<stratus_run::Result<Vec<_>>>()?;
            return Ok((runs, None));
        };
        let folder = Path::new(SWEEPS).join(&definition.name);
        let sweep = Sweep::create(&folder, definition.clone(), text)?;
        let runs = sweep.rows().iter().map(|row| sweep.run_path(row)).collect();
        Ok((runs, Some(folder)))
    }

    /// Checks that the directories can be created.
    ///
    /// # Errors
    /// If there is already a sweep of that name.
    pub fn check_directories(&self) -> Result<()> {
        let Some((definition, _)) = &self.sweep else { return Ok(()) };
        let folder = Path::new(SWEEPS).join(&definition.name);
        if Sweep::is_sweep(&folder) {
            return Err(Error::usage(
                format!("{}: the sweep already exists", folder.display()),
                "rename the sweep file, or move that folder",
            ));
        }
        Ok(())
    }
}
