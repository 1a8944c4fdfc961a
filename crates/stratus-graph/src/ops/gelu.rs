//! The Gaussian error linear unit (Hendrycks, Gimpel: "Gaussian error linear units", 2016), exact, as
//! PyTorch's default is.

use super::{Declared, Operation, only};
use crate::layer_file::{AttributeError, Attributes};
use crate::{Shape, ShapeError};
use serde::{Deserialize, Serialize};

/// `y = x * P(z <= x)` for `z` of the standard normal distribution.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Gelu;

impl Operation for Gelu {
    fn kind(&self) -> &'static str {
        "gelu"
    }

    fn output_shape(&self, inputs: &[&Shape]) -> Result<Shape, ShapeError> {
        only("gelu", inputs).cloned()
    }

    /// One per element, as other activations: how the distribution is computed is the kernel's affair.
    fn forward_flops(&self, _inputs: &[&Shape], output: &Shape) -> u64 {
        output.elements() as u64
    }
}

impl Declared for Gelu {
    const NAME: &'static str = "gelu";

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
        assert_eq!(Gelu.output_shape(&[&input]).unwrap(), input);
        assert_eq!(Gelu.forward_flops(&[&input], &input), 60);
        let message = Gelu.output_shape(&[]).unwrap_err().to_string();
        assert_eq!(message, "gelu takes one input, it was given 0");
    }
}
