//! Export of a network with its weights, in inference form without auxiliary outputs.

use crate::encode::{Attributes, Export, FLOAT, INPUT, OUTPUT, tensor_head};
use crate::error::WriteError;
use crate::nearest::Nearest;
use crate::ops::{self, ExportedLayer};
use crate::quantised::QuantisedLayers;
use crate::wire::MAX_FILE_BYTES;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::fs::File;
use std::io::{self, Read, Write};
use std::path::Path;
use stratus_base::protobuf::Message;
use stratus_graph::ops::{
    Activation, AdaptiveAvgPool2d, AvgPool2d, Conv2d, Linear, MaxPool2d, Relu6, Resize, ResizeTo,
};
use stratus_graph::{Graph, Node, Op, Operation, Shape};
use stratus_weights::{TensorRef, ValuesRef};

/// The operator set of files, unless a layer needs a later one.
const MIN_OPSET: i64 = 17;

/// The format versions (`ir_version`) of files, each with the last operator set that it allows.
const FORMATS: [(i64, i64); 3] = [(8, 18), (9, 20), (10, 22)];

/// The operator set of a network's file.
#[must_use]
pub fn operator_set(graph: &Graph) -> i64 {
    let since = |node: &Node| match &node.op {
        Op::Activation(activation) => activation.spec().onnx.map(|onnx| onnx.since),
        _ => None,
    };
    graph.nodes.iter().filter_map(since).fold(MIN_OPSET, i64::max)
}

/// The format version of a file with an operator set.
fn format_version(opset: i64) -> i64 {
    FORMATS.iter().find(|(_, last)| opset <= *last).unwrap_or(&FORMATS[2]).0
}

/// The name of the first dimension.
const BATCH: &str = "batch";

/// The name of the program, `ModelProto.producer_name`.
const PRODUCER: &[u8] = b"stratus";

/// Returns whether [`write()`] wrote a file, from its format version and producer name.
///
/// # Errors
/// If the file cannot be read.
pub fn is_exported_by_stratus(path: &Path) -> io::Result<bool> {
    let prefix = |format: i64| Message::default().int(1, format).bytes(2, PRODUCER).0;
    let mut head = Vec::new();
    File::open(path)?.take(64).read_to_end(&mut head)?;
    Ok(FORMATS.iter().any(|(format, _)| head.starts_with(&prefix(*format))))
}

/// The `doc_string` of an adaptive average pooling that is exported as another operator; the importer
/// restores the layer.
pub(crate) const DOC_ADAPTIVE_AVG_POOL: &str = "adaptive_avg_pool2d";
/// The `doc_string` of spatial dropout, exported as `Dropout`.
pub(crate) const DOC_DROPOUT2D: &str = "dropout2d";
/// The `doc_string` of stochastic depth, exported as `Dropout`.
pub(crate) const DOC_STOCHASTIC_DEPTH: &str = "stochastic_depth";
/// The `doc_string` of a pointwise linear layer, exported as `Conv`.
pub(crate) const DOC_POINTWISE_LINEAR: &str = "pointwise_linear";
/// The `doc_string` of a layer scale, exported as `Mul`.
pub(crate) const DOC_LAYER_SCALE: &str = "layer_scale";

/// Writes `graph` in inference form with `weights` by their keys, streaming their values.
///
/// The input is named [`INPUT`], the output [`OUTPUT`]; their first dimension, `batch`, is dynamic.
/// Initialisers have the names of the parameters, nodes those of the layers. Weights without a parameter in
/// the network are ignored. `metadata` is written to `metadata_props`.
///
/// # Errors
/// If a parameter is missing or has another shape, a layer cannot be expressed in ONNX, or `out` fails.
pub fn write(
    out: &mut dyn Write,
    graph: &Graph,
    weights: &[TensorRef<'_>],
    metadata: &BTreeMap<String, String>,
) -> Result<(), WriteError> {
    write_quantised(out, graph, weights, metadata, None)
}

/// [`write()`] with layers that run in int8, whose weights are written as int8: `quantised` has their
/// values, and what reads maps in int8.
///
/// # Errors
/// As [`write()`].
pub fn write_quantised(
    out: &mut dyn Write,
    graph: &Graph,
    weights: &[TensorRef<'_>],
    metadata: &BTreeMap<String, String>,
    quantised: Option<&QuantisedLayers>,
) -> Result<(), WriteError> {
    let graph = graph.for_inference();
    let written = parameters_of_real_layers(&graph, quantised);
    let weights = parameters(&written, weights)?;
    let mut export = Export::new(&graph, quantised);
    for node in &graph.nodes {
        export.node(node);
        export.convert_to_bytes(node);
    }
    if graph.nodes.is_empty() {
        export.push("identity", "Identity", "", &[INPUT.to_owned()], OUTPUT, &Attributes::default());
    }
    if !export.unsupported.is_empty() {
        return Err(WriteError::UnsupportedLayers(export.unsupported));
    }
    let mut network = export.nodes.bytes(2, graph.name.as_bytes());
    for constant in export.constants {
        network = network.bytes(5, &constant.0);
    }
    // Pointwise linear layers are written as convolutions; slopes of channels broadcast over their pixels.
    let pixelwise: HashSet<&str> = graph
        .nodes
        .iter()
        .flat_map(|node| {
            let count = match &node.op {
                Op::PointwiseLinear(_) => 1,
                Op::Prelu(prelu) => usize::from(prelu.slopes > 1 && graph.shape(node.output).0.len() == 3),
                op if ops::find(op).is_some_and(|operation| operation.broadcasts) => node.parameters.len(),
                _ => 0,
            };
            node.parameters.iter().take(count)
        })
        .map(|id| graph.parameters[id.0].name.as_str())
        .collect();
    let shape = |parameter: &stratus_graph::Parameter| {
        let kernel_dims = if pixelwise.contains(parameter.name.as_str()) { 2 } else { 0 };
        parameter.shape.iter().copied().chain(std::iter::repeat_n(1, kernel_dims)).collect::<Vec<usize>>()
    };
    let heads: Vec<Message> = written
        .iter()
        .zip(&weights)
        .map(|(parameter, values)| {
            let bytes = values.bytes() as u64;
            let tensor = tensor_head(&parameter.name, &shape(parameter), FLOAT).length_prefix(9, bytes);
            let mut message = Message::default().length_prefix(5, tensor.0.len() as u64 + bytes);
            message.0.extend(tensor.0);
            message
        })
        .collect();
    let tail = Message::default()
        .bytes(11, &value_info(INPUT, graph.input_shape()).0)
        .bytes(12, &value_info(OUTPUT, graph.shape(graph.output)).0);
    let weight_bytes =
        heads.iter().zip(&weights).map(|(head, values)| head.0.len() + values.bytes()).sum::<usize>();
    let length = (network.0.len() + weight_bytes + tail.0.len()) as u64;
    let opset = operator_set(&graph);
    let format = format_version(opset);
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
    let model = model.length_prefix(7, length);
    let total = length + model.0.len() as u64;
    if total > MAX_FILE_BYTES {
        return Err(WriteError::TooLarge(total));
    }
    out.write_all(&model.0)?;
    out.write_all(&network.0)?;
    for (head, values) in heads.iter().zip(weights) {
        out.write_all(&head.0)?;
        values.for_each_chunk(|chunk| out.write_all(chunk))?;
    }
    Ok(out.write_all(&tail.0)?)
}

/// The parameters of layers that do not run in int8, in the order of the graph.
fn parameters_of_real_layers<'a>(
    graph: &'a Graph,
    quantised: Option<&QuantisedLayers>,
) -> Vec<&'a stratus_graph::Parameter> {
    let in_int8 = |node: &Node| quantised.is_some_and(|layers| layers.weights.contains_key(&node.name));
    let read: HashSet<usize> = graph
        .nodes
        .iter()
        .filter(|node| !in_int8(node))
        .flat_map(|node| node.parameters.iter().map(|id| id.0))
        .collect();
    let all = graph.parameters.iter().enumerate();
    all.filter(|(id, _)| quantised.is_none() || read.contains(id)).map(|(_, parameter)| parameter).collect()
}

/// The values of parameters.
fn parameters<'a>(
    parameters: &[&stratus_graph::Parameter],
    weights: &[TensorRef<'a>],
) -> Result<Vec<ValuesRef<'a>>, WriteError> {
    let by_name: HashMap<&str, &TensorRef<'a>> = weights.iter().map(|tensor| (tensor.name, tensor)).collect();
    let value = |parameter: &stratus_graph::Parameter| {
        let tensor = by_name
            .get(parameter.name.as_str())
            .ok_or_else(|| WriteError::MissingParameter(parameter.name.clone()))?;
        let values = tensor.values;
        let fits =
            tensor.shape == parameter.shape && values.bytes() == parameter.elements() * size_of::<f32>();
        if values.dtype() == "F32" && fits {
            return Ok(values);
        }
        Err(WriteError::Mismatch {
            name: parameter.name.clone(),
            found: format!("{} {:?}", values.dtype().to_lowercase(), tensor.shape),
            expected: parameter.shape.clone(),
        })
    };
    parameters.iter().copied().map(value).collect()
}

/// The `ValueInfoProto` of a batch of images or vectors.
fn value_info(name: &str, shape: &Shape) -> Message {
    let batch = Message::default().bytes(2, BATCH.as_bytes());
    let dims = shape.0.iter().fold(Message::default().bytes(1, &batch.0), |dims, &dim| {
        dims.bytes(1, &Message::default().int(1, dim as i64).0)
    });
    let tensor = Message::default().int(1, FLOAT).bytes(2, &dims.0);
    Message::default().bytes(1, name.as_bytes()).bytes(2, &Message::default().bytes(1, &tensor.0).0)
}

impl Export<'_> {
    /// Adds the nodes of a layer, several if ONNX has no operator for it.
    fn node(&mut self, node: &Node) {
        let mut inputs = self.layer_inputs(node);
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
            Op::PointwiseLinear(op) => ("Conv", DOC_POINTWISE_LINEAR, conv(&op.conv())),
            Op::LayerNorm2d(op) => return self.layer_norm(op.epsilon, node, &inputs, &output),
            Op::LayerScale(_) => ("Mul", DOC_LAYER_SCALE, plain()),
            Op::Linear(Linear { .. }) => ("Gemm", "", plain().int("transB", 1)),
            Op::BatchNorm2d(op) => {
                let momentum = (1.0 - f64::from(op.momentum)) as f32;
                ("BatchNormalization", "", plain().float("epsilon", op.epsilon).float("momentum", momentum))
            }
            Op::Relu(_) => ("Relu", "", plain()),
            Op::Activation(Activation::Silu(_)) => return self.silu(node, inputs, &output),
            Op::Activation(op) => match op.spec().onnx {
                Some(onnx) => (onnx.name, "", activation(op)),
                None => return self.mark_unsupported(node),
            },
            Op::ChannelScale(_) => ("Mul", "", plain()),
            Op::ChannelShuffle(op) => return self.channel_shuffle(op.groups, node, &inputs, &output),
            Op::ChannelSlice(op) => {
                let bounds = [("start", op.first), ("end", op.first + op.channels), ("axis", 1)];
                for (part, bound) in bounds {
                    inputs.push(self.int64_constant(&format!("{}.{part}", node.name), &[bound]));
                }
                ("Slice", "", plain())
            }
            Op::Relu6(_) => {
                inputs.push(self.constant(&format!("{}.min", node.name), &[], &[0.0]));
                inputs.push(self.constant(&format!("{}.max", node.name), &[], &[Relu6::CEILING]));
                ("Clip", "", plain())
            }
            Op::Prelu(_) => ("PRelu", "", plain()),
            Op::MaxPool2d(op) => ("MaxPool", "", self.max_pool(op, node)),
            Op::AvgPool2d(op) => ("AveragePool", "", avg_pool(op)),
            Op::AdaptiveAvgPool2d(AdaptiveAvgPool2d::GLOBAL) => ("GlobalAveragePool", "", plain()),
            Op::AdaptiveAvgPool2d(op) => match as_avg_pool(op, self.graph.shape(node.inputs[0])) {
                Some(op) => ("AveragePool", DOC_ADAPTIVE_AVG_POOL, avg_pool(&op)),
                None => return self.adaptive(op, node, inputs, &output),
            },
            Op::Flatten(_) => ("Flatten", "", plain().int("axis", 1)),
            Op::Dropout(op) => {
                inputs.push(self.constant(&format!("{}.ratio", node.name), &[], &[op.p]));
                ("Dropout", "", plain())
            }
            Op::Dropout2d(op) => {
                inputs.push(self.constant(&format!("{}.ratio", node.name), &[], &[op.p]));
                ("Dropout", DOC_DROPOUT2D, plain())
            }
            Op::StochasticDepth(op) => {
                inputs.push(self.constant(&format!("{}.ratio", node.name), &[], &[op.p]));
                ("Dropout", DOC_STOCHASTIC_DEPTH, plain())
            }
            Op::Scale(op) => {
                inputs.push(self.constant(&format!("{}.factor", node.name), &[], &[op.factor]));
                ("Mul", "", plain())
            }
            Op::Resize(op) => match self.resize(op, node, &inputs) {
                Some(resize_inputs) => {
                    inputs = resize_inputs;
                    ("Resize", "", resize(op))
                }
                None => return self.mark_unsupported(node),
            },
            Op::Add(_) => ("Add", "", plain()),
            Op::Concat(_) => ("Concat", "", plain().int("axis", 1)),
            other => {
                let layer = ExportedLayer { node, inputs, output: &output };
                if !ops::find(other).is_some_and(|operation| (operation.write)(self, &layer)) {
                    self.mark_unsupported(node);
                }
                return;
            }
        };
        self.push(&node.name, operator, doc, &inputs, &output, &attributes);
    }

    /// Records a layer that ONNX cannot express.
    fn mark_unsupported(&mut self, node: &Node) {
        let attributes = node.op.attributes();
        let space = if attributes.is_empty() { "" } else { " " };
        self.unsupported.push(format!("`{}` ({}{space}{attributes})", node.name, node.op.kind()));
    }

    /// The inputs of a `Resize`: the image, no region, and scales or sizes of all four dimensions. Sizes are
    /// concatenated from the batch and channels of the input and the target height and width. `None` if the
    /// scale, rounded to f32, gives another size, or if it copies other pixels.
    fn resize(&mut self, op: &Resize, node: &Node, inputs: &[String]) -> Option<Vec<String>> {
        let x = inputs.first()?.clone();
        let (name, region) = (&node.name, String::new());
        let [input, output] = [node.inputs[0], node.output].map(|id| self.graph.shape(id));
        let copies = |axis: usize| {
            let (from, to) = (input.0[axis + 1], output.0[axis + 1]);
            let scale = match op.to {
                ResizeTo::Scale(scale) if from != to => scale[axis] as f32,
                _ => to as f32 / from as f32,
            };
            Nearest::EXPORTED.is_floor(scale, [from, to])
        };
        if op.nearest && !(copies(0) && copies(1)) {
            return None;
        }
        let size = match op.to {
            ResizeTo::Scale(scale) => {
                // A layer copies along an axis that keeps its size, whatever the scale; `Resize`
                // interpolates.
                let keeps = [0, 1].map(|axis| input.0[axis + 1] == output.0[axis + 1]);
                let scale = [0, 1].map(|axis| if keeps[axis] { 1.0 } else { scale[axis] as f32 });
                let to_size = |axis: usize| {
                    let candidates = [scale[axis], scale[axis].next_up()];
                    candidates
                        .into_iter()
                        .find(|&scale| gives_size(input.0[axis + 1], scale, output.0[axis + 1]))
                };
                let scales = [1.0, 1.0, to_size(0)?, to_size(1)?];
                return Some(vec![x, region, self.constant(&format!("{name}.scales"), &[4], &scales)]);
            }
            ResizeTo::Size(size) => self.int64_constant(&format!("{name}.size"), &size),
            ResizeTo::Like => self.shape_part(&format!("{name}.size"), inputs.get(1)?, [2, 4]),
        };
        let batch = self.shape_part(&format!("{name}.batch"), &x, [0, 2]);
        let sizes = self.unique(&format!("{name}.sizes"));
        self.push(&sizes, "Concat", "", &[batch, size], &sizes, &Attributes::default().int("axis", 0));
        Some(vec![x, region, String::new(), sizes])
    }

    /// Adds a `Shape` of the dimensions `start..end` of a tensor, and returns its name.
    fn shape_part(&mut self, base: &str, tensor: &str, [start, end]: [i64; 2]) -> String {
        let name = self.unique(base);
        let part = Attributes::default().int("start", start).int("end", end);
        self.push(&name, "Shape", "", &[tensor.to_owned()], &name, &part);
        name
    }

    /// Adds `x σ(x)` as two nodes, like PyTorch, named as parts of one module.
    fn silu(&mut self, node: &Node, mut inputs: Vec<String>, output: &str) {
        let gate = self.unique(&format!("{}.sigmoid", node.name));
        self.push(&format!("{}/Sigmoid", node.name), "Sigmoid", "", &inputs, &gate, &Attributes::default());
        inputs.push(gate);
        self.push(&format!("{}/Mul", node.name), "Mul", "", &inputs, output, &Attributes::default());
    }

    /// Adds a layer norm between transposes of the channels to the end and back.
    fn layer_norm(&mut self, epsilon: f32, node: &Node, inputs: &[String], output: &str) {
        let name = &node.name;
        let [last, normalised] = ["last", "normalised"].map(|part| self.unique(&format!("{name}.{part}")));
        let plain = Attributes::default;
        let to_end = plain().ints("perm", &[0, 2, 3, 1]);
        self.push(&last, "Transpose", "", &inputs[..1], &last, &to_end);
        let mut norm_inputs = inputs.to_vec();
        norm_inputs[0] = last;
        self.push(
            name,
            "LayerNormalization",
            "",
            &norm_inputs,
            &normalised,
            &plain().float("epsilon", epsilon),
        );
        let back = plain().ints("perm", &[0, 3, 1, 2]);
        self.push(&normalised, "Transpose", "", std::slice::from_ref(&normalised), output, &back);
    }

    /// Adds a channel shuffle: a reshape to groups and their channels, a transpose of the two, and a reshape
    /// back. A dimension of 0 keeps the batch.
    fn channel_shuffle(&mut self, groups: usize, node: &Node, inputs: &[String], output: &str) {
        let name = &node.name;
        let shape = self.graph.shape(node.output).0.clone();
        let per_group = shape[0] / groups.max(1);
        let grouped =
            self.int64_constant(&format!("{name}.grouped"), &[0, groups, per_group, shape[1], shape[2]]);
        let whole = self.int64_constant(&format!("{name}.whole"), &[0, shape[0], shape[1], shape[2]]);
        let [split, transposed] = ["groups", "turned"].map(|part| self.unique(&format!("{name}.{part}")));
        let plain = Attributes::default;
        self.push(&split, "Reshape", "", &[inputs[0].clone(), grouped], &split, &plain());
        let perm = plain().ints("perm", &[0, 2, 1, 3, 4]);
        self.push(&transposed, "Transpose", "", &[split], &transposed, &perm);
        self.push(name, "Reshape", "", &[transposed, whole], output, &plain());
    }

    /// The attributes of a max pooling. ONNX's and PyTorch's rules for the last window differ. If they give
    /// different numbers of windows, trailing padding sets the number; padding is never the maximum.
    fn max_pool(&self, op: &MaxPool2d, node: &Node) -> Attributes {
        let [input, output] = [node.inputs[0], node.output].map(|id| self.graph.shape(id));
        let MaxPool2d { kernel, stride, padding, ceil_mode } = *op;
        let size = |axis: usize| input.0[axis + 1] + padding[axis];
        let agrees = (0..2).all(|axis| {
            let span = (size(axis) + padding[axis]).checked_sub(kernel[axis]);
            span.is_some_and(|span| span.div_ceil(stride[axis]) + 1 == output.0[axis + 1])
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

    /// Adds an adaptive average pooling with bins of different sizes as matrix products, `rows * x *
    /// columns`.
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
        self.push(&between, "MatMul", DOC_ADAPTIVE_AVG_POOL, &inputs, &between, &Attributes::default());
        self.push(
            &node.name,
            "MatMul",
            DOC_ADAPTIVE_AVG_POOL,
            &[between, columns],
            output,
            &Attributes::default(),
        );
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

/// The average pooling that equals an adaptive one, if its bins have the same size.
pub(crate) fn as_avg_pool(op: &AdaptiveAvgPool2d, input: &Shape) -> Option<AvgPool2d> {
    let [_, height, width] = input.as_image().ok()?;
    let [down, across] = op.output;
    let divides = down > 0 && across > 0 && height % down == 0 && width % across == 0;
    let kernel = divides.then(|| [height / down, width / across])?;
    let plain = AvgPool2d::new(1, 1, 0);
    Some(AvgPool2d { kernel, stride: kernel, ..plain })
}

fn activation(op: &Activation) -> Attributes {
    let attributes = op.attribute_names().iter().zip(op.values());
    attributes.fold(Attributes::default(), |to, (name, value)| to.float(name, value))
}

fn conv(op: &Conv2d) -> Attributes {
    let attributes = Attributes::default().ints("kernel_shape", &op.kernel).ints("strides", &op.stride);
    let pads = [op.padding_before, op.padding_after].concat();
    attributes.ints("pads", &pads).ints("dilations", &op.dilation).int("group", op.groups as i64)
}

fn avg_pool(op: &AvgPool2d) -> Attributes {
    let attributes = Attributes::default().ints("kernel_shape", &op.kernel).ints("strides", &op.stride);
    let pads = [op.padding, op.padding_after.unwrap_or(op.padding)].concat();
    attributes.ints("pads", &pads).int("count_include_pad", i64::from(op.count_include_pad))
}

/// The attributes of a `Resize`. PyTorch's coordinates are ONNX's `half_pixel`; `pytorch_half_pixel` differs
/// if a dimension becomes 1.
fn resize(op: &Resize) -> Attributes {
    if op.nearest {
        let attributes = Attributes::default().text("mode", "nearest");
        let Nearest { coordinates, rounding } = Nearest::EXPORTED;
        return attributes.text("coordinate_transformation_mode", coordinates).text("nearest_mode", rounding);
    }
    let coordinates = if op.align_corners { "align_corners" } else { "half_pixel" };
    Attributes::default().text("mode", "linear").text("coordinate_transformation_mode", coordinates)
}

/// Returns whether a dimension and a scale give a size, both in f32, as onnxruntime's kernel computes it, and
/// exactly, as its shape inference does: 10 pixels by 0.7, which in f32 is less, are 7 and 6.
fn gives_size(dim: usize, scale: f32, size: usize) -> bool {
    let exact = (dim as f64 * f64::from(scale)).floor();
    scaled(dim, scale) == Some(size) && exact == size as f64
}

/// The dimension that `Resize` computes: the product in f32, rounded down.
pub(crate) fn scaled(dim: usize, scale: f32) -> Option<usize> {
    let scaled = (dim as f32 * scale).floor();
    (scaled >= 1.0).then_some(scaled as usize)
}
