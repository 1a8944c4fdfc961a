//! Convolution: forward, gradient of the input, gradient of weight and bias.

use super::{
    KernelSpec, Tiling, WorkKind, expect_counts, expect_shape, image_shape, relu::backward_through_relu,
};
use crate::build::Differentiator;
use crate::build::Lowering;
use crate::{EngineError, Phase, Step, Value};
use serde::{Deserialize, Serialize};
use stratus_graph::Node;
use stratus_graph::ops::Conv2d;

/// `(x [N,C,H,W], weight [O,C/G,KH,KW], bias? [O]) -> y [N,O,H',W']`, with ReLU if `relu`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Conv2dForward {
    /// Attributes.
    pub conv: Conv2d,
    /// True if ReLU is applied to the output.
    pub relu: bool,
}

/// `(dy, weight) -> dx`. It is also the forward pass of a transposed convolution and has its derivative.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Conv2dBackwardData {
    /// Attributes.
    pub conv: Conv2d,
}

/// `(x, dy) -> dweight, dbias?`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Conv2dBackwardWeights {
    /// Attributes.
    pub conv: Conv2d,
}

pub(super) fn lower(op: &Conv2d, node: &Node, lowering: &mut Lowering) -> Result<(), EngineError> {
    let mut inputs = vec![lowering.input(node, 0), lowering.compute_parameter(node, 0)];
    if op.bias {
        inputs.push(lowering.parameter(node, 1));
    }
    let output = lowering.output(node);
    lowering.push(node, Conv2dForward { conv: *op, relu: false }, inputs, vec![], vec![output]);
    Ok(())
}

/// Checks a (x, weight, y) triple against the attributes.
fn check_triple(conv: &Conv2d, x: &Value, weight: Option<&Value>, y: &Value) -> Result<(), String> {
    let [n, c, h, w] = image_shape(x)?;
    if c != conv.in_channels {
        return Err(format!("`{}`: expected {} channels, got {c}", x.name, conv.in_channels));
    }
    let [height, width] = conv.output_size([h, w]).map_err(|error| error.to_string())?;
    expect_shape(y, &[n, conv.out_channels, height, width])?;
    weight.map_or(Ok(()), |weight| expect_shape(weight, &conv.weight_shape()))
}

/// Checks the operands of a forward pass with this number of inputs, the first of which are `x`, `weight` and
/// `bias?`.
pub(super) fn check_forward(
    conv: &Conv2d,
    operands: &[&Value],
    counts: [usize; 3],
    inputs: usize,
) -> Result<(), String> {
    expect_counts(counts, &[[inputs, 0, 1]])?;
    check_triple(conv, operands[0], Some(operands[1]), operands[inputs])?;
    if conv.bias { expect_shape(operands[2], &[conv.out_channels]) } else { Ok(()) }
}

pub(super) fn flops(conv: &Conv2d, y: &Value) -> u64 {
    2 * y.elements() as u64 * conv.weight_shape()[1..].iter().product::<usize>() as u64
}

impl KernelSpec for Conv2dForward {
    fn name(&self) -> &'static str {
        if self.relu { "conv2d_relu_forward" } else { "conv2d_forward" }
    }

    fn check(&self, operands: &[&Value], counts: [usize; 3]) -> Result<(), String> {
        check_forward(&self.conv, operands, counts, if self.conv.bias { 3 } else { 2 })
    }

    fn work_kind(&self) -> WorkKind {
        WorkKind::MatrixProduct
    }

    fn tiling(&self) -> Tiling {
        Tiling::PerSample
    }

    fn flops(&self, operands: &[&Value]) -> u64 {
        flops(&self.conv, operands[operands.len() - 1])
    }

    fn differentiate(&self, step: &Step, backward: &mut Differentiator) -> Result<(), EngineError> {
        let (x, weight, y) = (step.inputs[0], step.inputs[1], step.outputs[0]);
        let Some(mut dy) = backward.gradient(y) else { return Ok(()) };
        let trained = step.inputs[1..].iter().any(|&parameter| backward.requires_grad(parameter));
        if self.relu && (trained || backward.requires_grad(x)) {
            dy = backward_through_relu(step, y, dy, backward);
        }
        if backward.requires_grad(x) {
            backward.add_gradient(x, |backward, dx| {
                backward.push(
                    step,
                    Conv2dBackwardData { conv: self.conv },
                    Phase::BackwardData,
                    vec![dy, weight],
                    vec![],
                    vec![dx],
                );
            });
        }
        if !trained {
            return Ok(());
        }
        let mut outputs = vec![backward.parameter_gradient(weight)];
        if self.conv.bias {
            outputs.push(backward.parameter_gradient(step.inputs[2]));
        }
        backward.push(
            step,
            Conv2dBackwardWeights { conv: self.conv },
            Phase::BackwardWeights,
            vec![x, dy],
            vec![],
            outputs,
        );
        Ok(())
    }
}

impl KernelSpec for Conv2dBackwardData {
    fn name(&self) -> &'static str {
        "conv2d_backward_data"
    }

    fn check(&self, operands: &[&Value], counts: [usize; 3]) -> Result<(), String> {
        expect_counts(counts, &[[2, 0, 1]])?;
        check_triple(&self.conv, operands[2], Some(operands[1]), operands[0])
    }

    fn work_kind(&self) -> WorkKind {
        WorkKind::MatrixProduct
    }

    fn tiling(&self) -> Tiling {
        Tiling::PerSample
    }

    fn flops(&self, operands: &[&Value]) -> u64 {
        flops(&self.conv, operands[0])
    }

    /// Operands are `x`, `weight` and `y` of a transposed convolution, whose `x` corresponds to a
    /// convolution's output.
    fn differentiate(&self, step: &Step, backward: &mut Differentiator) -> Result<(), EngineError> {
        let [x, weight] = step.inputs[..] else { return Err(backward.no_derivative(step)) };
        let Some(dy) = backward.gradient(step.outputs[0]) else { return Ok(()) };
        let conv = Conv2d { bias: false, ..self.conv };
        if backward.requires_grad(x) {
            backward.add_gradient(x, |backward, dx| {
                let forward = Conv2dForward { conv, relu: false };
                backward.push(step, forward, Phase::BackwardData, vec![dy, weight], vec![], vec![dx]);
            });
        }
        if backward.requires_grad(weight) {
            let dweight = backward.parameter_gradient(weight);
            let kernel = Conv2dBackwardWeights { conv };
            backward.push(step, kernel, Phase::BackwardWeights, vec![dy, x], vec![], vec![dweight]);
        }
        Ok(())
    }
}

impl KernelSpec for Conv2dBackwardWeights {
    fn name(&self) -> &'static str {
        "conv2d_backward_weights"
    }

    fn check(&self, operands: &[&Value], counts: [usize; 3]) -> Result<(), String> {
        expect_counts(counts, &[[2, 0, if self.conv.bias { 2 } else { 1 }]])?;
        check_triple(&self.conv, operands[0], Some(operands[2]), operands[1])?;
        if self.conv.bias { expect_shape(operands[3], &[self.conv.out_channels]) } else { Ok(()) }
    }

    fn work_kind(&self) -> WorkKind {
        WorkKind::MatrixProduct
    }

    fn tiling(&self) -> Tiling {
        Tiling::PartialSums
    }

    fn flops(&self, operands: &[&Value]) -> u64 {
        flops(&self.conv, operands[1])
    }
}
