//! The gradients of the weights and of the bias.
//!
//! ```text
//! per block of tiles   transform   patches[in / 16][6][tile, 16] = Bᵀ d
//!                                  gradients[out / 16][6][tile, 16] = G g
//!                      multiply    sums[6][panel][in, 32] += patchesᵀ × gradients
//! at the end           dw = Aᵀ sums,   db = Σ dy
//! ```
//!
//! A tile of `dy` has four pixels, and each tap is an output of the filter: F(3, 4). The sums take twice the
//! bytes of the weights and stay in L2 together with a block. Every thread has its own; they are added in the
//! order of the threads.

use super::{LineGrid, OUTPUTS, PREFETCHED_TILES, TAPS, load_pixels, prefetch_pixels};
use crate::native::conv::winograd::product::{LeftMatrix, PANEL, RightPanel, product};
use crate::native::conv::winograd::transform::{
    filter_transform_1d, input_transform_1d, output_transform_1d,
};
use crate::native::conv::winograd::{ALPHA, lanes_at, panel_count};
use crate::native::elementwise::CpuContext;
use crate::native::lanes::{LANES, LaneElement, Lanes, with_wide_lanes};
use crate::native::threads::{split, split_lengths};
use std::ops::Range;
use stratus_graph::ops::Conv2d;

/// The bytes of the patches and gradients of a block, which share a core's L2 cache with the sums.
const BLOCK_BYTES: usize = 3 << 17;

/// The limits of the number of tiles of a block: few are multiplied slowly, because sums are loaded and
/// stored once per block; many do not stay in L1.
const BLOCK_TILES: [usize; 2] = [32, 128];

/// The maximum size of a thread's sums: with larger ones, other kernels are as fast.
const MAX_SUMS_BYTES: usize = 1 << 20;

/// The gradients of weights `[O, I, H, W]` and bias, from maps `[N, H, W, C]`.
#[derive(Clone)]
pub struct LineGradient {
    /// The channels of input and output.
    channels: [usize; 2],
    grid: LineGrid,
    /// The tiles of a block.
    depth: usize,
    cpu: CpuContext,
}

/// A thread's section of scratch.
struct ThreadScratch<'a> {
    sums: &'a mut [f32],
    bias: &'a mut [f32],
    /// The sums of the bias of a block: sums in two steps are more accurate.
    block_bias: &'a mut [f32],
    patches: &'a mut [f32],
    gradients: &'a mut [f32],
}

impl LineGradient {
    /// The kernel for `batch` images of `input` = `[H, W]`; `None` if it does not support the convolution.
    #[must_use]
    pub fn new(conv: &Conv2d, batch: usize, input: [usize; 2], cpu: &CpuContext) -> Option<Self> {
        let grid = LineGrid::new(conv, batch, input, false)?;
        let channels = [conv.in_channels, conv.out_channels];
        let tile_bytes = ALPHA * channels.iter().sum::<usize>() * size_of::<f32>();
        let depth = (BLOCK_BYTES / tile_bytes).clamp(BLOCK_TILES[0], BLOCK_TILES[1]);
        let gradient = Self { channels, grid, depth, cpu: cpu.clone() };
        (gradient.sums() * size_of::<f32>() <= MAX_SUMS_BYTES).then_some(gradient)
    }

    /// The floats between two points of a register: an odd number of cache lines, so that points do not share
    /// cache sets.
    fn point_stride(&self) -> usize {
        (self.depth | 1) * LANES
    }

    /// The floats of the sums of 32 output channels at a point.
    fn panel_sums(&self) -> usize {
        self.channels[0] * PANEL
    }

    /// The floats of the sums: `[panel][6][in, 32]`.
    fn sums(&self) -> usize {
        panel_count(self.channels[1]) * ALPHA * self.panel_sums()
    }

    /// The floats of a thread's patches and gradients.
    fn transformed(&self) -> [usize; 2] {
        self.channels.map(|channels| channels / LANES * ALPHA * self.point_stride())
    }

    fn thread_floats(&self) -> usize {
        self.sums() + 2 * self.channels[1] + self.transformed().iter().sum::<usize>()
    }

    /// The scratch bytes.
    #[must_use]
    pub fn scratch_bytes(&self) -> usize {
        self.cpu.team.threads() * self.thread_floats() * size_of::<f32>()
    }

    fn split_scratch<'a>(&self, scratch: &'a mut [f32]) -> ThreadScratch<'a> {
        let (sums, rest) = scratch.split_at_mut(self.sums());
        let (bias, rest) = rest.split_at_mut(self.channels[1]);
        let (block_bias, rest) = rest.split_at_mut(self.channels[1]);
        let (patches, gradients) = rest.split_at_mut(self.transformed()[0]);
        ThreadScratch { sums, bias, block_bias, patches, gradients }
    }

    /// Computes `dw` and `db`; `db` may be empty.
    ///
    /// # Panics
    /// If sizes are not as expected.
    pub fn run<E: LaneElement>(
        &self,
        x: &[E],
        dy: &[E],
        dw: &mut [f32],
        db: &mut [f32],
        scratch: &mut [f32],
    ) {
        let Self { channels, grid, cpu, .. } = self;
        let expected = [0, 1].map(|map| grid.pixels(map) * channels[map]);
        assert_eq!([x.len(), dy.len()], expected, "unexpected map sizes");
        assert_eq!(dw.len(), TAPS * channels[0] * channels[1], "unexpected size of the gradient");
        assert!(db.is_empty() || db.len() == channels[1], "unexpected size of the bias");
        let (team, level) = (&cpu.team, cpu.level);
        let (threads, each) = (team.threads(), self.thread_floats());
        let scratch = &mut scratch[..threads * each];
        let mut parts = split_lengths(&mut scratch[..], (0..threads).map(|_| each));
        team.run_parts(&mut parts[..threads], &|thread, scratch| {
            let scratch = self.split_scratch(scratch);
            accumulate(level, self, split(grid.tiles(), threads, thread), x, dy, scratch);
        });
        let scratch = &*scratch;
        if !db.is_empty() {
            db.fill(0.0);
            // In the order of the threads.
            for part in scratch.chunks_exact(each) {
                db.iter_mut().zip(&part[self.sums()..]).for_each(|(sum, part)| *sum += part);
            }
        }
        let panels = |thread: usize| split(panel_count(channels[1]), threads, thread);
        let filters = |thread: usize| {
            let Range { start, end } = panels(thread);
            (end * PANEL).min(channels[1]) - (start * PANEL).min(channels[1])
        };
        let lengths = (0..threads).map(|thread| filters(thread) * channels[0] * TAPS);
        let mut parts = split_lengths(dw, lengths);
        team.run_parts(&mut parts[..threads], &|thread, dw| {
            for (panel, dw) in panels(thread).zip(dw.chunks_mut(PANEL * channels[0] * TAPS)) {
                store_filters::<f32>(level, self, panel, scratch, dw);
            }
        });
    }
}

with_wide_lanes! {
    fn accumulate / accumulate_body(
        kernel: &LineGradient,
        tiles: Range<usize>,
        x: &[E],
        dy: &[E],
        scratch: ThreadScratch<'_>,
    )
}

/// The sums of a thread's tiles.
///
/// # Safety
/// As [`Lanes`] requires.
#[inline(always)]
unsafe fn accumulate_body<V: Lanes, E: LaneElement>(
    kernel: &LineGradient,
    tiles: Range<usize>,
    x: &[E],
    dy: &[E],
    scratch: ThreadScratch<'_>,
) {
    let ThreadScratch { sums, bias, block_bias, patches, gradients } = scratch;
    bias.fill(0.0);
    if tiles.is_empty() {
        sums.fill(0.0);
    }
    for first in tiles.clone().step_by(kernel.depth) {
        let block = first..(first + kernel.depth).min(tiles.end);
        // SAFETY: upheld by the caller.
        unsafe {
            transform_inputs::<V, E>(kernel, block.clone(), x, patches);
            transform_gradients::<V, E>(kernel, block.clone(), dy, gradients, block_bias);
            multiply::<V>(kernel, block.len(), [patches, gradients], sums, first > tiles.start);
        }
        bias.iter_mut().zip(&*block_bias).for_each(|(sum, block)| *sum += block);
    }
}

/// Transforms the inputs of a block's tiles.
///
/// # Safety
/// As [`Lanes`] requires.
#[inline(always)]
unsafe fn transform_inputs<V: Lanes, E: LaneElement>(
    kernel: &LineGradient,
    tiles: Range<usize>,
    x: &[E],
    patches: &mut [f32],
) {
    let channels = kernel.channels[0];
    let last = kernel.grid.tiles() - 1;
    for (row, tile) in tiles.enumerate() {
        let inputs = kernel.grid.inputs(tile, channels);
        let upcoming = kernel.grid.inputs((tile + PREFETCHED_TILES).min(last), channels);
        for register in 0..channels / LANES {
            prefetch_pixels(x, &upcoming, register * LANES);
            // SAFETY: upheld by the caller; pixels are within the map, and there is room for all tiles.
            unsafe {
                let points = input_transform_1d(load_pixels::<V, E, ALPHA>(x, &inputs, register * LANES));
                for (point, value) in points.iter().enumerate() {
                    let at = (register * ALPHA + point) * kernel.point_stride() + row * LANES;
                    value.store(lanes_at(patches, at));
                }
            }
        }
    }
}

/// Transforms the output gradients of a block's tiles, and sums them for the bias.
///
/// # Safety
/// As [`Lanes`] requires.
#[inline(always)]
unsafe fn transform_gradients<V: Lanes, E: LaneElement>(
    kernel: &LineGradient,
    tiles: Range<usize>,
    dy: &[E],
    gradients: &mut [f32],
    bias: &mut [f32],
) {
    let channels = kernel.channels[1];
    let last = kernel.grid.tiles() - 1;
    bias.fill(0.0);
    for (row, tile) in tiles.enumerate() {
        let outputs = kernel.grid.outputs(tile, channels);
        let upcoming = kernel.grid.outputs((tile + PREFETCHED_TILES).min(last), channels);
        for register in 0..channels / LANES {
            prefetch_pixels(dy, &upcoming, register * LANES);
            // SAFETY: upheld by the caller; pixels are within the map, and there is room for all tiles.
            unsafe {
                let values = load_pixels::<V, E, OUTPUTS>(dy, &outputs, register * LANES);
                let sum = values[0].add(values[1]).add(values[2].add(values[3]));
                let bias = lanes_at(bias, register * LANES);
                sum.add(V::load(bias)).store(bias);
                let points: [V; ALPHA] = filter_transform_1d(values);
                for (point, value) in points.iter().enumerate() {
                    let at = (register * ALPHA + point) * kernel.point_stride() + row * LANES;
                    value.store(lanes_at(gradients, at));
                }
            }
        }
    }
}

/// Adds the products of a block to the sums, or stores them unless `add`.
///
/// # Safety
/// As [`Lanes`] requires.
#[inline(always)]
unsafe fn multiply<V: Lanes>(
    kernel: &LineGradient,
    count: usize,
    [patches, gradients]: [&[f32]; 2],
    sums: &mut [f32],
    add: bool,
) {
    let stride = kernel.point_stride();
    let mut sums = sums.chunks_exact_mut(LANES * PANEL);
    for panel in 0..panel_count(kernel.channels[1]) {
        let first = panel * PANEL / LANES;
        let is_half = first + 1 == kernel.channels[1] / LANES;
        for point in 0..ALPHA {
            let column = |register: usize| {
                &gradients[((first + register) * ALPHA + point) * stride..][..count * LANES]
            };
            for (register, sums) in (0..kernel.channels[0] / LANES).zip(&mut sums) {
                let elements = &patches[(register * ALPHA + point) * stride..][..count * LANES];
                let left = LeftMatrix { elements, strides: [1, LANES] };
                // SAFETY: upheld by the caller.
                unsafe {
                    if is_half {
                        let right = RightPanel { registers: [column(0)], stride: LANES };
                        product::<V, 1>(left, right, sums, PANEL, [LANES, count], add);
                    } else {
                        let right = RightPanel { registers: [column(0), column(1)], stride: LANES };
                        product::<V, 2>(left, right, sums, PANEL, [LANES, count], add);
                    }
                }
            }
        }
    }
}

with_wide_lanes! {
    fn store_filters / store_filters_body(
        kernel: &LineGradient,
        panel: usize,
        scratch: &[f32],
        dw: &mut [f32],
    )
}

/// Adds the threads' sums of 32 filters and transforms them to taps.
///
/// # Safety
/// As [`Lanes`] requires.
#[inline(always)]
unsafe fn store_filters_body<V: Lanes, E: LaneElement>(
    kernel: &LineGradient,
    panel: usize,
    scratch: &[f32],
    dw: &mut [f32],
) {
    let channels = kernel.channels[0];
    let size = kernel.panel_sums();
    for channel in 0..channels {
        for (part, dw) in dw.chunks_exact_mut(LANES * channels * TAPS).enumerate() {
            // SAFETY: upheld by the caller.
            unsafe {
                let mut points = [V::splat(0.0); ALPHA];
                for thread in scratch.chunks_exact(kernel.thread_floats()) {
                    for (point, sum) in points.iter_mut().enumerate() {
                        let at = (panel * ALPHA + point) * size + channel * PANEL + part * LANES;
                        if let Some(lanes) = thread[at..].first_chunk() {
                            *sum = sum.add(V::load(lanes));
                        }
                    }
                }
                let taps: [V; TAPS] = output_transform_1d(points);
                for (tap, value) in taps.into_iter().enumerate() {
                    let mut lanes = [0.0; LANES];
                    value.store(&mut lanes);
                    for (filter, value) in lanes.into_iter().enumerate() {
                        dw[(filter * channels + channel) * TAPS + tap] = value;
                    }
                }
            }
        }
    }
}
