//! A trained factor for each channel of a map, and its gradient. Bound by memory.

use super::by_channel::{sum_channels, with_numbers};
use super::channel_scale::{add_products, multiply};
use super::elementwise::CpuContext;
use super::rows::Geometry;
use super::simd::Element;

/// `y = x * factors`, a number for each channel. Scratch:
/// [`numbers_scratch`](super::by_channel::numbers_scratch).
pub fn layer_scale<E: Element>(
    cpu: &CpuContext,
    geometry: &Geometry,
    x: &[E],
    factors: &[f32],
    y: &mut [E],
    scratch: &mut [f32],
) {
    with_numbers(cpu, geometry, factors, y, scratch, |factors, elements, y| {
        multiply(cpu.level, factors, &x[elements], y);
    });
}

/// `dfactors = Σ x dy` over samples and pixels. Scratch: [`sums_scratch`](super::by_channel::sums_scratch).
pub fn layer_scale_gradient<E: Element>(
    cpu: &CpuContext,
    geometry: &Geometry,
    [x, dy]: [&[E]; 2],
    gradient: &mut [f32],
    scratch: &mut [u8],
) {
    sum_channels(cpu, geometry, gradient, scratch, |elements, sums| {
        add_products(cpu.level, &x[elements.clone()], &dy[elements], sums);
    });
}
