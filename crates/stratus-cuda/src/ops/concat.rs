//! Concatenation of feature maps along the channels: of matrices `[N · H · W, C_i]` along their columns.

use super::convert::check_types;
use super::{BuildResult, GpuOp, KernelBuilder, Operand, THREADS, int, long, vector};
use crate::processor::{Argument, Implementation, Shape, Source};
use stratus_engine::Layout;
use stratus_engine::ops::{ConcatBackward, ConcatForward};

/// The maximum number of inputs of a step, in addition to its output and scratch.
const MAX_INPUTS: usize = 14;

/// The shape `[N, C, H, W]` of a channels-last value.
///
/// # Errors
/// If it has another layout.
pub(super) fn channels_last(operand: &Operand) -> Result<[usize; 4], String> {
    let shape = operand.image()?;
    if !operand.layout.same_bytes(&Layout::channels_last(&shape)) {
        return Err(format!("`{}` is not channels last", operand.value.name));
    }
    Ok(shape)
}

/// Concatenates the rows of matrices `[rows, widths[i]]` into the last operand, `[rows, Σ widths]`.
pub(super) fn join(
    name: &str,
    operands: &[Operand],
    rows: usize,
    widths: &[usize],
    builder: &KernelBuilder<'_>,
) -> Result<Implementation, String> {
    let (dtype, output) = (operands[0].dtype(), operands.len() - 1);
    if output > MAX_INPUTS || operands.iter().any(|operand| operand.dtype() != dtype) {
        return Err("too many inputs, or inputs of different types".to_owned());
    }
    let vector = vector(&[dtype], widths);
    let mut arguments = vec![Argument::Operand(output), long(widths.iter().sum()), long(rows)];
    arguments.extend((0..MAX_INPUTS).map(|i| if i < output { Argument::Operand(i) } else { Argument::Null }));
    for i in 0..MAX_INPUTS {
        arguments.push(int(widths.get(i).map_or(0, |width| width / vector))?);
    }
    let vectors = rows * widths.iter().max().copied().unwrap_or(0) / vector;
    let blocks = vectors
        .div_ceil(THREADS as usize)
        .clamp(1, (16 * builder.processor.multiprocessors() as usize).div_ceil(output).max(1));
    let shape = Shape { grid: [blocks as u32, output as u32, 1], block: [THREADS, 1, 1], shared: 0 };
    let launch = builder.launch(&Source::new("concat", dtype, vector), "join_rows", shape, arguments)?;
    Ok(Implementation::native(name, vec![launch], 0))
}

/// Copies columns of the first operand, `[rows, widths[0]]`, starting with column `first`, to the second,
/// `[rows, widths[1]]`.
pub(super) fn take_columns(
    name: &str,
    operands: &[Operand],
    rows: usize,
    first: usize,
    widths: [usize; 2],
    builder: &KernelBuilder<'_>,
) -> Result<Implementation, String> {
    let dtype = operands[0].dtype();
    if operands[1].dtype() != dtype {
        return Err(format!("cannot convert {dtype} to {}", operands[1].dtype()));
    }
    let mut lengths = vec![first, widths[1]];
    // With a single row, the alignment of a second one does not matter.
    lengths.extend((rows > 1).then_some(widths[0]));
    let vector = vector(&[dtype], &lengths);
    let arguments = vec![
        Argument::OperandOffset(0, first * dtype.bytes()),
        long(widths[0]),
        Argument::Operand(1),
        long(widths[1]),
        long(rows),
        int(widths[1] / vector)?,
    ];
    let source = Source::new("concat", dtype, vector);
    let launch = builder.grid_stride(&source, "copy_rows", rows * widths[1] / vector, arguments)?;
    Ok(Implementation::native(name, vec![launch], 0))
}

impl GpuOp for ConcatForward {
    fn build(&self, operands: &[Operand], _counts: [usize; 3], builder: &KernelBuilder<'_>) -> BuildResult {
        check_types(operands)?;
        let maps = operands.iter().map(channels_last).collect::<Result<Vec<_>, _>>()?;
        let [n, _, h, w] = maps[0];
        let widths: Vec<usize> = maps[..maps.len() - 1].iter().map(|map| map[1]).collect();
        join("concat", operands, n * h * w, &widths, builder)
    }
}

impl GpuOp for ConcatBackward {
    fn build(&self, operands: &[Operand], _counts: [usize; 3], builder: &KernelBuilder<'_>) -> BuildResult {
        check_types(operands)?;
        let ([n, all, h, w], [_, part, ..]) = (channels_last(&operands[0])?, channels_last(&operands[1])?);
        take_columns("concat_backward", operands, n * h * w, self.first, [all, part], builder)
    }
}
