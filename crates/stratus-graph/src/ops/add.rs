//! The sum of two feature maps: the shortcut of a residual block (He et al.: "Deep residual learning for
//! image recognition", 2015).

use super::{LayerFileOp, Operation};
use crate::layer_file::{AttributeError, Attributes};
use crate::{Shape, ShapeError};
use serde::{Deserialize, Serialize};

/// `y = a + b`, element by element; nothing is broadcast.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Add;

impl Operation for Add {
    fn kind(&self) -> &'static str {
        "add"
    }

    fn output_shape(&self, inputs: &[&Shape]) -> Result<Shape, ShapeError> {
        match inputs {
            [a, b] if a == b => Ok((*a).clone()),
            [a, b] => Err(ShapeError::new(format!("inputs {a} and {b} differ in shape"))),
            _ => Err(ShapeError::new(format!("add: expected 2 inputs, got {}", inputs.len()))),
        }
    }

    fn is_never_negative(&self, inputs_are: bool) -> bool {
        inputs_are
    }

    fn forward_flops(&self, _inputs: &[&Shape], output: &Shape) -> u64 {
        output.elements() as u64
    }
}

impl LayerFileOp for Add {
    const NAME: &'static str = "add";
    const SHAPES: &'static str = "two of equal shape to their sum";

    fn from_attributes(_attributes: &Attributes<'_>, _inputs: &[&Shape]) -> Result<Self, AttributeError> {
        Ok(Self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accepts_only_two_equal_shapes() {
        let (a, b) = (Shape::image(4, 3, 5), Shape::image(4, 5, 3));
        assert_eq!(Add.output_shape(&[&a, &a]).unwrap(), a);
        assert_eq!(Add.forward_flops(&[&a, &a], &a), 60);
        let message = |inputs: &[&Shape]| Add.output_shape(inputs).unwrap_err().to_string();
        assert_eq!(message(&[&a, &b]), "inputs 4x3x5 and 4x5x3 differ in shape");
        assert_eq!(message(&[&a]), "add: expected 2 inputs, got 1");
    }
}
