//! Batch normalisation, alone or fused with an activation and pooling.

use super::max_pool2d::{gather, max_so_far, window};
use super::{ReferenceKernel, Tensor, Tile, unexpected_operands};
use crate::ops::{
    BatchNormApply, BatchNormBackwardData, BatchNormGradients, BatchNormInference,
    BatchNormInferenceBackward, BatchNormStatistics, ChannelOffsets, FusedActivation, FusedPool,
};
use stratus_graph::ops::{BatchNorm2d, MaxPool2d};

/// One channel's normalisation: `y = weight * (x - mean) * inverse_deviation + bias`.
pub(super) struct Affine {
    mean: f64,
    inverse_deviation: f64,
    weight: f64,
    bias: f64,
}

impl Affine {
    /// Normalisation with the stored statistics, so that the backward pass masks like the forward pass.
    pub(super) fn from_statistics(
        c: usize,
        weight: &Tensor<'_>,
        bias: &Tensor<'_>,
        mean: &Tensor<'_>,
        inverse_deviation: &Tensor<'_>,
    ) -> Self {
        Self {
            mean: mean.get(c),
            inverse_deviation: inverse_deviation.get(c),
            weight: weight.get(c),
            bias: bias.get(c),
        }
    }

    /// Normalisation with the running statistics.
    pub(super) fn from_running(
        c: usize,
        weight: &Tensor<'_>,
        bias: &Tensor<'_>,
        running_mean: &Tensor<'_>,
        running_var: &Tensor<'_>,
        epsilon: f32,
    ) -> Self {
        let inverse_deviation = 1.0 / (running_var.get(c) + f64::from(epsilon)).sqrt();
        Self { inverse_deviation, ..Self::from_statistics(c, weight, bias, running_mean, running_var) }
    }

    fn normalised(&self, x: f64) -> f64 {
        (x - self.mean) * self.inverse_deviation
    }

    pub(super) fn apply(&self, x: f64) -> f64 {
        self.weight * self.normalised(x) + self.bias
    }
}

/// The row-major positions of a channel, sample by sample.
pub(super) fn channel(shape: [usize; 4], c: usize) -> impl Iterator<Item = usize> {
    let [batch, channels, height, width] = shape;
    let pixels = height * width;
    (0..batch).flat_map(move |n| {
        let start = (n * channels + c) * pixels;
        start..start + pixels
    })
}

/// Writes one channel of `y` (and `index`): normalised, with its activation, pooled if `pool`; within a
/// larger map if it is a channel slice.
pub(super) fn write_channel(
    affine: &Affine,
    activation: FusedActivation,
    (pool, parts): (Option<FusedPool>, ChannelOffsets),
    c: usize,
    x: &Tensor<'_>,
    y: &mut Tensor<'_>,
    mut index: Option<&mut Tensor<'_>>,
) -> Result<(), String> {
    let finish = |value| activation.value(value);
    let Some(pool) = pool else {
        let to = channel(y.image(), parts.y.unwrap_or(0) + c);
        for (position, to) in channel(x.image(), parts.x.unwrap_or(0) + c).zip(to) {
            y.set(to, finish(affine.apply(x.get(position))));
        }
        return Ok(());
    };
    let ([.., height, width], shape) = (x.image(), y.image());
    let [.., out_height, out_width] = shape;
    let MaxPool2d { kernel, stride, padding, .. } = pool.pool();
    for output in channel(shape, c) {
        let (w, h) = (output % out_width, output / out_width % out_height);
        let plane = output / (out_width * out_height);
        let mut best = None;
        for (position, [kh, kw]) in window(kernel) {
            let row = (h * stride[0] + kh).checked_sub(padding[0]).filter(|&row| row < height);
            let column = (w * stride[1] + kw).checked_sub(padding[1]).filter(|&column| column < width);
            let (Some(row), Some(column)) = (row, column) else { continue };
            best = max_so_far(best, position, affine.apply(x.get((plane * height + row) * width + column)));
        }
        let (position, value) = best.ok_or("empty pooling window")?;
        y.set(output, finish(value));
        if let Some(index) = &mut index {
            index.set(
                output,
                if activation == FusedActivation::RELU && value <= 0.0 {
                    f64::from(FusedPool::RELU_MASKED)
                } else {
                    position as f64
                },
            );
        }
    }
    Ok(())
}

/// Writes one channel's running statistics, mean and inverse deviation from its mean, its sum of squared
/// deviations and the count.
pub(super) fn finish_statistics(
    norm: &BatchNorm2d,
    c: usize,
    [average, squares, total]: [f64; 3],
    [running_mean, running_var, mean, inverse_deviation]: [&mut Tensor<'_>; 4],
) {
    let variance = squares / total;
    mean.set(c, average);
    inverse_deviation.set(c, 1.0 / (variance + f64::from(norm.epsilon)).sqrt());
    let unbiased = if total > 1.0 { squares / (total - 1.0) } else { variance };
    for (running, new) in [(running_mean, average), (running_var, unbiased)] {
        running.set(c, running.get(c) + f64::from(norm.momentum) * (new - running.get(c)));
    }
}

impl ReferenceKernel for BatchNormStatistics {
    fn run(&self, operands: &mut [Tensor<'_>], _scratch: &mut [f64], tile: Tile) -> Result<(), String> {
        let [x, running_mean, running_var, mean, inverse_deviation, moments] = operands else {
            return Err(unexpected_operands());
        };
        let shape = x.image();
        let (channels, first) = (self.norm.channels, self.offset.unwrap_or(0));
        let count = (shape[0] * shape[2] * shape[3]) as f64;
        for c in 0..channels {
            let values = || channel(shape, first + c).map(|position| x.get(position));
            let mut average = values().sum::<f64>() / count;
            let mut squares: f64 = values().map(|x| (x - average).powi(2)).sum();
            let mut total = count;
            if !tile.is_first() {
                let before = tile.run_index as f64 * count;
                total += before;
                let delta = average - moments.get(c);
                average = moments.get(c) + delta * count / total;
                squares += moments.get(channels + c) + delta * delta * before * count / total;
            }
            moments.set(c, average);
            moments.set(channels + c, squares);
            if !tile.is_last() {
                continue;
            }
            finish_statistics(
                &self.norm,
                c,
                [average, squares, total],
                [running_mean, running_var, mean, inverse_deviation],
            );
        }
        Ok(())
    }
}

impl ReferenceKernel for BatchNormApply {
    fn run(&self, operands: &mut [Tensor<'_>], _scratch: &mut [f64], _tile: Tile) -> Result<(), String> {
        let (operands, index) = operands.split_at_mut(operands.len().min(6));
        let [x, weight, bias, mean, inverse_deviation, y] = operands else {
            return Err(unexpected_operands());
        };
        for c in 0..self.norm.channels {
            let affine = Affine::from_statistics(c, weight, bias, mean, inverse_deviation);
            write_channel(&affine, self.activation, (self.pool, self.offsets), c, x, y, index.first_mut())?;
        }
        Ok(())
    }
}

impl ReferenceKernel for BatchNormInference {
    fn run(&self, operands: &mut [Tensor<'_>], _scratch: &mut [f64], _tile: Tile) -> Result<(), String> {
        let (operands, index) = operands.split_at_mut(operands.len().min(6));
        let [x, weight, bias, running_mean, running_var, y] = operands else {
            return Err(unexpected_operands());
        };
        for c in 0..self.norm.channels {
            let affine = Affine::from_running(c, weight, bias, running_mean, running_var, self.norm.epsilon);
            write_channel(&affine, self.activation, (self.pool, self.offsets), c, x, y, index.first_mut())?;
        }
        Ok(())
    }
}

impl ReferenceKernel for BatchNormInferenceBackward {
    fn run(&self, operands: &mut [Tensor<'_>], _scratch: &mut [f64], _tile: Tile) -> Result<(), String> {
        let Some((dx, inputs)) = operands.split_last_mut() else { return Err(unexpected_operands()) };
        let [x, dy, weight, bias, running_mean, running_var, index @ ..] = inputs else {
            return Err(unexpected_operands());
        };
        let (shape, first) = (x.image(), self.offsets.x.unwrap_or(0));
        for c in 0..self.norm.channels {
            let affine = Affine::from_running(c, weight, bias, running_mean, running_var, self.norm.epsilon);
            let output_gradient =
                NormOutputGradient::new(&affine, (self.activation, self.pool, self.offsets), [x, dy], index);
            let scale = affine.weight * affine.inverse_deviation;
            for position in channel(shape, first + c) {
                dx.set(position, scale * output_gradient.gradient(position));
            }
        }
        Ok(())
    }
}

impl ReferenceKernel for BatchNormGradients {
    fn run(&self, operands: &mut [Tensor<'_>], _scratch: &mut [f64], tile: Tile) -> Result<(), String> {
        let Some(inputs) = operands.len().checked_sub(3) else { return Err(unexpected_operands()) };
        let (inputs, outputs) = operands.split_at_mut(inputs);
        let ([x, dy, weight, bias, mean, inverse_deviation, index @ ..], [dweight, dbias, sums]) =
            (inputs, outputs)
        else {
            return Err(unexpected_operands());
        };
        let (shape, first) = (x.image(), self.offsets.x.unwrap_or(0));
        let channels = self.norm.channels;
        for c in 0..channels {
            let affine = Affine::from_statistics(c, weight, bias, mean, inverse_deviation);
            let output_gradient =
                NormOutputGradient::new(&affine, (self.activation, self.pool, self.offsets), [x, dy], index);
            let (mut sum, mut weighted) =
                if tile.is_first() { (0.0, 0.0) } else { (sums.get(c), sums.get(channels + c)) };
            for position in channel(shape, first + c) {
                let gradient = output_gradient.gradient(position);
                sum += gradient;
                weighted += gradient * (x.get(position) - affine.mean);
            }
            sums.set(c, sum);
            sums.set(channels + c, weighted);
            if tile.is_last() {
                dbias.set(c, sum);
                dweight.set(c, weighted * affine.inverse_deviation);
            }
        }
        Ok(())
    }
}

impl ReferenceKernel for BatchNormBackwardData {
    fn run(&self, operands: &mut [Tensor<'_>], _scratch: &mut [f64], tile: Tile) -> Result<(), String> {
        let Some((dx, inputs)) = operands.split_last_mut() else { return Err(unexpected_operands()) };
        let [x, dy, weight, bias, mean, inverse_deviation, dweight, dbias, index @ ..] = inputs else {
            return Err(unexpected_operands());
        };
        let (shape, first) = (x.image(), self.offsets.x.unwrap_or(0));
        // Means are over the whole batch.
        let count = (shape[0] * shape[2] * shape[3] * tile.count) as f64;
        for c in 0..self.norm.channels {
            let affine = Affine::from_statistics(c, weight, bias, mean, inverse_deviation);
            let output_gradient =
                NormOutputGradient::new(&affine, (self.activation, self.pool, self.offsets), [x, dy], index);
            // The gradient without its mean and its projection on the normalised map, which cannot change the
            // output.
            let scale = affine.weight * affine.inverse_deviation;
            for position in channel(shape, first + c) {
                let normalised = affine.normalised(x.get(position));
                let rest = output_gradient.gradient(position)
                    - dbias.get(c) / count
                    - normalised * dweight.get(c) / count;
                dx.set(position, scale * rest);
            }
        }
        Ok(())
    }
}

/// The gradient of a normalised map in one channel, through its activation and pooling.
struct NormOutputGradient<'a> {
    affine: &'a Affine,
    activation: FusedActivation,
    pool: Option<FusedPool>,
    parts: ChannelOffsets,
    x: &'a Tensor<'a>,
    dy: &'a Tensor<'a>,
    index: Option<&'a Tensor<'a>>,
}

impl<'a> NormOutputGradient<'a> {
    fn new(
        affine: &'a Affine,
        (activation, pool, parts): (FusedActivation, Option<FusedPool>, ChannelOffsets),
        [x, dy]: [&'a Tensor<'a>; 2],
        index: &'a [Tensor<'a>],
    ) -> Self {
        Self { affine, activation, pool, parts, x, dy, index: index.first() }
    }

    /// The gradient of the normalised map at a position of `x`.
    fn gradient(&self, position: usize) -> f64 {
        match (self.pool, self.index) {
            (Some(pool), Some(index)) => gather(&pool.pool(), self.x.image(), self.dy, index, position),
            _ => {
                let derivative = self.activation.derivative(self.affine.apply(self.x.get(position)));
                // Where an activation is constant, no gradient passes, whatever its value.
                if derivative == 0.0 { 0.0 } else { derivative * self.dy.get(self.position_in_dy(position)) }
            }
        }
    }

    /// The position in `dy` of a position of `x`, either of which may be a slice of a larger map.
    fn position_in_dy(&self, position: usize) -> usize {
        let ([_, of_x, height, width], [_, of_dy, ..]) = (self.x.image(), self.dy.image());
        let [x, dy] = [self.parts.x, self.parts.y].map(|first| first.unwrap_or(0));
        let (pixel, plane) = (position % (height * width), position / (height * width));
        let (image, channel) = (plane / of_x, plane % of_x - x);
        (image * of_dy + dy + channel) * height * width + pixel
    }
}
