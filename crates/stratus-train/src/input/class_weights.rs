//! Weights of classes and labels in the training loss, by their frequencies.

use crate::TrainError;
use crate::network::counted_outputs;
use std::borrow::Cow;
use stratus_base::text::counted;
use stratus_data::stats::{TargetStatistics, target_statistics};
use stratus_data::{Dataset, TargetKind, stats};
use stratus_experiment::{ClassWeighting, Experiment, PositiveWeighting};
use stratus_measures::weights::{ERFNET_TERM, inverse_logarithmic, median_frequency, or_zero};

/// The experiment with the weights of `train.class_weighting` and `train.positive_weighting`, by the
/// frequencies in the training data `dataset`. A run records them, and resumes with the recorded ones.
///
/// # Errors
/// If the data cannot be read, or a list does not have a number per class, or only zeros.
pub fn with_class_weights<'a>(
    experiment: &'a Experiment,
    dataset: &dyn Dataset,
) -> Result<Cow<'a, Experiment>, TrainError> {
    let experiment = with_weights_of_classes(experiment, dataset)?;
    let train = &experiment.train;
    let count = dataset.classes();
    if let Some(found) = train.positive_weights.as_ref().map(Vec::len).filter(|&found| found != count) {
        return Err(TrainError::Configuration {
            problem: format!(
                "train.positive_weights has {found} numbers, but data set `{}` has {count} labels",
                dataset.name()
            ),
            hint: "set a weight for each label, in the order of `stratus data stats`".to_owned(),
        });
    }
    if train.positive_weights.as_ref().is_some_and(|weights| weights.iter().all(|&weight| weight == 0.0)) {
        return Err(TrainError::Configuration {
            problem: "train.positive_weights are all 0".to_owned(),
            hint: "set at least one weight above 0".to_owned(),
        });
    }
    let is_unset = train.positive_weights.is_none() && train.positive_weighting == PositiveWeighting::Auto;
    if !is_unset || dataset.target_kind() != Some(TargetKind::Labels) {
        return Ok(experiment);
    }
    let ratio = |label: &TargetStatistics| match label.positives {
        // It applies to no training image or to all: there is nothing to balance.
        positives if positives == 0 || positives == label.count => 1.0,
        positives => (label.count - positives) as f64 / positives as f64,
    };
    let weights = target_statistics(dataset).iter().map(|label| as_f32(ratio(label))).collect();
    let mut experiment = experiment.into_owned();
    experiment.train.positive_weights = Some(weights);
    Ok(Cow::Owned(experiment))
}

/// The `f32` value of the loss, as the decimal that parses to the same `f32`.
fn as_f32(weight: f64) -> f64 {
    (weight as f32).to_string().parse().unwrap_or(weight)
}

/// The experiment with the weights of `train.class_weighting`.
fn with_weights_of_classes<'a>(
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
                    "train.class_weights has {}, but data set `{}` has {}",
                    counted(weights.len() as u64, "number"),
                    dataset.name(),
                    counted_outputs(dataset)
                ),
                "set a weight for each of them, in the order of `stratus data stats`",
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
    let is_median = experiment.train.class_weighting == ClassWeighting::MedianFrequency;
    let weights = if dataset.target_kind().is_some() {
        let targets = target_statistics(dataset);
        let counts: Vec<u64> = targets.iter().map(|label| label.positives).collect();
        let known: Vec<u64> = targets.iter().map(|label| label.count).collect();
        match is_median {
            true => median_frequency(&counts, &known),
            false => (counts.iter().zip(&known))
                .flat_map(|(&count, &known)| inverse_logarithmic(&[count], known, ERFNET_TERM))
                .collect(),
        }
    } else {
        let threads = std::thread::available_parallelism().map_or(1, usize::from);
        let survey = stats::compute_stats(dataset, threads)?;
        match is_median {
            true => survey.median_frequency_weights(),
            false => {
                let (counts, total) = survey.class_counts();
                inverse_logarithmic(counts, total, ERFNET_TERM)
            }
        }
    };
    let mut experiment = experiment.clone();
    experiment.train.class_weights = Some(or_zero(&weights).into_iter().map(as_f32).collect());
    Ok(Cow::Owned(experiment))
}
