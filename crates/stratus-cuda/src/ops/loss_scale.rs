//! The scale of the loss where gradients are f16: the search for those that are not finite, and the scale of the next iteration.

use super::convert::check_types;
use super::{Maker, OnGpu, Operand, long, vector};
use crate::processor::{Argument, Made, Shape, Source};
use stratus_engine::DType;
use stratus_engine::ops::{AdjustLossScale, FIRST_SCALE, FindOverflow, KernelSpec, MOST_STEPS};

/// Vectors that a thread of the search loads at the same time, as in `loss_scale.cu`.
const AT_A_TIME: usize = 4;

/// That a value is the scale of a loss, as kernels read it.
fn expect_f32(scale: &Operand) -> Result<(), String> {
    match scale.dtype() {
        DType::F32 => Ok(()),
        other => Err(format!("`{}` is {other}; it should be f32", scale.value.name)),
    }
}

/// The file of a kernel whose gradients may be `scaled`, and where it finds the scale: behind the inputs that it has anyway.
pub(super) fn scaled(
    source: Source,
    operands: &[Operand],
    inputs: usize,
    scaled: bool,
) -> Result<(Source, Argument), String> {
    if !scaled {
        return Ok((source, Argument::Null));
    }
    expect_f32(&operands[inputs])?;
    let source = source.with("SCALED", 1).with("FIRST_EXPONENT", FIRST_SCALE.log2() as i32);
    Ok((source, Argument::Operand(inputs)))
}

impl OnGpu for FindOverflow {
    fn make(&self, operands: &[Operand], _counts: [usize; 3], maker: &Maker<'_>) -> Result<Made, String> {
        let (gradient, scale) = (&operands[0], &operands[1]);
        check_types([gradient])?;
        expect_f32(scale)?;
        // Whatever lies between its elements is zero.
        let count = gradient.elements();
        let vector = vector(&[gradient.dtype()], &[count]);
        let source = Source::of("loss_scale", gradient.dtype(), vector);
        let arguments = vec![Argument::Operand(0), Argument::Operand(1), long(count)];
        let items = (count / vector).div_ceil(AT_A_TIME);
        Ok(Made::of(self.name(), vec![maker.spread(&source, "find_overflow", items, arguments)?], 0))
    }
}

impl OnGpu for AdjustLossScale {
    fn make(&self, operands: &[Operand], _counts: [usize; 3], maker: &Maker<'_>) -> Result<Made, String> {
        expect_f32(&operands[0])?;
        let numbers = [self.grows_after.into(), MOST_STEPS.into()].map(Argument::Double);
        let arguments = [Argument::Operand(0)].into_iter().chain(numbers).collect();
        let shape = Shape { grid: [1; 3], block: [1; 3], shared: 0 };
        // The same file as that of the search for whole vectors.
        let source = Source::of("loss_scale", DType::F32, vector(&[DType::F32], &[]));
        Ok(Made::of(self.name(), vec![maker.launch(&source, "adjust_loss_scale", shape, arguments)?], 0))
    }
}
