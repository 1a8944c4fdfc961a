//! Batch normalisation (Ioffe, Szegedy: "Batch normalization", 2015), over batch and pixels of each channel.

use super::{Initialisation, Operation, ParameterKind, ParameterSpec, only};
use crate::{Shape, ShapeError};
use serde::{Deserialize, Serialize};

/// `y = weight * (x - mean) / sqrt(variance + epsilon) + bias`, per channel.
///
/// In training, mean and (biased) variance are the batch's, and the running statistics move towards them by `momentum`, the running
/// variance towards the unbiased one, as PyTorch has it. In inference they are the running statistics.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct BatchNorm2d {
    /// Channels.
    pub channels: usize,
    /// Added to the variance.
    pub epsilon: f32,
    /// The share of the new batch in the running statistics.
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
        let [channels, ..] = input.as_image()?;
        if channels != self.channels {
            return Err(ShapeError::new(format!(
                "it normalises {} channels, its input {input} has {channels}",
                self.channels
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
        4 * output.elements() as u64
    }
}
