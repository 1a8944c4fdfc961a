//! `stratus report`: one or several runs as a page, as tables, as charts or as data.

use super::doctor::Probes;
use crate::errors::{Failure, Result};
use crate::machine::{Survey, peaks};
use crate::output::Output;
use crate::outputs::{Mark, Outputs, Overwrite};
use clap::{Args, ValueEnum};
use std::fs;
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};
use stratus_report::report::{Reference, Report};
use stratus_report::{markdown, page};
use stratus_run::RunDir;
use stratus_run::machine::Machine;

/// Arguments of `stratus report`.
#[derive(Args, Debug)]
pub struct ReportArguments {
    /// Run directories, or folders that hold some
    #[arg(value_name = "RUN", required = true)]
    pub runs: Vec<PathBuf>,
    /// The file to write, `-` for standard output [default: report.html and the like, in the run or, of
    /// several runs, in the working directory]
    #[arg(long, short, value_name = "FILE")]
    pub out: Option<PathBuf>,
    /// What to write
    #[arg(long, value_enum, default_value_t = Format::Html, conflicts_with = "json")]
    pub format: Format,
    /// The chart, with `--format svg`
    #[arg(long, value_enum, default_value_t = Chart::Time)]
    pub chart: Chart,
    /// Show what became faster or slower from the first run to the second, layer by layer and phase by phase
    #[arg(long)]
    pub diff: bool,
    /// Show published figures beside ours: a table whose columns name metric, value and unit, model,
    /// batch_size, machine and source
    #[arg(long, value_name = "FILE.csv", conflicts_with = "diff")]
    pub against: Option<PathBuf>,
    /// Training iterations to leave out at the start; without it 5 %, at least two
    #[arg(long, value_name = "COUNT")]
    pub skip: Option<u64>,
    /// Files that are replaced.
    #[command(flatten)]
    pub overwrite: Overwrite,
    /// Do not measure this machine's peaks (two seconds, once) where runs on it have none recorded
    #[arg(long)]
    pub no_peaks: bool,
}

/// What a report is written as.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// A self-contained page with interactive charts
    Html,
    /// Tables in Markdown
    Md,
    /// A row a run; of a difference, a row a layer and phase
    Csv,
    /// One chart of one run, or of the difference of two
    Svg,
}

/// A chart of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Chart {
    /// Where an iteration goes
    Time,
    /// GFLOP/s against FLOP per byte
    Roofline,
    /// Memory over an iteration
    Memory,
}

impl Format {
    fn ending(self) -> &'static str {
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
/// Where no run can be read, or the file not be written.
pub fn run(arguments: &ReportArguments, output: &Output, probes: &Probes) -> Result {
    let mut paths = Vec::new();
    for argument in &arguments.runs {
        let found = RunDir::find(argument).map_err(Failure::usage)?;
        if found.is_empty() {
            let failure = Failure::usage(format!("there is no run in {}", argument.display()));
            return Err(failure.hint("name a run directory, or a folder that holds some, like `runs`"));
        }
        paths.extend(found.into_iter().map(|run| run.path().to_owned()));
    }
    if arguments.diff && paths.len() != 2 {
        let failure = Failure::usage(format!("a difference is between two runs, and not of {}", paths.len()));
        return Err(failure.hint("name the run before and the run after: `stratus report --diff A B`"));
    }
    if arguments.against.is_some() && arguments.format == Format::Svg {
        return Err(Failure::usage("there is no chart of published figures")
            .hint("take --format html, md or csv, or --json"));
    }
    let path = target_of(arguments, &paths, output)?;
    let reference = arguments.against.as_deref().map(Reference::read).transpose().map_err(Failure::usage)?;
    let here = (!arguments.no_peaks && draws_a_roof(arguments, output)).then(|| here(&paths, output, probes));
    let mut report = Report::of(&paths, arguments.skip, here.flatten().as_ref());
    if arguments.diff {
        report.compare_times(arguments.skip);
    }
    if let Some(reference) = &reference {
        report.hold_against(reference);
    }
    for problem in &report.problems {
        let run = problem.run.display();
        output.warning(&format!("{run}: {} cannot be reported: {}", problem.what, problem.reason));
    }
    if report.runs.is_empty() {
        return Err(Failure::failed("none of the runs can be read"));
    }
    if arguments.diff && report.diff.is_none() {
        return Err(Failure::failed("the times of the two runs cannot be compared"));
    }
    if output.json() {
        return output.document(&report, String::new);
    }
    let text = match arguments.format {
        Format::Html => page::render(&report),
        Format::Md => markdown::markdown(&report),
        Format::Csv => markdown::csv(&report),
        Format::Svg => chart(&report, arguments.chart)?,
    };
    if path == Path::new("-") {
        return output.document(&(), || text);
    }
    write(&path, &text)?;
    output.message(&format!(
        "{}: {} of {}",
        path.display(),
        arguments.format.ending(),
        count(report.runs.len())
    ));
    Ok(())
}

/// The file to write, which is claimed before anything is measured. A run directory's own files are replaced.
fn target_of(arguments: &ReportArguments, runs: &[PathBuf], output: &Output) -> Result<PathBuf> {
    let what = if arguments.diff { "diff" } else { "report" };
    let name = format!("{what}.{}", arguments.format.ending());
    let page = if arguments.format == Format::Html { Mark::Page } else { Mark::None };
    let (path, mark) = match (&arguments.out, runs) {
        (Some(path), _) => (path.clone(), page),
        (None, [run]) => (run.join(name), Mark::OfRun),
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

fn chart(report: &Report, chart: Chart) -> Result<String> {
    if let Some(diff) = &report.diff {
        return Ok(page::diff_svg(diff));
    }
    let [run] = &report.runs[..] else {
        return Err(Failure::usage("a chart is of one run").hint("name one run directory with --format svg"));
    };
    let svg = match chart {
        Chart::Time => Some(page::time_svg(run)),
        Chart::Roofline => page::roofline_svg(run),
        Chart::Memory => page::memory_svg(run),
    };
    svg.ok_or_else(|| Failure::failed("the run has no plan that can be read, from which this chart is drawn"))
}

/// Whether what is asked for shows the machine's peaks.
fn draws_a_roof(arguments: &ReportArguments, output: &Output) -> bool {
    output.json()
        || match arguments.format {
            Format::Html => true,
            Format::Svg => arguments.chart == Chart::Roofline,
            Format::Md | Format::Csv => false,
        }
}

/// This machine with its peaks, where a run on it has recorded none: from the cache, else measured now.
fn here(paths: &[PathBuf], output: &Output, probes: &Probes) -> Option<Machine> {
    let mut survey = Survey::of_this_machine();
    let identity = &survey.machine.identity;
    identity.uuid.as_ref()?;
    let lacks = |path: &PathBuf| {
        let machine = Machine::read(&path.join(stratus_run::layout::MACHINE));
        machine.is_ok_and(|machine| machine.identity == *identity && machine.peaks.is_empty())
    };
    if !paths.iter().any(lacks) {
        return None;
    }
    let cache = stratus_train::cache_folder().map(|folder| folder.join("machine.json"));
    let known = cache.as_deref().and_then(|path| Machine::read(path).ok());
    let is_same =
        |known: &Machine| known.identity == survey.machine.identity && known.cpu == survey.machine.cpu;
    if let Some(known) = known.filter(is_same) {
        return Some(known);
    }
    output.message("measuring this machine's memory and arithmetic for the roofline, about two seconds");
    let measured = peaks::measure(&survey, &probes.compute);
    survey.add_peaks(&measured);
    if let Some(path) = cache {
        // A cache that cannot be written costs two seconds the next time.
        let _ = path.parent().map_or(Ok(()), fs::create_dir_all);
        let _ = survey.machine.write(&path);
    }
    Some(survey.machine)
}

/// Writes a file whole: under another name first, so that no reader sees a part of it.
fn write(path: &Path, text: &str) -> Result {
    let failed = |error: std::io::Error| {
        let failure = Failure::failed(format!("cannot write {}: {error}", path.display()));
        match error.kind() {
            ErrorKind::NotFound => failure.hint("make its folder first, or name another file with --out"),
            _ => failure.hint("name another file with --out"),
        }
    };
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let name = path.file_name().ok_or_else(|| failed(ErrorKind::IsADirectory.into()))?;
    let temporary = folder.join(format!(".{}.{}.tmp", name.to_string_lossy(), std::process::id()));
    let written = fs::File::create(&temporary).and_then(|mut file| file.write_all(text.as_bytes()));
    let renamed = written.and_then(|()| fs::rename(&temporary, path));
    renamed.map_err(|error| {
        let _ = fs::remove_file(&temporary);
        failed(error)
    })
}
