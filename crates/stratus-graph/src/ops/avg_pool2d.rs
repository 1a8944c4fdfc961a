//! Average pooling.

use super::{LayerFileOp, Operation, map_spatial, pooling_flops};
use crate::layer_file::{AttributeError, AttributeWriter, Attributes};
use crate::shape::{pooled_extent, sliding_extent, window_text};
use crate::{Shape, ShapeError};
use serde::{Deserialize, Serialize};

/// The mean of each window.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct AvgPool2d {
    /// Window `[height, width]`.
    pub kernel: [usize; 2],
    /// Stride `[vertical, horizontal]`.
    pub stride: [usize; 2],
    /// Zeros before the image `[vertical, horizontal]`, at most half the window; also after it, unless
    /// `padding_after` is given.
    pub padding: [usize; 2],
    /// Zeros after the image `[vertical, horizontal]` if they differ, less than the window.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub padding_after: Option<[usize; 2]>,
    /// True if the divisor is the window's size, including the padding; otherwise it is the number of the
    /// window's pixels within the image.
    pub count_include_pad: bool,
}

impl AvgPool2d {
    /// A square window whose padding counts, as by default in PyTorch.
    #[must_use]
    pub fn new(kernel: usize, stride: usize, padding: usize) -> Self {
        Self {
            kernel: [kernel; 2],
            stride: [stride; 2],
            padding: [padding; 2],
            padding_after: None,
            count_include_pad: true,
        }
    }

    /// Height and width of the output for an input of `size`.
    ///
    /// # Errors
    /// If the window does not fit or could be entirely padding.
    pub fn output_size(&self, size: [usize; 2]) -> Result<[usize; 2], ShapeError> {
        let extent = |axis: usize, dimension| {
            let (kernel, stride, padding) = (self.kernel[axis], self.stride[axis], self.padding[axis]);
            let Some(after) = self.padding_after.map(|after| after[axis]) else {
                return pooled_extent(dimension, size[axis], kernel, stride, padding, false);
            };
            if padding > kernel / 2 || after >= kernel {
                return Err(ShapeError::new(format!(
                    "padding {padding} before and {after} after exceeds the window {kernel} in {dimension}"
                )));
            }
            sliding_extent(dimension, size[axis], kernel, stride, (padding, after), 1)
        };
        Ok([extent(0, "height")?, extent(1, "width")?])
    }
}

impl Operation for AvgPool2d {
    fn kind(&self) -> &'static str {
        "avg_pool2d"
    }

    fn output_shape(&self, inputs: &[&Shape]) -> Result<Shape, ShapeError> {
        map_spatial("avg_pool2d", inputs, |size| self.output_size(size))
    }

    fn is_never_negative(&self, inputs_are: bool) -> bool {
        inputs_are
    }

    fn forward_flops(&self, _inputs: &[&Shape], output: &Shape) -> u64 {
        pooling_flops(self.kernel, output)
    }

    fn attributes(&self) -> String {
        let mut text = window_text(self.kernel, self.stride, self.padding);
        if let Some([vertical, horizontal]) = self.padding_after {
            text += &format!(" after {vertical}x{horizontal}");
        }
        if (self.padding != [0, 0] || self.padding_after.is_some()) && !self.count_include_pad {
            text += " not counted";
        }
        text
    }
}

impl LayerFileOp for AvgPool2d {
    const NAME: &'static str = "avg_pool2d";
    const KEYS: &'static [&'static str] =
        &["kernel", "stride", "padding", "padding_after", "count_include_pad"];
    const ATTRIBUTES: &'static str = "`kernel` pair, `stride` pair (as `kernel`), `padding` pair (0), \
        `padding_after` pair (as `padding`), `count_include_pad` (true)";
    const SHAPES: &'static str = "image to image; with `count_include_pad` padding counts as zeros";

    fn from_attributes(attributes: &Attributes<'_>, _inputs: &[&Shape]) -> Result<Self, AttributeError> {
        let kernel = attributes.required_pair("kernel")?;
        Ok(Self {
            kernel,
            stride: attributes.pair("stride")?.unwrap_or(kernel),
            padding: attributes.padding("padding")?.unwrap_or_default(),
            padding_after: attributes.padding("padding_after")?,
            count_include_pad: attributes.flag("count_include_pad")?.unwrap_or(true),
        })
    }

    fn write_attributes(&self, to: &mut AttributeWriter) {
        to.pair("kernel", self.kernel);
        to.pair_if_not("stride", self.stride, self.kernel);
        to.pair_if_not("padding", self.padding, [0, 0]);
        if let Some(after) = self.padding_after {
            to.pair("padding_after", after);
        }
        to.flag_if_not("count_include_pad", self.count_include_pad, true);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shapes_match_inception() {
        let input = Shape::image(192, 35, 35);
        assert_eq!(AvgPool2d::new(3, 1, 1).output_shape(&[&input]).unwrap(), input);
        let auxiliary = AvgPool2d::new(5, 3, 0);
        let output = auxiliary.output_shape(&[&Shape::image(768, 17, 17)]).unwrap();
        assert_eq!(output, Shape::image(768, 5, 5));
        assert_eq!(auxiliary.forward_flops(&[&input], &output), 768 * 25 * 25);
    }

    #[test]
    fn pads_one_side_as_keras_does() {
        // `same` padding: an output for each stride, an odd pixel of padding at the end.
        let same = AvgPool2d { padding_after: Some([1, 0]), ..AvgPool2d::new(2, 1, 0) };
        assert_eq!(same.output_size([5, 5]).unwrap(), [5, 4]);
        assert_eq!(same.attributes(), "2x2 stride 1x1 after 1x0");
        let far = AvgPool2d { padding_after: Some([2, 0]), ..same };
        let message = far.output_size([5, 5]).unwrap_err().to_string();
        assert_eq!(message, "padding 0 before and 2 after exceeds the window 2 in height");
    }

    #[test]
    fn rejects_windows_beyond_the_image() {
        let message = |pool: AvgPool2d, size| pool.output_size(size).unwrap_err().to_string();
        assert_eq!(message(AvgPool2d::new(3, 1, 2), [8, 8]), "padding 2 exceeds half the window 3 in height");
        assert_eq!(
            message(AvgPool2d::new(5, 3, 0), [8, 4]),
            "window of 5 pixels exceeds the padded width 4 (4 + 0 + 0)"
        );
    }

    #[test]
    fn attributes_show_non_default_values() {
        assert_eq!(AvgPool2d::new(5, 3, 0).attributes(), "5x5 stride 3x3");
        let pool = AvgPool2d { count_include_pad: false, ..AvgPool2d::new(3, 1, 1) };
        assert_eq!(pool.attributes(), "3x3 stride 1x1 padding 1x1 not counted");
    }
}
