//! Published figures on the page, beside those of runs.

use super::html::{Cell, Html};
use crate::report::{Against, AgainstRow};
use crate::text::figure;

/// The section of the page.
pub(super) fn section(html: &mut Html, against: &Against) {
    html.element("h2", "", "Beside published figures");
    let note = format!(
        "The figures of {} that are of the runs' networks and batch sizes. The ratio is ours divided by the \
         published one. {}",
        against.file.display(),
        against.left_out()
    );
    html.element("p", "note", note.trim_end());
    if against.rows.is_empty() {
        html.element("p", "", "No published figure is of these runs' networks and batch sizes.");
        return;
    }
    let heads = [
        "quantity",
        "network",
        "batch",
        "published",
        "ours",
        "unit",
        "ratio",
        "published on",
        "ours on",
        "source",
        "run",
        "what differs",
    ];
    let rows: Vec<Vec<Cell>> = against.rows.iter().map(row).collect();
    html.table(&heads, &rows);
}

fn row(row: &AgainstRow) -> Vec<Cell> {
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
