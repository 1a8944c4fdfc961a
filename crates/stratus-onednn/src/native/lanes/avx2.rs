//! Two AVX2 registers.

use super::{Bf16, HALF, LANES, Lanes};
use std::arch::x86_64::*;

/// Two AVX2 registers.
#[derive(Clone, Copy, Debug)]
pub struct Avx2(__m256, __m256);

/// Rounds to bf16, in the lower halves of the words.
#[inline(always)]
unsafe fn rounded(values: __m256) -> __m256i {
    // SAFETY: upheld by the caller: AVX2.
    unsafe {
        let bits = _mm256_castps_si256(values);
        let upper = _mm256_srli_epi32::<16>(bits);
        let odd = _mm256_and_si256(upper, _mm256_set1_epi32(1));
        let half = _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff));
        let rounded = _mm256_srli_epi32::<16>(_mm256_add_epi32(bits, half));
        let nan = _mm256_castps_si256(_mm256_cmp_ps::<_CMP_UNORD_Q>(values, values));
        let quiet = _mm256_or_si256(upper, _mm256_set1_epi32(0x40));
        _mm256_blendv_epi8(rounded, quiet, nan)
    }
}

/// Rounds all lanes to bf16.
#[inline(always)]
unsafe fn packed(values: Avx2) -> __m256i {
    // SAFETY: upheld by the caller: AVX2.
    unsafe {
        // Packing interleaves 64-bit halves of its operands.
        let packed = _mm256_packus_epi32(rounded(values.0), rounded(values.1));
        _mm256_permute4x64_epi64::<0b11_01_10_00>(packed)
    }
}

// SAFETY: as above; this applies to every block below.
unsafe impl Lanes for Avx2 {
    const MAX_SUMS: usize = 4;
    #[inline(always)]
    unsafe fn splat(value: f32) -> Self {
        unsafe { Self(_mm256_set1_ps(value), _mm256_set1_ps(value)) }
    }
    #[inline(always)]
    unsafe fn load(from: &[f32; LANES]) -> Self {
        let from = from.as_ptr();
        unsafe { Self(_mm256_loadu_ps(from), _mm256_loadu_ps(from.add(LANES / 2))) }
    }
    #[inline(always)]
    unsafe fn store(self, to: &mut [f32; LANES]) {
        let to = to.as_mut_ptr();
        unsafe {
            _mm256_storeu_ps(to, self.0);
            _mm256_storeu_ps(to.add(LANES / 2), self.1);
        }
    }
    #[inline(always)]
    unsafe fn store_half(self, to: &mut [f32; LANES / 2]) {
        unsafe { _mm256_storeu_ps(to.as_mut_ptr(), self.0) }
    }
    #[inline(always)]
    unsafe fn store_repeated(self, to: &mut [[f32; LANES]; LANES / 2]) {
        unsafe {
            for (at, to) in to.as_flattened_mut().as_chunks_mut::<HALF>().0.iter_mut().enumerate() {
                let half = if at < HALF { self.0 } else { self.1 };
                let value = _mm256_permutevar8x32_ps(half, _mm256_set1_epi32((at % HALF) as i32));
                _mm256_storeu_ps(to.as_mut_ptr(), value);
            }
        }
    }
    #[inline(always)]
    unsafe fn load_bf16(from: &[Bf16; LANES]) -> Self {
        unsafe {
            let bits = _mm256_loadu_si256(from.as_ptr().cast());
            let [low, high] = [_mm256_castsi256_si128(bits), _mm256_extracti128_si256::<1>(bits)]
                .map(|half| _mm256_castsi256_ps(_mm256_slli_epi32::<16>(_mm256_cvtepu16_epi32(half))));
            Self(low, high)
        }
    }
    #[inline(always)]
    unsafe fn store_bf16(self, to: &mut [Bf16; LANES]) {
        unsafe { _mm256_storeu_si256(to.as_mut_ptr().cast(), packed(self)) }
    }
    #[inline(always)]
    unsafe fn stream(self, to: &mut [f32; LANES]) {
        let to = to.as_mut_ptr();
        unsafe {
            _mm256_stream_ps(to, self.0);
            _mm256_stream_ps(to.add(LANES / 2), self.1);
        }
    }
    #[inline(always)]
    unsafe fn stream_bf16(self, to: &mut [Bf16; LANES]) {
        unsafe { _mm256_stream_si256(to.as_mut_ptr().cast(), packed(self)) }
    }
    #[inline(always)]
    unsafe fn end_stream() {
        unsafe { _mm_sfence() };
    }
    #[inline(always)]
    unsafe fn multiply_add(self, by: Self, to: Self) -> Self {
        unsafe { Self(_mm256_fmadd_ps(self.0, by.0, to.0), _mm256_fmadd_ps(self.1, by.1, to.1)) }
    }
    #[inline(always)]
    unsafe fn add(self, other: Self) -> Self {
        unsafe { Self(_mm256_add_ps(self.0, other.0), _mm256_add_ps(self.1, other.1)) }
    }
    #[inline(always)]
    unsafe fn relu(self) -> Self {
        unsafe {
            Self(_mm256_max_ps(_mm256_setzero_ps(), self.0), _mm256_max_ps(_mm256_setzero_ps(), self.1))
        }
    }
    #[inline(always)]
    unsafe fn maximum(self, other: Self) -> Self {
        unsafe {
            let nan = _mm256_cmp_ps::<_CMP_UNORD_Q>(self.0, self.0);
            let first = _mm256_blendv_ps(_mm256_max_ps(self.0, other.0), self.0, nan);
            let nan = _mm256_cmp_ps::<_CMP_UNORD_Q>(self.1, self.1);
            Self(first, _mm256_blendv_ps(_mm256_max_ps(self.1, other.1), self.1, nan))
        }
    }
    #[inline(always)]
    unsafe fn maximum_magnitude(self, other: Self) -> Self {
        unsafe {
            let larger = |magnitude_so_far, other| {
                let [magnitude_so_far, other] =
                    [magnitude_so_far, other].map(|half| _mm256_castps_si256(half));
                let magnitude = _mm256_and_si256(other, _mm256_set1_epi32(i32::MAX));
                _mm256_castsi256_ps(_mm256_max_epu32(magnitude_so_far, magnitude))
            };
            Self(larger(self.0, other.0), larger(self.1, other.1))
        }
    }
    #[inline(always)]
    unsafe fn select_equal(self, other: Self, yes: Self, no: Self) -> Self {
        unsafe {
            Self(
                _mm256_blendv_ps(no.0, yes.0, _mm256_cmp_ps::<_CMP_EQ_OQ>(self.0, other.0)),
                _mm256_blendv_ps(no.1, yes.1, _mm256_cmp_ps::<_CMP_EQ_OQ>(self.1, other.1)),
            )
        }
    }
    #[inline(always)]
    unsafe fn select_not_positive(self, yes: Self, no: Self) -> Self {
        unsafe {
            let zero = _mm256_setzero_ps();
            Self(
                _mm256_blendv_ps(no.0, yes.0, _mm256_cmp_ps::<_CMP_LE_OQ>(self.0, zero)),
                _mm256_blendv_ps(no.1, yes.1, _mm256_cmp_ps::<_CMP_LE_OQ>(self.1, zero)),
            )
        }
    }
    #[inline(always)]
    unsafe fn add_where_byte(self, other: Self, bytes: &[u8; LANES], byte: u8) -> Self {
        unsafe {
            let bytes = _mm_loadu_si128(bytes.as_ptr().cast());
            let equal = _mm_cmpeq_epi8(bytes, _mm_set1_epi8(byte.cast_signed()));
            let [low, high] = [equal, _mm_unpackhi_epi64(equal, equal)]
                .map(|equal| _mm256_castsi256_ps(_mm256_cvtepi8_epi32(equal)));
            Self(
                _mm256_add_ps(self.0, _mm256_and_ps(other.0, low)),
                _mm256_add_ps(self.1, _mm256_and_ps(other.1, high)),
            )
        }
    }
    #[inline(always)]
    unsafe fn low_halves(self, other: Self) -> Self {
        Self(self.0, other.0)
    }
    #[inline(always)]
    unsafe fn high_halves(self, other: Self) -> Self {
        Self(self.1, other.1)
    }
    #[inline(always)]
    unsafe fn repeat_in_quads(self, lane: usize) -> Self {
        unsafe {
            match lane {
                0 => Self(_mm256_permute_ps::<0x00>(self.0), _mm256_permute_ps::<0x00>(self.1)),
                1 => Self(_mm256_permute_ps::<0x55>(self.0), _mm256_permute_ps::<0x55>(self.1)),
                2 => Self(_mm256_permute_ps::<0xaa>(self.0), _mm256_permute_ps::<0xaa>(self.1)),
                _ => Self(_mm256_permute_ps::<0xff>(self.0), _mm256_permute_ps::<0xff>(self.1)),
            }
        }
    }
    #[inline(always)]
    unsafe fn load_u8(from: &[u8; LANES]) -> Self {
        unsafe {
            let bytes = _mm_loadu_si128(from.as_ptr().cast());
            let second = _mm_unpackhi_epi64(bytes, bytes);
            Self(
                _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(bytes)),
                _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(second)),
            )
        }
    }
    #[inline(always)]
    unsafe fn store_u8(self, to: &mut [u8; LANES]) {
        unsafe {
            // Packing interleaves 64-bit halves of its operands.
            let words = _mm256_packus_epi32(_mm256_cvttps_epi32(self.0), _mm256_cvttps_epi32(self.1));
            let words = _mm256_permute4x64_epi64::<0b11_01_10_00>(words);
            let bytes = _mm_packus_epi16(_mm256_castsi256_si128(words), _mm256_extracti128_si256::<1>(words));
            _mm_storeu_si128(to.as_mut_ptr().cast(), bytes);
        }
    }
    #[inline(always)]
    unsafe fn store_i16(self, to: &mut [i16; LANES]) {
        unsafe {
            // Packing interleaves 64-bit halves of its operands.
            let words = _mm256_packs_epi32(_mm256_cvtps_epi32(self.0), _mm256_cvtps_epi32(self.1));
            let words = _mm256_permute4x64_epi64::<0b11_01_10_00>(words);
            _mm256_storeu_si256(to.as_mut_ptr().cast(), words);
        }
    }
    #[inline(always)]
    unsafe fn store_i16_pairs(self, other: Self, to: &mut [[i16; 2]; LANES]) {
        unsafe {
            for (half, [first, second]) in [[self.0, other.0], [self.1, other.1]].into_iter().enumerate() {
                let second = _mm256_slli_epi32::<16>(_mm256_cvtps_epi32(second));
                let pairs = _mm256_blend_epi16::<0b1010_1010>(_mm256_cvtps_epi32(first), second);
                _mm256_storeu_si256(to.as_mut_ptr().add(half * HALF).cast(), pairs);
            }
        }
    }
}
