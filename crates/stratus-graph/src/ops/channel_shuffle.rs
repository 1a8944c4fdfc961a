//! Channels of several groups in turn, so that the next convolution in groups reads some of each (Zhang et
//! al.: "ShuffleNet: an extremely efficient convolutional neural network for mobile devices", 2018).

use super::{Declared, Operation, only};
use crate::layer_file::{AttributeError, Attributes, Written};
use crate::{Shape, ShapeError};
use serde::{Deserialize, Serialize};

/// Of the `C` channels in `groups` of `C / groups`, first the first of each group, then the second, and so
/// on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct ChannelShuffle {
    /// How many groups; they divide the channels.
    pub groups: usize,
}

impl Operation for ChannelShuffle {
    fn kind(&self) -> &'static str {
        "channel_shuffle"
    }

    fn output_shape(&self, inputs: &[&Shape]) -> Result<Shape, ShapeError> {
        let input = only("channel_shuffle", inputs)?;
        let [channels, ..] = input.as_image()?;
        if self.groups == 0 || !channels.is_multiple_of(self.groups) {
            return Err(ShapeError::new(format!(
                "its {} groups do not divide the {channels} channels of its input",
                self.groups
            )));
        }
        Ok(input.clone())
    }

    /// Nothing is computed.
    fn forward_flops(&self, _inputs: &[&Shape], _output: &Shape) -> u64 {
        0
    }

    fn attributes(&self) -> String {
        format!("groups {}", self.groups)
    }
}

impl Declared for ChannelShuffle {
    const NAME: &'static str = "channel_shuffle";
    const KEYS: &'static [&'static str] = &["groups"];

    fn declared(attributes: &Attributes<'_>, _inputs: &[&Shape]) -> Result<Self, AttributeError> {
        Ok(Self { groups: attributes.needed_count("groups")? })
    }

    fn written(&self, to: &mut Written) {
        to.count("groups", self.groups);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_divide_the_channels() {
        let input = Shape::image(6, 4, 5);
        for groups in [1, 2, 3, 6] {
            assert_eq!(ChannelShuffle { groups }.output_shape(&[&input]).unwrap(), input);
        }
        for groups in [0, 4, 12] {
            let message = ChannelShuffle { groups }.output_shape(&[&input]).unwrap_err().to_string();
            assert_eq!(message, format!("its {groups} groups do not divide the 6 channels of its input"));
        }
        assert!(ChannelShuffle { groups: 2 }.output_shape(&[&Shape::vector(6)]).is_err());
    }
}
