//! The results of `stratus infer`: printed, and written as a table.

use crate::output::{key_value_list, printable, table};
use serde::Serialize;
use stratus_base::quantile;
use stratus_base::text::significant;
use stratus_run::csv::Task;

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
    /// Every label, the most probable first.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub labels: Option<Vec<LabelAnswer>>,
    /// Every target, in its unit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub numbers: Option<Vec<NumberAnswer>>,
    pub ms: f64,
}

impl ImageReport {
    /// The labels that apply.
    pub fn applying_labels(&self) -> impl Iterator<Item = &LabelAnswer> {
        self.labels.iter().flatten().filter(|label| label.applies)
    }
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

#[derive(Serialize)]
pub(super) struct LabelAnswer {
    pub label: usize,
    pub name: String,
    pub probability: f64,
    /// The probability from which the label applies.
    pub threshold: f64,
    pub applies: bool,
}

#[derive(Serialize)]
pub(super) struct NumberAnswer {
    pub target: usize,
    pub name: String,
    pub number: f64,
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
const CSV_HEADER: &str = "path,rank,class,name,probability\n";

/// The header of the table of labels.
const LABEL_CSV_HEADER: &str = "path,label,name,probability,threshold,applies\n";
/// The header of the table of numbers.
const NUMBER_CSV_HEADER: &str = "path,target,name,number\n";
/// The headers of the tables of all tasks.
pub(super) const CSV_HEADERS: [&str; 3] = [CSV_HEADER, LABEL_CSV_HEADER, NUMBER_CSV_HEADER];

/// Renders one line per image and class, label or target.
pub(super) fn csv(images: &[ImageReport], task: Task) -> String {
    let quoted = |text: &str| format!("\"{}\"", text.replace('"', "\"\""));
    let header = match task {
        Task::Classification | Task::Segmentation => CSV_HEADER,
        Task::MultiLabel => LABEL_CSV_HEADER,
        Task::Regression => NUMBER_CSV_HEADER,
    };
    let mut text = String::from(header);
    for image in images {
        for answer in image.labels.iter().flatten() {
            let LabelAnswer { label, name, probability, threshold, applies } = answer;
            let (path, name) = (quoted(&image.path), quoted(name));
            text.push_str(&format!("{path},{label},{name},{probability:?},{threshold:?},{applies}\n"));
        }
        for NumberAnswer { target, name, number } in image.numbers.iter().flatten() {
            text.push_str(&format!("{},{target},{},{number:?}\n", quoted(&image.path), quoted(name)));
        }
        for (top, rank) in image.top.iter().flatten().zip(1..) {
            let Top { class, name, probability } = top;
            let (path, name) = (quoted(&image.path), quoted(name));
            text.push_str(&format!("{path},{rank},{class},{name},{probability:?}\n"));
        }
    }
    text
}

/// The labels that apply, or the numbers, as texts.
fn answers(image: &ImageReport) -> Vec<String> {
    let label =
        |answer: &LabelAnswer| format!("{} {:.1} %", printable(&answer.name), 100.0 * answer.probability);
    let number =
        |answer: &NumberAnswer| format!("{} {}", printable(&answer.name), significant(answer.number));
    let mut texts: Vec<String> = image.applying_labels().map(label).collect();
    if texts.is_empty() && image.labels.is_some() {
        texts.push("no label".to_owned());
    }
    texts.extend(image.numbers.iter().flatten().map(number));
    texts
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
            (None, None) => row.extend(answers(image)),
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
