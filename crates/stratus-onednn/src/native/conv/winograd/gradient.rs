//! The gradient of the weights, and of the bias.
//!
//! The sums at all points are as large as the weights, and a quarter of that again as often: they do not stay in a core's caches. So all threads
//! work on the same block of tiles, and each has sums of its own for it, which it reads and writes one behind the other.

use super::product::{Left, PANEL, Right, product};
use super::transform::{filter_plane, input_plane, output_plane};
use super::{Grid, POINTS, REACH, filled, load, outputs, panels, sixteen, store, taps};
use crate::native::elementwise::Machine;
use crate::native::lanes::{LANES, LaneElement, Lanes, with_lanes};
use crate::native::threads::{MAX_THREADS, cut, piece, split};
use std::ops::Range;
use stratus_graph::ops::Conv2d;

/// The most tiles of a part: a panel of the output's gradient, and a register of the input's patches, then stay in a core's first cache.
const DEEPEST: usize = 128;

/// Registers that are transformed together: in bf16 two fill a line of a cache.
const TOGETHER: usize = 2;

/// The gradient of a convolution's weights and bias, from maps that lie channels last; the weights' lies plainly.
#[derive(Clone)]
pub struct WinogradGradient {
    /// Of input and output.
    channels: [usize; 2],
    grid: Grid,
    /// Parts of a block, of which threads transform registers of channels, and the most tiles of a part.
    parts: usize,
    depth: usize,
    machine: Machine,
}

/// Tiles of a block.
#[derive(Clone, Copy)]
struct Block {
    first: usize,
    count: usize,
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
    pub fn new(conv: &Conv2d, batch: usize, input: [usize; 2], machine: &Machine) -> Option<Self> {
        let taps = taps(conv)?;
        let output = conv.output_size(input).ok()?;
        let grid = Grid::new(taps, batch, [input, output], conv.padding_before);
        let channels = [conv.in_channels, conv.out_channels];
        let registers = channels.map(|channels| channels.div_ceil(LANES));
        let parts = machine.team.threads().div_ceil(registers[0].min(registers[1]));
        let tiles = grid.rows() * grid.tiles[1];
        let blocks = tiles.div_ceil(parts * DEEPEST).max(1);
        let depth = tiles.div_ceil(blocks * parts);
        grid.pays().then(|| Self { channels, grid, parts, depth, machine: machine.clone() })
    }

    fn registers(&self) -> [usize; 2] {
        self.channels.map(|channels| channels.div_ceil(LANES))
    }

    /// Floats between neighbouring points of a register: an odd number of lines of a cache, so that they do not fall on the same places.
    fn apart(&self) -> usize {
        (self.depth | 1) * LANES
    }

    /// The registers, over all parts, that a thread transforms of a map of so many.
    fn transforms(&self, registers: usize, thread: usize) -> Range<usize> {
        split(self.parts * registers, self.machine.team.threads(), thread)
    }

    /// Panels of the sums, over all points.
    fn panels(&self) -> usize {
        POINTS * panels(self.channels[1])
    }

    /// Floats of the input's patches, of the output's gradient, of the sums and of those for the bias.
    fn floats(&self) -> [usize; 4] {
        let [of_x, of_dy] = self.registers().map(|registers| self.parts * registers);
        let strip = POINTS * self.apart();
        [of_x * strip, of_dy * strip, self.panels() * filled(self.channels[0]) * PANEL, of_dy * LANES]
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
        let Self { channels, grid, machine, .. } = self;
        let pixels = |map: usize| grid.batch * grid.maps[map].iter().product::<usize>();
        assert_eq!(
            [x.len(), dy.len()],
            [0, 1].map(|map| pixels(map) * channels[map]),
            "maps of another size"
        );
        assert_eq!(dw.len(), grid.taps * grid.taps * channels[0] * channels[1], "a gradient of another size");
        assert!(db.is_empty() || db.len() == channels[1], "a gradient of the bias of another size");
        let (team, level) = (&machine.team, machine.level);
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
            let share = |thread| split(self.panels(), threads, thread);
            let of_panel = filled(channels[0]) * PANEL;
            let mut parts = cut(sums, (0..threads).map(|thread| share(thread).len() * of_panel));
            let (patches, gradients) = (&*patches, &*gradients);
            team.run_parts(&mut parts, &|thread, sums| {
                for (panel, sums) in share(thread).zip(sums.chunks_exact_mut(of_panel)) {
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
        let sums = &*sums;
        let of_filter = channels[0] * grid.taps * grid.taps;
        let share = |thread| split(self.registers()[1], threads, thread);
        let filters = |thread| {
            let Range { start, end } = share(thread);
            (end * LANES).min(channels[1]) - (start * LANES).min(channels[1])
        };
        let mut parts: [&mut [f32]; MAX_THREADS] =
            cut(dw, (0..threads).map(|thread| filters(thread) * of_filter));
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
        let strip = POINTS * self.apart();
        let threads = 0..self.machine.team.threads();
        let [of_x, of_dy] = self.registers();
        let share = |registers: usize, of_register: usize| {
            threads.clone().map(move |thread| self.transforms(registers, thread).len() * of_register)
        };
        let patches = cut(patches, share(of_x, strip));
        let maps = patches.into_iter().zip(cut(gradients, share(of_dy, strip)));
        let mut parts: [Transformed<'a>; MAX_THREADS] = std::array::from_fn(|_| Default::default());
        for (part, ((x, dy), bias)) in parts.iter_mut().zip(maps.zip(cut(bias, share(of_dy, LANES)))) {
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
    // SAFETY: the caller's.
    unsafe {
        if of.grid.taps == 5 {
            transform_maps::<V, E, { outputs(5) }>(of, block, thread, x, dy, patches, gradients, bias);
        } else {
            transform_maps::<V, E, { outputs(3) }>(of, block, thread, x, dy, patches, gradients, bias);
        }
    }
}

/// # Safety
/// Of [`Lanes`].
#[inline(always)]
#[allow(clippy::too_many_arguments)] // As above.
unsafe fn transform_maps<V: Lanes, E: LaneElement, const OUTPUTS: usize>(
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
    let apart = of.apart();
    let strip = POINTS * apart;
    for run in of.runs(block, of_x, thread) {
        for (row, tile) in run.tiles.enumerate() {
            let pixels = grid.patch(grid.place(block.first + tile));
            for (at, register) in (run.at..).zip(run.registers.clone()) {
                // SAFETY: the caller's; pixels lie within the map, and the thread has a strip for each of its registers.
                unsafe {
                    let patch = load(x, &pixels, [*inputs, register * LANES]);
                    store::<V>(input_plane(patch), patches, at * strip + row * LANES, apart);
                }
            }
        }
    }
    for run in of.runs(block, of_dy, thread) {
        for (row, tile) in run.tiles.enumerate() {
            let pixels = grid.outputs::<OUTPUTS>(grid.place(block.first + tile));
            for (at, register) in (run.at..).zip(run.registers.clone()) {
                // SAFETY: as above.
                unsafe {
                    let taps: [[V; OUTPUTS]; OUTPUTS] = load(dy, &pixels, [*outputs, register * LANES]);
                    // A tile first: the sum over a map is longer than floats can add up one by one.
                    let mut sum = V::splat(0.0);
                    for tap in taps.as_flattened() {
                        sum = sum.add(*tap);
                    }
                    sum.add(V::load(sixteen(bias, at * LANES))).store(sixteen(bias, at * LANES));
                    store(filter_plane(taps), gradients, at * strip + row * LANES, apart);
                }
            }
        }
    }
}

with_lanes! {
    fn add_products / add_products_body(
        of: &WinogradGradient,
        block: Block,
        panel: usize,
        patches: &[f32],
        gradients: &[f32],
        sums: &mut [f32],
    )
}

/// Adds a block up, at a point and for a panel of the output's channels.
///
/// # Safety
/// Of [`Lanes`].
#[inline(always)]
unsafe fn add_products_body<V: Lanes, E: LaneElement>(
    of: &WinogradGradient,
    block: Block,
    panel: usize,
    patches: &[f32],
    gradients: &[f32],
    sums: &mut [f32],
) {
    let [of_x, of_dy] = of.registers();
    let (point, panel) = (panel / panels(of.channels[1]), panel % panels(of.channels[1]));
    for part in 0..of.parts {
        let terms = piece(part, of.depth, block.count).len();
        if terms == 0 {
            break;
        }
        let add = block.first + part > 0;
        let at = |register: usize| (register * POINTS + point) * of.apart();
        let of_panel = |register: usize| {
            &gradients[at(part * of_dy + panel * PANEL / LANES + register)..][..terms * LANES]
        };
        for (register, sums) in sums.chunks_exact_mut(LANES * PANEL).enumerate() {
            let elements = &patches[at(part * of_x + register)..][..terms * LANES];
            let left = Left { elements, apart: [1, LANES] };
            // SAFETY: the caller's.
            unsafe {
                if (panel + 1) * PANEL > filled(of.channels[1]) {
                    let right = Right { registers: [of_panel(0)], apart: LANES };
                    product::<V, 1>(left, right, sums, PANEL, [LANES, terms], add);
                } else {
                    let right = Right { registers: [of_panel(0), of_panel(1)], apart: LANES };
                    product::<V, 2>(left, right, sums, PANEL, [LANES, terms], add);
                }
            }
        }
    }
}

with_lanes! {
    fn finish_filters / finish_filters_body(
        of: &WinogradGradient,
        filter: usize,
        sums: &[f32],
        dw: &mut [E],
    )
}

/// Brings the sums of sixteen filters, from `filter` on, to their taps.
///
/// # Safety
/// Of [`Lanes`].
#[inline(always)]
unsafe fn finish_filters_body<V: Lanes, E: LaneElement>(
    of: &WinogradGradient,
    filter: usize,
    sums: &[f32],
    dw: &mut [E],
) {
    // SAFETY: the caller's.
    unsafe {
        if of.grid.taps == 5 {
            finish::<V, E, 5>(of, filter, sums, dw);
        } else {
            finish::<V, E, 3>(of, filter, sums, dw);
        }
    }
}

/// # Safety
/// Of [`Lanes`].
#[inline(always)]
unsafe fn finish<V: Lanes, E: LaneElement, const TAPS: usize>(
    of: &WinogradGradient,
    filter: usize,
    sums: &[f32],
    dw: &mut [E],
) {
    let [inputs, outputs] = of.channels;
    for first in (0..inputs).step_by(LANES) {
        // Filters lie far apart: what is written of each is collected first.
        let mut filters = [[[[0.0; TAPS]; TAPS]; LANES]; LANES];
        for input in 0..LANES {
            // SAFETY: the caller's; there are sums for every point, panel and channel of the input.
            unsafe {
                let mut plane = [[V::splat(0.0); REACH]; REACH];
                for (point, value) in plane.as_flattened_mut().iter_mut().enumerate() {
                    let panel = point * panels(outputs) + filter / PANEL;
                    let at = (panel * filled(inputs) + first + input) * PANEL + filter % PANEL;
                    debug_assert!(at + LANES <= sums.len());
                    *value = V::load(&*sums.as_ptr().add(at).cast());
                }
                let taps: [[V; TAPS]; TAPS] = output_plane(plane);
                for (tap, values) in taps.as_flattened().iter().enumerate() {
                    let mut lanes = [0.0; LANES];
                    values.store(&mut lanes);
                    for (filter, value) in filters.iter_mut().zip(lanes) {
                        filter[input].as_flattened_mut()[tap] = value;
                    }
                }
            }
        }
        let there = LANES.min(inputs - first);
        for (filter, dw) in filters.iter().zip(dw.chunks_exact_mut(inputs * TAPS * TAPS)) {
            let to = &mut dw[first * TAPS * TAPS..][..there * TAPS * TAPS];
            for (to, value) in to.iter_mut().zip(filter.as_flattened().as_flattened()) {
                *to = E::store(*value);
            }
        }
    }
}
