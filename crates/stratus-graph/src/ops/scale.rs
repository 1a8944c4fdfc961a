//! Multiplication by a constant: of a residual branch (Szegedy et al.: "Inception-v4, Inception-ResNet and
//! the impact of residual connections on learning", 2016), or of logits.

use super::{LayerFileOp, Operation, single_input};
use crate::layer_file::{AttributeError, AttributeWriter, Attributes};
use crate::{Shape, ShapeError};
use serde::{Deserialize, Serialize};

/// `y = factor * x`.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Scale {
    /// The factor, finite.
    pub factor: f32,
}

impl Operation for Scale {
    fn kind(&self) -> &'static str {
        "scale"
    }

    fn output_shape(&self, inputs: &[&Shape]) -> Result<Shape, ShapeError> {
        if !self.factor.is_finite() {
            return Err(ShapeError::new(format!("`factor` must be finite, got {}", self.factor)));
        }
        single_input("scale", inputs).cloned()
    }

    fn forward_flops(&self, _inputs: &[&Shape], output: &Shape) -> u64 {
        output.elements() as u64
    }

    fn attributes(&self) -> String {
        format!("factor {}", self.factor)
    }
}

impl LayerFileOp for Scale {
    const NAME: &'static str = "scale";
    const KEYS: &'static [&'static str] = &["factor"];
    const ATTRIBUTES: &'static str = "`factor`";
    const SHAPES: &'static str = "shape unchanged; every element times the factor";

    fn from_attributes(attributes: &Attributes<'_>, _inputs: &[&Shape]) -> Result<Self, AttributeError> {
        Ok(Self { factor: attributes.number("factor")?.ok_or(AttributeError::Missing("factor"))? })
    }

    fn write_attributes(&self, to: &mut AttributeWriter) {
        to.number("factor", self.factor);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn factor_must_be_finite() {
        let input = Shape::image(3, 4, 5);
        for factor in [0.125, -2.0, 0.0] {
            assert_eq!(Scale { factor }.output_shape(&[&input]).unwrap(), input);
            assert_eq!(Scale { factor }.forward_flops(&[&input], &input), 60);
        }
        for factor in [f32::NAN, f32::INFINITY] {
            let message = Scale { factor }.output_shape(&[&input]).unwrap_err().to_string();
            assert_eq!(message, format!("`factor` must be finite, got {factor}"));
        }
    }
}
