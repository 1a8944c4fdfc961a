//! Errors of training and evaluation, with hints.

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
    /// Predictions that cannot be counted.
    #[error(transparent)]
    Measure(#[from] stratus_measures::MeasureError),
    /// The engine.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// The device that was asked for cannot be used.
    #[error("train.device = \"{device}\": {reason}")]
    Device {
        /// The value of `train.device`.
        device: &'static str,
        /// Why it cannot be used.
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
    /// The loss is NaN or infinite.
    #[error("the loss is {loss} after iteration {iteration} (epoch {epoch}): training has diverged")]
    Diverged {
        /// The loss.
        loss: f64,
        /// Iterations done.
        iteration: u64,
        /// The epoch, counted from 1.
        epoch: u64,
    },
    /// Workers that train together can do so no longer.
    #[error(transparent)]
    Exchange(#[from] stratus_exchange::ExchangeError),
    /// Workers that should have the same parameters do not.
    #[error(
        "worker {rank} has other numbers in `{tensor}` than worker 0 after iteration {iteration}: one of \
         them has computed something else"
    )]
    WorkersDiffer {
        /// The worker.
        rank: usize,
        /// The first tensor that differs.
        tensor: String,
        /// Iterations done.
        iteration: u64,
    },
    /// A checkpoint that does not fit the run.
    #[error("checkpoint {checkpoint}: {problem}")]
    Checkpoint {
        /// Which.
        checkpoint: String,
        /// What does not fit.
        problem: String,
    },
}

impl TrainError {
    /// What to do about it, if the message does not say so.
    #[must_use]
    pub fn hint(&self) -> Option<String> {
        match self {
            Self::Experiment(error) => error.hint(),
            Self::Configuration { hint, .. } | Self::WeightsDoNotFit { hint, .. } => Some(hint.clone()),
            Self::WeightsIncomplete { .. } => Some(
                "an exported network needs all of its weights; change the network with --set model.classes= \
                 or --set \
                 model.width="
                    .to_owned(),
            ),
            Self::Device { device: "cuda", .. } => Some(
                "`stratus doctor` says what is missing; use the device that is there with --set \
                 train.device=auto"
                    .to_owned(),
            ),
            Self::Device { .. } => {
                Some("run `make deps`, or use the device that is there with --set \
                train.device=auto".to_owned())
            }
            Self::Engine(EngineError::OutOfMemory { .. }) => Some(
                "have activations recomputed with --memory-limit SIZE, split batches into micro-batches with \
                 --set \
                 train.micro_batches=, or take smaller batches with --set train.batch_size="
                    .to_owned(),
            ),
            Self::Data(DataError::UnknownDataset { .. }) => {
                Some("choose a data set with data.name, and its folder with data.path".to_owned())
            }
            Self::Data(DataError::MissingRoot { .. }) => Some(
                "say where the images are with --set data.path=FOLDER, or use synthetic ones with --set \
                 data.name=synthetic"
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

    /// Whether it is an error of usage or configuration: nothing was started.
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
