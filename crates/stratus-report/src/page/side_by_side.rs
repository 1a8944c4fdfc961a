//! The layer times of several runs side by side, and their forecasts beside what was measured.

use std::collections::{HashMap, HashSet};

use super::html::{Cell, Html};
use crate::report::RunReport;

/// Maximum number of runs with a column of their own.
pub(super) const MAX_COLUMNS: usize = 12;
/// Maximum number of layers.
const MAX_LAYERS: usize = 1000;

/// Adds the mean times of the layers of all runs, in one table that is closed at first.
pub(super) fn layers(html: &mut Html, runs: &[RunReport]) {
    if compared(runs).len() > 1 {
        html.open("details", "");
        html.element("summary", "", "Layer times side by side");
        layer_table(html, runs);
        html.close("details");
    }
}

/// The runs whose layers are known.
fn compared(runs: &[RunReport]) -> Vec<&RunReport> {
    runs.iter().filter(|run| !run.accounting.layers.is_empty()).take(MAX_COLUMNS).collect()
}

/// Adds the table of [`layers`].
pub(super) fn layer_table(html: &mut Html, runs: &[RunReport]) {
    let counted = compared(runs);
    let [first, .., last] = &counted[..] else {
        html.element("p", "note", "Fewer than two of the runs have times of layers.");
        return;
    };
    let mut note = "Forward, backward and update of a layer in an iteration, mean milliseconds.".to_owned();
    if counted.len() == 2 {
        note += " The last column compares the second run with the first; `stratus report --diff` tests \
                 whether differences are significant.";
    }
    if runs.len() > counted.len() {
        note += &format!(" The table has {} of {} runs.", counted.len(), runs.len());
    }
    let mut heads = vec!["layer", "kind"];
    heads.extend(counted.iter().map(|run| run.label.as_str()));
    if counted.len() == 2 {
        heads.push("difference %");
    }
    // Layers in the order of the first run that has them.
    let mut names: Vec<(&str, &str)> = Vec::new();
    let mut known = HashSet::new();
    for layer in counted.iter().flat_map(|run| &run.accounting.layers) {
        if known.insert((layer.layer.as_str(), layer.kind.as_str())) {
            names.push((&layer.layer, &layer.kind));
        }
    }
    let layers = names.len();
    names.truncate(MAX_LAYERS);
    if names.len() < layers {
        note += &format!(" The table has the first {MAX_LAYERS} of {layers} layers.");
    }
    html.element("p", "note", &note);
    // A layer may have a row per device.
    let times: Vec<HashMap<(&str, &str), f64>> = counted
        .iter()
        .map(|run| {
            let mut times: HashMap<(&str, &str), f64> = HashMap::new();
            for row in &run.accounting.layers {
                *times.entry((row.layer.as_str(), row.kind.as_str())).or_default() += row.total.mean_ms;
            }
            times
        })
        .collect();
    let row = |name: &(&str, &str)| {
        let mut cells = vec![Cell::text(name.0), Cell::text(name.1)];
        let of_runs: Vec<Option<f64>> = times.iter().map(|times| times.get(name).copied()).collect();
        cells.extend(of_runs.iter().map(|ms| Cell::number(*ms, 3)));
        if let [before, after] = of_runs[..] {
            let change = before.zip(after).map(|(before, after)| 100.0 * (after / before - 1.0));
            cells.push(Cell::number(change, 1));
        }
        cells
    };
    let mut rows: Vec<Vec<Cell>> = names.iter().map(row).collect();
    let mut whole = vec![Cell::text("whole iteration"), Cell::text("")];
    whole.extend(counted.iter().map(|run| Cell::number(Some(run.accounting.wall.mean_ms), 3)));
    if counted.len() == 2 {
        let ratio = last.accounting.wall.mean_ms / first.accounting.wall.mean_ms;
        whole.push(Cell::number(Some(100.0 * (ratio - 1.0)), 1));
    }
    rows.push(whole);
    html.table(&heads, &rows);
}

/// Adds the forecasts of the runs that had one beside what was measured.
pub(super) fn forecasts(html: &mut Html, runs: &[RunReport]) {
    let rows: Vec<Vec<Cell>> = runs
        .iter()
        .filter_map(|run| {
            let forecast = run.record.summary.as_ref()?.forecast.as_ref()?;
            let ms = |seconds: f64| 1e3 * seconds;
            Some(vec![
                Cell::text(run.label.clone()),
                Cell::text(forecast.source.clone()),
                Cell::number(Some(ms(forecast.step_s)), 2),
                Cell::sorted(
                    format!("{:.2} to {:.2}", ms(forecast.low_s), ms(forecast.high_s)),
                    forecast.low_s,
                ),
                Cell::number(forecast.measured_step_s.map(ms), 2),
                Cell::number(forecast.error_percent, 1),
            ])
        })
        .collect();
    if rows.is_empty() {
        return;
    }
    html.element("h3", "", "Forecast and measured");
    html.element("p", "note", "A training step, with the 80 % interval of the forecast.");
    let heads = ["run", "source", "forecast ms", "interval ms", "measured ms", "error %"];
    html.table(&heads, &rows);
}
