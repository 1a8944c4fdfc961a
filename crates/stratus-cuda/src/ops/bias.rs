//! Per-channel bias, alone and after a convolution or a matrix product, and its gradient.

use super::{BuildResult, GpuOp, KernelBuilder, Operand, THREADS, int, long, vector};
use crate::ops::convert::check_types;
use crate::processor::{Argument, Implementation, Launch, Shape, Source};
use stratus_engine::ops::{AddBias, BiasGradient};

/// Adds a bias `[C]` to the map or matrix `y` in place, with ReLU if `relu`. `y` is the operand with its
/// argument.
pub(super) fn add_bias(
    bias: Argument,
    y: (Argument, &Operand),
    relu: bool,
    builder: &KernelBuilder<'_>,
) -> Result<Launch, String> {
    let (argument, y) = y;
    let columns = y.value.shape.get(1).copied().unwrap_or(1);
    let count = y.elements();
    let vector = vector(&[y.dtype()], &[columns]);
    let source = Source::new("conv", y.dtype(), vector).with("RELU", u8::from(relu));
    builder.grid_stride(&source, "add_bias", count / vector, vec![bias, argument, long(count), int(columns)?])
}

/// The launches that sum the rows of a matrix `[N, C]`, or a map `[N, C, H, W]` over `N, H, W`: of operand
/// `from`, to the f32 operand `to` of shape `[C]`. The first `scratch` bytes of the scratch are not used.
pub(super) fn sum_rows(
    x: &Operand,
    [from, to]: [usize; 2],
    scratch: usize,
    builder: &KernelBuilder<'_>,
) -> Result<Implementation, String> {
    const WIDTH: usize = 32;
    const HEIGHT: usize = 8;
    let [n, columns, h, w] = x.image()?;
    let rows = n * h * w;
    let vector = vector(&[x.dtype()], &[columns]);
    let source = Source::new("conv", x.dtype(), vector).with("RELU", 0);
    let across = columns.div_ceil(WIDTH * vector);
    // A few blocks per multiprocessor, none with fewer rows than its threads load at once.
    let target_blocks = (4 * builder.processor.multiprocessors() as usize).div_ceil(across);
    let parts = rows.div_ceil(4 * HEIGHT).clamp(1, target_blocks);
    let offset = scratch.next_multiple_of(256);
    let extent = |count: usize| u32::try_from(count).map_err(|_| format!("{count} blocks exceed the grid"));
    let shape = Shape {
        grid: [extent(across)?, extent(parts)?, 1],
        block: [WIDTH as u32, HEIGHT as u32, 1],
        shared: 0,
    };
    let arguments = vec![Argument::Operand(from), Argument::Scratch(offset), long(rows), int(columns)?];
    let partial_sums = builder.launch(&source, "sum_rows", shape, arguments)?;
    let sums = sum_parts(&source, offset, to, [parts, columns], builder)?;
    Ok(Implementation {
        name: "stratus:sums".to_owned(),
        calls: vec![Box::new(partial_sums), Box::new(sums)],
        scratch_bytes: offset + parts * columns * size_of::<f64>(),
    })
}

/// The launch that adds partial sums `[parts, columns]`, f64 from `offset` in the scratch, to the f32 operand
/// `to`. `source` is a variant of the file `conv`.
pub(super) fn sum_parts(
    source: &Source,
    offset: usize,
    to: usize,
    [parts, columns]: [usize; 2],
    builder: &KernelBuilder<'_>,
) -> Result<Launch, String> {
    let blocks = u32::try_from(columns.div_ceil(THREADS as usize)).unwrap_or(u32::MAX);
    let shape = Shape { grid: [blocks, 1, 1], block: [THREADS, 1, 1], shared: 0 };
    let arguments = vec![Argument::Scratch(offset), Argument::Operand(to), int(parts)?, int(columns)?];
    builder.launch(source, "sum_parts", shape, arguments)
}

impl GpuOp for AddBias {
    fn build(&self, operands: &[Operand], _counts: [usize; 3], builder: &KernelBuilder<'_>) -> BuildResult {
        check_types(operands)?;
        let y = (Argument::Operand(1), &operands[1]);
        let launch = add_bias(Argument::Operand(0), y, false, builder)?;
        Ok(Implementation::native("add_bias", vec![launch], 0))
    }
}

impl GpuOp for BiasGradient {
    fn build(&self, operands: &[Operand], _counts: [usize; 3], builder: &KernelBuilder<'_>) -> BuildResult {
        check_types(operands)?;
        sum_rows(&operands[0], [0, 1], 0, builder)
    }
}
