//! The rectifier with a ceiling. NaN passes: a diverged run must show.

use super::relu::rectify;
use super::{Reference, Tensor, Tile, unexpected_operands};
use crate::ops::{Relu6Backward, Relu6Forward};

const CEILING: f64 = 6.0;

impl Reference for Relu6Forward {
    fn run(&self, operands: &mut [Tensor<'_>], _scratch: &mut [f64], _tile: Tile) -> Result<(), String> {
        let [x, y] = operands else { return Err(unexpected_operands()) };
        y.fill_with(|position| {
            let x = x.get(position);
            if x >= CEILING { CEILING } else { rectify(x) }
        });
        Ok(())
    }
}

impl Reference for Relu6Backward {
    fn run(&self, operands: &mut [Tensor<'_>], _scratch: &mut [f64], _tile: Tile) -> Result<(), String> {
        let [y, dy, dx] = operands else { return Err(unexpected_operands()) };
        dx.fill_with(|position| {
            let y = y.get(position);
            if y > 0.0 && y < CEILING { dy.get(position) } else { 0.0 }
        });
        Ok(())
    }
}
