//! Conversion of maps to bytes, and convolutions of bytes.

use super::conv2d::{self, for_each_row};
use super::relu::apply_relu;
use super::{ReferenceKernel, Tensor, Tile, unexpected_operands};
use crate::Value;
use crate::ops::{Addend, Quantise, QuantisedConv2d};

impl ReferenceKernel for Quantise {
    fn run(&self, operands: &mut [Tensor<'_>], _scratch: &mut [f64], _tile: Tile) -> Result<(), String> {
        let [x, y] = operands else { return Err(unexpected_operands()) };
        y.fill_with(|position| self.bytes.byte(x.get(position)));
        Ok(())
    }
}

impl ReferenceKernel for QuantisedConv2d {
    fn scratch(&self, operands: &[&Value]) -> usize {
        conv2d::scratch(&self.conv, operands[0], operands[operands.len() - 1])
    }

    fn run(&self, operands: &mut [Tensor<'_>], scratch: &mut [f64], _tile: Tile) -> Result<(), String> {
        let (x, weight, scale, bias, addend, y) = match operands {
            [x, weight, scale, bias, y] => (x, weight, scale, bias, None, y),
            [x, weight, scale, bias, addend, y] => (x, weight, scale, bias, Some(addend), y),
            _ => return Err(unexpected_operands()),
        };
        let (x_shape, y_shape) = (x.image(), y.image());
        let pixels = y_shape[2] * y_shape[3];
        let (weights, inputs, outputs) = conv2d::split(&self.conv, x_shape, scratch);
        weight.read(0, weights);
        for n in 0..x_shape[0] {
            x.read(n * inputs.len(), inputs);
            outputs.fill(0.0);
            for_each_row(&self.conv, x_shape, y_shape, |row| {
                let w = weights[row.weight];
                let from = inputs[row.x..].iter().step_by(row.stride);
                for (y, x) in outputs[row.y..row.y + row.length].iter_mut().zip(from) {
                    *y += w * x;
                }
            });
            for (position, y) in outputs.iter_mut().enumerate() {
                let channel = position / pixels;
                *y = *y * scale.get(channel) + bias.get(channel);
                let at = n * y_shape[1] * pixels + position;
                *y += match (&addend, self.addend) {
                    (Some(addend), Addend::Bytes(bytes)) => bytes.real(addend.get(at)),
                    (Some(addend), _) => addend.get(at),
                    (None, _) => 0.0,
                };
                if self.relu {
                    *y = apply_relu(*y);
                }
                if let Some(bytes) = self.output {
                    *y = bytes.byte(*y);
                }
            }
            y.write(n * outputs.len(), outputs);
        }
        Ok(())
    }
}
