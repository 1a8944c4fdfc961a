//! Products of two layer outputs: gated activations such as SiLU, hard swish and Mish, and channel scales.

use super::layers::in_order;
use super::{ImportResult, Importer, LayerOutput, Value};
use crate::proto::Node;
use stratus_graph::ops::{Activation, ChannelScale, HardSigmoid, HardSwish, Mish, Scale, Silu};
use stratus_graph::{Op, Shape};

/// A gated activation: `after · op(before · x)`.
struct Gated {
    op: Op,
    before: f32,
    after: f32,
}

impl Gated {
    fn plain(op: impl Into<Op>) -> Self {
        Self { op: op.into(), before: 1.0, after: 1.0 }
    }
}

impl<'a> Importer<'a> {
    /// Imports the product of two layer outputs: a gated activation if one is a function of the other, or
    /// else a channel scale.
    pub(super) fn mul_outputs(
        &mut self,
        node: &'a Node<'a>,
        [a, b]: [LayerOutput; 2],
    ) -> ImportResult<Value> {
        let (x, gate, gated) = match [self.gated(b, a), self.gated(a, b)] {
            [Some((x, gated)), _] => (x, b, gated),
            [_, Some((x, gated))] => (x, a, gated),
            _ => return self.channel_scale(node, [a, b]),
        };
        let single_use = self.is_single_use(node);
        let Gated { op, before, after } = gated;
        if before == 1.0 && after == 1.0 && self.layers[gate.id - 1].inputs == [x.id] {
            // Keep the name of the sigmoid: PyTorch names it after the module, but the product after its
            // operator.
            if let Some(layer) = self.single_use_layer(gate) {
                layer.op = op;
                layer.not_negative = false;
                return Ok(Value::LayerOutput(LayerOutput { single_use, ..gate }));
            }
            return self.elementwise_of(node, x, op);
        }
        let name = self.names.for_node(node);
        let mut output = self.scaled(x, before, &name)?;
        output = self.push_as(name.clone(), op, &[output], vec![])?;
        output = self.scaled(output, after, &name)?;
        Ok(self.as_output_of(node, output, x))
    }

    /// The activation that the product of `gate` and `factor` is, and its input, if `gate` is a function of
    /// `factor`, each possibly times a number.
    fn gated(&self, gate: LayerOutput, factor: LayerOutput) -> Option<(LayerOutput, Gated)> {
        if gate.order != factor.order {
            return None;
        }
        // Numbers that the gate and the factor are multiplied by; one that another node reads stays.
        let unscaled = |output: LayerOutput| {
            let layer = &self.layers[output.id.checked_sub(1)?];
            let Op::Scale(Scale { factor }) = layer.op else { return None };
            output.single_use.then_some((layer.inputs[0], factor))
        };
        let (gate_id, after) = unscaled(gate).unwrap_or((gate.id, 1.0));
        let gated_by = |x: usize| self.gate_of(gate_id, x);
        if let Some(gated) = gated_by(factor.id) {
            let after = after * gated.after;
            return Some((factor, Gated { after, ..gated }));
        }
        let (id, number) = unscaled(factor)?;
        let gated = gated_by(id)?;
        let after = after * gated.after * number;
        Some((LayerOutput { id, single_use: false, ..factor }, Gated { after, ..gated }))
    }

    /// The activation that the product of the layer `gate` and `x` is.
    fn gate_of(&self, gate: usize, x: usize) -> Option<Gated> {
        let layer = &self.layers[gate.checked_sub(1)?];
        let [input] = layer.inputs[..] else { return None };
        let before = |id: usize| Some(&self.layers[id.checked_sub(1)?]);
        match layer.op {
            Op::Activation(Activation::Sigmoid(_)) if input == x => Some(Gated::plain(Silu)),
            // x σ(a x) = silu(a x) / a
            Op::Activation(Activation::Sigmoid(_)) => match before(input) {
                Some(scale) if scale.inputs == [x] => match scale.op {
                    Op::Scale(Scale { factor }) if factor != 0.0 => {
                        Some(Gated { op: Silu.into(), before: factor, after: factor.recip() })
                    }
                    _ => None,
                },
                _ => None,
            },
            Op::Activation(Activation::HardSigmoid(sigmoid)) if input == x => {
                if sigmoid == HardSigmoid::default() {
                    return Some(Gated::plain(HardSwish));
                }
                // x hard_sigmoid(x) = hard_swish(6 a x) / (6 a), because hard_swish's own slope is 1/6.
                let width = 6.0 * sigmoid.alpha;
                let is_centred = sigmoid.beta == 0.5 && width.is_finite() && width.recip().is_finite();
                is_centred.then(|| Gated { op: HardSwish.into(), before: width, after: width.recip() })
            }
            Op::Activation(Activation::Tanh(_)) => {
                let inner = before(input)?;
                let is_mish =
                    matches!(inner.op, Op::Activation(Activation::Softplus(_))) && inner.inputs == [x];
                is_mish.then(|| Gated::plain(Mish))
            }
            _ => None,
        }
    }

    /// Imports the product of a feature map and one factor per channel, in either order.
    fn channel_scale(&mut self, node: &'a Node<'a>, [a, b]: [LayerOutput; 2]) -> ImportResult<Value> {
        let shapes = [a, b].map(|input| self.layer_shape(input.id).clone());
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
                "unsupported product of {} and {}: expected x·sigmoid(x) or a per-channel scale",
                shapes[0], shapes[1]
            )
        })?;
        let value = self.push(node, ChannelScale, &[map, factors], vec![])?;
        Ok(in_order(value, map.order))
    }
}
