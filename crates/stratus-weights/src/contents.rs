//! The contents of a weights file, without the values of its tensors.

use std::collections::BTreeMap;
use std::fmt;

/// The element type of a tensor in its file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Dtype {
    /// 64-bit floating point.
    F64,
    /// 32-bit floating point.
    F32,
    /// 16-bit floating point, IEEE 754 binary16.
    F16,
    /// 16-bit floating point with the exponent of 32 bits.
    Bf16,
    /// 64-bit integers.
    I64,
    /// 32-bit integers.
    I32,
    /// 16-bit integers.
    I16,
    /// 8-bit integers.
    I8,
    /// Unsigned 8-bit integers.
    U8,
    /// Booleans of one byte.
    Bool,
    /// A type whose values cannot be read.
    Other,
}

impl Dtype {
    /// The size of an element in bytes; 0 for [`Dtype::Other`].
    #[must_use]
    pub fn bytes(self) -> u64 {
        match self {
            Self::F64 | Self::I64 => 8,
            Self::F32 | Self::I32 => 4,
            Self::F16 | Self::Bf16 | Self::I16 => 2,
            Self::I8 | Self::U8 | Self::Bool => 1,
            Self::Other => 0,
        }
    }

    /// Returns whether this is a floating-point type whose values can be read.
    #[must_use]
    pub fn is_float(self) -> bool {
        matches!(self, Self::F64 | Self::F32 | Self::F16 | Self::Bf16)
    }
}

impl fmt::Display for Dtype {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::F64 => "float64",
            Self::F32 => "float32",
            Self::F16 => "float16",
            Self::Bf16 => "bfloat16",
            Self::I64 => "int64",
            Self::I32 => "int32",
            Self::I16 => "int16",
            Self::I8 => "int8",
            Self::U8 => "uint8",
            Self::Bool => "bool",
            Self::Other => "another type",
        })
    }
}

/// The format of a weights file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Format {
    /// safetensors.
    Safetensors,
    /// The format of `torch.save` since PyTorch 1.6: a pickle and its storages in a zip archive.
    Torch,
}

/// The description of a tensor of a weights file, without its values.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamedTensor {
    /// The name: `layer1.0.conv1.weight`.
    pub name: String,
    /// The dimensions, outermost first; empty for a scalar.
    pub shape: Vec<usize>,
    /// The type in the file.
    pub dtype: Dtype,
    /// The offset of the first element in the file, in bytes.
    pub(crate) offset: u64,
    /// The stride of each dimension in elements; `None` if the tensor is row-major and dense.
    pub(crate) strides: Option<Vec<u64>>,
}

impl NamedTensor {
    /// The number of elements.
    #[must_use]
    pub fn elements(&self) -> usize {
        // The product was checked when the file was read.
        self.shape.iter().product()
    }

    /// The number of elements in the file from the first to the last of this tensor.
    pub(crate) fn span(&self) -> u64 {
        match &self.strides {
            Some(_) if self.elements() == 0 => 0,
            Some(strides) => {
                1 + self.shape.iter().zip(strides).map(|(&n, s)| (n as u64 - 1) * s).sum::<u64>()
            }
            None => self.elements() as u64,
        }
    }
}

/// The content of a file, as returned by the reader of its format.
pub(crate) struct Contents {
    pub format: Format,
    pub tensors: Vec<NamedTensor>,
    pub metadata: BTreeMap<String, String>,
    /// The key of the state dict in its wrapper, if there is one.
    pub wrapper_key: Option<String>,
}
