//! Stochastic gradient descent with momentum and weight decay.

use super::{KernelSpec, Tiling, expect_counts, expect_same_shape, expect_shape};
use crate::Value;
use serde::{Deserialize, Serialize};

/// What the hyper value (f64) holds, in order: the learning rate, the iteration counted from 0 over the whole run, and the halves of the run's
/// seed. All are exact in double precision.
pub const HYPER: [&str; 4] = ["learning_rate", "iteration", "seed_low", "seed_high"];

/// `(gradient, hyper) updates (parameter, velocity) -> copy?`.
///
/// As PyTorch's SGD without dampening (Sutskever et al., "On the importance of initialization and momentum", 2013, in the form
/// where the rate multiplies the velocity): `g = gradient + weight_decay * parameter`, `velocity = momentum * velocity + g`,
/// `parameter -= r * velocity`, or by Nesterov's rule `parameter -= r * (g + momentum * velocity)`, where `r = rate * learning_rate`. `copy` is the new
/// parameter in the compute precision.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct SgdUpdate {
    /// The share of the old velocity that is kept.
    pub momentum: f32,
    /// The strength of the pull towards zero.
    pub weight_decay: f32,
    /// Whether the step is Nesterov's: taken as if the velocity had already been followed once more.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub nesterov: bool,
    /// What the learning rate is multiplied by.
    #[serde(default = "unchanged", skip_serializing_if = "is_unchanged")]
    pub rate: f32,
}

/// The factor of a learning rate that is taken as it is.
pub(super) fn unchanged<T: From<u8>>() -> T {
    T::from(1)
}

/// Whether it is that: programs without it are written as ever.
pub(super) fn is_unchanged<T: From<u8> + PartialEq>(rate: &T) -> bool {
    *rate == unchanged()
}

impl KernelSpec for SgdUpdate {
    fn name(&self) -> &'static str {
        "sgd_update"
    }

    fn check(&self, operands: &[&Value], counts: [usize; 3]) -> Result<(), String> {
        expect_counts(counts, &[[2, 2, 0], [2, 2, 1]])?;
        expect_shape(operands[1], &[HYPER.len()])?;
        [2, 3].iter().try_for_each(|&i| expect_same_shape(operands[0], operands[i]))?;
        operands.get(4).map_or(Ok(()), |copy| expect_same_shape(operands[0], copy))
    }

    fn tiling(&self) -> Tiling {
        Tiling::Whole
    }

    fn flops(&self, operands: &[&Value]) -> u64 {
        6 * operands[0].elements() as u64
    }
}
