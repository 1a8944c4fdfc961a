//! One AVX-512 register.

use super::{Bf16, LANES, Lanes};
use std::arch::x86_64::*;

/// One AVX-512 register.
#[derive(Clone, Copy, Debug)]
#[repr(transparent)]
pub struct Avx512(__m512);

/// Rounds to bf16.
#[inline(always)]
unsafe fn rounded(values: Avx512) -> __m256i {
    // SAFETY: upheld by the caller: AVX-512.
    unsafe {
        let bits = _mm512_castps_si512(values.0);
        let upper = _mm512_srli_epi32::<16>(bits);
        let odd = _mm512_and_si512(upper, _mm512_set1_epi32(1));
        let half = _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff));
        let rounded = _mm512_srli_epi32::<16>(_mm512_add_epi32(bits, half));
        let nan = _mm512_cmp_ps_mask::<_CMP_UNORD_Q>(values.0, values.0);
        let stored = _mm512_mask_or_epi32(rounded, nan, upper, _mm512_set1_epi32(0x40));
        _mm512_cvtepi32_epi16(stored)
    }
}

// SAFETY: this applies to every block below. The trait's contract guarantees the instructions, and the arrays
// have the length of a register.
unsafe impl Lanes for Avx512 {
    const MAX_SUMS: usize = 16;
    #[inline(always)]
    unsafe fn splat(value: f32) -> Self {
        Self(unsafe { _mm512_set1_ps(value) })
    }
    #[inline(always)]
    unsafe fn load(from: &[f32; LANES]) -> Self {
        Self(unsafe { _mm512_loadu_ps(from.as_ptr()) })
    }
    #[inline(always)]
    unsafe fn store(self, to: &mut [f32; LANES]) {
        unsafe { _mm512_storeu_ps(to.as_mut_ptr(), self.0) }
    }
    #[inline(always)]
    unsafe fn store_half(self, to: &mut [f32; LANES / 2]) {
        unsafe { _mm256_storeu_ps(to.as_mut_ptr(), _mm512_castps512_ps256(self.0)) }
    }
    #[inline(always)]
    unsafe fn store_repeated(self, to: &mut [[f32; LANES]; LANES / 2]) {
        unsafe {
            // If the compiler knew that the values come from bf16, it would permute those instead, with an
            // instruction of three times the cost.
            let values = std::hint::black_box(self.0);
            let mut lanes = _mm512_set_epi32(1, 1, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0);
            for to in to {
                _mm512_storeu_ps(to.as_mut_ptr(), _mm512_permutexvar_ps(lanes, values));
                lanes = _mm512_add_epi32(lanes, _mm512_set1_epi32(2));
            }
        }
    }
    #[inline(always)]
    unsafe fn load_bf16(from: &[Bf16; LANES]) -> Self {
        unsafe {
            let bits = _mm512_cvtepu16_epi32(_mm256_loadu_si256(from.as_ptr().cast()));
            Self(_mm512_castsi512_ps(_mm512_slli_epi32::<16>(bits)))
        }
    }
    #[inline(always)]
    unsafe fn store_bf16(self, to: &mut [Bf16; LANES]) {
        unsafe { _mm256_storeu_si256(to.as_mut_ptr().cast(), rounded(self)) }
    }
    #[inline(always)]
    unsafe fn stream(self, to: &mut [f32; LANES]) {
        unsafe { _mm512_stream_ps(to.as_mut_ptr(), self.0) }
    }
    #[inline(always)]
    unsafe fn stream_bf16(self, to: &mut [Bf16; LANES]) {
        unsafe { _mm256_stream_si256(to.as_mut_ptr().cast(), rounded(self)) }
    }
    #[inline(always)]
    unsafe fn end_stream() {
        unsafe { _mm_sfence() };
    }
    #[inline(always)]
    unsafe fn multiply_add(self, by: Self, to: Self) -> Self {
        Self(unsafe { _mm512_fmadd_ps(self.0, by.0, to.0) })
    }
    #[inline(always)]
    unsafe fn add(self, other: Self) -> Self {
        Self(unsafe { _mm512_add_ps(self.0, other.0) })
    }
    #[inline(always)]
    unsafe fn relu(self) -> Self {
        // MAXPS returns the second operand if either is NaN.
        Self(unsafe { _mm512_max_ps(_mm512_setzero_ps(), self.0) })
    }
    #[inline(always)]
    unsafe fn maximum(self, other: Self) -> Self {
        unsafe {
            let nan = _mm512_cmp_ps_mask::<_CMP_UNORD_Q>(self.0, self.0);
            Self(_mm512_mask_mov_ps(_mm512_max_ps(self.0, other.0), nan, self.0))
        }
    }
    #[inline(always)]
    unsafe fn maximum_magnitude(self, other: Self) -> Self {
        unsafe {
            let [magnitude_so_far, other] = [self, other].map(|lanes| _mm512_castps_si512(lanes.0));
            let magnitude = _mm512_and_si512(other, _mm512_set1_epi32(i32::MAX));
            Self(_mm512_castsi512_ps(_mm512_max_epu32(magnitude_so_far, magnitude)))
        }
    }
    #[inline(always)]
    unsafe fn select_equal(self, other: Self, yes: Self, no: Self) -> Self {
        unsafe {
            let equal = _mm512_cmp_ps_mask::<_CMP_EQ_OQ>(self.0, other.0);
            Self(_mm512_mask_mov_ps(no.0, equal, yes.0))
        }
    }
    #[inline(always)]
    unsafe fn select_not_positive(self, yes: Self, no: Self) -> Self {
        unsafe {
            let cut = _mm512_cmp_ps_mask::<_CMP_LE_OQ>(self.0, _mm512_setzero_ps());
            Self(_mm512_mask_mov_ps(no.0, cut, yes.0))
        }
    }
    #[inline(always)]
    unsafe fn add_where_byte(self, other: Self, bytes: &[u8; LANES], byte: u8) -> Self {
        unsafe {
            let bytes = _mm_loadu_si128(bytes.as_ptr().cast());
            let equal = _mm_cmpeq_epi8_mask(bytes, _mm_set1_epi8(byte.cast_signed()));
            Self(_mm512_mask_add_ps(self.0, equal, self.0, other.0))
        }
    }
    #[inline(always)]
    unsafe fn low_halves(self, other: Self) -> Self {
        Self(unsafe { _mm512_shuffle_f32x4::<0b01_00_01_00>(self.0, other.0) })
    }
    #[inline(always)]
    unsafe fn high_halves(self, other: Self) -> Self {
        Self(unsafe { _mm512_shuffle_f32x4::<0b11_10_11_10>(self.0, other.0) })
    }
    #[inline(always)]
    unsafe fn repeat_in_quads(self, lane: usize) -> Self {
        Self(unsafe {
            match lane {
                0 => _mm512_permute_ps::<0x00>(self.0),
                1 => _mm512_permute_ps::<0x55>(self.0),
                2 => _mm512_permute_ps::<0xaa>(self.0),
                _ => _mm512_permute_ps::<0xff>(self.0),
            }
        })
    }
    #[inline(always)]
    unsafe fn load_u8(from: &[u8; LANES]) -> Self {
        unsafe { Self(_mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(_mm_loadu_si128(from.as_ptr().cast())))) }
    }
    #[inline(always)]
    unsafe fn store_u8(self, to: &mut [u8; LANES]) {
        unsafe {
            let bytes = _mm512_cvtepi32_epi8(_mm512_cvttps_epi32(self.0));
            _mm_storeu_si128(to.as_mut_ptr().cast(), bytes);
        }
    }
    #[inline(always)]
    unsafe fn store_i16(self, to: &mut [i16; LANES]) {
        unsafe {
            let words = _mm512_cvtepi32_epi16(_mm512_cvtps_epi32(self.0));
            _mm256_storeu_si256(to.as_mut_ptr().cast(), words);
        }
    }
    #[inline(always)]
    unsafe fn store_i16_pairs(self, other: Self, to: &mut [[i16; 2]; LANES]) {
        unsafe {
            let [first, second] = [self, other].map(|lanes| _mm512_cvtps_epi32(lanes.0));
            let second = _mm512_slli_epi32::<16>(second);
            let pairs = _mm512_mask_blend_epi16(0xaaaa_aaaa, first, second);
            _mm512_storeu_si512(to.as_mut_ptr().cast(), pairs);
        }
    }
    #[inline(always)]
    unsafe fn transpose(rows: [Self; LANES]) -> [Self; LANES] {
        // SAFETY: upheld by the caller; both are 64 bytes. (A `map` over the array would call a function per
        // element.)
        unsafe {
            let rows = std::mem::transmute::<[Self; LANES], [__m512i; LANES]>(rows);
            std::mem::transmute::<[__m512i; LANES], [Self; LANES]>(transpose(rows))
        }
    }
}

/// Transposes 16×16 numbers of 32 bits, in four rounds of sixteen shuffles.
#[inline]
#[target_feature(enable = "avx512f")]
pub fn transpose(rows: [__m512i; LANES]) -> [__m512i; LANES] {
    let mut a = rows;
    for i in 0..8 {
        a[2 * i] = _mm512_unpacklo_epi32(rows[2 * i], rows[2 * i + 1]);
        a[2 * i + 1] = _mm512_unpackhi_epi32(rows[2 * i], rows[2 * i + 1]);
    }
    let mut b = a;
    for i in 0..4 {
        let [r0, r1, r2, r3] = [a[4 * i], a[4 * i + 1], a[4 * i + 2], a[4 * i + 3]];
        b[4 * i] = _mm512_unpacklo_epi64(r0, r2);
        b[4 * i + 1] = _mm512_unpackhi_epi64(r0, r2);
        b[4 * i + 2] = _mm512_unpacklo_epi64(r1, r3);
        b[4 * i + 3] = _mm512_unpackhi_epi64(r1, r3);
    }
    // Now register 4 i + j holds, per quarter q, column 4 q + j of rows 4 i to 4 i + 3.
    let mut c = b;
    for j in 0..4 {
        let [r0, r1, r2, r3] = [b[j], b[4 + j], b[8 + j], b[12 + j]];
        let [low, high] = [_mm512_shuffle_i32x4::<0x88>(r0, r1), _mm512_shuffle_i32x4::<0xdd>(r0, r1)];
        let [low2, high2] = [_mm512_shuffle_i32x4::<0x88>(r2, r3), _mm512_shuffle_i32x4::<0xdd>(r2, r3)];
        c[j] = _mm512_shuffle_i32x4::<0x88>(low, low2);
        c[4 + j] = _mm512_shuffle_i32x4::<0x88>(high, high2);
        c[8 + j] = _mm512_shuffle_i32x4::<0xdd>(low, low2);
        c[12 + j] = _mm512_shuffle_i32x4::<0xdd>(high, high2);
    }
    c
}
