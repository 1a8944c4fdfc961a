//! The rectifier with a ceiling (Krizhevsky: "Convolutional deep belief networks on CIFAR-10", 2010), as
//! MobileNetV2 has it.

use super::{Declared, Operation, only};
use crate::layer_file::{AttributeError, Attributes};
use crate::{Shape, ShapeError};
use serde::{Deserialize, Serialize};

/// `y = min(max(x, 0), 6)`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Relu6;

impl Relu6 {
    /// The largest result.
    pub const CEILING: f32 = 6.0;
}

impl Operation for Relu6 {
    fn kind(&self) -> &'static str {
        "relu6"
    }

    fn output_shape(&self, inputs: &[&Shape]) -> Result<Shape, ShapeError> {
        only("relu6", inputs).cloned()
    }

    fn forward_flops(&self, _inputs: &[&Shape], output: &Shape) -> u64 {
        (output.elements() as u64).saturating_mul(2)
    }
}

impl Declared for Relu6 {
    const NAME: &'static str = "relu6";

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
        assert_eq!(Relu6.output_shape(&[&input]).unwrap(), input);
        assert_eq!(Relu6.forward_flops(&[&input], &input), 120);
        let message = Relu6.output_shape(&[&input, &input]).unwrap_err().to_string();
        assert_eq!(message, "relu6 takes one input, it was given 2");
    }
}
