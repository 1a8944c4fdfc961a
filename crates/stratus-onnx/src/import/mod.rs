//! Importing an ONNX graph: each node becomes a layer, a part of a layer, or a constant.
//!
//! Nodes are visited once, in order. Values that do not depend on the images are computed ([`constants`]);
//! the others become layers ([`layers`]). Images may be channels-last for a while ([`Order`]), as in models
//! from TensorFlow. An unsupported node does not end the import: one error lists all of them.

mod arithmetic;
mod channels;
mod constants;
mod ends;
mod gelu;
mod layers;
mod moving;
mod names;
mod operators;
mod pooling;
mod resizing;
mod transposed;

use crate::error::{Parsed, Problem, RefusedNode};
use crate::proto::{self, Node, is_onnx};
use crate::tensor::{self, Constant, Folder, MOST_FILLED};
use ends::{Images, images, output};
use gelu::{GeluPart, PART};
use names::Names;
use std::collections::{HashMap, HashSet};
use stratus_base::printable;
use stratus_graph::{Graph, GraphBuilder, Op, Operation, Shape};
use stratus_weights::{NetworkMetadata, Tensor, Values};

/// The most layers; the same limit as in layer files.
const MOST_LAYERS: usize = 10_000;
/// The most numbers in layers and constants: 4 GiB.
const MOST_NUMBERS: usize = 1 << 30;
/// The largest extent or count, as in a layer file.
const LARGEST: usize = 1 << 20;
/// The supported operator sets.
const OPSETS: std::ops::RangeInclusive<i64> = 7..=27;

/// What a file does not specify.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// The network's name; letters, digits, `_`, `-` and `.` of it are taken.
    pub name: String,
    /// Channels, height and width of the images, for models that leave them open.
    pub input: Option<[usize; 3]>,
}

/// A network and its weights.
#[derive(Clone, Debug, PartialEq)]
pub struct Imported {
    /// The network; its parameters begin as their operations have it, not with the file's weights.
    pub graph: Graph,
    /// The weights of the file, by the keys of the network, as f32.
    pub weights: Vec<Tensor>,
    /// What the model says of images and classes.
    pub metadata: NetworkMetadata,
    /// Notes on what was omitted or changed.
    pub notes: Vec<String>,
}

/// An extent of a shape that is being computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Extent {
    Known(i64),
    /// The batch size, which is unknown.
    Batch,
}

/// The value of a name in the graph.
#[derive(Clone, Debug)]
enum Value {
    /// An initialiser, by its position, or a computed constant.
    Initialiser(usize),
    Constant(Constant),
    /// A shape, or a part of one.
    Extents(Vec<Extent>),
    /// The output of a layer.
    LayerOutput(LayerOutput),
    /// A part of a GELU of a layer's output.
    Gelu(GeluPart, LayerOutput),
    /// The output of an unsupported node, or of a node that reads one.
    Unknown,
}

/// The dimension order of a tensor in the file. Layers always have channels first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Order {
    /// Channels, height, width, or a vector.
    Plain,
    /// An image with its channels last.
    ChannelsLast,
    /// A vector that was an image `[channels, height, width]` with its channels last.
    Flattened([usize; 3]),
    /// An image whose channels are two dimensions: so many groups, and those of a group.
    Grouped(usize),
    /// The same with the groups behind: channels of so many groups in turn.
    InTurn(usize),
}

/// The output of a layer, as the file sees it.
#[derive(Clone, Copy, Debug)]
struct LayerOutput {
    /// The layer's position, from 1; 0 are the images.
    id: usize,
    order: Order,
    /// Whether it has a single reader: then its layer may still be changed.
    sole: bool,
    /// Padding from `Pad` that no layer has absorbed yet.
    pad: Option<Pad>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
struct Pad {
    before: [usize; 2],
    after: [usize; 2],
    /// Whether the padding is zero, else minus infinity.
    zeros: bool,
}

/// A layer before it is added to the graph.
#[derive(Debug)]
struct Layer {
    name: String,
    op: Op,
    inputs: Vec<usize>,
    shape: Shape,
    /// The values of its parameters, in the order of its operation's.
    parameters: Vec<Vec<f32>>,
    /// Whether its output is never negative.
    not_negative: bool,
}

/// Why a node is not imported.
enum Refusal {
    /// It is unsupported, for this reason.
    Node(String),
    /// Unknown: it reads the output of an unsupported node.
    Unknown,
    /// The file as a whole is refused.
    File(Problem),
}

impl From<Problem> for Refusal {
    fn from(problem: Problem) -> Self {
        Self::File(problem)
    }
}

impl From<String> for Refusal {
    fn from(reason: String) -> Self {
        Self::Node(reason)
    }
}

impl From<&str> for Refusal {
    fn from(reason: &str) -> Self {
        Self::Node(reason.to_owned())
    }
}

type ImportResult<T> = Result<T, Refusal>;

struct Importer<'a> {
    graph: &'a proto::Graph<'a>,
    /// The model's operator set.
    opset: i64,
    folder: Option<&'a Folder>,
    values: HashMap<&'a str, Value>,
    /// How often each name is read.
    uses: HashMap<&'a str, usize>,
    /// The node that makes each name.
    makers: HashMap<&'a str, &'a Node<'a>>,
    /// The last node that reads each name.
    readers: HashMap<&'a str, &'a Node<'a>>,
    input: Shape,
    /// How many images the model was written for; 1 where that is open.
    batch: i64,
    layers: Vec<Layer>,
    /// The remaining budget of numbers. Nodes that share a weight get copies: a small file must not become a
    /// large network.
    numbers: usize,
    /// The remaining budget of numbers in constants that the file has in fewer.
    filled: usize,
    /// The first node that rounds to a shorter floating-point type, and how many there are.
    rounding: Option<(&'a Node<'a>, usize)>,
    /// The first node that says that it trains, and how many there are.
    training: Option<(&'a Node<'a>, usize)>,
    names: Names,
    notes: Vec<String>,
}

pub(crate) fn import(
    model: &proto::Model<'_>,
    folder: Option<&Folder>,
    options: &Options,
) -> Parsed<Imported> {
    if !OPSETS.contains(&model.opset) {
        return Err(Problem::Kind {
            what: format!("it is written in ONNX's operator set {}", model.opset),
            remedy: "sets 7 to 27 are read: export it in one of these, such as 17",
        });
    }
    let graph = &model.graph;
    let mut notes = Vec::new();
    let metadata = NetworkMetadata::read(model.metadata.iter().copied()).unwrap_or_else(|problem| {
        let problem = printable(&problem);
        notes.push(format!("what the model says of images and classes is left out: {problem}"));
        NetworkMetadata::default()
    });
    if let Some(operator) = model.functions.iter().find(|(domain, _)| is_onnx(domain)).map(|(_, name)| name) {
        return Err(Problem::Kind {
            what: format!("it has a function of its own in the place of ONNX's `{}`", printable(operator)),
            remedy: "inline its functions: onnx.inliner.inline_local_functions",
        });
    }
    let (output, softmax) = output(graph, model.opset, &mut notes)?;
    let live = live(graph, output)?;
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
            return Err(Problem::damaged(format!(
                "two initialisers are called `{}`",
                printable(tensor.name)
            )));
        }
    }
    let Images { name: images, order, batch, shape: input } = images(graph, &live, &values, options)?;
    let sole = uses.get(images).is_some_and(|&count| count == 1);
    values.insert(images, Value::LayerOutput(LayerOutput { id: 0, order, sole, pad: None }));
    let names = Names::new(graph, &live);
    let mut filled = MOST_FILLED;
    let mut numbers = LARGEST;
    for tensor in &graph.initialisers {
        let count = tensor::elements(tensor);
        if tensor.indices.is_some() {
            filled = filled.checked_sub(count).ok_or_else(|| too_much_filled(tensor.name))?;
        }
        numbers = numbers.saturating_add(count.saturating_mul(2));
    }
    let (input, layers) = (Shape(input.to_vec()), Vec::new());
    let numbers = numbers.min(MOST_NUMBERS);
    let makers = graph.nodes.iter().flat_map(|node| node.outputs.iter().map(move |name| (*name, node)));
    let makers = makers.collect();
    let mut importer = Importer {
        graph,
        opset: model.opset,
        folder,
        values,
        uses,
        makers,
        readers,
        input,
        batch,
        layers,
        numbers,
        filled,
        rounding: None,
        training: None,
        names,
        notes,
    };
    importer.walk(&live)?;
    Ok(Imported { metadata, ..importer.finish(output, softmax, options)? })
}

fn too_much_filled(name: &str) -> Problem {
    Problem::Kind {
        what: format!(
            "with `{}` it has more than {MOST_FILLED} numbers that it does not list one by one",
            printable(name)
        ),
        remedy: "store its sparse and filled weights as ordinary initialisers",
    }
}

/// The positions of the nodes that the output depends on, in order.
fn live(graph: &proto::Graph<'_>, output: &str) -> Parsed<Vec<usize>> {
    let mut made = HashSet::new();
    for node in &graph.nodes {
        if let Some(twice) = node.outputs.iter().find(|name| !name.is_empty() && !made.insert(**name)) {
            return Err(Problem::damaged(format!("`{}` is made twice", printable(twice))));
        }
    }
    let mut wanted = HashSet::from([output]);
    let mut live = Vec::new();
    for (position, node) in graph.nodes.iter().enumerate().rev() {
        if node.outputs.iter().any(|name| wanted.contains(name)) {
            wanted.extend(node.inputs.iter().filter(|name| !name.is_empty()));
            live.push(position);
        }
    }
    live.reverse();
    Ok(live)
}

/// What a node is called in messages: its name, or where it has none that of its output.
fn called<'a>(node: &Node<'a>) -> &'a str {
    if node.name.is_empty() { node.outputs.first().copied().unwrap_or_default() } else { node.name }
}

fn refusal(node: &Node<'_>, reason: String) -> RefusedNode {
    let domain = if is_onnx(node.domain) { String::new() } else { format!("{}.", node.domain) };
    let operator = printable(&format!("{domain}{}", node.operator));
    RefusedNode { node: printable(called(node)), operator, reason }
}

/// Counts a node of which only the first is named.
fn count_up<'a>(seen: &mut Option<(&'a Node<'a>, usize)>, node: &'a Node<'a>) {
    *seen = Some(seen.map_or((node, 1), |(first, count)| (first, count + 1)));
}

impl<'a> Importer<'a> {
    fn walk(&mut self, live: &[usize]) -> Parsed<()> {
        let graph = self.graph;
        let mut refused = Vec::new();
        for &position in live {
            let node = &graph.nodes[position];
            let values = match self.take(node) {
                Ok(values) => values,
                Err(Refusal::File(problem)) => return Err(problem),
                Err(Refusal::Unknown) => vec![],
                Err(Refusal::Node(reason)) => {
                    refused.push(refusal(node, reason));
                    vec![]
                }
            };
            for value in &values {
                if let Value::Constant(constant) = value {
                    self.charge(constant.shape.iter().product())?;
                }
            }
            for (output, name) in node.outputs.iter().enumerate().filter(|(_, name)| !name.is_empty()) {
                // Masks and statistics: a node that reads one is named.
                let value = values.get(output).cloned().unwrap_or(Value::Unknown);
                if self.values.insert(name, value).is_some() {
                    return Err(Problem::damaged(format!("`{}` is made twice", printable(name))));
                }
                if !values.is_empty() && values.len() <= output && self.uses.contains_key(name) {
                    let (node, operator) = (printable(node.name), printable(node.operator));
                    refused.push(RefusedNode {
                        node,
                        operator,
                        reason: format!("its output number {} is read", output + 1),
                    });
                }
            }
        }
        if refused.is_empty() { Ok(()) } else { Err(Problem::Nodes(refused)) }
    }

    fn finish(mut self, output: &str, softmax: Option<&Node<'_>>, options: &Options) -> Parsed<Imported> {
        let kind = |what: String| Problem::Kind { what, remedy: "export the network up to its logits" };
        let made = match self.values.get(output) {
            Some(Value::LayerOutput(made)) if made.id > 0 => *made,
            _ => {
                return Err(kind(format!("its output `{}` does not come from any layer", printable(output))));
            }
        };
        if made.order != Order::Plain || made.pad.is_some() {
            return Err(kind(format!(
                "its output `{}` has its channels last or in groups, or padding around it",
                printable(output)
            )));
        }
        if let Some(node) = softmax {
            self.over_classes(node, self.shape(made.id).0.len() + 1)?;
        }
        let name = names::plain(&options.name);
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
        let graph = builder.finish(tensors[made.id])?;
        self.notes.extend(self.names.notes());
        let named = |(node, count): (&Node<'_>, usize)| {
            let others = if count > 1 { format!(" and {} more like it", count - 1) } else { String::new() };
            format!("{} `{}`{others}", node.operator, printable(called(node)))
        };
        if let Some(rounding) = self.rounding {
            let named = named(rounding);
            self.notes.push(format!("{named} rounds to a shorter type: left out, as layers compute in f32"));
        }
        if let Some(training) = self.training {
            let named = named(training);
            self.notes.push(format!(
                "{named} says that it trains: here whether the network trains or infers says so"
            ));
        }
        Ok(Imported { graph, weights, metadata: NetworkMetadata::default(), notes: self.notes })
    }

    /// What a node makes.
    fn take(&mut self, node: &'a Node<'a>) -> ImportResult<Vec<Value>> {
        if !is_onnx(node.domain) {
            return Err("it is of another domain than ONNX's own operators".into());
        }
        operators::check(node, self.opset)?;
        if let Some(name) =
            node.inputs.iter().find(|name| !name.is_empty() && !self.values.contains_key(**name))
        {
            let reason = format!("`{}` is read before it is made", printable(name));
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

    /// Takes account of numbers that are kept.
    fn charge(&mut self, count: usize) -> Parsed<()> {
        let left = self.numbers.checked_sub(count);
        self.numbers = left.ok_or_else(|| Problem::Kind {
            what: "its layers would hold more than twice the weights that it has".to_owned(),
            remedy: "a network whose layers share that much cannot be trained layer by layer",
        })?;
        Ok(())
    }

    /// The value that an input names.
    fn value(&self, node: &Node<'a>, position: usize) -> ImportResult<&Value> {
        let name = node.input(position).ok_or_else(|| format!("it has no input number {}", position + 1))?;
        match self.values.get(name) {
            Some(Value::Unknown) | None => Err(Refusal::Unknown),
            Some(value) => Ok(value),
        }
    }

    /// An input that does not depend on the images; none where it is left out.
    fn constant(&self, node: &Node<'a>, position: usize) -> ImportResult<Option<Constant>> {
        if node.input(position).is_none() {
            return Ok(None);
        }
        match self.value(node, position)? {
            Value::Initialiser(position) => {
                Ok(Some(tensor::read(&self.graph.initialisers[*position], self.folder)?))
            }
            Value::Constant(constant) => Ok(Some(constant.clone())),
            Value::Extents(extents) => {
                let known = extents.iter().map(|extent| match extent {
                    Extent::Known(value) => Some(*value),
                    Extent::Batch => None,
                });
                let values: Option<Vec<i64>> = known.collect();
                let values = values.ok_or("a number it needs depends on how many images there are")?;
                Ok(Some(Constant::ints(vec![values.len()], values)))
            }
            Value::Gelu(..) => Err(PART.into()),
            Value::LayerOutput(_) | Value::Unknown => {
                Err(format!("its input number {} is computed from the images and not fixed", position + 1)
                    .into())
            }
        }
    }

    /// An input that depends on the images, padded or not.
    fn padded(&self, node: &Node<'a>, position: usize) -> ImportResult<LayerOutput> {
        match self.value(node, position)? {
            Value::LayerOutput(LayerOutput { order: Order::Grouped(_) | Order::InTurn(_), .. }) => {
                Err("it reads channels in groups: only a shuffle of channels is taken".into())
            }
            Value::LayerOutput(made) => Ok(*made),
            Value::Gelu(..) => Err(PART.into()),
            _ => Err(format!("its input number {} does not depend on the images", position + 1).into()),
        }
    }

    /// An input that depends on the images.
    fn made(&self, node: &Node<'a>, position: usize) -> ImportResult<LayerOutput> {
        let made = self.padded(node, position)?;
        match made.pad {
            Some(_) => {
                Err("it reads what was padded: only convolutions and pooling can take the padding over"
                    .into())
            }
            None => Ok(made),
        }
    }

    /// An input that depends on the images, in the order that layers have.
    fn plain(&self, node: &Node<'a>, position: usize) -> ImportResult<LayerOutput> {
        let made = self.made(node, position)?;
        match made.order {
            Order::Plain => Ok(made),
            _ => Err("it reads images with their channels last".into()),
        }
    }

    /// The shape of what a layer makes, channels first.
    fn shape(&self, id: usize) -> &Shape {
        id.checked_sub(1).map_or(&self.input, |layer| &self.layers[layer].shape)
    }

    /// Channels, height and width of an image.
    fn image(&self, made: LayerOutput) -> ImportResult<[usize; 3]> {
        Ok(self.shape(made.id).as_image().map_err(|error| error.to_string())?)
    }

    /// The layer that makes a value, where nothing else reads it.
    fn sole_layer(&mut self, made: LayerOutput) -> Option<&mut Layer> {
        made.id.checked_sub(1).filter(|_| made.sole).map(|layer| &mut self.layers[layer])
    }

    fn is_sole(&self, node: &Node<'a>) -> bool {
        node.outputs.first().is_some_and(|name| self.uses.get(name) == Some(&1))
    }

    /// The node that reads what a node makes, where there is one alone.
    fn sole_reader(&self, node: &Node<'a>) -> Option<&'a Node<'a>> {
        let name = node.outputs.first().filter(|name| !name.is_empty() && self.is_sole(node))?;
        self.readers.get(name).copied()
    }

    /// The same value under another name.
    fn alias(&self, node: &Node<'a>, made: LayerOutput) -> Value {
        Value::LayerOutput(LayerOutput { sole: made.sole && self.is_sole(node), ..made })
    }

    /// Adds the layer of a node.
    fn push(
        &mut self,
        node: &Node<'a>,
        op: impl Into<Op>,
        inputs: &[LayerOutput],
        parameters: Vec<Vec<f32>>,
    ) -> ImportResult<Value> {
        let name = self.names.of(node);
        let made = self.push_as(name, op, inputs, parameters)?;
        Ok(Value::LayerOutput(LayerOutput { sole: self.is_sole(node), ..made }))
    }

    /// Adds a layer of a given name, which nothing else reads than what follows.
    fn push_as(
        &mut self,
        name: String,
        op: impl Into<Op>,
        inputs: &[LayerOutput],
        parameters: Vec<Vec<f32>>,
    ) -> ImportResult<LayerOutput> {
        if self.layers.len() == MOST_LAYERS {
            return Err(Problem::Limit { what: "layers", limit: MOST_LAYERS as u64 }.into());
        }
        let op = op.into();
        let shapes: Vec<&Shape> = inputs.iter().map(|made| self.shape(made.id)).collect();
        let shape = op.output_shape(&shapes).map_err(|error| error.to_string())?;
        for (spec, values) in op.parameters().iter().zip(&parameters) {
            let wanted = Shape(spec.shape.clone()).elements();
            if values.len() != wanted {
                return Err(
                    format!("its {} has {} values, {wanted} are wanted", spec.name, values.len()).into()
                );
            }
        }
        self.charge(parameters.iter().map(Vec::len).sum())?;
        let all = inputs.iter().all(|made| made.id > 0 && self.layers[made.id - 1].not_negative);
        let not_negative = match &op {
            Op::Relu(_) | Op::Relu6(_) | Op::Sigmoid(_) | Op::HardSigmoid(_) => true,
            Op::MaxPool2d(_)
            | Op::AvgPool2d(_)
            | Op::AdaptiveAvgPool2d(_)
            | Op::Dropout(_)
            | Op::Dropout2d(_)
            | Op::StochasticDepth(_)
            | Op::ChannelScale(_)
            | Op::ChannelShuffle(_)
            | Op::ChannelSlice(_)
            | Op::Flatten(_)
            | Op::Resize(_)
            | Op::Add(_)
            | Op::Concat(_) => all,
            _ => false,
        };
        let inputs: Vec<usize> = inputs.iter().map(|made| made.id).collect();
        self.layers.push(Layer { name, op, inputs, shape, parameters, not_negative });
        Ok(LayerOutput { id: self.layers.len(), order: Order::Plain, sole: true, pad: None })
    }
}
