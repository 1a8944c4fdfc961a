//! The forward pass, and the data gradient: a convolution of `dy` with the weights reversed.
//!
//! Weights are transformed first, threads dividing the panels of columns. Then each thread takes consecutive
//! tiles, in blocks that fit its L2 cache:
//!
//! ```text
//! per tile of the block    patches[6][tile, K]   = Bᵀ d
//! per panel and point      products[6][tile, 32] = patches × weights[panel][6][K, 32]
//! per panel and tile       y = relu(Aᵀ products + bias)
//! ```
//!
//! The inner loop is that of [`product`], or of [`int16`](crate::native::conv::winograd::int16) if the maps
//! are bf16. Weights are row-major.

use super::{LineGrid, OUTPUTS, PREFETCHED_TILES, TAPS, all_points, load_pixels, prefetch_pixels};
use crate::native::conv::winograd::conv::Pass;
use crate::native::conv::winograd::int16::{
    Int16Products, K_CHUNK, RightColumns, chunks, quantise_filters, quantise_row, stage,
};
use crate::native::conv::winograd::product::{LeftMatrix, PANEL, ROWS, RightPanel, product};
use crate::native::conv::winograd::transform::{
    filter_transform_1d, input_transform_1d, output_transform_1d,
};
use crate::native::conv::winograd::{ALPHA, MATRIX_GAP, PADDING_OFFSET, lanes_at, panel_count};
use crate::native::elementwise::CpuContext;
use crate::native::lanes::{LANES, LaneElement, Lanes, with_wide_lanes};
use crate::native::threads::{split, split_lengths, zip_parts};
use std::ops::Range;
use stratus_graph::ops::Conv2d;

/// The bytes of the patches and products of a block, which share a core's L2 cache with the weights.
const BLOCK_BYTES: usize = 1 << 18;

/// The maximum number of tiles of a block.
const MAX_BLOCK_TILES: usize = 128;

/// A 3×1 or 1×3 convolution, or its data gradient, of maps `[N, H, W, C]` with weights `[O, I, H, W]`.
#[derive(Clone)]
pub struct LineConv {
    pass: Pass,
    /// The channels summed over, and the output channels.
    channels: [usize; 2],
    grid: LineGrid,
    /// The tiles of a block.
    block: usize,
    /// Products of 13-bit integers instead of floats.
    int16: Option<Int16Products>,
    cpu: CpuContext,
}

/// The floats of each section of a thread's scratch.
#[derive(Clone, Copy)]
struct ThreadScratch {
    /// Transformed patches of a block, `[6][tiles, K]`; two integers per float.
    patches: usize,
    /// Quantisation scales of the patches, `[6][tiles]`.
    scales: usize,
    /// Products of a block and a panel, `[6][tiles, 32]`.
    products: usize,
    /// Values before quantisation: all channels of a tile, or a chunk of the terms of sixteen filters.
    staging: usize,
}

/// The output map. Every thread writes separate pixels.
struct OutputMap<E> {
    start: *mut E,
    elements: usize,
}

// SAFETY: threads write different pixels, as divided by `LineConv::run`, and nothing is read.
unsafe impl<E: Send> Sync for OutputMap<E> {}

impl<E: LaneElement> OutputMap<E> {
    /// # Safety
    /// As [`Lanes`] requires; no other thread writes these elements.
    #[inline(always)]
    unsafe fn write<V: Lanes>(&self, at: usize, values: V) {
        assert!(at + LANES <= self.elements, "a pixel outside of the map");
        // SAFETY: the elements are within the map, and are this thread's.
        unsafe { E::store_lanes(values, &mut *self.start.add(at).cast::<[E; LANES]>()) };
    }
}

/// The transformed weights, and operations on a result before it is stored.
#[derive(Clone, Copy)]
struct Factors<'a> {
    /// Panels of transformed weights.
    weights: &'a [f32],
    /// The bias; empty if there is none.
    bias: &'a [f32],
    relu: bool,
}

impl LineConv {
    /// The kernel for `batch` images of `input` = `[H, W]`, with integer products if `int16` is given; `None`
    /// if it does not support the convolution.
    #[must_use]
    pub fn new(
        conv: &Conv2d,
        pass: Pass,
        batch: usize,
        input: [usize; 2],
        int16: Option<Int16Products>,
        cpu: &CpuContext,
    ) -> Option<Self> {
        let grid = LineGrid::new(conv, batch, input, pass == Pass::BackwardData)?;
        let channels = match pass {
            Pass::Forward => [conv.in_channels, conv.out_channels],
            Pass::BackwardData => [conv.out_channels, conv.in_channels],
        };
        let element = if int16.is_some() { size_of::<i16>() } else { size_of::<f32>() };
        let tile_bytes = ALPHA * (channels[0] * element + PANEL * size_of::<f32>());
        let block = (BLOCK_BYTES / tile_bytes).clamp(2 * ROWS, MAX_BLOCK_TILES) / ROWS * ROWS;
        Some(Self { pass, channels, grid, block, int16, cpu: cpu.clone() })
    }

    /// The floats of a panel of transformed weights, `[6][K, 32]`; integers take half a float each, and are
    /// followed by their scales, `[6][chunks of K][32]`.
    fn panel_floats(&self) -> usize {
        let floats = ALPHA * self.channels[0] * PANEL;
        if self.int16.is_some() { floats / 2 + ALPHA * chunks(self.channels[0]) * PANEL } else { floats }
    }

    fn thread_scratch(&self) -> ThreadScratch {
        let [patches, products] = [self.channels[0], PANEL].map(|columns| all_points(self.block, columns));
        match self.int16 {
            Some(_) => {
                let terms = self.channels[0];
                let staging = ALPHA * terms.max(terms.min(K_CHUNK) * LANES);
                ThreadScratch { patches: patches / 2, scales: ALPHA * self.block, products, staging }
            }
            None => ThreadScratch { patches, scales: 0, products, staging: 0 },
        }
    }

    fn thread_floats(&self) -> usize {
        let ThreadScratch { patches, scales, products, staging } = self.thread_scratch();
        patches + scales + products + staging
    }

    /// The scratch bytes.
    #[must_use]
    pub fn scratch_bytes(&self) -> usize {
        let weight_floats = panel_count(self.channels[1]) * self.panel_floats();
        (weight_floats + self.cpu.team.threads() * self.thread_floats()) * size_of::<f32>()
    }

    /// `y = x * weights + bias`, with ReLU if `relu`; `bias` may be empty.
    ///
    /// # Panics
    /// If sizes are not as expected.
    pub fn run<E: LaneElement>(
        &self,
        x: &[E],
        weights: &[E],
        bias: &[f32],
        relu: bool,
        y: &mut [E],
        scratch: &mut [f32],
    ) {
        let Self { channels, grid, cpu, .. } = self;
        let elements = [0, 1].map(|map| grid.pixels(map) * channels[map]);
        assert_eq!([x.len(), y.len()], elements, "unexpected map sizes");
        assert_eq!(weights.len(), TAPS * channels[0] * channels[1], "unexpected size of the weights");
        assert!(bias.is_empty() || bias.len() == channels[1], "unexpected size of the bias");
        let (team, level) = (&cpu.team, cpu.level);
        let threads = team.threads();
        let (panels, panel_floats) = (panel_count(channels[1]), self.panel_floats());
        let (transformed, scratch) = scratch.split_at_mut(panels * panel_floats);
        let share = |thread| split(panels, threads, thread);
        let shares =
            split_lengths(transformed, (0..threads).map(|thread| share(thread).len() * panel_floats));
        let each = self.thread_floats();
        let mut parts = zip_parts(shares, split_lengths(scratch, (0..threads).map(|_| each)));
        team.run_parts(&mut parts, &|thread, (to, scratch)| {
            for (panel, to) in share(thread).zip(to.chunks_exact_mut(panel_floats)) {
                transform_weights(level, self, weights, panel, to, scratch);
            }
        });
        let factors = Factors { weights: transformed, bias, relu };
        let y = OutputMap { start: y.as_mut_ptr(), elements: y.len() };
        let mut parts = split_lengths(scratch, (0..threads).map(|_| each));
        team.run_parts(&mut parts, &|thread, scratch| {
            run_tiles(level, self, split(grid.tiles(), threads, thread), x, factors, &y, scratch);
        });
    }
}

with_wide_lanes! {
    fn transform_weights / transform_weights_body(
        conv: &LineConv,
        weights: &[E],
        panel: usize,
        to: &mut [f32],
        staging: &mut [f32],
    )
}

/// Packs panel `panel`: `[6][K, 32]` floats, or integers in pairs of terms, `[6][K / 2, 32, 2]`, followed by
/// their scales, `[6][chunks of K][32]`.
///
/// # Safety
/// As [`Lanes`] requires.
#[inline(always)]
unsafe fn transform_weights_body<V: Lanes, E: LaneElement>(
    conv: &LineConv,
    weights: &[E],
    panel: usize,
    to: &mut [f32],
    staging: &mut [f32],
) {
    let [terms, columns] = conv.channels;
    // Weights are `[O, I, taps]`; the terms are `I` in the forward pass, `O` in the data gradient.
    let [term_stride, column_stride] = match conv.pass {
        Pass::Forward => [TAPS, terms * TAPS],
        Pass::BackwardData => [columns * TAPS, TAPS],
    };
    for part in 0..(columns - panel * PANEL).min(PANEL) / LANES {
        let first = (panel * PANEL + part * LANES) * column_stride;
        for term in 0..terms {
            let weight = |column: usize, tap: usize| {
                let tap = if conv.pass == Pass::Forward { tap } else { TAPS - 1 - tap };
                weights[first + column * column_stride + term * term_stride + tap].load()
            };
            // SAFETY: upheld by the caller; a panel has `PANEL` floats for every point and term.
            unsafe {
                let mut filter = [V::splat(0.0); TAPS];
                for (tap, value) in filter.iter_mut().enumerate() {
                    *value = V::load(&std::array::from_fn(|column| weight(column, tap)));
                }
                let points: [V; ALPHA] = filter_transform_1d(filter);
                if conv.int16.is_none() {
                    for (point, value) in points.iter().enumerate() {
                        value.store(lanes_at(to, (point * terms + term) * PANEL + part * LANES));
                    }
                    continue;
                }
                stage(&points, staging, term % K_CHUNK);
            }
            let (chunk, staged) = (term / K_CHUNK, term % K_CHUNK + 1);
            if staged == K_CHUNK || term + 1 == terms {
                let (quantised, scales) = to.split_at_mut(ALPHA * terms * PANEL / 2);
                let quantised = bytemuck::cast_slice_mut(quantised);
                let value_offset = |point: usize, pair: usize| {
                    ((point * terms / 2 + chunk * K_CHUNK / 2 + pair) * PANEL + part * LANES) * 2
                };
                let scale_offset = |point: usize| (point * chunks(terms) + chunk) * PANEL + part * LANES;
                // SAFETY: upheld by the caller; a panel has `PANEL` pairs per point and two terms, and
                // `PANEL` scales per point and chunk.
                unsafe {
                    quantise_filters::<V, ALPHA>(
                        staging,
                        staged,
                        quantised,
                        value_offset,
                        scales,
                        scale_offset,
                    );
                };
            }
        }
    }
}

with_wide_lanes! {
    fn run_tiles / run_tiles_body(
        conv: &LineConv,
        tiles: Range<usize>,
        x: &[E],
        factors: Factors<'_>,
        y: &OutputMap<E>,
        scratch: &mut [f32],
    )
}

/// Computes tiles, whose pixels no other thread writes.
///
/// # Safety
/// As [`Lanes`] requires.
#[inline(always)]
unsafe fn run_tiles_body<V: Lanes, E: LaneElement>(
    conv: &LineConv,
    tiles: Range<usize>,
    x: &[E],
    factors: Factors<'_>,
    y: &OutputMap<E>,
    scratch: &mut [f32],
) {
    let sizes = conv.thread_scratch();
    let (patches, rest) = scratch.split_at_mut(sizes.patches);
    let (scales, rest) = rest.split_at_mut(sizes.scales);
    let (products, staging) = rest.split_at_mut(sizes.products);
    for first in tiles.clone().step_by(conv.block) {
        let count = conv.block.min(tiles.end - first);
        let block = first..first + count;
        // SAFETY: upheld by the caller.
        unsafe {
            load_block::<V, E>(conv, block.clone(), x, patches, scales, staging);
            for panel in 0..panel_count(conv.channels[1]) {
                multiply::<V>(conv, count, panel, factors.weights, [patches, scales], products);
                store_block::<V, E>(conv, block.clone(), panel, products, factors, y);
            }
        }
    }
}

/// Transforms the inputs of a block's tiles.
///
/// # Safety
/// As [`Lanes`] requires.
#[inline(always)]
unsafe fn load_block<V: Lanes, E: LaneElement>(
    conv: &LineConv,
    tiles: Range<usize>,
    x: &[E],
    patches: &mut [f32],
    scales: &mut [f32],
    staging: &mut [f32],
) {
    let terms = conv.channels[0];
    let rows = tiles.len().next_multiple_of(ROWS);
    let size = rows * terms + MATRIX_GAP;
    let last = conv.grid.tiles() - 1;
    for row in 0..rows {
        // Rows after the last tile: their contents do not matter, but denormal numbers would slow the
        // products down.
        let inputs = if row < tiles.len() {
            conv.grid.inputs(tiles.start + row, terms)
        } else {
            [PADDING_OFFSET; ALPHA]
        };
        let upcoming = conv.grid.inputs((tiles.start + row + PREFETCHED_TILES).min(last), terms);
        // SAFETY: upheld by the caller; pixels are within the map, and the matrices have these rows.
        unsafe {
            for channel in (0..terms).step_by(LANES) {
                prefetch_pixels(x, &upcoming, channel);
                let points = input_transform_1d(load_pixels::<V, E, ALPHA>(x, &inputs, channel));
                if conv.int16.is_some() {
                    stage(&points, staging, channel / LANES);
                    continue;
                }
                for (point, value) in points.iter().enumerate() {
                    value.store(lanes_at(patches, point * size + row * terms + channel));
                }
            }
            if conv.int16.is_some() {
                let to = bytemuck::cast_slice_mut(patches);
                let at = |point: usize| point * size + row * terms;
                quantise_row::<V, ALPHA>(staging, terms / LANES, to, at, scales, |point| point * rows + row);
            }
        }
    }
}

/// The products of a block's tiles with one panel of weights, at all points.
///
/// # Safety
/// As [`Lanes`] requires.
#[inline(always)]
unsafe fn multiply<V: Lanes>(
    conv: &LineConv,
    count: usize,
    panel: usize,
    weights: &[f32],
    [patches, scales]: [&[f32]; 2],
    products: &mut [f32],
) {
    let [terms, columns] = conv.channels;
    let rows = count.next_multiple_of(ROWS);
    let (size, panel_floats) = (rows * terms + MATRIX_GAP, conv.panel_floats());
    let registers = (columns - panel * PANEL).min(PANEL) / LANES;
    let panel = &weights[panel * panel_floats..][..panel_floats];
    for point in 0..ALPHA {
        let to = &mut products[point * (rows * PANEL + MATRIX_GAP)..][..rows * PANEL];
        if let Some(int16) = conv.int16 {
            let (values, column_scales) = panel.split_at(ALPHA * terms * PANEL / 2);
            let right = RightColumns {
                values: &bytemuck::cast_slice(values)[point * terms * PANEL..][..terms * PANEL],
                scales: &column_scales[point * chunks(terms) * PANEL..][..chunks(terms) * PANEL],
                registers,
                prefetch: &[],
            };
            let left = &bytemuck::cast_slice(patches)[point * size..][..rows * terms];
            int16.product(left, &scales[point * rows..][..rows], right, to, PANEL, terms);
            continue;
        }
        let left = LeftMatrix { elements: &patches[point * size..][..rows * terms], strides: [terms, 1] };
        let right = &panel[point * terms * PANEL..][..terms * PANEL];
        // SAFETY: upheld by the caller.
        unsafe {
            if registers == 1 {
                let right = RightPanel { registers: [right], stride: PANEL };
                product::<V, 1>(left, right, to, PANEL, [rows, terms], false);
            } else {
                let right = RightPanel { registers: [right, &right[LANES..]], stride: PANEL };
                product::<V, 2>(left, right, to, PANEL, [rows, terms], false);
            }
        };
    }
}

/// Transforms a block's products of one panel, and stores the outputs.
///
/// # Safety
/// As [`Lanes`] requires; no other thread writes these pixels.
#[inline(always)]
unsafe fn store_block<V: Lanes, E: LaneElement>(
    conv: &LineConv,
    tiles: Range<usize>,
    panel: usize,
    products: &mut [f32],
    factors: Factors<'_>,
    y: &OutputMap<E>,
) {
    let columns = conv.channels[1];
    let size = tiles.len().next_multiple_of(ROWS) * PANEL + MATRIX_GAP;
    for (row, tile) in tiles.enumerate() {
        let outputs: [usize; OUTPUTS] = conv.grid.outputs(tile, columns);
        for part in 0..(columns - panel * PANEL).min(PANEL) / LANES {
            let channel = panel * PANEL + part * LANES;
            // SAFETY: upheld by the caller; the matrices have at least as many rows as there are tiles.
            unsafe {
                let mut points = [V::splat(0.0); ALPHA];
                for (point, value) in points.iter_mut().enumerate() {
                    *value = V::load(lanes_at(products, point * size + row * PANEL + part * LANES));
                }
                let mut bias = V::splat(0.0);
                if let Some(lanes) = factors.bias.get(channel..).and_then(<[f32]>::first_chunk) {
                    bias = V::load(lanes);
                }
                let results: [V; OUTPUTS] = output_transform_1d(points);
                for (result, at) in results.into_iter().zip(outputs) {
                    if at != PADDING_OFFSET {
                        let result = result.add(bias);
                        y.write(at + channel, if factors.relu { result.relu() } else { result });
                    }
                }
            }
        }
    }
}
