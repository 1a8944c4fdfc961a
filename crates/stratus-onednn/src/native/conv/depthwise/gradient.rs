//! The gradients of weights and bias: sums along a row of the output, several taps at a time.

use super::{DepthwiseConv, GradientTap, TapGroup};
use crate::native::lanes::{LANES, LaneElement, Lanes, with_lanes};
use crate::native::simd::prefetch_l2;
use crate::native::threads::split;
use std::ops::Range;

with_lanes! {
    pub(super) fn gradient_rows / gradient_rows_body(
        conv: &DepthwiseConv,
        rows: Range<usize>,
        x: &[E],
        dy: &[E],
        has_bias: bool,
        sums: &mut [f32],
    )
}

/// # Safety
/// As [`Lanes`] requires.
#[inline(always)]
unsafe fn gradient_rows_body<V: Lanes, E: LaneElement>(
    conv: &DepthwiseConv,
    rows: Range<usize>,
    x: &[E],
    dy: &[E],
    has_bias: bool,
    sums: &mut [f32],
) {
    let [x_row, dy_row] = [conv.forward.source, conv.forward.result].map(|[_, width]| width * conv.channels);
    sums.fill(0.0);
    let sums: &mut [[f32; LANES]] = sums.as_chunks_mut().0;
    for row in rows {
        let (class, x) = conv.forward.row(row, conv.channels, x);
        // The rows that the next row reads first.
        let next = conv.forward.classes[class].height() * x_row;
        let next_x = x.get(next..(next + conv.stride[0] * x_row).min(x.len())).unwrap_or_default();
        let next_dy = dy.get((row + 1) * dy_row..(row + 2) * dy_row).unwrap_or_default();
        let dy = &dy[row * dy_row..(row + 1) * dy_row];
        let groups = &conv.gradient_groups[class];
        groups.iter().for_each(|group| check(conv, group, x, dy));
        let kernel = GradientKernel { conv, x, dy };
        for (block, sums) in sums.chunks_exact_mut(conv.taps() + 1).enumerate() {
            // A part with each block, so that the memory is busy all the time.
            for next in [next_x, next_dy] {
                prefetch_l2(&next[split(next.len(), conv.blocks(), block)]);
            }
            // SAFETY: upheld by the caller; all groups were checked.
            unsafe { kernel.block::<V>(conv.block_start(block), groups, has_bias, sums) };
        }
    }
}

/// Checks that all pixels of a group's taps are inside of `x`, the input from the first row that is read, and
/// of the row `dy`.
fn check<E>(conv: &DepthwiseConv, group: &TapGroup, x: &[E], dy: &[E]) {
    let (channels, step) = (conv.channels as isize, (conv.stride[1] * conv.channels) as isize);
    for GradientTap { outputs, offset, .. } in &group.taps {
        let first = offset + outputs.start as isize * step;
        let end = offset + (outputs.end as isize - 1) * step + channels;
        assert!(first >= 0 && end <= x.len() as isize, "a tap reaches beyond the map");
        assert!(outputs.end * conv.channels <= dy.len(), "a tap reaches beyond the row");
        assert!(group.common.is_empty() || outputs.start <= group.common.start);
        assert!(group.common.is_empty() || group.common.end <= outputs.end);
    }
}

/// Adds a row of the output to the sums.
struct GradientKernel<'a, E> {
    conv: &'a DepthwiseConv,
    /// An image, from the first row that the output row reads.
    x: &'a [E],
    dy: &'a [E],
}

impl<E: LaneElement> GradientKernel<'_, E> {
    /// Adds a register of channels.
    ///
    /// # Safety
    /// As [`Lanes`] requires; the groups were [checked](check), and the register is inside of a pixel.
    #[inline(always)]
    unsafe fn block<V: Lanes>(
        &self,
        channel: usize,
        groups: &[TapGroup],
        has_bias: bool,
        sums: &mut [[f32; LANES]],
    ) {
        for group in groups {
            // SAFETY: upheld by the caller, here and below.
            unsafe {
                match group.taps.len() {
                    9 => self.taps::<V, 9>(channel, group, sums),
                    5 => self.taps::<V, 5>(channel, group, sums),
                    4 => self.taps::<V, 4>(channel, group, sums),
                    3 => self.taps::<V, 3>(channel, group, sums),
                    _ => self.taps::<V, 1>(channel, group, sums),
                }
            }
        }
        if has_bias {
            let last = &mut sums[self.conv.taps()];
            unsafe {
                let mut sum = V::splat(0.0);
                for pixel in self.dy.chunks_exact(self.conv.channels) {
                    sum = sum.add(E::load_lanes(&*pixel.as_ptr().add(channel).cast()));
                }
                sum.add(V::load(last)).store(last);
            }
        }
    }

    /// Adds a group of `TAPS` taps.
    ///
    /// # Safety
    /// As [`Self::block`].
    #[inline(always)]
    unsafe fn taps<V: Lanes, const TAPS: usize>(
        &self,
        channel: usize,
        group: &TapGroup,
        sums: &mut [[f32; LANES]],
    ) {
        let channels = self.conv.channels;
        let step = self.conv.stride[1] * channels;
        let Some(taps) = group.taps.first_chunk::<TAPS>() else { return };
        let Range { start: from, end: to } = group.common;
        // SAFETY: upheld by the caller.
        unsafe {
            let x = self.x.as_ptr().add(channel);
            let dy = self.dy.as_ptr().add(channel);
            let offsets: [isize; TAPS] = std::array::from_fn(|tap| taps[tap].offset);
            let mut row = [V::splat(0.0); TAPS];
            for pixel in from..to {
                let gradient = E::load_lanes::<V>(&*dy.add(pixel * channels).cast());
                let x = x.wrapping_add(pixel * step);
                for (sum, offset) in row.iter_mut().zip(offsets) {
                    let value = E::load_lanes::<V>(&*x.wrapping_offset(offset).cast());
                    *sum = value.multiply_add(gradient, *sum);
                }
            }
            for (mut sum, GradientTap { tap, outputs, offset }) in row.into_iter().zip(taps) {
                let before = outputs.start..from.min(outputs.end);
                for pixel in before.chain(to.max(outputs.start)..outputs.end) {
                    let gradient = E::load_lanes::<V>(&*dy.add(pixel * channels).cast());
                    let value = x.wrapping_add(pixel * step).wrapping_offset(*offset);
                    sum = E::load_lanes::<V>(&*value.cast()).multiply_add(gradient, sum);
                }
                let total = &mut sums[*tap];
                sum.add(V::load(total)).store(total);
            }
        }
    }
}
