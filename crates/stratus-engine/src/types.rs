//! Element types and the precisions a network is trained in.

use serde::{Deserialize, Serialize};
use std::fmt;

/// The type of a value's elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DType {
    /// IEEE single precision.
    F32,
    /// The upper half of an `F32`.
    Bf16,
    /// IEEE double precision: gradient checks and metrics.
    F64,
    /// Bytes: positions within a pooling window.
    U8,
    /// Class labels; negative ones are ignored.
    I32,
}

impl DType {
    /// Bytes of one element.
    #[must_use]
    pub fn bytes(self) -> usize {
        match self {
            Self::U8 => 1,
            Self::Bf16 => 2,
            Self::F32 | Self::I32 => 4,
            Self::F64 => 8,
        }
    }
}

impl fmt::Display for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::F32 => "f32",
            Self::Bf16 => "bf16",
            Self::F64 => "f64",
            Self::U8 => "u8",
            Self::I32 => "i32",
        })
    }
}

/// What activations are computed in and what weights, statistics and sums are kept in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Precision {
    /// Everything in single precision.
    F32,
    /// Activations and their gradients in bf16; weights, statistics, logits and accumulation in f32.
    Bf16,
    /// Everything in double precision: the oracle of gradient checks.
    F64,
}

impl Precision {
    /// The type of activations and of the weights that kernels read.
    #[must_use]
    pub fn compute(self) -> DType {
        match self {
            Self::F32 => DType::F32,
            Self::Bf16 => DType::Bf16,
            Self::F64 => DType::F64,
        }
    }

    /// The type of weights, their gradients, statistics and logits.
    #[must_use]
    pub fn master(self) -> DType {
        match self {
            Self::F32 | Self::Bf16 => DType::F32,
            Self::F64 => DType::F64,
        }
    }
}

impl fmt::Display for Precision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.compute().fmt(f)
    }
}
