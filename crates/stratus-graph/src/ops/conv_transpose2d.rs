//! Transposed convolution, also called deconvolution (Zeiler et al.: "Deconvolutional networks", 2010).

use super::{
    Conv2d, LayerFileOp, Operation, ParameterSpec, conv_parameters, expect_conv_input, input_channels,
    single_input,
};
use crate::layer_file::{AttributeError, AttributeWriter, Attributes};
use crate::{Shape, ShapeError};
use serde::{Deserialize, Serialize};

/// The transpose of a convolution seen as a matrix: each input value adds its multiple of the kernel to a
/// window of the output. `y[i * stride + tap * dilation - padding] += w[tap] * x[i] (+ b)`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct ConvTranspose2d {
    /// Channels of the input.
    pub in_channels: usize,
    /// Channels of the output.
    pub out_channels: usize,
    /// Kernel `[height, width]`.
    pub kernel: [usize; 2],
    /// Distance between the windows of neighbouring inputs in the output, `[vertical, horizontal]`.
    pub stride: [usize; 2],
    /// Pixels cropped from the output `[top, left]`.
    pub padding_before: [usize; 2],
    /// Pixels cropped from the output `[bottom, right]`.
    pub padding_after: [usize; 2],
    /// Additional output pixels `[bottom, right]`, less than the stride, because several input sizes of a
    /// convolution give the same output size.
    pub output_padding: [usize; 2],
    /// Distance between the kernel's taps, 1 for a dense kernel.
    pub dilation: [usize; 2],
    /// Groups.
    pub groups: usize,
    /// True if a bias is added.
    pub bias: bool,
}

impl ConvTranspose2d {
    /// A square kernel with equal padding on all sides, dense, ungrouped, without bias.
    #[must_use]
    pub fn new(
        in_channels: usize,
        out_channels: usize,
        kernel: usize,
        stride: usize,
        padding: usize,
        output_padding: usize,
    ) -> Self {
        Self {
            in_channels,
            out_channels,
            kernel: [kernel; 2],
            stride: [stride; 2],
            padding_before: [padding; 2],
            padding_after: [padding; 2],
            output_padding: [output_padding; 2],
            dilation: [1; 2],
            groups: 1,
            bias: false,
        }
    }

    /// The convolution whose input gradient, with the same weight, is this operation.
    #[must_use]
    pub fn transposed(&self) -> Conv2d {
        Conv2d {
            in_channels: self.out_channels,
            out_channels: self.in_channels,
            kernel: self.kernel,
            stride: self.stride,
            padding_before: self.padding_before,
            padding_after: self.padding_after,
            dilation: self.dilation,
            groups: self.groups,
            bias: false,
        }
    }

    /// `[in, out / groups, kernel height, kernel width]`.
    #[must_use]
    pub fn weight_shape(&self) -> [usize; 4] {
        self.transposed().weight_shape()
    }

    /// Height and width of the output for an input of `size`.
    ///
    /// # Errors
    /// If an attribute is 0, or the output is empty.
    pub fn output_size(&self, size: [usize; 2]) -> Result<[usize; 2], ShapeError> {
        Ok([self.extent(0, "height", size[0])?, self.extent(1, "width", size[1])?])
    }

    /// `(size - 1)*stride + dilation*(kernel - 1) + 1 + output_padding - before - after`.
    fn extent(&self, axis: usize, dimension: &str, size: usize) -> Result<usize, ShapeError> {
        let (kernel, stride, dilation) = (self.kernel[axis], self.stride[axis], self.dilation[axis]);
        if size == 0 || kernel == 0 || stride == 0 || dilation == 0 {
            return Err(ShapeError::new(format!(
                "size {size}, kernel {kernel}, stride {stride} and dilation {dilation} in {dimension} must \
                 be at least 1"
            )));
        }
        let more = self.output_padding[axis];
        if more >= stride {
            return Err(ShapeError::new(format!(
                "output_padding {more} in {dimension} must be less than the stride {stride}"
            )));
        }
        let overflow = || {
            ShapeError::new(format!(
                "the {dimension} overflows: size {size}, stride {stride}, kernel {kernel}, dilation \
                 {dilation}"
            ))
        };
        let windows = (size - 1).checked_mul(stride).ok_or_else(overflow)?;
        let reach = dilation.checked_mul(kernel - 1).ok_or_else(overflow)?;
        let whole = windows.checked_add(reach).and_then(|sum| sum.checked_add(1 + more));
        let (before, after) = (self.padding_before[axis], self.padding_after[axis]);
        let whole = whole.ok_or_else(overflow)?;
        match before.checked_add(after).and_then(|cut| whole.checked_sub(cut)) {
            Some(left @ 1..) => Ok(left),
            _ => Err(ShapeError::new(format!(
                "padding {before} + {after} leaves nothing of {whole} pixels of {dimension}"
            ))),
        }
    }
}

impl Operation for ConvTranspose2d {
    fn kind(&self) -> &'static str {
        "conv_transpose2d"
    }

    fn output_shape(&self, inputs: &[&Shape]) -> Result<Shape, ShapeError> {
        let input = single_input("conv_transpose2d", inputs)?;
        let channels = [self.in_channels, self.out_channels];
        let size = expect_conv_input(input, self.weight_shape(), self.groups, channels)?;
        let [height, width] = self.output_size(size)?;
        Ok(Shape::image(self.out_channels, height, width))
    }

    /// PyTorch's default: uniform within `1 / sqrt(out / groups * kernel height * kernel width)`. PyTorch
    /// computes the fan-in as if the weight were a convolution's.
    fn parameters(&self) -> Vec<ParameterSpec> {
        conv_parameters(
            self.weight_shape(),
            self.bias.then_some(self.out_channels),
            self.transposed().bound(),
        )
    }

    fn fan_out(&self) -> Option<usize> {
        Some(self.transposed().fan_out())
    }

    fn forward_flops(&self, inputs: &[&Shape], output: &Shape) -> u64 {
        let taps = Shape(self.weight_shape()[1..].to_vec()).elements() as u64;
        let read = inputs.first().map_or(0, |input| input.elements() as u64);
        let bias = if self.bias { output.elements() as u64 } else { 0 };
        read.saturating_mul(taps.saturating_mul(2)).saturating_add(bias)
    }

    fn attributes(&self) -> String {
        let mut text = self.transposed().attributes();
        if self.output_padding != [0, 0] {
            text += &format!(" output padding {}x{}", self.output_padding[0], self.output_padding[1]);
        }
        text
    }
}

impl LayerFileOp for ConvTranspose2d {
    const NAME: &'static str = "conv_transpose2d";
    const KEYS: &'static [&'static str] = &[
        "out_channels",
        "kernel",
        "stride",
        "padding",
        "padding_after",
        "output_padding",
        "dilation",
        "groups",
        "bias",
    ];
    const ATTRIBUTES: &'static str = "`out_channels`, `kernel` pair, `stride` pair (1), `padding` pair \
        (0) and `padding_after` pair (as `padding`): pixels cut off the output, `output_padding` pair \
        (0): additional output pixels at the bottom and right, less than the stride, `dilation` pair \
        (1), `groups` (1), `bias` (true)";
    const SHAPES: &'static str = "image to image of `(size - 1) stride + dilation (kernel - 1) + 1 + \
        output_padding - padding - padding_after`; the weight is `[in, out / groups, height, width]`; \
        initial weight and bias uniform within ±1 / sqrt(out / groups × kernel height × kernel width)";

    fn from_attributes(attributes: &Attributes<'_>, inputs: &[&Shape]) -> Result<Self, AttributeError> {
        let padding_before = attributes.padding("padding")?.unwrap_or_default();
        Ok(Self {
            in_channels: input_channels(inputs),
            out_channels: attributes.required_count("out_channels")?,
            kernel: attributes.required_pair("kernel")?,
            stride: attributes.pair("stride")?.unwrap_or([1, 1]),
            padding_before,
            padding_after: attributes.padding("padding_after")?.unwrap_or(padding_before),
            output_padding: attributes.padding("output_padding")?.unwrap_or_default(),
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
        to.pair_if_not("output_padding", self.output_padding, [0, 0]);
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

    /// The sizes of `torch.nn.ConvTranspose2d`; its convolution inverts them.
    #[test]
    fn sizes_match_pytorch_and_invert_the_convolution() {
        let dilated = ConvTranspose2d { dilation: [2, 3], ..ConvTranspose2d::new(4, 6, 3, 2, 1, 1) };
        let uneven = ConvTranspose2d { padding_after: [1, 1], ..ConvTranspose2d::new(4, 6, 3, 2, 0, 0) };
        for (conv, size, expected) in [
            (ConvTranspose2d::new(4, 6, 2, 2, 0, 0), [5, 7], [10, 14]),
            (ConvTranspose2d::new(4, 6, 3, 2, 1, 1), [5, 7], [10, 14]),
            (ConvTranspose2d::new(4, 6, 3, 2, 1, 0), [5, 7], [9, 13]),
            (ConvTranspose2d::new(4, 6, 4, 4, 0, 3), [1, 2], [7, 11]),
            (ConvTranspose2d::new(4, 6, 2, 5, 0, 4), [2, 3], [11, 16]),
            (dilated, [5, 7], [12, 18]),
            (uneven, [5, 7], [10, 14]),
        ] {
            let output = conv.output_shape(&[&Shape::image(4, size[0], size[1])]).unwrap();
            assert_eq!(output, Shape::image(6, expected[0], expected[1]), "{conv:?}");
            assert_eq!(conv.transposed().output_size(expected).unwrap(), size, "{conv:?}");
        }
    }

    /// `torch.nn.ConvTranspose2d(32, 64, (3, 2), stride=2, groups=4)`: its parameters and their bounds.
    #[test]
    fn parameters_match_pytorch() {
        let conv = ConvTranspose2d {
            kernel: [3, 2],
            groups: 4,
            bias: true,
            ..ConvTranspose2d::new(32, 64, 3, 2, 0, 0)
        };
        let [weight, bias] = &conv.parameters()[..] else { panic!("two parameters") };
        assert_eq!((weight.name, &weight.shape[..]), ("weight", &[32, 16, 3, 2][..]));
        assert_eq!((bias.name, &bias.shape[..]), ("bias", &[64][..]));
        let bound = 1.0 / 96.0f32.sqrt();
        assert_eq!([weight.initialisation, bias.initialisation], [Initialisation::Uniform { bound }; 2]);
        let input = Shape::image(32, 5, 5);
        let output = conv.output_shape(&[&input]).unwrap();
        assert_eq!(output, Shape::image(64, 11, 10));
        assert_eq!(conv.forward_flops(&[&input], &output), 2 * 32 * 25 * 96 + 64 * 110);
        assert_eq!(conv.attributes(), "3x2 stride 2x2 groups 4");
    }

    #[test]
    fn rejects_empty_outputs() {
        let message =
            |conv: ConvTranspose2d| conv.output_shape(&[&Shape::image(4, 1, 5)]).unwrap_err().to_string();
        let new = ConvTranspose2d::new;
        assert_eq!(
            message(new(4, 6, 3, 2, 1, 2)),
            "output_padding 2 in height must be less than the stride 2"
        );
        assert_eq!(message(new(4, 6, 2, 2, 1, 0)), "padding 1 + 1 leaves nothing of 2 pixels of height");
        assert_eq!(
            message(new(4, 6, 2, 0, 0, 0)),
            "size 1, kernel 2, stride 0 and dilation 1 in height must be at least 1"
        );
        let groups = ConvTranspose2d { groups: 3, ..new(4, 6, 2, 2, 0, 0) };
        assert_eq!(message(groups), "3 groups do not divide 4 input and 6 output channels");
        assert!(message(new(3, 6, 2, 2, 0, 0)).contains("expects 3 channels"));
        let huge = ConvTranspose2d { dilation: [usize::MAX; 2], ..new(4, 6, 3, 2, 0, 0) };
        assert!(message(huge).contains("the height overflows"));
    }
}
