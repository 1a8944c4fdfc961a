//! Flattening of feature maps to vectors.

use super::{LayerFileOp, Operation, single_input};
use crate::layer_file::{AttributeError, Attributes};
use crate::{Shape, ShapeError};
use serde::{Deserialize, Serialize};

/// `[C, H, W]` to `[C * H * W]`, channels slowest, like PyTorch's `flatten(1)`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Flatten;

impl Operation for Flatten {
    fn kind(&self) -> &'static str {
        "flatten"
    }

    fn output_shape(&self, inputs: &[&Shape]) -> Result<Shape, ShapeError> {
        Ok(Shape::vector(single_input("flatten", inputs)?.elements()))
    }

    fn is_never_negative(&self, inputs_are: bool) -> bool {
        inputs_are
    }

    fn forward_flops(&self, _inputs: &[&Shape], _output: &Shape) -> u64 {
        0
    }
}

impl LayerFileOp for Flatten {
    const NAME: &'static str = "flatten";
    const SHAPES: &'static str = "image to vector";

    fn from_attributes(_attributes: &Attributes<'_>, _inputs: &[&Shape]) -> Result<Self, AttributeError> {
        Ok(Self)
    }
}
