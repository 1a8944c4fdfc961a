//! Batch normalisation, alone or with the rectifier and the pooling fused to it.

use super::max_pool2d::{gather, larger, window};
use super::relu::rectify;
use super::{Reference, Tensor, Tile, unexpected_operands};
use crate::ops::{
    BatchNormApply, BatchNormBackwardData, BatchNormGradients, BatchNormInference,
    BatchNormInferenceBackward, BatchNormStatistics, FusedPool, Parts,
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
    /// As stored, so that the backward pass cuts off what the forward pass did.
    pub(super) fn of(
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

    /// By the running statistics.
    pub(super) fn running(
        c: usize,
        weight: &Tensor<'_>,
        bias: &Tensor<'_>,
        running_mean: &Tensor<'_>,
        running_var: &Tensor<'_>,
        epsilon: f32,
    ) -> Self {
        let inverse_deviation = 1.0 / (running_var.get(c) + f64::from(epsilon)).sqrt();
        Self { inverse_deviation, ..Self::of(c, weight, bias, running_mean, running_var) }
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

/// Writes one channel of `y` (and `index`): normalised, rectified where `relu`, pooled where `pool`; as the
/// channel of a larger map where it is a part of one.
pub(super) fn write_channel(
    affine: &Affine,
    relu: bool,
    (pool, parts): (Option<FusedPool>, Parts),
    c: usize,
    x: &Tensor<'_>,
    y: &mut Tensor<'_>,
    mut index: Option<&mut Tensor<'_>>,
) -> Result<(), String> {
    let finish = |value| if relu { rectify(value) } else { value };
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
            best = larger(best, position, affine.apply(x.get((plane * height + row) * width + column)));
        }
        let (position, value) = best.ok_or("its pooling window is empty")?;
        y.set(output, finish(value));
        if let Some(index) = &mut index {
            index.set(output, if relu && value <= 0.0 { f64::from(FusedPool::CUT) } else { position as f64 });
        }
    }
    Ok(())
}

/// Writes one channel's running mean and variance, mean and inverse deviation, from its average, the sum of
/// squared deviations and the count.
pub(super) fn settle(
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

impl Reference for BatchNormStatistics {
    fn run(&self, operands: &mut [Tensor<'_>], _scratch: &mut [f64], tile: Tile) -> Result<(), String> {
        let [x, running_mean, running_var, mean, inverse_deviation, moments] = operands else {
            return Err(unexpected_operands());
        };
        let shape = x.image();
        let (channels, first) = (self.norm.channels, self.part.unwrap_or(0));
        let count = (shape[0] * shape[2] * shape[3]) as f64;
        for c in 0..channels {
            let own = || channel(shape, first + c).map(|position| x.get(position));
            let mut average = own().sum::<f64>() / count;
            let mut squares: f64 = own().map(|x| (x - average).powi(2)).sum();
            let mut total = count;
            if !tile.is_first() {
                let before = tile.index as f64 * count;
                total += before;
                let apart = average - moments.get(c);
                average = moments.get(c) + apart * count / total;
                squares += moments.get(channels + c) + apart * apart * before * count / total;
            }
            moments.set(c, average);
            moments.set(channels + c, squares);
            if !tile.is_last() {
                continue;
            }
            settle(
                &self.norm,
                c,
                [average, squares, total],
                [running_mean, running_var, mean, inverse_deviation],
            );
        }
        Ok(())
    }
}

impl Reference for BatchNormApply {
    fn run(&self, operands: &mut [Tensor<'_>], _scratch: &mut [f64], _tile: Tile) -> Result<(), String> {
        let (operands, index) = operands.split_at_mut(operands.len().min(6));
        let [x, weight, bias, mean, inverse_deviation, y] = operands else {
            return Err(unexpected_operands());
        };
        for c in 0..self.norm.channels {
            let affine = Affine::of(c, weight, bias, mean, inverse_deviation);
            write_channel(&affine, self.relu, (self.pool, self.parts), c, x, y, index.first_mut())?;
        }
        Ok(())
    }
}

impl Reference for BatchNormInference {
    fn run(&self, operands: &mut [Tensor<'_>], _scratch: &mut [f64], _tile: Tile) -> Result<(), String> {
        let (operands, index) = operands.split_at_mut(operands.len().min(6));
        let [x, weight, bias, running_mean, running_var, y] = operands else {
            return Err(unexpected_operands());
        };
        for c in 0..self.norm.channels {
            let affine = Affine::running(c, weight, bias, running_mean, running_var, self.norm.epsilon);
            write_channel(&affine, self.relu, (self.pool, self.parts), c, x, y, index.first_mut())?;
        }
        Ok(())
    }
}

impl Reference for BatchNormInferenceBackward {
    fn run(&self, operands: &mut [Tensor<'_>], _scratch: &mut [f64], _tile: Tile) -> Result<(), String> {
        let Some((dx, inputs)) = operands.split_last_mut() else { return Err(unexpected_operands()) };
        let [x, dy, weight, bias, running_mean, running_var, index @ ..] = inputs else {
            return Err(unexpected_operands());
        };
        let (shape, first) = (x.image(), self.parts.x.unwrap_or(0));
        for c in 0..self.norm.channels {
            let affine = Affine::running(c, weight, bias, running_mean, running_var, self.norm.epsilon);
            let behind = Behind::new(&affine, (self.relu, self.pool, self.parts), [x, dy], index);
            let scale = affine.weight * affine.inverse_deviation;
            for position in channel(shape, first + c) {
                dx.set(position, scale * behind.gradient(position));
            }
        }
        Ok(())
    }
}

impl Reference for BatchNormGradients {
    fn run(&self, operands: &mut [Tensor<'_>], _scratch: &mut [f64], tile: Tile) -> Result<(), String> {
        let Some(inputs) = operands.len().checked_sub(3) else { return Err(unexpected_operands()) };
        let (inputs, outputs) = operands.split_at_mut(inputs);
        let ([x, dy, weight, bias, mean, inverse_deviation, index @ ..], [dweight, dbias, sums]) =
            (inputs, outputs)
        else {
            return Err(unexpected_operands());
        };
        let (shape, first) = (x.image(), self.parts.x.unwrap_or(0));
        let channels = self.norm.channels;
        for c in 0..channels {
            let affine = Affine::of(c, weight, bias, mean, inverse_deviation);
            let behind = Behind::new(&affine, (self.relu, self.pool, self.parts), [x, dy], index);
            let (mut sum, mut weighted) =
                if tile.is_first() { (0.0, 0.0) } else { (sums.get(c), sums.get(channels + c)) };
            for position in channel(shape, first + c) {
                let gradient = behind.gradient(position);
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

impl Reference for BatchNormBackwardData {
    fn run(&self, operands: &mut [Tensor<'_>], _scratch: &mut [f64], tile: Tile) -> Result<(), String> {
        let Some((dx, inputs)) = operands.split_last_mut() else { return Err(unexpected_operands()) };
        let [x, dy, weight, bias, mean, inverse_deviation, dweight, dbias, index @ ..] = inputs else {
            return Err(unexpected_operands());
        };
        let (shape, first) = (x.image(), self.parts.x.unwrap_or(0));
        // The means are over the whole batch.
        let count = (shape[0] * shape[2] * shape[3] * tile.count) as f64;
        for c in 0..self.norm.channels {
            let affine = Affine::of(c, weight, bias, mean, inverse_deviation);
            let behind = Behind::new(&affine, (self.relu, self.pool, self.parts), [x, dy], index);
            // The gradient without its mean and without its part along the normalised map: neither can change
            // the output.
            let scale = affine.weight * affine.inverse_deviation;
            for position in channel(shape, first + c) {
                let normalised = affine.normalised(x.get(position));
                let rest =
                    behind.gradient(position) - dbias.get(c) / count - normalised * dweight.get(c) / count;
                dx.set(position, scale * rest);
            }
        }
        Ok(())
    }
}

/// What comes behind a normalised map in one channel: rectifier, pooling, and the gradient of their result.
struct Behind<'a> {
    affine: &'a Affine,
    relu: bool,
    pool: Option<FusedPool>,
    parts: Parts,
    x: &'a Tensor<'a>,
    dy: &'a Tensor<'a>,
    index: Option<&'a Tensor<'a>>,
}

impl<'a> Behind<'a> {
    fn new(
        affine: &'a Affine,
        (relu, pool, parts): (bool, Option<FusedPool>, Parts),
        [x, dy]: [&'a Tensor<'a>; 2],
        index: &'a [Tensor<'a>],
    ) -> Self {
        Self { affine, relu, pool, parts, x, dy, index: index.first() }
    }

    /// The gradient of the normalised map, at a position of x.
    fn gradient(&self, position: usize) -> f64 {
        match (self.pool, self.index) {
            (Some(pool), Some(index)) => gather(&pool.pool(), self.x.image(), self.dy, index, position),
            _ if self.relu && self.affine.apply(self.x.get(position)) <= 0.0 => 0.0,
            _ => self.dy.get(self.in_whole(position)),
        }
    }

    /// The position in `dy` of a position of `x`: either may be a part of a larger map.
    fn in_whole(&self, position: usize) -> usize {
        let ([_, of_x, height, width], [_, of_dy, ..]) = (self.x.image(), self.dy.image());
        let [x, dy] = [self.parts.x, self.parts.y].map(|first| first.unwrap_or(0));
        let (pixel, plane) = (position % (height * width), position / (height * width));
        let (image, channel) = (plane / of_x, plane % of_x - x);
        (image * of_dy + dy + channel) * height * width + pixel
    }
}
