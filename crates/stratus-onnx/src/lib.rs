//! ONNX models, both ways: a [`Graph`](stratus_graph::Graph) with its weights becomes a file that other
//! programs run, and what other programs have written becomes a network that can be trained.
//! <https://onnx.ai/onnx/repo-docs/IR.html>; `docs/onnx.md` lists operators and limits.
//!
//! [`write()`] exports. [`Model`] opens a file, [`Model::import`] makes a network of it. Files come from
//! anywhere: nothing in one is executed, every length and count is checked before memory is asked for, and
//! whatever the bytes are, the answer is a network or an [`Error`] that says what to do.
//!
//! ONNX's messages are few, and read here straight from the protobuf wire format (`wire`): a reader that made
//! owned structures of them first could be asked for many times a file's size before anything was counted,
//! and would copy the weights.

mod error;
mod export;
mod import;
mod model;
mod proto;
mod tensor;
mod wire;

pub use error::{Error, Problem, RefusedNode, Result, WriteError};
pub use export::{INPUT, OPSET, OUTPUT, WITH_GELU, write};
pub use import::{Imported, Options};
pub use model::Model;
