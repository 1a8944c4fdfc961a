//! Batch normalisation fused with the following sum of a residual block and its ReLU.

use super::batch_norm::{Affine, channel};
use super::relu::apply_relu;
use super::{ReferenceKernel, Tensor, Tile, unexpected_operands};
use crate::ops::{BatchNormAddApply, BatchNormAddReluGradients};

impl ReferenceKernel for BatchNormAddApply {
    fn run(&self, operands: &mut [Tensor<'_>], _scratch: &mut [f64], _tile: Tile) -> Result<(), String> {
        let [x, weight, bias, mean, inverse_deviation, a, y] = operands else {
            return Err(unexpected_operands());
        };
        let shape = x.image();
        for c in 0..shape[1] {
            let affine = Affine::from_statistics(c, weight, bias, mean, inverse_deviation);
            for position in channel(shape, c) {
                let sum = affine.apply(x.get(position)) + a.get(position);
                y.set(position, if self.relu { apply_relu(sum) } else { sum });
            }
        }
        Ok(())
    }
}

impl ReferenceKernel for BatchNormAddReluGradients {
    fn run(&self, operands: &mut [Tensor<'_>], _scratch: &mut [f64], tile: Tile) -> Result<(), String> {
        let Some(inputs) = operands.len().checked_sub(4) else { return Err(unexpected_operands()) };
        let (inputs, results) = operands.split_at_mut(inputs);
        let ([x, y, mean, inverse_deviation, part @ ..], [dy, dweight, dbias, sums]) = (inputs, results)
        else {
            return Err(unexpected_operands());
        };
        let shape = x.image();
        let channels = shape[1];
        for c in 0..channels {
            let (mut sum, mut weighted) =
                if tile.is_first() { (0.0, 0.0) } else { (sums.get(c), sums.get(channels + c)) };
            for position in channel(shape, c) {
                let part = part.first().map_or(0.0, |part| part.get(position));
                // A NaN passes nothing either.
                let passes = y.get(position) > 0.0;
                dy.set(position, if passes { dy.get(position) + part } else { 0.0 });
                // The stored value, as seen by the next reader.
                let gradient = dy.get(position);
                sum += gradient;
                weighted += gradient * (x.get(position) - mean.get(c));
            }
            sums.set(c, sum);
            sums.set(channels + c, weighted);
            if tile.is_last() {
                dbias.set(c, sum);
                dweight.set(c, weighted * inverse_deviation.get(c));
            }
        }
        Ok(())
    }
}
