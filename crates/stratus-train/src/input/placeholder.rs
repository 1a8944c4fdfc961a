//! A placeholder for a missing data set: it has the published shape and classes of a network, but no samples.

use super::datasets::{Datasets, open_datasets};
use crate::TrainError;
use crate::network::Network;
use std::sync::Arc;
use stratus_data::{DataError, Dataset, Normalisation, Sample, Scratch};
use stratus_experiment::{Experiment, LossFunction};

/// A placeholder for the data set of an experiment.
pub(crate) struct PlaceholderDataset {
    name: String,
    shape: [usize; 3],
    classes: usize,
    masks: bool,
}

/// The number of samples that the placeholder reports. Its memory is not counted.
const SAMPLES: usize = 1 << 20;

/// Opens an experiment's data sets, or if they are not at their path, or none is set, placeholders that fit
/// its network; then the flag is true.
///
/// # Errors
/// As [`open_datasets`], except for a missing data set.
pub fn open_datasets_or_placeholders(experiment: &Experiment) -> Result<(Datasets, bool), TrainError> {
    let path = experiment.data_path();
    // Some formats report the first missing file rather than the folder. A store that cannot be reached is an
    // error all the same.
    let is_missing = !path.exists() && !path.to_string_lossy().contains("://");
    match open_datasets(experiment) {
        Err(error) if !experiment.has_data_set() || is_missing && matches!(error, TrainError::Data(_)) => {
            let train: Arc<dyn Dataset> = Arc::new(PlaceholderDataset::of(experiment)?);
            Ok((Datasets { validation: Arc::clone(&train), train }, true))
        }
        opened => opened.map(|datasets| (datasets, false)),
    }
}

impl PlaceholderDataset {
    /// A placeholder that fits the network of an experiment.
    ///
    /// # Errors
    /// If the network is not found.
    pub fn of(experiment: &Experiment) -> Result<Self, TrainError> {
        let graph = Network::as_published(experiment)?.graph;
        let masks = graph.shape(graph.output).0.len() == 3;
        let published = graph.input_shape().0[..].try_into().unwrap_or([3, 224, 224]);
        Ok(Self {
            name: experiment.data.name.clone(),
            shape: experiment.shape().unwrap_or(published),
            classes: match (experiment.train.loss, masks) {
                // Background and foreground.
                (Some(LossFunction::BinaryCrossEntropy), true) => 2,
                (Some(LossFunction::SquaredError | LossFunction::Huber), false) => {
                    experiment.model.classes.unwrap_or(1)
                }
                _ => graph.classes(),
            },
            masks,
        })
    }

    fn no_sample<T>(&self, index: usize) -> Result<T, DataError> {
        Err(DataError::SampleOutOfRange { dataset: self.name.clone(), index, len: 0 })
    }
}

impl Dataset for PlaceholderDataset {
    fn name(&self) -> &str {
        &self.name
    }

    fn len(&self) -> usize {
        SAMPLES
    }

    fn classes(&self) -> usize {
        self.classes
    }

    fn sample_shape(&self) -> Option<[usize; 3]> {
        Some(self.shape)
    }

    fn label(&self, index: usize) -> Result<u32, DataError> {
        self.no_sample(index)
    }

    fn read<'a>(&'a self, index: usize, _: &'a mut Scratch) -> Result<Sample<'a>, DataError> {
        self.no_sample(index)
    }

    fn has_masks(&self) -> bool {
        self.masks
    }

    fn normalisation(&self) -> Normalisation {
        Normalisation::imagenet().for_channels(self.shape[0])
    }

    fn resident_bytes(&self) -> u64 {
        0
    }
}
