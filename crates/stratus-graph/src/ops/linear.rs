//! The fully connected layer.

use super::{Initialisation, Operation, ParameterKind, ParameterSpec, only};
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
