//! Max pooling.

use super::{ReferenceKernel, Tensor, Tile, unexpected_operands};
use crate::ops::{FusedPool, MaxPoolBackward, MaxPoolForward};
use stratus_graph::ops::MaxPool2d;

impl ReferenceKernel for MaxPoolForward {
    fn run(&self, operands: &mut [Tensor<'_>], _scratch: &mut [f64], _tile: Tile) -> Result<(), String> {
        let (x, y, mut index) = match operands {
            [x, y] => (x, y, None),
            [x, y, index] => (x, y, Some(index)),
            _ => return Err(unexpected_operands()),
        };
        let ([.., height, width], [batch, channels, out_height, out_width]) = (x.image(), y.image());
        let (stride, padding) = (self.pool.stride, self.pool.padding);
        let mut output = 0;
        for plane in 0..batch * channels {
            for h in 0..out_height {
                for w in 0..out_width {
                    let mut best = None;
                    for (position, [kh, kw]) in window(self.pool.kernel) {
                        let row = (h * stride[0] + kh).checked_sub(padding[0]).filter(|&row| row < height);
                        let column = (w * stride[1] + kw).checked_sub(padding[1]).filter(|&c| c < width);
                        let (Some(row), Some(column)) = (row, column) else { continue };
                        best = max_so_far(best, position, x.get((plane * height + row) * width + column));
                    }
                    let (position, value) = best.ok_or("a window is entirely padding")?;
                    y.set(output, value);
                    if let Some(index) = &mut index {
                        let is_cut = self.mask_relu && value <= 0.0;
                        index.set(
                            output,
                            if is_cut { f64::from(FusedPool::RELU_MASKED) } else { position as f64 },
                        );
                    }
                    output += 1;
                }
            }
        }
        Ok(())
    }
}

impl ReferenceKernel for MaxPoolBackward {
    /// Gathers: each input sums the gradients of the windows in which it is the argmax.
    fn run(&self, operands: &mut [Tensor<'_>], _scratch: &mut [f64], _tile: Tile) -> Result<(), String> {
        let [dy, index, dx] = operands else { return Err(unexpected_operands()) };
        let shape = dx.image();
        dx.fill_with(|position| gather(&self.pool, shape, dy, index, position));
        Ok(())
    }
}

/// The gradient of a position of the input, which has `shape`: the sum over the windows in which it is the
/// argmax.
pub(super) fn gather(
    pool: &MaxPool2d,
    [.., height, width]: [usize; 4],
    dy: &Tensor<'_>,
    index: &Tensor<'_>,
    position: usize,
) -> f64 {
    let [.., out_height, out_width] = dy.image();
    let (column, row, plane) = (position % width, position / width % height, position / (width * height));
    let mut sum = 0.0;
    for (position, [kh, kw]) in window(pool.kernel) {
        let h = window_start(row + pool.padding[0], kh, pool.stride[0]).filter(|&h| h < out_height);
        let w = window_start(column + pool.padding[1], kw, pool.stride[1]).filter(|&w| w < out_width);
        let (Some(h), Some(w)) = (h, w) else { continue };
        let output = (plane * out_height + h) * out_width + w;
        if index.get(output) == position as f64 {
            sum += dy.get(output);
        }
    }
    sum
}

/// Every position of a window in row order, with its row and column.
pub(super) fn window(kernel: [usize; 2]) -> impl Iterator<Item = (usize, [usize; 2])> {
    (0..kernel[0] * kernel[1]).map(move |position| (position, [position / kernel[1], position % kernel[1]]))
}

/// The maximum of `best` and `(position, value)`. NaN counts as largest, so that a diverged run shows.
pub(super) fn max_so_far(best: Option<(usize, f64)>, position: usize, value: f64) -> Option<(usize, f64)> {
    match best {
        Some((_, largest)) if value <= largest || largest.is_nan() => best,
        _ => Some((position, value)),
    }
}

/// The window whose tap `tap` is at the padded position `position`, if any.
fn window_start(position: usize, tap: usize, stride: usize) -> Option<usize> {
    position.checked_sub(tap).filter(|start| start.is_multiple_of(stride)).map(|start| start / stride)
}
