//! The forecast of a run beside what came.

use super::html::{Cell, Html};
use stratus_run::forecast::{PartForecast, largest_error};
use stratus_run::summary::{Forecast, Summary};

/// The step as forecast and measured.
pub(super) fn step(forecast: &Forecast) -> String {
    let ms = |seconds: f64| format!("{:.2} ms", seconds * 1e3);
    let measured = forecast.measured_step_s.map_or("–".to_owned(), ms);
    let error = forecast.error_percent.map_or("–".to_owned(), |error| format!("{error:+.1} %"));
    format!("{} and {measured}, {error}", ms(forecast.step_s))
}

/// Adds a table of the parts of the run, if it had a forecast.
pub(super) fn table(html: &mut Html, summary: &Summary) {
    let parts = summary.forecast_parts();
    if parts.is_empty() {
        return;
    }
    html.element("h3", "", "Forecast and measured");
    let mut note =
        "The work that is done, in seconds. The forecast assumes that nothing waits for data.".to_owned();
    if let Some(part) = largest_error(&parts) {
        note += &format!(" The largest error is that of {}: {:+.2} s.", part.part.name(), part.error_s());
    }
    html.element("p", "note", &note);
    let row = |part: &PartForecast| {
        vec![
            Cell::text(part.part.name()),
            Cell::number(Some(part.forecast_s), 2),
            Cell::number(Some(part.measured_s), 2),
            Cell::number(Some(part.error_s()), 2),
            Cell::number(part.error_percent, 1),
        ]
    };
    let heads = ["part", "forecast s", "measured s", "error s", "error %"];
    html.table(&heads, &parts.iter().map(row).collect::<Vec<_>>());
}
