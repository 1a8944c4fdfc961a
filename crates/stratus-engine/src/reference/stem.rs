//! The stem; the convolution's output is computed in scratch if needed.

use super::batch_norm::{Affine, finish_statistics, write_channel};
use super::max_pool2d::gather;
use super::{ReferenceKernel, Tensor, Tile, unexpected_operands};
use crate::ops::{
    ChannelOffsets, Conv2dForward, FusedActivation, Stem, StemApply, StemGradients, StemInference,
    StemStatistics,
};
use crate::{DType, Value};

/// The pixels of the images by output and tap.
struct StemPatches<'a> {
    stem: &'a Stem,
    images: &'a Tensor<'a>,
    output: [usize; 2],
}

impl<'a> StemPatches<'a> {
    fn new(stem: &'a Stem, images: &'a Tensor<'a>) -> Result<Self, String> {
        let [.., height, width] = images.image();
        let output = stem.conv.output_size([height, width]).map_err(|error| error.to_string())?;
        Ok(Self { stem, images, output })
    }

    /// The number of outputs of one channel.
    fn count(&self) -> usize {
        self.images.image()[0] * self.output[0] * self.output[1]
    }

    /// Calls `visit` with every output's index in its channel, sample by sample, and the pixels at its taps;
    /// zeros outside of the image.
    fn for_each(&self, mut visit: impl FnMut(usize, &[f64])) {
        let ([batch, channels, height, width], conv) = (self.images.image(), &self.stem.conv);
        let mut seen = [0.0; Stem::MAX_TAPS];
        let mut index = 0;
        for n in 0..batch {
            for row in 0..self.output[0] {
                for column in 0..self.output[1] {
                    let mut tap = 0;
                    for channel in 0..channels {
                        for i in 0..conv.kernel[0] {
                            for j in 0..conv.kernel[1] {
                                let (h, w) = (row + i, column + j);
                                let inside = (conv.padding_before[0]..conv.padding_before[0] + height)
                                    .contains(&h)
                                    && (conv.padding_before[1]..conv.padding_before[1] + width).contains(&w);
                                seen[tap] = if inside {
                                    let [h, w] = [h - conv.padding_before[0], w - conv.padding_before[1]];
                                    self.images.get(((n * channels + channel) * height + h) * width + w)
                                } else {
                                    0.0
                                };
                                tap += 1;
                            }
                        }
                    }
                    visit(index, &seen[..tap]);
                    index += 1;
                }
            }
        }
    }
}

/// Adds to a tensor's element.
fn add(to: &mut Tensor<'_>, position: usize, value: f64) {
    to.set(position, to.get(position) + value);
}

impl ReferenceKernel for StemStatistics {
    fn run(&self, operands: &mut [Tensor<'_>], _scratch: &mut [f64], tile: Tile) -> Result<(), String> {
        let [images, weight, running_mean, running_var, mean, inverse_deviation, correlation] = operands
        else {
            return Err(unexpected_operands());
        };
        let taps = self.stem.taps();
        if tile.is_first() {
            correlation.fill_with(|_| 0.0);
        }
        let windows = StemPatches::new(&self.stem, images)?;
        windows.for_each(|_, seen| {
            for j in 0..taps {
                for k in 0..taps {
                    add(correlation, j * taps + k, seen[j] * seen[k]);
                }
                add(correlation, taps * taps + j, seen[j]);
            }
        });
        if !tile.is_last() {
            return Ok(());
        }
        let total = (windows.count() * tile.count) as f64;
        for c in 0..self.stem.conv.out_channels {
            let w = |k: usize| weight.get(c * taps + k);
            let average = (0..taps).map(|k| w(k) * correlation.get(taps * taps + k)).sum::<f64>() / total;
            let products = (0..taps).flat_map(|j| (0..taps).map(move |k| (j, k)));
            let square: f64 = products.map(|(j, k)| w(j) * w(k) * correlation.get(j * taps + k)).sum();
            let squares = square - total * average * average;
            // Rounding may make it negative; NaN propagates.
            let squares = if squares < 0.0 { 0.0 } else { squares };
            let norm = &self.stem.norm;
            finish_statistics(
                norm,
                c,
                [average, squares, total],
                [running_mean, running_var, mean, inverse_deviation],
            );
        }
        Ok(())
    }
}

/// Scratch elements for the convolution and its output.
fn scratch(stem: &Stem, operands: &[&Value]) -> usize {
    let (x, y) = (operands[0], output(stem, &operands[0].shape));
    let map = Value { shape: y.to_vec(), ..operands[6].clone() };
    let forward = Conv2dForward { conv: stem.conv, relu: false };
    y.iter().product::<usize>() + ReferenceKernel::scratch(&forward, &[x, operands[1], &map])
}

/// The shape of the convolution's output; empty if invalid, which is checked before.
fn output(stem: &Stem, images: &[usize]) -> [usize; 4] {
    let [height, width] = stem.conv.output_size([images[2], images[3]]).unwrap_or_default();
    [images[0], stem.conv.out_channels, height, width]
}

/// Writes the pooled map, given each channel's normalisation.
fn apply(
    stem: &Stem,
    operands: &mut [Tensor<'_>],
    scratch: &mut [f64],
    affine: impl Fn(usize, [&Tensor<'_>; 4]) -> Affine,
) -> Result<(), String> {
    let (operands, index) = operands.split_at_mut(operands.len().min(7));
    let [images, weight, norm_weight, norm_bias, mean, deviation, y] = operands else {
        return Err(unexpected_operands());
    };
    let shape = output(stem, images.shape);
    let (map, scratch) = scratch.split_at_mut(shape.iter().product());
    let [images, weight] = [images, weight].map(Tensor::reborrow);
    let map = Tensor::new(DType::F64, &shape, bytemuck::cast_slice_mut(map));
    let mut convolved = [images, weight, map];
    let forward = Conv2dForward { conv: stem.conv, relu: false };
    ReferenceKernel::run(&forward, &mut convolved, scratch, Tile::WHOLE)?;
    for c in 0..shape[1] {
        let affine = affine(c, [norm_weight, norm_bias, mean, deviation]);
        write_channel(
            &affine,
            FusedActivation::relu_if(stem.relu),
            (Some(Stem::POOL), ChannelOffsets::default()),
            c,
            &convolved[2],
            y,
            index.first_mut(),
        )?;
    }
    Ok(())
}

impl ReferenceKernel for StemApply {
    fn scratch(&self, operands: &[&Value]) -> usize {
        scratch(&self.stem, operands)
    }

    fn run(&self, operands: &mut [Tensor<'_>], scratch: &mut [f64], _tile: Tile) -> Result<(), String> {
        apply(&self.stem, operands, scratch, |c, [weight, bias, mean, inverse_deviation]| {
            Affine::from_statistics(c, weight, bias, mean, inverse_deviation)
        })
    }
}

impl ReferenceKernel for StemInference {
    fn scratch(&self, operands: &[&Value]) -> usize {
        scratch(&self.stem, operands)
    }

    fn run(&self, operands: &mut [Tensor<'_>], scratch: &mut [f64], _tile: Tile) -> Result<(), String> {
        apply(&self.stem, operands, scratch, |c, [weight, bias, mean, var]| {
            Affine::from_running(c, weight, bias, mean, var, self.stem.norm.epsilon)
        })
    }
}

impl ReferenceKernel for StemGradients {
    fn run(&self, operands: &mut [Tensor<'_>], _scratch: &mut [f64], tile: Tile) -> Result<(), String> {
        let [
            images,
            weight,
            dy,
            norm_weight,
            mean,
            inverse_deviation,
            correlation,
            index,
            dweight,
            dnorm_weight,
            dnorm_bias,
            sums,
        ] = operands
        else {
            return Err(unexpected_operands());
        };
        let (taps, channels) = (self.stem.taps(), self.stem.conv.out_channels);
        if tile.is_first() {
            sums.fill_with(|_| 0.0);
        }
        let windows = StemPatches::new(&self.stem, images)?;
        let shape = output(&self.stem, images.shape);
        let pixels = shape[2] * shape[3];
        windows.for_each(|output, seen| {
            for c in 0..channels {
                let position = (output / pixels * channels + c) * pixels + output % pixels;
                let gradient = gather(&Stem::POOL.pool(), shape, dy, index, position);
                if gradient == 0.0 {
                    continue;
                }
                for (k, seen) in seen.iter().enumerate() {
                    add(sums, c * (taps + 1) + k, gradient * seen);
                }
                add(sums, c * (taps + 1) + taps, gradient);
            }
        });
        if !tile.is_last() {
            return Ok(());
        }
        let count = (windows.count() * tile.count) as f64;
        for c in 0..channels {
            let (mean, inverse) = (mean.get(c), inverse_deviation.get(c));
            let w = c * taps;
            let product = |k: usize| sums.get(c * (taps + 1) + k);
            let sum = product(taps);
            let weighted = (0..taps).map(|k| weight.get(w + k) * product(k)).sum::<f64>() - mean * sum;
            dnorm_bias.set(c, sum);
            dnorm_weight.set(c, weighted * inverse);
            for k in 0..taps {
                let pixel = correlation.get(taps * taps + k);
                let along: f64 =
                    (0..taps).map(|j| weight.get(w + j) * correlation.get(k * taps + j)).sum::<f64>();
                let normalised = (along - mean * pixel) * inverse;
                let rest = product(k) - sum / count * pixel - weighted * inverse / count * normalised;
                dweight.set(w + k, norm_weight.get(c) * inverse * rest);
            }
        }
        Ok(())
    }
}
