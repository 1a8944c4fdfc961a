//! Nodes that become layers, are taken into one, or change how what it makes is seen.

use super::{ImportResult, Importer, LARGEST, LayerOutput, Order, Refusal, Value, count_up};
use crate::export::{DEPTH, HARD_SIGMOID, POINTWISE, SPATIAL, bins};
use crate::proto::Node;
use crate::tensor::{Constant, kind};
use stratus_graph::ops::{
    AdaptiveAvgPool2d, BatchNorm2d, Concat, Conv2d, Dropout, Dropout2d, Flatten, Gelu, HardSigmoid,
    HardSwish, LayerNorm2d, Linear, LocalResponseNorm, PointwiseLinear, Relu, Relu6, Sigmoid, Silu,
    StochasticDepth,
};
use stratus_graph::{Op, Shape};

impl<'a> Importer<'a> {
    /// What a node makes of the images. A new operator is a line here.
    pub(super) fn layer(&mut self, node: &'a Node<'a>) -> ImportResult<Value> {
        match node.operator {
            "Conv" => self.conv(node),
            "ConvTranspose" => self.conv_transpose(node),
            "Gemm" => self.gemm(node),
            "MatMul" => self.matmul(node),
            "BatchNormalization" => self.batch_norm(node),
            "Relu" => self.elementwise(node, Relu),
            "Gelu" => {
                match node.attribute("approximate").map_or(b"none".as_slice(), |attribute| attribute.text) {
                    b"none" => self.elementwise(node, Gelu),
                    other => Err(format!(
                        "its approximation is {:?}; the exact one is taken",
                        String::from_utf8_lossy(other)
                    )
                    .into()),
                }
            }
            "Sigmoid" => self.elementwise(node, Sigmoid),
            "HardSigmoid" => self.hard_sigmoid(node),
            "HardSwish" => self.elementwise(node, HardSwish),
            "Swish" => match node.attribute("alpha").map_or(1.0, |alpha| alpha.float) {
                1.0 => self.elementwise(node, Silu),
                alpha => Err(format!("its `alpha` is {alpha}; 1, which is SiLU, is taken").into()),
            },
            "Clip" => self.clip(node),
            "Min" => self.min(node),
            "Dropout" => {
                if self.number(node, "", 2)?.is_some_and(|training| training != 0.0) {
                    count_up(&mut self.training, node);
                }
                let p = self.number(node, "ratio", 1)?.unwrap_or(0.5);
                match node.doc {
                    SPATIAL => self.elementwise(node, Dropout2d { p }),
                    DEPTH => self.elementwise(node, StochasticDepth { p }),
                    _ => self.elementwise(node, Dropout { p }),
                }
            }
            "LayerNormalization" => self.layer_norm(node),
            "Erf" => self.erf(node),
            "LRN" => self.local_response_norm(node),
            "MaxPool" => self.max_pool(node),
            "AveragePool" => self.average_pool(node),
            "GlobalAveragePool" => {
                let made = self.plain(node, 0)?;
                self.push(node, AdaptiveAvgPool2d::GLOBAL, &[made], vec![])
            }
            "GlobalMaxPool" => self.global_max_pool(node),
            "ReduceMean" => self.mean(node),
            "Resize" => self.resize(node),
            "Add" | "Sum" => self.add(node),
            "Mul" => self.product(node),
            "Div" => self.quotient(node),
            "Concat" => self.concat(node),
            "Flatten" | "Reshape" | "Squeeze" => self.reshape(node),
            "Transpose" => self.transpose(node),
            "Pad" => self.pad(node),
            "Identity" => {
                let made = self.padded(node, 0)?;
                Ok(self.alias(node, made))
            }
            "Cast" => self.cast(node),
            // These compute shapes: of what is not known nothing is.
            "Slice" => self.slice(node),
            "Gather" | "Unsqueeze" => {
                self.value(node, 0)?;
                Err("of what is computed from the images, only shapes are taken apart".into())
            }
            "Softmax" | "LogSoftmax" => Err("only a softmax that is the last node is left out".into()),
            _ => Err("no layer operation computes it".into()),
        }
    }

    /// A layer that does the same to every element, whatever their order.
    fn elementwise(&mut self, node: &'a Node<'a>, op: impl Into<Op>) -> ImportResult<Value> {
        let made = self.made(node, 0)?;
        self.elementwise_of(node, made, op)
    }

    /// The same of a value that is not the node's first.
    pub(super) fn elementwise_of(
        &mut self,
        node: &'a Node<'a>,
        made: LayerOutput,
        op: impl Into<Op>,
    ) -> ImportResult<Value> {
        let value = self.push(node, op, &[made], vec![])?;
        Ok(in_order(value, made.order))
    }

    /// The sigmoid in straight pieces, of which there is the one of PyTorch.
    fn hard_sigmoid(&mut self, node: &'a Node<'a>) -> ImportResult<Value> {
        let number = |name, otherwise| node.attribute(name).map_or(otherwise, |attribute| attribute.float);
        let (alpha, beta) = (number("alpha", 0.2), number("beta", 0.5));
        // Some writers give six digits of a sixth.
        if (alpha - HARD_SIGMOID[0]).abs() > 1e-6 || beta != HARD_SIGMOID[1] {
            return Err(format!("its `alpha` is {alpha} and its `beta` {beta}; 1/6 and 0.5 are taken").into());
        }
        self.elementwise(node, HardSigmoid)
    }

    /// Layers compute in f32: nothing is lost where a longer type is asked for, and a shorter one is no more
    /// than less exact. Whole numbers would be something else.
    fn cast(&mut self, node: &'a Node<'a>) -> ImportResult<Value> {
        let made = self.padded(node, 0)?;
        let to = node.attribute("to").map_or(0, |to| to.int);
        match to {
            kind::FLOAT | kind::DOUBLE => {}
            kind::FLOAT16 | kind::BFLOAT16 => count_up(&mut self.rounding, node),
            _ => {
                return Err(format!(
                    "its `to` is {}: what layers make stays floating point; leave it out and export again",
                    kind::name(to)
                )
                .into());
            }
        }
        Ok(self.alias(node, made))
    }

    /// A number for each of `count`, in one dimension.
    pub(super) fn list(
        &self,
        node: &Node<'a>,
        position: usize,
        count: usize,
    ) -> ImportResult<Option<Vec<f32>>> {
        match self.weight(node, position)? {
            Some((shape, values)) if shape == [count] => Ok(Some(values)),
            Some((shape, _)) => {
                Err(format!("its input number {} has the shape {shape:?}; [{count}] is wanted", position + 1)
                    .into())
            }
            None => Ok(None),
        }
    }

    fn conv(&mut self, node: &'a Node<'a>) -> ImportResult<Value> {
        let made = self.padded(node, 0)?;
        if made.order != Order::Plain {
            return Err("it reads images with their channels last".into());
        }
        let (shape, weight) = self.weight(node, 1)?.ok_or("it has no weight")?;
        let [out_channels, per_group, height, width] = shape[..] else {
            return Err(format!(
                "its weight has {} dimensions, that of two-dimensional images 4",
                shape.len()
            )
            .into());
        };
        let kernel = [height, width];
        if pair(node, "kernel_shape", kernel)? != kernel {
            return Err(format!("its kernel is {kernel:?}, its `kernel_shape` says otherwise").into());
        }
        let groups = count(node, "group", 1)?;
        let (stride, dilation) = (pair(node, "strides", [1, 1])?, pair(node, "dilations", [1, 1])?);
        let (before, after) = self.padding(node, made, kernel, stride, dilation, true)?;
        let bias = self.list(node, 2, out_channels)?;
        let conv = Conv2d {
            in_channels: per_group.checked_mul(groups).ok_or("its groups are too many")?,
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
        if node.doc == POINTWISE && conv.is_pointwise() && conv.dilation == [1, 1] {
            let Conv2d { in_channels, out_channels, bias: has_bias, .. } = conv;
            let linear = PointwiseLinear { in_channels, out_channels, bias: has_bias };
            return self.push(node, linear, &[made], parameters);
        }
        self.push(node, conv, &[made], parameters)
    }

    fn gemm(&mut self, node: &'a Node<'a>) -> ImportResult<Value> {
        let made = self.made(node, 0)?;
        let flag = |name| node.attribute(name).is_some_and(|attribute| attribute.int != 0);
        if flag("transA") {
            return Err("its `transA` is set: it would mix images".into());
        }
        let constant = self.constant(node, 1)?.ok_or("it has no weight")?;
        let constant = if flag("transB") { constant } else { transposed(&constant)? };
        let scale = |name| node.attribute(name).map_or(1.0, |attribute| attribute.float);
        let weight = scaled(floats(constant)?, scale("alpha"));
        let bias = match self.weight(node, 2)? {
            None => None,
            Some((shape, bias)) => {
                let bias = scaled((vec![], bias), scale("beta")).1;
                let rows = shape.len() > 2 || (shape.len() == 2 && shape[0] != 1);
                // One number for all features is one for each; of a weight that is empty there are none.
                match (&bias[..], &weight.0[..]) {
                    _ if rows => {
                        return Err(format!(
                            "its `C` has the shape {shape:?}, other numbers for each image; a number for \
                             each feature is taken"
                        )
                        .into());
                    }
                    ([bias], [features, _]) if *features <= weight.1.len() => Some(vec![*bias; *features]),
                    _ => Some(bias),
                }
            }
        };
        self.linear(node, made, weight, bias)
    }

    /// A product with a weight, `[inputs, outputs]`, or one of the two that adaptive average-pooling is
    /// written as.
    fn matmul(&mut self, node: &'a Node<'a>) -> ImportResult<Value> {
        if matches!(self.value(node, 0)?, Value::LayerOutput(_))
            && matches!(self.value(node, 1)?, Value::LayerOutput(_))
        {
            return Err("it multiplies what it computes from the images with each other".into());
        }
        let first = matches!(self.value(node, 0)?, Value::LayerOutput(_));
        let made = self.made(node, usize::from(!first))?;
        let constant = self.constant(node, usize::from(first))?.ok_or("it has no weight")?;
        if first && made.order == Order::ChannelsLast {
            return self.pointwise_linear(node, made, &constant);
        }
        if let Ok([channels, height, width]) = self.shape(made.id).as_image() {
            return self.adaptive(node, made, first, &constant, [channels, height, width]);
        }
        if !first {
            return Err("its weight stands before what it reads".into());
        }
        let weight = floats(transposed(&constant)?)?;
        self.linear(node, made, weight, None)
    }

    /// A product of each pixel's channels, which come last, with a weight `[inputs, outputs]`.
    fn pointwise_linear(
        &mut self,
        node: &'a Node<'a>,
        made: LayerOutput,
        constant: &Constant,
    ) -> ImportResult<Value> {
        let (shape, weight) = floats(transposed(constant)?)?;
        let [out_channels, in_channels] = shape[..] else {
            return Err(format!("its weight has {} dimensions instead of 2", shape.len()).into());
        };
        let linear = PointwiseLinear { in_channels, out_channels, bias: false };
        let value = self.push(node, linear, &[made], vec![weight])?;
        Ok(in_order(value, made.order))
    }

    /// Adaptive average-pooling as products with matrices of means: rows first, then columns.
    fn adaptive(
        &mut self,
        node: &'a Node<'a>,
        made: LayerOutput,
        columns: bool,
        constant: &Constant,
        [_, height, width]: [usize; 3],
    ) -> ImportResult<Value> {
        let unknown =
            || Refusal::from("it multiplies images, and not with the matrix of an adaptive average-pooling");
        let size = if columns { width } else { height };
        let matrix = if columns { transposed(constant)? } else { constant.clone() };
        let (shape, values) = floats(matrix)?;
        let [count, _] = shape[..] else { return Err(unknown()) };
        // What `bins` makes is not larger than what was read.
        if made.order != Order::Plain || shape != [count, size] || values != bins(count, size) {
            return Err(unknown());
        }
        if !columns {
            return self.push(node, AdaptiveAvgPool2d { output: [count, width] }, &[made], vec![]);
        }
        let name = self.names.of(node);
        let sole = self.is_sole(node);
        match self.sole_layer(made) {
            Some(layer) if matches!(&layer.op, Op::AdaptiveAvgPool2d(rows) if rows.output[1] == width) => {
                layer.op = AdaptiveAvgPool2d { output: [height, count] }.into();
                layer.shape.0[2] = count;
                layer.name = name;
                Ok(Value::LayerOutput(LayerOutput { sole, ..made }))
            }
            _ => {
                let pooled =
                    self.push_as(name, AdaptiveAvgPool2d { output: [height, count] }, &[made], vec![])?;
                Ok(Value::LayerOutput(LayerOutput { sole, ..pooled }))
            }
        }
    }

    /// A linear layer of a weight `[outputs, inputs]`.
    fn linear(
        &mut self,
        node: &'a Node<'a>,
        made: LayerOutput,
        (shape, mut weight): (Vec<usize>, Vec<f32>),
        bias: Option<Vec<f32>>,
    ) -> ImportResult<Value> {
        let [out_features, in_features] = shape[..] else {
            return Err(format!("its weight has {} dimensions instead of 2", shape.len()).into());
        };
        if let Order::Flattened([channels, height, width]) = made.order {
            let pixels = height * width;
            if in_features != channels * pixels {
                return Err(
                    format!("its weight {shape:?} does not fit {} features", channels * pixels).into()
                );
            }
            // The file's feature of pixel p and channel c is number p * channels + c, the layer's c * pixels
            // + p.
            let reordered = |row: &[f32]| {
                (0..in_features).map(|i| row[i % pixels * channels + i / pixels]).collect::<Vec<_>>()
            };
            weight = weight.chunks_exact(in_features.max(1)).flat_map(reordered).collect();
        } else if made.order != Order::Plain {
            return Err("it reads images with their channels last".into());
        }
        let linear = Linear { in_features, out_features, bias: bias.is_some() };
        self.push(node, linear, &[made], [Some(weight), bias].into_iter().flatten().collect())
    }

    fn batch_norm(&mut self, node: &'a Node<'a>) -> ImportResult<Value> {
        let made = self.plain(node, 0)?;
        if node.attribute("spatial").is_some_and(|spatial| spatial.int == 0) {
            return Err("it normalises every pixel by itself".into());
        }
        if node.attribute("training_mode").is_some_and(|training| training.int != 0) {
            count_up(&mut self.training, node);
        }
        let channels = self.shape(made.id).0.first().copied().unwrap_or(0);
        let mut parameters = Vec::new();
        for position in 1..5 {
            parameters.push(self.list(node, position, channels)?.ok_or("it has less than four parameters")?);
        }
        let number = |name, otherwise| node.attribute(name).map_or(otherwise, |attribute| attribute.float);
        let norm = BatchNorm2d {
            channels,
            epsilon: number("epsilon", 1e-5),
            momentum: moved_share(number("momentum", 0.9)),
        };
        self.push(node, norm, &[made], parameters)
    }

    /// Over the channels of each pixel, which come last; of the others, statistics would be over pixels too.
    fn layer_norm(&mut self, node: &'a Node<'a>) -> ImportResult<Value> {
        let made = self.made(node, 0)?;
        let [channels, ..] = self.image(made)?;
        let axis = node.attribute("axis").map_or(-1, |axis| axis.int);
        if made.order != Order::ChannelsLast || ![-1, 3].contains(&axis) {
            return Err(format!(
                "its axis is {axis}: only channels that were moved to the end are normalised, each pixel's"
            )
            .into());
        }
        // What its statistics are computed in: 32-bit floating point, as layers do.
        let stash = node.attribute("stash_type").map_or(kind::FLOAT, |stash| stash.int);
        if stash != kind::FLOAT {
            return Err(format!("its `stash_type` is {}; FLOAT is taken", kind::name(stash)).into());
        }
        let weight = self.list(node, 1, channels)?.ok_or("it has no scale")?;
        let bias = self.list(node, 2, channels)?.ok_or("it has no bias: give it one of zeros")?;
        let epsilon = node.attribute("epsilon").map_or(1e-5, |epsilon| epsilon.float);
        let value = self.push(node, LayerNorm2d { channels, epsilon }, &[made], vec![weight, bias])?;
        Ok(in_order(value, made.order))
    }

    fn clip(&mut self, node: &'a Node<'a>) -> ImportResult<Value> {
        let (least, most) = (self.number(node, "min", 1)?, self.number(node, "max", 2)?);
        match (least, most) {
            (Some(0.0), None) => self.elementwise(node, Relu),
            (Some(0.0), Some(most)) if most >= f32::MAX => self.elementwise(node, Relu),
            (Some(0.0), Some(Relu6::CEILING)) => self.ceiling(node, 0),
            _ => {
                let shown = |bound: Option<f32>| bound.map_or("none".to_owned(), |bound| bound.to_string());
                Err(format!(
                    "its bounds are {} and {}; 0 and 6, or 0 and none, are taken",
                    shown(least),
                    shown(most)
                )
                .into())
            }
        }
    }

    /// The ceiling of ReLU6, as TensorFlow's converters write it: `Min(Relu(x), 6)`.
    fn min(&mut self, node: &'a Node<'a>) -> ImportResult<Value> {
        let first = usize::from(!matches!(self.value(node, 0)?, Value::LayerOutput(_)));
        let made = self.made(node, first)?;
        let bound = self.constant(node, 1 - first)?.and_then(|constant| self.one_number(made, &constant));
        let not_negative = made.id > 0 && self.layers[made.id - 1].not_negative;
        if node.inputs.len() != 2 || bound != Some(Relu6::CEILING) || !not_negative {
            return Err("only min(x, 6) behind a rectifier is taken".into());
        }
        self.ceiling(node, first)
    }

    /// ReLU6, into which a rectifier before it is taken.
    fn ceiling(&mut self, node: &'a Node<'a>, position: usize) -> ImportResult<Value> {
        let made = self.made(node, position)?;
        if let Some(layer) = self.sole_layer(made)
            && matches!(layer.op, Op::Relu(_))
        {
            layer.op = Relu6.into();
            return Ok(self.alias(node, made));
        }
        let value = self.push(node, Relu6, &[made], vec![])?;
        Ok(in_order(value, made.order))
    }

    fn local_response_norm(&mut self, node: &'a Node<'a>) -> ImportResult<Value> {
        let made = self.plain(node, 0)?;
        let number = |name, otherwise| node.attribute(name).map_or(otherwise, |attribute| attribute.float);
        let size = count(node, "size", 0)?;
        if size % 2 == 0 {
            return Err(format!(
                "its size {size} is even: its window lies one channel further on than a layer's"
            )
            .into());
        }
        let (alpha, beta, k) = (number("alpha", 1e-4), number("beta", 0.75), number("bias", 1.0));
        self.push(node, LocalResponseNorm { size, alpha, beta, k }, &[made], vec![])
    }

    fn mean(&mut self, node: &'a Node<'a>) -> ImportResult<Value> {
        let made = self.made(node, 0)?;
        self.image(made)?;
        let mut axes = self.integers(node, "axes", 1)?.unwrap_or_default();
        axes.iter_mut().filter(|axis| **axis < 0).for_each(|axis| *axis = axis.saturating_add(4));
        axes.sort_unstable();
        let wanted = if made.order == Order::ChannelsLast { [1, 2] } else { [2, 3] };
        if axes != wanted {
            return Err(format!(
                "it takes the mean over {axes:?}; over height and width, {wanted:?}, is taken"
            )
            .into());
        }
        if node.attribute("keepdims").is_none_or(|keep| keep.int != 0) {
            let value = self.push(node, AdaptiveAvgPool2d::GLOBAL, &[made], vec![])?;
            return Ok(in_order(value, made.order));
        }
        let name = self.names.of(node);
        let flat = self.names.beside(&name, "flatten");
        let pooled = self.push_as(name, AdaptiveAvgPool2d::GLOBAL, &[made], vec![])?;
        let made = self.push_as(flat, Flatten, &[pooled], vec![])?;
        Ok(Value::LayerOutput(LayerOutput { sole: self.is_sole(node), ..made }))
    }

    fn concat(&mut self, node: &'a Node<'a>) -> ImportResult<Value> {
        let inputs: Vec<LayerOutput> =
            (0..node.inputs.len()).map(|i| self.made(node, i)).collect::<ImportResult<_>>()?;
        let order = inputs.first().map_or(Order::Plain, |made| made.order);
        let axis = node.attribute("axis").map_or(0, |axis| axis.int);
        let is_vector = inputs.first().is_some_and(|made| self.shape(made.id).0.len() == 1);
        let channels: [i64; 2] = match order {
            Order::ChannelsLast => [3, -1],
            Order::Plain if is_vector => [1, -1],
            Order::Plain => [1, -3],
            Order::Flattened(_) => {
                return Err("it joins vectors that were images with their channels last".into());
            }
            Order::Grouped(_) | Order::InTurn(_) => return Err("it joins channels in groups".into()),
        };
        if inputs.iter().any(|made| made.order != order) || !channels.contains(&axis) {
            return Err(format!("its `axis` is {axis}: it does not put channels one behind the other").into());
        }
        if let ([made], Order::Plain) = (&inputs[..], order) {
            return Ok(self.alias(node, *made));
        }
        let value = self.push(node, Concat, &inputs, vec![])?;
        Ok(in_order(value, order))
    }
}

/// The same value, its elements in the order of another.
pub(super) fn in_order(value: Value, order: Order) -> Value {
    match value {
        Value::LayerOutput(made) => Value::LayerOutput(LayerOutput { order, ..made }),
        other => other,
    }
}

/// A weight and its shape.
pub(super) fn floats(constant: Constant) -> ImportResult<(Vec<usize>, Vec<f32>)> {
    match constant.elements {
        crate::tensor::Elements::Floats(values) => Ok((constant.shape, values)),
        crate::tensor::Elements::Ints(_) => Err("it has whole numbers where weights should be".into()),
    }
}

fn transposed(constant: &Constant) -> ImportResult<Constant> {
    let shape = Shape(constant.shape.clone());
    let moved = (constant.shape.len() == 2).then(|| constant.transposed(&[1, 0])).flatten();
    moved.ok_or_else(|| format!("its weight {shape} is no matrix").into())
}

fn scaled((shape, mut values): (Vec<usize>, Vec<f32>), factor: f32) -> (Vec<usize>, Vec<f32>) {
    if factor != 1.0 {
        values.iter_mut().for_each(|value| *value *= factor);
    }
    (shape, values)
}

/// The share of a new batch in the running statistics: ONNX has that of the old. As a decimal of few digits
/// where it was one.
fn moved_share(kept: f32) -> f32 {
    let share = 1.0 - f64::from(kept);
    let rounded = (share * 1e6).round() / 1e6;
    (if (rounded - share).abs() < 1e-7 { rounded } else { share }) as f32
}

/// A count that an attribute gives.
pub(super) fn count(node: &Node<'_>, name: &str, otherwise: usize) -> ImportResult<usize> {
    let Some(attribute) = node.attribute(name) else { return Ok(otherwise) };
    let count = usize::try_from(attribute.int).ok().filter(|count| (1..=LARGEST).contains(count));
    count.ok_or_else(|| format!("its `{name}` is {}; it is from 1 to {LARGEST}", attribute.int).into())
}

/// Two extents, of height and width, that an attribute gives.
pub(super) fn pair(node: &Node<'_>, name: &str, otherwise: [usize; 2]) -> ImportResult<[usize; 2]> {
    let Some(attribute) = node.attribute(name).filter(|attribute| !attribute.ints.is_empty()) else {
        return Ok(otherwise);
    };
    let extent = |&extent: &i64| usize::try_from(extent).ok().filter(|extent| (1..=LARGEST).contains(extent));
    let extents: Option<Vec<usize>> = attribute.ints.iter().map(extent).collect();
    let pair = extents.and_then(|extents| extents.try_into().ok());
    pair.ok_or_else(|| {
        format!("its `{name}` are {:?}; two are wanted, each from 1 to {LARGEST}", attribute.ints).into()
    })
}
