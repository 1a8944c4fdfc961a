//! The gradient of the weights, and of the bias.

use super::product::{Left, PANEL, product};
use super::{
    APART, Grid, OUTPUTS, POINTS, REACH, TAPS, block, filter_plane, input_plane, load, output_plane, panels,
    sixteen, store, suits,
};
use crate::native::elementwise::Machine;
use crate::native::lanes::{LANES, LaneElement, Lanes, with_lanes};
use crate::native::threads::{MAX_THREADS, cut, groups, split};
use std::ops::Range;
use stratus_graph::ops::Conv2d;

/// The fewest tiles of a block: the sums over the tiles before are read and written for each.
const FEWEST: usize = 96;

/// Sums of more bytes than this are had once: threads share the channels of the input out, and only then the tiles.
const LARGE: usize = 4 << 20;

/// The gradient of a convolution's weights and bias, from maps that lie channels last; the weights' lies plainly.
#[derive(Clone)]
pub struct WinogradGradient {
    /// Of input and output.
    channels: [usize; 2],
    grid: Grid,
    block: usize,
    /// Groups of threads with input channels of their own, and the threads of a group, which share tiles out.
    groups: [usize; 2],
    machine: Machine,
}

/// What a thread works on.
struct Share {
    channels: Range<usize>,
    rows: Range<usize>,
}

impl WinogradGradient {
    /// For `batch` images of height and width `input`; none where another kernel has to do it.
    #[must_use]
    pub fn new(conv: &Conv2d, batch: usize, input: [usize; 2], machine: &Machine) -> Option<Self> {
        let output = conv.output_size(input).ok().filter(|_| suits(conv))?;
        let grid = Grid::new(batch, [input, output], conv.padding_before);
        let channels = [conv.in_channels, conv.out_channels];
        let threads = machine.team.threads();
        let sums = threads * POINTS * channels[0] * channels[1] * size_of::<f32>();
        let groups = if sums > LARGE { groups(threads, channels[0] / LANES) } else { [1, threads] };
        let tiles = grid.tiles_of(groups[1]);
        let block = block(channels[0] / groups[0] + channels[1], tiles, FEWEST);
        grid.pays().then(|| Self { channels, grid, block, groups, machine: machine.clone() })
    }

    fn share(&self, thread: usize) -> Share {
        let (group, member) = (thread / self.groups[1], thread % self.groups[1]);
        let registers = split(self.channels[0] / LANES, self.groups[0], group);
        Share {
            channels: registers.start * LANES..registers.end * LANES,
            rows: split(self.grid.rows(), self.groups[1], member),
        }
    }

    /// Floats of a thread's sums, of its matrices and of its sums for the bias.
    fn floats(&self, thread: usize) -> [usize; 3] {
        let channels = self.share(thread).channels.len();
        let [of_x, of_dy] = self.sizes(channels);
        [POINTS * channels * self.channels[1], POINTS * (of_x + of_dy), self.channels[1]]
    }

    /// Floats of a block's matrix at one point, of the input and of the output's gradient.
    fn sizes(&self, channels: usize) -> [usize; 2] {
        [self.block * channels + APART, panels(self.channels[1]) * self.block * PANEL + APART]
    }

    /// Bytes of scratch.
    #[must_use]
    pub fn scratch_bytes(&self) -> usize {
        let of_thread = |thread| self.floats(thread).iter().sum::<usize>();
        (0..self.machine.team.threads()).map(of_thread).sum::<usize>() * size_of::<f32>()
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
        let Self { channels, grid, machine, groups, .. } = self;
        let pixels = |map: usize| grid.batch * grid.maps[map].iter().product::<usize>();
        assert_eq!(
            [x.len(), dy.len()],
            [0, 1].map(|map| pixels(map) * channels[map]),
            "maps of another size"
        );
        assert_eq!(dw.len(), TAPS * TAPS * channels[0] * channels[1], "a gradient of another size");
        assert!(db.is_empty() || db.len() == channels[1], "a gradient of the bias of another size");
        let (team, level) = (&machine.team, machine.level);
        let threads = team.threads();
        let floats = |thread| self.floats(thread).iter().sum();
        let mut parts = cut(scratch, (0..threads).map(floats));
        team.run_parts(&mut parts, &|thread, scratch| {
            let [sums, matrices, _] = self.floats(thread);
            let (sums, rest) = scratch.split_at_mut(sums);
            let (matrices, bias) = rest.split_at_mut(matrices);
            add_rows(level, self, &self.share(thread), x, dy, sums, bias, matrices);
        });
        let parts = parts.map(|part| &*part);
        // Of the bias all groups have the same sums.
        for (thread, part) in parts.iter().enumerate().take(groups[1]) {
            let [sums, matrices, _] = self.floats(thread);
            for (db, sum) in db.iter_mut().zip(&part[sums + matrices..]) {
                *db = if thread == 0 { *sum } else { *db + sum };
            }
        }
        let of_register = LANES * channels[0] * TAPS * TAPS;
        let share = |thread| split(channels[1] / LANES, threads, thread);
        let mut filters: [&mut [f32]; MAX_THREADS] =
            cut(dw, (0..threads).map(|thread| share(thread).len() * of_register));
        team.run_parts(&mut filters, &|thread, dw| {
            for (register, dw) in share(thread).zip(dw.chunks_exact_mut(of_register)) {
                // The functions for every instruction set are generic in what maps are made of.
                finish_filters::<f32>(level, self, register * LANES, &parts, dw);
            }
        });
    }
}

with_lanes! {
    fn add_rows / add_rows_body(
        of: &WinogradGradient,
        share: &Share,
        x: &[E],
        dy: &[E],
        sums: &mut [f32],
        bias: &mut [f32],
        matrices: &mut [f32],
    )
}

/// Adds up a thread's share at every point, and what it is for the bias.
///
/// # Safety
/// Of [`Lanes`].
#[inline(always)]
#[allow(clippy::too_many_arguments)] // Of `with_lanes`: slices and constants, not structures of them.
unsafe fn add_rows_body<V: Lanes, E: LaneElement>(
    of: &WinogradGradient,
    share: &Share,
    x: &[E],
    dy: &[E],
    sums: &mut [f32],
    bias: &mut [f32],
    matrices: &mut [f32],
) {
    let WinogradGradient { grid, channels, block, .. } = of;
    let [inputs, outputs] = *channels;
    let own = share.channels.len();
    let [of_x, of_dy] = of.sizes(own);
    let (patches, gradients) = matrices.split_at_mut(POINTS * of_x);
    let tiles = share.rows.start * grid.tiles[1]..share.rows.end * grid.tiles[1];
    bias.fill(0.0);
    if tiles.is_empty() {
        sums.fill(0.0);
    }
    for first in tiles.clone().step_by(*block) {
        let count = (*block).min(tiles.end - first);
        for row in 0..count {
            let place = grid.place(first + row);
            let pixels = grid.patch(place);
            for channel in (0..own).step_by(LANES) {
                // SAFETY: the caller's; pixels lie within the map, and the matrices have so many rows.
                unsafe {
                    let patch = load(x, &pixels, [inputs, share.channels.start + channel]);
                    store::<V>(input_plane(patch), patches, row * own + channel, of_x);
                }
            }
            let pixels = grid.outputs(place);
            for channel in (0..outputs).step_by(LANES) {
                let panel = channel / PANEL * count * PANEL + channel % PANEL;
                // SAFETY: as above.
                unsafe {
                    let taps: [[V; OUTPUTS]; OUTPUTS] = load(dy, &pixels, [outputs, channel]);
                    // A tile first: the sum over a map is longer than floats can add up one by one.
                    let mut sum = V::splat(0.0);
                    for tap in taps.as_flattened() {
                        sum = sum.add(*tap);
                    }
                    sum.add(V::load(sixteen(bias, channel))).store(sixteen(bias, channel));
                    store(filter_plane(taps), gradients, panel + row * PANEL, of_dy);
                }
            }
        }
        for point in 0..POINTS {
            let left = Left { elements: &patches[point * of_x..][..count * own], apart: [1, own] };
            let to = &mut sums[point * own * outputs..][..own * outputs];
            for panel in 0..panels(outputs) {
                let right = &gradients[point * of_dy + panel * count * PANEL..][..count * PANEL];
                let wide = PANEL.min(outputs - panel * PANEL);
                let add = first > tiles.start;
                // SAFETY: the caller's.
                unsafe {
                    product::<V>(left, right, &mut to[panel * PANEL..], outputs, [own, count, wide], add);
                };
            }
        }
    }
}

with_lanes! {
    fn finish_filters / finish_filters_body(
        of: &WinogradGradient,
        filter: usize,
        parts: &[&[f32]; MAX_THREADS],
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
    parts: &[&[f32]; MAX_THREADS],
    dw: &mut [E],
) {
    let [inputs, outputs] = of.channels;
    for group in 0..of.groups[0] {
        let own = of.share(group * of.groups[1]).channels;
        for (number, input) in own.clone().enumerate() {
            // SAFETY: the caller's; every member of the group has sums for its channels.
            unsafe {
                let mut plane = [[V::splat(0.0); REACH]; REACH];
                for (point, value) in plane.as_flattened_mut().iter_mut().enumerate() {
                    let at = (point * own.len() + number) * outputs + filter;
                    for part in &parts[group * of.groups[1]..(group + 1) * of.groups[1]] {
                        debug_assert!(at + LANES <= part.len());
                        *value = value.add(V::load(&*part.as_ptr().add(at).cast()));
                    }
                }
                let taps: [[V; TAPS]; TAPS] = output_plane(plane);
                for (tap, values) in taps.as_flattened().iter().enumerate() {
                    let mut lanes = [0.0; LANES];
                    values.store(&mut lanes);
                    for (lane, value) in lanes.into_iter().enumerate() {
                        dw[(lane * inputs + input) * TAPS * TAPS + tap] = E::store(value);
                    }
                }
            }
        }
    }
}
