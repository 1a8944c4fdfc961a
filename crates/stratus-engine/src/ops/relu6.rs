//! The rectifier with a ceiling at 6, where it could not be fused.

use super::{KernelSpec, Tiling, expect_counts, expect_same_shape};
use crate::differentiate::Differentiator;
use crate::lower::Lowering;
use crate::{EngineError, Phase, Step, Value};
use serde::{Deserialize, Serialize};
use stratus_graph::Node;

/// `x -> y = min(max(x, 0), 6)`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Relu6Forward;

/// `(y, dy) -> dx`: `dy` where `0 < y < 6`, else 0. It reads the output, so that the input need not be kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Relu6Backward;

pub(super) fn lower(node: &Node, to: &mut Lowering) -> Result<(), EngineError> {
    let (x, y) = (to.input(node, 0), to.output(node));
    to.push(node, Relu6Forward, vec![x], vec![], vec![y]);
    Ok(())
}

impl KernelSpec for Relu6Forward {
    fn name(&self) -> &'static str {
        "relu6_forward"
    }

    fn check(&self, operands: &[&Value], counts: [usize; 3]) -> Result<(), String> {
        expect_counts(counts, &[[1, 0, 1]])?;
        expect_same_shape(operands[0], operands[1])
    }

    fn tiling(&self) -> Tiling {
        Tiling::PerSample
    }

    fn flops(&self, operands: &[&Value]) -> u64 {
        2 * operands[0].elements() as u64
    }

    fn differentiate(&self, step: &Step, to: &mut Differentiator) -> Result<(), EngineError> {
        let (x, y) = (step.inputs[0], step.outputs[0]);
        let Some(dy) = to.gradient(y) else { return Ok(()) };
        if to.wants_gradient(x) {
            to.add_gradient(x, |to, dx| {
                to.push(step, Relu6Backward, Phase::BackwardData, vec![y, dy], vec![], vec![dx]);
            });
        }
        Ok(())
    }
}

impl KernelSpec for Relu6Backward {
    fn name(&self) -> &'static str {
        "relu6_backward"
    }

    fn check(&self, operands: &[&Value], counts: [usize; 3]) -> Result<(), String> {
        expect_counts(counts, &[[2, 0, 1]])?;
        expect_same_shape(operands[0], operands[1])?;
        expect_same_shape(operands[0], operands[2])
    }

    fn tiling(&self) -> Tiling {
        Tiling::PerSample
    }

    fn flops(&self, operands: &[&Value]) -> u64 {
        2 * operands[0].elements() as u64
    }
}
