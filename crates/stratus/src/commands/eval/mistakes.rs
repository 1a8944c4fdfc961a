//! The mistakes of `stratus eval`: a list, a table as CSV, a sheet of pictures.

use super::MistakesReport;
use crate::errors::{Failure, Result};
use crate::output::{printable, table};
use crate::outputs::{Mark, Outputs};
use clap::Args;
use std::path::{Path, PathBuf};
use stratus_base::text::significant;
use stratus_data::contact_sheet::{ClassPalette, SheetClasses, contact_sheet};
use stratus_run::classes::OutputMetrics;
use stratus_train::evaluate::{MAX_GALLERY_IMAGES, Mistake, MistakeKind, MistakeRequest, Mistakes};

/// The header of the table. Columns of the other task are empty.
const CSV_HEADER: &str = "path,class,name,predicted,predicted_name,probability,iou\n";
/// The header of the table for labels; several are separated by `|`.
const LABEL_CSV_HEADER: &str = "path,wrong,missed,severity\n";
/// The header of the table for numbers.
const NUMBER_CSV_HEADER: &str = "path,name,number,predicted_number\n";
/// The number of mistakes without a number in the command.
const DEFAULT_LISTED: u32 = 20;

/// Arguments for mistakes.
#[derive(Args, Debug)]
pub struct MistakeArguments {
    /// List the N most confident mistakes, or of a segmentation the N images of lowest IoU [default: 20]
    #[arg(
        long,
        value_name = "N",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "20",
        value_parser = clap::value_parser!(u32).range(1..=100_000),
        conflicts_with = "window"
    )]
    pub mistakes: Option<u32>,
    /// Write the mistakes to this file, as CSV
    #[arg(long, value_name = "FILE", conflicts_with = "window")]
    pub mistakes_csv: Option<PathBuf>,
    /// Draw the mistakes on a contact sheet, a PNG file; for a segmentation with truth, prediction and
    /// difference
    #[arg(long, value_name = "FILE", conflicts_with = "window")]
    pub gallery: Option<PathBuf>,
}

impl MistakeArguments {
    /// The mistakes to collect; `None` if none of the flags is given.
    pub fn request(&self) -> Option<MistakeRequest> {
        let is_requested = self.mistakes.is_some() || self.mistakes_csv.is_some() || self.gallery.is_some();
        let max_listed = self.mistakes.unwrap_or(DEFAULT_LISTED) as usize;
        is_requested.then_some(MistakeRequest { max_listed, gallery: self.gallery.is_some() })
    }

    /// The output files: path, name in messages, and mark.
    pub fn files(&self) -> [(&Option<PathBuf>, &'static str, Mark); 2] {
        [
            (
                &self.mistakes_csv,
                "the table of mistakes",
                Mark::Table(&[CSV_HEADER, LABEL_CSV_HEADER, NUMBER_CSV_HEADER]),
            ),
            (&self.gallery, "the gallery of mistakes", Mark::Image),
        ]
    }

    /// Writes the output files. `title` is the evaluated network.
    ///
    /// # Errors
    /// If a file cannot be written.
    pub fn write(&self, mistakes: &Mistakes, title: &str, outputs: &OutputMetrics) -> Result {
        if let Some(path) = &self.mistakes_csv {
            Outputs::write(path, csv(&mistakes.listed, outputs).as_bytes())?;
        }
        match &self.gallery {
            Some(path) => write_gallery(path, mistakes, title, outputs),
            None => Ok(()),
        }
    }
}

/// Draws the gallery.
fn write_gallery(path: &Path, mistakes: &Mistakes, title: &str, outputs: &OutputMetrics) -> Result {
    let names: Vec<String> = outputs.names().map(str::to_owned).collect();
    let palette = ClassPalette::for_classes(&names);
    let name = |class: usize| names.get(class).cloned().unwrap_or_else(|| class.to_string());
    let gallery = &mistakes.gallery;
    let is_segmentation = gallery.tiles.iter().any(|tile| tile.mask.is_some());
    let is_labels =
        matches!(mistakes.listed.first().map(|mistake| &mistake.kind), Some(MistakeKind::Labels { .. }));
    let explained = match (is_segmentation, is_labels) {
        (true, _) => "truth, prediction, difference",
        (false, true) => "+ wrong, − missed labels",
        (false, false) => "true → predicted",
    };
    let title = format!("{title}: {explained}");
    let sheet =
        contact_sheet(&title, &gallery.tiles, gallery.size, &SheetClasses { name: &name, palette: &palette });
    Outputs::write(path, &sheet.to_png().map_err(Failure::failed)?)
}

/// Renders the list, below the metrics.
pub(super) fn render(report: &MistakesReport) -> String {
    let MistakesReport { images_with_mistakes: count, mistakes: listed, drawn } = report;
    let plural = if *count == 1 { "" } else { "s" };
    let Some(first) = listed.first() else { return "\nno mistakes\n".to_owned() };
    let heads: &[&str] = match first.kind {
        MistakeKind::Class { .. } => &["image", "true", "predicted", "probability"],
        MistakeKind::Pixels { .. } => &["image", "IoU"],
        MistakeKind::Labels { .. } => &["image", "wrong", "missed"],
        MistakeKind::Numbers { .. } => &["image", "target", "true", "predicted"],
    };
    let mut rows: Vec<Vec<String>> = vec![heads.iter().map(|&head| head.to_owned()).collect()];
    let percent = |share: f64| format!("{:.2} %", 100.0 * share);
    rows.extend(listed.iter().map(|mistake| match &mistake.kind {
        MistakeKind::Class { name, predicted_name, probability, .. } => {
            let [path, name, predicted] = [&mistake.path, name, predicted_name].map(|name| printable(name));
            vec![path, name, predicted, percent(*probability)]
        }
        MistakeKind::Pixels { iou } => vec![printable(&mistake.path), percent(*iou)],
        MistakeKind::Labels { wrong, missed, .. } => {
            let [wrong, missed] = [wrong, missed].map(|labels| match labels.is_empty() {
                true => "–".to_owned(),
                false => printable(&labels.join(", ")),
            });
            vec![printable(&mistake.path), wrong, missed]
        }
        MistakeKind::Numbers { name, number, predicted_number } => {
            let [number, predicted] = [*number, *predicted_number].map(significant);
            vec![printable(&mistake.path), printable(name), number, predicted]
        }
    }));
    let rows: Vec<&[String]> = rows.iter().map(Vec::as_slice).collect();
    let shown = if listed.len() < *count { format!(", the worst {}:", listed.len()) } else { ":".to_owned() };
    let note = if *drawn == MAX_GALLERY_IMAGES && listed.len() > MAX_GALLERY_IMAGES {
        format!("the gallery has the first {MAX_GALLERY_IMAGES}\n")
    } else {
        String::new()
    };
    format!("\n{count} image{plural} with mistakes{shown}\n{}{note}", table(&rows))
}

/// Labels, separated by `|`. In names, `|` and `\` are written with a `\` before them.
fn label_list(labels: &[String]) -> String {
    let escape = |name: &String| name.replace('\\', "\\\\").replace('|', "\\|");
    labels.iter().map(escape).collect::<Vec<_>>().join("|")
}

/// The mistakes as CSV.
fn csv(listed: &[Mistake], outputs: &OutputMetrics) -> String {
    let quoted = |text: &str| format!("\"{}\"", text.replace('"', "\"\""));
    let header = match (outputs.labels.is_empty(), outputs.targets.is_empty()) {
        (false, _) => LABEL_CSV_HEADER,
        (true, false) => NUMBER_CSV_HEADER,
        (true, true) => CSV_HEADER,
    };
    let mut text = header.to_owned();
    for Mistake { path, kind } in listed {
        let fields = match kind {
            MistakeKind::Class { class, name, predicted, predicted_name, probability } => {
                let (name, predicted_name) = (quoted(name), quoted(predicted_name));
                format!("{class},{name},{predicted},{predicted_name},{probability:?},")
            }
            MistakeKind::Pixels { iou } => format!(",,,,,{iou:?}"),
            MistakeKind::Labels { wrong, missed, severity } => {
                format!("{},{},{severity:?}", quoted(&label_list(wrong)), quoted(&label_list(missed)))
            }
            MistakeKind::Numbers { name, number, predicted_number } => {
                format!("{},{number:?},{predicted_number:?}", quoted(name))
            }
        };
        text.push_str(&format!("{},{fields}\n", quoted(path)));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_labels_can_be_divided_again() {
        let labels = ["a|b", "c\\", "d"].map(str::to_owned);
        assert_eq!(label_list(&labels), r"a\|b|c\\|d");
        assert_eq!(label_list(&[]), "");
    }
}
