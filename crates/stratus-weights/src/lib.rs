//! Files of named tensors: what other programs have trained comes in here, and leaves under the same names.
//!
//! [`WeightsFile`] opens a `.safetensors` file or a PyTorch state dict (`.pth`, `.pt`) and lists its tensors
//! without reading them; values are read on demand, as f32. [`write_safetensors`] writes. [`match_tensors`]
//! says how a file's tensors fit a network's: which load, which are missing, which are foreign, which have
//! another shape.
//!
//! Files come from anywhere. Nothing in one is ever executed, every length is checked against the file's own
//! before memory is asked for, and whatever the bytes are, the answer is a value or an [`Error`] that says
//! what to do.

mod error;
mod file;
mod matching;
mod metadata;
mod safetensors;
mod source;
mod tensor;
mod torch;

pub use error::{Error, Problem, Result};
pub use file::{Dtype, Format, NamedTensor, WeightsFile};
pub use matching::{Matching, Mismatch, match_tensors};
pub use metadata::NetworkMetadata;
pub use tensor::{ExternalValues, Tensor, TensorRef, Values, ValuesRef, write_safetensors};
