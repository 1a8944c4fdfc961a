//! The forward pass and the gradient of the input, which is a convolution of the output's gradient by the weights turned half around.

use super::int16::{CHUNK, Columns, Int16Products, chunks, keep, round_row};
use super::product::{Left, PANEL, ROWS, Right, product};
use super::transform::output_plane;
use super::weights::transform_weights;
use super::{
    APART, Grid, NOWHERE, POINTS, Pixels, REACH, block, filled, matrices, outputs, panels, patch_plane,
    sixteen, store, taps,
};
use crate::native::elementwise::CpuContext;
use crate::native::lanes::{LANES, LaneElement, Lanes, with_lanes};
use crate::native::threads::{MAX_THREADS, cut, pairs, split};
use std::ops::Range;
use stratus_graph::ops::Conv2d;

/// The fewest tiles of a block.
const FEWEST: usize = 48;

/// Floats of transformed weights that do not come to the caches in time by themselves: a convolution takes 7 to 17 % less time when 18 MB of them are
/// asked for, 2 % more when 5 MB are (docs/benchmarks/kernels.md).
const FAR: usize = 1 << 21;

/// What is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pass {
    /// The output.
    Forward,
    /// The gradient of the input.
    BackwardData,
}

/// A convolution, or the gradient of its input, of maps that lie channels last by weights that lie plainly.
#[derive(Clone)]
pub struct WinogradConv {
    pub(super) pass: Pass,
    /// Channels that are summed over, and those of the result.
    pub(super) channels: [usize; 2],
    pub(super) grid: Grid,
    /// Tiles that go through the caches at a time.
    block: usize,
    /// What multiplies, where that is not floats.
    pub(super) words: Option<Int16Products>,
    cpu: CpuContext,
}

/// Floats that a thread works in while a block of tiles goes through.
#[derive(Clone, Copy)]
struct Room {
    /// The block's patches, at all points; of whole numbers two in a float.
    patches: usize,
    /// Their units.
    units: usize,
    /// The products.
    products: usize,
    /// What is rounded next: a row of patches, or a chunk of sixteen filters.
    strip: usize,
}

impl Room {
    fn floats(self) -> usize {
        self.patches + self.units + self.products + self.strip
    }
}

/// What is done to a result before it is stored.
#[derive(Clone, Copy)]
struct Finish<'a> {
    /// Empty where there is none.
    bias: &'a [f32],
    relu: bool,
}

impl WinogradConv {
    /// For `batch` images of height and width `input`, with products of whole numbers where something is given that multiplies them; none where another
    /// kernel has to do it.
    #[must_use]
    pub fn new(
        conv: &Conv2d,
        pass: Pass,
        batch: usize,
        input: [usize; 2],
        words: Option<Int16Products>,
        cpu: &CpuContext,
    ) -> Option<Self> {
        let taps = taps(conv)?;
        let output = conv.output_size(input).ok()?;
        let (channels, maps, before) = match pass {
            Pass::Forward => ([conv.in_channels, conv.out_channels], [input, output], conv.padding_before),
            Pass::BackwardData => {
                let before = conv.padding_before.map(|padding| taps - 1 - padding);
                ([conv.out_channels, conv.in_channels], [output, input], before)
            }
        };
        let grid = Grid::new(taps, batch, maps, before);
        let tiles = grid.tiles_of(cpu.team.threads());
        let of_patch = if words.is_some() { size_of::<i16>() } else { size_of::<f32>() };
        let [terms, columns] = channels.map(filled);
        let block = block(terms * of_patch + columns * size_of::<f32>(), tiles, FEWEST);
        grid.pays().then(|| Self { pass, channels, grid, block, words, cpu: cpu.clone() })
    }

    /// Rows and columns of the weights' matrices: the channels and what fills their last registers.
    pub(super) fn matrix(&self) -> [usize; 2] {
        self.channels.map(filled)
    }

    /// Floats of a panel of the transformed weights; of whole numbers two are in one, and there is one for each of their units.
    fn panel_floats(&self) -> usize {
        let terms = self.matrix()[0];
        let floats = POINTS * terms * PANEL;
        if self.words.is_some() { floats / 2 + POINTS * chunks(terms) * PANEL } else { floats }
    }

    fn room(&self) -> Room {
        let [patches, products] = self.matrix().map(|channels| matrices(self.block, channels));
        match self.words {
            Some(_) => {
                let terms = self.matrix()[0];
                let strip = POINTS * terms.max(terms.min(CHUNK) * LANES);
                Room { patches: patches / 2, units: POINTS * self.block, products, strip }
            }
            None => Room { patches, units: 0, products, strip: 0 },
        }
    }

    /// Bytes of scratch.
    #[must_use]
    pub fn scratch_bytes(&self) -> usize {
        let of_weights = panels(self.channels[1]) * self.panel_floats();
        (of_weights + self.cpu.team.threads() * self.room().floats()) * size_of::<f32>()
    }

    /// Makes `y` of `x`: the sum of `bias`, which is empty where there is none, and of the convolution, rectified where `relu` says so.
    ///
    /// # Panics
    /// Where a map or the weights have another size.
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
        assert_eq!([x.len(), y.len()], [0, 1].map(|map| pixels(map) * channels[map]), "maps of another size");
        assert_eq!(
            weights.len(),
            grid.taps * grid.taps * channels[0] * channels[1],
            "weights of another size"
        );
        assert!(bias.is_empty() || bias.len() == channels[1], "a bias of another size");
        let (team, level) = (&cpu.team, cpu.level);
        let threads = team.threads();
        let (panels, of_panel, room) = (panels(channels[1]), self.panel_floats(), self.room());
        let (transformed, scratch) = scratch.split_at_mut(panels * of_panel);
        let share = |thread| split(panels, threads, thread);
        let shares = cut(transformed, (0..threads).map(|thread| share(thread).len() * of_panel));
        let mut parts = pairs(shares, cut(scratch, (0..threads).map(|_| room.floats())));
        team.run_parts(&mut parts, &|thread, (to, scratch)| {
            for (panel, to) in share(thread).zip(to.chunks_exact_mut(of_panel)) {
                transform_weights(level, self, weights, panel, to, &mut scratch[..room.strip]);
            }
        });
        let transformed = &*transformed;
        let rows = |thread| split(grid.rows(), threads, thread);
        let end = |thread: usize| {
            if thread == threads { y.len() } else { grid.pixels_before(rows(thread).start) * channels[1] }
        };
        let lengths: [usize; MAX_THREADS] =
            std::array::from_fn(|thread| if thread < threads { end(thread + 1) - end(thread) } else { 0 });
        let shares = cut(y, lengths.into_iter().take(threads));
        let mut parts = pairs(shares, cut(scratch, (0..threads).map(|_| room.floats())));
        let finish = Finish { bias, relu };
        team.run_parts(&mut parts, &|thread, (y, scratch)| {
            run_rows(level, self, rows(thread), x, transformed, finish, y, scratch);
        });
    }
}

with_lanes! {
    fn run_rows / run_rows_body(
        conv: &WinogradConv,
        rows: Range<usize>,
        x: &[E],
        weights: &[f32],
        finish: Finish<'_>,
        y: &mut [E],
        scratch: &mut [f32],
    )
}

/// Makes rows of tiles, of which `y` is the pixels.
///
/// # Safety
/// Of [`Lanes`].
#[inline(always)]
#[allow(clippy::too_many_arguments)] // Of `with_lanes`: slices and constants, not structures of them.
unsafe fn run_rows_body<V: Lanes, E: LaneElement>(
    conv: &WinogradConv,
    rows: Range<usize>,
    x: &[E],
    weights: &[f32],
    finish: Finish<'_>,
    y: &mut [E],
    scratch: &mut [f32],
) {
    // SAFETY: the caller's.
    unsafe {
        if conv.grid.taps == 5 {
            run_tiles::<V, E, { outputs(5) }>(conv, rows, x, weights, finish, y, scratch);
        } else {
            run_tiles::<V, E, { outputs(3) }>(conv, rows, x, weights, finish, y, scratch);
        }
    }
}

/// # Safety
/// Of [`Lanes`].
#[inline(always)]
unsafe fn run_tiles<V: Lanes, E: LaneElement, const OUTPUTS: usize>(
    conv: &WinogradConv,
    rows: Range<usize>,
    x: &[E],
    weights: &[f32],
    finish: Finish<'_>,
    y: &mut [E],
    scratch: &mut [f32],
) {
    let WinogradConv { grid, channels, block, words, .. } = conv;
    let [terms, columns] = conv.matrix();
    let before = grid.pixels_before(rows.start);
    let tiles = rows.start * grid.tiles[1]..rows.end * grid.tiles[1];
    let (room, of_panel) = (conv.room(), conv.panel_floats());
    let (patches, rest) = scratch.split_at_mut(room.patches);
    let (units, rest) = rest.split_at_mut(room.units);
    let (products, strip) = rest.split_at_mut(room.products);
    for first in tiles.clone().step_by(*block) {
        let count = (*block).min(tiles.end - first);
        let rows = count.next_multiple_of(ROWS);
        let size = |channels: usize| rows * channels + APART;
        let pixels = |row: usize| grid.patch(grid.place(first + row), channels[0]);
        let mut next = pixels(0);
        for row in 0..rows {
            let patch = next;
            // Rows that no tile is left for: what they hold means nothing, but must not be slow to multiply by.
            next = if row + 1 < count { pixels(row + 1) } else { Pixels::none() };
            // SAFETY: the caller's; pixels lie within the map, and the matrices have so many rows.
            unsafe {
                for channel in (0..terms).step_by(LANES) {
                    next.ask_for(x, channel);
                    let plane = patch_plane::<V, E, 0, REACH>(x, &patch, [channels[0], channel]);
                    if words.is_none() {
                        store(plane, patches, row * terms + channel, size(terms));
                    } else {
                        keep(plane, strip, channel / LANES);
                    }
                }
                if words.is_some() {
                    let to = bytemuck::cast_slice_mut(patches);
                    let at = |point: usize| point * size(terms) + row * terms;
                    round_row::<V>(strip, terms / LANES, to, at, units, |point| point * rows + row);
                }
            }
        }
        for point in 0..POINTS {
            let to = &mut products[point * size(columns)..][..rows * columns];
            for panel in 0..panels(columns) {
                let right = &weights[panel * of_panel..][..of_panel];
                let to = &mut to[panel * PANEL..];
                let registers = (columns - panel * PANEL).min(PANEL) / LANES;
                if let Some(words) = words {
                    let split = POINTS * terms * PANEL / 2;
                    let at = |panel: usize, point: usize| {
                        let panel: &[i16] = bytemuck::cast_slice(&weights[panel * of_panel..][..split]);
                        &panel[point * terms * PANEL..][..terms * PANEL]
                    };
                    let next = if weights.len() < FAR {
                        &[]
                    } else if panel + 1 < panels(columns) {
                        at(panel + 1, point)
                    } else if point + 1 < POINTS {
                        at(0, point + 1)
                    } else {
                        &[]
                    };
                    let of_units = chunks(terms) * PANEL;
                    let of_columns = &right[split + point * of_units..][..of_units];
                    let right = Columns { words: at(panel, point), units: of_columns, registers, next };
                    let left = &bytemuck::cast_slice(patches)[point * size(terms)..][..rows * terms];
                    words.product(left, &units[point * rows..][..rows], right, to, columns, terms);
                    continue;
                }
                let elements = &patches[point * size(terms)..][..rows * terms];
                let left = Left { elements, apart: [terms, 1] };
                let right = &right[point * terms * PANEL..][..terms * PANEL];
                // SAFETY: the caller's.
                unsafe {
                    if registers == 1 {
                        let right = Right { registers: [right], apart: PANEL };
                        product::<V, 1>(left, right, to, columns, [rows, terms], false);
                    } else {
                        let right = Right { registers: [right, &right[LANES..]], apart: PANEL };
                        product::<V, 2>(left, right, to, columns, [rows, terms], false);
                    }
                };
            }
        }
        for row in 0..count {
            let outputs = grid.outputs::<OUTPUTS>(grid.place(first + row), channels[1]);
            for channel in (0..columns).step_by(LANES) {
                // SAFETY: the caller's; the matrices have so many rows, and the pixels of these rows of tiles lie within `y`.
                unsafe {
                    let mut plane = [[V::splat(0.0); REACH]; REACH];
                    for (point, value) in plane.as_flattened_mut().iter_mut().enumerate() {
                        *value = V::load(sixteen(products, point * size(columns) + row * columns + channel));
                    }
                    let there = LANES.min(channels[1] - channel);
                    let mut bias = [0.0; LANES];
                    if let Some(of_channels) = finish.bias.get(channel..channel + there) {
                        bias[..there].copy_from_slice(of_channels);
                    }
                    let bias = V::load(&bias);
                    let results: [[V; OUTPUTS]; OUTPUTS] = output_plane(plane);
                    for (result, &at) in results.as_flattened().iter().zip(outputs.starts.as_flattened()) {
                        if at == NOWHERE {
                            continue;
                        }
                        let at = at - before * channels[1] + channel;
                        let result = result.add(bias);
                        let result = if finish.relu { result.rectify() } else { result };
                        debug_assert!(at + there <= y.len());
                        if there == LANES {
                            E::store_lanes(result, &mut *y.as_mut_ptr().add(at).cast());
                        } else {
                            let mut part = [E::store(0.0); LANES];
                            E::store_lanes(result, &mut part);
                            y[at..][..there].copy_from_slice(&part[..there]);
                        }
                    }
                }
            }
        }
    }
}
