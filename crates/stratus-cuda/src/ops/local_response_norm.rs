//! Local response normalisation across channels.

use super::{BuildResult, GpuOp, KernelBuilder, Operand, check_type, int, long, vector};
use crate::processor::{Argument, Implementation, Source};
use stratus_engine::ops::{LrnBackward, LrnForward};
use stratus_graph::ops::LocalResponseNorm;

/// The maximum number of a map's elements that a thread holds in registers; more would spill.
const MAX_REGISTER_ELEMENTS: usize = 40;

/// The source for a map whose windows extend `reach` channels to either side of a vector, and the number of
/// work items.
fn source(norm: &LocalResponseNorm, x: &Operand, reach: usize) -> Result<(Source, usize), String> {
    let (dtype, [_, channels, ..]) = (x.dtype(), x.image()?);
    check_type(dtype)?;
    let register_elements = |vector: usize| 2 * reach.div_ceil(vector) * vector + vector;
    let vector = vector(&[dtype], &[channels]);
    let exceeds_registers = register_elements(vector) > MAX_REGISTER_ELEMENTS;
    let vector = if exceeds_registers { 1 } else { vector };
    let power = if norm.beta == 0.75 {
        1
    } else if norm.beta == 0.5 {
        2
    } else if norm.beta == 1.0 {
        3
    } else {
        0
    };
    let items = x.elements() / vector;
    // Grid-stride loops count beyond the items, by less than their number.
    let index = if items < 1 << 30 { "u32" } else { "i64" };
    // Windows end at the last channel anyway; the sum of both sides must fit an int.
    let sides = [norm.size / 2, (norm.size - 1) / 2].map(|side| side.min(channels));
    let text = include_str!("../source/local_response_norm.cu");
    let source = Source::of_text("local_response_norm", text, dtype, vector)
        .with("BEFORE", sides[0])
        .with("AFTER", sides[1])
        .with("WIDE", u8::from(exceeds_registers))
        .with("POWER", power)
        .with("INDEX", index);
    Ok((source, items))
}

/// The parameters of both kernels after the addresses.
fn numbers(norm: &LocalResponseNorm, x: &Operand) -> Result<[Argument; 5], String> {
    let [_, channels, ..] = x.image()?;
    let weight = norm.alpha / norm.size as f32;
    let floats = [norm.k, weight, norm.beta].map(Argument::Float);
    Ok([long(x.elements()), int(channels)?, floats[0], floats[1], floats[2]])
}

impl GpuOp for LrnForward {
    fn build(&self, operands: &[Operand], _counts: [usize; 3], builder: &KernelBuilder<'_>) -> BuildResult {
        let (source, items) = source(&self.norm, &operands[0], self.norm.size / 2)?;
        let arguments = (0..2).map(Argument::Operand).chain(numbers(&self.norm, &operands[0])?).collect();
        let launch = builder.grid_stride(&source, "lrn_forward", items, arguments)?;
        Ok(Implementation::native("lrn", vec![launch], 0))
    }
}

impl GpuOp for LrnBackward {
    fn build(&self, operands: &[Operand], _counts: [usize; 3], builder: &KernelBuilder<'_>) -> BuildResult {
        let norm = &self.norm;
        let (source, items) = source(norm, &operands[0], norm.size - 1)?;
        let slope = 2.0 * norm.beta * norm.alpha / norm.size as f32;
        let arguments = (0..3).map(Argument::Operand).chain(numbers(norm, &operands[0])?);
        let arguments = arguments.chain([Argument::Float(slope)]).collect();
        let launch = builder.grid_stride(&source, "lrn_backward", items, arguments)?;
        Ok(Implementation::native("lrn_backward", vec![launch], 0))
    }
}
