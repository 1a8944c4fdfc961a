//! Max pooling.

use super::{LayerFileOp, Operation, map_spatial, pooling_flops};
use crate::layer_file::{AttributeError, AttributeWriter, Attributes};
use crate::shape::{pooled_extent, window_text};
use crate::{Shape, ShapeError};
use serde::{Deserialize, Serialize};

/// The largest value of each window, ignoring padding. Among equal values the first in row order is selected
/// and receives the gradient.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct MaxPool2d {
    /// Window `[height, width]`; at most 255 pixels in all.
    pub kernel: [usize; 2],
    /// Stride `[vertical, horizontal]`.
    pub stride: [usize; 2],
    /// Padding on each side `[vertical, horizontal]`, at most half the window.
    pub padding: [usize; 2],
    /// True if a last window may extend beyond the padding when the stride leaves pixels over; it starts
    /// within the image or the padding before it.
    #[serde(default)]
    pub ceil_mode: bool,
}

impl MaxPool2d {
    /// A square window.
    #[must_use]
    pub fn new(kernel: usize, stride: usize, padding: usize) -> Self {
        Self { kernel: [kernel; 2], stride: [stride; 2], padding: [padding; 2], ceil_mode: false }
    }

    /// Height and width of the output for an input of `size`.
    ///
    /// # Errors
    /// If the window does not fit, is too large, or could be entirely padding.
    pub fn output_size(&self, size: [usize; 2]) -> Result<[usize; 2], ShapeError> {
        if self.kernel[0].saturating_mul(self.kernel[1]) > 255 {
            return Err(ShapeError::new(format!(
                "the window {}x{} has more than 255 pixels",
                self.kernel[0], self.kernel[1]
            )));
        }
        let extent = |axis: usize, dimension| {
            let (kernel, stride, padding) = (self.kernel[axis], self.stride[axis], self.padding[axis]);
            pooled_extent(dimension, size[axis], kernel, stride, padding, self.ceil_mode)
        };
        Ok([extent(0, "height")?, extent(1, "width")?])
    }
}

impl Operation for MaxPool2d {
    fn kind(&self) -> &'static str {
        "max_pool2d"
    }

    fn output_shape(&self, inputs: &[&Shape]) -> Result<Shape, ShapeError> {
        map_spatial("max_pool2d", inputs, |size| self.output_size(size))
    }

    fn is_never_negative(&self, inputs_are: bool) -> bool {
        inputs_are
    }

    fn forward_flops(&self, _inputs: &[&Shape], output: &Shape) -> u64 {
        pooling_flops(self.kernel, output)
    }

    fn attributes(&self) -> String {
        let mut text = window_text(self.kernel, self.stride, self.padding);
        if self.ceil_mode {
            text += " ceil";
        }
        text
    }
}

impl LayerFileOp for MaxPool2d {
    const NAME: &'static str = "max_pool2d";
    const KEYS: &'static [&'static str] = &["kernel", "stride", "padding", "ceil_mode"];
    const ATTRIBUTES: &'static str =
        "`kernel` pair, `stride` pair (as `kernel`), `padding` pair (0), `ceil_mode` (false)";
    const SHAPES: &'static str = "image to image; with `ceil_mode` the output's size is rounded up";

    fn from_attributes(attributes: &Attributes<'_>, _inputs: &[&Shape]) -> Result<Self, AttributeError> {
        let kernel = attributes.required_pair("kernel")?;
        Ok(Self {
            kernel,
            stride: attributes.pair("stride")?.unwrap_or(kernel),
            padding: attributes.padding("padding")?.unwrap_or_default(),
            ceil_mode: attributes.flag("ceil_mode")?.unwrap_or(false),
        })
    }

    fn write_attributes(&self, to: &mut AttributeWriter) {
        to.pair("kernel", self.kernel);
        to.pair_if_not("stride", self.stride, self.kernel);
        to.pair_if_not("padding", self.padding, [0, 0]);
        to.flag_if_not("ceil_mode", self.ceil_mode, false);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn extent(pool: MaxPool2d, size: usize) -> usize {
        pool.output_size([size; 2]).unwrap()[0]
    }

    #[test]
    fn ceil_mode_keeps_the_last_pixels() {
        let floor = MaxPool2d::new(3, 2, 0);
        let ceil = MaxPool2d { ceil_mode: true, ..floor };
        // GoogLeNet on 224 pixels: 112, 56, 28, 14 and 7.
        for (size, small, large) in [(112, 55, 56), (56, 27, 28), (28, 13, 14), (7, 3, 3), (3, 1, 1)] {
            assert_eq!((extent(floor, size), extent(ceil, size)), (small, large), "{size}");
        }
        // A window that exceeds the image by less than a stride.
        assert_eq!(extent(ceil, 2), 1);
        assert!(floor.output_size([2, 2]).is_err());
        assert!(MaxPool2d { kernel: [4, 4], ..ceil }.output_size([2, 2]).is_err());
    }

    #[test]
    fn ceil_mode_drops_windows_after_the_image() {
        // Windows start at pixels -1, 2 and 5: the last is after an image of 5 pixels.
        let pool = MaxPool2d { kernel: [2, 2], stride: [3, 3], padding: [1, 1], ceil_mode: true };
        assert_eq!(extent(pool, 5), 2);
        assert_eq!(extent(pool, 6), 3);
    }

    #[test]
    fn resnet_pads_by_one() {
        assert_eq!(extent(MaxPool2d::new(3, 2, 1), 112), 56);
        assert_eq!(MaxPool2d::new(3, 2, 1).attributes(), "3x3 stride 2x2 padding 1x1");
        assert_eq!(
            MaxPool2d { ceil_mode: true, ..MaxPool2d::new(2, 2, 0) }.attributes(),
            "2x2 stride 2x2 ceil"
        );
        let message = MaxPool2d::new(3, 2, 2).output_size([9, 9]).unwrap_err().to_string();
        assert_eq!(message, "padding 2 exceeds half the window 3 in height");
    }
}
