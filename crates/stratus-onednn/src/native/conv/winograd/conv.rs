//! The forward pass and the gradient of the input, which is a convolution of the output's gradient by the weights turned half around.

use super::product::{Left, PANEL, ROWS, Right, product};
use super::words::{Words, round_filters, round_row};
use super::{
    APART, Grid, OUTPUTS, POINTS, REACH, TAPS, block, filter_plane, input_plane, load, matrices,
    output_plane, panels, sixteen, store, suits,
};
use crate::native::elementwise::Machine;
use crate::native::lanes::{LANES, LaneElement, Lanes, with_lanes};
use crate::native::threads::{MAX_THREADS, cut, split};
use std::ops::Range;
use stratus_graph::ops::Conv2d;

/// The fewest tiles of a block.
const FEWEST: usize = 48;

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
    pass: Pass,
    /// Channels that are summed over, and those of the result.
    channels: [usize; 2],
    grid: Grid,
    /// Tiles that go through the caches at a time.
    block: usize,
    /// What multiplies, where that is not floats.
    words: Option<Words>,
    machine: Machine,
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
    /// What is rounded next: a row of patches, or sixteen filters.
    strip: usize,
}

impl Room {
    fn floats(self) -> usize {
        self.patches + self.units + self.products + self.strip
    }
}

/// Weights at the points: panels of them for every point, and the units of whole numbers, two of which are in a float.
#[derive(Clone, Copy)]
struct Weights<'a> {
    panels: &'a [f32],
    units: &'a [f32],
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
        words: Option<Words>,
        machine: &Machine,
    ) -> Option<Self> {
        let output = conv.output_size(input).ok().filter(|_| suits(conv))?;
        let (channels, maps, before) = match pass {
            Pass::Forward => ([conv.in_channels, conv.out_channels], [input, output], conv.padding_before),
            Pass::BackwardData => {
                let before = conv.padding_before.map(|padding| TAPS - 1 - padding);
                ([conv.out_channels, conv.in_channels], [output, input], before)
            }
        };
        let grid = Grid::new(batch, maps, before);
        let tiles = grid.tiles_of(machine.team.threads());
        let of_patch = if words.is_some() { size_of::<i16>() } else { size_of::<f32>() };
        let block = block(channels[0] * of_patch + channels[1] * size_of::<f32>(), tiles, FEWEST);
        grid.pays().then(|| Self { pass, channels, grid, block, words, machine: machine.clone() })
    }

    /// Floats of a panel of the transformed weights, and of its units.
    fn panel_floats(&self) -> [usize; 2] {
        let floats = POINTS * self.channels[0] * PANEL;
        if self.words.is_some() { [floats / 2, POINTS * PANEL] } else { [floats, 0] }
    }

    fn room(&self) -> Room {
        let [patches, products] = self.channels.map(|channels| matrices(self.block, channels));
        match self.words {
            Some(_) => {
                let strip = POINTS * self.channels[0] * LANES;
                Room { patches: patches / 2, units: POINTS * self.block, products, strip }
            }
            None => Room { patches, units: 0, products, strip: 0 },
        }
    }

    /// Bytes of scratch.
    #[must_use]
    pub fn scratch_bytes(&self) -> usize {
        let of_weights = panels(self.channels[1]) * self.panel_floats().iter().sum::<usize>();
        (of_weights + self.machine.team.threads() * self.room().floats()) * size_of::<f32>()
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
        let Self { channels, grid, machine, .. } = self;
        let pixels = |map: usize| grid.batch * grid.maps[map].iter().product::<usize>();
        assert_eq!([x.len(), y.len()], [0, 1].map(|map| pixels(map) * channels[map]), "maps of another size");
        assert_eq!(weights.len(), TAPS * TAPS * channels[0] * channels[1], "weights of another size");
        assert!(bias.is_empty() || bias.len() == channels[1], "a bias of another size");
        let (team, level) = (&machine.team, machine.level);
        let threads = team.threads();
        let panels = panels(channels[1]);
        let [of_panel, of_units] = self.panel_floats();
        let (transformed, scratch) = scratch.split_at_mut(panels * of_panel);
        let (units, scratch) = scratch.split_at_mut(panels * of_units);
        let room = self.room().floats();
        let share = |thread| split(panels, threads, thread);
        let cuts = cut(transformed, (0..threads).map(|thread| share(thread).len() * of_panel));
        let unit_cuts = cut(units, (0..threads).map(|thread| share(thread).len() * of_units));
        let scratches = cut(scratch, (0..threads).map(|_| room));
        let mut parts: [(&mut [f32], &mut [f32], &mut [f32]); MAX_THREADS] =
            std::array::from_fn(|_| Default::default());
        for (part, ((to, units), scratch)) in
            parts.iter_mut().zip(cuts.into_iter().zip(unit_cuts).zip(scratches))
        {
            *part = (to, units, scratch);
        }
        team.run_parts(&mut parts, &|thread, (to, units, scratch)| {
            for (at, panel) in share(thread).enumerate() {
                let to = &mut to[at * of_panel..][..of_panel];
                let units = &mut units[at * of_units..][..of_units];
                transform_weights(level, self, weights, panel, to, units, scratch);
            }
        });
        let transformed = Weights { panels: transformed, units };
        let rows = |thread| split(grid.rows(), threads, thread);
        let end = |thread: usize| {
            if thread == threads { y.len() } else { grid.pixels_before(rows(thread).start) * channels[1] }
        };
        let lengths: [usize; MAX_THREADS] =
            std::array::from_fn(|thread| if thread < threads { end(thread + 1) - end(thread) } else { 0 });
        let outputs = cut(y, lengths.into_iter().take(threads));
        let scratches = cut(scratch, (0..threads).map(|_| room));
        let mut parts: [(&mut [E], &mut [f32]); MAX_THREADS] = std::array::from_fn(|_| Default::default());
        for (part, (output, scratch)) in parts.iter_mut().zip(outputs.into_iter().zip(scratches)) {
            *part = (output, scratch);
        }
        let finish = Finish { bias, relu };
        team.run_parts(&mut parts, &|thread, (y, scratch)| {
            run_rows(level, self, rows(thread), x, transformed, finish, y, scratch);
        });
    }
}

with_lanes! {
    fn transform_weights / transform_weights_body(
        conv: &WinogradConv,
        weights: &[E],
        panel: usize,
        to: &mut [f32],
        units: &mut [f32],
        scratch: &mut [f32],
    )
}

/// Brings a panel of the weights to values at the points.
///
/// # Safety
/// Of [`Lanes`].
#[inline(always)]
unsafe fn transform_weights_body<V: Lanes, E: LaneElement>(
    conv: &WinogradConv,
    weights: &[E],
    panel: usize,
    to: &mut [f32],
    units: &mut [f32],
    scratch: &mut [f32],
) {
    let [terms, columns] = conv.channels;
    let strip = &mut scratch[..conv.room().strip];
    for part in 0..PANEL / LANES {
        let column = panel * PANEL + part * LANES;
        if column >= columns {
            break;
        }
        // SAFETY: the caller's.
        let mut largest = [unsafe { V::splat(0.0) }; POINTS];
        for term in 0..terms {
            // A row for each of the sixteen, as they lie, to be read across.
            let mut taps = [[0.0; TAPS * TAPS]; LANES];
            for (lane, taps) in taps.iter_mut().enumerate() {
                // The weights are `[out, in, row, column]`, whichever of the two is summed over.
                let filter = match conv.pass {
                    Pass::Forward => (column + lane) * terms + term,
                    Pass::BackwardData => term * columns + column + lane,
                };
                let weights = weights[filter * TAPS * TAPS..][..TAPS * TAPS].iter();
                match conv.pass {
                    Pass::Forward => {
                        taps.iter_mut().zip(weights).for_each(|(tap, weight)| *tap = weight.load());
                    }
                    Pass::BackwardData => {
                        taps.iter_mut().rev().zip(weights).for_each(|(tap, weight)| *tap = weight.load());
                    }
                }
            }
            // SAFETY: the caller's; a panel has `PANEL` floats for every point and term.
            unsafe {
                let mut filter = [[V::splat(0.0); TAPS]; TAPS];
                for (tap, value) in filter.as_flattened_mut().iter_mut().enumerate() {
                    *value = V::load(&std::array::from_fn(|lane| taps[lane][tap]));
                }
                let plane = filter_plane(filter);
                if conv.words.is_none() {
                    store(plane, to, term * PANEL + part * LANES, terms * PANEL);
                } else {
                    keep(plane, strip, term, &mut largest);
                }
            }
        }
        if conv.words.is_some() {
            let at = |point: usize, pair: usize| ((point * terms / 2 + pair) * PANEL + part * LANES) * 2;
            let unit_at = |point: usize| point * PANEL + part * LANES;
            let words = bytemuck::cast_slice_mut(to);
            // SAFETY: the caller's; a panel has `PANEL` pairs for every point and two terms, and as many units for every point.
            unsafe { round_filters(strip, &largest, words, at, units, unit_at) };
        }
    }
}

/// Keeps values at all points, to be rounded when the largest are known.
///
/// # Safety
/// Of [`Lanes`]; `strip` is long enough.
#[inline(always)]
unsafe fn keep<V: Lanes>(
    plane: [[V; REACH]; REACH],
    strip: &mut [f32],
    at: usize,
    largest: &mut [V; POINTS],
) {
    // SAFETY: the caller's.
    unsafe {
        for (largest, value) in largest.iter_mut().zip(plane.as_flattened()) {
            *largest = largest.larger_magnitude(*value);
        }
        store(plane, strip, at * POINTS * LANES, LANES);
    }
}

with_lanes! {
    fn run_rows / run_rows_body(
        conv: &WinogradConv,
        rows: Range<usize>,
        x: &[E],
        weights: Weights<'_>,
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
    weights: Weights<'_>,
    finish: Finish<'_>,
    y: &mut [E],
    scratch: &mut [f32],
) {
    let WinogradConv { grid, channels, block, words, .. } = conv;
    let [terms, columns] = *channels;
    let before = grid.pixels_before(rows.start);
    let tiles = rows.start * grid.tiles[1]..rows.end * grid.tiles[1];
    let room = conv.room();
    let (patches, rest) = scratch.split_at_mut(room.patches);
    let (units, rest) = rest.split_at_mut(room.units);
    let (products, strip) = rest.split_at_mut(room.products);
    let [of_panel, of_units] = conv.panel_floats();
    for first in tiles.clone().step_by(*block) {
        let count = (*block).min(tiles.end - first);
        let rows = count.next_multiple_of(ROWS);
        let size = |channels: usize| rows * channels + APART;
        for row in 0..rows {
            // Rows that no tile is left for: what they hold means nothing, but must not be slow to multiply by.
            let pixels =
                if row < count { grid.patch(grid.place(first + row)) } else { [[None; REACH]; REACH] };
            // SAFETY: the caller's; pixels lie within the map, and the matrices have so many rows.
            unsafe {
                let mut largest = [V::splat(0.0); POINTS];
                for channel in (0..terms).step_by(LANES) {
                    let plane = input_plane(load(x, &pixels, [terms, channel]));
                    if words.is_none() {
                        store::<V>(plane, patches, row * terms + channel, size(terms));
                    } else {
                        keep(plane, strip, channel / LANES, &mut largest);
                    }
                }
                if words.is_some() {
                    let at =
                        |point: usize, register: usize| point * size(terms) + row * terms + register * LANES;
                    let of = |point: usize, unit: f32| units[point * rows + row] = unit;
                    round_row(&strip[..POINTS * terms], &largest, bytemuck::cast_slice_mut(patches), at, of);
                }
            }
        }
        for point in 0..POINTS {
            let to = &mut products[point * size(columns)..][..rows * columns];
            for panel in 0..panels(columns) {
                let right = &weights.panels[panel * of_panel..][..of_panel];
                let to = &mut to[panel * PANEL..];
                let registers = (columns - panel * PANEL).min(PANEL) / LANES;
                if let Some(words) = words {
                    let left: &[i16] = &bytemuck::cast_slice(patches)[point * size(terms)..][..rows * terms];
                    let right: &[i16] =
                        &bytemuck::cast_slice(right)[point * terms * PANEL..][..terms * PANEL];
                    let of_columns = &weights.units[panel * of_units + point * PANEL..][..registers * LANES];
                    words.product(
                        left,
                        right,
                        [&units[point * rows..][..rows], of_columns],
                        to,
                        columns,
                        terms,
                    );
                    continue;
                }
                let left =
                    Left { elements: &patches[point * size(terms)..][..rows * terms], apart: [terms, 1] };
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
            let outputs = grid.outputs(grid.place(first + row));
            for channel in (0..columns).step_by(LANES) {
                // SAFETY: the caller's; the matrices have so many rows, and the pixels of these rows of tiles lie within `y`.
                unsafe {
                    let mut plane = [[V::splat(0.0); REACH]; REACH];
                    for (point, value) in plane.as_flattened_mut().iter_mut().enumerate() {
                        *value = V::load(sixteen(products, point * size(columns) + row * columns + channel));
                    }
                    let bias = match finish.bias {
                        [] => V::splat(0.0),
                        bias => V::load(&*bias.as_ptr().add(channel).cast()),
                    };
                    let results: [[V; OUTPUTS]; OUTPUTS] = output_plane(plane);
                    for (result, at) in results.as_flattened().iter().zip(outputs.as_flattened()) {
                        let Some(at) = at else { continue };
                        let at = (at - before) * columns + channel;
                        let result = result.add(bias);
                        let result = if finish.relu { result.rectify() } else { result };
                        debug_assert!(at + LANES <= y.len());
                        E::store_lanes(result, &mut *y.as_mut_ptr().add(at).cast());
                    }
                }
            }
        }
    }
}
