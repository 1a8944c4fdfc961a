//! The table of the workers of a run.

use super::html::{Cell, Html};
use crate::accounting::Accounting;

/// Adds a table with one row per worker, if there were several.
pub(super) fn table(html: &mut Html, accounting: &Accounting) {
    if accounting.workers.is_empty() {
        return;
    }
    let heads = [
        "worker",
        "iteration ms",
        "communication ms",
        "share %",
        "waits for",
        "waiting ms",
        "share %",
        "data wait ms",
    ];
    let rows: Vec<Vec<Cell>> = accounting
        .workers
        .iter()
        .map(|worker| {
            let waited = worker.waited_for;
            vec![
                Cell::sorted(worker.worker.to_string(), worker.worker as f64),
                Cell::number(Some(worker.wall.mean_ms), 3),
                Cell::number(Some(worker.communication.mean_ms), 3),
                Cell::number(Some(worker.communication.share_percent), 1),
                Cell::text(waited.map_or("–".to_owned(), |waited| format!("worker {}", waited.worker))),
                Cell::number(waited.map(|waited| waited.mean_ms), 3),
                Cell::number(waited.map(|waited| waited.share_percent), 1),
                Cell::number(Some(worker.data_wait.mean_ms), 3),
            ]
        })
        .collect();
    html.element("h4", "", "Per worker");
    html.element(
        "p",
        "note",
        "Communication is the part that the backward pass does not hide. In every iteration, the worker \
         with the shortest communication arrived last; the others' extra time is waiting for it. Each row \
         names the worker that it waited for most.",
    );
    html.table(&heads, &rows);
}
