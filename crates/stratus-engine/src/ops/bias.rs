//! A bias for each channel of a feature map, by itself: of transposed convolutions. Other kernels add theirs
//! to what they make.

use super::{KernelSpec, Tiling, expect_counts, expect_shape, image_shape};
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

    fn tiling(&self) -> Tiling {
        Tiling::PerSample
    }

    fn flops(&self, operands: &[&Value]) -> u64 {
        operands[1].elements() as u64
    }

    fn differentiate(&self, step: &Step, to: &mut Differentiator) -> Result<(), EngineError> {
        // The gradient of the map before is that of the map behind.
        let (bias, y) = (step.inputs[0], step.updates[0]);
        let Some(dy) = to.gradient(y) else { return Ok(()) };
        if to.wants_gradient(bias) {
            let dbias = to.parameter_gradient(bias);
            to.push(step, BiasGradient, Phase::BackwardWeights, vec![dy], vec![], vec![dbias]);
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

    fn tiling(&self) -> Tiling {
        Tiling::Sums
    }

    fn flops(&self, operands: &[&Value]) -> u64 {
        operands[0].elements() as u64
    }
}
