//! Feature maps to vectors.

use super::{Declared, Operation, only};
use crate::layer_file::{AttributeError, Attributes};
use crate::{Shape, ShapeError};
use serde::{Deserialize, Serialize};

/// `[C, H, W]` to `[C * H * W]`, channels slowest, as PyTorch's `flatten(1)` has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Flatten;

impl Operation for Flatten {
    fn kind(&self) -> &'static str {
        "flatten"
    }

    fn output_shape(&self, inputs: &[&Shape]) -> Result<Shape, ShapeError> {
        Ok(Shape::vector(only("flatten", inputs)?.elements()))
    }

    fn forward_flops(&self, _inputs: &[&Shape], _output: &Shape) -> u64 {
        0
    }
}

impl Declared for Flatten {
    const NAME: &'static str = "flatten";

    fn declared(_attributes: &Attributes<'_>, _inputs: &[&Shape]) -> Result<Self, AttributeError> {
        Ok(Self)
    }
}
