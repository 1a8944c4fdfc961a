//! What stages hand to each other: nothing, until a session is connected.

use super::{Reference, Tensor, Tile};
use crate::exchange::UNCONNECTED;
use crate::ops::Transfer;

impl Reference for Transfer {
    fn run(&self, _operands: &mut [Tensor<'_>], _scratch: &mut [f64], _tile: Tile) -> Result<(), String> {
        Err(UNCONNECTED.to_owned())
    }
}
