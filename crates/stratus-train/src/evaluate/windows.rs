//! Measuring on images larger than the network's input: through windows that overlap, at the images' own
//! size.

use super::scorer::{Scorer, Scores};
use super::{ImageChoice, MeasuredImages, OpenImages, RunEvaluation, WeightsEvaluation};
use crate::experiment::OnBadSample;
use crate::infer::{ImageError, Predictor, SlidingWindows, WholeImage};
use crate::resolve::validation_views;
use crate::weights::CheckpointChoice;
use crate::{Experiment, TrainError};
use std::path::Path;
use stratus_data::memory::StoredImage;
use stratus_data::{DataError, Scratch};
use stratus_engine::EngineError;
use stratus_run::csv::Task;

/// As [`of_run`](super::of_run), through windows.
///
/// # Errors
/// Also where the network gives no class for each pixel, or an image is smaller than a window.
pub fn of_run_in_windows(
    path: &Path,
    choice: CheckpointChoice,
    overrides: &[(String, String)],
    images: &ImageChoice,
    windows: SlidingWindows,
    warn: &mut dyn FnMut(&str),
) -> Result<RunEvaluation, TrainError> {
    let predictor = Predictor::of_run(path, choice, overrides, warn)?.in_windows(windows)?;
    let (measured, scores) = scores(&predictor, images, warn)?;
    let none = || EngineError::Mismatch("the weights are no run's".to_owned());
    let checkpoint = predictor.checkpoint().ok_or_else(none)?;
    let averaged = checkpoint.averaged.is_some();
    let (iteration, weights_sha256) = (checkpoint.state.iteration, checkpoint.state.weights_sha256.clone());
    Ok(RunEvaluation { iteration, weights_sha256, averaged, views: 1, measured, scores })
}

/// As [`of_weights`](super::of_weights), through windows.
///
/// # Errors
/// Also where the network gives no class for each pixel, or an image is smaller than a window.
pub fn of_weights_in_windows(
    experiment: &Experiment,
    weights: &Path,
    images: &ImageChoice,
    windows: SlidingWindows,
    warn: &mut dyn FnMut(&str),
) -> Result<WeightsEvaluation, TrainError> {
    let predictor = Predictor::of_weights(experiment, weights, warn)?.in_windows(windows)?;
    let (measured, scores) = scores(&predictor, images, warn)?;
    let none = || EngineError::Mismatch("the weights are no file's".to_owned());
    Ok(WeightsEvaluation { weights: predictor.file().ok_or_else(none)?.clone(), measured, scores })
}

/// Measures on images, one after the other.
fn scores(
    predictor: &Predictor,
    choice: &ImageChoice,
    warn: &mut dyn FnMut(&str),
) -> Result<(MeasuredImages, Scores), TrainError> {
    let experiment = predictor.experiment();
    let refused = |problem: &str, hint: &str| TrainError::Configuration {
        problem: problem.to_owned(),
        hint: hint.to_owned(),
    };
    let windows = *predictor.windows().ok_or_else(|| refused("there are no windows", "give --window"))?;
    if validation_views(experiment).len() > 1 {
        let [mirror, shift] = super::VIEW_KEYS;
        return Err(refused(
            &format!("{mirror}, {shift}: windows are of the image as it is"),
            "leave them out, or --window",
        ));
    }
    let OpenImages { set: images, mut measured } = choice.open(experiment, predictor.class_names())?;
    if images.classes() > predictor.classes() {
        return Err(refused(
            &format!(
                "the network has {} classes, data set `{}` has {}",
                predictor.classes(),
                experiment.data.name,
                images.classes()
            ),
            "choose the data set that the network was trained on with data.name",
        ));
    }
    let mut network = predictor.prepare_for(images.as_ref(), usize::MAX, warn)?;
    let mut scorer = Scorer::new(&network.plan().program, Task::Segmentation, experiment.train.threads)?;
    let mut scratch = Scratch::default();
    for index in 0..images.len() {
        let image = match images.read(index, &mut scratch) {
            Ok(sample) => sample.check(images.as_ref(), index).map(|()| StoredImage::of(&sample))?,
            Err(DataError::BadSample { .. }) if experiment.data.on_bad_sample == OnBadSample::Skip => {
                measured.left_out += 1;
                continue;
            }
            Err(error) => return Err(error.into()),
        };
        let WholeImage { summed, size, .. } = match network.whole(image, &windows, true) {
            Ok(whole) => whole,
            Err(ImageError::Image(unanswered)) => {
                let problem = unanswered.message(&images.sample_name(index));
                return Err(refused(&problem, unanswered.reason.hint()));
            }
            Err(ImageError::Other(error)) => return Err(error),
        };
        scorer.add_image(&summed.labels, &summed.predicted, size, summed.loss)?;
    }
    measured.expect_some()?;
    Ok((measured, scorer.scores(images.as_ref())?))
}
