//! Average pooling, over windows and to a given size (adaptive).

use super::max_pool2d::{Sizes, Windows};
use super::{BuildResult, GpuOp, KernelBuilder, Operand, int};
use crate::processor::{Argument, Implementation, Launch, Shape, Source};
use stratus_engine::ops::{AvgPoolBackward, AvgPoolForward, AvgPooling};
use stratus_graph::ops::AdaptiveAvgPool2d;

/// The threads of a block that averages whole maps: along the vectors of channels and along the pixels.
const WHOLE_MAP_THREADS: [u32; 2] = [32, 8];

/// The windows; whether they are bins of adaptive pooling, and whether padding counts.
fn windows(averages: &AvgPooling) -> (Windows, Option<[bool; 2]>) {
    match averages {
        AvgPooling::Windows(pool) => (
            Windows { kernel: pool.kernel, stride: pool.stride, padding: pool.padding },
            Some([false, pool.count_include_pad]),
        ),
        // The kernel computes bins from the sizes.
        AvgPooling::Bins(_) => {
            (Windows { kernel: [1; 2], stride: [1; 2], padding: [0; 2] }, Some([true, false]))
        }
    }
}

/// The divisor of the sum over a whole map, if a single output averages all of it.
fn whole_map_divisor(averages: &AvgPooling, sizes: &Sizes) -> Option<usize> {
    let [vertical, horizontal] = [0, 1].map(|axis| averages.range(axis, 0, sizes.image[axis]));
    let is_whole = sizes.pooled == [1, 1]
        && vertical.pixels == (0..sizes.image[0])
        && horizontal.pixels == (0..sizes.image[1]);
    is_whole.then_some(vertical.count * horizontal.count)
}

/// Writes the sum over each channel of `x`, divided by `divisor`, to the single pixel of `y`.
fn whole_maps(
    sizes: &Sizes,
    source: &Source,
    divisor: usize,
    builder: &KernelBuilder<'_>,
) -> Result<Launch, String> {
    let chunks = sizes.groups().div_ceil(WHOLE_MAP_THREADS[0] as usize);
    let share = Argument::Float((1.0 / divisor as f64) as f32);
    let mut arguments = vec![Argument::Operand(0), Argument::Operand(1)];
    arguments.extend([int(sizes.groups())?, int(chunks)?, int(sizes.image.iter().product())?, share]);
    let grid = u32::try_from(sizes.batch * chunks).map_err(|error| error.to_string())?;
    let [across, down] = WHOLE_MAP_THREADS;
    let shape = Shape { grid: [grid, 1, 1], block: [across, down, 1], shared: 0 };
    builder.launch(source, "avg_pool_whole", shape, arguments)
}

/// Writes the sum over each channel of the first operand, `x`, divided by `divisor`, to the single pixel of
/// the second, `y`, of the same type.
pub(super) fn sum_whole_maps(
    x: &Operand,
    y: &Operand,
    divisor: usize,
    builder: &KernelBuilder<'_>,
) -> Result<Launch, String> {
    let sizes = Sizes::new(x, y)?;
    let (windows, kind) = windows(&AvgPooling::Bins(AdaptiveAvgPool2d::GLOBAL));
    let (_, source) = sizes.items(sizes.pooled, x, windows, kind);
    whole_maps(&sizes, &source, divisor, builder)
}

impl GpuOp for AvgPoolForward {
    fn build(&self, operands: &[Operand], _counts: [usize; 3], builder: &KernelBuilder<'_>) -> BuildResult {
        let (x, y) = (&operands[0], &operands[1]);
        let sizes = Sizes::new(x, y)?;
        let (windows, kind) = windows(&self.pooling);
        let (items, source) = sizes.items(sizes.pooled, x, windows, kind);
        let pixels: usize = sizes.image.iter().product();
        let launch = if let Some(divisor) = whole_map_divisor(&self.pooling, &sizes).filter(|_| pixels > 1) {
            whole_maps(&sizes, &source, divisor, builder)?
        } else {
            let mut arguments = vec![Argument::Operand(0), Argument::Operand(1)];
            arguments.extend(sizes.arguments(items)?);
            builder.grid_stride(&source, "avg_pool_forward", items, arguments)?
        };
        Ok(Implementation::native("avg_pool", vec![launch], 0))
    }
}

impl GpuOp for AvgPoolBackward {
    fn build(&self, operands: &[Operand], _counts: [usize; 3], builder: &KernelBuilder<'_>) -> BuildResult {
        let (dy, dx) = (&operands[0], &operands[1]);
        let sizes = Sizes::new(dx, dy)?;
        let (windows, kind) = windows(&self.pooling);
        let (items, source) = sizes.items(sizes.image, dx, windows, kind);
        let mut arguments = vec![Argument::Operand(0), Argument::Operand(1)];
        arguments.extend(sizes.arguments(items)?);
        let launch = builder.grid_stride(&source, "avg_pool_backward", items, arguments)?;
        Ok(Implementation::native("avg_pool_backward", vec![launch], 0))
    }
}
