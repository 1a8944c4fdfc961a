//! Optimisers that give each weight a rate of its own, by how large its gradients have been.

use super::loss_scale::expect_loss_scale;
use super::{HYPER, KernelSpec, Tiling, expect_counts, expect_same_shape, expect_shape};
use crate::Value;
use crate::program::OptimiserState;
use serde::{Deserialize, Serialize};

/// `(gradient, hyper, loss_scale?) updates (parameter, states...) -> copy?`, the states as in
/// [`Adaptive::states`]. `copy` is the new parameter in the compute precision. Everything is as PyTorch has
/// it; what the rules call the rate is the learning rate multiplied by [`Self::rate`]. Where it is `scaled`,
/// as [`SgdUpdate`](super::SgdUpdate) is; iterations that updated nothing are no steps.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct AdaptiveUpdate {
    /// The rule.
    pub rule: Adaptive,
    /// The strength of the pull towards zero: added to the gradient as this times the parameter, but for
    /// [`Adaptive::Adam`] where it says otherwise.
    pub weight_decay: f64,
    /// What the learning rate is multiplied by.
    #[serde(default = "super::sgd::unchanged", skip_serializing_if = "super::sgd::is_unchanged")]
    pub rate: f64,
    /// Whether gradients are those of a scaled loss.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub scaled: bool,
}

/// A rule. `g` is the gradient, decay included; powers and roots are per element.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub enum Adaptive {
    /// Kingma and Ba ("Adam: a method for stochastic optimization", 2015): `m = b1 m + (1 - b1) g`,
    /// `v = b2 v + (1 - b2) g^2`, and with the step `t` counted from 1
    /// `parameter -= rate / (1 - b1^t) * m / (sqrt(v / (1 - b2^t)) + epsilon)`.
    Adam {
        /// The shares `b1` and `b2` of the old means that are kept.
        betas: [f64; 2],
        /// Added to the root.
        epsilon: f64,
        /// Whether the decay is no part of the gradient, and the parameter is first multiplied by
        /// `1 - rate * weight_decay` (Loshchilov and Hutter: "Decoupled weight decay regularization", 2019).
        decoupled: bool,
    },
    /// Duchi, Hazan and Singer ("Adaptive subgradient methods", 2011): `s = s + g^2`,
    /// `parameter -= rate * g / (sqrt(s) + epsilon)`.
    Adagrad {
        /// Added to the root.
        epsilon: f64,
    },
    /// Zeiler ("ADADELTA: an adaptive learning rate method", 2012): `s = rho s + (1 - rho) g^2`,
    /// `d = sqrt(a + epsilon) / sqrt(s + epsilon) * g`, `a = rho a + (1 - rho) d^2`, `parameter -= rate * d`.
    Adadelta {
        /// The share of the old means that is kept.
        rho: f64,
        /// Added under both roots.
        epsilon: f64,
    },
}

impl Adaptive {
    /// What is remembered of each parameter.
    #[must_use]
    pub fn states(&self) -> &'static [OptimiserState] {
        match self {
            Self::Adam { .. } => &[OptimiserState::ExpAvg, OptimiserState::ExpAvgSq],
            Self::Adagrad { .. } => &[OptimiserState::Sum],
            Self::Adadelta { .. } => &[OptimiserState::SquareAvg, OptimiserState::AccDelta],
        }
    }

    /// What [`Self::Adam`] divides its means by in the step after `iteration` others,
    /// `1 - beta^(iteration + 1)`: they began as zero.
    #[must_use]
    pub fn corrections(betas: [f64; 2], iteration: f64) -> [f64; 2] {
        // From so many steps on, the power of any beta that is less than 1 by a float's precision is nothing.
        let step = (iteration + 1.0).min(f64::from(i32::MAX)) as i32;
        betas.map(|beta| 1.0 - beta.powi(step))
    }
}

impl KernelSpec for AdaptiveUpdate {
    fn name(&self) -> &'static str {
        match self.rule {
            Adaptive::Adam { decoupled: false, .. } => "adam_update",
            Adaptive::Adam { decoupled: true, .. } => "adamw_update",
            Adaptive::Adagrad { .. } => "adagrad_update",
            Adaptive::Adadelta { .. } => "adadelta_update",
        }
    }

    fn check(&self, operands: &[&Value], counts: [usize; 3]) -> Result<(), String> {
        let updates = 1 + self.rule.states().len();
        let inputs = 2 + usize::from(self.scaled);
        expect_counts(counts, &[[inputs, updates, 0], [inputs, updates, 1]])?;
        expect_shape(operands[1], &[HYPER.len()])?;
        operands[2..inputs].iter().try_for_each(|scale| expect_loss_scale(scale))?;
        operands[inputs..].iter().try_for_each(|operand| expect_same_shape(operands[0], operand))
    }

    fn tiling(&self) -> Tiling {
        Tiling::Whole
    }

    /// Additions, multiplications, divisions and roots, each one.
    fn flops(&self, operands: &[&Value]) -> u64 {
        let each = match self.rule {
            Adaptive::Adam { .. } => 14,
            Adaptive::Adagrad { .. } => 9,
            Adaptive::Adadelta { .. } => 17,
        };
        each * operands[0].elements() as u64
    }
}
