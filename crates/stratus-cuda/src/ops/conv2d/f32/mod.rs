//! Convolutions in f32 by native kernels, for all three passes (`source/conv_f32.cu`). Their sums are more
//! exact than cuDNN's, which add products in sequence.

mod gather;

use crate::ffi::cudnn::{Pass, Problem};
use crate::ops::{
    KernelBuilder, MAX_GRID_YZ, MAX_INT_COUNT, MAX_PARTIAL_SUM_BYTES, Operand, THREADS, int, long,
};
use crate::processor::{Argument, Call, Implementation, Shape, Source};
use stratus_engine::DType;
use stratus_graph::ops::Conv2d;

/// The tiling of the matrix product: see `conv_f32.cu`.
#[derive(Clone, Copy, Debug)]
struct BlockTile {
    /// `[rows, columns]` of a block.
    block: [usize; 2],
    /// `[rows, columns]` of a thread.
    thread: [usize; 2],
    /// Resident blocks per multiprocessor.
    blocks: usize,
    /// Estimated products per clock cycle of a multiprocessor.
    rate: f64,
}

const TILES: [BlockTile; 5] = [
    BlockTile { block: [128, 128], thread: [8, 8], blocks: 1, rate: 95.0 },
    BlockTile { block: [128, 64], thread: [8, 8], blocks: 2, rate: 90.0 },
    BlockTile { block: [64, 64], thread: [8, 4], blocks: 3, rate: 75.0 },
    BlockTile { block: [128, 32], thread: [8, 4], blocks: 3, rate: 70.0 },
    BlockTile { block: [32, 128], thread: [8, 4], blocks: 3, rate: 70.0 },
];

/// The depth of a stage of the pipeline through shared memory.
const TILE_K: usize = 16;
/// The number of stages of the pipeline.
const STAGES: usize = 4;
/// The number of tiles that are measured: those with the least estimated time.
const MEASURED_TILES: usize = 3;
/// The minimum depth of a part of a split product.
const MIN_SPLIT_DEPTH: usize = 256;
/// The maximum number of phases of a strided data gradient, `stride_h · stride_w`: each is a launch.
const MAX_STRIDE_PHASES: usize = 64;

/// Split-K: a matrix product in parts along its depth, whose results a second kernel adds.
#[derive(Clone, Copy, Debug, PartialEq)]
struct SplitK {
    parts: usize,
    /// The estimated time in clock cycles.
    cycles: f64,
}

impl BlockTile {
    fn threads(&self) -> usize {
        let threads = |side: usize| self.block[side] / self.thread[side];
        threads(0) * threads(1)
    }

    fn name(&self) -> String {
        let [rows, columns] = self.block;
        format!("stratus:f32:{rows}x{columns}")
    }

    fn tiles(&self, [rows, columns]: [usize; 2]) -> usize {
        rows.div_ceil(self.block[0]) * columns.div_ceil(self.block[1])
    }

    /// The split of a product `[rows, columns, depth]` with the least estimated time; `elements` is the size
    /// of the result. The bits of the result depend on the split, so it is a function of these parameters
    /// only.
    fn split(&self, [rows, columns, depth]: [usize; 3], elements: usize, multiprocessors: usize) -> SplitK {
        // Bytes per cycle from memory to all multiprocessors; the cycles to launch a block or another kernel.
        const MEMORY_BANDWIDTH: f64 = 1500.0;
        const LAUNCH: f64 = 1500.0;
        let tiles = self.tiles([rows, columns]);
        let cycles_per_depth = (self.block[0] * self.block[1]) as f64 / self.rate;
        let bytes = elements * size_of::<f32>();
        let max_parts =
            (depth / MIN_SPLIT_DEPTH).min(MAX_PARTIAL_SUM_BYTES / bytes.max(1)).clamp(1, MAX_GRID_YZ);
        let splits = (1..=max_parts.min(8 * multiprocessors)).map(|parts| {
            // The blocks of the busiest multiprocessor; a few concurrent blocks do not saturate it.
            let blocks = (tiles * parts).div_ceil(multiprocessors) as f64;
            let blocks = blocks.max(0.75 * self.blocks as f64);
            let sums =
                if parts > 1 { ((2 * parts + 1) * bytes) as f64 / MEMORY_BANDWIDTH + LAUNCH } else { 0.0 };
            SplitK {
                parts,
                cycles: blocks * (part_depth(depth, parts) as f64 * cycles_per_depth + LAUNCH) + sums,
            }
        });
        let fastest = splits.min_by(|a, b| a.cycles.total_cmp(&b.cycles));
        fastest.unwrap_or(SplitK { parts: 1, cycles: 0.0 })
    }
}

/// The depth of every part except the last.
fn part_depth(depth: usize, parts: usize) -> usize {
    depth.div_ceil(parts).next_multiple_of(TILE_K)
}

/// The candidates for a pass of a convolution, the fastest by estimate first; empty if the kernels do not
/// apply. `arguments` are the input, the weight and the output.
pub(super) fn candidates(
    conv: &Conv2d,
    problem: &Problem,
    operands: [&Operand; 3],
    arguments: [Argument; 3],
    builder: &KernelBuilder<'_>,
) -> Result<Vec<Implementation>, String> {
    let is_f32 = operands.iter().all(|operand| operand.dtype() == DType::F32) && !problem.tf32;
    let product = F32Convolution { conv, problem, arguments };
    if !is_f32 || conv.groups != 1 || !product.fits_int() {
        return Ok(Vec::new());
    }
    let multiprocessors = builder.processor.multiprocessors() as usize;
    let split = |tile: BlockTile| (tile, tile.split(product.size(), product.elements(), multiprocessors));
    let mut tiles: Vec<(BlockTile, SplitK)> = TILES.into_iter().map(split).collect();
    tiles.sort_by(|(_, a), (_, b)| a.cycles.total_cmp(&b.cycles));
    let mut candidates = Vec::new();
    for (rank, (tile, split)) in tiles.iter().enumerate() {
        if builder.allows(&tile.name()) && (rank < MEASURED_TILES || builder.requested.is_some()) {
            candidates.push(product.candidate(tile, split.parts, builder)?);
        }
    }
    Ok(candidates)
}

/// A pass of a convolution in f32.
struct F32Convolution<'a> {
    conv: &'a Conv2d,
    problem: &'a Problem,
    arguments: [Argument; 3],
}

impl F32Convolution<'_> {
    /// `[rows, columns, depth]` of the matrix product, or of its largest launch.
    fn size(&self) -> [usize; 3] {
        let Problem { x, y, .. } = self.problem;
        let Conv2d { kernel, stride, .. } = *self.conv;
        let taps = kernel[0] * kernel[1];
        match self.problem.pass {
            Pass::Forward => [y[0] * y[2] * y[3], y[1], taps * x[1]],
            Pass::BackwardData => {
                let side = |side: usize| x[2 + side].div_ceil(stride[side]);
                let taps = kernel[0].div_ceil(stride[0]) * kernel[1].div_ceil(stride[1]);
                [x[0] * side(0) * side(1), x[1], taps * y[1]]
            }
            Pass::BackwardWeights => [y[1], taps * x[1], y[0] * y[2] * y[3]],
        }
    }

    /// The elements of the result.
    fn elements(&self) -> usize {
        let Problem { x, weight, y, .. } = self.problem;
        match self.problem.pass {
            Pass::Forward => y.iter().product(),
            Pass::BackwardData => x.iter().product(),
            Pass::BackwardWeights => weight.iter().product(),
        }
    }

    /// Returns whether every count of the kernels fits an `int`, and there are few enough launches.
    fn fits_int(&self) -> bool {
        let Problem { x, weight, y, .. } = self.problem;
        let Conv2d { kernel, stride, dilation, padding_before, .. } = *self.conv;
        let reach = |side: usize| {
            let reach = kernel[side] * dilation[side] + padding_before[side];
            reach.saturating_add(x[2 + side]).saturating_add(y[2 + side] * stride[side])
        };
        let product = |shape: &[usize]| shape.iter().fold(1_usize, |all, &side| all.saturating_mul(side));
        // Kernels count beyond the last pixel, by less than two stages.
        let spare = 2 * TILE_K;
        let numbers = [
            product(&[x[0], x[1], x[2], x[3]]),
            product(&[y[0] * y[2] * y[3] + spare, y[1]]),
            product(&[weight[0] + spare, weight[1], weight[2], weight[3]]),
            product(&[reach(0), reach(1), x[1].max(y[1])]),
        ];
        numbers.into_iter().all(|number| number > 0 && number < MAX_INT_COUNT)
            && product(&stride) <= MAX_STRIDE_PHASES
    }

    fn candidate(
        &self,
        tile: &BlockTile,
        parts: usize,
        builder: &KernelBuilder<'_>,
    ) -> Result<Implementation, String> {
        let position = match self.problem.pass {
            Pass::Forward => 2,
            Pass::BackwardData => 0,
            Pass::BackwardWeights => 1,
        };
        let result = self.arguments[position];
        let to = if parts == 1 { result } else { Argument::Scratch(0) };
        let mut calls = match self.problem.pass {
            Pass::Forward => vec![self.gather(tile, &self.forward(), to, parts, builder)?],
            Pass::BackwardData => {
                let phases = self.phases();
                let launches = phases.iter().map(|phase| self.gather(tile, phase, to, parts, builder));
                launches.collect::<Result<_, _>>()?
            }
            Pass::BackwardWeights => vec![self.weights(tile, to, parts, builder)?],
        };
        let mut scratch_bytes = 0;
        if parts > 1 {
            scratch_bytes = parts * self.elements() * size_of::<f32>();
            calls.push(self.sum_parts(tile, result, parts, builder)?);
        }
        Ok(Implementation { name: tile.name(), calls, scratch_bytes })
    }

    fn source(&self, tile: &BlockTile, vectors: [bool; 2]) -> Source {
        let pass = match self.problem.pass {
            Pass::Forward => 0,
            Pass::BackwardData => 1,
            Pass::BackwardWeights => 2,
        };
        let definitions = [
            ("TILE_M", tile.block[0]),
            ("TILE_N", tile.block[1]),
            ("MICRO_M", tile.thread[0]),
            ("MICRO_N", tile.thread[1]),
            ("STAGES", STAGES),
            ("BLOCKS", tile.blocks),
            ("PASS", pass),
            ("VECTOR_A", usize::from(vectors[0])),
            ("VECTOR_B", usize::from(vectors[1])),
        ];
        Source {
            file: "conv_f32",
            file_text: None,
            definitions: definitions.map(|(name, value)| (name, value.to_string())).to_vec(),
        }
    }

    /// Returns whether each factor is loaded in vectors of four: along the channels or outputs, which are
    /// contiguous.
    fn vectors(&self) -> [bool; 2] {
        let [channels, outputs] = [self.problem.x[1], self.problem.y[1]].map(|side| side.is_multiple_of(4));
        match self.problem.pass {
            Pass::Forward => [channels, channels],
            Pass::BackwardData | Pass::BackwardWeights => [outputs, channels],
        }
    }

    /// The launch for a product `[rows, columns]`.
    fn launch(
        &self,
        tile: &BlockTile,
        name: &str,
        size: [usize; 2],
        parts: usize,
        arguments: Vec<Argument>,
        builder: &KernelBuilder<'_>,
    ) -> Result<Box<dyn Call>, String> {
        let [rows, columns] = tile.block;
        let table = if self.problem.pass == Pass::BackwardWeights { 0 } else { rows * 16 };
        let shape = Shape {
            grid: [extent(tile.tiles(size))?, 1, extent(parts)?],
            block: [extent(tile.threads())?, 1, 1],
            shared: extent(STAGES * TILE_K * (rows + columns) * size_of::<f32>() + table)?,
        };
        Ok(Box::new(builder.launch(&self.source(tile, self.vectors()), name, shape, arguments)?))
    }

    fn weights(
        &self,
        tile: &BlockTile,
        to: Argument,
        parts: usize,
        builder: &KernelBuilder<'_>,
    ) -> Result<Box<dyn Call>, String> {
        let [x, _, y] = self.arguments;
        let Problem { x: x_shape, y: y_shape, .. } = self.problem;
        let Conv2d { kernel, padding_before, stride, dilation, .. } = *self.conv;
        let [outputs, columns, pixels] = self.size();
        let numbers = [outputs, columns, pixels, part_depth(pixels, parts)];
        let numbers = numbers
            .into_iter()
            .chain([x_shape[1], x_shape[2], x_shape[3], y_shape[2], y_shape[3], kernel[1]]);
        let numbers = numbers.chain([padding_before, stride, dilation].into_iter().flatten());
        let numbers = numbers.chain(mixed_radix_step(tile.rows_at_a_time(), [y_shape[3], y_shape[2]]));
        let mut arguments = vec![x, y, to, long(self.elements())];
        for number in numbers {
            arguments.push(int(number)?);
        }
        self.launch(tile, "convolve_weights", [outputs, columns], parts, arguments, builder)
    }

    /// The launch that adds the parts.
    fn sum_parts(
        &self,
        tile: &BlockTile,
        to: Argument,
        parts: usize,
        builder: &KernelBuilder<'_>,
    ) -> Result<Box<dyn Call>, String> {
        let count = self.elements();
        // If there are few sums, each has more threads.
        let max_height = if count < 1 << 14 { 32 } else { 8 };
        let height = (parts / 8).next_power_of_two().clamp(1, max_height);
        let width = THREADS as usize / height;
        let shape = Shape {
            grid: [extent(count.div_ceil(width))?, 1, 1],
            block: [extent(width)?, extent(height)?, 1],
            shared: 0,
        };
        let arguments = vec![Argument::Scratch(0), to, int(parts)?, long(count)];
        Ok(Box::new(builder.launch(&self.source(tile, self.vectors()), "add_exactly", shape, arguments)?))
    }
}

impl BlockTile {
    /// Rows of a stage that the threads load at once, if the depth is not contiguous.
    fn rows_at_a_time(&self) -> usize {
        self.threads() * 4 / self.block[1]
    }
}

/// `by` as a mixed-radix number `[slowest, second, fastest]`, whose last two digits have these ranges.
fn mixed_radix_step(by: usize, [fastest, second]: [usize; 2]) -> [usize; 3] {
    [by / fastest / second, by / fastest % second, by % fastest]
}

fn extent(count: usize) -> Result<u32, String> {
    u32::try_from(count).map_err(|_| format!("{count} is too large"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn split_parts_have_at_least_the_minimum_depth() {
        for tile in TILES {
            for [rows, columns, depth] in
                [[64, 576, 802_816], [512, 4608, 12_544], [8, 9, 1568], [1568, 512, 4608]]
            {
                let split = tile.split([rows, columns, depth], rows * columns, 132);
                let part = part_depth(depth, split.parts);
                assert!(part * split.parts >= depth);
                assert!(split.parts == 1 || part >= MIN_SPLIT_DEPTH, "{tile:?} {split:?}");
            }
        }
    }
}
