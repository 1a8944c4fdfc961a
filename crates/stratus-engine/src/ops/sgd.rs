//! Stochastic gradient descent with momentum and weight decay.

use super::loss_scale::expect_loss_scale;
use super::{KernelSpec, Tiling, expect_counts, expect_same_shape, expect_shape};
use crate::Value;
use serde::{Deserialize, Serialize};

/// What the hyper value (f64) holds, in order: the learning rate, the iteration counted from 0 over the whole
/// run, and the halves of the run's seed. All are exact in double precision.
pub const HYPER: [&str; 4] = ["learning_rate", "iteration", "seed_low", "seed_high"];

/// `(gradient, hyper, loss_scale?) updates (parameter, velocity) -> copy?`.
///
/// As PyTorch's SGD without dampening (Sutskever et al., "On the importance of initialization and momentum",
/// 2013, in the form where the rate multiplies the velocity): `g = gradient + weight_decay * parameter`,
/// `velocity = momentum * velocity + g`, `parameter -= r * velocity`, or by Nesterov's rule
/// `parameter -= r * (g + momentum * velocity)`, where `r = rate * learning_rate`. `copy` is the new
/// parameter in the compute precision.
///
/// Where it is `scaled`, the gradient is first divided by the loss's scale; where a gradient overflowed
/// nothing is updated, and `copy` is that of the parameter as it is. See [`LossScale`](super::LossScale).
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
    /// Whether gradients are those of a scaled loss.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub scaled: bool,
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
        let inputs = 2 + usize::from(self.scaled);
        expect_counts(counts, &[[inputs, 2, 0], [inputs, 2, 1]])?;
        expect_shape(operands[1], &[HYPER.len()])?;
        operands[2..inputs].iter().try_for_each(|scale| expect_loss_scale(scale))?;
        operands[inputs..].iter().try_for_each(|operand| expect_same_shape(operands[0], operand))
    }

    fn tiling(&self) -> Tiling {
        Tiling::Whole
    }

    fn flops(&self, operands: &[&Value]) -> u64 {
        6 * operands[0].elements() as u64
    }
}
