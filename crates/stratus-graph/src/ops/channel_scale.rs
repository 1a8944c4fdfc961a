//! Multiplication of each channel of a sample by a factor from another layer, as in squeeze-and-excitation
//! (Hu et al.: "Squeeze-and-excitation networks", 2018).

use super::{LayerFileOp, Operation};
use crate::layer_file::{AttributeError, Attributes};
use crate::{Shape, ShapeError};
use serde::{Deserialize, Serialize};

/// `y(c, h, w) = x(c, h, w) s(c)` of a map `x` `[C, H, W]` and factors `s` `[C, 1, 1]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct ChannelScale;

impl Operation for ChannelScale {
    fn kind(&self) -> &'static str {
        "channel_scale"
    }

    fn output_shape(&self, inputs: &[&Shape]) -> Result<Shape, ShapeError> {
        let [x, factors] = inputs else {
            return Err(ShapeError::new(format!(
                "channel_scale: expected 2 inputs, a map and its factors, got {}",
                inputs.len()
            )));
        };
        let [channels, ..] = x.as_image()?;
        if factors.0 != [channels, 1, 1] {
            return Err(ShapeError::new(format!(
                "the factors of a map of {x} must be {channels}x1x1, got {factors}"
            )));
        }
        Ok((*x).clone())
    }

    fn is_never_negative(&self, inputs_are: bool) -> bool {
        inputs_are
    }

    fn forward_flops(&self, _inputs: &[&Shape], output: &Shape) -> u64 {
        output.elements() as u64
    }
}

impl LayerFileOp for ChannelScale {
    const NAME: &'static str = "channel_scale";
    const SHAPES: &'static str = "an image and one of `C`×1×1 to the first, each channel times its factor: \
        squeeze-and-excitation";

    fn from_attributes(_attributes: &Attributes<'_>, _inputs: &[&Shape]) -> Result<Self, AttributeError> {
        Ok(Self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accepts_a_map_and_its_factors() {
        let (map, factors) = (Shape::image(4, 3, 5), Shape::image(4, 1, 1));
        assert_eq!(ChannelScale.output_shape(&[&map, &factors]).unwrap(), map);
        assert_eq!(ChannelScale.output_shape(&[&factors, &factors]).unwrap(), factors);
        assert_eq!(ChannelScale.forward_flops(&[&map, &factors], &map), 60);
        let message = |inputs: &[&Shape]| ChannelScale.output_shape(inputs).unwrap_err().to_string();
        assert_eq!(message(&[&factors, &map]), "the factors of a map of 4x1x1 must be 4x1x1, got 4x3x5");
        assert!(message(&[&map, &Shape::image(3, 1, 1)]).contains("a map of 4x3x5 must be 4x1x1, got 3x1x1"));
        assert!(message(&[&map, &Shape::vector(4)]).ends_with("got 4"));
        assert_eq!(message(&[&map]), "channel_scale: expected 2 inputs, a map and its factors, got 1");
        assert!(message(&[&Shape::vector(4), &factors]).contains("image"));
    }
}
