//! Evaluates on images larger than the network's input, in overlapping windows, at the images' own size.

use super::scorer::Scorer;
use super::scores::Scores;
use super::targets::TargetScaling;
use super::{EvaluatedImages, ImageSelection, OpenedImages, RunEvaluation, WeightsEvaluation};
use crate::TrainError;
use crate::infer::{FailureReason, ImageError, Predictor, SlidingWindows, WindowedPrediction};
use crate::resolve::validation_views;
use crate::weights::CheckpointChoice;
use std::path::Path;
use stratus_data::memory::StoredImage;
use stratus_data::{DataError, Scratch};
use stratus_engine::EngineError;
use stratus_experiment::{Experiment, OnBadSample};
use stratus_run::csv::Task;

/// Evaluates a run's weights in overlapping windows; else as [`evaluate_run`](super::evaluate_run).
///
/// # Errors
/// Also if the network is not for segmentation, or an image is smaller than a window.
pub fn evaluate_run_in_windows(
    path: &Path,
    choice: CheckpointChoice,
    overrides: &[(String, String)],
    images: &ImageSelection,
    windows: SlidingWindows,
    warn: &mut dyn FnMut(&str),
) -> Result<RunEvaluation, TrainError> {
    let predictor = Predictor::from_run(path, choice, overrides, warn)?.in_windows(windows)?;
    let (evaluated, scores) = scores(&predictor, images, warn)?;
    let none = || EngineError::InvalidRequest("the weights are not those of a run".to_owned());
    let checkpoint = predictor.checkpoint().ok_or_else(none)?;
    let averaged = checkpoint.averaged.is_some();
    let (iteration, weights_sha256) = (checkpoint.state.iteration, checkpoint.state.weights_sha256.clone());
    let mistakes = None;
    Ok(RunEvaluation { iteration, weights_sha256, averaged, views: 1, images: evaluated, scores, mistakes })
}

/// Evaluates a file's weights in overlapping windows; else as [`evaluate_weights`](super::evaluate_weights).
///
/// # Errors
/// Also if the network is not for segmentation, or an image is smaller than a window.
pub fn evaluate_weights_in_windows(
    experiment: &Experiment,
    weights: &Path,
    images: &ImageSelection,
    windows: SlidingWindows,
    warn: &mut dyn FnMut(&str),
) -> Result<WeightsEvaluation, TrainError> {
    let predictor = Predictor::from_weights(experiment, weights, warn)?.in_windows(windows)?;
    let (evaluated, scores) = scores(&predictor, images, warn)?;
    let none = || EngineError::InvalidRequest("the weights are not those of a file".to_owned());
    let weights = predictor.file().ok_or_else(none)?.clone();
    Ok(WeightsEvaluation { weights, images: evaluated, scores, mistakes: None })
}

/// Evaluates the images one after the other.
fn scores(
    predictor: &Predictor,
    choice: &ImageSelection,
    warn: &mut dyn FnMut(&str),
) -> Result<(EvaluatedImages, Scores), TrainError> {
    let experiment = predictor.experiment();
    let refused = |problem: &str, hint: &str| TrainError::Configuration {
        problem: problem.to_owned(),
        hint: hint.to_owned(),
    };
    let windows =
        *predictor.windows().ok_or_else(|| refused("no window size is set", "set one with --window"))?;
    if validation_views(experiment).len() > 1 {
        let [mirror, shift] = super::VIEW_KEYS;
        return Err(refused(
            &format!("{mirror} and {shift} cannot be combined with windows"),
            "remove them, or --window",
        ));
    }
    let OpenedImages { set: images, images: mut evaluated } =
        choice.open(experiment, predictor.class_names(), warn)?;
    if images.classes() > predictor.classes() {
        return Err(refused(
            &format!(
                "the network has {} classes, but data set `{}` has {}",
                predictor.classes(),
                experiment.data.name,
                images.classes()
            ),
            "choose the data set that the network was trained on with data.name",
        ));
    }
    let mut network = predictor.prepare_for(images.as_ref(), usize::MAX, warn)?;
    let (program, scaling) = (&network.plan().program, TargetScaling::default());
    let mut scorer = Scorer::new(program, Task::Segmentation, experiment.train.threads, scaling)?;
    let mut scratch = Scratch::default();
    for index in 0..images.len() {
        let image = match images.read(index, &mut scratch) {
            Ok(sample) => sample.check(images.as_ref(), index).map(|()| StoredImage::from_sample(&sample))?,
            Err(DataError::BadSample { .. }) if experiment.data.on_bad_sample == OnBadSample::Skip => {
                evaluated.skipped += 1;
                continue;
            }
            Err(error) => return Err(error.into()),
        };
        let WindowedPrediction { results, size, .. } = match network.predict_in_windows(image, &windows, true)
        {
            Ok(prediction) => prediction,
            Err(ImageError::Image(failure)) => {
                let problem = failure.message(&images.sample_name(index));
                if failure.reason == FailureReason::NotFinite {
                    return Err(TrainError::OutputsNotFinite { problem });
                }
                return Err(refused(&problem, failure.reason.hint()));
            }
            Err(ImageError::Other(error)) => return Err(error),
        };
        scorer.add_image(&results.labels, &results.predicted, size, results.loss)?;
    }
    evaluated.check_any_decoded()?;
    Ok((evaluated, scorer.scores(images.as_ref())?.check_finite()?))
}
