//! Multiplies a map by trained factors per channel, and computes their gradient. Memory-bound.

use super::by_channel::{sum_channels, with_channel_constants};
use super::channel_scale::{add_products, multiply};
use super::elementwise::CpuContext;
use super::rows::MapGeometry;
use super::simd::Element;

/// `y = x * factors`, one factor per channel. Scratch:
/// [`constants_scratch_bytes`](super::by_channel::constants_scratch_bytes).
pub fn layer_scale<E: Element>(
    cpu: &CpuContext,
    geometry: &MapGeometry,
    x: &[E],
    factors: &[f32],
    y: &mut [E],
    scratch: &mut [f32],
) {
    with_channel_constants(cpu, geometry, factors, y, scratch, |factors, elements, y| {
        multiply(cpu.level, factors, &x[elements], y);
    });
}

/// `dfactors = Σ x dy` over samples and pixels. Scratch:
/// [`sums_scratch_bytes`](super::by_channel::sums_scratch_bytes).
pub fn layer_scale_gradient<E: Element>(
    cpu: &CpuContext,
    geometry: &MapGeometry,
    [x, dy]: [&[E]; 2],
    gradient: &mut [f32],
    scratch: &mut [u8],
) {
    sum_channels(cpu, geometry, gradient, scratch, |elements, sums| {
        add_products(cpu.level, &x[elements.clone()], &dy[elements], sums);
    });
}
