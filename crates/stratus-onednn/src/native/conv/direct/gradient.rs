//! The gradients of a direct convolution's weights and bias, row by row.

use super::{CHANNELS, DirectConv, Ring};
use crate::native::lanes::{LANES, LaneElement, Lanes, with_lanes};
use std::ops::Range;

with_lanes! {
    pub(crate) fn gradient_rows / gradient_rows_body(
        conv: &DirectConv,
        rows: Range<usize>,
        x: &[E],
        dy: &[E],
        scratch: &mut [f32],
    )
}

/// # Safety
/// As [`Lanes`] requires.
#[inline(always)]
unsafe fn gradient_rows_body<V: Lanes, E: LaneElement>(
    conv: &DirectConv,
    rows: Range<usize>,
    x: &[E],
    dy: &[E],
    scratch: &mut [f32],
) {
    // SAFETY: upheld by the caller.
    unsafe { add_rows::<V, E>(conv, rows, x, &Dense { conv, dy }, scratch) };
}

/// Provides `dy` one row at a time.
pub(crate) trait GradientRows {
    /// Writes row `row`, counted over all images, as pairs of pixels by eight channels, and returns their
    /// sum. An odd row is followed by a pixel of zeros.
    ///
    /// # Safety
    /// As [`Lanes`] requires.
    unsafe fn row<V: Lanes>(&self, row: usize, group: usize, to: &mut [[f32; LANES]]) -> V;
}

/// Sums `x · dy` of every tap, and `dy`, over some rows. The sums are at the end of scratch, packed, then per
/// group of channels.
///
/// # Safety
/// As [`Lanes`] requires.
#[inline(always)]
pub(crate) unsafe fn add_rows<V: Lanes, E: LaneElement>(
    conv: &DirectConv,
    rows: Range<usize>,
    x: &[E],
    gradient: &impl GradientRows,
    scratch: &mut [f32],
) {
    let wide = conv.is_wide();
    let (taps, pairs) = (conv.taps(), conv.pairs());
    let (ring, scratch) = scratch.split_at_mut(conv.ring_floats());
    let (gradients, scratch) = scratch.split_at_mut(conv.groups() * pairs * LANES);
    let (sums, bias_sums) = scratch.split_at_mut(conv.packed_floats());
    sums.fill(0.0);
    bias_sums.fill(0.0);
    let gradients: &mut [[f32; LANES]] = gradients.as_chunks_mut().0;
    let sums: &mut [[f32; LANES]] = sums.as_chunks_mut().0;
    let bias_sums: &mut [[f32; LANES]] = bias_sums.as_chunks_mut().0;
    let mut ring = Ring::new(ring);
    for row in rows {
        // SAFETY: upheld by the caller.
        let offsets = unsafe { conv.fill_ring::<V, E>(x, row, &mut ring) };
        for (group, gradients) in gradients.chunks_exact_mut(pairs).enumerate() {
            // SAFETY: upheld by the caller, here and below.
            let total = unsafe { gradient.row::<V>(row, group, gradients) };
            unsafe { total.add(V::load(&bias_sums[group])).store(&mut bias_sums[group]) };
            let sums = &mut sums[group * taps..(group + 1) * taps];
            let mut tap = 0;
            while tap < taps {
                let (left, offsets, sums) = (taps - tap, &offsets[tap..], &mut sums[tap..]);
                tap += unsafe {
                    if wide && left >= 9 {
                        add_taps::<V, 9>(ring.rows(), offsets, gradients, sums)
                    } else if left >= 4 {
                        add_taps::<V, 4>(ring.rows(), offsets, gradients, sums)
                    } else if left >= 2 {
                        add_taps::<V, 2>(ring.rows(), offsets, gradients, sums)
                    } else {
                        add_taps::<V, 1>(ring.rows(), offsets, gradients, sums)
                    }
                };
            }
        }
    }
}

/// A map `[N, H, W, C]`.
struct Dense<'a, E> {
    conv: &'a DirectConv,
    dy: &'a [E],
}

impl<E: LaneElement> GradientRows for Dense<'_, E> {
    #[inline(always)]
    unsafe fn row<V: Lanes>(&self, row: usize, group: usize, to: &mut [[f32; LANES]]) -> V {
        let conv = self.conv;
        let dy = &self.dy[row * conv.row_elements()..(row + 1) * conv.row_elements()];
        // SAFETY: upheld by the caller, here and below.
        let mut total = unsafe { V::splat(0.0) };
        // Pairs whose channels are contiguous; others are gathered first.
        let contiguous = if conv.out_channels() == CHANNELS { dy.len() / LANES } else { 0 };
        let (whole, strided) = to.split_at_mut(contiguous);
        for (to, from) in whole.iter_mut().zip(dy.as_chunks().0) {
            unsafe {
                let values = E::load_lanes::<V>(from);
                values.store(to);
                total = total.add(values);
            }
        }
        for (number, to) in strided.iter_mut().enumerate() {
            let at = 2 * (contiguous + number) * conv.out_channels() + group * CHANNELS;
            let mut gathered = [E::store(0.0); LANES];
            for (pixel, gathered) in gathered.chunks_exact_mut(CHANNELS).enumerate() {
                let at = at + pixel * conv.out_channels();
                if let Some(from) = dy.get(at..at + CHANNELS) {
                    gathered.copy_from_slice(from);
                }
            }
            unsafe {
                let values = E::load_lanes::<V>(&gathered);
                values.store(to);
                total = total.add(values);
            }
        }
        total
    }
}

/// Adds a row of `dy` to the sums of the first `TAPS` taps, and returns `TAPS`.
///
/// # Safety
/// As [`Lanes`] requires.
#[inline(always)]
unsafe fn add_taps<V: Lanes, const TAPS: usize>(
    ring: &[f32],
    offsets: &[usize],
    gradients: &[[f32; LANES]],
    sums: &mut [[f32; LANES]],
) -> usize {
    // SAFETY: upheld by the caller, here and below.
    let mut row = [unsafe { V::splat(0.0) }; TAPS];
    let mut pixels = [<&[[f32; LANES]]>::default(); TAPS];
    for tap in 0..TAPS {
        let at = offsets[tap];
        pixels[tap] = ring[at..at + gradients.len() * LANES].as_chunks().0;
        assert!(pixels[tap].len() == gradients.len());
    }
    for (pair, gradient) in gradients.iter().enumerate() {
        let gradient = unsafe { V::load(gradient) };
        for tap in 0..TAPS {
            row[tap] = unsafe { V::load(&pixels[tap][pair]).multiply_add(gradient, row[tap]) };
        }
    }
    for (sums, row) in sums.iter_mut().zip(row) {
        unsafe { row.add(V::load(sums)).store(sums) };
    }
    TAPS
}
