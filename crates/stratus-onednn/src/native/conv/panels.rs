//! Convolution on tiles of bf16, and the gradient of its input.
//!
//! Both are sums over taps of products of matrices, pixels by channels. Maps lie channels last: a row of a tile, 32 channels of a pixel, is there as
//! it is wanted, but its neighbours are not where a tap reaches over an edge, or a stride leaves pixels out. So what the taps see is copied, a chunk
//! of pixels at a time that stays in the second cache: row by row, within a row image by image, once per column of taps. A tap further down then
//! begins so many rows further on, and products run over all taps and channels without a sum leaving its register.
//!
//! The gradient of the input is such a convolution of the output's gradient, one for each remainder of the pixels by the stride.

use super::taps::Axis;
use super::tiles::{BLOCK, GAP, MatrixUnit, ROWS, SUMS, Steps, TERMS, TILE, load, mask};
use crate::native::elementwise::CpuContext;
use crate::native::lanes::{self, LANES, Lanes};
use crate::native::relayout::Relayout;
use crate::native::simd::{Bf16, Isa};
use crate::native::threads::{cut, groups, piece, split};
use std::arch::x86_64::_mm512_storeu_si512;
use std::ops::Range;
use stratus_engine::Layout;
use stratus_graph::ops::Conv2d;

/// The bytes of input that a chunk's panels should have: they share a core's second cache with the weights of a block of filters.
const CHUNK: usize = 3 << 19;

/// Weights of this many bytes stay in a core's second cache beside the panels.
const SMALL: usize = 1 << 19;

/// What a kernel is wanted for.
#[derive(Clone, Copy)]
pub struct ConvProblem<'a, U = MatrixUnit> {
    /// Attributes.
    pub conv: &'a Conv2d,
    /// Images.
    pub batch: usize,
    /// Height and width of the input map.
    pub input: [usize; 2],
    /// How the weights lie.
    pub weights: &'a Layout,
    /// What multiplies.
    pub unit: U,
    /// Where to run.
    pub cpu: &'a CpuContext,
}

/// A convolution, or the gradient of its input.
#[derive(Clone)]
pub struct PanelConv {
    /// Channels that are summed over, and those of the result.
    channels: [usize; 2],
    batch: usize,
    phases: Vec<Phase>,
    /// Groups that threads form: each of the first kind makes some channels of the result, each of the second some chunks.
    groups: [usize; 2],
    /// Rows and columns of the map that is read, and of the one that is written.
    maps: [[usize; 2]; 2],
    /// From the weights as they are given to tiles, and the elements of those.
    gather: Relayout,
    weights: usize,
    /// Elements of the tiles for 32 channels of the result.
    block: usize,
    unit: MatrixUnit,
    cpu: CpuContext,
}

/// What the pixels of a result have in common that lie a stride apart.
#[derive(Clone, Debug)]
struct Phase {
    y: Axis,
    x: Axis,
    /// Images and rows of a chunk.
    chunk: [usize; 2],
    /// Every 32 channels of every tap, downwards.
    steps: Steps,
    /// Steps of one row of taps.
    steps_of_row: usize,
    /// Elements of a chunk's panels.
    panels: usize,
}

/// The map that is written: every thread writes pixels, or channels of them, of its own.
struct Map {
    start: *mut Bf16,
    elements: usize,
}

// SAFETY: threads write different elements, as `PanelConv::run` shares the work, and nothing is read.
unsafe impl Sync for Map {}

impl Map {
    /// # Safety
    /// No other thread writes these elements; AVX-512 must be there.
    #[inline(always)]
    unsafe fn write(&self, at: usize, count: usize, values: lanes::Avx512) {
        assert!(at + count <= self.elements, "a pixel outside of the map");
        if count >= LANES {
            // SAFETY: as many elements lie within the map, and are this thread's.
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

impl Phase {
    /// `sizes` are the blocks of channels that are summed over, the columns of a kernel, and the groups of threads that share chunks.
    fn new(y: Axis, x: Axis, batch: usize, [blocks, columns, groups]: [usize; 3]) -> Self {
        let reach: usize = y.classes().map(|(_, reach)| reach + 1).sum();
        let of_row = x.count * x.taps.len().max(1) * blocks * TERMS * size_of::<Bf16>();
        let rows = (CHUNK / of_row).saturating_sub(reach).max(1);
        let chunk = if rows < y.count {
            let bands = y.count.div_ceil(rows);
            [1, y.count.div_ceil(bands)]
        } else {
            let images = (CHUNK / (of_row * (y.count + reach))).clamp(1, batch);
            // As many chunks for every group.
            let chunks = batch.div_ceil(images).next_multiple_of(groups).min(batch);
            [batch.div_ceil(chunks), y.count]
        };
        let mut phase = Self { y, x, chunk, steps: Steps::default(), steps_of_row: 0, panels: 0 };
        let mut elements = Vec::new();
        for tap in 0..phase.y.taps.len() {
            let (class, shift) = phase.y.place(tap);
            for column in 0..phase.x.taps.len() {
                let number = phase.y.taps[tap].0 * columns + phase.x.taps[column].0;
                for block in 0..blocks {
                    let a = phase.panel(class, column, block, blocks) + shift * phase.row() * TERMS;
                    elements.push([a, (number * blocks + block) * 2 * TILE]);
                }
            }
        }
        phase.steps_of_row = phase.x.taps.len() * blocks;
        phase.steps = Steps::new(&elements);
        phase.panels = phase.panel(phase.y.step, 0, 0, blocks);
        phase
    }

    /// Pixels of a row of a chunk.
    fn row(&self) -> usize {
        self.chunk[0] * self.x.count
    }

    /// Where a panel begins: what a column of taps sees of a block of channels, in the rows of one class.
    fn panel(&self, class: usize, column: usize, block: usize, blocks: usize) -> usize {
        let elements = |reach: usize| ((self.chunk[1] + reach) * self.row() + BLOCK) * TERMS + GAP;
        let before = self.y.classes().filter(|other| other.0 < class);
        let before: usize = before.map(|(_, reach)| self.x.taps.len() * blocks * elements(reach)).sum();
        let here = self.y.classes().find(|other| other.0 == class).map_or(0, |(_, reach)| elements(reach));
        before + (column * blocks + block) * here
    }

    /// The number of chunks of images, and of rows.
    fn chunks(&self, batch: usize) -> [usize; 2] {
        [batch.div_ceil(self.chunk[0]), self.y.count.div_ceil(self.chunk[1])]
    }
}

/// Part of a phase.
struct Chunk {
    images: Range<usize>,
    rows: Range<usize>,
}

/// The epilogue.
#[derive(Clone, Copy)]
struct Finish<'a> {
    /// Empty where there is none.
    bias: &'a [f32],
    relu: bool,
}

impl PanelConv {
    /// A convolution; `None` where another kernel has to do it.
    #[must_use]
    pub fn forward(problem: ConvProblem<'_>) -> Option<Self> {
        let (conv, input) = (problem.conv, problem.input);
        let output = conv.output_size(input).ok()?;
        let axis = |axis: usize| Axis::forward(conv, axis, [input[axis], output[axis]]);
        Self::new(problem, [1, 0], [input, output], vec![[axis(0), axis(1)]])
    }

    /// The gradient of a convolution's input; `None` where another kernel has to make it.
    #[must_use]
    pub fn backward(problem: ConvProblem<'_>) -> Option<Self> {
        let (conv, input) = (problem.conv, problem.input);
        let output = conv.output_size(input).ok()?;
        let axis = |axis: usize, first: usize| Axis::backward(conv, axis, [input[axis], output[axis]], first);
        let firsts = (0..conv.stride[0]).flat_map(|y| (0..conv.stride[1]).map(move |x| [y, x]));
        let phases = firsts.map(|[y, x]| [axis(0, y), axis(1, x)]).collect();
        Self::new(problem, [0, 1], [output, input], phases)
    }

    /// `dimensions` are those of the weights that are summed over and that are made.
    fn new(
        problem: ConvProblem<'_>,
        dimensions: [usize; 2],
        maps: [[usize; 2]; 2],
        axes: Vec<[Axis; 2]>,
    ) -> Option<Self> {
        let ConvProblem { conv, batch, weights, unit, cpu, .. } = problem;
        let shape = conv.weight_shape();
        let channels = dimensions.map(|dimension| shape[dimension]);
        let suits = conv.groups == 1
            && batch > 0
            && channels.iter().all(|&channels| channels >= ROWS)
            && cpu.level.isa() == Isa::Avx512
            && weights.shape == shape;
        if !suits {
            return None;
        }
        let [terms, made] = channels.map(|channels| channels.div_ceil(BLOCK));
        let [rows, columns] = conv.kernel;
        let block = rows * columns * terms * 2 * TILE;
        let [of_terms, of_made] = dimensions;
        let mut padded = vec![0, 0, rows, columns];
        (padded[of_terms], padded[of_made]) = (terms * BLOCK, made * BLOCK);
        let mut strides = vec![0, 0, columns * terms * 2 * TILE, terms * 2 * TILE];
        (strides[of_terms], strides[of_made]) = (2 * TILE, block);
        // A tile: pairs of the channels that are summed over, by 16 of those that are made.
        let blocks = vec![(of_made, 2), (of_terms, ROWS), (of_made, ROWS), (of_terms, 2)];
        let tiles = Layout { tag: "tiles".to_owned(), shape: weights.shape.clone(), padded, strides, blocks };
        let small = tiles.elements() * size_of::<Bf16>() <= SMALL;
        let groups = groups(cpu.team.threads(), if small { 1 } else { made });
        let axes = axes.into_iter().filter(|axes| axes.iter().all(|axis| axis.count > 0));
        let phases = axes.map(|[y, x]| Phase::new(y, x, batch, [terms, columns, groups[1]])).collect();
        let (gather, weights) = (Relayout::new(weights, &tiles, cpu)?, tiles.elements());
        let cpu = cpu.clone();
        Some(Self { channels, batch, phases, groups, maps, gather, weights, block, unit, cpu })
    }

    /// Elements of a thread's panels.
    fn panels(&self) -> usize {
        self.phases.iter().map(|phase| phase.panels).max().unwrap_or(0)
    }

    /// Bytes of scratch.
    #[must_use]
    pub fn scratch_bytes(&self) -> usize {
        (self.weights + self.groups[0] * self.groups[1] * self.panels()) * size_of::<Bf16>()
    }

    /// Does it: `y = x * weights + bias`, rectified where `relu` says so; `bias` is empty where there is none.
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
        assert_eq!([x.len(), y.len()], [0, 1].map(elements), "maps of another size");
        let (tiles, scratch) = scratch.split_at_mut(self.weights);
        self.gather.run(weights, tiles);
        let y = Map { start: y.as_mut_ptr(), elements: y.len() };
        let threads = self.groups[0] * self.groups[1];
        let mut parts = cut(scratch, (0..threads).map(|_| self.panels()));
        self.cpu.team.run_parts(&mut parts[..threads], &|thread, panels| {
            let channels = split(self.channels[1].div_ceil(BLOCK), self.groups[0], thread % self.groups[0]);
            let finish = Finish { bias, relu };
            // SAFETY: the level is the proof of AVX-512 (`new`). Threads of the same group by chunks make different channels, those of different
            // ones different chunks: no element is written by two.
            unsafe { self.share([x, tiles], finish, &y, panels, &channels, thread / self.groups[0]) };
        });
    }

    /// What one thread does: some channels of some chunks.
    ///
    /// # Safety
    /// AVX-512 must be there; no other thread writes these channels of these chunks.
    #[allow(clippy::too_many_arguments)] // What is read, what is written, and which part of it.
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
    unsafe fn share(
        &self,
        [x, weights]: [&[Bf16]; 2],
        finish: Finish<'_>,
        y: &Map,
        panels: &mut [Bf16],
        channels: &Range<usize>,
        group: usize,
    ) {
        let registers = self.unit.tiles();
        let mut sums = [0.0; SUMS];
        for phase in &self.phases {
            let [of_images, bands] = phase.chunks(self.batch);
            for number in split(of_images * bands, self.groups[1], group) {
                let chunk = Chunk {
                    images: piece(number / bands, phase.chunk[0], self.batch),
                    rows: piece(number % bands, phase.chunk[1], phase.y.count),
                };
                // SAFETY: the caller's, here and below.
                unsafe { self.pack(phase, &chunk, x, panels) };
                let pixels = chunk.rows.len() * phase.row();
                for channels in channels.clone() {
                    let weights = &weights[channels * self.block..][..self.block];
                    for first in (0..pixels).step_by(BLOCK) {
                        let taps = Self::taps(phase, &chunk, first);
                        let steps = taps.start * phase.steps_of_row..taps.end * phase.steps_of_row;
                        // Pixels that no tap sees have no panels.
                        let seen = panels.get(first * TERMS..).unwrap_or_default();
                        registers.multiply(seen, weights, &phase.steps, steps, &mut sums);
                        unsafe { self.finish(phase, &chunk, first, channels, finish, &sums, y) };
                    }
                }
            }
        }
    }

    /// The rows of taps that see no padding, where a block of pixels lies in one row; else all.
    fn taps(phase: &Phase, chunk: &Chunk, first: usize) -> Range<usize> {
        if phase.row().is_multiple_of(BLOCK) {
            phase.y.taps_inside(chunk.rows.start + first / phase.row())
        } else {
            0..phase.y.taps.len()
        }
    }

    /// Copies what the taps see of a chunk.
    ///
    /// # Safety
    /// AVX-512 must be there.
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
    unsafe fn pack(&self, phase: &Phase, chunk: &Chunk, x: &[Bf16], panels: &mut [Bf16]) {
        let channels = self.channels[0];
        let blocks = channels.div_ceil(BLOCK);
        for (class, reach) in phase.y.classes() {
            let from = phase.y.origin() + class.cast_signed();
            for (column, &(_, sees)) in phase.x.taps.iter().enumerate() {
                let first = phase.panel(class, column, 0, blocks);
                let panel = phase.panel(class, column, 1, blocks) - first;
                let panels = &mut panels[first..][..blocks * panel];
                for row in 0..chunk.rows.len() + reach {
                    let y = phase.y.inside(chunk.rows.start + row, from);
                    for (number, image) in chunk.images.clone().enumerate() {
                        let to = (row * phase.chunk[0] + number) * phase.x.count;
                        let row = y.map(|y| (image * self.maps[0][0] + y) * self.maps[0][1]);
                        for pixel in 0..phase.x.count {
                            let at =
                                row.zip(phase.x.inside(pixel, sees)).map(|(row, x)| (row + x) * channels);
                            for (block, panel) in panels.chunks_exact_mut(panel).enumerate() {
                                let at = at.map(|at| at + block * BLOCK);
                                // SAFETY: channels of a pixel of the map; 64 bytes are written.
                                unsafe {
                                    let values = load(x, at, mask(channels, block));
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

    /// Writes a block of pixels and channels.
    ///
    /// # Safety
    /// AVX-512 must be there; no other thread writes these elements.
    #[allow(clippy::too_many_arguments)] // What is read, what is written, and where.
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
    unsafe fn finish(
        &self,
        phase: &Phase,
        chunk: &Chunk,
        first: usize,
        channels: usize,
        finish: Finish<'_>,
        sums: &[f32; SUMS],
        y: &Map,
    ) {
        let channels = channels * BLOCK..self.channels[1];
        let mut bias = [0.0; BLOCK];
        if !finish.bias.is_empty() {
            bias.iter_mut().zip(&finish.bias[channels.clone()]).for_each(|(to, bias)| *to = *bias);
        }
        let mut column = first % phase.x.count;
        let mut image = first / phase.x.count % phase.chunk[0];
        let mut row = first / phase.row();
        for pixel in 0..BLOCK {
            if row >= chunk.rows.len() {
                return;
            }
            if image < chunk.images.len() {
                let row = phase.y.first + (chunk.rows.start + row) * phase.y.apart;
                let row = (chunk.images.start + image) * self.maps[1][0] + row;
                let place = row * self.maps[1][1] + phase.x.first + column * phase.x.apart;
                let place = place * self.channels[1] + channels.start;
                let tiles = &sums.as_chunks::<{ ROWS * ROWS }>().0[pixel / ROWS * 2..];
                for (half, tile) in tiles.iter().take(2).enumerate() {
                    let left = channels.len().saturating_sub(half * LANES);
                    if left > 0 {
                        let sums = &tile.as_chunks::<LANES>().0[pixel % ROWS];
                        // SAFETY: the caller's.
                        unsafe {
                            let bias = lanes::Avx512::load(&bias.as_chunks::<LANES>().0[half]);
                            let sum = lanes::Avx512::load(sums).add(bias);
                            let sum = if finish.relu { sum.relu() } else { sum };
                            y.write(place + half * LANES, left.min(LANES), sum);
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
#[path = "panels_tests.rs"]
mod tests;
