//! Bilinear resizing, up and down, of maps of any number of channels.
//!
//! ```text
//! forward    rows of x ──across──▶ rows of [out_row, C], two of them held ──down──▶ rows of y
//! backward   rows of dy ──down──▶ a row of [out_row, C] ──across──▶ rows of dx
//! ```
//!
//! Bound by memory: the larger map is read or written once, in order, by loops over whole rows, which are
//! vectorised whatever the number of channels is. Across a row a pixel's channels are loaded and stored in
//! vectors that may reach into the next pixel, which is written after it. Threads divide the rows that are
//! written, and backward gathers: every sum is in the order of the outputs.

use super::rows::Geometry;
use super::simd::{Element, Level, multiversion};
use super::threads::{ThreadTeam, cut, pairs, split};
use std::ops::Range;
use stratus_engine::DType;
use stratus_engine::ops::Bilinear;

/// Channels of a pixel that are computed at once.
const LANES: usize = 16;

/// Elements of a row that are summed at a time: their sums stay in L1, and are long enough for the hardware
/// prefetcher.
const PIECE: usize = 4096;

/// A bilinear resizing. Input and output have the same channels in the same groups.
#[derive(Clone, Debug)]
pub struct Resize {
    input: Geometry,
    output: Geometry,
    vertical: Axis,
    horizontal: Axis,
    level: Level,
    team: ThreadTeam,
}

/// What an output is made of: elements from the beginning of its plane or row, and their weights.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Tap {
    inputs: [usize; 2],
    weights: [f32; 2],
}

/// An output that an input is a part of, and the input's weight.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Part {
    output: usize,
    weight: f32,
}

/// One axis of it.
#[derive(Clone, Debug)]
struct Axis {
    /// Per output, what it is made of.
    taps: Vec<Tap>,
    /// Per input, its place in `parts`.
    readers: Vec<Range<usize>>,
    parts: Vec<Part>,
}

impl Axis {
    fn new(bilinear: &Bilinear, axis: usize, inputs: usize, outputs: usize) -> Self {
        let taps: Vec<Tap> = bilinear
            .axis(axis, inputs, outputs, DType::F32)
            .into_iter()
            .map(|taps| Tap { inputs: [taps.first, taps.second], weights: taps.weights.map(|w| w as f32) })
            .collect();
        let mut parts = Vec::with_capacity(2 * outputs);
        // The taps of outputs do not decrease: those that read an input are consecutive.
        let readers = (0..inputs)
            .map(|input| {
                let first = parts.len();
                let from = taps.partition_point(|tap| tap.inputs[1] < input);
                let to = taps.partition_point(|tap| tap.inputs[0] <= input).max(from);
                for (output, tap) in (from..to).zip(&taps[from..to]) {
                    let own = tap
                        .inputs
                        .iter()
                        .zip(tap.weights)
                        .filter(|(at, weight)| **at == input && *weight > 0.0);
                    parts.extend(own.map(|(_, weight)| Part { output, weight }));
                }
                first..parts.len()
            })
            .collect();
        Self { taps, readers, parts }
    }

    /// The outputs that an input is a part of, in their order.
    fn parts(&self, input: usize) -> &[Part] {
        &self.parts[self.readers[input].clone()]
    }
}

impl Resize {
    /// The resizing of maps of these geometries.
    #[must_use]
    pub fn new(
        bilinear: &Bilinear,
        input: Geometry,
        output: Geometry,
        level: Level,
        team: ThreadTeam,
    ) -> Self {
        let vertical = Axis::new(bilinear, 0, input.height, output.height);
        let horizontal = Axis::new(bilinear, 1, input.row, output.row);
        Self { input, output, vertical, horizontal, level, team }
    }

    /// Elements of a row of `[out_row, C]`, with room for the last vector.
    fn held_row(&self) -> usize {
        self.output.row_elements().next_multiple_of(LANES) + LANES
    }

    /// Bytes of scratch: two rows a thread.
    #[must_use]
    pub fn scratch_bytes(&self) -> usize {
        2 * self.team.threads() * self.held_row() * size_of::<f32>()
    }

    /// `y` from `x`.
    pub fn forward<A: Element, B: Element>(&self, x: &[A], y: &mut [B], scratch: &mut [f32]) {
        self.each_share(&self.output, y, scratch, &|rows, y, scratch| {
            forward_rows::<A, B>(self.level, self, rows, x, y, scratch);
        });
    }

    /// `dx` from `dy`: each pixel gathers from the outputs that it is a part of.
    pub fn backward<A: Element, B: Element>(&self, dy: &[A], dx: &mut [B], scratch: &mut [f32]) {
        self.each_share(&self.input, dx, scratch, &|rows, dx, scratch| {
            backward_rows::<A, B>(self.level, self, rows, dy, dx, scratch);
        });
    }

    /// Calls `body(rows, their elements, scratch)` for every thread's pixel rows of a map.
    fn each_share<E: Element>(
        &self,
        geometry: &Geometry,
        map: &mut [E],
        scratch: &mut [f32],
        body: &(dyn Fn(Range<usize>, &mut [E], &mut [f32]) + Sync),
    ) {
        let threads = self.team.threads();
        let (rows, elements) = (geometry.planes * geometry.height, geometry.row_elements());
        let maps = cut(map, (0..threads).map(|thread| split(rows, threads, thread).len() * elements));
        let rows_held = cut(scratch, (0..threads).map(|_| 2 * self.held_row()));
        let mut parts = pairs(maps, rows_held);
        self.team.run_parts(&mut parts[..threads], &|thread, (map, scratch)| {
            body(split(rows, threads, thread), map, scratch);
        });
    }
}

multiversion! {
    fn forward_rows / forward_rows_body [A: Element, B: Element] [A, B] (
        resize: &Resize, rows: Range<usize>, x: &[A], y: &mut [B], scratch: &mut [f32],
    )
}

#[inline(always)]
fn forward_rows_body<A: Element, B: Element>(
    resize: &Resize,
    rows: Range<usize>,
    x: &[A],
    y: &mut [B],
    scratch: &mut [f32],
) {
    let Resize { input, output, vertical, .. } = resize;
    let elements = output.row_elements();
    // The two rows of the input that were last resized across, and which they are.
    let (mut upper, mut lower) = scratch.split_at_mut(resize.held_row());
    let mut held = [usize::MAX; 2];
    for (row, y) in rows.zip(y.chunks_exact_mut(elements)) {
        let tap = &vertical.taps[row % output.height];
        let wanted = tap.inputs.map(|at| row / output.height * input.height + at);
        if held[0] != wanted[0] && held[1] == wanted[0] {
            std::mem::swap(&mut upper, &mut lower);
            held.swap(0, 1);
        }
        if held[0] != wanted[0] {
            across(resize, &x[wanted[0] * input.row_elements()..], upper);
            held[0] = wanted[0];
        }
        if wanted[0] == wanted[1] {
            y.iter_mut().zip(&*upper).for_each(|(y, upper)| *y = B::store(*upper));
            continue;
        }
        if held[1] != wanted[1] {
            across(resize, &x[wanted[1] * input.row_elements()..], lower);
            held[1] = wanted[1];
        }
        for ((y, upper), lower) in y.iter_mut().zip(&upper[..elements]).zip(&lower[..elements]) {
            *y = B::store(lower.mul_add(tap.weights[1], upper * tap.weights[0]));
        }
    }
}

/// Resizes a row along its pixels. `x` begins with it and goes on to the end of the map.
#[inline(always)]
fn across<E: Element>(resize: &Resize, x: &[E], to: &mut [f32]) {
    let width = resize.output.width;
    for (pixel, tap) in resize.horizontal.taps.iter().enumerate() {
        for channel in (0..width).step_by(LANES) {
            let [a, b] = tap.inputs.map(|at| &x[at * width + channel..]);
            let to = &mut to[pixel * width + channel..];
            match (a.first_chunk::<LANES>(), b.first_chunk::<LANES>(), to.first_chunk_mut::<LANES>()) {
                (Some(a), Some(b), Some(to)) => between(tap.weights, a, b, to),
                // At the end of the map.
                _ => between(tap.weights, a, b, &mut to[..LANES.min(width - channel)]),
            }
        }
    }
}

/// `to = weights[0] * a + weights[1] * b`.
#[inline(always)]
fn between<E: Element>(weights: [f32; 2], a: &[E], b: &[E], to: &mut [f32]) {
    for ((to, a), b) in to.iter_mut().zip(a).zip(b) {
        *to = b.load().mul_add(weights[1], a.load() * weights[0]);
    }
}

multiversion! {
    fn backward_rows / backward_rows_body [A: Element, B: Element] [A, B] (
        resize: &Resize, rows: Range<usize>, dy: &[A], dx: &mut [B], scratch: &mut [f32],
    )
}

#[inline(always)]
fn backward_rows_body<A: Element, B: Element>(
    resize: &Resize,
    rows: Range<usize>,
    dy: &[A],
    dx: &mut [B],
    scratch: &mut [f32],
) {
    let Resize { input, output, vertical, horizontal, .. } = resize;
    let (elements, width) = (output.row_elements(), output.width);
    for (row, dx) in rows.zip(dx.chunks_exact_mut(input.row_elements())) {
        let parts = vertical.parts(row % input.height);
        let plane = &dy[row / input.height * output.plane_elements()..][..output.plane_elements()];
        for first in (0..elements).step_by(PIECE) {
            let sums = &mut scratch[first..elements.min(first + PIECE)];
            sum_rows(parts, plane, elements, first, sums);
        }
        for (pixel, dx) in dx.chunks_exact_mut(width).enumerate() {
            let parts = horizontal.parts(pixel);
            for channel in (0..width).step_by(LANES) {
                let mut sums = [0.0f32; LANES];
                for part in parts {
                    let row = &scratch[part.output * width + channel..];
                    if let Some(row) = row.first_chunk::<LANES>() {
                        sums.iter_mut().zip(row).for_each(|(sum, dy)| *sum = dy.mul_add(part.weight, *sum));
                    }
                }
                dx[channel..].iter_mut().zip(sums).for_each(|(dx, sum)| *dx = B::store(sum));
            }
        }
    }
}

/// The weighted sum of rows of a plane, from the element `first` of a row on.
#[inline(always)]
fn sum_rows<E: Element>(parts: &[Part], plane: &[E], row_elements: usize, first: usize, sums: &mut [f32]) {
    sums.fill(0.0);
    for part in parts {
        let row = &plane[part.output * row_elements + first..][..sums.len()];
        for (sum, dy) in sums.iter_mut().zip(row) {
            *sum = dy.load().mul_add(part.weight, *sum);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const EDGES: Bilinear = Bilinear { align_corners: false, scale: None };

    /// Backward is the transpose: every weight of an output is a part of an input.
    #[test]
    fn parts_are_the_taps_the_other_way_round() {
        for align_corners in [false, true] {
            for (inputs, outputs) in [(1, 1), (1, 7), (7, 1), (5, 20), (20, 5), (6, 7), (9, 4), (3, 3)] {
                let axis = Axis::new(&Bilinear { align_corners, ..EDGES }, 0, inputs, outputs);
                let mut taps: Vec<(usize, usize, f32)> = Vec::new();
                for (output, tap) in axis.taps.iter().enumerate() {
                    let both = tap.inputs.into_iter().zip(tap.weights);
                    taps.extend(both.filter(|(_, w)| *w > 0.0).map(|(input, w)| (input, output, w)));
                }
                let parts: Vec<(usize, usize, f32)> = (0..inputs)
                    .flat_map(|input| axis.parts(input).iter().map(move |p| (input, p.output, p.weight)))
                    .collect();
                assert!(parts.is_sorted_by_key(|(input, output, _)| (*input, *output)));
                taps.sort_by_key(|(input, output, _)| (*input, *output));
                assert_eq!(parts, taps, "{inputs} to {outputs}");
            }
        }
    }

    #[test]
    fn every_level_and_number_of_threads_gives_the_same_bits() {
        for width in [1, 11, 16, 35] {
            let geometry =
                |height, row| Geometry { planes: 2, height, row, width, groups: 1, channels: width };
            for (from, to) in [([5, 7], [20, 9]), ([9, 8], [4, 3]), ([1, 1], [6, 5]), ([6, 5], [1, 1])] {
                let (input, output) = (geometry(from[0], from[1]), geometry(to[0], to[1]));
                let both = |level, threads| {
                    let resize = Resize::new(&EDGES, input, output, level, ThreadTeam::in_turn(threads));
                    let x: Vec<f32> =
                        (0..2 * input.plane_elements()).map(|i| (i * 37 % 101) as f32 / 50.0 - 1.0).collect();
                    let (mut y, mut dx) =
                        (vec![f32::NAN; 2 * output.plane_elements()], vec![f32::NAN; x.len()]);
                    let mut scratch = vec![f32::NAN; resize.scratch_bytes() / 4];
                    resize.forward(&x, &mut y, &mut scratch);
                    scratch.fill(f32::NAN);
                    resize.backward(&y, &mut dx, &mut scratch);
                    [y, dx]
                };
                let baseline = both(Level::detect([false, false]), 1);
                assert!(baseline.iter().flatten().all(|value| value.is_finite()));
                for (level, threads) in Level::all().into_iter().flat_map(|l| [1, 2, 7].map(|t| (l, t))) {
                    assert_eq!(both(level, threads), baseline, "{width} {} {threads}", level.name());
                }
            }
        }
    }
}
