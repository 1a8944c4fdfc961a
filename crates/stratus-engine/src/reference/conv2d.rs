//! Convolution. All kernels visit the same rows of (weight, x, y) and differ in the operand that they
//! accumulate.

use super::relu::apply_relu;
use super::{ReferenceKernel, Tensor, Tile, unexpected_operands};
use crate::Value;
use crate::ops::{Conv2dBackwardData, Conv2dBackwardWeights, Conv2dForward, Conv2dInference};
use std::ops::Range;
use stratus_graph::ops::Conv2d;

/// One weight and the row of outputs that it contributes to: `y[y + j]` and `x[x + j * stride]` for `j` in
/// `0..length`.
pub(super) struct Row {
    /// Position in the weight `[O, C/G, KH, KW]`.
    pub(super) weight: usize,
    /// Position of the first input in one sample `[C, H, W]`.
    pub(super) x: usize,
    /// Position of the first output in one sample `[O, H', W']`.
    pub(super) y: usize,
    /// Outputs in the row.
    pub(super) length: usize,
    /// The distance between inputs.
    pub(super) stride: usize,
}

/// Visits every product of the convolution of one sample: output channel, its group's input channels, taps,
/// output rows.
pub(super) fn for_each_row(conv: &Conv2d, x: [usize; 4], y: [usize; 4], mut visit: impl FnMut(&Row)) {
    let ([.., height, width], [.., out_height, out_width]) = (x, y);
    let [out_channels, group_channels, kernel_height, kernel_width] = conv.weight_shape();
    let outputs_per_group = out_channels / conv.groups;
    let mut weight = 0;
    for o in 0..out_channels {
        for i in 0..group_channels {
            let channel = o / outputs_per_group * group_channels + i;
            for kh in 0..kernel_height {
                let rows = inside(conv, 0, kh, height, out_height);
                for kw in 0..kernel_width {
                    let columns = inside(conv, 1, kw, width, out_width);
                    for h in rows.clone() {
                        if columns.is_empty() {
                            break;
                        }
                        let row = input_position(conv, 0, kh, h);
                        visit(&Row {
                            weight,
                            x: (channel * height + row) * width + input_position(conv, 1, kw, columns.start),
                            y: (o * out_height + h) * out_width + columns.start,
                            length: columns.len(),
                            stride: conv.stride[1],
                        });
                    }
                    weight += 1;
                }
            }
        }
    }
}

/// The input position of tap `tap` for output `out`, which must be inside the input.
fn input_position(conv: &Conv2d, axis: usize, tap: usize, out: usize) -> usize {
    out * conv.stride[axis] + tap * conv.dilation[axis] - conv.padding_before[axis]
}

/// The outputs whose tap is on the input rather than on the padding.
fn inside(conv: &Conv2d, axis: usize, tap: usize, size: usize, outputs: usize) -> Range<usize> {
    let (offset, padding, stride) = (tap * conv.dilation[axis], conv.padding_before[axis], conv.stride[axis]);
    let first = padding.saturating_sub(offset).div_ceil(stride);
    // One more than the largest `out` with `out * stride + offset - padding < size`.
    let end = (size + padding).saturating_sub(offset).div_ceil(stride).min(outputs);
    first.min(end)..end
}

/// Scratch elements: the weight and one sample of `x` and `y`, which are widened together.
pub(super) fn scratch(conv: &Conv2d, x: &Value, y: &Value) -> usize {
    let sample = |value: &Value| value.shape[1..].iter().product::<usize>();
    conv.weight_shape().iter().product::<usize>() + sample(x) + sample(y)
}

/// Splits scratch into the weight, one sample of x and one of y.
pub(super) fn split<'a>(
    conv: &Conv2d,
    x: [usize; 4],
    scratch: &'a mut [f64],
) -> (&'a mut [f64], &'a mut [f64], &'a mut [f64]) {
    let (weight, samples) = scratch.split_at_mut(conv.weight_shape().iter().product());
    let (x, y) = samples.split_at_mut(x[1..].iter().product());
    (weight, x, y)
}

impl ReferenceKernel for Conv2dForward {
    fn scratch(&self, operands: &[&Value]) -> usize {
        scratch(&self.conv, operands[0], operands[operands.len() - 1])
    }

    fn run(&self, operands: &mut [Tensor<'_>], scratch: &mut [f64], _tile: Tile) -> Result<(), String> {
        let (x, weight, bias, y) = match operands {
            [x, weight, y] => (x, weight, None, y),
            [x, weight, bias, y] => (x, weight, Some(&*bias), y),
            _ => return Err(unexpected_operands()),
        };
        convolve(&self.conv, [x, weight], bias, y, scratch, |_, z| if self.relu { apply_relu(z) } else { z });
        Ok(())
    }
}

impl ReferenceKernel for Conv2dInference {
    fn scratch(&self, operands: &[&Value]) -> usize {
        scratch(&self.conv, operands[0], operands[operands.len() - 1])
    }

    fn run(&self, operands: &mut [Tensor<'_>], scratch: &mut [f64], _tile: Tile) -> Result<(), String> {
        let Some((y, [x, weight, rest @ ..])) = operands.split_last_mut() else {
            return Err(unexpected_operands());
        };
        let (bias, addend) = match (self.conv.bias, self.adds, &*rest) {
            (true, true, [bias, addend]) => (Some(bias), Some(addend)),
            (true, false, [bias]) => (Some(bias), None),
            (false, true, [addend]) => (None, Some(addend)),
            (false, false, []) => (None, None),
            _ => return Err(unexpected_operands()),
        };
        convolve(&self.conv, [x, weight], bias, y, scratch, |position, z| {
            self.activation.value(z + addend.map_or(0.0, |addend| addend.get(position)))
        });
        Ok(())
    }
}

/// Sets `y` to the function `finish` of the position and value of each element of the convolution.
fn convolve(
    conv: &Conv2d,
    [x, weight]: [&Tensor<'_>; 2],
    bias: Option<&Tensor<'_>>,
    y: &mut Tensor<'_>,
    scratch: &mut [f64],
    finish: impl Fn(usize, f64) -> f64,
) {
    let (x_shape, y_shape) = (x.image(), y.image());
    let pixels = y_shape[2] * y_shape[3];
    let (weights, inputs, outputs) = split(conv, x_shape, scratch);
    weight.read(0, weights);
    for n in 0..x_shape[0] {
        x.read(n * inputs.len(), inputs);
        for (o, plane) in outputs.chunks_exact_mut(pixels).enumerate() {
            plane.fill(bias.map_or(0.0, |bias| bias.get(o)));
        }
        for_each_row(conv, x_shape, y_shape, |row| {
            let w = weights[row.weight];
            let from = inputs[row.x..].iter().step_by(row.stride);
            for (y, x) in outputs[row.y..row.y + row.length].iter_mut().zip(from) {
                *y += w * x;
            }
        });
        let first = n * outputs.len();
        for (position, y) in outputs.iter_mut().enumerate() {
            *y = finish(first + position, *y);
        }
        y.write(first, outputs);
    }
}

impl ReferenceKernel for Conv2dBackwardData {
    fn scratch(&self, operands: &[&Value]) -> usize {
        scratch(&self.conv, operands[2], operands[0])
    }

    fn run(&self, operands: &mut [Tensor<'_>], scratch: &mut [f64], _tile: Tile) -> Result<(), String> {
        let [dy, weight, dx] = operands else { return Err(unexpected_operands()) };
        let (x_shape, y_shape) = (dx.image(), dy.image());
        let (weights, inputs, outputs) = split(&self.conv, x_shape, scratch);
        weight.read(0, weights);
        for n in 0..x_shape[0] {
            dy.read(n * outputs.len(), outputs);
            inputs.fill(0.0);
            for_each_row(&self.conv, x_shape, y_shape, |row| {
                let w = weights[row.weight];
                let to = inputs[row.x..].iter_mut().step_by(row.stride);
                for (dx, dy) in to.zip(&outputs[row.y..row.y + row.length]) {
                    *dx += w * dy;
                }
            });
            dx.write(n * inputs.len(), inputs);
        }
        Ok(())
    }
}

impl ReferenceKernel for Conv2dBackwardWeights {
    fn scratch(&self, operands: &[&Value]) -> usize {
        scratch(&self.conv, operands[0], operands[1])
    }

    fn run(&self, operands: &mut [Tensor<'_>], scratch: &mut [f64], _tile: Tile) -> Result<(), String> {
        let (x, dy, dweight, dbias) = match operands {
            [x, dy, dweight] => (x, dy, dweight, None),
            [x, dy, dweight, dbias] => (x, dy, dweight, Some(dbias)),
            _ => return Err(unexpected_operands()),
        };
        let (x_shape, y_shape) = (x.image(), dy.image());
        let (weights, inputs, outputs) = split(&self.conv, x_shape, scratch);
        weights.fill(0.0);
        for n in 0..x_shape[0] {
            x.read(n * inputs.len(), inputs);
            dy.read(n * outputs.len(), outputs);
            for_each_row(&self.conv, x_shape, y_shape, |row| {
                let from = inputs[row.x..].iter().step_by(row.stride);
                let products = outputs[row.y..row.y + row.length].iter().zip(from).map(|(dy, x)| dy * x);
                weights[row.weight] += products.sum::<f64>();
            });
        }
        dweight.write(0, weights);
        if let Some(dbias) = dbias {
            let [batch, channels, height, width] = y_shape;
            let pixels = height * width;
            dbias.fill_with(|o| {
                let planes = (0..batch).map(|n| (n * channels + o) * pixels);
                planes.flat_map(|start| start..start + pixels).map(|position| dy.get(position)).sum()
            });
        }
        Ok(())
    }
}
