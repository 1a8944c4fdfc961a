//! A factor per sample and channel.

use super::concat::channels_last;
use super::convert::check_types;
use super::{BuildResult, GpuOp, KernelBuilder, Operand, int, long, vector};
use crate::processor::{Argument, Implementation, Shape, Source};
use stratus_engine::ops::{ChannelScale, ChannelScaleGradient, ChannelScaleMeanBackward};

/// The threads of a block that sums pixels: along the vectors of channels and along the pixels.
const SUM_THREADS: [u32; 2] = [32, 8];

/// The shape `[N, C, H, W]` of channels-last maps of one type.
pub(super) fn maps_of_one_type(operands: &[&Operand]) -> Result<[usize; 4], String> {
    check_types(operands.iter().copied())?;
    operands.iter().try_for_each(|operand| channels_last(operand).map(|_| ()))?;
    if operands.windows(2).any(|pair| pair[0].dtype() != pair[1].dtype()) {
        return Err("maps have different types".to_owned());
    }
    operands[0].image()
}

/// A kernel over the pixels of maps: the first and the last operand are maps, the others numbers per channel.
fn per_pixel(name: &str, operands: &[Operand], builder: &KernelBuilder<'_>) -> BuildResult {
    let [n, c, h, w] = maps_of_one_type(&operands.iter().collect::<Vec<_>>())?;
    let dtype = operands[0].dtype();
    let vector = vector(&[dtype], &[c]);
    let items = n * h * w * (c / vector);
    let mut arguments: Vec<Argument> = (0..operands.len()).map(Argument::Operand).collect();
    arguments.extend([long(items), int(c / vector)?, int(h * w)?]);
    let launch = builder.grid_stride(&Source::new("channel_scale", dtype, vector), name, items, arguments)?;
    Ok(Implementation::native(name, vec![launch], 0))
}

impl GpuOp for ChannelScale {
    fn build(&self, operands: &[Operand], _counts: [usize; 3], builder: &KernelBuilder<'_>) -> BuildResult {
        per_pixel("channel_scale", operands, builder)
    }
}

impl GpuOp for ChannelScaleMeanBackward {
    fn build(&self, operands: &[Operand], _counts: [usize; 3], builder: &KernelBuilder<'_>) -> BuildResult {
        per_pixel("channel_scale_mean_backward", operands, builder)
    }
}

impl GpuOp for ChannelScaleGradient {
    fn build(&self, operands: &[Operand], _counts: [usize; 3], builder: &KernelBuilder<'_>) -> BuildResult {
        let [n, c, h, w] = maps_of_one_type(&[&operands[0], &operands[1], &operands[2]])?;
        let dtype = operands[0].dtype();
        let vector = vector(&[dtype], &[c]);
        let groups = c / vector;
        let [across, down] = SUM_THREADS;
        let chunks = groups.div_ceil(across as usize);
        let mut arguments: Vec<Argument> = (0..3).map(Argument::Operand).collect();
        arguments.extend([int(groups)?, int(chunks)?, int(h * w)?]);
        let grid = u32::try_from(n * chunks).map_err(|error| error.to_string())?;
        let shape = Shape { grid: [grid, 1, 1], block: [across, down, 1], shared: 0 };
        let source = Source::new("channel_scale", dtype, vector);
        let launch = builder.launch(&source, "channel_scale_gradient", shape, arguments)?;
        Ok(Implementation::native("channel_scale_gradient", vec![launch], 0))
    }
}
