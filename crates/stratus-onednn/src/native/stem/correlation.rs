//! The correlation of images with themselves: for each two taps of a convolution the sum, over its outputs, of the product of what they see, and for
//! each tap the sum of what it sees.
//!
//! Floor: half of `taps * taps` multiply-adds per output, whatever the number of filters. Bands of rows lie as `f32` in the nearest caches, a plane per
//! channel, and are walked once for every few pairs of taps.

use crate::native::lanes::{LANES, LaneElement, Lanes, with_lanes};
use crate::native::simd::{Element, Level};
use crate::native::threads::{MAX_THREADS, ThreadTeam, cut, split};
use std::ops::Range;
use stratus_graph::ops::Conv2d;

/// Floats of a band: with its sums it stays in the nearest cache.
const BAND_FLOATS: usize = 6 << 10;

/// Taps that are multiplied at once, with as many others as there are registers for.
const ROWS: usize = 3;
const COLUMNS: usize = 8;

/// The most output rows of a band.
const BAND_ROWS: usize = 64;

/// Bands that are added up in `f32` before the sums go to `f64`.
const BANDS_PER_FLUSH: usize = 8;

/// The images' correlation as the taps of a convolution without stride see them.
#[derive(Clone, Debug)]
pub struct Correlation {
    channels: usize,
    kernel: [usize; 2],
    padding: [usize; 2],
    batch: usize,
    input: [usize; 2],
    output: [usize; 2],
    /// Per tap, where what it sees for the first output of a band begins.
    offsets: Vec<usize>,
    /// Output rows of a band.
    band: usize,
    level: Level,
    team: ThreadTeam,
}

impl Correlation {
    /// The correlation of a batch of `input` sized images; `None` where the convolution strides or is dilated.
    #[must_use]
    pub fn new(
        conv: &Conv2d,
        batch: usize,
        input: [usize; 2],
        level: Level,
        team: ThreadTeam,
    ) -> Option<Self> {
        let output = conv.output_size(input).ok()?;
        if conv.stride != [1, 1] || conv.dilation != [1, 1] || conv.groups != 1 {
            return None;
        }
        let mut correlation = Self {
            channels: conv.in_channels,
            kernel: conv.kernel,
            padding: conv.padding_before,
            batch,
            input,
            output,
            offsets: Vec::new(),
            band: 1,
            level,
            team,
        };
        let rows = BAND_FLOATS / (correlation.channels * correlation.pitch()).max(1);
        correlation.band = (rows + 1).saturating_sub(conv.kernel[0]).clamp(1, BAND_ROWS.min(output[0]));
        let (plane, pitch) = (correlation.plane(), correlation.pitch());
        let taps = |channel| {
            let rows = (0..conv.kernel[0]).flat_map(|i| (0..conv.kernel[1]).map(move |j| (i, j)));
            rows.map(move |(i, j)| channel * plane + i * pitch + j)
        };
        correlation.offsets = (0..conv.in_channels).flat_map(taps).collect();
        Some(correlation)
    }

    fn taps(&self) -> usize {
        self.offsets.len()
    }

    /// Floats from one row of a band to the next.
    fn pitch(&self) -> usize {
        self.output[1] + self.kernel[1] - 1
    }

    /// Floats from one channel of a band to the next.
    fn plane(&self) -> usize {
        (self.band + self.kernel[0] - 1) * self.pitch()
    }

    /// Floats of a band, with as many zeros behind it as the last register may read.
    fn band_floats(&self) -> usize {
        (self.channels * self.plane() + LANES + self.kernel[1]).next_multiple_of(LANES)
    }

    /// Registers of a band's rows of outputs.
    fn registers(&self) -> usize {
        (self.band * self.pitch()).div_ceil(LANES)
    }

    /// Floats of a thread's scratch.
    fn floats(&self) -> usize {
        self.band_floats() + (self.registers() + self.sums()) * LANES
    }

    /// Sums that a thread makes: the products of taps with those from themselves on, and the taps'.
    fn sums(&self) -> usize {
        self.taps() * (self.taps() + 1) / 2 + self.taps()
    }

    /// Bytes of scratch of [`Self::add`].
    #[must_use]
    pub fn scratch_bytes(&self) -> usize {
        self.team.threads() * (self.sums() * size_of::<f64>() + self.floats() * size_of::<f32>())
    }

    /// Adds to `to`, `[taps + 1, taps]`: in the first rows the products from the diagonal on, in the last one the sums. Replaces both where `first`.
    pub fn add<E: LaneElement>(&self, images: &[E], first: bool, to: &mut [f64], scratch: &mut [u8]) {
        let (threads, sums, taps) = (self.team.threads(), self.sums(), self.taps());
        let (totals, rest) = scratch.split_at_mut(threads * sums * size_of::<f64>());
        let totals: &mut [f64] = bytemuck::cast_slice_mut(totals);
        let mut ends = cut(&mut totals[..], (0..threads).map(|_| sums));
        let mut scratches = cut(bytemuck::cast_slice_mut(rest), (0..threads).map(|_| self.floats()));
        let mut parts: [(&mut [f64], &mut [f32]); MAX_THREADS] = std::array::from_fn(|thread| {
            (std::mem::take(&mut ends[thread]), std::mem::take(&mut scratches[thread]))
        });
        let rows = self.batch * self.output[0];
        self.team.run_parts(&mut parts[..threads], &|thread, (totals, scratch)| {
            correlate(self.level, self, split(rows, threads, thread), images, totals, scratch);
        });
        if first {
            to.fill(0.0);
        }
        // In the order of the threads.
        for part in totals.chunks_exact(sums) {
            let (products, pixels) = part.split_at(sums - taps);
            let mut products = products.iter();
            for tap in 0..taps {
                for (to, product) in to[tap * taps + tap..][..taps - tap].iter_mut().zip(&mut products) {
                    *to += product;
                }
            }
            for (to, pixel) in to[taps * taps..].iter_mut().zip(pixels) {
                *to += pixel;
            }
        }
    }

    /// Lays out what the outputs of `rows` of an image see. What no pixel covers becomes zero.
    #[inline(always)]
    fn bring<E: Element>(&self, image: &[E], rows: Range<usize>, band: &mut [f32]) {
        let [height, width] = self.input;
        let (pitch, before) = (self.pitch(), self.padding[1]);
        let count = width.min(pitch.saturating_sub(before));
        for (channel, plane) in band.chunks_exact_mut(self.plane()).take(self.channels).enumerate() {
            let seen = rows.start..rows.end + self.kernel[0] - 1;
            for (row, to) in seen.zip(plane.chunks_exact_mut(pitch)) {
                let source = row.checked_sub(self.padding[0]).filter(|&row| row < height);
                let Some(source) = source else {
                    to.fill(0.0);
                    continue;
                };
                let from = &image[source * width * self.channels + channel..];
                let (left, to) = to.split_at_mut(before.min(pitch));
                let (middle, right) = to.split_at_mut(count);
                left.fill(0.0);
                right.fill(0.0);
                if self.channels == 1 {
                    middle.iter_mut().zip(from).for_each(|(to, from)| *to = from.load());
                } else {
                    let from = from.iter().step_by(self.channels);
                    middle.iter_mut().zip(from).for_each(|(to, from)| *to = from.load());
                }
            }
        }
    }
}

with_lanes! {
    fn correlate / correlate_body(
        of: &Correlation, rows: Range<usize>, images: &[E], totals: &mut [f64], scratch: &mut [f32],
    )
}

/// # Safety
/// Of [`Lanes`].
#[inline(always)]
unsafe fn correlate_body<V: Lanes, E: LaneElement>(
    of: &Correlation,
    rows: Range<usize>,
    images: &[E],
    totals: &mut [f64],
    scratch: &mut [f32],
) {
    totals.fill(0.0);
    scratch.fill(0.0);
    let (band, rest) = scratch.split_at_mut(of.band_floats());
    let (mask, sums) = rest.split_at_mut(of.registers() * LANES);
    let sums: &mut [[f32; LANES]] = sums.as_chunks_mut().0;
    let elements = of.input[0] * of.input[1] * of.channels;
    let (mut row, mut bands, mut masked) = (rows.start, 0, 0);
    while row < rows.end {
        let (image, first) = (row / of.output[0], row % of.output[0]);
        let count = of.band.min(of.output[0] - first).min(rows.end - row);
        of.bring(&images[image * elements..(image + 1) * elements], first..first + count, band);
        if masked != count {
            // Behind the last output of a row, and behind the last row, lanes see pixels too.
            mask.fill(0.0);
            mask.chunks_mut(of.pitch()).take(count).for_each(|row| row[..of.output[1]].fill(1.0));
            masked = count;
        }
        // SAFETY: the caller's.
        unsafe { multiply::<V>(of, count, band, mask, sums) };
        row += count;
        bands += 1;
        if bands == BANDS_PER_FLUSH || row == rows.end {
            for (total, sum) in totals.iter_mut().zip(&mut *sums) {
                *total += sum.iter().map(|&lane| f64::from(lane)).sum::<f64>();
                *sum = [0.0; LANES];
            }
            bands = 0;
        }
    }
}

/// Adds the sums of a band's first `count` output rows.
///
/// # Safety
/// Of [`Lanes`].
#[inline(always)]
unsafe fn multiply<V: Lanes>(
    of: &Correlation,
    count: usize,
    band: &[f32],
    mask: &[f32],
    sums: &mut [[f32; LANES]],
) {
    let taps = of.taps();
    let floats = (count * of.pitch()).next_multiple_of(LANES);
    let (products, pixels) = sums.split_at_mut(taps * (taps + 1) / 2);
    let walk = Walk { band, mask: mask[..floats].as_chunks().0, offsets: &of.offsets };
    for first in (0..taps).step_by(ROWS) {
        // The first of these products also add up the taps themselves.
        let mut pixels = Some(&mut pixels[first..taps.min(first + ROWS)]);
        let mut other = first;
        while other < taps {
            let pixels = pixels.take();
            // SAFETY: the caller's.
            other += unsafe {
                match taps - other {
                    1 => walk.add::<V, 1>([first, other], products, pixels),
                    2 => walk.add::<V, 2>([first, other], products, pixels),
                    3 => walk.add::<V, 3>([first, other], products, pixels),
                    4 => walk.add::<V, 4>([first, other], products, pixels),
                    5 => walk.add::<V, 5>([first, other], products, pixels),
                    6 => walk.add::<V, 6>([first, other], products, pixels),
                    7 => walk.add::<V, 7>([first, other], products, pixels),
                    _ => walk.add::<V, COLUMNS>([first, other], products, pixels),
                }
            };
        }
    }
}

/// A band, row behind row, with ones where outputs are.
struct Walk<'a> {
    band: &'a [f32],
    mask: &'a [[f32; LANES]],
    offsets: &'a [usize],
}

impl Walk<'_> {
    /// What a tap sees, register by register.
    #[inline(always)]
    fn seen(&self, tap: usize) -> &[[f32; LANES]] {
        let at = self.offsets[tap];
        self.band[at..at + self.mask.len() * LANES].as_chunks().0
    }

    /// Adds products of [`ROWS`] taps from `first` on with `OTHERS` from `other` on to the sums, and what the former see; returns how many the
    /// latter are. Products are stored where the other tap is not an earlier one.
    ///
    /// # Safety
    /// Of [`Lanes`].
    #[inline(always)]
    unsafe fn add<V: Lanes, const OTHERS: usize>(
        &self,
        [first, other]: [usize; 2],
        products: &mut [[f32; LANES]],
        pixels: Option<&mut [[f32; LANES]]>,
    ) -> usize {
        let taps = self.offsets.len();
        // SAFETY: the caller's, here and below.
        let zero = unsafe { V::splat(0.0) };
        let (mut totals, mut sums) = ([zero; ROWS], [[zero; OTHERS]; ROWS]);
        let mut rows = [<&[[f32; LANES]]>::default(); ROWS];
        let mut others = [<&[[f32; LANES]]>::default(); OTHERS];
        for (number, seen) in rows.iter_mut().enumerate() {
            // Behind the last tap, the last one is taken again.
            *seen = self.seen((first + number).min(taps - 1));
            assert!(seen.len() == self.mask.len(), "rows of another length");
        }
        for (number, seen) in others.iter_mut().enumerate() {
            *seen = self.seen(other + number);
            assert!(seen.len() == self.mask.len(), "rows of another length");
        }
        for (register, mask) in self.mask.iter().enumerate() {
            let mask = unsafe { V::load(mask) };
            let mut seen = [zero; ROWS];
            for row in 0..ROWS {
                seen[row] = unsafe { V::load(&rows[row][register]).multiply_add(mask, zero) };
                totals[row] = unsafe { totals[row].add(seen[row]) };
            }
            for column in 0..OTHERS {
                let other = unsafe { V::load(&others[column][register]) };
                for row in 0..ROWS {
                    sums[row][column] = unsafe { other.multiply_add(seen[row], sums[row][column]) };
                }
            }
        }
        for (row, sums) in (first..taps).zip(sums) {
            // Where the products of a row with itself begin.
            let start = row * taps - row * row.saturating_sub(1) / 2;
            for (column, sum) in (other..).zip(sums).filter(|(column, _)| *column >= row) {
                let to = &mut products[start + column - row];
                unsafe { sum.add(V::load(to)).store(to) };
            }
        }
        for (total, to) in totals.into_iter().zip(pixels.into_iter().flatten()) {
            unsafe { total.add(V::load(to)).store(to) };
        }
        OTHERS
    }
}
