//! ReLU with a trained slope below 0.

use super::bias::sum_parts;
use super::concat::channels_last;
use super::convert::{check_types, elementwise_in};
use super::{BuildResult, GpuOp, KernelBuilder, Operand, THREADS, int, long};
use crate::processor::{Argument, Implementation, Shape, Source};
use stratus_engine::ops::{KernelSpec, PreluBackward, PreluForward, PreluGradient};

/// The vectors of channels, and the pixels, that a block sums at once.
const SUM_THREADS: [usize; 2] = [32, 8];

/// The pixels of the batch and the channels of maps with one layout: `x`, `dy` and the result.
fn extents(maps: [&Operand; 3]) -> Result<[usize; 2], String> {
    check_types(maps)?;
    maps.into_iter().try_for_each(|map| channels_last(map).map(|_| ()))?;
    let [n, c, h, w] = maps[0].image()?;
    Ok([n * h * w, c])
}

/// An elementwise kernel of `x`, `dy` and the result, which may be the same operand, with slopes.
fn elementwise(
    name: &str,
    maps: [&Operand; 3],
    slopes: &Operand,
    operands: usize,
    builder: &KernelBuilder<'_>,
) -> BuildResult {
    let [pixels, channels] = extents(maps)?;
    let (count, is_shared) = (pixels * channels, slopes.elements() == 1);
    let period = if is_shared { 1 } else { channels };
    let types = maps.map(Operand::dtype);
    let (source, vector) = elementwise_in("prelu", types, if is_shared { count } else { channels });
    let addresses = (0..operands).map(Argument::Operand);
    let arguments = addresses.chain([long(count), int(period)?]).collect();
    let launch = builder.grid_stride(&source, name, count / vector, arguments)?;
    Ok(Implementation::native(name, vec![launch], 0))
}

impl GpuOp for PreluForward {
    fn build(&self, operands: &[Operand], _counts: [usize; 3], builder: &KernelBuilder<'_>) -> BuildResult {
        let [x, slopes, y] = operands else { return Err("expected three operands".to_owned()) };
        elementwise(self.name(), [x, x, y], slopes, 3, builder)
    }
}

impl GpuOp for PreluBackward {
    fn build(&self, operands: &[Operand], _counts: [usize; 3], builder: &KernelBuilder<'_>) -> BuildResult {
        let [x, dy, slopes, dx] = operands else { return Err("expected four operands".to_owned()) };
        elementwise(self.name(), [x, dy, dx], slopes, 4, builder)
    }
}

impl GpuOp for PreluGradient {
    /// Partial sums for each channel and part of the pixels are added up, over all channels if they share the
    /// slope.
    fn build(&self, operands: &[Operand], _counts: [usize; 3], builder: &KernelBuilder<'_>) -> BuildResult {
        let [x, dy, gradient] = operands else { return Err("expected three operands".to_owned()) };
        let [pixels, channels] = extents([x, dy, dy])?;
        let (source, vector) = elementwise_in("prelu", [x, dy, dy].map(Operand::dtype), channels);
        let [wide, high] = SUM_THREADS;
        let across = channels.div_ceil(wide * vector);
        let target_blocks = (4 * builder.processor.multiprocessors() as usize).div_ceil(across);
        let parts = pixels.div_ceil(4 * high).clamp(1, target_blocks);
        let extent =
            |count: usize| u32::try_from(count).map_err(|_| format!("{count} blocks exceed the grid"));
        let shape = Shape {
            grid: [extent(across)?, extent(parts)?, 1],
            block: [wide as u32, high as u32, 1],
            shared: 0,
        };
        let arguments = vec![
            Argument::Operand(0),
            Argument::Operand(1),
            Argument::Scratch(0),
            long(pixels),
            int(channels)?,
        ];
        let mut launches = vec![builder.launch(&source, "prelu_sums", shape, arguments)?];
        if gradient.elements() == 1 {
            let shape = Shape { grid: [1; 3], block: [THREADS, 1, 1], shared: 0 };
            let arguments = vec![Argument::Scratch(0), Argument::Operand(2), long(parts * channels)];
            launches.push(builder.launch(&source, "prelu_sum_of_all", shape, arguments)?);
        } else {
            let adding = Source::new("conv", dy.dtype(), 1).with("RELU", 0);
            launches.push(sum_parts(&adding, 0, 2, [parts, channels], builder)?);
        }
        Ok(Implementation::native(self.name(), launches, parts * channels * size_of::<f64>()))
    }
}
