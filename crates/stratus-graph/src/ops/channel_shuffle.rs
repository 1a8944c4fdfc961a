//! Channel shuffle: interleaves the channels of groups, so that the next grouped convolution reads channels
//! of each group (Zhang et al.: "ShuffleNet: an extremely efficient convolutional neural network for mobile
//! devices", 2018).

use super::{LayerFileOp, Operation, single_input};
use crate::layer_file::{AttributeError, AttributeWriter, Attributes};
use crate::{Shape, ShapeError};
use serde::{Deserialize, Serialize};

/// Interleaves `groups` groups of `C / groups` channels: first the first channel of each group, then the
/// second, and so on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct ChannelShuffle {
    /// The number of groups, which must divide the channels.
    pub groups: usize,
}

impl Operation for ChannelShuffle {
    fn kind(&self) -> &'static str {
        "channel_shuffle"
    }

    fn output_shape(&self, inputs: &[&Shape]) -> Result<Shape, ShapeError> {
        let input = single_input("channel_shuffle", inputs)?;
        let [channels, ..] = input.as_image()?;
        if self.groups == 0 || !channels.is_multiple_of(self.groups) {
            return Err(ShapeError::new(format!(
                "{} groups do not divide the {channels} input channels",
                self.groups
            )));
        }
        Ok(input.clone())
    }

    fn is_never_negative(&self, inputs_are: bool) -> bool {
        inputs_are
    }

    /// Nothing is computed.
    fn forward_flops(&self, _inputs: &[&Shape], _output: &Shape) -> u64 {
        0
    }

    fn attributes(&self) -> String {
        format!("groups {}", self.groups)
    }
}

impl LayerFileOp for ChannelShuffle {
    const NAME: &'static str = "channel_shuffle";
    const KEYS: &'static [&'static str] = &["groups"];
    const ATTRIBUTES: &'static str = "`groups`: a divisor of the channels";
    const SHAPES: &'static str = "image, shape unchanged; first the first channel of each group, \
        then the second of each, and so on";

    fn from_attributes(attributes: &Attributes<'_>, _inputs: &[&Shape]) -> Result<Self, AttributeError> {
        Ok(Self { groups: attributes.required_count("groups")? })
    }

    fn write_attributes(&self, to: &mut AttributeWriter) {
        to.count("groups", self.groups);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_must_divide_the_channels() {
        let input = Shape::image(6, 4, 5);
        for groups in [1, 2, 3, 6] {
            assert_eq!(ChannelShuffle { groups }.output_shape(&[&input]).unwrap(), input);
        }
        for groups in [0, 4, 12] {
            let message = ChannelShuffle { groups }.output_shape(&[&input]).unwrap_err().to_string();
            assert_eq!(message, format!("{groups} groups do not divide the 6 input channels"));
        }
        assert!(ChannelShuffle { groups: 2 }.output_shape(&[&Shape::vector(6)]).is_err());
    }
}
