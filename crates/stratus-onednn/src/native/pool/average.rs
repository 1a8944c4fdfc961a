//! Average pooling over windows, and adaptive to a given size.
//!
//! Memory-bound: forward reads the map once and writes the pooled one, backward vice versa. Sums are `f32`
//! for every element type. Threads divide the written rows.

use crate::native::elementwise::CpuContext;
use crate::native::rows::{MapGeometry, for_each_row};
use crate::native::simd::{Element, multiversion};
use std::ops::Range;
use stratus_engine::ops::{AvgPooling, PoolRange};

/// An average-pooling. Input and output have the same channels in the same groups.
#[derive(Clone, Debug)]
pub struct AvgPool {
    input: MapGeometry,
    output: MapGeometry,
    vertical: Axis,
    horizontal: Axis,
    cpu: CpuContext,
}

/// One axis of a pooling.
#[derive(Clone, Debug)]
struct Axis {
    /// Per output, the range of inputs that it averages.
    pixels: Vec<Range<usize>>,
    /// Per output, 1 / the number of inputs that count.
    shares: Vec<f32>,
    /// Per input, the range of outputs that average it.
    readers: Vec<Range<usize>>,
}

impl Axis {
    fn new(averages: &AvgPooling, axis: usize, outputs: usize, inputs: usize) -> Self {
        let stretches: Vec<PoolRange> =
            (0..outputs).map(|index| averages.range(axis, index, inputs)).collect();
        // The ranges have ascending starts and ends, so those that contain a position are consecutive.
        let readers = (0..inputs)
            .map(|position| {
                let first = stretches.partition_point(|stretch| stretch.pixels.end <= position);
                first..stretches.partition_point(|stretch| stretch.pixels.start <= position).max(first)
            })
            .collect();
        Self {
            shares: stretches.iter().map(|stretch| 1.0 / stretch.count as f32).collect(),
            pixels: stretches.into_iter().map(|stretch| stretch.pixels).collect(),
            readers,
        }
    }
}

/// The maximum number of channels summed at a time: long enough for the hardware prefetcher, short enough for
/// sums to stay in L1.
const MAX_BLOCK: usize = 256;

/// Calls `$function` with the number of channels as a constant if they are blocks of 16.
macro_rules! by_width {
    ($width:expr, $function:ident::<$element:ty>($($argument:expr),* $(,)?)) => {
        match $width {
            16 => $function::<$element, 16>($($argument),*),
            _ => $function::<$element, MAX_BLOCK>($($argument),*),
        }
    };
}

impl AvgPool {
    /// The pooling between maps of these geometries.
    #[must_use]
    pub fn new(averages: &AvgPooling, input: MapGeometry, output: MapGeometry, cpu: &CpuContext) -> Self {
        let vertical = Axis::new(averages, 0, output.height, input.height);
        let horizontal = Axis::new(averages, 1, output.row_pixels, input.row_pixels);
        Self { input, output, vertical, horizontal, cpu: cpu.clone() }
    }

    /// Computes `y` from `x`.
    pub fn forward<E: Element>(&self, x: &[E], y: &mut [E]) {
        let (input, output) = (&self.input, &self.output);
        for_each_row(&self.cpu.team, output, y, &|plane, row, y| {
            let x = &x[plane * input.plane_elements()..][..input.plane_elements()];
            by_width!(input.pixel_channels, average_row::<E>(self.cpu.level, self, row, x, y));
        });
    }

    /// Computes `dx` from `dy`: each pixel gathers from the outputs that average it.
    pub fn backward<E: Element>(&self, dy: &[E], dx: &mut [E]) {
        let (input, output) = (&self.input, &self.output);
        for_each_row(&self.cpu.team, input, dx, &|plane, row, dx| {
            let dy = &dy[plane * output.plane_elements()..][..output.plane_elements()];
            by_width!(input.pixel_channels, gather_row::<E>(self.cpu.level, self, row, dy, dx));
        });
    }
}

/// Blocks of at most `K` of `width` channels. With blocks of 16 the length is a constant.
#[inline(always)]
fn blocks<const K: usize>(width: usize) -> impl Iterator<Item = (usize, usize)> {
    (0..width).step_by(K).map(move |first| (first, if K == 16 { K } else { K.min(width - first) }))
}

multiversion! {
    fn average_row / average_row_body [E: Element, const K: usize] [E, K] (
        pool: &AvgPool, row: usize, x: &[E], y: &mut [E],
    )
}

#[inline(always)]
fn average_row_body<E: Element, const K: usize>(pool: &AvgPool, row: usize, x: &[E], y: &mut [E]) {
    let (in_row, width) = (pool.input.row_pixels, pool.input.pixel_channels);
    for (column, y) in y.chunks_exact_mut(width).enumerate() {
        let share = pool.vertical.shares[row] * pool.horizontal.shares[column];
        for (first, length) in blocks::<K>(width) {
            let mut sums = [0.0f32; K];
            let sums = &mut sums[..length];
            for i in pool.vertical.pixels[row].clone() {
                for j in pool.horizontal.pixels[column].clone() {
                    let x = &x[(i * in_row + j) * width + first..][..length];
                    for (sum, x) in sums.iter_mut().zip(x) {
                        *sum += x.load();
                    }
                }
            }
            for (y, sum) in y[first..first + length].iter_mut().zip(sums) {
                *y = E::store(*sum * share);
            }
        }
    }
}

multiversion! {
    fn gather_row / gather_row_body [E: Element, const K: usize] [E, K] (
        pool: &AvgPool, row: usize, dy: &[E], dx: &mut [E],
    )
}

#[inline(always)]
fn gather_row_body<E: Element, const K: usize>(pool: &AvgPool, row: usize, dy: &[E], dx: &mut [E]) {
    let (out_row, width) = (pool.output.row_pixels, pool.output.pixel_channels);
    for (column, dx) in dx.chunks_exact_mut(width).enumerate() {
        for (first, length) in blocks::<K>(width) {
            let mut sums = [0.0f32; K];
            let sums = &mut sums[..length];
            for i in pool.vertical.readers[row].clone() {
                for j in pool.horizontal.readers[column].clone() {
                    let share = pool.vertical.shares[i] * pool.horizontal.shares[j];
                    let dy = &dy[(i * out_row + j) * width + first..][..length];
                    for (sum, dy) in sums.iter_mut().zip(dy) {
                        *sum = dy.load().mul_add(share, *sum);
                    }
                }
            }
            for (dx, sum) in dx[first..first + length].iter_mut().zip(sums) {
                *dx = E::store(*sum);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::native::simd::IsaLevel;
    use crate::native::threads::ThreadTeam;
    use stratus_graph::ops::{AdaptiveAvgPool2d, AvgPool2d};

    /// Positions that no window covers have no readers; shared positions have several.
    #[test]
    fn readers_are_the_outputs_that_contain_a_position() {
        let gaps = AvgPooling::Windows(AvgPool2d::new(2, 3, 0));
        assert_eq!(Axis::new(&gaps, 0, 2, 6).readers, [0..1, 0..1, 1..1, 1..2, 1..2, 2..2]);
        let overlap = AvgPooling::Windows(AvgPool2d::new(3, 2, 1));
        assert_eq!(Axis::new(&overlap, 0, 3, 5).readers, [0..1, 0..2, 1..2, 1..3, 2..3]);
        let more_bins_than_pixels = AvgPooling::Bins(AdaptiveAvgPool2d { output: [4, 4] });
        assert_eq!(Axis::new(&more_bins_than_pixels, 0, 4, 2).readers, [0..2, 2..4]);
    }

    /// More channels than a block of sums, and a block of 16.
    #[test]
    fn every_level_gives_the_same_bits() {
        for width in [16, 300] {
            let geometry = |height, row| MapGeometry {
                planes: 2,
                height,
                row_pixels: row,
                pixel_channels: width,
                groups: 1,
                channels: width,
            };
            for (averages, to) in [
                (AvgPooling::Windows(AvgPool2d::new(3, 2, 1)), [3, 4]),
                (AvgPooling::Bins(AdaptiveAvgPool2d { output: [2, 3] }), [2, 3]),
            ] {
                let (input, output) = (geometry(5, 7), geometry(to[0], to[1]));
                let both = |level| {
                    let cpu = CpuContext { team: ThreadTeam::single(), level };
                    let pool = AvgPool::new(&averages, input, output, &cpu);
                    let x: Vec<f32> =
                        (0..2 * input.plane_elements()).map(|i| (i * 37 % 101) as f32 / 50.0 - 1.0).collect();
                    let (mut y, mut dx) =
                        (vec![f32::NAN; 2 * output.plane_elements()], vec![f32::NAN; x.len()]);
                    pool.forward(&x, &mut y);
                    pool.backward(&y, &mut dx);
                    [y, dx]
                };
                let baseline = both(IsaLevel::detect([false, false]));
                assert!(baseline.iter().flatten().all(|value| value.is_finite()));
                for level in IsaLevel::all() {
                    assert_eq!(both(level), baseline, "{width} {}", level.name());
                }
            }
        }
    }
}
