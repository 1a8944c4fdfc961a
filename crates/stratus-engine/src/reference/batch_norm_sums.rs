//! Batch statistics over several parts of a batch.

use super::batch_norm::{channel, finish_statistics};
use super::{ReferenceKernel, Tensor, Tile, unexpected_operands};
use crate::ops::{BatchNormStatisticsFromSums, BatchNormSums};

impl ReferenceKernel for BatchNormSums {
    fn run(&self, operands: &mut [Tensor<'_>], _scratch: &mut [f64], _tile: Tile) -> Result<(), String> {
        let [x, sums] = operands else { return Err(unexpected_operands()) };
        let (shape, first) = (x.image(), self.offset.unwrap_or(0));
        for c in 0..self.norm.channels {
            let values = || channel(shape, first + c).map(|position| x.get(position));
            let totals = [values().sum::<f64>(), values().map(|x| x * x).sum()];
            totals.into_iter().enumerate().for_each(|(row, sum)| sums.set(row * self.norm.channels + c, sum));
        }
        Ok(())
    }
}

impl ReferenceKernel for BatchNormStatisticsFromSums {
    fn run(&self, operands: &mut [Tensor<'_>], _scratch: &mut [f64], _tile: Tile) -> Result<(), String> {
        let [sums, running_mean, running_var, mean, inverse_deviation] = operands else {
            return Err(unexpected_operands());
        };
        let count = self.count as f64;
        for c in 0..self.norm.channels {
            let average = sums.get(c) / count;
            let squares = sums.get(self.norm.channels + c) - sums.get(c) * average;
            // Rounding may give a negative number. NaN is kept.
            let squares = if squares < 0.0 { 0.0 } else { squares };
            let written = [&mut *running_mean, &mut *running_var, &mut *mean, &mut *inverse_deviation];
            finish_statistics(&self.norm, c, [average, squares, count], written);
        }
        Ok(())
    }
}
