//! Export and import of ONNX models: a [`Graph`](stratus_graph::Graph) with its weights to a file, and a file
//! to a trainable network. <https://onnx.ai/onnx/repo-docs/IR.html>; `docs/onnx.md` lists operators and
//! limits.
//!
//! [`write()`] exports a network. [`Model`] opens a file, [`Model::import`] converts it. Files are untrusted:
//! nothing in them is executed, every length and count is checked before memory is allocated, and any input
//! gives either a network or an [`Error`] with a remedy.
//!
//! The protobuf messages of ONNX are decoded directly from the wire format (`wire`). Decoding into owned
//! structs first could allocate many times the size of a file before any count is checked, and would copy the
//! weights.

mod encode;
mod error;
mod export;
mod import;
mod model;
mod nearest;
mod ops;
mod proto;
mod quantised;
mod tensor;
mod wire;

pub use encode::{INPUT, OUTPUT};
pub use error::{Error, Problem, Result, UnsupportedNode, WriteError};
pub use export::{is_exported_by_stratus, operator_set, write, write_quantised};
pub use import::{ImportOptions, ImportedNetwork, operator_table};
pub use model::Model;
pub use ops::operation_rows;
pub use quantised::{Int8Weights, QuantisedLayers, Uint8Map};
