//! Fake quantisation: maps and weights in real numbers, rounded as in int8. The pass
//! [`fake_quantise`](crate::passes::fake_quantise) inserts these kernels into training programs.

use super::quantised::expect_real;
use super::{KernelSpec, Tiling, Uint8Scale, WorkKind, expect_counts, expect_same_shape, image_shape};
use crate::build::Differentiator;
use crate::{EngineError, Phase, Step, Value};
use serde::{Deserialize, Serialize};

/// `x -> y`: each number becomes that of its byte: `y = scale * (clamp(round(x / scale) + zero, 0, 255) -
/// zero)`. NaN stays NaN, so that training that diverges is noticed.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct FakeQuantise {
    /// The meaning of the bytes.
    pub bytes: Uint8Scale,
}

/// `(x, dy) -> dx`, the straight-through estimate of the derivative of [`FakeQuantise`] (Jacob et al.,
/// "Quantization and training of neural networks for efficient integer-arithmetic-only inference", 2018):
/// `dy`, or 0 where `x` was clipped. Numbers that round to the first or last byte are not clipped.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct FakeQuantiseBackward {
    /// The meaning of the bytes.
    pub bytes: Uint8Scale,
}

/// `weight [O,C/G,KH,KW] -> weight`, from the master precision to the compute precision: each number is
/// rounded to a multiple of the scale of its output channel, `max |weight| / max_weight`, in single
/// precision.
///
/// The gradient of the rounded weights is that of the weights (straight through): no weight is clipped. The
/// result has the origin [`Rounded`](crate::program::Origin::Rounded), so its gradient belongs to the
/// parameter, as that of a copy does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct FakeQuantiseWeights {
    /// The largest magnitude of a weight in int8, at least 1.
    pub max_weight: i8,
}

/// Checks that there are this many inputs and an output, in real numbers and of the same shape.
fn expect_maps(operands: &[&Value], counts: [usize; 3], inputs: usize) -> Result<(), String> {
    expect_counts(counts, &[[inputs, 0, 1]])?;
    operands[1..].iter().try_for_each(|value| expect_same_shape(operands[0], value))?;
    operands.iter().try_for_each(|value| expect_real(value))
}

impl KernelSpec for FakeQuantise {
    fn name(&self) -> &'static str {
        "fake_quantise"
    }

    fn check(&self, operands: &[&Value], counts: [usize; 3]) -> Result<(), String> {
        expect_maps(operands, counts, 1)?;
        self.bytes.check()
    }

    fn work_kind(&self) -> WorkKind {
        WorkKind::Elementwise
    }

    fn tiling(&self) -> Tiling {
        Tiling::PerSample
    }

    /// Division, rounding, two bounds, product.
    fn flops(&self, operands: &[&Value]) -> u64 {
        5 * operands[0].elements() as u64
    }

    fn differentiate(&self, step: &Step, backward: &mut Differentiator) -> Result<(), EngineError> {
        let (x, y) = (step.inputs[0], step.outputs[0]);
        let Some(dy) = backward.gradient(y) else { return Ok(()) };
        if backward.requires_grad(x) {
            backward.add_gradient(x, |backward, dx| {
                let kernel = FakeQuantiseBackward { bytes: self.bytes };
                backward.push(step, kernel, Phase::BackwardData, vec![x, dy], vec![], vec![dx]);
            });
        }
        Ok(())
    }
}

impl KernelSpec for FakeQuantiseBackward {
    fn name(&self) -> &'static str {
        "fake_quantise_backward"
    }

    fn check(&self, operands: &[&Value], counts: [usize; 3]) -> Result<(), String> {
        expect_maps(operands, counts, 2)?;
        self.bytes.check()
    }

    fn work_kind(&self) -> WorkKind {
        WorkKind::Elementwise
    }

    fn tiling(&self) -> Tiling {
        Tiling::PerSample
    }

    /// Division, rounding, two comparisons.
    fn flops(&self, operands: &[&Value]) -> u64 {
        4 * operands[0].elements() as u64
    }
}

impl KernelSpec for FakeQuantiseWeights {
    fn name(&self) -> &'static str {
        "fake_quantise_weights"
    }

    fn check(&self, operands: &[&Value], counts: [usize; 3]) -> Result<(), String> {
        expect_maps(operands, counts, 1)?;
        image_shape(operands[0])?;
        if self.max_weight < 1 {
            return Err(format!("the largest weight in int8 must be at least 1, got {}", self.max_weight));
        }
        Ok(())
    }

    fn work_kind(&self) -> WorkKind {
        WorkKind::Elementwise
    }

    /// The weights are those of the whole batch.
    fn tiling(&self) -> Tiling {
        Tiling::WholeBatch
    }

    /// The largest magnitude, division, rounding, product.
    fn flops(&self, operands: &[&Value]) -> u64 {
        4 * operands[0].elements() as u64
    }

    /// Straight through: the gradient of the result is that of the parameter, by the result's origin.
    fn differentiate(&self, _step: &Step, _backward: &mut Differentiator) -> Result<(), EngineError> {
        Ok(())
    }
}
