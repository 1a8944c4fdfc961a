//! The errors of the network: mistakes, images of each class, masks over the epochs, the confusion matrix,
//! and the metrics of each class.

use stratus_run::validation::{
    CLASS_COLUMNS, CORRECT_COLOUR, ClassSample, Confusion, LabelMistake, MASK_COLUMNS, MAX_CONFUSIONS,
    MaskEpoch, Mistake, NumberMistake, PictureFile, TaskImages, ValidationImages, WRONG_COLOUR,
};

use super::escape::escape;
use super::html::{Cell, Html};
use super::pictures::{self, MAX_EMBEDDED_BYTES, NotShown};
use super::svg::{Anchor, Svg};
use super::{labels, numbers};
use crate::report::{ClassHistory, RunReport, ValidationReport};
use stratus_base::text::{bytes, significant};

/// Maximum number of classes of the confusion matrix that is drawn.
const MAX_DRAWN_CLASSES: usize = 40;
/// Maximum number of classes whose counts are written into the matrix.
const MAX_COUNTED_CLASSES: usize = 15;
/// Maximum number of listed confusions.
const MAX_LISTED_CONFUSIONS: usize = 30;
/// Maximum number of classes in the legend of masks.
const MAX_LEGEND_CLASSES: usize = 256;
/// Maximum length of the name of a class beside the matrix.
const MAX_LABEL_CHARACTERS: usize = 16;
/// The colours of the differences, with their names.
const DIFFERENCE_COLOURS: [([u8; 3], &str); 3] =
    [(CORRECT_COLOUR, "correct"), (WRONG_COLOUR, "wrong"), ([0; 3], "without a class")];

/// Adds the section; nothing if the run kept nothing.
pub(super) fn section(html: &mut Html, run: &RunReport, number: usize) {
    let Some(validation) = &run.validation else { return };
    let stages = run.layers.network.as_ref().and_then(|network| network.stage).map(|(_, count)| count);
    let has_tables = !validation.confusion.is_empty()
        || validation.history.is_some()
        || !validation.labels.is_empty()
        || !validation.targets.is_empty();
    if validation.images.is_none() && !has_tables && stages.is_none() {
        return;
    }
    html.element("h3", "", "What the network gets wrong");
    if let Some(images) = &validation.images {
        let mut note = format!("The images of the validation after epoch {}.", images.epoch);
        if images.workers > 1 {
            note += &format!(" {} workers shared it: these are images of the first one.", images.workers);
        }
        html.element("p", "note", &note);
        let files = Files { run, validation, images, number };
        match &images.images {
            TaskImages::Classification { mistake_count, mistakes, samples } => {
                files.mistakes(html, *mistake_count, mistakes);
                files.samples(html, samples);
            }
            TaskImages::Segmentation { samples, predictions, colours } => {
                files.masks(html, samples, predictions, colours);
            }
            TaskImages::MultiLabel { mistake_count, mistakes } => {
                files.label_mistakes(html, *mistake_count, mistakes);
            }
            TaskImages::Regression { mistakes } => files.number_mistakes(html, mistakes),
        }
    } else {
        let reason = match stages {
            Some(count) => format!("This run has {count} pipeline stages, which keep no pictures"),
            None => "There are no pictures of validations to show. Pipeline stages keep none".to_owned(),
        };
        let rest = if has_tables { ": below are the tables of all images." } else { "." };
        html.element("p", "note", &(reason + rest));
    }
    confusion(html, validation);
    labels::section(html, &validation.labels);
    numbers::section(html, &validation.targets);
    if let Some(history) = &validation.history {
        class_history(html, history, number);
    }
}

/// The files of pictures of a run.
struct Files<'a> {
    run: &'a RunReport,
    validation: &'a ValidationReport,
    images: &'a ValidationImages,
    number: usize,
}

impl Files<'_> {
    /// The id of a file's image in the page.
    fn id(&self, file: PictureFile) -> String {
        format!("pictures-{}-{}", self.number, pictures::name(file))
    }

    /// Adds a file once, to be shown in parts.
    fn define(
        &self,
        html: &mut Html,
        file: PictureFile,
        count: usize,
        columns: usize,
    ) -> Result<(), NotShown> {
        if self.validation.absent.contains(&file) {
            return Err(NotShown::Absent);
        }
        if self.validation.damaged.contains(&file) {
            return Err(NotShown::Damaged);
        }
        let address = html.pictures.address(&self.run.record.path, self.images, file)?;
        let [height, width] = self.images.file_size(count, columns);
        html.raw(&format!(
            "<svg class=\"definitions\" width=\"0\" height=\"0\" aria-hidden=\"true\"><defs><image id=\"{}\" \
             href=\"{}\" width=\"{width}\" height=\"{height}\" preserveAspectRatio=\"none\"/></defs></svg>\n",
            self.id(file),
            escape(&address)
        ));
        Ok(())
    }

    /// Adds picture `position` of a file; `label` describes it.
    fn picture(&self, html: &mut Html, file: PictureFile, [position, columns]: [usize; 2], label: &str) {
        let [height, width] = self.images.size.map(u64::from);
        let [row, column] = [position / columns.max(1), position % columns.max(1)].map(|at| at as u64);
        html.raw(&format!(
            "<svg class=\"picture\" viewBox=\"{} {} {width} {height}\" role=\"img\" aria-label=\"{}\"><use \
             href=\"#{}\"/></svg>",
            column * width,
            row * height,
            escape(label),
            self.id(file)
        ));
    }

    /// Adds a picture of a classified image with the classes, and `more` about it.
    fn classified(
        &self,
        html: &mut Html,
        (file, position): (PictureFile, usize),
        name: &str,
        [class, predicted]: [u32; 2],
        more: &str,
    ) {
        let [truth, prediction] = [class, predicted].map(|class| self.validation.name(class.into()));
        let is_correct = class == predicted;
        let classes = if is_correct { truth } else { format!("{truth} → {prediction}") };
        html.open("figure", if is_correct { "shown" } else { "shown wrong" });
        self.picture(html, file, [position, CLASS_COLUMNS], &format!("{classes}, {name}"));
        html.open("figcaption", "");
        html.element("strong", "", &classes);
        if !more.is_empty() {
            html.element("span", "", more);
        }
        file_name(html, name);
        html.close("figcaption");
        html.close("figure");
    }

    fn mistakes(&self, html: &mut Html, count: u64, mistakes: &[Mistake]) {
        if mistakes.is_empty() {
            let text = match count {
                0 => "No mistake among the images of the validation.".to_owned(),
                count => {
                    format!("{count} images have another predicted class than their own; none is shown.")
                }
            };
            return html.element("p", "", &text);
        }
        html.element("h4", "", "Most confident mistakes");
        let shown = mistakes.len();
        let images = if count == 1 { "image is" } else { "images are" };
        let of = if self.images.workers > 1 { ", of those that the first worker evaluated," } else { "" };
        let text = format!(
            "{count} {images} misclassified. Below are the {shown}{of} whose wrong prediction has the \
             highest probability: true class → predicted class."
        );
        html.element("p", "note", &text);
        let file = PictureFile::Epoch(self.images.epoch);
        if let Err(reason) = self.define(html, file, mistakes.len(), CLASS_COLUMNS) {
            return note_missing(html, reason);
        }
        html.open("div", "pictures");
        for (position, mistake) in mistakes.iter().enumerate() {
            let Mistake { file: name, class, predicted, probability } = mistake;
            let probability = format!("{:.1} %", 100.0 * probability);
            self.classified(html, (file, position), name, [*class, *predicted], &probability);
        }
        html.close("div");
    }

    /// Adds the images with the most confident wrong labels.
    fn label_mistakes(&self, html: &mut Html, count: u64, mistakes: &[LabelMistake]) {
        if mistakes.is_empty() {
            return html.element("p", "", "No wrong label among the images of the validation.");
        }
        html.element("h4", "", "Most confident mistakes");
        let images = if count == 1 { "image has" } else { "images have" };
        let text = format!(
            "{count} {images} a wrong label at a threshold of 0.5. Below are the {} whose wrong label is \
             farthest from it: + predicted although it does not apply, − missed.",
            mistakes.len()
        );
        html.element("p", "note", &text);
        let names = |sign: char, labels: &[u32]| {
            let name = |label: &u32| format!("{sign}{}", self.validation.name((*label).into()));
            labels.iter().map(name).collect::<Vec<_>>()
        };
        let captions = mistakes.iter().map(|mistake| {
            let all = [names('+', &mistake.wrong), names('−', &mistake.missed)].concat();
            (mistake.file.as_str(), all.join(" "))
        });
        self.captioned(html, &captions.collect::<Vec<_>>());
    }

    /// Adds the images with the largest errors.
    fn number_mistakes(&self, html: &mut Html, mistakes: &[NumberMistake]) {
        if mistakes.is_empty() {
            return;
        }
        html.element("h4", "", "Largest errors");
        html.element(
            "p",
            "note",
            "The images with the largest error of a target, in its standard deviations. Captions: true → \
             predicted.",
        );
        let captions = mistakes.iter().map(|mistake| {
            let NumberMistake { file, target, number, predicted } = mistake;
            let name = self.validation.name((*target).into());
            (file.as_str(), format!("{name} {} → {}", significant(*number), significant(*predicted)))
        });
        self.captioned(html, &captions.collect::<Vec<_>>());
    }

    /// Adds the pictures of the newest epoch, with the name and caption of each.
    fn captioned(&self, html: &mut Html, pictures: &[(&str, String)]) {
        let file = PictureFile::Epoch(self.images.epoch);
        if let Err(reason) = self.define(html, file, pictures.len(), CLASS_COLUMNS) {
            return note_missing(html, reason);
        }
        html.open("div", "pictures");
        for (position, (name, caption)) in pictures.iter().enumerate() {
            html.open("figure", "shown wrong");
            self.picture(html, file, [position, CLASS_COLUMNS], &format!("{caption}, {name}"));
            html.open("figcaption", "");
            html.element("strong", "", caption);
            file_name(html, name);
            html.close("figcaption");
            html.close("figure");
        }
        html.close("div");
    }

    /// Adds the images of each class, collapsed.
    fn samples(&self, html: &mut Html, samples: &[ClassSample]) {
        if samples.is_empty() {
            return;
        }
        html.open("details", "");
        html.element("summary", "", "Images of each class");
        let file = PictureFile::Samples;
        if let Err(reason) = self.define(html, file, samples.len(), CLASS_COLUMNS) {
            note_missing(html, reason);
        } else {
            let mut position = 0;
            for group in samples.chunk_by(|one, other| one.class == other.class) {
                let correct = group.iter().filter(|sample| sample.class == sample.predicted).count();
                let name = group.first().map(|sample| self.validation.name(sample.class.into()));
                let title = format!("{}: {correct} of {} correct", name.unwrap_or_default(), group.len());
                html.element("h4", "", &title);
                html.open("div", "pictures");
                for ClassSample { file: name, class, predicted } in group {
                    self.classified(html, (file, position), name, [*class, *predicted], "");
                    position += 1;
                }
                html.close("div");
            }
        }
        html.close("details");
    }

    /// Adds the segmented images. The script shows the masks of other epochs.
    fn masks(&self, html: &mut Html, samples: &[String], predictions: &[MaskEpoch], colours: &[[u8; 3]]) {
        if samples.is_empty() {
            return;
        }
        html.element("h4", "", "Images, truth, prediction and difference");
        let count = MASK_COLUMNS * samples.len();
        if let Err(reason) = self.define(html, PictureFile::Samples, count, MASK_COLUMNS) {
            return note_missing(html, reason);
        }
        // The newest first, since a page embeds no more than a limit.
        let mut shown: Vec<&MaskEpoch> = predictions.iter().rev().collect();
        let mut reasons: Vec<NotShown> = Vec::new();
        shown.retain(|shown| match self.define(html, PictureFile::Epoch(shown.epoch), count, MASK_COLUMNS) {
            Ok(()) => true,
            Err(reason) => {
                if !reasons.contains(&reason) {
                    reasons.push(reason);
                }
                false
            }
        });
        shown.reverse();
        reasons.into_iter().for_each(|reason| note_missing(html, reason));
        let Some(newest) = shown.last() else { return };
        html.open("div", "masks");
        if shown.len() > 1 {
            let last = shown.len() - 1;
            let epochs: Vec<String> = shown.iter().map(|shown| shown.epoch.to_string()).collect();
            html.raw(&format!(
                "<p class=\"slider\"><label>Epoch <input type=\"range\" min=\"0\" max=\"{last}\" \
                 value=\"{last}\" data-mask-epochs=\"{}\" data-pictures=\"pictures-{}-\"></label> \
                 <output>{}</output></p>\n",
                epochs.join(","),
                self.number,
                newest.epoch
            ));
        }
        let file = PictureFile::Epoch(newest.epoch);
        for (row, name) in samples.iter().enumerate() {
            let percent =
                |iou: &Option<f64>| iou.map_or("–".to_owned(), |iou| format!("{:.1} %", 100.0 * iou));
            let ious: Vec<String> =
                shown.iter().map(|shown| shown.iou.get(row).map_or("–".to_owned(), percent)).collect();
            html.open("figure", "shown");
            html.open("div", "panels");
            for (part, file, column) in [
                ("image", PictureFile::Samples, 0),
                ("truth", PictureFile::Samples, 1),
                ("prediction", file, 0),
                ("difference", file, 1),
            ] {
                html.open("div", if file == PictureFile::Samples { "" } else { "predicted" });
                self.picture(
                    html,
                    file,
                    [MASK_COLUMNS * row + column, MASK_COLUMNS],
                    &format!("{part}, {name}"),
                );
                html.element("span", "muted", part);
                html.close("div");
            }
            html.close("div");
            html.raw(&format!("<figcaption>mean IoU <strong data-ious=\"{}\">", ious.join(",")));
            html.raw(ious.last().map_or("–", String::as_str));
            html.raw("</strong>");
            file_name(html, name);
            html.close("figcaption");
            html.close("figure");
        }
        html.close("div");
        self.legend(html, colours);
    }

    /// Adds the colours of the classes.
    fn legend(&self, html: &mut Html, colours: &[[u8; 3]]) {
        html.open("ul", "legend");
        let listed = colours.iter().enumerate().take(MAX_LEGEND_CLASSES);
        let classes = listed.map(|(class, colour)| (*colour, self.validation.name(class as u64)));
        let differences = DIFFERENCE_COLOURS.iter().map(|(colour, name)| (*colour, (*name).to_owned()));
        for ([red, green, blue], name) in classes.chain(differences) {
            html.raw(&format!(
                "<li><svg class=\"swatch\" viewBox=\"0 0 1 1\" aria-hidden=\"true\"><rect width=\"1\" \
                 height=\"1\" fill=\"#{red:02x}{green:02x}{blue:02x}\"/></svg>{}</li>\n",
                escape(&name)
            ));
        }
        html.close("ul");
        if colours.len() > MAX_LEGEND_CLASSES {
            let text = format!("The first {MAX_LEGEND_CLASSES} of {} classes.", colours.len());
            html.element("p", "note", &text);
        }
    }
}

/// Adds a note that pictures are missing.
fn note_missing(html: &mut Html, reason: NotShown) {
    let text = match reason {
        NotShown::Absent => "their file is missing.".to_owned(),
        NotShown::Damaged => "their file is damaged.".to_owned(),
        NotShown::OverLimit => {
            format!("they exceed the {} that a page embeds.", bytes(MAX_EMBEDDED_BYTES as u64))
        }
    };
    html.element("p", "note", &format!("Pictures are left out: {text}"));
}

/// Adds the last part of the name of a file, with the whole name as its tooltip.
fn file_name(html: &mut Html, name: &str) {
    let short = name.rsplit(['/', '\\']).next().unwrap_or_default();
    html.raw(&format!("<span class=\"file muted\" title=\"{}\">{}</span>", escape(name), escape(short)));
}

/// Adds the confusion matrix: drawn for few classes, and its largest errors as a table.
fn confusion(html: &mut Html, validation: &ValidationReport) {
    let counts = &validation.confusion;
    let Some(classes) = counts.iter().map(|found| found.class.max(found.predicted)).max() else { return };
    let classes = classes.saturating_add(1).max(validation.names.len());
    html.element("h4", "", "Confusion matrix");
    if classes <= MAX_DRAWN_CLASSES {
        html.raw(
            "<div class=\"scroll matrix\" tabindex=\"0\" role=\"group\" aria-label=\"Confusion matrix\">",
        );
        html.raw(&matrix(validation, classes).inline("Confusion matrix"));
        html.close("div");
    }
    let total = |class: usize| -> u64 {
        let of_class = counts.iter().filter(|found| found.class == class);
        of_class.fold(0, |sum, found| sum.saturating_add(found.count))
    };
    let mut wrong: Vec<&Confusion> = counts.iter().filter(|found| found.class != found.predicted).collect();
    wrong.sort_by_key(|found| (u64::MAX - found.count, found.class, found.predicted));
    let listed = wrong.len().min(MAX_LISTED_CONFUSIONS);
    if listed == 0 {
        return html.element("p", "note", "No class was predicted as another one.");
    }
    html.open("details", "");
    html.element("summary", "", "Most frequent errors");
    // A class whose smaller counts were not kept has no known total.
    let is_complete = wrong.len() < MAX_CONFUSIONS;
    if !is_complete {
        let text =
            format!("The run kept the {MAX_CONFUSIONS} largest errors: shares of classes are unknown.");
        html.element("p", "note", &text);
    }
    let rows: Vec<Vec<Cell>> = wrong[..listed]
        .iter()
        .map(|found| {
            let share = is_complete.then(|| 100.0 * found.count as f64 / total(found.class).max(1) as f64);
            vec![
                Cell::text(validation.name(found.class as u64)),
                Cell::text(validation.name(found.predicted as u64)),
                Cell::number(Some(found.count as f64), 0),
                Cell::number(share, 2),
            ]
        })
        .collect();
    html.table(&["true class", "predicted", "count", "share of the class %"], &rows);
    html.close("details");
}

/// Draws the matrix: a row per true class, whose cells are as opaque as their share of the row.
fn matrix(validation: &ValidationReport, classes: usize) -> Svg {
    let names: Vec<String> = (0..classes).map(|class| short(&validation.name(class as u64))).collect();
    let longest = names.iter().map(|name| name.chars().count()).max().unwrap_or(0);
    // The corner has room for the explanation of the axes.
    let [label_width, label_height] = [longest.max(15), longest.max(3)].map(|length| 7.5 * length as f64);
    let cell = if classes <= MAX_COUNTED_CLASSES { 44.0 } else { 18.0 };
    let side = cell * classes as f64;
    let [left, top] = [label_width + 10.0, label_height + 12.0];
    let mut svg = Svg::new(left + side + 8.0, top + side + 8.0);
    let mut totals = vec![0_u64; classes];
    for found in &validation.confusion {
        totals[found.class] = totals[found.class].saturating_add(found.count);
    }
    for (class, name) in names.iter().enumerate() {
        let middle = (class as f64 + 0.5) * cell;
        svg.text("", [left - 6.0, top + middle + 4.0], Anchor::End, name);
        svg.rotated_text([left + middle + 4.0, top - 6.0], name);
    }
    svg.rect("cells", [left, top, side, side], "");
    for &Confusion { class, predicted, count } in &validation.confusion {
        let share = count as f64 / totals[class].max(1) as f64;
        let [x, y] = [left + predicted as f64 * cell, top + class as f64 * cell];
        let [truth, prediction] = [class, predicted].map(|class| validation.name(class as u64));
        let title = format!("{truth} → {prediction}: {count} ({:.1} %)", 100.0 * share);
        svg.shaded_rect([x, y, cell, cell], share, &title);
        if classes <= MAX_COUNTED_CLASSES {
            let at = [x + cell / 2.0, y + cell / 2.0 + 4.0];
            svg.text(if share > 0.6 { "on" } else { "" }, at, Anchor::Middle, &compact(count));
        }
    }
    svg.text("tick", [left - 6.0, top - 6.0], Anchor::End, "true ↓, predicted →");
    svg
}

/// A count in few characters: `987`, `12k`, `3.4M`.
fn compact(count: u64) -> String {
    match count as f64 {
        value if value < 1e4 => count.to_string(),
        value if value < 1e6 => format!("{:.0}k", value / 1e3),
        value if value < 1e8 => format!("{:.1}M", value / 1e6),
        value => format!("{:.0}M", value / 1e6),
    }
}

/// The beginning of a long name.
fn short(name: &str) -> String {
    if name.chars().count() <= MAX_LABEL_CHARACTERS {
        return name.to_owned();
    }
    name.chars().take(MAX_LABEL_CHARACTERS - 1).chain(['…']).collect()
}

fn class_history(html: &mut Html, history: &ClassHistory, number: usize) {
    let ClassHistory { metric, output_kind, is_fraction, classes, curves, .. } = history;
    let output_kinds = if *output_kind == "class" { "classes".to_owned() } else { format!("{output_kind}s") };
    let which = match curves.len() < *classes {
        true => format!("The {} of {classes} {output_kinds} with the lowest values. ", curves.len()),
        false => String::new(),
    };
    let note =
        format!("{which}The lowest first. Click a name below the chart to hide or show its {output_kind}.");
    let unit = if *is_fraction { ", %" } else { "" };
    html.chart(
        "class-history",
        number,
        &format!("Validation {metric} of each {output_kind} by epoch{unit}"),
        &note,
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_and_names_are_short() {
        let texts = [0, 9_999, 10_000, 999_400, 1_234_567, 123_456_789].map(compact);
        assert_eq!(texts, ["0", "9999", "10k", "999k", "1.2M", "123M"]);
        assert_eq!(short("a class of sixt."), "a class of sixt.");
        assert_eq!(short("a class of sixteen"), "a class of sixt…");
    }
}
