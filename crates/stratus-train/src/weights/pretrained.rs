//! Pretrained weights: those of a safetensors file, a PyTorch state dict or another run.

use super::{CheckpointChoice, are_numbers, initialise, load_checkpoint, metadata_of_run};
use crate::{Experiment, TrainError};
use std::collections::{HashMap, HashSet};
use std::path::Path;
use stratus_base::nearest;
use stratus_data::Dataset;
use stratus_engine::Session;
use stratus_graph::{Graph, Node, Op, Parameter};
use stratus_run::RunDir;
use stratus_run::checkpoint::{Tensor, Values};
use stratus_run::sources::Source;
use stratus_weights::{Matching, Mismatch, NetworkMetadata, WeightsFile};

/// What a file's weights are for, which decides how they have to fit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WeightsUse {
    /// File and network have the same tensors, except a classifier for another number of classes: it, and
    /// those of auxiliary outputs, get initial values. Of a network with a backbone (layers `backbone.*`) the
    /// file may have that alone, under the names that it has as a network of its own, with its classifier.
    Training,
    /// What file and network share is taken, all else gets initial values.
    SecondStage,
    /// File and network have the same tensors.
    Measuring,
    /// The file has all tensors of the network without auxiliary outputs; it may have more.
    Inference,
}

/// Weights that fit a network. Values are read on demand.
#[derive(Debug)]
pub struct Pretrained {
    file: WeightsFile,
    source: Source,
    loaded: Vec<String>,
    left_out: usize,
    anew: Option<String>,
    /// What the network's names have before those of the file.
    prefix: &'static str,
    /// Where they are a run's: what it recorded of images and classes.
    run: Option<NetworkMetadata>,
}

/// What the names of a backbone's layers begin with.
const BACKBONE: &str = "backbone.";

/// The published weights of ERFNet have the encoder's own classifier too, with which it was trained first.
/// The network with a decoder does without it.
const ENCODER_HEAD: &str = "encoder.output_conv.";
const DECODER: &str = "decoder.output_conv.";

impl Pretrained {
    /// Opens a file, or the newest good checkpoint of a run directory, and matches it with a network. Tensors
    /// that count batches (`num_batches_tracked`) are ignored. Warns of newer checkpoints that are damaged.
    ///
    /// # Errors
    /// If it cannot be read, or does not fit the network as `purpose` requires: the tensors are listed.
    pub fn open(
        path: &Path,
        graph: &Graph,
        purpose: WeightsUse,
        warn: &mut dyn FnMut(&str),
    ) -> Result<Self, TrainError> {
        let (path, run) = if path.is_dir() {
            let run = RunDir::open(path)?;
            let metadata = metadata_of_run(&run, &Experiment::load(&run.experiment())?);
            (load_checkpoint(&run, CheckpointChoice::Newest, warn)?.measured_file(), Some(metadata))
        } else {
            (path.to_owned(), None)
        };
        let file = WeightsFile::open(&path)?;
        let fit = |graph: &Graph| {
            let mut matching =
                file.matching(graph.parameters.iter().map(|p| (p.name.as_str(), p.shape.as_slice())));
            if graph.parameters.iter().any(|parameter| parameter.name.starts_with(DECODER)) {
                matching.unexpected.retain(|name| !name.starts_with(ENCODER_HEAD));
            }
            matching
        };
        if purpose == WeightsUse::Training && is_backbone(&file, graph) {
            return Self::of_backbone(file, graph, run);
        }
        let (matching, left_out, anew) = match purpose {
            WeightsUse::SecondStage => {
                let matching = fit(graph);
                if matching.loaded.is_empty() {
                    return Err(TrainError::WeightsDoNotFit {
                        problem: differences(&file, graph, &matching),
                        path,
                        hint: hint(graph, &matching),
                    });
                }
                let begins = graph.parameters.len() - matching.loaded.len();
                let left_out = matching.unexpected.len() + matching.mismatched.len();
                let text = format!(
                    "{} tensors are those of the first stage, {begins} begin anew; {left_out} of its own are \
                     left out",
                    matching.loaded.len()
                );
                (matching, left_out, Some(text))
            }
            WeightsUse::Training | WeightsUse::Measuring => {
                let mut matching = fit(graph);
                let trains = purpose == WeightsUse::Training;
                let anew = if trains { begins_anew(graph, &mut matching, &path) } else { None };
                if !matching.is_complete() || !matching.unexpected.is_empty() {
                    return Err(TrainError::WeightsDoNotFit {
                        problem: differences(&file, graph, &matching),
                        path,
                        hint: hint(graph, &matching),
                    });
                }
                (matching, 0, anew)
            }
            WeightsUse::Inference => {
                let matching = fit(&graph.for_inference());
                if !matching.is_complete() {
                    let (network, problem) = (graph.name.clone(), matching.summary());
                    return Err(TrainError::WeightsIncomplete { path, network, problem });
                }
                // Weights of auxiliary outputs are expected in a file, and not reported.
                let known = |name: &String| graph.parameters.iter().any(|parameter| parameter.name == *name);
                let left_out = matching.unexpected.iter().filter(|name| !known(name)).count();
                (matching, left_out, None)
            }
        };
        let source = Source::of_file(&path)?;
        Ok(Self { file, source, loaded: matching.loaded, left_out, anew, prefix: "", run })
    }

    /// The weights of a network's backbone, from a file that has it as a network of its own.
    fn of_backbone(
        file: WeightsFile,
        graph: &Graph,
        run: Option<NetworkMetadata>,
    ) -> Result<Self, TrainError> {
        let own = graph.parameters.iter().filter_map(|parameter| {
            Some((parameter.name.strip_prefix(BACKBONE)?, parameter.shape.as_slice()))
        });
        let matching = file.matching(own);
        let path = file.path().to_owned();
        if !matching.is_complete() {
            let (network, problem) = (format!("{} (its backbone)", graph.name), matching.summary());
            return Err(TrainError::WeightsIncomplete { path, network, problem });
        }
        let loaded: Vec<String> = matching.loaded.iter().map(|name| format!("{BACKBONE}{name}")).collect();
        let text = format!(
            "the backbone has the weights of {}; {} other tensors begin anew",
            path.display(),
            graph.parameters.len() - loaded.len()
        );
        let source = Source::of_file(&path)?;
        let left_out = matching.unexpected.len();
        Ok(Self { file, source, loaded, left_out, anew: Some(text), prefix: BACKBONE, run })
    }

    /// The file, with its checksum.
    #[must_use]
    pub fn source(&self) -> &Source {
        &self.source
    }

    /// What the file says of images and classes; empty where it says nothing.
    ///
    /// # Errors
    /// Where what it says cannot be: the key, and why.
    pub fn metadata(&self) -> Result<NetworkMetadata, String> {
        match &self.run {
            Some(metadata) => Ok(metadata.clone()),
            None => {
                let entries = self.file.metadata().iter();
                NetworkMetadata::read(entries.map(|(key, text)| (key.as_str(), text.as_str())))
            }
        }
    }

    /// How many tensors of the file are not the network's; only for inference.
    #[must_use]
    pub fn left_out(&self) -> usize {
        self.left_out
    }

    /// Reinitialises the classifiers where the weights record other classes than those of the data set, or
    /// the same in another order: their rows belong to other classes.
    pub fn expect_classes(&mut self, graph: &Graph, set: &dyn Dataset, warn: &mut dyn FnMut(&str)) {
        let origin = self.file.path().display().to_string();
        let names = match self.metadata() {
            Ok(metadata) => metadata.class_names,
            Err(problem) => {
                warn(&format!("what {origin} says of images and classes is left out: {problem}"));
                return;
            }
        };
        let own: Vec<String> = (0..set.classes()).map(|class| set.class_name(class)).collect();
        if own == names || are_numbers(&own) || are_numbers(&names) {
            return;
        }
        let heads = classifiers(graph);
        let of_heads: HashSet<&str> = heads
            .iter()
            .flat_map(|node| &node.parameters)
            .map(|id| graph.parameters[id.0].name.as_str())
            .collect();
        let before = self.loaded.len();
        self.loaded.retain(|name| !of_heads.contains(name.as_str()));
        // Those for another number of classes begin anew already.
        if self.loaded.len() == before {
            return;
        }
        let begins = if heads.len() == 1 { "begins" } else { "begin" };
        let layers: Vec<&str> = heads.iter().map(|node| node.name.as_str()).collect();
        let differs = own.iter().zip(&names).position(|(own, name)| own != name);
        let class = differs.unwrap_or(own.len().min(names.len()));
        let said = |names: &[String]| names.get(class).map_or("none".to_owned(), |name| format!("`{name}`"));
        self.anew = Some(format!(
            "{} {begins} anew: class {class} is {} in {origin}, and {} in the data set",
            layers.join(", "),
            said(&names),
            said(&own)
        ));
    }

    /// A line that names the layers that do not take their weights from the file.
    #[must_use]
    pub fn begins_anew(&self) -> Option<&str> {
        self.anew.as_deref()
    }

    /// Sets the tensors that file and session share. Run the refresh program afterwards.
    ///
    /// # Errors
    /// If the file cannot be read, or holds NaN or infinity.
    pub fn write_to(&self, session: &mut Session) -> Result<(), TrainError> {
        let there: HashSet<String> = session.state().map(|value| value.name.to_owned()).collect();
        let loaded = self.loaded.iter().filter(|name| there.contains(*name));
        loaded.into_iter().try_for_each(|name| Ok(session.write(name, &self.values(name)?)?))
    }

    /// The tensors of a network: the file's, and initial values for others.
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
        let fault = |problem: String| TrainError::WeightsDoNotFit {
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

/// Whether a file has a network's backbone as a network of its own.
fn is_backbone(file: &WeightsFile, graph: &Graph) -> bool {
    let names = || graph.parameters.iter().map(|parameter| parameter.name.as_str());
    let is_there = |name: &str| file.get(name).is_some();
    names().any(|name| name.strip_prefix(BACKBONE).is_some_and(is_there)) && !names().any(is_there)
}

/// A network's tensors with initial values, and PyTorch's `num_batches_tracked` at zero.
///
/// # Errors
/// If some depend on training images.
pub fn initial(graph: &Graph, seed: u64) -> Result<Vec<Tensor>, TrainError> {
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

/// If the classifiers differ only in their number of classes, removes them from the mismatches; returns a
/// line that names them.
fn begins_anew(graph: &Graph, matching: &mut Matching, path: &Path) -> Option<String> {
    let heads = classifiers(graph);
    // Weights have an output's first, but those of transposed convolutions, `[in, out, kH, kW]`.
    let with_axis = |node: &&Node| {
        let transposed = matches!(node.op, Op::ConvTranspose2d(_));
        let axis = move |parameter: &Parameter| usize::from(transposed && parameter.shape.len() > 1);
        let parameters = node.parameters.iter().map(|id| &graph.parameters[id.0]);
        parameters.map(move |parameter| (parameter, axis(parameter))).collect::<Vec<_>>()
    };
    let of_heads: Vec<(&Parameter, usize)> = heads.iter().flat_map(with_axis).collect();
    let differs = |parameter: &Parameter| matching.mismatched.iter().find(|m| m.name == parameter.name);
    let &(first, axis) = of_heads.first()?;
    let classes = *differs(first)?.in_file.get(axis)?;
    let only_classes = |mismatch: &Mismatch, axis: usize| {
        let (found, mut wanted) = (&mismatch.in_file, mismatch.wanted.clone());
        wanted.get_mut(axis).map(|extent| *extent = classes).is_some() && *found == wanted
    };
    let fits = |&(parameter, axis): &(&Parameter, usize)| {
        differs(parameter).is_some_and(|mismatch| only_classes(mismatch, axis))
    };
    if !of_heads.iter().all(fits) {
        return None;
    }
    let new = first.shape.get(axis)?;
    let begins = if heads.len() == 1 { "begins" } else { "begin" };
    let names: Vec<&str> = heads.iter().map(|node| node.name.as_str()).collect();
    let text = format!(
        "{} {begins} anew: {} has {classes} classes, the network {new}",
        names.join(", "),
        path.display()
    );
    matching
        .mismatched
        .retain(|mismatch| of_heads.iter().all(|(parameter, _)| parameter.name != mismatch.name));
    Some(text)
}

/// Lists everything that does not fit, one per line.
fn differences(file: &WeightsFile, graph: &Graph, matching: &Matching) -> String {
    /// More than any network has.
    const MAX_LINES: usize = 2000;
    let shapes: HashMap<&str, &[usize]> =
        graph.parameters.iter().map(|p| (p.name.as_str(), p.shape.as_slice())).collect();
    let in_file = |name: &str| file.get(name).map(|tensor| tensor.shape.as_slice());
    let mut lines: Vec<String> = Vec::new();
    for Mismatch { name, in_file, wanted } in &matching.mismatched {
        lines.push(format!("`{name}` is {in_file:?} in the file and {wanted:?} in the network"));
    }
    for name in &matching.missing {
        let shape = shapes.get(name.as_str()).copied();
        // A tensor of another shape cannot be a misspelt one.
        let alike = matching.unexpected.iter().filter(|other| in_file(other) == shape).map(String::as_str);
        let near = nearest(name, alike).map(|near| format!("; it has `{near}`, of the same shape"));
        lines.push(format!(
            "`{name}` {:?} is not in the file{}",
            shape.unwrap_or_default(),
            near.unwrap_or_default()
        ));
    }
    for name in &matching.unexpected {
        let shape = in_file(name).unwrap_or_default();
        let alike = matching.missing.iter().filter(|other| shapes.get(other.as_str()) == Some(&shape));
        let near = nearest(name, alike.map(String::as_str)).map(|near| format!("; did you mean `{near}`?"));
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

fn hint(graph: &Graph, matching: &Matching) -> String {
    if matching.loaded.is_empty() {
        return "these are the weights of another network; model.name chooses it".to_owned();
    }
    let heads = classifiers(graph);
    let is_of_heads = |mismatch: &Mismatch| {
        heads.iter().any(|node| node.parameters.iter().any(|id| graph.parameters[id.0].name == mismatch.name))
    };
    match matching.mismatched.iter().find(|mismatch| is_of_heads(mismatch)) {
        Some(Mismatch { in_file, wanted, .. })
            if matching.missing.is_empty() && matching.unexpected.is_empty() =>
        {
            format!(
                "these are weights for {} classes; model.classes sets how many there are",
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
