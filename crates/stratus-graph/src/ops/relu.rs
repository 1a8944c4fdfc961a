//! The rectifier.

use super::{Operation, only};
use crate::{Shape, ShapeError};
use serde::{Deserialize, Serialize};

/// `y = max(x, 0)`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Relu;

impl Operation for Relu {
    fn kind(&self) -> &'static str {
        "relu"
    }

    fn output_shape(&self, inputs: &[&Shape]) -> Result<Shape, ShapeError> {
        only("relu", inputs).cloned()
    }

    fn forward_flops(&self, _inputs: &[&Shape], output: &Shape) -> u64 {
        output.elements() as u64
    }
}
