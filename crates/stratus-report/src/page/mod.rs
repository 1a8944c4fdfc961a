//! A report as a single self-contained HTML file: without a server, the network or other files.
//!
//! Values and names of runs are always data: text is escaped in HTML, and the data of the scripts is a JSON
//! document that cannot end its element. A content security policy forbids external resources.

mod charts;
mod checkpoints;
mod diff;
mod escape;
mod forecast;
mod gpus;
mod html;
mod labels;
mod layer_data;
mod layer_table;
mod machines;
mod network;
mod numbers;
mod optimised;
mod pictures;
mod plots;
mod published;
mod quantised;
mod sections;
mod side_by_side;
mod svg;
mod validation;
mod workers;

pub use charts::{memory_svg, roofline_svg, time_svg};
pub use diff::diff_svg;
pub use escape::{escape, showable_json};
pub use machines::{MachinePoint, machines_svg};
pub use network::network_svg;
pub use optimised::variants_svg;
pub use pictures::{MAX_EMBEDDED_BYTES, pictures_of_name};

use serde::Serialize;
use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use crate::report::{Comparison, Problem, Report, RunReport};
use html::Html;
use layer_data::LayerData;
use pictures::PictureSource;

/// The style of drawings, and the colours of pages.
pub const CHART_STYLE: &str = charts::STYLE;
/// The style of pages.
pub const STYLE: &str = concat!(include_str!("assets/page.css"), include_str!("assets/layers.css"));
/// Numbers, sizes, times and texts as people read them, for all scripts.
pub const FORMATS: &str = include_str!("assets/formats.js");
/// The script of pages: interactive charts, sorted tables, layers. It needs [`UPLOT`], [`FORMATS`] and the
/// element `data`.
pub const SCRIPT: &str = concat!(include_str!("assets/page.js"), include_str!("assets/layers.js"));
/// uPlot 1.6.32, MIT licence, by Leon Sorokin: the interactive charts.
pub const UPLOT: &str = include_str!("assets/uPlot.iife.min.js");
/// The style of uPlot.
pub const UPLOT_STYLE: &str = include_str!("assets/uPlot.min.css");
const UPLOT_LICENCE: &str = include_str!("assets/uPlot.LICENSE");

/// Maximum number of runs with details; the comparison shows all runs.
pub const MAX_DETAILED_RUNS: usize = 8;

/// The data of the scripts.
#[derive(Serialize)]
struct PageData<'a> {
    runs: Vec<RunData<'a>>,
    /// Groups of at least two runs that differ only in the seed, by their labels.
    repetitions: Vec<&'a [String]>,
}

#[derive(Serialize)]
struct RunData<'a> {
    label: &'a str,
    task: stratus_run::csv::Task,
    curves: Option<&'a crate::report::Curves>,
    epochs: &'a [crate::report::Epoch],
    usage: Option<&'a crate::report::UsageCurves>,
    layers: Option<LayerData<'a>>,
    class_history: Option<&'a crate::report::ClassHistory>,
}

/// The element by which a page of Stratus is recognised, so that it may be replaced.
pub const GENERATOR: &str = "<meta name=\"generator\" content=\"Stratus\">\n";
/// Maximum position of the generator element in a file.
const MAX_HEAD_BYTES: u64 = 1 << 10;

/// Returns whether a file is a page of a report.
///
/// # Errors
/// If the file cannot be read.
pub fn is_page(path: &Path) -> io::Result<bool> {
    let mut head = Vec::new();
    File::open(path)?.take(MAX_HEAD_BYTES).read_to_end(&mut head)?;
    Ok(String::from_utf8_lossy(&head).contains(GENERATOR.trim_end()))
}

/// The page of a report.
#[must_use]
pub fn render(report: &Report) -> String {
    let title = title(report);
    let mut html = Html::default();
    html.raw("<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n");
    html.raw(GENERATOR);
    html.raw("<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n");
    html.raw(
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src \
         'unsafe-inline'; \
         script-src 'unsafe-inline'; img-src data:\">\n",
    );
    html.raw(&format!(
        "<title>{}</title>\n<style>\n{UPLOT_STYLE}\n{CHART_STYLE}{STYLE}</style>\n</head>\n<body>\n",
        escape(&title)
    ));
    html.raw("<main>\n");
    match &report.runs[..] {
        [] => html.element("h1", "", "Nothing to report"),
        [run] => {
            sections::run(&mut html, run, 0, true);
            if let Some(comparison) = &report.published {
                published::section(&mut html, comparison);
            }
        }
        runs => {
            html.element("h1", "", &title);
            if let Some(diff) = &report.diff {
                diff::section(&mut html, diff);
            }
            if let Some(comparison) = &report.comparison {
                sections::comparison(&mut html, comparison, runs);
            }
            if let Some(comparison) = &report.published {
                published::section(&mut html, comparison);
            }
            if runs.len() > MAX_DETAILED_RUNS {
                let text = format!(
                    "The details below are those of the first {MAX_DETAILED_RUNS} of {} runs; create a \
                     report on fewer runs for the others.",
                    runs.len()
                );
                html.element("p", "note", &text);
            }
            for (number, run) in runs.iter().take(MAX_DETAILED_RUNS).enumerate() {
                sections::run(&mut html, run, number, false);
            }
        }
    }
    sections::problems(&mut html, &report.problems);
    html.element(
        "footer",
        "",
        concat!(
            "Generated by Stratus ",
            env!("CARGO_PKG_VERSION"),
            ". Drag in a chart to zoom, double-click to reset."
        ),
    );
    html.raw("</main>\n");
    let data = data_json(&report.runs, MAX_DETAILED_RUNS, report.comparison.as_ref());
    html.raw(&format!("<script type=\"application/json\" id=\"data\">{data}</script>\n"));
    html.raw(&format!(
        "<script>\n/* uPlot 1.6.32\n{UPLOT_LICENCE}*/\n{UPLOT}\n{FORMATS}{SCRIPT}</script>\n</body>\n\
         </html>\n"
    ));
    html.finish()
}

fn title(report: &Report) -> String {
    match &report.runs[..] {
        [] => "Stratus report".to_owned(),
        [run] => format!("{} · Stratus", run.label),
        runs => format!("{} runs compared", runs.len()),
    }
}

/// The section of a run in a page; `number` is its position in [`data_json`]. Its pictures are at addresses
/// of a server, which begin with `pictures` and end with a name for [`pictures_of_name`].
#[must_use]
pub fn run_section(run: &RunReport, number: usize, pictures: &str) -> String {
    let mut html = Html::with_pictures(PictureSource::Server { base: pictures.to_owned() });
    sections::run(&mut html, run, number, true);
    html.finish()
}

/// The section of a page that compares `runs`.
#[must_use]
pub fn comparison_section(comparison: &Comparison, runs: &[RunReport]) -> String {
    let mut html = Html::default();
    sections::comparison(&mut html, comparison, runs);
    html.finish()
}

/// Maximum number of runs in [`layer_times`].
pub const MAX_LAYER_TIME_RUNS: usize = side_by_side::MAX_COLUMNS;

/// The mean times of the layers of several runs, in one table.
#[must_use]
pub fn layer_times(runs: &[RunReport]) -> String {
    let mut html = Html::default();
    side_by_side::layer_table(&mut html, runs);
    html.finish()
}

/// The section of a page on missing data; empty if nothing is missing.
#[must_use]
pub fn problems_section(problems: &[Problem]) -> String {
    let mut html = Html::default();
    sections::problems(&mut html, problems);
    html.finish()
}

/// The JSON document of [`SCRIPT`], with the curves of the first `detailed` runs, and the repetitions of a
/// comparison. Its texts can be shown ([`showable_json`]), and `<` is escaped, so that none can end its
/// element.
#[must_use]
pub fn data_json(runs: &[RunReport], detailed: usize, comparison: Option<&Comparison>) -> String {
    let groups = comparison.iter().flat_map(|comparison| &comparison.repetitions);
    let repetitions = groups.map(|group| group.runs.as_slice()).filter(|runs| runs.len() > 1).collect();
    let runs = runs.iter().enumerate().map(|(number, run)| RunData {
        label: &run.label,
        task: run.task,
        curves: (number < detailed).then_some(&run.curves),
        epochs: &run.epochs,
        usage: run.usage.as_ref().filter(|_| number < detailed),
        layers: (number < detailed).then(|| LayerData::new(run)),
        class_history: class_history(run).filter(|_| number < detailed),
    });
    // Serialisation cannot fail: there are only names and numbers, and non-finite numbers are `None`.
    let text = serde_json::to_string(&PageData { runs: runs.collect(), repetitions })
        .unwrap_or_else(|_| "{\"runs\":[],\"repetitions\":[]}".to_owned());
    showable_json(text).replace('<', "\\u003c")
}

/// The metrics of each class of a run over the epochs.
fn class_history(run: &RunReport) -> Option<&crate::report::ClassHistory> {
    run.validation.as_ref()?.history.as_ref()
}
