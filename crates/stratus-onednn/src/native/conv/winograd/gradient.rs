//! The gradient of the weights, and of the bias.
//!
//! The sums at all points are as large as the weights, and a quarter of that again as often: they do not stay in a core's caches. So threads work
//! on the same block of tiles, and each has sums of its own for it, which it reads and writes one behind the other.
//!
//! Where all tiles are one block, there is nothing to add to: the sums of some channels at all points are made one after another, and are the gradient's
//! taps before they leave the caches.
//!
//! What a core writes costs another one much to read, more where they share no cache. Where channels are few, so that there is little to add for what
//! is read, an even number of threads is two groups, which share nothing but the maps: each makes the values at half of the points, with some of the
//! work done twice, and the sums for these (docs/benchmarks/kernels.md).

use super::product::PANEL;
use super::sums::{add_products, finish_filters, make_filters};
use super::transform::filter_plane;
use super::{Grid, POINTS, REACH, filled, load_column, outputs, panels, patch_plane, sixteen, store, taps};
use crate::native::elementwise::CpuContext;
use crate::native::lanes::{LANES, LaneElement, Lanes, with_lanes};
use crate::native::threads::{MAX_THREADS, cut, pairs, piece, split};
use std::ops::Range;
use stratus_graph::ops::Conv2d;

/// The most tiles of a part: a panel of the output's gradient, and a register of the input's patches, then stay in a core's first cache.
const DEEPEST: usize = 128;

/// The most pairs of channels that two groups of threads are faster for than one.
const FEW: usize = 256 * 256;

/// How many tiles before they are transformed pixels are asked for.
const AHEAD: usize = 4;

/// Sums at all points of a panel of the output's channels and a register of the input's.
const SUMS_AT_ONCE: usize = POINTS * LANES * PANEL;

/// Registers that are transformed together: in bf16 two fill a line of a cache.
const TOGETHER: usize = 2;

/// The gradient of a convolution's weights and bias, from maps that lie channels last; the weights' lies plainly.
#[derive(Clone)]
pub struct WinogradGradient {
    /// Of input and output.
    pub(super) channels: [usize; 2],
    pub(super) grid: Grid,
    /// Groups of threads, which share the rows of points out.
    pub(super) groups: usize,
    /// Parts of a block, of which threads of a group transform registers of channels, and the most tiles of a part.
    pub(super) parts: usize,
    pub(super) depth: usize,
    /// Whether all tiles are one part of one block, for one group of threads.
    at_once: bool,
    cpu: CpuContext,
}

/// Tiles of a block.
#[derive(Clone, Copy)]
pub(super) struct Block {
    pub(super) first: usize,
    pub(super) count: usize,
}

/// Registers of a part of a block that a thread transforms together.
struct Run {
    tiles: Range<usize>,
    registers: Range<usize>,
    /// The number of the first one among all that the thread transforms.
    at: usize,
}

/// What a thread writes of a block: registers of the input's patches and of the output's gradient at all points, and sums for the bias.
type Transformed<'a> = (&'a mut [f32], &'a mut [f32], &'a mut [f32]);

impl WinogradGradient {
    /// For `batch` images of height and width `input`; none where another kernel has to do it.
    #[must_use]
    pub fn new(conv: &Conv2d, batch: usize, input: [usize; 2], cpu: &CpuContext) -> Option<Self> {
        let taps = taps(conv)?;
        let output = conv.output_size(input).ok()?;
        let grid = Grid::new(taps, batch, [input, output], conv.padding_before);
        let channels = [conv.in_channels, conv.out_channels];
        let registers = channels.map(|channels| channels.div_ceil(LANES));
        let threads = cpu.team.threads();
        let few = channels[0] * channels[1] <= FEW;
        let groups = if few && threads.is_multiple_of(2) { 2 } else { 1 };
        let parts = (threads / groups).div_ceil(registers[0].min(registers[1]));
        let tiles = grid.rows() * grid.tiles[1];
        let blocks = tiles.div_ceil(parts * DEEPEST).max(1);
        let depth = tiles.div_ceil(blocks * parts);
        let at_once = tiles <= depth && [parts, groups] == [1; 2];
        grid.pays().then(|| Self { channels, grid, groups, parts, depth, at_once, cpu: cpu.clone() })
    }

    pub(super) fn registers(&self) -> [usize; 2] {
        self.channels.map(|channels| channels.div_ceil(LANES))
    }

    /// Floats between neighbouring points of a register: an odd number of lines of a cache, so that they do not fall on the same places.
    pub(super) fn apart(&self) -> usize {
        (self.depth | 1) * LANES
    }

    /// Floats of a register at a group's points.
    pub(super) fn strip(&self) -> usize {
        POINTS / self.groups * self.apart()
    }

    /// What so many tiles, sixteen floats each, have of a register of channels at a point, where all tiles are one part.
    pub(super) fn strip_of<'a>(
        &self,
        map: &'a [f32],
        register: usize,
        [point, floats]: [usize; 2],
    ) -> &'a [f32] {
        &map[register * self.strip() + point * self.apart()..][..floats]
    }

    /// Threads of a group.
    fn members(&self) -> usize {
        self.cpu.team.threads() / self.groups
    }

    /// The registers, over all parts, that a thread transforms of a map of so many.
    fn transforms(&self, registers: usize, thread: usize) -> Range<usize> {
        split(self.parts * registers, self.members(), thread % self.members())
    }

    /// Panels of the sums, over all points.
    fn panels(&self) -> usize {
        POINTS * panels(self.channels[1])
    }

    /// Those that a thread adds to.
    fn adds_to(&self, thread: usize) -> Range<usize> {
        let (members, of_group) = (self.members(), self.panels() / self.groups);
        let Range { start, end } = split(of_group, members, thread % members);
        let first = thread / members * of_group;
        first + start..first + end
    }

    /// Floats of the input's patches, of the output's gradient, of the sums and of those for the bias.
    fn floats(&self) -> [usize; 4] {
        let [of_x, of_dy] = self.registers().map(|registers| self.parts * registers);
        let strips = self.groups * self.strip();
        let sums = if self.at_once {
            self.cpu.team.threads() * SUMS_AT_ONCE
        } else {
            self.panels() * filled(self.channels[0]) * PANEL
        };
        [of_x * strips, of_dy * strips, sums, of_dy * LANES]
    }

    /// Bytes of scratch.
    #[must_use]
    pub fn scratch_bytes(&self) -> usize {
        self.floats().iter().sum::<usize>() * size_of::<f32>()
    }

    /// Makes the gradients `dw` and `db`, which is empty where none is wanted, from the input and the gradient of the output.
    ///
    /// # Panics
    /// Where a map or a gradient has another size.
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
            "maps of another size"
        );
        assert_eq!(dw.len(), grid.taps * grid.taps * channels[0] * channels[1], "a gradient of another size");
        assert!(db.is_empty() || db.len() == channels[1], "a gradient of the bias of another size");
        let (team, level) = (&cpu.team, cpu.level);
        let threads = team.threads();
        let [of_x, of_dy, of_sums, of_bias] = self.floats();
        let (patches, rest) = scratch.split_at_mut(of_x);
        let (gradients, rest) = rest.split_at_mut(of_dy);
        let (sums, rest) = rest.split_at_mut(of_sums);
        let bias = &mut rest[..of_bias];
        bias.fill(0.0);
        let tiles = grid.rows() * grid.tiles[1];
        for first in (0..tiles).step_by(self.parts * self.depth) {
            let block = Block { first, count: (self.parts * self.depth).min(tiles - first) };
            let mut parts = self.share_out(patches, gradients, bias);
            team.run_parts(&mut parts, &|thread, (patches, gradients, bias)| {
                transform(level, self, block, thread, x, dy, patches, gradients, bias);
            });
            if self.at_once {
                break;
            }
            let of_panel = filled(channels[0]) * PANEL;
            let mut parts = cut(sums, (0..threads).map(|thread| self.adds_to(thread).len() * of_panel));
            let (patches, gradients) = (&*patches, &*gradients);
            team.run_parts(&mut parts, &|thread, sums| {
                for (panel, sums) in self.adds_to(thread).zip(sums.chunks_exact_mut(of_panel)) {
                    // The functions for every instruction set are generic in what maps are made of.
                    add_products::<f32>(level, self, block, panel, patches, gradients, sums);
                }
            });
        }
        for (part, bias) in bias.chunks_exact(filled(channels[1])).enumerate() {
            for (db, sum) in db.iter_mut().zip(bias) {
                *db = if part == 0 { *sum } else { *db + sum };
            }
        }
        // A panel of filters is shared out as a whole where its sums are.
        let (of_share, shares) =
            if self.at_once { (PANEL, panels(channels[1])) } else { (LANES, self.registers()[1]) };
        let of_filter = channels[0] * grid.taps * grid.taps;
        let share = |thread| split(shares, threads, thread);
        let filters = |thread| {
            let Range { start, end } = share(thread);
            (end * of_share).min(channels[1]) - (start * of_share).min(channels[1])
        };
        let shares_of_dw = cut(dw, (0..threads).map(|thread| filters(thread) * of_filter));
        if self.at_once {
            let (patches, gradients) = (&*patches, &*gradients);
            let mut parts = pairs(cut(sums, (0..threads).map(|_| SUMS_AT_ONCE)), shares_of_dw);
            team.run_parts(&mut parts, &|thread, (sums, dw)| {
                make_filters::<f32>(level, self, tiles, share(thread), patches, gradients, sums, dw);
            });
            return;
        }
        let (sums, mut parts) = (&*sums, shares_of_dw);
        team.run_parts(&mut parts, &|thread, dw| {
            for (register, dw) in share(thread).zip(dw.chunks_mut(LANES * of_filter)) {
                finish_filters::<f32>(level, self, register * LANES, sums, dw);
            }
        });
    }

    /// What each thread transforms.
    fn share_out<'a>(
        &self,
        patches: &'a mut [f32],
        gradients: &'a mut [f32],
        bias: &'a mut [f32],
    ) -> [Transformed<'a>; MAX_THREADS] {
        let strip = self.strip();
        let [of_x, of_dy] = self.registers();
        let share = |threads: Range<usize>, registers: usize, of_register: usize| {
            threads.map(move |thread| self.transforms(registers, thread).len() * of_register)
        };
        let all = 0..self.cpu.team.threads();
        let patches = cut(patches, share(all.clone(), of_x, strip));
        let maps = patches.into_iter().zip(cut(gradients, share(all, of_dy, strip)));
        let bias = cut(bias, share(0..self.members(), of_dy, LANES));
        let mut parts: [Transformed<'a>; MAX_THREADS] = std::array::from_fn(|_| Default::default());
        for (part, ((x, dy), bias)) in parts.iter_mut().zip(maps.zip(bias)) {
            *part = (x, dy, bias);
        }
        parts
    }

    /// What a thread transforms of a block of a map of so many registers.
    fn runs(&self, block: Block, registers: usize, thread: usize) -> impl Iterator<Item = Run> + use<'_> {
        let Range { start, end } = self.transforms(registers, thread);
        (0..self.parts).flat_map(move |part| {
            let first = part * registers;
            let [from, to] = [start.max(first), end.min(first + registers)];
            (from..to).step_by(TOGETHER).map(move |at| Run {
                tiles: piece(part, self.depth, block.count),
                registers: at - first..(at + TOGETHER).min(to) - first,
                at: at - start,
            })
        })
    }
}

with_lanes! {
    fn transform / transform_body(
        of: &WinogradGradient,
        block: Block,
        thread: usize,
        x: &[E],
        dy: &[E],
        patches: &mut [f32],
        gradients: &mut [f32],
        bias: &mut [f32],
    )
}

/// Brings a thread's registers of a block to values at the points, and adds to their sums for the bias.
///
/// # Safety
/// Of [`Lanes`].
#[inline(always)]
#[allow(clippy::too_many_arguments)] // Of `with_lanes`: slices and constants, not structures of them.
unsafe fn transform_body<V: Lanes, E: LaneElement>(
    of: &WinogradGradient,
    block: Block,
    thread: usize,
    x: &[E],
    dy: &[E],
    patches: &mut [f32],
    gradients: &mut [f32],
    bias: &mut [f32],
) {
    const HALF: usize = REACH / 2;
    // SAFETY: the caller's.
    unsafe {
        match (of.grid.taps, of.groups, thread / of.members()) {
            (5, 1, _) => transform_maps::<V, E, { outputs(5) }, 0, REACH>(
                of, block, thread, x, dy, patches, gradients, bias,
            ),
            (5, _, 0) => transform_maps::<V, E, { outputs(5) }, 0, HALF>(
                of, block, thread, x, dy, patches, gradients, bias,
            ),
            (5, _, _) => transform_maps::<V, E, { outputs(5) }, HALF, HALF>(
                of, block, thread, x, dy, patches, gradients, bias,
            ),
            (_, 1, _) => transform_maps::<V, E, { outputs(3) }, 0, REACH>(
                of, block, thread, x, dy, patches, gradients, bias,
            ),
            (_, _, 0) => transform_maps::<V, E, { outputs(3) }, 0, HALF>(
                of, block, thread, x, dy, patches, gradients, bias,
            ),
            _ => transform_maps::<V, E, { outputs(3) }, HALF, HALF>(
                of, block, thread, x, dy, patches, gradients, bias,
            ),
        }
    }
}

/// # Safety
/// Of [`Lanes`].
#[inline(always)]
#[allow(clippy::too_many_arguments)] // As above.
unsafe fn transform_maps<
    V: Lanes,
    E: LaneElement,
    const OUTPUTS: usize,
    const FIRST: usize,
    const ROWS: usize,
>(
    of: &WinogradGradient,
    block: Block,
    thread: usize,
    x: &[E],
    dy: &[E],
    patches: &mut [f32],
    gradients: &mut [f32],
    bias: &mut [f32],
) {
    let WinogradGradient { grid, channels: [inputs, outputs], .. } = of;
    let [of_x, of_dy] = of.registers();
    let (apart, strip) = (of.apart(), of.strip());
    for run in of.runs(block, of_x, thread) {
        let pixels = |tile: usize| grid.patch(grid.place(block.first + tile.min(run.tiles.end - 1)), *inputs);
        let mut coming: [_; AHEAD] = std::array::from_fn(|ahead| pixels(run.tiles.start + ahead));
        for (row, tile) in run.tiles.clone().enumerate() {
            let patch = std::mem::replace(&mut coming[row % AHEAD], pixels(tile + AHEAD));
            for (at, register) in (run.at..).zip(run.registers.clone()) {
                coming[row % AHEAD].ask_for(x, register * LANES);
                // SAFETY: the caller's; pixels lie within the map, and the thread has a strip for each of its registers.
                unsafe {
                    let plane = patch_plane::<V, E, FIRST, ROWS>(x, &patch, [*inputs, register * LANES]);
                    store(plane, patches, at * strip + row * LANES, apart);
                }
            }
        }
    }
    for run in of.runs(block, of_dy, thread) {
        let pixels = |tile: usize| {
            grid.outputs::<OUTPUTS>(grid.place(block.first + tile.min(run.tiles.end - 1)), *outputs)
        };
        let mut coming: [_; AHEAD] = std::array::from_fn(|ahead| pixels(run.tiles.start + ahead));
        for (row, tile) in run.tiles.clone().enumerate() {
            let there = std::mem::replace(&mut coming[row % AHEAD], pixels(tile + AHEAD));
            for (at, register) in (run.at..).zip(run.registers.clone()) {
                coming[row % AHEAD].ask_for(dy, register * LANES);
                // SAFETY: as above.
                unsafe {
                    let mut taps = [[V::splat(0.0); OUTPUTS]; OUTPUTS];
                    for column in 0..OUTPUTS {
                        let values = load_column(dy, &there, column, [*outputs, register * LANES]);
                        for (row, value) in taps.iter_mut().zip(values) {
                            let row: &mut [V; OUTPUTS] = row;
                            row[column] = value;
                        }
                    }
                    if FIRST == 0 {
                        // A tile first: the sum over a map is longer than floats can add up one by one.
                        let mut sum = V::splat(0.0);
                        for tap in taps.as_flattened() {
                            sum = sum.add(*tap);
                        }
                        sum.add(V::load(sixteen(bias, at * LANES))).store(sixteen(bias, at * LANES));
                    }
                    let plane = filter_plane::<V, OUTPUTS, FIRST, ROWS>(taps);
                    store(plane, gradients, at * strip + row * LANES, apart);
                }
            }
        }
    }
}
