//! Pretrained weights: those of a safetensors file, a PyTorch state dict or another run.

use super::{CheckpointChoice, are_numbers, initialise, load_checkpoint, metadata_of_run};
use crate::TrainError;
use std::collections::{HashMap, HashSet};
use std::path::Path;
use stratus_base::nearest;
use stratus_data::Dataset;
use stratus_engine::Session;
use stratus_experiment::Experiment;
use stratus_graph::{Graph, Node, Op, Parameter};
use stratus_run::RunDir;
use stratus_run::checkpoint::{Tensor, Values};
use stratus_run::sources::Source;
use stratus_weights::{MatchReport, NetworkMetadata, ShapeMismatch, WeightsFile};

/// The purpose of a file's weights, which determines how they must match the network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WeightsPurpose {
    /// File and network must have the same tensors, except that classifiers (also of auxiliary outputs) with
    /// a different number of classes are reinitialised. For a network with a backbone (layers `backbone.*`),
    /// the file may contain only the backbone as a network of its own, with its classifier.
    Training,
    /// The tensors that file and network share are used; all others are initialised.
    SecondStage,
    /// File and network must have the same tensors.
    Evaluation,
    /// The file must have all tensors of the network without auxiliary outputs; it may have more.
    Inference,
}

/// Weights that fit a network. Values are read on demand.
#[derive(Debug)]
pub struct Pretrained {
    file: WeightsFile,
    source: Source,
    loaded: Vec<String>,
    unused_tensors: usize,
    /// The message about reinitialised layers, if there are any.
    reinitialised: Option<String>,
    /// Prefix of the network's tensor names that the file lacks.
    prefix: &'static str,
    /// The metadata of images and classes, if the weights are those of a run.
    run: Option<NetworkMetadata>,
}

/// The prefix of a backbone's layer names.
const BACKBONE: &str = "backbone.";

/// The classifier of ERFNet's encoder, which was trained first. Published weights contain it, but the network
/// with a decoder does not use it.
const ENCODER_HEAD: &str = "encoder.output_conv.";
/// The classifier of ERFNet's decoder.
const DECODER: &str = "decoder.output_conv.";

impl Pretrained {
    /// Opens a file, or the newest good checkpoint of a run directory, and matches it with a network. Ignores
    /// `num_batches_tracked`. Warns of damaged newer checkpoints.
    ///
    /// # Errors
    /// If the weights cannot be read, or do not fit the network as `purpose` requires; lists the tensors.
    pub fn open(
        path: &Path,
        graph: &Graph,
        purpose: WeightsPurpose,
        warn: &mut dyn FnMut(&str),
    ) -> Result<Self, TrainError> {
        let (path, run) = if path.is_dir() {
            let run = RunDir::open(path)?;
            let metadata = metadata_of_run(&run, &Experiment::load(&run.experiment())?, Vec::new());
            (load_checkpoint(&run, CheckpointChoice::Newest, warn)?.evaluation_weights_file(), Some(metadata))
        } else {
            (path.to_owned(), None)
        };
        let file = WeightsFile::open(&path)?;
        let fit = |graph: &Graph| {
            let mut matching =
                file.match_network(graph.parameters.iter().map(|p| (p.name.as_str(), p.shape.as_slice())));
            if graph.parameters.iter().any(|parameter| parameter.name.starts_with(DECODER)) {
                matching.unexpected.retain(|name| !name.starts_with(ENCODER_HEAD));
            }
            matching
        };
        if purpose == WeightsPurpose::Training && is_backbone(&file, graph) {
            return Self::for_backbone(file, graph, run);
        }
        let (matching, unused_tensors, reinitialised) = match purpose {
            WeightsPurpose::SecondStage => {
                let matching = fit(graph);
                if matching.loaded.is_empty() {
                    return Err(TrainError::WeightsMismatch {
                        problem: differences(&file, graph, &matching),
                        path,
                        hint: hint(graph, &matching),
                    });
                }
                let initialised = graph.parameters.len() - matching.loaded.len();
                let unused = matching.unexpected.len() + matching.mismatched.len();
                let text = format!(
                    "{} tensors loaded from the pre-training stage, {initialised} initialised; {unused} \
                     unused",
                    matching.loaded.len()
                );
                (matching, unused, Some(text))
            }
            WeightsPurpose::Training | WeightsPurpose::Evaluation => {
                let mut matching = fit(graph);
                let is_training = purpose == WeightsPurpose::Training;
                let reinitialised =
                    if is_training { reinitialise_classifiers(graph, &mut matching, &path) } else { None };
                if !matching.is_complete() || !matching.unexpected.is_empty() {
                    return Err(TrainError::WeightsMismatch {
                        problem: differences(&file, graph, &matching),
                        path,
                        hint: hint(graph, &matching),
                    });
                }
                (matching, 0, reinitialised)
            }
            WeightsPurpose::Inference => {
                let matching = fit(&graph.for_inference());
                if !matching.is_complete() {
                    let (network, problem) = (graph.name.clone(), matching.summary());
                    return Err(TrainError::WeightsIncomplete { path, network, problem });
                }
                // Weights of auxiliary outputs are not reported as unused.
                let known = |name: &String| graph.parameters.iter().any(|parameter| parameter.name == *name);
                let unused = matching.unexpected.iter().filter(|name| !known(name)).count();
                (matching, unused, None)
            }
        };
        let source = Source::from_file(&path)?;
        Ok(Self { file, source, loaded: matching.loaded, unused_tensors, reinitialised, prefix: "", run })
    }

    /// Opens the weights of a network's backbone, from a file that contains it as a network of its own.
    fn for_backbone(
        file: WeightsFile,
        graph: &Graph,
        run: Option<NetworkMetadata>,
    ) -> Result<Self, TrainError> {
        let backbone = graph.parameters.iter().filter_map(|parameter| {
            Some((parameter.name.strip_prefix(BACKBONE)?, parameter.shape.as_slice()))
        });
        let matching = file.match_network(backbone);
        let path = file.path().to_owned();
        if !matching.is_complete() {
            let (network, problem) = (format!("{} (its backbone)", graph.name), matching.summary());
            return Err(TrainError::WeightsIncomplete { path, network, problem });
        }
        let loaded: Vec<String> = matching.loaded.iter().map(|name| format!("{BACKBONE}{name}")).collect();
        let text = format!(
            "the backbone is loaded from {}; {} other tensors are initialised",
            path.display(),
            graph.parameters.len() - loaded.len()
        );
        let source = Source::from_file(&path)?;
        let unused_tensors = matching.unexpected.len();
        Ok(Self { file, source, loaded, unused_tensors, reinitialised: Some(text), prefix: BACKBONE, run })
    }

    /// The file, with its checksum.
    #[must_use]
    pub fn source(&self) -> &Source {
        &self.source
    }

    /// The metadata of images and classes; empty if the file has none.
    ///
    /// # Errors
    /// If it is invalid: the key and the reason.
    pub fn metadata(&self) -> Result<NetworkMetadata, String> {
        match &self.run {
            Some(metadata) => Ok(metadata.clone()),
            None => {
                let entries = self.file.metadata().iter();
                NetworkMetadata::read(entries.map(|(key, text)| (key.as_str(), text.as_str())))
            }
        }
    }

    /// The number of tensors of the file that the network does not use.
    #[must_use]
    pub fn unused_tensors(&self) -> usize {
        self.unused_tensors
    }

    /// Reinitialises the classifiers if the weights record other classes than those of the data set, or
    /// another order of them, since their rows belong to other classes.
    pub fn reinitialise_for_classes(&mut self, graph: &Graph, set: &dyn Dataset, warn: &mut dyn FnMut(&str)) {
        let origin = self.file.path().display().to_string();
        let names = match self.metadata() {
            Ok(metadata) => metadata.class_names,
            Err(problem) => {
                warn(&format!("ignoring metadata of {origin}: {problem}"));
                return;
            }
        };
        let set_names: Vec<String> = (0..set.classes()).map(|class| set.class_name(class)).collect();
        if set_names == names || are_numbers(&set_names) || are_numbers(&names) {
            return;
        }
        let heads = classifiers(graph);
        let head_names: HashSet<&str> = heads
            .iter()
            .flat_map(|node| &node.parameters)
            .map(|id| graph.parameters[id.0].name.as_str())
            .collect();
        let before = self.loaded.len();
        self.loaded.retain(|name| !head_names.contains(name.as_str()));
        // Classifiers for another number of classes are reinitialised already.
        if self.loaded.len() == before {
            return;
        }
        let verb = if heads.len() == 1 { "is" } else { "are" };
        let layers: Vec<&str> = heads.iter().map(|node| node.name.as_str()).collect();
        let differs = set_names.iter().zip(&names).position(|(set_name, name)| set_name != name);
        let class = differs.unwrap_or(set_names.len().min(names.len()));
        let name_in =
            |names: &[String]| names.get(class).map_or("none".to_owned(), |name| format!("`{name}`"));
        self.reinitialised = Some(format!(
            "{} {verb} reinitialised: class {class} is {} in {origin}, but {} in the data set",
            layers.join(", "),
            name_in(&names),
            name_in(&set_names)
        ));
    }

    /// A message that names the layers whose weights are not loaded from the file.
    #[must_use]
    pub fn reinitialised_layers(&self) -> Option<&str> {
        self.reinitialised.as_deref()
    }

    /// Sets the tensors that file and session share. The refresh program must run afterwards.
    ///
    /// # Errors
    /// If the file cannot be read, or contains NaN or infinity.
    pub fn write_to(&self, session: &mut Session) -> Result<(), TrainError> {
        let session_names: HashSet<String> = session.state().map(|value| value.name.to_owned()).collect();
        let loaded = self.loaded.iter().filter(|name| session_names.contains(*name));
        loaded.into_iter().try_for_each(|name| Ok(session.write(name, &self.values(name)?)?))
    }

    /// The tensors of a network: those of the file, and initial values for others.
    ///
    /// # Errors
    /// As [`Self::write_to`].
    pub fn tensors(&self, graph: &Graph, seed: u64) -> Result<Vec<Tensor>, TrainError> {
        let filled = |(position, parameter): (usize, &Parameter)| {
            let values = if self.loaded.contains(&parameter.name) {
                self.values(&parameter.name)?
            } else {
                initialise::values(parameter, position, seed)?
            };
            Ok(tensor(parameter, values))
        };
        graph.parameters.iter().enumerate().map(filled).chain(batches_tracked(graph, 0).map(Ok)).collect()
    }

    fn values(&self, name: &str) -> Result<Vec<f32>, TrainError> {
        let fault = |problem: String| TrainError::WeightsMismatch {
            path: self.file.path().to_owned(),
            problem,
            hint: "download or save the file again".to_owned(),
        };
        let name = name.strip_prefix(self.prefix).unwrap_or(name);
        let tensor = self.file.get(name).ok_or_else(|| fault(format!("it has no `{name}` any more")))?;
        let values = self.file.read(tensor)?;
        match values.iter().find(|value| !value.is_finite()) {
            Some(value) => Err(fault(format!("its `{name}` holds {value}"))),
            None => Ok(values),
        }
    }
}

/// Returns whether a file contains a network's backbone as a network of its own.
fn is_backbone(file: &WeightsFile, graph: &Graph) -> bool {
    let names = || graph.parameters.iter().map(|parameter| parameter.name.as_str());
    let is_in_file = |name: &str| file.get(name).is_some();
    names().any(|name| name.strip_prefix(BACKBONE).is_some_and(is_in_file)) && !names().any(is_in_file)
}

/// A network's tensors with initial values, and PyTorch's `num_batches_tracked` at zero.
///
/// # Errors
/// If any depend on training images.
pub fn initial_tensors(graph: &Graph, seed: u64) -> Result<Vec<Tensor>, TrainError> {
    let first = |(position, parameter)| Ok(tensor(parameter, initialise::values(parameter, position, seed)?));
    graph.parameters.iter().enumerate().map(first).chain(batches_tracked(graph, 0).map(Ok)).collect()
}

fn tensor(parameter: &Parameter, values: Vec<f32>) -> Tensor {
    let (name, shape) = (parameter.name.clone(), parameter.shape.clone());
    Tensor { name, shape, values: Values::F32(values) }
}

/// PyTorch's `num_batches_tracked` of every batch norm: the iterations of training, 0 if it is frozen.
pub(crate) fn batches_tracked(graph: &Graph, iterations: u64) -> impl Iterator<Item = Tensor> + '_ {
    let norms = graph.nodes.iter().filter(|node| matches!(node.op, Op::BatchNorm2d(_)));
    norms.map(move |node| {
        let count = if node.frozen { 0 } else { i64::try_from(iterations).unwrap_or(i64::MAX) };
        let name = format!("{}.num_batches_tracked", node.name);
        Tensor { name, shape: vec![], values: Values::I64(vec![count]) }
    })
}

/// The classifiers: the last layer with parameters before each output, auxiliary outputs included.
fn classifiers(graph: &Graph) -> Vec<&Node> {
    let producer = |tensor| graph.nodes.iter().find(|node| node.output == tensor);
    let outputs = [graph.output].into_iter().chain(graph.auxiliary.iter().map(|auxiliary| auxiliary.output));
    outputs
        .filter_map(|output| {
            let mut node = producer(output)?;
            while node.parameters.is_empty() {
                let [input] = node.inputs[..] else { return None };
                node = producer(input)?;
            }
            Some(node)
        })
        .collect()
}

/// Removes the classifiers from the missing tensors if the file has all others and nothing else, as that of
/// an imported backbone; returns a message that names them.
fn initialise_absent_classifiers(
    graph: &Graph,
    heads: &[&Node],
    matching: &mut MatchReport,
    path: &Path,
) -> Option<String> {
    let names: HashSet<&str> = heads
        .iter()
        .flat_map(|node| &node.parameters)
        .map(|id| graph.parameters[id.0].name.as_str())
        .collect();
    let missing: HashSet<&str> = matching.missing.iter().map(String::as_str).collect();
    let has_rest = matching.mismatched.is_empty() && matching.unexpected.is_empty();
    if missing.is_empty() || missing != names || !has_rest || matching.loaded.is_empty() {
        return None;
    }
    matching.missing.clear();
    let verb = if heads.len() == 1 { "is" } else { "are" };
    let names: Vec<&str> = heads.iter().map(|node| node.name.as_str()).collect();
    Some(format!("{} {verb} initialised: {} has only the other layers", names.join(", "), path.display()))
}

/// Removes the classifiers from the mismatches if they differ only in their number of classes; returns a
/// message that names them.
fn reinitialise_classifiers(graph: &Graph, matching: &mut MatchReport, path: &Path) -> Option<String> {
    let heads = classifiers(graph);
    if let Some(text) = initialise_absent_classifiers(graph, &heads, matching, path) {
        return Some(text);
    }
    // The output axis is the first, except in transposed convolutions, `[in, out, kH, kW]`.
    let with_axis = |node: &&Node| {
        let transposed = matches!(node.op, Op::ConvTranspose2d(_));
        let axis = move |parameter: &Parameter| usize::from(transposed && parameter.shape.len() > 1);
        let parameters = node.parameters.iter().map(|id| &graph.parameters[id.0]);
        parameters.map(move |parameter| (parameter, axis(parameter))).collect::<Vec<_>>()
    };
    let head_parameters: Vec<(&Parameter, usize)> = heads.iter().flat_map(with_axis).collect();
    let differs = |parameter: &Parameter| matching.mismatched.iter().find(|m| m.name == parameter.name);
    let &(first, axis) = head_parameters.first()?;
    let classes = *differs(first)?.in_file.get(axis)?;
    let only_classes = |mismatch: &ShapeMismatch, axis: usize| {
        let (found, mut wanted) = (&mismatch.in_file, mismatch.expected.clone());
        wanted.get_mut(axis).map(|extent| *extent = classes).is_some() && *found == wanted
    };
    let fits = |&(parameter, axis): &(&Parameter, usize)| {
        differs(parameter).is_some_and(|mismatch| only_classes(mismatch, axis))
    };
    if !head_parameters.iter().all(fits) {
        return None;
    }
    let new = first.shape.get(axis)?;
    let verb = if heads.len() == 1 { "is" } else { "are" };
    let names: Vec<&str> = heads.iter().map(|node| node.name.as_str()).collect();
    let text = format!(
        "{} {verb} reinitialised: {} has {classes} classes, the network {new}",
        names.join(", "),
        path.display()
    );
    matching
        .mismatched
        .retain(|mismatch| head_parameters.iter().all(|(parameter, _)| parameter.name != mismatch.name));
    Some(text)
}

/// Lists all mismatches, one per line.
fn differences(file: &WeightsFile, graph: &Graph, matching: &MatchReport) -> String {
    /// Lines of a message, at most; more than any network has tensors.
    const MAX_LINES: usize = 2000;
    let shapes: HashMap<&str, &[usize]> =
        graph.parameters.iter().map(|p| (p.name.as_str(), p.shape.as_slice())).collect();
    let in_file = |name: &str| file.get(name).map(|tensor| tensor.shape.as_slice());
    let mut lines: Vec<String> = Vec::new();
    for ShapeMismatch { name, in_file, expected: wanted } in &matching.mismatched {
        lines.push(format!("`{name}` is {in_file:?} in the file, but {wanted:?} in the network"));
    }
    for name in &matching.missing {
        let shape = shapes.get(name.as_str()).copied();
        // Only a tensor of the same shape can be a misspelt one.
        let candidates =
            matching.unexpected.iter().filter(|other| in_file(other) == shape).map(String::as_str);
        let near = nearest(name, candidates).map(|near| format!("; it has `{near}`, of the same shape"));
        lines.push(format!(
            "`{name}` {:?} is not in the file{}",
            shape.unwrap_or_default(),
            near.unwrap_or_default()
        ));
    }
    for name in &matching.unexpected {
        let shape = in_file(name).unwrap_or_default();
        let candidates = matching.missing.iter().filter(|other| shapes.get(other.as_str()) == Some(&shape));
        let near =
            nearest(name, candidates.map(String::as_str)).map(|near| format!("; did you mean `{near}`?"));
        lines.push(format!(
            "`{}` {shape:?} is not in the network{}",
            shortened(name),
            near.unwrap_or_default()
        ));
    }
    let more = lines.len().saturating_sub(MAX_LINES);
    lines.truncate(MAX_LINES);
    if more > 0 {
        lines.push(format!("and {more} more"));
    }
    let counts = format!(
        "{} of the {} tensors of network `{}` fit",
        matching.loaded.len(),
        graph.parameters.len(),
        graph.name
    );
    format!("{counts}\n{}", lines.join("\n"))
}

/// A name from a file, shortened to fit a line.
fn shortened(name: &str) -> String {
    name.chars().take(120).collect()
}

fn hint(graph: &Graph, matching: &MatchReport) -> String {
    if matching.loaded.is_empty() {
        return "these are weights of another network; choose it with model.name".to_owned();
    }
    let heads = classifiers(graph);
    let is_of_heads = |mismatch: &ShapeMismatch| {
        heads.iter().any(|node| node.parameters.iter().any(|id| graph.parameters[id.0].name == mismatch.name))
    };
    match matching.mismatched.iter().find(|mismatch| is_of_heads(mismatch)) {
        Some(ShapeMismatch { in_file, expected: wanted, .. })
            if matching.missing.is_empty() && matching.unexpected.is_empty() =>
        {
            format!(
                "these are weights for {} classes; set model.classes",
                in_file
                    .iter()
                    .zip(wanted)
                    .find(|(found, wanted)| found != wanted)
                    .map_or(0, |(found, _)| *found)
            )
        }
        _ => {
            "rename the tensors in the file, or choose the network they belong to with model.name".to_owned()
        }
    }
}
