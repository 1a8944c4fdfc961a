//! Sums and products: of what two layers make, or of numbers that the layer before takes over.

use super::layers::{floats, in_order};
use super::{ImportResult, Importer, Layer, LayerOutput, Order, Value};
use crate::export::LAYER_SCALE;
use crate::proto::Node;
use crate::tensor::{Constant, Elements};
use stratus_graph::ops::{
    Add, ChannelScale, Conv2d, ConvTranspose2d, HardSwish, LayerScale, Linear, PointwiseLinear, Scale, Silu,
};
use stratus_graph::{Op, Shape};

impl<'a> Importer<'a> {
    pub(super) fn add(&mut self, node: &'a Node<'a>) -> ImportResult<Value> {
        if let Some(value) = self.gelu_sum(node)? {
            return Ok(value);
        }
        let mut inputs = Vec::new();
        let mut constant = None;
        for position in 0..node.inputs.len() {
            if matches!(self.value(node, position)?, Value::LayerOutput(_)) {
                inputs.push(self.made(node, position)?);
            } else {
                constant = self.constant(node, position)?;
            }
        }
        match (&inputs[..], constant) {
            ([made], Some(constant)) if node.inputs.len() == 2 => self.add_bias(node, *made, constant),
            ([first, rest @ ..], None) if !rest.is_empty() => {
                if inputs.iter().any(|made| made.order != first.order) {
                    return Err("its inputs differ in the order of their dimensions".into());
                }
                let mut sum = *first;
                for (position, made) in rest.iter().enumerate() {
                    let last = position + 1 == rest.len();
                    let own = self.names.of(node);
                    let name = if last { own } else { self.names.beside(&own, "part") };
                    sum = self.push_as(name, Add, &[sum, *made], vec![])?;
                }
                Ok(Value::LayerOutput(LayerOutput { sole: self.is_sole(node), order: first.order, ..sum }))
            }
            _ => Err("it does not add two of what layers make, nor a bias".into()),
        }
    }

    /// Adds numbers to the bias of the layer before.
    fn add_bias(&mut self, node: &'a Node<'a>, made: LayerOutput, constant: Constant) -> ImportResult<Value> {
        let added = self.per_channel(made, constant)?;
        let layer = self.changeable(made)?;
        if let Op::Conv2d(Conv2d { bias, .. })
        | Op::ConvTranspose2d(ConvTranspose2d { bias, .. })
        | Op::Linear(Linear { bias, .. })
        | Op::PointwiseLinear(PointwiseLinear { bias, .. }) = &mut layer.op
            && !std::mem::replace(bias, true)
        {
            layer.parameters.push(vec![0.0; added.len()]);
        }
        layer.parameters[1].iter_mut().zip(added).for_each(|(sum, value)| *sum += value);
        Ok(self.alias(node, made))
    }

    /// One number multiplies every element; one for each channel, the weight and the bias of the layer
    /// before: what is left of a batch norm that was folded. Where a sum of layers' outputs follows, or no
    /// layer could take them over, they are a layer of their own. Of two layers' outputs, see
    /// [`Self::outputs`].
    pub(super) fn product(&mut self, node: &'a Node<'a>) -> ImportResult<Value> {
        if let Some(value) = self.gelu_product(node)? {
            return Ok(value);
        }
        if let [Value::LayerOutput(_), Value::LayerOutput(_)] = [self.value(node, 0)?, self.value(node, 1)?] {
            let [a, b] = [self.made(node, 0)?, self.made(node, 1)?];
            return self.outputs(node, [a, b]);
        }
        let first = usize::from(!matches!(self.value(node, 0)?, Value::LayerOutput(_)));
        let made = self.made(node, first)?;
        let constant = self.constant(node, 1 - first)?.ok_or("it has one input")?;
        if let Some(factor) = self.one_number(made, &constant).filter(|_| node.doc != LAYER_SCALE) {
            if let Some(part) = self.gelu_scaled(node, made, factor) {
                return Ok(part);
            }
            return self.elementwise_of(node, made, Scale { factor });
        }
        let factors = self.per_channel(made, constant)?;
        let is_image = self.shape(made.id).0.len() == 3;
        if is_image && (node.doc == LAYER_SCALE || self.is_added(node) || self.changeable(made).is_err()) {
            let value = self.push(node, LayerScale::new(factors.len()), &[made], vec![factors])?;
            return Ok(in_order(value, made.order));
        }
        let layer = self.changeable(made)?;
        // Running statistics, of a batch norm, stay.
        for values in layer.parameters.iter_mut().take(2) {
            let each = values.len() / factors.len().max(1);
            if let (Op::ConvTranspose2d(conv), true) = (&layer.op, each > 1) {
                scale_transposed(conv, values, &factors);
                continue;
            }
            for (values, factor) in values.chunks_exact_mut(each.max(1)).zip(&factors) {
                values.iter_mut().for_each(|value| *value *= factor);
            }
        }
        Ok(self.alias(node, made))
    }

    /// Whether what a node makes is added, and nothing else, to another layer's output, in training mode
    /// behind a dropout: as a residual branch ends.
    fn is_added(&self, node: &Node<'a>) -> bool {
        let mut node = node;
        while let Some(reader) = self.sole_reader(node) {
            match reader.operator {
                // As their first input, of which each has one: no chain of them is endless.
                "Dropout" | "Identity" if reader.inputs.first() == node.outputs.first() => node = reader,
                "Add" | "Sum" => {
                    let known = |name: &&str| {
                        matches!(self.values.get(*name), Some(Value::Initialiser(_) | Value::Constant(_)))
                    };
                    return !reader.inputs.iter().any(known);
                }
                _ => return false,
            }
        }
        false
    }

    /// The product of two layers' outputs: SiLU or hard swish where one is the sigmoid of the other, or a map
    /// with a factor for each of its channels.
    fn outputs(&mut self, node: &'a Node<'a>, [a, b]: [LayerOutput; 2]) -> ImportResult<Value> {
        let sigmoid_of = |gate: LayerOutput, x: LayerOutput| {
            let layer = &self.layers[gate.id.checked_sub(1)?];
            let op: Op = match layer.op {
                Op::Sigmoid(_) => Silu.into(),
                Op::HardSigmoid(_) => HardSwish.into(),
                _ => return None,
            };
            (gate.order == x.order && layer.inputs == [x.id]).then_some(op)
        };
        let (x, gate, op) = match [sigmoid_of(b, a), sigmoid_of(a, b)] {
            [Some(op), _] => (a, b, op),
            [_, Some(op)] => (b, a, op),
            _ => return self.channel_scale(node, [a, b]),
        };
        let sole = self.is_sole(node);
        match self.sole_layer(gate) {
            // The sigmoid's name stays: PyTorch calls its node by the module, the product's by its operator.
            Some(layer) => {
                layer.op = op;
                layer.not_negative = false;
                Ok(Value::LayerOutput(LayerOutput { sole, ..gate }))
            }
            None => self.elementwise_of(node, x, op),
        }
    }

    /// A map with a factor for each of its channels, in either order.
    fn channel_scale(&mut self, node: &'a Node<'a>, [a, b]: [LayerOutput; 2]) -> ImportResult<Value> {
        let shapes = [a, b].map(|made| self.shape(made.id).clone());
        let scales = |map: &Shape, factors: &Shape| {
            map.0.len() == 3 && factors.0.len() == 3 && factors.0[0] == map.0[0] && factors.0[1..] == [1, 1]
        };
        let inputs = match [scales(&shapes[0], &shapes[1]), scales(&shapes[1], &shapes[0])] {
            _ if a.order != b.order || a.id == b.id => None,
            [true, _] => Some([a, b]),
            [_, true] => Some([b, a]),
            _ => None,
        };
        let [map, factors] = inputs.ok_or_else(|| {
            format!(
                "it multiplies two layers' outputs, {} and {}, of which none is the other's sigmoid, nor a \
                 factor for each channel of a map",
                shapes[0], shapes[1]
            )
        })?;
        let value = self.push(node, ChannelScale, &[map, factors], vec![])?;
        Ok(in_order(value, map.order))
    }

    /// Division by one number.
    pub(super) fn quotient(&mut self, node: &'a Node<'a>) -> ImportResult<Value> {
        if !matches!(self.value(node, 0)?, Value::LayerOutput(_) | Value::Gelu(..)) {
            return Err("it divides by what it computes from the images".into());
        }
        let made = self.made(node, 0)?;
        let divisor = self.constant(node, 1)?.and_then(|constant| self.one_number(made, &constant));
        let factor = divisor.map(f32::recip).ok_or("only division by one number is taken")?;
        if let Some(part) = self.gelu_scaled(node, made, factor) {
            return Ok(part);
        }
        self.elementwise_of(node, made, Scale { factor })
    }

    /// The one number of a constant that has as many dimensions as what a layer makes, or less: with more the
    /// result would have them too.
    pub(super) fn one_number(&self, made: LayerOutput, constant: &Constant) -> Option<f32> {
        let fits = constant.shape.len() <= self.shape(made.id).0.len() + 1;
        let float = matches!(constant.elements, Elements::Floats(_));
        constant.scalar().filter(|_| fits && float)
    }

    /// A number for each channel of what a layer makes.
    fn per_channel(&self, made: LayerOutput, constant: Constant) -> ImportResult<Vec<f32>> {
        let rank = self.shape(made.id).0.len();
        let channels = self.shape(made.id).0.first().copied().unwrap_or(0);
        let (shape, values) = floats(constant)?;
        // Where the channels stand, counted from the end: nothing else may be longer than 1.
        let from_end = if rank == 3 && made.order == Order::Plain { 3 } else { 1 };
        let fits = shape.len() <= rank + 1
            && shape.iter().rev().enumerate().all(|(place, &extent)| extent == 1 || place + 1 == from_end);
        match values[..] {
            [value] if fits => Ok(vec![value; channels]),
            _ if fits && values.len() == channels => Ok(values),
            _ => Err(format!("its numbers have the shape {shape:?}; one for each channel is taken").into()),
        }
    }

    /// The layer whose weights may take numbers over: a convolution, linear layer or batch norm that nothing
    /// else reads.
    fn changeable(&mut self, made: LayerOutput) -> ImportResult<&mut Layer> {
        self.sole_layer(made)
            .filter(|_| !matches!(made.order, Order::Flattened(_)))
            .filter(|layer| {
                matches!(
                    layer.op,
                    Op::Conv2d(_)
                        | Op::ConvTranspose2d(_)
                        | Op::Linear(_)
                        | Op::PointwiseLinear(_)
                        | Op::BatchNorm2d(_)
                )
            })
            .ok_or_else(|| {
                "it follows no convolution, linear layer or batch norm that could take its numbers over"
                    .into()
            })
    }
}

/// Multiplies a transposed convolution's weight `[in, out / groups, height, width]` by a factor for each
/// output.
fn scale_transposed(conv: &ConvTranspose2d, weight: &mut [f32], factors: &[f32]) {
    let [inputs, per_group, height, width] = conv.weight_shape();
    let per_input = (per_group * height * width).max(1);
    for (input, kernels) in weight.chunks_exact_mut(per_input).enumerate() {
        let group = input / (inputs / conv.groups.max(1)).max(1);
        let factors = factors.iter().skip(group * per_group);
        for (kernel, factor) in kernels.chunks_exact_mut((height * width).max(1)).zip(factors) {
            kernel.iter_mut().for_each(|value| *value *= factor);
        }
    }
}
