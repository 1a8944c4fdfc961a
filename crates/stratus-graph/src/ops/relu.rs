//! The rectified linear unit, without and with a ceiling.
//!
//! They are not rows of [`super::activation`], because their kernels are fused with those of other operations
//! and compute the derivative from the output.

use super::{LayerFileOp, Operation, single_input};
use crate::layer_file::{AttributeError, Attributes};
use crate::{Shape, ShapeError};
use serde::{Deserialize, Serialize};

/// `y = max(x, 0)`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Relu;

/// `y = min(max(x, 0), 6)` (Krizhevsky: "Convolutional deep belief networks on CIFAR-10", 2010), as in
/// MobileNetV2.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Relu6;

impl Relu6 {
    /// The largest output.
    pub const CEILING: f32 = 6.0;
}

impl Operation for Relu {
    fn kind(&self) -> &'static str {
        "relu"
    }

    fn output_shape(&self, inputs: &[&Shape]) -> Result<Shape, ShapeError> {
        single_input("relu", inputs).cloned()
    }

    fn is_never_negative(&self, _inputs_are: bool) -> bool {
        true
    }

    fn forward_flops(&self, _inputs: &[&Shape], output: &Shape) -> u64 {
        output.elements() as u64
    }
}

impl Operation for Relu6 {
    fn kind(&self) -> &'static str {
        "relu6"
    }

    fn output_shape(&self, inputs: &[&Shape]) -> Result<Shape, ShapeError> {
        single_input("relu6", inputs).cloned()
    }

    fn is_never_negative(&self, _inputs_are: bool) -> bool {
        true
    }

    fn forward_flops(&self, _inputs: &[&Shape], output: &Shape) -> u64 {
        (output.elements() as u64).saturating_mul(2)
    }
}

impl LayerFileOp for Relu {
    const NAME: &'static str = "relu";
    const SHAPES: &'static str = "shape unchanged";

    fn from_attributes(_attributes: &Attributes<'_>, _inputs: &[&Shape]) -> Result<Self, AttributeError> {
        Ok(Self)
    }
}

impl LayerFileOp for Relu6 {
    const NAME: &'static str = "relu6";
    const SHAPES: &'static str = "shape unchanged";

    fn from_attributes(_attributes: &Attributes<'_>, _inputs: &[&Shape]) -> Result<Self, AttributeError> {
        Ok(Self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Op;

    #[test]
    fn keep_the_shape() {
        let input = Shape::image(3, 4, 5);
        for (op, flops) in [(Op::from(Relu), 60), (Op::from(Relu6), 120)] {
            assert_eq!(op.output_shape(&[&input]).unwrap(), input);
            assert_eq!(op.forward_flops(&[&input], &input), flops);
            for inputs in [&[][..], &[&input, &input]] {
                let message = op.output_shape(inputs).unwrap_err().to_string();
                assert_eq!(message, format!("{}: expected 1 input, got {}", op.kind(), inputs.len()));
            }
        }
    }
}
