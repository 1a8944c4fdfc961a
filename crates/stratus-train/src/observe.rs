//! What training reports while it runs.

use stratus_run::csv::Task;

/// How far training has come, after an iteration.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TrainingProgress {
    /// The epoch, counted from 1.
    pub epoch: u64,
    /// Epochs in all.
    pub epochs: u64,
    /// Iterations done since the start of training.
    pub iteration: u64,
    /// Iterations in all.
    pub iterations: u64,
    /// Recent images per second.
    pub images_per_second: f64,
    /// Seconds to the end of training, as far as they can be told: see [`crate::run`].
    pub left_s: Option<f64>,
    /// Mean loss over the epoch so far.
    pub loss: f64,
    /// What the network learns.
    pub task: Task,
    /// Share of images, or of pixels, classified correctly in the epoch so far, 0 to 1.
    pub accuracy: f64,
}

/// The results of an epoch.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct EpochResult {
    /// The epoch, counted from 1.
    pub epoch: u64,
    /// Epochs in all.
    pub epochs: u64,
    /// Mean loss over the training images.
    pub train_loss: f64,
    /// What the network learns.
    pub task: Task,
    /// Share of training images, or of their pixels, classified correctly, 0 to 1.
    pub train_accuracy: f64,
    /// What was measured on the validation images, if it was.
    pub validation: Option<Validated>,
    /// Images a second over the epoch.
    pub images_per_second: f64,
    /// Seconds that the epoch took, validation included.
    pub seconds: f64,
}

/// What an epoch measured on the validation images.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Validated {
    /// Mean loss.
    pub loss: f64,
    /// Share of images, or of pixels, classified correctly, 0 to 1.
    pub accuracy: Option<f64>,
    /// Segmentation: mean intersection over union.
    pub miou: Option<f64>,
}

/// Receives the reports. It is called between iterations; its time is booked as bookkeeping.
pub trait Observer {
    /// After an iteration. Must be cheap, and must not allocate unless there is something to show.
    fn iteration(&mut self, progress: &TrainingProgress);
    /// After an epoch.
    fn epoch(&mut self, result: &EpochResult);
    /// A message.
    fn say(&mut self, text: &str);
    /// A warning.
    fn warn(&mut self, text: &str);
}

/// Ignores every report.
#[derive(Clone, Copy, Debug, Default)]
pub struct Silent;

impl Observer for Silent {
    fn iteration(&mut self, _progress: &TrainingProgress) {}
    fn epoch(&mut self, _result: &EpochResult) {}
    fn say(&mut self, _text: &str) {}
    fn warn(&mut self, _text: &str) {}
}
