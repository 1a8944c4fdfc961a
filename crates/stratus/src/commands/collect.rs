//! `stratus collect`: tables out of run directories.

use crate::errors::{Failure, Result};
use crate::output::{Output, Table, pairs};
use crate::outputs::{Mark, Outputs, Overwrite};
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
use stratus_run::summary::Status;

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
    /// Files that are replaced.
    #[command(flatten)]
    pub overwrite: Overwrite,
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
    if let Some(out) = &arguments.out {
        Outputs::new(arguments.overwrite).claim(out, "the table", mark_of(arguments, out))?;
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
        return output.document(&(), || to_csv(&experiments, arguments.identity));
    }
    let brief = Brief::of(&experiments);
    if arguments.csv {
        return output.document(&(), || brief.to_csv(&experiments));
    }
    output.result(&(), || render(&brief, output.narrow()))
}

/// The most keys that have columns of their own; more are named beside their values, below.
const KEY_COLUMNS: usize = 4;

/// Results that a narrow terminal goes without, the first first.
const OPTIONAL: [&str; 4] = ["images/s", "time", "train loss", "epochs"];
/// Heads of results: a key of such a name is written whole.
const RESULTS: [&str; 4] = ["epochs", "train loss", "val loss", "status"];

/// A row a run, in at most so many columns.
fn render(brief: &Brief, width: Option<usize>) -> String {
    let columns = brief.keys.len() <= KEY_COLUMNS;
    // The last name of a key, where that is one key's alone.
    let head = |key: &String| {
        let short = |key: &str| key.rsplit('.').next().unwrap_or_default().to_owned();
        let alone = brief.keys.iter().filter(|other| short(other) == short(key)).count() == 1;
        if alone && !RESULTS.contains(&short(key).as_str()) { short(key) } else { key.clone() }
    };
    let dash = || "–".to_owned();
    let number =
        |value: Option<f64>, digits: usize| value.map_or_else(dash, |value| format!("{value:.digits$}"));
    let percent = |value: Option<f64>| value.map_or_else(dash, |value| format!("{:.2} %", 100.0 * value));
    let shown = |value: &Option<String>| value.clone().unwrap_or_else(dash);
    let pixels = brief.rows.iter().any(|row| row.val_miou.is_some());
    let images = !pixels || brief.rows.iter().any(|row| row.val_top1.is_some());
    let unfinished = brief.rows.iter().any(|row| row.status != Status::Completed);
    let line = |run: String, keys: Vec<String>, status: String, results: [String; 3], scores: [String; 2]| {
        let [top1, miou] = scores;
        let mut cells = vec![run];
        cells.extend(keys.into_iter().filter(|_| columns));
        cells.extend(unfinished.then_some(status));
        cells.extend(results);
        cells.extend(images.then_some(top1));
        cells.extend(pixels.then_some(miou));
        cells
    };
    let words = |names: [&str; 3]| names.map(str::to_owned);
    let scores = ["top-1", "mean IoU"].map(str::to_owned);
    let heads = brief.keys.iter().map(head).collect();
    let results = words(["epochs", "train loss", "val loss"]);
    let mut rows = vec![line("run".to_owned(), heads, "status".to_owned(), results, scores)];
    rows[0].extend(["time", "images/s"].map(str::to_owned));
    for row in &brief.rows {
        let epochs = row.epochs.map_or_else(dash, |epochs| epochs.to_string());
        let results = [epochs, number(row.train_loss, 4), number(row.val_loss, 4)];
        let scores = [percent(row.val_top1), percent(row.val_miou)];
        let values = row.values.iter().map(shown).collect();
        let mut cells = line(row.path.clone(), values, row.status.name().to_owned(), results, scores);
        let time = row.overall_s.map(|seconds| clock(Duration::from_secs_f64(seconds.max(0.0))));
        cells.extend([time.unwrap_or_else(dash), number(row.images_per_second_median, 1)]);
        rows.push(cells);
    }
    let mut text = Table::new(&rows).whole_names().within(width, &OPTIONAL).to_string();
    if !columns {
        text.push_str("\nThey differ in\n");
        text.push_str(&differences(brief));
    }
    format!("{text}\n`stratus collect RUN` shows a run's layers, `--all` those of every run.\n")
}

/// The values of each run, a line each.
fn differences(brief: &Brief) -> String {
    let word =
        |(key, value): (&String, &Option<String>)| format!("{key}={}", value.as_deref().unwrap_or("–"));
    let line = |row: &BriefRow| {
        let words: Vec<String> = brief.keys.iter().zip(&row.values).map(word).collect();
        (row.path.clone(), words.join(" "))
    };
    pairs(&brief.rows.iter().map(line).collect::<Vec<_>>())
}

/// The mark by which a table shows that Stratus wrote it.
fn mark_of(arguments: &CollectArguments, out: &Path) -> Mark {
    match arguments {
        _ if Format::of(out) != Some(Format::Csv) => Mark::None,
        CollectArguments { layers: true, .. } => Mark::Table("run,epoch,iteration,layer,kind,device,"),
        CollectArguments { iterations: true, .. } => Mark::Table("run,epoch,iteration,loss,"),
        CollectArguments { experiments: true, .. } => {
            Mark::Table("experiment,repetition,path,status,resumed,")
        }
        _ => Mark::None,
    }
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::output::wrap;

    fn brief(keys: &[&str], statuses: [Status; 2]) -> Brief {
        let row = |(number, status): (usize, Status)| BriefRow {
            path: format!("runs/digits/{number}"),
            status,
            values: keys
                .iter()
                .map(|key| (number > 0 || *key != "a.rate").then(|| "0.25".to_owned()))
                .collect(),
            epochs: Some(3),
            train_loss: Some(0.5),
            val_loss: None,
            val_top1: Some(0.875),
            val_miou: None,
            overall_s: Some(75.0),
            images_per_second_median: Some(1234.5),
        };
        let keys = keys.iter().map(|&key| key.to_owned()).collect();
        Brief { keys, rows: statuses.into_iter().enumerate().map(row).collect() }
    }

    #[test]
    fn runs_are_rows_with_what_differs() {
        let end = "\n`stratus collect RUN` shows a run's layers, `--all` those of every run.\n";
        let text = render(&brief(&["a.rate", "a.size", "b.size"], [Status::Completed; 2]), None);
        let expected = "\
run            rate  a.size  b.size  epochs  train loss  val loss    top-1  time  images/s
runs/digits/0     –    0.25    0.25       3      0.5000         –  87.50 %  1:15    1234.5
runs/digits/1  0.25    0.25    0.25       3      0.5000         –  87.50 %  1:15    1234.5
";
        assert_eq!(text, format!("{expected}{end}"), "\n{text}");
        let keys = ["a.rate", "b.one", "c.another", "d.yet_another", "e.the_last"];
        let text = wrap(&render(&brief(&keys, [Status::Completed, Status::Failed]), None), 80);
        let expected = "\
run               status  epochs  train loss  val loss    top-1  time  images/s
runs/digits/0  completed       3      0.5000         –  87.50 %  1:15    1234.5
runs/digits/1     failed       3      0.5000         –  87.50 %  1:15    1234.5

They differ in
runs/digits/0  a.rate=– b.one=0.25 c.another=0.25 d.yet_another=0.25
               e.the_last=0.25
runs/digits/1  a.rate=0.25 b.one=0.25 c.another=0.25 d.yet_another=0.25
               e.the_last=0.25
";
        assert_eq!(text, format!("{expected}{end}"), "\n{text}");
        assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
    }
}
