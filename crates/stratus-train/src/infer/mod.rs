//! Inference with a trained network.
//!
//! Images are processed as in validation: resized and normalised as the run recorded, with the same
//! evaluation program, in which batch norms are folded: see [`Predictor::folded_model`]. So predictions equal
//! those that `eval` scores, up to rounding.

mod latency;
mod outputs;
mod session;
mod windows;

use crate::TrainError;
use crate::error::DIVERGED_WEIGHTS_HINT;
use crate::network::Network;
use crate::weights::{
    CheckpointChoice, Pretrained, RecordedMetadata, TrainedNetwork, WeightsPurpose, initial_tensors,
    load_trained_network, model_from_tensors,
};
pub use latency::{BatchLatency, InferenceLatency, StepLatency, measure_latency};
pub(crate) use outputs::sigmoid;
pub(crate) use session::{ImageError, WindowedPrediction, picture};
pub use session::{Inference, Int8Layers};
use std::path::Path;
use stratus_base::text::shell_path;
use stratus_data::contact_sheet::RgbImage;
use stratus_experiment::{Experiment, FakeQuantisation, LossFunction};
use stratus_graph::Graph;
use stratus_optimise::{Model, fold};
use stratus_run::RunDir;
use stratus_run::checkpoint::Checkpoint;
use stratus_run::csv::Task;
use stratus_run::quantisation::Quantisation;
use stratus_run::sources::Source;
pub use windows::{Corners, SlidingWindows};

/// The probability from which a label without a chosen threshold applies.
const DEFAULT_THRESHOLD: f64 = 0.5;

/// A network with its weights, ready for inference.
pub struct Predictor {
    experiment: Experiment,
    graph: Graph,
    /// The values of each parameter and buffer.
    weights: Weights,
    /// The names of the classes; empty if unknown.
    class_names: Vec<String>,
    /// The probability from which each label applies; empty if unknown.
    thresholds: Vec<Option<f64>>,
    windows: Option<SlidingWindows>,
    /// The layers that run in int8; `None` for none.
    quantisation: Option<Quantisation>,
    /// See [`Predictor::with_separate_steps`].
    separates_steps: bool,
}

enum Weights {
    Checkpoint(Box<TrainedNetwork>),
    File(Box<Pretrained>),
    /// Values in memory.
    Model(Box<Model>),
    /// Initial ones of the experiment's seed, to measure a network that was not trained.
    Initial,
}

/// The prediction for an image.
#[derive(Clone, Debug, PartialEq)]
pub struct Prediction {
    /// The position of the image in the input.
    pub index: usize,
    /// The output of the network.
    pub output: Output,
    /// Seconds to read and decode it.
    pub decode_s: f64,
    /// Seconds of the network: those of the batch divided by its number of images.
    pub network_s: f64,
    /// The image as the network sees it, if requested.
    pub view: Option<RgbImage>,
}

/// The prediction for an image, or the reason why there is none.
pub type Outcome = Result<Prediction, ImageFailure>;

/// The reason why an image has no prediction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ImageFailure {
    /// The problem, without the image's name.
    pub problem: String,
    /// The kind of the failure.
    pub reason: FailureReason,
}

/// The kind of a failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FailureReason {
    /// It cannot be read or decoded.
    Unreadable,
    /// It is smaller than a window.
    TooSmall,
    /// There is not enough memory for it.
    TooLarge,
    /// The network's output for it is NaN or infinite.
    NotFinite,
}

impl ImageFailure {
    /// The failure of an image for which the network's output is not finite.
    fn not_finite() -> Self {
        let problem = "the network's output is not finite".to_owned();
        Self { problem, reason: FailureReason::NotFinite }
    }

    /// A message that names the image.
    #[must_use]
    pub fn message(&self, image: &str) -> String {
        let is_clause = matches!(self.reason, FailureReason::Unreadable | FailureReason::NotFinite);
        let colon = if is_clause { ":" } else { "" };
        format!("{image}{colon} {}", self.problem)
    }
}

impl FailureReason {
    /// The suggested fix.
    #[must_use]
    pub fn hint(self) -> &'static str {
        match self {
            Self::Unreadable => "replace or remove the files that the warnings name",
            Self::TooSmall => "set a window that is not larger than the images",
            Self::TooLarge => "split the images, or use a machine with more memory",
            Self::NotFinite => DIVERGED_WEIGHTS_HINT,
        }
    }
}

/// The output of the network for an image.
#[derive(Clone, Debug, PartialEq)]
pub enum Output {
    /// The classes with their probabilities, the most probable first.
    Classes(Vec<(usize, f64)>),
    /// The class of every pixel, row-major, and height and width.
    Mask(Vec<i32>, [usize; 2]),
    /// The probability of each label.
    Labels(Vec<f64>),
    /// Each target, in its unit.
    Numbers(Vec<f64>),
}

impl Predictor {
    /// The network of a run with one of its checkpoints. The run's data are not needed. `data.shape` among
    /// `overrides` sets another image size than that of training.
    ///
    /// # Errors
    /// If the run, its configuration or its checkpoint cannot be read, or a layer's weights depend on the
    /// image size of training.
    pub fn from_run(
        path: &Path,
        choice: CheckpointChoice,
        overrides: &[(String, String)],
        warn: &mut dyn FnMut(&str),
    ) -> Result<Self, TrainError> {
        let quantisation = Quantisation::read(&RunDir::open(path)?.optimise_quantisation())?;
        Self::from_run_as(path, choice, overrides, quantisation, warn)
    }

    /// [`Self::from_run`] with these int8 layers instead of the recorded ones.
    ///
    /// # Errors
    /// As there, and if the layers were chosen for other weights.
    pub fn from_run_as(
        path: &Path,
        choice: CheckpointChoice,
        overrides: &[(String, String)],
        quantisation: Option<Quantisation>,
        warn: &mut dyn FnMut(&str),
    ) -> Result<Self, TrainError> {
        let experiment = load_for_inference(&RunDir::open(path)?, quantisation.as_ref(), overrides)?;
        let trained = load_trained_network(path, choice, warn)?;
        check_weights(path, quantisation.as_ref(), &trained.checkpoint)?;
        let class_names = trained.metadata.class_names.clone();
        let thresholds = trained.metadata.outputs.thresholds.clone();
        let graph = for_images(&experiment, &trained.graph)?;
        Ok(Self {
            experiment,
            graph,
            weights: Weights::Checkpoint(Box::new(trained)),
            class_names,
            thresholds,
            windows: None,
            quantisation,
            separates_steps: false,
        })
    }

    /// The network of an experiment with the weights of a file, or of a run. Uses the metadata of images and
    /// classes that the weights record, see [`RecordedMetadata`].
    ///
    /// # Errors
    /// If the weights cannot be read, or do not fit the network.
    pub fn from_weights(
        experiment: &Experiment,
        weights: &Path,
        warn: &mut dyn FnMut(&str),
    ) -> Result<Self, TrainError> {
        let recorded = RecordedMetadata::read(weights, warn)?;
        let mut experiment = experiment.clone();
        recorded.prepare_loss(&mut experiment, warn);
        // A layer file has its own number of classes.
        let has_own_classes = experiment.layer_file().is_some() || experiment.model.classes.is_some();
        if !has_own_classes && !recorded.class_names().is_empty() {
            experiment.model.classes = Some(recorded.class_names().len());
        }
        let mut graph = Network::as_published(&experiment)?.graph;
        let is_binary = experiment.train.loss == Some(LossFunction::BinaryCrossEntropy);
        if !has_own_classes && is_binary && graph.shape(graph.output).0.len() == 3 {
            // One output distinguishes background and foreground.
            experiment.model.classes = Some(1);
            graph = Network::as_published(&experiment)?.graph;
        }
        let file = Pretrained::open(weights, &graph, WeightsPurpose::Evaluation, warn)?;
        recorded.prepare(&mut experiment, &graph.input_shape().0, warn);
        let class_names = recorded.class_names().to_vec();
        let thresholds = recorded.thresholds().to_vec();
        Ok(Self {
            experiment,
            graph,
            weights: Weights::File(Box::new(file)),
            class_names,
            thresholds,
            windows: None,
            quantisation: None,
            separates_steps: false,
        })
    }

    /// The network of an experiment with initial weights, to measure its speed.
    ///
    /// # Errors
    /// If the network cannot be made.
    pub fn with_initial_weights(experiment: &Experiment) -> Result<Self, TrainError> {
        let graph = Network::as_published(experiment)?.graph;
        let (experiment, class_names) = (experiment.clone(), Vec::new());
        Ok(Self {
            experiment,
            graph,
            weights: Weights::Initial,
            class_names,
            thresholds: Vec::new(),
            windows: None,
            quantisation: None,
            separates_steps: false,
        })
    }

    /// A network in memory, to measure its speed. The int8 layers may have been chosen for a network with
    /// more channels.
    pub(crate) fn from_model(
        experiment: Experiment,
        model: Model,
        quantisation: Option<Quantisation>,
    ) -> Self {
        let (graph, class_names) = (model.graph.clone(), Vec::new());
        let weights = Weights::Model(Box::new(model));
        let thresholds = Vec::new();
        let (windows, separates_steps) = (None, false);
        Self { experiment, graph, weights, class_names, thresholds, windows, quantisation, separates_steps }
    }

    /// The same with sums and activations as steps of their own, which are compared with those of a network
    /// in int8.
    pub(crate) fn with_separate_steps(self) -> Self {
        Self { separates_steps: true, ..self }
    }

    /// The names of the classes, by their indices; empty if unknown.
    pub(crate) fn class_names(&self) -> &[String] {
        &self.class_names
    }

    /// The task of the network.
    #[must_use]
    pub fn task(&self) -> Task {
        match self.experiment.train.loss {
            _ if self.graph.shape(self.graph.output).0.len() == 3 => Task::Segmentation,
            Some(loss) => loss.task_of_images(),
            None => Task::Classification,
        }
    }

    /// The probability from which a label applies. Labels without a chosen one apply from 0.5.
    #[must_use]
    pub fn threshold(&self, label: usize) -> f64 {
        self.thresholds.get(label).copied().flatten().unwrap_or(DEFAULT_THRESHOLD)
    }

    /// The number of classes, labels or targets.
    #[must_use]
    pub fn classes(&self) -> usize {
        match self.task() {
            // A network with one output distinguishes background and foreground.
            Task::Segmentation => self.graph.classes().max(2),
            Task::Classification | Task::MultiLabel | Task::Regression => self.graph.classes(),
        }
    }

    /// The name of a class; its index if unknown.
    #[must_use]
    pub fn class_name(&self, class: usize) -> String {
        self.class_names.get(class).cloned().unwrap_or_else(|| class.to_string())
    }

    /// The same network for images of any size, evaluated in overlapping windows, with outputs of the images'
    /// own size.
    ///
    /// # Errors
    /// If the network is not for segmentation, its masks are smaller than a window, or its weights depend on
    /// the image size.
    pub fn in_windows(mut self, windows: SlidingWindows) -> Result<Self, TrainError> {
        let refused = |problem: String| {
            let hint = "remove --window".to_owned();
            Err(TrainError::Configuration { problem, hint })
        };
        if self.task() != Task::Segmentation {
            return refused(format!(
                "--window needs a segmentation network; `{}` is a classifier",
                self.graph.name
            ));
        }
        if self.graph.classes() == 1 {
            return refused(format!(
                "--window needs an output for each class; `{}` has one for foreground and background",
                self.graph.name
            ));
        }
        let (channels, [height, width]) = (self.graph.input_shape().0[0], windows.size());
        self.experiment.data.shape = Some(vec![channels, height, width]);
        self.graph = for_images(&self.experiment, &self.graph)?;
        let made = &self.graph.shape(self.graph.output).0;
        if made[1..] != [height, width] {
            return refused(format!(
                "`{}` has masks of {}x{} for windows of {height}x{width}",
                self.graph.name, made[1], made[2]
            ));
        }
        self.windows = Some(windows);
        Ok(self)
    }

    /// The experiment of the network, with overrides.
    pub(crate) fn experiment(&self) -> &Experiment {
        &self.experiment
    }

    /// The checkpoint; `None` if the weights are those of a file.
    pub(crate) fn checkpoint(&self) -> Option<&Checkpoint> {
        match &self.weights {
            Weights::Checkpoint(trained) => Some(&trained.checkpoint),
            Weights::File(_) | Weights::Model(_) | Weights::Initial => None,
        }
    }

    /// The SHA-256 of a run's weights; empty if they are those of a file.
    pub(crate) fn weights_sha256(&self) -> &str {
        self.checkpoint().map_or("", |checkpoint| &checkpoint.state.weights_sha256)
    }

    /// The file of the weights; `None` if they are those of a run.
    pub(crate) fn file(&self) -> Option<&Source> {
        match &self.weights {
            Weights::Checkpoint(_) | Weights::Model(_) | Weights::Initial => None,
            Weights::File(file) => Some(file.source()),
        }
    }

    /// The windows that images are evaluated in, if set.
    pub(crate) fn windows(&self) -> Option<&SlidingWindows> {
        self.windows.as_ref()
    }

    /// The network with its weights, its batch norms folded into the convolutions before them.
    ///
    /// # Errors
    /// If the weights cannot be read, or some are missing.
    pub fn folded_model(&self) -> Result<Model, TrainError> {
        let graph = self.graph.for_inference();
        let tensors = match &self.weights {
            Weights::Model(model) => {
                return Ok(fold(Model::for_inference(&graph, model.values.clone())?)?.model);
            }
            Weights::Checkpoint(trained) => trained.checkpoint.evaluation_weights().to_vec(),
            Weights::File(file) => file.tensors(&graph, self.experiment.train.seed)?,
            Weights::Initial => initial_tensors(&graph, self.experiment.train.seed)?,
        };
        let model = model_from_tensors(&graph, tensors)?;
        Ok(fold(model)?.model)
    }
}

/// The experiment of a run, in the number format that its int8 layers were chosen with, without what concerns
/// its training only and may contradict `overrides`.
pub(crate) fn load_for_inference(
    run: &RunDir,
    quantisation: Option<&Quantisation>,
    overrides: &[(String, String)],
) -> Result<Experiment, TrainError> {
    let mut experiment = Experiment::load(&run.experiment())?;
    experiment.train.teacher = None;
    experiment.first_stage.network = None;
    experiment.fake_quantisation = FakeQuantisation::default();
    if let Some(quantisation) = quantisation {
        experiment = experiment.with_overrides(&[("train.precision", &quantisation.precision)])?;
    }
    Ok(experiment.with_overrides(overrides)?)
}

/// Checks that the int8 layers of a run were chosen for the weights of a checkpoint.
pub(crate) fn check_weights(
    run: &Path,
    quantisation: Option<&Quantisation>,
    checkpoint: &Checkpoint,
) -> Result<(), TrainError> {
    let differs =
        |quantisation: &Quantisation| quantisation.weights_sha256 != checkpoint.state.weights_sha256;
    if !quantisation.is_some_and(differs) {
        return Ok(());
    }
    let (run, iteration) = (shell_path(run), checkpoint.state.iteration);
    Err(TrainError::Configuration {
        problem: format!(
            "the int8 layers of {run} were chosen for other weights than those after iteration {iteration}"
        ),
        hint: "use the checkpoint that was optimised; after further training, repeat `stratus optimise`"
            .to_owned(),
    })
}

/// Rebuilds a trained network for images of `data.shape`.
///
/// # Errors
/// If its parameters depend on the image size.
fn for_images(experiment: &Experiment, trained: &Graph) -> Result<Graph, TrainError> {
    let Some(shape) = experiment.shape().filter(|shape| shape[..] != trained.input_shape().0) else {
        return Ok(trained.clone());
    };
    let graph = Network::as_published(experiment)?.graph;
    let differs = graph.parameters.iter().zip(&trained.parameters).find(|(one, other)| one != other);
    match differs {
        None => Ok(graph),
        Some((parameter, before)) => Err(TrainError::Configuration {
            problem: format!(
                "`{}` is {:?} for images of {}, but was trained as {:?}",
                parameter.name,
                parameter.shape,
                stratus_graph::Shape(shape.to_vec()),
                before.shape
            ),
            hint: "keep the data.shape of the run; networks without fully connected layers accept any size"
                .to_owned(),
        }),
    }
}
