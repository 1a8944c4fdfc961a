//! Weight gradients of convolutions of at most four channels, by a native kernel on tensor cores
//! (`source/conv_first_gradient.cu`). It reads each pixel of the input once; other kernels gather every tap
//! element by element.

use super::first_layer::{
    BLOCK_RESERVED_BYTES, BLOCK_SHARED_BYTES, FirstLayer, PIXEL_BYTES, PixelTile, SM_SHARED_BYTES,
};
use super::weight_gradient::MAX_PIXELS_PER_SUM;
use crate::ops::{KernelBuilder, MAX_PARTIAL_SUM_BYTES, THREADS, int, is_for_tensor_cores};
use crate::processor::{Argument, Call, Implementation, Launch, Shape, Source, type_name};
use stratus_engine::DType;

/// The maximum pixels of a tile, one candidate each.
const TILE_PIXELS: [usize; 2] = [128, 256];
/// The warps of a block; more only if eight taps per warp require more.
const WARPS: usize = 8;

/// The tiling of the matrix product: see `conv_first_gradient.cu`.
#[derive(Clone, Copy, Debug)]
struct Tiling {
    pixels: usize,
    /// Fragments of 16 outputs per warp.
    fragments: usize,
    /// Warps along the taps, eight taps each, and warps that divide the pixels of a tile.
    warps: [usize; 2],
    /// Resident blocks per multiprocessor, limited by registers.
    blocks: usize,
}

impl Tiling {
    fn new(pixels: usize, [outputs, taps, channels]: [usize; 3]) -> Self {
        let fragments = outputs.div_ceil(16).next_power_of_two().min(4);
        let across = taps.div_ceil(8);
        let warps = [across, (WARPS / across).max(1)];
        let resident_warps = if fragments * channels > 4 { 16 } else { 24 };
        Self { pixels, fragments, warps, blocks: (resident_warps / (warps[0] * warps[1])).max(1) }
    }

    fn name(&self) -> String {
        format!("stratus:first:{}", self.pixels)
    }

    fn threads(&self) -> usize {
        self.warps[0] * self.warps[1] * 32
    }

    /// The shared memory in bytes, without the two windows.
    fn shared_tables(&self) -> usize {
        2 * self.pixels * self.fragments * 32 + self.pixels * 8
    }

    /// Tiles per block: at most [`MAX_PIXELS_PER_SUM`] per sum, and the same number in every block, with
    /// `resident` blocks running at once.
    fn tiles_of_block(&self, tiles: usize, resident: usize) -> usize {
        let max_tiles = (MAX_PIXELS_PER_SUM * self.warps[1] / self.pixels).max(1);
        let rounds = tiles.div_ceil(max_tiles * resident.max(1)).max(1);
        tiles.div_ceil(rounds * resident.max(1)).clamp(1, max_tiles)
    }
}

impl FirstLayer<'_> {
    /// The candidates. `arguments` are the input, the gradient of the weight and that of the output.
    pub fn gradients(
        &self,
        arguments: [Argument; 3],
        builder: &KernelBuilder<'_>,
    ) -> Result<Vec<Implementation>, String> {
        let [channels, outputs] = [self.problem.x[1], self.problem.y[1]];
        let dtype = self.problem.types[0];
        let fits = is_for_tensor_cores(dtype) && self.problem.types == [dtype, DType::F32, dtype];
        if !fits || !outputs.is_multiple_of(8) {
            return Ok(Vec::new());
        }
        let mut candidates = Vec::new();
        let tilings = TILE_PIXELS.map(|pixels| Tiling::new(pixels, [outputs, self.taps(), channels]));
        for tiling in tilings.into_iter().filter(|tiling| builder.allows(&tiling.name())) {
            // A window's pixel takes half a clock cycle; the products of a pixel run at 1000 per cycle.
            let products = tiling.warps[0] * 8 * channels * tiling.fragments * 16;
            let window_bytes = BLOCK_SHARED_BYTES.saturating_sub(tiling.shared_tables()) / 2;
            if let Some(tile) = self.tile(tiling.pixels, 500.0 / products as f64, window_bytes) {
                candidates.extend(self.gradient(&tiling, &tile, arguments, builder)?);
            }
        }
        Ok(candidates)
    }

    /// The candidate of a tiling; `None` if its partial sums need too much scratch.
    fn gradient(
        &self,
        tiling: &Tiling,
        tile: &PixelTile,
        [x, dweight, dy]: [Argument; 3],
        builder: &KernelBuilder<'_>,
    ) -> Result<Option<Implementation>, String> {
        let [channels, outputs] = [self.problem.x[1], self.problem.y[1]];
        let shared = tiling.shared_tables() + 2 * tile.window[0] * tile.window[1] * PIXEL_BYTES;
        let down = outputs.div_ceil(tiling.fragments * 16);
        let resident = tiling.blocks.min(SM_SHARED_BYTES / (shared + BLOCK_RESERVED_BYTES)).max(1);
        let tiles_of_block = tiling.tiles_of_block(
            tile.count,
            (resident * builder.processor.multiprocessors() as usize).div_ceil(down),
        );
        let blocks = tile.count.div_ceil(tiles_of_block);
        let parts = blocks * tiling.warps[1];
        let count = outputs * self.taps() * channels;
        let scratch_bytes = if parts > 1 { parts * count * size_of::<f32>() } else { 0 };
        if scratch_bytes > MAX_PARTIAL_SUM_BYTES {
            return Ok(None);
        }
        let definitions = [
            ("CHANNELS", channels),
            ("FRAGMENTS", tiling.fragments),
            ("WARPS_N", tiling.warps[0]),
            ("WARPS_K", tiling.warps[1]),
            ("PIXELS", tiling.pixels),
            ("BLOCKS", tiling.blocks),
        ];
        let definitions = definitions.map(|(name, value)| (name, value.to_string())).to_vec();
        let source = Source { file: "conv_first_gradient", file_text: None, definitions };
        let source = source.with("T", type_name(self.problem.types[0]));
        let extent = |count: usize| u32::try_from(count).map_err(|_| format!("{count} is too large"));
        let shape = Shape {
            grid: [extent(blocks)?, extent(down)?, 1],
            block: [extent(tiling.threads())?, 1, 1],
            shared: extent(shared)?,
        };
        let sums = if parts > 1 { Argument::Scratch(0) } else { dweight };
        let mut arguments = vec![x, dy, sums];
        for number in [tile.count, tiles_of_block].into_iter().chain(self.geometry(tile)) {
            arguments.push(int(number)?);
        }
        let product = builder.launch(&source, "conv_first_gradient", shape, arguments)?;
        let mut calls: Vec<Box<dyn Call>> = vec![Box::new(product)];
        if parts > 1 {
            calls.push(Box::new(sum_parts(&source, [sums, dweight], [parts, count], builder)?));
        }
        Ok(Some(Implementation { name: tiling.name(), calls, scratch_bytes }))
    }
}

/// The launch that adds `parts` partial sums of each of `count` sums; if there are few sums, each has more
/// threads.
fn sum_parts(
    source: &Source,
    [from, to]: [Argument; 2],
    [parts, count]: [usize; 2],
    builder: &KernelBuilder<'_>,
) -> Result<Launch, String> {
    let max_height = if count < 1 << 14 { 32 } else { 8 };
    let height = (parts / 8).next_power_of_two().clamp(1, max_height);
    let width = THREADS as usize / height;
    let blocks = u32::try_from(count.div_ceil(width)).map_err(|_| format!("{count} is too large"))?;
    let shape = Shape { grid: [blocks, 1, 1], block: [width as u32, height as u32, 1], shared: 0 };
    builder.launch(source, "add_parts", shape, vec![from, to, int(parts)?, int(count)?])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_sum_has_too_many_pixels() {
        for pixels in TILE_PIXELS {
            for product in [[64, 49, 3], [64, 121, 3], [64, 9, 3], [8, 9, 1], [128, 128, 4]] {
                let tiling = Tiling::new(pixels, product);
                for (tiles, resident) in [(1, 1), (7, 264), (25_088, 264), (50_176, 396), (1 << 20, 3)] {
                    let tiles_of_block = tiling.tiles_of_block(tiles, resident);
                    assert!(
                        tiles_of_block * pixels / tiling.warps[1] <= MAX_PIXELS_PER_SUM,
                        "{tiling:?} {tiles} {tiles_of_block}"
                    );
                    assert!(tiles_of_block >= 1 && tiles.div_ceil(tiles_of_block) * tiles_of_block >= tiles);
                }
            }
        }
    }
}
