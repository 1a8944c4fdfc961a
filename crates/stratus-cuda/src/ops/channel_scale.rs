//! A factor for each channel of a sample.

use super::concat::channels_last;
use super::convert::check_types;
use super::{KernelBuilder, OnGpu, Operand, int, long, vector};
use crate::processor::{Argument, Implementation, Shape, Source};
use stratus_engine::ops::{ChannelScale, ChannelScaleGradient};

/// Threads of a block that sums pixels: along the vectors of channels and along the pixels.
const SUMMING_THREADS: [u32; 2] = [32, 8];

/// `[N, C, H, W]` of maps that are laid out channels last, of one type.
pub(super) fn maps_of_one_type(operands: &[&Operand]) -> Result<[usize; 4], String> {
    check_types(operands.iter().copied())?;
    operands.iter().try_for_each(|operand| channels_last(operand).map(|_| ()))?;
    if operands.windows(2).any(|pair| pair[0].dtype() != pair[1].dtype()) {
        return Err("it has maps of several types".to_owned());
    }
    operands[0].image()
}

impl OnGpu for ChannelScale {
    fn build(
        &self,
        operands: &[Operand],
        _counts: [usize; 3],
        builder: &KernelBuilder<'_>,
    ) -> Result<Implementation, String> {
        let [n, c, h, w] = maps_of_one_type(&[&operands[0], &operands[1], &operands[2]])?;
        let dtype = operands[0].dtype();
        let vector = vector(&[dtype], &[c]);
        let items = n * h * w * (c / vector);
        let mut arguments: Vec<Argument> = (0..3).map(Argument::Operand).collect();
        arguments.extend([long(items), int(c / vector)?, int(h * w)?]);
        let source = Source::of("channel_scale", dtype, vector);
        let launch = builder.grid_stride(&source, "channel_scale", items, arguments)?;
        Ok(Implementation::native("channel_scale", vec![launch], 0))
    }
}

impl OnGpu for ChannelScaleGradient {
    fn build(
        &self,
        operands: &[Operand],
        _counts: [usize; 3],
        builder: &KernelBuilder<'_>,
    ) -> Result<Implementation, String> {
        let [n, c, h, w] = maps_of_one_type(&[&operands[0], &operands[1], &operands[2]])?;
        let dtype = operands[0].dtype();
        let vector = vector(&[dtype], &[c]);
        let groups = c / vector;
        let [across, down] = SUMMING_THREADS;
        let chunks = groups.div_ceil(across as usize);
        let mut arguments: Vec<Argument> = (0..3).map(Argument::Operand).collect();
        arguments.extend([int(groups)?, int(chunks)?, int(h * w)?]);
        let grid = u32::try_from(n * chunks).map_err(|error| error.to_string())?;
        let shape = Shape { grid: [grid, 1, 1], block: [across, down, 1], shared: 0 };
        let source = Source::of("channel_scale", dtype, vector);
        let launch = builder.launch(&source, "channel_scale_gradient", shape, arguments)?;
        Ok(Implementation::native("channel_scale_gradient", vec![launch], 0))
    }
}
