//! ReLU with a trained slope below 0.

use super::{KernelSpec, Tiling, WorkKind, expect_counts, expect_same_shape};
use crate::build::Differentiator;
use crate::build::Lowering;
use crate::{EngineError, Phase, Step, Value};
use serde::{Deserialize, Serialize};
use stratus_graph::Node;

/// `(x [N, C, ...], slopes [C] or [1]) -> y`: `x` above 0, else `slope * x`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct PreluForward;

/// `(x, dy, slopes) -> dx`: `dy` where `x` is above 0, else `slope * dy`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct PreluBackward;

/// `(x, dy) -> dslopes [C] or [1]`: the sum of `min(x, 0) dy` over samples and pixels, and over channels if
/// they share the slope.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct PreluGradient;

pub(super) fn lower(node: &Node, lowering: &mut Lowering) -> Result<(), EngineError> {
    let inputs = vec![lowering.unflattened_input(node, 0), lowering.parameter(node, 0)];
    let y = lowering.output(node);
    lowering.push(node, PreluForward, inputs, vec![], vec![y]);
    Ok(())
}

/// Checks the slopes of a map or matrix.
fn check_slopes(x: &Value, slopes: &Value) -> Result<(), String> {
    let [_, channels, ..] = x.shape[..] else {
        return Err(format!("`{}`: expected channels, got {:?}", x.name, x.shape));
    };
    if slopes.shape == [1] || slopes.shape == [channels] {
        return Ok(());
    }
    Err(format!("`{}`: expected [1] or [{channels}], got {:?}", slopes.name, slopes.shape))
}

impl KernelSpec for PreluForward {
    fn name(&self) -> &'static str {
        "prelu_forward"
    }

    fn check(&self, operands: &[&Value], counts: [usize; 3]) -> Result<(), String> {
        expect_counts(counts, &[[2, 0, 1]])?;
        expect_same_shape(operands[0], operands[2])?;
        check_slopes(operands[0], operands[1])
    }

    fn work_kind(&self) -> WorkKind {
        WorkKind::Elementwise
    }

    fn tiling(&self) -> Tiling {
        Tiling::PerSample
    }

    fn flops(&self, operands: &[&Value]) -> u64 {
        operands[0].elements() as u64
    }

    fn differentiate(&self, step: &Step, backward: &mut Differentiator) -> Result<(), EngineError> {
        let [x, slopes] = step.inputs[..] else { return Err(backward.no_derivative(step)) };
        let Some(dy) = backward.gradient(step.outputs[0]) else { return Ok(()) };
        if backward.requires_grad(slopes) {
            let gradient = backward.parameter_gradient(slopes);
            let phase = Phase::BackwardWeights;
            backward.push(step, PreluGradient, phase, vec![x, dy], vec![], vec![gradient]);
        }
        if backward.requires_grad(x) {
            backward.add_gradient(x, |backward, dx| {
                let phase = Phase::BackwardData;
                backward.push(step, PreluBackward, phase, vec![x, dy, slopes], vec![], vec![dx]);
            });
        }
        Ok(())
    }
}

impl KernelSpec for PreluBackward {
    fn name(&self) -> &'static str {
        "prelu_backward"
    }

    fn check(&self, operands: &[&Value], counts: [usize; 3]) -> Result<(), String> {
        expect_counts(counts, &[[3, 0, 1]])?;
        expect_same_shape(operands[0], operands[1])?;
        expect_same_shape(operands[0], operands[3])?;
        check_slopes(operands[0], operands[2])
    }

    fn work_kind(&self) -> WorkKind {
        WorkKind::Elementwise
    }

    fn tiling(&self) -> Tiling {
        Tiling::PerSample
    }

    fn flops(&self, operands: &[&Value]) -> u64 {
        operands[0].elements() as u64
    }
}

impl KernelSpec for PreluGradient {
    fn name(&self) -> &'static str {
        "prelu_gradient"
    }

    fn check(&self, operands: &[&Value], counts: [usize; 3]) -> Result<(), String> {
        expect_counts(counts, &[[2, 0, 1]])?;
        expect_same_shape(operands[0], operands[1])?;
        check_slopes(operands[0], operands[2])
    }

    fn work_kind(&self) -> WorkKind {
        WorkKind::Elementwise
    }

    fn tiling(&self) -> Tiling {
        Tiling::PartialSums
    }

    /// A product and a sum for each element.
    fn flops(&self, operands: &[&Value]) -> u64 {
        2 * operands[0].elements() as u64
    }
}
