//! `stratus collect`: tables from run directories.

use super::gpus;
use super::target::find_runs;
use crate::errors::{Failure, Result};
use crate::output::{Output, Table, key_value_list, printable};
use crate::outputs::{Mark, Outputs, Overwrite};
use crate::progress::clock;
use clap::Args;
use serde::Serialize;
use std::iter::once;
use std::path::{Path, PathBuf};
use std::time::Duration;
use stratus_base::text::counted;
use stratus_report::accounting::{self, Accounting, AccountingOptions};
use stratus_report::collect::{RunRecord, to_csv};
use stratus_report::overview::{RunOverview, RunOverviewRow};
use stratus_report::report::{OptimisedReport, Score};
use stratus_report::table::TableFormat;
use stratus_report::tables::{self, TableKind};
use stratus_report::trace::{self, IterationRange};
use stratus_report::{layers, run_table, variant_table};
use stratus_run::RunDir;
use stratus_run::csv::{CsvReader, EpochRow, Task};
use stratus_run::labels::RunLabels;
use stratus_run::summary::Status;

/// The default file of a trace, in the run directory.
const TRACE_FILE: &str = "trace.pftrace.gz";

/// Arguments of `stratus collect`.
#[derive(Args, Debug)]
pub struct CollectArguments {
    /// Run directories, or folders with run directories
    #[arg(value_name = "RUN", required = true)]
    pub runs: Vec<PathBuf>,
    /// Write per-layer times of every iteration [default file: layers.csv in each run directory]
    #[arg(long)]
    pub layers: bool,
    /// Write loss, accuracy, learning rate and times of every iteration; needs --out
    #[arg(long, requires = "out", conflicts_with = "layers")]
    pub iterations: bool,
    /// Write the variants of the networks that `stratus optimise` compared; needs --out
    #[arg(long, requires = "out", conflicts_with_all = ["layers", "iterations", "experiments"])]
    pub variants: bool,
    /// Write one row per run: configuration, machine, times, results; needs --out
    #[arg(long, requires = "out", conflicts_with_all = ["layers", "iterations"])]
    pub experiments: bool,
    /// Print the tables of each run; with --csv, print all columns
    #[arg(long, conflicts_with_all = ["out", "trace"])]
    pub all: bool,
    /// Include the identity of machines, `uuid` and `mac`, in --csv --all, --experiments and --json
    #[arg(long)]
    pub identity: bool,
    /// Write a trace of one run's iterations for Perfetto (ui.perfetto.dev) [default file: trace.pftrace.gz
    /// in the run directory]
    #[arg(long, conflicts_with_all = ["layers", "iterations", "experiments", "variants", "csv", "json"])]
    pub trace: bool,
    /// First iteration of --trace [default: the first after the skipped ones]
    #[arg(long, value_name = "ITERATION", requires = "trace")]
    pub first: Option<u64>,
    /// Number of iterations of --trace
    #[arg(long, value_name = "COUNT", requires = "trace", default_value_t = 20,
          value_parser = clap::value_parser!(u64).range(1..=trace::MAX_ITERATIONS))]
    pub count: u64,
    /// Output file for all runs: FILE.csv or FILE.parquet
    #[arg(long, short, value_name = "FILE", conflicts_with_all = ["csv", "json"])]
    pub out: Option<PathBuf>,
    /// Existing output files.
    #[command(flatten)]
    pub overwrite: Overwrite,
    /// Print one row per run as CSV: differing keys, loss, accuracy, time, images per second
    #[arg(long, conflicts_with = "json")]
    pub csv: bool,
    /// Initial iterations to skip [default: 5 %, at least 2]
    #[arg(long, value_name = "COUNT")]
    pub skip: Option<u64>,
}

/// A run, as JSON.
#[derive(Serialize)]
struct Collected {
    #[serde(flatten)]
    experiment: RunRecord,
    accounting: Accounting,
    layers_csv: Option<PathBuf>,
}

/// Runs `stratus collect`.
///
/// # Errors
/// If a run directory cannot be read, or its `layers.csv` cannot be written. If several runs are compared,
/// unreadable ones are skipped with a warning.
pub fn run(arguments: &CollectArguments, output: &Output) -> Result {
    let mut collected = Vec::new();
    let mut text = String::new();
    let mut runs = Vec::new();
    for path in &arguments.runs {
        runs.extend(find_runs(path)?);
    }
    if let Some(out) = &arguments.out {
        Outputs::new(arguments.overwrite).claim(out, "the table", output_mark(arguments, out))?;
    }
    if arguments.trace {
        return write_trace(&runs, arguments, output);
    }
    if let Some(out) = &arguments.out {
        return write_table(&runs, arguments, out, output);
    }
    let tables = !arguments.csv && !output.json() && (arguments.all || runs.len() == 1);
    for run in &runs {
        if let Err(error) = RunLabels::read(&run.labels()) {
            output.warning(&error.to_string());
        }
        let layers_csv = if arguments.layers { Some(write_layers(run, output)?) } else { None };
        let experiment = match RunRecord::read(run, arguments.skip) {
            Ok(experiment) => experiment,
            // One unreadable run does not prevent comparing the others.
            Err(error) if runs.len() > 1 && !arguments.all && !output.json() => {
                output.warning(&format!("skipping {}: {error}", run.path().display()));
                continue;
            }
            Err(error) => return Err(Failure::failed(error)),
        };
        let experiment = if arguments.identity { experiment } else { experiment.without_identity() };
        let accounting = if tables || output.json() {
            Accounting::for_run(run, &AccountingOptions { skip: arguments.skip }).map_err(Failure::failed)?
        } else {
            Accounting::default()
        };
        if tables {
            let gap = if text.is_empty() { "" } else { "\n" };
            let table = if experiment.summary.is_some() {
                run_table::render_run(run, output.width()).map_err(Failure::failed)?
            } else {
                format!("{}: no summary yet\n", run.path().display())
            };
            let throttled: String =
                gpus::throttled(run, output).iter().map(|line| format!("{line}\n\n")).collect();
            text.push_str(&format!(
                "{gap}{table}\n{throttled}{}{}",
                optimised(run, output)?,
                accounting::render(&accounting, None, output.width())
            ));
        }
        collected.push(Collected { experiment, accounting, layers_csv });
    }
    if tables || output.json() {
        return output.print_wrapped(&collected, || text);
    }
    let experiments: Vec<RunRecord> = collected.into_iter().map(|run| run.experiment).collect();
    if experiments.is_empty() {
        return Err(Failure::failed("no run can be read"));
    }
    if arguments.csv && arguments.all {
        return output.print_verbatim(&(), || to_csv(&experiments, arguments.identity));
    }
    let brief = RunOverview::new(&experiments);
    if arguments.csv {
        return output.print_verbatim(&(), || brief.to_csv(&experiments));
    }
    output.print_wrapped(&(), || render(&brief, output.terminal_width()))
}

/// Maximum number of variants, and of layers, that are printed for a run.
const MAX_PRINTED_ROWS: usize = 100;

/// The variants of the network of a run that `stratus optimise` made, and the layers that lost channels;
/// empty for other runs. What cannot be read is a warning.
fn optimised(run: &RunDir, output: &Output) -> Result<String> {
    let mut missing = |what: &str, reason: String| {
        output.warning(&format!("{}: cannot show {what}: {reason}", run.path().display()));
    };
    let Some(report) = OptimisedReport::read(run, &mut missing) else { return Ok(String::new()) };
    let task = CsvReader::<EpochRow>::open(&run.epochs()).map(|rows| rows.task()).unwrap_or_default();
    let mut text = String::new();
    let more = |all: usize, what: &str| match all.saturating_sub(MAX_PRINTED_ROWS) {
        0 => String::new(),
        more => format!("{more} more {what} (--json of `stratus report` has all)\n"),
    };
    if !report.variants.is_empty() {
        let score = Score::Of(task);
        let shown = report.variants.iter().take(MAX_PRINTED_ROWS);
        let cells = shown.map(|variant| variant_table::cells(score, variant));
        let rows: Vec<[String; 7]> = once(variant_table::heads(score)).chain(cells).collect();
        let table = Table::new(&rows).max_width(output.terminal_width(), &variant_table::OPTIONAL_COLUMNS);
        text = format!("{table}{}\n", more(report.variants.len(), "variants"));
    }
    let layers = report.pruning.map(|pruning| pruning.layers).unwrap_or_default();
    if !layers.is_empty() {
        let cells = layers.iter().take(MAX_PRINTED_ROWS).map(|layer| {
            let [before, after] = layer.channels.map(|count| count.to_string());
            [printable(&layer.layer), before, after]
        });
        let heads = ["layer that lost channels", "before", "after"].map(str::to_owned);
        let rows: Vec<[String; 3]> = once(heads).chain(cells).collect();
        text.push_str(&format!("{}{}\n", Table::new(&rows), more(layers.len(), "layers")));
    }
    Ok(text)
}

/// The maximum number of keys shown as columns; more are listed below the table.
const MAX_KEY_COLUMNS: usize = 4;

/// Columns that are hidden on a narrow terminal, in this order.
const OPTIONAL_COLUMNS: [&str; 4] = ["images/s", "time", "train loss", "epochs"];
/// Headings of results; a key whose last part is one of these is shown in full.
const RESULT_HEADINGS: [&str; 4] = ["epochs", "train loss", "val loss", "status"];

/// Renders one row per run, at most `width` columns wide.
fn render(brief: &RunOverview, width: Option<usize>) -> String {
    let columns = brief.keys.len() <= MAX_KEY_COLUMNS;
    // A key is shortened to its last part if no other key has the same one.
    let head = |key: &String| {
        let short = |key: &str| key.rsplit('.').next().unwrap_or_default().to_owned();
        let is_unique = brief.keys.iter().filter(|other| short(other) == short(key)).count() == 1;
        if is_unique && !RESULT_HEADINGS.contains(&short(key).as_str()) { short(key) } else { key.clone() }
    };
    let dash = || "–".to_owned();
    let number =
        |value: Option<f64>, digits: usize| value.map_or_else(dash, |value| format!("{value:.digits$}"));
    let shown = |value: &Option<String>| value.clone().unwrap_or_else(dash);
    let scores = shown_scores(brief);
    let unfinished = brief.rows.iter().any(|row| row.status != Status::Completed);
    let line = |run: String, keys: Vec<String>, status: String, results: [String; 3], scores: Vec<String>| {
        let mut cells = vec![run];
        cells.extend(keys.into_iter().filter(|_| columns));
        cells.extend(unfinished.then_some(status));
        cells.extend(results);
        cells.extend(scores);
        cells
    };
    let words = |names: [&str; 3]| names.map(str::to_owned);
    let score_heads = scores.iter().map(|(head, ..)| (*head).to_owned()).collect();
    let heads = brief.keys.iter().map(head).collect();
    let results = words(["epochs", "train loss", "val loss"]);
    let mut rows = vec![line("run".to_owned(), heads, "status".to_owned(), results, score_heads)];
    rows[0].extend(["time", "images/s"].map(str::to_owned));
    for row in &brief.rows {
        let epochs = row.epochs.map_or_else(dash, |epochs| epochs.to_string());
        let results = [epochs, number(row.train_loss, 4), number(row.val_loss, 4)];
        let score = |&(_, task, value): &ShownScore| {
            value(row).map_or_else(dash, |value| Score::Of(task).text(value))
        };
        let scores = scores.iter().map(score).collect();
        let values = row.values.iter().map(shown).collect();
        let mut cells = line(row.path.clone(), values, row.status.name().to_owned(), results, scores);
        let time = row.overall_s.map(|seconds| clock(Duration::from_secs_f64(seconds.max(0.0))));
        cells.extend([time.unwrap_or_else(dash), number(row.images_per_second_median, 1)]);
        rows.push(cells);
    }
    let mut text = Table::new(&rows).keep_names_whole().max_width(width, &OPTIONAL_COLUMNS).to_string();
    if !columns {
        text.push_str("\nDifferences\n");
        text.push_str(&render_differences(brief));
    }
    format!("{text}\n`stratus collect RUN` shows the layers of a run, `--all` those of every run.\n")
}

/// A column of scores: its heading, its task, its value of a run.
type ShownScore = (&'static str, Task, fn(&RunOverviewRow) -> Option<f64>);

/// The scores that a run of the table has; top-1 if none has any.
fn shown_scores(brief: &RunOverview) -> Vec<ShownScore> {
    let all: [ShownScore; 4] = [
        ("top-1", Task::Classification, |row| row.val_top1),
        ("mean IoU", Task::Segmentation, |row| row.val_miou),
        ("mAP", Task::MultiLabel, |row| row.val_map),
        ("R²", Task::Regression, |row| row.val_r2),
    ];
    let is_known = |(.., value): &ShownScore| brief.rows.iter().any(|row| value(row).is_some());
    let known: Vec<ShownScore> = all.into_iter().filter(is_known).collect();
    if known.is_empty() { all[..1].to_vec() } else { known }
}

/// Renders the values of differing keys, a line per run.
fn render_differences(brief: &RunOverview) -> String {
    let word =
        |(key, value): (&String, &Option<String>)| format!("{key}={}", value.as_deref().unwrap_or("–"));
    let line = |row: &RunOverviewRow| {
        let words: Vec<String> = brief.keys.iter().zip(&row.values).map(word).collect();
        (row.path.clone(), words.join(" "))
    };
    key_value_list(&brief.rows.iter().map(line).collect::<Vec<_>>())
}

/// The mark by which an existing table is recognised as written by Stratus.
fn output_mark(arguments: &CollectArguments, out: &Path) -> Mark {
    match arguments {
        _ if TableFormat::from_path(out) != Some(TableFormat::Csv) => Mark::None,
        CollectArguments { layers: true, .. } => Mark::Table(&["run,epoch,iteration,layer,kind,device,"]),
        CollectArguments { iterations: true, .. } => Mark::Table(&["run,epoch,iteration,loss,"]),
        CollectArguments { variants: true, .. } => Mark::Table(&["run,variant,measure,"]),
        CollectArguments { experiments: true, .. } => {
            Mark::Table(&["experiment,repetition,path,status,resumed,"])
        }
        _ => Mark::None,
    }
}

fn write_trace(runs: &[RunDir], arguments: &CollectArguments, output: &Output) -> Result {
    let [run] = runs else {
        return Err(Failure::usage("--trace takes one run").with_hint("name one run directory"));
    };
    let path = arguments.out.clone().unwrap_or_else(|| run.path().join(TRACE_FILE));
    let count = trace::write(run, IterationRange { first: arguments.first, count: arguments.count }, &path)?;
    if count == 0 {
        output.warning(&format!("{} has no such iterations", run.path().display()));
    }
    let iterations = counted(count, "iteration");
    output.message(&format!("{}: {iterations}; open it at ui.perfetto.dev", path.display()));
    Ok(())
}

fn write_table(runs: &[RunDir], arguments: &CollectArguments, out: &Path, output: &Output) -> Result {
    let rows = match arguments {
        CollectArguments { layers: true, .. } => TableKind::Layers,
        CollectArguments { iterations: true, .. } => TableKind::Iterations,
        CollectArguments { variants: true, .. } => TableKind::Variants,
        CollectArguments { experiments: true, identity, .. } => TableKind::Runs { identity: *identity },
        _ => {
            return Err(Failure::usage("--out needs --layers, --iterations, --variants or --experiments"));
        }
    };
    let format = TableFormat::from_path(out).ok_or_else(|| {
        Failure::usage(format!("{}: unknown table format", out.display()))
            .with_hint("use the extension .csv or .parquet")
    })?;
    let count = tables::write(runs, rows, format, out, arguments.skip)?;
    let (rows, runs) = (counted(count, "row"), counted(runs.len() as u64, "run"));
    output.message(&format!("{}: {rows} of {runs}", out.display()));
    Ok(())
}

fn write_layers(run: &RunDir, output: &Output) -> Result<PathBuf> {
    let path = run.layers();
    let rows = layers::write_file(run, &path).map_err(Failure::failed)?;
    output.message(&format!("{}: {}", path.display(), counted(rows, "row")));
    Ok(path)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::output::wrap;

    fn brief(keys: &[&str], statuses: [Status; 2]) -> RunOverview {
        let row = |(number, status): (usize, Status)| RunOverviewRow {
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
            val_map: None,
            val_r2: None,
            overall_s: Some(75.0),
            images_per_second_median: Some(1234.5),
        };
        let keys = keys.iter().map(|&key| key.to_owned()).collect();
        RunOverview { keys, rows: statuses.into_iter().enumerate().map(row).collect() }
    }

    #[test]
    fn scores_have_the_columns_of_their_tasks() {
        let mut runs = brief(&["a.rate"], [Status::Completed; 2]);
        let scores = |runs: &RunOverview| {
            let text = render(runs, None);
            let line = |number: usize| text.lines().nth(number).unwrap_or_default().to_owned();
            [line(0), line(1), line(2)]
        };
        (runs.rows[0].val_top1, runs.rows[0].val_r2) = (None, Some(-0.5));
        (runs.rows[1].val_top1, runs.rows[1].val_map) = (None, Some(0.5));
        let [heads, first, second] = scores(&runs);
        assert!(heads.contains("mAP") && heads.contains("R²") && !heads.contains("top-1"), "{heads}");
        assert!(first.contains("–  -0.5000") && second.contains("50.00 %"), "{first}\n{second}");
        runs.rows.iter_mut().for_each(|row| (row.val_map, row.val_r2) = (None, None));
        let [heads, ..] = scores(&runs);
        assert!(heads.contains("top-1") && !heads.contains("R²"), "{heads}");
    }

    #[test]
    fn differing_keys_are_columns_or_listed_below() {
        let end = "\n`stratus collect RUN` shows the layers of a run, `--all` those of every run.\n";
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

Differences
runs/digits/0  a.rate=– b.one=0.25 c.another=0.25 d.yet_another=0.25
               e.the_last=0.25
runs/digits/1  a.rate=0.25 b.one=0.25 c.another=0.25 d.yet_another=0.25
               e.the_last=0.25
";
        assert_eq!(text, format!("{expected}{end}"), "\n{text}");
        assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
    }
}
