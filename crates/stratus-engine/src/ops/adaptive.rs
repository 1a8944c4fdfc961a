//! Optimisers that adapt the learning rate of each weight to the size of its gradients.

use super::loss_scale::expect_loss_scale;
use super::{
    ITERATION_SCALAR_FIELDS, KernelSpec, Tiling, WorkKind, expect_counts, expect_same_shape, expect_shape,
};
use crate::Value;
use crate::program::OptimiserState;
use serde::{Deserialize, Serialize};

/// `(gradient, scalars, loss_scale?) updates (parameter, states...) -> copy?`, the states as in
/// [`Adaptive::states`]. `copy` is the new parameter in the compute precision. All rules are PyTorch's; their
/// `rate` is the learning rate multiplied by [`Self::rate_factor`]. `loss_scaled` is as in
/// [`SgdUpdate`](super::SgdUpdate); skipped iterations do not count as steps.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct AdaptiveUpdate {
    /// The rule.
    pub rule: Adaptive,
    /// Weight decay (L2): this times the parameter is added to the gradient, except in decoupled
    /// [`Adaptive::Adam`].
    pub weight_decay: f64,
    /// The factor of the learning rate.
    #[serde(default = "super::sgd::one", skip_serializing_if = "super::sgd::is_one")]
    #[serde(rename = "rate")]
    pub rate_factor: f64,
    /// True if the loss is scaled.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    #[serde(rename = "scaled")]
    pub loss_scaled: bool,
}

/// An update rule. `g` is the gradient including weight decay; powers and roots are per element.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub enum Adaptive {
    /// Kingma and Ba ("Adam: a method for stochastic optimization", 2015): `m = b1 m + (1 - b1) g`,
    /// `v = b2 v + (1 - b2) g^2`, and with the step `t` counted from 1
    /// `parameter -= rate / (1 - b1^t) * m / (sqrt(v / (1 - b2^t)) + epsilon)`.
    Adam {
        /// The decay rates `b1` and `b2` of the running means.
        betas: [f64; 2],
        /// Added to the root.
        epsilon: f64,
        /// True if weight decay is decoupled from the gradient: the parameter is first multiplied by `1 -
        /// rate * weight_decay` (Loshchilov and Hutter: "Decoupled weight decay regularization", 2019).
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
        /// The decay rate of the running means.
        rho: f64,
        /// Added under both roots.
        epsilon: f64,
    },
}

impl Adaptive {
    /// The state of each parameter.
    #[must_use]
    pub fn states(&self) -> &'static [OptimiserState] {
        match self {
            Self::Adam { .. } => &[OptimiserState::ExpAvg, OptimiserState::ExpAvgSq],
            Self::Adagrad { .. } => &[OptimiserState::Sum],
            Self::Adadelta { .. } => &[OptimiserState::SquareAvg, OptimiserState::AccDelta],
        }
    }

    /// Adam's bias corrections `1 - beta^(iteration + 1)`.
    #[must_use]
    pub fn corrections(betas: [f64; 2], iteration: f64) -> [f64; 2] {
        // Beyond this step, the power of every beta below 1 is 0 in f64.
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
        let inputs = 2 + usize::from(self.loss_scaled);
        expect_counts(counts, &[[inputs, updates, 0], [inputs, updates, 1]])?;
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

    /// Additions, multiplications, divisions and roots count one each.
    fn flops(&self, operands: &[&Value]) -> u64 {
        let each = match self.rule {
            Adaptive::Adam { .. } => 14,
            Adaptive::Adagrad { .. } => 9,
            Adaptive::Adadelta { .. } => 17,
        };
        each * operands[0].elements() as u64
    }
}
