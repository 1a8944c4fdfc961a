//! Renders forecasts as text.

use super::{Report, choice, evidence, scaling};
use crate::output::Table;
use std::fmt::Write;
use std::time::SystemTime;
use stratus_base::text::{bytes, counted, duration};
use stratus_forecast::bill::BillItem;
use stratus_forecast::catalogue::price_age_days;
use stratus_forecast::forecast::{Forecast, LayerForecast};
use stratus_train::bench::probe::ProbeReport;

/// The columns of the table.
const COLUMNS: [&str; 18] = [
    "machine",
    "batch",
    "step, ms",
    "step interval",
    "images/s",
    "epoch",
    "total",
    "total interval",
    "device",
    "free",
    "max batch",
    "bound by",
    "price",
    "price interval",
    "price of",
    "kWh",
    "precision",
    "source",
];

/// Columns that are hidden on a narrow terminal, in this order.
const OPTIONAL_COLUMNS: [&str; 13] = [
    "kWh",
    "precision",
    "device",
    "free",
    "max batch",
    "step interval",
    "epoch",
    "price of",
    "price interval",
    "total interval",
    "step, ms",
    "images/s",
    "batch",
];

/// Columns that are hidden first if all their values are unknown.
const OMITTED_IF_UNKNOWN: [&str; 7] =
    ["kWh", "price", "price interval", "price of", "epoch", "total", "total interval"];

/// The age in days from which a price is marked.
const OLD_PRICE_DAYS: u64 = 90;
/// Maximum number of machines that a warning names.
const MAX_NAMED_MACHINES: usize = 6;
/// The reason why rows of unsupported GPUs are left out.
pub(super) const NO_KERNELS: &str = "Stratus has no kernels for GPUs before Turing";
/// Maximum number of rows of machines that were not named, without `--all`.
const MAX_ROWS: usize = 20;

/// The columns that are hidden on a narrow terminal: first those that are unknown in every row.
fn optional_columns(rows: &[[String; COLUMNS.len()]]) -> Vec<&'static str> {
    let column = |name: &str| COLUMNS.iter().position(|head| *head == name).unwrap_or_default();
    let is_unknown = |name: &&str| rows[1..].iter().all(|row| row[column(name)] == "–");
    OMITTED_IF_UNKNOWN.into_iter().filter(is_unknown).chain(OPTIONAL_COLUMNS).collect()
}

/// The days since 1970 of today.
pub(super) fn today() -> u64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    since.as_secs() / 86_400
}

/// Renders the table, warnings, and the chosen machine with its bill.
pub(super) fn render_report(report: &Report, width: Option<usize>) -> String {
    let today = today();
    let (supported, unsupported): (Vec<&Forecast>, Vec<&Forecast>) =
        report.in_order().partition(|row| report.shows_all || row.is_supported);
    let (fitting, not_fitting): (Vec<&Forecast>, Vec<&Forecast>) =
        supported.into_iter().partition(|row| row.fits != Some(false));
    let all = fitting.len();
    let shown = if report.shows_all { fitting } else { worth_showing(fitting) };
    let heading = COLUMNS.map(str::to_owned);
    let rows: Vec<_> = [heading].into_iter().chain(shown.iter().map(|found| row(found, today))).collect();
    let images = report.images.map_or("an unknown number of".to_owned(), |images| images.to_string());
    let precision = shown.first().map(|row| row.precision);
    let precision = precision.filter(|precision| shown.iter().all(|row| row.precision == *precision));
    let mut text = format!(
        "{}{}, {} of {images} images; times of {}; intervals of 80 %\n",
        report.network,
        precision.map_or_else(String::new, |precision| format!(" in {precision}")),
        counted(report.epochs, "epoch"),
        if report.framework == "stratus" { "Stratus" } else { "TensorFlow 2.5" },
    );
    if report.images.is_none() {
        text += "neither total nor price: the number of images is unknown (set --images)\n";
    }
    text += &Table::new(&rows).max_width(width, &optional_columns(&rows)).to_string();
    let mut line = |line: String| {
        text += &line;
        text.push('\n');
    };
    if shown.len() < all {
        let more = all - shown.len();
        line(format!("{more} more row{}, slower or dearer: --all", if more == 1 { "" } else { "s" }));
    }
    if !not_fitting.is_empty() {
        let missing = |row: &&Forecast| format!("{} batch {} ({})", row.name, row.batch, shortage(row));
        let named = if report.shows_all { not_fitting.len() } else { MAX_NAMED_MACHINES };
        line(format!("does not fit in memory: {}", list(not_fitting.iter().map(missing).collect(), named)));
    }
    if !unsupported.is_empty() {
        let mut names: Vec<String> = unsupported.iter().map(|row| row.name.clone()).collect();
        names.dedup();
        line(format!("left out, as {NO_KERNELS}: {}", list(names, MAX_NAMED_MACHINES)));
    }
    let old = shown.iter().filter(|row| is_old(row, today)).count();
    if old > 0 {
        line(format!(
            "* {old} price{} older than {OLD_PRICE_DAYS} days: check before you pay; newer ones come from \
             SkyPilot, if it was used on this machine, or from --machines",
            if old == 1 { " is" } else { "s are" }
        ));
    }
    render_details(report, &shown, text, width)
}

/// The memory that a row that does not fit is short of.
pub(super) fn shortage(row: &Forecast) -> String {
    match row.spare_bytes {
        Some(spare) if spare < 0 => {
            let fitting = row.largest_batch.filter(|batch| *batch > 0);
            let fitting = fitting.map_or_else(String::new, |batch| format!("; {batch} fits"));
            format!("{} missing{fitting}", bytes(spare.unsigned_abs()))
        }
        _ => "host memory".to_owned(),
    }
}

/// The first rows, without those that are neither faster nor cheaper than another with the same processor and
/// batch.
fn worth_showing(rows: Vec<&Forecast>) -> Vec<&Forecast> {
    let mut shown: Vec<&Forecast> = Vec::new();
    for row in rows {
        let is_covered = |other: &&Forecast| {
            let bounds = other.cost.price_high.zip(row.cost.price_high);
            (&other.processor, other.batch) == (&row.processor, row.batch)
                && other.total_high_s <= row.total_high_s
                && bounds.is_some_and(|(other, row)| other <= row)
        };
        if shown.len() < MAX_ROWS && !shown.iter().any(is_covered) {
            shown.push(row);
        }
    }
    shown
}

/// The first `named` names, and the number of the others.
fn list(mut names: Vec<String>, named: usize) -> String {
    let more = names.len().saturating_sub(named);
    names.truncate(named);
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    format!("{}{more}", names.join(", "))
}

/// Returns whether the price of a row is old.
pub(super) fn is_old(row: &Forecast, today: u64) -> bool {
    let date = row.cost.price_date.as_deref();
    date.and_then(|date| price_age_days(date, today)).is_some_and(|age| age > OLD_PRICE_DAYS)
}

/// Adds the warnings of the rows that are shown, timings, layers and the choice to the table.
fn render_details(report: &Report, shown: &[&Forecast], mut text: String, width: Option<usize>) -> String {
    let mut warnings: Vec<(&str, Vec<String>)> = Vec::new();
    for row in shown {
        for warning in &row.warnings {
            match warnings.iter_mut().find(|(known, _)| known == warning) {
                Some((_, names)) if names.contains(&row.name) => {}
                Some((_, names)) => names.push(row.name.clone()),
                None => warnings.push((warning, vec![row.name.clone()])),
            }
        }
    }
    for (warning, names) in warnings {
        // Writing into a String cannot fail.
        let _ = writeln!(text, "{}: {warning}", list(names, MAX_NAMED_MACHINES));
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
    if !report.evidence.is_empty() {
        text += &evidence::render(&report.evidence, width);
    }
    text += &choice::render(report);
    if let Some(best) = report.ranking.best() {
        text += &render_bill(&report.machines[best], width);
        if !report.scaling.is_empty() {
            let length = [report.images, Some(report.epochs)];
            text += &format!("\n{}", scaling::render(&report.scaling, length, width));
            text += "without waiting for images: each device needs its share of cores and link\n";
        }
    }
    text
}

/// Renders the bill of a row: the items of its time and price. Names the items that are not counted.
fn render_bill(row: &Forecast, width: Option<usize>) -> String {
    if row.bill.is_empty() {
        return String::new();
    }
    let dash = || "–".to_owned();
    let priced = row.cost.currency.is_some();
    let currency = row.cost.currency.as_deref().unwrap_or("");
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
    let others = if priced { &["the start of the machine", "storage"][..] } else { &[] };
    let missing: Vec<&str> = missing.chain(others.iter().copied()).collect();
    if !missing.is_empty() {
        // Writing into a String cannot fail.
        let _ = writeln!(text, "not counted: {}", missing.join(", "));
    }
    text
}

fn row(row: &Forecast, today: u64) -> [String; COLUMNS.len()] {
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
    let currency = row.cost.currency.as_deref().unwrap_or("");
    let cost = &row.cost;
    let price_interval = cost.price_low.zip(cost.price_high);
    let total_interval = row.total_low_s.zip(row.total_high_s);
    let mark = if is_old(row, today) { "*" } else { "" };
    [
        row.name.clone(),
        row.batch.to_string(),
        milliseconds(row.step_s),
        format!("{}–{}", milliseconds(row.low_s), milliseconds(row.high_s)),
        format!("{:.0}", row.images_per_second),
        row.epoch_s.map_or_else(dash, duration),
        row.total_s.map_or_else(dash, duration),
        total_interval.map_or_else(dash, |(low, high)| format!("{}–{}", duration(low), duration(high))),
        bytes(row.device_bytes),
        free,
        row.largest_batch.map_or_else(dash, |batch| batch.to_string()),
        row.limit.name().to_owned(),
        cost.price.map_or_else(dash, |price| format!("{price:.2} {currency}")),
        price_interval.map_or_else(dash, |(low, high)| format!("{low:.2}–{high:.2}")),
        cost.price_date.as_ref().map_or_else(dash, |date| format!("{date}{mark}")),
        row.energy.energy_kwh.map_or_else(dash, kwh),
        row.precision.to_owned(),
        row.source.name().to_owned(),
    ]
}

/// An energy in kWh, with three digits.
pub(super) fn kwh(energy: f64) -> String {
    let decimals = 2 - energy.max(1e-3).log10().floor().clamp(-3.0, 2.0) as i32;
    format!("{energy:.*}", usize::try_from(decimals).unwrap_or(0))
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
