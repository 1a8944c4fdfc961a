//! Stochastic gradient descent with momentum and weight decay.

use super::loss_scale::expect_loss_scale;
use super::{KernelSpec, Tiling, WorkKind, expect_counts, expect_same_shape, expect_shape};
use crate::Value;
use serde::{Deserialize, Serialize};

/// Fields of the iteration scalars (f64): the learning rate, the iteration counted from 0 over the whole run,
/// and the halves of the run's seed. All are exact in double precision.
pub const ITERATION_SCALAR_FIELDS: [&str; 4] = ["learning_rate", "iteration", "seed_low", "seed_high"];

/// `(gradient, scalars, loss_scale?) updates (parameter, velocity) -> copy?`.
///
/// PyTorch's SGD without dampening (Sutskever et al., "On the importance of initialization and momentum",
/// 2013, in the form where the rate multiplies the velocity): `g = gradient + weight_decay * parameter`,
/// `velocity = momentum * velocity + g`, `parameter -= r * velocity`, or by Nesterov's rule `parameter -= r *
/// (g + momentum * velocity)`, where `r = rate_factor * learning_rate`. `copy` is the new parameter in the
/// compute precision.
///
/// With `loss_scaled`, the gradient is first divided by the loss scale. If a gradient overflowed, nothing is
/// updated and `copy` is that of the unchanged parameter. See [`LossScale`](super::LossScale).
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct SgdUpdate {
    /// The factor of the previous velocity.
    pub momentum: f32,
    /// Weight decay (L2).
    pub weight_decay: f32,
    /// True if Nesterov's rule is used.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub nesterov: bool,
    /// The factor of the learning rate.
    #[serde(default = "one", skip_serializing_if = "is_one")]
    #[serde(rename = "rate")]
    pub rate_factor: f32,
    /// True if the loss is scaled.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    #[serde(rename = "scaled")]
    pub loss_scaled: bool,
}

/// The default rate factor.
pub(super) fn one<T: From<u8>>() -> T {
    T::from(1)
}

/// Returns whether the factor is the default, which programs omit.
pub(super) fn is_one<T: From<u8> + PartialEq>(rate: &T) -> bool {
    *rate == one()
}

impl KernelSpec for SgdUpdate {
    fn name(&self) -> &'static str {
        "sgd_update"
    }

    fn check(&self, operands: &[&Value], counts: [usize; 3]) -> Result<(), String> {
        let inputs = 2 + usize::from(self.loss_scaled);
        expect_counts(counts, &[[inputs, 2, 0], [inputs, 2, 1]])?;
        expect_shape(operands[1], &[ITERATION_SCALAR_FIELDS.len()])?;
        operands[2..inputs].iter().try_for_each(|scale| expect_loss_scale(scale))?;
        operands[inputs..].iter().try_for_each(|operand| expect_same_shape(operands[0], operand))
    }

    fn work_kind(&self) -> WorkKind {
        WorkKind::Update
    }

    fn tiling(&self) -> Tiling {
        Tiling::WholeBatch
    }

    fn flops(&self, operands: &[&Value]) -> u64 {
        6 * operands[0].elements() as u64
    }
}
