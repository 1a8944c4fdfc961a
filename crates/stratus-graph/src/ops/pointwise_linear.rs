//! A linear layer at every pixel: `torch.nn.Linear` of channels-last maps.

use super::{Conv2d, LayerFileOp, Operation, ParameterSpec, input_channels, single_input};
use crate::layer_file::{AttributeError, AttributeWriter, Attributes};
use crate::{Shape, ShapeError};
use serde::{Deserialize, Serialize};

/// `y = W x (+ b)` of each pixel's channels. It is a 1x1 convolution whose weight has the shape of a linear
/// layer's, `[out, in]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct PointwiseLinear {
    /// Channels of the input.
    pub in_channels: usize,
    /// Channels of the output.
    pub out_channels: usize,
    /// True if a bias is added.
    pub bias: bool,
}

impl PointwiseLinear {
    /// A layer with a bias.
    #[must_use]
    pub fn new(in_channels: usize, out_channels: usize) -> Self {
        Self { in_channels, out_channels, bias: true }
    }

    /// The equivalent convolution, with the weight `[out, in, 1, 1]`.
    #[must_use]
    pub fn conv(&self) -> Conv2d {
        Conv2d { bias: self.bias, ..Conv2d::new(self.in_channels, self.out_channels, 1, 1, 0) }
    }
}

impl Operation for PointwiseLinear {
    fn kind(&self) -> &'static str {
        "pointwise_linear"
    }

    fn output_shape(&self, inputs: &[&Shape]) -> Result<Shape, ShapeError> {
        single_input("pointwise_linear", inputs)?;
        self.conv().output_shape(inputs)
    }

    /// PyTorch's default: uniform within `1 / sqrt(in_channels)`, weight and bias alike.
    fn parameters(&self) -> Vec<ParameterSpec> {
        let mut parameters = self.conv().parameters();
        if let Some(weight) = parameters.first_mut() {
            weight.shape.truncate(2);
        }
        parameters
    }

    fn fan_out(&self) -> Option<usize> {
        Some(self.out_channels)
    }

    fn forward_flops(&self, inputs: &[&Shape], output: &Shape) -> u64 {
        self.conv().forward_flops(inputs, output)
    }
}

impl LayerFileOp for PointwiseLinear {
    const NAME: &'static str = "pointwise_linear";
    const KEYS: &'static [&'static str] = &["out_channels", "bias"];
    const ATTRIBUTES: &'static str = "`out_channels`, `bias` (true)";
    const SHAPES: &'static str = "image to image: a linear layer at every pixel, a 1×1 convolution \
        whose weight is `[out, in]`";

    fn from_attributes(attributes: &Attributes<'_>, inputs: &[&Shape]) -> Result<Self, AttributeError> {
        Ok(Self {
            in_channels: input_channels(inputs),
            out_channels: attributes.required_count("out_channels")?,
            bias: attributes.flag("bias")?.unwrap_or(true),
        })
    }

    fn write_attributes(&self, to: &mut AttributeWriter) {
        to.count("out_channels", self.out_channels);
        to.flag_if_not("bias", self.bias, true);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Initialisation;

    #[test]
    fn equals_a_1x1_convolution_with_a_linear_weight() {
        let linear = PointwiseLinear::new(4, 6);
        let input = Shape::image(4, 3, 5);
        let output = linear.output_shape(&[&input]).unwrap();
        assert_eq!(output, Shape::image(6, 3, 5));
        assert_eq!(linear.forward_flops(&[&input], &output), 90 * 9);
        let shapes: Vec<_> = linear.parameters().into_iter().map(|spec| spec.shape).collect();
        assert_eq!(shapes, [vec![6, 4], vec![6]]);
        assert_eq!(linear.parameters()[0].initialisation, Initialisation::Uniform { bound: 0.5 });
        assert_eq!(PointwiseLinear { bias: false, ..linear }.parameters().len(), 1);
        let message = linear.output_shape(&[&Shape::image(3, 2, 2)]).unwrap_err().to_string();
        assert_eq!(message, "the weight [6, 4, 1, 1] expects 4 channels, but the input 3x2x2 has 3");
        assert!(linear.output_shape(&[&Shape::vector(4)]).is_err());
    }
}
