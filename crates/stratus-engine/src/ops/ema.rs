//! The exponential moving average of weights, which generalises better than the final weights (Polyak and
//! Juditsky, "Acceleration of stochastic approximation by averaging", 1992).

use super::{
    ITERATION_SCALAR_FIELDS, KernelSpec, Tiling, WorkKind, expect_counts, expect_same_shape, expect_shape,
};
use crate::Value;
use serde::{Deserialize, Serialize};

/// `(value, scalars) updates average`: `average += gain * (value - average)`, where `gain` is 1 minus the
/// decay of the iteration, see [`EmaUpdate::gain`].
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct EmaUpdate {
    /// The maximum decay: the factor of the previous average.
    pub decay: f64,
}

impl EmaUpdate {
    /// `1 - min(decay, (1 + t) / (10 + t))` in iteration `t`, counted from 0. The average is short during the
    /// first iterations, in which weights change most. This is TensorFlow's `ExponentialMovingAverage` with
    /// `num_updates`.
    #[must_use]
    pub fn gain(self, iteration: f64) -> f64 {
        1.0 - self.decay.min((1.0 + iteration) / (10.0 + iteration))
    }
}

impl KernelSpec for EmaUpdate {
    fn name(&self) -> &'static str {
        "ema_update"
    }

    fn check(&self, operands: &[&Value], counts: [usize; 3]) -> Result<(), String> {
        expect_counts(counts, &[[2, 1, 0]])?;
        expect_shape(operands[1], &[ITERATION_SCALAR_FIELDS.len()])?;
        expect_same_shape(operands[0], operands[2])
    }

    fn work_kind(&self) -> WorkKind {
        WorkKind::Update
    }

    fn tiling(&self) -> Tiling {
        Tiling::WholeBatch
    }

    fn flops(&self, operands: &[&Value]) -> u64 {
        3 * operands[0].elements() as u64
    }
}

#[cfg(test)]
mod tests {
    use super::EmaUpdate;

    #[test]
    fn decay_rises_to_its_limit() {
        let gains = [0.0, 1.0, 8.0, 1e6].map(|iteration| EmaUpdate { decay: 0.9 }.gain(iteration));
        assert_eq!(gains, [0.9, 1.0 - 2.0 / 11.0, 0.5, 1.0 - 0.9]);
    }
}
