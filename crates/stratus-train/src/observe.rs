//! Progress reports of training.

use stratus_run::csv::Task;

/// The progress of training after an iteration.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TrainingProgress {
    /// The epoch, counted from 1.
    pub epoch: u64,
    /// Total number of epochs.
    pub epochs: u64,
    /// Iterations done since the start of training.
    pub iteration: u64,
    /// Total number of iterations.
    pub iterations: u64,
    /// Recent images per second.
    pub images_per_second: f64,
    /// Estimated seconds to the end of training; `None` without an estimate.
    pub remaining_s: Option<f64>,
    /// Mean loss over the epoch so far.
    pub loss: f64,
    /// The task of the network.
    pub task: Task,
    /// Fraction of images, or of pixels, classified correctly in the epoch so far, 0 to 1.
    pub accuracy: f64,
}

/// The results of an epoch.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct EpochResult {
    /// The epoch, counted from 1.
    pub epoch: u64,
    /// Total number of epochs.
    pub epochs: u64,
    /// Mean loss over the training images.
    pub train_loss: f64,
    /// The task of the network.
    pub task: Task,
    /// Fraction of training images, or of their pixels, classified correctly, 0 to 1.
    pub train_accuracy: f64,
    /// The results on the validation images; `None` if the epoch was not validated.
    pub validation: Option<ValidationResult>,
    /// Images per second over the epoch.
    pub images_per_second: f64,
    /// Seconds of the epoch, validation included.
    pub seconds: f64,
}

/// The results of an epoch on the validation images.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ValidationResult {
    /// Mean loss.
    pub loss: f64,
    /// Fraction of images, of pixels or of labels predicted correctly, 0 to 1; of numbers R².
    pub accuracy: Option<f64>,
    /// Segmentation: mean intersection over union. Several labels: mean average precision. Regression: root
    /// mean squared error, in the unit of the targets.
    pub secondary_metric: Option<f64>,
}

/// Receives progress reports. It is called between iterations; its time counts as bookkeeping.
pub trait Observer {
    /// Called after an iteration. Must be cheap, and must not allocate unless it shows something.
    fn iteration(&mut self, progress: &TrainingProgress);
    /// Called after an epoch.
    fn epoch(&mut self, result: &EpochResult);
    /// Reports a message.
    fn info(&mut self, text: &str);
    /// Reports a warning.
    fn warn(&mut self, text: &str);
}

/// Ignores every report.
#[derive(Clone, Copy, Debug, Default)]
pub struct NullObserver;

impl Observer for NullObserver {
    fn iteration(&mut self, _progress: &TrainingProgress) {}
    fn epoch(&mut self, _result: &EpochResult) {}
    fn info(&mut self, _text: &str) {}
    fn warn(&mut self, _text: &str) {}
}
