//! `stratus report`: reports on runs as HTML, Markdown, CSV, SVG or JSON.

use super::target::find_runs;
use crate::errors::{Failure, Result};
use crate::output::Output;
use crate::outputs::{Mark, Outputs, Overwrite};
use clap::{Args, ValueEnum};
use std::fs;
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};
use stratus_report::report::{PublishedTable, Report};
use stratus_report::{markdown, page};
use stratus_run::machine::Machine;
use stratus_run::machine::survey::MachineSurvey;
use stratus_train::bench::peaks;
use stratus_train::libraries::LibraryProbes;

/// Arguments of `stratus report`.
#[derive(Args, Debug)]
pub struct ReportArguments {
    /// Run directories, or folders with run directories
    #[arg(value_name = "RUN", required = true)]
    pub runs: Vec<PathBuf>,
    /// Output file, `-` for standard output [default: report.FORMAT or diff.FORMAT, in the run directory or,
    /// for several runs, in the working directory]
    #[arg(long, short, value_name = "FILE")]
    pub out: Option<PathBuf>,
    /// Output format
    #[arg(long, value_enum, default_value_t = Format::Html, conflicts_with = "json")]
    pub format: Format,
    /// Chart of `--format svg`
    #[arg(long, value_enum, default_value_t = Chart::Time)]
    pub chart: Chart,
    /// Compare the times of two runs by layer and phase
    #[arg(long)]
    pub diff: bool,
    /// Compare with the published figures of a table with the columns metric, value, unit, model, batch_size,
    /// machine and source
    #[arg(long, value_name = "FILE.csv", conflicts_with = "diff")]
    pub against: Option<PathBuf>,
    /// Initial iterations to skip [default: 5 %, at least 2]
    #[arg(long, value_name = "COUNT")]
    pub skip: Option<u64>,
    /// Existing output files.
    #[command(flatten)]
    pub overwrite: Overwrite,
    /// Do not measure this machine's peaks for runs that recorded none (takes two seconds, once)
    #[arg(long)]
    pub no_peaks: bool,
}

/// The format of a report.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// Self-contained page with interactive charts
    Html,
    /// Tables in Markdown
    Md,
    /// One row per run; with --diff, one row per layer and phase
    Csv,
    /// One chart of one run, or of the comparison of two
    Svg,
}

/// A chart of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Chart {
    /// Time of an iteration, by layer and phase
    Time,
    /// GFLOP/s against FLOP per byte
    Roofline,
    /// Memory over an iteration
    Memory,
    /// Data flow between blocks of layers, coloured by time
    Network,
    /// Accuracy over milliseconds of the networks that `stratus optimise` compared
    Variants,
}

impl Format {
    fn extension(self) -> &'static str {
        match self {
            Self::Html => "html",
            Self::Md => "md",
            Self::Csv => "csv",
            Self::Svg => "svg",
        }
    }
}

/// Runs `stratus report`.
///
/// # Errors
/// If no run can be read, or the file cannot be written.
pub fn run(arguments: &ReportArguments, output: &Output, probes: &LibraryProbes) -> Result {
    let mut paths = Vec::new();
    for argument in &arguments.runs {
        let found = find_runs(argument)?;
        paths.extend(found.into_iter().map(|run| run.path().to_owned()));
    }
    if arguments.diff && paths.len() != 2 {
        let failure = Failure::usage(format!("--diff needs two runs, got {}", paths.len()));
        return Err(failure.with_hint("name the old and the new run: `stratus report --diff A B`"));
    }
    if arguments.against.is_some() && arguments.format == Format::Svg {
        return Err(Failure::usage("--against cannot be used with --format svg")
            .with_hint("use --format html, md or csv, or --json"));
    }
    let path = output_path(arguments, &paths, output)?;
    let reference =
        arguments.against.as_deref().map(PublishedTable::read).transpose().map_err(Failure::usage)?;
    let here = (!arguments.no_peaks && needs_peaks(arguments, output))
        .then(|| this_machine_with_peaks(&paths, output, probes));
    let mut report = Report::read(&paths, arguments.skip, here.flatten().as_ref());
    if arguments.diff {
        report.compare_times(arguments.skip);
    }
    if let Some(reference) = &reference {
        report.compare_with_published(reference);
    }
    for problem in &report.problems {
        let run = problem.run.display();
        output.warning(&format!("{run}: cannot report {}: {}", problem.what, problem.reason));
    }
    if report.runs.is_empty() {
        return Err(Failure::failed("no run can be read"));
    }
    if arguments.diff && report.diff.is_none() {
        return Err(Failure::failed("cannot compare the times of the two runs"));
    }
    if output.json() {
        return output.print_verbatim(&report, String::new);
    }
    let text = match arguments.format {
        Format::Html => page::render(&report),
        Format::Md => markdown::markdown(&report),
        Format::Csv => markdown::to_csv(&report),
        Format::Svg => render_chart(&report, arguments.chart)?,
    };
    if path == Path::new("-") {
        return output.print_verbatim(&(), || text);
    }
    write(&path, &text)?;
    output.message(&format!(
        "{}: {} of {}",
        path.display(),
        match arguments.format {
            Format::Html => "page",
            Format::Md => "Markdown tables",
            Format::Csv => "CSV table",
            Format::Svg => "chart",
        },
        count(report.runs.len())
    ));
    Ok(())
}

/// The output file, claimed before anything is measured. A report in a run directory is always replaced.
fn output_path(arguments: &ReportArguments, runs: &[PathBuf], output: &Output) -> Result<PathBuf> {
    let stem = if arguments.diff { "diff" } else { "report" };
    let name = format!("{stem}.{}", arguments.format.extension());
    let page = if arguments.format == Format::Html { Mark::Page } else { Mark::None };
    let (path, mark) = match (&arguments.out, runs) {
        (Some(path), _) => (path.clone(), page),
        (None, [run]) => (run.join(name), Mark::RunFile),
        (None, _) => (PathBuf::from(name), page),
    };
    if path != Path::new("-") && !output.json() {
        let mut outputs = Outputs::new(arguments.overwrite);
        arguments.against.iter().for_each(|against| outputs.protect(against));
        outputs.claim(&path, "the report", mark)?;
    }
    Ok(path)
}

fn count(runs: usize) -> String {
    if runs == 1 { "one run".to_owned() } else { format!("{runs} runs") }
}

fn render_chart(report: &Report, chart: Chart) -> Result<String> {
    if let Some(diff) = &report.diff {
        return Ok(page::diff_svg(diff));
    }
    let [run] = &report.runs[..] else {
        return Err(Failure::usage("--format svg needs one run").with_hint("name one run directory"));
    };
    let svg = match chart {
        Chart::Time => Some(page::time_svg(run)),
        Chart::Roofline => page::roofline_svg(run),
        Chart::Memory => page::memory_svg(run),
        Chart::Network => page::network_svg(run),
        Chart::Variants => page::variants_svg(run),
    };
    let missing = match chart {
        Chart::Variants => "the run has no readable variants.csv: `stratus optimise` writes it",
        _ => "the run has no readable plan.json",
    };
    svg.ok_or_else(|| Failure::failed(format!("cannot draw this chart: {missing}")))
}

/// Returns whether the output shows the machine's peaks.
fn needs_peaks(arguments: &ReportArguments, output: &Output) -> bool {
    output.json()
        || match arguments.format {
            Format::Html => true,
            Format::Svg => arguments.chart == Chart::Roofline,
            Format::Md | Format::Csv => false,
        }
}

/// This machine with its peaks, cached or measured; `None` if every run on it has recorded its peaks.
fn this_machine_with_peaks(paths: &[PathBuf], output: &Output, probes: &LibraryProbes) -> Option<Machine> {
    let mut survey = MachineSurvey::probe();
    let identity = &survey.machine.identity;
    identity.uuid.as_ref()?;
    let lacks_peaks = |path: &PathBuf| {
        let machine = Machine::read(&path.join(stratus_run::layout::MACHINE));
        machine.is_ok_and(|machine| machine.identity == *identity && machine.peaks.is_empty())
    };
    if !paths.iter().any(lacks_peaks) {
        return None;
    }
    let cache = stratus_train::cache_folder().map(|folder| folder.join(stratus_run::layout::MACHINE));
    let known = cache.as_deref().and_then(|path| Machine::read(path).ok());
    let is_same =
        |known: &Machine| known.identity == survey.machine.identity && known.cpu == survey.machine.cpu;
    if let Some(known) = known.filter(is_same) {
        return Some(known);
    }
    output.message("measuring this machine's memory and arithmetic for the roofline, about two seconds");
    let measured = peaks::measure(&survey, &probes.compute);
    measured.add_to(&mut survey.machine);
    if let Some(path) = cache {
        // Errors are ignored; without a cache, the next report measures again.
        let _ = path.parent().map_or(Ok(()), fs::create_dir_all);
        let _ = survey.machine.write(&path);
    }
    Some(survey.machine)
}

/// Writes a file atomically: under a temporary name first, so that no reader sees an incomplete file.
fn write(path: &Path, text: &str) -> Result {
    let failed = |error: std::io::Error| {
        let failure = Failure::failed(format!("cannot write {}: {error}", path.display()));
        match error.kind() {
            ErrorKind::NotFound => failure.with_hint("create its folder, or name another file with --out"),
            _ => failure.with_hint("name another file with --out"),
        }
    };
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let Some(name) = path.file_name() else {
        return Err(Failure::failed(format!("cannot write {}: it is a folder", path.display()))
            .with_hint("name a file in it with --out"));
    };
    let temporary = folder.join(format!(".{}.{}.tmp", name.to_string_lossy(), std::process::id()));
    let written = fs::File::create(&temporary).and_then(|mut file| file.write_all(text.as_bytes()));
    let renamed = written.and_then(|()| fs::rename(&temporary, path));
    renamed.map_err(|error| {
        let _ = fs::remove_file(&temporary);
        failed(error)
    })
}
