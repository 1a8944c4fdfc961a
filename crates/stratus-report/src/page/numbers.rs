//! The targets of images in the newest validation: predicted over true numbers, and a table of errors.

use stratus_base::text::{grouped, significant};
use stratus_measures::TargetMetrics;

use super::html::{Cell, Html};
use super::plots::{MAX_PANELS, Panel, lowest_first};
use crate::report::TargetReport;

/// Maximum number of rows of the table.
const MAX_ROWS: usize = 1000;

/// Adds the points and the table; nothing without targets.
pub(super) fn section(html: &mut Html, targets: &[TargetReport]) {
    let sorted = lowest_first(targets, |target| target.metrics.r2);
    let drawn: Vec<&TargetReport> =
        sorted.iter().copied().filter(|target| !target.points.is_empty()).take(MAX_PANELS).collect();
    if !drawn.is_empty() {
        html.element("h4", "", "Predicted over true");
        let which = if drawn.len() < targets.len() {
            format!("The {} of {} targets with the lowest R². ", drawn.len(), targets.len())
        } else {
            String::new()
        };
        let note = which + "A dot is an image; on the dashed line, the prediction is right.";
        html.element("p", "note", &note);
        html.open("div", "plots");
        drawn.iter().for_each(|target| panel(html, target));
        html.close("div");
    }
    if sorted.is_empty() {
        return;
    }
    html.element("h4", "", "Targets");
    let mut note = "MAE: the mean absolute error. RMSE: the root of the mean squared error. R² is 1 if all \
                    predictions are right, and 0 if they are no better than the mean."
        .to_owned();
    if sorted.len() > MAX_ROWS {
        note += &format!(" The table has the {MAX_ROWS} of {} targets with the lowest R².", sorted.len());
    }
    html.element("p", "note", &note);
    let rows: Vec<Vec<Cell>> = sorted.iter().take(MAX_ROWS).map(|target| row(&target.metrics)).collect();
    html.table(&["target", "images", "unknown", "mean", "MAE", "RMSE", "R²"], &rows);
}

fn row(target: &TargetMetrics) -> Vec<Cell> {
    let count = |count: u64| Cell::number(Some(count as f64), 0);
    let number = |value: Option<f64>| match value {
        Some(value) => Cell::sorted(significant(value), value),
        None => Cell::number(None, 0),
    };
    vec![
        Cell::text(target.name.clone()),
        count(target.samples),
        count(target.missing),
        number(target.mean),
        number(target.mae),
        number(target.rmse),
        Cell::number(target.r2, 4),
    ]
}

/// Adds the points of a target.
fn panel(html: &mut Html, TargetReport { metrics, points }: &TargetReport) {
    let TargetMetrics { name, samples, mae, rmse, r2, .. } = metrics;
    let values = points.iter().flat_map(|point| [point.number, point.predicted]).map(f64::from);
    let mut panel = Panel::over(values, ["true", "predicted"]);
    let [low, high] = panel.range();
    panel.line("turn", &[[low; 2], [high; 2]]);
    panel.dots(points.iter().map(|point| [point.number, point.predicted].map(f64::from)));
    let number = |value: &Option<f64>| value.map_or("–".to_owned(), significant);
    let r2 = r2.map_or("–".to_owned(), |r2| format!("{r2:.4}"));
    let mut facts = format!("R² {r2}, MAE {}, RMSE {}", number(mae), number(rmse));
    let shown = points.len() as u64;
    if shown < *samples {
        facts += &format!(", {} of {} images", grouped(shown), grouped(*samples));
    }
    panel.show(html, &format!("Predicted over true {name}"), name, &facts);
}
