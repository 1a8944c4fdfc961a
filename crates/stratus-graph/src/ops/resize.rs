//! Bilinear resizing of feature maps, as in decoders of segmentation networks (Long, Shelhamer, Darrell:
//! "Fully convolutional networks for semantic segmentation", 2015); equal to PyTorch's
//! `interpolate(mode="bilinear")`.

use super::{LayerFileOp, Operation, single_input};
use crate::layer_file::{AttributeError, AttributeWriter, Attributes};
use crate::{Shape, ShapeError};
use serde::{Deserialize, Serialize};

/// The target size of a resize.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub enum ResizeTo {
    /// `[height, width]`.
    Size([usize; 2]),
    /// `[vertical, horizontal]` factors of the input's extents, rounded down. Outputs are `1 / scale` pixels
    /// apart even if the extent was rounded.
    Scale([f64; 2]),
    /// The height and width of a second input, whose elements are not read.
    Like,
}

/// Each output is interpolated between the four nearest pixels of the input, without antialiasing. Channels
/// stay.
///
/// With a step of `s` input pixels between outputs, output `i` is at `max(s (i + 0.5) - 0.5, 0)`, where `s`
/// is input / output extent or 1 / scale. With `align_corners` it is at `s i`, with `s = (input - 1) /
/// (output - 1)`, so that the corners of input and output coincide. Positions after the last pixel have its
/// value.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Resize {
    /// The output's size.
    pub to: ResizeTo,
    /// True if the centres of the corner pixels are aligned, instead of the image edges.
    pub align_corners: bool,
    /// True if output `i` of an axis is the input `⌊i · inputs / outputs⌋`, instead of an interpolation.
    /// Corners are not aligned then.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub nearest: bool,
}

impl Resize {
    /// Resizes to the size of a second input, aligning the image edges.
    pub const LIKE: Self = Self { to: ResizeTo::Like, align_corners: false, nearest: false };

    /// Resizes to `[height, width]`, aligning the image edges.
    #[must_use]
    pub fn to_size(size: [usize; 2]) -> Self {
        Self { to: ResizeTo::Size(size), align_corners: false, nearest: false }
    }

    /// Resizes by one factor in height and width, aligning the image edges.
    #[must_use]
    pub fn by(scale: f64) -> Self {
        Self { to: ResizeTo::Scale([scale; 2]), align_corners: false, nearest: false }
    }
}

/// The extents of a scaled image.
fn scaled(size: [usize; 2], scale: [f64; 2]) -> Result<[usize; 2], ShapeError> {
    if !scale.iter().all(|scale| scale.is_finite() && *scale > 0.0) {
        return Err(ShapeError::new(format!(
            "`scale` must be finite and > 0, got {}x{}",
            scale[0], scale[1]
        )));
    }
    // The cast saturates; no graph accepts such extents.
    let scaled = [0, 1].map(|axis| (size[axis] as f64 * scale[axis]).floor() as usize);
    if scaled.contains(&0) {
        return Err(ShapeError::new(format!(
            "scale {}x{} leaves no pixels of an image of {}x{}",
            scale[0], scale[1], size[0], size[1]
        )));
    }
    Ok(scaled)
}

impl Operation for Resize {
    fn kind(&self) -> &'static str {
        "resize"
    }

    fn output_shape(&self, inputs: &[&Shape]) -> Result<Shape, ShapeError> {
        let (input, like) = match (self.to, inputs) {
            (ResizeTo::Like, [input, like]) => (*input, Some(*like)),
            (ResizeTo::Like, _) => {
                return Err(ShapeError::new(format!(
                    "resize without `size` and `scale`: expected 2 inputs, the second of the target size, \
                     got {}",
                    inputs.len()
                )));
            }
            _ => (single_input("resize", inputs)?, None),
        };
        let [channels, height, width] = input.as_image()?;
        if height == 0 || width == 0 {
            return Err(ShapeError::new(format!("the input {input} is empty")));
        }
        if self.nearest && self.align_corners {
            let problem = "`align_corners` needs interpolation, but `nearest` is set";
            return Err(ShapeError::new(problem.to_owned()));
        }
        let [to_height, to_width] = match (self.to, like) {
            (ResizeTo::Scale(scale), _) => scaled([height, width], scale)?,
            (_, Some(like)) => {
                let [_, height, width] = like.as_image()?;
                [height, width]
            }
            (ResizeTo::Size(size), _) => size,
            (ResizeTo::Like, None) => [0, 0],
        };
        if to_height == 0 || to_width == 0 {
            return Err(ShapeError::new(format!(
                "the output {to_height}x{to_width} is empty; both extents must be at least 1"
            )));
        }
        Ok(Shape::image(channels, to_height, to_width))
    }

    fn is_never_negative(&self, inputs_are: bool) -> bool {
        inputs_are
    }

    /// Four pixels are weighted and added; the nearest is copied.
    fn forward_flops(&self, _inputs: &[&Shape], output: &Shape) -> u64 {
        if self.nearest { 0 } else { (output.elements() as u64).saturating_mul(8) }
    }

    fn attributes(&self) -> String {
        let mut text = match self.to {
            ResizeTo::Size([height, width]) => format!("to {height}x{width}"),
            ResizeTo::Scale([vertical, horizontal]) => format!("by {vertical}x{horizontal}"),
            ResizeTo::Like => "like its second input".to_owned(),
        };
        if self.nearest {
            text += " nearest";
        }
        if self.align_corners {
            text += " corners aligned";
        }
        text
    }
}

impl LayerFileOp for Resize {
    const NAME: &'static str = "resize";
    const KEYS: &'static [&'static str] = &["size", "scale", "align_corners", "nearest"];
    const ATTRIBUTES: &'static str = "`size` (pair) or `scale` (one factor, or [vertical, horizontal]); \
        with neither, the size of the second input; `align_corners` (false), \
        `nearest` (false)";
    const SHAPES: &'static str = "image to image; a second image only sets height and width; \
        bilinear, or with `nearest` the pixel at `i · inputs / outputs`, rounded down; without antialiasing";

    fn from_attributes(attributes: &Attributes<'_>, _inputs: &[&Shape]) -> Result<Self, AttributeError> {
        let to = match (attributes.pair("size")?, attributes.factors("scale")?) {
            (Some(size), None) => ResizeTo::Size(size),
            (None, Some(scale)) => ResizeTo::Scale(scale),
            (None, None) => ResizeTo::Like,
            (Some(_), Some(_)) => {
                let need = "omitted when `size` is given".to_owned();
                return Err(AttributeError::Invalid { key: "scale", need });
            }
        };
        let [align_corners, nearest] = [attributes.flag("align_corners")?, attributes.flag("nearest")?]
            .map(|flag| flag.unwrap_or(false));
        Ok(Self { to, align_corners, nearest })
    }

    fn write_attributes(&self, to: &mut AttributeWriter) {
        match self.to {
            ResizeTo::Size(size) => to.pair("size", size),
            ResizeTo::Scale(scale) => to.factors("scale", scale),
            ResizeTo::Like => {}
        }
        to.flag_if_not("align_corners", self.align_corners, false);
        to.flag_if_not("nearest", self.nearest, false);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn size_is_given_scaled_or_that_of_another_map() {
        let input = Shape::image(11, 90, 120);
        let size = |resize: Resize| resize.output_shape(&[&input]).unwrap();
        assert_eq!(size(Resize::to_size([360, 480])), Shape::image(11, 360, 480));
        assert_eq!(size(Resize::by(4.0)), Shape::image(11, 360, 480));
        // In f64, 0.7 times 90 is slightly less than 63.
        let corners = Resize { align_corners: true, ..Resize::by(1.0) };
        let scaled = Resize { to: ResizeTo::Scale([0.7, 1.1]), ..corners };
        assert_eq!(size(scaled).0, [11, 62, 132]);
        let like = Resize::LIKE.output_shape(&[&input, &Shape::image(64, 23, 30)]).unwrap();
        assert_eq!(like, Shape::image(11, 23, 30));
        assert_eq!(Resize::LIKE.forward_flops(&[], &like), 11 * 23 * 30 * 8);
        assert_eq!(
            Resize { align_corners: true, ..Resize::by(1.5) }.attributes(),
            "by 1.5x1.5 corners aligned"
        );
        assert_eq!(Resize::to_size([3, 4]).attributes(), "to 3x4");
    }

    #[test]
    fn rejects_invalid_sizes() {
        let message =
            |resize: Resize, inputs: &[&Shape]| resize.output_shape(inputs).unwrap_err().to_string();
        let input = Shape::image(2, 3, 4);
        assert_eq!(
            message(Resize::to_size([0, 4]), &[&input]),
            "the output 0x4 is empty; both extents must be at least 1"
        );
        assert_eq!(
            message(Resize::by(0.25), &[&input]),
            "scale 0.25x0.25 leaves no pixels of an image of 3x4"
        );
        assert_eq!(message(Resize::by(f64::NAN), &[&input]), "`scale` must be finite and > 0, got NaNxNaN");
        assert_eq!(message(Resize::by(2.0), &[&input, &input]), "resize: expected 1 input, got 2");
        assert_eq!(
            message(Resize::LIKE, &[&input]),
            "resize without `size` and `scale`: expected 2 inputs, the second of the target size, got 1"
        );
        assert!(message(Resize::LIKE, &[&input, &Shape::vector(4)]).contains("got 4"));
        assert_eq!(message(Resize::by(2.0), &[&Shape::image(2, 0, 4)]), "the input 2x0x4 is empty");
    }
}
