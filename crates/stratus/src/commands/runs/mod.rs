//! `stratus runs`: lists, finds, labels and deletes runs.

mod labels;

use super::config::check_keys;
use super::target::nearest_path;
use crate::errors::{Failure, Result};
use crate::output::{Output, Table};
use crate::progress::clock;
use clap::{Args, Subcommand, ValueEnum};
use std::cmp::Ordering;
use std::fs;
use std::io::{self, BufRead, IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;
use stratus_base::nearest;
use stratus_base::text::{duration, shell_path};
use stratus_report::query::RunQuery;
use stratus_report::runs::{self, ListedForecast, RunList, RunListing, UnreadableRun};
use stratus_report::text::fetched_ago;
use stratus_run::RunDir;
use stratus_run::git::GitCommit;
use stratus_run::labels::RunLabels;
use stratus_run::layout::RUNS;
use stratus_run::summary::Status;
use stratus_sweep::Sweep;

/// Arguments of `stratus runs`.
#[derive(Args, Debug)]
#[command(args_conflicts_with_subcommands = true)]
pub struct RunsArguments {
    /// The subcommand; if omitted, runs are listed.
    #[command(subcommand)]
    pub command: Option<RunsCommand>,
    /// Run directories, or folders with run directories [default: runs]
    #[arg(value_name = "FOLDER|RUN")]
    pub paths: Vec<PathBuf>,
    /// List only runs with this status
    #[arg(long, value_name = "STATUS", value_parser = ["running", "completed", "interrupted", "failed"])]
    pub status: Option<String>,
    /// List only runs with this configuration value, like train.batch_size=64; repeatable
    #[arg(long = "where", value_name = "KEY=VALUE", value_parser = crate::globals::parse_key_value)]
    pub filter: Vec<(String, String)>,
    /// Sort order
    #[arg(long, value_enum, default_value_t = Order::Path)]
    pub sort: Order,
    /// Show the forecast and the measured time of each run, and the part with the largest error
    #[arg(long)]
    pub forecast: bool,
}

/// Subcommands of `stratus runs`.
#[derive(Debug, Subcommand)]
pub enum RunsCommand {
    /// Delete run directories after confirmation; running ones are never deleted
    Rm {
        /// Run directories
        #[arg(value_name = "RUN", required = true)]
        runs: Vec<PathBuf>,
        /// Do not ask for confirmation
        #[arg(long, short)]
        yes: bool,
    },
    /// Add tags to runs, and remove some
    Tag(labels::TagArguments),
    /// Set or remove the note of a run
    Note(labels::NoteArguments),
    /// Set or remove the name of a run
    Name(labels::NameArguments),
    /// List the runs that match a query
    Find(FindArguments),
}

/// Arguments of `stratus runs find`.
#[derive(Args, Debug)]
#[command(
    after_help = "A run must match every word. A word is a text that its path, name, note, tags, network, \
                  data set, experiment, branch, or the beginning of its commit contains; or such a field and \
                  a text, like tag:baseline, commit:3f2a9c or status:failed; or a configuration key and its \
                  value, like train.batch_size=64."
)]
pub struct FindArguments {
    /// Words of the query
    #[arg(value_name = "WORD", required = true)]
    pub words: Vec<String>,
    /// Folder to search; repeatable [default: runs]
    #[arg(long = "in", value_name = "FOLDER")]
    pub folders: Vec<PathBuf>,
    /// Sort order
    #[arg(long, value_enum, default_value_t = Order::Path)]
    pub sort: Order,
}

/// The sort order of runs: best, fastest or longest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Order {
    /// Path, with numbers in numeric order
    Path,
    /// Best validation score
    Score,
    /// Images per second
    Speed,
    /// Total time
    Time,
}

/// Runs `stratus runs`.
///
/// # Errors
/// If a folder cannot be searched, or a run cannot be removed.
pub fn run(arguments: &RunsArguments, output: &Output) -> Result {
    match &arguments.command {
        Some(RunsCommand::Rm { runs, yes }) => return remove_runs(runs, *yes, output),
        Some(RunsCommand::Tag(arguments)) => return labels::tag(arguments, output),
        Some(RunsCommand::Note(arguments)) => return labels::note(arguments, output),
        Some(RunsCommand::Name(arguments)) => return labels::name(arguments, output),
        Some(RunsCommand::Find(arguments)) => return find_runs(arguments, output),
        None => {}
    }
    check_keys(arguments.filter.iter().map(|(key, _)| key.as_str()))?;
    let mut list = read_runs(&arguments.paths, output)?;
    list.runs.retain(|line| {
        arguments.status.as_ref().is_none_or(|status| line.status.name() == status)
            && arguments.filter.iter().all(|(key, value)| line.has_setting(key, value.trim()))
    });
    sort(&mut list.runs, arguments.sort);
    let render = if arguments.forecast { render_forecasts } else { render };
    output.print_wrapped(&list, || render(&list.runs, output.terminal_width()))
}

/// Runs `stratus runs find`.
fn find_runs(arguments: &FindArguments, output: &Output) -> Result {
    let query = RunQuery::parse(&arguments.words)
        .map_err(|error| Failure::usage(error).with_hint("`stratus runs find --help` explains queries"))?;
    check_keys(query.keys())?;
    let mut list = read_runs(&arguments.folders, output)?;
    list.runs.retain(|line| query.matches(line));
    sort(&mut list.runs, arguments.sort);
    output.print_wrapped(&list, || render(&list.runs, output.terminal_width()))
}

/// Reads the runs of folders, by default of `runs`, with a warning for what cannot be read.
fn read_runs(paths: &[PathBuf], output: &Output) -> Result<RunList> {
    let list = match paths {
        // Without the default folder there are no runs yet.
        [] if !Path::new(RUNS).exists() => RunList::default(),
        [] => runs::list(&[RUNS])?,
        paths => runs::list(paths).map_err(|error| explain_missing(error.into(), paths))?,
    };
    for UnreadableRun { path, reason } in &list.unreadable {
        output.warning(&format!("cannot list {}: {reason}", path.display()));
    }
    list.problems.iter().for_each(|problem| output.warning(problem));
    Ok(list)
}

/// Adds a hint to the error for a path that does not exist: the nearest subcommand or path.
fn explain_missing(failure: Failure, paths: &[PathBuf]) -> Failure {
    let Some(missing) = paths.iter().find(|path| !path.exists()) else { return failure };
    let commands = RunsCommand::augment_subcommands(clap::Command::new("runs"));
    let names = commands.get_subcommands().map(clap::Command::get_name);
    if let Some(near) = missing.to_str().and_then(|word| nearest(word, names)) {
        return failure.with_hint(format!("did you mean `stratus runs {near}`?"));
    }
    match nearest_path(missing) {
        Some(near) => failure.with_hint(format!("did you mean {}?", shell_path(&near))),
        None => failure,
    }
}

fn sort(lines: &mut [RunListing], order: Order) {
    let descending = |a: Option<f64>, b: Option<f64>| match (a, b) {
        (Some(a), Some(b)) => b.total_cmp(&a),
        (a, b) => b.is_some().cmp(&a.is_some()),
    };
    lines.sort_by(|a, b| match order {
        Order::Path => Ordering::Equal,
        Order::Score => descending(a.best, b.best),
        Order::Speed => descending(a.images_per_second, b.images_per_second),
        Order::Time => descending(a.total_s, b.total_s),
    });
}

/// Columns that are hidden on a narrow terminal, in this order.
const OPTIONAL_COLUMNS: [&str; 8] = ["commit", "time", "note", "data", "images/s", "network", "tags", "name"];
/// The columns that are shown only if a run has a value.
const LABEL_COLUMNS: [&str; 5] = ["trained on", "name", "tags", "note", "commit"];
/// Maximum length of a note in the table, in characters.
const MAX_NOTE_CHARS: usize = 32;

fn render(lines: &[RunListing], width: Option<usize>) -> String {
    if lines.is_empty() {
        return "no runs\n".to_owned();
    }
    let labels: Vec<[String; 5]> = lines.iter().map(label_cells).collect();
    let has = |column: &usize| labels.iter().any(|cells| !cells[*column].is_empty());
    let shown: Vec<usize> = (0..LABEL_COLUMNS.len()).filter(has).collect();
    let mut heads: Vec<&str> = vec!["run", "status"];
    heads.extend(shown.iter().map(|column| LABEL_COLUMNS[*column]));
    heads.extend(["network", "data", "epochs", "best score", "loss", "images/s", "time", "differs in"]);
    let mut rows: Vec<Vec<String>> = vec![heads.into_iter().map(str::to_owned).collect()];
    let dash = || "–".to_owned();
    for (line, labels) in lines.iter().zip(&labels) {
        let of_epochs = line.of_epochs.map_or(String::new(), |epochs| format!("/{epochs}"));
        let score = line.score.zip(line.best);
        let score = score.map(|(score, best)| format!("{} {}", score.name(), score.text(best)));
        let differs: Vec<String> =
            line.differences.iter().map(|(key, value)| format!("{key}={value}")).collect();
        let mut row = vec![line.path.display().to_string(), line.status.name().to_owned()];
        row.extend(shown.iter().map(|column| labels[*column].clone()));
        row.extend([
            line.network.clone(),
            line.data_label(),
            format!("{}{of_epochs}", line.epochs),
            score.unwrap_or_else(dash),
            line.train_loss.map_or_else(dash, |loss| format!("{loss:.4}")),
            line.images_per_second.map_or_else(dash, |rate| format!("{rate:.1}")),
            line.total_s.map_or_else(dash, |seconds| clock(Duration::from_secs_f64(seconds.max(0.0)))),
            differs.join(" "),
        ]);
        rows.push(row);
    }
    if rows.iter().skip(1).all(|row| row.last().is_some_and(String::is_empty)) {
        rows.iter_mut().for_each(|row| row.truncate(row.len() - 1));
        return Table::new(&rows).keep_names_whole().max_width(width, &OPTIONAL_COLUMNS).to_string();
    }
    Table::new(&rows).keep_names_whole().wrap_last_column().max_width(width, &OPTIONAL_COLUMNS).to_string()
}

/// The cells of [`LABEL_COLUMNS`]; empty for what a run does not have.
fn label_cells(line: &RunListing) -> [String; 5] {
    let trained_on = line.remote.as_ref().map_or(String::new(), |remote| match line.status {
        Status::Completed => remote.place(),
        _ => format!("{}, {}", remote.place(), fetched_ago(remote)),
    });
    let RunLabels { name, tags, git, .. } = &line.labels;
    let commit = git.as_ref().map(GitCommit::short).unwrap_or_default();
    let note = line.labels.note_line(MAX_NOTE_CHARS).unwrap_or_default();
    [trained_on, name.clone().unwrap_or_default(), tags.join(" "), note, commit]
}

/// Columns of forecasts that are hidden on a narrow terminal, in this order.
const OPTIONAL_FORECAST_COLUMNS: [&str; 2] = ["network", "epochs"];

/// Forecast and measured time of each run.
fn render_forecasts(lines: &[RunListing], width: Option<usize>) -> String {
    if lines.is_empty() {
        return "no runs\n".to_owned();
    }
    let heads = ["run", "status", "network", "epochs", "forecast", "measured", "error", "largest error"];
    let dash = || "–".to_owned();
    let rows = lines.iter().map(|line| {
        let seconds = |seconds: fn(&ListedForecast) -> f64| {
            line.forecast.as_ref().map_or_else(dash, |forecast| duration(seconds(forecast)))
        };
        let percent = line.forecast.and_then(|forecast| forecast.error_percent);
        let largest = line.forecast.and_then(|forecast| forecast.largest_error.zip(forecast.largest_error_s));
        let largest = largest.map(|(part, seconds)| {
            let sign = if seconds < 0.0 { '-' } else { '+' };
            format!("{}, {sign}{}", part.name(), duration(seconds.abs()))
        });
        vec![
            line.path.display().to_string(),
            line.status.name().to_owned(),
            line.network.clone(),
            line.epochs.to_string(),
            seconds(|forecast| forecast.forecast_s),
            seconds(|forecast| forecast.measured_s),
            percent.map_or_else(dash, |percent| format!("{percent:+.1} %")),
            largest.unwrap_or_else(dash),
        ]
    });
    let rows: Vec<Vec<String>> = std::iter::once(heads.map(str::to_owned).to_vec()).chain(rows).collect();
    let table = Table::new(&rows).keep_names_whole().max_width(width, &OPTIONAL_FORECAST_COLUMNS).to_string();
    if lines.iter().all(|line| line.forecast.is_none()) {
        return table + "no run had a forecast: it needs train.forecast, train.deadline or train.budget\n";
    }
    table
}

fn remove_runs(paths: &[PathBuf], yes: bool, output: &Output) -> Result {
    // All paths are checked before the first run is removed.
    let runs = paths.iter().map(|path| RunDir::open(path)).collect::<stratus_run::Result<Vec<_>>>();
    let runs = runs.map_err(Failure::usage)?;
    if !yes {
        if !io::stdin().is_terminal() {
            return Err(Failure::usage("cannot ask for confirmation: standard input is not a terminal")
                .with_hint("use --yes to remove runs without confirmation"));
        }
        let names: Vec<String> = runs.iter().map(|run| run.path().display().to_string()).collect();
        // Write errors are ignored; nothing is removed unless the user confirms.
        let _ = write!(io::stderr(), "permanently remove {}? [y/N] ", names.join(", "));
        let mut answer = String::new();
        io::stdin().lock().read_line(&mut answer).map_err(Failure::failed)?;
        if !matches!(answer.trim(), "y" | "Y" | "yes") {
            output.message("nothing removed");
            return Ok(());
        }
    }
    for run in &runs {
        // The lock is held until the run is removed, so that no process resumes it meanwhile.
        let lock = run.lock()?;
        let path = run.path();
        let sweep = parent_sweep(path);
        // Symbolic links are removed, not followed.
        fs::remove_dir_all(path)
            .map_err(|error| Failure::failed(format!("cannot remove {}: {error}", path.display())))?;
        drop(lock);
        output.message(&format!("removed {}", path.display()));
        if let Some(sweep) = sweep {
            let sweep = shell_path(&sweep);
            output.message(&format!("the run belongs to a sweep: `stratus sweep {sweep}` trains it again"));
        }
    }
    Ok(())
}

/// Returns the directory of the sweep that a run belongs to.
fn parent_sweep(run: &Path) -> Option<PathBuf> {
    // A relative path may begin inside the sweep, so the sweep is looked for with the absolute path.
    let absolute = std::path::absolute(run).ok()?;
    let sweep_of = |path: &Path| path.ancestors().nth(3).map(Path::to_owned);
    let sweep = sweep_of(&absolute).filter(|sweep| Sweep::is_sweep(sweep))?;
    let is_in_runs_folder = |name: &Path| name.starts_with(RUNS);
    absolute.strip_prefix(&sweep).is_ok_and(is_in_runs_folder).then_some(())?;
    sweep_of(run).filter(|path| !path.as_os_str().is_empty()).or(Some(sweep))
}
