//! Conversions. All layouts are plain, so that a reorder is a copy.

use super::{ReferenceKernel, Tensor, Tile, unexpected_operands};
use crate::ops::{Accumulate, AddTiles, Convert, Flatten, Reorder};

impl ReferenceKernel for Convert {
    fn run(&self, operands: &mut [Tensor<'_>], _scratch: &mut [f64], _tile: Tile) -> Result<(), String> {
        let [x, y] = operands else { return Err(unexpected_operands()) };
        y.fill_with(|position| x.get(position));
        Ok(())
    }
}

impl ReferenceKernel for Flatten {
    fn run(&self, operands: &mut [Tensor<'_>], _scratch: &mut [f64], _tile: Tile) -> Result<(), String> {
        let [x, y] = operands else { return Err(unexpected_operands()) };
        y.fill_with(|position| x.get(position));
        Ok(())
    }
}

impl ReferenceKernel for Reorder {
    fn run(&self, operands: &mut [Tensor<'_>], _scratch: &mut [f64], _tile: Tile) -> Result<(), String> {
        let [x, y] = operands else { return Err(unexpected_operands()) };
        y.fill_with(|position| x.get(position));
        Ok(())
    }
}

impl ReferenceKernel for Accumulate {
    fn run(&self, operands: &mut [Tensor<'_>], _scratch: &mut [f64], _tile: Tile) -> Result<(), String> {
        let [x, sum] = operands else { return Err(unexpected_operands()) };
        for position in 0..sum.len() {
            sum.set(position, sum.get(position) + x.get(position));
        }
        Ok(())
    }
}

impl ReferenceKernel for AddTiles {
    fn run(&self, operands: &mut [Tensor<'_>], _scratch: &mut [f64], tile: Tile) -> Result<(), String> {
        let [part, sum] = operands else { return Err(unexpected_operands()) };
        for position in 0..sum.len() {
            let before = if tile.starts_sums() { 0.0 } else { sum.get(position) };
            sum.set(position, before + part.get(position));
        }
        Ok(())
    }
}
