//! Networks as data: operations, shapes, parameters and cost. Nothing runs here.
//!
//! A [`Graph`] is a list of nodes in execution order, each with an [`Op`] and a name like PyTorch's module
//! paths. Shapes are those of one sample, without the batch dimension: `[channels, height, width]` for images
//! and feature maps, `[features]` for vectors.

mod builder;
mod graph;
pub mod layer_file;
pub mod ops;
mod shape;
pub mod zoo;

pub use builder::GraphBuilder;
pub use graph::{Auxiliary, Graph, GraphError, Node, NodeId, Parameter, ParameterId, TensorId};
pub use ops::{Initialisation, Op, Operation, ParameterKind, ParameterSpec};
pub use shape::{Shape, ShapeError};
