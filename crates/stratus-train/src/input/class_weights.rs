//! Class weights of the training loss, from how often classes occur.

use crate::experiment::ClassWeighting;
use crate::{Experiment, TrainError};
use std::borrow::Cow;
use stratus_data::{Dataset, stats};
use stratus_measures::weights::{ERFNET, inverse_logarithmic, or_zero};

/// The experiment with the class weights that `train.class_weighting` asks for, counted in `dataset`, the
/// training data. A run records them, and continues with those.
///
/// # Errors
/// If the data cannot be read, or `train.class_weights` has not a number for each class, or only zeros.
pub fn with_class_weights<'a>(
    experiment: &'a Experiment,
    dataset: &dyn Dataset,
) -> Result<Cow<'a, Experiment>, TrainError> {
    let classes = dataset.classes();
    let conflict =
        |problem: String, hint: &str| Err(TrainError::Configuration { problem, hint: hint.to_owned() });
    if let Some(weights) = &experiment.train.class_weights {
        if weights.len() != classes {
            return conflict(
                format!(
                    "train.class_weights has {} numbers, data set `{}` has {classes} classes",
                    weights.len(),
                    dataset.name()
                ),
                "give a weight for each class, in the order of `stratus data stats`",
            );
        }
        if weights.iter().all(|&weight| weight == 0.0) {
            return conflict("train.class_weights are all 0".to_owned(), "give some class a weight");
        }
        return Ok(Cow::Borrowed(experiment));
    }
    if experiment.train.class_weighting == ClassWeighting::None {
        return Ok(Cow::Borrowed(experiment));
    }
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let survey = stats::survey(dataset, threads)?;
    let weights = match experiment.train.class_weighting {
        ClassWeighting::MedianFrequency => survey.median_frequency_weights(),
        ClassWeighting::Logarithmic | ClassWeighting::None => {
            let (counts, total) = survey.class_counts();
            inverse_logarithmic(counts, total, ERFNET)
        }
    };
    // What the loss computes with, as decimals that read as the same f32.
    let rounded = |weight: f64| (weight as f32).to_string().parse().unwrap_or(weight);
    let mut experiment = experiment.clone();
    experiment.train.class_weights = Some(or_zero(&weights).into_iter().map(rounded).collect());
    Ok(Cow::Owned(experiment))
}
