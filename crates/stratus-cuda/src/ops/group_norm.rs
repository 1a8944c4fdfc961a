//! Group normalisation, of each sample's groups of channels.

use super::bias::sum_parts;
use super::channel_scale::maps_of_one_type;
use super::{BuildResult, GpuOp, KernelBuilder, Operand, THREADS, int, long, vector};
use crate::processor::{Argument, Implementation, Launch, Shape, Source};
use stratus_engine::ops::{GroupNormBackward, GroupNormForward, GroupNormGradients, KernelSpec};
use stratus_graph::ops::GroupNorm;

/// The threads of a block that sums pixels: along the vectors of channels and along the pixels.
const SUM_THREADS: [u32; 2] = [32, 8];

/// Channels-last maps of one type, and their normalisation.
struct Maps {
    norm: GroupNorm,
    samples: usize,
    /// The pixels of a sample.
    pixels: usize,
    /// Channels that a thread loads at once; they are of one group.
    vector: usize,
    source: Source,
}

impl Maps {
    fn new(norm: GroupNorm, operands: &[&Operand]) -> Result<Self, String> {
        let [samples, _, height, width] = maps_of_one_type(operands)?;
        let dtype = operands[0].dtype();
        let vector = vector(&[dtype], &[norm.group_channels()]);
        let source = Source::of_text("group_norm", include_str!("../source/group_norm.cu"), dtype, vector);
        Ok(Self { norm, samples, pixels: height * width, vector, source })
    }

    /// The parameters of all kernels after the addresses, except epsilon.
    fn extents(&self) -> Result<[Argument; 3], String> {
        Ok([long(self.pixels), int(self.norm.channels)?, int(self.norm.groups)?])
    }

    /// The launch of a kernel with a block per group of a sample.
    fn by_groups(
        &self,
        name: &str,
        mut arguments: Vec<Argument>,
        builder: &KernelBuilder<'_>,
    ) -> Result<Launch, String> {
        arguments.extend(self.extents()?);
        arguments.push(Argument::Float(self.norm.epsilon));
        let grid = [grid(self.samples * self.norm.groups)?, 1, 1];
        builder.launch(&self.source, name, Shape { grid, block: [THREADS, 1, 1], shared: 0 }, arguments)
    }
}

/// A number of blocks.
fn grid(count: usize) -> Result<u32, String> {
    i32::try_from(count).map(i32::unsigned_abs).map_err(|_| format!("{count} blocks exceed the grid"))
}

impl GpuOp for GroupNormForward {
    fn build(&self, operands: &[Operand], _counts: [usize; 3], builder: &KernelBuilder<'_>) -> BuildResult {
        let y = operands.len() - 1;
        let maps = Maps::new(self.norm, &[&operands[0], &operands[y]])?;
        let parameters = if self.norm.affine { [1, 2].map(Argument::Operand) } else { [Argument::Null; 2] };
        let arguments = vec![Argument::Operand(0), parameters[0], parameters[1], Argument::Operand(y)];
        let launch = maps.by_groups("group_norm", arguments, builder)?;
        Ok(Implementation::native(self.name(), vec![launch], 0))
    }
}

impl GpuOp for GroupNormBackward {
    fn build(&self, operands: &[Operand], _counts: [usize; 3], builder: &KernelBuilder<'_>) -> BuildResult {
        let dx = operands.len() - 1;
        let maps = Maps::new(self.norm, &[&operands[0], &operands[1], &operands[dx]])?;
        let weight = if self.norm.affine { Argument::Operand(2) } else { Argument::Null };
        let arguments = vec![Argument::Operand(0), Argument::Operand(1), weight, Argument::Operand(dx)];
        let launch = maps.by_groups("group_norm_backward", arguments, builder)?;
        Ok(Implementation::native(self.name(), vec![launch], 0))
    }
}

impl GpuOp for GroupNormGradients {
    /// The statistics of each group, the sums of each sample, and their sums.
    fn build(&self, operands: &[Operand], _counts: [usize; 3], builder: &KernelBuilder<'_>) -> BuildResult {
        let maps = Maps::new(self.norm, &[&operands[0], &operands[1]])?;
        let channels = self.norm.channels;
        let arguments = vec![Argument::Operand(0), Argument::Scratch(0)];
        let mut launches = vec![maps.by_groups("group_norm_moments", arguments, builder)?];
        let moment_bytes = 2 * maps.samples * self.norm.groups * size_of::<f32>();
        let bytes = maps.samples * channels * size_of::<f64>();
        let products = moment_bytes.next_multiple_of(256);
        let sums = products + bytes;
        let mut arguments: Vec<Argument> = (0..2).map(Argument::Operand).collect();
        arguments.extend([0, products, sums].map(Argument::Scratch));
        arguments.extend(maps.extents()?);
        let [x, y] = SUM_THREADS;
        let across = channels.div_ceil(x as usize * maps.vector);
        let shape = Shape { grid: [grid(maps.samples * across)?, 1, 1], block: [x, y, 1], shared: 0 };
        launches.push(builder.launch(&maps.source, "group_norm_sums", shape, arguments)?);
        let adding = Source::new("conv", operands[0].dtype(), maps.vector).with("RELU", 0);
        for (from, to) in [(products, 2), (sums, 3)] {
            launches.push(sum_parts(&adding, from, to, [maps.samples, channels], builder)?);
        }
        Ok(Implementation::native(self.name(), launches, sums + bytes))
    }
}
