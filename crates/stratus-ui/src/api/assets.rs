//! Scripts and styles, which are in the program.

use axum::extract::Path;
use axum::http::header;
use axum::response::{IntoResponse, Response};
use stratus_report::page;

use super::Failure;

const SCRIPT: &str = "text/javascript; charset=utf-8";
const STYLE: &str = "text/css; charset=utf-8";

/// Name, type and content.
const ASSETS: &[(&str, &str, &str)] = &[
    ("uPlot.iife.min.js", SCRIPT, page::UPLOT),
    ("uPlot.min.css", STYLE, page::UPLOT_STYLE),
    ("formats.js", SCRIPT, page::FORMATS),
    ("page.js", SCRIPT, page::SCRIPT),
    ("page.css", STYLE, page::STYLE),
    ("chart.css", STYLE, page::CHART_STYLE),
    ("ui.css", STYLE, include_str!("../assets/ui.css")),
    ("common.js", SCRIPT, include_str!("../assets/common.js")),
    ("actions.js", SCRIPT, include_str!("../assets/actions.js")),
    ("details.js", SCRIPT, include_str!("../assets/details.js")),
    ("table.js", SCRIPT, include_str!("../assets/table.js")),
    ("run.js", SCRIPT, include_str!("../assets/run.js")),
    ("compare.js", SCRIPT, include_str!("../assets/compare.js")),
    ("figures.js", SCRIPT, include_str!("../assets/figures.js")),
    ("forecast.js", SCRIPT, include_str!("../assets/forecast.js")),
    ("launch.js", SCRIPT, include_str!("../assets/launch.js")),
    ("launches.js", SCRIPT, include_str!("../assets/launches.js")),
    ("parallel.js", SCRIPT, include_str!("../assets/parallel.js")),
    ("sweep.js", SCRIPT, include_str!("../assets/sweep.js")),
    ("sweeps.js", SCRIPT, include_str!("../assets/sweeps.js")),
];

/// Answers with an asset.
pub async fn asset(Path(name): Path<String>) -> Result<Response, Failure> {
    let found = ASSETS.iter().find(|(known, ..)| *known == name);
    let (_, kind, content) = found.ok_or(Failure::NoPage)?;
    Ok(([(header::CONTENT_TYPE, *kind)], *content).into_response())
}
