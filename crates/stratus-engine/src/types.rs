//! Element types and the precisions a network is trained in.

use bytemuck::{bytes_of, pod_read_unaligned};
use half::{bf16, f16};
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
    /// IEEE half precision: three more mantissa bits than [`Self::Bf16`], three fewer exponent bits.
    F16,
    /// IEEE double precision: gradient checks and metrics.
    F64,
    /// Bytes: stored pixels, positions within a pooling window, and quantised feature maps.
    U8,
    /// Signed bytes: quantised weights.
    I8,
    /// Class labels; negative ones are ignored.
    I32,
}

impl DType {
    /// Bytes of one element.
    #[must_use]
    pub fn bytes(self) -> usize {
        match self {
            Self::U8 | Self::I8 => 1,
            Self::Bf16 | Self::F16 => 2,
            Self::F32 | Self::I32 => 4,
            Self::F64 => 8,
        }
    }

    /// The element at `index` of `bytes`, as a double. For tests and the reference backend; any alignment is
    /// allowed.
    #[must_use]
    #[inline]
    pub fn load(self, bytes: &[u8], index: usize) -> f64 {
        let element = &bytes[index * self.bytes()..(index + 1) * self.bytes()];
        match self {
            Self::U8 => f64::from(element[0]),
            Self::I8 => f64::from(element[0] as i8),
            Self::Bf16 => pod_read_unaligned::<bf16>(element).to_f64(),
            Self::F16 => pod_read_unaligned::<f16>(element).to_f64(),
            Self::F32 => f64::from(pod_read_unaligned::<f32>(element)),
            Self::I32 => f64::from(pod_read_unaligned::<i32>(element)),
            Self::F64 => pod_read_unaligned(element),
        }
    }

    /// Sets the element at `index` of `bytes`: rounded to nearest even, integers towards zero and saturating.
    #[inline]
    pub fn store(self, bytes: &mut [u8], index: usize, value: f64) {
        let element = &mut bytes[index * self.bytes()..(index + 1) * self.bytes()];
        match self {
            Self::U8 => element[0] = value as u8,
            Self::I8 => element[0] = value as i8 as u8,
            Self::Bf16 => element.copy_from_slice(bytes_of(&bf16::from_f64(value))),
            Self::F16 => element.copy_from_slice(bytes_of(&f16::from_f64(value))),
            Self::F32 => element.copy_from_slice(bytes_of(&(value as f32))),
            Self::I32 => element.copy_from_slice(bytes_of(&(value as i32))),
            Self::F64 => element.copy_from_slice(bytes_of(&value)),
        }
    }
}

impl fmt::Display for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::F32 => "f32",
            Self::Bf16 => "bf16",
            Self::F16 => "f16",
            Self::F64 => "f64",
            Self::U8 => "u8",
            Self::I8 => "i8",
            Self::I32 => "i32",
        })
    }
}

/// The types of computation and of stored state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Precision {
    /// Everything in single precision.
    F32,
    /// Activations and their gradients in bf16; weights, statistics, logits and accumulation in f32.
    Bf16,
    /// As [`Self::Bf16`], but in f16, whose largest value is 65,504 and which loses digits below 6e-5: the
    /// loss is scaled, see [`crate::ops::LossScale`].
    F16,
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
            Self::F16 => DType::F16,
            Self::F64 => DType::F64,
        }
    }

    /// The type of weights, their gradients, statistics and logits.
    #[must_use]
    pub fn master(self) -> DType {
        match self {
            Self::F32 | Self::Bf16 | Self::F16 => DType::F32,
            Self::F64 => DType::F64,
        }
    }
}

impl fmt::Display for Precision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.compute().fmt(f)
    }
}
