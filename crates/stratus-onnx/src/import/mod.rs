//! Import of an ONNX graph: each node becomes a layer, a part of a layer, or a constant.
//!
//! Nodes are visited once, in order. Values that do not depend on the images are computed ([`constants`]);
//! the others become layers ([`layers`]). Images may be channels-last in between ([`DimOrder`]), as in models
//! from TensorFlow. An unsupported node does not end the import: one error lists all of them.

mod arithmetic;
mod channels;
mod clipping;
mod composed;
mod constants;
mod conv_transpose;
mod folding;
mod gates;
mod gelu;
mod graph_io;
mod input_size;
mod inputs;
mod layers;
mod limits;
mod names;
mod operators;
mod part;
mod pooling;
mod relayout;
mod resizing;
mod support;

use crate::error::{Parsed, Problem, UnsupportedNode};
use crate::proto::{self, Node, is_onnx};
use crate::tensor::{Constant, ModelFolder};
use clipping::Shifted;
pub(crate) use constants::shape_per_image;
use gelu::GeluPart;
use graph_io::{InputSpec, input_spec};
use input_size::RecordedShapes;
pub(crate) use layers::{count, in_order};
use limits::MemoryBudget;
use names::Names;
use part::{DROPPED_SIGMOID, End, find_end, reachable_nodes};
use std::collections::{HashMap, HashSet};
use stratus_base::printable;
use stratus_graph::ops::Sigmoid;
use stratus_graph::{Graph, GraphBuilder, Op, Operation, Shape};
use stratus_weights::{NetworkMetadata, Tensor, Values};
pub use support::operator_table;

/// The maximum number of layers, which is that of layer files.
const MAX_LAYERS: usize = 10_000;
/// The maximum of dimensions and counts, which is that of layer files.
const MAX_DIM: usize = 1 << 20;
/// The supported operator sets.
const SUPPORTED_OPSETS: std::ops::RangeInclusive<i64> = 7..=27;

/// Options for properties that a file does not specify.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ImportOptions {
    /// The name of the network. Characters other than letters, digits, `_`, `-` and `.` are replaced.
    pub name: String,
    /// The channels, height and width of the images; unless given, those of the model.
    pub input: Option<[usize; 3]>,
    /// The last node that is imported, by its name, its output's or its layer's; unless given, the logits.
    pub until: Option<String>,
    /// The maximum of bytes that weights and constants may use as f32; unless given, 4 GiB. In any case they
    /// may not use more than 64 MiB or 16 times the size of the model.
    pub max_bytes: Option<u64>,
}

/// A network and its weights.
#[derive(Clone, Debug, PartialEq)]
pub struct ImportedNetwork {
    /// The network, without the weights of the file.
    pub graph: Graph,
    /// The weights of the file as f32, with the keys of the network.
    pub weights: Vec<Tensor>,
    /// The class names and image preprocessing in the model's metadata.
    pub metadata: NetworkMetadata,
    /// Notes on omissions and changes.
    pub notes: Vec<String>,
}

/// A dimension of a shape that is being computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Dim {
    Known(i64),
    /// The batch size, which is unknown.
    Batch,
}

/// The value of a name in the graph.
#[derive(Clone, Debug)]
pub(crate) enum Value {
    /// An initialiser, by its position.
    Initialiser(usize),
    /// A computed constant.
    Constant(Constant),
    /// A shape, or a part of a shape.
    Dims(Vec<Dim>),
    /// The output of a layer.
    LayerOutput(LayerOutput),
    /// A part of the GELU of a layer's output.
    Gelu(GeluPart, LayerOutput),
    /// A layer's output plus a number, which is clipped next.
    Shifted(Shifted),
    /// An output that depends on an unsupported node.
    Unknown,
}

/// The dimension order of a tensor in the file. Layers always have channels first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DimOrder {
    /// Channels, height, width, or a vector.
    ChannelsFirst,
    /// Height, width, channels.
    ChannelsLast,
    /// A vector that was a channels-last image of `[channels, height, width]`.
    FlattenedChannelsLast([usize; 3]),
    /// Groups, channels of a group, height, width, with the number of groups.
    Grouped(usize),
    /// Groups, and the elements of a group, with the number of groups: between the nodes of a group norm.
    FlatGroups(usize),
    /// Channels of a group, groups, height, width, with the number of groups.
    GroupsTransposed(usize),
}

/// The output of a layer, as seen by the file.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LayerOutput {
    /// The position of the layer plus 1; 0 is the images.
    pub id: usize,
    pub order: DimOrder,
    /// True if it has a single reader, so that its layer may still be changed.
    pub single_use: bool,
    /// The padding of a preceding `Pad`.
    pub pad: Option<Pad>,
}

impl LayerOutput {
    /// Returns whether the file sees the output as the layer gives it.
    fn is_plain(&self) -> bool {
        self.id > 0 && self.order == DimOrder::ChannelsFirst && self.pad.is_none()
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Pad {
    before: [usize; 2],
    after: [usize; 2],
    /// True if the padding is zero instead of minus infinity.
    zeros: bool,
}

/// A layer before it is added to the graph.
#[derive(Debug)]
pub(crate) struct Layer {
    pub name: String,
    pub op: Op,
    inputs: Vec<usize>,
    shape: Shape,
    /// The values of the parameters, in the order of the operation.
    pub parameters: Vec<Vec<f32>>,
    /// True if the output is never negative.
    not_negative: bool,
    /// True if the import added it to express another operator, so that a product behind it may change it.
    is_derived: bool,
}

/// The error of a node that is not imported.
pub(crate) enum ImportError {
    /// The node is unsupported for this reason.
    Unsupported(String),
    /// The node reads the output of an unsupported node.
    UnsupportedInput,
    /// The file as a whole is rejected.
    File(Problem),
}

impl From<Problem> for ImportError {
    fn from(problem: Problem) -> Self {
        Self::File(problem)
    }
}

impl From<String> for ImportError {
    fn from(reason: String) -> Self {
        Self::Unsupported(reason)
    }
}

impl From<&str> for ImportError {
    fn from(reason: &str) -> Self {
        Self::Unsupported(reason.to_owned())
    }
}

pub(crate) type ImportResult<T> = Result<T, ImportError>;

pub(crate) struct Importer<'a> {
    graph: &'a proto::Graph<'a>,
    /// The operator set of the model.
    pub opset: i64,
    folder: Option<&'a ModelFolder>,
    values: HashMap<&'a str, Value>,
    /// The number of readers of each name.
    uses: HashMap<&'a str, usize>,
    /// The node that produces each name.
    producers: HashMap<&'a str, &'a Node<'a>>,
    /// The last node that reads each name.
    readers: HashMap<&'a str, &'a Node<'a>>,
    input: Shape,
    /// The batch size of the model; 1 if it is dynamic.
    pub batch: i64,
    layers: Vec<Layer>,
    /// The memory of layers and constants. Nodes that share a weight get copies, and constants may be filled,
    /// but a small file must not use all memory.
    budget: MemoryBudget,
    /// The shapes that layers are compared with while sizes of images are tried.
    recorded: RecordedShapes<'a>,
    /// The first node that rounds to a narrower floating-point type, and the number of such nodes.
    rounding: Option<(&'a Node<'a>, usize)>,
    /// The first node in training mode, and the number of such nodes.
    training: Option<(&'a Node<'a>, usize)>,
    /// The first group norm whose factors of 1 and terms of 0 are read as no weights, and the number of such.
    pub unweighted: Option<(&'a Node<'a>, usize)>,
    pub names: Names,
    notes: Vec<String>,
}

pub(crate) fn import(
    model: &proto::Model<'_>,
    folder: Option<&ModelFolder>,
    options: &ImportOptions,
) -> Parsed<ImportedNetwork> {
    let open = if options.input.is_none() { input_size::import_open(model, folder, options) } else { None };
    open.unwrap_or_else(|| import_sized(model, folder, options, false))
}

/// Imports a model with the size in `options`, or its own. With `is_trial`, a layer whose shape differs from
/// that recorded in the file is an error.
fn import_sized(
    model: &proto::Model<'_>,
    folder: Option<&ModelFolder>,
    options: &ImportOptions,
    is_trial: bool,
) -> Parsed<ImportedNetwork> {
    if !SUPPORTED_OPSETS.contains(&model.opset) {
        return Err(Problem::UnsupportedModel {
            problem: format!("unsupported operator set {}", model.opset),
            remedy: "export it with an operator set from 7 to 27, such as 17",
        });
    }
    let graph = &model.graph;
    let mut notes = Vec::new();
    let metadata = NetworkMetadata::read(model.metadata.iter().copied()).unwrap_or_else(|problem| {
        let problem = printable(&problem);
        notes.push(format!("ignored invalid metadata: {problem}"));
        NetworkMetadata::default()
    });
    if let Some(operator) = model.functions.iter().find(|(domain, _)| is_onnx(domain)).map(|(_, name)| name) {
        return Err(Problem::UnsupportedModel {
            problem: format!("the model redefines the ONNX operator `{}` by a function", printable(operator)),
            remedy: "inline its functions: onnx.inliner.inline_local_functions",
        });
    }
    let End { output, softmax, drops_sigmoid } =
        find_end(graph, model.opset, options.until.as_deref(), &mut notes)?;
    let live = reachable_nodes(graph, output)?;
    let mut uses: HashMap<&str, usize> = HashMap::from([(output, 1)]);
    let mut readers = HashMap::new();
    for node in live.iter().map(|&node| &graph.nodes[node]) {
        for name in &node.inputs {
            *uses.entry(name).or_default() += 1;
            readers.insert(*name, node);
        }
    }
    let mut values: HashMap<&str, Value> = HashMap::new();
    for (position, tensor) in graph.initialisers.iter().enumerate() {
        if values.insert(tensor.name, Value::Initialiser(position)).is_some() {
            return Err(Problem::damaged(format!("duplicate initialiser `{}`", printable(tensor.name))));
        }
    }
    let spec = input_spec(graph, &live, &values, options)?;
    let InputSpec { name: images, order, batch, shape: input, replaced } = spec;
    if let Some([height, width]) = replaced {
        let [_, to_height, to_width] = input;
        notes.push(format!("imported for images of {to_height}x{to_width} instead of {height}x{width}"));
    }
    let single_use = uses.get(images).is_some_and(|&count| count == 1);
    values.insert(images, Value::LayerOutput(LayerOutput { id: 0, order, single_use, pad: None }));
    let names = Names::new(graph, &live);
    let external_bytes = folder.map_or(0, |folder| folder.bytes_of(graph));
    let model_bytes = model.file_bytes.saturating_add(external_bytes);
    let budget = MemoryBudget::new(options.max_bytes, model_bytes, names.shared_weights());
    let (input, layers) = (Shape(input.to_vec()), Vec::new());
    let producers = graph.nodes.iter().flat_map(|node| node.outputs.iter().map(move |name| (*name, node)));
    let producers = producers.collect();
    let mut importer = Importer {
        graph,
        opset: model.opset,
        folder,
        values,
        uses,
        producers,
        readers,
        input,
        batch,
        layers,
        budget,
        recorded: if is_trial { input_size::recorded_shapes(graph) } else { HashMap::new() },
        rounding: None,
        training: None,
        unweighted: None,
        names,
        notes,
    };
    importer.walk(&live)?;
    let mut network = ImportedNetwork { metadata, ..importer.finish(output, softmax, options)? };
    if drops_sigmoid && network.graph.shape(network.graph.output).0.len() == 3 && network.graph.classes() > 1
    {
        // Binary cross-entropy learns maps with one channel only: this sigmoid stays a layer.
        let names: HashSet<&str> = network.graph.nodes.iter().map(|node| node.name.as_str()).collect();
        let numbered = (1..).map(|number| format!("sigmoid{number}"));
        let mut free =
            std::iter::once("sigmoid".to_owned()).chain(numbered).filter(|name| !names.contains(&**name));
        let name = free.next().unwrap_or_default();
        network.graph = network.graph.clone().followed_by(&name, Sigmoid.into())?;
        network.notes.retain(|note| !note.starts_with(DROPPED_SIGMOID));
    } else if drops_sigmoid {
        network.metadata.loss.get_or_insert_with(|| "binary_cross_entropy".to_owned());
    }
    if replaced.is_some() {
        network.notes.extend(input_size::fixed_sizes(&network.graph));
    }
    Ok(network)
}

/// Returns for each layer whether the output depends on it. Layers that became a part of a later one have no
/// readers left.
fn used_layers(layers: &[Layer], output: usize) -> Vec<bool> {
    let mut used = vec![false; layers.len()];
    if let Some(last) = output.checked_sub(1) {
        used[last] = true;
    }
    for at in (0..layers.len()).rev().filter(|&at| at < output) {
        if used[at] {
            layers[at].inputs.iter().filter_map(|id| id.checked_sub(1)).for_each(|input| used[input] = true);
        }
    }
    used
}

/// The name of a node in messages: its own name, or that of its output.
fn display_name<'a>(node: &Node<'a>) -> &'a str {
    if node.name.is_empty() { node.outputs.first().copied().unwrap_or_default() } else { node.name }
}

fn unsupported_node(node: &Node<'_>, reason: String) -> UnsupportedNode {
    let domain = if is_onnx(node.domain) { String::new() } else { format!("{}.", node.domain) };
    let operator = printable(&format!("{domain}{}", node.operator));
    UnsupportedNode { node: printable(display_name(node)), operator, reason }
}

/// Counts a node, keeping the first one for the message.
pub(crate) fn count_first<'a>(seen: &mut Option<(&'a Node<'a>, usize)>, node: &'a Node<'a>) {
    *seen = Some(seen.map_or((node, 1), |(first, count)| (first, count + 1)));
}

impl<'a> Importer<'a> {
    fn walk(&mut self, live: &[usize]) -> Parsed<()> {
        let graph = self.graph;
        let mut unsupported = Vec::new();
        let mut readable = Vec::new();
        for &position in live {
            let node = &graph.nodes[position];
            let values = match self.import_node(node) {
                Ok(values) => values,
                Err(ImportError::File(problem)) => return Err(problem),
                Err(ImportError::UnsupportedInput) => vec![],
                Err(ImportError::Unsupported(reason)) => {
                    unsupported.push(unsupported_node(node, reason));
                    vec![]
                }
            };
            for value in &values {
                if let Value::Constant(constant) = value {
                    self.budget.spend(constant.shape.iter().product(), display_name(node))?;
                }
            }
            self.compare_with_record(node, &values)?;
            if matches!(values.first(), Some(Value::LayerOutput(output)) if output.is_plain()) {
                readable.push(node);
            }
            for (output, name) in node.outputs.iter().enumerate().filter(|(_, name)| !name.is_empty()) {
                // The other outputs are masks and statistics; a node that reads one is unsupported.
                let value = values.get(output).cloned().unwrap_or(Value::Unknown);
                if self.values.insert(name, value).is_some() {
                    return Err(Problem::damaged(format!("duplicate output `{}`", printable(name))));
                }
                if !values.is_empty() && values.len() <= output && self.uses.contains_key(name) {
                    let (node, operator) = (printable(node.name), printable(node.operator));
                    unsupported.push(UnsupportedNode {
                        node,
                        operator,
                        reason: format!("its output {} is used", output + 1),
                    });
                }
            }
        }
        if unsupported.is_empty() {
            return Ok(());
        }
        // Behind the first unsupported node, only other branches are readable.
        Err(Problem::UnsupportedNodes { nodes: unsupported, last_supported: part::suggestions(&readable) })
    }

    /// Compares the shape of a node's output with the one that the file records, while sizes are tried.
    fn compare_with_record(&self, node: &Node<'a>, values: &[Value]) -> Parsed<()> {
        for (name, value) in node.outputs.iter().zip(values) {
            let (Some([_, dims @ ..]), Value::LayerOutput(output)) = (self.recorded.get(name), value) else {
                continue;
            };
            let shape = &self.layer_shape(output.id).0;
            let differs = |(dim, found): (&Option<i64>, &usize)| {
                dim.is_some_and(|dim| dim > 0 && usize::try_from(dim) != Ok(*found))
            };
            let is_plain = output.is_plain() && dims.len() == shape.len();
            if is_plain && dims.iter().zip(shape).any(differs) {
                let recorded: Vec<i64> = dims.iter().map(|dim| dim.unwrap_or(-1)).collect();
                let reason = format!(
                    "`{}` is {}, but the file records {recorded:?}",
                    printable(name),
                    Shape(shape.clone())
                );
                return Err(Problem::UnsupportedModel { problem: reason, remedy: "pass --input" });
            }
        }
        Ok(())
    }

    fn finish(
        mut self,
        output: &str,
        softmax: Option<&Node<'_>>,
        options: &ImportOptions,
    ) -> Parsed<ImportedNetwork> {
        let unsupported = |problem: String| Problem::UnsupportedModel {
            problem,
            remedy: "export the network up to its logits",
        };
        let logits = match self.values.get(output) {
            Some(Value::LayerOutput(logits)) if logits.id > 0 => *logits,
            _ => {
                return Err(unsupported(format!(
                    "its output `{}` is not the output of a layer",
                    printable(output)
                )));
            }
        };
        if logits.order != DimOrder::ChannelsFirst || logits.pad.is_some() {
            return Err(unsupported(format!(
                "its output `{}` is channels-last, grouped or padded",
                printable(output)
            )));
        }
        if let Some(node) = softmax {
            self.check_softmax_axis(node, &self.layer_shape(logits.id).0)?;
        }
        let name = names::sanitised(&options.name);
        let name = if name.is_empty() { "network".to_owned() } else { name };
        let (mut builder, images) = GraphBuilder::new(&name, self.input.clone());
        let mut tensors = vec![images];
        let mut weights = Vec::new();
        let used = used_layers(&self.layers, logits.id);
        for (layer, is_used) in self.layers.into_iter().zip(used) {
            if !is_used {
                tensors.push(images);
                continue;
            }
            let inputs: Vec<_> = layer.inputs.iter().map(|&id| tensors[id]).collect();
            for (spec, values) in layer.op.parameters().into_iter().zip(layer.parameters) {
                let name = format!("{}.{}", layer.name, spec.name);
                weights.push(Tensor { name, shape: spec.shape, values: Values::F32(values) });
            }
            tensors.push(builder.add(&layer.name, layer.op, &inputs)?);
        }
        let graph = builder.finish(tensors[logits.id])?;
        self.notes.extend(self.names.notes());
        let description = |(node, count): (&Node<'_>, usize)| {
            let others = if count > 1 { format!(" and {} more like it", count - 1) } else { String::new() };
            format!("{} `{}`{others}", node.operator, printable(display_name(node)))
        };
        if let Some(rounding) = self.rounding {
            let description = description(rounding);
            self.notes.push(format!(
                "ignored {description}, which rounds to a narrower type: layers compute in f32"
            ));
        }
        if let Some(unweighted) = self.unweighted {
            let description = description(unweighted);
            self.notes.push(format!("imported {description} without weight and bias, which are 1 and 0"));
        }
        if let Some(training) = self.training {
            let description = description(training);
            self.notes.push(format!("{description} is in training mode: ignored"));
        }
        Ok(ImportedNetwork { graph, weights, metadata: NetworkMetadata::default(), notes: self.notes })
    }

    /// Imports a node and returns its outputs.
    fn import_node(&mut self, node: &'a Node<'a>) -> ImportResult<Vec<Value>> {
        if !is_onnx(node.domain) {
            return Err("unsupported domain, only ai.onnx".into());
        }
        operators::check(node, self.opset)?;
        if let Some(name) =
            node.inputs.iter().find(|name| !name.is_empty() && !self.values.contains_key(**name))
        {
            let reason = format!("`{}` is used before it is defined", printable(name));
            return Err(Problem::damaged(reason).into());
        }
        if node.operator == "ConstantOfShape" {
            return Ok(vec![self.filled(node)?]);
        }
        if let Some(value) = self.constant_node(node)? {
            return Ok(vec![value]);
        }
        if node.operator == "Split" {
            return self.split(node);
        }
        Ok(vec![self.layer(node)?])
    }
}
