//! Nodes that become layers, are folded into layers, or change the view of a layer's output.

use super::operators::activation_of;
use super::support::refusal;
use super::{DimOrder, ImportError, ImportResult, Importer, LayerOutput, MAX_DIM, Value, count_first};
use crate::export::{DOC_DROPOUT2D, DOC_POINTWISE_LINEAR, DOC_STOCHASTIC_DEPTH, bins};
use crate::proto::Node;
use crate::tensor::{Constant, kind};
use stratus_graph::ops::{
    Activation, AdaptiveAvgPool2d, BatchNorm2d, Concat, Conv2d, Dropout, Dropout2d, Gelu, LayerNorm2d,
    Linear, PointwiseLinear, Prelu, StochasticDepth,
};
use stratus_graph::{Op, Shape};

impl<'a> Importer<'a> {
    /// Imports a node that depends on the images. A new operator is a line here, except for activations.
    pub(super) fn layer(&mut self, node: &'a Node<'a>) -> ImportResult<Value> {
        match node.operator {
            "Conv" => self.conv(node),
            "ConvTranspose" => self.conv_transpose(node),
            "Gemm" => self.gemm(node),
            "MatMul" => self.matmul(node),
            "BatchNormalization" => self.batch_norm(node),
            "Relu" => self.relu(node),
            "Gelu" => {
                match node.attribute("approximate").map_or(b"none".as_slice(), |attribute| attribute.text) {
                    b"none" => self.elementwise(node, Gelu),
                    other => Err(format!(
                        "unsupported `approximate` {:?}, expected none",
                        String::from_utf8_lossy(other)
                    )
                    .into()),
                }
            }
            "Swish" => self.swish(node),
            "Clip" => self.clip(node),
            "Min" | "Max" => self.extremum(node),
            "Dropout" => {
                if self.scalar_input(node, "", 2)?.is_some_and(|training| training != 0.0) {
                    count_first(&mut self.training, node);
                }
                let p = self.scalar_input(node, "ratio", 1)?.unwrap_or(0.5);
                match node.doc {
                    DOC_DROPOUT2D => self.elementwise(node, Dropout2d { p }),
                    DOC_STOCHASTIC_DEPTH => self.elementwise(node, StochasticDepth { p }),
                    _ => self.elementwise(node, Dropout { p }),
                }
            }
            "LayerNormalization" => self.layer_norm(node),
            "Erf" => self.erf(node),
            "PRelu" => self.prelu(node),
            "MaxPool" => self.max_pool(node),
            "AveragePool" => self.average_pool(node),
            "GlobalAveragePool" => {
                let input = self.channels_first_input(node, 0)?;
                self.push(node, AdaptiveAvgPool2d::GLOBAL, &[input], vec![])
            }
            "GlobalMaxPool" => self.global_max_pool(node),
            "ReduceMean" | "ReduceSum" | "ReduceMax" => self.reduce(node),
            "Resize" => self.resize(node),
            "Upsample" => self.upsample(node),
            "Add" | "Sum" => self.add(node),
            "Mul" => self.mul(node),
            "Div" => self.div(node),
            "Sub" => self.sub(node),
            "Neg" | "Abs" | "Selu" | "Celu" | "Mean" => self.composed(node),
            "Concat" => self.concat(node),
            "Flatten" | "Reshape" | "Squeeze" => self.reshape(node),
            "Transpose" => self.transpose(node),
            "Pad" => self.pad(node),
            "Identity" => {
                let input = self.padded_layer_input(node, 0)?;
                Ok(self.alias(node, input))
            }
            "Cast" => self.cast(node),
            // These are otherwise supported only for shapes.
            "Slice" => self.slice(node),
            "Gather" => self.gather(node),
            "Unsqueeze" => {
                self.value(node, 0)?;
                Err("supported only for shapes".into())
            }
            "Softmax" | "LogSoftmax" => Err("supported only as the last node".into()),
            operator => match activation_of(operator) {
                Some((activation, onnx)) => self.activation(node, activation, onnx.defaults),
                None => crate::ops::read(self, node).unwrap_or_else(|| Err(refusal(operator).into())),
            },
        }
    }

    /// Adds an element-wise layer, which keeps the dimension order.
    pub(super) fn elementwise(&mut self, node: &'a Node<'a>, op: impl Into<Op>) -> ImportResult<Value> {
        let input = self.layer_input(node, 0)?;
        self.elementwise_of(node, input, op)
    }

    /// Adds an element-wise layer of `input`.
    pub(super) fn elementwise_of(
        &mut self,
        node: &'a Node<'a>,
        input: LayerOutput,
        op: impl Into<Op>,
    ) -> ImportResult<Value> {
        let value = self.push(node, op, &[input], vec![])?;
        Ok(in_order(value, input.order))
    }

    /// Imports an activation of the table, whose attributes have ONNX's `defaults` if the node omits them.
    fn activation(
        &mut self,
        node: &'a Node<'a>,
        activation: Activation,
        defaults: &[f32],
    ) -> ImportResult<Value> {
        let values = activation.attribute_names().iter().zip(defaults).zip(activation.values());
        // Some writers round to six digits, which matters for a default such as 1/6.
        let has_six_digits = |number: f32| (number * 1e6).round() / 1e6 == number;
        let read = |((name, default), own): ((&&str, &f32), f32)| {
            let value = node.attribute(name).map_or(*default, |attribute| attribute.float);
            if (value - own).abs() <= 1e-6 && !has_six_digits(own) { own } else { value }
        };
        let values: Vec<f32> = values.map(read).collect();
        self.elementwise(node, activation.with_values(&values))
    }

    /// Imports a PReLU with one slope, or one for each channel.
    fn prelu(&mut self, node: &'a Node<'a>) -> ImportResult<Value> {
        let input = self.layer_input(node, 0)?;
        let constant = self.constant(node, 1)?.ok_or("missing slope")?;
        let slopes = match self.scalar_constant(input, &constant) {
            Some(slope) => vec![slope],
            None if matches!(input.order, DimOrder::ChannelsFirst | DimOrder::ChannelsLast) => {
                self.per_channel(input, constant)?
            }
            None => {
                return Err("a slope for each channel is not supported after a `Reshape` that flattens \
                            channels-last maps or groups channels"
                    .into());
            }
        };
        let value = self.push(node, Prelu { slopes: slopes.len() }, &[input], vec![slopes])?;
        Ok(in_order(value, input.order))
    }

    /// Imports a cast. Layers compute in f32, so casts to floating-point types are ignored: a wider type
    /// loses nothing, a narrower one only precision. Casts to integers are unsupported.
    fn cast(&mut self, node: &'a Node<'a>) -> ImportResult<Value> {
        let input = self.padded_layer_input(node, 0)?;
        let to = node.attribute("to").map_or(0, |to| to.int);
        match to {
            kind::FLOAT | kind::DOUBLE => {}
            kind::FLOAT16 | kind::BFLOAT16 => count_first(&mut self.rounding, node),
            _ => {
                return Err(format!(
                    "unsupported cast of a layer output to {}: remove it and export again",
                    kind::name(to)
                )
                .into());
            }
        }
        Ok(self.alias(node, input))
    }

    /// A constant input of shape `[count]`.
    pub(crate) fn vector_input(
        &self,
        node: &Node<'a>,
        position: usize,
        count: usize,
    ) -> ImportResult<Option<Vec<f32>>> {
        match self.weight(node, position)? {
            Some((shape, values)) if shape == [count] => Ok(Some(values)),
            Some((shape, _)) => {
                Err(format!("its input {} has the shape {shape:?}, expected [{count}]", position + 1).into())
            }
            None => Ok(None),
        }
    }

    fn conv(&mut self, node: &'a Node<'a>) -> ImportResult<Value> {
        let input = self.padded_layer_input(node, 0)?;
        if input.order != DimOrder::ChannelsFirst {
            return Err("channels-last input is not supported".into());
        }
        let (shape, weight) = self.weight(node, 1)?.ok_or("missing weight")?;
        let [out_channels, per_group, height, width] = shape[..] else {
            return Err(format!("its weight has {} dimensions, expected 4", shape.len()).into());
        };
        let kernel = [height, width];
        if pair(node, "kernel_shape", kernel)? != kernel {
            return Err(format!("its `kernel_shape` differs from the kernel {kernel:?} of the weight").into());
        }
        let groups = count(node, "group", 1)?;
        let (stride, dilation) = (pair(node, "strides", [1, 1])?, pair(node, "dilations", [1, 1])?);
        let (before, after) = self.padding(node, input, kernel, stride, dilation, true)?;
        let bias = self.vector_input(node, 2, out_channels)?;
        let conv = Conv2d {
            in_channels: per_group.checked_mul(groups).ok_or("too many groups")?,
            out_channels,
            kernel,
            stride,
            padding_before: before,
            padding_after: after,
            dilation,
            groups,
            bias: bias.is_some(),
        };
        let parameters = [Some(weight), bias].into_iter().flatten().collect();
        if node.doc == DOC_POINTWISE_LINEAR && conv.is_pointwise() && conv.dilation == [1, 1] {
            let Conv2d { in_channels, out_channels, bias: has_bias, .. } = conv;
            let linear = PointwiseLinear { in_channels, out_channels, bias: has_bias };
            return self.push(node, linear, &[input], parameters);
        }
        self.push(node, conv, &[input], parameters)
    }

    fn gemm(&mut self, node: &'a Node<'a>) -> ImportResult<Value> {
        let input = self.layer_input(node, 0)?;
        let flag = |name| node.attribute(name).is_some_and(|attribute| attribute.int != 0);
        if flag("transA") {
            return Err("`transA` is not supported: it would mix images".into());
        }
        let constant = self.constant(node, 1)?.ok_or("missing weight")?;
        let constant = if flag("transB") { constant } else { transposed(&constant)? };
        let scale = |name| node.attribute(name).map_or(1.0, |attribute| attribute.float);
        let weight = scaled(floats(constant)?, scale("alpha"));
        let bias = match self.weight(node, 2)? {
            None => None,
            Some((shape, bias)) => {
                let bias = scaled((vec![], bias), scale("beta")).1;
                let rows = shape.len() > 2 || (shape.len() == 2 && shape[0] != 1);
                // A single value is broadcast to all features, unless the weight is empty.
                match (&bias[..], &weight.0[..]) {
                    _ if rows => {
                        return Err(format!(
                            "its `C` has the shape {shape:?}, expected one value per feature"
                        )
                        .into());
                    }
                    ([bias], [features, _]) if *features <= weight.1.len() => Some(vec![*bias; *features]),
                    _ => Some(bias),
                }
            }
        };
        self.linear(node, input, weight, bias)
    }

    /// Imports a product with a weight `[inputs, outputs]`, or one of the two products of an exported
    /// adaptive average pooling.
    fn matmul(&mut self, node: &'a Node<'a>) -> ImportResult<Value> {
        if matches!(self.value(node, 0)?, Value::LayerOutput(_))
            && matches!(self.value(node, 1)?, Value::LayerOutput(_))
        {
            return Err("a product of two layer outputs is not supported".into());
        }
        let first = matches!(self.value(node, 0)?, Value::LayerOutput(_));
        let input = self.layer_input(node, usize::from(!first))?;
        let constant = self.constant(node, usize::from(first))?.ok_or("missing weight")?;
        if first && input.order == DimOrder::ChannelsLast {
            return self.pointwise_linear(node, input, &constant);
        }
        if let Ok([channels, height, width]) = self.layer_shape(input.id).as_image() {
            return self.adaptive(node, input, first, &constant, [channels, height, width]);
        }
        if !first {
            return Err("the weight must be the second input".into());
        }
        let weight = floats(transposed(&constant)?)?;
        self.linear(node, input, weight, None)
    }

    /// Imports a product of the channels of a channels-last image with a weight `[inputs, outputs]`.
    fn pointwise_linear(
        &mut self,
        node: &'a Node<'a>,
        input: LayerOutput,
        constant: &Constant,
    ) -> ImportResult<Value> {
        let (shape, weight) = floats(transposed(constant)?)?;
        let [out_channels, in_channels] = shape[..] else {
            return Err(format!("its weight has {} dimensions, expected 2", shape.len()).into());
        };
        let linear = PointwiseLinear { in_channels, out_channels, bias: false };
        let value = self.push(node, linear, &[input], vec![weight])?;
        Ok(in_order(value, input.order))
    }

    /// Imports an adaptive average pooling, exported as products with averaging matrices for rows and
    /// columns.
    fn adaptive(
        &mut self,
        node: &'a Node<'a>,
        input: LayerOutput,
        columns: bool,
        constant: &Constant,
        [_, height, width]: [usize; 3],
    ) -> ImportResult<Value> {
        let unknown =
            || ImportError::from("unsupported matrix of an image, expected that of adaptive average pooling");
        let size = if columns { width } else { height };
        let matrix = if columns { transposed(constant)? } else { constant.clone() };
        let (shape, values) = floats(matrix)?;
        let [count, _] = shape[..] else { return Err(unknown()) };
        // `bins` allocates no more than the matrix that was read.
        if input.order != DimOrder::ChannelsFirst || shape != [count, size] || values != bins(count, size) {
            return Err(unknown());
        }
        if !columns {
            return self.push(node, AdaptiveAvgPool2d { output: [count, width] }, &[input], vec![]);
        }
        let name = self.names.for_node(node);
        let single_use = self.is_single_use(node);
        match self.single_use_layer(input) {
            Some(layer) if matches!(&layer.op, Op::AdaptiveAvgPool2d(rows) if rows.output[1] == width) => {
                layer.op = AdaptiveAvgPool2d { output: [height, count] }.into();
                layer.shape.0[2] = count;
                layer.name = name;
                Ok(Value::LayerOutput(LayerOutput { single_use, ..input }))
            }
            _ => {
                let pooled =
                    self.push_as(name, AdaptiveAvgPool2d { output: [height, count] }, &[input], vec![])?;
                Ok(Value::LayerOutput(LayerOutput { single_use, ..pooled }))
            }
        }
    }

    /// Adds a linear layer with a weight `[outputs, inputs]`.
    fn linear(
        &mut self,
        node: &'a Node<'a>,
        input: LayerOutput,
        (shape, mut weight): (Vec<usize>, Vec<f32>),
        bias: Option<Vec<f32>>,
    ) -> ImportResult<Value> {
        let [out_features, in_features] = shape[..] else {
            return Err(format!("its weight has {} dimensions, expected 2", shape.len()).into());
        };
        if let DimOrder::FlattenedChannelsLast([channels, height, width]) = input.order {
            let pixels = height * width;
            if in_features != channels * pixels {
                return Err(
                    format!("its weight {shape:?} does not fit {} features", channels * pixels).into()
                );
            }
            // The feature of pixel p and channel c has index p * channels + c in the file, but c * pixels + p
            // in the layer.
            let reordered = |row: &[f32]| {
                (0..in_features).map(|i| row[i % pixels * channels + i / pixels]).collect::<Vec<_>>()
            };
            weight = weight.chunks_exact(in_features.max(1)).flat_map(reordered).collect();
        } else if input.order != DimOrder::ChannelsFirst {
            return Err("channels-last input is not supported".into());
        }
        let linear = Linear { in_features, out_features, bias: bias.is_some() };
        self.push(node, linear, &[input], [Some(weight), bias].into_iter().flatten().collect())
    }

    fn batch_norm(&mut self, node: &'a Node<'a>) -> ImportResult<Value> {
        let input = self.channels_first_input(node, 0)?;
        if node.attribute("spatial").is_some_and(|spatial| spatial.int == 0) {
            return Err("`spatial` 0 is not supported".into());
        }
        if node.attribute("training_mode").is_some_and(|training| training.int != 0) {
            count_first(&mut self.training, node);
        }
        let channels = self.layer_shape(input.id).0.first().copied().unwrap_or(0);
        let mut parameters = Vec::new();
        for position in 1..5 {
            parameters.push(self.vector_input(node, position, channels)?.ok_or("missing parameters")?);
        }
        let number = |name, otherwise| node.attribute(name).map_or(otherwise, |attribute| attribute.float);
        let norm = BatchNorm2d {
            channels,
            epsilon: number("epsilon", 1e-5),
            momentum: momentum_from_onnx(number("momentum", 0.9)),
        };
        self.push(node, norm, &[input], parameters)
    }

    /// Imports a layer norm over the channels of each pixel, which must be the last dimension.
    fn layer_norm(&mut self, node: &'a Node<'a>) -> ImportResult<Value> {
        let input = self.layer_input(node, 0)?;
        let [channels, ..] = self.image_shape(input)?;
        let axis = node.attribute("axis").map_or(-1, |axis| axis.int);
        if input.order != DimOrder::ChannelsLast || ![-1, 3].contains(&axis) {
            return Err(
                format!("unsupported `axis` {axis}, expected the channels of a channels-last image").into()
            );
        }
        // Layers compute statistics in 32-bit floating point.
        let stash = node.attribute("stash_type").map_or(kind::FLOAT, |stash| stash.int);
        if stash != kind::FLOAT {
            return Err(format!("unsupported `stash_type` {}, expected FLOAT", kind::name(stash)).into());
        }
        let weight = self.vector_input(node, 1, channels)?.ok_or("missing scale")?;
        let bias = self.vector_input(node, 2, channels)?.ok_or("missing bias: add one of zeros")?;
        let epsilon = node.attribute("epsilon").map_or(1e-5, |epsilon| epsilon.float);
        let value = self.push(node, LayerNorm2d { channels, epsilon }, &[input], vec![weight, bias])?;
        Ok(in_order(value, input.order))
    }

    fn concat(&mut self, node: &'a Node<'a>) -> ImportResult<Value> {
        let inputs: Vec<LayerOutput> =
            (0..node.inputs.len()).map(|i| self.layer_input(node, i)).collect::<ImportResult<_>>()?;
        let order = inputs.first().map_or(DimOrder::ChannelsFirst, |input| input.order);
        let axis = node.attribute("axis").map_or(0, |axis| axis.int);
        let is_vector = inputs.first().is_some_and(|input| self.layer_shape(input.id).0.len() == 1);
        let channels: [i64; 2] = match order {
            DimOrder::ChannelsLast => [3, -1],
            DimOrder::ChannelsFirst if is_vector => [1, -1],
            DimOrder::ChannelsFirst => [1, -3],
            DimOrder::FlattenedChannelsLast(_) => {
                return Err("flattened channels-last input is not supported".into());
            }
            DimOrder::Grouped(_) | DimOrder::GroupsTransposed(_) | DimOrder::FlatGroups(_) => {
                return Err("grouped channels are not supported".into());
            }
        };
        if inputs.iter().any(|input| input.order != order) || !channels.contains(&axis) {
            return Err(format!("unsupported `axis` {axis}, expected the channels").into());
        }
        if let ([input], DimOrder::ChannelsFirst) = (&inputs[..], order) {
            return Ok(self.alias(node, *input));
        }
        let value = self.push(node, Concat, &inputs, vec![])?;
        Ok(in_order(value, order))
    }
}

/// Sets the dimension order of a value.
pub(crate) fn in_order(value: Value, order: DimOrder) -> Value {
    match value {
        Value::LayerOutput(output) => Value::LayerOutput(LayerOutput { order, ..output }),
        other => other,
    }
}

/// Returns the shape and values of a weight.
pub(super) fn floats(constant: Constant) -> ImportResult<(Vec<usize>, Vec<f32>)> {
    match constant.elements {
        crate::tensor::Elements::Floats(values) => Ok((constant.shape, values)),
        crate::tensor::Elements::Ints(_) => Err("expected floating-point weights, found integers".into()),
    }
}

fn transposed(constant: &Constant) -> ImportResult<Constant> {
    let shape = Shape(constant.shape.clone());
    let moved = (constant.shape.len() == 2).then(|| constant.transposed(&[1, 0])).flatten();
    moved.ok_or_else(|| format!("its weight {shape} is not a matrix").into())
}

fn scaled((shape, mut values): (Vec<usize>, Vec<f32>), factor: f32) -> (Vec<usize>, Vec<f32>) {
    if factor != 1.0 {
        values.iter_mut().for_each(|value| *value *= factor);
    }
    (shape, values)
}

/// Converts ONNX's momentum, the weight of the old statistics, to the weight of the new batch. Rounds to a
/// short decimal if the result is close to one.
fn momentum_from_onnx(momentum: f32) -> f32 {
    let share = 1.0 - f64::from(momentum);
    let rounded = (share * 1e6).round() / 1e6;
    (if (rounded - share).abs() < 1e-7 { rounded } else { share }) as f32
}

/// The value of a count attribute.
pub(crate) fn count(node: &Node<'_>, name: &str, otherwise: usize) -> ImportResult<usize> {
    let Some(attribute) = node.attribute(name) else { return Ok(otherwise) };
    let count = usize::try_from(attribute.int).ok().filter(|count| (1..=MAX_DIM).contains(count));
    count.ok_or_else(|| format!("`{name}` is {}, expected 1 to {MAX_DIM}", attribute.int).into())
}

/// The value of an attribute for height and width.
pub(super) fn pair(node: &Node<'_>, name: &str, otherwise: [usize; 2]) -> ImportResult<[usize; 2]> {
    let Some(attribute) = node.attribute(name).filter(|attribute| !attribute.ints.is_empty()) else {
        return Ok(otherwise);
    };
    let dim = |&dim: &i64| usize::try_from(dim).ok().filter(|dim| (1..=MAX_DIM).contains(dim));
    let dims: Option<Vec<usize>> = attribute.ints.iter().map(dim).collect();
    let pair = dims.and_then(|dims| dims.try_into().ok());
    pair.ok_or_else(|| {
        format!("`{name}` is {:?}, expected two values from 1 to {MAX_DIM}", attribute.ints).into()
    })
}
