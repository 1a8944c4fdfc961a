//! Arithmetic of window gradients: a lane is one `f32`, or two neighbouring outputs of bf16.

use super::block::add_band;
use super::{Band, LANES, ThreadScratch, WindowGradient};
use crate::native::conv::tiles::{Avx512Bf16, Avx512F32};
use crate::native::simd::{Bf16, Element};
use std::arch::x86_64::{
    __m512, __m512bh, __m512i, _mm512_add_ps, _mm512_and_si512, _mm512_castps_si512, _mm512_castsi512_ps,
    _mm512_dpbf16_ps, _mm512_fmadd_ps, _mm512_loadu_si512, _mm512_mask_storeu_epi32,
    _mm512_maskz_loadu_epi16, _mm512_maskz_loadu_ps, _mm512_permutex2var_epi16, _mm512_set1_epi32,
    _mm512_setzero_si512, _mm512_slli_epi32,
};

/// Products of maps of one element type; a value proves that the CPU has the instructions.
pub trait WindowArithmetic: Copy + Send + Sync + 'static {
    /// The element type of maps.
    type Element: Element;

    /// The neighbouring output pixels of a lane.
    const PIXELS_PER_LANE: usize = size_of::<f32>() / size_of::<Self::Element>();

    /// Adds a band of `x` and `dy` to the sums, and prefetches `dy` of the next band.
    fn add_band(
        self,
        gradient: &WindowGradient<Self>,
        band: &Band,
        next: Option<&Band>,
        maps: [&[Self::Element]; 2],
        share: &mut ThreadScratch<'_>,
    );

    /// `sums + value * lanes`, where all lanes of `value` are the same.
    ///
    /// # Safety
    /// The CPU must have the instructions that the type proves. This applies to all functions below.
    unsafe fn multiply_add(sums: __m512, value: __m512i, lanes: __m512i) -> __m512;

    /// Writes the lanes of two registers: numbers from `first`, in bf16 each paired with the one from
    /// `second` (zero if there is none).
    ///
    /// # Safety
    /// The numbers of the masked lanes must be readable, and the lanes writable at `to`.
    unsafe fn interleave(
        first: *const Self::Element,
        second: Option<*const Self::Element>,
        to: *mut f32,
        lanes: TwoRegisters,
    );

    /// Adds the one or two numbers of each lane to a sum.
    ///
    /// # Safety
    /// As [`Self::multiply_add`] requires.
    unsafe fn add_lanes(sums: __m512, lanes: __m512i) -> __m512;
}

/// A mask of the lanes of two registers.
#[derive(Clone, Copy)]
pub struct TwoRegisters([u16; 2]);

impl TwoRegisters {
    /// All lanes.
    pub const ALL: Self = Self([!0; 2]);

    /// The first `lanes`.
    #[inline(always)]
    pub fn first(lanes: usize) -> Self {
        let first = |lanes: usize| if lanes >= LANES { !0 } else { (1 << lanes) - 1 };
        Self([first(lanes), first(lanes.saturating_sub(LANES))])
    }

    /// One mask for both registers.
    #[inline(always)]
    fn all(self) -> u32 {
        u32::from(self.0[0]) | u32::from(self.0[1]) << LANES
    }
}

/// The lanes of two registers.
pub const TWO: usize = 2 * LANES;

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
