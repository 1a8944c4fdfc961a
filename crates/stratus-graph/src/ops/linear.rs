//! The fully connected layer.

use super::{
    Initialisation, LayerFileOp, Operation, ParameterKind, ParameterSpec, input_channels, single_input,
};
use crate::layer_file::{AttributeError, AttributeWriter, Attributes};
use crate::shape::check_tensor_size;
use crate::{Shape, ShapeError};
use serde::{Deserialize, Serialize};

/// `y = W x (+ b)`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Linear {
    /// Features of the input.
    pub in_features: usize,
    /// Features of the output.
    pub out_features: usize,
    /// True if a bias is added.
    pub bias: bool,
}

impl Linear {
    /// A layer with a bias.
    #[must_use]
    pub fn new(in_features: usize, out_features: usize) -> Self {
        Self { in_features, out_features, bias: true }
    }
}

impl Operation for Linear {
    fn kind(&self) -> &'static str {
        "linear"
    }

    fn output_shape(&self, inputs: &[&Shape]) -> Result<Shape, ShapeError> {
        let input = single_input("linear", inputs)?;
        if input.0.len() > 1 {
            return Err(ShapeError::new(format!(
                "expected a vector, got {input}; hint: add a flatten layer before it"
            )));
        }
        if *input != Shape::vector(self.in_features) {
            return Err(ShapeError::new(format!(
                "the weight [{}, {}] expects {} features, but the input is {input}",
                self.out_features, self.in_features, self.in_features
            )));
        }
        if self.in_features == 0 || self.out_features == 0 {
            return Err(ShapeError::new(format!(
                "the weight [{}, {}] is empty",
                self.out_features, self.in_features
            )));
        }
        check_tensor_size("the weight", &[self.out_features, self.in_features])?;
        Ok(Shape::vector(self.out_features))
    }

    /// PyTorch's default: uniform within `1 / sqrt(in_features)`, weight and bias alike.
    fn parameters(&self) -> Vec<ParameterSpec> {
        let bound = 1.0 / (self.in_features.max(1) as f32).sqrt();
        let trained = |name, shape| ParameterSpec {
            name,
            shape,
            initialisation: Initialisation::Uniform { bound },
            kind: ParameterKind::Trained,
        };
        let mut parameters = vec![trained("weight", vec![self.out_features, self.in_features])];
        if self.bias {
            parameters.push(trained("bias", vec![self.out_features]));
        }
        parameters
    }

    fn fan_out(&self) -> Option<usize> {
        Some(self.out_features)
    }

    fn forward_flops(&self, _inputs: &[&Shape], _output: &Shape) -> u64 {
        let each = (self.in_features as u64).saturating_mul(2).saturating_add(u64::from(self.bias));
        (self.out_features as u64).saturating_mul(each)
    }
}

impl LayerFileOp for Linear {
    const NAME: &'static str = "linear";
    const KEYS: &'static [&'static str] = &["out_features", "bias"];
    const ATTRIBUTES: &'static str = "`out_features`, `bias` (true)";
    const SHAPES: &'static str = "vector to vector; initial weight and bias uniform within ±1 / sqrt(inputs)";

    fn from_attributes(attributes: &Attributes<'_>, inputs: &[&Shape]) -> Result<Self, AttributeError> {
        Ok(Self {
            in_features: input_channels(inputs),
            out_features: attributes.required_count("out_features")?,
            bias: attributes.flag("bias")?.unwrap_or(true),
        })
    }

    fn write_attributes(&self, to: &mut AttributeWriter) {
        to.count("out_features", self.out_features);
        to.flag_if_not("bias", self.bias, true);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accepts_vectors_of_its_length() {
        let linear = Linear::new(12, 5);
        let output = linear.output_shape(&[&Shape::vector(12)]).unwrap();
        assert_eq!(output, Shape::vector(5));
        assert_eq!(linear.forward_flops(&[], &output), 5 * 25);
        let message = |input| linear.output_shape(&[&input]).unwrap_err().to_string();
        assert_eq!(message(Shape::vector(9)), "the weight [5, 12] expects 12 features, but the input is 9");
        assert_eq!(
            message(Shape::image(12, 1, 1)),
            "expected a vector, got 12x1x1; hint: add a flatten layer before it"
        );
        let huge = Linear::new(1 << 30, 1 << 30).output_shape(&[&Shape::vector(1 << 30)]).unwrap_err();
        assert_eq!(huge.to_string(), "the weight 1073741824x1073741824 has more than 68719476736 elements");
    }
}
