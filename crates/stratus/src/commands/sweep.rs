//! `stratus sweep`: an experiment for every combination of keys, repeated, each a run of its own.

mod child;

use crate::cli::Globals;
use crate::errors::{Failure, INTERRUPTED, Result};
use crate::output::{Output, Table, bytes, table};
use crate::signals;
use child::Child;
use clap::Args;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use serde::Serialize;
use std::fs::{self, File, TryLockError};
use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use stratus_report::page;
use stratus_report::report::{Report, score_name};
use stratus_run::csv::{CsvReader, EpochRow, Task};
use stratus_run::summary::Summary;
use stratus_run::{RunDir, layout};
use stratus_sweep::{BUILTIN, Definition, Ended, Loss, Lost, Row, Status, Sweep, Trainer};
use stratus_train::compile::{self, FittedRun, KernelSelection};
use stratus_train::experiment::nearest;
use stratus_train::input::open_datasets;
use stratus_train::network::Network;
use stratus_train::{Experiment, Resolved, TrainError, device};

/// How long a run's former process, asked to stop, may take to be gone.
const PATIENCE: Duration = Duration::from_secs(120);

/// Arguments of `stratus sweep`.
#[derive(Args, Debug)]
pub struct SweepArguments {
    /// A sweep file, a built-in sweep (digits-batch-filters, camvid-batch, layer-times, throughput), or a
    /// sweep's directory to continue
    #[arg(value_name = "FILE|SWEEP")]
    pub target: String,
    /// Directory of the sweep [default: sweeps/NAME]
    #[arg(long, value_name = "DIR")]
    pub out: Option<PathBuf>,
    /// Train again what failed or did not fit
    #[arg(long)]
    pub retry: bool,
    /// Show what would be trained, and train nothing
    #[arg(long)]
    pub dry_run: bool,
}

/// What `stratus sweep` reports.
#[derive(Serialize)]
struct Outcome<'a> {
    sweep: &'a Path,
    report: Option<PathBuf>,
    keys: &'a [String],
    cells: Vec<CellOutcome<'a>>,
}

#[derive(Serialize)]
struct CellOutcome<'a> {
    #[serde(flatten)]
    row: &'a Row,
    values: &'a [String],
}

/// Runs `stratus sweep`.
///
/// # Errors
/// Where the sweep is wrong, was interrupted, or one of its runs failed.
pub fn run(arguments: &SweepArguments, globals: &Globals, output: &Output) -> Result {
    let path = Path::new(&arguments.target);
    if Sweep::is_sweep(path) {
        let given = [("--out", arguments.out.is_some()), ("--set", !globals.set.is_empty())];
        if let Some((what, _)) = given.iter().find(|(_, given)| *given) {
            return Err(Failure::usage(format!("{what} cannot be given to a sweep that is continued"))
                .hint("a continued sweep keeps its experiments; start a new one to change them"));
        }
        if arguments.dry_run {
            let (definition, rows, lost) = Sweep::look(path)?;
            tell(&definition, &lost, arguments.retry, output);
            let is_left = |row: &&Row| {
                let failed = matches!(row.status, Status::Failed | Status::DoesNotFit);
                let again = || lost.iter().any(|lost| lost.row == **row);
                if failed { arguments.retry } else { !row.status.is_settled() || again() }
            };
            return show(&definition, Some(rows.iter().filter(is_left).count()), output);
        }
        return train(Sweep::open(path)?, arguments, output);
    }
    let (text, path) = match stratus_sweep::builtin(&arguments.target) {
        Some(builtin) => (builtin.text.to_owned(), PathBuf::from(format!("built-in sweep {}", builtin.name))),
        None => (file(path)?, path.to_owned()),
    };
    let mut definition = Definition::parse(&text, &path, &globals.set)?;
    if let Some(builtin) = stratus_sweep::builtin(&arguments.target) {
        builtin.name.clone_into(&mut definition.name);
    }
    if arguments.dry_run {
        return show(&definition, None, output);
    }
    let folder = arguments.out.clone().unwrap_or_else(|| Path::new("sweeps").join(&definition.name));
    let text = definition.with_command(&text, &path)?;
    train(Sweep::create(&folder, definition, &text)?, arguments, output)
}

fn read(path: &Path) -> Result<String> {
    fs::read_to_string(path)
        .map_err(|source| stratus_sweep::Error::Read { path: path.to_owned(), source }.into())
}

/// The text of a sweep file, or what else was named.
fn file(path: &Path) -> Result<String> {
    let name = path.display().to_string();
    if path.is_dir() {
        let what = if RunDir::is_run(path) { "a run: continue it with `stratus train`" } else { "no sweep" };
        return Err(
            Failure::usage(format!("{name} is {what}")).hint("give a sweep file, or a sweep's directory")
        );
    }
    if !path.exists() && path.extension().is_none() && path.components().count() == 1 {
        let names: Vec<&str> = BUILTIN.iter().map(|builtin| builtin.name).collect();
        let hint = match nearest(&name, names.iter().copied()) {
            Some(near) => format!("did you mean `{near}`?"),
            None => format!("give a sweep file, a sweep's directory, or one of {}", names.join(", ")),
        };
        return Err(Failure::usage(format!("no sweep or file is named `{name}`")).hint(hint));
    }
    read(path)
}

/// Says which rows have lost their run, and what becomes of them.
fn tell(definition: &Definition, lost: &[Lost], retry: bool, output: &Output) {
    for Lost { row, run, loss, moved_to } in lost {
        let then = match (row.status, loss, moved_to) {
            (Status::Failed | Status::DoesNotFit, ..) if !retry => {
                format!("it stays `{}`; --retry trains it again", row.status.name())
            }
            (_, Loss::Incomplete(_), _) => "it is continued".to_owned(),
            (_, Loss::Damaged(_), Some(place)) => {
                format!("it is moved to {}, and trained again", place.display())
            }
            (_, Loss::Damaged(_), None) => "it is moved aside, and trained again".to_owned(),
            _ => "it is trained again".to_owned(),
        };
        output.warning(&format!("{}: {loss} ({}): {then}", name(definition, row), run.display()));
    }
}

/// Shows the cells of a sweep; `left` is the number of runs that a sweep that has begun still has to train.
fn show(definition: &Definition, left: Option<usize>, output: &Output) -> Result {
    #[derive(Serialize)]
    struct Planned<'a> {
        keys: &'a [String],
        repetitions: usize,
        cells: Vec<&'a [String]>,
        #[serde(skip_serializing_if = "Option::is_none")]
        left: Option<usize>,
    }
    let Definition { keys, repetitions, cells, .. } = definition;
    let planned = Planned {
        keys,
        repetitions: *repetitions,
        cells: cells.iter().map(|cell| &cell.values[..]).collect(),
        left,
    };
    output.result(&planned, || {
        let mut rows = vec![[vec!["cell".to_owned()], keys.clone()].concat()];
        rows.extend(
            cells
                .iter()
                .zip(1..)
                .map(|(cell, number): (_, usize)| [vec![number.to_string()], cell.values.clone()].concat()),
        );
        let runs = cells.len() * repetitions;
        let left = left.map_or(String::new(), |left| format!("; {left} are left to train"));
        format!("{}\n{runs} runs: {} cells, {repetitions} of each{left}\n", table(&rows), cells.len())
    })
}

fn train(mut sweep: Sweep, arguments: &SweepArguments, output: &Output) -> Result {
    let lost = sweep.reopen_lost()?;
    if arguments.retry {
        sweep.retry_failed()?;
    }
    let stop = signals::stop_flag()?;
    let path = sweep.path().to_owned();
    tell(&sweep.definition, &lost, arguments.retry, output);
    output.message(&format!("sweep {}: {} runs", path.display(), sweep.rows().len()));
    let mut trainer = Processes::new(&sweep, stop, *output);
    let stopped = sweep.train(&mut trainer)?;
    drop(trainer);
    // A run may have been removed meanwhile.
    let lost = if stopped { Vec::new() } else { sweep.reopen_lost()? };
    for Lost { row, run, loss, .. } in &lost {
        output.warning(&format!("{}: {loss} ({})", name(&sweep.definition, row), run.display()));
    }
    if stopped || sweep.rows().iter().any(|row| !row.status.is_settled()) {
        return Err(Failure {
            code: INTERRUPTED,
            error: "interrupted; the sweep can be continued".into(),
            hint: Some(format!("continue it with `stratus sweep {}`", path.display())),
        });
    }
    let runs: Vec<PathBuf> = sweep.runs().map(|(_, run)| run).collect();
    let report = if runs.is_empty() { None } else { write_report(&path, &runs, output)? };
    let cells = sweep.rows().iter().map(|row| {
        let values = &sweep.definition.cells[row.cell - 1].values;
        CellOutcome { row, values }
    });
    let (keys, cells) = (&sweep.definition.keys[..], cells.collect());
    let outcome = Outcome { sweep: &path, report, keys, cells };
    output.result(&outcome, || render(&sweep, &outcome, output.narrow()))?;
    let failed = sweep.rows().iter().filter(|row| row.status == Status::Failed).count();
    if failed > 0 {
        return Err(Failure::failed(format!("{failed} of {} runs failed", sweep.rows().len())).hint(
            format!("{} says why; train them again with --retry", path.join(stratus_sweep::CELLS).display()),
        ));
    }
    Ok(())
}

/// The page that compares the runs.
fn write_report(path: &Path, runs: &[PathBuf], output: &Output) -> Result<Option<PathBuf>> {
    let report = Report::of(runs, None, None);
    for problem in &report.problems {
        let run = problem.run.display();
        output.warning(&format!("{run}: {} cannot be reported: {}", problem.what, problem.reason));
    }
    if report.runs.is_empty() {
        return Ok(None);
    }
    let file = path.join(stratus_sweep::REPORT);
    stratus_run::atomic::write(&file, page::render(&report).as_bytes())?;
    Ok(Some(file))
}

/// A line for each cell: how its runs ended, and the mean of what they measured.
fn render(sweep: &Sweep, outcome: &Outcome<'_>, width: Option<usize>) -> String {
    let Definition { keys, cells, .. } = &sweep.definition;
    let read = |(row, run): (_, PathBuf)| {
        let summary = Summary::read(&run.join(layout::SUMMARY)).ok()?;
        Some((row, summary, best(&run)))
    };
    let runs: Vec<(&Row, Summary, Option<Score>)> = sweep.runs().filter_map(read).collect();
    let score = runs.iter().find_map(|(.., best)| best.map(|(name, _)| name)).unwrap_or("score");
    let heads = ["cell".to_owned()]
        .into_iter()
        .chain(keys.iter().cloned())
        .chain(["status", "runs", score, "images/s", "s in all", "MiB at most"].map(str::to_owned));
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
        let percent = mean(&|_, best| best).map(|best| best * 100.0);
        let mut row = vec![number.to_string()];
        row.extend(cell.values.iter().cloned());
        row.push(statuses(sweep, number));
        row.push(of_cell.len().to_string());
        row.push(percent.map_or("–".to_owned(), |percent| format!("{percent:.2} %")));
        row.push(number_or_dash(mean(&|summary, _| summary.images_per_second.median), 1));
        row.push(number_or_dash(mean(&|summary, _| Some(summary.time.total_s)), 1));
        row.push(number_or_dash(mean(&|summary, _| peak(summary).map(|peak| peak as f64 / 1048576.0)), 0));
        rows.push(row);
    }
    let optional = ["MiB at most", "runs", "s in all"];
    let mut text = Table::new(&rows).within(width, &optional).to_string();
    let told = sweep.rows().iter().filter(|row| !row.reason.is_empty());
    for row in told {
        text.push_str(&format!("cell {}, run {}: {}\n", row.cell, row.repetition, row.reason));
    }
    if let Some(report) = &outcome.report {
        text.push_str(&format!("\nreport  {}\n", report.display()));
    }
    text
}

/// A score with its name.
type Score = (&'static str, f64);

/// The best score of a run's validations.
fn best(run: &Path) -> Option<Score> {
    let reader = CsvReader::<EpochRow>::open(&run.join(layout::EPOCHS)).ok()?;
    let task = reader.task();
    let epochs: Vec<EpochRow> = reader.collect::<stratus_run::Result<_>>().ok()?;
    let score = |row: &EpochRow| match task {
        Task::Classification => row.val_accuracy,
        Task::Segmentation => row.val_miou,
    };
    Some((score_name(task), epochs.iter().filter_map(score).reduce(f64::max)?))
}

/// How the runs of a cell ended: `completed`, or `completed 2, failed 1`.
fn statuses(sweep: &Sweep, cell: usize) -> String {
    let of_cell: Vec<Status> =
        sweep.rows().iter().filter(|row| row.cell == cell).map(|row| row.status).collect();
    let counts =
        Status::ALL.into_iter().map(|status| (status, of_cell.iter().filter(|of| **of == status).count()));
    let counts: Vec<(Status, usize)> = counts.filter(|(_, count)| *count > 0).collect();
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

/// Trains each row in a process of its own, so that what ends one does not end the sweep.
struct Processes {
    stop: Arc<AtomicBool>,
    output: Output,
    bar: Option<ProgressBar>,
    /// What is trained, for the line of progress.
    now: String,
}

impl Processes {
    fn new(sweep: &Sweep, stop: Arc<AtomicBool>, output: Output) -> Self {
        let bar = (!output.quiet() && std::io::stderr().is_terminal()).then(|| {
            let length = sweep.rows().len() as u64;
            let bar = ProgressBar::with_draw_target(Some(length), ProgressDrawTarget::stderr());
            if let Ok(style) = ProgressStyle::with_template("{pos}/{len} runs  {wide_msg}") {
                bar.set_style(style);
            }
            bar
        });
        Self { stop, output, bar, now: String::new() }
    }

    /// A line that stays.
    fn say(&self, text: &str) {
        match &self.bar {
            Some(bar) => bar.suspend(|| self.output.message(text)),
            None => self.output.message(text),
        }
    }

    /// Claims a run for a process of this sweep. One that a killed sweep began has the claim until
    /// it is gone,
    /// also before there is anything in the run's directory.
    fn claim(&self, run: &Path) -> std::result::Result<File, Ended> {
        let path = run.with_extension(child::OUTPUT);
        let failed =
            |error: std::io::Error| Ended::Failed(format!("cannot open {}: {error}", path.display()));
        path.parent().map_or(Ok(()), fs::create_dir_all).map_err(failed)?;
        let open = File::options().create(true).truncate(false).write(true).open(&path);
        let file = open.map_err(failed)?;
        let mut left = PATIENCE;
        let step = Duration::from_millis(50);
        loop {
            match file.try_lock() {
                Ok(()) => break,
                Err(TryLockError::WouldBlock) if self.is_stopped() => return Err(Ended::Interrupted),
                Err(TryLockError::WouldBlock) if left.is_zero() => {
                    return Err(Ended::Failed("a process of a former sweep trains it still".to_owned()));
                }
                Err(TryLockError::WouldBlock) => {
                    std::thread::sleep(step);
                    left = left.saturating_sub(step);
                }
                Err(TryLockError::Error(error)) => return Err(failed(error)),
            }
        }
        file.set_len(0).map_err(failed)?;
        Ok(file)
    }
}

impl Trainer for Processes {
    fn is_stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    fn begins(&mut self, sweep: &Sweep, row: &Row) {
        let settled = sweep.rows().iter().filter(|row| row.status.is_settled()).count();
        if let Some(bar) = &self.bar {
            bar.set_position(settled as u64);
        }
        self.now = name(&sweep.definition, row);
    }

    fn shortage(&mut self, experiment: &Experiment) -> Option<String> {
        // What is wrong with the experiment its process says.
        shortage(experiment).ok().flatten()
    }

    fn train(&mut self, experiment: &Experiment, run: &Path, until: Option<u64>) -> Ended {
        let claim = match self.claim(run) {
            Ok(claim) => claim,
            Err(ended) => return ended,
        };
        let mut child = match Child::begin(experiment, run, until, claim) {
            Ok(child) => child,
            Err(reason) => return Ended::Failed(reason),
        };
        let (bar, now, output) = (self.bar.clone(), self.now.clone(), self.output);
        let show = move |line: &str| match &bar {
            Some(bar) => bar.set_message(format!("{now}  {line}")),
            None if line.starts_with("epoch ") => output.message(&format!("{now}  {line}")),
            None => {}
        };
        child.wait(&self.stop, &show)
    }

    fn ended(&mut self, sweep: &Sweep, row: &Row) {
        let reason = if row.reason.is_empty() { String::new() } else { format!(": {}", row.reason) };
        self.say(&format!(
            "{}  {}{reason}",
            name(&sweep.definition, row),
            row.status.name().replace('_', " ")
        ));
    }
}

impl Drop for Processes {
    fn drop(&mut self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

/// `cell 3 (train.batch_size = 64) run 2`.
fn name(definition: &Definition, row: &Row) -> String {
    let cell = &definition.cells[row.cell - 1];
    let run = if definition.repetitions > 1 { format!(" run {}", row.repetition) } else { String::new() };
    format!("cell {} ({}){run}", row.cell, definition.described(cell))
}

/// Why an experiment cannot be trained in this machine's memory: what is known of its program at first, so
/// that nothing is measured that cannot be had, then what its plan says.
fn shortage(experiment: &Experiment) -> std::result::Result<Option<String>, TrainError> {
    let dataset = open_datasets(experiment)?.train;
    let graph = Network::of(experiment, dataset.as_ref())?.graph;
    let device = device::open(&experiment.train)?;
    let Some(there) = device.memory_bytes else { return Ok(None) };
    let resolved = Resolved::new(experiment, dataset.as_ref(), &graph, &device)?;
    let short = |needs: usize, word: &str| {
        let needed = needs as u64;
        (needed > there).then(|| format!("needs {word}{}, {} are there", bytes(needed), bytes(there)))
    };
    if experiment.train.memory_limit_mib.is_none() {
        let programs = compile::programs(&resolved, &graph, &device)?;
        if let Some(reason) = short(compile::least_bytes(&programs), "at least ") {
            return Ok(Some(reason));
        }
    }
    let fitted = compile::fit(resolved, &graph, &device, &KernelSelection::Cached, None, &mut |_| {})?;
    let FittedRun { planned, .. } = fitted;
    Ok(short(planned.arena_bytes(), ""))
}
