//! Sixteen `f32` at once, with the processor's own instructions: for loops in which the compiler does not find them by itself.
//!
//! Every operation is a bare instruction or two. They are only fast where they are inlined into a function that is compiled for those
//! instructions, and only allowed where the processor has them: the type to use follows from a [`Level`](super::simd::Level).

use super::simd::{Bf16, Element};

/// How many there are.
pub const LANES: usize = 16;

const HALF: usize = LANES / 2;

/// Sixteen `f32`.
///
/// # Safety
/// All operations are called only where the processor has the instructions that the type is named after.
pub unsafe trait Lanes: Copy {
    /// The value sixteen times.
    ///
    /// # Safety
    /// As the trait says; likewise below.
    unsafe fn splat(value: f32) -> Self;
    /// From memory.
    unsafe fn load(from: &[f32; LANES]) -> Self;
    /// To memory.
    unsafe fn store(self, to: &mut [f32; LANES]);
    /// The first half, to memory.
    unsafe fn store_half(self, to: &mut [f32; LANES / 2]);
    /// To memory, each value [`LANES`]` / 2` times.
    unsafe fn store_repeated(self, to: &mut [[f32; LANES]; LANES / 2]);
    /// From memory, exactly.
    unsafe fn load_bf16(from: &[Bf16; LANES]) -> Self;
    /// To memory, as [`Bf16::store`] rounds.
    unsafe fn store_bf16(self, to: &mut [Bf16; LANES]);
    /// `self * by + to`; rounded once where the processor can.
    unsafe fn multiply_add(self, by: Self, to: Self) -> Self;
    /// The sum.
    unsafe fn add(self, other: Self) -> Self;
    /// `max(self, 0)`; NaN passes.
    unsafe fn rectify(self) -> Self;
    /// The larger; NaN passes.
    unsafe fn larger(self, other: Self) -> Self;
    /// The larger of this, which is not negative, and the other's magnitude; NaN passes.
    unsafe fn larger_magnitude(self, other: Self) -> Self;
    /// `yes` where both are equal, `no` elsewhere.
    unsafe fn where_equal(self, other: Self, yes: Self, no: Self) -> Self;
    /// `yes` where it is at most 0, `no` elsewhere, also for NaN.
    unsafe fn where_not_positive(self, yes: Self, no: Self) -> Self;
    /// The sum where the byte is `byte`, itself elsewhere.
    unsafe fn add_where(self, other: Self, bytes: &[u8; LANES], byte: u8) -> Self;
    /// The first half, and that of `other`.
    unsafe fn first_halves(self, other: Self) -> Self;
    /// The second half, and that of `other`.
    unsafe fn second_halves(self, other: Self) -> Self;
    /// Whole numbers from memory.
    unsafe fn load_bytes(from: &[u8; LANES]) -> Self;
    /// Whole numbers below 256 to memory.
    unsafe fn store_bytes(self, to: &mut [u8; LANES]);
    /// The nearest whole numbers, below 32,768, to memory; what NaN becomes means nothing.
    unsafe fn store_words(self, to: &mut [i16; LANES]);
    /// The same, with the other's between them.
    unsafe fn store_word_pairs(self, other: Self, to: &mut [[i16; 2]; LANES]);
}

/// Elements that are read and written sixteen at a time.
pub trait LaneElement: Element {
    /// Their values.
    ///
    /// # Safety
    /// Of [`Lanes`].
    unsafe fn load_lanes<V: Lanes>(from: &[Self; LANES]) -> V;
    /// The nearest elements.
    ///
    /// # Safety
    /// Of [`Lanes`].
    unsafe fn store_lanes<V: Lanes>(values: V, to: &mut [Self; LANES]);
}

impl LaneElement for f32 {
    #[inline(always)]
    unsafe fn load_lanes<V: Lanes>(from: &[Self; LANES]) -> V {
        // SAFETY: the caller's.
        unsafe { V::load(from) }
    }
    #[inline(always)]
    unsafe fn store_lanes<V: Lanes>(values: V, to: &mut [Self; LANES]) {
        // SAFETY: the caller's.
        unsafe { values.store(to) }
    }
}

impl LaneElement for Bf16 {
    #[inline(always)]
    unsafe fn load_lanes<V: Lanes>(from: &[Self; LANES]) -> V {
        // SAFETY: the caller's.
        unsafe { V::load_bf16(from) }
    }
    #[inline(always)]
    unsafe fn store_lanes<V: Lanes>(values: V, to: &mut [Self; LANES]) {
        // SAFETY: the caller's.
        unsafe { values.store_bf16(to) }
    }
}

/// With whatever the compiler's target has.
#[derive(Clone, Copy, Debug)]
pub struct Portable([f32; LANES]);

// SAFETY: nothing is asked of the processor.
unsafe impl Lanes for Portable {
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
    unsafe fn multiply_add(self, by: Self, to: Self) -> Self {
        Self(std::array::from_fn(|lane| self.0[lane] * by.0[lane] + to.0[lane]))
    }
    #[inline(always)]
    unsafe fn add(self, other: Self) -> Self {
        Self(std::array::from_fn(|lane| self.0[lane] + other.0[lane]))
    }
    #[inline(always)]
    unsafe fn rectify(self) -> Self {
        Self(self.0.map(|value| if value < 0.0 { 0.0 } else { value }))
    }
    #[inline(always)]
    unsafe fn larger(self, other: Self) -> Self {
        Self(std::array::from_fn(|lane| {
            let (a, b) = (self.0[lane], other.0[lane]);
            if a > b || a.is_nan() { a } else { b }
        }))
    }
    #[inline(always)]
    unsafe fn larger_magnitude(self, other: Self) -> Self {
        // Bits of magnitudes are ordered as they are, those of NaN behind all others.
        Self(std::array::from_fn(|lane| {
            let bits = [self, other].map(|of| of.0[lane].abs().to_bits());
            f32::from_bits(bits[0].max(bits[1]))
        }))
    }
    #[inline(always)]
    unsafe fn where_equal(self, other: Self, yes: Self, no: Self) -> Self {
        Self(std::array::from_fn(|lane| if self.0[lane] == other.0[lane] { yes.0[lane] } else { no.0[lane] }))
    }
    #[inline(always)]
    unsafe fn where_not_positive(self, yes: Self, no: Self) -> Self {
        Self(std::array::from_fn(|lane| if self.0[lane] <= 0.0 { yes.0[lane] } else { no.0[lane] }))
    }
    #[inline(always)]
    unsafe fn add_where(self, other: Self, bytes: &[u8; LANES], byte: u8) -> Self {
        Self(std::array::from_fn(|lane| self.0[lane] + if bytes[lane] == byte { other.0[lane] } else { 0.0 }))
    }
    #[inline(always)]
    unsafe fn first_halves(self, other: Self) -> Self {
        Self(std::array::from_fn(|lane| if lane < HALF { self.0[lane] } else { other.0[lane - HALF] }))
    }
    #[inline(always)]
    unsafe fn second_halves(self, other: Self) -> Self {
        Self(std::array::from_fn(|lane| if lane < HALF { self.0[lane + HALF] } else { other.0[lane] }))
    }
    #[inline(always)]
    unsafe fn load_bytes(from: &[u8; LANES]) -> Self {
        Self(from.map(f32::from))
    }
    #[inline(always)]
    unsafe fn store_bytes(self, to: &mut [u8; LANES]) {
        *to = self.0.map(|value| value as u8);
    }
    #[inline(always)]
    unsafe fn store_words(self, to: &mut [i16; LANES]) {
        *to = self.0.map(|value| value.round_ties_even() as i16);
    }
    #[inline(always)]
    unsafe fn store_word_pairs(self, other: Self, to: &mut [[i16; 2]; LANES]) {
        *to = std::array::from_fn(|lane| [self, other].map(|of| of.0[lane].round_ties_even() as i16));
    }
}

#[cfg(target_arch = "x86_64")]
pub use x86::{Avx2, Avx512};

#[cfg(target_arch = "x86_64")]
mod x86 {
    use super::{Bf16, HALF, LANES, Lanes};
    use std::arch::x86_64::*;

    /// One register of AVX-512.
    #[derive(Clone, Copy, Debug)]
    pub struct Avx512(__m512);

    // SAFETY: of every block below: the instructions are there by the trait's contract, and the arrays hold what is read or written.
    unsafe impl Lanes for Avx512 {
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
                // Known to come from bf16, they would be found in those instead, by an instruction of three times the cost.
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
            unsafe {
                let bits = _mm512_castps_si512(self.0);
                let upper = _mm512_srli_epi32::<16>(bits);
                let odd = _mm512_and_si512(upper, _mm512_set1_epi32(1));
                let half = _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff));
                let rounded = _mm512_srli_epi32::<16>(_mm512_add_epi32(bits, half));
                let nan = _mm512_cmp_ps_mask::<_CMP_UNORD_Q>(self.0, self.0);
                let stored = _mm512_mask_or_epi32(rounded, nan, upper, _mm512_set1_epi32(0x40));
                _mm256_storeu_si256(to.as_mut_ptr().cast(), _mm512_cvtepi32_epi16(stored));
            }
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
        unsafe fn rectify(self) -> Self {
            // Of a NaN and another number, the instruction returns the second.
            Self(unsafe { _mm512_max_ps(_mm512_setzero_ps(), self.0) })
        }
        #[inline(always)]
        unsafe fn larger(self, other: Self) -> Self {
            unsafe {
                let nan = _mm512_cmp_ps_mask::<_CMP_UNORD_Q>(self.0, self.0);
                Self(_mm512_mask_mov_ps(_mm512_max_ps(self.0, other.0), nan, self.0))
            }
        }
        #[inline(always)]
        unsafe fn larger_magnitude(self, other: Self) -> Self {
            unsafe {
                let [own, other] = [self, other].map(|of| _mm512_castps_si512(of.0));
                let magnitude = _mm512_and_si512(other, _mm512_set1_epi32(i32::MAX));
                Self(_mm512_castsi512_ps(_mm512_max_epu32(own, magnitude)))
            }
        }
        #[inline(always)]
        unsafe fn where_equal(self, other: Self, yes: Self, no: Self) -> Self {
            unsafe {
                let equal = _mm512_cmp_ps_mask::<_CMP_EQ_OQ>(self.0, other.0);
                Self(_mm512_mask_mov_ps(no.0, equal, yes.0))
            }
        }
        #[inline(always)]
        unsafe fn where_not_positive(self, yes: Self, no: Self) -> Self {
            unsafe {
                let cut = _mm512_cmp_ps_mask::<_CMP_LE_OQ>(self.0, _mm512_setzero_ps());
                Self(_mm512_mask_mov_ps(no.0, cut, yes.0))
            }
        }
        #[inline(always)]
        unsafe fn add_where(self, other: Self, bytes: &[u8; LANES], byte: u8) -> Self {
            unsafe {
                let bytes = _mm_loadu_si128(bytes.as_ptr().cast());
                let equal = _mm_cmpeq_epi8_mask(bytes, _mm_set1_epi8(byte.cast_signed()));
                Self(_mm512_mask_add_ps(self.0, equal, self.0, other.0))
            }
        }
        #[inline(always)]
        unsafe fn first_halves(self, other: Self) -> Self {
            Self(unsafe { _mm512_shuffle_f32x4::<0b01_00_01_00>(self.0, other.0) })
        }
        #[inline(always)]
        unsafe fn second_halves(self, other: Self) -> Self {
            Self(unsafe { _mm512_shuffle_f32x4::<0b11_10_11_10>(self.0, other.0) })
        }
        #[inline(always)]
        unsafe fn load_bytes(from: &[u8; LANES]) -> Self {
            unsafe { Self(_mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(_mm_loadu_si128(from.as_ptr().cast())))) }
        }
        #[inline(always)]
        unsafe fn store_bytes(self, to: &mut [u8; LANES]) {
            unsafe {
                let bytes = _mm512_cvtepi32_epi8(_mm512_cvttps_epi32(self.0));
                _mm_storeu_si128(to.as_mut_ptr().cast(), bytes);
            }
        }
        #[inline(always)]
        unsafe fn store_words(self, to: &mut [i16; LANES]) {
            unsafe {
                let words = _mm512_cvtepi32_epi16(_mm512_cvtps_epi32(self.0));
                _mm256_storeu_si256(to.as_mut_ptr().cast(), words);
            }
        }
        #[inline(always)]
        unsafe fn store_word_pairs(self, other: Self, to: &mut [[i16; 2]; LANES]) {
            unsafe {
                let [first, second] = [self, other].map(|of| _mm512_cvtps_epi32(of.0));
                let second = _mm512_slli_epi32::<16>(second);
                let pairs = _mm512_mask_blend_epi16(0xaaaa_aaaa, first, second);
                _mm512_storeu_si512(to.as_mut_ptr().cast(), pairs);
            }
        }
    }

    /// Two registers of AVX2.
    #[derive(Clone, Copy, Debug)]
    pub struct Avx2(__m256, __m256);

    /// `f32` as the bits of bf16 in the lower halves.
    #[inline(always)]
    unsafe fn rounded(values: __m256) -> __m256i {
        // SAFETY: the caller's: AVX2.
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

    // SAFETY: of every block below: as above.
    unsafe impl Lanes for Avx2 {
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
            unsafe {
                // Packing interleaves the halves of its operands: 64 bits of each in turn.
                let packed = _mm256_packus_epi32(rounded(self.0), rounded(self.1));
                let ordered = _mm256_permute4x64_epi64::<0b11_01_10_00>(packed);
                _mm256_storeu_si256(to.as_mut_ptr().cast(), ordered);
            }
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
        unsafe fn rectify(self) -> Self {
            unsafe {
                Self(_mm256_max_ps(_mm256_setzero_ps(), self.0), _mm256_max_ps(_mm256_setzero_ps(), self.1))
            }
        }
        #[inline(always)]
        unsafe fn larger(self, other: Self) -> Self {
            unsafe {
                let nan = _mm256_cmp_ps::<_CMP_UNORD_Q>(self.0, self.0);
                let first = _mm256_blendv_ps(_mm256_max_ps(self.0, other.0), self.0, nan);
                let nan = _mm256_cmp_ps::<_CMP_UNORD_Q>(self.1, self.1);
                Self(first, _mm256_blendv_ps(_mm256_max_ps(self.1, other.1), self.1, nan))
            }
        }
        #[inline(always)]
        unsafe fn larger_magnitude(self, other: Self) -> Self {
            unsafe {
                let larger = |own, other| {
                    let [own, other] = [own, other].map(|half| _mm256_castps_si256(half));
                    let magnitude = _mm256_and_si256(other, _mm256_set1_epi32(i32::MAX));
                    _mm256_castsi256_ps(_mm256_max_epu32(own, magnitude))
                };
                Self(larger(self.0, other.0), larger(self.1, other.1))
            }
        }
        #[inline(always)]
        unsafe fn where_equal(self, other: Self, yes: Self, no: Self) -> Self {
            unsafe {
                Self(
                    _mm256_blendv_ps(no.0, yes.0, _mm256_cmp_ps::<_CMP_EQ_OQ>(self.0, other.0)),
                    _mm256_blendv_ps(no.1, yes.1, _mm256_cmp_ps::<_CMP_EQ_OQ>(self.1, other.1)),
                )
            }
        }
        #[inline(always)]
        unsafe fn where_not_positive(self, yes: Self, no: Self) -> Self {
            unsafe {
                let zero = _mm256_setzero_ps();
                Self(
                    _mm256_blendv_ps(no.0, yes.0, _mm256_cmp_ps::<_CMP_LE_OQ>(self.0, zero)),
                    _mm256_blendv_ps(no.1, yes.1, _mm256_cmp_ps::<_CMP_LE_OQ>(self.1, zero)),
                )
            }
        }
        #[inline(always)]
        unsafe fn add_where(self, other: Self, bytes: &[u8; LANES], byte: u8) -> Self {
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
        unsafe fn first_halves(self, other: Self) -> Self {
            Self(self.0, other.0)
        }
        #[inline(always)]
        unsafe fn second_halves(self, other: Self) -> Self {
            Self(self.1, other.1)
        }
        #[inline(always)]
        unsafe fn load_bytes(from: &[u8; LANES]) -> Self {
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
        unsafe fn store_bytes(self, to: &mut [u8; LANES]) {
            unsafe {
                // Packing interleaves the halves of its operands: 64 bits of each in turn.
                let words = _mm256_packus_epi32(_mm256_cvttps_epi32(self.0), _mm256_cvttps_epi32(self.1));
                let words = _mm256_permute4x64_epi64::<0b11_01_10_00>(words);
                let bytes =
                    _mm_packus_epi16(_mm256_castsi256_si128(words), _mm256_extracti128_si256::<1>(words));
                _mm_storeu_si128(to.as_mut_ptr().cast(), bytes);
            }
        }
        #[inline(always)]
        unsafe fn store_words(self, to: &mut [i16; LANES]) {
            unsafe {
                // Packing interleaves the halves of its operands: 64 bits of each in turn.
                let words = _mm256_packs_epi32(_mm256_cvtps_epi32(self.0), _mm256_cvtps_epi32(self.1));
                let words = _mm256_permute4x64_epi64::<0b11_01_10_00>(words);
                _mm256_storeu_si256(to.as_mut_ptr().cast(), words);
            }
        }
        #[inline(always)]
        unsafe fn store_word_pairs(self, other: Self, to: &mut [[i16; 2]; LANES]) {
            unsafe {
                for (half, [first, second]) in [[self.0, other.0], [self.1, other.1]].into_iter().enumerate()
                {
                    let second = _mm256_slli_epi32::<16>(_mm256_cvtps_epi32(second));
                    let pairs = _mm256_blend_epi16::<0b1010_1010>(_mm256_cvtps_epi32(first), second);
                    _mm256_storeu_si256(to.as_mut_ptr().add(half * HALF).cast(), pairs);
                }
            }
        }
    }
}

/// Defines `$name`, which runs `$body`, an `#[inline(always)]` unsafe function whose first generic parameter is the [`Lanes`] of the detected
/// instructions and whose second is an element.
macro_rules! with_lanes {
    ($visibility:vis fn $name:ident / $body:ident ($($argument:ident: $type:ty),* $(,)?)) => {
        #[allow(clippy::too_many_arguments)] // Inner loops take slices and constants, not structures of them.
        $visibility fn $name<E: $crate::native::lanes::LaneElement>(level: $crate::native::simd::Level, $($argument: $type),*) {
            use $crate::native::lanes;
            #[cfg(target_arch = "x86_64")]
            {
                #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,fma,avx2")]
                fn avx512<E: lanes::LaneElement>($($argument: $type),*) {
                    // SAFETY: the function has the instructions.
                    unsafe { $body::<lanes::Avx512, E>($($argument),*) };
                }
                #[target_feature(enable = "avx2,fma")]
                fn avx2<E: lanes::LaneElement>($($argument: $type),*) {
                    // SAFETY: as above.
                    unsafe { $body::<lanes::Avx2, E>($($argument),*) };
                }
                use $crate::native::simd::Instructions;
                match level.instructions() {
                    // SAFETY: the level is the proof that the processor has these instructions.
                    Instructions::Avx512 => return unsafe { avx512::<E>($($argument),*) },
                    // SAFETY: as above.
                    Instructions::Avx2 => return unsafe { avx2::<E>($($argument),*) },
                    Instructions::Baseline => {}
                }
            }
            let _ = level;
            // SAFETY: nothing is asked of the processor.
            unsafe { $body::<lanes::Portable, E>($($argument),*) };
        }
    };
}
pub(crate) use with_lanes;

#[cfg(test)]
#[path = "lanes_tests.rs"]
mod tests;
