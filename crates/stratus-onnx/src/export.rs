//! Exporting a network with its weights: in inference form, without auxiliary outputs.

use crate::error::WriteError;
use crate::model::LONGEST;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::fs::File;
use std::io::{self, Read, Write};
use std::path::Path;
use stratus_base::protobuf::Message;
use stratus_graph::ops::{
    AdaptiveAvgPool2d, AvgPool2d, Conv2d, Linear, LocalResponseNorm, MaxPool2d, Relu6, Resize, ResizeTo,
};
use stratus_graph::{Graph, Node, Op, Operation, Shape, TensorId};
use stratus_weights::{TensorRef, ValuesRef};

/// The operator set that files are written in, unless a layer needs [`WITH_GELU`].
pub const OPSET: i64 = 17;
/// The first operator set that has `Gelu`.
pub const WITH_GELU: i64 = 20;

/// The versions of the format that belong to the operator sets.
const FORMATS: [i64; 2] = [8, 9];

/// The operator set that a network's file is written in, and the version of the format that belongs to it.
fn versions(graph: &Graph) -> [i64; 2] {
    let gelu = graph.nodes.iter().any(|node| matches!(node.op, Op::Gelu(_)));
    if gelu { [WITH_GELU, FORMATS[1]] } else { [OPSET, FORMATS[0]] }
}

/// The name of the images, `[batch, channels, height, width]`.
pub const INPUT: &str = "input";
/// The name of the logits, `[batch, classes]`.
pub const OUTPUT: &str = "output";
/// The name of the first dimension.
const BATCH: &str = "batch";

/// The name of the program, `ModelProto.producer_name`.
const PRODUCER: &[u8] = b"stratus";

/// Whether a file is a model that [`write()`] wrote: it begins with the version of the format and the
/// producer's name.
///
/// # Errors
/// Where it cannot be read.
pub fn is_own(path: &Path) -> io::Result<bool> {
    let begins = |format: i64| Message::default().int(1, format).bytes(2, PRODUCER).0;
    let mut head = Vec::new();
    File::open(path)?.take(64).read_to_end(&mut head)?;
    Ok(FORMATS.iter().any(|format| head.starts_with(&begins(*format))))
}

/// `TensorProto.DataType.FLOAT`.
const FLOAT: i64 = 1;
/// `TensorProto.DataType.INT64`.
const INT64: i64 = 7;
/// What a node's `doc_string` says whose layer ONNX has no operator for and another one computes.
pub(crate) const ADAPTIVE: &str = "adaptive_avg_pool2d";
/// The same of spatial dropout, which inference does not tell from the other.
pub(crate) const SPATIAL: &str = "dropout2d";
/// The same of stochastic depth.
pub(crate) const DEPTH: &str = "stochastic_depth";
/// The same of a linear layer at every pixel, which a convolution computes.
pub(crate) const POINTWISE: &str = "pointwise_linear";
/// The same of factors for channels that are trained.
pub(crate) const LAYER_SCALE: &str = "layer_scale";
/// The slope of `HardSigmoid` between its bends, and its value at 0.
pub(crate) const HARD_SIGMOID: [f32; 2] = [1.0 / 6.0, 0.5];

/// Writes `graph` in inference form with `weights` under their keys, streaming: nothing of the weights' size
/// is held in memory.
///
/// The input is called [`INPUT`], the output [`OUTPUT`]; their first dimension, `batch`, may be of any size.
/// Initialisers are called as the parameters are, nodes as the layers. Weights that the network has no
/// parameter for are left out. `metadata` goes into `metadata_props`: texts by keys.
///
/// # Errors
/// Where a parameter is missing or of another shape, a layer has no form in ONNX, or `out` cannot be written
/// to.
pub fn write(
    out: &mut dyn Write,
    graph: &Graph,
    weights: &[TensorRef<'_>],
    metadata: &BTreeMap<String, String>,
) -> Result<(), WriteError> {
    let graph = graph.for_inference();
    let weights = parameters(&graph, weights)?;
    let mut export = Export::new(&graph);
    for node in &graph.nodes {
        export.node(node);
    }
    if graph.nodes.is_empty() {
        export.push("identity", "Identity", "", &[INPUT.to_owned()], OUTPUT, &Attributes::default());
    }
    if !export.refused.is_empty() {
        return Err(WriteError::Layers(export.refused));
    }
    let mut network = export.nodes.bytes(2, graph.name.as_bytes());
    for constant in export.constants {
        network = network.bytes(5, &constant.0);
    }
    // Linear layers at every pixel are written as the convolutions that they are.
    let pointwise: HashSet<&str> = graph
        .nodes
        .iter()
        .filter(|node| matches!(node.op, Op::PointwiseLinear(_)))
        .filter_map(|node| Some(graph.parameters[node.parameters.first()?.0].name.as_str()))
        .collect();
    let shape = |parameter: &stratus_graph::Parameter| {
        let taps = if pointwise.contains(parameter.name.as_str()) { 2 } else { 0 };
        parameter.shape.iter().copied().chain(std::iter::repeat_n(1, taps)).collect::<Vec<usize>>()
    };
    let announced: Vec<Message> = graph
        .parameters
        .iter()
        .zip(&weights)
        .map(|(parameter, values)| {
            let bytes = values.bytes() as u64;
            let tensor = tensor_head(&parameter.name, &shape(parameter), FLOAT).announce(9, bytes);
            let mut message = Message::default().announce(5, tensor.0.len() as u64 + bytes);
            message.0.extend(tensor.0);
            message
        })
        .collect();
    let tail = Message::default()
        .bytes(11, &value_info(INPUT, graph.input_shape()).0)
        .bytes(12, &value_info(OUTPUT, graph.shape(graph.output)).0);
    let weighed =
        announced.iter().zip(&weights).map(|(head, values)| head.0.len() + values.bytes()).sum::<usize>();
    let length = (network.0.len() + weighed + tail.0.len()) as u64;
    let [opset, format] = versions(&graph);
    let opset = Message::default().int(2, opset);
    let model = Message::default()
        .int(1, format)
        .bytes(2, PRODUCER)
        .bytes(3, env!("CARGO_PKG_VERSION").as_bytes())
        .bytes(8, &opset.0);
    let entry = |(key, text): (&String, &String)| {
        Message::default().bytes(1, key.as_bytes()).bytes(2, text.as_bytes())
    };
    let model = metadata.iter().map(entry).fold(model, |model, entry| model.bytes(14, &entry.0));
    let model = model.announce(7, length);
    let total = length + model.0.len() as u64;
    if total > LONGEST {
        return Err(WriteError::TooLarge(total));
    }
    out.write_all(&model.0)?;
    out.write_all(&network.0)?;
    for (head, values) in announced.iter().zip(weights) {
        out.write_all(&head.0)?;
        values.for_each_piece(|piece| out.write_all(piece))?;
    }
    Ok(out.write_all(&tail.0)?)
}

/// The values of every parameter, in the graph's order.
fn parameters<'a>(graph: &Graph, weights: &[TensorRef<'a>]) -> Result<Vec<ValuesRef<'a>>, WriteError> {
    let given: HashMap<&str, &TensorRef<'a>> = weights.iter().map(|tensor| (tensor.name, tensor)).collect();
    let value = |parameter: &stratus_graph::Parameter| {
        let tensor =
            given.get(parameter.name.as_str()).ok_or_else(|| WriteError::Missing(parameter.name.clone()))?;
        let values = tensor.values;
        let fits =
            tensor.shape == parameter.shape && values.bytes() == parameter.elements() * size_of::<f32>();
        if values.dtype() == "F32" && fits {
            return Ok(values);
        }
        Err(WriteError::Mismatch {
            name: parameter.name.clone(),
            found: format!("{} {:?}", values.dtype().to_lowercase(), tensor.shape),
            wanted: parameter.shape.clone(),
        })
    };
    graph.parameters.iter().map(value).collect()
}

/// A `TensorProto` but for its values.
fn tensor_head(name: &str, shape: &[usize], kind: i64) -> Message {
    let head = shape.iter().fold(Message::default(), |head, &extent| head.int(1, extent as i64));
    head.int(2, kind).bytes(8, name.as_bytes())
}

/// A `ValueInfoProto`: images or vectors, a batch of them.
fn value_info(name: &str, shape: &Shape) -> Message {
    let batch = Message::default().bytes(2, BATCH.as_bytes());
    let extents = shape.0.iter().fold(Message::default().bytes(1, &batch.0), |extents, &extent| {
        extents.bytes(1, &Message::default().int(1, extent as i64).0)
    });
    let tensor = Message::default().int(1, FLOAT).bytes(2, &extents.0);
    Message::default().bytes(1, name.as_bytes()).bytes(2, &Message::default().bytes(1, &tensor.0).0)
}

/// The attributes of a node.
#[derive(Default)]
struct Attributes(Vec<Message>);

impl Attributes {
    fn int(mut self, name: &str, value: i64) -> Self {
        self.0.push(Message::default().bytes(1, name.as_bytes()).int(3, value).int(20, 2));
        self
    }

    fn float(mut self, name: &str, value: f32) -> Self {
        self.0.push(Message::default().bytes(1, name.as_bytes()).float(2, value).int(20, 1));
        self
    }

    fn text(mut self, name: &str, value: &str) -> Self {
        let head = Message::default().bytes(1, name.as_bytes());
        self.0.push(head.bytes(4, value.as_bytes()).int(20, 3));
        self
    }

    fn ints(mut self, name: &str, values: &[usize]) -> Self {
        let head = Message::default().bytes(1, name.as_bytes());
        self.0.push(values.iter().fold(head, |message, &value| message.int(8, value as i64)).int(20, 7));
        self
    }
}

struct Export<'a> {
    graph: &'a Graph,
    /// The name of every tensor made so far.
    tensors: HashMap<TensorId, String>,
    /// Every name of a tensor or initialiser that is taken.
    names: HashSet<String>,
    /// The graph's nodes, encoded.
    nodes: Message,
    /// Initialisers that are no parameters, encoded.
    constants: Vec<Message>,
    refused: Vec<String>,
}

impl<'a> Export<'a> {
    fn new(graph: &'a Graph) -> Self {
        let fixed = [INPUT, OUTPUT].into_iter().chain(graph.parameters.iter().map(|p| p.name.as_str()));
        Self {
            graph,
            tensors: HashMap::from([(graph.input, INPUT.to_owned())]),
            names: fixed.map(str::to_owned).collect(),
            nodes: Message::default(),
            constants: Vec::new(),
            refused: Vec::new(),
        }
    }

    /// A name that nothing else has.
    fn unique(&mut self, wanted: &str) -> String {
        let mut name = wanted.to_owned();
        while !self.names.insert(name.clone()) {
            name.push('_');
        }
        name
    }

    /// Adds an initialiser that is no parameter; returns its name.
    fn constant(&mut self, wanted: &str, shape: &[usize], values: &[f32]) -> String {
        let name = self.unique(wanted);
        let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        self.constants.push(tensor_head(&name, shape, FLOAT).bytes(9, &bytes));
        name
    }

    /// The same of extents.
    fn extents(&mut self, wanted: &str, values: &[usize]) -> String {
        let name = self.unique(wanted);
        let bytes: Vec<u8> = values.iter().flat_map(|value| (*value as i64).to_le_bytes()).collect();
        self.constants.push(tensor_head(&name, &[values.len()], INT64).bytes(9, &bytes));
        name
    }

    fn push(
        &mut self,
        name: &str,
        operator: &str,
        doc: &str,
        inputs: &[String],
        output: &str,
        attributes: &Attributes,
    ) {
        let mut node = inputs.iter().fold(Message::default(), |node, input| node.bytes(1, input.as_bytes()));
        node = node.bytes(2, output.as_bytes()).bytes(3, name.as_bytes()).bytes(4, operator.as_bytes());
        node = attributes.0.iter().fold(node, |node, attribute| node.bytes(5, &attribute.0));
        if !doc.is_empty() {
            node = node.bytes(6, doc.as_bytes());
        }
        let nodes = std::mem::take(&mut self.nodes);
        self.nodes = nodes.bytes(1, &node.0);
    }

    /// Adds a layer: a node, or where ONNX has no operator for it several.
    fn node(&mut self, node: &Node) {
        let mut inputs: Vec<String> = node.inputs.iter().map(|id| self.tensors[id].clone()).collect();
        inputs.extend(node.parameters.iter().map(|id| self.graph.parameters[id.0].name.clone()));
        let output =
            if node.output == self.graph.output { OUTPUT.to_owned() } else { self.unique(&node.name) };
        self.tensors.insert(node.output, output.clone());
        let plain = Attributes::default;
        let (operator, doc, attributes) = match &node.op {
            Op::Conv2d(op) => ("Conv", "", conv(op)),
            Op::ConvTranspose2d(op) => {
                let attributes = conv(&op.transposed()).ints("output_padding", &op.output_padding);
                ("ConvTranspose", "", attributes)
            }
            Op::PointwiseLinear(op) => ("Conv", POINTWISE, conv(&op.conv())),
            Op::LayerNorm2d(op) => return self.layer_norm(op.epsilon, node, &inputs, &output),
            Op::LayerScale(_) => ("Mul", LAYER_SCALE, plain()),
            Op::Linear(Linear { .. }) => ("Gemm", "", plain().int("transB", 1)),
            Op::BatchNorm2d(op) => {
                let momentum = (1.0 - f64::from(op.momentum)) as f32;
                ("BatchNormalization", "", plain().float("epsilon", op.epsilon).float("momentum", momentum))
            }
            Op::Relu(_) => ("Relu", "", plain()),
            Op::Gelu(_) => ("Gelu", "", plain()),
            Op::Sigmoid(_) => ("Sigmoid", "", plain()),
            Op::HardSigmoid(_) => {
                let [alpha, beta] = HARD_SIGMOID;
                ("HardSigmoid", "", plain().float("alpha", alpha).float("beta", beta))
            }
            Op::HardSwish(_) => ("HardSwish", "", plain()),
            Op::ChannelScale(_) => ("Mul", "", plain()),
            Op::Silu(_) => return self.silu(node, inputs, &output),
            Op::ChannelShuffle(op) => return self.channel_shuffle(op.groups, node, &inputs, &output),
            Op::ChannelSlice(op) => {
                let bounds = [("start", op.first), ("end", op.first + op.channels), ("axis", 1)];
                for (part, bound) in bounds {
                    inputs.push(self.extents(&format!("{}.{part}", node.name), &[bound]));
                }
                ("Slice", "", plain())
            }
            Op::Relu6(_) => {
                inputs.push(self.constant(&format!("{}.min", node.name), &[], &[0.0]));
                inputs.push(self.constant(&format!("{}.max", node.name), &[], &[Relu6::CEILING]));
                ("Clip", "", plain())
            }
            Op::MaxPool2d(op) => ("MaxPool", "", self.max_pool(op, node)),
            Op::AvgPool2d(op) => ("AveragePool", "", avg_pool(op)),
            Op::AdaptiveAvgPool2d(AdaptiveAvgPool2d::GLOBAL) => ("GlobalAveragePool", "", plain()),
            Op::AdaptiveAvgPool2d(op) => match even(op, self.graph.shape(node.inputs[0])) {
                Some(op) => ("AveragePool", ADAPTIVE, avg_pool(&op)),
                None => return self.adaptive(op, node, inputs, &output),
            },
            // A window of even size lies one channel further on in ONNX: it has no form.
            Op::LocalResponseNorm(op) if op.size % 2 == 1 => ("LRN", "", lrn(op)),
            Op::Flatten(_) => ("Flatten", "", plain().int("axis", 1)),
            Op::Dropout(op) => {
                inputs.push(self.constant(&format!("{}.ratio", node.name), &[], &[op.p]));
                ("Dropout", "", plain())
            }
            Op::Dropout2d(op) => {
                inputs.push(self.constant(&format!("{}.ratio", node.name), &[], &[op.p]));
                ("Dropout", SPATIAL, plain())
            }
            Op::StochasticDepth(op) => {
                inputs.push(self.constant(&format!("{}.ratio", node.name), &[], &[op.p]));
                ("Dropout", DEPTH, plain())
            }
            Op::Scale(op) => {
                inputs.push(self.constant(&format!("{}.factor", node.name), &[], &[op.factor]));
                ("Mul", "", plain())
            }
            Op::Resize(op) => match self.resize(op, node, &inputs) {
                Some(of_resize) => {
                    inputs = of_resize;
                    ("Resize", "", resize(op))
                }
                None => return self.refuse(node),
            },
            Op::Add(_) => ("Add", "", plain()),
            Op::Concat(_) => ("Concat", "", plain().int("axis", 1)),
            #[allow(
                unreachable_patterns,
                reason = "an operation that is new to the graph is refused until it has a line here"
            )]
            _ => return self.refuse(node),
        };
        self.push(&node.name, operator, doc, &inputs, &output, &attributes);
    }

    /// Notes that a layer has no form in ONNX.
    fn refuse(&mut self, node: &Node) {
        let attributes = node.op.attributes();
        let space = if attributes.is_empty() { "" } else { " " };
        self.refused.push(format!("`{}` ({}{space}{attributes})", node.name, node.op.kind()));
    }

    /// The inputs of a `Resize`: the image, no region, and scales or sizes of all four dimensions. Sizes are
    /// put together from the batch and the channels there are and the height and width that it is resized to.
    /// `None` where the scale, rounded to f32, makes another size.
    fn resize(&mut self, op: &Resize, node: &Node, inputs: &[String]) -> Option<Vec<String>> {
        let x = inputs.first()?.clone();
        let (name, region) = (&node.name, String::new());
        let size = match op.to {
            ResizeTo::Scale(scale) => {
                let scale = scale.map(|scale| scale as f32);
                let [input, output] = [node.inputs[0], node.output].map(|id| self.graph.shape(id));
                let fits =
                    (0..2).all(|axis| scaled(input.0[axis + 1], scale[axis]) == Some(output.0[axis + 1]));
                let scales = fits.then(|| [1.0, 1.0, scale[0], scale[1]])?;
                return Some(vec![x, region, self.constant(&format!("{name}.scales"), &[4], &scales)]);
            }
            ResizeTo::Size(size) => self.extents(&format!("{name}.size"), &size),
            ResizeTo::Like => self.shape_part(&format!("{name}.size"), inputs.get(1)?, [2, 4]),
        };
        let batch = self.shape_part(&format!("{name}.batch"), &x, [0, 2]);
        let sizes = self.unique(&format!("{name}.sizes"));
        self.push(&sizes, "Concat", "", &[batch, size], &sizes, &Attributes::default().int("axis", 0));
        Some(vec![x, region, String::new(), sizes])
    }

    /// Some of the extents of a tensor.
    fn shape_part(&mut self, wanted: &str, tensor: &str, [start, end]: [i64; 2]) -> String {
        let name = self.unique(wanted);
        let part = Attributes::default().int("start", start).int("end", end);
        self.push(&name, "Shape", "", &[tensor.to_owned()], &name, &part);
        name
    }

    /// `x σ(x)` in two nodes, as PyTorch writes it: both are called as parts of one module.
    fn silu(&mut self, node: &Node, mut inputs: Vec<String>, output: &str) {
        let gate = self.unique(&format!("{}.sigmoid", node.name));
        self.push(&format!("{}/Sigmoid", node.name), "Sigmoid", "", &inputs, &gate, &Attributes::default());
        inputs.push(gate);
        self.push(&format!("{}/Mul", node.name), "Mul", "", &inputs, output, &Attributes::default());
    }

    /// The channels at the end, normalised there, and back.
    fn layer_norm(&mut self, epsilon: f32, node: &Node, inputs: &[String], output: &str) {
        let name = &node.name;
        let [last, made] = ["last", "normalised"].map(|part| self.unique(&format!("{name}.{part}")));
        let plain = Attributes::default;
        let to_the_end = plain().ints("perm", &[0, 2, 3, 1]);
        self.push(&last, "Transpose", "", &inputs[..1], &last, &to_the_end);
        let mut of_norm = inputs.to_vec();
        of_norm[0] = last;
        self.push(name, "LayerNormalization", "", &of_norm, &made, &plain().float("epsilon", epsilon));
        let back = plain().ints("perm", &[0, 3, 1, 2]);
        self.push(&made, "Transpose", "", std::slice::from_ref(&made), output, &back);
    }

    /// The channels as groups and those of a group, these two exchanged, and one dimension again. An extent
    /// of 0 keeps the batch.
    fn channel_shuffle(&mut self, groups: usize, node: &Node, inputs: &[String], output: &str) {
        let name = &node.name;
        let shape = self.graph.shape(node.output).0.clone();
        let each = shape[0] / groups.max(1);
        let grouped = self.extents(&format!("{name}.grouped"), &[0, groups, each, shape[1], shape[2]]);
        let whole = self.extents(&format!("{name}.whole"), &[0, shape[0], shape[1], shape[2]]);
        let [apart, turned] = ["groups", "turned"].map(|part| self.unique(&format!("{name}.{part}")));
        let plain = Attributes::default;
        self.push(&apart, "Reshape", "", &[inputs[0].clone(), grouped], &apart, &plain());
        let perm = plain().ints("perm", &[0, 2, 1, 3, 4]);
        self.push(&turned, "Transpose", "", &[apart], &turned, &perm);
        self.push(name, "Reshape", "", &[turned, whole], output, &plain());
    }

    /// ONNX may count a last window that PyTorch drops, or refuse one that it takes: where the rules differ,
    /// padding behind the image says how many windows there are. Padding never wins.
    fn max_pool(&self, op: &MaxPool2d, node: &Node) -> Attributes {
        let [input, output] = [node.inputs[0], node.output].map(|id| self.graph.shape(id));
        let MaxPool2d { kernel, stride, padding, ceil_mode } = *op;
        let size = |axis: usize| input.0[axis + 1] + padding[axis];
        let agrees = (0..2).all(|axis| {
            let beyond = (size(axis) + padding[axis]).checked_sub(kernel[axis]);
            beyond.is_some_and(|beyond| beyond.div_ceil(stride[axis]) + 1 == output.0[axis + 1])
        });
        let after = if !ceil_mode || agrees {
            padding
        } else {
            [0, 1].map(|axis| {
                ((output.0[axis + 1] - 1) * stride[axis] + kernel[axis]).saturating_sub(size(axis))
            })
        };
        let attributes = Attributes::default().ints("kernel_shape", &kernel).ints("strides", &stride);
        attributes.ints("pads", &[padding, after].concat()).int("ceil_mode", i64::from(ceil_mode && agrees))
    }

    /// Bins of different sizes become matrix products: `rows * x * columns`.
    fn adaptive(&mut self, op: &AdaptiveAvgPool2d, node: &Node, mut inputs: Vec<String>, output: &str) {
        let shape = self.graph.shape(node.inputs[0]).0.clone();
        let rows = self.constant(
            &format!("{}.rows", node.name),
            &[op.output[0], shape[1]],
            &bins(op.output[0], shape[1]),
        );
        let columns = bins(op.output[1], shape[2]);
        let transposed: Vec<f32> =
            (0..columns.len()).map(|i| columns[i % op.output[1] * shape[2] + i / op.output[1]]).collect();
        let columns =
            self.constant(&format!("{}.columns", node.name), &[shape[2], op.output[1]], &transposed);
        let between = self.unique(&format!("{}.between", node.name));
        inputs.insert(0, rows);
        self.push(&between, "MatMul", ADAPTIVE, &inputs, &between, &Attributes::default());
        self.push(&node.name, "MatMul", ADAPTIVE, &[between, columns], output, &Attributes::default());
    }
}

/// The matrix `[bins, size]` that takes the mean of each bin of [`AdaptiveAvgPool2d::bin`].
pub(crate) fn bins(bins: usize, size: usize) -> Vec<f32> {
    let mut matrix = vec![0.0; bins * size];
    for (index, row) in matrix.chunks_exact_mut(size.max(1)).enumerate() {
        let bin = AdaptiveAvgPool2d::bin(index, bins, size);
        let share = 1.0 / bin.len().max(1) as f32;
        row[bin].fill(share);
    }
    matrix
}

/// The average-pooling that an adaptive one is where its bins have one size.
pub(crate) fn even(op: &AdaptiveAvgPool2d, input: &Shape) -> Option<AvgPool2d> {
    let [_, height, width] = input.as_image().ok()?;
    let [down, across] = op.output;
    let divides = down > 0 && across > 0 && height % down == 0 && width % across == 0;
    let kernel = divides.then(|| [height / down, width / across])?;
    Some(AvgPool2d { kernel, stride: kernel, padding: [0, 0], count_include_pad: true })
}

fn conv(op: &Conv2d) -> Attributes {
    let attributes = Attributes::default().ints("kernel_shape", &op.kernel).ints("strides", &op.stride);
    let pads = [op.padding_before, op.padding_after].concat();
    attributes.ints("pads", &pads).ints("dilations", &op.dilation).int("group", op.groups as i64)
}

fn avg_pool(op: &AvgPool2d) -> Attributes {
    let attributes = Attributes::default().ints("kernel_shape", &op.kernel).ints("strides", &op.stride);
    let pads = [op.padding, op.padding].concat();
    attributes.ints("pads", &pads).int("count_include_pad", i64::from(op.count_include_pad))
}

/// PyTorch's places of pixels are ONNX's `half_pixel`: its `pytorch_half_pixel` has another one where an
/// extent becomes 1.
fn resize(op: &Resize) -> Attributes {
    let places = if op.align_corners { "align_corners" } else { "half_pixel" };
    Attributes::default().text("mode", "linear").text("coordinate_transformation_mode", places)
}

/// What `Resize` makes of an extent: the product is rounded to f32 before it is rounded down.
pub(crate) fn scaled(extent: usize, scale: f32) -> Option<usize> {
    let scaled = (extent as f32 * scale).floor();
    (scaled >= 1.0).then_some(scaled as usize)
}

fn lrn(op: &LocalResponseNorm) -> Attributes {
    let attributes = Attributes::default().int("size", op.size as i64).float("alpha", op.alpha);
    attributes.float("beta", op.beta).float("bias", op.k)
}
