//! The gradients of the weights and of the bias.
//!
//! ```text
//! per block of tiles   transform   patches[36][in / 16][tile, 16],  gradients[36][out / 16][tile, 16]
//!                      multiply    sums[36][panel][in, 32] += patchesᵀ × gradients
//! at the end           dw = Aᵀ sums A,   db = Σ dy
//! ```
//!
//! The sums take 36/r² times the bytes of the weights and do not stay in L2. Therefore a block is not divided
//! among threads by tiles, which would need sums per thread: all threads work on the same block, each
//! transforms some registers of channels, and after a barrier accumulates separate panels, which it reads and
//! writes in order. A panel's product reads `128 * 16 * 4` bytes of patches and twice that of gradients from
//! L1 per `16 * 32` sums.
//!
//! - If all tiles fit one block (late layers: many channels, few pixels), nothing is accumulated: the sums of
//!   sixteen by 32 channels at all points are computed, transformed to taps and stored while they are in L1.
//! - Reading data of another core is expensive, more so across caches. With few channels there is little
//!   to compute per value read; then an even number of threads forms two groups, each of which transforms and
//!   multiplies 18 of the 36 points. Some work of the transforms is done twice, but groups share only the
//!   maps (docs/benchmarks/kernels.md).

mod sums;

use super::product::PANEL;
use super::transform::filter_transform;
use super::{
    ALPHA, POINTS, TileGrid, kernel_edge, lanes_at, load_input_transform, load_tile_column, output_edge,
    padded, panel_count, store_points,
};
use crate::native::elementwise::CpuContext;
use crate::native::lanes::{LANES, LaneElement, Lanes, with_wide_lanes};
use crate::native::threads::{MAX_THREADS, chunk_range, split, split_lengths, zip_parts};
use std::ops::Range;
use stratus_graph::ops::Conv2d;
use sums::{accumulate_block, single_block_filters, store_filters};

/// The maximum number of tiles of a part: a panel of gradients and a register of patches then stay in L1.
const MAX_DEPTH: usize = 128;

/// The maximum number of pairs of channels for which two groups of threads are faster than one.
const MAX_PAIRS_FOR_TWO_GROUPS: usize = 256 * 256;

/// The number of tiles by which pixels are prefetched before their transform.
const PREFETCHED_TILES: usize = 4;

/// The sums of sixteen input channels by a panel of output channels at all points.
const SINGLE_BLOCK_SUMS: usize = POINTS * LANES * PANEL;

/// The registers of channels transformed together: two of bf16 are a cache line.
const REGISTERS_PER_PASS: usize = 2;

/// The gradients of weights `[O, I, H, W]` and bias, from maps `[N, H, W, C]`.
#[derive(Clone)]
pub struct WinogradGradient {
    /// The channels of input and output.
    pub(super) channels: [usize; 2],
    pub(super) grid: TileGrid,
    /// The number of thread groups, 1 or 2, which divide the points.
    pub(super) groups: usize,
    /// The parts of a block; threads divide (part, register) pairs.
    pub(super) parts: usize,
    /// The tiles of a part.
    pub(super) depth: usize,
    /// True if all tiles are one part of one block, of one group of threads.
    single_block: bool,
    cpu: CpuContext,
}

/// A block of tiles.
#[derive(Clone, Copy)]
pub(super) struct Block {
    pub(super) first: usize,
    pub(super) count: usize,
}

/// The registers of one part of a block that a thread transforms together.
struct TransformRun {
    tiles: Range<usize>,
    registers: Range<usize>,
    /// The position of the first among the thread's registers.
    position: usize,
}

/// The result of a thread for a block: registers of patches and of gradients at all its points, and sums of
/// `dy` for the bias.
type Transformed<'a> = (&'a mut [f32], &'a mut [f32], &'a mut [f32]);

impl WinogradGradient {
    /// The kernel for `batch` images of `input` = `[H, W]`; `None` if it does not support the convolution.
    #[must_use]
    pub fn new(conv: &Conv2d, batch: usize, input: [usize; 2], cpu: &CpuContext) -> Option<Self> {
        let taps = kernel_edge(conv)?;
        let output = conv.output_size(input).ok()?;
        let grid = TileGrid::new(taps, batch, [input, output], conv.padding_before);
        let channels = [conv.in_channels, conv.out_channels];
        let registers = channels.map(|channels| channels.div_ceil(LANES));
        let threads = cpu.team.threads();
        let few = channels[0] * channels[1] <= MAX_PAIRS_FOR_TWO_GROUPS;
        let groups = if few && threads.is_multiple_of(2) { 2 } else { 1 };
        let parts = (threads / groups).div_ceil(registers[0].min(registers[1]));
        let tiles = grid.tile_rows() * grid.tiles[1];
        let blocks = tiles.div_ceil(parts * MAX_DEPTH).max(1);
        let depth = tiles.div_ceil(blocks * parts);
        let single_block = tiles <= depth && [parts, groups] == [1; 2];
        grid.is_profitable().then(|| Self {
            channels,
            grid,
            groups,
            parts,
            depth,
            single_block,
            cpu: cpu.clone(),
        })
    }

    /// The registers of channels of input and output.
    pub(super) fn registers(&self) -> [usize; 2] {
        self.channels.map(|channels| channels.div_ceil(LANES))
    }

    /// The floats between two points of a register: an odd number of cache lines, so that points do not share
    /// cache sets.
    pub(super) fn point_stride(&self) -> usize {
        (self.depth | 1) * LANES
    }

    /// The floats between two registers: a group's points.
    pub(super) fn register_stride(&self) -> usize {
        POINTS / self.groups * self.point_stride()
    }

    /// `floats` floats of a register at a point; for a single block.
    pub(super) fn tiles_at<'a>(
        &self,
        map: &'a [f32],
        register: usize,
        [point, floats]: [usize; 2],
    ) -> &'a [f32] {
        &map[register * self.register_stride() + point * self.point_stride()..][..floats]
    }

    /// The threads of a group.
    fn threads_per_group(&self) -> usize {
        self.cpu.team.threads() / self.groups
    }

    /// The registers that a thread transforms, of `registers` per part, counted over all parts.
    fn registers_of_thread(&self, registers: usize, thread: usize) -> Range<usize> {
        split(self.parts * registers, self.threads_per_group(), thread % self.threads_per_group())
    }

    /// The panels of the sums, over all points.
    fn panels(&self) -> usize {
        POINTS * panel_count(self.channels[1])
    }

    /// The panels of the sums that a thread accumulates.
    fn panels_of_thread(&self, thread: usize) -> Range<usize> {
        let (members, group_panels) = (self.threads_per_group(), self.panels() / self.groups);
        let Range { start, end } = split(group_panels, members, thread % members);
        let first = thread / members * group_panels;
        first + start..first + end
    }

    /// The floats of scratch: patches, gradients, sums, sums for the bias.
    fn scratch_floats(&self) -> [usize; 4] {
        let [of_x, of_dy] = self.registers().map(|registers| self.parts * registers);
        let strips = self.groups * self.register_stride();
        let sums = if self.single_block {
            self.cpu.team.threads() * SINGLE_BLOCK_SUMS
        } else {
            self.panels() * padded(self.channels[0]) * PANEL
        };
        [of_x * strips, of_dy * strips, sums, of_dy * LANES]
    }

    /// The scratch bytes.
    #[must_use]
    pub fn scratch_bytes(&self) -> usize {
        self.scratch_floats().iter().sum::<usize>() * size_of::<f32>()
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
        let pixels = |map: usize| grid.batch * grid.maps[map].iter().product::<usize>();
        assert_eq!(
            [x.len(), dy.len()],
            [0, 1].map(|map| pixels(map) * channels[map]),
            "unexpected map sizes"
        );
        assert_eq!(
            dw.len(),
            grid.taps * grid.taps * channels[0] * channels[1],
            "unexpected size of the weight gradient"
        );
        assert!(db.is_empty() || db.len() == channels[1], "unexpected size of the bias gradient");
        let (team, level) = (&cpu.team, cpu.level);
        let threads = team.threads();
        let [of_x, of_dy, sum_floats, bias_floats] = self.scratch_floats();
        let (patches, rest) = scratch.split_at_mut(of_x);
        let (gradients, rest) = rest.split_at_mut(of_dy);
        let (sums, rest) = rest.split_at_mut(sum_floats);
        let bias = &mut rest[..bias_floats];
        bias.fill(0.0);
        let tiles = grid.tile_rows() * grid.tiles[1];
        for first in (0..tiles).step_by(self.parts * self.depth) {
            let block = Block { first, count: (self.parts * self.depth).min(tiles - first) };
            let mut parts = self.split_scratch(patches, gradients, bias);
            team.run_parts(&mut parts, &|thread, (patches, gradients, bias)| {
                transform(level, self, block, thread, x, dy, patches, gradients, bias);
            });
            if self.single_block {
                break;
            }
            let panel_floats = padded(channels[0]) * PANEL;
            let mut parts = split_lengths(
                sums,
                (0..threads).map(|thread| self.panels_of_thread(thread).len() * panel_floats),
            );
            let (patches, gradients) = (&*patches, &*gradients);
            team.run_parts(&mut parts, &|thread, sums| {
                for (panel, sums) in self.panels_of_thread(thread).zip(sums.chunks_exact_mut(panel_floats)) {
                    // `with_wide_lanes!` functions have an element type; this one reads none.
                    accumulate_block::<f32>(level, self, block, panel, patches, gradients, sums);
                }
            });
        }
        for (part, bias) in bias.chunks_exact(padded(channels[1])).enumerate() {
            for (db, sum) in db.iter_mut().zip(bias) {
                *db = if part == 0 { *sum } else { *db + sum };
            }
        }
        // A single block is divided by panels of filters, the other case by registers.
        let (share_filters, shares) =
            if self.single_block { (PANEL, panel_count(channels[1])) } else { (LANES, self.registers()[1]) };
        let filter_floats = channels[0] * grid.taps * grid.taps;
        let share = |thread| split(shares, threads, thread);
        let filters = |thread| {
            let Range { start, end } = share(thread);
            (end * share_filters).min(channels[1]) - (start * share_filters).min(channels[1])
        };
        let shares_of_dw = split_lengths(dw, (0..threads).map(|thread| filters(thread) * filter_floats));
        if self.single_block {
            let (patches, gradients) = (&*patches, &*gradients);
            let mut parts =
                zip_parts(split_lengths(sums, (0..threads).map(|_| SINGLE_BLOCK_SUMS)), shares_of_dw);
            team.run_parts(&mut parts, &|thread, (sums, dw)| {
                single_block_filters::<f32>(level, self, tiles, share(thread), patches, gradients, sums, dw);
            });
            return;
        }
        let (sums, mut parts) = (&*sums, shares_of_dw);
        team.run_parts(&mut parts, &|thread, dw| {
            for (register, dw) in share(thread).zip(dw.chunks_mut(LANES * filter_floats)) {
                store_filters::<f32>(level, self, register * LANES, sums, dw);
            }
        });
    }

    /// Divides scratch by the parts that each thread transforms.
    fn split_scratch<'a>(
        &self,
        patches: &'a mut [f32],
        gradients: &'a mut [f32],
        bias: &'a mut [f32],
    ) -> [Transformed<'a>; MAX_THREADS] {
        let strip = self.register_stride();
        let [of_x, of_dy] = self.registers();
        let share = |threads: Range<usize>, registers: usize, register_floats: usize| {
            threads.map(move |thread| self.registers_of_thread(registers, thread).len() * register_floats)
        };
        let all = 0..self.cpu.team.threads();
        let patches = split_lengths(patches, share(all.clone(), of_x, strip));
        let maps = patches.into_iter().zip(split_lengths(gradients, share(all, of_dy, strip)));
        let bias = split_lengths(bias, share(0..self.threads_per_group(), of_dy, LANES));
        let mut parts: [Transformed<'a>; MAX_THREADS] = std::array::from_fn(|_| Default::default());
        for (part, ((x, dy), bias)) in parts.iter_mut().zip(maps.zip(bias)) {
            *part = (x, dy, bias);
        }
        parts
    }

    /// A thread's range of a block, for a map with `registers` of channels.
    fn transform_runs(
        &self,
        block: Block,
        registers: usize,
        thread: usize,
    ) -> impl Iterator<Item = TransformRun> + use<'_> {
        let Range { start, end } = self.registers_of_thread(registers, thread);
        (0..self.parts).flat_map(move |part| {
            let first = part * registers;
            let [from, to] = [start.max(first), end.min(first + registers)];
            (from..to).step_by(REGISTERS_PER_PASS).map(move |at| TransformRun {
                tiles: chunk_range(part, self.depth, block.count),
                registers: at - first..(at + REGISTERS_PER_PASS).min(to) - first,
                position: at - start,
            })
        })
    }
}

with_wide_lanes! {
    fn transform / transform_body(
        kernel: &WinogradGradient,
        block: Block,
        thread: usize,
        x: &[E],
        dy: &[E],
        patches: &mut [f32],
        gradients: &mut [f32],
        bias: &mut [f32],
    )
}

/// Transforms a thread's registers of a block, and adds to its sums for the bias.
///
/// # Safety
/// As [`Lanes`] requires.
#[inline(always)]
#[allow(clippy::too_many_arguments)] // `with_wide_lanes` passes slices and constants separately.
unsafe fn transform_body<V: Lanes, E: LaneElement>(
    kernel: &WinogradGradient,
    block: Block,
    thread: usize,
    x: &[E],
    dy: &[E],
    patches: &mut [f32],
    gradients: &mut [f32],
    bias: &mut [f32],
) {
    const HALF: usize = ALPHA / 2;
    macro_rules! transform {
        ($taps:literal, $first:expr, $rows:expr) => {
            transform_maps::<V, E, { output_edge($taps) }, { $first }, { $rows }>(
                kernel, block, thread, x, dy, patches, gradients, bias,
            )
        };
    }
    // SAFETY: upheld by the caller.
    unsafe {
        match (kernel.grid.taps, kernel.groups, thread / kernel.threads_per_group()) {
            (5, 1, _) => transform!(5, 0, ALPHA),
            (5, _, 0) => transform!(5, 0, HALF),
            (5, _, _) => transform!(5, HALF, HALF),
            (_, 1, _) => transform!(3, 0, ALPHA),
            (_, _, 0) => transform!(3, 0, HALF),
            _ => transform!(3, HALF, HALF),
        }
    }
}

/// # Safety
/// As [`Lanes`] requires.
#[inline(always)]
#[allow(clippy::too_many_arguments)] // As above.
unsafe fn transform_maps<
    V: Lanes,
    E: LaneElement,
    const OUTPUTS: usize,
    const FIRST: usize,
    const ROWS: usize,
>(
    kernel: &WinogradGradient,
    block: Block,
    thread: usize,
    x: &[E],
    dy: &[E],
    patches: &mut [f32],
    gradients: &mut [f32],
    bias: &mut [f32],
) {
    let WinogradGradient { grid, channels: [inputs, outputs], .. } = kernel;
    let [of_x, of_dy] = kernel.registers();
    let (point_stride, strip) = (kernel.point_stride(), kernel.register_stride());
    for run in kernel.transform_runs(block, of_x, thread) {
        let pixels = |tile: usize| {
            grid.input_pixels(grid.position(block.first + tile.min(run.tiles.end - 1)), *inputs)
        };
        let mut upcoming: [_; PREFETCHED_TILES] =
            std::array::from_fn(|ahead| pixels(run.tiles.start + ahead));
        for (row, tile) in run.tiles.clone().enumerate() {
            let patch =
                std::mem::replace(&mut upcoming[row % PREFETCHED_TILES], pixels(tile + PREFETCHED_TILES));
            for (at, register) in (run.position..).zip(run.registers.clone()) {
                upcoming[row % PREFETCHED_TILES].prefetch(x, register * LANES);
                // SAFETY: upheld by the caller; pixels inside the map are its elements, and the thread has
                // room for each of its registers.
                unsafe {
                    let plane =
                        load_input_transform::<V, E, FIRST, ROWS>(x, &patch, [*inputs, register * LANES]);
                    store_points(plane, patches, at * strip + row * LANES, point_stride);
                }
            }
        }
    }
    for run in kernel.transform_runs(block, of_dy, thread) {
        let pixels = |tile: usize| {
            grid.output_pixels::<OUTPUTS>(grid.position(block.first + tile.min(run.tiles.end - 1)), *outputs)
        };
        let mut upcoming: [_; PREFETCHED_TILES] =
            std::array::from_fn(|ahead| pixels(run.tiles.start + ahead));
        for (row, tile) in run.tiles.clone().enumerate() {
            let tile_pixels =
                std::mem::replace(&mut upcoming[row % PREFETCHED_TILES], pixels(tile + PREFETCHED_TILES));
            for (at, register) in (run.position..).zip(run.registers.clone()) {
                upcoming[row % PREFETCHED_TILES].prefetch(dy, register * LANES);
                // SAFETY: as above.
                unsafe {
                    let mut taps = [[V::splat(0.0); OUTPUTS]; OUTPUTS];
                    for column in 0..OUTPUTS {
                        let values = load_tile_column(dy, &tile_pixels, column, [*outputs, register * LANES]);
                        for (row, value) in taps.iter_mut().zip(values) {
                            let row: &mut [V; OUTPUTS] = row;
                            row[column] = value;
                        }
                    }
                    if FIRST == 0 {
                        // Summed per tile first: sums over whole maps are too long for plain `f32`
                        // accumulation.
                        let mut sum = V::splat(0.0);
                        for tap in taps.as_flattened() {
                            sum = sum.add(*tap);
                        }
                        sum.add(V::load(lanes_at(bias, at * LANES))).store(lanes_at(bias, at * LANES));
                    }
                    let plane = filter_transform::<V, OUTPUTS, FIRST, ROWS>(taps);
                    store_points(plane, gradients, at * strip + row * LANES, point_stride);
                }
            }
        }
    }
}
