//! Concatenation of feature maps along channels, as at the end of an inception module (Szegedy et al.: "Going
//! deeper with convolutions", 2014).

use super::{LayerFileOp, Operation};
use crate::layer_file::{AttributeError, Attributes};
use crate::{Shape, ShapeError};
use serde::{Deserialize, Serialize};

/// Two or more images of the same height and width, their channels in the order of the inputs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Concat;

impl Operation for Concat {
    fn kind(&self) -> &'static str {
        "concat"
    }

    fn output_shape(&self, inputs: &[&Shape]) -> Result<Shape, ShapeError> {
        let [first, _, ..] = inputs else {
            return Err(ShapeError::new(format!("concat: expected at least 2 inputs, got {}", inputs.len())));
        };
        let [_, height, width] = first.as_image()?;
        let mut sum = 0usize;
        for input in inputs {
            let [channels, h, w] = input.as_image()?;
            if [h, w] != [height, width] {
                return Err(ShapeError::new(format!("inputs {first} and {input} differ in height or width")));
            }
            sum = sum.saturating_add(channels);
        }
        Ok(Shape::image(sum, height, width))
    }

    fn is_never_negative(&self, inputs_are: bool) -> bool {
        inputs_are
    }

    fn forward_flops(&self, _inputs: &[&Shape], _output: &Shape) -> u64 {
        0
    }
}

impl LayerFileOp for Concat {
    const NAME: &'static str = "concat";
    const SHAPES: &'static str = "two images or more of equal height and width, joined along the channels";

    fn from_attributes(_attributes: &Attributes<'_>, _inputs: &[&Shape]) -> Result<Self, AttributeError> {
        Ok(Self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_channels_of_images_of_one_size() {
        let (a, b, c) = (Shape::image(4, 3, 5), Shape::image(2, 3, 5), Shape::image(2, 3, 4));
        assert_eq!(Concat.output_shape(&[&a, &b, &a]).unwrap(), Shape::image(10, 3, 5));
        let message = |inputs: &[&Shape]| Concat.output_shape(inputs).unwrap_err().to_string();
        assert_eq!(message(&[&a, &b, &c]), "inputs 4x3x5 and 2x3x4 differ in height or width");
        assert_eq!(message(&[&a]), "concat: expected at least 2 inputs, got 1");
        assert_eq!(message(&[&a, &Shape::vector(7)]), "expected an image (channels x height x width), got 7");
    }
}
