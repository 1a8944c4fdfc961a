//! Channels in another order, or some of them.

use super::{Reference, Tensor, Tile, unexpected_operands};
use crate::ops::{PlaceChannels, SelectChannels};

/// Channels of `from`, or zero, as the channels of `to`: those that `source` names.
fn gather(from: &Tensor<'_>, to: &mut Tensor<'_>, source: impl Fn(usize, usize) -> Option<usize>) {
    let ([_, of, height, width], [_, channels, ..]) = (from.image(), to.image());
    let pixels = height * width;
    to.fill_with(|position| {
        let (image, channel, pixel) =
            (position / (channels * pixels), position / pixels % channels, position % pixels);
        source(channel, of).map_or(0.0, |source| from.get((image * of + source) * pixels + pixel))
    });
}

impl Reference for SelectChannels {
    fn run(&self, operands: &mut [Tensor<'_>], _scratch: &mut [f64], _tile: Tile) -> Result<(), String> {
        let [x, y] = operands else { return Err(unexpected_operands()) };
        let [_, channels, ..] = y.image();
        gather(x, y, |channel, _| Some(self.source(channel, channels)));
        Ok(())
    }
}

impl Reference for PlaceChannels {
    fn run(&self, operands: &mut [Tensor<'_>], _scratch: &mut [f64], _tile: Tile) -> Result<(), String> {
        let [dy, dx] = operands else { return Err(unexpected_operands()) };
        gather(dy, dx, |channel, channels| self.source(channel, channels));
        Ok(())
    }
}
