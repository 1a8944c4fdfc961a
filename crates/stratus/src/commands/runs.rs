//! `stratus runs`: what there is, and removing what is wanted no longer.

use crate::errors::{Failure, Result};
use crate::output::{Output, Table};
use crate::progress::clock;
use clap::{Args, Subcommand, ValueEnum};
use serde::Serialize;
use std::cmp::Ordering;
use std::fs;
use std::io::{self, BufRead, IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;
use stratus_report::runs::{self, RunLine, Unlisted};
use stratus_run::RunDir;
use stratus_sweep::Sweep;

/// Where runs are without being told.
const RUNS: &str = "runs";

/// Arguments of `stratus runs`.
#[derive(Args, Debug)]
#[command(args_conflicts_with_subcommands = true)]
pub struct RunsArguments {
    /// What else to do with them.
    #[command(subcommand)]
    pub action: Option<Action>,
    /// Run directories, or folders that hold some [default: runs]
    #[arg(value_name = "FOLDER|RUN")]
    pub paths: Vec<PathBuf>,
    /// Only runs of this status: running, completed, interrupted, failed
    #[arg(long, value_name = "STATUS", value_parser = ["running", "completed", "interrupted", "failed"])]
    pub status: Option<String>,
    /// Only runs whose configuration has this value, like train.batch_size=64; may be repeated
    #[arg(long = "where", value_name = "KEY=VALUE", value_parser = crate::cli::key_value)]
    pub filter: Vec<(String, String)>,
    /// The order of the runs
    #[arg(long, value_enum, default_value_t = Order::Path)]
    pub sort: Order,
}

/// What else `stratus runs` does.
#[derive(Debug, Subcommand)]
pub enum Action {
    /// Remove run directories, after asking; one that is being trained is never touched
    Rm {
        /// The run directories
        #[arg(value_name = "RUN", required = true)]
        runs: Vec<PathBuf>,
        /// Do not ask
        #[arg(long, short)]
        yes: bool,
    },
}

/// What runs are sorted by; the best, fastest and longest come first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Order {
    /// The path, numbers by value
    Path,
    /// The best score on the validation data
    Score,
    /// Images a second
    Speed,
    /// Seconds in all
    Time,
}

/// What `stratus runs` reports.
#[derive(Serialize)]
struct Listing {
    runs: Vec<RunLine>,
    unlisted: Vec<Unlisted>,
}

/// Runs `stratus runs`.
///
/// # Errors
/// Where a folder cannot be searched, or a run not be removed.
pub fn run(arguments: &RunsArguments, output: &Output) -> Result {
    if let Some(Action::Rm { runs, yes }) = &arguments.action {
        return remove(runs, *yes, output);
    }
    let asked = !arguments.paths.is_empty();
    let paths = if asked { arguments.paths.clone() } else { vec![PathBuf::from(RUNS)] };
    let (mut lines, unlisted) = match runs::list(&paths) {
        // Nothing has been trained here yet.
        _ if !asked && !Path::new(RUNS).exists() => (Vec::new(), Vec::new()),
        found => found?,
    };
    for Unlisted { path, reason } in &unlisted {
        output.warning(&format!("{} cannot be listed: {reason}", path.display()));
    }
    let wanted = |line: &RunLine| {
        let has = |(key, value): &(String, String)| line.setting(key).is_some_and(|is| is == value.trim());
        arguments.status.as_ref().is_none_or(|status| line.status.name() == status)
            && arguments.filter.iter().all(has)
    };
    lines.retain(wanted);
    let descending = |a: Option<f64>, b: Option<f64>| match (a, b) {
        (Some(a), Some(b)) => b.total_cmp(&a),
        (a, b) => b.is_some().cmp(&a.is_some()),
    };
    lines.sort_by(|a, b| match arguments.sort {
        Order::Path => Ordering::Equal,
        Order::Score => descending(a.best, b.best),
        Order::Speed => descending(a.images_per_second, b.images_per_second),
        Order::Time => descending(a.total_s, b.total_s),
    });
    let listing = Listing { runs: lines, unlisted };
    output.result(&listing, || render(&listing.runs, output.narrow()))
}

/// Columns that a narrow terminal goes without, the first first.
const OPTIONAL: [&str; 4] = ["time", "data", "images/s", "network"];

fn render(lines: &[RunLine], width: Option<usize>) -> String {
    if lines.is_empty() {
        return "no runs\n".to_owned();
    }
    let heads = [
        "run",
        "status",
        "network",
        "data",
        "epochs",
        "best score",
        "loss",
        "images/s",
        "time",
        "differs in",
    ];
    let mut rows = vec![heads.map(str::to_owned).to_vec()];
    let dash = || "–".to_owned();
    for line in lines {
        let of = line.of_epochs.map_or(String::new(), |of| format!("/{of}"));
        let score = line.score.zip(line.best).map(|(name, best)| format!("{name} {:.2} %", best * 100.0));
        let differs: Vec<String> =
            line.differences.iter().map(|(key, value)| format!("{key}={value}")).collect();
        rows.push(vec![
            line.path.display().to_string(),
            line.status.name().to_owned(),
            line.network.clone(),
            line.data.clone(),
            format!("{}{of}", line.epochs),
            score.unwrap_or_else(dash),
            line.train_loss.map_or_else(dash, |loss| format!("{loss:.4}")),
            line.images_per_second.map_or_else(dash, |rate| format!("{rate:.1}")),
            line.total_s.map_or_else(dash, |seconds| clock(Duration::from_secs_f64(seconds.max(0.0)))),
            differs.join(" "),
        ]);
    }
    if rows.iter().skip(1).all(|row| row.last().is_some_and(String::is_empty)) {
        rows.iter_mut().for_each(|row| row.truncate(row.len() - 1));
        return Table::new(&rows).whole_names().within(width, &OPTIONAL).to_string();
    }
    Table::new(&rows).whole_names().prose().within(width, &OPTIONAL).to_string()
}

fn remove(paths: &[PathBuf], yes: bool, output: &Output) -> Result {
    // All are looked at before any is removed.
    let runs = paths.iter().map(|path| RunDir::open(path)).collect::<stratus_run::Result<Vec<_>>>();
    let runs = runs.map_err(Failure::usage)?;
    if !yes {
        if !io::stdin().is_terminal() {
            return Err(Failure::usage("removing runs asks first, and nobody can be asked here")
                .hint("give --yes to remove them without a question"));
        }
        let names: Vec<String> = runs.iter().map(|run| run.path().display().to_string()).collect();
        // Who does not see the question says nothing, and nothing is removed.
        let _ = write!(io::stderr(), "remove {} for good? [y/N] ", names.join(", "));
        let mut answer = String::new();
        io::stdin().lock().read_line(&mut answer).map_err(Failure::failed)?;
        if !matches!(answer.trim(), "y" | "Y" | "yes") {
            output.message("nothing was removed");
            return Ok(());
        }
    }
    for run in &runs {
        // Held until the run is gone: nobody begins to continue it meanwhile.
        let lock = run.lock()?;
        let path = run.path();
        let sweep = sweep_of(path);
        // Links are removed, not followed.
        fs::remove_dir_all(path)
            .map_err(|error| Failure::failed(format!("cannot remove {}: {error}", path.display())))?;
        drop(lock);
        output.message(&format!("removed {}", path.display()));
        if let Some(sweep) = sweep {
            let sweep = sweep.display();
            output.message(&format!("it belongs to a sweep: `stratus sweep {sweep}` trains it again"));
        }
    }
    Ok(())
}

/// Returns the directory of the sweep that a run belongs to.
fn sweep_of(run: &Path) -> Option<PathBuf> {
    // A path within the sweep need not name it.
    let whole = std::path::absolute(run).ok()?;
    let above = |path: &Path| path.ancestors().nth(3).map(Path::to_owned);
    let sweep = above(&whole).filter(|sweep| Sweep::is_sweep(sweep))?;
    let is_of_it = |name: &Path| name.starts_with(stratus_sweep::RUNS);
    whole.strip_prefix(&sweep).is_ok_and(is_of_it).then_some(())?;
    above(run).filter(|path| !path.as_os_str().is_empty()).or(Some(sweep))
}
