//! Class weights of the training loss, by the frequencies of classes.

use crate::TrainError;
use std::borrow::Cow;
use stratus_data::{Dataset, stats};
use stratus_experiment::{ClassWeighting, Experiment};
use stratus_measures::weights::{ERFNET_TERM, inverse_logarithmic, or_zero};

/// The experiment with the class weights of `train.class_weighting`, by the frequencies in the training data
/// `dataset`. A run records them, and resumes with the recorded ones.
///
/// # Errors
/// If the data cannot be read, or `train.class_weights` does not have a number per class, or only zeros.
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
                    "train.class_weights has {} numbers, but data set `{}` has {classes} classes",
                    weights.len(),
                    dataset.name()
                ),
                "set a weight for each class, in the order of `stratus data stats`",
            );
        }
        if weights.iter().all(|&weight| weight == 0.0) {
            return conflict("train.class_weights are all 0".to_owned(), "set at least one weight above 0");
        }
        return Ok(Cow::Borrowed(experiment));
    }
    if experiment.train.class_weighting == ClassWeighting::None {
        return Ok(Cow::Borrowed(experiment));
    }
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let survey = stats::compute_stats(dataset, threads)?;
    let weights = match experiment.train.class_weighting {
        ClassWeighting::MedianFrequency => survey.median_frequency_weights(),
        ClassWeighting::Logarithmic | ClassWeighting::None => {
            let (counts, total) = survey.class_counts();
            inverse_logarithmic(counts, total, ERFNET_TERM)
        }
    };
    // The f32 values of the loss, as decimals that parse to the same f32.
    let rounded = |weight: f64| (weight as f32).to_string().parse().unwrap_or(weight);
    let mut experiment = experiment.clone();
    experiment.train.class_weights = Some(or_zero(&weights).into_iter().map(rounded).collect());
    Ok(Cow::Owned(experiment))
}
