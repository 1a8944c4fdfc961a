//! Where a value comes from: which other value it is the gradient, the copy or the state of.
//!
//! Passes and backends ask for related values here. Names are labels for people and the keys of what outlives
//! an iteration; nothing reads a relation out of them.

use super::{Program, Role, Value, ValueId};
use crate::DType;
use serde::{Deserialize, Serialize};

/// The value that another one was derived from, and how.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Origin {
    /// The gradient of the loss with respect to a value; of a parameter that has a copy, the parameter's.
    Gradient(ValueId),
    /// A term of such a gradient, or what one is computed from.
    PartialGradient(ValueId),
    /// A parameter in the compute precision.
    Copy(ValueId),
    /// What an optimiser remembers of a parameter.
    OptimiserState {
        /// The parameter.
        of: ValueId,
        /// What it is.
        state: OptimiserState,
    },
    /// The exponential moving average of a parameter or of a running statistic.
    Average(ValueId),
    /// The same numbers, computed a second time for the backward pass: see [`crate::passes::recompute`].
    Recomputed(ValueId),
    /// One tile's or micro-batch's share of a sum over the batch.
    Tile(ValueId),
    /// Images as numbers, made from their pixels as bytes: see [`crate::passes::images`].
    Normalised(ValueId),
    /// The same numbers in another layout.
    Reordered(ValueId),
}

impl Origin {
    /// The value it was derived from.
    #[must_use]
    pub fn of(self) -> ValueId {
        match self {
            Self::Gradient(of)
            | Self::PartialGradient(of)
            | Self::Copy(of)
            | Self::OptimiserState { of, .. }
            | Self::Average(of)
            | Self::Recomputed(of)
            | Self::Tile(of)
            | Self::Normalised(of)
            | Self::Reordered(of) => of,
        }
    }

    /// The same relation to another value.
    pub(super) fn with(self, of: ValueId) -> Self {
        match self {
            Self::Gradient(_) => Self::Gradient(of),
            Self::PartialGradient(_) => Self::PartialGradient(of),
            Self::Copy(_) => Self::Copy(of),
            Self::OptimiserState { state, .. } => Self::OptimiserState { of, state },
            Self::Average(_) => Self::Average(of),
            Self::Recomputed(_) => Self::Recomputed(of),
            Self::Tile(_) => Self::Tile(of),
            Self::Normalised(_) => Self::Normalised(of),
            Self::Reordered(_) => Self::Reordered(of),
        }
    }

    /// What follows the name of the value it was derived from in its own name.
    pub(super) fn label(self) -> &'static str {
        match self {
            Self::Gradient(_) => "gradient",
            Self::PartialGradient(_) => "partial_gradient",
            Self::Copy(_) => "copy",
            Self::OptimiserState { state, .. } => state.name(),
            Self::Average(_) => "average",
            Self::Recomputed(_) => "again",
            Self::Tile(_) => "tile",
            Self::Normalised(_) => "normalised",
            Self::Reordered(_) => "reordered",
        }
    }
}

/// What an optimiser remembers of each parameter, in PyTorch's words.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OptimiserState {
    /// The velocity of SGD with momentum.
    Momentum,
    /// Adam's running mean of the gradient.
    ExpAvg,
    /// Adam's running mean of the squared gradient.
    ExpAvgSq,
    /// Adagrad's sum of squared gradients.
    Sum,
    /// Adadelta's running mean of the squared gradient.
    SquareAvg,
    /// Adadelta's running mean of the squared update.
    AccDelta,
}

impl OptimiserState {
    /// Its name in PyTorch and in checkpoints.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Momentum => "momentum",
            Self::ExpAvg => "exp_avg",
            Self::ExpAvgSq => "exp_avg_sq",
            Self::Sum => "sum",
            Self::SquareAvg => "square_avg",
            Self::AccDelta => "acc_delta",
        }
    }
}

impl Program {
    /// Adds a value with the shape of the one it is derived from, named after it.
    pub fn add_derived(&mut self, origin: Origin, dtype: DType, role: Role) -> ValueId {
        self.add_derived_as(origin, origin.label(), dtype, role)
    }

    /// As [`Self::add_derived`], with a label of its own behind the name of the value it is derived from.
    pub fn add_derived_as(&mut self, origin: Origin, label: &str, dtype: DType, role: Role) -> ValueId {
        let of = self.value(origin.of());
        let mut name = format!("{}:{label}", of.name);
        // A step that runs a second time may need what it is derived from a second time, in another layout.
        while self.find(&name).is_some() {
            name.push_str(":again");
        }
        let value = Value {
            name,
            shape: of.shape.clone(),
            dtype,
            role,
            per_sample: of.per_sample,
            origin: Some(origin),
        };
        self.values.push(value);
        ValueId(self.values.len() - 1)
    }

    /// Puts a new value in the place of `id`, which becomes one tile's share of it; returns the new one.
    pub(crate) fn split_into_tiles(&mut self, id: ValueId) -> ValueId {
        let sum = ValueId(self.values.len());
        let whole = self.value(id).clone();
        let tile = Origin::Tile(sum);
        let share = &mut self.values[id.0];
        share.name = format!("{}:{}", whole.name, tile.label());
        share.origin = Some(tile);
        self.values.push(whole);
        sum
    }

    /// The value of an origin.
    #[must_use]
    pub fn derived(&self, origin: Origin) -> Option<ValueId> {
        self.values.iter().position(|value| value.origin == Some(origin)).map(ValueId)
    }

    /// The gradient of a value; of a parameter's copy, the parameter's.
    #[must_use]
    pub fn gradient_of(&self, value: ValueId) -> Option<ValueId> {
        self.derived(Origin::Gradient(self.master_of(value)))
    }

    /// The value that `gradient`, or the gradient that it is one tile's share of, is the gradient of.
    #[must_use]
    pub fn differentiated(&self, gradient: ValueId) -> Option<ValueId> {
        match self.value(gradient).origin? {
            Origin::Gradient(of) => Some(of),
            Origin::Tile(sum) => match self.value(sum).origin? {
                Origin::Gradient(of) => Some(of),
                _ => None,
            },
            _ => None,
        }
    }

    /// The copy of a parameter in the compute precision, where that is another than the parameter's own.
    #[must_use]
    pub fn copy_of(&self, parameter: ValueId) -> Option<ValueId> {
        self.derived(Origin::Copy(parameter))
    }

    /// The parameter that a value is a copy of; any other value itself.
    #[must_use]
    pub fn master_of(&self, id: ValueId) -> ValueId {
        match self.value(id).origin {
            Some(Origin::Copy(master)) => master,
            _ => id,
        }
    }

    /// Whether a value is a trained parameter or the copy of one.
    #[must_use]
    pub fn is_trained(&self, id: ValueId) -> bool {
        self.value(self.master_of(id)).role == Role::Parameter
    }

    /// What the optimiser remembers of a parameter.
    pub fn optimiser_states_of(&self, parameter: ValueId) -> impl Iterator<Item = ValueId> + '_ {
        let is_of = move |value: &Value| match value.origin {
            Some(Origin::OptimiserState { of, .. }) => of == parameter,
            _ => false,
        };
        let values = self.values.iter().enumerate();
        values.filter(move |(_, value)| is_of(value)).map(|(position, _)| ValueId(position))
    }

    /// The value that was computed first, where `id` is the same value computed a second time.
    #[must_use]
    pub fn recomputed_from(&self, id: ValueId) -> Option<ValueId> {
        match self.value(id).origin {
            Some(Origin::Recomputed(first)) => Some(first),
            _ => None,
        }
    }

    /// Whether a value is one tile's or micro-batch's share of a sum.
    #[must_use]
    pub fn is_share(&self, id: ValueId) -> bool {
        matches!(self.value(id).origin, Some(Origin::Tile(_)))
    }

    /// Whether a value is the gradient of another.
    #[must_use]
    pub fn is_gradient(&self, id: ValueId) -> bool {
        matches!(self.value(id).origin, Some(Origin::Gradient(_)))
    }
}
