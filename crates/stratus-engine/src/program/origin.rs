//! Origins of values: the value that a gradient, copy or state was derived from.
//!
//! Passes and backends look up related values here. Names are only labels for people and the keys of
//! persistent values; no relation is parsed from them.

use super::{Program, Role, Value, ValueId};
use crate::DType;
use serde::{Deserialize, Serialize};

/// The relation of a value to the one that it was derived from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Origin {
    /// The gradient of the loss with respect to a value; for a copy of a parameter, with respect to the
    /// parameter.
    Gradient(ValueId),
    /// A term of a gradient, or an intermediate value of its computation.
    PartialGradient(ValueId),
    /// A parameter in the compute precision.
    #[serde(rename = "copy")]
    ComputeCopy(ValueId),
    /// A parameter rounded as for int8, in the compute precision: see [`crate::passes::fake_quantise`].
    Rounded(ValueId),
    /// The state that an optimiser keeps for a parameter.
    OptimiserState {
        /// The parameter.
        #[serde(rename = "of")]
        parameter: ValueId,
        /// The kind of state.
        state: OptimiserState,
    },
    /// The exponential moving average of a parameter or of a running statistic.
    Average(ValueId),
    /// The same value, recomputed for the backward pass: see [`crate::passes::recompute`].
    Recomputed(ValueId),
    /// The partial sum of one tile or micro-batch.
    #[serde(rename = "tile")]
    PartialSum(ValueId),
    /// Images normalised from bytes: see [`crate::passes::images`].
    Normalised(ValueId),
    /// The same value in another layout.
    Reordered(ValueId),
}

impl Origin {
    /// The value it was derived from.
    #[must_use]
    pub fn source(self) -> ValueId {
        match self {
            Self::Gradient(source)
            | Self::PartialGradient(source)
            | Self::ComputeCopy(source)
            | Self::Rounded(source)
            | Self::OptimiserState { parameter: source, .. }
            | Self::Average(source)
            | Self::Recomputed(source)
            | Self::PartialSum(source)
            | Self::Normalised(source)
            | Self::Reordered(source) => source,
        }
    }

    /// The same relation to another value.
    pub(crate) fn with_source(self, source: ValueId) -> Self {
        match self {
            Self::Gradient(_) => Self::Gradient(source),
            Self::PartialGradient(_) => Self::PartialGradient(source),
            Self::ComputeCopy(_) => Self::ComputeCopy(source),
            Self::Rounded(_) => Self::Rounded(source),
            Self::OptimiserState { state, .. } => Self::OptimiserState { parameter: source, state },
            Self::Average(_) => Self::Average(source),
            Self::Recomputed(_) => Self::Recomputed(source),
            Self::PartialSum(_) => Self::PartialSum(source),
            Self::Normalised(_) => Self::Normalised(source),
            Self::Reordered(_) => Self::Reordered(source),
        }
    }

    /// The suffix that is appended to the source's name.
    pub(super) fn label(self) -> &'static str {
        match self {
            Self::Gradient(_) => "gradient",
            Self::PartialGradient(_) => "partial_gradient",
            Self::ComputeCopy(_) => "copy",
            Self::Rounded(_) => "rounded",
            Self::OptimiserState { state, .. } => state.name(),
            Self::Average(_) => "average",
            Self::Recomputed(_) => "again",
            Self::PartialSum(_) => "tile",
            Self::Normalised(_) => "normalised",
            Self::Reordered(_) => "reordered",
        }
    }
}

/// The kinds of optimiser state, with PyTorch's names.
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
    /// Adds a value with the shape of its source, named after it.
    pub fn add_derived(&mut self, origin: Origin, dtype: DType, role: Role) -> ValueId {
        self.add_derived_as(origin, origin.label(), dtype, role)
    }

    /// [`Self::add_derived`] with the given label.
    pub fn add_derived_as(&mut self, origin: Origin, label: &str, dtype: DType, role: Role) -> ValueId {
        let source = self.value(origin.source());
        let mut name = format!("{}:{label}", source.name);
        // A recomputed step may need its source again, in another layout.
        while self.find(&name).is_some() {
            name.push_str(":again");
        }
        let value = Value {
            name,
            shape: source.shape.clone(),
            dtype,
            role,
            per_sample: source.per_sample,
            origin: Some(origin),
        };
        self.values.push(value);
        ValueId(self.values.len() - 1)
    }

    /// Replaces `id` by a new value and makes `id` one tile's partial sum of it; returns the new value.
    pub(crate) fn make_partial_sum(&mut self, id: ValueId) -> ValueId {
        let sum = ValueId(self.values.len());
        let whole = self.value(id).clone();
        let tile = Origin::PartialSum(sum);
        let share = &mut self.values[id.0];
        share.name = format!("{}:{}", whole.name, tile.label());
        share.origin = Some(tile);
        self.values.push(whole);
        sum
    }

    /// The value with an origin.
    #[must_use]
    pub fn derived(&self, origin: Origin) -> Option<ValueId> {
        self.values.iter().position(|value| value.origin == Some(origin)).map(ValueId)
    }

    /// The gradient of a value; for a parameter's copy, that of the parameter.
    #[must_use]
    pub fn gradient_of(&self, value: ValueId) -> Option<ValueId> {
        self.derived(Origin::Gradient(self.master_of(value)))
    }

    /// The value that a gradient, or the partial sum of a gradient, belongs to.
    #[must_use]
    pub fn primal_of(&self, gradient: ValueId) -> Option<ValueId> {
        match self.value(gradient).origin? {
            Origin::Gradient(value) => Some(value),
            Origin::PartialSum(sum) => match self.value(sum).origin? {
                Origin::Gradient(value) => Some(value),
                _ => None,
            },
            _ => None,
        }
    }

    /// The copy of a parameter in the compute precision, if that differs from the parameter's.
    #[must_use]
    pub fn copy_of(&self, parameter: ValueId) -> Option<ValueId> {
        self.derived(Origin::ComputeCopy(parameter))
    }

    /// The parameter of a copy, rounded or not; any other value itself.
    #[must_use]
    pub fn master_of(&self, id: ValueId) -> ValueId {
        match self.value(id).origin {
            Some(Origin::ComputeCopy(master) | Origin::Rounded(master)) => master,
            _ => id,
        }
    }

    /// Returns whether a value is a trained parameter or the copy of one.
    #[must_use]
    pub fn is_trained(&self, id: ValueId) -> bool {
        self.value(self.master_of(id)).role == Role::Parameter
    }

    /// The optimiser states of a parameter.
    pub fn optimiser_states_of(&self, parameter: ValueId) -> impl Iterator<Item = ValueId> + '_ {
        let is_state = move |value: &Value| match value.origin {
            Some(Origin::OptimiserState { parameter: updated, .. }) => updated == parameter,
            _ => false,
        };
        let values = self.values.iter().enumerate();
        values.filter(move |(_, value)| is_state(value)).map(|(position, _)| ValueId(position))
    }

    /// The original of a recomputed value.
    #[must_use]
    pub fn recomputed_from(&self, id: ValueId) -> Option<ValueId> {
        match self.value(id).origin {
            Some(Origin::Recomputed(first)) => Some(first),
            _ => None,
        }
    }

    /// Returns whether a value is the partial sum of one tile or micro-batch.
    #[must_use]
    pub fn is_partial_sum(&self, id: ValueId) -> bool {
        matches!(self.value(id).origin, Some(Origin::PartialSum(_)))
    }

    /// Returns whether a value is the gradient of another.
    #[must_use]
    pub fn is_gradient(&self, id: ValueId) -> bool {
        matches!(self.value(id).origin, Some(Origin::Gradient(_)))
    }
}
