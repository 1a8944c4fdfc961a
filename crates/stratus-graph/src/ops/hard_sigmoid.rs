//! The sigmoid in three straight pieces (Howard et al.: "Searching for MobileNetV3", 2019).

use super::{Declared, Operation, only};
use crate::layer_file::{AttributeError, Attributes};
use crate::{Shape, ShapeError};
use serde::{Deserialize, Serialize};

/// `y = min(max(x + 3, 0), 6) / 6`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct HardSigmoid;

impl Operation for HardSigmoid {
    fn kind(&self) -> &'static str {
        "hard_sigmoid"
    }

    fn output_shape(&self, inputs: &[&Shape]) -> Result<Shape, ShapeError> {
        only("hard_sigmoid", inputs).cloned()
    }

    /// One per element, as other activations.
    fn forward_flops(&self, _inputs: &[&Shape], output: &Shape) -> u64 {
        output.elements() as u64
    }
}

impl Declared for HardSigmoid {
    const NAME: &'static str = "hard_sigmoid";

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
        assert_eq!(HardSigmoid.output_shape(&[&input]).unwrap(), input);
        assert_eq!(HardSigmoid.forward_flops(&[&input], &input), 60);
        let message = HardSigmoid.output_shape(&[]).unwrap_err().to_string();
        assert_eq!(message, "hard_sigmoid takes one input, it was given 0");
    }
}
