//! Gradients of the weights of convolutions by our own kernel on tensor cores: cuDNN has no fast one that keeps f32 sums of products of bf16 or f16.

use super::{MOST_BLOCKS, MOST_BYTES_OF_SUMS, Maker, Operand, THREADS, int, is_for_tensor_cores};
use crate::ffi::cudnn::Problem;
use crate::library::Candidate;
use crate::processor::{Argument, Call, HOPPER, Shape, Source, type_name};
use stratus_engine::DType;
use stratus_graph::ops::Conv2d;

/// What multiplies.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Cores {
    /// Each warp for itself: `conv_gradient.cu`, for compute capability 8.0 and later.
    OfWarps,
    /// Four warps together: `conv_gradient_hopper.cu`.
    OfWarpgroups,
}

/// How the product is cut up: see `conv_gradient.cu`.
#[derive(Clone, Copy, Debug)]
struct Tile {
    cores: Cores,
    /// Outputs and columns of a block, and of a warp.
    of_block: [usize; 2],
    of_warp: [usize; 2],
    /// Pixels of a stage, and how many stages there are.
    depth: usize,
    stages: usize,
    /// How many blocks run on a multiprocessor at the same time.
    blocks: usize,
    /// Products that a multiprocessor makes in a clock cycle, by estimate.
    rate: f64,
}

const TILES: [Tile; 13] = [
    Tile::of_warps([128, 256], [64, 64], [32, 3, 1], 1100.0),
    Tile::of_warps([128, 128], [64, 32], [32, 4, 2], 900.0),
    Tile::of_warps([64, 256], [64, 32], [32, 3, 2], 850.0),
    Tile::of_warps([64, 192], [64, 32], [48, 3, 2], 850.0),
    Tile::of_warps([128, 64], [64, 32], [32, 4, 4], 800.0),
    Tile::of_warps([64, 64], [32, 32], [32, 4, 4], 650.0),
    Tile::of_warps([32, 64], [32, 16], [32, 4, 6], 350.0),
    Tile::of_warpgroups([128, 256], 256, [64, 4, 1], 1700.0),
    Tile::of_warpgroups([256, 128], 128, [64, 4, 1], 1600.0),
    Tile::of_warpgroups([128, 192], 192, [64, 4, 1], 1700.0),
    Tile::of_warpgroups([128, 128], 128, [32, 6, 2], 1500.0),
    Tile::of_warpgroups([64, 256], 128, [32, 5, 2], 1400.0),
    Tile::of_warpgroups([64, 576], 192, [48, 3, 1], 1600.0),
];

/// How many tiles are measured, of warps and of warpgroups: those of the least estimated time.
const MEASURED: usize = 3;
const MEASURED_OF_WARPGROUPS: usize = 2;

/// The most pixels whose products are added up on tensor cores, 16 at a time. They cut sums off instead of rounding them, by half a unit in the last
/// place on average, which all point towards zero: after n additions a sum is too small by about n / 4 * 2^-23 of itself, so that 256 of them lose
/// 7e-6. Parts are added up in f64.
pub(super) const MOST_PIXELS: usize = 4096;
/// The fewest pixels of a part, where there are several.
const FEWEST_PIXELS: usize = 512;
/// What stages of warpgroups lie at a multiple of: see `hopper.cu`.
const PATTERN: usize = 1024;

/// A product of outputs x columns over pixels, its pixels in parts.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Split {
    /// Pixels of a part but the last.
    part: usize,
    parts: usize,
    /// How long it takes by estimate, in clock cycles.
    cycles: f64,
}

impl Tile {
    /// A tile of so many pixels a stage, stages, and blocks of a multiprocessor.
    const fn of_warps(
        of_block: [usize; 2],
        of_warp: [usize; 2],
        [depth, stages, blocks]: [usize; 3],
        rate: f64,
    ) -> Self {
        Self { cores: Cores::OfWarps, of_block, of_warp, depth, stages, blocks, rate }
    }

    /// The same for warpgroups, which have 64 outputs.
    const fn of_warpgroups(
        of_block: [usize; 2],
        columns: usize,
        [depth, stages, blocks]: [usize; 3],
        rate: f64,
    ) -> Self {
        Self { cores: Cores::OfWarpgroups, of_block, of_warp: [16, columns], depth, stages, blocks, rate }
    }

    fn threads(&self) -> usize {
        let warps = |side: usize| self.of_block[side] / self.of_warp[side];
        warps(0) * warps(1) * 32
    }

    fn name(&self, kept: bool) -> String {
        let [outputs, columns] = self.of_block;
        let cores = match self.cores {
            Cores::OfWarps => "tensor",
            Cores::OfWarpgroups => "wgmma",
        };
        format!("stratus:{cores}:{outputs}x{columns}{}", if kept { ":cached" } else { "" })
    }

    /// How many parts the pixels are cut into: hangs on nothing but its parameters, as results do on it.
    /// `together` taps read the same of the input, so that all but the first find it in the first cache.
    fn split(
        &self,
        [outputs, columns, pixels]: [usize; 3],
        together: usize,
        multiprocessors: usize,
    ) -> Split {
        // What the second cache gives a multiprocessor in a cycle, and the memory all of them; cycles to begin a block, and another kernel.
        const CACHE: f64 = 25.0;
        const MEMORY: f64 = 1500.0;
        const BEGIN: f64 = 1500.0;
        let [rows, width] = self.of_block;
        let tiles = outputs.div_ceil(rows) * columns.div_ceil(width);
        let read = rows + width / together.clamp(1, width / 64);
        let of_pixel = ((rows * width) as f64 / self.rate).max(read as f64 * 2.0 / CACHE);
        let bytes = outputs * columns * size_of::<f32>();
        let most = (pixels / FEWEST_PIXELS).min(MOST_BYTES_OF_SUMS / bytes.max(1)).clamp(1, MOST_BLOCKS);
        let least = pixels.div_ceil(MOST_PIXELS).clamp(1, most);
        let splits = (least..=most.min(least + 8 * multiprocessors)).map(|parts| {
            let part = pixels.div_ceil(parts).next_multiple_of(self.depth);
            let parts = pixels.div_ceil(part).max(1);
            // The busiest multiprocessor's blocks; few at a time do not keep it busy.
            let blocks = (tiles * parts).div_ceil(multiprocessors) as f64;
            let blocks = blocks.max(0.75 * self.blocks as f64);
            let sums = if parts > 1 { (2 * parts * bytes) as f64 / MEMORY + BEGIN } else { 0.0 };
            Split { part, parts, cycles: blocks * (part as f64 * of_pixel + BEGIN) + sums }
        });
        let fastest = splits.min_by(|a, b| a.cycles.total_cmp(&b.cycles));
        fastest.unwrap_or(Split { part: pixels.next_multiple_of(self.depth), parts: 1, cycles: 0.0 })
    }
}

/// The ways to compute a gradient with tensor cores, the fastest by estimate first: none where the kernel does not apply. `arguments` are those of the
/// input, the gradient of the weight and that of the output.
pub(super) fn candidates(
    conv: &Conv2d,
    problem: &Problem,
    operands: [&Operand; 3],
    arguments: [Argument; 3],
    maker: &Maker<'_>,
) -> Result<Vec<Candidate>, String> {
    let gradient = Gradient::of(conv, problem, arguments);
    if conv.groups != 1 || !gradient.is_small() {
        return Ok(Vec::new());
    }
    let dtype = operands[0].dtype();
    if !is_for_tensor_cores(dtype) || operands.map(Operand::dtype) != [dtype, DType::F32, dtype] {
        return Ok(Vec::new());
    }
    let multiprocessors = maker.processor.multiprocessors() as usize;
    let mut candidates = Vec::new();
    for (cores, measured) in [(Cores::OfWarps, MEASURED), (Cores::OfWarpgroups, MEASURED_OF_WARPGROUPS)] {
        if !gradient.is_for(cores, maker) {
            continue;
        }
        let together = if cores == Cores::OfWarpgroups { gradient.together() } else { 1 };
        let tiles = TILES.into_iter().filter(|tile| tile.cores == cores);
        let mut tiles: Vec<(Tile, Split)> =
            tiles.map(|tile| (tile, tile.split(gradient.product(), together, multiprocessors))).collect();
        tiles.sort_by(|(_, a), (_, b)| a.cycles.total_cmp(&b.cycles));
        // What nobody measured is left to the cores that every GPU has.
        let measured = if cores == Cores::OfWarps || maker.measure { measured } else { 0 };
        for (rank, (tile, split)) in tiles.iter().enumerate() {
            for kept in [true, false] {
                let offered = rank < measured && (gradient.overlaps() || !kept);
                let wanted = maker.wanted == Some(&tile.name(kept));
                if !offered && !wanted {
                    continue;
                }
                match gradient.candidate(tile, split, kept, maker) {
                    // An NVRTC that knows no such cores is no reason to have no gradient.
                    Err(_) if cores == Cores::OfWarpgroups && !wanted => {}
                    candidate => candidates.push(candidate?),
                }
            }
        }
    }
    Ok(candidates)
}

/// A gradient of a weight.
struct Gradient<'a> {
    conv: &'a Conv2d,
    problem: &'a Problem,
    arguments: [Argument; 3],
}

impl<'a> Gradient<'a> {
    fn of(conv: &'a Conv2d, problem: &'a Problem, arguments: [Argument; 3]) -> Self {
        Self { conv, problem, arguments }
    }

    /// Outputs, columns, pixels.
    fn product(&self) -> [usize; 3] {
        let Problem { x, y, .. } = self.problem;
        [y[1], self.conv.kernel[0] * self.conv.kernel[1] * x[1], y[0] * y[2] * y[3]]
    }

    /// Whether all that the kernel counts in `int` fits, the pixels that it goes on beyond the last ones included.
    fn is_small(&self) -> bool {
        const MOST: usize = 1 << 30;
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
        let smallest = TILES.map(|tile| tile.of_block[0]).into_iter().min().unwrap_or(1);
        numbers.into_iter().all(|number| number > 0 && number < MOST)
            && outputs.div_ceil(smallest) <= MOST_BLOCKS
    }

    /// Whether cores can make it: warpgroups load no elements one by one.
    fn is_for(&self, cores: Cores, maker: &Maker<'_>) -> bool {
        let vectors = self.vector_x() && self.vector_y();
        cores == Cores::OfWarps || (vectors && maker.processor.capability() == HOPPER)
    }

    /// Whether several taps read the same in turn, which may be kept in the first cache.
    fn overlaps(&self) -> bool {
        self.conv.kernel[1] > self.conv.stride[1] && self.vector_x()
    }

    /// How many taps of a tile of warpgroups read the same: see `conv_gradient_hopper.cu`.
    fn together(&self) -> usize {
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
        tile: &Tile,
        split: &Split,
        kept: bool,
        maker: &Maker<'_>,
    ) -> Result<Candidate, String> {
        let [outputs, columns, pixels] = self.product();
        let [rows, width] = tile.of_block;
        let mut definitions = vec![
            ("TILE_M", rows),
            ("TILE_N", width),
            ("WARP_N", tile.of_warp[1]),
            ("TILE_K", tile.depth),
            ("STAGES", tile.stages),
            ("BLOCKS", tile.blocks),
            ("CACHED", usize::from(kept)),
        ];
        let file = match tile.cores {
            Cores::OfWarps => {
                let of_warps = [
                    ("WARP_M", tile.of_warp[0]),
                    ("VECTOR_X", usize::from(self.vector_x())),
                    ("VECTOR_Y", usize::from(self.vector_y())),
                ];
                definitions.extend(of_warps);
                "conv_gradient"
            }
            Cores::OfWarpgroups => "conv_gradient_hopper",
        };
        let definitions = definitions.into_iter().map(|(name, value)| (name, value.to_string())).collect();
        let source = Source { file, definitions }.with("T", type_name(self.problem.types[0]));
        let extent = |count: usize| u32::try_from(count).map_err(|_| format!("{count} are too many"));
        // Behind the stages where columns lie, or before them what leads to a multiple of their pattern.
        let beside = match tile.cores {
            Cores::OfWarps if self.vector_x() => 0,
            Cores::OfWarps => width * 16,
            Cores::OfWarpgroups => PATTERN,
        };
        let shape = Shape {
            grid: [extent(columns.div_ceil(width))?, extent(outputs.div_ceil(rows))?, extent(split.parts)?],
            block: [extent(tile.threads())?, 1, 1],
            shared: extent(tile.stages * tile.depth * (rows + width) * 2 + beside)?,
        };
        let [x, dweight, dy] = self.arguments;
        let sums = if split.parts == 1 { dweight } else { Argument::Scratch(0) };
        let Problem { x: of_x, y: of_y, .. } = self.problem;
        let Conv2d { kernel, padding_before, stride, dilation, .. } = *self.conv;
        // The pixels that a thread goes on by.
        let ahead = tile.threads() / 8;
        let moves = [ahead % of_y[3], ahead / of_y[3] % of_y[2], ahead / of_y[3] / of_y[2]];
        let numbers = [pixels, split.part, columns, of_x[1], of_x[2], of_x[3], outputs, of_y[2], of_y[3]];
        let numbers = numbers.into_iter().chain([kernel[1]]);
        let numbers = numbers.chain([padding_before, stride, dilation].into_iter().flatten()).chain(moves);
        let mut arguments = vec![x, dy, sums];
        for number in numbers {
            arguments.push(int(number)?);
        }
        let product = maker.launch(&source, "conv_gradient", shape, arguments)?;
        let mut calls: Vec<Box<dyn Call>> = vec![Box::new(product)];
        let mut scratch_bytes = 0;
        if split.parts > 1 {
            let count = outputs * columns;
            scratch_bytes = split.parts * count * size_of::<f32>();
            // Threads enough where there are few sums of many parts.
            let most = if count < 1 << 14 { 32 } else { 8 };
            let height = (split.parts / 8).next_power_of_two().clamp(1, most);
            let width = THREADS as usize / height;
            let shape = Shape {
                grid: [extent(count.div_ceil(width))?, 1, 1],
                block: [extent(width)?, extent(height)?, 1],
                shared: 0,
            };
            let arguments = vec![sums, dweight, int(split.parts)?, int(count)?];
            calls.push(Box::new(maker.launch(&source, "add_parts", shape, arguments)?));
        }
        Ok(Candidate { name: tile.name(kept), calls, scratch_bytes })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_cover_all_pixels_and_are_neither_long_nor_short() {
        for tile in TILES {
            for product in
                [[64, 576, 802_816], [512, 4608, 12_544], [8, 9, 1568], [64, 147, 3_211_264], [1, 1, 3]]
            {
                for multiprocessors in [3, 108, 132] {
                    let split = tile.split(product, 1, multiprocessors);
                    let pixels = product[2];
                    assert!(split.part * split.parts >= pixels && split.part * (split.parts - 1) < pixels);
                    assert!(split.part < MOST_PIXELS + tile.depth, "{tile:?} {product:?} {split:?}");
                    assert!(
                        split.parts == 1 || split.part >= FEWEST_PIXELS,
                        "{tile:?} {product:?} {split:?}"
                    );
                }
            }
        }
    }
}
