//! Export and import of ONNX models: a [`Graph`](stratus_graph::Graph) with its weights to a file, and a file
//! to a trainable network. <https://onnx.ai/onnx/repo-docs/IR.html>; `docs/onnx.md` lists operators and
//! limits.
//!
//! [`write()`] exports. [`Model`] opens a file, [`Model::import`] converts it. Files are untrusted: nothing
//! in them is executed, every length and count is checked before memory is allocated, and any input gives
//! either a network or an [`Error`] that says what to do.
//!
//! The few protobuf messages of ONNX are decoded directly from the wire format (`wire`). Decoding into owned
//! structs first could allocate many times the size of a file before anything is counted, and would copy the
//! weights.

mod error;
mod export;
mod import;
mod model;
mod proto;
mod tensor;
mod wire;

pub use error::{Error, Problem, RefusedNode, Result, WriteError};
pub use export::{INPUT, OPSET, OUTPUT, WITH_GELU, is_own, write};
pub use import::{Imported, Options};
pub use model::Model;
