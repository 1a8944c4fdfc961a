//! Gradient clipping by the global norm (Pascanu, Mikolov and Bengio, "On the difficulty of training
//! recurrent neural networks", 2013), as PyTorch's `clip_grad_norm_`: where the norm of all parameters'
//! gradients together is more than a limit, all are scaled down to it.
//!
//! ```text
//! norm = sqrt(Σ g²)        g ← min(1, max_norm / (norm + 1e-6)) · g
//! ```
//!
//! A norm that is NaN makes every gradient NaN; an infinite one makes gradients 0, and NaN where they were
//! infinite, as with PyTorch's `error_if_nonfinite=False`. The loss of the next iteration then shows it. Of a
//! scaled loss, where an overflow cancels all updates, the norm is that of gradients without the scale.

use super::loss_scale::expect_loss_scale;
use super::{KernelSpec, Tiling, expect_counts, expect_f64, expect_shape};
use crate::Value;
use serde::{Deserialize, Serialize};

/// What the value of the norm (f64) holds, in order: the sum of the squares of gradients so far, and what
/// gradients are multiplied by.
pub const GRADIENT_NORM: [&str; 2] = ["squares", "factor"];

/// Its name.
pub const GRADIENT_NORM_NAME: &str = "gradient_norm";

/// Added to the norm, as PyTorch does.
const EPSILON: f64 = 1e-6;

/// `gradient -> norm` where it is the first, else `gradient updates norm`: adds the squares of a gradient to
/// their sum, in f64 and a fixed order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct SumOfSquares {
    /// Whether the sum begins with this gradient.
    pub first: bool,
}

/// `(loss_scale?) updates norm`: from the sum to the factor.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct ClipFactor {
    /// The largest norm that stays.
    pub max_norm: f64,
    /// Whether gradients are those of a scaled loss.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub scaled: bool,
}

/// `norm updates gradient`: multiplies a gradient by the factor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct ClipGradient;

impl ClipFactor {
    /// What gradients are multiplied by whose squares sum up to `squares`; `scale` is that of the loss.
    #[must_use]
    pub fn factor(self, squares: f64, scale: f64) -> f64 {
        let ratio = self.max_norm / (squares.sqrt() / scale + EPSILON);
        // NaN passes.
        if ratio >= 1.0 { 1.0 } else { ratio }
    }
}

fn expect_norm(value: &Value) -> Result<(), String> {
    expect_shape(value, &[GRADIENT_NORM.len()])?;
    expect_f64(value)
}

impl KernelSpec for SumOfSquares {
    fn name(&self) -> &'static str {
        "sum_of_squares"
    }

    fn check(&self, operands: &[&Value], counts: [usize; 3]) -> Result<(), String> {
        expect_counts(counts, &[if self.first { [1, 0, 1] } else { [1, 1, 0] }])?;
        expect_norm(operands[1])
    }

    fn tiling(&self) -> Tiling {
        Tiling::Whole
    }

    fn flops(&self, operands: &[&Value]) -> u64 {
        2 * operands[0].elements() as u64
    }
}

impl KernelSpec for ClipFactor {
    fn name(&self) -> &'static str {
        "clip_factor"
    }

    fn check(&self, operands: &[&Value], counts: [usize; 3]) -> Result<(), String> {
        let inputs = usize::from(self.scaled);
        expect_counts(counts, &[[inputs, 1, 0]])?;
        if self.max_norm.is_nan() || self.max_norm <= 0.0 {
            return Err(format!("it clips to a norm of {}; it should be above 0", self.max_norm));
        }
        operands[..inputs].iter().try_for_each(|scale| expect_loss_scale(scale))?;
        expect_norm(operands[inputs])
    }

    fn tiling(&self) -> Tiling {
        Tiling::Whole
    }

    fn flops(&self, _operands: &[&Value]) -> u64 {
        0
    }
}

impl KernelSpec for ClipGradient {
    fn name(&self) -> &'static str {
        "clip_gradient"
    }

    fn check(&self, operands: &[&Value], counts: [usize; 3]) -> Result<(), String> {
        expect_counts(counts, &[[1, 1, 0]])?;
        expect_norm(operands[0])
    }

    fn tiling(&self) -> Tiling {
        Tiling::Whole
    }

    fn flops(&self, operands: &[&Value]) -> u64 {
        operands[1].elements() as u64
    }
}

#[cfg(test)]
mod tests {
    use super::ClipFactor;

    #[test]
    fn gradients_are_scaled_down_to_the_norm_and_never_up() {
        let clip = ClipFactor { max_norm: 2.0, scaled: false };
        assert_eq!(clip.factor(16.0, 1.0), 2.0 / (4.0 + 1e-6));
        // The scale of the loss is no part of the norm.
        assert_eq!(clip.factor(16.0 * 1024.0 * 1024.0, 1024.0), clip.factor(16.0, 1.0));
        assert_eq!([0.0, 1.0, 3.99].map(|squares| clip.factor(squares, 1.0)), [1.0; 3]);
        assert_eq!(clip.factor(f64::INFINITY, 1.0), 0.0);
        assert!(clip.factor(f64::NAN, 1.0).is_nan());
    }
}
