//! What a network's answers are worth: counted batch by batch, of images or of their pixels.

use super::views::{ViewAverage, largest};
use crate::TrainError;
use serde::{Deserialize, Serialize};
use stratus_data::Dataset;
use stratus_engine::passes::lower::PREDICTIONS;
use stratus_engine::session::{Metrics, PixelMetrics};
use stratus_engine::{EngineError, Program, Session, ValueId};
use stratus_measures::{
    BoundaryScore, BoundaryWorkspace, ClassMeasures, ClassificationMeasures, ConfusionMatrix, MeasureError,
    SegmentationMeasures,
};
use stratus_run::csv::Task;

/// What measuring a data set gave.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Scores {
    /// Images that counted.
    pub samples: u64,
    /// Mean loss, of images or of pixels.
    pub loss: f64,
    /// Measures, by task.
    #[serde(flatten)]
    pub measures: Measures,
    /// How often each class (row) was predicted to be each (column).
    #[serde(skip)]
    pub confusion: ConfusionMatrix,
}

/// Measures by task. Shares are from 0 to 1; those that do not exist are `None`.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(untagged)]
pub enum Measures {
    /// Of images.
    Classification(ClassificationMeasures),
    /// Of pixels.
    Segmentation(SegmentationMeasures),
}

impl Scores {
    /// The share of right answers: of images, or of pixels.
    #[must_use]
    pub fn accuracy(&self) -> Option<f64> {
        match &self.measures {
            Measures::Classification(measures) => measures.top1,
            Measures::Segmentation(measures) => measures.accuracy,
        }
    }

    /// The measures of each class.
    #[must_use]
    pub fn classes(&self) -> &[ClassMeasures] {
        match &self.measures {
            Measures::Classification(measures) => &measures.classes,
            Measures::Segmentation(measures) => &measures.classes,
        }
    }
}

/// Counts the answers of an evaluation program.
pub(super) struct Scorer {
    /// The value with the answers: logits, or predicted classes.
    value: ValueId,
    confusion: ConfusionMatrix,
    predictions: Vec<i32>,
    /// Memory for the logits of a batch.
    logits: Vec<f32>,
    samples: u64,
    /// Of each batch, in order: the sum of losses times their weight, and of weights.
    batches: Vec<[f64; 2]>,
    kind: Kind,
}

/// What one of several workers has counted, of every so many batches.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Tally {
    confusion: ConfusionMatrix,
    boundaries: Option<BoundaryScore>,
    samples: u64,
    among_five: u64,
    /// The bits of [`Scorer::batches`].
    batches: Vec<[u64; 2]>,
}

enum Kind {
    Images { classes: usize, among_five: f64 },
    Pixels { size: [usize; 2], boundaries: BoundaryScore, workers: Vec<Worker> },
}

/// A thread that compares boundaries.
struct Worker {
    score: BoundaryScore,
    workspace: BoundaryWorkspace,
}

impl Scorer {
    /// For an evaluation program.
    ///
    /// # Errors
    /// Where the program makes no answers.
    pub fn new(program: &Program, task: Task, threads: usize) -> Result<Self, EngineError> {
        let none = || EngineError::Mismatch(format!("`{}` makes no predictions", program.network));
        let (value, classes, kind) = match task {
            Task::Classification => {
                let ViewAverage { logits, classes, .. } = ViewAverage::of(program).ok_or_else(none)?;
                (logits, classes, Kind::Images { classes, among_five: 0.0 })
            }
            Task::Segmentation => {
                let value = program.find(PREDICTIONS).ok_or_else(none)?;
                let &[_, height, width] = program.value(value).shape.as_slice() else { return Err(none()) };
                let loss =
                    program.steps.iter().find(|step| step.outputs.contains(&value)).ok_or_else(none)?;
                let classes = program.value(loss.inputs[0]).shape[1];
                let boundaries = BoundaryScore::new(classes);
                let worker = || Worker { score: boundaries.clone(), workspace: BoundaryWorkspace::default() };
                let workers = (0..threads.max(1)).map(|_| worker()).collect();
                (value, classes, Kind::Pixels { size: [height, width], boundaries, workers })
            }
        };
        let confusion = ConfusionMatrix::new(classes);
        let (predictions, logits) = (Vec::new(), Vec::new());
        Ok(Self { value, confusion, predictions, logits, samples: 0, batches: Vec::new(), kind })
    }

    /// For a process that counts nothing itself, of answers that name one of so many classes for an image.
    pub fn of_another(classes: usize) -> Self {
        let kind = Kind::Images { classes, among_five: 0.0 };
        let (confusion, value) = (ConfusionMatrix::new(classes), ValueId(0));
        let (predictions, logits, batches) = (Vec::new(), Vec::new(), Vec::new());
        Self { value, confusion, predictions, logits, samples: 0, batches, kind }
    }

    /// Forgets everything counted.
    pub fn clear(&mut self) {
        self.samples = 0;
        self.batches.clear();
        self.confusion.clear();
        match &mut self.kind {
            Kind::Images { among_five, .. } => *among_five = 0.0,
            Kind::Pixels { boundaries, workers, .. } => {
                boundaries.clear();
                workers.iter_mut().for_each(|worker| worker.score.clear());
            }
        }
    }

    /// Counts the answers of the program's last run, for a batch of `samples` images with these labels. With
    /// `views`, they are those averaged over views, and `metrics` are theirs.
    ///
    /// # Errors
    /// If the device fails, or a label is beyond the classes.
    pub fn add(
        &mut self,
        session: &Session,
        program: usize,
        samples: usize,
        labels: &[i32],
        metrics: Metrics,
        views: Option<&ViewAverage>,
    ) -> Result<(), TrainError> {
        match &mut self.kind {
            Kind::Images { classes, among_five } => {
                self.samples += metrics.samples as u64;
                self.batches.push([metrics.loss * metrics.samples, metrics.samples]);
                *among_five += metrics.top5;
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
            Kind::Pixels { size, workers, .. } => {
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
                Ok(compare_boundaries(workers, &images, size)?)
            }
        }
    }

    /// Counts an image of any size, whose pixels have these labels and predicted classes. `loss` is the sum
    /// of the losses of its pixels with a class, and their number.
    ///
    /// # Errors
    /// If a label is beyond the classes, or answers are not of pixels.
    pub fn add_image(
        &mut self,
        labels: &[i32],
        predictions: &[i32],
        size: [usize; 2],
        [loss, weight]: [f64; 2],
    ) -> Result<(), TrainError> {
        let Kind::Pixels { workers, .. } = &mut self.kind else {
            return Err(EngineError::Mismatch("the network gives no class for each pixel".to_owned()).into());
        };
        self.batches.push([loss, weight]);
        self.confusion.add(labels, predictions)?;
        self.samples += u64::from(labels.iter().any(|&label| label >= 0));
        Ok(compare_boundaries(workers, &[(labels, predictions)], size)?)
    }

    /// What was counted, to be put together with what others have.
    ///
    /// # Errors
    /// Where measures do not belong together.
    pub fn tally(&self) -> Result<Tally, TrainError> {
        let (boundaries, among_five) = match &self.kind {
            Kind::Images { among_five, .. } => (None, *among_five as u64),
            Kind::Pixels { boundaries, workers, .. } => {
                let mut all = boundaries.clone();
                workers.iter().try_for_each(|worker| all.merge(&worker.score))?;
                (Some(all), 0)
            }
        };
        let batches = self.batches.iter().map(|batch| batch.map(f64::to_bits)).collect();
        Ok(Tally {
            confusion: self.confusion.clone(),
            boundaries,
            samples: self.samples,
            among_five,
            batches,
        })
    }

    /// Takes what all have counted, who took turns batch by batch, in the place of what was counted here.
    ///
    /// # Errors
    /// Where measures do not belong together.
    pub fn put_together(&mut self, all: &[Tally]) -> Result<(), TrainError> {
        self.clear();
        for tally in all {
            self.samples += tally.samples;
            self.confusion.merge(&tally.confusion)?;
            match (&mut self.kind, &tally.boundaries) {
                (Kind::Images { among_five: sum, .. }, _) => *sum += tally.among_five as f64,
                (Kind::Pixels { workers, .. }, Some(score)) => {
                    workers.first_mut().map_or(Ok(()), |worker| worker.score.merge(score))?;
                }
                (Kind::Pixels { .. }, None) => {}
            }
        }
        // Losses are added up in the order of batches, as one worker does.
        let rounds = all.iter().map(|tally| tally.batches.len()).max().unwrap_or(0);
        let in_order =
            (0..rounds).flat_map(|round| all.iter().filter_map(move |tally| tally.batches.get(round)));
        self.batches.extend(in_order.map(|batch| batch.map(f64::from_bits)));
        Ok(())
    }

    /// What was counted.
    ///
    /// # Errors
    /// Where measures do not belong together.
    pub fn scores(&self, dataset: &dyn Dataset) -> Result<Scores, TrainError> {
        let name = |class: usize| dataset.class_name(class);
        let measures = match &self.kind {
            Kind::Images { among_five, .. } => {
                let among_five = Some(*among_five as u64);
                Measures::Classification(ClassificationMeasures::new(&self.confusion, among_five, name))
            }
            Kind::Pixels { boundaries, workers, .. } => {
                let mut all = boundaries.clone();
                workers.iter().try_for_each(|worker| all.merge(&worker.score))?;
                let measures = SegmentationMeasures::new(&self.confusion, Some(&all), name);
                Measures::Segmentation(measures?)
            }
        };
        let [loss, weight] =
            self.batches.iter().fold([0.0; 2], |[loss, weight], batch| [loss + batch[0], weight + batch[1]]);
        let loss = if weight > 0.0 { loss / weight } else { 0.0 };
        Ok(Scores { samples: self.samples, loss, measures, confusion: self.confusion.clone() })
    }
}

/// Compares the boundaries of images, each with its labels and predictions, on as many threads as there are
/// workers. Their sums are of whole numbers: the same on any number of threads.
fn compare_boundaries(
    workers: &mut [Worker],
    images: &[(&[i32], &[i32])],
    size: [usize; 2],
) -> Result<(), MeasureError> {
    let count = workers.len();
    let compare = |number: usize, Worker { score, workspace }: &mut Worker| {
        let mut own = images.iter().skip(number).step_by(count);
        own.try_for_each(|(labels, predictions)| score.add(labels, predictions, size, workspace))
    };
    std::thread::scope(|scope| {
        let spawn = |(number, worker)| scope.spawn(move || compare(number, worker));
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
    fn the_first_of_equal_logits_is_predicted() {
        assert_eq!(largest(&[1.0_f32, 3.0, 3.0]), 1);
        assert_eq!(largest(&[f64::NAN, f64::NEG_INFINITY, 2.0]), 2);
        assert_eq!(largest(&[f64::NAN; 3]), 0);
    }

    /// Whatever the number of threads.
    #[test]
    fn boundaries_are_compared_on_any_number_of_threads() {
        let size = [4, 5];
        let images: Vec<Vec<i32>> =
            (0..7).map(|image| (0..20).map(|pixel| (pixel * 7 + image * 3) % 5 % 3).collect()).collect();
        let pairs: Vec<(&[i32], &[i32])> =
            (0..6).map(|image| (images[image].as_slice(), images[image + 1].as_slice())).collect();
        let score = |threads: usize| {
            let worker = || Worker { score: BoundaryScore::new(3), workspace: BoundaryWorkspace::default() };
            let mut workers: Vec<Worker> = (0..threads).map(|_| worker()).collect();
            compare_boundaries(&mut workers, &pairs, size).unwrap();
            let mut all = BoundaryScore::new(3);
            workers.iter().for_each(|worker| all.merge(&worker.score).unwrap());
            all
        };
        assert!(score(1).mean().is_some_and(|mean| mean < 1.0));
        for threads in [2, 3, 9] {
            assert_eq!(score(threads), score(1));
        }
    }
}
