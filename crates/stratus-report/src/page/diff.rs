//! The section of the page on time differences of two runs.

use super::charts::{STYLE, WIDTH};
use super::html::{Cell, Html};
use super::svg::{Anchor, Svg};
use crate::report::{Change, Diff};
use crate::text::{fit, probability};

/// Maximum number of rows of the chart.
const MAX_ROWS: usize = 20;

/// The time differences of two runs, as an SVG file.
#[must_use]
pub fn diff_svg(diff: &Diff) -> String {
    chart(diff).standalone("Time differences", STYLE)
}

/// Adds the section to the page.
pub(super) fn section(html: &mut Html, diff: &Diff) {
    html.element("h2", "", "Time differences");
    html.element("p", "headline", &diff.headline);
    let counted = |side: usize| {
        format!(
            "{}: {} iterations of {} images in {} blocks, first {} skipped",
            diff.runs[side],
            diff.iterations[side],
            diff.batch_size[side],
            diff.blocks[side],
            diff.skipped[side]
        )
    };
    let note = format!(
        "From {} to {}. Means of iterations on whole batches ({}; {}). Test: {}. The test measures the \
         variation of iterations within these two runs, not between runs: other load on the machine during \
         one of them causes a difference too.",
        diff.runs[0],
        diff.runs[1],
        counted(0),
        counted(1),
        diff.test
    );
    html.element("p", "note", &note);
    html.drawing("Time differences", &chart(diff));
    for side in [0, 1] {
        if !diff.only[side].is_empty() {
            let text = format!("Only in {}: {}.", diff.runs[side], diff.only[side].join(", "));
            html.element("p", "note", &text);
        }
    }
    let unit = diff.per.unit();
    let heads = ["before", "after", "difference", "forward", "gradient of the input"]
        .iter()
        .chain(&["gradient of the weights", "update"])
        .map(|head| format!("{head} {unit}"))
        .collect::<Vec<_>>();
    let mut columns = vec!["layer", "kind"];
    columns.extend(heads[..3].iter().map(String::as_str));
    columns.extend(["%", "p", "verdict"]);
    columns.extend(heads[3..].iter().map(String::as_str));
    let time = |value: Option<f64>| Cell::number(value.map(|ms| diff.per.in_unit(ms)), 3);
    let row = |name: &str, kind: &str, change: &Change, parts: [Option<f64>; 4]| {
        let mut cells = vec![Cell::text(name), Cell::text(kind)];
        cells.extend([change.before_ms, change.after_ms, change.difference_ms].map(time));
        cells.extend(verdict_cells(change));
        cells.extend(parts.map(time));
        cells
    };
    let layers = diff.layers.iter().map(|layer| {
        let parts = [&layer.forward, &layer.backward_data, &layer.backward_weights, &layer.update];
        row(&layer.layer, &layer.kind, &layer.total, parts.map(|change| change.difference_ms))
    });
    let phases = diff.phases.iter().map(|row| (row.phase.name().replace('_', " "), &row.change));
    let rest = [("unattributed".to_owned(), &diff.unattributed), (diff.per.name().to_owned(), &diff.wall)];
    let phases = phases.chain(rest).map(|(name, change)| row(&name, "", change, [None; 4]));
    html.table(&columns, &layers.chain(phases).collect::<Vec<_>>());
    html.open("details", "");
    html.element("summary", "", "All layers and phases");
    let rows: Vec<Vec<Cell>> = diff
        .layers
        .iter()
        .flat_map(|layer| layer.phases().map(|(phase, change)| (layer, phase, change)))
        .filter(|(_, phase, change)| {
            *phase != "total" && (change.before_ms.is_some() || change.after_ms.is_some())
        })
        .map(|(layer, phase, change)| {
            let mut cells = vec![Cell::text(layer.layer.clone()), Cell::text(phase.replace('_', " "))];
            cells.extend([change.before_ms, change.after_ms, change.difference_ms].map(time));
            cells.extend(verdict_cells(change));
            cells
        })
        .collect();
    let mut columns = vec!["layer", "phase"];
    columns.extend(heads[..3].iter().map(String::as_str));
    columns.extend(["%", "p", "verdict"]);
    html.table(&columns, &rows);
    html.close("details");
}

/// The cells of percent, p-value and verdict.
fn verdict_cells(change: &Change) -> [Cell; 3] {
    [
        Cell::number(change.percent, 1),
        Cell::sorted(probability(change.p), change.p.unwrap_or(f64::NEG_INFINITY)),
        Cell::text(change.verdict().unwrap_or("–")),
    ]
}

/// Bars to the left for faster rows, to the right for slower rows, the largest first.
fn chart(diff: &Diff) -> Svg {
    let layers = diff.layers.iter().map(|layer| (layer.layer.clone(), &layer.total));
    let phases = diff.phases.iter().map(|row| (row.phase.name().replace('_', " "), &row.change));
    let rest = [("unattributed".to_owned(), &diff.unattributed)];
    let mut rows: Vec<(String, &'static str, f64)> = layers
        .chain(phases)
        .chain(rest)
        .filter_map(|(name, change)| {
            let ms = change.difference_ms?;
            let class = match change.differs {
                Some(true) if ms < 0.0 => "faster",
                Some(true) => "slower",
                _ => "within",
            };
            Some((name, class, diff.per.in_unit(ms)))
        })
        .collect();
    rows.sort_by(|a, b| b.2.abs().total_cmp(&a.2.abs()));
    if rows.len() > MAX_ROWS {
        let hidden = rows.split_off(MAX_ROWS - 1);
        let sum = hidden.iter().map(|row| row.2).sum();
        rows.push((format!("{} more", hidden.len()), "within", sum));
    }
    let longest = rows.iter().map(|row| row.2.abs()).fold(f64::MIN_POSITIVE, f64::max);
    let (left, line, top) = (240.0, 22.0, 34.0);
    let (middle, reach) = ((left + WIDTH) / 2.0, (WIDTH - left) / 2.0 - 80.0);
    let height = top + line * rows.len() as f64 + 10.0;
    let unit = diff.per.unit();
    let mut svg = Svg::new(WIDTH, height);
    let mut x = left;
    for (class, text) in [("faster", "faster"), ("slower", "slower"), ("within", "within the spread")] {
        svg.rect(class, [x, 8.0, 12.0, 12.0], "");
        svg.text("label", [x + 17.0, 18.0], Anchor::Start, text);
        x += 34.0 + 7.2 * text.len() as f64;
    }
    svg.line("grid", &[[middle, top - 4.0], [middle, height - 6.0]]);
    for (number, (name, class, value)) in rows.iter().enumerate() {
        let y = top + line * number as f64;
        svg.text("label", [left - 8.0, y + 14.0], Anchor::End, fit(name, 32).trim_end());
        let width = value.abs() / longest * reach;
        let from = if *value < 0.0 { middle - width } else { middle };
        svg.rect(class, [from, y + 2.0, width, line - 6.0], &format!("{name}: {value:+.3} {unit}"));
        let (at, anchor) = match *value < 0.0 {
            true => (from - 6.0, Anchor::End),
            false => (from + width + 6.0, Anchor::Start),
        };
        svg.text("label", [at, y + 14.0], anchor, &format!("{value:+.3}"));
    }
    svg
}
