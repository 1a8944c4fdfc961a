//! Reordering and selecting channels.

use super::{ReferenceKernel, Tensor, Tile, unexpected_operands};
use crate::ops::{ScatterChannels, SelectChannels};

/// Copies to each channel of `to` the channel of `from` given by `source`, or zero.
fn gather(from: &Tensor<'_>, to: &mut Tensor<'_>, source: impl Fn(usize, usize) -> Option<usize>) {
    let ([_, source_channels, height, width], [_, channels, ..]) = (from.image(), to.image());
    let pixels = height * width;
    to.fill_with(|position| {
        let (image, channel, pixel) =
            (position / (channels * pixels), position / pixels % channels, position % pixels);
        source(channel, source_channels)
            .map_or(0.0, |source| from.get((image * source_channels + source) * pixels + pixel))
    });
}

impl ReferenceKernel for SelectChannels {
    fn run(&self, operands: &mut [Tensor<'_>], _scratch: &mut [f64], _tile: Tile) -> Result<(), String> {
        let [x, y] = operands else { return Err(unexpected_operands()) };
        let [_, channels, ..] = y.image();
        gather(x, y, |channel, _| Some(self.source(channel, channels)));
        Ok(())
    }
}

impl ReferenceKernel for ScatterChannels {
    fn run(&self, operands: &mut [Tensor<'_>], _scratch: &mut [f64], _tile: Tile) -> Result<(), String> {
        let [dy, dx] = operands else { return Err(unexpected_operands()) };
        gather(dy, dx, |channel, channels| self.source(channel, channels));
        Ok(())
    }
}
