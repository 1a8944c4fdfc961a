//! GELU where it is written in ONNX's older operators: `x / 2 · (1 + erf(x / √2))`, its factors in any order.

use super::layers::in_order;
use super::{ImportResult, Importer, LayerOutput, Value};
use crate::proto::Node;
use stratus_graph::Op;
use stratus_graph::ops::{Gelu, Scale};

/// What is computed of it so far.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum GeluPart {
    /// `x / √2`.
    Scaled,
    /// `erf(x / √2)`.
    Erf,
    /// `1 + erf(x / √2)`.
    Sum,
    /// `(1 + erf(x / √2)) / 2`.
    HalfSum,
    /// `x (1 + erf(x / √2))`.
    Twice,
}

/// Why something else is not taken.
pub(super) const PART: &str = "it reads a part of a GELU: `x / 2 · (1 + erf(x / √2))` is taken as a whole";

impl<'a> Importer<'a> {
    /// A value times a number, where that is the beginning of a GELU.
    pub(super) fn gelu_scaled(&self, node: &Node<'a>, made: LayerOutput, factor: f32) -> Option<Value> {
        let fits = (factor * std::f32::consts::SQRT_2 - 1.0).abs() < 1e-6;
        let reader = self.sole_reader(node).filter(|_| fits)?;
        (reader.operator == "Erf").then_some(Value::Gelu(GeluPart::Scaled, made))
    }

    /// The error function, which nothing else needs.
    pub(super) fn erf(&self, node: &Node<'a>) -> ImportResult<Value> {
        match self.value(node, 0)? {
            Value::Gelu(GeluPart::Scaled, x) => Ok(Value::Gelu(GeluPart::Erf, *x)),
            _ => Err("it is not that of a GELU, `x / 2 · (1 + erf(x / √2))`".into()),
        }
    }

    /// The sum with 1, where it is that of a GELU.
    pub(super) fn gelu_sum(&self, node: &Node<'a>) -> ImportResult<Option<Value>> {
        let Some((part, x, other)) = self.gelu_part(node)? else { return Ok(None) };
        match (part, self.number_of(node, x, other)?) {
            (GeluPart::Erf, Some(1.0)) if node.inputs.len() == 2 => Ok(Some(Value::Gelu(GeluPart::Sum, x))),
            _ => Err(PART.into()),
        }
    }

    /// A product of a part of a GELU with one half or with `x`: the next part, or the whole.
    pub(super) fn gelu_product(&mut self, node: &'a Node<'a>) -> ImportResult<Option<Value>> {
        let Some((part, x, other)) = self.gelu_part(node)? else { return Ok(None) };
        let half = self.number_of(node, x, other)? == Some(0.5);
        let factor = match self.value(node, other)? {
            Value::LayerOutput(made) if made.pad.is_none() => Some(*made),
            _ => None,
        };
        let is_x = factor.is_some_and(|made| (made.id, made.order) == (x.id, x.order));
        let next = match part {
            GeluPart::Sum if half => Some(GeluPart::HalfSum),
            GeluPart::Sum if is_x => Some(GeluPart::Twice),
            _ => None,
        };
        if let Some(next) = next {
            return Ok(Some(Value::Gelu(next, x)));
        }
        let sole = self.is_sole(node);
        if let (GeluPart::Sum, Some(made)) = (part, factor.filter(|made| made.order == x.order)) {
            // `x / 2` is a layer by now: it becomes the whole.
            let fits = |layer: &super::Layer| {
                matches!(layer.op, Op::Scale(Scale { factor: 0.5 })) && layer.inputs == [x.id]
            };
            if let Some(layer) = self.sole_layer(made).filter(|layer| fits(layer)) {
                layer.op = Gelu.into();
                return Ok(Some(Value::LayerOutput(LayerOutput { sole, order: x.order, ..made })));
            }
        }
        if (part == GeluPart::HalfSum && is_x) || (part == GeluPart::Twice && half) {
            let name = self.names.around(node, "gelu");
            let made = self.push_as(name, Gelu, &[x], vec![])?;
            let value = Value::LayerOutput(LayerOutput { sole, ..made });
            return Ok(Some(in_order(value, x.order)));
        }
        Err(PART.into())
    }

    /// The part of a GELU that a node reads, what it is of, and the position of the node's other input.
    fn gelu_part(&self, node: &Node<'a>) -> ImportResult<Option<(GeluPart, LayerOutput, usize)>> {
        for position in 0..node.inputs.len().min(2) {
            if let Value::Gelu(part, x) = self.value(node, position)? {
                return Ok(Some((*part, *x, 1 - position)));
            }
        }
        Ok(None)
    }

    /// The one number that an input is.
    fn number_of(&self, node: &Node<'a>, made: LayerOutput, position: usize) -> ImportResult<Option<f32>> {
        if matches!(self.value(node, position)?, Value::LayerOutput(_) | Value::Gelu(..)) {
            return Ok(None);
        }
        Ok(self.constant(node, position)?.and_then(|constant| self.one_number(made, &constant)))
    }
}
