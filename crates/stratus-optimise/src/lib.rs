//! Makes trained networks smaller and faster. Every transformation is a pure function of a [`Model`], a graph
//! with the values of its parameters, and computes a model of the same inputs and outputs; nothing runs.

mod fold;
mod model;
pub mod prune;
pub mod quantise;

pub use fold::{FoldedModel, fold};
pub use model::{Model, ModelError};
