//! The results of `stratus infer`: printed, and written as a table.

use crate::output::{key_value_list, printable, table};
use serde::Serialize;
use stratus_base::quantile;

#[derive(Serialize)]
pub(super) struct Report {
    /// The predictions, one per image.
    pub images: Vec<ImageReport>,
    /// The images and videos that failed.
    pub errors: Vec<ErrorReport>,
    pub milliseconds: LatencyReport,
    pub images_per_second: f64,
}

#[derive(Serialize)]
pub(super) struct ImageReport {
    pub path: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub top: Option<Vec<Top>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mask: Option<String>,
    pub ms: f64,
}

/// An image or video that failed.
#[derive(Serialize)]
pub(super) struct ErrorReport {
    pub path: String,
    /// The problem, as text.
    pub error: String,
}

#[derive(Serialize)]
pub(super) struct Top {
    pub class: usize,
    pub name: String,
    pub probability: f64,
}

/// Milliseconds per image.
#[derive(Serialize)]
pub(super) struct LatencyReport {
    pub median: f64,
    pub p99: f64,
    pub decode: Percentiles,
    pub network: Percentiles,
    pub write: Percentiles,
}

#[derive(Serialize)]
pub(super) struct Percentiles {
    pub median: f64,
    pub p99: f64,
}

impl Percentiles {
    pub fn of(mut seconds: Vec<f64>) -> Self {
        seconds.sort_by(f64::total_cmp);
        let at = |share: f64| 1e3 * quantile(&seconds, share).unwrap_or(0.0);
        Self { median: at(0.5), p99: at(0.99) }
    }
}

/// The header of the table of classes.
pub(super) const CSV_HEADER: &str = "path,rank,class,name,probability\n";

/// Renders one line per image and class.
pub(super) fn csv(images: &[ImageReport]) -> String {
    let quoted = |text: &str| format!("\"{}\"", text.replace('"', "\"\""));
    let mut text = String::from(CSV_HEADER);
    for image in images {
        for (top, rank) in image.top.iter().flatten().zip(1..) {
            let Top { class, name, probability } = top;
            let (path, name) = (quoted(&image.path), quoted(name));
            text.push_str(&format!("{path},{rank},{class},{name},{probability:?}\n"));
        }
    }
    text
}

/// Renders the predictions and times as tables.
pub(super) fn render(report: &Report) -> String {
    let mut rows = Vec::new();
    for image in &report.images {
        let mut row = vec![printable(&image.path)];
        match (&image.top, &image.mask) {
            (Some(top), _) => {
                row.extend(
                    top.iter()
                        .map(|top| format!("{} {:.1} %", printable(&top.name), 100.0 * top.probability)),
                );
            }
            (None, Some(mask)) => row.push(printable(mask)),
            (None, None) => {}
        }
        rows.push(row);
    }
    let LatencyReport { median, p99, decode, network, write } = &report.milliseconds;
    let percentiles = |of: &Percentiles| format!("median {:.2} ms, p99 {:.2} ms", of.median, of.p99);
    let mut times = vec![
        ("images".to_owned(), report.images.len().to_string()),
        ("without answer".to_owned(), report.errors.len().to_string()),
        ("per image".to_owned(), format!("median {median:.2} ms, p99 {p99:.2} ms")),
        ("decoding".to_owned(), percentiles(decode)),
        ("network".to_owned(), percentiles(network)),
        ("writing".to_owned(), percentiles(write)),
        ("images/s".to_owned(), format!("{:.1}", report.images_per_second)),
    ];
    if report.errors.is_empty() {
        times.remove(1);
    }
    format!("{}\n{}", table(&rows), key_value_list(&times))
}
