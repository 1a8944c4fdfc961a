//! Import of an ONNX graph: each node becomes a layer, a part of a layer, or a constant.
//!
//! Nodes are visited once, in order. Values that do not depend on the images are computed ([`constants`]);
//! the others become layers ([`layers`]). Images may be channels-last in between ([`DimOrder`]), as in models
//! from TensorFlow. An unsupported node does not end the import: one error lists all of them.

mod arithmetic;
mod channels;
mod constants;
mod conv_transpose;
mod gelu;
mod graph_io;
mod layers;
mod names;
mod operators;
mod pooling;
mod relayout;
mod resizing;

use crate::error::{Parsed, Problem, UnsupportedNode};
use crate::proto::{self, Node, is_onnx};
use crate::tensor::{self, Constant, MAX_FILLED_ELEMENTS, ModelFolder};
pub(crate) use constants::shape_per_image;
use gelu::{GeluPart, PARTIAL_GELU};
use graph_io::{InputSpec, find_logits, input_spec};
pub(crate) use layers::{count, in_order};
use names::Names;
use std::collections::{HashMap, HashSet};
use stratus_base::printable;
use stratus_graph::{Graph, GraphBuilder, Op, Operation, Shape};
use stratus_weights::{NetworkMetadata, Tensor, Values};

/// The maximum number of layers, which is that of layer files.
const MAX_LAYERS: usize = 10_000;
/// The maximum number of elements in layers and constants: 4 GiB.
const MAX_ELEMENTS: usize = 1 << 30;
/// The maximum of dimensions and counts, which is that of layer files.
const MAX_DIM: usize = 1 << 20;
/// The supported operator sets.
const SUPPORTED_OPSETS: std::ops::RangeInclusive<i64> = 7..=27;

/// Options for properties that a file does not specify.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ImportOptions {
    /// The name of the network. Characters other than letters, digits, `_`, `-` and `.` are replaced.
    pub name: String,
    /// The channels, height and width of the images, for models with dynamic dimensions.
    pub input: Option<[usize; 3]>,
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
    /// The remaining elements of layers and constants. Nodes that share a weight get copies, but a small file
    /// must not become a large network.
    element_budget: usize,
    /// The remaining elements of sparse and filled constants.
    filled_budget: usize,
    /// The first node that rounds to a narrower floating-point type, and the number of such nodes.
    rounding: Option<(&'a Node<'a>, usize)>,
    /// The first node in training mode, and the number of such nodes.
    training: Option<(&'a Node<'a>, usize)>,
    pub names: Names,
    notes: Vec<String>,
}

pub(crate) fn import(
    model: &proto::Model<'_>,
    folder: Option<&ModelFolder>,
    options: &ImportOptions,
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
    let (output, softmax) = find_logits(graph, model.opset, &mut notes)?;
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
    let InputSpec { name: images, order, batch, shape: input } = input_spec(graph, &live, &values, options)?;
    let single_use = uses.get(images).is_some_and(|&count| count == 1);
    values.insert(images, Value::LayerOutput(LayerOutput { id: 0, order, single_use, pad: None }));
    let names = Names::new(graph, &live);
    let mut filled_budget = MAX_FILLED_ELEMENTS;
    let mut element_budget = MAX_DIM;
    for tensor in &graph.initialisers {
        let count = tensor::elements(tensor);
        if tensor.indices.is_some() {
            filled_budget =
                filled_budget.checked_sub(count).ok_or_else(|| filled_limit_error(tensor.name))?;
        }
        element_budget = element_budget.saturating_add(count.saturating_mul(2));
    }
    let (input, layers) = (Shape(input.to_vec()), Vec::new());
    let element_budget = element_budget.min(MAX_ELEMENTS);
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
        element_budget,
        filled_budget,
        rounding: None,
        training: None,
        names,
        notes,
    };
    importer.walk(&live)?;
    Ok(ImportedNetwork { metadata, ..importer.finish(output, softmax, options)? })
}

fn filled_limit_error(name: &str) -> Problem {
    Problem::UnsupportedModel {
        problem: format!(
            "at `{}`, sparse and filled constants exceed the limit of {MAX_FILLED_ELEMENTS} elements",
            printable(name)
        ),
        remedy: "store sparse and filled weights as ordinary initialisers",
    }
}

/// The positions of the nodes that the output depends on, in order.
fn reachable_nodes(graph: &proto::Graph<'_>, output: &str) -> Parsed<Vec<usize>> {
    let mut produced = HashSet::new();
    for node in &graph.nodes {
        if let Some(duplicate) = node.outputs.iter().find(|name| !name.is_empty() && !produced.insert(**name))
        {
            return Err(Problem::damaged(format!("duplicate output `{}`", printable(duplicate))));
        }
    }
    let mut needed = HashSet::from([output]);
    let mut live = Vec::new();
    for (position, node) in graph.nodes.iter().enumerate().rev() {
        if node.outputs.iter().any(|name| needed.contains(name)) {
            needed.extend(node.inputs.iter().filter(|name| !name.is_empty()));
            live.push(position);
        }
    }
    live.reverse();
    Ok(live)
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
fn count_first<'a>(seen: &mut Option<(&'a Node<'a>, usize)>, node: &'a Node<'a>) {
    *seen = Some(seen.map_or((node, 1), |(first, count)| (first, count + 1)));
}

impl<'a> Importer<'a> {
    fn walk(&mut self, live: &[usize]) -> Parsed<()> {
        let graph = self.graph;
        let mut unsupported = Vec::new();
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
                    self.spend_elements(constant.shape.iter().product())?;
                }
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
        if unsupported.is_empty() { Ok(()) } else { Err(Problem::UnsupportedNodes(unsupported)) }
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
            self.check_softmax_axis(node, self.layer_shape(logits.id).0.len() + 1)?;
        }
        let name = names::sanitised(&options.name);
        let name = if name.is_empty() { "network".to_owned() } else { name };
        let (mut builder, images) = GraphBuilder::new(&name, self.input.clone());
        let mut tensors = vec![images];
        let mut weights = Vec::new();
        for layer in self.layers {
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

    /// Spends the element budget.
    fn spend_elements(&mut self, count: usize) -> Parsed<()> {
        let left = self.element_budget.checked_sub(count);
        self.element_budget = left.ok_or_else(|| Problem::UnsupportedModel {
            problem: "shared weights would grow to more than twice the file".to_owned(),
            remedy: "layers cannot share weights",
        })?;
        Ok(())
    }

    /// The value of an input.
    pub(crate) fn value(&self, node: &Node<'a>, position: usize) -> ImportResult<&Value> {
        let name = node.input(position).ok_or_else(|| format!("missing input {}", position + 1))?;
        match self.values.get(name) {
            Some(Value::Unknown) | None => Err(ImportError::UnsupportedInput),
            Some(value) => Ok(value),
        }
    }

    /// An input that does not depend on the images, or `None` if it is omitted.
    fn constant(&self, node: &Node<'a>, position: usize) -> ImportResult<Option<Constant>> {
        if node.input(position).is_none() {
            return Ok(None);
        }
        match self.value(node, position)? {
            Value::Initialiser(position) => {
                Ok(Some(tensor::read(&self.graph.initialisers[*position], self.folder)?))
            }
            Value::Constant(constant) => Ok(Some(constant.clone())),
            Value::Dims(dims) => {
                let known = dims.iter().map(|dim| match dim {
                    Dim::Known(value) => Some(*value),
                    Dim::Batch => None,
                });
                let values: Option<Vec<i64>> = known.collect();
                let values = values.ok_or("a constant depends on the batch size")?;
                Ok(Some(Constant::ints(vec![values.len()], values)))
            }
            Value::Gelu(..) => Err(PARTIAL_GELU.into()),
            Value::LayerOutput(_) | Value::Unknown => {
                Err(format!("its input {} depends on the images, expected a constant", position + 1).into())
            }
        }
    }

    /// An input that depends on the images, padded or not.
    fn padded_layer_input(&self, node: &Node<'a>, position: usize) -> ImportResult<LayerOutput> {
        match self.value(node, position)? {
            Value::LayerOutput(LayerOutput {
                order: DimOrder::Grouped(_) | DimOrder::GroupsTransposed(_),
                ..
            }) => Err("grouped channels are supported only in a channel shuffle".into()),
            Value::LayerOutput(LayerOutput { order: DimOrder::FlatGroups(_), .. }) => {
                Err("groups of channels are supported only in a group norm".into())
            }
            Value::LayerOutput(input) => Ok(*input),
            Value::Gelu(..) => Err(PARTIAL_GELU.into()),
            _ => Err(format!("its input {} does not depend on the images", position + 1).into()),
        }
    }

    /// An input that depends on the images.
    fn layer_input(&self, node: &Node<'a>, position: usize) -> ImportResult<LayerOutput> {
        let input = self.padded_layer_input(node, position)?;
        match input.pad {
            Some(_) => Err("Pad is supported only before convolution and pooling".into()),
            None => Ok(input),
        }
    }

    /// An input that depends on the images, with channels first.
    pub(crate) fn channels_first_input(&self, node: &Node<'a>, position: usize) -> ImportResult<LayerOutput> {
        let input = self.layer_input(node, position)?;
        match input.order {
            DimOrder::ChannelsFirst => Ok(input),
            _ => Err("channels-last input is not supported".into()),
        }
    }

    /// The shape of a layer's output, channels first.
    pub(crate) fn layer_shape(&self, id: usize) -> &Shape {
        id.checked_sub(1).map_or(&self.input, |layer| &self.layers[layer].shape)
    }

    /// The channels, height and width of an image.
    pub(crate) fn image_shape(&self, input: LayerOutput) -> ImportResult<[usize; 3]> {
        Ok(self.layer_shape(input.id).as_image().map_err(|error| error.to_string())?)
    }

    /// The layer of a value, if the value has a single reader.
    pub(crate) fn single_use_layer(&mut self, input: LayerOutput) -> Option<&mut Layer> {
        input.id.checked_sub(1).filter(|_| input.single_use).map(|layer| &mut self.layers[layer])
    }

    fn is_single_use(&self, node: &Node<'a>) -> bool {
        node.outputs.first().is_some_and(|name| self.uses.get(name) == Some(&1))
    }

    /// The node that reads the output of a node, if there is only one.
    pub(crate) fn single_reader(&self, node: &Node<'a>) -> Option<&'a Node<'a>> {
        let name = node.outputs.first().filter(|name| !name.is_empty() && self.is_single_use(node))?;
        self.readers.get(name).copied()
    }

    /// Returns the input itself as the output of a node.
    pub(crate) fn alias(&self, node: &Node<'a>, input: LayerOutput) -> Value {
        Value::LayerOutput(LayerOutput { single_use: input.single_use && self.is_single_use(node), ..input })
    }

    /// Adds the layer of a node.
    pub(crate) fn push(
        &mut self,
        node: &Node<'a>,
        op: impl Into<Op>,
        inputs: &[LayerOutput],
        parameters: Vec<Vec<f32>>,
    ) -> ImportResult<Value> {
        let name = self.names.for_node(node);
        let output = self.push_as(name, op, inputs, parameters)?;
        Ok(Value::LayerOutput(LayerOutput { single_use: self.is_single_use(node), ..output }))
    }

    /// Adds a layer with a given name and a single reader.
    fn push_as(
        &mut self,
        name: String,
        op: impl Into<Op>,
        inputs: &[LayerOutput],
        parameters: Vec<Vec<f32>>,
    ) -> ImportResult<LayerOutput> {
        if self.layers.len() == MAX_LAYERS {
            return Err(Problem::Limit { items: "layers", limit: MAX_LAYERS as u64 }.into());
        }
        let op = op.into();
        let shapes: Vec<&Shape> = inputs.iter().map(|input| self.layer_shape(input.id)).collect();
        let shape = op.output_shape(&shapes).map_err(|error| error.to_string())?;
        for (spec, values) in op.parameters().iter().zip(&parameters) {
            let expected = Shape(spec.shape.clone()).elements();
            if values.len() != expected {
                return Err(
                    format!("its {} has {} values, expected {expected}", spec.name, values.len()).into()
                );
            }
        }
        self.spend_elements(parameters.iter().map(Vec::len).sum())?;
        let inputs_not_negative =
            inputs.iter().all(|input| input.id > 0 && self.layers[input.id - 1].not_negative);
        let not_negative = op.is_never_negative(inputs_not_negative);
        let inputs: Vec<usize> = inputs.iter().map(|input| input.id).collect();
        self.layers.push(Layer { name, op, inputs, shape, parameters, not_negative });
        Ok(LayerOutput { id: self.layers.len(), order: DimOrder::ChannelsFirst, single_use: true, pad: None })
    }
}
