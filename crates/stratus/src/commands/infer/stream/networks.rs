//! The networks of a stream: for one image at once, and for a batch.
//!
//! A network computes a whole batch also if only some of its images are given. So a batch is used only if it
//! takes less time than its images one by one, which is measured when the stream begins.

use std::time::Instant;
use stratus_data::memory::StoredImage;
use stratus_train::TrainError;
use stratus_train::infer::{FailureReason, ImageFailure, Inference, Outcome, Predictor};

/// The number of measured runs of each network, of which the fastest counts. The first one also loads what
/// the network needs.
const MEASURED_RUNS: usize = 3;

/// The networks of a stream.
pub(super) struct Networks<'a> {
    single: Inference<'a>,
    /// `None` if the batch has one image, or images are evaluated in windows, one after the other.
    batch: Option<BatchNetwork<'a>>,
}

struct BatchNetwork<'a> {
    network: Inference<'a>,
    /// The minimum number of images for which a batch takes less time.
    min_images: usize,
}

impl<'a> Networks<'a> {
    /// Prepares and measures the networks.
    ///
    /// # Errors
    /// If the device cannot run them, or the weights cannot be read.
    pub fn prepare(
        predictor: &'a Predictor,
        max_batch: usize,
        windows: bool,
        warn: &mut dyn FnMut(&str),
    ) -> Result<Self, TrainError> {
        if windows {
            // The batch is one of windows.
            return Ok(Self { single: predictor.prepare(usize::MAX, warn)?, batch: None });
        }
        let mut warnings = Vec::new();
        let mut warn_once = |text: &str| {
            if !warnings.iter().any(|warning| warning == text) {
                warn(text);
                warnings.push(text.to_owned());
            }
        };
        let mut network = predictor.prepare(max_batch, &mut warn_once)?;
        let batch_s = measure(&mut network)?;
        if network.batch() == 1 {
            return Ok(Self { single: network, batch: None });
        }
        let mut single = predictor.prepare(1, &mut warn_once)?;
        let min_images = min_images(measure(&mut single)?, batch_s, network.batch());
        Ok(Self { single, batch: Some(BatchNetwork { network, min_images }) })
    }

    /// The maximum number of images in a group.
    pub fn batch(&self) -> usize {
        self.batch.as_ref().map_or(1, |batch| batch.network.batch())
    }

    /// The number of images to compute at once if this number is waiting.
    pub fn group_size(&self, waiting: usize) -> usize {
        match &self.batch {
            Some(batch) if waiting >= batch.min_images => batch.network.batch(),
            _ => 1,
        }
    }

    /// The outcomes of image files, at most [`Self::batch`], in order.
    ///
    /// # Errors
    /// If the network fails.
    pub fn predict_files(
        &mut self,
        files: Vec<std::path::PathBuf>,
        views: bool,
    ) -> Result<Vec<Outcome>, TrainError> {
        let mut outcomes = Outcomes::new(files.len());
        self.network(files.len())
            .predict_files(files, views, |index, outcome| outcomes.add(index, outcome))?;
        Ok(outcomes.finish())
    }

    /// The outcomes of images in memory; else as [`Self::predict_files`].
    ///
    /// # Errors
    /// If the network fails.
    pub fn predict_images(
        &mut self,
        images: Vec<StoredImage>,
        views: bool,
    ) -> Result<Vec<Outcome>, TrainError> {
        let mut outcomes = Outcomes::new(images.len());
        self.network(images.len())
            .predict_images(images, views, |index, outcome| outcomes.add(index, outcome))?;
        Ok(outcomes.finish())
    }

    fn network(&mut self, images: usize) -> &mut Inference<'a> {
        match &mut self.batch {
            Some(batch) if images > 1 => &mut batch.network,
            _ => &mut self.single,
        }
    }
}

/// The outcomes of a group, one for each image.
struct Outcomes(Vec<Option<Outcome>>);

impl Outcomes {
    fn new(images: usize) -> Self {
        Self((0..images).map(|_| None).collect())
    }

    fn add(&mut self, index: usize, outcome: Outcome) -> Result<(), TrainError> {
        self.0[index] = Some(outcome);
        Ok(())
    }

    fn finish(self) -> Vec<Outcome> {
        let missing = || {
            let problem = "the network has no output for it".to_owned();
            Err(ImageFailure { problem, reason: FailureReason::Unreadable })
        };
        self.0.into_iter().map(|outcome| outcome.unwrap_or_else(missing)).collect()
    }
}

/// Measures the seconds of a batch.
fn measure(network: &mut Inference<'_>) -> Result<f64, TrainError> {
    let mut fastest = f64::INFINITY;
    for _ in 0..MEASURED_RUNS {
        let pixel = StoredImage::interleaved(vec![0; 3], [3, 1, 1]);
        let started = Instant::now();
        network.predict_images(vec![pixel], false, |_, _| Ok::<(), TrainError>(()))?;
        fastest = fastest.min(started.elapsed().as_secs_f64());
    }
    Ok(fastest)
}

/// The minimum number of images for which a batch takes less time than one by one.
fn min_images(single_s: f64, batch_s: f64, batch: usize) -> usize {
    // The conversion saturates.
    let count = (batch_s / single_s).floor() as usize;
    count.saturating_add(1).clamp(2, batch)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn batch_is_used_if_it_is_faster_or_full() {
        assert_eq!(min_images(1.0, 4.0, 8), 5);
        assert_eq!(min_images(1.0, 4.5, 8), 5);
        // A full batch is computed at once, so that its images load in parallel.
        assert_eq!(min_images(1.0, 80.0, 8), 8);
        assert_eq!(min_images(1.0, 0.5, 8), 2);
        assert_eq!(min_images(0.0, 1.0, 8), 8);
    }

    #[test]
    fn every_image_has_an_outcome() {
        let mut outcomes = Outcomes::new(2);
        let failure = ImageFailure { problem: "x".to_owned(), reason: FailureReason::TooSmall };
        outcomes.add(1, Err(failure.clone())).unwrap();
        let outcomes = outcomes.finish();
        assert!(outcomes[0].is_err());
        assert_eq!(outcomes[1], Err(failure));
    }
}
