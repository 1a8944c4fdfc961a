//! The fully connected layer.

use super::{Declared, Initialisation, Operation, ParameterKind, ParameterSpec, leading, only};
use crate::layer_file::{AttributeError, Attributes, Written};
use crate::shape::limited;
use crate::{Shape, ShapeError};
use serde::{Deserialize, Serialize};

/// `y = W x (+ b)`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Linear {
    /// Features of the input.
    pub in_features: usize,
    /// Features of the output.
    pub out_features: usize,
    /// Whether a bias is added.
    pub bias: bool,
}

impl Linear {
    /// With a bias.
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
        let input = only("linear", inputs)?;
        if input.0.len() > 1 {
            return Err(ShapeError::new(format!(
                "it needs a vector, its input is {input}; a layer of operation flatten makes one of it"
            )));
        }
        if *input != Shape::vector(self.in_features) {
            return Err(ShapeError::new(format!(
                "its weight [{}, {}] expects {} features, its input is {input}",
                self.out_features, self.in_features, self.in_features
            )));
        }
        if self.in_features == 0 || self.out_features == 0 {
            return Err(ShapeError::new(format!(
                "its weight [{}, {}] is empty",
                self.out_features, self.in_features
            )));
        }
        limited("its weight", &[self.out_features, self.in_features])?;
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

    fn forward_flops(&self, _inputs: &[&Shape], _output: &Shape) -> u64 {
        let each = (self.in_features as u64).saturating_mul(2).saturating_add(u64::from(self.bias));
        (self.out_features as u64).saturating_mul(each)
    }
}

impl Declared for Linear {
    const NAME: &'static str = "linear";
    const KEYS: &'static [&'static str] = &["out_features", "bias"];

    fn declared(attributes: &Attributes<'_>, inputs: &[&Shape]) -> Result<Self, AttributeError> {
        Ok(Self {
            in_features: leading(inputs),
            out_features: attributes.needed_count("out_features")?,
            bias: attributes.flag("bias")?.unwrap_or(true),
        })
    }

    fn written(&self, to: &mut Written) {
        to.count("out_features", self.out_features);
        to.flag_unless("bias", self.bias, true);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn takes_vectors_of_its_length() {
        let linear = Linear::new(12, 5);
        let output = linear.output_shape(&[&Shape::vector(12)]).unwrap();
        assert_eq!(output, Shape::vector(5));
        assert_eq!(linear.forward_flops(&[], &output), 5 * 25);
        let message = |input| linear.output_shape(&[&input]).unwrap_err().to_string();
        assert_eq!(message(Shape::vector(9)), "its weight [5, 12] expects 12 features, its input is 9");
        assert_eq!(
            message(Shape::image(12, 1, 1)),
            "it needs a vector, its input is 12x1x1; a layer of operation flatten makes one of it"
        );
        let huge = Linear::new(1 << 30, 1 << 30).output_shape(&[&Shape::vector(1 << 30)]).unwrap_err();
        assert_eq!(huge.to_string(), "its weight 1073741824x1073741824 has more than 68719476736 elements");
    }
}
