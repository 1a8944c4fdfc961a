//! GELU in older operators: `x / 2 · (1 + erf(x / √2))`, with factors in any order.

use super::layers::in_order;
use super::{ImportResult, Importer, LayerOutput, Value};
use crate::proto::Node;
use stratus_graph::Op;
use stratus_graph::ops::{Gelu, Scale};

/// The part of a GELU that is computed so far.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum GeluPart {
    /// `x / √2`.
    Scaled,
    /// `erf(x / √2)`.
    Erf,
    /// `1 + erf(x / √2)`.
    Sum,
    /// `(1 + erf(x / √2)) / 2`.
    HalfSum,
    /// `x (1 + erf(x / √2))`.
    DoubledGelu,
}

/// The error of a node that reads a part of a GELU.
pub(super) const PARTIAL_GELU: &str = "incomplete GELU, expected `x / 2 · (1 + erf(x / √2))`";

impl<'a> Importer<'a> {
    /// Returns a value times a number as the beginning of a GELU, if it is one.
    pub(super) fn gelu_scaled(&self, node: &Node<'a>, input: LayerOutput, factor: f32) -> Option<Value> {
        let fits = (factor * std::f32::consts::SQRT_2 - 1.0).abs() < 1e-6;
        let reader = self.single_reader(node).filter(|_| fits)?;
        (reader.operator == "Erf").then_some(Value::Gelu(GeluPart::Scaled, input))
    }

    /// Imports the error function, which is supported only in a GELU.
    pub(super) fn erf(&self, node: &Node<'a>) -> ImportResult<Value> {
        match self.value(node, 0)? {
            Value::Gelu(GeluPart::Scaled, x) => Ok(Value::Gelu(GeluPart::Erf, *x)),
            _ => Err("supported only in a GELU, `x / 2 · (1 + erf(x / √2))`".into()),
        }
    }

    /// Imports the sum with 1 of a GELU, if it is one.
    pub(super) fn gelu_sum(&self, node: &Node<'a>) -> ImportResult<Option<Value>> {
        let Some((part, x, other)) = self.gelu_part(node)? else { return Ok(None) };
        match (part, self.scalar_constant_input(node, x, other)?) {
            (GeluPart::Erf, Some(1.0)) if node.inputs.len() == 2 => Ok(Some(Value::Gelu(GeluPart::Sum, x))),
            _ => Err(PARTIAL_GELU.into()),
        }
    }

    /// Imports a product of a part of a GELU with one half or with `x`, which is the next part or the GELU.
    pub(super) fn gelu_product(&mut self, node: &'a Node<'a>) -> ImportResult<Option<Value>> {
        let Some((part, x, other)) = self.gelu_part(node)? else { return Ok(None) };
        let half = self.scalar_constant_input(node, x, other)? == Some(0.5);
        let factor = match self.value(node, other)? {
            Value::LayerOutput(input) if input.pad.is_none() => Some(*input),
            _ => None,
        };
        let is_x = factor.is_some_and(|input| (input.id, input.order) == (x.id, x.order));
        let next = match part {
            GeluPart::Sum if half => Some(GeluPart::HalfSum),
            GeluPart::Sum if is_x => Some(GeluPart::DoubledGelu),
            _ => None,
        };
        if let Some(next) = next {
            return Ok(Some(Value::Gelu(next, x)));
        }
        let single_use = self.is_single_use(node);
        if let (GeluPart::Sum, Some(input)) = (part, factor.filter(|input| input.order == x.order)) {
            // `x / 2` is already a layer, which becomes the GELU.
            let fits = |layer: &super::Layer| {
                matches!(layer.op, Op::Scale(Scale { factor: 0.5 })) && layer.inputs == [x.id]
            };
            if let Some(layer) = self.single_use_layer(input).filter(|layer| fits(layer)) {
                layer.op = Gelu.into();
                return Ok(Some(Value::LayerOutput(LayerOutput { single_use, order: x.order, ..input })));
            }
        }
        if (part == GeluPart::HalfSum && is_x) || (part == GeluPart::DoubledGelu && half) {
            let name = self.names.for_module(node, "gelu");
            let output = self.push_as(name, Gelu, &[x], vec![])?;
            let value = Value::LayerOutput(LayerOutput { single_use, ..output });
            return Ok(Some(in_order(value, x.order)));
        }
        Err(PARTIAL_GELU.into())
    }

    /// The part of a GELU that a node reads, its argument `x`, and the position of the node's other input.
    fn gelu_part(&self, node: &Node<'a>) -> ImportResult<Option<(GeluPart, LayerOutput, usize)>> {
        for position in 0..node.inputs.len().min(2) {
            if let Value::Gelu(part, x) = self.value(node, position)? {
                return Ok(Some((*part, *x, 1 - position)));
            }
        }
        Ok(None)
    }

    /// The value of a constant input with a single element.
    fn scalar_constant_input(
        &self,
        node: &Node<'a>,
        input: LayerOutput,
        position: usize,
    ) -> ImportResult<Option<f32>> {
        if matches!(self.value(node, position)?, Value::LayerOutput(_) | Value::Gelu(..)) {
            return Ok(None);
        }
        Ok(self.constant(node, position)?.and_then(|constant| self.scalar_constant(input, &constant)))
    }
}
