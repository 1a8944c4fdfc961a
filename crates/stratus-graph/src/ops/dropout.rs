//! Dropout (Srivastava et al.: "Dropout: a simple way to prevent neural networks from overfitting", 2014).

use super::{LayerFileOp, Operation, expect_share, single_input};
use crate::layer_file::{AttributeError, AttributeWriter, Attributes};
use crate::{Shape, ShapeError};
use serde::{Deserialize, Serialize};

/// In training, each element is zero with probability `p` and otherwise multiplied by `1 / (1 - p)`; the
/// identity in inference.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Dropout {
    /// The probability of dropping an element, in [0, 1).
    pub p: f32,
}

impl Operation for Dropout {
    fn kind(&self) -> &'static str {
        "dropout"
    }

    fn output_shape(&self, inputs: &[&Shape]) -> Result<Shape, ShapeError> {
        expect_share(self.p)?;
        single_input("dropout", inputs).cloned()
    }

    fn forward_flops(&self, _inputs: &[&Shape], output: &Shape) -> u64 {
        output.elements() as u64
    }

    fn attributes(&self) -> String {
        format!("p {}", self.p)
    }
}

impl LayerFileOp for Dropout {
    const NAME: &'static str = "dropout";
    const KEYS: &'static [&'static str] = &["p"];

    fn from_attributes(attributes: &Attributes<'_>, _inputs: &[&Shape]) -> Result<Self, AttributeError> {
        Ok(Self { p: attributes.number("p")?.unwrap_or(0.5) })
    }

    fn write_attributes(&self, to: &mut AttributeWriter) {
        to.number_if_not("p", self.p, 0.5);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn p_must_be_in_the_unit_interval() {
        let input = Shape::vector(9);
        for p in [0.0, 0.5, 0.999] {
            assert_eq!(Dropout { p }.output_shape(&[&input]).unwrap(), input);
        }
        for p in [-0.1, 1.0, f32::NAN, f32::INFINITY] {
            let message = Dropout { p }.output_shape(&[&input]).unwrap_err().to_string();
            assert_eq!(message, format!("`p` must be in [0, 1), got {p}"));
        }
    }
}
