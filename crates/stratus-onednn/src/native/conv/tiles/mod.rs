//! Products of bf16 matrices (and, for weight gradients, of `f32`) in tiles, on the fastest unit of the CPU.
//!
//! ```text
//! sums[16, 16] += a[16, K] × b[K, 16]        a tile of K = 32 terms of bf16, or 16 of f32
//!
//! a  row-major: 16 rows of 32 terms                      16 × 64 bytes = one AMX tile register
//! b  pairs of terms (VNNI): 16 pairs × 16 columns × 2    16 × 64 bytes = one AMX tile register,
//!                                                        a row of it = one AVX-512 register
//! ```
//!
//! Products are computed in blocks of 32×32, 2×2 tiles, so that each loaded tile of a factor is used twice.
//! [`amx`] has tile registers, [`avx512`] the dot products of pairs (VDPBF16PS) or, for `f32`, multiply-adds.

pub mod amx;
mod avx512;

use crate::ffi::Context;
use crate::native::simd::Bf16;
use amx::Amx;
pub use avx512::{Avx512Bf16, Avx512F32};
use std::arch::x86_64::{__m512i, __mmask32, _mm512_maskz_loadu_epi16, _mm512_setzero_si512};
use std::ops::Range;

/// The rows of a tile; the columns of a tile of the second factor.
pub const ROWS: usize = 16;
/// The terms of a tile of bf16.
pub const TERMS: usize = 32;
/// The rows and columns of a block of the result: 2×2 tiles.
pub const BLOCK: usize = 2 * ROWS;
/// The elements of a tile of a factor.
pub const TILE: usize = ROWS * TERMS;
/// The elements of a tile of the result.
pub const TILE_SUMS: usize = ROWS * ROWS;
/// The elements of a block of the result.
pub const BLOCK_SUMS: usize = BLOCK * BLOCK;

/// The steps of a product on AVX-512 per tile of terms: 16 rows of `b` for each of the four strips of eight
/// rows of the result. Each step may prefetch a cache line.
pub const ROW_STEPS: usize = 4 * ROWS;

/// The elements between panels: at strides of a power of two, all panels would map to the same cache sets.
pub const GAP: usize = TERMS;

/// A matrix unit. A value proves that the CPU supports it and that the process may use it.
#[derive(Clone, Copy, Debug)]
pub enum MatrixUnit {
    /// Tile registers.
    Amx(Amx),
    /// Dot products of pairs of bf16.
    Avx512(Avx512Bf16),
}

impl MatrixUnit {
    /// All available units, the fastest first; oneDNN's ISA settings restrict them.
    pub fn all(context: &Context) -> impl Iterator<Item = Self> {
        let amx = Amx::detect(context).map(Self::Amx);
        let avx512 = Avx512Bf16::detect(context).map(Self::Avx512);
        amx.into_iter().chain(avx512)
    }

    /// The name in plans.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Amx(_) => "amx",
            Self::Avx512(_) => "avx512_bf16",
        }
    }

    /// Prepares the calling thread to multiply, until the result is dropped.
    #[must_use]
    pub fn tiles(self) -> TileMultiplier {
        match self {
            Self::Amx(amx) => TileMultiplier::Amx(amx.registers()),
            Self::Avx512(avx512) => TileMultiplier::Avx512(avx512),
        }
    }
}

/// A thread prepared to multiply tiles.
pub enum TileMultiplier {
    /// With its tile registers configured.
    Amx(amx::Registers),
    /// Nothing to prepare.
    Avx512(Avx512Bf16),
}

/// Offsets in bytes into the two factors.
type ByteOffsets = [usize; 2];

/// Offsets of the tiles of two factors, step by step.
#[derive(Clone, Debug, Default)]
pub struct Steps {
    bytes: Vec<ByteOffsets>,
    /// The end of the steps in each factor, in bytes.
    reach: [usize; 2],
}

impl Steps {
    /// Creates steps from offsets in elements.
    #[must_use]
    pub fn new(elements: &[[usize; 2]]) -> Self {
        let bytes: Vec<ByteOffsets> = elements.iter().map(|at| at.map(|at| at * size_of::<Bf16>())).collect();
        let ends = |factor: usize| bytes.iter().map(|at| at[factor] + 2 * TILE * size_of::<Bf16>()).max();
        Self { reach: [0, 1].map(|factor| ends(factor).unwrap_or(0)), bytes }
    }
}

impl TileMultiplier {
    /// `sums += a b`, a block of 32×32.
    ///
    /// A factor is given by halves: 16 rows of `a`, 16 columns of `b`. A half is `count` consecutive tiles,
    /// of 32 terms each. `sums` is four tiles: first half of `a` by first and second of `b`, then the second
    /// half of `a`. With AMX, `a` is row-major; otherwise its layout is that of `b`, pairs of terms.
    /// `upcoming` is prefetched meanwhile, up to [`ROW_STEPS`] cache lines per tile.
    ///
    /// # Panics
    /// If a factor has fewer tiles.
    #[inline]
    pub fn multiply_add(
        &self,
        a: [&[Bf16]; 2],
        b: [&[Bf16]; 2],
        count: usize,
        upcoming: &[Bf16],
        sums: &mut [f32; BLOCK_SUMS],
    ) {
        let enough = a.iter().chain(&b).all(|factor| factor.len() >= count * TILE);
        assert!(enough, "a factor has fewer than {count} tiles");
        if count == 0 {
            return;
        }
        // SAFETY: the assertion and the variant guarantee both conditions.
        unsafe {
            match self {
                Self::Amx(registers) => registers.multiply_add(a, b, count, sums),
                Self::Avx512(avx512) => avx512.multiply_add(a, b, count, upcoming, sums),
            }
        }
    }

    /// `sums = a b` for a block of scattered tiles: at each step of `range`, both halves of `a` are at its
    /// first offset and both of `b` at its second, one tile after the other.
    ///
    /// # Panics
    /// If a factor is shorter than the steps require.
    #[inline]
    pub fn multiply(
        &self,
        a: &[Bf16],
        b: &[Bf16],
        steps: &Steps,
        range: Range<usize>,
        sums: &mut [f32; BLOCK_SUMS],
    ) {
        let offsets = &steps.bytes[range];
        if offsets.is_empty() {
            sums.fill(0.0);
            return;
        }
        let enough = size_of_val(a) >= steps.reach[0] && size_of_val(b) >= steps.reach[1];
        assert!(enough, "a factor is shorter than the steps require");
        // SAFETY: the assertion and the variant guarantee both conditions.
        unsafe {
            match self {
                Self::Amx(registers) => registers.multiply(a, b, offsets, sums),
                Self::Avx512(avx512) => avx512.multiply(a, b, offsets, sums),
            }
        }
    }
}

/// A bit per existing channel of block `block`, of `channels` in total.
#[inline]
#[must_use]
pub fn channel_mask(channels: usize, block: usize) -> __mmask32 {
    let present = channels - block * BLOCK;
    if present >= BLOCK { !0 } else { (1 << present) - 1 }
}

/// Loads the channels of `mask` of a pixel; zeros if there is no pixel.
///
/// # Safety
/// AVX-512 must be available; `map` must contain the elements of `mask` starting at `at`.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
pub unsafe fn load_channels(map: &[Bf16], at: Option<usize>, mask: __mmask32) -> __m512i {
    match at {
        // SAFETY: upheld by the caller; masked elements are not read.
        Some(at) => unsafe { _mm512_maskz_loadu_epi16(mask, map.as_ptr().add(at).cast()) },
        None => _mm512_setzero_si512(),
    }
}
