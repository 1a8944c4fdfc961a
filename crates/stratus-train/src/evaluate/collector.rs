//! Collects the predictions that a validation of a run keeps: the most confident mistakes and a few images of
//! each class, or the masks of the same few images.

use super::mistakes::{MistakeCollector, MistakeRequest, mean_iou};
use super::scorer::{BatchPredictions, Scorer};
use super::targets::TargetMistake;
use super::views::ViewAverage;
use crate::TrainError;
use crate::resolve::Rank;
use stratus_data::BatchBuffer;
use stratus_data::contact_sheet::{resized, shrunk_size};
use stratus_measures::ConfusionMatrix;
use stratus_run::csv::Task;

pub(crate) use super::scorer::ClassPrediction;

/// The maximum number of images of each class that are shown with their predictions.
const MAX_SAMPLES_PER_CLASS: usize = 6;
/// The maximum number of those images of all classes.
const MAX_SAMPLES: usize = 60;
/// The maximum side of the pictures of segmented images, and of their masks.
pub(crate) const MAX_MASK_SIDE_PIXELS: usize = 192;

/// The predictions to keep of a validation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CollectorRequest {
    pub task: Task,
    /// The maximum number of mistakes, or the number of images with masks.
    pub images: usize,
    pub classes: usize,
    /// The number of images of the data set.
    pub samples: usize,
    /// The number of images of a batch.
    pub batch: usize,
    /// Height and width of the network's input.
    pub input_size: [usize; 2],
    pub rank: Rank,
}

/// The predicted mask of an image.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct MaskPrediction {
    /// Its index in the data set.
    pub index: u32,
    /// The mean IoU; `None` without labelled pixels.
    pub iou: Option<f64>,
    /// The predicted class of each pixel, scaled to the size of its picture.
    pub mask: Vec<i32>,
}

/// The predictions that were collected.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum CollectedPredictions {
    Classes {
        /// The most confident mistakes, the most confident first.
        mistakes: Vec<ClassPrediction>,
        /// The first images of each class, ordered by class.
        samples: Vec<ClassPrediction>,
    },
    Masks {
        samples: Vec<MaskPrediction>,
        /// Height and width of the masks as the network predicts them.
        size: [usize; 2],
    },
    Targets {
        /// The number of images with a mistake.
        mistake_count: u64,
        /// The worst mistakes, the worst first, with the index of their image in the data set.
        mistakes: Vec<(u32, TargetMistake)>,
    },
}

/// Collects predictions, batch by batch. Several workers each collect those of their own batches.
#[derive(Debug)]
pub(super) struct PredictionCollector {
    request: CollectorRequest,
    kind: Kind,
}

#[derive(Debug)]
enum Kind {
    Classes { mistakes: MistakeCollector, samples: Vec<ClassPrediction>, counts: Vec<usize> },
    Masks { chosen: Vec<u32>, samples: Vec<MaskPrediction>, size: [usize; 2], counts: ConfusionMatrix },
    Targets(MistakeCollector),
}

impl PredictionCollector {
    pub(super) fn new(request: CollectorRequest) -> Self {
        let CollectorRequest { task, images, classes, .. } = request;
        let kind = match task {
            Task::Classification => Kind::Classes {
                mistakes: MistakeCollector::new(MistakeRequest { max_listed: images.max(1), gallery: false }),
                samples: Vec::new(),
                counts: vec![0; classes],
            },
            Task::Segmentation => Kind::Masks {
                chosen: chosen(request),
                samples: Vec::new(),
                size: [0; 2],
                counts: ConfusionMatrix::new(classes),
            },
            Task::MultiLabel | Task::Regression => Kind::Targets(MistakeCollector::new(MistakeRequest {
                max_listed: images.max(1),
                gallery: false,
            })),
        };
        Self { request, kind }
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
        let per_class = (MAX_SAMPLES / self.request.classes.max(1)).clamp(1, MAX_SAMPLES_PER_CLASS);
        match (&mut self.kind, scorer.last_predictions(views)) {
            (Kind::Classes { mistakes, samples, counts }, BatchPredictions::Classes(predictions)) => {
                for image in predictions.images(batch) {
                    mistakes.add_image(&image);
                    if samples.len() < MAX_SAMPLES
                        && let Some(count) = counts.get_mut(image.class)
                        && *count < per_class
                    {
                        let prediction = image.prediction();
                        if prediction.probability.is_finite() {
                            *count += 1;
                            samples.push(prediction);
                        }
                    }
                }
            }
            (Kind::Masks { chosen, samples, size, counts }, BatchPredictions::Pixels(predictions)) => {
                *size = predictions.size;
                // Whole masks of all images would take hundreds of megabytes.
                let shown_size = shrunk_size(self.request.input_size, MAX_MASK_SIDE_PIXELS);
                for (index, labels, predicted) in predictions.images(batch) {
                    if chosen.contains(&index) {
                        let iou = mean_iou(counts, labels, predicted)?;
                        let mask = resized(predicted, predictions.size, shown_size);
                        samples.push(MaskPrediction { index, iou, mask });
                    }
                }
            }
            (Kind::Targets(mistakes), BatchPredictions::Targets(scorer)) => {
                mistakes.add_targets(scorer, batch);
            }
            // The task of a scorer does not change.
            _ => {}
        }
        Ok(())
    }

    /// The predictions.
    pub(super) fn finish(self) -> CollectedPredictions {
        match self.kind {
            Kind::Classes { mistakes, mut samples, .. } => {
                samples.sort_by_key(|sample| (sample.class, sample.index));
                CollectedPredictions::Classes { mistakes: mistakes.into_predictions(), samples }
            }
            Kind::Masks { mut samples, size, .. } => {
                samples.sort_by_key(|sample| sample.index);
                CollectedPredictions::Masks { samples, size }
            }
            Kind::Targets(mistakes) => {
                let (count, mistakes) = mistakes.into_target_mistakes();
                CollectedPredictions::Targets { mistake_count: count as u64, mistakes }
            }
        }
    }
}

/// The indices of the images whose masks are kept, evenly spread over those of this worker's batches.
fn chosen(request: CollectorRequest) -> Vec<u32> {
    let CollectorRequest { images, samples, batch, rank: Rank { rank, world_size }, .. } = request;
    let batch = batch.max(1);
    let batches = (rank..samples.div_ceil(batch)).step_by(world_size.max(1));
    let own: usize = batches.map(|number| batch.min(samples - number * batch)).sum();
    let index = |position: usize| (position / batch * world_size + rank) * batch + position % batch;
    let images = images.min(own);
    (0..images).filter_map(|number| u32::try_from(index(number * own / images)).ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(images: usize, samples: usize, rank: Rank) -> CollectorRequest {
        let (task, input_size) = (Task::Segmentation, [2, 2]);
        CollectorRequest { task, images, classes: 3, samples, batch: 4, input_size, rank }
    }

    #[test]
    fn images_are_evenly_spread_over_the_batches_of_a_worker() {
        assert_eq!(chosen(request(4, 10, Rank::SINGLE)), [0, 2, 5, 7]);
        assert_eq!(chosen(request(8, 3, Rank::SINGLE)), [0, 1, 2]);
        assert!(chosen(request(8, 0, Rank::SINGLE)).is_empty());
        // Batches 0 and 2 of three: images 0 to 3 and 8, 9.
        assert_eq!(chosen(request(3, 10, Rank { rank: 0, world_size: 2 })), [0, 2, 8]);
        assert_eq!(chosen(request(9, 10, Rank { rank: 1, world_size: 2 })), [4, 5, 6, 7]);
        for images in 1..40 {
            let all = chosen(request(images, 33, Rank { rank: 0, world_size: 2 }));
            assert!(all.windows(2).all(|pair| pair[0] < pair[1]) && all.len() == images.min(17), "{all:?}");
        }
    }
}
