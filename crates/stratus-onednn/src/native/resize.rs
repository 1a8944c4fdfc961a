//! Bilinear resizing, up and down, of maps of any number of channels.
//!
//! Both directions gather: rows are weighted sums of rows (*down*), pixels of pixels of their row (*across*).
//!
//! ```text
//! to more rows     from ──across──▶ rows of [W', C], two of them held ──down──▶ to
//! to fewer rows    from ──down────▶ one row of [W, C]                 ──across──▶ to
//! ```
//!
//! Bound by memory: the larger map is read or written once, in order, by loops *down* over whole rows, which
//! are vectorised whatever the number of channels is. *Across*, a pixel's channels are loaded and stored in
//! vectors that may reach into the next pixel, which is written after it. Threads divide the rows that are
//! written, and every sum is in the order of what is summed.

use super::lanes::{LANES, LaneElement, Lanes, with_lanes};
use super::rows::Geometry;
use super::simd::{Element, Level, multiversion, stream};
use super::threads::{ThreadTeam, cut, pairs, split};
use std::ops::Range;
use stratus_engine::DType;
use stratus_engine::ops::Bilinear;

/// Elements of a row that are summed at a time: their sums stay in L1.
const PIECE: usize = 4096;

/// A map of this size has left the caches before its reader comes: it is stored past them. As for pooled
/// maps.
const LARGE_MAP_BYTES: usize = 16 << 20;

/// A bilinear resizing, or its derivative. Both maps have the same channels in the same groups.
#[derive(Clone, Debug)]
pub struct Resize {
    from: Geometry,
    to: Geometry,
    vertical: Sums,
    horizontal: Sums,
    across_first: bool,
    level: Level,
    team: ThreadTeam,
}

/// A row or a pixel that is read, and its weight.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Part {
    from: usize,
    weight: f32,
}

/// What the rows, or the pixels of a row, are sums of.
#[derive(Clone, Debug)]
struct Sums {
    /// Per row or pixel that is written, its place in `parts`.
    places: Vec<Range<usize>>,
    parts: Vec<Part>,
}

impl Sums {
    fn new(sums: impl Iterator<Item = Vec<Part>>) -> Self {
        let mut all = Self { places: Vec::new(), parts: Vec::new() };
        for sum in sums {
            let first = all.parts.len();
            all.parts.extend(sum);
            all.places.push(first..all.parts.len());
        }
        all
    }

    /// Per output of an axis, its inputs.
    fn forward(bilinear: &Bilinear, axis: usize, inputs: usize, outputs: usize) -> Self {
        Self::new(bilinear.axis(axis, inputs, outputs, DType::F32).into_iter().map(|taps| {
            let both = [taps.first, taps.second].into_iter().zip(taps.weights);
            let parts = both.map(|(from, weight)| Part { from, weight: weight as f32 });
            parts.take(if taps.first == taps.second { 1 } else { 2 }).collect()
        }))
    }

    /// Per input of an axis, the outputs that it is a part of.
    fn backward(bilinear: &Bilinear, axis: usize, inputs: usize, outputs: usize) -> Self {
        let mut sums = vec![Vec::new(); inputs];
        let forward = Self::forward(bilinear, axis, inputs, outputs);
        for output in 0..outputs {
            for &Part { from: input, weight } in forward.of(output) {
                if weight > 0.0 {
                    sums[input].push(Part { from: output, weight });
                }
            }
        }
        Self::new(sums.into_iter())
    }

    fn of(&self, written: usize) -> &[Part] {
        &self.parts[self.places[written].clone()]
    }

    fn longest(&self) -> usize {
        self.places.iter().map(ExactSizeIterator::len).max().unwrap_or(0)
    }
}

impl Resize {
    /// `x -> y`, of maps of these geometries.
    #[must_use]
    pub fn forward(bilinear: &Bilinear, x: Geometry, y: Geometry, level: Level, team: ThreadTeam) -> Self {
        let vertical = Sums::forward(bilinear, 0, x.height, y.height);
        let horizontal = Sums::forward(bilinear, 1, x.row, y.row);
        Self::new([x, y], [vertical, horizontal], level, team)
    }

    /// `dy -> dx`: each pixel gathers from the outputs that it is a part of.
    #[must_use]
    pub fn backward(bilinear: &Bilinear, dx: Geometry, dy: Geometry, level: Level, team: ThreadTeam) -> Self {
        let vertical = Sums::backward(bilinear, 0, dx.height, dy.height);
        let horizontal = Sums::backward(bilinear, 1, dx.row, dy.row);
        Self::new([dy, dx], [vertical, horizontal], level, team)
    }

    fn new(
        [from, to]: [Geometry; 2],
        [vertical, horizontal]: [Sums; 2],
        level: Level,
        team: ThreadTeam,
    ) -> Self {
        // Two rows are held, and each is resized across once.
        let across_first = to.height > from.height && vertical.longest() <= 2;
        Self { from, to, vertical, horizontal, across_first, level, team }
    }

    /// Elements of a row between the two passes, with room for its last vector.
    fn held_row(&self) -> usize {
        let map = if self.across_first { &self.to } else { &self.from };
        map.row_elements().next_multiple_of(LANES) + LANES
    }

    /// Elements of scratch of a thread: two rows and a piece of a third, or one row.
    fn held(&self) -> usize {
        if self.across_first { 2 * self.held_row() + PIECE } else { self.held_row() }
    }

    /// Bytes of scratch.
    #[must_use]
    pub fn scratch_bytes(&self) -> usize {
        self.team.threads() * self.held() * size_of::<f32>()
    }

    /// Resizes a map.
    pub fn run<A: LaneElement, B: LaneElement>(&self, from: &[A], to: &mut [B], scratch: &mut [f32]) {
        let threads = self.team.threads();
        let (rows, elements) = (self.to.planes * self.to.height, self.to.row_elements());
        let maps = cut(to, (0..threads).map(|thread| split(rows, threads, thread).len() * elements));
        let held = cut(scratch, (0..threads).map(|_| self.held()));
        let mut parts = pairs(maps, held);
        self.team.run_parts(&mut parts[..threads], &|thread, (to, held)| {
            let rows = split(rows, threads, thread);
            if self.across_first {
                self.across_first::<A, B>(rows, from, to, held);
            } else {
                self.down_first::<A, B>(rows, from, to, held);
            }
        });
    }

    fn across_first<A: LaneElement, B: LaneElement>(
        &self,
        rows: Range<usize>,
        from: &[A],
        to: &mut [B],
        held: &mut [f32],
    ) {
        let (in_row, out_row) = (self.from.row_elements(), self.to.row_elements());
        let is_large = self.to.planes * self.to.plane_elements() * size_of::<B>() >= LARGE_MAP_BYTES;
        let (upper, rest) = held.split_at_mut(self.held_row());
        let (lower, stage) = rest.split_at_mut(self.held_row());
        let stage: &mut [B] = if is_large { bytemuck::cast_slice_mut(stage) } else { &mut [] };
        let mut held = [upper, lower];
        // Which rows of the map these are, resized across.
        let mut rows_held = [usize::MAX; 2];
        for (row, to) in rows.zip(to.chunks_exact_mut(out_row)) {
            let (plane, row) = (row / self.to.height, row % self.to.height);
            let row_of = |part: &Part| plane * self.from.height + part.from;
            let parts = self.vertical.of(row);
            if parts.first().is_some_and(|first| rows_held[1] == row_of(first)) {
                held.swap(0, 1);
                rows_held.swap(0, 1);
            }
            for ((part, row_held), held) in parts.iter().zip(&mut rows_held).zip(&mut held) {
                if *row_held != row_of(part) {
                    *row_held = row_of(part);
                    let from = &from[*row_held * in_row..];
                    across_map(self.level, &self.horizontal, self.to.width, from, held);
                }
            }
            let held = held.each_ref().map(|held| &held[..out_row]);
            if stage.is_empty() {
                down_held(self.level, parts, held, to);
                continue;
            }
            for (number, to) in to.chunks_mut(PIECE).enumerate() {
                let stage = &mut stage[..to.len()];
                down_held(self.level, parts, held.map(|held| &held[number * PIECE..]), stage);
                stream(self.level, stage, to);
            }
        }
    }

    fn down_first<A: LaneElement, B: LaneElement>(
        &self,
        rows: Range<usize>,
        from: &[A],
        to: &mut [B],
        held: &mut [f32],
    ) {
        let (elements, plane_elements) = (self.from.row_elements(), self.from.plane_elements());
        for (row, to) in rows.zip(to.chunks_exact_mut(self.to.row_elements())) {
            let plane = &from[row / self.to.height * plane_elements..][..plane_elements];
            down_map(self.level, self.vertical.of(row % self.to.height), plane, &mut held[..elements]);
            across_held(self.level, &self.horizontal, self.to.width, held, to);
        }
    }
}

multiversion! {
    fn down_held / down_held_body [E: Element] [E] (parts: &[Part], held: [&[f32]; 2], to: &mut [E])
}

/// The weighted sum of two rows or one, as far as `to` goes.
#[inline(always)]
fn down_held_body<E: Element>(parts: &[Part], [first, second]: [&[f32]; 2], to: &mut [E]) {
    match parts {
        [a, b] => weighted_sum(a.weight, first, b.weight, second, to),
        [a] => to.iter_mut().zip(first).for_each(|(to, row)| *to = E::store(a.weight * row)),
        _ => to.fill(E::store(0.0)),
    }
}

multiversion! {
    fn down_map / down_map_body [E: Element] [E] (parts: &[Part], plane: &[E], to: &mut [f32])
}

/// The weighted sum of rows of a plane, each as long as `to`.
#[inline(always)]
fn down_map_body<E: Element>(parts: &[Part], plane: &[E], to: &mut [f32]) {
    let elements = to.len();
    for (number, sums) in to.chunks_mut(PIECE).enumerate() {
        let length = sums.len();
        let row = |part: &Part| &plane[part.from * elements + number * PIECE..][..length];
        let (first, rest) = parts.split_at(parts.len().min(2));
        match first {
            [a, b] => weighted_sum(a.weight, row(a), b.weight, row(b), sums),
            [a] => sums.iter_mut().zip(row(a)).for_each(|(sum, a_row)| *sum = a.weight * a_row.load()),
            _ => sums.fill(0.0),
        }
        // Two at a time: the sums are loaded and stored half as often.
        for pair in rest.chunks(2) {
            match pair {
                [a, b] => add_two(a.weight, row(a), b.weight, row(b), sums),
                [a] => {
                    for (sum, a_row) in sums.iter_mut().zip(row(a)) {
                        *sum = a_row.load().mul_add(a.weight, *sum);
                    }
                }
                _ => {}
            }
        }
    }
}

/// `to = a_weight * a + b_weight * b`.
#[inline(always)]
fn weighted_sum<A: Element, B: Element>(a_weight: f32, a: &[A], b_weight: f32, b: &[A], to: &mut [B]) {
    for ((to, a), b) in to.iter_mut().zip(a).zip(b) {
        *to = B::store(b.load().mul_add(b_weight, a_weight * a.load()));
    }
}

/// `to += a_weight * a + b_weight * b`.
#[inline(always)]
fn add_two<E: Element>(a_weight: f32, a: &[E], b_weight: f32, b: &[E], to: &mut [f32]) {
    for ((to, a), b) in to.iter_mut().zip(a).zip(b) {
        *to = b.load().mul_add(b_weight, a.load().mul_add(a_weight, *to));
    }
}

with_lanes! {
    fn across_map / across_map_body (sums: &Sums, width: usize, from: &[E], to: &mut [f32])
}

/// A row of the map, behind which the map goes on, to a row that is held.
///
/// # Safety
/// As [`Lanes`] requires.
#[inline(always)]
unsafe fn across_map_body<V: Lanes, E: LaneElement>(sums: &Sums, width: usize, from: &[E], to: &mut [f32]) {
    // SAFETY: upheld by the caller.
    unsafe { across::<V, E, f32>(sums, width, from, to) }
}

with_lanes! {
    fn across_held / across_held_body (sums: &Sums, width: usize, from: &[f32], to: &mut [E])
}

/// A row that is held to a row of the map.
///
/// # Safety
/// As [`Lanes`] requires.
#[inline(always)]
unsafe fn across_held_body<V: Lanes, E: LaneElement>(sums: &Sums, width: usize, from: &[f32], to: &mut [E]) {
    // SAFETY: upheld by the caller.
    unsafe { across::<V, f32, E>(sums, width, from, to) }
}

/// Resizes a row along its pixels of `width` channels.
///
/// # Safety
/// As [`Lanes`] requires.
#[inline(always)]
unsafe fn across<V: Lanes, A: LaneElement, B: LaneElement>(
    sums: &Sums,
    width: usize,
    from: &[A],
    to: &mut [B],
) {
    for pixel in 0..sums.places.len() {
        let parts = sums.of(pixel);
        for channel in (0..width).step_by(LANES) {
            let Some(to) = to.get_mut(pixel * width + channel..) else { return };
            let end = parts.last().map_or(0, |last| last.from * width + channel + LANES);
            match to.first_chunk_mut::<LANES>() {
                Some(to) if end <= from.len() => {
                    // SAFETY: upheld by the caller.
                    unsafe {
                        let mut sum = V::splat(0.0);
                        for part in parts {
                            let Some(row) = from[part.from * width + channel..].first_chunk() else { return };
                            sum = A::load_lanes::<V>(row).multiply_add(V::splat(part.weight), sum);
                        }
                        B::store_lanes(sum, to);
                    }
                }
                _ => one_by_one(parts, width, channel, from, to),
            }
        }
    }
}

/// The channels of a pixel from `channel` on, at the end of a row or of the map.
#[cold]
fn one_by_one<A: Element, B: Element>(
    parts: &[Part],
    width: usize,
    channel: usize,
    from: &[A],
    to: &mut [B],
) {
    for (to, channel) in to.iter_mut().zip(channel..width.min(channel + LANES)) {
        let add = |sum: f32, part: &Part| from[part.from * width + channel].load().mul_add(part.weight, sum);
        *to = B::store(parts.iter().fold(0.0, add));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::native::simd::Isa;

    const EDGES: Bilinear = Bilinear { align_corners: false, scale: None };

    /// Backward is the transpose: every input of an output is an output of an input.
    #[test]
    fn what_is_gathered_backward_is_what_was_given_forward() {
        let all = |sums: &Sums, written: usize| {
            let of = |at| sums.of(at).iter().map(move |part| (at, part.from, part.weight));
            (0..written).flat_map(of).collect::<Vec<_>>()
        };
        for align_corners in [false, true] {
            for (inputs, outputs) in [(1, 1), (1, 7), (7, 1), (5, 20), (20, 5), (6, 7), (9, 4), (3, 3)] {
                let bilinear = Bilinear { align_corners, ..EDGES };
                let mut forward = all(&Sums::forward(&bilinear, 0, inputs, outputs), outputs);
                forward.retain(|(.., weight)| *weight > 0.0);
                forward.iter_mut().for_each(|(output, input, _)| std::mem::swap(output, input));
                forward.sort_by_key(|(input, output, _)| (*input, *output));
                let backward = all(&Sums::backward(&bilinear, 0, inputs, outputs), inputs);
                assert_eq!(backward, forward, "{inputs} to {outputs}");
            }
        }
    }

    #[test]
    fn every_level_and_number_of_threads_gives_the_same_bits() {
        for width in [1, 11, 16, 35] {
            let geometry =
                |height, row| Geometry { planes: 2, height, row, width, groups: 1, channels: width };
            for (small, large) in [([5, 7], [20, 9]), ([9, 8], [4, 13]), ([1, 1], [6, 5]), ([6, 5], [1, 1])] {
                let (x, y) = (geometry(small[0], small[1]), geometry(large[0], large[1]));
                let both = |level, threads| {
                    let team = || ThreadTeam::in_turn(threads);
                    let map: Vec<f32> =
                        (0..2 * x.plane_elements()).map(|i| (i * 37 % 101) as f32 / 50.0 - 1.0).collect();
                    let (mut out, mut back) =
                        (vec![f32::NAN; 2 * y.plane_elements()], vec![f32::NAN; map.len()]);
                    let run = |resize: Resize, from: &[f32], to: &mut [f32]| {
                        resize.run(from, to, &mut vec![f32::NAN; resize.scratch_bytes() / size_of::<f32>()]);
                    };
                    run(Resize::forward(&EDGES, x, y, level, team()), &map, &mut out);
                    run(Resize::backward(&EDGES, x, y, level, team()), &out, &mut back);
                    [out, back]
                };
                // Of the instructions that add a product in one step, all give the same bits.
                let mut fused = None;
                for level in Level::all() {
                    let alone = both(level, 1);
                    assert!(alone.iter().flatten().all(|value| value.is_finite()));
                    for threads in [2, 7] {
                        assert_eq!(both(level, threads), alone, "{width} {} {threads}", level.name());
                    }
                    if level.isa() != Isa::Baseline {
                        assert_eq!(*fused.get_or_insert(alone.clone()), alone, "{width} {}", level.name());
                    }
                }
            }
        }
    }
}
