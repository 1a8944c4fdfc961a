//! Window gradients on AVX-512: a lane is one `f32`, or two neighbouring outputs of bf16.

use super::arithmetic::{TWO, TwoRegisters, WindowArithmetic};
use super::block::add_band;
use super::{Band, LANES, ThreadScratch, WindowGradient};
use crate::native::conv::tiles::{Avx512Bf16, Avx512F32};
use crate::native::simd::Bf16;
use std::arch::x86_64::{
    __m512, __m512bh, __m512i, _mm512_add_ps, _mm512_and_si512, _mm512_castps_si512, _mm512_castsi512_ps,
    _mm512_dpbf16_ps, _mm512_fmadd_ps, _mm512_loadu_si512, _mm512_mask_storeu_epi32,
    _mm512_maskz_loadu_epi16, _mm512_maskz_loadu_ps, _mm512_permutex2var_epi16, _mm512_set1_epi32,
    _mm512_setzero_si512, _mm512_slli_epi32,
};

impl WindowArithmetic for Avx512Bf16 {
    type Element = Bf16;

    fn add_band(
        self,
        gradient: &WindowGradient<Self>,
        band: &Band,
        next: Option<&Band>,
        maps: [&[Bf16]; 2],
        share: &mut ThreadScratch<'_>,
    ) {
        /// # Safety
        /// The CPU must have AVX-512 BF16.
        #[target_feature(enable = "avx512f,avx512bw,avx512bf16")]
        unsafe fn run(
            gradient: &WindowGradient<Avx512Bf16>,
            band: &Band,
            next: Option<&Band>,
            maps: [&[Bf16]; 2],
            share: &mut ThreadScratch<'_>,
        ) {
            // SAFETY: upheld by the caller.
            unsafe { add_band(gradient, band, next, maps, share) }
        }
        // SAFETY: `self` proves the instructions.
        unsafe { run(gradient, band, next, maps, share) }
    }

    #[inline(always)]
    unsafe fn multiply_add(sums: __m512, value: __m512i, lanes: __m512i) -> __m512 {
        // SAFETY: upheld by the caller; both types are 64 bytes.
        unsafe {
            let [value, lanes] = [value, lanes].map(|pairs| std::mem::transmute::<__m512i, __m512bh>(pairs));
            _mm512_dpbf16_ps(sums, value, lanes)
        }
    }

    #[inline(always)]
    unsafe fn interleave(first: *const Bf16, second: Option<*const Bf16>, to: *mut f32, lanes: TwoRegisters) {
        const ORDER: [[u16; TWO]; 2] = {
            let mut order = [[0; TWO]; 2];
            let mut lane = 0;
            while lane < TWO {
                let from = (lane / 2 + lane % 2 * TWO) as u16;
                order[0][lane] = from;
                order[1][lane] = from + LANES as u16;
                lane += 1;
            }
            order
        };
        // SAFETY: upheld by the caller; masked numbers and lanes are neither read nor written.
        unsafe {
            let order =
                [_mm512_loadu_si512(ORDER[0].as_ptr().cast()), _mm512_loadu_si512(ORDER[1].as_ptr().cast())];
            let even = _mm512_maskz_loadu_epi16(lanes.all(), first.cast());
            let odd = match second {
                Some(second) => _mm512_maskz_loadu_epi16(lanes.all(), second.cast()),
                None => _mm512_setzero_si512(),
            };
            for (half, order) in order.into_iter().enumerate() {
                let to = to.wrapping_add(half * LANES).cast();
                _mm512_mask_storeu_epi32(to, lanes.0[half], _mm512_permutex2var_epi16(even, order, odd));
            }
        }
    }

    #[inline(always)]
    unsafe fn add_lanes(sums: __m512, lanes: __m512i) -> __m512 {
        // SAFETY: upheld by the caller.
        unsafe {
            let odd = _mm512_and_si512(lanes, _mm512_set1_epi32(0xffff_0000_u32.cast_signed()));
            let both =
                _mm512_add_ps(_mm512_castsi512_ps(_mm512_slli_epi32::<16>(lanes)), _mm512_castsi512_ps(odd));
            _mm512_add_ps(sums, both)
        }
    }
}

impl WindowArithmetic for Avx512F32 {
    type Element = f32;

    fn add_band(
        self,
        gradient: &WindowGradient<Self>,
        band: &Band,
        next: Option<&Band>,
        maps: [&[f32]; 2],
        share: &mut ThreadScratch<'_>,
    ) {
        /// # Safety
        /// The CPU must have AVX-512.
        #[target_feature(enable = "avx512f,avx512bw")]
        unsafe fn run(
            gradient: &WindowGradient<Avx512F32>,
            band: &Band,
            next: Option<&Band>,
            maps: [&[f32]; 2],
            share: &mut ThreadScratch<'_>,
        ) {
            // SAFETY: upheld by the caller.
            unsafe { add_band(gradient, band, next, maps, share) }
        }
        // SAFETY: `self` proves the instructions.
        unsafe { run(gradient, band, next, maps, share) }
    }

    #[inline(always)]
    unsafe fn multiply_add(sums: __m512, value: __m512i, lanes: __m512i) -> __m512 {
        // SAFETY: upheld by the caller.
        unsafe { _mm512_fmadd_ps(_mm512_castsi512_ps(value), _mm512_castsi512_ps(lanes), sums) }
    }

    #[inline(always)]
    unsafe fn interleave(first: *const f32, _: Option<*const f32>, to: *mut f32, lanes: TwoRegisters) {
        for (half, mask) in lanes.0.into_iter().enumerate() {
            // SAFETY: upheld by the caller; masked numbers and lanes are neither read nor written.
            unsafe {
                let values = _mm512_maskz_loadu_ps(mask, first.wrapping_add(half * LANES));
                let to = to.wrapping_add(half * LANES).cast();
                _mm512_mask_storeu_epi32(to, mask, _mm512_castps_si512(values));
            }
        }
    }

    #[inline(always)]
    unsafe fn add_lanes(sums: __m512, lanes: __m512i) -> __m512 {
        // SAFETY: upheld by the caller.
        unsafe { _mm512_add_ps(sums, _mm512_castsi512_ps(lanes)) }
    }
}
