//! What stops a training, and what to do about it.

use crate::ExperimentError;
use std::path::PathBuf;
use stratus_data::{DataError, LoaderError};
use stratus_engine::EngineError;
use stratus_graph::GraphError;

/// An error of training or evaluation.
#[derive(Debug, thiserror::Error)]
pub enum TrainError {
    /// The configuration.
    #[error(transparent)]
    Experiment(#[from] ExperimentError),
    /// A combination of settings and data that cannot be trained.
    #[error("{problem}")]
    Configuration {
        /// What does not fit.
        problem: String,
        /// What to do.
        hint: String,
    },
    /// The network.
    #[error(transparent)]
    Graph(#[from] GraphError),
    /// A layer file.
    #[error("{}: {problem}", path.display())]
    LayerFile {
        /// The file.
        path: PathBuf,
        /// What is wrong with it, and in which layer.
        problem: String,
    },
    /// A weights file.
    #[error(transparent)]
    Weights(#[from] stratus_weights::Error),
    /// Weights of another network.
    #[error("{}: {problem}", path.display())]
    WeightsDoNotFit {
        /// The file.
        path: PathBuf,
        /// What does not fit, a line for each tensor.
        problem: String,
        /// What to do.
        hint: String,
    },
    /// Weights without some that inference needs.
    #[error("{} does not fit {network}: {problem}", path.display())]
    WeightsIncomplete {
        /// The file.
        path: PathBuf,
        /// The network's name.
        network: String,
        /// How many fit, and the names of those that do not.
        problem: String,
    },
    /// The engine.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// The device that was asked for is not there.
    #[error("train.device = \"{device}\": {reason}")]
    Device {
        /// What was asked for.
        device: &'static str,
        /// Why it cannot be had.
        reason: String,
    },
    /// The data set.
    #[error(transparent)]
    Data(#[from] DataError),
    /// Reading the data set while training.
    #[error(transparent)]
    Loader(#[from] LoaderError),
    /// The run directory.
    #[error(transparent)]
    Run(#[from] stratus_run::Error),
    /// The loss is no number any more.
    #[error("the loss is {loss} after iteration {iteration} (epoch {epoch}): training has diverged")]
    Diverged {
        /// The loss.
        loss: f64,
        /// Iterations done.
        iteration: u64,
        /// The epoch, counted from 1.
        epoch: u64,
    },
    /// A checkpoint that is not this run's.
    #[error("checkpoint {checkpoint}: {problem}")]
    Checkpoint {
        /// Which.
        checkpoint: String,
        /// What does not fit.
        problem: String,
    },
}

impl TrainError {
    /// What to do about it, where the message does not say it.
    #[must_use]
    pub fn hint(&self) -> Option<String> {
        match self {
            Self::Experiment(error) => error.hint(),
            Self::Configuration { hint, .. } | Self::WeightsDoNotFit { hint, .. } => Some(hint.clone()),
            Self::WeightsIncomplete { .. } => Some(
                "an exported network needs all of its weights; --set model.classes= and model.width= change the network"
                    .to_owned(),
            ),
            Self::Device { device: "cuda", .. } => Some(
                "`stratus doctor` says what is missing; take what there is with --set train.device=auto".to_owned(),
            ),
            Self::Device { .. } => {
                Some("run `make deps`, or take what there is with --set train.device=auto".to_owned())
            }
            Self::Engine(EngineError::OutOfMemory { .. }) => Some(
                "have activations made again within what is free with --memory-limit SIZE, cut batches into micro-batches with --set train.micro_batches=, or take smaller ones with --set train.batch_size="
                    .to_owned(),
            ),
            Self::Data(DataError::UnknownDataset { .. }) => {
                Some("choose a data set with data.name, and its folder with data.path".to_owned())
            }
            Self::Data(DataError::MissingRoot { .. }) => Some(
                "say where the images are with --set data.path=FOLDER, or have some made up with --set data.name=synthetic"
                    .to_owned(),
            ),
            Self::Loader(LoaderError::Configuration { key: "normalisation", .. }) => {
                Some("give data.mean and data.std a number per channel, or leave them out".to_owned())
            }
            Self::Loader(LoaderError::Configuration { key: "augment", .. }) => {
                Some("change data.augment, or data.shape".to_owned())
            }
            Self::Loader(LoaderError::Configuration { key: "shape", .. }) => {
                Some("set data.shape, like [3, 224, 224]".to_owned())
            }
            Self::Loader(LoaderError::Configuration { key: "resize", .. }) => {
                Some("raise data.resize, or lower data.shape".to_owned())
            }
            Self::Diverged { .. } => Some("lower optimiser.learning_rate, or warm up longer".to_owned()),
            _ => None,
        }
    }

    /// Whether it is a matter of usage or configuration: nothing was begun.
    #[must_use]
    pub fn is_usage(&self) -> bool {
        matches!(
            self,
            Self::Experiment(_)
                | Self::Configuration { .. }
                | Self::Graph(_)
                | Self::LayerFile { .. }
                | Self::WeightsDoNotFit { .. }
                | Self::Device { .. }
                | Self::Data(DataError::UnknownDataset { .. } | DataError::Option { .. })
                | Self::Loader(LoaderError::Configuration { .. })
                | Self::Run(stratus_run::Error::NotARun { .. } | stratus_run::Error::NotEmpty { .. })
        )
    }
}
