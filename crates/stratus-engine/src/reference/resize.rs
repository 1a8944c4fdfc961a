//! Bilinear resizing.

use super::{ReferenceKernel, Tensor, Tile, unexpected_operands};
use crate::ops::{Interpolation, ResizeBackward, ResizeForward, Taps};
use crate::{DType, Value};

/// The taps of every row and every column of the output.
fn taps(
    interpolation: &Interpolation,
    input: [usize; 4],
    output: [usize; 4],
    dtype: DType,
) -> [Vec<Taps>; 2] {
    [0, 1].map(|axis| interpolation.axis(axis, input[2 + axis], output[2 + axis], dtype))
}

/// The four pixels of a plane that an output reads, and their weights.
fn pixels(vertical: &Taps, horizontal: &Taps, width: usize) -> [(usize, f64); 4] {
    [(0, 0), (0, 1), (1, 0), (1, 1)].map(|(down, across)| {
        let row = [vertical.first, vertical.second][down];
        let column = [horizontal.first, horizontal.second][across];
        (row * width + column, vertical.weights[down] * horizontal.weights[across])
    })
}

impl ReferenceKernel for ResizeForward {
    fn run(&self, operands: &mut [Tensor<'_>], _scratch: &mut [f64], _tile: Tile) -> Result<(), String> {
        let [x, y] = operands else { return Err(unexpected_operands()) };
        let (input, output) = (x.image(), y.image());
        let [rows, columns] = taps(&self.interpolation, input, output, x.dtype());
        let mut position = 0;
        for plane in 0..input[0] * input[1] {
            let first = plane * input[2] * input[3];
            for vertical in &rows {
                for horizontal in &columns {
                    let parts = pixels(vertical, horizontal, input[3]);
                    y.set(position, parts.iter().map(|(pixel, weight)| weight * x.get(first + pixel)).sum());
                    position += 1;
                }
            }
        }
        Ok(())
    }
}

impl ReferenceKernel for ResizeBackward {
    /// One plane of `dx`.
    fn scratch(&self, operands: &[&Value]) -> usize {
        operands[1].shape[2..].iter().product()
    }

    fn run(&self, operands: &mut [Tensor<'_>], scratch: &mut [f64], _tile: Tile) -> Result<(), String> {
        let [dy, dx] = operands else { return Err(unexpected_operands()) };
        let (input, output) = (dx.image(), dy.image());
        let [rows, columns] = taps(&self.interpolation, input, output, dy.dtype());
        let mut position = 0;
        for plane in 0..input[0] * input[1] {
            scratch.fill(0.0);
            for vertical in &rows {
                for horizontal in &columns {
                    for (pixel, weight) in pixels(vertical, horizontal, input[3]) {
                        scratch[pixel] += weight * dy.get(position);
                    }
                    position += 1;
                }
            }
            dx.write(plane * input[2] * input[3], scratch);
        }
        Ok(())
    }
}
