//! `stratus collect`: tables out of run directories.

use crate::errors::{Failure, Result};
use crate::output::{Output, table};
use crate::progress::clock;
use clap::Args;
use serde::Serialize;
use std::path::{Path, PathBuf};
use std::time::Duration;
use stratus_report::accounting::{self, Accounting, Options};
use stratus_report::brief::{Brief, BriefRow};
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
    /// Of several runs, the tables of each; with --csv every column
    #[arg(long, conflicts_with_all = ["out", "trace"])]
    pub all: bool,
    /// Also what identifies the machines: `uuid` and `mac`, with --csv --all, --experiments or --json
    #[arg(long)]
    pub identity: bool,
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
    /// Print a row per run as CSV: in what they differ, loss, accuracy, time, images a second
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
/// Where a run directory cannot be read, or its `layers.csv` not be written. One of several that is only
/// compared is left out, with a warning.
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
    let tables = !arguments.csv && !output.json() && (arguments.all || runs.len() == 1);
    for run in &runs {
        let layers_csv = if arguments.layers { Some(write_layers(run, output)?) } else { None };
        let experiment = match Experiment::of(run, arguments.skip) {
            Ok(experiment) => experiment,
            // One of many does not keep the others from being compared.
            Err(error) if runs.len() > 1 && !arguments.all && !output.json() => {
                output.warning(&format!("{} is left out: {error}", run.path().display()));
                continue;
            }
            Err(error) => return Err(Failure::failed(error)),
        };
        let experiment = if arguments.identity { experiment } else { experiment.without_identity() };
        let accounting = if tables || output.json() {
            Accounting::of(run, &Options { skip: arguments.skip }).map_err(Failure::failed)?
        } else {
            Accounting::default()
        };
        if tables {
            let gap = if text.is_empty() { "" } else { "\n" };
            let table = if experiment.summary.is_some() {
                run_table::of(run, output.width()).map_err(Failure::failed)?
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
    if tables || output.json() {
        return output.result(&collected, || text);
    }
    let experiments: Vec<Experiment> = collected.into_iter().map(|run| run.experiment).collect();
    if experiments.is_empty() {
        return Err(Failure::failed("none of the runs can be read"));
    }
    if arguments.csv && arguments.all {
        return output.result(&(), || to_csv(&experiments, arguments.identity));
    }
    let brief = Brief::of(&experiments);
    output.result(&(), || if arguments.csv { brief.to_csv(&experiments) } else { render(&brief) })
}

/// The most keys that have columns of their own; more are named beside their values.
const KEY_COLUMNS: usize = 4;

/// A row a run.
fn render(brief: &Brief) -> String {
    let has = |value: fn(&BriefRow) -> Option<f64>| brief.rows.iter().any(|row| value(row).is_some());
    let columns = brief.keys.len() <= KEY_COLUMNS;
    // The last name of a key, where that is one key's alone.
    let head = |key: &String| {
        let short = |key: &str| key.rsplit('.').next().unwrap_or_default().to_owned();
        let alone = brief.keys.iter().filter(|other| short(other) == short(key)).count() == 1;
        if alone { short(key) } else { key.clone() }
    };
    let number = |value: Option<f64>, digits: usize| {
        value.map_or_else(|| "–".to_owned(), |value| format!("{value:.digits$}"))
    };
    let percent =
        |value: Option<f64>| value.map_or_else(|| "–".to_owned(), |v| format!("{:.2} %", 100.0 * v));
    let (images, pixels) = (has(|row| row.val_top1), has(|row| row.val_miou));
    let mut heads = vec!["run".to_owned()];
    if columns {
        heads.extend(brief.keys.iter().map(head));
    }
    let given = [("top-1", images || !pixels), ("mean IoU", pixels)];
    let scores = given.into_iter().filter(|(_, shown)| *shown).map(|(name, _)| name);
    let results = ["status", "epochs", "train loss", "val loss"].into_iter().chain(scores);
    heads.extend(results.chain(["time", "images/s"]).map(str::to_owned));
    if !columns {
        heads.push("differs in".to_owned());
    }
    let mut rows = vec![heads];
    for row in &brief.rows {
        let BriefRow { path, status, values, epochs, train_loss, val_loss, val_top1, val_miou, .. } = row;
        let mut cells = vec![path.clone()];
        let shown = |value: &Option<String>| value.clone().unwrap_or_else(|| "–".to_owned());
        if columns {
            cells.extend(values.iter().map(shown));
        }
        cells.push(status.name().to_owned());
        cells.push(epochs.map_or_else(|| "–".to_owned(), |epochs| epochs.to_string()));
        cells.extend([number(*train_loss, 4), number(*val_loss, 4)]);
        cells.extend((images || !pixels).then(|| percent(*val_top1)));
        cells.extend(pixels.then(|| percent(*val_miou)));
        let time = row.overall_s.map(|seconds| clock(Duration::from_secs_f64(seconds.max(0.0))));
        cells.push(time.unwrap_or_else(|| "–".to_owned()));
        cells.push(number(row.images_per_second_median, 1));
        if !columns {
            let pairs = brief.keys.iter().zip(values).map(|(key, value)| format!("{key}={}", shown(value)));
            cells.push(pairs.collect::<Vec<_>>().join(" "));
        }
        rows.push(cells);
    }
    let first = brief.rows.first().map_or("RUN", |row| row.path.as_str());
    format!("{}\n`stratus collect {first}` shows a run's layers, `--all` those of every run.\n", table(&rows))
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
        CollectArguments { experiments: true, identity, .. } => Rows::Experiments { identity: *identity },
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
