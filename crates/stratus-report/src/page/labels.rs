//! The labels of images in the newest validation: precision–recall curves, and a table of metrics.

use stratus_run::classes::LabelRow;
use stratus_run::validation::LabelPoint;

use super::html::{Cell, Html};
use super::plots::{MAX_PANELS, Panel, lowest_first};
use crate::report::LabelReport;

/// Maximum number of rows of the table.
const MAX_ROWS: usize = 1000;

/// Adds the curves and the table; nothing without labels.
pub(super) fn section(html: &mut Html, labels: &[LabelReport]) {
    let sorted = lowest_first(labels, |label| label.metrics.average_precision);
    let drawn: Vec<&LabelReport> = sorted.iter().copied().filter(|label| !label.curve.is_empty()).collect();
    if !drawn.is_empty() {
        html.element("h4", "", "Precision and recall");
        let which = if drawn.len() > MAX_PANELS || drawn.len() < labels.len() {
            let shown = drawn.len().min(MAX_PANELS);
            format!("The {shown} of {} labels with the lowest average precision. ", labels.len())
        } else {
            String::new()
        };
        let note = which
            + "A curve has a point for each threshold. The circle is at the threshold with the highest F1, \
               the dashed line at the share of images with the label: the precision of a guess.";
        html.element("p", "note", &note);
        html.open("div", "plots");
        drawn.iter().take(MAX_PANELS).for_each(|label| panel(html, label));
        html.close("div");
    }
    if sorted.is_empty() {
        return;
    }
    html.element("h4", "", "Labels");
    let mut note = "Threshold: the probability from which the label is predicted, chosen on these images to \
                    maximise F1. Expect lower values on other images."
        .to_owned();
    if sorted.len() > MAX_ROWS {
        note += &format!(" The table has the {MAX_ROWS} of {} labels with the lowest values.", sorted.len());
    }
    html.element("p", "note", &note);
    let heads = [
        "label",
        "images with it",
        "without",
        "unknown",
        "average precision %",
        "AUC %",
        "threshold",
        "precision %",
        "recall %",
        "F1 %",
    ];
    let rows: Vec<Vec<Cell>> = sorted.iter().take(MAX_ROWS).map(|label| row(&label.metrics)).collect();
    html.table(&heads, &rows);
}

fn row(label: &LabelRow) -> Vec<Cell> {
    let count = |count: u64| Cell::number(Some(count as f64), 0);
    let percent = |share: Option<f64>| Cell::number(share.map(|share| 100.0 * share), 2);
    vec![
        Cell::text(label.name.clone()),
        count(label.positives),
        count(label.negatives),
        count(label.missing),
        percent(label.average_precision),
        percent(label.auc),
        Cell::number(label.threshold, 4),
        percent(label.precision),
        percent(label.recall),
        percent(label.f1),
    ]
}

/// Adds the curve of a label.
fn panel(html: &mut Html, LabelReport { metrics, curve }: &LabelReport) {
    let LabelRow { name, positives, negatives, average_precision, .. } = metrics;
    let mut panel = Panel::over([0.0, 100.0].into_iter(), ["recall, %", "precision, %"]);
    let known = positives.saturating_add(*negatives);
    let share = 100.0 * *positives as f64 / known.max(1) as f64;
    panel.line("turn", &[[0.0, share], [100.0, share]]);
    panel.line("curve", &steps(curve));
    if let [Some(threshold), Some(precision), Some(recall), Some(f1)] =
        [metrics.threshold, metrics.precision, metrics.recall, metrics.f1]
    {
        let [precision, recall, f1] = [precision, recall, f1].map(|share| 100.0 * share);
        let title = format!(
            "threshold {threshold:.4}: precision {precision:.2} %, recall {recall:.2} %, F1 {f1:.2} %"
        );
        panel.circle("point update", [recall, precision], &title);
    }
    let average = average_precision.map_or("–".to_owned(), |average| format!("{:.2} %", 100.0 * average));
    let facts = format!("average precision {average}, {positives} of {known} images");
    panel.show(html, &format!("Precision over recall of {name}"), name, &facts);
}

/// The line of a curve in percent: the precision of a threshold holds for the recall that it gains.
fn steps(curve: &[LabelPoint]) -> Vec<[f64; 2]> {
    let mut line = Vec::with_capacity(2 * curve.len());
    let mut before = 0.0;
    for point in curve {
        let [recall, precision] = [point.recall, point.precision].map(|share| 100.0 * share);
        line.extend([[before, precision], [recall, precision]]);
        before = recall;
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_area_below_a_curve_is_its_average_precision() {
        let point = |recall, precision| LabelPoint { label: 0, threshold: 0.5, recall, precision };
        let line = steps(&[point(0.25, 1.0), point(0.25, 0.5), point(1.0, 0.625)]);
        let area: f64 = line.windows(2).map(|pair| (pair[1][0] - pair[0][0]) * pair[1][1] / 1e4).sum();
        assert_eq!(area, 0.25 * 1.0 + 0.75 * 0.625);
        assert_eq!(line[0], [0.0, 100.0]);
        assert!(steps(&[]).is_empty());
    }
}
