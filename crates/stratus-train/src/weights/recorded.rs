//! The metadata of images and classes that weights record.

use super::{CheckpointChoice, load_checkpoint, metadata_of_run, thresholds_of};
use crate::TrainError;
use std::path::Path;
use stratus_experiment::{Experiment, LossFunction};
use stratus_graph::Shape;
use stratus_run::RunDir;
use stratus_weights::{NetworkMetadata, OutputScales, WeightsFile};

/// The metadata that weights record: class names, and how images were normalised and resized. Keys that the
/// experiment sets take precedence, with a warning if they differ.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RecordedMetadata {
    metadata: NetworkMetadata,
    /// The file or run, for messages.
    origin: String,
}

impl RecordedMetadata {
    /// Reads the metadata of a file or a run. Invalid metadata are ignored with a warning.
    ///
    /// # Errors
    /// If the file or the run cannot be read.
    pub fn read(weights: &Path, warn: &mut dyn FnMut(&str)) -> Result<Self, TrainError> {
        if weights.is_dir() {
            let run = RunDir::open(weights)?;
            let newest = load_checkpoint(&run, CheckpointChoice::Newest, warn)?;
            let thresholds = thresholds_of(&newest.state);
            let metadata = metadata_of_run(&run, &Experiment::load(&run.experiment())?, thresholds);
            return Ok(Self { metadata, origin: weights.display().to_string() });
        }
        let file = WeightsFile::open(weights)?;
        let origin = weights.display().to_string();
        let entries = file.metadata().iter().map(|(key, text)| (key.as_str(), text.as_str()));
        let metadata = NetworkMetadata::read(entries).unwrap_or_else(|problem| {
            warn(&format!("ignoring metadata of {origin}: {problem}"));
            NetworkMetadata::default()
        });
        Ok(Self { metadata, origin })
    }

    /// The names of the classes, by their indices; empty if not recorded.
    #[must_use]
    pub fn class_names(&self) -> &[String] {
        &self.metadata.class_names
    }

    /// The probability from which each label applies, `None` for a label without one; empty if not recorded.
    #[must_use]
    pub fn thresholds(&self) -> &[Option<f64>] {
        &self.metadata.outputs.thresholds
    }

    /// The logits of [`Self::thresholds`].
    pub(crate) fn logit_thresholds(&self) -> Vec<Option<f32>> {
        // The sigmoid of a large logit is rounded to 1, whose logit is infinite.
        let largest = 1.0 - f64::EPSILON / 2.0;
        let logit = |probability: f64| {
            let probability = probability.min(largest);
            (probability / (1.0 - probability)).ln() as f32
        };
        self.thresholds().iter().map(|probability| probability.map(logit)).collect()
    }

    /// Sets the loss of an experiment, which decides how its data set is read, if it sets none.
    pub(crate) fn prepare_loss(&self, experiment: &mut Experiment, warn: &mut dyn FnMut(&str)) {
        let Some(recorded) = self.metadata.loss.as_deref().and_then(LossFunction::from_name) else { return };
        match experiment.train.loss {
            None => experiment.train.loss = Some(recorded),
            Some(loss) if loss != recorded => {
                warn(&format!("train.loss is {loss}, but {} records {recorded}", self.origin));
            }
            Some(_) => {}
        }
    }

    /// Unsets the keys of an experiment that these metadata replace, except the keys in `kept`. Needed to
    /// evaluate other weights with the experiment of a run, which has every key set.
    pub fn replace(&self, experiment: &mut Experiment, kept: &[(String, String)]) {
        let NetworkMetadata { mean, std, .. } = &self.metadata;
        let is_kept = |key: &str| kept.iter().any(|(name, _)| name == key);
        if self.metadata != NetworkMetadata::default() && !is_kept("train.loss") {
            experiment.train.loss = None;
        }
        let data = &mut experiment.data;
        if !self.metadata.outputs.target_mean.is_empty() && !is_kept("data.target_mean") {
            (data.target_mean, data.target_std) = (None, None);
        }
        if mean.is_empty() {
            return;
        }
        if !is_kept("data.mean") {
            data.mean = None;
        }
        if !is_kept("data.std") && !std.is_empty() {
            data.std = None;
        }
        // Weights that record a normalisation also record `resize`, if it is set.
        if !is_kept("data.resize") {
            data.resize = None;
        }
    }

    /// Completes the normalisation and resizing of an experiment for the network's input shape, `[C, H, W]`.
    pub(crate) fn prepare(&self, experiment: &mut Experiment, input: &[usize], warn: &mut dyn FnMut(&str)) {
        let NetworkMetadata { mean, std, input_shape, resize, outputs, .. } = &self.metadata;
        let origin = &self.origin;
        let has_shape = experiment.data.shape.is_some();
        if !has_shape && !input_shape.is_empty() && input_shape != input {
            let shape = |extents: &[usize]| Shape(extents.to_vec()).to_string();
            warn(&format!(
                "{origin} records images of {}, but the network's input is {}: use --set \
                 data.shape={input_shape:?}",
                shape(input_shape),
                shape(input)
            ));
        }
        let data = &mut experiment.data;
        let OutputScales { target_mean, target_std, .. } = outputs;
        for (key, value, recorded) in [
            ("data.mean", &mut data.mean, mean),
            ("data.std", &mut data.std, std),
            ("data.target_mean", &mut data.target_mean, target_mean),
            ("data.target_std", &mut data.target_std, target_std),
        ] {
            match value {
                _ if recorded.is_empty() => {}
                Some(value) if value == recorded => {}
                Some(value) => warn(&format!("{key} is {value:?}, but {origin} records {recorded:?}")),
                None => *value = Some(recorded.clone()),
            }
        }
        // A side shorter than the input was recorded for another input shape.
        let longest_side = input.iter().skip(1).copied().max().unwrap_or(0);
        match (data.resize, *resize) {
            (None, Some(side)) if side >= longest_side => data.resize = Some(side),
            (None, Some(side)) => warn(&format!(
                "ignoring data.resize = {side} of {origin}: the network's input has {longest_side} pixels"
            )),
            (Some(value), Some(side)) if value != side => {
                warn(&format!("data.resize is {value}, but {origin} records {side}"));
            }
            _ => {}
        }
    }
}
