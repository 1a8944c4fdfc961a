//! How a forecast reads.

use super::{Report, scaling};
use crate::output::{Table, bytes};
use std::fmt::Write;
use stratus_forecast::bill::Item;
use stratus_forecast::forecast::{Forecast, LayerForecast};
use stratus_forecast::text::duration;
use stratus_train::bench::probe::Probed;

/// Columns that a narrow terminal goes without, the first first.
const OPTIONAL: [&str; 7] = ["type", "source", "epoch", "largest", "left", "device", "images/s"];

/// Columns that say nothing where nothing is known of them.
const UNKNOWN: [&str; 3] = ["price", "epoch", "total"];

/// The columns that a narrow terminal goes without: those that are empty or the same in every row first.
fn optional(rows: &[[String; 14]]) -> Vec<&'static str> {
    let place = |name: &str| rows[0].iter().position(|head| head == name).unwrap_or_default();
    let is_unknown = |name: &&str| rows[1..].iter().all(|row| row[place(name)] == "–");
    let limit = place("limit");
    let is_same = rows.len() > 2 && rows[2..].iter().all(|row| row[limit] == rows[1][limit]);
    UNKNOWN.into_iter().filter(is_unknown).chain(is_same.then_some("limit")).chain(OPTIONAL).collect()
}

/// Rows whose time for an image may be less than the best one's, as both intervals have it.
fn rivals(rows: &[Forecast], name: &str, batch: u64) -> usize {
    let an_image = |row: &Forecast, seconds: f64| seconds / row.batch as f64;
    let Some(best) = rows.iter().find(|row| row.name == name && row.batch == batch) else { return 0 };
    let others =
        rows.iter().filter(|row| row.fits != Some(false) && (row.name != name || row.batch != batch));
    others.filter(|row| an_image(row, row.low_s) < an_image(best, best.high_s)).count()
}

/// The table, what to be careful about, and the recommendation.
pub(super) fn report(report: &Report, width: Option<usize>) -> String {
    let heading = [
        "machine", "batch", "step, ms", "80 %", "images/s", "epoch", "total", "device", "left", "largest",
        "limit", "price", "type", "source",
    ]
    .map(str::to_owned);
    let rows: Vec<_> = [heading].into_iter().chain(report.machines.iter().map(row)).collect();
    let images = report.images.map_or("an unknown number of".to_owned(), |images| images.to_string());
    let mut text = format!(
        "{}, {} epochs of {images} images; times of {}\n{}",
        report.network,
        report.epochs,
        if report.framework == "stratus" { "Stratus" } else { "TensorFlow 2.5" },
        Table::new(&rows).within(width, &optional(&rows))
    );
    let mut said: Vec<(&str, Vec<&str>)> = Vec::new();
    for row in &report.machines {
        for warning in &row.warnings {
            match said.iter_mut().find(|(known, _)| known == warning) {
                Some((_, names)) if names.contains(&row.name.as_str()) => {}
                Some((_, names)) => names.push(&row.name),
                None => said.push((warning, vec![&row.name])),
            }
        }
    }
    for (warning, names) in said {
        // Writing into a String cannot fail.
        let _ = writeln!(text, "{}: {warning}", names.join(", "));
    }
    for probed in &report.probes {
        let Probed { batch, library, kernels, kinds, timings, spread, planning_s, probing_s, .. } = probed;
        let spread = spread.map_or("–".to_owned(), |spread| format!("±{:.1} %", 100.0 * spread));
        // Writing into a String cannot fail.
        let _ = writeln!(
            text,
            "here, batch {batch}: {timings} times of {kinds} different kernels among {} ({spread}), in {} of \
             memory; planned in {planning_s:.1} s, timed in {probing_s:.1} s; {library}",
            kernels.len(),
            bytes(probed.scratch_bytes),
        );
    }
    if let Some(layers) = &report.layers {
        text += &layer_table(layers, width);
    }
    match &report.recommendation {
        Some(best) => {
            let _ = writeln!(text, "{}: {}, batch {}", best.wish, best.name, best.batch);
            let rivals = rivals(&report.machines, &best.name, best.batch);
            if best.wish == "fastest" && rivals > 0 {
                let _ = writeln!(
                    text,
                    "{rivals} other row{} may be as fast: the intervals overlap, and the one whose upper \
                     end is least is named",
                    if rivals == 1 { "" } else { "s" }
                );
            }
            let taken = report.machines.iter().find(|row| row.name == best.name && row.batch == best.batch);
            text += &taken.map(|row| bill(row, width)).unwrap_or_default();
            if !report.scaling.is_empty() {
                let length = [report.images, Some(report.epochs)];
                text += &format!("\n{}", scaling::render(&report.scaling, length, width));
            }
        }
        None => text += "none of these machines is what was asked for\n",
    }
    text
}

/// What the time and the price of a row are made of, and what is not counted.
fn bill(row: &Forecast, width: Option<usize>) -> String {
    if row.bill.is_empty() {
        return String::new();
    }
    let none = || "–".to_owned();
    let priced = row.currency.is_some();
    let currency = row.currency.as_deref().unwrap_or("");
    let columns = if priced { 4 } else { 3 };
    let heading = ["bill", "times", "time", "price"].map(str::to_owned)[..columns].to_vec();
    let lines = row.bill.iter().map(|part| {
        let line = [
            part.part.name().to_owned(),
            part.count.map_or_else(String::new, |count| {
                format!("{count:.*}", usize::from(part.part == Item::Preemptions && count > 0.0))
            }),
            part.hours.map_or_else(none, |hours| duration(3600.0 * hours)),
            part.price.map_or_else(none, |price| format!("{price:.2} {currency}")),
        ];
        line[..columns].to_vec()
    });
    let rows: Vec<Vec<String>> = [heading].into_iter().chain(lines).collect();
    let mut text = Table::new(&rows).within(width, &["times"]).to_string();
    let missing = row.bill.iter().filter(|part| part.hours.is_none()).map(|part| match part.part {
        Item::DataTransfer => "data transfer (--link says how fast)",
        Item::Validation => "validation (--validation-images says of how many)",
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
    let none = || "–".to_owned();
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
    let left = match row.spare_bytes {
        Some(spare) if spare < 0 => format!("-{}", bytes(spare.unsigned_abs())),
        Some(spare) => bytes(spare.unsigned_abs()),
        None => none(),
    };
    let currency = row.currency.as_deref().unwrap_or("");
    [
        row.name.clone(),
        row.batch.to_string(),
        milliseconds(row.step_s),
        format!("{}–{}", milliseconds(row.low_s), milliseconds(row.high_s)),
        format!("{:.0}", row.images_per_second),
        row.epoch_s.map_or_else(none, duration),
        row.total_s.map_or_else(none, duration),
        bytes(row.device_bytes),
        left,
        row.largest_batch.map_or_else(none, |batch| batch.to_string()),
        if row.fits == Some(false) { "does not fit".to_owned() } else { row.limit.name().to_owned() },
        row.price.map_or_else(none, |price| format!("{price:.2} {currency}")),
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
    format!("\n{}\n", Table::new(&rows).within(width, &[]))
}
