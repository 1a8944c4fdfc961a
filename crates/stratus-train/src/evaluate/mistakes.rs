//! The images that a network is most wrong about: the most confident mistakes of a classifier, and the images
//! of lowest IoU of a segmentation network.

use super::scorer::{BatchPredictions, ClassPrediction, PredictedImage, Scorer};
use super::targets::{TargetMistake, TargetScorer};
use super::views::ViewAverage;
use crate::TrainError;
use crate::infer::picture;
use crate::input::{BatchFormat, InputPipeline};
use serde::Serialize;
use std::cmp::Ordering;
use std::sync::Arc;
use stratus_base::text::significant;
use stratus_data::buffer::IGNORED_LABEL;
use stratus_data::contact_sheet::{RgbImage, Tile, UNMASKED, blended, resized};
use stratus_data::datasets::selection::SelectedSamples;
use stratus_data::{BatchBuffer, Dataset, Element, Layout, Loader, LoaderConfig, Position};
use stratus_measures::{ConfusionMatrix, MetricError};
use stratus_run::validation::WRONG_COLOUR;

/// The maximum number of images of a gallery.
pub const MAX_GALLERY_IMAGES: usize = 100;
/// The gap between the panels of a tile, as a fraction of their width.
const PANEL_GAP_DIVISOR: usize = 32;

/// The mistakes to collect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MistakeRequest {
    /// The maximum number of listed images.
    pub max_listed: usize,
    /// True if the first of them are drawn.
    pub gallery: bool,
}

/// The mistakes of an evaluation.
#[derive(Clone, Debug, PartialEq)]
pub struct Mistakes {
    /// The number of images with a mistake.
    pub count: usize,
    /// The worst of them, the worst first.
    pub listed: Vec<Mistake>,
    /// Their pictures.
    pub gallery: Gallery,
}

/// Pictures of mistakes, for a contact sheet; empty if they were not requested.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Gallery {
    /// The images. Those of segmentation have three panels: truth, prediction, difference.
    pub tiles: Vec<Tile>,
    /// Height and width of each.
    pub size: [usize; 2],
}

/// An image that the network is wrong about.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Mistake {
    /// The image.
    pub path: String,
    /// How the network is wrong.
    #[serde(flatten)]
    pub kind: MistakeKind,
}

/// How a network is wrong about an image.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(untagged)]
pub enum MistakeKind {
    /// Another class.
    Class {
        /// The true class.
        class: usize,
        /// Its name.
        name: String,
        /// The predicted class.
        predicted: usize,
        /// Its name.
        predicted_name: String,
        /// The probability of the prediction.
        probability: f64,
    },
    /// Other classes of pixels.
    Pixels {
        /// The mean IoU of the classes in the image or its prediction.
        iou: f64,
    },
    /// Other labels, the most confident first.
    Labels {
        /// Labels that were predicted, but do not apply.
        wrong: Vec<String>,
        /// Labels that apply, but were not predicted.
        missed: Vec<String>,
        /// The distance of the worst of these logits from the threshold of its label.
        severity: f64,
    },
    /// Other numbers.
    Numbers {
        /// The target with the largest error, in standard deviations.
        name: String,
        /// Its number.
        number: f64,
        /// The predicted number.
        predicted_number: f64,
    },
}

/// An image with a mistake.
#[derive(Clone, Debug)]
struct Candidate {
    index: u32,
    /// The probability of the wrong class, the negative IoU, or that of [`TargetScorer::mistake`].
    severity: f64,
    class: usize,
    predicted: usize,
    /// The predicted mask, if it is drawn.
    mask: Vec<u8>,
    /// The mistake in labels or numbers, if the network predicts these.
    target: Option<TargetMistake>,
}

impl Candidate {
    fn without_class(index: u32, severity: f64, target: Option<TargetMistake>) -> Self {
        Self { index, severity, class: 0, predicted: 0, mask: Vec::new(), target }
    }

    /// The worst first, and of equal ones the first in the data set.
    fn order(&self, other: &Self) -> Ordering {
        other.severity.total_cmp(&self.severity).then(self.index.cmp(&other.index))
    }
}

/// Collects the mistakes of an evaluation, batch by batch.
#[derive(Debug)]
pub(super) struct MistakeCollector {
    request: MistakeRequest,
    count: usize,
    /// The worst so far, the worst first.
    worst: Vec<Candidate>,
    /// The size of masks.
    mask_size: Option<[usize; 2]>,
}

impl MistakeCollector {
    pub(super) fn new(request: MistakeRequest) -> Self {
        Self { request, count: 0, worst: Vec::new(), mask_size: None }
    }

    /// Adds the images of a batch, with the predictions of the last batch that was scored.
    ///
    /// # Errors
    /// If a class is out of range.
    pub(super) fn add(
        &mut self,
        scorer: &Scorer,
        views: Option<&ViewAverage>,
        batch: &BatchBuffer,
    ) -> Result<(), TrainError> {
        match scorer.last_predictions(views) {
            BatchPredictions::Classes(predictions) => {
                predictions.images(batch).for_each(|image| self.add_image(&image));
            }
            BatchPredictions::Pixels(predictions) => {
                self.mask_size = Some(predictions.size);
                let mut counts = ConfusionMatrix::new(scorer.classes());
                for (index, labels, predicted) in predictions.images(batch) {
                    match mean_iou(&mut counts, labels, predicted)? {
                        Some(iou) if iou < 1.0 => self.insert_mask(index, iou, predicted),
                        _ => {}
                    }
                }
            }
            BatchPredictions::Targets(scorer) => self.add_targets(scorer, batch),
        }
        Ok(())
    }

    /// Adds the images of the batch that a scorer of labels or numbers has added last.
    pub(super) fn add_targets(&mut self, scorer: &TargetScorer, batch: &BatchBuffer) {
        for (&index, (outputs, targets)) in batch.indices.iter().zip(scorer.last_batch()) {
            if let Some((severity, mistake)) = scorer.mistake(outputs, targets) {
                self.insert(Candidate::without_class(index, severity, Some(mistake)));
            }
        }
    }

    /// The number of images with a mistake, and the worst mistakes in labels or numbers with the index of
    /// their image.
    pub(super) fn into_target_mistakes(self) -> (usize, Vec<(u32, TargetMistake)>) {
        let mistake = |candidate: Candidate| Some((candidate.index, candidate.target?));
        (self.count, self.worst.into_iter().filter_map(mistake).collect())
    }

    /// Adds an image of a classifier, if its prediction is wrong.
    pub(super) fn add_image(&mut self, image: &PredictedImage<'_>) {
        if image.class == image.predicted {
            return;
        }
        let ClassPrediction { index, class, predicted, probability } = image.prediction();
        if probability.is_finite() {
            let (mask, target) = (Vec::new(), None);
            self.insert(Candidate { index, severity: probability, class, predicted, mask, target });
        }
    }

    /// The worst mistakes of a classifier.
    pub(super) fn into_predictions(self) -> Vec<ClassPrediction> {
        let prediction = |Candidate { index, severity, class, predicted, .. }: Candidate| ClassPrediction {
            index,
            class,
            predicted,
            probability: severity,
        };
        self.worst.into_iter().map(prediction).collect()
    }

    fn insert_mask(&mut self, index: u32, iou: f64, predictions: &[i32]) {
        let candidate = Candidate::without_class(index, -iou, None);
        let drawn = self.request.gallery && self.position(&candidate) < MAX_GALLERY_IMAGES;
        let value = |&class: &i32| u8::try_from(class).unwrap_or(u8::MAX);
        let mask = if drawn { predictions.iter().map(value).collect() } else { Vec::new() };
        self.insert(Candidate { mask, ..candidate });
    }

    fn position(&self, candidate: &Candidate) -> usize {
        self.worst.partition_point(|other| other.order(candidate).is_lt())
    }

    fn insert(&mut self, candidate: Candidate) {
        self.count += 1;
        let position = self.position(&candidate);
        if position >= self.request.max_listed {
            return;
        }
        self.worst.truncate(self.request.max_listed - 1);
        self.worst.insert(position, candidate);
        // Masks of images that are not drawn any more.
        if let Some(next) = self.worst.get_mut(MAX_GALLERY_IMAGES) {
            next.mask = Vec::new();
        }
    }

    /// The mistakes. Images of the gallery are read again.
    ///
    /// # Errors
    /// If an image cannot be read again.
    pub(super) fn finish(
        self,
        input: &InputPipeline,
        dataset: &Arc<dyn Dataset>,
    ) -> Result<Mistakes, TrainError> {
        let listed: Vec<Mistake> =
            self.worst.iter().map(|candidate| self.describe(candidate, dataset.as_ref())).collect();
        let mut gallery = Gallery::default();
        if self.request.gallery {
            let drawn = &self.worst[..self.worst.len().min(MAX_GALLERY_IMAGES)];
            let indices: Vec<u32> = drawn.iter().map(|candidate| candidate.index).collect();
            let images = read_images(input, dataset, &indices);
            for ((candidate, mistake), image) in drawn.iter().zip(&listed).zip(images) {
                let (picture, labels) = image?;
                let file = mistake.path.rsplit(['/', '\\']).next().unwrap_or_default().to_owned();
                let caption = mistake.caption();
                let tile = match self.mask_size {
                    None => Tile { pixels: picture.pixels, mask: None, file, caption },
                    Some(size) => {
                        let predictions: Vec<i32> =
                            candidate.mask.iter().map(|&class| class.into()).collect();
                        let (pixels, mask) = panels(&picture, &labels, &predictions, size);
                        Tile { pixels, mask: Some(mask), file, caption }
                    }
                };
                let width = tile.pixels.len() / (3 * picture.height).max(1);
                gallery.size = [picture.height, width];
                gallery.tiles.push(tile);
            }
        }
        Ok(Mistakes { count: self.count, listed, gallery })
    }

    fn describe(&self, candidate: &Candidate, dataset: &dyn Dataset) -> Mistake {
        let &Candidate { index, severity, class, predicted, .. } = candidate;
        let name = |target: &usize| dataset.class_name(*target);
        let kind = match (self.mask_size, &candidate.target) {
            (Some(_), _) => MistakeKind::Pixels { iou: -severity },
            (None, Some(TargetMistake::Labels { wrong, missed })) => MistakeKind::Labels {
                wrong: wrong.iter().map(name).collect(),
                missed: missed.iter().map(name).collect(),
                severity,
            },
            (None, Some(TargetMistake::Number { target, number, predicted })) => MistakeKind::Numbers {
                name: name(target),
                number: f64::from(*number),
                predicted_number: f64::from(*predicted),
            },
            (None, None) => MistakeKind::Class {
                class,
                name: dataset.class_name(class),
                predicted,
                predicted_name: dataset.class_name(predicted),
                probability: severity,
            },
        };
        Mistake { path: dataset.sample_name(index as usize), kind }
    }
}

impl Mistake {
    /// The text below its picture.
    fn caption(&self) -> String {
        match &self.kind {
            MistakeKind::Class { name, predicted_name, probability, .. } => {
                format!("{name} → {predicted_name} {:.0} %", 100.0 * probability)
            }
            MistakeKind::Pixels { iou } => format!("IoU {:.1} %", 100.0 * iou),
            MistakeKind::Labels { wrong, missed, .. } => {
                let signed = |sign: char, names: &[String]| -> Vec<String> {
                    names.iter().map(|name| format!("{sign}{name}")).collect()
                };
                [signed('+', wrong), signed('−', missed)].concat().join(" ")
            }
            MistakeKind::Numbers { number, predicted_number, .. } => {
                format!("{} → {}", significant(*number), significant(*predicted_number))
            }
        }
    }
}

/// The mean IoU of the classes in the labels or the predictions of an image, over its labelled pixels; `None`
/// without any. `counts` is overwritten.
///
/// # Errors
/// If a class is out of range.
pub(super) fn mean_iou(
    counts: &mut ConfusionMatrix,
    labels: &[i32],
    predictions: &[i32],
) -> Result<Option<f64>, MetricError> {
    counts.clear();
    counts.add(labels, predictions)?;
    Ok(counts.mean_iou())
}

/// Reads images as the network sees them, with their labels, in the order of `indices`. One loader reads all
/// of them; after one that cannot be read, another loader continues.
pub(crate) fn read_images(
    input: &InputPipeline,
    dataset: &Arc<dyn Dataset>,
    indices: &[u32],
) -> impl Iterator<Item = Result<(RgbImage, Vec<i32>), TrainError>> {
    let format = BatchFormat { element: Element::U8, layout: Layout::Nhwc };
    let [channels, height, width] = input.shape;
    let config = LoaderConfig {
        epochs: Some(1),
        slots: 1,
        workers: 1,
        // A black picture would look like an image of the data set.
        skip_damaged: false,
        ..input.evaluation(format, 1)
    };
    let images: Arc<dyn Dataset> = Arc::new(SelectedSamples::new(Arc::clone(dataset), indices.to_vec()));
    let mut reader: Option<Loader> = None;
    (0..indices.len() as u64).map(move |position| -> Result<(RgbImage, Vec<i32>), TrainError> {
        let mut loader = match reader.take() {
            Some(loader) => loader,
            None => {
                let start = Position { epoch: 0, batch: position };
                Loader::new(Arc::clone(&images), LoaderConfig { start, ..config.clone() })?
            }
        };
        let batch = loader.next()?;
        let (pixels, labels) = batch
            .as_ref()
            .map_or_else(Default::default, |batch| (batch.images.elements::<u8>(), &batch.labels[..]));
        let count = pixels.len().min(channels * height * width);
        let image = (picture(&pixels[..count], channels, [height, width]), labels.to_vec());
        batch.into_iter().for_each(|batch| loader.recycle(batch));
        reader = Some(loader);
        Ok(image)
    })
}

/// Three panels beside each other: the image with its labels, with the predictions, and with wrong pixels
/// marked. Returns the pixels and the mask; masks of `size` are scaled to the image.
fn panels(image: &RgbImage, labels: &[i32], predictions: &[i32], size: [usize; 2]) -> (Vec<u8>, Vec<i32>) {
    let RgbImage { pixels, height, width } = image;
    let (height, width) = (*height, *width);
    let [labels, predictions] = [labels, predictions].map(|mask| resized(mask, size, [height, width]));
    let gap = (width / PANEL_GAP_DIVISOR).max(1);
    let (mut out, mut mask) = (Vec::new(), Vec::new());
    for row in 0..height {
        let line = &pixels[3 * row * width..3 * (row + 1) * width];
        let [labels, predictions] = [&labels, &predictions].map(|mask| &mask[row * width..(row + 1) * width]);
        for classes in [labels, predictions] {
            out.extend_from_slice(line);
            out.extend(std::iter::repeat_n(u8::MAX, 3 * gap));
            mask.extend_from_slice(classes);
            mask.extend(std::iter::repeat_n(UNMASKED, gap));
        }
        for (column, &[red, green, blue]) in line.as_chunks::<3>().0.iter().enumerate() {
            let grey = ((u16::from(red) + u16::from(green) + u16::from(blue)) / 3) as u8;
            let colour = match labels[column] {
                IGNORED_LABEL => blended([grey; 3], [0; 3], 128),
                label if label == predictions[column] => blended([grey; 3], [255; 3], 96),
                _ => blended([grey; 3], WRONG_COLOUR, 192),
            };
            out.extend_from_slice(&colour);
        }
        mask.extend(std::iter::repeat_n(UNMASKED, width));
    }
    (out, mask)
}

#[cfg(test)]
mod tests {
    use super::*;
    use stratus_data::images::ImageFiles;
    use stratus_experiment::Experiment;

    fn collector(max_listed: usize) -> MistakeCollector {
        MistakeCollector::new(MistakeRequest { max_listed, gallery: true })
    }

    fn candidate(index: u32, severity: f64) -> Candidate {
        Candidate { index, severity, class: 1, predicted: 2, mask: vec![1; 4], target: None }
    }

    #[test]
    fn keeps_the_worst_in_order_and_counts_all() {
        let mut mistakes = collector(3);
        for (index, severity) in [(0, 0.5), (1, 0.9), (2, 0.4), (3, 0.9), (4, 0.6), (5, 0.1)] {
            mistakes.insert(candidate(index, severity));
        }
        assert_eq!(mistakes.worst.iter().map(|found| found.index).collect::<Vec<_>>(), [1, 3, 4]);
        assert_eq!(mistakes.count, 6);
        let mut many = collector(MAX_GALLERY_IMAGES + 50);
        for index in 0..MAX_GALLERY_IMAGES as u32 + 80 {
            many.insert(candidate(index, f64::from(index)));
        }
        assert_eq!(many.worst.len(), MAX_GALLERY_IMAGES + 50);
        let drawn = many.worst.iter().filter(|found| !found.mask.is_empty()).count();
        assert_eq!(drawn, MAX_GALLERY_IMAGES);
    }

    #[test]
    fn unreadable_images_are_errors_even_if_damaged_ones_are_skipped() {
        let folder = tempfile::tempdir().unwrap();
        let files = ["0.png", "1.png", "2.png"].map(|name| folder.path().join(name));
        for (file, value) in [(&files[0], 50), (&files[2], 200)] {
            let image = RgbImage { pixels: vec![value; 12], height: 2, width: 2 };
            std::fs::write(file, image.to_png().unwrap()).unwrap();
        }
        let dataset: Arc<dyn Dataset> = Arc::new(ImageFiles::new(files.into(), 2, false).unwrap());
        let experiment = Experiment::builtin("resnet18").unwrap();
        let experiment = experiment.with_overrides(&[("data.on_bad_sample", "skip")]).unwrap();
        let input = InputPipeline::new(&experiment, dataset.as_ref());
        let images = read_images(&input, &dataset, &[2, 1, 0]);
        let is_bright: Vec<Option<bool>> = images.map(|image| Some(image.ok()?.0.pixels[0] > 100)).collect();
        assert_eq!(is_bright, [Some(true), None, Some(false)]);
    }

    #[test]
    fn mean_iou_is_that_of_the_classes_in_the_image() {
        let mut counts = ConfusionMatrix::new(4);
        let mut mean =
            |labels: &[i32], predictions: &[i32]| mean_iou(&mut counts, labels, predictions).unwrap();
        assert_eq!(mean(&[-1, -1], &[0, 1]), None);
        assert_eq!(mean(&[0, 0, 2, -1], &[0, 0, 2, 1]), Some(1.0));
        // Class 0: one of two pixels; class 1: one of two.
        assert_eq!(mean(&[0, 0, 1], &[0, 1, 1]), Some(0.5));
        // Class 3 is only predicted.
        assert_eq!(mean(&[0, 0], &[0, 3]), Some(0.25));
    }

    #[test]
    fn panels_show_truth_prediction_and_difference() {
        let image = RgbImage { pixels: vec![100; 2 * 4 * 3], height: 2, width: 4 };
        // Masks of one row.
        let (pixels, mask) = panels(&image, &[0, IGNORED_LABEL], &[0, 1], [1, 2]);
        let width = 3 * 4 + 2;
        assert_eq!((pixels.len(), mask.len()), (2 * width * 3, 2 * width));
        let row = [0, 0, -1, -1, UNMASKED, 0, 0, 1, 1, UNMASKED];
        let unmasked = [UNMASKED; 4];
        assert_eq!(mask[..width], [&row[..], &unmasked].concat());
        assert_eq!(mask[..width], mask[width..]);
        let (wrong, _) = panels(&image, &[0, 1], &[0, 0], [1, 2]);
        let difference = &wrong[3 * 10..3 * width];
        assert!(difference[0] == difference[1] && difference[9] > 150 && difference[10] < 80);
    }
}
