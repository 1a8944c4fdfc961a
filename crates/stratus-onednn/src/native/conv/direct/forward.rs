//! The forward pass of a direct convolution, row by row.

use super::{CHANNELS, DirectConv, Ring};
use crate::native::lanes::{LANES, LaneElement, Lanes, with_lanes};
use std::ops::Range;

with_lanes! {
    pub(crate) fn forward_rows / forward_rows_body(
        conv: &DirectConv,
        rows: Range<usize>,
        x: &[E],
        packed: &[f32],
        biases: &[f32],
        relu: bool,
        y: &mut [E],
        ring: &mut [f32],
    )
}

/// # Safety
/// As [`Lanes`] requires.
#[inline(always)]
#[allow(clippy::too_many_arguments)] // Slices and constants for an inner loop.
unsafe fn forward_rows_body<V: Lanes, E: LaneElement>(
    conv: &DirectConv,
    rows: Range<usize>,
    x: &[E],
    packed: &[f32],
    biases: &[f32],
    relu: bool,
    y: &mut [E],
    ring: &mut [f32],
) {
    let mut ring = Ring::new(ring);
    for (row, y) in rows.zip(y.chunks_exact_mut(conv.row_elements())) {
        // SAFETY: upheld by the caller.
        let offsets = unsafe { conv.fill_ring::<V, E>(x, row, &mut ring) };
        for group in 0..conv.groups() {
            let pixel_layout = (conv.out_channels(), group * CHANNELS);
            let kernel =
                RowKernel::new(conv, ring.rows(), offsets, [packed, biases], relu, group, pixel_layout);
            // SAFETY: upheld by the caller.
            unsafe { kernel.run::<V, E>(y) };
        }
    }
}

/// Adds a tap to the sums of `PAIRS` pairs of pixels.
///
/// # Safety
/// As [`Lanes`] requires; `PAIRS` registers are readable at `from`.
#[inline(always)]
unsafe fn add_one<V: Lanes, const PAIRS: usize>(
    from: *const f32,
    weights: &[[f32; LANES]],
    sums: &mut [V; PAIRS],
) {
    // SAFETY: upheld by the caller, here and below.
    let weights = unsafe { V::load(&weights[0]) };
    for (number, sum) in sums.iter_mut().enumerate() {
        let pixels = unsafe { V::load(&*from.add(number * LANES).cast()) };
        *sum = unsafe { pixels.multiply_add(weights, *sum) };
    }
}

/// Adds two taps. The second reads the data of the first shifted by a register, so each register is loaded
/// once.
///
/// # Safety
/// As [`Lanes`] requires; `PAIRS + 1` registers are readable at `from`.
#[inline(always)]
unsafe fn add_two<V: Lanes, const PAIRS: usize>(
    from: *const f32,
    weights: &[[f32; LANES]],
    sums: &mut [V; PAIRS],
) {
    // SAFETY: upheld by the caller, here and below.
    let (first, second) = unsafe { (V::load(&weights[0]), V::load(&weights[1])) };
    let mut here = unsafe { V::load(&*from.cast()) };
    for (number, sum) in sums.iter_mut().enumerate() {
        let next = unsafe { V::load(&*from.add((number + 1) * LANES).cast()) };
        *sum = unsafe { next.multiply_add(second, here.multiply_add(first, *sum)) };
        here = next;
    }
}

/// Computes an output row of eight channels.
pub(crate) struct RowKernel<'a> {
    ring: &'a [f32],
    offsets: &'a [usize],
    runs: &'a [usize],
    /// The largest of the offsets.
    last_offset: usize,
    weights: &'a [[f32; LANES]],
    bias: &'a [f32; LANES],
    relu: bool,
    channels: usize,
    first_channel: usize,
    wide: bool,
    pairs: usize,
}

impl<'a> RowKernel<'a> {
    /// The kernel of group `group`; `(channels, first_channel)` are the channels of a pixel of `y`, and the
    /// first of the eight among them.
    pub(crate) fn new(
        conv: &'a DirectConv,
        ring: &'a [f32],
        offsets: &'a [usize],
        [packed, biases]: [&'a [f32]; 2],
        relu: bool,
        group: usize,
        (channels, first_channel): (usize, usize),
    ) -> Self {
        let group_floats = conv.taps() * LANES;
        Self {
            ring,
            offsets,
            runs: &conv.runs,
            last_offset: conv.last_offset,
            weights: packed[group * group_floats..(group + 1) * group_floats].as_chunks().0,
            bias: &biases.as_chunks().0[group],
            relu,
            channels,
            first_channel,
            wide: conv.is_wide(),
            pairs: conv.pairs(),
        }
    }

    /// Computes the row.
    ///
    /// # Safety
    /// As [`Lanes`] requires.
    #[inline(always)]
    pub(crate) unsafe fn run<V: Lanes, E: LaneElement>(&self, y: &mut [E]) {
        let mut pair = 0;
        while pair < self.pairs {
            let left = self.pairs - pair;
            // Eight independent sums keep both FMA units busy; more of them save loads of weights. AVX2 has
            // registers for four pairs.
            pair += unsafe {
                if self.wide && left >= 14 {
                    self.forward::<V, E, 14>(pair, y)
                } else if self.wide && left >= 7 {
                    self.forward::<V, E, 7>(pair, y)
                } else if left >= 4 {
                    self.forward::<V, E, 4>(pair, y)
                } else if left >= 2 {
                    self.forward::<V, E, 2>(pair, y)
                } else {
                    self.forward::<V, E, 1>(pair, y)
                }
            };
        }
    }

    /// Computes `PAIRS` pairs of pixels, starting with `pair`, and returns `PAIRS`.
    ///
    /// # Safety
    /// As [`Lanes`] requires.
    #[inline(always)]
    unsafe fn forward<V: Lanes, E: LaneElement, const PAIRS: usize>(
        &self,
        pair: usize,
        y: &mut [E],
    ) -> usize {
        // SAFETY: upheld by the caller, here and below.
        let mut sums = [unsafe { V::load(self.bias) }; PAIRS];
        let ring = &self.ring[pair * LANES..];
        assert!(self.last_offset + PAIRS * LANES <= ring.len(), "a window reaches beyond the ring");
        let (mut offsets, mut weights) = (self.offsets, self.weights);
        for &run in self.runs {
            // SAFETY: the assertion covers `PAIRS` registers at the largest offset, and so at the last tap of
            // every run.
            unsafe {
                let from = ring.as_ptr().add(offsets[0]);
                if run == 2 { add_two(from, weights, &mut sums) } else { add_one(from, weights, &mut sums) }
            }
            (offsets, weights) = (&offsets[run..], &weights[run..]);
        }
        if self.relu {
            for sums in &mut sums {
                *sums = unsafe { sums.relu() };
            }
        }
        let at = 2 * pair * self.channels + self.first_channel;
        if self.channels == CHANNELS
            && let Some(y) = y.get_mut(at..at + PAIRS * LANES)
        {
            let y: &mut [[E; LANES]] = y.as_chunks_mut().0;
            for (sums, y) in sums.into_iter().zip(y) {
                unsafe { E::store_lanes(sums, y) };
            }
        } else {
            unsafe { self.store_strided(&sums, at, y) };
        }
        PAIRS
    }

    /// Stores pixels of more than eight channels, or whose last pixel does not exist.
    ///
    /// # Safety
    /// As [`Lanes`] requires.
    #[inline(always)]
    unsafe fn store_strided<V: Lanes, E: LaneElement>(&self, sums: &[V], at: usize, y: &mut [E]) {
        for (number, sums) in sums.iter().enumerate() {
            let mut stored = [E::store(0.0); LANES];
            // SAFETY: upheld by the caller.
            unsafe { E::store_lanes(*sums, &mut stored) };
            for (pixel, stored) in stored.chunks_exact(CHANNELS).enumerate() {
                let at = at + (2 * number + pixel) * self.channels;
                if let Some(y) = y.get_mut(at..at + CHANNELS) {
                    y.copy_from_slice(stored);
                }
            }
        }
    }
}
