//! A report as Markdown and as CSV: its tables, for a lab book, an issue or a spreadsheet.

use std::fmt::Write;

use crate::report::{Comparison, Report, RunReport, score_name};
use crate::text::{bytes, csv_field};

/// Layers in the table of a run.
const LAYERS: usize = 20;

/// The report as Markdown: the comparison, then a few lines and two tables a run.
#[must_use]
pub fn markdown(report: &Report) -> String {
    let mut out = String::new();
    if let Some(comparison) = &report.comparison {
        let (heads, rows) = comparison_table(comparison);
        out.push_str("# Side by side\n\n");
        table(&mut out, &heads, &rows);
        out.push('\n');
    }
    for run in &report.runs {
        of_run(&mut out, run);
    }
    for problem in &report.problems {
        // A string takes every write.
        let _ = writeln!(
            out,
            "- not in this report: {}: {} ({})",
            plain(&problem.run.display().to_string()),
            problem.what,
            plain(&problem.reason)
        );
    }
    out
}

/// The comparison's rows as CSV; of a single run its row.
#[must_use]
pub fn csv(report: &Report) -> String {
    let alone;
    let comparison = match &report.comparison {
        Some(comparison) => comparison,
        None => {
            alone = Comparison::of(&report.runs);
            &alone
        }
    };
    let (heads, rows) = comparison_table(comparison);
    let mut out = String::new();
    for row in std::iter::once(&heads).chain(&rows) {
        let fields: Vec<_> = row.iter().map(|field| csv_field(field)).collect();
        out.push_str(&fields.join(","));
        out.push('\n');
    }
    out
}

fn of_run(out: &mut String, run: &RunReport) {
    let _ = writeln!(out, "# {}\n\n{}\n", plain(&run.label), plain(&run.headline));
    if !run.advice.is_empty() {
        run.advice.iter().for_each(|line| _ = writeln!(out, "- {}", plain(line)));
        out.push('\n');
    }
    let (accuracy, score) = (run.task.accuracy_name(), score_name(run.task));
    let heads = [
        "epoch".to_owned(),
        "training loss".to_owned(),
        format!("training {accuracy} %"),
        "validation loss".to_owned(),
        format!("validation {score} %"),
        "elapsed s".to_owned(),
    ];
    let rows: Vec<Vec<String>> = run
        .epochs
        .iter()
        .map(|epoch| {
            vec![
                epoch.epoch.to_string(),
                format!("{:.4}", epoch.train_loss),
                format!("{:.2}", 100.0 * epoch.train_accuracy),
                number(epoch.val_loss, 4),
                number(epoch.val_score.map(|share| 100.0 * share), 2),
                format!("{:.1}", epoch.elapsed_s),
            ]
        })
        .collect();
    table(out, &heads, &rows);
    out.push('\n');
    let accounting = &run.accounting;
    let mut layers: Vec<_> = accounting.layers.iter().collect();
    layers.sort_by_key(|layer| std::cmp::Reverse(layer.total.total_ns));
    let heads = ["layer", "kind", "forward ms", "backward ms", "update ms", "total ms", "share %"];
    let mut rows: Vec<Vec<String>> = layers
        .iter()
        .take(LAYERS)
        .map(|layer| {
            let ms = [&layer.forward, &layer.backward, &layer.update, &layer.total].map(|cost| cost.mean_ms);
            let mut row = vec![layer.layer.clone(), layer.kind.clone()];
            row.extend(ms.map(|ms| format!("{ms:.3}")));
            row.push(format!("{:.1}", layer.total.share_percent));
            row
        })
        .collect();
    let mut add = |name: &str, ms: f64, share: f64| {
        let mut row = vec![name.to_owned(), String::new(), String::new(), String::new(), String::new()];
        row.extend([format!("{ms:.3}"), format!("{share:.1}")]);
        rows.push(row);
    };
    let rest = layers.iter().skip(LAYERS);
    let (ms, share) =
        rest.fold((0.0, 0.0), |sum, layer| (sum.0 + layer.total.mean_ms, sum.1 + layer.total.share_percent));
    if layers.len() > LAYERS {
        add(&format!("{} more layers", layers.len() - LAYERS), ms, share);
    }
    for row in &accounting.phases {
        add(&row.phase.name().replace('_', " "), row.cost.mean_ms, row.cost.share_percent);
    }
    add("unattributed", accounting.unattributed.mean_ms, accounting.unattributed.share_percent);
    add("an iteration", accounting.wall.mean_ms, 100.0);
    table(out, &heads.map(str::to_owned), &rows);
    out.push('\n');
}

fn comparison_table(comparison: &Comparison) -> (Vec<String>, Vec<Vec<String>>) {
    let mut heads = vec!["run".to_owned(), "status".to_owned()];
    heads.extend(comparison.keys.iter().cloned());
    heads.push(format!("best {} %", comparison.score));
    let results = [
        "validation loss",
        "training loss",
        "iteration ms",
        "images/s",
        "speed-up",
        "in all s",
        "peak memory",
    ];
    heads.extend(results.map(str::to_owned));
    let rows = comparison.rows.iter().map(|row| {
        let mut cells = vec![row.label.clone(), row.status.clone()];
        cells.extend(row.values.iter().cloned());
        cells.extend([
            number(row.best_score.map(|share| 100.0 * share), 2),
            number(row.val_loss, 4),
            number(row.train_loss, 4),
            number(row.iteration_ms, 3),
            number(row.images_per_second, 0),
            number(row.speed_up, 2),
            number(row.total_s, 1),
            row.peak_bytes.map_or(String::new(), bytes),
        ]);
        cells
    });
    (heads, rows.collect())
}

fn number(value: Option<f64>, decimals: usize) -> String {
    value.filter(|value| value.is_finite()).map_or(String::new(), |value| format!("{value:.decimals$}"))
}

fn table(out: &mut String, heads: &[String], rows: &[Vec<String>]) {
    let mut line = |cells: &[String]| {
        let cells: Vec<String> = cells.iter().map(|cell| plain(cell)).collect();
        let _ = writeln!(out, "| {} |", cells.join(" | "));
    };
    line(heads);
    line(&vec!["---".to_owned(); heads.len()]);
    rows.iter().for_each(|row| line(row));
}

/// Text without what Markdown would take for markup.
fn plain(text: &str) -> String {
    let mut plain = String::with_capacity(text.len());
    for letter in text.chars() {
        match letter {
            '<' => plain.push_str("&lt;"),
            '>' => plain.push_str("&gt;"),
            '|' | '`' | '*' | '[' | ']' | '\\' => plain.extend(['\\', letter]),
            letter if letter.is_control() => plain.push(' '),
            letter => plain.push(letter),
        }
    }
    plain
}
