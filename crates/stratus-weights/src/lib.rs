//! Reads and writes files of named tensors, to exchange weights with other programs.
//!
//! [`WeightsFile`] opens a `.safetensors` file or a PyTorch state dict (`.pth`, `.pt`) and lists its tensors
//! without reading them; values are read on demand, as f32. [`write_safetensors`] writes a file.
//! [`match_tensors`] matches the tensors of a file with those of a network.
//!
//! Files are untrusted. Nothing in a file is ever executed, every length is checked against the size of the
//! file before memory is allocated, and malformed bytes give an [`Error`] with a remedy, never a panic.

mod contents;
mod error;
mod file;
mod matching;
mod metadata;
mod safetensors;
mod source;
mod tensor;
mod torch;

pub use contents::{Dtype, Format, NamedTensor};
pub use error::{Error, Problem, Result};
pub use file::WeightsFile;
pub use matching::{MatchReport, ShapeMismatch, match_tensors};
pub use metadata::{NetworkMetadata, OutputScales};
pub use tensor::{ExternalValues, Tensor, TensorRef, Values, ValuesRef, write_safetensors};
