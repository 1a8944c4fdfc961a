//! Two-dimensional convolution (cross-correlation, as in every framework).

use super::{
    LayerFileOp, Operation, ParameterSpec, conv_parameters, expect_conv_input, input_channels, single_input,
};
use crate::layer_file::{AttributeError, AttributeWriter, Attributes};
use crate::shape::sliding_extent;
use crate::{Shape, ShapeError};
use serde::{Deserialize, Serialize};

/// `y[o] = sum over i of w[o, i] * x[i] (+ b[o])`, strided, padded with zeros, dilated, in groups.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Conv2d {
    /// Channels of the input.
    pub in_channels: usize,
    /// Channels of the output.
    pub out_channels: usize,
    /// Kernel `[height, width]`.
    pub kernel: [usize; 2],
    /// Stride `[vertical, horizontal]`.
    pub stride: [usize; 2],
    /// Zeros added `[top, left]`.
    pub padding_before: [usize; 2],
    /// Zeros added `[bottom, right]`.
    pub padding_after: [usize; 2],
    /// Distance between the kernel's taps, 1 for a dense kernel.
    pub dilation: [usize; 2],
    /// Groups; `in_channels` of them with one channel each is a depthwise convolution.
    pub groups: usize,
    /// True if a bias is added.
    pub bias: bool,
}

impl Conv2d {
    /// A square kernel with equal padding on all sides, dense, ungrouped, without bias.
    #[must_use]
    pub fn new(
        in_channels: usize,
        out_channels: usize,
        kernel: usize,
        stride: usize,
        padding: usize,
    ) -> Self {
        Self {
            in_channels,
            out_channels,
            kernel: [kernel; 2],
            stride: [stride; 2],
            padding_before: [padding; 2],
            padding_after: [padding; 2],
            dilation: [1; 2],
            groups: 1,
            bias: false,
        }
    }

    /// `[out, in / groups, kernel height, kernel width]`.
    #[must_use]
    pub fn weight_shape(&self) -> [usize; 4] {
        [self.out_channels, self.in_channels / self.groups.max(1), self.kernel[0], self.kernel[1]]
    }

    /// The number of output values that each input value contributes to: `out_channels * kernel height *
    /// kernel width`, independent of the groups, as in PyTorch.
    #[must_use]
    pub fn fan_out(&self) -> usize {
        self.out_channels.saturating_mul(self.kernel[0]).saturating_mul(self.kernel[1])
    }

    /// The number of input values of each output value: `in_channels / groups * kernel height * kernel
    /// width`.
    #[must_use]
    pub fn fan_in(&self) -> usize {
        self.weight_shape()[1..].iter().fold(1, |product: usize, &extent| product.saturating_mul(extent))
    }

    /// Returns whether it is a matrix product: one tap per pixel, without stride, padding and groups.
    #[must_use]
    pub fn is_pointwise(&self) -> bool {
        let padding = [self.padding_before, self.padding_after];
        [self.kernel, self.stride] == [[1, 1]; 2] && padding == [[0, 0]; 2] && self.groups == 1
    }

    /// The bound of PyTorch's default uniform initialisation, `1 / sqrt(fan_in)`.
    #[must_use]
    pub fn bound(&self) -> f32 {
        1.0 / (self.fan_in().max(1) as f32).sqrt()
    }

    /// Height and width of the output for an input of `size`.
    ///
    /// # Errors
    /// If the window does not fit.
    pub fn output_size(&self, size: [usize; 2]) -> Result<[usize; 2], ShapeError> {
        let extent = |axis: usize, dimension| {
            sliding_extent(
                dimension,
                size[axis],
                self.kernel[axis],
                self.stride[axis],
                (self.padding_before[axis], self.padding_after[axis]),
                self.dilation[axis],
            )
        };
        Ok([extent(0, "height")?, extent(1, "width")?])
    }
}

impl Operation for Conv2d {
    fn kind(&self) -> &'static str {
        "conv2d"
    }

    fn output_shape(&self, inputs: &[&Shape]) -> Result<Shape, ShapeError> {
        let input = single_input("conv2d", inputs)?;
        let channels = [self.in_channels, self.out_channels];
        let size = expect_conv_input(input, self.weight_shape(), self.groups, channels)?;
        let [height, width] = self.output_size(size)?;
        Ok(Shape::image(self.out_channels, height, width))
    }

    /// PyTorch's default: Kaiming uniform with `a = sqrt(5)`, which is uniform within `1 / sqrt(fan_in)`.
    fn parameters(&self) -> Vec<ParameterSpec> {
        conv_parameters(self.weight_shape(), self.bias.then_some(self.out_channels), self.bound())
    }

    fn fan_out(&self) -> Option<usize> {
        Some(Self::fan_out(self))
    }

    fn forward_flops(&self, _inputs: &[&Shape], output: &Shape) -> u64 {
        let taps = Shape(self.weight_shape()[1..].to_vec()).elements() as u64;
        (output.elements() as u64).saturating_mul(taps.saturating_mul(2).saturating_add(u64::from(self.bias)))
    }

    fn attributes(&self) -> String {
        let mut text = format!("{}x{}", self.kernel[0], self.kernel[1]);
        if self.stride != [1, 1] {
            text += &format!(" stride {}x{}", self.stride[0], self.stride[1]);
        }
        if self.padding_before != [0, 0] || self.padding_after != [0, 0] {
            text += &format!(" padding {}x{}", self.padding_before[0], self.padding_before[1]);
        }
        if self.dilation != [1, 1] {
            text += &format!(" dilation {}x{}", self.dilation[0], self.dilation[1]);
        }
        if self.groups != 1 {
            text += &format!(" groups {}", self.groups);
        }
        text
    }
}

impl LayerFileOp for Conv2d {
    const NAME: &'static str = "conv2d";
    const KEYS: &'static [&'static str] =
        &["out_channels", "kernel", "stride", "padding", "padding_after", "dilation", "groups", "bias"];
    const ATTRIBUTES: &'static str = "`out_channels`, `kernel` pair, `stride` pair (1), `padding` pair \
        (0), `padding_after` pair: bottom and right (as `padding`), `dilation` pair (1), `groups` (1), \
        `bias` (true)";
    const SHAPES: &'static str = "image to image; initial weight and bias uniform within ±1 / sqrt(fan-in)";

    fn from_attributes(attributes: &Attributes<'_>, inputs: &[&Shape]) -> Result<Self, AttributeError> {
        let padding_before = attributes.padding("padding")?.unwrap_or_default();
        Ok(Self {
            in_channels: input_channels(inputs),
            out_channels: attributes.required_count("out_channels")?,
            kernel: attributes.required_pair("kernel")?,
            stride: attributes.pair("stride")?.unwrap_or([1, 1]),
            padding_before,
            padding_after: attributes.padding("padding_after")?.unwrap_or(padding_before),
            dilation: attributes.pair("dilation")?.unwrap_or([1, 1]),
            groups: attributes.count("groups")?.unwrap_or(1),
            bias: attributes.flag("bias")?.unwrap_or(true),
        })
    }

    fn write_attributes(&self, to: &mut AttributeWriter) {
        to.count("out_channels", self.out_channels);
        to.pair("kernel", self.kernel);
        to.pair_if_not("stride", self.stride, [1, 1]);
        to.pair_if_not("padding", self.padding_before, [0, 0]);
        to.pair_if_not("padding_after", self.padding_after, self.padding_before);
        to.pair_if_not("dilation", self.dilation, [1, 1]);
        if self.groups != 1 {
            to.count("groups", self.groups);
        }
        to.flag_if_not("bias", self.bias, true);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Initialisation;

    #[test]
    fn depthwise_convolution_has_one_kernel_per_channel() {
        let conv = Conv2d { groups: 32, ..Conv2d::new(32, 64, 3, 2, 1) };
        let input = Shape::image(32, 9, 9);
        let output = conv.output_shape(&[&input]).unwrap();
        assert_eq!(output, Shape::image(64, 5, 5));
        assert_eq!(conv.weight_shape(), [64, 1, 3, 3]);
        assert_eq!(conv.parameters()[0].shape, [64, 1, 3, 3]);
        assert_eq!(conv.parameters()[0].initialisation, Initialisation::Uniform { bound: 1.0 / 3.0 });
        assert_eq!(conv.forward_flops(&[&input], &output), 64 * 25 * 2 * 9);
        assert_eq!(conv.attributes(), "3x3 stride 2x2 padding 1x1 groups 32");
    }

    #[test]
    fn groups_must_divide_both_channel_counts() {
        for (groups, channels) in [(0, 32), (3, 32), (32, 48)] {
            let conv = Conv2d { groups, ..Conv2d::new(32, channels, 3, 1, 1) };
            let message = conv.output_shape(&[&Shape::image(32, 9, 9)]).unwrap_err().to_string();
            assert_eq!(
                message,
                format!("{groups} groups do not divide 32 input and {channels} output channels")
            );
        }
    }
}
