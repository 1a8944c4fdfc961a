//! Layer normalisation over the channels of each pixel (Ba et al.: "Layer normalization", 2016), as in
//! ConvNeXt: torchvision's `LayerNorm2d`, or `torch.nn.LayerNorm` of channels-last maps.

use super::{
    LayerFileOp, Operation, ParameterSpec, expect_channels, expect_epsilon, input_channels, norm_flops,
    norm_parameters, single_input,
};
use crate::layer_file::{AttributeError, AttributeWriter, Attributes};
use crate::{Shape, ShapeError};
use serde::{Deserialize, Serialize};

/// `y = weight * (x - mean) / sqrt(variance + epsilon) + bias`, with mean and (biased) variance over a
/// pixel's channels, in training and inference.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct LayerNorm2d {
    /// Channels of the image.
    pub channels: usize,
    /// Added to the variance; more than zero.
    pub epsilon: f32,
}

impl LayerNorm2d {
    /// PyTorch's default: epsilon 1e-5.
    #[must_use]
    pub fn new(channels: usize) -> Self {
        Self { channels, epsilon: 1e-5 }
    }
}

impl Operation for LayerNorm2d {
    fn kind(&self) -> &'static str {
        "layer_norm2d"
    }

    fn output_shape(&self, inputs: &[&Shape]) -> Result<Shape, ShapeError> {
        let input = single_input("layer_norm2d", inputs)?;
        expect_channels(input, self.channels)?;
        expect_epsilon(self.epsilon)?;
        Ok(input.clone())
    }

    fn parameters(&self) -> Vec<ParameterSpec> {
        norm_parameters(self.channels)
    }

    fn forward_flops(&self, _inputs: &[&Shape], output: &Shape) -> u64 {
        norm_flops(output)
    }

    fn attributes(&self) -> String {
        let default = Self::new(self.channels).epsilon;
        if self.epsilon == default { String::new() } else { format!("epsilon {}", self.epsilon) }
    }
}

impl LayerFileOp for LayerNorm2d {
    const NAME: &'static str = "layer_norm2d";
    const KEYS: &'static [&'static str] = &["epsilon"];
    const ATTRIBUTES: &'static str = "`epsilon` (1e-5)";
    const SHAPES: &'static str = "image, shape unchanged; each pixel's channels are normalised, then \
        times a weight and plus a bias for each channel";

    fn from_attributes(attributes: &Attributes<'_>, inputs: &[&Shape]) -> Result<Self, AttributeError> {
        let default = Self::new(input_channels(inputs));
        Ok(Self { epsilon: attributes.number("epsilon")?.unwrap_or(default.epsilon), ..default })
    }

    fn write_attributes(&self, to: &mut AttributeWriter) {
        to.number_if_not("epsilon", self.epsilon, Self::new(self.channels).epsilon);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accepts_images_of_its_channels() {
        let norm = LayerNorm2d::new(8);
        let input = Shape::image(8, 3, 2);
        assert_eq!(norm.output_shape(&[&input]).unwrap(), input);
        assert_eq!(norm.attributes(), "");
        assert_eq!(LayerNorm2d { epsilon: 1e-6, ..norm }.attributes(), "epsilon 0.000001");
        let message = |norm: LayerNorm2d, input| norm.output_shape(&[&input]).unwrap_err().to_string();
        let other = Shape::image(4, 8, 8);
        assert_eq!(message(norm, other), "expected 8 channels, but the input 4x8x8 has 4");
        assert!(norm.output_shape(&[&Shape::vector(8)]).is_err());
        for epsilon in [0.0, f32::NAN, f32::INFINITY] {
            let error = message(LayerNorm2d { epsilon, ..norm }, input.clone());
            assert_eq!(error, format!("`epsilon` must be > 0, got {epsilon}"));
        }
    }
}
