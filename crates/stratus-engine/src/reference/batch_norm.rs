//! Batch normalisation, alone or with the rectifier and the pooling fused to it.

use super::max_pool2d::{larger, window};
use super::relu::rectify;
use super::{Reference, Tensor, unexpected_operands};
use crate::ops::{BatchNormBackward, BatchNormForward, BatchNormInference, FusedPool};

/// The index of an output that the rectifier cut off: no gradient passes.
const CUT: f64 = 255.0;

/// One channel's normalisation: `y = weight * (x - mean) * inverse_deviation + bias`.
struct Affine {
    mean: f64,
    inverse_deviation: f64,
    weight: f64,
    bias: f64,
}

impl Affine {
    fn normalised(&self, x: f64) -> f64 {
        (x - self.mean) * self.inverse_deviation
    }

    fn apply(&self, x: f64) -> f64 {
        self.weight * self.normalised(x) + self.bias
    }
}

/// The row-major positions of a channel, sample by sample.
fn channel(shape: [usize; 4], c: usize) -> impl Iterator<Item = usize> {
    let [batch, channels, height, width] = shape;
    let pixels = height * width;
    (0..batch).flat_map(move |n| {
        let start = (n * channels + c) * pixels;
        start..start + pixels
    })
}

/// Writes one channel of `y` (and `index`): normalised, rectified where `relu`, pooled where `pool`.
fn write_channel(
    affine: &Affine,
    relu: bool,
    pool: Option<FusedPool>,
    c: usize,
    x: &Tensor<'_>,
    y: &mut Tensor<'_>,
    mut index: Option<&mut Tensor<'_>>,
) -> Result<(), String> {
    let finish = |value| if relu { rectify(value) } else { value };
    let Some(pool) = pool else {
        for position in channel(x.image(), c) {
            y.set(position, finish(affine.apply(x.get(position))));
        }
        return Ok(());
    };
    let ([.., height, width], shape) = (x.image(), y.image());
    let [.., out_height, out_width] = shape;
    for output in channel(shape, c) {
        let (w, h) = (output % out_width, output / out_width % out_height);
        let plane = output / (out_width * out_height);
        let mut best = None;
        for (position, [kh, kw]) in window(pool.window) {
            let (row, column) = (h * pool.window[0] + kh, w * pool.window[1] + kw);
            best = larger(best, position, affine.apply(x.get((plane * height + row) * width + column)));
        }
        let (position, value) = best.ok_or("its pooling window is empty")?;
        y.set(output, finish(value));
        if let Some(index) = &mut index {
            index.set(output, if relu && value <= 0.0 { CUT } else { position as f64 });
        }
    }
    Ok(())
}

impl Reference for BatchNormForward {
    fn run(&self, operands: &mut [Tensor<'_>], _scratch: &mut [f64]) -> Result<(), String> {
        let (operands, rest) = operands.split_at_mut(operands.len().min(8));
        let [x, weight, bias, running_mean, running_var, y, mean, inverse_deviation] = operands else {
            return Err(unexpected_operands());
        };
        let shape = x.image();
        let count = (shape[0] * shape[2] * shape[3]) as f64;
        let momentum = f64::from(self.norm.momentum);
        for c in 0..shape[1] {
            let average = channel(shape, c).map(|position| x.get(position)).sum::<f64>() / count;
            let squares: f64 = channel(shape, c).map(|position| (x.get(position) - average).powi(2)).sum();
            let variance = squares / count;
            mean.set(c, average);
            inverse_deviation.set(c, 1.0 / (variance + f64::from(self.norm.epsilon)).sqrt());
            let unbiased = if count > 1.0 { squares / (count - 1.0) } else { variance };
            for (running, new) in [(&mut *running_mean, average), (&mut *running_var, unbiased)] {
                running.set(c, running.get(c) + momentum * (new - running.get(c)));
            }
            // As stored, so that the backward pass cuts off what the forward pass did.
            let affine = Affine {
                mean: mean.get(c),
                inverse_deviation: inverse_deviation.get(c),
                weight: weight.get(c),
                bias: bias.get(c),
            };
            write_channel(&affine, self.relu, self.pool, c, x, y, rest.first_mut())?;
        }
        Ok(())
    }
}

impl Reference for BatchNormInference {
    fn run(&self, operands: &mut [Tensor<'_>], _scratch: &mut [f64]) -> Result<(), String> {
        let [x, weight, bias, running_mean, running_var, y] = operands else {
            return Err(unexpected_operands());
        };
        for c in 0..x.image()[1] {
            let affine = Affine {
                mean: running_mean.get(c),
                inverse_deviation: 1.0 / (running_var.get(c) + f64::from(self.norm.epsilon)).sqrt(),
                weight: weight.get(c),
                bias: bias.get(c),
            };
            write_channel(&affine, self.relu, self.pool, c, x, y, None)?;
        }
        Ok(())
    }
}

impl Reference for BatchNormBackward {
    fn run(&self, operands: &mut [Tensor<'_>], _scratch: &mut [f64]) -> Result<(), String> {
        let Some(inputs) = operands.len().checked_sub(3) else { return Err(unexpected_operands()) };
        let (inputs, outputs) = operands.split_at_mut(inputs);
        let ([x, dy, weight, bias, mean, inverse_deviation, index @ ..], [dx, dweight, dbias]) =
            (inputs, outputs)
        else {
            return Err(unexpected_operands());
        };
        let shape = x.image();
        let count = (shape[0] * shape[2] * shape[3]) as f64;
        for c in 0..shape[1] {
            let affine = Affine {
                mean: mean.get(c),
                inverse_deviation: inverse_deviation.get(c),
                weight: weight.get(c),
                bias: bias.get(c),
            };
            // The gradient of the normalised map, at a position of x.
            let gradient = |position: usize| match (self.pool, index.first()) {
                (Some(pool), Some(index)) => unpool(pool, shape, dy, index, position),
                _ if self.relu && affine.apply(x.get(position)) <= 0.0 => 0.0,
                _ => dy.get(position),
            };
            let (mut sum, mut sum_normalised) = (0.0, 0.0);
            for position in channel(shape, c) {
                sum += gradient(position);
                sum_normalised += gradient(position) * affine.normalised(x.get(position));
            }
            dbias.set(c, sum);
            dweight.set(c, sum_normalised);
            // The gradient without its mean and without its part along the normalised map: neither can change the output.
            let scale = affine.weight * affine.inverse_deviation;
            for position in channel(shape, c) {
                let normalised = affine.normalised(x.get(position));
                let rest = gradient(position) - sum / count - normalised * sum_normalised / count;
                dx.set(position, scale * rest);
            }
        }
        Ok(())
    }
}

/// What the pooled gradient gives to a position of x: all of it to the winner of a window, nothing to the others, to windows that the
/// rectifier cut off, and to the pixels that no window covers.
fn unpool(pool: FusedPool, shape: [usize; 4], dy: &Tensor<'_>, index: &Tensor<'_>, position: usize) -> f64 {
    let [_, _, height, width] = shape;
    let [_, _, out_height, out_width] = pool.output_shape(shape);
    let (column, row, plane) = (position % width, position / width % height, position / (width * height));
    let (h, w) = (row / pool.window[0], column / pool.window[1]);
    if h >= out_height || w >= out_width {
        return 0.0;
    }
    let output = (plane * out_height + h) * out_width + w;
    let inside = row % pool.window[0] * pool.window[1] + column % pool.window[1];
    if index.get(output) == inside as f64 { dy.get(output) } else { 0.0 }
}
