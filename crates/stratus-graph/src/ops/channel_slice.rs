//! Some of a map's channels: a part of a split.

use super::{Declared, Operation, only};
use crate::layer_file::{AttributeError, Attributes, Written};
use crate::{Shape, ShapeError};
use serde::{Deserialize, Serialize};

/// The `channels` of a map from the channel `first` on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct ChannelSlice {
    /// The first channel, from 0.
    pub first: usize,
    /// How many there are.
    pub channels: usize,
}

impl Operation for ChannelSlice {
    fn kind(&self) -> &'static str {
        "channel_slice"
    }

    fn output_shape(&self, inputs: &[&Shape]) -> Result<Shape, ShapeError> {
        let [channels, height, width] = only("channel_slice", inputs)?.as_image()?;
        let end = self.first.checked_add(self.channels);
        if self.channels == 0 || end.is_none_or(|end| end > channels) {
            return Err(ShapeError::new(format!(
                "its {} channels from channel {} on are not among the {channels} of its input",
                self.channels, self.first
            )));
        }
        Ok(Shape::image(self.channels, height, width))
    }

    /// Nothing is computed.
    fn forward_flops(&self, _inputs: &[&Shape], _output: &Shape) -> u64 {
        0
    }

    fn attributes(&self) -> String {
        format!("{} from {}", self.channels, self.first)
    }
}

impl Declared for ChannelSlice {
    const NAME: &'static str = "channel_slice";
    const KEYS: &'static [&'static str] = &["first", "channels"];

    fn declared(attributes: &Attributes<'_>, _inputs: &[&Shape]) -> Result<Self, AttributeError> {
        let first = attributes.offset("first")?.unwrap_or(0);
        Ok(Self { first, channels: attributes.needed_count("channels")? })
    }

    fn written(&self, to: &mut Written) {
        if self.first != 0 {
            to.count("first", self.first);
        }
        to.count("channels", self.channels);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn channels_are_among_those_of_the_input() {
        let input = Shape::image(6, 4, 5);
        for (first, channels) in [(0, 6), (2, 4), (5, 1)] {
            let slice = ChannelSlice { first, channels };
            assert_eq!(slice.output_shape(&[&input]).unwrap(), Shape::image(channels, 4, 5));
        }
        for (first, channels) in [(0, 7), (6, 1), (2, 0), (usize::MAX, 2)] {
            let message = ChannelSlice { first, channels }.output_shape(&[&input]).unwrap_err().to_string();
            assert!(message.ends_with("are not among the 6 of its input"), "{message}");
        }
    }
}
