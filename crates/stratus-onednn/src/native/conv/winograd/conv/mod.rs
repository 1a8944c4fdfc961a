//! The forward pass, and the data gradient: a convolution of `dy` with the weights rotated by 180°.
//!
//! Weights are transformed first, threads dividing the panels of columns. Then each thread takes rows of
//! tiles, in blocks that fit its L2 cache:
//!
//! ```text
//! per tile of the block    patches[36][tile, K]  = Bᵀ d B        K: channels summed over, padded to 16
//! per point and panel      products[36][tile, O] = patches × weights[panel][36][K, 32]
//! per tile                 y = relu(Aᵀ products A + bias)
//! ```
//!
//! Threads write disjoint rows of pixels. The inner loop is that of [`product`], or of
//! [`int16`](super::int16).

mod weights;

use super::int16::{Int16Products, K_CHUNK, RightColumns, chunks, quantise_row, stage};
use super::product::{LeftMatrix, PANEL, ROWS, RightPanel, product};
use super::transform::output_transform;
use super::{
    ALPHA, MATRIX_GAP, PADDING_OFFSET, POINTS, PixelOffsets, TileGrid, all_points_floats, kernel_edge,
    lanes_at, load_input_transform, output_edge, padded, panel_count, store_points, tiles_per_block,
};
use crate::native::elementwise::CpuContext;
use crate::native::lanes::{LANES, LaneElement, Lanes, with_wide_lanes};
use crate::native::threads::{MAX_THREADS, split, split_lengths, zip_parts};
use std::ops::Range;
use stratus_graph::ops::Conv2d;
use weights::transform_weights;

/// The approximate minimum of tiles per block: the transformed weights are read once per block.
const MIN_BLOCK_TILES: usize = 48;

/// The size in floats above which transformed weights are prefetched, because the hardware prefetcher does
/// not keep up: a convolution takes 7 to 17 % less time if 18 MB of weights are prefetched, 2 % more if 5 MB
/// are (docs/benchmarks/kernels.md).
const PREFETCHED_WEIGHTS: usize = 1 << 21;

/// The pass of a convolution.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pass {
    /// The output.
    Forward,
    /// The data gradient.
    BackwardData,
}

/// A convolution, or its data gradient, of maps `[N, H, W, C]` with weights `[O, I, H, W]`.
#[derive(Clone)]
pub struct WinogradConv {
    pub(super) pass: Pass,
    /// The channels summed over, and the output channels.
    pub(super) channels: [usize; 2],
    pub(super) grid: TileGrid,
    /// The tiles of a block.
    block: usize,
    /// Products of 13-bit integers instead of floats.
    pub(super) int16: Option<Int16Products>,
    cpu: CpuContext,
}

/// The floats of each section of a thread's scratch.
#[derive(Clone, Copy)]
struct ThreadScratch {
    /// Transformed patches of a block, `[36][tiles, K]`; two integers per float.
    patches: usize,
    /// Quantisation scales of the patches, `[36][tiles]`.
    scales: usize,
    /// Products of a block, `[36][tiles, O]`.
    products: usize,
    /// Values before quantisation: all channels of a tile, or a chunk of the terms of sixteen filters.
    staging: usize,
}

impl ThreadScratch {
    fn floats(self) -> usize {
        self.patches + self.scales + self.products + self.staging
    }
}

/// Operations on a result before it is stored.
#[derive(Clone, Copy)]
struct Epilogue<'a> {
    /// The bias; empty if there is none.
    bias: &'a [f32],
    relu: bool,
}

impl WinogradConv {
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
        let taps = kernel_edge(conv)?;
        let output = conv.output_size(input).ok()?;
        let (channels, maps, before) = match pass {
            Pass::Forward => ([conv.in_channels, conv.out_channels], [input, output], conv.padding_before),
            Pass::BackwardData => {
                let before = conv.padding_before.map(|padding| taps - 1 - padding);
                ([conv.out_channels, conv.in_channels], [output, input], before)
            }
        };
        let grid = TileGrid::new(taps, batch, maps, before);
        let tiles = grid.tiles_per_thread(cpu.team.threads());
        let bytes_of_patch = if int16.is_some() { size_of::<i16>() } else { size_of::<f32>() };
        let [terms, columns] = channels.map(padded);
        let block =
            tiles_per_block(terms * bytes_of_patch + columns * size_of::<f32>(), tiles, MIN_BLOCK_TILES);
        grid.is_profitable().then(|| Self { pass, channels, grid, block, int16, cpu: cpu.clone() })
    }

    /// K and O: the channels, padded to whole registers.
    pub(super) fn padded_channels(&self) -> [usize; 2] {
        self.channels.map(padded)
    }

    /// The floats of a panel of transformed weights, `[36][K, 32]`; integers take half a float each, and are
    /// followed by their scales, `[36][chunks of K][32]`.
    fn panel_floats(&self) -> usize {
        let terms = self.padded_channels()[0];
        let floats = POINTS * terms * PANEL;
        if self.int16.is_some() { floats / 2 + POINTS * chunks(terms) * PANEL } else { floats }
    }

    fn thread_scratch(&self) -> ThreadScratch {
        let [patches, products] =
            self.padded_channels().map(|channels| all_points_floats(self.block, channels));
        match self.int16 {
            Some(_) => {
                let terms = self.padded_channels()[0];
                let staging = POINTS * terms.max(terms.min(K_CHUNK) * LANES);
                ThreadScratch { patches: patches / 2, scales: POINTS * self.block, products, staging }
            }
            None => ThreadScratch { patches, scales: 0, products, staging: 0 },
        }
    }

    /// The scratch bytes.
    #[must_use]
    pub fn scratch_bytes(&self) -> usize {
        let weight_floats = panel_count(self.channels[1]) * self.panel_floats();
        (weight_floats + self.cpu.team.threads() * self.thread_scratch().floats()) * size_of::<f32>()
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
        let pixels = |map: usize| grid.batch * grid.maps[map].iter().product::<usize>();
        assert_eq!([x.len(), y.len()], [0, 1].map(|map| pixels(map) * channels[map]), "unexpected map sizes");
        assert_eq!(
            weights.len(),
            grid.taps * grid.taps * channels[0] * channels[1],
            "unexpected size of the weights"
        );
        assert!(bias.is_empty() || bias.len() == channels[1], "unexpected size of the bias");
        let (team, level) = (&cpu.team, cpu.level);
        let threads = team.threads();
        let (panels, panel_floats, sizes) =
            (panel_count(channels[1]), self.panel_floats(), self.thread_scratch());
        let (transformed, scratch) = scratch.split_at_mut(panels * panel_floats);
        let share = |thread| split(panels, threads, thread);
        let shares =
            split_lengths(transformed, (0..threads).map(|thread| share(thread).len() * panel_floats));
        let mut parts = zip_parts(shares, split_lengths(scratch, (0..threads).map(|_| sizes.floats())));
        team.run_parts(&mut parts, &|thread, (to, scratch)| {
            for (panel, to) in share(thread).zip(to.chunks_exact_mut(panel_floats)) {
                transform_weights(level, self, weights, panel, to, &mut scratch[..sizes.staging]);
            }
        });
        let transformed = &*transformed;
        let rows = |thread| split(grid.tile_rows(), threads, thread);
        let end = |thread: usize| {
            if thread == threads { y.len() } else { grid.pixels_before_row(rows(thread).start) * channels[1] }
        };
        let lengths: [usize; MAX_THREADS] =
            std::array::from_fn(|thread| if thread < threads { end(thread + 1) - end(thread) } else { 0 });
        let shares = split_lengths(y, lengths.into_iter().take(threads));
        let mut parts = zip_parts(shares, split_lengths(scratch, (0..threads).map(|_| sizes.floats())));
        let epilogue = Epilogue { bias, relu };
        team.run_parts(&mut parts, &|thread, (y, scratch)| {
            run_rows(level, self, rows(thread), x, transformed, epilogue, y, scratch);
        });
    }
}

with_wide_lanes! {
    fn run_rows / run_rows_body(
        conv: &WinogradConv,
        rows: Range<usize>,
        x: &[E],
        weights: &[f32],
        epilogue: Epilogue<'_>,
        y: &mut [E],
        scratch: &mut [f32],
    )
}

/// Computes rows of tiles, whose pixels are `y`.
///
/// # Safety
/// As [`Lanes`] requires.
#[inline(always)]
#[allow(clippy::too_many_arguments)] // `with_wide_lanes` passes slices and constants separately.
unsafe fn run_rows_body<V: Lanes, E: LaneElement>(
    conv: &WinogradConv,
    rows: Range<usize>,
    x: &[E],
    weights: &[f32],
    epilogue: Epilogue<'_>,
    y: &mut [E],
    scratch: &mut [f32],
) {
    // SAFETY: upheld by the caller.
    unsafe {
        if conv.grid.taps == 5 {
            run_tiles::<V, E, { output_edge(5) }>(conv, rows, x, weights, epilogue, y, scratch);
        } else {
            run_tiles::<V, E, { output_edge(3) }>(conv, rows, x, weights, epilogue, y, scratch);
        }
    }
}

/// # Safety
/// As [`Lanes`] requires.
#[inline(always)]
unsafe fn run_tiles<V: Lanes, E: LaneElement, const OUTPUTS: usize>(
    conv: &WinogradConv,
    rows: Range<usize>,
    x: &[E],
    weights: &[f32],
    epilogue: Epilogue<'_>,
    y: &mut [E],
    scratch: &mut [f32],
) {
    let WinogradConv { grid, channels, block, int16, .. } = conv;
    let [terms, columns] = conv.padded_channels();
    let before = grid.pixels_before_row(rows.start);
    let tiles = rows.start * grid.tiles[1]..rows.end * grid.tiles[1];
    let (sizes, panel_floats) = (conv.thread_scratch(), conv.panel_floats());
    let (patches, rest) = scratch.split_at_mut(sizes.patches);
    let (scales, rest) = rest.split_at_mut(sizes.scales);
    let (products, staging) = rest.split_at_mut(sizes.products);
    for first in tiles.clone().step_by(*block) {
        let count = (*block).min(tiles.end - first);
        let rows = count.next_multiple_of(ROWS);
        let size = |channels: usize| rows * channels + MATRIX_GAP;
        let pixels = |row: usize| grid.input_pixels(grid.position(first + row), channels[0]);
        let mut next = pixels(0);
        for row in 0..rows {
            let patch = next;
            // Rows after the last tile: their contents do not matter, but denormal numbers would slow the
            // products down.
            next = if row + 1 < count { pixels(row + 1) } else { PixelOffsets::outside() };
            // SAFETY: upheld by the caller; pixels are within the map, and the matrices have these rows.
            unsafe {
                for channel in (0..terms).step_by(LANES) {
                    next.prefetch(x, channel);
                    let plane = load_input_transform::<V, E, 0, ALPHA>(x, &patch, [channels[0], channel]);
                    if int16.is_none() {
                        store_points(plane, patches, row * terms + channel, size(terms));
                    } else {
                        stage(plane.as_flattened(), staging, channel / LANES);
                    }
                }
                if int16.is_some() {
                    let to = bytemuck::cast_slice_mut(patches);
                    let at = |point: usize| point * size(terms) + row * terms;
                    quantise_row::<V, POINTS>(staging, terms / LANES, to, at, scales, |point| {
                        point * rows + row
                    });
                }
            }
        }
        for point in 0..POINTS {
            let to = &mut products[point * size(columns)..][..rows * columns];
            for panel in 0..panel_count(columns) {
                let right = &weights[panel * panel_floats..][..panel_floats];
                let to = &mut to[panel * PANEL..];
                let registers = (columns - panel * PANEL).min(PANEL) / LANES;
                if let Some(int16) = int16 {
                    let split = POINTS * terms * PANEL / 2;
                    let at = |panel: usize, point: usize| {
                        let panel: &[i16] = bytemuck::cast_slice(&weights[panel * panel_floats..][..split]);
                        &panel[point * terms * PANEL..][..terms * PANEL]
                    };
                    let next = if weights.len() < PREFETCHED_WEIGHTS {
                        &[]
                    } else if panel + 1 < panel_count(columns) {
                        at(panel + 1, point)
                    } else if point + 1 < POINTS {
                        at(0, point + 1)
                    } else {
                        &[]
                    };
                    let scales_per_point = chunks(terms) * PANEL;
                    let column_scales = &right[split + point * scales_per_point..][..scales_per_point];
                    let right = RightColumns {
                        values: at(panel, point),
                        scales: column_scales,
                        registers,
                        prefetch: next,
                    };
                    let left = &bytemuck::cast_slice(patches)[point * size(terms)..][..rows * terms];
                    int16.product(left, &scales[point * rows..][..rows], right, to, columns, terms);
                    continue;
                }
                let elements = &patches[point * size(terms)..][..rows * terms];
                let left = LeftMatrix { elements, strides: [terms, 1] };
                let right = &right[point * terms * PANEL..][..terms * PANEL];
                // SAFETY: upheld by the caller.
                unsafe {
                    if registers == 1 {
                        let right = RightPanel { registers: [right], stride: PANEL };
                        product::<V, 1>(left, right, to, columns, [rows, terms], false);
                    } else {
                        let right = RightPanel { registers: [right, &right[LANES..]], stride: PANEL };
                        product::<V, 2>(left, right, to, columns, [rows, terms], false);
                    }
                };
            }
        }
        for row in 0..count {
            let outputs = grid.output_pixels::<OUTPUTS>(grid.position(first + row), channels[1]);
            for channel in (0..columns).step_by(LANES) {
                // SAFETY: upheld by the caller; the matrices have at least `count` rows, and `y` has the
                // pixels of these rows of tiles.
                unsafe {
                    let mut plane = [[V::splat(0.0); ALPHA]; ALPHA];
                    for (point, value) in plane.as_flattened_mut().iter_mut().enumerate() {
                        *value = V::load(lanes_at(products, point * size(columns) + row * columns + channel));
                    }
                    let present = LANES.min(channels[1] - channel);
                    let mut bias = [0.0; LANES];
                    if let Some(bias_lanes) = epilogue.bias.get(channel..channel + present) {
                        bias[..present].copy_from_slice(bias_lanes);
                    }
                    let bias = V::load(&bias);
                    let results: [[V; OUTPUTS]; OUTPUTS] = output_transform(plane);
                    for (result, &at) in results.as_flattened().iter().zip(outputs.offsets.as_flattened()) {
                        if at == PADDING_OFFSET {
                            continue;
                        }
                        let at = at - before * channels[1] + channel;
                        let result = result.add(bias);
                        let result = if epilogue.relu { result.relu() } else { result };
                        debug_assert!(at + present <= y.len());
                        if present == LANES {
                            E::store_lanes(result, &mut *y.as_mut_ptr().add(at).cast());
                        } else {
                            let mut part = [E::store(0.0); LANES];
                            E::store_lanes(result, &mut part);
                            y[at..][..present].copy_from_slice(&part[..present]);
                        }
                    }
                }
            }
        }
    }
}
