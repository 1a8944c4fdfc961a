//! Max-pooling.

use super::{Operation, only};
use crate::shape::sliding_extent;
use crate::{Shape, ShapeError};
use serde::{Deserialize, Serialize};

/// The largest value of each window; padding never wins. Of equal values the first in row order wins, and takes the gradient.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct MaxPool2d {
    /// Window `[height, width]`; at most 255 pixels in all.
    pub kernel: [usize; 2],
    /// Stride `[vertical, horizontal]`.
    pub stride: [usize; 2],
    /// Padding on each side `[vertical, horizontal]`, at most half the window.
    pub padding: [usize; 2],
}

impl MaxPool2d {
    /// A square window.
    #[must_use]
    pub fn new(kernel: usize, stride: usize, padding: usize) -> Self {
        Self { kernel: [kernel; 2], stride: [stride; 2], padding: [padding; 2] }
    }

    /// Height and width of the output for an input of `size`.
    ///
    /// # Errors
    /// Where the window does not fit, is too large, or could lie in the padding alone.
    pub fn output_size(&self, size: [usize; 2]) -> Result<[usize; 2], ShapeError> {
        if self.kernel[0].saturating_mul(self.kernel[1]) > 255 {
            return Err(ShapeError::new(format!(
                "its window {}x{} has more than 255 pixels",
                self.kernel[0], self.kernel[1]
            )));
        }
        let extent = |axis: usize, what| {
            if self.padding[axis] * 2 > self.kernel[axis] {
                return Err(ShapeError::new(format!(
                    "its padding {} is more than half its window {} in {what}",
                    self.padding[axis], self.kernel[axis]
                )));
            }
            sliding_extent(
                what,
                size[axis],
                self.kernel[axis],
                self.stride[axis],
                (self.padding[axis], self.padding[axis]),
                1,
            )
        };
        Ok([extent(0, "height")?, extent(1, "width")?])
    }
}

impl Operation for MaxPool2d {
    fn kind(&self) -> &'static str {
        "max_pool2d"
    }

    fn output_shape(&self, inputs: &[&Shape]) -> Result<Shape, ShapeError> {
        let [channels, height, width] = only("max_pool2d", inputs)?.as_image()?;
        let [height, width] = self.output_size([height, width])?;
        Ok(Shape::image(channels, height, width))
    }

    fn forward_flops(&self, _inputs: &[&Shape], output: &Shape) -> u64 {
        output.elements() as u64 * (self.kernel[0] * self.kernel[1]) as u64
    }

    fn attributes(&self) -> String {
        format!("{}x{} stride {}x{}", self.kernel[0], self.kernel[1], self.stride[0], self.stride[1])
    }
}
