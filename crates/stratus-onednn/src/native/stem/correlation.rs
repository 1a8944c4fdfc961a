//! The correlation of images with themselves, over the taps of a convolution of stride 1:
//!
//! ```text
//! C[t, u] = Σ x_t x_u  for u ≥ t          s[t] = Σ x_t          over all outputs of the batch
//! ```
//!
//! A band of rows is copied to L1 as `f32`, a plane per channel with its border, so that each tap reads one
//! contiguous range at its own offset. It is traversed once per 3×8 pairs of taps: 24 sums in registers, 11
//! loads and a mask (of existing outputs) for 24 multiply-adds. That is `taps²/2` multiply-adds per output,
//! for any number of filters. Threads divide output rows; their sums, in `f64`, are added in the order of the
//! threads.

use crate::native::elementwise::CpuContext;
use crate::native::lanes::{LANES, LaneElement, Lanes, with_lanes};
use crate::native::simd::Element;
use crate::native::threads::{MAX_THREADS, split, split_lengths};
use std::ops::Range;
use stratus_graph::ops::Conv2d;

/// The floats of a band, which stays in L1 with its sums.
const BAND_FLOATS: usize = 6 << 10;

/// The tile of taps by taps whose products are summed in registers.
const TILE_ROWS: usize = 3;
const TILE_COLUMNS: usize = 8;

/// The maximum number of output rows of a band.
const MAX_BAND_ROWS: usize = 64;

/// The number of bands summed in `f32` before the sums are added in `f64`.
const BANDS_PER_FLUSH: usize = 8;

/// The correlation for one convolution of stride 1.
#[derive(Clone, Debug)]
pub struct Correlation {
    channels: usize,
    kernel: [usize; 2],
    padding: [usize; 2],
    batch: usize,
    input: [usize; 2],
    output: [usize; 2],
    /// The offset in a band of each tap's input for the first output.
    offsets: Vec<usize>,
    /// The output rows of a band.
    band: usize,
    cpu: CpuContext,
}

impl Correlation {
    /// The correlation of `batch` images of `input` = `[H, W]`; `None` if the convolution has a stride,
    /// dilation or groups.
    #[must_use]
    pub fn new(conv: &Conv2d, batch: usize, input: [usize; 2], cpu: &CpuContext) -> Option<Self> {
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
            cpu: cpu.clone(),
        };
        let rows = BAND_FLOATS / (correlation.channels * correlation.pitch()).max(1);
        correlation.band = (rows + 1).saturating_sub(conv.kernel[0]).clamp(1, MAX_BAND_ROWS.min(output[0]));
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

    /// The floats between the starts of two rows of a band.
    fn pitch(&self) -> usize {
        self.output[1] + self.kernel[1] - 1
    }

    /// The floats between the starts of two channels of a band.
    fn plane(&self) -> usize {
        (self.band + self.kernel[0] - 1) * self.pitch()
    }

    /// The floats of a band, with zeros at its end that the last register may read.
    fn band_floats(&self) -> usize {
        (self.channels * self.plane() + LANES + self.kernel[1]).next_multiple_of(LANES)
    }

    /// The registers of a band's outputs.
    fn registers(&self) -> usize {
        (self.band * self.pitch()).div_ceil(LANES)
    }

    /// The floats of a thread's scratch.
    fn floats(&self) -> usize {
        self.band_floats() + (self.registers() + self.sums()) * LANES
    }

    /// The sums of a thread: `C[t, u]` for `u ≥ t`, then `s[t]`.
    fn sums(&self) -> usize {
        self.taps() * (self.taps() + 1) / 2 + self.taps()
    }

    /// The scratch bytes of [`Self::add`].
    #[must_use]
    pub fn scratch_bytes(&self) -> usize {
        self.cpu.team.threads() * (self.sums() * size_of::<f64>() + self.floats() * size_of::<f32>())
    }

    /// Adds to `to`, `[taps + 1, taps]`: C in its upper triangle, s in the last row. Overwrites both if
    /// `first`.
    pub fn add<E: LaneElement>(&self, images: &[E], first: bool, to: &mut [f64], scratch: &mut [u8]) {
        let (threads, sums, taps) = (self.cpu.team.threads(), self.sums(), self.taps());
        let (totals, rest) = scratch.split_at_mut(threads * sums * size_of::<f64>());
        let totals: &mut [f64] = bytemuck::cast_slice_mut(totals);
        let mut ends = split_lengths(&mut totals[..], (0..threads).map(|_| sums));
        let mut scratches =
            split_lengths(bytemuck::cast_slice_mut(rest), (0..threads).map(|_| self.floats()));
        let mut parts: [(&mut [f64], &mut [f32]); MAX_THREADS] = std::array::from_fn(|thread| {
            (std::mem::take(&mut ends[thread]), std::mem::take(&mut scratches[thread]))
        });
        let rows = self.batch * self.output[0];
        self.cpu.team.run_parts(&mut parts[..threads], &|thread, (totals, scratch)| {
            correlate(self.cpu.level, self, split(rows, threads, thread), images, totals, scratch);
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

    /// Copies the input rows of output rows `rows` of an image, with zeros as padding.
    #[inline(always)]
    fn load_band<E: Element>(&self, image: &[E], rows: Range<usize>, band: &mut [f32]) {
        let [height, width] = self.input;
        let (pitch, before) = (self.pitch(), self.padding[1]);
        let count = width.min(pitch.saturating_sub(before));
        for (channel, plane) in band.chunks_exact_mut(self.plane()).take(self.channels).enumerate() {
            let inputs = rows.start..rows.end + self.kernel[0] - 1;
            for (row, to) in inputs.zip(plane.chunks_exact_mut(pitch)) {
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
        correlation: &Correlation,
        rows: Range<usize>,
        images: &[E],
        totals: &mut [f64],
        scratch: &mut [f32],
    )
}

/// # Safety
/// As [`Lanes`] requires.
#[inline(always)]
unsafe fn correlate_body<V: Lanes, E: LaneElement>(
    correlation: &Correlation,
    rows: Range<usize>,
    images: &[E],
    totals: &mut [f64],
    scratch: &mut [f32],
) {
    totals.fill(0.0);
    scratch.fill(0.0);
    let (band, rest) = scratch.split_at_mut(correlation.band_floats());
    let (mask, sums) = rest.split_at_mut(correlation.registers() * LANES);
    let sums: &mut [[f32; LANES]] = sums.as_chunks_mut().0;
    let elements = correlation.input[0] * correlation.input[1] * correlation.channels;
    let (mut row, mut bands, mut masked) = (rows.start, 0, 0);
    while row < rows.end {
        let (image, first) = (row / correlation.output[0], row % correlation.output[0]);
        let count = correlation.band.min(correlation.output[0] - first).min(rows.end - row);
        correlation.load_band(&images[image * elements..(image + 1) * elements], first..first + count, band);
        if masked != count {
            // Beyond the end of an output row, and beyond the last row, lanes read pixels of no output.
            mask.fill(0.0);
            mask.chunks_mut(correlation.pitch())
                .take(count)
                .for_each(|row| row[..correlation.output[1]].fill(1.0));
            masked = count;
        }
        // SAFETY: upheld by the caller.
        unsafe { multiply::<V>(correlation, count, band, mask, sums) };
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

/// Adds a band's first `count` output rows to the sums.
///
/// # Safety
/// As [`Lanes`] requires.
#[inline(always)]
unsafe fn multiply<V: Lanes>(
    correlation: &Correlation,
    count: usize,
    band: &[f32],
    mask: &[f32],
    sums: &mut [[f32; LANES]],
) {
    let taps = correlation.taps();
    let floats = (count * correlation.pitch()).next_multiple_of(LANES);
    let (products, pixels) = sums.split_at_mut(taps * (taps + 1) / 2);
    let band_taps = BandTaps { band, mask: mask[..floats].as_chunks().0, offsets: &correlation.offsets };
    for first in (0..taps).step_by(TILE_ROWS) {
        // The first of these also sum the taps themselves.
        let mut pixels = Some(&mut pixels[first..taps.min(first + TILE_ROWS)]);
        let mut other = first;
        while other < taps {
            let pixels = pixels.take();
            // SAFETY: upheld by the caller.
            other += unsafe {
                match taps - other {
                    1 => band_taps.add::<V, 1>([first, other], products, pixels),
                    2 => band_taps.add::<V, 2>([first, other], products, pixels),
                    3 => band_taps.add::<V, 3>([first, other], products, pixels),
                    4 => band_taps.add::<V, 4>([first, other], products, pixels),
                    5 => band_taps.add::<V, 5>([first, other], products, pixels),
                    6 => band_taps.add::<V, 6>([first, other], products, pixels),
                    7 => band_taps.add::<V, 7>([first, other], products, pixels),
                    _ => band_taps.add::<V, TILE_COLUMNS>([first, other], products, pixels),
                }
            };
        }
    }
}

/// A band, and a mask of the existing outputs.
struct BandTaps<'a> {
    band: &'a [f32],
    mask: &'a [[f32; LANES]],
    offsets: &'a [usize],
}

impl BandTaps<'_> {
    /// The inputs of a tap, register by register.
    #[inline(always)]
    fn inputs_of(&self, tap: usize) -> &[[f32; LANES]] {
        let at = self.offsets[tap];
        self.band[at..at + self.mask.len() * LANES].as_chunks().0
    }

    /// Adds products of [`TILE_ROWS`] taps from `first` with `OTHERS` from `other`, and sums of the former if
    /// `pixels` is given; returns `OTHERS`. Only products with `other ≥ first` are stored.
    ///
    /// # Safety
    /// As [`Lanes`] requires.
    #[inline(always)]
    unsafe fn add<V: Lanes, const OTHERS: usize>(
        &self,
        [first, other]: [usize; 2],
        products: &mut [[f32; LANES]],
        pixels: Option<&mut [[f32; LANES]]>,
    ) -> usize {
        let taps = self.offsets.len();
        // SAFETY: upheld by the caller, here and below.
        let zero = unsafe { V::splat(0.0) };
        let (mut totals, mut sums) = ([zero; TILE_ROWS], [[zero; OTHERS]; TILE_ROWS]);
        let mut rows = [<&[[f32; LANES]]>::default(); TILE_ROWS];
        let mut others = [<&[[f32; LANES]]>::default(); OTHERS];
        for (number, inputs) in rows.iter_mut().enumerate() {
            // Beyond the last tap, the last one is repeated.
            *inputs = self.inputs_of((first + number).min(taps - 1));
            assert!(inputs.len() == self.mask.len(), "unexpected row length");
        }
        for (number, inputs) in others.iter_mut().enumerate() {
            *inputs = self.inputs_of(other + number);
            assert!(inputs.len() == self.mask.len(), "unexpected row length");
        }
        for (register, mask) in self.mask.iter().enumerate() {
            let mask = unsafe { V::load(mask) };
            let mut inputs = [zero; TILE_ROWS];
            for row in 0..TILE_ROWS {
                inputs[row] = unsafe { V::load(&rows[row][register]).multiply_add(mask, zero) };
                totals[row] = unsafe { totals[row].add(inputs[row]) };
            }
            for column in 0..OTHERS {
                let other = unsafe { V::load(&others[column][register]) };
                for row in 0..TILE_ROWS {
                    sums[row][column] = unsafe { other.multiply_add(inputs[row], sums[row][column]) };
                }
            }
        }
        for (row, sums) in (first..taps).zip(sums) {
            // The start of row `t` of the upper triangle.
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
