//! Batch normalisation (Ioffe, Szegedy: "Batch normalization", 2015), over batch and pixels of each
//! channel. One operation serves images and vectors: PyTorch's `BatchNorm2d` and `BatchNorm1d` differ only
//! in what they accept.

use super::{Declared, Initialisation, Operation, ParameterKind, ParameterSpec, leading, only};
use crate::layer_file::{AttributeError, Attributes, Written};
use crate::{Shape, ShapeError};
use serde::{Deserialize, Serialize};

/// `y = weight * (x - mean) / sqrt(variance + epsilon) + bias`, per channel of an image or per feature of a
/// vector.
///
/// In training, mean and (biased) variance are the batch's, and the running statistics move towards them by
/// `momentum`, the running variance towards the unbiased one, as PyTorch has it. In inference they are the
/// running statistics.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct BatchNorm2d {
    /// Channels of an image, features of a vector.
    pub channels: usize,
    /// Added to the variance; more than zero.
    pub epsilon: f32,
    /// The share of the new batch in the running statistics, from 0 to 1.
    pub momentum: f32,
}

impl BatchNorm2d {
    /// PyTorch's defaults: epsilon 1e-5, momentum 0.1.
    #[must_use]
    pub fn new(channels: usize) -> Self {
        Self { channels, epsilon: 1e-5, momentum: 0.1 }
    }
}

impl Operation for BatchNorm2d {
    fn kind(&self) -> &'static str {
        "batch_norm2d"
    }

    fn output_shape(&self, inputs: &[&Shape]) -> Result<Shape, ShapeError> {
        let input = only("batch_norm2d", inputs)?;
        let (channels, what) = match input.0[..] {
            [features] => (features, "features"),
            [channels, _, _] => (channels, "channels"),
            _ => {
                return Err(ShapeError::new(format!(
                    "it needs an image of channels x height x width or a vector, its input is {input}"
                )));
            }
        };
        if channels != self.channels {
            return Err(ShapeError::new(format!(
                "it normalises {} {what}, its input {input} has {channels}",
                self.channels
            )));
        }
        if !(self.epsilon > 0.0 && self.epsilon.is_finite() && (0.0..=1.0).contains(&self.momentum)) {
            return Err(ShapeError::new(format!(
                "its epsilon is {} and its momentum {}; epsilon is more than 0, momentum from 0 to 1",
                self.epsilon, self.momentum
            )));
        }
        Ok(input.clone())
    }

    fn parameters(&self) -> Vec<ParameterSpec> {
        let parameter = |name, initialisation, kind| ParameterSpec {
            name,
            shape: vec![self.channels],
            initialisation,
            kind,
        };
        vec![
            parameter("weight", Initialisation::Ones, ParameterKind::Trained),
            parameter("bias", Initialisation::Zeros, ParameterKind::Trained),
            parameter("running_mean", Initialisation::Zeros, ParameterKind::Buffer),
            parameter("running_var", Initialisation::Ones, ParameterKind::Buffer),
        ]
    }

    /// Two for the statistics' sums, two to normalise, per element.
    fn forward_flops(&self, _inputs: &[&Shape], output: &Shape) -> u64 {
        (output.elements() as u64).saturating_mul(4)
    }
    fn attributes(&self) -> String {
        let mut text = Vec::new();
        let usual = Self::new(self.channels);
        if self.epsilon != usual.epsilon {
            text.push(format!("epsilon {}", self.epsilon));
        }
        if self.momentum != usual.momentum {
            text.push(format!("momentum {}", self.momentum));
        }
        text.join(" ")
    }
}

impl Declared for BatchNorm2d {
    const NAME: &'static str = "batch_norm2d";
    const KEYS: &'static [&'static str] = &["epsilon", "momentum"];

    fn declared(attributes: &Attributes<'_>, inputs: &[&Shape]) -> Result<Self, AttributeError> {
        let usual = Self::new(leading(inputs));
        Ok(Self {
            epsilon: attributes.number("epsilon")?.unwrap_or(usual.epsilon),
            momentum: attributes.number("momentum")?.unwrap_or(usual.momentum),
            ..usual
        })
    }

    fn written(&self, to: &mut Written) {
        let usual = Self::new(self.channels);
        to.number_unless("epsilon", self.epsilon, usual.epsilon);
        to.number_unless("momentum", self.momentum, usual.momentum);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn takes_images_and_vectors() {
        let norm = BatchNorm2d::new(8);
        for input in [Shape::image(8, 3, 2), Shape::vector(8)] {
            assert_eq!(norm.output_shape(&[&input]).unwrap(), input);
        }
        let message = |input: Shape| norm.output_shape(&[&input]).unwrap_err().to_string();
        assert_eq!(message(Shape::vector(4)), "it normalises 8 features, its input 4 has 4");
        assert_eq!(message(Shape::image(4, 8, 8)), "it normalises 8 channels, its input 4x8x8 has 4");
        assert!(message(Shape(vec![8, 2])).contains("its input is 8x2"));
    }

    #[test]
    fn attributes_show_and_have_limits() {
        let norm = BatchNorm2d::new(8);
        assert_eq!(norm.attributes(), "");
        assert_eq!(
            BatchNorm2d { epsilon: 1e-3, momentum: 0.01, ..norm }.attributes(),
            "epsilon 0.001 momentum 0.01"
        );
        for wrong in [
            BatchNorm2d { epsilon: 0.0, ..norm },
            BatchNorm2d { epsilon: f32::NAN, ..norm },
            BatchNorm2d { momentum: 1.5, ..norm },
        ] {
            let message = wrong.output_shape(&[&Shape::vector(8)]).unwrap_err().to_string();
            assert!(message.ends_with("epsilon is more than 0, momentum from 0 to 1"), "{message}");
        }
    }
}
