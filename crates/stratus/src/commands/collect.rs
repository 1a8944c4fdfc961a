//! `stratus collect`: tables out of run directories.

use crate::errors::{Failure, Result};
use crate::output::Output;
use clap::Args;
use serde::Serialize;
use std::path::{Path, PathBuf};
use stratus_report::accounting::{self, Accounting, Options};
use stratus_report::collect::{Experiment, to_csv};
use stratus_report::table::Format;
use stratus_report::tables::{self, Rows};
use stratus_report::trace::{self, Chosen};
use stratus_report::{layers, run_table};
use stratus_run::RunDir;

/// Where a trace is written, in the run directory.
const TRACE: &str = "trace.pftrace.gz";

/// Arguments of `stratus collect`.
#[derive(Args, Debug)]
pub struct CollectArguments {
    /// Run directories, or folders that hold some
    #[arg(value_name = "RUN", required = true)]
    pub runs: Vec<PathBuf>,
    /// The time of every layer in every iteration; without --out to layers.csv in each run directory
    #[arg(long)]
    pub layers: bool,
    /// Every iteration: loss, accuracy, learning rate, times; with --out
    #[arg(long, requires = "out", conflicts_with = "layers")]
    pub iterations: bool,
    /// A row per run: configuration, machine, times, results; with --out
    #[arg(long, requires = "out", conflicts_with_all = ["layers", "iterations"])]
    pub experiments: bool,
    /// Iterations step by step, for Perfetto (ui.perfetto.dev), of one run; without --out to
    /// trace.pftrace.gz in the run directory
    #[arg(long, conflicts_with_all = ["layers", "iterations", "experiments", "csv", "json"])]
    pub trace: bool,
    /// With --trace: the first iteration; without it the first after those that are left out
    #[arg(long, value_name = "ITERATION", requires = "trace")]
    pub first: Option<u64>,
    /// With --trace: how many iterations
    #[arg(long, value_name = "COUNT", requires = "trace", default_value_t = 20,
          value_parser = clap::value_parser!(u64).range(1..=trace::MAX_ITERATIONS))]
    pub count: u64,
    /// The file to write, of all runs: FILE.csv or FILE.parquet
    #[arg(long, short, value_name = "FILE", conflicts_with_all = ["csv", "json"])]
    pub out: Option<PathBuf>,
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
    let mut runs = Vec::new();
    for path in &arguments.runs {
        let found = RunDir::find(path).map_err(Failure::usage)?;
        if found.is_empty() {
            let failure = Failure::usage(format!("there is no run in {}", path.display()));
            return Err(failure.hint("name a run directory, or a folder that holds some, like `runs`"));
        }
        runs.extend(found);
    }
    if arguments.trace {
        return write_trace(&runs, arguments, output);
    }
    if let Some(out) = &arguments.out {
        return write_table(&runs, arguments, out, output);
    }
    for run in runs {
        let layers_csv = if arguments.layers { Some(write_layers(&run, output)?) } else { None };
        let experiment = Experiment::of(&run, arguments.skip).map_err(Failure::failed)?;
        let accounting = Accounting::of(&run, &Options { skip: arguments.skip }).map_err(Failure::failed)?;
        if !arguments.csv && !output.json() {
            let gap = if text.is_empty() { "" } else { "\n" };
            let table = if experiment.summary.is_some() {
                run_table::of(&run, output.width()).map_err(Failure::failed)?
            } else {
                format!("{}: nothing is summarised yet\n", run.path().display())
            };
            text.push_str(&format!(
                "{gap}{table}\n{}",
                accounting::render(&accounting, None, output.width())
            ));
        }
        collected.push(Collected { experiment, accounting, layers_csv });
    }
    if arguments.csv {
        let experiments: Vec<Experiment> = collected.into_iter().map(|run| run.experiment).collect();
        return output.result(&(), || to_csv(&experiments));
    }
    output.result(&collected, || text)
}

fn write_trace(runs: &[RunDir], arguments: &CollectArguments, output: &Output) -> Result {
    let [run] = runs else {
        return Err(Failure::usage("a trace is of one run").hint("name one run directory with --trace"));
    };
    let path = arguments.out.clone().unwrap_or_else(|| run.path().join(TRACE));
    let count = trace::write(run, Chosen { first: arguments.first, count: arguments.count }, &path)?;
    if count == 0 {
        output.warning(&format!("{} has no iteration from there on", run.path().display()));
    }
    output.message(&format!("{}: {count} iterations; open it at ui.perfetto.dev", path.display()));
    Ok(())
}

fn write_table(runs: &[RunDir], arguments: &CollectArguments, out: &Path, output: &Output) -> Result {
    let rows = match arguments {
        CollectArguments { layers: true, .. } => Rows::Layers,
        CollectArguments { iterations: true, .. } => Rows::Iterations,
        CollectArguments { experiments: true, .. } => Rows::Experiments,
        _ => {
            return Err(Failure::usage("--out does not say what to write")
                .hint("give --layers, --iterations or --experiments with it"));
        }
    };
    let format = Format::of(out).ok_or_else(|| {
        Failure::usage(format!("{} is no table", out.display())).hint("name it FILE.csv or FILE.parquet")
    })?;
    let count = tables::write(runs, rows, format, out, arguments.skip)?;
    output.message(&format!("{}: {count} rows of {} runs", out.display(), runs.len()));
    Ok(())
}

fn write_layers(run: &RunDir, output: &Output) -> Result<PathBuf> {
    let path = run.layers();
    let rows = layers::write_file(run, &path).map_err(Failure::failed)?;
    output.message(&format!("{}: {rows} rows", path.display()));
    Ok(path)
}
