//! Average pooling, over windows and to a fixed size.

use super::{ReferenceKernel, Tensor, Tile, unexpected_operands};
use crate::Value;
use crate::ops::{AvgPoolBackward, AvgPoolForward, AvgPooling, PoolRange};

/// The vertical and horizontal ranges of all outputs.
fn ranges(pooling: &AvgPooling, input: [usize; 4], output: [usize; 4]) -> [Vec<PoolRange>; 2] {
    [0, 1]
        .map(|axis| (0..output[2 + axis]).map(|index| pooling.range(axis, index, input[2 + axis])).collect())
}

impl ReferenceKernel for AvgPoolForward {
    fn run(&self, operands: &mut [Tensor<'_>], _scratch: &mut [f64], _tile: Tile) -> Result<(), String> {
        let [x, y] = operands else { return Err(unexpected_operands()) };
        let (input, output) = (x.image(), y.image());
        let [rows, columns] = ranges(&self.pooling, input, output);
        let mut position = 0;
        for plane in 0..input[0] * input[1] {
            for vertical in &rows {
                for horizontal in &columns {
                    let mut sum = 0.0;
                    for row in vertical.pixels.clone() {
                        for column in horizontal.pixels.clone() {
                            sum += x.get((plane * input[2] + row) * input[3] + column);
                        }
                    }
                    y.set(position, sum / (vertical.count * horizontal.count) as f64);
                    position += 1;
                }
            }
        }
        Ok(())
    }
}

impl ReferenceKernel for AvgPoolBackward {
    /// One plane of `dx`.
    fn scratch(&self, operands: &[&Value]) -> usize {
        operands[1].shape[2..].iter().product()
    }

    fn run(&self, operands: &mut [Tensor<'_>], scratch: &mut [f64], _tile: Tile) -> Result<(), String> {
        let [dy, dx] = operands else { return Err(unexpected_operands()) };
        let (input, output) = (dx.image(), dy.image());
        let [rows, columns] = ranges(&self.pooling, input, output);
        let mut position = 0;
        for plane in 0..input[0] * input[1] {
            scratch.fill(0.0);
            for vertical in &rows {
                for horizontal in &columns {
                    let share = dy.get(position) / (vertical.count * horizontal.count) as f64;
                    for row in vertical.pixels.clone() {
                        for column in horizontal.pixels.clone() {
                            scratch[row * input[3] + column] += share;
                        }
                    }
                    position += 1;
                }
            }
            dx.write(plane * input[2] * input[3], scratch);
        }
        Ok(())
    }
}
