//! A report as one HTML file that needs nothing else: no server, no network, no other file.
//!
//! Numbers and names of runs are data everywhere: text is escaped where it becomes HTML, and what the scripts
//! draw is a JSON document that cannot end its element. A content security policy forbids whatever would come
//! from elsewhere.

mod against;
mod charts;
mod diff;
mod html;
mod offers;
mod sections;
mod svg;
mod workers;

pub use charts::{memory_svg, roofline_svg, time_svg};
pub use diff::diff_svg;
pub use offers::{Offer, offers_svg};

use serde::Serialize;
use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use crate::report::{Report, RunReport};
use html::{Html, escape};

const CHART_STYLE: &str = include_str!("assets/chart.css");
const STYLE: &str = include_str!("assets/page.css");
const SCRIPT: &str = include_str!("assets/page.js");
/// uPlot 1.6.32, MIT licence, by Leon Sorokin: the interactive charts.
const UPLOT: &str = include_str!("assets/uPlot.iife.min.js");
const UPLOT_STYLE: &str = include_str!("assets/uPlot.min.css");
const UPLOT_LICENCE: &str = include_str!("assets/uPlot.LICENSE");

/// Runs that are shown in full; of more, the comparison shows all and the details are those of the first
/// ones.
pub const DETAILED: usize = 8;

/// What the scripts draw.
#[derive(Serialize)]
struct Drawn<'a> {
    runs: Vec<DrawnRun<'a>>,
}

#[derive(Serialize)]
struct DrawnRun<'a> {
    label: &'a str,
    task: stratus_run::csv::Task,
    curves: Option<&'a crate::report::Curves>,
    epochs: &'a [crate::report::Epoch],
    usage: Option<&'a crate::report::UsageCurves>,
}

/// The element that names a page's origin, by which a page that may be replaced is known.
pub const GENERATOR: &str = "<meta name=\"generator\" content=\"Stratus\">\n";
/// How far into a file the generator stands at most.
const HEAD_BYTES: u64 = 1 << 10;

/// Whether a file is a page of a report.
///
/// # Errors
/// Where it cannot be read.
pub fn is_page(path: &Path) -> io::Result<bool> {
    let mut head = Vec::new();
    File::open(path)?.take(HEAD_BYTES).read_to_end(&mut head)?;
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
            if let Some(against) = &report.against {
                against::section(&mut html, against);
            }
        }
        runs => {
            html.element("h1", "", &title);
            if let Some(diff) = &report.diff {
                diff::section(&mut html, diff);
            }
            if let Some(comparison) = &report.comparison {
                sections::comparison(&mut html, comparison);
            }
            if let Some(against) = &report.against {
                against::section(&mut html, against);
            }
            if runs.len() > DETAILED {
                let text = format!(
                    "The details below are those of the first {DETAILED} of {} runs; a report on fewer runs \
                     has theirs.",
                    runs.len()
                );
                html.element("p", "note", &text);
            }
            for (number, run) in runs.iter().take(DETAILED).enumerate() {
                sections::run(&mut html, run, number, false);
            }
        }
    }
    sections::problems(&mut html, &report.problems);
    html.element(
        "footer",
        "",
        concat!(
            "Made by Stratus ",
            env!("CARGO_PKG_VERSION"),
            ". Drag in a chart to zoom, double-click to reset."
        ),
    );
    html.raw("</main>\n");
    html.raw(&format!("<script type=\"application/json\" id=\"data\">{}</script>\n", data(&report.runs)));
    html.raw(&format!(
        "<script>\n/* uPlot 1.6.32\n{UPLOT_LICENCE}*/\n{UPLOT}\n{SCRIPT}</script>\n</body>\n</html>\n"
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

/// The document for the scripts. `<` is written as an escape, so that no text of a run can end its element.
fn data(runs: &[RunReport]) -> String {
    let runs = runs.iter().enumerate().map(|(number, run)| DrawnRun {
        label: &run.label,
        task: run.task,
        curves: (number < DETAILED).then_some(&run.curves),
        epochs: &run.epochs,
        usage: run.usage.as_ref().filter(|_| number < DETAILED),
    });
    // Names and finite numbers alone: what is not finite was made none before.
    let text =
        serde_json::to_string(&Drawn { runs: runs.collect() }).unwrap_or_else(|_| "{\"runs\":[]}".to_owned());
    text.replace('<', "\\u003c")
}
