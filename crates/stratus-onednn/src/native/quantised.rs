//! Bytes that stand for real numbers: `byte = real / scale + zero`, rounded to the nearest, ties to even.

use super::elementwise::CpuContext;
use super::simd::{Element, multiversion};
use stratus_engine::ops::Uint8Scale;

/// Added to a number from 0 to 255, it rounds it to an integer, which is then in the lowest bits.
const ROUNDING: f32 = 12_582_912.0;

impl CpuContext {
    /// See [`stratus_engine::ops::Quantise`].
    pub fn quantise<E: Element>(&self, bytes: Uint8Scale, x: &[E], y: &mut [u8]) {
        self.for_ranges(y, &|range, y| quantise(self.level, bytes, &x[range], y));
    }

    /// See [`stratus_engine::ops::Dequantise`].
    pub fn dequantise<E: Element>(&self, bytes: Uint8Scale, x: &[u8], y: &mut [E]) {
        self.for_ranges(y, &|range, y| dequantise(self.level, bytes, &x[range], y));
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
    let (factor, zero) = (bytes.scale.recip(), f32::from(bytes.zero_point));
    for (y, x) in y.iter_mut().zip(x) {
        let byte = (x.load() * factor + zero).clamp(0.0, 255.0);
        // NaN becomes the first byte.
        let byte = if byte.is_nan() { 0.0 } else { byte };
        *y = (byte + ROUNDING).to_bits() as u8;
    }
}

multiversion! {
    fn dequantise / dequantise_body [E: Element] [E] (
        bytes: Uint8Scale,
        x: &[u8],
        y: &mut [E],
    )
}

#[inline(always)]
fn dequantise_body<E: Element>(bytes: Uint8Scale, x: &[u8], y: &mut [E]) {
    let zero = f32::from(bytes.zero_point);
    for (y, &x) in y.iter_mut().zip(x) {
        *y = E::store(bytes.scale * (f32::from(x) - zero));
    }
}
