//! Gradients of the weights of convolutions of at most four channels by our own kernel on tensor cores, which reads the input's pixels once where others
//! put every tap together element by element.

use super::conv_first::{First, KEPT, MOST_SHARED, OF_PIXEL, SHARED_OF_ALL, Tile};
use super::conv_gradient::MOST_PIXELS;
use super::{MOST_BYTES_OF_SUMS, Maker, THREADS, int, is_for_tensor_cores};
use crate::library::Candidate;
use crate::processor::{Argument, Call, Launch, Shape, Source, type_name};
use stratus_engine::DType;

/// The most pixels of a tile: each is a candidate.
const PIXELS: [usize; 2] = [128, 256];
/// Warps that share out the pixels and the taps of a tile, where the taps are not for more.
const WARPS: usize = 8;

/// How the product is cut up: see `conv_first_gradient.cu`.
#[derive(Clone, Copy, Debug)]
struct Cut {
    pixels: usize,
    /// Fragments of 16 outputs that a warp has.
    fragments: usize,
    /// Warps side by side, of eight taps each, and warps that share out the pixels of a tile.
    warps: [usize; 2],
    /// Blocks that run on a multiprocessor at the same time, as their registers have room.
    blocks: usize,
}

impl Cut {
    fn of(pixels: usize, [outputs, taps, channels]: [usize; 3]) -> Self {
        let fragments = outputs.div_ceil(16).next_power_of_two().min(4);
        let across = taps.div_ceil(8);
        let warps = [across, (WARPS / across).max(1)];
        let of_all = if fragments * channels > 4 { 16 } else { 24 };
        Self { pixels, fragments, warps, blocks: (of_all / (warps[0] * warps[1])).max(1) }
    }

    fn name(&self) -> String {
        format!("stratus:first:{}", self.pixels)
    }

    fn threads(&self) -> usize {
        self.warps[0] * self.warps[1] * 32
    }

    /// Shared memory beside the windows, of which there are two.
    fn kept(&self) -> usize {
        2 * self.pixels * self.fragments * 32 + self.pixels * 8
    }

    /// How many tiles a block takes: few enough for its sums, and so that all multiprocessors end at the same time.
    fn part(&self, tiles: usize, at_a_time: usize) -> usize {
        let most = (MOST_PIXELS * self.warps[1] / self.pixels).max(1);
        let rounds = tiles.div_ceil(most * at_a_time.max(1)).max(1);
        tiles.div_ceil(rounds * at_a_time.max(1)).clamp(1, most)
    }
}

impl First<'_> {
    /// The ways to compute the gradient of the weight. `arguments` are those of the input, the gradient of the weight and that of the output.
    pub fn gradients(&self, arguments: [Argument; 3], maker: &Maker<'_>) -> Result<Vec<Candidate>, String> {
        let [channels, outputs] = [self.problem.x[1], self.problem.y[1]];
        let dtype = self.problem.types[0];
        let fits = is_for_tensor_cores(dtype) && self.problem.types == [dtype, DType::F32, dtype];
        if !fits || !outputs.is_multiple_of(8) {
            return Ok(Vec::new());
        }
        let mut candidates = Vec::new();
        let cuts = PIXELS.map(|pixels| Cut::of(pixels, [outputs, self.taps(), channels]));
        for cut in cuts.into_iter().filter(|cut| maker.wanted.is_none_or(|name| name == cut.name())) {
            // Products of a pixel, at 1000 in a clock cycle, against the half cycle of a pixel of a window.
            let products = cut.warps[0] * 8 * channels * cut.fragments * 16;
            let room = MOST_SHARED.saturating_sub(cut.kept()) / 2;
            if let Some(tile) = self.tile(cut.pixels, 500.0 / products as f64, room) {
                candidates.extend(self.gradient(&cut, &tile, arguments, maker)?);
            }
        }
        Ok(candidates)
    }

    /// The gradient cut up in a way: none where sums take too much.
    fn gradient(
        &self,
        cut: &Cut,
        tile: &Tile,
        [x, dweight, dy]: [Argument; 3],
        maker: &Maker<'_>,
    ) -> Result<Option<Candidate>, String> {
        let [channels, outputs] = [self.problem.x[1], self.problem.y[1]];
        let shared = cut.kept() + 2 * tile.window[0] * tile.window[1] * OF_PIXEL;
        let down = outputs.div_ceil(cut.fragments * 16);
        let resident = cut.blocks.min(SHARED_OF_ALL / (shared + KEPT)).max(1);
        let part =
            cut.part(tile.count, (resident * maker.processor.multiprocessors() as usize).div_ceil(down));
        let blocks = tile.count.div_ceil(part);
        let parts = blocks * cut.warps[1];
        let count = outputs * self.taps() * channels;
        let scratch_bytes = if parts > 1 { parts * count * size_of::<f32>() } else { 0 };
        if scratch_bytes > MOST_BYTES_OF_SUMS {
            return Ok(None);
        }
        let definitions = [
            ("CHANNELS", channels),
            ("FRAGMENTS", cut.fragments),
            ("WARPS_N", cut.warps[0]),
            ("WARPS_K", cut.warps[1]),
            ("PIXELS", cut.pixels),
            ("BLOCKS", cut.blocks),
        ];
        let definitions = definitions.map(|(name, value)| (name, value.to_string())).to_vec();
        let source = Source { file: "conv_first_gradient", definitions };
        let source = source.with("T", type_name(self.problem.types[0]));
        let extent = |count: usize| u32::try_from(count).map_err(|_| format!("{count} are too many"));
        let shape = Shape {
            grid: [extent(blocks)?, extent(down)?, 1],
            block: [extent(cut.threads())?, 1, 1],
            shared: extent(shared)?,
        };
        let sums = if parts > 1 { Argument::Scratch(0) } else { dweight };
        let mut arguments = vec![x, dy, sums];
        for number in [tile.count, part].into_iter().chain(self.geometry(tile)) {
            arguments.push(int(number)?);
        }
        let product = maker.launch(&source, "conv_first_gradient", shape, arguments)?;
        let mut calls: Vec<Box<dyn Call>> = vec![Box::new(product)];
        if parts > 1 {
            calls.push(Box::new(add_parts(&source, [sums, dweight], [parts, count], maker)?));
        }
        Ok(Some(Candidate { name: cut.name(), calls, scratch_bytes }))
    }
}

/// Adds up parts of `count` sums: few sums have many threads each.
fn add_parts(
    source: &Source,
    [from, to]: [Argument; 2],
    [parts, count]: [usize; 2],
    maker: &Maker<'_>,
) -> Result<Launch, String> {
    let most = if count < 1 << 14 { 32 } else { 8 };
    let height = (parts / 8).next_power_of_two().clamp(1, most);
    let width = THREADS as usize / height;
    let blocks = u32::try_from(count.div_ceil(width)).map_err(|_| format!("{count} are too many"))?;
    let shape = Shape { grid: [blocks, 1, 1], block: [width as u32, height as u32, 1], shared: 0 };
    maker.launch(source, "add_parts", shape, vec![from, to, int(parts)?, int(count)?])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_sum_is_of_too_many_pixels() {
        for pixels in PIXELS {
            for product in [[64, 49, 3], [64, 121, 3], [64, 9, 3], [8, 9, 1], [128, 128, 4]] {
                let cut = Cut::of(pixels, product);
                for (tiles, at_a_time) in [(1, 1), (7, 264), (25_088, 264), (50_176, 396), (1 << 20, 3)] {
                    let part = cut.part(tiles, at_a_time);
                    assert!(part * pixels / cut.warps[1] <= MOST_PIXELS, "{cut:?} {tiles} {part}");
                    assert!(part >= 1 && tiles.div_ceil(part) * part >= tiles);
                }
            }
        }
    }
}
