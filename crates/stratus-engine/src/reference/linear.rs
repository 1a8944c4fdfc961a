//! The fully connected layer, one sample at a time. A feature map `[N, C, H, W]` is `[N, C*H*W]` in row-major
//! order.

use super::{ReferenceKernel, Tensor, Tile, unexpected_operands};
use crate::Value;
use crate::ops::{LinearBackwardData, LinearBackwardWeights, LinearForward};
use stratus_graph::ops::Linear;

/// Elements of the weight, of one input sample and of one output sample: the values that are widened
/// together.
fn scratch(linear: &Linear) -> usize {
    linear.in_features * linear.out_features + linear.in_features + linear.out_features
}

/// Splits scratch into the weight `[O, I]`, one sample of x and one of y.
fn split<'a>(linear: &Linear, scratch: &'a mut [f64]) -> (&'a mut [f64], &'a mut [f64], &'a mut [f64]) {
    let (weight, samples) = scratch.split_at_mut(linear.in_features * linear.out_features);
    let (x, y) = samples.split_at_mut(linear.in_features);
    (weight, x, y)
}

impl ReferenceKernel for LinearForward {
    fn scratch(&self, _operands: &[&Value]) -> usize {
        scratch(&self.linear)
    }

    fn run(&self, operands: &mut [Tensor<'_>], scratch: &mut [f64], _tile: Tile) -> Result<(), String> {
        let (x, weight, bias, y) = match operands {
            [x, weight, y] => (x, weight, None, y),
            [x, weight, bias, y] => (x, weight, Some(bias), y),
            _ => return Err(unexpected_operands()),
        };
        let (weights, inputs, outputs) = split(&self.linear, scratch);
        weight.read(0, weights);
        for n in 0..x.shape[0] {
            x.read(n * inputs.len(), inputs);
            for (o, row) in weights.chunks_exact(self.linear.in_features).enumerate() {
                let sum: f64 = row.iter().zip(&*inputs).map(|(w, x)| w * x).sum();
                outputs[o] = sum + bias.as_ref().map_or(0.0, |bias| bias.get(o));
            }
            y.write(n * outputs.len(), outputs);
        }
        Ok(())
    }
}

impl ReferenceKernel for LinearBackwardData {
    fn scratch(&self, _operands: &[&Value]) -> usize {
        scratch(&self.linear)
    }

    fn run(&self, operands: &mut [Tensor<'_>], scratch: &mut [f64], _tile: Tile) -> Result<(), String> {
        let [dy, weight, dx] = operands else { return Err(unexpected_operands()) };
        let (weights, inputs, outputs) = split(&self.linear, scratch);
        weight.read(0, weights);
        for n in 0..dx.shape[0] {
            dy.read(n * outputs.len(), outputs);
            inputs.fill(0.0);
            for (row, dy) in weights.chunks_exact(self.linear.in_features).zip(&*outputs) {
                for (dx, w) in inputs.iter_mut().zip(row) {
                    *dx += w * dy;
                }
            }
            dx.write(n * inputs.len(), inputs);
        }
        Ok(())
    }
}

impl ReferenceKernel for LinearBackwardWeights {
    fn scratch(&self, _operands: &[&Value]) -> usize {
        scratch(&self.linear)
    }

    fn run(&self, operands: &mut [Tensor<'_>], scratch: &mut [f64], _tile: Tile) -> Result<(), String> {
        let (x, dy, dweight, dbias) = match operands {
            [x, dy, dweight] => (x, dy, dweight, None),
            [x, dy, dweight, dbias] => (x, dy, dweight, Some(dbias)),
            _ => return Err(unexpected_operands()),
        };
        let batch = x.shape[0];
        let (weights, inputs, outputs) = split(&self.linear, scratch);
        weights.fill(0.0);
        for n in 0..batch {
            x.read(n * inputs.len(), inputs);
            dy.read(n * outputs.len(), outputs);
            for (row, dy) in weights.chunks_exact_mut(self.linear.in_features).zip(&*outputs) {
                for (dw, x) in row.iter_mut().zip(&*inputs) {
                    *dw += dy * x;
                }
            }
        }
        dweight.write(0, weights);
        if let Some(dbias) = dbias {
            dbias.fill_with(|o| (0..batch).map(|n| dy.get(n * self.linear.out_features + o)).sum());
        }
        Ok(())
    }
}
