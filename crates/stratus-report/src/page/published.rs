//! The section of the page on published figures.

use super::html::{Cell, Html};
use crate::report::{PublishedComparison, PublishedComparisonRow};
use crate::text::figure;

/// Adds the section to the page.
pub(super) fn section(html: &mut Html, comparison: &PublishedComparison) {
    html.element("h2", "", "Published figures");
    let note = format!(
        "Figures of {} for the networks and batch sizes of these runs. The ratio is the figure of the run \
         divided by the published figure. {}",
        comparison.file.display(),
        comparison.omissions()
    );
    html.element("p", "note", note.trim_end());
    if comparison.rows.is_empty() {
        html.element("p", "", "No published figure matches the networks and batch sizes of these runs.");
        return;
    }
    let heads = [
        "quantity",
        "network",
        "batch",
        "published",
        "this run",
        "unit",
        "ratio",
        "published on",
        "run on",
        "source",
        "run",
        "differences",
    ];
    let rows: Vec<Vec<Cell>> = comparison.rows.iter().map(row).collect();
    html.table(&heads, &rows);
}

fn row(row: &PublishedComparisonRow) -> Vec<Cell> {
    let published = &row.published;
    let number = |value: Option<f64>| match value {
        Some(value) => Cell::sorted(figure(value), value),
        None => Cell::number(None, 0),
    };
    vec![
        Cell::text(published.metric.replace('_', " ")),
        Cell::text(published.model.clone()),
        number(published.batch_size.map(|size| size as f64)),
        number(Some(published.value)),
        number(row.ours),
        Cell::text(published.unit.clone()),
        Cell::number(row.ratio, 3),
        Cell::text(published.machine.clone()),
        Cell::text(row.machine.clone().unwrap_or_default()),
        Cell::text(published.source.clone()),
        Cell::text(row.run.clone()),
        Cell::text(row.differences.join("; ")),
    ]
}
