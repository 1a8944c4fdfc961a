//! An array of lanes, in the instructions of the compiler's target.

use super::{Bf16, Element, HALF, LANES, Lanes};

/// An array, in the instructions of the compiler's target.
#[derive(Clone, Copy, Debug)]
pub struct Portable([f32; LANES]);

// SAFETY: requires no special instructions.
unsafe impl Lanes for Portable {
    const MAX_SUMS: usize = 4;
    #[inline(always)]
    unsafe fn splat(value: f32) -> Self {
        Self([value; LANES])
    }
    #[inline(always)]
    unsafe fn load(from: &[f32; LANES]) -> Self {
        Self(*from)
    }
    #[inline(always)]
    unsafe fn store(self, to: &mut [f32; LANES]) {
        *to = self.0;
    }
    #[inline(always)]
    unsafe fn store_half(self, to: &mut [f32; LANES / 2]) {
        *to = std::array::from_fn(|lane| self.0[lane]);
    }
    #[inline(always)]
    unsafe fn store_repeated(self, to: &mut [[f32; LANES]; LANES / 2]) {
        for (at, to) in to.as_flattened_mut().iter_mut().enumerate() {
            *to = self.0[at / HALF];
        }
    }
    #[inline(always)]
    unsafe fn load_bf16(from: &[Bf16; LANES]) -> Self {
        Self(std::array::from_fn(|lane| from[lane].load()))
    }
    #[inline(always)]
    unsafe fn store_bf16(self, to: &mut [Bf16; LANES]) {
        *to = self.0.map(Bf16::store);
    }
    #[inline(always)]
    unsafe fn stream(self, to: &mut [f32; LANES]) {
        // SAFETY: upheld by the caller, here and below.
        unsafe { self.store(to) }
    }
    #[inline(always)]
    unsafe fn stream_bf16(self, to: &mut [Bf16; LANES]) {
        unsafe { self.store_bf16(to) }
    }
    #[inline(always)]
    unsafe fn end_stream() {}
    #[inline(always)]
    unsafe fn multiply_add(self, by: Self, to: Self) -> Self {
        Self(std::array::from_fn(|lane| self.0[lane] * by.0[lane] + to.0[lane]))
    }
    #[inline(always)]
    unsafe fn add(self, other: Self) -> Self {
        Self(std::array::from_fn(|lane| self.0[lane] + other.0[lane]))
    }
    #[inline(always)]
    unsafe fn relu(self) -> Self {
        Self(self.0.map(|value| if value < 0.0 { 0.0 } else { value }))
    }
    #[inline(always)]
    unsafe fn maximum(self, other: Self) -> Self {
        Self(std::array::from_fn(|lane| {
            let (a, b) = (self.0[lane], other.0[lane]);
            if a > b || a.is_nan() { a } else { b }
        }))
    }
    #[inline(always)]
    unsafe fn maximum_magnitude(self, other: Self) -> Self {
        // The bits of non-negative floats are ordered like the floats, NaN last.
        Self(std::array::from_fn(|lane| {
            let bits = [self, other].map(|lanes| lanes.0[lane].abs().to_bits());
            f32::from_bits(bits[0].max(bits[1]))
        }))
    }
    #[inline(always)]
    unsafe fn select_equal(self, other: Self, yes: Self, no: Self) -> Self {
        Self(std::array::from_fn(|lane| if self.0[lane] == other.0[lane] { yes.0[lane] } else { no.0[lane] }))
    }
    #[inline(always)]
    unsafe fn select_not_positive(self, yes: Self, no: Self) -> Self {
        Self(std::array::from_fn(|lane| if self.0[lane] <= 0.0 { yes.0[lane] } else { no.0[lane] }))
    }
    #[inline(always)]
    unsafe fn add_where_byte(self, other: Self, bytes: &[u8; LANES], byte: u8) -> Self {
        Self(std::array::from_fn(|lane| self.0[lane] + if bytes[lane] == byte { other.0[lane] } else { 0.0 }))
    }
    #[inline(always)]
    unsafe fn low_halves(self, other: Self) -> Self {
        Self(std::array::from_fn(|lane| if lane < HALF { self.0[lane] } else { other.0[lane - HALF] }))
    }
    #[inline(always)]
    unsafe fn high_halves(self, other: Self) -> Self {
        Self(std::array::from_fn(|lane| if lane < HALF { self.0[lane + HALF] } else { other.0[lane] }))
    }
    #[inline(always)]
    unsafe fn repeat_in_quads(self, lane: usize) -> Self {
        Self(std::array::from_fn(|to| self.0[to / 4 * 4 + lane.min(3)]))
    }
    #[inline(always)]
    unsafe fn load_u8(from: &[u8; LANES]) -> Self {
        Self(from.map(f32::from))
    }
    #[inline(always)]
    unsafe fn store_u8(self, to: &mut [u8; LANES]) {
        *to = self.0.map(|value| value as u8);
    }
    #[inline(always)]
    unsafe fn store_i16(self, to: &mut [i16; LANES]) {
        *to = self.0.map(|value| value.round_ties_even() as i16);
    }
    #[inline(always)]
    unsafe fn store_i16_pairs(self, other: Self, to: &mut [[i16; 2]; LANES]) {
        *to = std::array::from_fn(|lane| [self, other].map(|lanes| lanes.0[lane].round_ties_even() as i16));
    }
}
