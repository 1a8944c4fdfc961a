//! Gradient clipping by the global norm.

use super::convert::check_types;
use super::loss_scale::scaled;
use super::{BuildResult, GpuOp, KernelBuilder, Operand, THREADS, long, vector};
use crate::processor::{Argument, Implementation, Shape, Source};
use stratus_engine::DType;
use stratus_engine::ops::{ClipFactor, ClipGradient, KernelSpec, SumOfSquares};

/// The minimum number of elements per block: below, a second block costs more than it saves.
const MIN_ELEMENTS_PER_BLOCK: usize = 1 << 14;
/// The maximum number of blocks per multiprocessor.
const BLOCKS_PER_SM: usize = 4;

impl GpuOp for SumOfSquares {
    fn build(&self, operands: &[Operand], _counts: [usize; 3], builder: &KernelBuilder<'_>) -> BuildResult {
        let gradient = &operands[0];
        check_types([gradient])?;
        // Padding is zero, so it may be summed too.
        let count = gradient.elements();
        let vector = vector(&[gradient.dtype()], &[count]);
        let source = Source::new("clip", gradient.dtype(), vector);
        let max_blocks = BLOCKS_PER_SM * builder.processor.multiprocessors() as usize;
        let blocks = count.div_ceil(MIN_ELEMENTS_PER_BLOCK).clamp(1, max_blocks) as u32;
        let shape = |blocks| Shape { grid: [blocks, 1, 1], block: [THREADS, 1, 1], shared: 0 };
        let first = Argument::Int(i32::from(self.first));
        let arguments =
            vec![Argument::Operand(0), Argument::Scratch(0), Argument::Operand(1), long(count), first];
        let mut launches = vec![builder.launch(&source, "sum_of_squares", shape(blocks), arguments)?];
        if blocks > 1 {
            let arguments =
                vec![Argument::Scratch(0), Argument::Operand(1), Argument::Int(blocks as i32), first];
            launches.push(builder.launch(&source, "add_squares", shape(1), arguments)?);
        }
        Ok(Implementation::native(self.name(), launches, blocks as usize * size_of::<f64>()))
    }
}

impl GpuOp for ClipFactor {
    fn build(&self, operands: &[Operand], _counts: [usize; 3], builder: &KernelBuilder<'_>) -> BuildResult {
        let source = Source::new("clip", DType::F32, vector(&[DType::F32], &[]));
        let (source, scale) = scaled(source, operands, 0, self.loss_scaled)?;
        let norm = Argument::Operand(usize::from(self.loss_scaled));
        let arguments = vec![norm, Argument::Double(self.max_norm), scale];
        let shape = Shape { grid: [1; 3], block: [1; 3], shared: 0 };
        let launch = builder.launch(&source, "clip_factor", shape, arguments)?;
        Ok(Implementation::native(self.name(), vec![launch], 0))
    }
}

impl GpuOp for ClipGradient {
    fn build(&self, operands: &[Operand], _counts: [usize; 3], builder: &KernelBuilder<'_>) -> BuildResult {
        let gradient = &operands[1];
        check_types([gradient])?;
        let count = gradient.elements();
        let vector = vector(&[gradient.dtype()], &[count]);
        let source = Source::new("clip", gradient.dtype(), vector);
        let arguments = vec![Argument::Operand(0), Argument::Operand(1), long(count)];
        let launch = builder.grid_stride(&source, "clip_gradient", count / vector, arguments)?;
        Ok(Implementation::native(self.name(), vec![launch], 0))
    }
}
