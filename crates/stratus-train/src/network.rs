//! The network of an experiment: from the zoo, or from a layer file.

use crate::input::{annotation, image_shape};
use crate::{LayerFile, TrainError};
use stratus_base::text::{counted, shell_word};
use stratus_data::{Dataset, TargetKind};
use stratus_experiment::{Annotation, Experiment, LossFunction};
use stratus_graph::zoo::{self, ModelConfig};
use stratus_graph::{Graph, GraphError};

/// The number of classes of synthetic images, unless it is set.
const SYNTHETIC_CLASSES: usize = 10;

/// A network, and the layer file that it was read from.
#[derive(Clone, Debug, PartialEq)]
pub struct Network {
    /// Its layers, those of `model.freeze` frozen.
    pub graph: Graph,
    /// `None` for a network of the zoo.
    pub layer_file: Option<LayerFile>,
}

/// Checks an experiment's layer file, if it has one, before its data set is opened.
///
/// # Errors
/// If the layer file is invalid, or no data set is set.
pub fn check_layer_file(experiment: &Experiment) -> Result<(), TrainError> {
    let Some(path) = experiment.layer_file() else { return Ok(()) };
    LayerFile::read(path)?;
    check_data_set(experiment)
}

/// Checks that an experiment has a data set.
///
/// # Errors
/// If it has none, which only a layer file allows; the message says which images the network takes.
pub fn check_data_set(experiment: &Experiment) -> Result<(), TrainError> {
    if experiment.has_data_set() {
        return Ok(());
    }
    let network = Network::as_published(experiment)?;
    let graph = &network.graph;
    let classes = graph.classes();
    let has_masks = graph.shape(graph.output).0.len() == 3;
    let path = network.layer_file.map_or(String::new(), |file| file.path.display().to_string());
    let folder = shell_word(experiment.data.path.as_deref().unwrap_or("FOLDER"));
    let others = "`stratus data list` lists all data sets";
    let hint = if has_masks {
        format!(
            "images with masks: --set data.name=camvid --data {folder}, or cityscapes or coco\n  {others}"
        )
    } else {
        let synthetic = match classes {
            ..SYNTHETIC_CLASSES => format!(" --set data.synthetic.classes={classes}"),
            _ => String::new(),
        };
        format!(
            "photographs in class folders: --set data.name=folder --data {folder}\n  generated images: --set \
             data.name=synthetic{synthetic}\n  {others}"
        )
    };
    let pixels = if has_masks { " for each pixel" } else { "" };
    Err(TrainError::Configuration {
        problem: format!(
            "no data set is set: {path} takes images of {} and predicts one of {classes} classes{pixels}",
            graph.input_shape()
        ),
        hint,
    })
}

impl Network {
    /// The network of an experiment, for a data set's images and classes.
    ///
    /// # Errors
    /// If there is no network of that name, it does not accept the images, or `model.freeze` names unknown
    /// layers.
    pub fn for_dataset(experiment: &Experiment, dataset: &dyn Dataset) -> Result<Self, TrainError> {
        let shape = image_shape(experiment, dataset);
        let outputs = outputs_for(experiment, dataset)?;
        let network = Self::for_images(experiment, shape, experiment.model.classes.unwrap_or(outputs))?;
        let classes = network.graph.classes();
        let is_classes = annotation(dataset) == Annotation::Class;
        // Unused outputs are classes that do not occur; labels and numbers have a loss each.
        if classes < outputs || (!is_classes && classes > outputs && !dataset.has_masks()) {
            let (key, hint) = match &network.layer_file {
                Some(file) => (
                    format!("the network of {} has {classes} outputs", file.path.display()),
                    "give its last layer as many outputs as the data set has",
                ),
                None => (
                    format!("model.classes is {classes}"),
                    if is_classes || dataset.has_masks() {
                        "leave model.classes unset, or set at least as many"
                    } else {
                        "leave model.classes unset, or set as many"
                    },
                ),
            };
            let name = &experiment.data.name;
            let found = counted_outputs(dataset);
            let outputs = counted(outputs as u64, "output");
            return Err(TrainError::Configuration {
                problem: format!("{key}, but data set `{name}` has {found} and needs {outputs}"),
                hint: hint.to_owned(),
            });
        }
        Ok(network)
    }

    /// The network of an experiment, for images of `shape`, `[C, H, W]`. A layer file has its own number of
    /// classes.
    ///
    /// # Errors
    /// If there is no network of that name, it does not accept the images, or `model.freeze` names unknown
    /// layers.
    pub fn for_images(
        experiment: &Experiment,
        shape: [usize; 3],
        classes: usize,
    ) -> Result<Self, TrainError> {
        let (graph, layer_file) = match experiment.layer_file() {
            Some(path) => {
                let (file, graph) = LayerFile::read(path)?;
                check_sizes(&file, &graph, experiment)?;
                if graph.input_shape().0 != shape {
                    let [channels, height, width] = shape;
                    return Err(TrainError::Configuration {
                        problem: format!(
                            "{} takes images of {}, but data set `{}` has {channels}x{height}x{width}",
                            path.display(),
                            graph.input_shape(),
                            experiment.data.name
                        ),
                        hint: "choose the data set with data.name, or change `input` in the layer file"
                            .to_owned(),
                    });
                }
                (graph, Some(file))
            }
            None => {
                let hyperparameters = ModelConfig { input: shape, classes, width: experiment.model.width };
                ((zoo::find(&experiment.model.name)?.build)(&hyperparameters)?, None)
            }
        };
        Ok(Self { graph: freeze(graph, experiment)?, layer_file })
    }

    /// The network of an experiment without its data: for images of `data.shape`, by default for the shape of
    /// its paper or layer file.
    ///
    /// # Errors
    /// If there is no network of that name, or the experiment's settings are invalid for it.
    pub fn as_published(experiment: &Experiment) -> Result<Self, TrainError> {
        let (graph, layer_file) = match experiment.layer_file() {
            Some(path) => {
                let (file, graph) = LayerFile::read_for(path, experiment.shape())?;
                check_sizes(&file, &graph, experiment)?;
                (graph, Some(file))
            }
            None => {
                let network = zoo::find(&experiment.model.name)?;
                let defaults = (network.defaults)();
                let hyperparameters = ModelConfig {
                    input: experiment.shape().unwrap_or(defaults.input),
                    width: experiment.model.width.or(defaults.width),
                    classes: experiment.model.classes.unwrap_or(defaults.classes),
                };
                ((network.build)(&hyperparameters)?, None)
            }
        };
        Ok(Self { graph: freeze(graph, experiment)?, layer_file })
    }
}

/// The number of the classes, labels or targets of a data set, in words, such as "3 labels".
pub(crate) fn counted_outputs(dataset: &dyn Dataset) -> String {
    let count = dataset.classes();
    match dataset.target_kind() {
        None if count == 1 => "1 class".to_owned(),
        None => format!("{count} classes"),
        Some(TargetKind::Labels) => counted(count as u64, "label"),
        Some(TargetKind::Numbers) => counted(count as u64, "target"),
    }
}

/// The number of outputs that an experiment's network needs for a data set: as many as it has classes, labels
/// or targets; one for masks of foreground and background that binary cross-entropy learns.
///
/// # Errors
/// If such masks have other classes.
fn outputs_for(experiment: &Experiment, dataset: &dyn Dataset) -> Result<usize, TrainError> {
    let classes = dataset.classes();
    let is_binary = experiment.train.loss == Some(LossFunction::BinaryCrossEntropy) && dataset.has_masks();
    match (is_binary, classes) {
        (false, _) => Ok(classes),
        (true, 2) => Ok(1),
        (true, _) => Err(TrainError::Configuration {
            problem: format!(
                "train.loss = binary_cross_entropy needs masks of two classes, background and foreground, \
                 but data set `{}` has {classes}",
                dataset.name()
            ),
            hint: "set train.loss to cross_entropy".to_owned(),
        }),
    }
}

fn freeze(mut graph: Graph, experiment: &Experiment) -> Result<Graph, TrainError> {
    graph.freeze(&experiment.model.freeze).map_err(|error| TrainError::Configuration {
        problem: format!("model.freeze: {error}"),
        hint: match error {
            GraphError::UnknownLayer { .. } => format!(
                "`stratus model show {}` lists the layers; `layer1` includes all that begin with `layer1.`",
                shell_word(&experiment.model.name)
            ),
            _ => "remove the layers that are to be trained".to_owned(),
        },
    })?;
    Ok(graph)
}

/// Checks that the keys of sizes do not contradict a layer file, which sets the sizes itself.
fn check_sizes(file: &LayerFile, graph: &Graph, experiment: &Experiment) -> Result<(), TrainError> {
    let path = file.path.display();
    let (problem, hint) = match (experiment.model.width, experiment.model.classes) {
        (Some(width), _) => (
            format!("model.width is {width}, but {path} sets the sizes of its layers itself"),
            format!("leave model.width unset, and change the sizes in {path}"),
        ),
        (None, Some(classes)) if classes != graph.classes() => (
            format!("model.classes is {classes}, but the network of {path} has {} classes", graph.classes()),
            format!(
                "leave model.classes unset, or give {} in {path} {classes} outputs",
                last_sized_layer(graph)
            ),
        ),
        _ => return Ok(()),
    };
    Err(TrainError::Configuration { problem, hint })
}

/// The layer that sets the number of classes: the last one with parameters.
fn last_sized_layer(graph: &Graph) -> String {
    let sized = graph.nodes.iter().rev().find(|node| !node.parameters.is_empty());
    sized.map_or_else(|| "its last layer".to_owned(), |node| format!("layer `{}`", node.name))
}
