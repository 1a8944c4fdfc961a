//! Batch normalisation with the sum of a residual block behind it, and the rectifier behind that.

use super::batch_norm::{GIVEN, Maps, addresses, settle_gradients};
use super::{Maker, OnGpu, Operand};
use crate::processor::{Argument, Made};
use stratus_engine::ops::{BatchNormAddApply, BatchNormAddReluGradients, KernelSpec, Parts};

/// Checks that maps have one type.
fn expect_alike(operands: &[&Operand]) -> Result<(), String> {
    let first = operands[0];
    match operands.iter().find(|operand| operand.dtype() != first.dtype()) {
        Some(other) => Err(format!("`{}` and `{}` have two types", first.value.name, other.value.name)),
        None => Ok(()),
    }
}

impl OnGpu for BatchNormAddApply {
    fn make(&self, operands: &[Operand], _counts: [usize; 3], maker: &Maker<'_>) -> Result<Made, String> {
        expect_alike(&[&operands[5], &operands[6]])?;
        let maps = Maps::new(self.norm.channels, Parts::default(), &operands[0], &operands[6])?;
        let mut arguments = [0, 5, 6].map(Argument::Operand).to_vec();
        arguments.extend(addresses(1, 4).chain([GIVEN]).chain(maps.extents()?));
        let (source, shape) = (maps.source("batch_norm", self.relu), maps.pass(maps.pixels_of_x(), maker));
        let launch = maker.launch(&source, "batch_norm_add_apply", shape, arguments)?;
        Ok(Made::of(self.name(), vec![launch], 0))
    }
}

impl OnGpu for BatchNormAddReluGradients {
    fn make(&self, operands: &[Operand], counts: [usize; 3], maker: &Maker<'_>) -> Result<Made, String> {
        let dy = counts[0];
        let part = (counts[0] == 5).then_some(4);
        let alike: Vec<&Operand> = [1, dy].into_iter().chain(part).map(|at| &operands[at]).collect();
        expect_alike(&alike)?;
        let maps = Maps::new(self.norm.channels, Parts::default(), &operands[0], &operands[1])?;
        // Whatever is rectified, it is the result that tells.
        let source = maps.source("batch_norm_sums", false);
        let positions = [0, 1].into_iter().chain(part).chain([dy, 2]);
        let [rows, width, ..] = maps.extents()?;
        let arguments = positions.map(Argument::Operand).chain([rows, width]).collect();
        let name = if part.is_some() { "batch_norm_add_cut_gradients" } else { "batch_norm_cut_gradients" };
        let (launch, shares) = maps.sums((&source, name), maps.pixels_of_x(), arguments, maker)?;
        let settle = settle_gradients(&source, &shares, 3, dy + 1, maker)?;
        Ok(Made::of(self.name(), vec![launch, settle], shares.bytes))
    }
}
