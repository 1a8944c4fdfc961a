//! Convolution of bf16 maps with many channels as matrix products on AMX tiles, and its data gradient.
//!
//! ```text
//! y[pixel, out] = Σ_taps  x[pixel at tap, in] × w[in, out]       pixels: N·H·W rows, K = taps · in
//! ```
//!
//! Maps are `[N, H, W, C]`: 32 channels of a pixel already form a row of a tile of `a`, but at borders and
//! with a stride neighbouring rows are not neighbouring pixels. Therefore the inputs of the taps are copied
//! into panels, for a chunk of pixels at a time that stays in L2:
//!
//! ```text
//! panel[class][column of taps][block of 32 channels]  =  [rows of the chunk, images, output columns, 32]
//! ```
//!
//! In this order a tap `shift` rows down starts `shift * row_pixels` tile rows later, for all images at once,
//! so rows are copied once per column of taps, not per tap. A block of 32 pixels by 32 channels is then one
//! sum over all taps and channels ([`TileMultiplier::multiply`](super::tiles::TileMultiplier::multiply)) that
//! never leaves the registers; weights are packed in tiles beforehand.
//!
//! The data gradient of stride s is s² such convolutions of `dy`, one per residue of the pixels of `dx`
//! ([`Axis::backward`]). Threads divide chunks, and blocks of output channels if the weights do not fit L2.

use super::taps::Axis;
use super::tiles::{
    BLOCK, BLOCK_SUMS, GAP, MatrixUnit, ROWS, Steps, TERMS, TILE, channel_mask, load_channels,
};
use crate::native::elementwise::CpuContext;
use crate::native::lanes::{self, LANES, Lanes};
use crate::native::relayout::Relayout;
use crate::native::simd::{Bf16, Isa};
use crate::native::threads::{chunk_range, split, split_lengths, thread_grid};
use std::arch::x86_64::_mm512_storeu_si512;
use std::ops::Range;
use stratus_engine::Layout;
use stratus_graph::ops::Conv2d;

/// The approximate bytes of a chunk's panels, which share a core's L2 cache with the weights of a block of
/// filters.
const CHUNK_BYTES: usize = 3 << 19;

/// The maximum size of weights that fit L2 with the panels; threads then divide only chunks.
const SHARED_WEIGHTS_BYTES: usize = 1 << 19;

/// The parameters of a convolution kernel: the convolution, and its execution.
#[derive(Clone, Copy)]
pub struct ConvProblem<'a, U = MatrixUnit> {
    /// The convolution.
    pub conv: &'a Conv2d,
    /// The number of images.
    pub batch: usize,
    /// `[H, W]` of the input.
    pub input: [usize; 2],
    /// The layout of the weights, or of their gradient.
    pub weights: &'a Layout,
    /// The matrix unit.
    pub unit: U,
    /// Threads and instructions.
    pub cpu: &'a CpuContext,
}

/// A convolution, or its data gradient.
#[derive(Clone)]
pub struct PanelConv {
    /// The channels summed over, and the output channels.
    channels: [usize; 2],
    batch: usize,
    phases: Vec<StridePhase>,
    /// Threads form a grid: the first coordinate divides blocks of output channels, the second chunks.
    groups: [usize; 2],
    /// `[H, W]` of the input map and of the output map.
    maps: [[usize; 2]; 2],
    /// Packs the weights into tiles, with the number of elements of the tiles.
    pack_weights: Relayout,
    weights: usize,
    /// The elements of the tiles of 32 output channels.
    block: usize,
    unit: MatrixUnit,
    cpu: CpuContext,
}

/// The output pixels with the same residues modulo the stride: a single phase for a forward pass.
#[derive(Clone, Debug)]
struct StridePhase {
    y: Axis,
    x: Axis,
    /// The images and rows of a chunk.
    chunk: [usize; 2],
    /// The tiles of every block of 32 channels of every tap, rows of taps outermost.
    steps: Steps,
    /// The steps of one row of taps.
    steps_of_row: usize,
    /// The elements of a chunk's panels.
    panels: usize,
}

/// The output map. Every thread writes separate pixels, or separate channels of them.
struct OutputMap {
    start: *mut Bf16,
    elements: usize,
}

// SAFETY: threads write different elements, as divided by `PanelConv::run`, and nothing is read.
unsafe impl Sync for OutputMap {}

impl OutputMap {
    /// # Safety
    /// No other thread writes these elements; AVX-512 must be available.
    #[inline(always)]
    unsafe fn write(&self, at: usize, count: usize, values: lanes::Avx512) {
        assert!(at + count <= self.elements, "a pixel outside of the map");
        if count >= LANES {
            // SAFETY: the elements are within the map, and are this thread's.
            unsafe { values.store_bf16(&mut *self.start.add(at).cast::<[Bf16; LANES]>()) };
        } else {
            let mut elements = [Bf16(0); LANES];
            // SAFETY: as above.
            unsafe {
                values.store_bf16(&mut elements);
                std::ptr::copy_nonoverlapping(elements.as_ptr(), self.start.add(at), count);
            }
        }
    }
}

impl StridePhase {
    /// A phase with `blocks` blocks of channels summed over, `columns` columns of the kernel, and `groups`
    /// groups of threads that divide chunks.
    fn new(y: Axis, x: Axis, batch: usize, [blocks, columns, groups]: [usize; 3]) -> Self {
        let reach: usize = y.classes().map(|(_, reach)| reach + 1).sum();
        let row_bytes = x.count * x.taps.len().max(1) * blocks * TERMS * size_of::<Bf16>();
        let rows = (CHUNK_BYTES / row_bytes).saturating_sub(reach).max(1);
        let chunk = if rows < y.count {
            let bands = y.count.div_ceil(rows);
            [1, y.count.div_ceil(bands)]
        } else {
            let images = (CHUNK_BYTES / (row_bytes * (y.count + reach))).clamp(1, batch);
            // Every group gets the same number of chunks.
            let chunks = batch.div_ceil(images).next_multiple_of(groups).min(batch);
            [batch.div_ceil(chunks), y.count]
        };
        let mut phase = Self { y, x, chunk, steps: Steps::default(), steps_of_row: 0, panels: 0 };
        let mut elements = Vec::new();
        for tap in 0..phase.y.taps.len() {
            let (class, shift) = phase.y.class_and_shift(tap);
            for column in 0..phase.x.taps.len() {
                let number = phase.y.taps[tap].0 * columns + phase.x.taps[column].0;
                for block in 0..blocks {
                    let a =
                        phase.panel_start(class, column, block, blocks) + shift * phase.row_pixels() * TERMS;
                    elements.push([a, (number * blocks + block) * 2 * TILE]);
                }
            }
        }
        phase.steps_of_row = phase.x.taps.len() * blocks;
        phase.steps = Steps::new(&elements);
        phase.panels = phase.panel_start(phase.y.input_step, 0, 0, blocks);
        phase
    }

    /// The pixels of a row of a chunk, over all its images.
    fn row_pixels(&self) -> usize {
        self.chunk[0] * self.x.count
    }

    /// The offset of the panel of a class of rows, a column of taps and a block of channels.
    fn panel_start(&self, class: usize, column: usize, block: usize, blocks: usize) -> usize {
        let elements = |reach: usize| ((self.chunk[1] + reach) * self.row_pixels() + BLOCK) * TERMS + GAP;
        let before = self.y.classes().filter(|other| other.0 < class);
        let before: usize = before.map(|(_, reach)| self.x.taps.len() * blocks * elements(reach)).sum();
        let panel_elements =
            self.y.classes().find(|other| other.0 == class).map_or(0, |(_, reach)| elements(reach));
        before + (column * blocks + block) * panel_elements
    }

    /// The numbers of chunks of images and of rows.
    fn chunks(&self, batch: usize) -> [usize; 2] {
        [batch.div_ceil(self.chunk[0]), self.y.count.div_ceil(self.chunk[1])]
    }
}

/// Images and rows of a phase that are processed in L2 together.
struct Chunk {
    images: Range<usize>,
    rows: Range<usize>,
}

/// Operations on a result before it is stored.
#[derive(Clone, Copy)]
struct Epilogue<'a> {
    /// The bias; empty if there is none.
    bias: &'a [f32],
    relu: bool,
}

impl PanelConv {
    /// Creates a convolution; `None` if this kernel does not support it.
    #[must_use]
    pub fn forward(problem: ConvProblem<'_>) -> Option<Self> {
        let (conv, input) = (problem.conv, problem.input);
        let output = conv.output_size(input).ok()?;
        let axis = |axis: usize| Axis::forward(conv, axis, [input[axis], output[axis]]);
        Self::new(problem, [1, 0], [input, output], vec![[axis(0), axis(1)]])
    }

    /// Creates a convolution's data gradient; `None` if this kernel does not support it.
    #[must_use]
    pub fn backward(problem: ConvProblem<'_>) -> Option<Self> {
        let (conv, input) = (problem.conv, problem.input);
        let output = conv.output_size(input).ok()?;
        let axis = |axis: usize, first: usize| Axis::backward(conv, axis, [input[axis], output[axis]], first);
        let firsts = (0..conv.stride[0]).flat_map(|y| (0..conv.stride[1]).map(move |x| [y, x]));
        let phases = firsts.map(|[y, x]| [axis(0, y), axis(1, x)]).collect();
        Self::new(problem, [0, 1], [output, input], phases)
    }

    /// Creates the kernel; `dimensions` are those of the weights `[O, I, H, W]` that are summed over and
    /// output.
    fn new(
        problem: ConvProblem<'_>,
        dimensions: [usize; 2],
        maps: [[usize; 2]; 2],
        axes: Vec<[Axis; 2]>,
    ) -> Option<Self> {
        let ConvProblem { conv, batch, weights, unit, cpu, .. } = problem;
        let shape = conv.weight_shape();
        let channels = dimensions.map(|dimension| shape[dimension]);
        let is_supported = conv.groups == 1
            && batch > 0
            && channels.iter().all(|&channels| channels >= ROWS)
            && cpu.level.isa() == Isa::Avx512
            && weights.shape == shape;
        if !is_supported {
            return None;
        }
        let [terms, outputs] = channels.map(|channels| channels.div_ceil(BLOCK));
        let [rows, columns] = conv.kernel;
        let block = rows * columns * terms * 2 * TILE;
        let [term_dimension, output_dimension] = dimensions;
        let mut padded = vec![0, 0, rows, columns];
        (padded[term_dimension], padded[output_dimension]) = (terms * BLOCK, outputs * BLOCK);
        let mut strides = vec![0, 0, columns * terms * 2 * TILE, terms * 2 * TILE];
        (strides[term_dimension], strides[output_dimension]) = (2 * TILE, block);
        // A tile: pairs of terms by 16 output channels.
        let blocks = vec![
            (output_dimension, 2),
            (term_dimension, ROWS),
            (output_dimension, ROWS),
            (term_dimension, 2),
        ];
        let tiles = Layout { tag: "tiles".to_owned(), shape: weights.shape.clone(), padded, strides, blocks };
        let small = tiles.elements() * size_of::<Bf16>() <= SHARED_WEIGHTS_BYTES;
        let groups = thread_grid(cpu.team.threads(), if small { 1 } else { outputs });
        let axes = axes.into_iter().filter(|axes| axes.iter().all(|axis| axis.count > 0));
        let phases = axes.map(|[y, x]| StridePhase::new(y, x, batch, [terms, columns, groups[1]])).collect();
        let (pack_weights, weights) = (Relayout::new(weights, &tiles, cpu)?, tiles.elements());
        let cpu = cpu.clone();
        Some(Self { channels, batch, phases, groups, maps, pack_weights, weights, block, unit, cpu })
    }

    /// The elements of a thread's panels.
    fn panels(&self) -> usize {
        self.phases.iter().map(|phase| phase.panels).max().unwrap_or(0)
    }

    /// The scratch bytes.
    #[must_use]
    pub fn scratch_bytes(&self) -> usize {
        (self.weights + self.groups[0] * self.groups[1] * self.panels()) * size_of::<Bf16>()
    }

    /// `y = x * weights + bias`, with ReLU if `relu`; `bias` may be empty.
    pub fn run(
        &self,
        x: &[Bf16],
        weights: &[Bf16],
        bias: &[f32],
        relu: bool,
        y: &mut [Bf16],
        scratch: &mut [Bf16],
    ) {
        let elements = |map: usize| self.batch * self.maps[map][0] * self.maps[map][1] * self.channels[map];
        assert_eq!([x.len(), y.len()], [0, 1].map(elements), "unexpected map sizes");
        let (tiles, scratch) = scratch.split_at_mut(self.weights);
        self.pack_weights.run(weights, tiles);
        let y = OutputMap { start: y.as_mut_ptr(), elements: y.len() };
        let threads = self.groups[0] * self.groups[1];
        let mut parts = split_lengths(scratch, (0..threads).map(|_| self.panels()));
        self.cpu.team.run_parts(&mut parts[..threads], &|thread, panels| {
            let channels = split(self.channels[1].div_ceil(BLOCK), self.groups[0], thread % self.groups[0]);
            let epilogue = Epilogue { bias, relu };
            // SAFETY: the level proves AVX-512 (`new`). Threads with the same second coordinate write
            // different channels, others different chunks: no element is written twice.
            unsafe { self.run_thread([x, tiles], epilogue, &y, panels, &channels, thread / self.groups[0]) };
        });
    }

    /// A thread's share: some channels of some chunks.
    ///
    /// # Safety
    /// AVX-512 must be available; no other thread writes these channels of these chunks.
    #[allow(clippy::too_many_arguments)] // The inputs, the outputs, and the part to compute.
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
    unsafe fn run_thread(
        &self,
        [x, weights]: [&[Bf16]; 2],
        epilogue: Epilogue<'_>,
        y: &OutputMap,
        panels: &mut [Bf16],
        channels: &Range<usize>,
        group: usize,
    ) {
        let registers = self.unit.tiles();
        let mut sums = [0.0; BLOCK_SUMS];
        for phase in &self.phases {
            let [image_chunks, bands] = phase.chunks(self.batch);
            for number in split(image_chunks * bands, self.groups[1], group) {
                let chunk = Chunk {
                    images: chunk_range(number / bands, phase.chunk[0], self.batch),
                    rows: chunk_range(number % bands, phase.chunk[1], phase.y.count),
                };
                // SAFETY: upheld by the caller, here and below.
                unsafe { self.pack(phase, &chunk, x, panels) };
                let pixels = chunk.rows.len() * phase.row_pixels();
                for channels in channels.clone() {
                    let weights = &weights[channels * self.block..][..self.block];
                    for first in (0..pixels).step_by(BLOCK) {
                        let taps = Self::taps(phase, &chunk, first);
                        let steps = taps.start * phase.steps_of_row..taps.end * phase.steps_of_row;
                        // A phase without taps has no panels.
                        let panels_from = panels.get(first * TERMS..).unwrap_or_default();
                        registers.multiply(panels_from, weights, &phase.steps, steps, &mut sums);
                        unsafe { self.store_block(phase, &chunk, first, channels, epilogue, &sums, y) };
                    }
                }
            }
        }
    }

    /// The rows of taps that read no padding if all pixels of a block are in one row; otherwise all rows.
    fn taps(phase: &StridePhase, chunk: &Chunk, first: usize) -> Range<usize> {
        if phase.row_pixels().is_multiple_of(BLOCK) {
            phase.y.taps_inside(chunk.rows.start + first / phase.row_pixels())
        } else {
            0..phase.y.taps.len()
        }
    }

    /// Copies the inputs of the taps in a chunk into panels.
    ///
    /// # Safety
    /// AVX-512 must be available.
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
    unsafe fn pack(&self, phase: &StridePhase, chunk: &Chunk, x: &[Bf16], panels: &mut [Bf16]) {
        let channels = self.channels[0];
        let blocks = channels.div_ceil(BLOCK);
        for (class, reach) in phase.y.classes() {
            let from = phase.y.origin() + class.cast_signed();
            for (column, &(_, offset)) in phase.x.taps.iter().enumerate() {
                let first = phase.panel_start(class, column, 0, blocks);
                let panel = phase.panel_start(class, column, 1, blocks) - first;
                let panels = &mut panels[first..][..blocks * panel];
                for row in 0..chunk.rows.len() + reach {
                    let y = phase.y.input_at(chunk.rows.start + row, from);
                    for (number, image) in chunk.images.clone().enumerate() {
                        let to = (row * phase.chunk[0] + number) * phase.x.count;
                        let row = y.map(|y| (image * self.maps[0][0] + y) * self.maps[0][1]);
                        for pixel in 0..phase.x.count {
                            let at =
                                row.zip(phase.x.input_at(pixel, offset)).map(|(row, x)| (row + x) * channels);
                            for (block, panel) in panels.chunks_exact_mut(panel).enumerate() {
                                let at = at.map(|at| at + block * BLOCK);
                                // SAFETY: channels of a pixel of the map; 64 bytes are written.
                                unsafe {
                                    let values = load_channels(x, at, channel_mask(channels, block));
                                    let to = &mut panel[(to + pixel) * TERMS..][..TERMS];
                                    _mm512_storeu_si512(to.as_mut_ptr().cast(), values);
                                }
                            }
                        }
                    }
                }
            }
        }
    }

    /// Adds the bias to a block of 32 pixels by 32 channels, applies ReLU and stores it.
    ///
    /// # Safety
    /// AVX-512 must be available; no other thread writes these elements.
    #[allow(clippy::too_many_arguments)] // The inputs, the outputs, and their positions.
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
    unsafe fn store_block(
        &self,
        phase: &StridePhase,
        chunk: &Chunk,
        first: usize,
        channels: usize,
        epilogue: Epilogue<'_>,
        sums: &[f32; BLOCK_SUMS],
        y: &OutputMap,
    ) {
        let channels = channels * BLOCK..self.channels[1];
        let mut bias = [0.0; BLOCK];
        if !epilogue.bias.is_empty() {
            bias.iter_mut().zip(&epilogue.bias[channels.clone()]).for_each(|(to, bias)| *to = *bias);
        }
        let mut column = first % phase.x.count;
        let mut image = first / phase.x.count % phase.chunk[0];
        let mut row = first / phase.row_pixels();
        for pixel in 0..BLOCK {
            if row >= chunk.rows.len() {
                return;
            }
            if image < chunk.images.len() {
                let row = phase.y.output_start + (chunk.rows.start + row) * phase.y.output_stride;
                let row = (chunk.images.start + image) * self.maps[1][0] + row;
                let at = row * self.maps[1][1] + phase.x.output_start + column * phase.x.output_stride;
                let at = at * self.channels[1] + channels.start;
                let tiles = &sums.as_chunks::<{ ROWS * ROWS }>().0[pixel / ROWS * 2..];
                for (half, tile) in tiles.iter().take(2).enumerate() {
                    let left = channels.len().saturating_sub(half * LANES);
                    if left > 0 {
                        let sums = &tile.as_chunks::<LANES>().0[pixel % ROWS];
                        // SAFETY: upheld by the caller.
                        unsafe {
                            let bias = lanes::Avx512::load(&bias.as_chunks::<LANES>().0[half]);
                            let sum = lanes::Avx512::load(sums).add(bias);
                            let sum = if epilogue.relu { sum.relu() } else { sum };
                            y.write(at + half * LANES, left.min(LANES), sum);
                        }
                    }
                }
            }
            column += 1;
            if column == phase.x.count {
                (column, image) = (0, image + 1);
            }
            if image == phase.chunk[0] {
                (image, row) = (0, row + 1);
            }
        }
    }
}

#[cfg(test)]
mod tests;
