//! Bytes that stand for real numbers: `byte = round(real / scale) + zero_point`, ties to even.

use super::elementwise::CpuContext;
use super::simd::{Element, multiversion};
use stratus_engine::ops::Uint8Scale;

/// Added to a number from -255 to 255, it rounds it to an integer, whose two's complement is then in the
/// lowest bits.
pub(super) const ROUNDING: f32 = 12_582_912.0;

impl CpuContext {
    /// See [`stratus_engine::ops::Quantise`].
    pub fn quantise<E: Element>(&self, bytes: Uint8Scale, x: &[E], y: &mut [u8]) {
        self.for_ranges(y, &|range, y| quantise(self.level, bytes, &x[range], y));
    }
}

multiversion! {
    fn quantise / quantise_body [E: Element] [E] (
        bytes: Uint8Scale,
        x: &[E],
        y: &mut [u8],
    )
}

#[inline(always)]
fn quantise_body<E: Element>(bytes: Uint8Scale, x: &[E], y: &mut [u8]) {
    let factor = bytes.scale.recip();
    let low = -f32::from(bytes.zero_point);
    for (y, x) in y.iter_mut().zip(x) {
        let steps = (x.load() * factor).clamp(low, low + 255.0);
        // NaN becomes the first byte.
        let steps = if steps.is_nan() { low } else { steps };
        *y = ((steps + ROUNDING).to_bits() as u8).wrapping_add(bytes.zero_point);
    }
}
