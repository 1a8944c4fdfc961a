//! `stratus collect`: tables out of run directories.

use crate::errors::{Failure, Result};
use crate::output::Output;
use clap::Args;
use serde::Serialize;
use std::path::PathBuf;
use stratus_report::accounting::{self, Accounting, Options};
use stratus_report::collect::{Experiment, to_csv};
use stratus_report::{layers, run_table};
use stratus_run::RunDir;

/// Arguments of `stratus collect`.
#[derive(Args, Debug)]
pub struct CollectArguments {
    /// The run directories
    #[arg(value_name = "RUN", required = true)]
    pub runs: Vec<PathBuf>,
    /// Write the time of every layer in every iteration to layers.csv in each run directory
    #[arg(long)]
    pub layers: bool,
    /// Print a row per run as CSV: configuration, machine, times, results
    #[arg(long, conflicts_with = "json")]
    pub csv: bool,
    /// First iterations to leave out; without it 5 %, at least two
    #[arg(long, value_name = "COUNT")]
    pub skip: Option<u64>,
}

/// A run as JSON.
#[derive(Serialize)]
struct Collected {
    #[serde(flatten)]
    experiment: Experiment,
    accounting: Accounting,
    layers_csv: Option<PathBuf>,
}

/// Runs `stratus collect`.
///
/// # Errors
/// Where a run directory cannot be read, or its `layers.csv` not be written.
pub fn run(arguments: &CollectArguments, output: &Output) -> Result {
    let mut collected = Vec::new();
    let mut text = String::new();
    for path in &arguments.runs {
        let run = RunDir::open(path).map_err(Failure::usage)?;
        let layers_csv = if arguments.layers { Some(write_layers(&run, output)?) } else { None };
        let experiment = Experiment::of(&run, arguments.skip).map_err(Failure::failed)?;
        let accounting = Accounting::of(&run, &Options { skip: arguments.skip }).map_err(Failure::failed)?;
        if !arguments.csv && !output.json() {
            let gap = if text.is_empty() { "" } else { "\n" };
            let table = if experiment.summary.is_some() {
                run_table::of(&run).map_err(Failure::failed)?
            } else {
                format!("{}: nothing is summarised yet\n", run.path().display())
            };
            text.push_str(&format!("{gap}{table}\n{}", accounting::render(&accounting, None)));
        }
        collected.push(Collected { experiment, accounting, layers_csv });
    }
    if arguments.csv {
        let experiments: Vec<Experiment> = collected.into_iter().map(|run| run.experiment).collect();
        return output.result(&(), || to_csv(&experiments));
    }
    output.result(&collected, || text)
}

fn write_layers(run: &RunDir, output: &Output) -> Result<PathBuf> {
    let path = run.layers();
    let rows = layers::write_file(run, &path).map_err(Failure::failed)?;
    output.message(&format!("{}: {rows} rows", path.display()));
    Ok(path)
}
