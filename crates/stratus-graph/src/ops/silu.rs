//! The sigmoid-weighted linear unit (Elfwing, Uchibe, Doya: "Sigmoid-weighted linear units for neural network
//! function approximation in reinforcement learning", 2017), also called swish.

use super::{Declared, Operation, only};
use crate::layer_file::{AttributeError, Attributes};
use crate::{Shape, ShapeError};
use serde::{Deserialize, Serialize};

/// `y = x / (1 + exp(-x))`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Silu;

impl Operation for Silu {
    fn kind(&self) -> &'static str {
        "silu"
    }

    fn output_shape(&self, inputs: &[&Shape]) -> Result<Shape, ShapeError> {
        only("silu", inputs).cloned()
    }

    /// One per element, as other activations.
    fn forward_flops(&self, _inputs: &[&Shape], output: &Shape) -> u64 {
        output.elements() as u64
    }
}

impl Declared for Silu {
    const NAME: &'static str = "silu";

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
        assert_eq!(Silu.output_shape(&[&input]).unwrap(), input);
        assert_eq!(Silu.forward_flops(&[&input], &input), 60);
        let message = Silu.output_shape(&[]).unwrap_err().to_string();
        assert_eq!(message, "silu takes one input, it was given 0");
    }
}
