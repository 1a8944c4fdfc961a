//! Transfers between stages, which fail until a session is connected.

use super::{ReferenceKernel, Tensor, Tile};
use crate::exchange::NOT_CONNECTED_ERROR;
use crate::ops::StageTransfer;

impl ReferenceKernel for StageTransfer {
    fn run(&self, _operands: &mut [Tensor<'_>], _scratch: &mut [f64], _tile: Tile) -> Result<(), String> {
        Err(NOT_CONNECTED_ERROR.to_owned())
    }
}
