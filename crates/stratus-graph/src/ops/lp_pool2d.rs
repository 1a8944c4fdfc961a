//! Power-average pooling of norm 2, as `torch.nn.LPPool2d` with a norm type of 2.

use super::{LayerFileOp, Operation, map_spatial, pooling_flops};
use crate::layer_file::{AttributeError, AttributeWriter, Attributes};
use crate::shape::{pooled_extent, window_text};
use crate::{Shape, ShapeError};
use serde::{Deserialize, Serialize};

/// The square root of the sum of squares of each window. Where it is 0, the gradient is 0, as in PyTorch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct LpPool2d {
    /// Window `[height, width]`.
    pub kernel: [usize; 2],
    /// Stride `[vertical, horizontal]`.
    pub stride: [usize; 2],
}

impl LpPool2d {
    /// Height and width of the output for an input of `size`.
    ///
    /// # Errors
    /// If the window does not fit.
    pub fn output_size(&self, size: [usize; 2]) -> Result<[usize; 2], ShapeError> {
        let extent = |axis: usize, dimension| {
            pooled_extent(dimension, size[axis], self.kernel[axis], self.stride[axis], 0, false)
        };
        Ok([extent(0, "height")?, extent(1, "width")?])
    }
}

impl Operation for LpPool2d {
    fn kind(&self) -> &'static str {
        "lp_pool2d"
    }

    fn output_shape(&self, inputs: &[&Shape]) -> Result<Shape, ShapeError> {
        map_spatial("lp_pool2d", inputs, |size| self.output_size(size))
    }

    fn is_never_negative(&self, _inputs_are: bool) -> bool {
        true
    }

    /// A square and a sum per pixel of each window.
    fn forward_flops(&self, _inputs: &[&Shape], output: &Shape) -> u64 {
        pooling_flops(self.kernel, output).saturating_mul(2)
    }

    fn attributes(&self) -> String {
        window_text(self.kernel, self.stride, [0, 0])
    }
}

impl LayerFileOp for LpPool2d {
    const NAME: &'static str = "lp_pool2d";
    const KEYS: &'static [&'static str] = &["kernel", "stride"];
    const ATTRIBUTES: &'static str = "`kernel` pair, `stride` pair (as `kernel`)";
    const SHAPES: &'static str = "image to image; the square root of each window's sum of squares";
    const EXAMPLES: &'static [&'static str] = &["kernel = 2", "kernel = [3, 2]\nstride = [2, 1]"];

    fn from_attributes(attributes: &Attributes<'_>, _inputs: &[&Shape]) -> Result<Self, AttributeError> {
        let kernel = attributes.required_pair("kernel")?;
        Ok(Self { kernel, stride: attributes.pair("stride")?.unwrap_or(kernel) })
    }

    fn write_attributes(&self, to: &mut AttributeWriter) {
        to.pair("kernel", self.kernel);
        to.pair_if_not("stride", self.stride, self.kernel);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_must_fit_the_image() {
        let pool = LpPool2d { kernel: [3, 2], stride: [2, 1] };
        let output = pool.output_shape(&[&Shape::image(8, 6, 5)]).unwrap();
        assert_eq!(output, Shape::image(8, 2, 4));
        assert_eq!(pool.forward_flops(&[], &output), 2 * 6 * 64);
        assert_eq!(pool.attributes(), "3x2 stride 2x1");
        assert!(pool.output_shape(&[&Shape::image(8, 2, 5)]).is_err());
    }
}
