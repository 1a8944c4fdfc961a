//! Loss scaling for gradients in f16: the search for infinities and NaN, and the scale of the next iteration.

use super::convert::check_types;
use super::{BuildResult, GpuOp, KernelBuilder, Operand, long, vector};
use crate::processor::{Argument, Implementation, Shape, Source};
use stratus_engine::DType;
use stratus_engine::ops::{AdjustLossScale, FindOverflow, INITIAL_SCALE, KernelSpec, MAX_EXPONENT};

/// Vectors that a thread of the search loads at once, as in `loss_scale.cu`.
const LOADS_IN_FLIGHT: usize = 4;

/// Checks that a loss scale is f32, as the kernels require.
pub(super) fn expect_f32(scale: &Operand) -> Result<(), String> {
    match scale.dtype() {
        DType::F32 => Ok(()),
        other => Err(format!("`{}`: expected f32, got {other}", scale.value.name)),
    }
}

/// The source of a kernel whose gradients may be `scaled`, and its argument for the scale, the operand after
/// the first `inputs` ones.
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
    let source = source.with("SCALED", 1).with("FIRST_EXPONENT", INITIAL_SCALE.log2() as i32);
    Ok((source, Argument::Operand(inputs)))
}

impl GpuOp for FindOverflow {
    fn build(&self, operands: &[Operand], _counts: [usize; 3], builder: &KernelBuilder<'_>) -> BuildResult {
        let (gradient, scale) = (&operands[0], &operands[1]);
        check_types([gradient])?;
        expect_f32(scale)?;
        // Padding is zero, so it may be searched too.
        let count = gradient.elements();
        let vector = vector(&[gradient.dtype()], &[count]);
        let source = Source::new("loss_scale", gradient.dtype(), vector);
        let arguments = vec![Argument::Operand(0), Argument::Operand(1), long(count)];
        let items = (count / vector).div_ceil(LOADS_IN_FLIGHT);
        Ok(Implementation::native(
            self.name(),
            vec![builder.grid_stride(&source, "find_overflow", items, arguments)?],
            0,
        ))
    }
}

impl GpuOp for AdjustLossScale {
    fn build(&self, operands: &[Operand], _counts: [usize; 3], builder: &KernelBuilder<'_>) -> BuildResult {
        expect_f32(&operands[0])?;
        let numbers = [self.growth_interval.into(), MAX_EXPONENT.into()].map(Argument::Double);
        let arguments = [Argument::Operand(0)].into_iter().chain(numbers).collect();
        let shape = Shape { grid: [1; 3], block: [1; 3], shared: 0 };
        // The source of the search with whole vectors, so that it is compiled once.
        let source = Source::new("loss_scale", DType::F32, vector(&[DType::F32], &[]));
        Ok(Implementation::native(
            self.name(),
            vec![builder.launch(&source, "adjust_loss_scale", shape, arguments)?],
            0,
        ))
    }
}
