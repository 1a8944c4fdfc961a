//! The logistic sigmoid.

use super::{Declared, Operation, only};
use crate::layer_file::{AttributeError, Attributes};
use crate::{Shape, ShapeError};
use serde::{Deserialize, Serialize};

/// `y = 1 / (1 + exp(-x))`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Sigmoid;

impl Operation for Sigmoid {
    fn kind(&self) -> &'static str {
        "sigmoid"
    }

    fn output_shape(&self, inputs: &[&Shape]) -> Result<Shape, ShapeError> {
        only("sigmoid", inputs).cloned()
    }

    /// One per element, as other activations.
    fn forward_flops(&self, _inputs: &[&Shape], output: &Shape) -> u64 {
        output.elements() as u64
    }
}

impl Declared for Sigmoid {
    const NAME: &'static str = "sigmoid";

    fn declared(_attributes: &Attributes<'_>, _inputs: &[&Shape]) -> Result<Self, AttributeError> {
        Ok(Self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keeps_its_shape() {
        let input = Shape::image(3, 4, 5);
        assert_eq!(Sigmoid.output_shape(&[&input]).unwrap(), input);
        assert_eq!(Sigmoid.forward_flops(&[&input], &input), 60);
        let message = Sigmoid.output_shape(&[]).unwrap_err().to_string();
        assert_eq!(message, "sigmoid takes one input, it was given 0");
    }
}
