//! Gradient clipping by the global norm (Pascanu, Mikolov and Bengio, "On the difficulty of training
//! recurrent neural networks", 2013), as in PyTorch's `clip_grad_norm_`: if the norm of all parameters'
//! gradients together exceeds a limit, all are scaled down to it.
//!
//! ```text
//! norm = sqrt(Σ g²)        g ← min(1, max_norm / (norm + 1e-6)) · g
//! ```
//!
//! A norm of NaN makes every gradient NaN; an infinite one makes finite gradients 0 and infinite ones NaN, as
//! in PyTorch with `error_if_nonfinite=False`. The loss of the next iteration then shows it. If the loss is
//! scaled, an overflow cancels all updates, and the norm is that of the unscaled gradients.

use super::loss_scale::expect_loss_scale;
use super::{KernelSpec, Tiling, WorkKind, expect_counts, expect_f64, expect_shape};
use crate::Value;
use serde::{Deserialize, Serialize};

/// Fields of the norm's value (f64): the sum of squared gradients so far, and the factor of the gradients.
pub const GRADIENT_NORM_FIELDS: [&str; 2] = ["squares", "factor"];

/// The name of the norm's value.
pub const GRADIENT_NORM_NAME: &str = "gradient_norm";

/// Added to the norm, as PyTorch does.
const EPSILON: f64 = 1e-6;

/// `gradient -> norm` for the first gradient, else `gradient updates norm`: adds the squares of a gradient to
/// their sum, in f64 and in a fixed order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct SumOfSquares {
    /// True if the sum starts with this gradient.
    pub first: bool,
}

/// `(loss_scale?) updates norm`: computes the factor from the sum.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct ClipFactor {
    /// The maximum norm.
    pub max_norm: f64,
    /// True if the loss is scaled.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    #[serde(rename = "scaled")]
    pub loss_scaled: bool,
}

/// `norm updates gradient`: multiplies a gradient by the factor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct ClipGradient;

impl ClipFactor {
    /// The factor for gradients whose squares sum to `squares`; `scale` is the loss scale.
    #[must_use]
    pub fn factor(self, squares: f64, scale: f64) -> f64 {
        let ratio = self.max_norm / (squares.sqrt() / scale + EPSILON);
        // NaN propagates.
        if ratio >= 1.0 { 1.0 } else { ratio }
    }
}

fn expect_norm(value: &Value) -> Result<(), String> {
    expect_shape(value, &[GRADIENT_NORM_FIELDS.len()])?;
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

    fn work_kind(&self) -> WorkKind {
        WorkKind::Update
    }

    fn tiling(&self) -> Tiling {
        Tiling::WholeBatch
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
        let inputs = usize::from(self.loss_scaled);
        expect_counts(counts, &[[inputs, 1, 0]])?;
        if self.max_norm.is_nan() || self.max_norm <= 0.0 {
            return Err(format!("`max_norm` must be > 0, got {}", self.max_norm));
        }
        operands[..inputs].iter().try_for_each(|scale| expect_loss_scale(scale))?;
        expect_norm(operands[inputs])
    }

    fn work_kind(&self) -> WorkKind {
        WorkKind::Elementwise
    }

    fn tiling(&self) -> Tiling {
        Tiling::WholeBatch
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

    fn work_kind(&self) -> WorkKind {
        WorkKind::Update
    }

    fn tiling(&self) -> Tiling {
        Tiling::WholeBatch
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
        let clip = ClipFactor { max_norm: 2.0, loss_scaled: false };
        assert_eq!(clip.factor(16.0, 1.0), 2.0 / (4.0 + 1e-6));
        // The norm does not depend on the loss scale.
        assert_eq!(clip.factor(16.0 * 1024.0 * 1024.0, 1024.0), clip.factor(16.0, 1.0));
        assert_eq!([0.0, 1.0, 3.99].map(|squares| clip.factor(squares, 1.0)), [1.0; 3]);
        assert_eq!(clip.factor(f64::INFINITY, 1.0), 0.0);
        assert!(clip.factor(f64::NAN, 1.0).is_nan());
    }
}
