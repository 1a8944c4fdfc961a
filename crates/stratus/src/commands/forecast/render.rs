//! Renders forecasts as text.

use super::{Report, scaling};
use crate::output::Table;
use std::fmt::Write;
use stratus_base::text::{bytes, duration};
use stratus_forecast::bill::BillItem;
use stratus_forecast::forecast::{Forecast, LayerForecast};
use stratus_train::bench::probe::ProbeReport;

/// Columns that are hidden on a narrow terminal, in this order.
const OPTIONAL_COLUMNS: [&str; 7] =
    ["precision", "source", "epoch", "max batch", "free", "device", "images/s"];

/// Columns that are hidden first if all their values are unknown.
const OMITTED_IF_UNKNOWN: [&str; 3] = ["price", "epoch", "total"];

/// The columns that are hidden on a narrow terminal: first those that are unknown or the same in every row.
fn optional_columns(rows: &[[String; 14]]) -> Vec<&'static str> {
    let column = |name: &str| rows[0].iter().position(|head| head == name).unwrap_or_default();
    let is_unknown = |name: &&str| rows[1..].iter().all(|row| row[column(name)] == "–");
    let bound = column("bound by");
    let is_same = rows.len() > 2 && rows[2..].iter().all(|row| row[bound] == rows[1][bound]);
    OMITTED_IF_UNKNOWN
        .into_iter()
        .filter(is_unknown)
        .chain(is_same.then_some("bound by"))
        .chain(OPTIONAL_COLUMNS)
        .collect()
}

/// The number of rows whose intervals overlap that of the best row, so that they may be faster.
fn overlapping_rows(rows: &[Forecast], name: &str, batch: u64) -> usize {
    let per_image = |row: &Forecast, seconds: f64| seconds / row.batch as f64;
    let Some(best) = rows.iter().find(|row| row.name == name && row.batch == batch) else { return 0 };
    let others =
        rows.iter().filter(|row| row.fits != Some(false) && (row.name != name || row.batch != batch));
    others.filter(|row| per_image(row, row.low_s) < per_image(best, best.high_s)).count()
}

/// Renders the table, warnings, and the chosen machine with its bill.
pub(super) fn render_report(report: &Report, width: Option<usize>) -> String {
    let heading = [
        "machine",
        "batch",
        "step, ms",
        "80 % interval",
        "images/s",
        "epoch",
        "total",
        "device",
        "free",
        "max batch",
        "bound by",
        "price",
        "precision",
        "source",
    ]
    .map(str::to_owned);
    let rows: Vec<_> = [heading].into_iter().chain(report.machines.iter().map(row)).collect();
    let images = report.images.map_or("an unknown number of".to_owned(), |images| images.to_string());
    let mut text = format!(
        "{}, {} epochs of {images} images; times of {}\n{}",
        report.network,
        report.epochs,
        if report.framework == "stratus" { "Stratus" } else { "TensorFlow 2.5" },
        Table::new(&rows).max_width(width, &optional_columns(&rows))
    );
    let mut warnings: Vec<(&str, Vec<&str>)> = Vec::new();
    for row in &report.machines {
        for warning in &row.warnings {
            match warnings.iter_mut().find(|(known, _)| known == warning) {
                Some((_, names)) if names.contains(&row.name.as_str()) => {}
                Some((_, names)) => names.push(&row.name),
                None => warnings.push((warning, vec![&row.name])),
            }
        }
    }
    for (warning, names) in warnings {
        // Writing into a String cannot fail.
        let _ = writeln!(text, "{}: {warning}", names.join(", "));
    }
    for probed in &report.probes {
        let ProbeReport { batch, library, kernels, kinds, timings, spread, planning_s, probing_s, .. } =
            probed;
        let spread = spread.map_or("–".to_owned(), |spread| format!("±{:.1} %", 100.0 * spread));
        // Writing into a String cannot fail.
        let _ = writeln!(
            text,
            "here, batch {batch}: {timings} timings of {kinds} distinct kernels among {} ({spread}), in {} \
             of memory; planning took {planning_s:.1} s, timing {probing_s:.1} s; {library}",
            kernels.len(),
            bytes(probed.scratch_bytes),
        );
    }
    if let Some(layers) = &report.layers {
        text += &layer_table(layers, width);
    }
    match &report.recommendation {
        Some(best) => {
            let _ = writeln!(text, "{}: {}, batch {}", best.objective, best.name, best.batch);
            let rivals = overlapping_rows(&report.machines, &best.name, best.batch);
            if best.objective == "fastest" && rivals > 0 {
                let _ = writeln!(
                    text,
                    "{rivals} other row{} may be as fast: the intervals overlap; chosen by upper bound",
                    if rivals == 1 { "" } else { "s" }
                );
            }
            let chosen = report.machines.iter().find(|row| row.name == best.name && row.batch == best.batch);
            text += &chosen.map(|row| render_bill(row, width)).unwrap_or_default();
            if !report.scaling.is_empty() {
                let length = [report.images, Some(report.epochs)];
                text += &format!("\n{}", scaling::render(&report.scaling, length, width));
            }
        }
        None => text += "no machine meets the objective\n",
    }
    text
}

/// Renders the bill of a row: the items of its time and price. Names the items that are not counted.
fn render_bill(row: &Forecast, width: Option<usize>) -> String {
    if row.bill.is_empty() {
        return String::new();
    }
    let dash = || "–".to_owned();
    let priced = row.currency.is_some();
    let currency = row.currency.as_deref().unwrap_or("");
    let columns = if priced { 4 } else { 3 };
    let heading = ["bill", "count", "time", "price"].map(str::to_owned)[..columns].to_vec();
    let lines = row.bill.iter().map(|part| {
        let line = [
            part.part.name().to_owned(),
            part.count.map_or_else(String::new, |count| {
                format!("{count:.*}", usize::from(part.part == BillItem::Preemptions && count > 0.0))
            }),
            part.hours.map_or_else(dash, |hours| duration(3600.0 * hours)),
            part.price.map_or_else(dash, |price| format!("{price:.2} {currency}")),
        ];
        line[..columns].to_vec()
    });
    let rows: Vec<Vec<String>> = [heading].into_iter().chain(lines).collect();
    let mut text = Table::new(&rows).max_width(width, &["count"]).to_string();
    let missing = row.bill.iter().filter(|part| part.hours.is_none()).map(|part| match part.part {
        BillItem::DataTransfer => "data transfer (set --link)",
        BillItem::Validation => "validation (set --validation-images)",
        part => part.name(),
    });
    let missing: Vec<&str> = missing.collect();
    if !missing.is_empty() {
        // Writing into a String cannot fail.
        let _ = writeln!(text, "not counted: {}", missing.join(", "));
    }
    text
}

fn row(row: &Forecast) -> [String; 14] {
    let dash = || "–".to_owned();
    let milliseconds = |seconds: f64| {
        let value = seconds * 1e3;
        format!(
            "{value:.*}",
            if value < 10.0 {
                2
            } else if value < 100.0 {
                1
            } else {
                0
            }
        )
    };
    let free = match row.spare_bytes {
        Some(spare) if spare < 0 => format!("-{}", bytes(spare.unsigned_abs())),
        Some(spare) => bytes(spare.unsigned_abs()),
        None => dash(),
    };
    let currency = row.currency.as_deref().unwrap_or("");
    [
        row.name.clone(),
        row.batch.to_string(),
        milliseconds(row.step_s),
        format!("{}–{}", milliseconds(row.low_s), milliseconds(row.high_s)),
        format!("{:.0}", row.images_per_second),
        row.epoch_s.map_or_else(dash, duration),
        row.total_s.map_or_else(dash, duration),
        bytes(row.device_bytes),
        free,
        row.largest_batch.map_or_else(dash, |batch| batch.to_string()),
        if row.fits == Some(false) { "does not fit".to_owned() } else { row.limit.name().to_owned() },
        row.price.map_or_else(dash, |price| format!("{price:.2} {currency}")),
        row.precision.to_owned(),
        row.source.name().to_owned(),
    ]
}

fn layer_table(layers: &[LayerForecast], width: Option<usize>) -> String {
    let heading = ["layer", "kernels", "GFLOP", "MB", "ms"].map(str::to_owned);
    let rows = layers.iter().map(|layer| {
        [
            layer.layer.clone(),
            layer.kernels.to_string(),
            format!("{:.2}", layer.flops * 1e-9),
            format!("{:.1}", layer.bytes * 1e-6),
            format!("{:.3}", layer.seconds * 1e3),
        ]
    });
    let rows = [heading].into_iter().chain(rows).collect::<Vec<_>>();
    format!("\n{}\n", Table::new(&rows).max_width(width, &[]))
}
