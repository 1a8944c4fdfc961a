//! The table of checkpoints.

use super::html::{Cell, Html};
use crate::report::CheckpointRow;
use stratus_base::text::{bytes, counted};

/// Length of a time up to its minutes.
const MINUTES: usize = "0000-00-00T00:00".len();

/// Adds the checkpoints of a run.
pub(super) fn table(html: &mut Html, rows: &[CheckpointRow]) {
    if rows.is_empty() {
        return;
    }
    html.element("h3", "", "Checkpoints");
    let total: u64 = rows.iter().filter_map(|row| row.bytes).fold(0, u64::saturating_add);
    let count = counted(rows.len() as u64, "checkpoint");
    html.element("p", "note", &format!("{count}, {} in total, in checkpoints/ of the run.", bytes(total)));
    let cells: Vec<Vec<Cell>> = rows.iter().map(cells).collect();
    html.table(&["iteration", "after", "role", "saved, UTC", "size"], &cells);
}

fn cells(row: &CheckpointRow) -> Vec<Cell> {
    let after = match (row.epochs, row.batches) {
        (Some(epochs), Some(0)) => format!("epoch {epochs}"),
        (Some(epochs), Some(batches)) => {
            let batches = if batches == 1 { "1 batch".to_owned() } else { format!("{batches} batches") };
            format!("{batches} of epoch {}", epochs.saturating_add(1))
        }
        _ => "–".to_owned(),
    };
    let role = match (row.is_best, row.is_last, &row.problem) {
        (_, _, Some(problem)) => format!("damaged: {problem}"),
        (true, true, None) => "best, last".to_owned(),
        (true, false, None) => "best".to_owned(),
        (false, true, None) => "last".to_owned(),
        (false, false, None) => String::new(),
    };
    let saved = row.saved.as_ref().and_then(|saved| saved.get(..MINUTES)).unwrap_or("–").replace('T', " ");
    let size = row.bytes.map_or(Cell::number(None, 0), |held| Cell::sorted(bytes(held), held as f64));
    let iteration = Cell::sorted(row.iteration.to_string(), row.iteration as f64);
    vec![iteration, Cell::text(after), Cell::text(role), Cell::text(saved), size]
}
