//! Batch normalisation (Ioffe, Szegedy: "Batch normalization", 2015), over batch and pixels of each
//! channel. One operation serves images and vectors: PyTorch's `BatchNorm2d` and `BatchNorm1d` differ only
//! in what they accept.

use super::{
    Initialisation, LayerFileOp, Operation, ParameterKind, ParameterSpec, input_channels, single_input,
};
use crate::layer_file::{AttributeError, AttributeWriter, Attributes};
use crate::{Shape, ShapeError};
use serde::{Deserialize, Serialize};

/// `y = weight * (x - mean) / sqrt(variance + epsilon) + bias`, per channel of an image or per feature of a
/// vector.
///
/// In training, mean and (biased) variance are those of the batch, and the running statistics move towards
/// them by `momentum`, the running variance towards the unbiased one, as in PyTorch. In inference they are
/// the running statistics.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct BatchNorm2d {
    /// Channels of an image, features of a vector.
    pub channels: usize,
    /// Added to the variance; more than zero.
    pub epsilon: f32,
    /// The weight of the new batch in the running statistics, in [0, 1].
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
        let input = single_input("batch_norm2d", inputs)?;
        let (channels, unit) = match input.0[..] {
            [features] => (features, "features"),
            [channels, _, _] => (channels, "channels"),
            _ => {
                return Err(ShapeError::new(format!(
                    "expected an image (channels x height x width) or a vector, got {input}"
                )));
            }
        };
        if channels != self.channels {
            return Err(ShapeError::new(format!(
                "expected {} {unit}, but the input {input} has {channels}",
                self.channels
            )));
        }
        if !(self.epsilon > 0.0 && self.epsilon.is_finite() && (0.0..=1.0).contains(&self.momentum)) {
            return Err(ShapeError::new(format!(
                "`epsilon` must be > 0 and `momentum` in [0, 1], got {} and {}",
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

    /// Per element two for the statistics' sums and two to normalise.
    fn forward_flops(&self, _inputs: &[&Shape], output: &Shape) -> u64 {
        (output.elements() as u64).saturating_mul(4)
    }
    fn attributes(&self) -> String {
        let mut text = Vec::new();
        let default = Self::new(self.channels);
        if self.epsilon != default.epsilon {
            text.push(format!("epsilon {}", self.epsilon));
        }
        if self.momentum != default.momentum {
            text.push(format!("momentum {}", self.momentum));
        }
        text.join(" ")
    }
}

impl LayerFileOp for BatchNorm2d {
    const NAME: &'static str = "batch_norm2d";
    const KEYS: &'static [&'static str] = &["epsilon", "momentum"];
    const ATTRIBUTES: &'static str = "`epsilon` (0.00001), `momentum` (0.1)";
    const SHAPES: &'static str = "image or vector, shape unchanged; initial weight 1, bias 0";

    fn from_attributes(attributes: &Attributes<'_>, inputs: &[&Shape]) -> Result<Self, AttributeError> {
        let default = Self::new(input_channels(inputs));
        Ok(Self {
            epsilon: attributes.number("epsilon")?.unwrap_or(default.epsilon),
            momentum: attributes.number("momentum")?.unwrap_or(default.momentum),
            ..default
        })
    }

    fn write_attributes(&self, to: &mut AttributeWriter) {
        let default = Self::new(self.channels);
        to.number_if_not("epsilon", self.epsilon, default.epsilon);
        to.number_if_not("momentum", self.momentum, default.momentum);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accepts_images_and_vectors_of_its_channels() {
        let norm = BatchNorm2d::new(8);
        for input in [Shape::image(8, 3, 2), Shape::vector(8)] {
            assert_eq!(norm.output_shape(&[&input]).unwrap(), input);
        }
        let message = |input: Shape| norm.output_shape(&[&input]).unwrap_err().to_string();
        assert_eq!(message(Shape::vector(4)), "expected 8 features, but the input 4 has 4");
        assert_eq!(message(Shape::image(4, 8, 8)), "expected 8 channels, but the input 4x8x8 has 4");
        assert!(message(Shape(vec![8, 2])).contains("got 8x2"));
    }

    #[test]
    fn attributes_are_shown_and_checked() {
        let norm = BatchNorm2d::new(8);
        assert_eq!(norm.attributes(), "");
        assert_eq!(
            BatchNorm2d { epsilon: 1e-3, momentum: 0.01, ..norm }.attributes(),
            "epsilon 0.001 momentum 0.01"
        );
        for norm in [
            BatchNorm2d { epsilon: 0.0, ..norm },
            BatchNorm2d { epsilon: f32::NAN, ..norm },
            BatchNorm2d { momentum: 1.5, ..norm },
        ] {
            let message = norm.output_shape(&[&Shape::vector(8)]).unwrap_err().to_string();
            assert!(message.starts_with("`epsilon` must be > 0 and `momentum` in [0, 1]"), "{message}");
        }
    }
}
