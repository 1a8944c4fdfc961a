//! Weight gradients in f32 of maps in bf16 or f16, by native kernels on tensor cores
//! (`source/conv_gradient.cu`, `source/conv_gradient_hopper.cu`): cuDNN has no fast kernel for these types.

use crate::ffi::cudnn::Problem;
use crate::ops::{
    KernelBuilder, MAX_GRID_YZ, MAX_INT_COUNT, MAX_PARTIAL_SUM_BYTES, Operand, THREADS, int,
    is_for_tensor_cores,
};
use crate::processor::{Argument, Call, HOPPER, Implementation, Shape, Source, type_name};
use stratus_engine::DType;
use stratus_graph::ops::Conv2d;

/// The tensor core instructions.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Instruction {
    /// `mma.sync`, by each warp: `conv_gradient.cu`, from compute capability 8.0.
    Mma,
    /// `wgmma`, by four warps together: `conv_gradient_hopper.cu`, for 9.0.
    Wgmma,
}

/// The tiling of the matrix product: see `conv_gradient.cu`.
#[derive(Clone, Copy, Debug)]
struct BlockTile {
    instruction: Instruction,
    /// `[outputs, columns]` of a block, and of a warp.
    block: [usize; 2],
    warp: [usize; 2],
    /// The pixels of a stage of the pipeline through shared memory, and the number of stages.
    depth: usize,
    /// The number of stages of the pipeline.
    stages: usize,
    /// Resident blocks per multiprocessor.
    blocks: usize,
    /// Estimated products per clock cycle of a multiprocessor.
    rate: f64,
}

const TILES: [BlockTile; 13] = [
    BlockTile::mma([128, 256], [64, 64], [32, 3, 1], 1100.0),
    BlockTile::mma([128, 128], [64, 32], [32, 4, 2], 900.0),
    BlockTile::mma([64, 256], [64, 32], [32, 3, 2], 850.0),
    BlockTile::mma([64, 192], [64, 32], [48, 3, 2], 850.0),
    BlockTile::mma([128, 64], [64, 32], [32, 4, 4], 800.0),
    BlockTile::mma([64, 64], [32, 32], [32, 4, 4], 650.0),
    BlockTile::mma([32, 64], [32, 16], [32, 4, 6], 350.0),
    BlockTile::wgmma([128, 256], 256, [64, 4, 1], 1700.0),
    BlockTile::wgmma([256, 128], 128, [64, 4, 1], 1600.0),
    BlockTile::wgmma([128, 192], 192, [64, 4, 1], 1700.0),
    BlockTile::wgmma([128, 128], 128, [32, 6, 2], 1500.0),
    BlockTile::wgmma([64, 256], 128, [32, 5, 2], 1400.0),
    BlockTile::wgmma([64, 576], 192, [48, 3, 1], 1600.0),
];

/// The number of tiles of each instruction that are measured: those with the least estimated time.
const MEASURED_MMA_TILES: usize = 3;
const MEASURED_WGMMA_TILES: usize = 2;

/// The maximum number of pixels that tensor cores sum, 16 per addition. They truncate sums instead of
/// rounding them: each addition loses half a unit in the last place on average. After n additions a sum is
/// too small by about n / 4 · 2^-23 of itself, which for n = 256 is 7e-6. Parts are added in f64.
pub(super) const MAX_PIXELS_PER_SUM: usize = 4096;
/// The minimum number of pixels of a part of a split product.
const MIN_PIXELS_PER_SPLIT: usize = 512;
/// The alignment in bytes of the stages of `wgmma`: see `hopper.cu`.
const SWIZZLE_ALIGNMENT: usize = 1024;

/// Split-K: a product in parts along its pixels, whose results a second kernel adds.
#[derive(Clone, Copy, Debug, PartialEq)]
struct SplitK {
    /// The pixels of every part except the last.
    part: usize,
    parts: usize,
    /// The estimated time in clock cycles.
    cycles: f64,
}

impl BlockTile {
    /// A tile for `mma.sync`; `[depth, stages, blocks]` as in [`BlockTile`].
    const fn mma(
        block: [usize; 2],
        warp: [usize; 2],
        [depth, stages, blocks]: [usize; 3],
        rate: f64,
    ) -> Self {
        Self { instruction: Instruction::Mma, block, warp, depth, stages, blocks, rate }
    }

    /// A tile for `wgmma`: a warpgroup has 64 outputs, 16 per warp, and this many columns.
    const fn wgmma(
        block: [usize; 2],
        columns: usize,
        [depth, stages, blocks]: [usize; 3],
        rate: f64,
    ) -> Self {
        Self { instruction: Instruction::Wgmma, block, warp: [16, columns], depth, stages, blocks, rate }
    }

    fn threads(&self) -> usize {
        let warps = |side: usize| self.block[side] / self.warp[side];
        warps(0) * warps(1) * 32
    }

    fn name(&self, cached: bool) -> String {
        let [outputs, columns] = self.block;
        let instruction = match self.instruction {
            Instruction::Mma => "tensor",
            Instruction::Wgmma => "wgmma",
        };
        format!("stratus:{instruction}:{outputs}x{columns}{}", if cached { ":cached" } else { "" })
    }

    /// The split of a product `[outputs, columns, pixels]` with the least estimated time. `together` taps
    /// read the same elements of the input, so that all but the first hit the L1 cache. The bits of the
    /// result depend on the split, so it is a function of these parameters only.
    fn split(
        &self,
        [outputs, columns, pixels]: [usize; 3],
        together: usize,
        multiprocessors: usize,
    ) -> SplitK {
        // Bytes per cycle from the L2 cache to a multiprocessor and from memory to all of them; the cycles to
        // launch a block or another kernel.
        const L2_BANDWIDTH: f64 = 25.0;
        const MEMORY_BANDWIDTH: f64 = 1500.0;
        const LAUNCH: f64 = 1500.0;
        let [rows, width] = self.block;
        let tiles = outputs.div_ceil(rows) * columns.div_ceil(width);
        let read = rows + width / together.clamp(1, width / 64);
        let cycles_per_pixel = ((rows * width) as f64 / self.rate).max(read as f64 * 2.0 / L2_BANDWIDTH);
        let bytes = outputs * columns * size_of::<f32>();
        let max_parts =
            (pixels / MIN_PIXELS_PER_SPLIT).min(MAX_PARTIAL_SUM_BYTES / bytes.max(1)).clamp(1, MAX_GRID_YZ);
        let min_parts = pixels.div_ceil(MAX_PIXELS_PER_SUM).clamp(1, max_parts);
        let splits = (min_parts..=max_parts.min(min_parts + 8 * multiprocessors)).map(|parts| {
            let part = pixels.div_ceil(parts).next_multiple_of(self.depth);
            let parts = pixels.div_ceil(part).max(1);
            // The blocks of the busiest multiprocessor; a few concurrent blocks do not saturate it.
            let blocks = (tiles * parts).div_ceil(multiprocessors) as f64;
            let blocks = blocks.max(0.75 * self.blocks as f64);
            let sums = if parts > 1 { (2 * parts * bytes) as f64 / MEMORY_BANDWIDTH + LAUNCH } else { 0.0 };
            SplitK { part, parts, cycles: blocks * (part as f64 * cycles_per_pixel + LAUNCH) + sums }
        });
        let fastest = splits.min_by(|a, b| a.cycles.total_cmp(&b.cycles));
        fastest.unwrap_or(SplitK { part: pixels.next_multiple_of(self.depth), parts: 1, cycles: 0.0 })
    }
}

/// The candidates, the fastest by estimate first; empty if the kernels do not apply. `arguments` are the
/// input, the gradient of the weight and that of the output.
pub(super) fn candidates(
    conv: &Conv2d,
    problem: &Problem,
    operands: [&Operand; 3],
    arguments: [Argument; 3],
    builder: &KernelBuilder<'_>,
) -> Result<Vec<Implementation>, String> {
    let gradient = WeightGradient::new(conv, problem, arguments);
    if conv.groups != 1 || !gradient.fits_int() {
        return Ok(Vec::new());
    }
    let dtype = operands[0].dtype();
    if !is_for_tensor_cores(dtype) || operands.map(Operand::dtype) != [dtype, DType::F32, dtype] {
        return Ok(Vec::new());
    }
    let multiprocessors = builder.processor.multiprocessors() as usize;
    let mut candidates = Vec::new();
    for (instruction, measured) in
        [(Instruction::Mma, MEASURED_MMA_TILES), (Instruction::Wgmma, MEASURED_WGMMA_TILES)]
    {
        if !gradient.supports(instruction, builder) {
            continue;
        }
        let together = if instruction == Instruction::Wgmma { gradient.taps_sharing_input() } else { 1 };
        let tiles = TILES.into_iter().filter(|tile| tile.instruction == instruction);
        let mut tiles: Vec<(BlockTile, SplitK)> =
            tiles.map(|tile| (tile, tile.split(gradient.product(), together, multiprocessors))).collect();
        tiles.sort_by(|(_, a), (_, b)| a.cycles.total_cmp(&b.cycles));
        // Without measuring, the instruction that every GPU supports is taken.
        let measured = if instruction == Instruction::Mma || builder.measure { measured } else { 0 };
        for (rank, (tile, split)) in tiles.iter().enumerate() {
            for cached in [true, false] {
                let name = tile.name(cached);
                let offered = rank < measured && (gradient.overlaps() || !cached) && builder.allows(&name);
                let requested = builder.requested == Some(&name);
                if !offered && !requested {
                    continue;
                }
                match gradient.candidate(tile, split, cached, builder) {
                    // An old NVRTC does not support `wgmma`: then the other candidates remain.
                    Err(_) if instruction == Instruction::Wgmma && !requested => {}
                    candidate => candidates.push(candidate?),
                }
            }
        }
    }
    Ok(candidates)
}

/// A weight gradient.
struct WeightGradient<'a> {
    conv: &'a Conv2d,
    problem: &'a Problem,
    arguments: [Argument; 3],
}

impl<'a> WeightGradient<'a> {
    fn new(conv: &'a Conv2d, problem: &'a Problem, arguments: [Argument; 3]) -> Self {
        Self { conv, problem, arguments }
    }

    /// `[outputs, columns, pixels]` of the matrix product: K, taps · C, N · H_out · W_out.
    fn product(&self) -> [usize; 3] {
        let Problem { x, y, .. } = self.problem;
        [y[1], self.conv.kernel[0] * self.conv.kernel[1] * x[1], y[0] * y[2] * y[3]]
    }

    /// Returns whether every count of the kernel fits an `int`, including pixels beyond the last one.
    fn fits_int(&self) -> bool {
        let [outputs, columns, pixels] = self.product();
        let Problem { x, .. } = self.problem;
        let span =
            |side: usize| (self.conv.kernel[side] * self.conv.dilation[side]).saturating_add(x[2 + side]);
        let numbers = [
            outputs.saturating_mul(columns),
            pixels,
            x[0].saturating_mul(x[2]).saturating_mul(x[3]),
            span(0).saturating_mul(span(1)).saturating_mul(x[1]),
        ];
        let smallest = TILES.map(|tile| tile.block[0]).into_iter().min().unwrap_or(1);
        numbers.into_iter().all(|number| number > 0 && number < MAX_INT_COUNT)
            && outputs.div_ceil(smallest) <= MAX_GRID_YZ
    }

    /// Returns whether an instruction applies: kernels with `wgmma` load whole vectors only.
    fn supports(&self, instruction: Instruction, builder: &KernelBuilder<'_>) -> bool {
        let vectors = self.vector_x() && self.vector_y();
        instruction == Instruction::Mma || (vectors && builder.processor.capability() == HOPPER)
    }

    /// Returns whether neighbouring taps read the same elements of the input, which the L1 cache may hold.
    fn overlaps(&self) -> bool {
        self.conv.kernel[1] > self.conv.stride[1] && self.vector_x()
    }

    /// The number of taps of a `wgmma` tile that read the same elements: see `conv_gradient_hopper.cu`.
    fn taps_sharing_input(&self) -> usize {
        let aligned = self.problem.x[1].is_multiple_of(64);
        if aligned && self.overlaps() { self.conv.kernel[1].div_ceil(self.conv.stride[1]) } else { 1 }
    }

    fn vector_x(&self) -> bool {
        self.problem.x[1].is_multiple_of(8)
    }

    fn vector_y(&self) -> bool {
        self.problem.y[1].is_multiple_of(8)
    }

    fn candidate(
        &self,
        tile: &BlockTile,
        split: &SplitK,
        cached: bool,
        builder: &KernelBuilder<'_>,
    ) -> Result<Implementation, String> {
        let [outputs, columns, pixels] = self.product();
        let [rows, width] = tile.block;
        let mut definitions = vec![
            ("TILE_M", rows),
            ("TILE_N", width),
            ("WARP_N", tile.warp[1]),
            ("TILE_K", tile.depth),
            ("STAGES", tile.stages),
            ("BLOCKS", tile.blocks),
            ("CACHED", usize::from(cached)),
        ];
        let file = match tile.instruction {
            Instruction::Mma => {
                let mma_only = [
                    ("WARP_M", tile.warp[0]),
                    ("VECTOR_X", usize::from(self.vector_x())),
                    ("VECTOR_Y", usize::from(self.vector_y())),
                ];
                definitions.extend(mma_only);
                "conv_gradient"
            }
            Instruction::Wgmma => "conv_gradient_hopper",
        };
        let definitions = definitions.into_iter().map(|(name, value)| (name, value.to_string())).collect();
        let source =
            Source { file, file_text: None, definitions }.with("T", type_name(self.problem.types[0]));
        let extent = |count: usize| u32::try_from(count).map_err(|_| format!("{count} is too large"));
        // The stages are followed by a table of the columns' offsets; with `wgmma`, they are preceded by
        // alignment bytes.
        let extra_bytes = match tile.instruction {
            Instruction::Mma if self.vector_x() => 0,
            Instruction::Mma => width * 16,
            Instruction::Wgmma => SWIZZLE_ALIGNMENT,
        };
        let shape = Shape {
            grid: [extent(columns.div_ceil(width))?, extent(outputs.div_ceil(rows))?, extent(split.parts)?],
            block: [extent(tile.threads())?, 1, 1],
            shared: extent(tile.stages * tile.depth * (rows + width) * 2 + extra_bytes)?,
        };
        let [x, dweight, dy] = self.arguments;
        let sums = if split.parts == 1 { dweight } else { Argument::Scratch(0) };
        let Problem { x: x_shape, y: y_shape, .. } = self.problem;
        let Conv2d { kernel, padding_before, stride, dilation, .. } = *self.conv;
        // The step between two pixels of a thread: columns, rows, images.
        let ahead = tile.threads() / 8;
        let moves = [ahead % y_shape[3], ahead / y_shape[3] % y_shape[2], ahead / y_shape[3] / y_shape[2]];
        let numbers = [
            pixels, split.part, columns, x_shape[1], x_shape[2], x_shape[3], outputs, y_shape[2], y_shape[3],
        ];
        let numbers = numbers.into_iter().chain([kernel[1]]);
        let numbers = numbers.chain([padding_before, stride, dilation].into_iter().flatten()).chain(moves);
        let mut arguments = vec![x, dy, sums];
        for number in numbers {
            arguments.push(int(number)?);
        }
        let product = builder.launch(&source, "conv_gradient", shape, arguments)?;
        let mut calls: Vec<Box<dyn Call>> = vec![Box::new(product)];
        let mut scratch_bytes = 0;
        if split.parts > 1 {
            let count = outputs * columns;
            scratch_bytes = split.parts * count * size_of::<f32>();
            // If there are few sums, each has more threads.
            let max_height = if count < 1 << 14 { 32 } else { 8 };
            let height = (split.parts / 8).next_power_of_two().clamp(1, max_height);
            let width = THREADS as usize / height;
            let shape = Shape {
                grid: [extent(count.div_ceil(width))?, 1, 1],
                block: [extent(width)?, extent(height)?, 1],
                shared: 0,
            };
            let arguments = vec![sums, dweight, int(split.parts)?, int(count)?];
            calls.push(Box::new(builder.launch(&source, "add_parts", shape, arguments)?));
        }
        Ok(Implementation { name: tile.name(cached), calls, scratch_bytes })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_cover_all_pixels_within_the_size_limits() {
        for tile in TILES {
            for product in
                [[64, 576, 802_816], [512, 4608, 12_544], [8, 9, 1568], [64, 147, 3_211_264], [1, 1, 3]]
            {
                for multiprocessors in [3, 108, 132] {
                    let split = tile.split(product, 1, multiprocessors);
                    let pixels = product[2];
                    assert!(split.part * split.parts >= pixels && split.part * (split.parts - 1) < pixels);
                    assert!(split.part < MAX_PIXELS_PER_SUM + tile.depth, "{tile:?} {product:?} {split:?}");
                    assert!(
                        split.parts == 1 || split.part >= MIN_PIXELS_PER_SPLIT,
                        "{tile:?} {product:?} {split:?}"
                    );
                }
            }
        }
    }
}
