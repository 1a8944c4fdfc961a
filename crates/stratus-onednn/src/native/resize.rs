//! Bilinear resizing, up and down, of maps of any number of channels.
//!
//! Both directions gather: a row is a weighted sum of rows (*vertical*), a pixel a weighted sum of the pixels
//! of its row (*horizontal*).
//!
//! ```text
//! to more rows     from ──horizontal──▶ rows of [W', C], two buffered ──vertical────▶ to
//! to fewer rows    from ──vertical────▶ one row of [W, C]             ──horizontal──▶ to
//! ```
//!
//! Memory-bound: the larger map is read or written once, in order, by *vertical* loops over whole rows, which
//! are vectorised for any number of channels. In *horizontal* loops, a pixel's channels are loaded and stored
//! in vectors that may overlap the next pixel, which is written afterwards. Threads divide the written rows,
//! and every sum has the order of its terms.

use super::elementwise::CpuContext;
use super::lanes::{LANES, LaneElement, Lanes, with_lanes};
use super::rows::MapGeometry;
use super::simd::{Element, multiversion, stream};
use super::threads::{split, split_lengths, zip_parts};
use std::ops::Range;
use stratus_engine::DType;
use stratus_engine::ops::Interpolation;

/// The elements of a row summed at a time, whose sums stay in L1.
const ROW_CHUNK: usize = 4096;

/// A map of this size has left the caches before it is read, so it is stored past them, like pooled maps.
const LARGE_MAP_BYTES: usize = 16 << 20;

/// A bilinear resizing, or its derivative. Both maps have the same channels in the same groups.
#[derive(Clone, Debug)]
pub struct Resize {
    from: MapGeometry,
    to: MapGeometry,
    vertical: WeightedSums,
    horizontal: WeightedSums,
    horizontal_first: bool,
    cpu: CpuContext,
}

/// A source row or pixel, and its weight.
#[derive(Clone, Copy, Debug, PartialEq)]
struct WeightedSource {
    from: usize,
    weight: f32,
}

/// The weighted sums for the rows, or for the pixels of a row.
#[derive(Clone, Debug)]
struct WeightedSums {
    /// Per written row or pixel, its range in `parts`.
    source_ranges: Vec<Range<usize>>,
    parts: Vec<WeightedSource>,
}

impl WeightedSums {
    fn new(sums: impl Iterator<Item = Vec<WeightedSource>>) -> Self {
        let mut all = Self { source_ranges: Vec::new(), parts: Vec::new() };
        for sum in sums {
            let first = all.parts.len();
            all.parts.extend(sum);
            all.source_ranges.push(first..all.parts.len());
        }
        all
    }

    /// The inputs of each output along an axis.
    fn forward(interpolation: &Interpolation, axis: usize, inputs: usize, outputs: usize) -> Self {
        Self::new(interpolation.axis(axis, inputs, outputs, DType::F32).into_iter().map(|taps| {
            let both = [taps.first, taps.second].into_iter().zip(taps.weights);
            let parts = both.map(|(from, weight)| WeightedSource { from, weight: weight as f32 });
            parts.take(if taps.first == taps.second { 1 } else { 2 }).collect()
        }))
    }

    /// The outputs that each input contributes to, along an axis.
    fn backward(interpolation: &Interpolation, axis: usize, inputs: usize, outputs: usize) -> Self {
        let mut sums = vec![Vec::new(); inputs];
        let forward = Self::forward(interpolation, axis, inputs, outputs);
        for output in 0..outputs {
            for &WeightedSource { from: input, weight } in forward.sources_of(output) {
                if weight > 0.0 {
                    sums[input].push(WeightedSource { from: output, weight });
                }
            }
        }
        Self::new(sums.into_iter())
    }

    fn sources_of(&self, written: usize) -> &[WeightedSource] {
        &self.parts[self.source_ranges[written].clone()]
    }

    fn max_sources(&self) -> usize {
        self.source_ranges.iter().map(ExactSizeIterator::len).max().unwrap_or(0)
    }
}

impl Resize {
    /// `x -> y`, between maps of these geometries.
    #[must_use]
    pub fn forward(interpolation: &Interpolation, x: MapGeometry, y: MapGeometry, cpu: &CpuContext) -> Self {
        let vertical = WeightedSums::forward(interpolation, 0, x.height, y.height);
        let horizontal = WeightedSums::forward(interpolation, 1, x.row_pixels, y.row_pixels);
        Self::new([x, y], [vertical, horizontal], cpu)
    }

    /// `dy -> dx`: each pixel gathers from the outputs that it contributes to.
    #[must_use]
    pub fn backward(
        interpolation: &Interpolation,
        dx: MapGeometry,
        dy: MapGeometry,
        cpu: &CpuContext,
    ) -> Self {
        let vertical = WeightedSums::backward(interpolation, 0, dx.height, dy.height);
        let horizontal = WeightedSums::backward(interpolation, 1, dx.row_pixels, dy.row_pixels);
        Self::new([dy, dx], [vertical, horizontal], cpu)
    }

    fn new(
        [from, to]: [MapGeometry; 2],
        [vertical, horizontal]: [WeightedSums; 2],
        cpu: &CpuContext,
    ) -> Self {
        // Two rows are buffered, and each is resized horizontally once.
        let horizontal_first = to.height > from.height && vertical.max_sources() <= 2;
        Self { from, to, vertical, horizontal, horizontal_first, cpu: cpu.clone() }
    }

    /// The elements of a row between the two passes, padded for its last vector.
    fn buffered_row(&self) -> usize {
        let map = if self.horizontal_first { &self.to } else { &self.from };
        map.row_elements().next_multiple_of(LANES) + LANES
    }

    /// The elements of a thread's scratch: two rows and a chunk of a third, or one row.
    fn row_buffer(&self) -> usize {
        if self.horizontal_first { 2 * self.buffered_row() + ROW_CHUNK } else { self.buffered_row() }
    }

    /// The scratch bytes.
    #[must_use]
    pub fn scratch_bytes(&self) -> usize {
        self.cpu.team.threads() * self.row_buffer() * size_of::<f32>()
    }

    /// Resizes a map.
    pub fn run<A: LaneElement, B: LaneElement>(&self, from: &[A], to: &mut [B], scratch: &mut [f32]) {
        let threads = self.cpu.team.threads();
        let (rows, elements) = (self.to.planes * self.to.height, self.to.row_elements());
        let maps =
            split_lengths(to, (0..threads).map(|thread| split(rows, threads, thread).len() * elements));
        let row_buffer = split_lengths(scratch, (0..threads).map(|_| self.row_buffer()));
        let mut parts = zip_parts(maps, row_buffer);
        self.cpu.team.run_parts(&mut parts[..threads], &|thread, (to, row_buffer)| {
            let rows = split(rows, threads, thread);
            if self.horizontal_first {
                self.horizontal_first::<A, B>(rows, from, to, row_buffer);
            } else {
                self.vertical_first::<A, B>(rows, from, to, row_buffer);
            }
        });
    }

    fn horizontal_first<A: LaneElement, B: LaneElement>(
        &self,
        rows: Range<usize>,
        from: &[A],
        to: &mut [B],
        row_buffer: &mut [f32],
    ) {
        let (in_row, out_row) = (self.from.row_elements(), self.to.row_elements());
        let is_large = self.to.planes * self.to.plane_elements() * size_of::<B>() >= LARGE_MAP_BYTES;
        let (upper, rest) = row_buffer.split_at_mut(self.buffered_row());
        let (lower, stage) = rest.split_at_mut(self.buffered_row());
        let stage: &mut [B] = if is_large { bytemuck::cast_slice_mut(stage) } else { &mut [] };
        let mut row_buffer = [upper, lower];
        // The map rows in the buffers, resized horizontally.
        let mut buffered_rows = [usize::MAX; 2];
        for (row, to) in rows.zip(to.chunks_exact_mut(out_row)) {
            let (plane, row) = (row / self.to.height, row % self.to.height);
            let row_of = |part: &WeightedSource| plane * self.from.height + part.from;
            let parts = self.vertical.sources_of(row);
            if parts.first().is_some_and(|first| buffered_rows[1] == row_of(first)) {
                row_buffer.swap(0, 1);
                buffered_rows.swap(0, 1);
            }
            for ((part, is_buffered), row_buffer) in parts.iter().zip(&mut buffered_rows).zip(&mut row_buffer)
            {
                if *is_buffered != row_of(part) {
                    *is_buffered = row_of(part);
                    let from = &from[*is_buffered * in_row..];
                    horizontal_map(
                        self.cpu.level,
                        &self.horizontal,
                        self.to.pixel_channels,
                        from,
                        row_buffer,
                    );
                }
            }
            let row_buffer = row_buffer.each_ref().map(|row_buffer| &row_buffer[..out_row]);
            if stage.is_empty() {
                vertical_buffered(self.cpu.level, parts, row_buffer, to);
                continue;
            }
            for (number, to) in to.chunks_mut(ROW_CHUNK).enumerate() {
                let stage = &mut stage[..to.len()];
                vertical_buffered(
                    self.cpu.level,
                    parts,
                    row_buffer.map(|row_buffer| &row_buffer[number * ROW_CHUNK..]),
                    stage,
                );
                stream(self.cpu.level, stage, to);
            }
        }
    }

    fn vertical_first<A: LaneElement, B: LaneElement>(
        &self,
        rows: Range<usize>,
        from: &[A],
        to: &mut [B],
        row_buffer: &mut [f32],
    ) {
        let (elements, plane_elements) = (self.from.row_elements(), self.from.plane_elements());
        for (row, to) in rows.zip(to.chunks_exact_mut(self.to.row_elements())) {
            let plane = &from[row / self.to.height * plane_elements..][..plane_elements];
            vertical_map(
                self.cpu.level,
                self.vertical.sources_of(row % self.to.height),
                plane,
                &mut row_buffer[..elements],
            );
            horizontal_buffered(self.cpu.level, &self.horizontal, self.to.pixel_channels, row_buffer, to);
        }
    }
}

multiversion! {
    fn vertical_buffered / vertical_buffered_body [E: Element] [E] (
        parts: &[WeightedSource], row_buffer: [&[f32]; 2], to: &mut [E],
    )
}

/// The weighted sum of one or two rows, over the length of `to`.
#[inline(always)]
fn vertical_buffered_body<E: Element>(parts: &[WeightedSource], [first, second]: [&[f32]; 2], to: &mut [E]) {
    match parts {
        [a, b] => weighted_sum(a.weight, first, b.weight, second, to),
        [a] => to.iter_mut().zip(first).for_each(|(to, row)| *to = E::store(a.weight * row)),
        _ => to.fill(E::store(0.0)),
    }
}

multiversion! {
    fn vertical_map / vertical_map_body [E: Element] [E] (
        parts: &[WeightedSource], plane: &[E], to: &mut [f32],
    )
}

/// The weighted sum of rows of a plane, each as long as `to`.
#[inline(always)]
fn vertical_map_body<E: Element>(parts: &[WeightedSource], plane: &[E], to: &mut [f32]) {
    let elements = to.len();
    for (number, sums) in to.chunks_mut(ROW_CHUNK).enumerate() {
        let length = sums.len();
        let row = |part: &WeightedSource| &plane[part.from * elements + number * ROW_CHUNK..][..length];
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
    fn horizontal_map / horizontal_map_body (sums: &WeightedSums, width: usize, from: &[E], to: &mut [f32])
}

/// Resizes a row of the map, followed by more elements of it, into a row buffer.
///
/// # Safety
/// As [`Lanes`] requires.
#[inline(always)]
unsafe fn horizontal_map_body<V: Lanes, E: LaneElement>(
    sums: &WeightedSums,
    width: usize,
    from: &[E],
    to: &mut [f32],
) {
    // SAFETY: upheld by the caller.
    unsafe { horizontal::<V, E, f32>(sums, width, from, to) }
}

with_lanes! {
    fn horizontal_buffered / horizontal_buffered_body (
        sums: &WeightedSums, width: usize, from: &[f32], to: &mut [E],
    )
}

/// Resizes a row buffer into a row of the map.
///
/// # Safety
/// As [`Lanes`] requires.
#[inline(always)]
unsafe fn horizontal_buffered_body<V: Lanes, E: LaneElement>(
    sums: &WeightedSums,
    width: usize,
    from: &[f32],
    to: &mut [E],
) {
    // SAFETY: upheld by the caller.
    unsafe { horizontal::<V, f32, E>(sums, width, from, to) }
}

/// Resizes a row along its pixels of `width` channels.
///
/// # Safety
/// As [`Lanes`] requires.
#[inline(always)]
unsafe fn horizontal<V: Lanes, A: LaneElement, B: LaneElement>(
    sums: &WeightedSums,
    width: usize,
    from: &[A],
    to: &mut [B],
) {
    for pixel in 0..sums.source_ranges.len() {
        let parts = sums.sources_of(pixel);
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

/// Computes the channels of a pixel from `channel`, at the end of a row or of the map.
#[cold]
fn one_by_one<A: Element, B: Element>(
    parts: &[WeightedSource],
    width: usize,
    channel: usize,
    from: &[A],
    to: &mut [B],
) {
    for (to, channel) in to.iter_mut().zip(channel..width.min(channel + LANES)) {
        let add = |sum: f32, part: &WeightedSource| {
            from[part.from * width + channel].load().mul_add(part.weight, sum)
        };
        *to = B::store(parts.iter().fold(0.0, add));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::native::simd::Isa;
    use crate::native::simd::IsaLevel;
    use crate::native::threads::ThreadTeam;

    const EDGES: Interpolation = Interpolation { align_corners: false, scale: None, nearest: false };

    /// Backward is the transpose: every input of an output is an output of an input.
    #[test]
    fn backward_is_the_transpose_of_forward() {
        let all = |sums: &WeightedSums, written: usize| {
            let sources = |at| sums.sources_of(at).iter().map(move |part| (at, part.from, part.weight));
            (0..written).flat_map(sources).collect::<Vec<_>>()
        };
        for align_corners in [false, true] {
            for (inputs, outputs) in [(1, 1), (1, 7), (7, 1), (5, 20), (20, 5), (6, 7), (9, 4), (3, 3)] {
                let interpolation = Interpolation { align_corners, ..EDGES };
                let mut forward = all(&WeightedSums::forward(&interpolation, 0, inputs, outputs), outputs);
                forward.retain(|(.., weight)| *weight > 0.0);
                forward.iter_mut().for_each(|(output, input, _)| std::mem::swap(output, input));
                forward.sort_by_key(|(input, output, _)| (*input, *output));
                let backward = all(&WeightedSums::backward(&interpolation, 0, inputs, outputs), inputs);
                assert_eq!(backward, forward, "{inputs} to {outputs}");
            }
        }
    }

    #[test]
    fn every_level_and_number_of_threads_gives_the_same_bits() {
        for width in [1, 11, 16, 35] {
            let geometry = |height, row| MapGeometry {
                planes: 2,
                height,
                row_pixels: row,
                pixel_channels: width,
                groups: 1,
                channels: width,
            };
            for (small, large) in [([5, 7], [20, 9]), ([9, 8], [4, 13]), ([1, 1], [6, 5]), ([6, 5], [1, 1])] {
                let (x, y) = (geometry(small[0], small[1]), geometry(large[0], large[1]));
                let both = |level, threads| {
                    let cpu = CpuContext { team: ThreadTeam::emulating(threads), level };
                    let map: Vec<f32> =
                        (0..2 * x.plane_elements()).map(|i| (i * 37 % 101) as f32 / 50.0 - 1.0).collect();
                    let (mut out, mut back) =
                        (vec![f32::NAN; 2 * y.plane_elements()], vec![f32::NAN; map.len()]);
                    let run = |resize: Resize, from: &[f32], to: &mut [f32]| {
                        resize.run(from, to, &mut vec![f32::NAN; resize.scratch_bytes() / size_of::<f32>()]);
                    };
                    run(Resize::forward(&EDGES, x, y, &cpu), &map, &mut out);
                    run(Resize::backward(&EDGES, x, y, &cpu), &out, &mut back);
                    [out, back]
                };
                // All instruction sets with fused multiply-add give the same bits.
                let mut fused = None;
                for level in IsaLevel::all() {
                    let single_threaded = both(level, 1);
                    assert!(single_threaded.iter().flatten().all(|value| value.is_finite()));
                    for threads in [2, 7] {
                        assert_eq!(
                            both(level, threads),
                            single_threaded,
                            "{width} {} {threads}",
                            level.name()
                        );
                    }
                    if level.isa() != Isa::Baseline {
                        assert_eq!(
                            *fused.get_or_insert(single_threaded.clone()),
                            single_threaded,
                            "{width} {}",
                            level.name()
                        );
                    }
                }
            }
        }
    }
}
