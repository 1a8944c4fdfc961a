//! The record of images and classes that travels with weights.

use super::metadata_of_run;
use crate::{Experiment, TrainError};
use std::path::Path;
use stratus_graph::Shape;
use stratus_run::RunDir;
use stratus_weights::{NetworkMetadata, WeightsFile};

/// The record that travels with weights: the names of their classes, how their images were normalised and
/// resized. A key that the experiment sets goes before what is recorded, and a warning says so where they
/// differ.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Recorded {
    metadata: NetworkMetadata,
    /// The file or run, for messages.
    origin: String,
}

impl Recorded {
    /// Reads the record of a file or a run, before its network is known. A damaged record is left out, with a
    /// warning.
    ///
    /// # Errors
    /// If the file or the run cannot be read.
    pub fn read(weights: &Path, warn: &mut dyn FnMut(&str)) -> Result<Self, TrainError> {
        if weights.is_dir() {
            let run = RunDir::open(weights)?;
            let metadata = metadata_of_run(&run, &Experiment::load(&run.experiment())?);
            return Ok(Self { metadata, origin: weights.display().to_string() });
        }
        let file = WeightsFile::open(weights)?;
        let origin = weights.display().to_string();
        let entries = file.metadata().iter().map(|(key, text)| (key.as_str(), text.as_str()));
        let metadata = NetworkMetadata::read(entries).unwrap_or_else(|problem| {
            warn(&format!("what {origin} says of images and classes is left out: {problem}"));
            NetworkMetadata::default()
        });
        Ok(Self { metadata, origin })
    }

    /// The names of the classes, by their numbers; empty where they are not recorded.
    #[must_use]
    pub fn class_names(&self) -> &[String] {
        &self.metadata.class_names
    }

    /// Leaves out of an experiment what the weights record of images, but the keys in `kept`: of a run that
    /// other weights are measured with, whose experiment has every key.
    pub fn replace(&self, experiment: &mut Experiment, kept: &[(String, String)]) {
        let NetworkMetadata { mean, std, .. } = &self.metadata;
        let is_kept = |key: &str| kept.iter().any(|(name, _)| name == key);
        let data = &mut experiment.data;
        if mean.is_empty() {
            return;
        }
        if !is_kept("data.mean") {
            data.mean = None;
        }
        if !is_kept("data.std") && !std.is_empty() {
            data.std = None;
        }
        // Whoever records a normalisation records `resize` too, where there is one.
        if !is_kept("data.resize") {
            data.resize = None;
        }
    }

    /// Completes how an experiment prepares images of `input`, `[C, H, W]`.
    pub(crate) fn prepare(&self, experiment: &mut Experiment, input: &[usize], warn: &mut dyn FnMut(&str)) {
        let NetworkMetadata { mean, std, input_shape, resize, .. } = &self.metadata;
        let origin = &self.origin;
        let is_asked = experiment.data.shape.is_some();
        if !is_asked && !input_shape.is_empty() && input_shape != input {
            let shape = |extents: &[usize]| Shape(extents.to_vec()).to_string();
            warn(&format!(
                "{origin} records images of {}, and the network gets {}: --set data.shape={input_shape:?}",
                shape(input_shape),
                shape(input)
            ));
        }
        let data = &mut experiment.data;
        for (key, own, recorded) in [("data.mean", &mut data.mean, mean), ("data.std", &mut data.std, std)] {
            match own {
                _ if recorded.is_empty() => {}
                Some(own) if own == recorded => {}
                Some(own) => warn(&format!("{key} is {own:?}; {origin} records {recorded:?}")),
                None => *own = Some(recorded.clone()),
            }
        }
        // A side that the input cannot be cut from is another input's.
        let longest = input.iter().skip(1).copied().max().unwrap_or(0);
        match (data.resize, *resize) {
            (None, Some(side)) if side >= longest => data.resize = Some(side),
            (None, Some(side)) => warn(&format!(
                "{origin} records resize {side}, which is left out: the network's images have \
                 {longest} pixels"
            )),
            (Some(own), Some(side)) if own != side => {
                warn(&format!("data.resize is {own}; {origin} records {side}"));
            }
            _ => {}
        }
    }
}
