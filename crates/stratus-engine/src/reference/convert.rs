//! Moving values. All layouts are plain here, so that a reorder is a copy.

use super::{Reference, Tensor, Tile, unexpected_operands};
use crate::ops::{Accumulate, AddTiles, Convert, Flatten, Reorder};

impl Reference for Convert {
    fn run(&self, operands: &mut [Tensor<'_>], _scratch: &mut [f64], _tile: Tile) -> Result<(), String> {
        let [x, y] = operands else { return Err(unexpected_operands()) };
        y.fill_with(|position| x.get(position));
        Ok(())
    }
}

impl Reference for Flatten {
    fn run(&self, operands: &mut [Tensor<'_>], _scratch: &mut [f64], _tile: Tile) -> Result<(), String> {
        let [x, y] = operands else { return Err(unexpected_operands()) };
        y.fill_with(|position| x.get(position));
        Ok(())
    }
}

impl Reference for Reorder {
    fn run(&self, operands: &mut [Tensor<'_>], _scratch: &mut [f64], _tile: Tile) -> Result<(), String> {
        let [x, y] = operands else { return Err(unexpected_operands()) };
        y.fill_with(|position| x.get(position));
        Ok(())
    }
}

impl Reference for Accumulate {
    fn run(&self, operands: &mut [Tensor<'_>], _scratch: &mut [f64], _tile: Tile) -> Result<(), String> {
        let [x, sum] = operands else { return Err(unexpected_operands()) };
        for position in 0..sum.len() {
            sum.set(position, sum.get(position) + x.get(position));
        }
        Ok(())
    }
}

impl Reference for AddTiles {
    fn run(&self, operands: &mut [Tensor<'_>], _scratch: &mut [f64], tile: Tile) -> Result<(), String> {
        let [part, sum] = operands else { return Err(unexpected_operands()) };
        for position in 0..sum.len() {
            let before = if tile.is_first_of_all() { 0.0 } else { sum.get(position) };
            sum.set(position, before + part.get(position));
        }
        Ok(())
    }
}
