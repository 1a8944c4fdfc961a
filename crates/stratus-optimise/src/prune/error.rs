//! Errors of pruning.

use crate::ModelError;
use stratus_graph::GraphError;

/// An error of pruning.
#[derive(Debug, thiserror::Error)]
pub enum PruneError {
    /// The network, or its smaller form, is not valid.
    #[error(transparent)]
    Graph(#[from] GraphError),
    /// The network does not match its weights.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// The network has more channels than a group's derivation can hold.
    #[error("network `{network}` has {channels} channels and features, more than {max}")]
    TooLarge {
        /// The network's name.
        network: String,
        /// Its channels and features, all tensors together.
        channels: usize,
        /// The limit.
        max: usize,
    },
    /// Several layers own a parameter, so that their channels would have to be removed together.
    #[error("network `{network}`: several layers share the parameter `{parameter}`")]
    SharedParameter {
        /// The network's name.
        network: String,
        /// The parameter's name.
        parameter: String,
    },
    /// The scores, the groups and the selection are not those of one network.
    #[error("network `{network}`: {problem}")]
    Mismatch {
        /// The network's name.
        network: String,
        /// The difference.
        problem: String,
    },
    /// A weight or gradient is infinite or not a number.
    #[error("`{parameter}` has a {quantity} that is not finite")]
    NotFinite {
        /// The parameter's name.
        parameter: String,
        /// `value` or `gradient`.
        quantity: &'static str,
    },
    /// A parameter has no gradient, or one of another size.
    #[error("the gradient of `{parameter}` has {found} values, expected {expected}")]
    Gradient {
        /// The parameter's name.
        parameter: String,
        /// The number of its gradient's values.
        found: usize,
        /// The number of its values.
        expected: usize,
    },
    /// Scores by gradients were requested before the gradients of a batch were added.
    #[error("no gradients were added: importance by Taylor expansion needs at least one batch")]
    NoBatch,
    /// The target is not valid.
    #[error("invalid {key} {value}: {need}")]
    InvalidTarget {
        /// The name of the value.
        key: &'static str,
        /// The value.
        value: String,
        /// The accepted values.
        need: &'static str,
    },
    /// No channel can be removed within the limits of the target.
    #[error("nothing can be pruned: no layer can lose channels and keep a multiple of {granularity}")]
    NothingToPrune {
        /// The granularity.
        granularity: usize,
    },
    /// The target cannot be reached within its limits.
    #[error(
        "cannot remove {:.1} % of the multiply-adds: at most {:.1} % can be removed in multiples of \
         {granularity} channels",
        share * 100.0,
        (largest * 1000.0).floor() / 10.0
    )]
    Unreachable {
        /// The share that was asked for.
        share: f64,
        /// The largest possible share.
        largest: f64,
        /// The granularity.
        granularity: usize,
    },
}
