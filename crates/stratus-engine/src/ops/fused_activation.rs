//! The activation that is fused into the step before it.

use serde::{Deserialize, Deserializer, Serialize};
use stratus_graph::ops::Activation;

/// An activation as a part of another kernel: `y = f(z)`, where `z` is what that kernel computes. Its
/// derivative is evaluated at `z`, which the backward pass recomputes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FusedActivation {
    /// `y = z`: nothing is fused.
    #[default]
    Identity,
    /// `y = max(z, 0)`, clamped to `ceiling` if set.
    Relu {
        /// The largest result: 6 for ReLU6.
        ceiling: Option<f32>,
    },
    /// One of [`Activation`].
    Activation(Activation),
}

impl FusedActivation {
    /// ReLU without a ceiling.
    pub const RELU: Self = Self::Relu { ceiling: None };

    /// The activation as part of the batch norm before it, or `None` if it runs as a step of its own. Only
    /// activations that networks commonly place after a batch norm are fused: each needs its own loops for
    /// every instruction set and type of map. They satisfy `f(0) = 0`, so that padded channels stay 0.
    #[must_use]
    pub fn after_norm(activation: Activation) -> Option<Self> {
        let is_usual = matches!(
            activation,
            Activation::HardSwish(_) | Activation::LeakyRelu(_) | Activation::Mish(_) | Activation::Silu(_)
        );
        is_usual.then_some(Self::Activation(activation))
    }

    /// ReLU if `relu`, else nothing.
    #[must_use]
    pub fn relu_if(relu: bool) -> Self {
        if relu { Self::RELU } else { Self::Identity }
    }

    /// `f(z)`. NaN propagates.
    #[must_use]
    pub fn value(self, z: f64) -> f64 {
        match self {
            Self::Identity => z,
            Self::Relu { ceiling } => {
                // Comparisons in this direction propagate NaN.
                let positive = if z <= 0.0 { 0.0 } else { z };
                ceiling.map(f64::from).filter(|ceiling| positive > *ceiling).unwrap_or(positive)
            }
            Self::Activation(activation) => activation.value(z),
        }
    }

    /// `f'(z)`; at a kink, PyTorch's value.
    #[must_use]
    pub fn derivative(self, z: f64) -> f64 {
        match self {
            Self::Identity => 1.0,
            Self::Relu { ceiling } => {
                let is_cut = z <= 0.0 || ceiling.is_some_and(|ceiling| z >= f64::from(ceiling));
                f64::from(u8::from(!is_cut))
            }
            Self::Activation(activation) => activation.derivative(z),
        }
    }

    /// `Some(true)` for ReLU without a ceiling, `Some(false)` for no activation, `None` for any other, which
    /// many kernels do not compute.
    #[must_use]
    pub fn as_plain_relu(self) -> Option<bool> {
        match self {
            Self::Identity => Some(false),
            Self::Relu { ceiling: None } => Some(true),
            Self::Relu { ceiling: Some(_) } | Self::Activation(_) => None,
        }
    }
}

/// Reads an activation. Plans of earlier versions have `true` for ReLU and `false` for none.
pub(super) fn read<'de, D: Deserializer<'de>>(deserializer: D) -> Result<FusedActivation, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Stored {
        IsRelu(bool),
        Activation(FusedActivation),
    }
    Ok(match Stored::deserialize(deserializer)? {
        Stored::IsRelu(false) => FusedActivation::Identity,
        Stored::IsRelu(true) => FusedActivation::RELU,
        Stored::Activation(activation) => activation,
    })
}
