//! A slice of a map's channels, such as a part of a split.

use super::{LayerFileOp, Operation, single_input};
use crate::layer_file::{AttributeError, AttributeWriter, Attributes};
use crate::{Shape, ShapeError};
use serde::{Deserialize, Serialize};

/// The `channels` channels of a map starting at channel `first`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct ChannelSlice {
    /// The first channel, from 0.
    pub first: usize,
    /// The number of channels.
    pub channels: usize,
}

impl Operation for ChannelSlice {
    fn kind(&self) -> &'static str {
        "channel_slice"
    }

    fn output_shape(&self, inputs: &[&Shape]) -> Result<Shape, ShapeError> {
        let [channels, height, width] = single_input("channel_slice", inputs)?.as_image()?;
        let end = self.first.checked_add(self.channels);
        if self.channels == 0 || end.is_none_or(|end| end > channels) {
            return Err(ShapeError::new(format!(
                "channels {}..{} are out of range for {channels} input channels",
                self.first,
                self.first.saturating_add(self.channels)
            )));
        }
        Ok(Shape::image(self.channels, height, width))
    }

    fn is_never_negative(&self, inputs_are: bool) -> bool {
        inputs_are
    }

    /// Nothing is computed.
    fn forward_flops(&self, _inputs: &[&Shape], _output: &Shape) -> u64 {
        0
    }

    fn attributes(&self) -> String {
        format!("{} from {}", self.channels, self.first)
    }
}

impl LayerFileOp for ChannelSlice {
    const NAME: &'static str = "channel_slice";
    const KEYS: &'static [&'static str] = &["first", "channels"];
    const ATTRIBUTES: &'static str = "`first` (0), `channels`";
    const SHAPES: &'static str = "image to image of `channels` channels, starting with the channel `first`";

    fn from_attributes(attributes: &Attributes<'_>, _inputs: &[&Shape]) -> Result<Self, AttributeError> {
        let first = attributes.offset("first")?.unwrap_or(0);
        Ok(Self { first, channels: attributes.required_count("channels")? })
    }

    fn write_attributes(&self, to: &mut AttributeWriter) {
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
    fn rejects_channels_out_of_range() {
        let input = Shape::image(6, 4, 5);
        for (first, channels) in [(0, 6), (2, 4), (5, 1)] {
            let slice = ChannelSlice { first, channels };
            assert_eq!(slice.output_shape(&[&input]).unwrap(), Shape::image(channels, 4, 5));
        }
        for (first, channels) in [(0, 7), (6, 1), (2, 0), (usize::MAX, 2)] {
            let message = ChannelSlice { first, channels }.output_shape(&[&input]).unwrap_err().to_string();
            assert!(message.ends_with("are out of range for 6 input channels"), "{message}");
        }
    }
}
