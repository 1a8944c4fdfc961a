//! Multiplication by a fixed number: of what a residual branch adds (Szegedy et al.: "Inception-v4,
//! Inception-ResNet and the impact of residual connections on learning", 2016), or of logits.

use super::{Declared, Operation, only};
use crate::layer_file::{AttributeError, Attributes, Written};
use crate::{Shape, ShapeError};
use serde::{Deserialize, Serialize};

/// `y = factor * x`.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Scale {
    /// What every element is multiplied by, finite.
    pub factor: f32,
}

impl Operation for Scale {
    fn kind(&self) -> &'static str {
        "scale"
    }

    fn output_shape(&self, inputs: &[&Shape]) -> Result<Shape, ShapeError> {
        if !self.factor.is_finite() {
            return Err(ShapeError::new(format!("its factor is {}; it is a finite number", self.factor)));
        }
        only("scale", inputs).cloned()
    }

    fn forward_flops(&self, _inputs: &[&Shape], output: &Shape) -> u64 {
        output.elements() as u64
    }

    fn attributes(&self) -> String {
        format!("factor {}", self.factor)
    }
}

impl Declared for Scale {
    const NAME: &'static str = "scale";
    const KEYS: &'static [&'static str] = &["factor"];

    fn declared(attributes: &Attributes<'_>, _inputs: &[&Shape]) -> Result<Self, AttributeError> {
        Ok(Self { factor: attributes.number("factor")?.ok_or(AttributeError::Missing("factor"))? })
    }

    fn written(&self, to: &mut Written) {
        to.number("factor", self.factor);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_factor_is_finite() {
        let input = Shape::image(3, 4, 5);
        for factor in [0.125, -2.0, 0.0] {
            assert_eq!(Scale { factor }.output_shape(&[&input]).unwrap(), input);
            assert_eq!(Scale { factor }.forward_flops(&[&input], &input), 60);
        }
        for factor in [f32::NAN, f32::INFINITY] {
            let message = Scale { factor }.output_shape(&[&input]).unwrap_err().to_string();
            assert_eq!(message, format!("its factor is {factor}; it is a finite number"));
        }
    }
}
