//! `stratus sweep`: trains every combination of configuration values, each as a separate run.

use super::common_keys::{CommonKeyArguments, KeyFlags};
use crate::errors::{Failure, INTERRUPTED, Result};
use crate::globals::Globals;
use crate::output::{Output, Table, table};
use crate::signals;
use clap::Args;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use serde::Serialize;
use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use stratus_base::nearest;
use stratus_base::text::{counted, shell_path};
use stratus_experiment::Experiment;
use stratus_report::page;
use stratus_report::report::{Report, Score, val_score};
use stratus_run::csv::{CsvReader, EpochRow};
use stratus_run::summary::Summary;
use stratus_run::{RunDir, layout};
use stratus_sweep::{
    BUILTIN, Definition, Loss, LostRun, Row, RowOutcome, Status, Sweep, Trainer, train_in_process,
};
use stratus_train::sizing::memory_shortage;

/// Arguments of `stratus sweep`.
#[derive(Args, Debug)]
pub struct SweepArguments {
    /// Sweep file, built-in sweep (digits-batch-filters, camvid-batch, layer-times, throughput), or directory
    /// of a sweep to resume
    #[arg(value_name = "FILE|SWEEP")]
    pub target: String,
    /// Common configuration keys.
    #[command(flatten)]
    pub common: CommonKeyArguments,
    /// Directory of the sweep [default: sweeps/NAME]
    #[arg(long, value_name = "DIR")]
    pub out: Option<PathBuf>,
    /// Retry runs that failed or did not fit in memory
    #[arg(long)]
    pub retry: bool,
    /// Show the runs without training
    #[arg(long)]
    pub dry_run: bool,
}

/// The result of `stratus sweep`.
#[derive(Serialize)]
struct SweepReport<'a> {
    sweep: &'a Path,
    report: Option<PathBuf>,
    keys: &'a [String],
    cells: Vec<RowReport<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    best: Option<BestCell>,
}

/// The cell with the best objective of a search or of halving.
#[derive(Serialize)]
struct BestCell {
    cell: usize,
    name: String,
    objective: &'static str,
    value: f64,
}

#[derive(Serialize)]
struct RowReport<'a> {
    #[serde(flatten)]
    row: &'a Row,
    name: String,
    values: &'a [String],
}

/// Runs `stratus sweep`.
///
/// # Errors
/// If the sweep is invalid or interrupted, or one of its runs fails.
pub fn run(arguments: &SweepArguments, globals: &Globals, output: &Output) -> Result {
    let path = Path::new(&arguments.target);
    if Sweep::is_sweep(path) {
        let flags = arguments.common.flags();
        let given = [
            flags.first().map(|flag| flag.flag),
            arguments.out.as_ref().map(|_| "--out"),
            globals.set.first().map(|_| "--set"),
        ];
        if let Some(flag) = given.into_iter().flatten().next() {
            return Err(Failure::usage(format!("{flag} cannot be used when resuming"))
                .with_hint("a sweep keeps its experiments; start a new one to change them"));
        }
        if arguments.dry_run {
            let (definition, rows, lost) = Sweep::inspect(path)?;
            warn_of_lost_runs(&definition, &lost, arguments.retry, output);
            let is_remaining = |row: &&Row| {
                let failed = matches!(row.status, Status::Failed | Status::DoesNotFit);
                let is_lost = || lost.iter().any(|lost| lost.row == **row);
                if failed { arguments.retry } else { !row.status.is_settled() || is_lost() }
            };
            let undrawn = (definition.final_cells() - definition.cells.len()) * definition.repetitions;
            let remaining = rows.iter().filter(is_remaining).count() + undrawn;
            return print_dry_run(&definition, Some(remaining), output);
        }
        return train(Sweep::open(path)?, arguments, output);
    }
    let globals = &arguments.common.prepend_to(globals)?;
    let (text, path) = match stratus_sweep::builtin(&arguments.target) {
        Some(builtin) => (builtin.text.to_owned(), PathBuf::from(format!("built-in sweep {}", builtin.name))),
        None => (read_sweep_file(path)?, path.to_owned()),
    };
    let mut definition = Definition::parse(&text, &path, &globals.set)?;
    if let Some(builtin) = stratus_sweep::builtin(&arguments.target) {
        builtin.name.clone_into(&mut definition.name);
    }
    if arguments.dry_run {
        return print_dry_run(&definition, None, output);
    }
    let folder = arguments.out.clone().unwrap_or_else(|| Path::new(layout::SWEEPS).join(&definition.name));
    let text = definition.with_command(&text, &path)?;
    train(Sweep::create(&folder, definition, &text)?, arguments, output)
}

fn read_file(path: &Path) -> Result<String> {
    stratus_sweep::read_definition(path)
        .map_err(|source| stratus_sweep::Error::Read { path: path.to_owned(), source }.into())
}

/// Reads a sweep file.
fn read_sweep_file(path: &Path) -> Result<String> {
    let name = path.display().to_string();
    if path.is_dir() {
        return Err(match RunDir::is_run(path) {
            true => Failure::usage(format!("{name} is a run"))
                .with_hint(format!("resume it with `stratus train {}`", shell_path(path))),
            false => Failure::usage(format!("{name} is not a sweep"))
                .with_hint("name a sweep file, or the directory of a sweep"),
        });
    }
    if !path.exists() && path.extension().is_none() && path.components().count() == 1 {
        let names: Vec<&str> = BUILTIN.iter().map(|builtin| builtin.name).collect();
        let hint = match nearest(&name, names.iter().copied()) {
            Some(name) => format!("did you mean `{name}`?"),
            None => format!("name a sweep file, the directory of a sweep, or one of {}", names.join(", ")),
        };
        return Err(Failure::usage(format!("no sweep or file named `{name}`")).with_hint(hint));
    }
    read_file(path)
}

/// Warns of rows whose runs are missing or damaged, and says how each is repaired.
fn warn_of_lost_runs(definition: &Definition, lost: &[LostRun], retry: bool, output: &Output) {
    for LostRun { row, run, loss, moved_to } in lost {
        let remedy = match (row.status, loss, moved_to) {
            (Status::Failed | Status::DoesNotFit, ..) if !retry => {
                format!("stays `{}`; --retry trains it again", row.status.name())
            }
            (_, Loss::Incomplete(_), _) => "will be resumed".to_owned(),
            (_, Loss::Damaged(_), Some(place)) => {
                format!("moved to {}, will be trained again", place.display())
            }
            (_, Loss::Damaged(_), None) => "will be moved aside and trained again".to_owned(),
            _ => "will be trained again".to_owned(),
        };
        output.warning(&format!("{}: {loss} ({}): {remedy}", row_label(definition, row), run.display()));
    }
}

/// Prints the cells of a sweep; `left` is the number of remaining runs of a sweep that was started.
fn print_dry_run(definition: &Definition, left: Option<usize>, output: &Output) -> Result {
    #[derive(Serialize)]
    struct Planned<'a> {
        keys: &'a [String],
        repetitions: usize,
        cells: Vec<&'a [String]>,
        #[serde(skip_serializing_if = "Option::is_none")]
        search: Option<&'static str>,
        #[serde(skip_serializing_if = "Option::is_none")]
        trials: Option<usize>,
        #[serde(skip_serializing_if = "Option::is_none")]
        left: Option<usize>,
    }
    let Definition { keys, repetitions, cells, search, .. } = definition;
    let planned = Planned {
        keys,
        repetitions: *repetitions,
        cells: cells.iter().map(|cell| &cell.values[..]).collect(),
        search: search.as_ref().map(|search| search.method.name()),
        trials: search.as_ref().map(|search| search.trials),
        left,
    };
    output.print_wrapped(&planned, || {
        let mut rows = vec![[vec!["cell".to_owned()], keys.clone()].concat()];
        rows.extend(
            cells
                .iter()
                .zip(1..)
                .map(|(cell, number): (_, usize)| [vec![number.to_string()], cell.values.clone()].concat()),
        );
        let all = definition.final_cells();
        let runs = all * repetitions;
        let later = match all - cells.len() {
            0 => String::new(),
            1 => "; 1 cell follows from the results of these".to_owned(),
            later => format!("; {later} cells follow from the results of these"),
        };
        let left = left.map_or(String::new(), |left| format!("; {left} remaining"));
        let runs = counted(runs as u64, "run");
        let cells = counted(all as u64, "cell");
        let repetitions = counted(*repetitions as u64, "repetition");
        format!("{}\n{runs}: {cells}, {repetitions} each{later}{left}\n", table(&rows))
    })
}

fn train(mut sweep: Sweep, arguments: &SweepArguments, output: &Output) -> Result {
    let lost = sweep.reopen_lost_rows()?;
    if arguments.retry {
        sweep.retry_failed()?;
    }
    let stop = signals::stop_flag()?;
    let path = sweep.path().to_owned();
    warn_of_lost_runs(&sweep.definition, &lost, arguments.retry, output);
    output.message(&format!(
        "sweep {}: {}",
        path.display(),
        counted(run_count(&sweep.definition) as u64, "run")
    ));
    let mut trainer = ProcessTrainer::new(&sweep, stop, *output);
    let stopped = sweep.train(&mut trainer)?;
    drop(trainer);
    // A run may have been removed meanwhile.
    let lost = if stopped { Vec::new() } else { sweep.reopen_lost_rows()? };
    for LostRun { row, run, loss, .. } in &lost {
        output.warning(&format!("{}: {loss} ({})", row_label(&sweep.definition, row), run.display()));
    }
    if stopped || sweep.rows().iter().any(|row| !row.status.is_settled()) {
        return Err(Failure {
            code: INTERRUPTED,
            error: "interrupted; the sweep can be resumed".into(),
            hint: Some(format!("resume with `stratus sweep {}`", shell_path(&path))),
        });
    }
    let report = write_report(&sweep, output)?;
    let cells = sweep.rows().iter().map(|row| {
        let values = &sweep.definition.cells[row.cell - 1].values;
        RowReport { row, name: sweep.definition.row_name(row), values }
    });
    let (keys, cells) = (&sweep.definition.keys[..], cells.collect());
    let outcome = SweepReport { sweep: &path, report, keys, cells, best: best_cell(&sweep) };
    output.print_wrapped(&outcome, || render(&sweep, &outcome, output.terminal_width()))?;
    let failed = sweep.rows().iter().filter(|row| row.status == Status::Failed).count();
    if failed > 0 {
        return Err(Failure::failed(format!(
            "{failed} of {} failed",
            counted(sweep.rows().len() as u64, "run")
        ))
        .with_hint(format!(
            "see {} for the reasons; retry with --retry",
            path.join(layout::CELLS).display()
        )));
    }
    Ok(())
}

/// The number of runs at the end of a sweep.
fn run_count(definition: &Definition) -> usize {
    definition.final_cells() * definition.repetitions
}

/// Returns the best cell of a search or of halving; `None` for a grid, whose cells are all trained alike.
fn best_cell(sweep: &Sweep) -> Option<BestCell> {
    let objective = sweep.definition.objective()?.as_str();
    let (cell, value) = sweep.best_cell()?;
    let name = sweep.definition.cell_name(&sweep.definition.cells[cell - 1]);
    Some(BestCell { cell, name, objective, value })
}

/// Writes the report that compares the runs; `None` if there are none. A run's label is its place in the
/// sweep and its values: `3/1 learning_rate=0.05`.
fn write_report(sweep: &Sweep, output: &Output) -> Result<Option<PathBuf>> {
    let (runs, labels): (Vec<PathBuf>, Vec<String>) = sweep
        .runs()
        .map(|(row, run)| {
            let name = sweep.definition.cell_name(&sweep.definition.cells[row.cell - 1]);
            (run, format!("{}/{} {name}", row.cell, row.repetition))
        })
        .unzip();
    let report = Report::read_labelled(&runs, labels, None, None);
    for problem in &report.problems {
        let run = problem.run.display();
        output.warning(&format!("{run}: cannot report {}: {}", problem.what, problem.reason));
    }
    if report.runs.is_empty() {
        return Ok(None);
    }
    let file = sweep.path().join(layout::REPORT);
    stratus_run::atomic::write(&file, page::render(&report).as_bytes())?;
    Ok(Some(file))
}

/// Renders one row per cell: the status of its runs, and the means of their results.
fn render(sweep: &Sweep, outcome: &SweepReport<'_>, width: Option<usize>) -> String {
    let Definition { keys, cells, .. } = &sweep.definition;
    let read = |(row, run): (_, PathBuf)| {
        let summary = Summary::read(&run.join(layout::SUMMARY)).ok()?;
        Some((row, summary, best_score(&run)))
    };
    let runs: Vec<_> = sweep.runs().filter_map(read).collect();
    let known = runs.iter().find_map(|(.., best)| best.map(|(score, _)| score));
    let score = known.unwrap_or(Score::Mixed { are_fractions: true });
    let heads = ["cell".to_owned()]
        .into_iter()
        .chain(keys.iter().cloned())
        .chain(["status", "runs", score.name(), "images/s", "total, s", "peak MiB"].map(str::to_owned));
    let mut rows = vec![heads.collect::<Vec<_>>()];
    for (number, cell) in (1..).zip(cells) {
        let of_cell: Vec<_> = runs.iter().filter(|(row, ..)| row.cell == number).collect();
        let mean = |value: &dyn Fn(&Summary, Option<f64>) -> Option<f64>| {
            let values: Vec<f64> = of_cell
                .iter()
                .filter_map(|(_, summary, best)| value(summary, best.map(|(_, best)| best)))
                .collect();
            (!values.is_empty()).then(|| values.iter().sum::<f64>() / values.len() as f64)
        };
        let number_or_dash = |value: Option<f64>, digits: usize| {
            value.map_or("–".to_owned(), |value| format!("{value:.digits$}"))
        };
        let peak =
            |summary: &Summary| summary.memory.device_peak_bytes.or(summary.memory.measured_peak_rss_bytes);
        let best = mean(&|_, best| best);
        let mut row = vec![number.to_string()];
        row.extend(cell.values.iter().cloned());
        row.push(statuses(sweep, number));
        row.push(of_cell.len().to_string());
        row.push(best.map_or("–".to_owned(), |best| score.text(best)));
        row.push(number_or_dash(mean(&|summary, _| summary.images_per_second.median), 1));
        row.push(number_or_dash(mean(&|summary, _| Some(summary.time.total_s)), 1));
        row.push(number_or_dash(mean(&|summary, _| peak(summary).map(|peak| peak as f64 / 1048576.0)), 0));
        rows.push(row);
    }
    let optional = ["peak MiB", "runs", "total, s"];
    let mut text = Table::new(&rows).max_width(width, &optional).to_string();
    let with_reason = sweep.rows().iter().filter(|row| !row.reason.is_empty());
    for row in with_reason {
        text.push_str(&format!("cell {}, run {}: {}\n", row.cell, row.repetition, row.reason));
    }
    if let Some(BestCell { cell, name, objective, value }) = &outcome.best {
        text.push_str(&format!("\nbest    cell {cell} ({name}): {objective} {value:.4}\n"));
    }
    if let Some(report) = &outcome.report {
        text.push_str(&format!("\nreport  {}\n", report.display()));
    }
    text
}

/// The best score of a run's validations.
fn best_score(run: &Path) -> Option<(Score, f64)> {
    let reader = CsvReader::<EpochRow>::open(&run.join(layout::EPOCHS)).ok()?;
    let task = reader.task();
    let epochs: Vec<EpochRow> = reader.collect::<stratus_run::Result<_>>().ok()?;
    Some((Score::Of(task), epochs.iter().filter_map(|row| val_score(task, row)).reduce(f64::max)?))
}

/// The status of the runs of a cell: `completed`, or `completed 2, failed 1`.
fn statuses(sweep: &Sweep, cell: usize) -> String {
    let of_cell: Vec<Status> =
        sweep.rows().iter().filter(|row| row.cell == cell).map(|row| row.status).collect();
    let count = |status: Status| of_cell.iter().filter(|other| **other == status).count();
    let counts: Vec<(Status, usize)> = Status::ALL
        .into_iter()
        .map(|status| (status, count(status)))
        .filter(|(_, count)| *count > 0)
        .collect();
    let words = |status: Status| status.name().replace('_', " ");
    match counts[..] {
        [(status, _)] => words(status),
        _ => {
            let parts: Vec<String> =
                counts.iter().map(|(status, count)| format!("{} {count}", words(*status))).collect();
            parts.join(", ")
        }
    }
}

/// Trains each row in a separate process, so that a crash of one does not end the sweep.
struct ProcessTrainer {
    stop: Arc<AtomicBool>,
    output: Output,
    bar: Option<ProgressBar>,
    /// The label of the row being trained, for progress lines.
    current_row: String,
}

impl ProcessTrainer {
    fn new(sweep: &Sweep, stop: Arc<AtomicBool>, output: Output) -> Self {
        let bar = (!output.quiet() && std::io::stderr().is_terminal()).then(|| {
            let length = run_count(&sweep.definition) as u64;
            let bar = ProgressBar::with_draw_target(Some(length), ProgressDrawTarget::stderr());
            if let Ok(style) = ProgressStyle::with_template("{pos}/{len} runs  {wide_msg}") {
                bar.set_style(style);
            }
            bar
        });
        Self { stop, output, bar, current_row: String::new() }
    }

    /// Prints a permanent line, above the progress bar if there is one.
    fn print_line(&self, text: &str) {
        match &self.bar {
            Some(bar) => bar.suspend(|| self.output.message(text)),
            None => self.output.message(text),
        }
    }
}

impl Trainer for ProcessTrainer {
    fn is_stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    fn on_start(&mut self, sweep: &Sweep, row: &Row) {
        let settled = sweep.rows().iter().filter(|row| row.status.is_settled()).count();
        if let Some(bar) = &self.bar {
            bar.set_position(settled as u64);
        }
        self.current_row = row_label(&sweep.definition, row);
    }

    fn memory_shortage(&mut self, experiment: &Experiment) -> Option<String> {
        // Errors of the experiment are reported by its process.
        memory_shortage(experiment).ok().flatten()
    }

    fn train(&mut self, experiment: &Experiment, run: &Path, until: Option<u64>) -> RowOutcome {
        let (bar, label, output) = (self.bar.clone(), self.current_row.clone(), self.output);
        let show = move |line: &str| match &bar {
            Some(bar) => bar.set_message(format!("{label}  {line}")),
            None if line.starts_with("epoch ") => output.message(&format!("{label}  {line}")),
            None => {}
        };
        train_in_process(experiment, run, until, INTERRUPTED, &self.stop, &show)
    }

    fn on_end(&mut self, sweep: &Sweep, row: &Row) {
        let reason = if row.reason.is_empty() { String::new() } else { format!(": {}", row.reason) };
        self.print_line(&format!(
            "{}  {}{reason}",
            row_label(&sweep.definition, row),
            row.status.name().replace('_', " ")
        ));
    }
}

impl Drop for ProcessTrainer {
    fn drop(&mut self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

/// The label of a row: `cell 3 (batch_size=64 width=8 run 2)`.
fn row_label(definition: &Definition, row: &Row) -> String {
    format!("cell {} ({})", row.cell, definition.row_name(row))
}

#[cfg(test)]
mod tests {
    use stratus_engine::EngineError;
    use stratus_sweep::OUT_OF_MEMORY_PREFIX;

    #[test]
    fn prefix_matches_the_out_of_memory_error_of_the_engine() {
        let error = EngineError::OutOfMemory { purpose: "the arena".to_owned(), bytes: 1, free: None };
        assert!(error.to_string().starts_with(OUT_OF_MEMORY_PREFIX), "{error}");
    }
}
