//! The fully connected layer. Its input may be a feature map `[N, C, H, W]` in its layout: the weight `[O,
//! C*H*W]` is then read as `[O, C, H, W]`, so that flattening moves no data.

use super::{KernelSpec, Tiling, WorkKind, expect_counts, expect_shape};
use crate::build::Differentiator;
use crate::build::Lowering;
use crate::{EngineError, Phase, Step, Value};
use serde::{Deserialize, Serialize};
use stratus_graph::Node;
use stratus_graph::ops::Linear;

/// `(x [N, ...], weight [O, I], bias? [O]) -> y [N, O]`. `y` has the master precision.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct LinearForward {
    /// Attributes.
    pub linear: Linear,
}

/// `(dy, weight) -> dx`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct LinearBackwardData {
    /// Attributes.
    pub linear: Linear,
}

/// `(x, dy) -> dweight, dbias?`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct LinearBackwardWeights {
    /// Attributes.
    pub linear: Linear,
}

pub(super) fn lower(op: &Linear, node: &Node, lowering: &mut Lowering) -> Result<(), EngineError> {
    let mut inputs = vec![lowering.compute_input(node, 0), lowering.compute_parameter(node, 0)];
    if op.bias {
        inputs.push(lowering.parameter(node, 1));
    }
    let output = lowering.output_as(node, lowering.precision().master());
    lowering.push(node, LinearForward { linear: *op }, inputs, vec![], vec![output]);
    Ok(())
}

pub(super) fn check_triple(
    linear: &Linear,
    x: &Value,
    weight: Option<&Value>,
    y: &Value,
) -> Result<(), String> {
    let batch = x.shape.first().copied().unwrap_or(0);
    if batch * linear.in_features != x.elements() {
        return Err(format!(
            "`{}`: expected {} features per sample, got {:?}",
            x.name, linear.in_features, x.shape
        ));
    }
    expect_shape(y, &[batch, linear.out_features])?;
    weight.map_or(Ok(()), |weight| expect_shape(weight, &[linear.out_features, linear.in_features]))
}

pub(super) fn flops(linear: &Linear, x: &Value) -> u64 {
    2 * x.elements() as u64 * linear.out_features as u64
}

impl KernelSpec for LinearForward {
    fn name(&self) -> &'static str {
        "linear_forward"
    }

    fn check(&self, operands: &[&Value], counts: [usize; 3]) -> Result<(), String> {
        let inputs = if self.linear.bias { 3 } else { 2 };
        expect_counts(counts, &[[inputs, 0, 1]])?;
        check_triple(&self.linear, operands[0], Some(operands[1]), operands[inputs])?;
        if self.linear.bias { expect_shape(operands[2], &[self.linear.out_features]) } else { Ok(()) }
    }

    fn work_kind(&self) -> WorkKind {
        WorkKind::MatrixProduct
    }

    fn tiling(&self) -> Tiling {
        Tiling::PerSample
    }

    fn flops(&self, operands: &[&Value]) -> u64 {
        flops(&self.linear, operands[0])
    }

    fn differentiate(&self, step: &Step, backward: &mut Differentiator) -> Result<(), EngineError> {
        let (x, weight, y) = (step.inputs[0], step.inputs[1], step.outputs[0]);
        let Some(dy) = backward.gradient(y) else { return Ok(()) };
        if backward.requires_grad(x) {
            backward.add_gradient(x, |backward, dx| {
                let kernel = LinearBackwardData { linear: self.linear };
                backward.push(step, kernel, Phase::BackwardData, vec![dy, weight], vec![], vec![dx]);
            });
        }
        if !step.inputs[1..].iter().any(|&parameter| backward.requires_grad(parameter)) {
            return Ok(());
        }
        let mut outputs = vec![backward.parameter_gradient(weight)];
        if self.linear.bias {
            outputs.push(backward.parameter_gradient(step.inputs[2]));
        }
        let kernel = LinearBackwardWeights { linear: self.linear };
        backward.push(step, kernel, Phase::BackwardWeights, vec![x, dy], vec![], outputs);
        Ok(())
    }
}

impl KernelSpec for LinearBackwardData {
    fn name(&self) -> &'static str {
        "linear_backward_data"
    }

    fn check(&self, operands: &[&Value], counts: [usize; 3]) -> Result<(), String> {
        expect_counts(counts, &[[2, 0, 1]])?;
        check_triple(&self.linear, operands[2], Some(operands[1]), operands[0])
    }

    fn work_kind(&self) -> WorkKind {
        WorkKind::MatrixProduct
    }

    fn tiling(&self) -> Tiling {
        Tiling::PerSample
    }

    fn flops(&self, operands: &[&Value]) -> u64 {
        flops(&self.linear, operands[2])
    }
}

impl KernelSpec for LinearBackwardWeights {
    fn name(&self) -> &'static str {
        "linear_backward_weights"
    }

    fn check(&self, operands: &[&Value], counts: [usize; 3]) -> Result<(), String> {
        expect_counts(counts, &[[2, 0, if self.linear.bias { 2 } else { 1 }]])?;
        check_triple(&self.linear, operands[0], Some(operands[2]), operands[1])?;
        if self.linear.bias { expect_shape(operands[3], &[self.linear.out_features]) } else { Ok(()) }
    }

    fn work_kind(&self) -> WorkKind {
        WorkKind::MatrixProduct
    }

    fn tiling(&self) -> Tiling {
        Tiling::PartialSums
    }

    fn flops(&self, operands: &[&Value]) -> u64 {
        flops(&self.linear, operands[0])
    }
}
