//! What a trained network says of images that nobody labelled.
//!
//! Images take the way of validation: the same view of each, resized and normalised as the run recorded it,
//! through the same evaluation program. So the classes of pixels are those that `eval` counts.

mod session;
mod windows;

use crate::network::Network;
use crate::weights::{CheckpointChoice, Pretrained, Recorded, TrainedNetwork, WeightsUse, trained_network};
use crate::{Experiment, TrainError};
pub use session::Inference;
pub(crate) use session::{ImageError, WholeImage};
use std::path::Path;
use stratus_data::contact_sheet::Picture;
use stratus_engine::Session;
use stratus_graph::Graph;
use stratus_run::RunDir;
use stratus_run::checkpoint::{Checkpoint, Values};
use stratus_run::csv::Task;
use stratus_run::sources::Source;
pub use windows::{Corners, SlidingWindows};

/// A network with its weights, ready to be shown images.
pub struct Predictor {
    experiment: Experiment,
    graph: Graph,
    /// Name and values of each parameter and buffer; those of a file are written by it.
    weights: Weights,
    /// The names of the classes, as far as they are known.
    names: Vec<String>,
    windows: Option<SlidingWindows>,
}

enum Weights {
    Checkpoint(Box<TrainedNetwork>),
    File(Box<Pretrained>),
}

/// What a network says of an image.
#[derive(Clone, Debug, PartialEq)]
pub struct Prediction {
    /// The position of the image among those that were given.
    pub index: usize,
    /// The answer.
    pub answer: Answer,
    /// Seconds to read and decode it.
    pub decode_s: f64,
    /// Seconds of the network: the batch's, divided by its images.
    pub network_s: f64,
    /// The image as the network sees it, where it was asked for.
    pub view: Option<Picture>,
}

/// The answer for an image, or the reason that it has none.
pub type Outcome = Result<Prediction, Unanswered>;

/// An image that gets no answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unanswered {
    /// The problem, without the image's name.
    pub problem: String,
    /// The kind of problem.
    pub reason: Reason,
}

/// Why an image gets no answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// It cannot be read or decoded.
    Unreadable,
    /// It is smaller than a window.
    TooSmall,
    /// There is no memory for it.
    TooLarge,
}

impl Unanswered {
    /// A message that names the image.
    #[must_use]
    pub fn message(&self, image: &str) -> String {
        let colon = if self.reason == Reason::Unreadable { ":" } else { "" };
        format!("{image}{colon} {}", self.problem)
    }
}

impl Reason {
    /// The remedy.
    #[must_use]
    pub fn hint(self) -> &'static str {
        match self {
            Self::Unreadable => "replace the files that the warnings name, or leave them out",
            Self::TooSmall => "give a window that is no larger than the images",
            Self::TooLarge => "cut the images into parts, or run on a machine with more memory",
        }
    }
}

/// An answer.
#[derive(Clone, Debug, PartialEq)]
pub enum Answer {
    /// The classes with their probabilities, the most probable first.
    Classes(Vec<(usize, f64)>),
    /// The class of every pixel, row-major, and height and width.
    Mask(Vec<i32>, [usize; 2]),
}

impl Predictor {
    /// The network of a run with one of its checkpoints. The run's data are not needed. `data.shape` among
    /// `overrides` is another size of images than it was trained on.
    ///
    /// # Errors
    /// If the run, its configuration or its checkpoint cannot be read, or a layer's weights are for images of
    /// the size that it was trained on.
    pub fn of_run(
        path: &Path,
        choice: CheckpointChoice,
        overrides: &[(String, String)],
        warn: &mut dyn FnMut(&str),
    ) -> Result<Self, TrainError> {
        let run = RunDir::open(path)?;
        let experiment = Experiment::load(&run.experiment())?.with_overrides(overrides)?;
        let trained = trained_network(path, choice, warn)?;
        let names = trained.metadata.class_names.clone();
        let graph = for_images(&experiment, &trained.graph)?;
        Ok(Self { experiment, graph, weights: Weights::Checkpoint(Box::new(trained)), names, windows: None })
    }

    /// The network of an experiment with the weights of a file, or of a run. What the weights record of
    /// images and classes is taken, see [`Recorded`].
    ///
    /// # Errors
    /// If the weights cannot be read, or do not fit the network.
    pub fn of_weights(
        experiment: &Experiment,
        weights: &Path,
        warn: &mut dyn FnMut(&str),
    ) -> Result<Self, TrainError> {
        let recorded = Recorded::read(weights, warn)?;
        let mut experiment = experiment.clone();
        // The classes of a layer file are its own.
        if experiment.layer_file().is_none() && !recorded.class_names().is_empty() {
            experiment.model.classes.get_or_insert(recorded.class_names().len());
        }
        let graph = Network::as_published(&experiment)?.graph;
        let file = Pretrained::open(weights, &graph, WeightsUse::Measuring, warn)?;
        recorded.prepare(&mut experiment, &graph.input_shape().0, warn);
        let names = recorded.class_names().to_vec();
        Ok(Self { experiment, graph, weights: Weights::File(Box::new(file)), names, windows: None })
    }

    /// The names of the classes, by their numbers; empty where they are not known.
    pub(crate) fn class_names(&self) -> &[String] {
        &self.names
    }

    /// What the network learned to say of an image.
    #[must_use]
    pub fn task(&self) -> Task {
        if self.graph.shape(self.graph.output).0.len() == 3 {
            Task::Segmentation
        } else {
            Task::Classification
        }
    }

    /// The number of classes.
    #[must_use]
    pub fn classes(&self) -> usize {
        self.graph.classes()
    }

    /// The name of a class: its number where none is known.
    #[must_use]
    pub fn class_name(&self, class: usize) -> String {
        self.names.get(class).cloned().unwrap_or_else(|| class.to_string())
    }

    /// The same network for images of any size, seen through windows that overlap: it answers at the images'
    /// own size.
    ///
    /// # Errors
    /// If it does not give a class for every pixel of a window, or has weights for images of one size.
    pub fn in_windows(mut self, windows: SlidingWindows) -> Result<Self, TrainError> {
        let refused = |problem: String| {
            let hint = "leave --window out".to_owned();
            Err(TrainError::Configuration { problem, hint })
        };
        if self.task() != Task::Segmentation {
            return refused(format!(
                "`{}` gives one answer for an image, and windows are averaged for each \
                                    pixel",
                self.graph.name
            ));
        }
        let (channels, [height, width]) = (self.graph.input_shape().0[0], windows.size());
        self.experiment.data.shape = Some(vec![channels, height, width]);
        self.graph = for_images(&self.experiment, &self.graph)?;
        let made = &self.graph.shape(self.graph.output).0;
        if made[1..] != [height, width] {
            return refused(format!(
                "`{}` makes masks of {}x{} of windows of {height}x{width}",
                self.graph.name, made[1], made[2]
            ));
        }
        self.windows = Some(windows);
        Ok(self)
    }

    /// What the network was trained by, or is asked to be.
    pub(crate) fn experiment(&self) -> &Experiment {
        &self.experiment
    }

    /// The checkpoint, where the weights are a run's.
    pub(crate) fn checkpoint(&self) -> Option<&Checkpoint> {
        match &self.weights {
            Weights::Checkpoint(trained) => Some(&trained.checkpoint),
            Weights::File(_) => None,
        }
    }

    /// The file of the weights, where they are no run's.
    pub(crate) fn file(&self) -> Option<&Source> {
        match &self.weights {
            Weights::Checkpoint(_) => None,
            Weights::File(file) => Some(file.source()),
        }
    }

    /// The windows that it sees images through.
    pub(crate) fn windows(&self) -> Option<&SlidingWindows> {
        self.windows.as_ref()
    }

    fn write_weights(&self, session: &mut Session) -> Result<(), TrainError> {
        let trained = match &self.weights {
            Weights::File(file) => return file.write_to(session),
            Weights::Checkpoint(trained) => trained,
        };
        let wanted: Vec<String> = session.state().map(|value| value.name.to_owned()).collect();
        let problem = |problem: String| TrainError::Checkpoint {
            checkpoint: trained.checkpoint.path.display().to_string(),
            problem,
        };
        for name in wanted {
            let tensors = trained.checkpoint.measured();
            let tensor = tensors.iter().find(|tensor| tensor.name == name);
            let tensor = tensor.ok_or_else(|| problem(format!("it has no `{name}`")))?;
            let Values::F32(values) = &tensor.values else {
                return Err(problem(format!("its `{name}` is not f32")));
            };
            session.write(&name, values)?;
        }
        Ok(())
    }
}

/// A trained network, for images of `data.shape`.
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
                "`{}` is {:?} for images of {}, and was trained as {:?}",
                parameter.name,
                parameter.shape,
                stratus_graph::Shape(shape.to_vec()),
                before.shape
            ),
            hint: "leave data.shape as the run has it; networks without fully connected layers take any size"
                .to_owned(),
        }),
    }
}
