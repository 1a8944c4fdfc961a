//! The scale of the loss where gradients are f16: found by trying, as PyTorch's `GradScaler` does.
//!
//! Gradients of activations are small: as f16, many of them would fade out. They are linear in the loss, so
//! the loss's gradient is multiplied by a number on its way in, and the parameters' gradients are divided by
//! it (Micikevicius et al., "Mixed precision training", 2018). Where one of them is then not finite, the
//! scale was too large: nothing is updated, and the next iteration tries with half of it. After
//! [`GROWS_AFTER`] iterations in which all were finite, it is doubled. It is a power of two, so that it
//! changes no digit of a number.

use super::{KernelSpec, Tiling, expect_counts, expect_shape};
use crate::Value;
use serde::{Deserialize, Serialize};

/// What the loss scale's value (f32) holds, in order: powers of two above [`FIRST_SCALE`], iterations since
/// it changed, whether a gradient of this iteration was not finite, and how many iterations updated nothing
/// for that. As all begin with zero, so does every run.
pub const LOSS_SCALE: [&str; 4] = ["exponent", "iterations", "overflow", "skipped"];

/// The name of that value.
pub const LOSS_SCALE_NAME: &str = "loss_scale";

/// The scale that is tried first.
pub const FIRST_SCALE: f64 = 65_536.0;

/// Iterations after which a larger scale is tried.
pub const GROWS_AFTER: u32 = 2_000;

/// How far the exponent goes either way: further, the scale would not be a normal f32.
pub const MOST_STEPS: i32 = 100;

/// `gradient updates loss_scale`: notes where an element is not finite.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct FindOverflow;

/// `updates loss_scale`: halves or doubles the scale for the next iteration, once all parameters were
/// updated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct AdjustLossScale {
    /// See [`GROWS_AFTER`].
    pub grows_after: u32,
}

/// What the numbers of [`LOSS_SCALE`] say.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LossScale {
    /// What the gradient of the loss is multiplied by.
    pub scale: f64,
    /// Whether a gradient was not finite: nothing is updated.
    pub overflow: bool,
    /// Iterations that updated nothing.
    pub skipped: f64,
}

impl LossScale {
    /// Reads them.
    #[must_use]
    pub fn of([exponent, _, overflow, skipped]: [f64; LOSS_SCALE.len()]) -> Self {
        let scale = FIRST_SCALE * 2.0_f64.powi(exponent as i32);
        Self { scale, overflow: overflow != 0.0, skipped }
    }
}

impl AdjustLossScale {
    /// The numbers for the next iteration.
    #[must_use]
    pub fn next(
        self,
        [exponent, iterations, overflow, skipped]: [f64; LOSS_SCALE.len()],
    ) -> [f64; LOSS_SCALE.len()] {
        let most = f64::from(MOST_STEPS);
        if overflow != 0.0 {
            [(exponent - 1.0).max(-most), 0.0, 0.0, skipped + 1.0]
        } else if iterations + 1.0 >= f64::from(self.grows_after) {
            [(exponent + 1.0).min(most), 0.0, 0.0, skipped]
        } else {
            [exponent, iterations + 1.0, 0.0, skipped]
        }
    }
}

/// Checks the value of a loss scale.
pub(super) fn expect_loss_scale(value: &Value) -> Result<(), String> {
    expect_shape(value, &[LOSS_SCALE.len()])
}

impl KernelSpec for FindOverflow {
    fn name(&self) -> &'static str {
        "find_overflow"
    }

    fn check(&self, operands: &[&Value], counts: [usize; 3]) -> Result<(), String> {
        expect_counts(counts, &[[1, 1, 0]])?;
        expect_loss_scale(operands[1])
    }

    fn tiling(&self) -> Tiling {
        Tiling::Whole
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
        if self.grows_after == 0 {
            return Err("it grows after 0 iterations; at least 1 is possible".to_owned());
        }
        expect_loss_scale(operands[0])
    }

    fn tiling(&self) -> Tiling {
        Tiling::Whole
    }

    fn flops(&self, _operands: &[&Value]) -> u64 {
        0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_scale_is_halved_at_once_and_doubled_late() {
        let adjust = AdjustLossScale { grows_after: 3 };
        let mut numbers = [0.0; 4];
        let mut seen = Vec::new();
        for overflow in [true, false, false, true, false, false, false, false] {
            numbers[2] = f64::from(u8::from(overflow));
            assert_eq!(LossScale::of(numbers).overflow, overflow);
            numbers = adjust.next(numbers);
            seen.push(LossScale::of(numbers).scale / FIRST_SCALE);
        }
        assert_eq!(seen, [0.5, 0.5, 0.5, 0.25, 0.25, 0.25, 0.5, 0.5]);
        assert_eq!(numbers, [-1.0, 1.0, 0.0, 2.0]);
    }

    #[test]
    fn the_scale_stays_a_normal_number() {
        let adjust = AdjustLossScale { grows_after: 1 };
        let (mut up, mut down) = ([0.0; 4], [0.0; 4]);
        for _ in 0..300 {
            up = adjust.next(up);
            down[2] = 1.0;
            down = adjust.next(down);
        }
        for numbers in [up, down] {
            let LossScale { scale, .. } = LossScale::of(numbers);
            assert!((scale as f32).is_normal() && ((1.0 / scale) as f32).is_normal(), "{scale}");
        }
    }
}
