//! Dropout (Srivastava et al.: "Dropout: a simple way to prevent neural networks from overfitting", 2014).

use super::{Declared, Operation, expect_share, only};
use crate::layer_file::{AttributeError, Attributes, Written};
use crate::{Shape, ShapeError};
use serde::{Deserialize, Serialize};

/// In training each element is zero with probability `p`, the others are multiplied by `1 / (1 - p)`. In
/// inference nothing happens.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Dropout {
    /// The share of elements that are dropped, from 0 up to, not including, 1.
    pub p: f32,
}

impl Operation for Dropout {
    fn kind(&self) -> &'static str {
        "dropout"
    }

    fn output_shape(&self, inputs: &[&Shape]) -> Result<Shape, ShapeError> {
        expect_share(self.p)?;
        only("dropout", inputs).cloned()
    }

    fn forward_flops(&self, _inputs: &[&Shape], output: &Shape) -> u64 {
        output.elements() as u64
    }

    fn attributes(&self) -> String {
        format!("p {}", self.p)
    }
}

impl Declared for Dropout {
    const NAME: &'static str = "dropout";
    const KEYS: &'static [&'static str] = &["p"];

    fn declared(attributes: &Attributes<'_>, _inputs: &[&Shape]) -> Result<Self, AttributeError> {
        Ok(Self { p: attributes.number("p")?.unwrap_or(0.5) })
    }

    fn written(&self, to: &mut Written) {
        to.number_unless("p", self.p, 0.5);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_probability_is_a_share() {
        let input = Shape::vector(9);
        for p in [0.0, 0.5, 0.999] {
            assert_eq!(Dropout { p }.output_shape(&[&input]).unwrap(), input);
        }
        for p in [-0.1, 1.0, f32::NAN, f32::INFINITY] {
            let message = Dropout { p }.output_shape(&[&input]).unwrap_err().to_string();
            assert_eq!(message, format!("its probability p is {p}; it is at least 0 and less than 1"));
        }
    }
}
