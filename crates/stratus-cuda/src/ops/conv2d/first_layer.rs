//! Convolutions of at most four channels, as in a network's first layer, by a native kernel on tensor cores
//! (`source/conv_first.cu`). cuDNN's kernels read and multiply eight channels, and read the output again for
//! bias and ReLU.

use crate::ffi::cudnn::Problem;
use crate::ops::{KernelBuilder, MAX_INT_COUNT, Operand, int, is_for_tensor_cores};
use crate::processor::{Argument, Implementation, Shape, Source, type_name};
use stratus_engine::Layout;
use stratus_graph::ops::Conv2d;

/// The maximum input channels that the kernels support.
const MAX_IN_CHANNELS: usize = 4;
/// The maximum output channels that the kernels support.
const MAX_OUT_CHANNELS: usize = 128;
/// The maximum taps that the kernels support.
const MAX_TAPS: usize = 128;
/// The shared memory of a block in bytes, available on every GPU from compute capability 8.0.
pub(super) const BLOCK_SHARED_BYTES: usize = 99 << 10;
/// The shared memory of an H100's multiprocessor, for all of its blocks.
pub(super) const SM_SHARED_BYTES: usize = 227 << 10;
/// The shared memory that an H100's multiprocessor reserves per block.
pub(super) const BLOCK_RESERVED_BYTES: usize = 1 << 10;
/// The bytes of a window's pixel: four channels of two bytes.
pub(super) const PIXEL_BYTES: usize = 8;

/// The division of a block's pixels among warps, each with fragments of 16 pixels.
#[derive(Clone, Copy, Debug)]
struct PixelTiling {
    warps: usize,
    fragments: usize,
}

const TILINGS: [PixelTiling; 3] = [
    PixelTiling { warps: 8, fragments: 2 },
    PixelTiling { warps: 4, fragments: 2 },
    PixelTiling { warps: 4, fragments: 1 },
];

impl PixelTiling {
    fn name(self) -> String {
        format!("stratus:first:{}x{}", self.warps, self.fragments)
    }

    fn pixels(self) -> usize {
        self.warps * self.fragments * 16
    }

    /// Resident blocks per multiprocessor, limited by registers: 0 if the accumulators alone exceed them.
    fn blocks(self, outputs: usize) -> usize {
        match (self.fragments, outputs) {
            (1, 0..=4) | (_, 0..=2) => 24 / self.warps,
            (1, 5..=8) => 20 / self.warps,
            (1, _) => 12 / self.warps,
            (_, 3..=8) => 16 / self.warps,
            _ => 0,
        }
    }
}

/// A tile of output pixels and the window of the input that it reads: rows and columns.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct PixelTile {
    pub pixels: [usize; 2],
    pub window: [usize; 2],
    /// The tiles of the whole batch.
    pub count: usize,
}

/// A convolution of at most four channels.
pub(super) struct FirstLayer<'a> {
    pub(super) conv: &'a Conv2d,
    pub(super) problem: &'a Problem,
}

impl<'a> FirstLayer<'a> {
    /// The convolution of these operands (input, weight, output, with a gradient in place of one), if the
    /// kernels support it.
    pub fn new(conv: &'a Conv2d, problem: &'a Problem, operands: [&Operand; 3]) -> Option<Self> {
        let Problem { x, y, .. } = problem;
        let reach = [0, 1].map(|side| conv.kernel[side].saturating_mul(conv.dilation[side]));
        let padded = [0, 1].map(|side| {
            let padding = conv.padding_before[side].saturating_add(conv.padding_after[side]);
            x[2 + side].saturating_add(padding).saturating_add(reach[side])
        });
        let product = |numbers: &[usize]| numbers.iter().fold(1_usize, |all, &n| all.saturating_mul(n));
        let fits = conv.groups == 1
            && (1..=MAX_IN_CHANNELS).contains(&x[1])
            && (1..=MAX_OUT_CHANNELS).contains(&y[1])
            && (1..=MAX_TAPS).contains(&product(&conv.kernel))
            && [product(&[x[0], padded[0], padded[1], x[1]]), product(&[y[0], y[2], y[3]])]
                .iter()
                .all(|number| (1..MAX_INT_COUNT).contains(number))
            && operands
                .iter()
                .all(|operand| operand.layout.same_bytes(&Layout::channels_last(&operand.value.shape)));
        fits.then_some(Self { conv, problem })
    }

    pub fn taps(&self) -> usize {
        self.conv.kernel[0] * self.conv.kernel[1]
    }

    /// The tile of at most `pixels` pixels with the least estimated time, whose window fits `window_bytes`
    /// bytes of shared memory. A pixel of the output takes the time 1, a pixel of the window
    /// `window_pixel_time`.
    pub fn tile(&self, pixels: usize, window_pixel_time: f64, window_bytes: usize) -> Option<PixelTile> {
        let Problem { y, .. } = self.problem;
        let Conv2d { kernel, stride, dilation, .. } = *self.conv;
        let tile = |width: usize| {
            let mut tile = [(pixels / width).min(y[2]), width];
            let mut count = y[0];
            for (side, extent) in tile.iter_mut().enumerate() {
                let parts = y[2 + side].div_ceil(*extent);
                *extent = y[2 + side].div_ceil(parts);
                count *= parts;
            }
            let window =
                [0, 1].map(|side| (tile[side] - 1) * stride[side] + (kernel[side] - 1) * dilation[side] + 1);
            PixelTile { pixels: tile, window, count }
        };
        let time = |tile: &PixelTile| {
            tile.count as f64 * (pixels as f64 + window_pixel_time * (tile.window[0] * tile.window[1]) as f64)
        };
        (1..=pixels.min(y[3]))
            .map(tile)
            .filter(|tile| tile.window[0] * tile.window[1] * PIXEL_BYTES <= window_bytes)
            .min_by(|a, b| time(a).total_cmp(&time(b)))
    }

    /// The kernels' parameters for taps, maps and tiles, in their order.
    pub fn geometry(&self, tile: &PixelTile) -> impl Iterator<Item = usize> {
        let Problem { x, y, .. } = self.problem;
        let Conv2d { kernel, stride, padding_before, dilation, .. } = *self.conv;
        let pairs = [dilation, [x[2], x[3]], [y[2], y[3]], stride, padding_before, tile.pixels, tile.window];
        [y[1], self.taps(), kernel[1]].into_iter().chain(pairs.into_iter().flatten())
    }

    /// The candidates for the forward pass, including bias and ReLU. The arguments are input, weight and
    /// output.
    pub fn candidates(
        &self,
        [x, weight, y]: [Argument; 3],
        bias: Option<Argument>,
        relu: bool,
        builder: &KernelBuilder<'_>,
    ) -> Result<Vec<Implementation>, String> {
        let dtype = self.problem.types[0];
        if !is_for_tensor_cores(dtype) || self.problem.types != [dtype; 3] {
            return Ok(Vec::new());
        }
        let outputs = self.problem.y[1];
        // Fragments have eight outputs; more than eight fragments form groups of four.
        let fragments = outputs.div_ceil(8);
        let fragments =
            if fragments > 8 { fragments.next_multiple_of(4) } else { fragments.next_power_of_two() };
        let steps = self.taps().div_ceil(4);
        let mut candidates = Vec::new();
        let requested = |tiling: &PixelTiling| builder.allows(&tiling.name());
        for tiling in TILINGS.into_iter().filter(|tiling| tiling.blocks(fragments) > 0 && requested(tiling)) {
            // Weights, biases and tables in shared memory, as in the kernel.
            let tables = steps * fragments * 32 * 8 + steps * 4 * 4 + fragments * 8 * 4 + tiling.pixels() * 8;
            // A window's pixel takes half a clock cycle; the products of a pixel run at 1300 per cycle.
            let window_pixel_time = 0.5 / ((steps * 16 * fragments * 8) as f64 / 1300.0);
            let Some(tile) =
                self.tile(tiling.pixels(), window_pixel_time, BLOCK_SHARED_BYTES.saturating_sub(tables))
            else {
                continue;
            };
            let shared = tables + tile.window[0] * tile.window[1] * PIXEL_BYTES;
            let blocks = tiling.blocks(fragments);
            let definitions = [
                ("CHANNELS", self.problem.x[1]),
                ("OUTPUTS", fragments),
                ("STEPS", steps),
                ("WARPS", tiling.warps),
                ("FRAGMENTS", tiling.fragments),
                ("BLOCKS", blocks),
                ("VECTOR", usize::from(outputs.is_multiple_of(2 * fragments.min(4)))),
                ("BIAS", usize::from(bias.is_some())),
                ("RELU", usize::from(relu)),
            ];
            let definitions = definitions.map(|(name, value)| (name, value.to_string())).to_vec();
            let source =
                Source { file: "conv_first", file_text: None, definitions }.with("T", type_name(dtype));
            let resident = blocks.min(SM_SHARED_BYTES / (shared + BLOCK_RESERVED_BYTES)).max(1);
            let grid = tile.count.min(resident * builder.processor.multiprocessors() as usize);
            let extent = |count: usize| u32::try_from(count).map_err(|_| format!("{count} is too large"));
            let shape = Shape {
                grid: [extent(grid)?, 1, 1],
                block: [extent(tiling.warps * 32)?, 1, 1],
                shared: extent(shared)?,
            };
            let mut arguments = vec![x, weight, bias.unwrap_or(Argument::Null), y];
            for number in [tile.count].into_iter().chain(self.geometry(&tile)) {
                arguments.push(int(number)?);
            }
            let launch = builder.launch(&source, "conv_first", shape, arguments)?;
            candidates.push(Implementation {
                name: tiling.name(),
                calls: vec![Box::new(launch)],
                scratch_bytes: 0,
            });
        }
        Ok(candidates)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ffi::cudnn::Pass;
    use stratus_engine::DType;

    /// Checks the tiles of square images.
    fn check(conv: Conv2d, batch: usize, size: usize, max_wasted: f64) -> Result<(), String> {
        let [height, width] = conv.output_size([size, size]).map_err(|error| error.to_string())?;
        let problem = Problem {
            pass: Pass::Forward,
            x: [batch, conv.in_channels, size, size],
            weight: conv.weight_shape(),
            y: [batch, conv.out_channels, height, width],
            padding_before: conv.padding_before,
            padding_after: conv.padding_after,
            stride: conv.stride,
            dilation: conv.dilation,
            types: [DType::Bf16; 3],
            tf32: false,
        };
        let first = FirstLayer { conv: &conv, problem: &problem };
        for pixels in TILINGS.map(PixelTiling::pixels) {
            const SCRATCH_BYTES: usize = 36 << 10;
            let tile = first.tile(pixels, 0.1, SCRATCH_BYTES).ok_or("no tile")?;
            let [rows, columns] = tile.pixels;
            assert!(
                rows * columns <= pixels && tile.window[0] * tile.window[1] * PIXEL_BYTES <= SCRATCH_BYTES
            );
            assert_eq!(tile.count, batch * height.div_ceil(rows) * width.div_ceil(columns));
            let wasted = (tile.count * pixels) as f64 / (batch * height * width) as f64;
            assert!(wasted < max_wasted, "{conv:?}: {tile:?} of {pixels}");
        }
        Ok(())
    }

    #[test]
    fn tiles_waste_few_pixels() -> Result<(), String> {
        check(Conv2d::new(3, 64, 7, 2, 3), 256, 224, 1.001)?;
        check(Conv2d::new(3, 64, 11, 4, 2), 512, 224, 1.3)?;
        check(Conv2d::new(3, 64, 3, 1, 1), 128, 224, 1.001)?;
        check(Conv2d::new(1, 8, 3, 1, 1), 1024, 28, 1.35)
    }
}
