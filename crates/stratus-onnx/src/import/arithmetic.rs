//! Sums and products of layer outputs, and of constants that are folded into the previous layer.

use super::layers::{floats, in_order};
use super::{DimOrder, ImportResult, Importer, Layer, LayerOutput, Value};
use crate::export::DOC_LAYER_SCALE;
use crate::ops::group_norm::{self, Fold};
use crate::proto::Node;
use crate::tensor::{Constant, Elements};
use stratus_graph::Op;
use stratus_graph::ops::{Add, Conv2d, ConvTranspose2d, Flatten, LayerScale, Linear, PointwiseLinear};

impl<'a> Importer<'a> {
    pub(super) fn add(&mut self, node: &'a Node<'a>) -> ImportResult<Value> {
        if let Some(value) = self.gelu_sum(node)? {
            return Ok(value);
        }
        let mut inputs = Vec::new();
        let mut constant = None;
        for position in 0..node.inputs.len() {
            if matches!(self.value(node, position)?, Value::LayerOutput(_)) {
                inputs.push(self.layer_input(node, position)?);
            } else {
                constant = self.constant(node, position)?;
            }
        }
        match (&inputs[..], constant) {
            ([input], Some(constant)) if node.inputs.len() == 2 => self.add_bias(node, *input, constant),
            ([first, _, ..], None) => {
                let name = self.names.for_node(node);
                let sum = self.sum_of(&inputs, name)?;
                Ok(self.as_output_of(node, sum, *first))
            }
            _ => Err("unsupported sum, expected layer outputs or a bias".into()),
        }
    }

    /// Adds the sums of layer outputs, of which there is at least one; the last sum gets the name.
    pub(super) fn sum_of(&mut self, inputs: &[LayerOutput], name: String) -> ImportResult<LayerOutput> {
        let [first, middle @ .., last] = inputs else {
            return inputs.first().copied().ok_or("it has no inputs".into());
        };
        if inputs.iter().any(|input| input.order != first.order) {
            return Err("its inputs differ in dimension order".into());
        }
        let mut sum = *first;
        for input in middle {
            let part = self.names.with_suffix(&name, "part");
            sum = self.push_as(part, Add, &[sum, *input], vec![])?;
        }
        self.push_as(name, Add, &[sum, *last], vec![])
    }

    /// Adds a constant: it is folded into the bias of the previous layer, or becomes a depthwise convolution.
    fn add_bias(
        &mut self,
        node: &'a Node<'a>,
        input: LayerOutput,
        constant: Constant,
    ) -> ImportResult<Value> {
        if group_norm::fold(self, node, input, &constant, &Fold::Terms)? {
            return Ok(self.alias(node, input));
        }
        let number = self.scalar_constant(input, &constant);
        let added = self.per_channel(input, constant)?;
        let Ok(layer) = self.foldable_layer(input) else {
            if let Some(value) = number.and_then(|number| self.shifted(node, input, number)) {
                return Ok(value);
            }
            let ones = vec![1.0; added.len()];
            return self.per_channel_affine(node, input, ones, added);
        };
        if let Op::Conv2d(Conv2d { bias, .. })
        | Op::ConvTranspose2d(ConvTranspose2d { bias, .. })
        | Op::Linear(Linear { bias, .. })
        | Op::PointwiseLinear(PointwiseLinear { bias, .. }) = &mut layer.op
            && !std::mem::replace(bias, true)
        {
            layer.parameters.push(vec![0.0; added.len()]);
        }
        layer.parameters[1].iter_mut().zip(added).for_each(|(sum, value)| *sum += value);
        Ok(self.alias(node, input))
    }

    /// Imports a difference: the sum with the negated constant or layer output.
    pub(super) fn sub(&mut self, node: &'a Node<'a>) -> ImportResult<Value> {
        let is_output = |value: &Value| matches!(value, Value::LayerOutput(_));
        match [is_output(self.value(node, 0)?), is_output(self.value(node, 1)?)] {
            [true, true] => {
                let [a, b] = [self.layer_input(node, 0)?, self.layer_input(node, 1)?];
                if a.order != b.order {
                    return Err("its inputs differ in dimension order".into());
                }
                let name = self.names.for_node(node);
                let negated = self.negated(b, &name)?;
                let sum = self.push_as(name, Add, &[a, negated], vec![])?;
                Ok(self.as_output_of(node, sum, a))
            }
            [true, false] => {
                let input = self.layer_input(node, 0)?;
                let mut constant = self.constant(node, 1)?.ok_or("missing input 2")?;
                if let Elements::Floats(values) = &mut constant.elements {
                    values.iter_mut().for_each(|value| *value = -*value);
                }
                self.add_bias(node, input, constant)
            }
            _ => {
                let input = self.layer_input(node, 1)?;
                let constant = self.constant(node, 0)?.ok_or("missing input 1")?;
                let added = self.per_channel(input, constant)?;
                let negative = vec![-1.0; added.len()];
                self.per_channel_affine(node, input, negative, added)
            }
        }
    }

    /// Adds the layers of `factors · x + added` for each channel of `x`: a depthwise 1×1 convolution. A
    /// vector must be a flattened map of one pixel.
    fn per_channel_affine(
        &mut self,
        node: &'a Node<'a>,
        input: LayerOutput,
        mut factors: Vec<f32>,
        added: Vec<f32>,
    ) -> ImportResult<Value> {
        let name = self.names.for_node(node);
        if self.layer_shape(input.id).0.len() == 3 {
            let mut x = input;
            // The product of a batch norm that was written as a product and a sum.
            if let Some(layer) = self.single_use_layer(input)
                && matches!(layer.op, Op::LayerScale(_))
            {
                factors.iter_mut().zip(&layer.parameters[0]).for_each(|(factor, known)| *factor *= known);
                x = LayerOutput { id: layer.inputs[0], single_use: false, ..input };
            }
            let output = self.affine(name, x, factors, added)?;
            return Ok(self.as_output_of(node, output, input));
        }
        let map = self.map_of_one_pixel(input).ok_or(
            "cannot be folded: its input is a vector, but no output of a linear layer or a batch norm",
        )?;
        let affine = self.names.with_suffix(&name, "affine");
        let output = self.affine(affine, map, factors, added)?;
        let flat = self.push_as(name, Flatten, &[output], vec![])?;
        Ok(self.as_output_of(node, flat, input))
    }

    /// The map `[C, 1, 1]` that a vector is, if it is one that was flattened.
    fn map_of_one_pixel(&self, input: LayerOutput) -> Option<LayerOutput> {
        let layer = &self.layers[input.id.checked_sub(1)?];
        let &[id] = matches!(layer.op, Op::Flatten(_)).then_some(&layer.inputs[..])? else { return None };
        let is_pixel = self.layer_shape(id).0.get(1..) == Some(&[1, 1]);
        let order = DimOrder::ChannelsFirst;
        is_pixel.then_some(LayerOutput { id, order, single_use: false, pad: None })
    }

    /// Adds the depthwise 1×1 convolution `factors · x + added`.
    pub(super) fn affine(
        &mut self,
        name: String,
        x: LayerOutput,
        factors: Vec<f32>,
        added: Vec<f32>,
    ) -> ImportResult<LayerOutput> {
        let channels = factors.len();
        let conv = Conv2d { groups: channels, bias: true, ..Conv2d::new(channels, channels, 1, 1, 0) };
        self.push_as(name, conv, &[x], vec![factors, added])
    }

    /// Imports a product. A scalar becomes `Scale`. Per-channel factors, such as of a folded batch norm, are
    /// folded into the previous layer, or become `LayerScale` before a residual sum or if folding fails. For
    /// two layer outputs, see `mul_outputs`.
    pub(super) fn mul(&mut self, node: &'a Node<'a>) -> ImportResult<Value> {
        if let Some(value) = self.gelu_product(node)? {
            return Ok(value);
        }
        if let [Value::LayerOutput(_), Value::LayerOutput(_)] = [self.value(node, 0)?, self.value(node, 1)?] {
            let [a, b] = [self.layer_input(node, 0)?, self.layer_input(node, 1)?];
            return self.mul_outputs(node, [a, b]);
        }
        let first = usize::from(!matches!(self.value(node, 0)?, Value::LayerOutput(_)));
        let input = self.layer_input(node, first)?;
        let constant = self.constant(node, 1 - first)?.ok_or("missing input 2")?;
        if node.doc != DOC_LAYER_SCALE && group_norm::fold(self, node, input, &constant, &Fold::Factors)? {
            return Ok(self.alias(node, input));
        }
        if let Some(factor) = self.scalar_constant(input, &constant).filter(|_| node.doc != DOC_LAYER_SCALE) {
            if let Some(part) = self.gelu_scaled(node, input, factor) {
                return Ok(part);
            }
            return self.times(node, input, factor);
        }
        let factors = self.per_channel(input, constant)?;
        self.multiply_channels(node, input, factors)
    }

    /// Multiplies each channel by a factor.
    fn multiply_channels(
        &mut self,
        node: &'a Node<'a>,
        input: LayerOutput,
        factors: Vec<f32>,
    ) -> ImportResult<Value> {
        let is_image = self.layer_shape(input.id).0.len() == 3;
        if is_image
            && (node.doc == DOC_LAYER_SCALE || self.is_added(node) || self.foldable_layer(input).is_err())
        {
            let value = self.push(node, LayerScale::new(factors.len()), &[input], vec![factors])?;
            return Ok(in_order(value, input.order));
        }
        if self.foldable_layer(input).is_err() && self.map_of_one_pixel(input).is_some() {
            let zeros = vec![0.0; factors.len()];
            return self.per_channel_affine(node, input, factors, zeros);
        }
        let layer = self.foldable_layer(input)?;
        // The running statistics of a batch norm stay.
        for values in layer.parameters.iter_mut().take(2) {
            let per_channel = values.len() / factors.len().max(1);
            if let (Op::ConvTranspose2d(conv), true) = (&layer.op, per_channel > 1) {
                scale_transposed(conv, values, &factors);
                continue;
            }
            for (values, factor) in values.chunks_exact_mut(per_channel.max(1)).zip(&factors) {
                values.iter_mut().for_each(|value| *value *= factor);
            }
        }
        Ok(self.alias(node, input))
    }

    /// Returns whether the node's only use is a residual `Add`, possibly after Dropout or Identity.
    pub(crate) fn is_added(&self, node: &Node<'a>) -> bool {
        let mut node = node;
        while let Some(reader) = self.single_reader(node) {
            match reader.operator {
                // Each node has one first input, so the chain is finite.
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

    /// Imports a division by a number, or by a number for each channel.
    pub(super) fn div(&mut self, node: &'a Node<'a>) -> ImportResult<Value> {
        if !matches!(self.value(node, 0)?, Value::LayerOutput(_) | Value::Gelu(..) | Value::Shifted(_)) {
            return Err("division by a layer output is not supported".into());
        }
        let input = self.layer_input(node, 0)?;
        if matches!(self.value(node, 1)?, Value::LayerOutput(_)) {
            return Err("division by a layer output is not supported".into());
        }
        let divisor = self.constant(node, 1)?.ok_or("missing input 2")?;
        if let Some(divisor) = self.scalar_constant(input, &divisor) {
            let factor = divisor.recip();
            if let Some(part) = self.gelu_scaled(node, input, factor) {
                return Ok(part);
            }
            return self.times(node, input, factor);
        }
        let factors = self.per_channel(input, divisor)?.into_iter().map(f32::recip).collect::<Vec<_>>();
        if factors.iter().any(|factor| !factor.is_finite()) {
            return Err("division by zero or by a number below the range of f32".into());
        }
        self.multiply_channels(node, input, factors)
    }

    /// The value of a constant with a single element. Its rank must not exceed that of the layer output,
    /// since the result would have the larger rank.
    pub(super) fn scalar_constant(&self, input: LayerOutput, constant: &Constant) -> Option<f32> {
        let fits = constant.shape.len() <= self.layer_shape(input.id).0.len() + 1;
        let float = matches!(constant.elements, Elements::Floats(_));
        constant.scalar().filter(|_| fits && float)
    }

    /// Converts a constant to one value per channel of a layer output.
    pub(crate) fn per_channel(&self, input: LayerOutput, constant: Constant) -> ImportResult<Vec<f32>> {
        let rank = self.layer_shape(input.id).0.len();
        let channels = self.layer_shape(input.id).0.first().copied().unwrap_or(0);
        let (shape, values) = floats(constant)?;
        // The position of the channels from the end; other dimensions must be 1.
        let from_end = if rank == 3 && input.order == DimOrder::ChannelsFirst { 3 } else { 1 };
        let fits = shape.len() <= rank + 1
            && shape.iter().rev().enumerate().all(|(position, &dim)| dim == 1 || position + 1 == from_end);
        match values[..] {
            [value] if fits => Ok(vec![value; channels]),
            _ if fits && values.len() == channels => Ok(values),
            _ => Err(format!("its constant has the shape {shape:?}, expected one value per channel").into()),
        }
    }

    /// The layer of `input` if constants can be folded into its weights: a convolution, linear layer or batch
    /// norm with a single reader.
    fn foldable_layer(&mut self, input: LayerOutput) -> ImportResult<&mut Layer> {
        self.single_use_layer(input)
            .filter(|_| !matches!(input.order, DimOrder::FlattenedChannelsLast(_)))
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
            .ok_or_else(|| "cannot be folded: input is not a convolution, linear layer or batch norm".into())
    }
}

/// Multiplies the weight `[in, out / groups, height, width]` of a transposed convolution by one factor per
/// output channel.
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
