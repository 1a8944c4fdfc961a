//! Power-average pooling of norm 2.

use super::max_pool2d::Sizes;
use super::{BuildResult, GpuOp, KernelBuilder, Operand, int, long};
use crate::processor::{Argument, Implementation, Source};
use stratus_engine::ops::{KernelSpec, LpPoolBackward, LpPoolForward};
use stratus_graph::ops::LpPool2d;

/// The step with one kernel, whose result has `[height, width]` pixels.
fn step(
    name: &str,
    pool: &LpPool2d,
    [x, y]: [&Operand; 2],
    operands: usize,
    builder: &KernelBuilder<'_>,
) -> BuildResult {
    let sizes = Sizes::new(x, y)?;
    let [height, width] = if operands == 2 { sizes.pooled } else { sizes.image };
    let items = sizes.batch * height * width * sizes.groups();
    let mut arguments: Vec<Argument> = (0..operands).map(Argument::Operand).collect();
    arguments.extend([long(items), int(sizes.channels)?]);
    for extent in [sizes.image, sizes.pooled, pool.kernel, pool.stride].concat() {
        arguments.push(int(extent)?);
    }
    let text = include_str!("../source/lp_pool.cu");
    let source = Source::of_text("lp_pool", text, x.dtype(), sizes.vector);
    let launch = builder.grid_stride(&source, name, items, arguments)?;
    Ok(Implementation::native(name, vec![launch], 0))
}

impl GpuOp for LpPoolForward {
    fn build(&self, operands: &[Operand], _counts: [usize; 3], builder: &KernelBuilder<'_>) -> BuildResult {
        step(self.name(), &self.pool, [&operands[0], &operands[1]], 2, builder)
    }
}

impl GpuOp for LpPoolBackward {
    fn build(&self, operands: &[Operand], _counts: [usize; 3], builder: &KernelBuilder<'_>) -> BuildResult {
        Sizes::new(&operands[3], &operands[2])?;
        step(self.name(), &self.pool, [&operands[0], &operands[1]], 4, builder)
    }
}
