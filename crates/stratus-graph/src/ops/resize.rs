//! Bilinear resizing of feature maps: what a decoder brings maps to the size of others with (Long,
//! Shelhamer, Darrell: "Fully convolutional networks for semantic segmentation", 2015), as PyTorch's
//! `interpolate(mode="bilinear")` has it.

use super::{Declared, Operation, only};
use crate::layer_file::{AttributeError, Attributes, Written};
use crate::{Shape, ShapeError};
use serde::{Deserialize, Serialize};

/// What gives the output its height and width.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub enum ResizeTo {
    /// `[height, width]`.
    Size([usize; 2]),
    /// `[vertical, horizontal]`: the input's extents times these, rounded down. Outputs then lie `1 / scale`
    /// pixels apart, also where the extent was rounded.
    Scale([f64; 2]),
    /// The height and width of a second input, whose elements do not matter.
    Like,
}

/// Each output is interpolated between the four pixels around its place in the input, without antialiasing.
/// Channels stay.
///
/// With `s` input pixels from one output to the next, output `i` lies at `max(s (i + 0.5) - 0.5, 0)`, where
/// `s` is input / output extent or 1 / scale; with `align_corners` at `s i`, where the corners of input and
/// output are the same: `s = (input - 1) / (output - 1)`. Places behind the last pixel have its value.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Resize {
    /// The output's size.
    pub to: ResizeTo,
    /// Whether the centres of the corner pixels lie on each other, instead of the image's edges.
    pub align_corners: bool,
}

impl Resize {
    /// To the size of a second input, between the images' edges.
    pub const LIKE: Self = Self { to: ResizeTo::Like, align_corners: false };

    /// To a size `[height, width]`, between the images' edges.
    #[must_use]
    pub fn to_size(size: [usize; 2]) -> Self {
        Self { to: ResizeTo::Size(size), align_corners: false }
    }

    /// By the same factor in height and width, between the images' edges.
    #[must_use]
    pub fn by(scale: f64) -> Self {
        Self { to: ResizeTo::Scale([scale; 2]), align_corners: false }
    }
}

/// The extents of an image by a scale factor.
fn scaled(size: [usize; 2], scale: [f64; 2]) -> Result<[usize; 2], ShapeError> {
    if !scale.iter().all(|scale| scale.is_finite() && *scale > 0.0) {
        return Err(ShapeError::new(format!(
            "its scale {}x{} is no size; both are finite and more than 0",
            scale[0], scale[1]
        )));
    }
    // Beyond usize is beyond what any graph accepts.
    let scaled = [0, 1].map(|axis| (size[axis] as f64 * scale[axis]).floor() as usize);
    if scaled.contains(&0) {
        return Err(ShapeError::new(format!(
            "its scale {}x{} leaves nothing of an image of {}x{}",
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
                    "resize without `size` and `scale` takes two inputs, the second of the size that the \
                     first becomes; it was given {}",
                    inputs.len()
                )));
            }
            _ => (only("resize", inputs)?, None),
        };
        let [channels, height, width] = input.as_image()?;
        if height == 0 || width == 0 {
            return Err(ShapeError::new(format!("its input {input} is empty")));
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
                "its output {to_height}x{to_width} is empty; both are at least 1"
            )));
        }
        Ok(Shape::image(channels, to_height, to_width))
    }

    /// Four pixels are weighted and added.
    fn forward_flops(&self, _inputs: &[&Shape], output: &Shape) -> u64 {
        (output.elements() as u64).saturating_mul(8)
    }

    fn attributes(&self) -> String {
        let mut text = match self.to {
            ResizeTo::Size([height, width]) => format!("to {height}x{width}"),
            ResizeTo::Scale([vertical, horizontal]) => format!("by {vertical}x{horizontal}"),
            ResizeTo::Like => "like its second input".to_owned(),
        };
        if self.align_corners {
            text += " corners aligned";
        }
        text
    }
}

impl Declared for Resize {
    const NAME: &'static str = "resize";
    const KEYS: &'static [&'static str] = &["size", "scale", "align_corners"];

    fn declared(attributes: &Attributes<'_>, _inputs: &[&Shape]) -> Result<Self, AttributeError> {
        let to = match (attributes.pair("size")?, attributes.factors("scale")?) {
            (Some(size), None) => ResizeTo::Size(size),
            (None, Some(scale)) => ResizeTo::Scale(scale),
            (None, None) => ResizeTo::Like,
            (Some(_), Some(_)) => {
                let need = "left out where `size` is given".to_owned();
                return Err(AttributeError::Wrong { key: "scale", need });
            }
        };
        Ok(Self { to, align_corners: attributes.flag("align_corners")?.unwrap_or(false) })
    }

    fn written(&self, to: &mut Written) {
        match self.to {
            ResizeTo::Size(size) => to.pair("size", size),
            ResizeTo::Scale(scale) => to.factors("scale", scale),
            ResizeTo::Like => {}
        }
        to.flag_unless("align_corners", self.align_corners, false);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_given_scaled_or_those_of_another_map() {
        let input = Shape::image(11, 90, 120);
        let size = |resize: Resize| resize.output_shape(&[&input]).unwrap();
        assert_eq!(size(Resize::to_size([360, 480])), Shape::image(11, 360, 480));
        assert_eq!(size(Resize::by(4.0)), Shape::image(11, 360, 480));
        // As doubles, 0.7 times 90 is a little less than 63.
        assert_eq!(size(Resize { to: ResizeTo::Scale([0.7, 1.1]), align_corners: true }).0, [11, 62, 132]);
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
    fn what_has_no_size_is_refused() {
        let message =
            |resize: Resize, inputs: &[&Shape]| resize.output_shape(inputs).unwrap_err().to_string();
        let input = Shape::image(2, 3, 4);
        assert_eq!(
            message(Resize::to_size([0, 4]), &[&input]),
            "its output 0x4 is empty; both are at least 1"
        );
        assert_eq!(
            message(Resize::by(0.25), &[&input]),
            "its scale 0.25x0.25 leaves nothing of an image of 3x4"
        );
        assert_eq!(
            message(Resize::by(f64::NAN), &[&input]),
            "its scale NaNxNaN is no size; both are finite and more than 0"
        );
        assert_eq!(message(Resize::by(2.0), &[&input, &input]), "resize takes one input, it was given 2");
        assert_eq!(
            message(Resize::LIKE, &[&input]),
            "resize without `size` and `scale` takes two inputs, the second of the size that the first \
             becomes; it was given 1"
        );
        assert!(message(Resize::LIKE, &[&input, &Shape::vector(4)]).contains("its input is 4"));
        assert_eq!(message(Resize::by(2.0), &[&Shape::image(2, 0, 4)]), "its input 2x0x4 is empty");
    }
}
