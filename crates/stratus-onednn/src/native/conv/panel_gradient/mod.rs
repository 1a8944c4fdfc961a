//! Weight gradients as matrix products on tiles of bf16 or `f32`.
//!
//! ```text
//! dw[out, in, tap] = Σ_pixels  dy[pixel, out] · x[pixel at tap, in]         K = N · Ho · Wo pixels
//! ```
//!
//! The terms of the product are pixels, and maps are `[N, H, W, C]`, so both factors have to be transposed:
//! both maps are packed into panels of 16 channels, a chunk of images and rows at a time that stays in L2.
//! Every block of 32×32 channels and every tap is then a product of two pairs of panels, read in order (see
//! [`super::tiles`]):
//!
//! ```text
//! dy  [16 filters ][terms]     terms = (output row, image, output column); per chunk once
//! x   [16 channels][terms]     per chunk, column of taps, and residue of rows modulo the stride
//! ```
//!
//! With rows outermost, a tap one row down starts `images * columns` terms later, whatever the height of the
//! map, and rows of padding are skipped. A product reads 4 · 64 bytes per row of the panels (one term of
//! `f32`, two of bf16) for 32 · 32 multiply-adds per term.
//!
//! Threads form a grid, as in [`super::panels`]: blocks of filters by chunks. Threads that divide chunks have
//! separate sums, which are added in the order of the threads.
//!
//! Compared with oneDNN: its weight gradients of strided or asymmetric convolutions of bf16 reach 130 to 330
//! GFLOP/s on a Zen 4, these 279 to 418. With one tap, 64 to 256 channels on 56×56 take 2.12 ms instead of
//! 2.80 (docs/benchmarks/kernels.md).

mod arithmetic;
mod multiply;
mod pack;

pub use arithmetic::PanelArithmetic;

use super::panels::ConvProblem;
use super::taps::Axis;
use super::tiles::{BLOCK, BLOCK_SUMS, ROW_STEPS, ROWS};
use crate::native::elementwise::CpuContext;
use crate::native::relayout::Relayout;
use crate::native::simd::{Isa, prefetch_l2};
use crate::native::threads::{MAX_THREADS, chunk_range, split, split_lengths, thread_grid};
use std::ops::Range;
use stratus_engine::Layout;
use stratus_graph::ops::Conv2d;

/// The rows of a panel per chunk: with more rows sums stay in registers for longer, with fewer the panels
/// stay in the caches.
const CHUNK_ROWS: [usize; 2] = [128, 256];

/// The maximum size of the panels of a chunk with many rows: they share a core's L2 cache with prefetched
/// data.
const MAX_LONG_CHUNK_BYTES: usize = 3 << 18;

const MAX_KERNEL_ROWS: usize = 16;

/// The maximum size of sums that fit L2: every thread then has separate sums, and threads divide only chunks.
const PRIVATE_SUMS_BYTES: usize = 1 << 20;

/// The gradients of the weights and the bias of one convolution.
#[derive(Clone)]
pub struct PanelGradient<U> {
    channels: usize,
    filters: usize,
    batch: usize,
    /// Rows and columns of the output, and the inputs that they read.
    axes: [Axis; 2],
    /// Images and rows of a chunk.
    chunk: [usize; 2],
    /// The grid of threads: the first coordinate divides blocks of filters, the second chunks.
    groups: [usize; 2],
    /// The copy from tiles of sums to the layout of the gradient.
    unpack: Relayout,
    unit: U,
    cpu: CpuContext,
}

/// Images and output rows that are processed in L2 together.
#[derive(Clone)]
pub struct Chunk {
    images: Range<usize>,
    rows: Range<usize>,
    /// The number of output pixels; bf16 rows of odd width are padded by one.
    terms: usize,
}

/// The position of the terms of one tap.
#[derive(Clone, Copy, Default)]
struct TapTerms {
    /// The first element in a panel of `dy`.
    output_start: usize,
    /// The first element in the first panel of `x`.
    input_start: usize,
    /// The elements between the starts of two panels of `x`.
    panel: usize,
    /// The number of tiles of terms.
    tiles: usize,
}

/// The parts of the maps that the next chunk reads: each product prefetches a part of them.
struct UpcomingChunk<'a, E> {
    maps: [&'a [E]; 2],
}

impl<'a, E> UpcomingChunk<'a, E> {
    fn new(maps: Option<[&'a [E]; 2]>) -> Self {
        Self { maps: maps.unwrap_or_default() }
    }

    /// The part that a product of `tiles` tiles prefetches, a cache line per step.
    fn take(&mut self, tiles: usize) -> &'a [E] {
        const CACHE_LINE: usize = 64;
        let [first, second] = &mut self.maps;
        let from = if first.is_empty() { second } else { first };
        let (part, rest) = from.split_at((tiles * ROW_STEPS * CACHE_LINE / size_of::<E>()).min(from.len()));
        *from = rest;
        part
    }
}

/// A thread's section of scratch.
#[derive(Default)]
struct ThreadScratch<'a> {
    sums: &'a mut [f32],
    bias: &'a mut [f32],
    dy: &'a mut [f32],
    x: &'a mut [f32],
}

impl<U: PanelArithmetic> PanelGradient<U> {
    /// The weight gradient in the layout of the problem; `None` if this kernel does not support it.
    #[must_use]
    pub fn new(problem: ConvProblem<'_, U>) -> Option<Self> {
        let ConvProblem { conv, batch, input, weights: layout, unit, cpu } = problem;
        conv.output_size(input).ok()?;
        let (batch, input) =
            if is_pointwise(conv) { reshaped_to_tiles::<U>(batch, input) } else { (batch, input) };
        let output = conv.output_size(input).ok()?;
        let is_supported = conv.groups == 1
            && conv.in_channels >= ROWS
            && conv.out_channels >= ROWS
            && cpu.level.isa() == Isa::Avx512
            && conv.kernel[0] <= MAX_KERNEL_ROWS
            && layout.shape == conv.weight_shape();
        if !is_supported || batch == 0 {
            return None;
        }
        let [height, width] = [output[0], output[1].next_multiple_of(U::GROUP)];
        let blocks = [conv.out_channels, conv.in_channels].map(|channels| channels.div_ceil(BLOCK));
        let axes = [0, 1].map(|axis| Axis::forward(conv, axis, [input[axis], output[axis]]));
        let [few, many] = CHUNK_ROWS;
        // The bytes of a row of all panels; `x` has a set of panels per residue of rows.
        let row = 2 * (blocks[0] + blocks[1] * axes[0].classes().count()) * size_of::<[f32; ROWS]>();
        // Loading and storing tile registers is slow; a 1×1 kernel gains nothing from rows that several taps
        // read.
        let long =
            unit.takes_filters_in_rows() || conv.kernel != [1; 2] && many * row <= MAX_LONG_CHUNK_BYTES;
        let chunk_terms = U::GROUP * if long { many } else { few };
        // The rows of a chunk should form whole tiles of terms.
        let in_whole_tiles = |length: usize, wanted: usize| {
            let even = U::TERMS / gcd(length, U::TERMS);
            if wanted > even { wanted / even * even } else { wanted.max(1) }
        };
        let chunk = if height * width >= chunk_terms {
            [1, in_whole_tiles(width, chunk_terms / width).min(height)]
        } else {
            [in_whole_tiles(width, chunk_terms / (height * width)).min(batch), height]
        };
        let [rows, columns] = conv.kernel;
        let sums = Layout {
            tag: "sums".to_owned(),
            shape: layout.shape.clone(),
            padded: vec![blocks[0] * BLOCK, blocks[1] * BLOCK, rows, columns],
            strides: vec![
                columns * blocks[1] * rows * BLOCK_SUMS,
                rows * BLOCK_SUMS,
                BLOCK_SUMS,
                blocks[1] * rows * BLOCK_SUMS,
            ],
            blocks: vec![(0, 2), (1, 2), (0, ROWS), (1, ROWS)],
        };
        let small = sums.elements() * size_of::<f32>() <= PRIVATE_SUMS_BYTES;
        Some(Self {
            channels: conv.in_channels,
            filters: conv.out_channels,
            batch,
            axes,
            chunk,
            groups: thread_grid(cpu.team.threads(), if small { 1 } else { blocks[0] }),
            unpack: Relayout::new(&sums, layout, cpu)?,
            unit,
            cpu: cpu.clone(),
        })
    }

    /// The numbers of blocks of filters and of channels.
    fn blocks(&self) -> [usize; 2] {
        [self.filters, self.channels].map(|channels| channels.div_ceil(BLOCK))
    }

    /// The terms of a row, in whole pairs.
    fn columns(&self) -> usize {
        self.axes[1].count.next_multiple_of(U::GROUP)
    }

    /// The sums of one block of filters.
    fn sums_of_block(&self) -> usize {
        self.axes[0].taps.len() * self.axes[1].taps.len() * self.blocks()[1] * BLOCK_SUMS
    }

    /// The rows of a panel of `x` for a class of taps that reads `reach` further rows, and the elements
    /// between two panels.
    fn input_panel(&self, [images, rows]: [usize; 2], reach: usize) -> [usize; 2] {
        let rows = (rows + reach) * images * self.columns() / U::GROUP;
        // The last tile of a tap may end beyond the last row.
        [rows, (rows + ROWS) * U::TERMS + U::GAP]
    }

    /// The elements between two panels of `dy`.
    fn output_panel(terms: usize) -> usize {
        terms.div_ceil(U::TERMS) * U::TILE + U::GAP
    }

    /// The numbers of chunks of images and of rows.
    fn chunks(&self) -> [usize; 2] {
        [self.batch.div_ceil(self.chunk[0]), self.axes[0].count.div_ceil(self.chunk[1])]
    }

    fn chunk(&self, number: usize) -> Chunk {
        let [_, bands] = self.chunks();
        let images = chunk_range(number / bands, self.chunk[0], self.batch);
        let rows = chunk_range(number % bands, self.chunk[1], self.axes[0].count);
        let terms = images.len() * rows.len() * self.columns();
        Chunk { images, rows, terms }
    }

    /// The `f32` elements of a thread's scratch other than its sums: sums of the bias, panels of `dy`, panels
    /// of `x`.
    fn scratch_floats(&self, blocks: usize) -> [usize; 3] {
        let [images, rows] = self.chunk;
        let dy = 2 * blocks * Self::output_panel(images * rows * self.columns());
        let (x, _) = self.input_panels(self.chunk, self.axes[0].input_step);
        [blocks * BLOCK * ROWS, dy / U::GROUP, x / U::GROUP]
    }

    /// The blocks of filters of a thread.
    fn filters_of(&self, thread: usize) -> Range<usize> {
        split(self.blocks()[0], self.groups[0], thread % self.groups[0])
    }

    fn threads(&self) -> impl Iterator<Item = usize> {
        0..self.groups[0] * self.groups[1]
    }

    /// The scratch bytes.
    #[must_use]
    pub fn scratch_bytes(&self) -> usize {
        let floats = |thread: usize| {
            let blocks = self.filters_of(thread).len();
            blocks * self.sums_of_block() + self.scratch_floats(blocks).iter().sum::<usize>()
        };
        self.threads().map(floats).sum::<usize>() * size_of::<f32>()
    }

    /// Computes `dw` and `db`; `db` may be empty.
    pub fn run(
        &self,
        x: &[U::Element],
        dy: &[U::Element],
        dw: &mut [f32],
        db: &mut [f32],
        scratch: &mut [f32],
    ) {
        let [rows, columns] = &self.axes;
        let expected = [
            self.batch * rows.inputs * columns.inputs * self.channels,
            self.batch * rows.count * columns.count * self.filters,
        ];
        assert_eq!([x.len(), dy.len()], expected, "unexpected map sizes");
        let all = self.blocks()[0] * self.sums_of_block();
        let (sums, rest) = scratch.split_at_mut(all * self.groups[1]);
        self.accumulate(x, dy, !db.is_empty(), sums, rest);
        let (first, others) = sums.split_at_mut(all);
        for other in others.chunks_exact(all) {
            self.cpu.accumulate(other, first);
        }
        self.unpack.run(first, dw);
        self.reduce_bias(rest, db);
    }

    /// Divides scratch among threads.
    fn split_scratch<'a>(
        &self,
        sums: &'a mut [f32],
        scratch: &'a mut [f32],
    ) -> [ThreadScratch<'a>; MAX_THREADS] {
        let blocks = |thread: usize| self.filters_of(thread).len();
        let sums = split_lengths(sums, self.threads().map(|thread| blocks(thread) * self.sums_of_block()));
        let mut shares = std::array::from_fn(|_| ThreadScratch::default());
        for ((thread, share), (sums, rest)) in
            self.threads().zip(&mut shares).zip(sums.into_iter().zip(self.split_rest(scratch)))
        {
            let [bias, dy, _] = self.scratch_floats(blocks(thread));
            let (bias, rest) = rest.split_at_mut(bias);
            let (dy, x) = rest.split_at_mut(dy);
            *share = ThreadScratch { sums, bias, dy, x };
        }
        shares
    }

    /// The sections of scratch other than sums, by thread.
    fn split_rest<'a>(&self, scratch: &'a mut [f32]) -> [&'a mut [f32]; MAX_THREADS] {
        let floats = |thread: usize| self.scratch_floats(self.filters_of(thread).len()).iter().sum();
        split_lengths(scratch, self.threads().map(floats))
    }

    fn accumulate(
        &self,
        x: &[U::Element],
        dy: &[U::Element],
        bias: bool,
        sums: &mut [f32],
        scratch: &mut [f32],
    ) {
        let mut shares = self.split_scratch(sums, scratch);
        let threads = self.groups[0] * self.groups[1];
        let chunks: usize = self.chunks().iter().product();
        self.cpu.team.run_parts(&mut shares[..threads], &|thread, share| {
            share.sums.fill(0.0);
            share.bias.fill(0.0);
            let filters = self.filters_of(thread);
            if filters.is_empty() {
                return;
            }
            let prepared = self.unit.prepare_thread();
            let (dy_panels, x_panels) =
                (bytemuck::cast_slice_mut(share.dy), bytemuck::cast_slice_mut::<f32, U::Element>(share.x));
            let numbers = split(chunks, self.groups[1], thread / self.groups[0]);
            for number in numbers.clone() {
                let chunk = self.chunk(number);
                let next = (number + 1 < numbers.end).then(|| self.chunk(number + 1));
                let mut upcoming = UpcomingChunk::new(next.map(|next| self.read_by(&next, x, dy)));
                // SAFETY: the level proves AVX-512 (`new`).
                unsafe {
                    let sums = bias.then_some(&mut *share.bias);
                    self.unit.pack_output(self, &chunk, &filters, dy, dy_panels, sums);
                };
                for column in 0..self.axes[1].taps.len() {
                    // SAFETY: as above.
                    unsafe { self.pack_input(&chunk, column, x, x_panels) };
                    self.multiply(
                        &prepared,
                        &chunk,
                        column,
                        [dy_panels, x_panels],
                        &mut upcoming,
                        share.sums,
                    );
                }
            }
        });
    }

    /// The parts of `dy` and `x` that a chunk reads, without rows of `x` shared with other chunks.
    fn read_by<'a, E>(&self, chunk: &Chunk, x: &'a [E], dy: &'a [E]) -> [&'a [E]; 2] {
        let [rows, columns] = &self.axes;
        // A chunk of several images has all their rows.
        let [first, last] = [chunk.images.start, chunk.images.end - 1];
        let part = |map: &'a [E], height: usize, row: usize, rows: Range<usize>| {
            let start = (first * height + rows.start.min(height)) * row;
            let end = (last * height + rows.end.min(height)) * row;
            &map[start..end]
        };
        let input_rows = chunk.rows.start * rows.input_step..chunk.rows.end * rows.input_step;
        [
            part(dy, rows.count, columns.count * self.filters, chunk.rows.clone()),
            part(x, rows.inputs, columns.inputs * self.channels, input_rows),
        ]
    }

    /// Adds the products of a chunk for one column of taps.
    fn multiply(
        &self,
        prepared: &U::PreparedThread,
        chunk: &Chunk,
        column: usize,
        [dy, x]: [&[U::Element]; 2],
        upcoming: &mut UpcomingChunk<'_, U::Element>,
        sums: &mut [f32],
    ) {
        let [_, channel_blocks] = self.blocks();
        let panel = Self::output_panel(chunk.terms);
        let taps = self.axes[0].taps.len();
        let tap_terms: [TapTerms; MAX_KERNEL_ROWS] =
            std::array::from_fn(
                |tap| if tap < taps { self.tap_terms(chunk, tap) } else { TapTerms::default() },
            );
        let (sums, _) = sums.as_chunks_mut::<BLOCK_SUMS>();
        for (filters, sums) in sums.chunks_exact_mut(self.sums_of_block() / BLOCK_SUMS).enumerate() {
            let dy = [2 * filters, 2 * filters + 1].map(|half| &dy[half * panel..][..panel]);
            let sums = &mut sums[column * channel_blocks * taps..][..channel_blocks * taps];
            for product in 0..sums.len() {
                let (channels, terms) = (product / taps, &tap_terms[product % taps]);
                let x = [2 * channels, 2 * channels + 1]
                    .map(|half| &x[terms.input_start + half * terms.panel..][..terms.tiles * U::TILE]);
                let next = upcoming.take(terms.tiles);
                let (sums, later) = sums[product..].split_at_mut(1);
                later.first().into_iter().for_each(|later| prefetch_l2(later));
                U::multiply_add(
                    prepared,
                    dy.map(|half| &half[terms.output_start..]),
                    x,
                    terms.tiles,
                    next,
                    &mut sums[0],
                );
            }
        }
    }

    /// The terms of a tap in a chunk, without rows of padding.
    fn tap_terms(&self, chunk: &Chunk, tap: usize) -> TapTerms {
        let (class, shift) = self.axes[0].class_and_shift(tap);
        let inside = self.axes[0].pixels_inside(tap);
        let [start, end] = [inside.start, inside.end]
            .map(|row| row.clamp(chunk.rows.start, chunk.rows.end) - chunk.rows.start);
        let row = chunk.images.len() * self.columns();
        let from = start * row / U::TERMS;
        let (panels, panel) = self.input_panels([chunk.images.len(), chunk.rows.len()], class);
        let first = from * ROWS + shift * row / U::GROUP;
        let count = if start < end { (end * row).div_ceil(U::TERMS) - from } else { 0 };
        TapTerms { output_start: from * U::TILE, input_start: panels + first * U::TERMS, panel, tiles: count }
    }

    /// The start of the panels of a class, and the elements of each.
    fn input_panels(&self, sizes: [usize; 2], class: usize) -> (usize, usize) {
        let elements = |(_, reach)| self.input_panel(sizes, reach)[1];
        let classes = || self.axes[0].classes();
        let before: usize = classes().filter(|other| other.0 < class).map(elements).sum();
        let panel_elements = classes().find(|other| other.0 == class).map_or(0, elements);
        (2 * self.blocks()[1] * before, panel_elements)
    }

    /// Sums the lanes of the bias, and the threads that divide chunks.
    fn reduce_bias(&self, scratch: &mut [f32], db: &mut [f32]) {
        if db.is_empty() {
            return;
        }
        db.fill(0.0);
        for (thread, share) in self.threads().zip(self.split_rest(scratch)) {
            let filters = self.filters_of(thread);
            let [lanes, _, _] = self.scratch_floats(filters.len());
            let first = (filters.start * BLOCK).min(db.len());
            let (halves, _) = share[..lanes].as_chunks::<{ ROWS * ROWS }>();
            for (db, half) in db[first..].chunks_mut(ROWS).zip(halves) {
                for (filter, db) in db.iter_mut().enumerate() {
                    // In rows of filters, sixteen partial sums of a filter are consecutive; in rows of terms,
                    // sixteen filters are.
                    *db += match self.unit.takes_filters_in_rows() {
                        true => half[filter * ROWS..][..ROWS].iter().sum::<f32>(),
                        false => half[filter..].iter().step_by(ROWS).sum(),
                    };
                }
            }
        }
    }
}

/// Returns whether each output reads only the input pixel at its own position: the arrangement of pixels in
/// rows then does not matter.
fn is_pointwise(conv: &Conv2d) -> bool {
    conv.kernel == [1; 2]
        && conv.stride == [1; 2]
        && conv.padding_before.iter().chain(&conv.padding_after).all(|&padding| padding == 0)
}

/// All images as one, in rows that fill whole tiles of terms if possible.
fn reshaped_to_tiles<U: PanelArithmetic>(batch: usize, [height, width]: [usize; 2]) -> (usize, [usize; 2]) {
    let pixels = batch * height * width;
    let widths = std::iter::successors(Some(U::TERMS), |width| Some(width / 2));
    let mut widths = widths.take_while(|&width| width >= U::GROUP);
    match widths.find(|&width| pixels.is_multiple_of(width)) {
        Some(width) if pixels > 0 => (1, [pixels / width, width]),
        _ => (batch, [height, width]),
    }
}

fn gcd(a: usize, b: usize) -> usize {
    if b == 0 { a } else { gcd(b, a % b) }
}

#[cfg(test)]
pub mod tests;
