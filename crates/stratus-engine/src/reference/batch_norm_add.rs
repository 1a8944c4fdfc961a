//! Batch normalisation with the sum of a residual block behind it, and the rectifier behind that.

use super::batch_norm::{Affine, channel};
use super::relu::rectify;
use super::{Reference, Tensor, Tile, unexpected_operands};
use crate::ops::{BatchNormAddApply, BatchNormAddReluGradients};

impl Reference for BatchNormAddApply {
    fn run(&self, operands: &mut [Tensor<'_>], _scratch: &mut [f64], _tile: Tile) -> Result<(), String> {
        let [x, weight, bias, mean, inverse_deviation, a, y] = operands else {
            return Err(unexpected_operands());
        };
        let shape = x.image();
        for c in 0..shape[1] {
            let affine = Affine::of(c, weight, bias, mean, inverse_deviation);
            for position in channel(shape, c) {
                let sum = affine.apply(x.get(position)) + a.get(position);
                y.set(position, if self.relu { rectify(sum) } else { sum });
            }
        }
        Ok(())
    }
}

impl Reference for BatchNormAddReluGradients {
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
                // Nothing passes a NaN either.
                let passes = y.get(position) > 0.0;
                dy.set(position, if passes { dy.get(position) + part } else { 0.0 });
                // As it is stored: what reads it next sees the same.
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
