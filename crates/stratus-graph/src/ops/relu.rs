//! The rectifier.

use super::{Declared, Operation, only};
use crate::layer_file::{AttributeError, Attributes};
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

impl Declared for Relu {
    const NAME: &'static str = "relu";

    fn declared(_attributes: &Attributes<'_>, _inputs: &[&Shape]) -> Result<Self, AttributeError> {
        Ok(Self)
    }
}
