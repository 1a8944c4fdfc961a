//! A data set that is not here: the shape and the classes that a network is published for, and no samples.

use crate::errors::Result;
use stratus_data::{DataError, Dataset, Normalisation, Sample, Scratch};
use stratus_train::Experiment;
use stratus_train::network::Network;

/// Stands for the data set of an experiment.
pub(super) struct Absent {
    name: String,
    shape: [usize; 3],
    classes: usize,
    masks: bool,
}

/// How many samples it seems to have. What is forecast does not depend on it.
const SAMPLES: usize = 1 << 20;

impl Absent {
    /// The data set that the network of an experiment takes.
    ///
    /// # Errors
    /// Where there is no such network.
    pub fn of(experiment: &Experiment) -> Result<Self> {
        let graph = Network::as_published(experiment)?.graph;
        let published = graph.input_shape().0[..].try_into().unwrap_or([3, 224, 224]);
        Ok(Self {
            name: experiment.data.name.clone(),
            shape: experiment.shape().unwrap_or(published),
            classes: graph.classes(),
            masks: graph.shape(graph.output).0.len() == 3,
        })
    }

    fn no_sample<T>(&self, index: usize) -> std::result::Result<T, DataError> {
        Err(DataError::NoSuchSample { dataset: self.name.clone(), index, len: 0 })
    }
}

impl Dataset for Absent {
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

    fn label(&self, index: usize) -> std::result::Result<u32, DataError> {
        self.no_sample(index)
    }

    fn read<'a>(&'a self, index: usize, _: &'a mut Scratch) -> std::result::Result<Sample<'a>, DataError> {
        self.no_sample(index)
    }

    fn masks(&self) -> bool {
        self.masks
    }

    fn normalisation(&self) -> Normalisation {
        Normalisation::imagenet().for_channels(self.shape[0])
    }

    fn resident_bytes(&self) -> u64 {
        0
    }
}
