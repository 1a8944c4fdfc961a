//! Concatenation of feature maps: in row-major order the channels of a sample are contiguous.

use super::{ReferenceKernel, Tensor, Tile, unexpected_operands};
use crate::ops::{ConcatBackward, ConcatForward};

/// Copies `count` channels of every sample, starting at channel `first` of `from`, to `to` starting at
/// channel `at`.
fn copy(from: &Tensor<'_>, first: usize, to: &mut Tensor<'_>, at: usize, count: usize) {
    let ([batch, from_channels, height, width], [_, to_channels, ..]) = (from.image(), to.image());
    let pixels = height * width;
    for n in 0..batch {
        let (source, target) = ((n * from_channels + first) * pixels, (n * to_channels + at) * pixels);
        for position in 0..count * pixels {
            to.set(target + position, from.get(source + position));
        }
    }
}

impl ReferenceKernel for ConcatForward {
    fn run(&self, operands: &mut [Tensor<'_>], _scratch: &mut [f64], _tile: Tile) -> Result<(), String> {
        let [inputs @ .., y] = operands else { return Err(unexpected_operands()) };
        let mut at = 0;
        for x in inputs {
            let [_, channels, ..] = x.image();
            copy(x, 0, y, at, channels);
            at += channels;
        }
        Ok(())
    }
}

impl ReferenceKernel for ConcatBackward {
    fn run(&self, operands: &mut [Tensor<'_>], _scratch: &mut [f64], _tile: Tile) -> Result<(), String> {
        let [dy, dx] = operands else { return Err(unexpected_operands()) };
        let [_, channels, ..] = dx.image();
        copy(dy, self.first, dx, 0, channels);
        Ok(())
    }
}
