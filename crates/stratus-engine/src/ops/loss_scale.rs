//! Dynamic loss scaling for f16 gradients, as in PyTorch's `GradScaler`.
//!
//! Gradients of activations are small: many of them would underflow in f16. Gradients are linear in the loss,
//! so the loss's gradient is multiplied by a scale, and the parameters' gradients are divided by it
//! (Micikevicius et al., "Mixed precision training", 2018). If one of them is then not finite, the scale was
//! too large: nothing is updated, and the next iteration uses half of it. After [`GROWTH_INTERVAL`]
//! iterations with finite gradients it is doubled. It is a power of two, so that it changes no digits.

use super::{KernelSpec, Tiling, WorkKind, expect_counts, expect_shape};
use crate::Value;
use serde::{Deserialize, Serialize};

/// Fields of the loss scale's value (f32): exponent above [`INITIAL_SCALE`], iterations since the last
/// change, overflow flag, skipped iterations. All start at 0.
pub const LOSS_SCALE_FIELDS: [&str; 4] = ["exponent", "iterations", "overflow", "skipped"];

/// The name of the loss scale's value.
pub const LOSS_SCALE_NAME: &str = "loss_scale";

/// The initial scale.
pub const INITIAL_SCALE: f64 = 65_536.0;

/// Iterations without overflow after which the scale is doubled.
pub const GROWTH_INTERVAL: u32 = 2_000;

/// The maximum absolute exponent: beyond it, the scale would not be a normal f32.
pub const MAX_EXPONENT: i32 = 100;

/// `gradient updates loss_scale`: sets the overflow flag if an element is not finite.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct FindOverflow;

/// `updates loss_scale`: halves or doubles the scale for the next iteration, after all parameters were
/// updated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct AdjustLossScale {
    /// See [`GROWTH_INTERVAL`].
    #[serde(rename = "grows_after")]
    pub growth_interval: u32,
}

/// The decoded [`LOSS_SCALE_FIELDS`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LossScale {
    /// The factor of the loss's gradient.
    pub scale: f64,
    /// True if a gradient was not finite, so that nothing is updated.
    pub overflow: bool,
    /// Skipped iterations.
    pub skipped: f64,
}

impl LossScale {
    /// Decodes the fields.
    #[must_use]
    pub fn from_fields([exponent, _, overflow, skipped]: [f64; LOSS_SCALE_FIELDS.len()]) -> Self {
        let scale = INITIAL_SCALE * 2.0_f64.powi(exponent as i32);
        Self { scale, overflow: overflow != 0.0, skipped }
    }
}

impl AdjustLossScale {
    /// The fields for the next iteration.
    #[must_use]
    pub fn next(
        self,
        [exponent, iterations, overflow, skipped]: [f64; LOSS_SCALE_FIELDS.len()],
    ) -> [f64; LOSS_SCALE_FIELDS.len()] {
        let max = f64::from(MAX_EXPONENT);
        if overflow != 0.0 {
            [(exponent - 1.0).max(-max), 0.0, 0.0, skipped + 1.0]
        } else if iterations + 1.0 >= f64::from(self.growth_interval) {
            [(exponent + 1.0).min(max), 0.0, 0.0, skipped]
        } else {
            [exponent, iterations + 1.0, 0.0, skipped]
        }
    }
}

/// Checks the value of a loss scale.
pub(super) fn expect_loss_scale(value: &Value) -> Result<(), String> {
    expect_shape(value, &[LOSS_SCALE_FIELDS.len()])
}

impl KernelSpec for FindOverflow {
    fn name(&self) -> &'static str {
        "find_overflow"
    }

    fn check(&self, operands: &[&Value], counts: [usize; 3]) -> Result<(), String> {
        expect_counts(counts, &[[1, 1, 0]])?;
        expect_loss_scale(operands[1])
    }

    fn work_kind(&self) -> WorkKind {
        WorkKind::Elementwise
    }

    fn tiling(&self) -> Tiling {
        Tiling::WholeBatch
    }

    fn flops(&self, operands: &[&Value]) -> u64 {
        operands[0].elements() as u64
    }
}

impl KernelSpec for AdjustLossScale {
    fn name(&self) -> &'static str {
        "adjust_loss_scale"
    }

    fn check(&self, operands: &[&Value], counts: [usize; 3]) -> Result<(), String> {
        expect_counts(counts, &[[0, 1, 0]])?;
        if self.growth_interval == 0 {
            return Err("the growth interval must be at least 1, got 0".to_owned());
        }
        expect_loss_scale(operands[0])
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scale_is_halved_on_overflow_and_doubled_after_the_growth_interval() {
        let adjust = AdjustLossScale { growth_interval: 3 };
        let mut numbers = [0.0; 4];
        let mut seen = Vec::new();
        for overflow in [true, false, false, true, false, false, false, false] {
            numbers[2] = f64::from(u8::from(overflow));
            assert_eq!(LossScale::from_fields(numbers).overflow, overflow);
            numbers = adjust.next(numbers);
            seen.push(LossScale::from_fields(numbers).scale / INITIAL_SCALE);
        }
        assert_eq!(seen, [0.5, 0.5, 0.5, 0.25, 0.25, 0.25, 0.5, 0.5]);
        assert_eq!(numbers, [-1.0, 1.0, 0.0, 2.0]);
    }

    #[test]
    fn scale_stays_a_normal_number() {
        let adjust = AdjustLossScale { growth_interval: 1 };
        let (mut up, mut down) = ([0.0; 4], [0.0; 4]);
        for _ in 0..300 {
            up = adjust.next(up);
            down[2] = 1.0;
            down = adjust.next(down);
        }
        for numbers in [up, down] {
            let LossScale { scale, .. } = LossScale::from_fields(numbers);
            assert!((scale as f32).is_normal() && ((1.0 / scale) as f32).is_normal(), "{scale}");
        }
    }
}
