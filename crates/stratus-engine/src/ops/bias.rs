//! Addition of a bias to each channel of a feature map, for transposed convolutions. Other kernels include
//! their bias.

use super::{KernelSpec, Tiling, WorkKind, expect_counts, expect_shape, image_shape};
use crate::build::Differentiator;
use crate::{EngineError, Phase, Step, Value};
use serde::{Deserialize, Serialize};

/// `(bias [C]) y [N,C,H,W] += bias`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct AddBias;

/// `(dy [N,C,H,W]) -> dbias [C]`, the sum over samples and pixels.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct BiasGradient;

/// Checks a map and its bias.
fn check_pair(map: &Value, bias: &Value) -> Result<(), String> {
    let [_, channels, ..] = image_shape(map)?;
    expect_shape(bias, &[channels])
}

impl KernelSpec for AddBias {
    fn name(&self) -> &'static str {
        "add_bias"
    }

    fn check(&self, operands: &[&Value], counts: [usize; 3]) -> Result<(), String> {
        expect_counts(counts, &[[1, 1, 0]])?;
        check_pair(operands[1], operands[0])
    }

    fn work_kind(&self) -> WorkKind {
        WorkKind::Elementwise
    }

    fn tiling(&self) -> Tiling {
        Tiling::PerSample
    }

    fn flops(&self, operands: &[&Value]) -> u64 {
        operands[1].elements() as u64
    }

    fn differentiate(&self, step: &Step, backward: &mut Differentiator) -> Result<(), EngineError> {
        // The gradient of the input map equals that of the output map.
        let (bias, y) = (step.inputs[0], step.updates[0]);
        let Some(dy) = backward.gradient(y) else { return Ok(()) };
        if backward.requires_grad(bias) {
            let dbias = backward.parameter_gradient(bias);
            backward.push(step, BiasGradient, Phase::BackwardWeights, vec![dy], vec![], vec![dbias]);
        }
        Ok(())
    }
}

impl KernelSpec for BiasGradient {
    fn name(&self) -> &'static str {
        "bias_gradient"
    }

    fn check(&self, operands: &[&Value], counts: [usize; 3]) -> Result<(), String> {
        expect_counts(counts, &[[1, 0, 1]])?;
        check_pair(operands[0], operands[1])
    }

    fn work_kind(&self) -> WorkKind {
        WorkKind::Elementwise
    }

    fn tiling(&self) -> Tiling {
        Tiling::PartialSums
    }

    fn flops(&self, operands: &[&Value]) -> u64 {
        operands[0].elements() as u64
    }
}
