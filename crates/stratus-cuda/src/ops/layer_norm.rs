//! Layer normalisation over the channels of each pixel.

use super::bias::sum_parts;
use super::channel_scale::maps_of_one_type;
use super::{BuildResult, GpuOp, KernelBuilder, Operand, THREADS, int, long, vector};
use crate::processor::{Argument, Implementation, Launch, Shape, Source};
use stratus_engine::DType;
use stratus_engine::ops::{KernelSpec, LayerNormBackward, LayerNormForward, LayerNormGradients};

/// The threads of a warp.
const WARP: usize = 32;
/// The number of pixels that a block sums in parallel.
const ROWS_PER_BLOCK: usize = 8;

/// Channels-last maps of one type.
pub(super) struct Maps {
    /// The pixels of the batch, and the channels.
    pub extents: [usize; 2],
    /// The type of the elements.
    pub dtype: DType,
    /// Channels that a thread loads at once.
    pub vector: usize,
    /// The source of their kernels.
    pub source: Source,
}

/// The maps of a step, as the kernels need them.
pub(super) fn maps(operands: &[&Operand]) -> Result<Maps, String> {
    let [n, channels, h, w] = maps_of_one_type(operands)?;
    let dtype = operands[0].dtype();
    let vector = vector(&[dtype], &[channels]);
    let source = Source::new("layer_norm", dtype, vector);
    Ok(Maps { extents: [n * h * w, channels], dtype, vector, source })
}

/// The launch of a kernel with one pixel per warp.
fn by_warps(
    name: &str,
    maps: &Maps,
    epsilon: f32,
    mut arguments: Vec<Argument>,
    builder: &KernelBuilder<'_>,
) -> Result<Launch, String> {
    let [rows, channels] = maps.extents;
    arguments.extend([long(rows), int(channels)?, Argument::Float(epsilon)]);
    let max_blocks = 16 * builder.processor.multiprocessors() as usize;
    let blocks = rows.div_ceil(THREADS as usize / WARP).clamp(1, max_blocks);
    let shape = Shape { grid: [blocks as u32, 1, 1], block: [THREADS, 1, 1], shared: 0 };
    builder.launch(&maps.source, name, shape, arguments)
}

/// The launches that sum `dy` times `x`, or times `x` normalised by `moments`, over all pixels (operands 1
/// and 0). Results are the operands `to`: products, and plain sums of `dy` if there are two. The scratch
/// before `offset` is not used; returns its end.
pub(super) fn sums(
    maps: &Maps,
    moments: Argument,
    to: &[usize],
    offset: usize,
    builder: &KernelBuilder<'_>,
) -> Result<(Vec<Launch>, usize), String> {
    let [rows, channels] = maps.extents;
    let across = channels.div_ceil(WARP * maps.vector);
    let target_blocks = (4 * builder.processor.multiprocessors() as usize).div_ceil(across);
    let parts = rows.div_ceil(4 * ROWS_PER_BLOCK).clamp(1, target_blocks);
    let offset = offset.next_multiple_of(256);
    let bytes = parts * channels * size_of::<f64>();
    let offset_of = |position: usize| offset + position * bytes;
    let extent = |count: usize| u32::try_from(count).map_err(|_| format!("{count} blocks exceed the grid"));
    let shape = Shape {
        grid: [extent(across)?, extent(parts)?, 1],
        block: [WARP as u32, ROWS_PER_BLOCK as u32, 1],
        shared: 0,
    };
    let plain = if to.len() > 1 { Argument::Scratch(offset_of(1)) } else { Argument::Null };
    let arguments = [Argument::Operand(0), Argument::Operand(1), moments, Argument::Scratch(offset), plain];
    let arguments = arguments.into_iter().chain([long(rows), int(channels)?]).collect();
    let mut launches = vec![builder.launch(&maps.source, "channel_sums", shape, arguments)?];
    let adding = Source::new("conv", maps.dtype, maps.vector).with("RELU", 0);
    for (position, &to) in to.iter().enumerate() {
        launches.push(sum_parts(&adding, offset_of(position), to, [parts, channels], builder)?);
    }
    Ok((launches, offset_of(to.len())))
}

impl GpuOp for LayerNormForward {
    fn build(&self, operands: &[Operand], _counts: [usize; 3], builder: &KernelBuilder<'_>) -> BuildResult {
        let maps = maps(&[&operands[0], &operands[3]])?;
        let arguments = (0..4).map(Argument::Operand).collect();
        let launch = by_warps("layer_norm", &maps, self.norm.epsilon, arguments, builder)?;
        Ok(Implementation::native(self.name(), vec![launch], 0))
    }
}

impl GpuOp for LayerNormBackward {
    fn build(&self, operands: &[Operand], _counts: [usize; 3], builder: &KernelBuilder<'_>) -> BuildResult {
        let maps = maps(&[&operands[0], &operands[1], &operands[3]])?;
        let arguments = (0..4).map(Argument::Operand).collect();
        let launch = by_warps("layer_norm_backward", &maps, self.norm.epsilon, arguments, builder)?;
        Ok(Implementation::native(self.name(), vec![launch], 0))
    }
}

impl GpuOp for LayerNormGradients {
    fn build(&self, operands: &[Operand], _counts: [usize; 3], builder: &KernelBuilder<'_>) -> BuildResult {
        let maps = maps(&[&operands[0], &operands[1]])?;
        let arguments = vec![Argument::Operand(0), Argument::Scratch(0)];
        let moments = by_warps("layer_norm_moments", &maps, self.norm.epsilon, arguments, builder)?;
        let moment_bytes = 2 * maps.extents[0] * size_of::<f32>();
        let (launches, bytes) = sums(&maps, Argument::Scratch(0), &[2, 3], moment_bytes, builder)?;
        let launches = [moments].into_iter().chain(launches).collect();
        Ok(Implementation::native(self.name(), launches, bytes))
    }
}
