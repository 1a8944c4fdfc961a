//! The files that `stratus optimise` writes to the folder [`OPTIMISE`](crate::layout::OPTIMISE) of a new run.

use serde::{Deserialize, Serialize};

use crate::{Result, RunDir, atomic};

/// The effect of the removal of channels. The content of `optimise/pruning.json`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pruning {
    /// Multiply-adds of an image, before and afterwards.
    pub multiply_adds: [u64; 2],
    /// Values of parameters, frozen ones included, before and afterwards.
    pub parameters: [usize; 2],
    /// The convolutions and linear layers that lost output channels.
    pub layers: Vec<PrunedLayer>,
}

/// A layer that lost output channels.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PrunedLayer {
    /// Its name.
    pub layer: String,
    /// Output channels, before and afterwards.
    pub channels: [usize; 2],
}

/// The run that an optimised run was made from. A part of `optimise/request.json`.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct Origin {
    /// The run directory, as it was given to the command.
    pub run: String,
}

impl Pruning {
    /// Reads the file of an optimised run.
    ///
    /// # Errors
    /// If it cannot be read or is damaged.
    pub fn read(run: &RunDir) -> Result<Self> {
        atomic::read_json(&run.optimise_pruning())
    }
}

impl Origin {
    /// Reads it from the request of an optimised run.
    ///
    /// # Errors
    /// If the file cannot be read or is damaged.
    pub fn read(run: &RunDir) -> Result<Self> {
        atomic::read_json(&run.optimise_request())
    }
}
