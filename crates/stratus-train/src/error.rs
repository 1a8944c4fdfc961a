//! Errors of training and evaluation, with hints.

use std::path::PathBuf;
use stratus_base::installation::libraries_command;
use stratus_base::library::LibraryNotFound;
use stratus_data::{DataError, LoaderError};
use stratus_engine::EngineError;
use stratus_experiment::{Device, ExperimentError};
use stratus_graph::GraphError;

/// The suggested fix if outputs of a network are not finite.
pub(crate) const DIVERGED_WEIGHTS_HINT: &str = "the weights have diverged: use an earlier checkpoint with \
                                                --checkpoint, or train with a lower optimiser.learning_rate";

/// An error of training or evaluation.
#[derive(Debug, thiserror::Error)]
pub enum TrainError {
    /// The configuration.
    #[error(transparent)]
    Experiment(#[from] ExperimentError),
    /// A combination of settings and data that cannot be trained.
    #[error("{problem}")]
    Configuration {
        /// The problem.
        problem: String,
        /// The suggested fix.
        hint: String,
    },
    /// A network has no layer that runs in int8 on this machine, faster and accurately enough.
    #[error("{problem}")]
    NoInt8Layer {
        /// The reason.
        problem: String,
        /// The suggested fix.
        hint: String,
    },
    /// An error of one or all workers that all know, after which they end together.
    #[error(transparent)]
    AllWorkers(Box<TrainError>),
    /// A step before training that failed on another worker.
    #[error("{worker}: {problem}")]
    Worker {
        /// The worker, with its host.
        worker: String,
        /// The error there, with its causes.
        problem: String,
        /// The suggested fix.
        hint: Option<String>,
        /// True if it is an error of usage or configuration.
        is_usage: bool,
    },
    /// The network.
    #[error(transparent)]
    Graph(#[from] GraphError),
    /// A layer file.
    #[error("{}: {problem}", path.display())]
    LayerFile {
        /// The file.
        path: PathBuf,
        /// The problem and its layer.
        problem: String,
    },
    /// A weights file.
    #[error(transparent)]
    Weights(#[from] stratus_weights::Error),
    /// A network with values that are not those of its parameters.
    #[error(transparent)]
    Model(#[from] stratus_optimise::ModelError),
    /// Weights of another network.
    #[error("{}: {problem}", path.display())]
    WeightsMismatch {
        /// The file.
        path: PathBuf,
        /// The mismatches, a line per tensor.
        problem: String,
        /// The suggested fix.
        hint: String,
    },
    /// Weights that lack tensors for inference.
    #[error("{} does not fit {network}: {problem}", path.display())]
    WeightsIncomplete {
        /// The file.
        path: PathBuf,
        /// The network's name.
        network: String,
        /// The number of tensors that fit, and the names of those that do not.
        problem: String,
    },
    /// Predictions that cannot be scored.
    #[error(transparent)]
    Metric(#[from] stratus_measures::MetricError),
    /// The forecast.
    #[error(transparent)]
    Forecast(#[from] stratus_forecast::Error),
    /// The engine.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// The requested device cannot be used.
    #[error("device `{device}`: {reason}")]
    Device {
        /// The value of `train.device`.
        device: Device,
        /// The reason.
        reason: String,
    },
    /// The library that an environment variable names cannot be used.
    #[error(transparent)]
    Library(#[from] LibraryNotFound),
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
    /// An evaluation in which outputs of the network are NaN or infinite.
    #[error("{problem}")]
    OutputsNotFinite {
        /// The loss, or the image.
        problem: String,
    },
    /// The communication of workers failed.
    #[error(transparent)]
    Exchange(#[from] stratus_exchange::ExchangeError),
    /// Workers whose parameters should be bit-identical, but differ.
    #[error("workers {rank} and {first} differ in `{tensor}` after iteration {iteration}")]
    WorkersDiffer {
        /// The rank of the worker.
        rank: usize,
        /// The rank of the first worker with the same stage.
        first: usize,
        /// The first tensor that differs.
        tensor: String,
        /// Iterations done.
        iteration: u64,
    },
    /// A quantity of this machine that cannot be measured.
    #[error("cannot measure {quantity} on this machine")]
    Unmeasurable {
        /// The quantity.
        quantity: &'static str,
    },
    /// Stopped on request in work that is not training, and has left nothing to resume.
    #[error("interrupted while {activity}")]
    Interrupted {
        /// The work, as in "measuring the latency".
        activity: &'static str,
    },
    /// A checkpoint that does not fit the run.
    #[error("checkpoint {checkpoint}: {problem}")]
    Checkpoint {
        /// The checkpoint.
        checkpoint: String,
        /// The problem.
        problem: String,
    },
}

impl TrainError {
    /// The error itself, whether or not all workers know it.
    #[must_use]
    pub fn reason(&self) -> &Self {
        match self {
            Self::AllWorkers(error) => error.reason(),
            error => error,
        }
    }

    /// The suggested fix, if there is one.
    #[must_use]
    pub fn hint(&self) -> Option<String> {
        match self {
            Self::AllWorkers(error) => error.hint(),
            Self::Worker { hint, .. } => hint.clone(),
            Self::Experiment(error) => error.hint(),
            Self::Forecast(error) => error.hint(),
            Self::Configuration { hint, .. }
            | Self::NoInt8Layer { hint, .. }
            | Self::WeightsMismatch { hint, .. } => Some(hint.clone()),
            Self::WeightsIncomplete { .. } => Some(
                "an exported network needs all of its weights; change the network with --set model.classes= \
                 or --set model.width="
                    .to_owned(),
            ),
            Self::Device { device: Device::Onednn, .. } => Some(format!(
                "run `{}`, or use an available device with --set train.device=auto",
                libraries_command()
            )),
            Self::Device { .. } => Some(format!(
                "use an available device with --set train.device=auto; if this machine has an NVIDIA GPU, \
                 install what is missing, or set {} to the folders of the libraries",
                stratus_cuda::ENVIRONMENT
            )),
            Self::Library(error) | Self::Data(DataError::Library(error)) => error.hint(),
            Self::Engine(EngineError::OutOfMemory { .. }) => Some(
                "recompute activations with --memory-limit SIZE, split batches into micro-batches with --set \
                 train.micro_batches=, or use smaller batches with --set train.batch_size="
                    .to_owned(),
            ),
            Self::Engine(EngineError::TooManyStages { .. }) => {
                Some("use fewer stages with --set train.stages=".to_owned())
            }
            Self::Data(DataError::UnknownDataset { .. }) => {
                Some("choose a data set with data.name, and its folder with data.path".to_owned())
            }
            Self::Data(DataError::MissingRoot { .. }) => Some(
                "set the folder of the images with --set data.path=FOLDER, or use synthetic ones with --set \
                 data.name=synthetic"
                    .to_owned(),
            ),
            Self::Loader(LoaderError::Configuration { key: "normalisation", .. }) => {
                Some("set data.mean and data.std to a number per channel, or remove them".to_owned())
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
            Self::OutputsNotFinite { .. } => Some(DIVERGED_WEIGHTS_HINT.to_owned()),
            Self::Diverged { .. } => {
                Some("lower optimiser.learning_rate, or raise schedule.warmup_epochs".to_owned())
            }
            _ => None,
        }
    }

    /// Returns whether this is an error of usage or configuration, before anything was started.
    #[must_use]
    pub fn is_usage(&self) -> bool {
        matches!(
            self.reason(),
            Self::Experiment(_)
                | Self::Worker { is_usage: true, .. }
                | Self::Configuration { .. }
                | Self::NoInt8Layer { .. }
                | Self::Forecast(_)
                | Self::Graph(_)
                | Self::LayerFile { .. }
                | Self::WeightsMismatch { .. }
                | Self::Device { .. }
                | Self::Library(_)
                | Self::Engine(EngineError::TooManyStages { .. } | EngineError::StagesTooLarge { .. })
                | Self::Data(
                    DataError::UnknownDataset { .. }
                        | DataError::InvalidOption { .. }
                        | DataError::Library(_)
                )
                | Self::Loader(LoaderError::Configuration { .. })
                | Self::Run(stratus_run::Error::NotARun { .. } | stratus_run::Error::NotEmpty { .. })
        )
    }
}
