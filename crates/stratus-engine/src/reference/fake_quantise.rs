//! Maps and weights in real numbers, rounded as in int8.

use super::{ReferenceKernel, Tensor, Tile, unexpected_operands};
use crate::ops::{FakeQuantise, FakeQuantiseBackward, FakeQuantiseWeights};

impl ReferenceKernel for FakeQuantise {
    fn run(&self, operands: &mut [Tensor<'_>], _scratch: &mut [f64], _tile: Tile) -> Result<(), String> {
        let [x, y] = operands else { return Err(unexpected_operands()) };
        y.fill_with(|position| self.bytes.rounded(x.get(position)));
        Ok(())
    }
}

impl ReferenceKernel for FakeQuantiseBackward {
    fn run(&self, operands: &mut [Tensor<'_>], _scratch: &mut [f64], _tile: Tile) -> Result<(), String> {
        let [x, dy, dx] = operands else { return Err(unexpected_operands()) };
        dx.fill_with(|position| if self.bytes.clips(x.get(position)) { 0.0 } else { dy.get(position) });
        Ok(())
    }
}

/// In single precision, as the weights of int8 layers are computed: with another precision, numbers halfway
/// between two multiples would be rounded to the other one.
impl ReferenceKernel for FakeQuantiseWeights {
    fn run(&self, operands: &mut [Tensor<'_>], _scratch: &mut [f64], _tile: Tile) -> Result<(), String> {
        let [weights, rounded] = operands else { return Err(unexpected_operands()) };
        let limit = f32::from(self.max_weight);
        let [channels, filter @ ..] = weights.image();
        let length = filter.iter().product::<usize>();
        for channel in 0..channels {
            let positions = channel * length..(channel + 1) * length;
            let largest = |most: f32, position| most.max((weights.get(position) as f32).abs());
            let scale = positions.clone().fold(0.0, largest) / limit;
            let scale = if scale.is_normal() { scale } else { 1.0 };
            for position in positions {
                let steps = (weights.get(position) as f32 / scale).round_ties_even().clamp(-limit, limit);
                rounded.set(position, f64::from(steps * scale));
            }
        }
        Ok(())
    }
}
