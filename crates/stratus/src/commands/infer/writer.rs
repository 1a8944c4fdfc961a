//! Writes the outputs of one prediction: the mask and the overlay of a segmentation.

use super::InferArguments;
use super::files::overlay_path;
use super::report::{ImageReport, LabelAnswer, NumberAnswer, Top};
use crate::errors::{Failure, Result};
use crate::outputs::Outputs;
use std::path::Path;
use std::time::Instant;
use stratus_base::text::significant;
use stratus_data::contact_sheet::{ClassPalette, RgbImage, Tile, mask_to_png};
use stratus_train::infer::{Output, Prediction, Predictor};

/// Writes predictions as the arguments request.
#[derive(Clone, Copy)]
pub(super) struct PredictionWriter<'a> {
    pub arguments: &'a InferArguments,
    pub predictor: &'a Predictor,
    pub palette: &'a ClassPalette,
}

/// A prediction whose files are written.
pub(super) struct WrittenPrediction {
    pub report: ImageReport,
    /// The image for a contact sheet; without pixels unless the prediction has a view.
    pub tile: Tile,
    /// Height and width of the view.
    pub size: Option<[usize; 2]>,
    /// Seconds of decoding, network and writing.
    pub seconds: [f64; 3],
}

impl PredictionWriter<'_> {
    /// Writes the files of a prediction. `path` names the image in the report, `file` on the sheet.
    ///
    /// # Errors
    /// If a file cannot be written.
    pub fn write(
        &self,
        path: String,
        file: String,
        mask: Option<&Path>,
        prediction: Prediction,
    ) -> Result<WrittenPrediction> {
        let Prediction { output, decode_s, network_s, view, .. } = prediction;
        let writing = Instant::now();
        let mut report = ImageReport { path, top: None, mask: None, labels: None, numbers: None, ms: 0.0 };
        let mut tile = Tile { file, ..Tile::default() };
        match output {
            Output::Classes(classes) => {
                let top = classes.iter().take(self.arguments.top.max(1)).map(|&(class, probability)| Top {
                    class,
                    name: self.predictor.class_name(class),
                    probability,
                });
                let top: Vec<Top> = top.collect();
                if let Some(first) = top.first() {
                    tile.caption = format!("{} {:.0} %", first.name, 100.0 * first.probability);
                }
                report.top = Some(top);
            }
            Output::Mask(classes, size) => {
                if let Some(file) = mask {
                    let palette = (!self.arguments.raw).then_some(self.palette);
                    let png = mask_to_png(&classes, size, palette).map_err(Failure::failed)?;
                    Outputs::write(file, &png)?;
                    report.mask = Some(file.display().to_string());
                }
                if let Some(RgbImage { height, width, .. }) = view {
                    tile.mask = Some(resize_nearest(classes, size, [height, width]));
                }
            }
            Output::Labels(probabilities) => report.labels = Some(self.labels(&probabilities)),
            Output::Numbers(numbers) => {
                let answer = |(target, &number)| NumberAnswer {
                    target,
                    name: self.predictor.class_name(target),
                    number,
                };
                report.numbers = Some(numbers.iter().enumerate().map(answer).collect());
            }
        }
        if let Some(numbers) = &report.numbers {
            let captions =
                numbers.iter().map(|answer| format!("{} {}", answer.name, significant(answer.number)));
            tile.caption = captions.collect::<Vec<_>>().join(", ");
        } else if report.labels.is_some() {
            let names: Vec<&str> = report.applying_labels().map(|label| label.name.as_str()).collect();
            tile.caption = names.join(", ");
        }
        let mut view_size = None;
        if let Some(RgbImage { pixels, height, width }) = view {
            tile.pixels = pixels;
            view_size = Some([height, width]);
            if let (true, Some(mask)) = (self.arguments.overlay, mask) {
                let png = overlay(&tile, [height, width], self.palette).to_png().map_err(Failure::failed)?;
                Outputs::write(&overlay_path(mask), &png)?;
            }
        }
        let seconds = [decode_s, network_s, writing.elapsed().as_secs_f64()];
        report.ms = 1e3 * seconds.iter().sum::<f64>();
        Ok(WrittenPrediction { report, tile, size: view_size, seconds })
    }
}

impl PredictionWriter<'_> {
    /// The labels, the most probable first.
    fn labels(&self, probabilities: &[f64]) -> Vec<LabelAnswer> {
        let answer = |(label, &probability): (usize, &f64)| {
            let threshold = self.predictor.threshold(label);
            let (name, applies) = (self.predictor.class_name(label), probability >= threshold);
            LabelAnswer { label, name, probability, threshold, applies }
        };
        let mut answers: Vec<LabelAnswer> = probabilities.iter().enumerate().map(answer).collect();
        answers.sort_by(|one, other| other.probability.total_cmp(&one.probability));
        answers
    }
}

/// Resizes a mask by nearest neighbour.
fn resize_nearest(classes: Vec<i32>, [h, w]: [usize; 2], [height, width]: [usize; 2]) -> Vec<i32> {
    if [h, w] == [height, width] {
        return classes;
    }
    let rows = (0..height).map(|row| row * h / height);
    rows.flat_map(|row| (0..width).map(move |column| row * w + column * w / width))
        .map(|at| classes[at])
        .collect()
}

/// Blends an image with the colours of its classes, half and half.
fn overlay(tile: &Tile, [height, width]: [usize; 2], palette: &ClassPalette) -> RgbImage {
    let mut pixels = tile.pixels.clone();
    for (pixel, &class) in pixels.chunks_exact_mut(3).zip(tile.mask.iter().flatten()) {
        let Ok(class) = usize::try_from(class) else { continue };
        for (value, colour) in pixel.iter_mut().zip(palette.colour(class)) {
            *value = value.midpoint(colour);
        }
    }
    RgbImage { pixels, height, width }
}
