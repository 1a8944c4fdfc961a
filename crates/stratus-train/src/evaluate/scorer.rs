//! Scores a network's predictions batch by batch, of images or of their pixels.

use super::scores::{Scores, TaskMetrics};
use super::targets::{LogitThresholds, TargetPlots, TargetScaling, TargetScorer, no_predictions};
use super::views::{ViewAverage, largest, largest_probability};
use crate::TrainError;
use serde::{Deserialize, Serialize};
use std::mem;
use stratus_data::{BatchBuffer, Dataset};
use stratus_engine::ops::BINARY_CLASSES;
use stratus_engine::passes::lower::PREDICTIONS;
use stratus_engine::session::{Metrics, PixelMetrics, TargetLossMetrics};
use stratus_engine::{EngineError, Kernel, Program, Session, Step, ValueId};
use stratus_measures::{
    BoundaryScore, BoundaryWorkspace, ClassificationMetrics, ConfusionMatrix, MetricError, ScoreTable,
    SegmentationMetrics,
};
use stratus_run::csv::Task;

/// Counts the predictions of an evaluation program.
pub(super) struct Scorer {
    /// The value with the logits or the predicted classes.
    value: ValueId,
    confusion: ConfusionMatrix,
    predictions: Vec<i32>,
    /// Memory for the logits of a batch.
    logits: Vec<f32>,
    samples: u64,
    /// The sum of weighted losses and the sum of weights of each batch, in order.
    batches: Vec<[f64; 2]>,
    counts: Counts,
}

/// The counts of one of several workers.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct PartialScores {
    confusion: ConfusionMatrix,
    boundaries: Option<BoundaryScore>,
    samples: u64,
    top5_hits: u64,
    /// True if all outputs for labels or numbers were finite; true for others.
    is_finite: bool,
    /// The outputs for labels or numbers, without columns for others. They are many: they are not part of the
    /// JSON document.
    #[serde(skip, default = "no_outputs")]
    outputs: ScoreTable,
    /// The bits of [`Scorer::batches`].
    batches: Vec<[u64; 2]>,
}

/// The outputs of other tasks.
fn no_outputs() -> ScoreTable {
    ScoreTable::new(0)
}

impl PartialScores {
    /// The counts as bytes: the length of a JSON document, the document, the outputs.
    pub fn into_bytes(self) -> Vec<u8> {
        let document = serde_json::to_vec(&self).unwrap_or_default();
        let mut bytes = (document.len() as u64).to_le_bytes().to_vec();
        bytes.extend_from_slice(&document);
        bytes.extend_from_slice(&self.outputs.to_bytes());
        bytes
    }

    /// Parses the bytes of [`Self::into_bytes`].
    ///
    /// # Errors
    /// If they are damaged; the message says how.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, String> {
        let short = || format!("{} bytes are too few", bytes.len());
        let (length, rest) = bytes.split_first_chunk().ok_or_else(short)?;
        let length = usize::try_from(u64::from_le_bytes(*length)).map_err(|error| error.to_string())?;
        let (document, outputs) = rest.split_at_checked(length).ok_or_else(short)?;
        let scores: Self = serde_json::from_slice(document).map_err(|error| error.to_string())?;
        let outputs = ScoreTable::from_bytes(outputs).map_err(|error| error.to_string())?;
        Ok(Self { outputs, ..scores })
    }
}

enum Counts {
    Images { classes: usize, top5_hits: f64 },
    Pixels { size: [usize; 2], boundaries: BoundaryScore, threads: Vec<BoundaryWorker> },
    Targets(TargetScorer),
}

/// The predictions of a batch.
pub(super) enum BatchPredictions<'a> {
    /// The class of each image.
    Classes(ImagePredictions<'a>),
    /// The class of each pixel.
    Pixels(PixelPredictions<'a>),
    /// The outputs for labels or numbers.
    Targets(&'a TargetScorer),
}

/// The predicted classes of a batch's images.
#[derive(Clone, Copy)]
pub(super) struct ImagePredictions<'a> {
    predicted: &'a [i32],
    /// The number of classes.
    classes: usize,
    /// `[image, class]`; not read with `views`.
    logits: &'a [f32],
    views: Option<&'a ViewAverage>,
}

/// The predicted masks of a batch's images.
#[derive(Clone, Copy)]
pub(super) struct PixelPredictions<'a> {
    classes: &'a [i32],
    /// Height and width of the masks.
    pub size: [usize; 2],
}

/// A classified image.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct ClassPrediction {
    /// Its index in the data set.
    pub index: u32,
    pub class: usize,
    pub predicted: usize,
    /// The probability of the predicted class.
    pub probability: f64,
}

/// A labelled image of a batch, and its prediction. Few images need the probability: it is computed on
/// request.
#[derive(Clone, Copy)]
pub(super) struct PredictedImage<'a> {
    /// Its position in the batch.
    position: usize,
    /// Its index in the data set.
    pub index: u32,
    pub class: usize,
    pub predicted: usize,
    batch: ImagePredictions<'a>,
}

impl<'a> ImagePredictions<'a> {
    /// The labelled images of the batch, with their predictions.
    pub fn images(self, batch: &'a BatchBuffer) -> impl Iterator<Item = PredictedImage<'a>> {
        let images = batch.indices.iter().zip(&batch.labels[..]).take(batch.samples);
        images.zip(self.predicted).enumerate().filter_map(
            move |(position, ((&index, &class), &predicted))| {
                let (class, predicted) = (usize::try_from(class).ok()?, usize::try_from(predicted).ok()?);
                Some(PredictedImage { position, index, class, predicted, batch: self })
            },
        )
    }

    /// The probability of the predicted class of the image at `position`; NaN if an output is NaN.
    fn probability(&self, position: usize) -> f64 {
        if let Some(views) = self.views {
            return views.probabilities().get(position).copied().unwrap_or(f64::NAN);
        }
        self.logits.chunks_exact(self.classes.max(1)).nth(position).map_or(f64::NAN, largest_probability)
    }
}

impl PredictedImage<'_> {
    /// Its prediction, with the probability.
    pub fn prediction(&self) -> ClassPrediction {
        let &Self { position, index, class, predicted, batch } = self;
        ClassPrediction { index, class, predicted, probability: batch.probability(position) }
    }
}

impl<'a> PixelPredictions<'a> {
    /// The index in the data set, the labels and the predicted mask of each image of the batch.
    pub fn images(self, batch: &'a BatchBuffer) -> impl Iterator<Item = (u32, &'a [i32], &'a [i32])> {
        let pixels = (self.size[0] * self.size[1]).max(1);
        let masks = batch.labels.chunks_exact(pixels).zip(self.classes.chunks_exact(pixels));
        let images = batch.indices.iter().zip(masks).take(batch.samples);
        images.map(|(&index, (labels, predicted))| (index, labels, predicted))
    }
}

/// The state of a thread that compares boundaries.
struct BoundaryWorker {
    score: BoundaryScore,
    workspace: BoundaryWorkspace,
}

impl BoundaryWorker {
    /// A thread's state that has compared nothing yet; `empty` has the same classes.
    fn new(empty: &BoundaryScore) -> Self {
        Self { score: empty.clone(), workspace: BoundaryWorkspace::default() }
    }
}

impl Scorer {
    /// A scorer for an evaluation program.
    ///
    /// # Errors
    /// If the program has no predictions.
    pub fn new(
        program: &Program,
        task: Task,
        threads: usize,
        scaling: TargetScaling,
    ) -> Result<Self, EngineError> {
        let none = || no_predictions(&program.network);
        let (value, classes, counts) = match task {
            Task::Classification => {
                let ViewAverage { logits, classes, .. } =
                    ViewAverage::for_program(program).ok_or_else(none)?;
                (logits, classes, Counts::Images { classes, top5_hits: 0.0 })
            }
            Task::Segmentation => {
                let value = program.find(PREDICTIONS).ok_or_else(none)?;
                let &[_, height, width] = program.value(value).shape.as_slice() else { return Err(none()) };
                let loss =
                    program.steps.iter().find(|step| step.outputs.contains(&value)).ok_or_else(none)?;
                let classes = program.value(loss.inputs[0]).shape[1].max(BINARY_CLASSES);
                let boundaries = BoundaryScore::new(classes);
                let threads = (0..threads.max(1)).map(|_| BoundaryWorker::new(&boundaries)).collect();
                (value, classes, Counts::Pixels { size: [height, width], boundaries, threads })
            }
            Task::MultiLabel | Task::Regression => {
                let is_loss = |step: &&Step| matches!(&step.kernel, Kernel::TargetLoss(_));
                let loss = program.steps.iter().find(is_loss).ok_or_else(none)?;
                let value = loss.inputs[0];
                let columns = program.value(value).shape[1];
                (value, 0, Counts::Targets(TargetScorer::new(task, columns, scaling)))
            }
        };
        let confusion = ConfusionMatrix::new(classes);
        let (predictions, logits) = (Vec::new(), Vec::new());
        Ok(Self { value, confusion, predictions, logits, samples: 0, batches: Vec::new(), counts })
    }

    /// An empty scorer, for pipeline stages before the last.
    pub fn placeholder(task: Task, classes: usize, scaling: TargetScaling) -> Self {
        let counts = match task {
            Task::Classification => Counts::Images { classes, top5_hits: 0.0 },
            Task::Segmentation => {
                let boundaries = BoundaryScore::new(classes);
                Counts::Pixels { size: [0, 0], threads: vec![BoundaryWorker::new(&boundaries)], boundaries }
            }
            Task::MultiLabel | Task::Regression => Counts::Targets(TargetScorer::new(task, classes, scaling)),
        };
        let confused = if matches!(counts, Counts::Targets(_)) { 0 } else { classes };
        let (confusion, value) = (ConfusionMatrix::new(confused), ValueId(0));
        let (predictions, logits, batches) = (Vec::new(), Vec::new(), Vec::new());
        Self { value, confusion, predictions, logits, samples: 0, batches, counts }
    }

    /// Resets all counts.
    pub fn clear(&mut self) {
        self.samples = 0;
        self.batches.clear();
        self.confusion.clear();
        match &mut self.counts {
            Counts::Images { top5_hits, .. } => *top5_hits = 0.0,
            Counts::Pixels { boundaries, threads, .. } => {
                boundaries.clear();
                threads.iter_mut().for_each(|worker| worker.score.clear());
            }
            Counts::Targets(scorer) => scorer.clear(),
        }
    }

    /// Counts the predictions of the program's last run, for a batch of images of `dataset`. With `views`,
    /// counts the predictions averaged over views, and `metrics` are theirs.
    ///
    /// # Errors
    /// If the device fails, or a label exceeds the number of classes.
    pub fn add(
        &mut self,
        session: &Session,
        program: usize,
        (batch, dataset): (&BatchBuffer, &dyn Dataset),
        metrics: Metrics,
        views: Option<&ViewAverage>,
    ) -> Result<(), TrainError> {
        let (samples, labels) = (batch.samples, &batch.labels[..]);
        match &mut self.counts {
            Counts::Images { classes, top5_hits } => {
                self.samples += metrics.samples as u64;
                self.batches.push([metrics.loss * metrics.samples, metrics.samples]);
                *top5_hits += metrics.top5;
                self.predictions.clear();
                match views {
                    Some(views) => self.predictions.extend_from_slice(views.predictions()),
                    None => {
                        session.read_f32(program, self.value.0, &mut self.logits)?;
                        self.predictions.extend(self.logits.chunks_exact(*classes).map(largest));
                    }
                }
                Ok(self.confusion.add(&labels[..samples], &self.predictions[..samples])?)
            }
            Counts::Pixels { size, threads, .. } => {
                let PixelMetrics { loss, weight, .. } = metrics.into();
                self.batches.push([loss * weight, weight]);
                session.read_labels(program, self.value.0, &mut self.predictions)?;
                let size = *size;
                let pixels = size[0] * size[1];
                let (labels, predictions) =
                    (&labels[..samples * pixels], &self.predictions[..samples * pixels]);
                self.confusion.add(labels, predictions)?;
                let images: Vec<(&[i32], &[i32])> =
                    labels.chunks_exact(pixels).zip(predictions.chunks_exact(pixels)).collect();
                let is_counted = |(labels, _): &&(&[i32], &[i32])| labels.iter().any(|&label| label >= 0);
                self.samples += images.iter().filter(is_counted).count() as u64;
                Ok(compare_boundaries(threads, &images, size)?)
            }
            Counts::Targets(scorer) => {
                let TargetLossMetrics { loss, targets, samples, .. } = metrics.into();
                self.samples += samples as u64;
                self.batches.push([loss * targets, targets]);
                scorer.add(session, [program, self.value.0], batch, dataset)
            }
        }
    }

    /// The number of classes, labels or targets.
    pub fn classes(&self) -> usize {
        match &self.counts {
            Counts::Targets(scorer) => scorer.columns(),
            Counts::Images { .. } | Counts::Pixels { .. } => self.confusion.classes(),
        }
    }

    /// The predictions of the batch that was added last, with the same `views`.
    pub fn last_predictions<'a>(&'a self, views: Option<&'a ViewAverage>) -> BatchPredictions<'a> {
        let predicted = &self.predictions[..];
        match &self.counts {
            &Counts::Images { classes, .. } => {
                let logits = &self.logits;
                BatchPredictions::Classes(ImagePredictions { predicted, classes, logits, views })
            }
            &Counts::Pixels { size, .. } => {
                BatchPredictions::Pixels(PixelPredictions { classes: predicted, size })
            }
            Counts::Targets(scorer) => BatchPredictions::Targets(scorer),
        }
    }

    /// Counts an image of any size by the labels and predicted classes of its pixels. `loss` is the sum of
    /// the losses of its labelled pixels, and their number.
    ///
    /// # Errors
    /// If a label exceeds the number of classes, or the task is not segmentation.
    pub fn add_image(
        &mut self,
        labels: &[i32],
        predictions: &[i32],
        size: [usize; 2],
        [loss, weight]: [f64; 2],
    ) -> Result<(), TrainError> {
        let Counts::Pixels { threads, .. } = &mut self.counts else {
            return Err(EngineError::InvalidRequest("the network is not for segmentation".to_owned()).into());
        };
        self.batches.push([loss, weight]);
        self.confusion.add(labels, predictions)?;
        self.samples += u64::from(labels.iter().any(|&label| label >= 0));
        Ok(compare_boundaries(threads, &[(labels, predictions)], size)?)
    }

    /// Takes the counts, to be merged with those of other workers. Outputs, which are many, are moved.
    ///
    /// # Errors
    /// If the counts of threads do not match.
    pub fn take_partial_scores(&mut self) -> Result<PartialScores, TrainError> {
        let (boundaries, top5_hits) = match &self.counts {
            Counts::Images { top5_hits, .. } => (None, *top5_hits as u64),
            Counts::Pixels { boundaries, threads, .. } => {
                let mut all = boundaries.clone();
                threads.iter().try_for_each(|worker| all.merge(&worker.score))?;
                (Some(all), 0)
            }
            Counts::Targets(_) => (None, 0),
        };
        let (outputs, is_finite) = match &mut self.counts {
            Counts::Targets(scorer) => scorer.take_table(),
            Counts::Images { .. } | Counts::Pixels { .. } => (no_outputs(), true),
        };
        let batches = self.batches.iter().map(|batch| batch.map(f64::to_bits)).collect();
        Ok(PartialScores {
            confusion: self.confusion.clone(),
            boundaries,
            samples: self.samples,
            top5_hits,
            is_finite,
            outputs,
            batches,
        })
    }

    /// Replaces the counts by the merged counts of all workers, which took turns batch by batch.
    ///
    /// # Errors
    /// If the counts do not match.
    pub fn merge_all(&mut self, mut all: Vec<PartialScores>) -> Result<(), TrainError> {
        self.clear();
        for part in &all {
            self.samples += part.samples;
            self.confusion.merge(&part.confusion)?;
            match (&mut self.counts, &part.boundaries) {
                (Counts::Images { top5_hits: sum, .. }, _) => *sum += part.top5_hits as f64,
                (Counts::Pixels { threads, .. }, Some(score)) => {
                    threads.first_mut().map_or(Ok(()), |worker| worker.score.merge(score))?;
                }
                (Counts::Pixels { .. } | Counts::Targets(_), _) => {}
            }
        }
        if let Counts::Targets(scorer) = &mut self.counts {
            let is_finite = all.iter().all(|part| part.is_finite);
            let tables = all.iter_mut().map(|part| mem::replace(&mut part.outputs, no_outputs()));
            scorer.merge_turns(&tables.collect::<Vec<_>>(), is_finite)?;
        }
        // Losses are summed in the order of batches, as a single worker does.
        let rounds = all.iter().map(|part| part.batches.len()).max().unwrap_or(0);
        let in_order =
            (0..rounds).flat_map(|round| all.iter().filter_map(move |part| part.batches.get(round)));
        self.batches.extend(in_order.map(|batch| batch.map(f64::from_bits)));
        Ok(())
    }

    /// The metrics of the counts.
    ///
    /// # Errors
    /// If the counts of threads do not match.
    pub fn scores(&self, dataset: &dyn Dataset) -> Result<Scores, TrainError> {
        let name = |class: usize| dataset.class_name(class);
        let mut thresholds = LogitThresholds::new();
        let measures = match &self.counts {
            Counts::Images { top5_hits, .. } => {
                let top5_hits = Some(*top5_hits as u64);
                TaskMetrics::Classification(ClassificationMetrics::new(&self.confusion, top5_hits, name))
            }
            Counts::Pixels { boundaries, threads, .. } => {
                let mut all = boundaries.clone();
                threads.iter().try_for_each(|worker| all.merge(&worker.score))?;
                let measures = SegmentationMetrics::new(&self.confusion, Some(&all), name);
                TaskMetrics::Segmentation(measures?)
            }
            Counts::Targets(scorer) if scorer.is_labels() => {
                let (labels, chosen) = scorer.labels(name)?;
                thresholds = chosen;
                TaskMetrics::MultiLabel(labels)
            }
            Counts::Targets(scorer) => TaskMetrics::Regression(scorer.numbers(name)),
        };
        let [loss, weight] =
            self.batches.iter().fold([0.0; 2], |[loss, weight], batch| [loss + batch[0], weight + batch[1]]);
        let loss = if weight > 0.0 { loss / weight } else { 0.0 };
        let confusion = self.confusion.clone();
        let plots = TargetPlots::default();
        Ok(Scores { samples: self.samples, loss, metrics: measures, confusion, thresholds, plots })
    }

    /// Adds what reports draw to the scores of the same counts.
    pub fn with_plots(&self, scores: Scores) -> Scores {
        match &self.counts {
            Counts::Targets(scorer) => Scores { plots: scorer.plots(&scores.metrics), ..scores },
            Counts::Images { .. } | Counts::Pixels { .. } => scores,
        }
    }
}

/// Compares the boundaries in the labels and predictions of images, on several threads. Integer sums make the
/// result independent of the number of threads.
fn compare_boundaries(
    workers: &mut [BoundaryWorker],
    images: &[(&[i32], &[i32])],
    size: [usize; 2],
) -> Result<(), MetricError> {
    let count = workers.len();
    let compare = |index: usize, BoundaryWorker { score, workspace }: &mut BoundaryWorker| {
        let mut assigned = images.iter().skip(index).step_by(count);
        assigned.try_for_each(|(labels, predictions)| score.add(labels, predictions, size, workspace))
    };
    std::thread::scope(|scope| {
        let spawn = |(index, worker)| scope.spawn(move || compare(index, worker));
        let threads: Vec<_> = workers.iter_mut().enumerate().map(spawn).collect();
        threads.into_iter().try_for_each(|thread| match thread.join() {
            Ok(result) => result,
            Err(panic) => std::panic::resume_unwind(panic),
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn predicts_the_first_of_equal_logits() {
        assert_eq!(largest(&[1.0_f32, 3.0, 3.0]), 1);
        assert_eq!(largest(&[f64::NAN, f64::NEG_INFINITY, 2.0]), 2);
        assert_eq!(largest(&[f64::NAN; 3]), 0);
    }

    #[test]
    fn boundary_scores_do_not_depend_on_the_number_of_threads() {
        let size = [4, 5];
        let images: Vec<Vec<i32>> =
            (0..7).map(|image| (0..20).map(|pixel| (pixel * 7 + image * 3) % 5 % 3).collect()).collect();
        let pairs: Vec<(&[i32], &[i32])> =
            (0..6).map(|image| (images[image].as_slice(), images[image + 1].as_slice())).collect();
        let score = |threads: usize| {
            let worker =
                || BoundaryWorker { score: BoundaryScore::new(3), workspace: BoundaryWorkspace::default() };
            let mut threads: Vec<BoundaryWorker> = (0..threads).map(|_| worker()).collect();
            compare_boundaries(&mut threads, &pairs, size).unwrap();
            let mut all = BoundaryScore::new(3);
            threads.iter().for_each(|worker| all.merge(&worker.score).unwrap());
            all
        };
        assert!(score(1).mean().is_some_and(|mean| mean < 1.0));
        for threads in [2, 3, 9] {
            assert_eq!(score(threads), score(1));
        }
    }
}
