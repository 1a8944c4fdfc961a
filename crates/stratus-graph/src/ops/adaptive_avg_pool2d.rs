//! Average pooling to a fixed output size; with 1x1 it is global average pooling (Lin, Chen, Yan: "Network in
//! network", 2013).

use super::{LayerFileOp, Operation, single_input};
use crate::layer_file::{AttributeError, AttributeWriter, Attributes};
use crate::{Shape, ShapeError};
use serde::{Deserialize, Serialize};
use std::ops::Range;

/// The mean of each of the `output` bins of an image of any size; see [`AdaptiveAvgPool2d::bin`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct AdaptiveAvgPool2d {
    /// Bins `[vertical, horizontal]`, which are height and width of the output.
    pub output: [usize; 2],
}

impl AdaptiveAvgPool2d {
    /// Global average pooling: one bin.
    pub const GLOBAL: Self = Self { output: [1, 1] };

    /// The pixels of bin `index` of `bins` along an axis of `size`: from `floor(index * size / bins)` up to,
    /// not including, `ceil((index + 1) * size / bins)`. Neighbouring bins share pixels if `bins` does not
    /// divide `size`; if there are more bins than pixels, several bins contain the same pixel. `bins` is at
    /// least 1.
    #[must_use]
    pub fn bin(index: usize, bins: usize, size: usize) -> Range<usize> {
        // In u128 the products cannot overflow.
        let (index, bins, size) = (index as u128, bins.max(1) as u128, size as u128);
        let (start, end) = (index * size / bins, ((index + 1) * size).div_ceil(bins));
        start as usize..end as usize
    }
}

impl Operation for AdaptiveAvgPool2d {
    fn kind(&self) -> &'static str {
        "adaptive_avg_pool2d"
    }

    fn output_shape(&self, inputs: &[&Shape]) -> Result<Shape, ShapeError> {
        let input = single_input("adaptive_avg_pool2d", inputs)?;
        let [channels, height, width] = input.as_image()?;
        let [bins_down, bins_across] = self.output;
        if bins_down == 0 || bins_across == 0 {
            return Err(ShapeError::new(format!(
                "the output {bins_down}x{bins_across} is empty; both extents must be at least 1"
            )));
        }
        if height == 0 || width == 0 {
            return Err(ShapeError::new(format!("the input {input} is empty")));
        }
        Ok(Shape::image(channels, bins_down, bins_across))
    }

    fn is_never_negative(&self, inputs_are: bool) -> bool {
        inputs_are
    }

    /// An addition for every pixel of every bin, and a division for every bin.
    fn forward_flops(&self, inputs: &[&Shape], output: &Shape) -> u64 {
        let Some(Ok([_, height, width])) = inputs.first().map(|input| input.as_image()) else { return 0 };
        // Bins overlap by less than a pixel at each end, so their average extent is the size divided by the
        // bins, rounded up.
        let pixels = |axis: usize, size: usize| size.div_ceil(self.output[axis].max(1)) as u64;
        let bin = pixels(0, height).saturating_mul(pixels(1, width));
        (output.elements() as u64).saturating_mul(bin.saturating_add(1))
    }

    fn attributes(&self) -> String {
        format!("to {}x{}", self.output[0], self.output[1])
    }
}

impl LayerFileOp for AdaptiveAvgPool2d {
    const NAME: &'static str = "adaptive_avg_pool2d";
    const KEYS: &'static [&'static str] = &["output"];
    const ATTRIBUTES: &'static str = "`output` pair";
    const SHAPES: &'static str = "image to image of that height and width; 1 is the mean of each channel";

    fn from_attributes(attributes: &Attributes<'_>, _inputs: &[&Shape]) -> Result<Self, AttributeError> {
        Ok(Self { output: attributes.required_pair("output")? })
    }

    fn write_attributes(&self, to: &mut AttributeWriter) {
        to.pair("output", self.output);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bins(bins: usize, size: usize) -> Vec<Range<usize>> {
        (0..bins).map(|index| AdaptiveAvgPool2d::bin(index, bins, size)).collect()
    }

    #[test]
    fn bins_cover_every_pixel() {
        assert_eq!(bins(2, 8), [0..4, 4..8]);
        assert_eq!(bins(3, 6), [0..2, 2..4, 4..6]);
        assert_eq!(bins(3, 7), [0..3, 2..5, 4..7]);
        assert_eq!(bins(4, 2), [0..1, 0..1, 1..2, 1..2]);
        assert_eq!(AdaptiveAvgPool2d::bin(usize::MAX - 1, usize::MAX, usize::MAX).end, usize::MAX);
    }

    #[test]
    fn output_has_the_requested_size() {
        let pool = AdaptiveAvgPool2d { output: [6, 7] };
        let input = Shape::image(256, 13, 13);
        let output = pool.output_shape(&[&input]).unwrap();
        assert_eq!(output, Shape::image(256, 6, 7));
        assert_eq!(pool.forward_flops(&[&input], &output), 256 * 42 * (3 * 2 + 1));
        assert_eq!(pool.attributes(), "to 6x7");
        let message = |pool: AdaptiveAvgPool2d, input| pool.output_shape(&[&input]).unwrap_err().to_string();
        assert_eq!(
            message(AdaptiveAvgPool2d { output: [0, 1] }, input),
            "the output 0x1 is empty; both extents must be at least 1"
        );
        assert_eq!(message(pool, Shape::image(8, 0, 3)), "the input 8x0x3 is empty");
    }
}
