//! Feature maps one behind the other: as matrices of pixels and channels, their rows side by side.

use super::convert::check_types;
use super::{Maker, OnGpu, Operand, THREADS, int, long, vector};
use crate::processor::{Argument, Made, Shape, Source};
use stratus_engine::Layout;
use stratus_engine::ops::{ConcatBackward, ConcatForward};

/// The most inputs: as many as a step can have beside its output and its scratch.
const MAX_INPUTS: usize = 14;

/// `[N, C, H, W]` of a value whose channels lie last.
pub(super) fn channels_last(operand: &Operand) -> Result<[usize; 4], String> {
    let shape = operand.image()?;
    if !operand.layout.same_bytes(&Layout::channels_last(&shape)) {
        return Err(format!("`{}` does not lie channels last", operand.value.name));
    }
    Ok(shape)
}

/// Puts `rows` rows of all operands but the last side by side: those of the last. `widths` are elements.
pub(super) fn join(
    name: &str,
    operands: &[Operand],
    rows: usize,
    widths: &[usize],
    maker: &Maker<'_>,
) -> Result<Made, String> {
    let (dtype, output) = (operands[0].dtype(), operands.len() - 1);
    if output > MAX_INPUTS || operands.iter().any(|operand| operand.dtype() != dtype) {
        return Err("it has too many inputs, or inputs of several types".to_owned());
    }
    let vector = vector(&[dtype], widths);
    let mut arguments = vec![Argument::Operand(output), long(widths.iter().sum()), long(rows)];
    arguments.extend((0..MAX_INPUTS).map(|i| if i < output { Argument::Operand(i) } else { Argument::Null }));
    for i in 0..MAX_INPUTS {
        arguments.push(int(widths.get(i).map_or(0, |width| width / vector))?);
    }
    let most = rows * widths.iter().max().copied().unwrap_or(0) / vector;
    let blocks = most
        .div_ceil(THREADS as usize)
        .clamp(1, (16 * maker.processor.multiprocessors() as usize).div_ceil(output).max(1));
    let shape = Shape { grid: [blocks as u32, output as u32, 1], block: [THREADS, 1, 1], shared: 0 };
    let launch = maker.launch(&Source::of("concat", dtype, vector), "join_rows", shape, arguments)?;
    Ok(Made::of(name, vec![launch], 0))
}

/// Takes rows of the second operand out of those of the first, from one of their elements on. `widths` are the elements of both.
pub(super) fn take_out(
    name: &str,
    operands: &[Operand],
    rows: usize,
    first: usize,
    widths: [usize; 2],
    maker: &Maker<'_>,
) -> Result<Made, String> {
    let dtype = operands[0].dtype();
    if operands[1].dtype() != dtype {
        return Err(format!("it changes {dtype} into {}", operands[1].dtype()));
    }
    let mut lengths = vec![first, widths[1]];
    // Of a single row the next one's place does not matter.
    lengths.extend((rows > 1).then_some(widths[0]));
    let vector = vector(&[dtype], &lengths);
    let arguments = vec![
        Argument::Inside(0, first * dtype.bytes()),
        long(widths[0]),
        Argument::Operand(1),
        long(widths[1]),
        long(rows),
        int(widths[1] / vector)?,
    ];
    let source = Source::of("concat", dtype, vector);
    let launch = maker.spread(&source, "copy_rows", rows * widths[1] / vector, arguments)?;
    Ok(Made::of(name, vec![launch], 0))
}

impl OnGpu for ConcatForward {
    fn make(&self, operands: &[Operand], _counts: [usize; 3], maker: &Maker<'_>) -> Result<Made, String> {
        check_types(operands)?;
        let maps = operands.iter().map(channels_last).collect::<Result<Vec<_>, _>>()?;
        let [n, _, h, w] = maps[0];
        let widths: Vec<usize> = maps[..maps.len() - 1].iter().map(|map| map[1]).collect();
        join("concat", operands, n * h * w, &widths, maker)
    }
}

impl OnGpu for ConcatBackward {
    fn make(&self, operands: &[Operand], _counts: [usize; 3], maker: &Maker<'_>) -> Result<Made, String> {
        check_types(operands)?;
        let ([n, all, h, w], [_, own, ..]) = (channels_last(&operands[0])?, channels_last(&operands[1])?);
        take_out("concat_backward", operands, n * h * w, self.first, [all, own], maker)
    }
}
