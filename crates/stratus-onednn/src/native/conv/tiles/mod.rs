//! Products of matrices of bf16 that lie in tiles, on whatever of the processor multiplies them fastest.
//!
//! A tile of the first factor is 16 rows of 32 terms; the second factor lies in pairs of rows, so that the two numbers that are multiplied with
//! neighbours of a row of the first are neighbours as well: its tile is 16 pairs of terms by 16 columns. Both are 16 rows of 64 bytes, which is what
//! AMX has registers for ([`amx`]), and a row of the second is a register of AVX-512 ([`avx512`]). The gradients of weights have their factors in
//! tiles of `f32` too.

pub mod amx;
mod avx512;

use crate::ffi::Context;
use crate::native::simd::Bf16;
use amx::Amx;
pub use avx512::{Avx512Bf16, Avx512F32};
use std::arch::x86_64::{__m512i, __mmask32, _mm512_maskz_loadu_epi16, _mm512_setzero_si512};
use std::ops::Range;

/// Rows of a tile; columns of the second factor.
pub const ROWS: usize = 16;
/// Terms that one tile of each factor holds.
pub const TERMS: usize = 32;
/// Rows and columns of a block of the result: two tiles each way, so that each tile of a factor that is loaded is used twice.
pub const BLOCK: usize = 2 * ROWS;
/// Elements of a tile of a factor.
pub const TILE: usize = ROWS * TERMS;
/// Elements of a tile of the result.
pub const TILE_SUMS: usize = ROWS * ROWS;
/// Elements of a block of the result.
pub const SUMS: usize = BLOCK * BLOCK;

/// The steps that a product on AVX-512 takes for a tile: a row of it, for each strip of rows of the result.
pub const STEPS: usize = 4 * ROWS;

/// Elements between two panels of tiles beyond what they hold: with a power of two, lines of all of them would fall on the same few places of a
/// cache.
pub const GAP: usize = TERMS;

/// What multiplies tiles: a value of this type is the proof that the processor has it and this process may use it.
#[derive(Clone, Copy, Debug)]
pub enum MatrixUnit {
    /// Tile registers.
    Amx(Amx),
    /// The dot products of pairs of AVX-512.
    Avx512(Avx512Bf16),
}

impl MatrixUnit {
    /// All that there are, the fastest first; the library's settings restrict them.
    pub fn all(context: &Context) -> impl Iterator<Item = Self> {
        let amx = Amx::of(context).map(Self::Amx);
        let avx512 = Avx512Bf16::of(context).map(Self::Avx512);
        amx.into_iter().chain(avx512)
    }

    /// Its name in plans.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Amx(_) => "amx",
            Self::Avx512(_) => "avx512_bf16",
        }
    }

    /// Makes the calling thread ready to multiply, until what is returned is dropped.
    #[must_use]
    pub fn tiles(self) -> Tiles {
        match self {
            Self::Amx(amx) => Tiles::Amx(amx.registers()),
            Self::Avx512(avx512) => Tiles::Avx512(avx512),
        }
    }
}

/// A thread that is ready to multiply tiles.
pub enum Tiles {
    /// With its tile registers in shape.
    Amx(amx::Registers),
    /// As every thread is.
    Avx512(Avx512Bf16),
}

/// Where two tiles of either factor lie, in bytes.
type Places = [usize; 2];

/// Where the tiles of two factors lie, step by step.
#[derive(Clone, Debug, Default)]
pub struct Steps {
    bytes: Vec<Places>,
    /// Bytes of each factor that all steps together need.
    reach: [usize; 2],
}

impl Steps {
    /// Steps at these elements of the two factors.
    #[must_use]
    pub fn new(elements: &[[usize; 2]]) -> Self {
        let bytes: Vec<Places> = elements.iter().map(|at| at.map(|at| at * size_of::<Bf16>())).collect();
        let ends = |factor: usize| bytes.iter().map(|at| at[factor] + 2 * TILE * size_of::<Bf16>()).max();
        Self { reach: [0, 1].map(|factor| ends(factor).unwrap_or(0)), bytes }
    }
}

impl Tiles {
    /// `sums += a b`, a block. Each factor is given as its two halves: 16 rows of `a`, 16 columns of `b`; a half is `count` tiles behind each other,
    /// of 32 terms each. `sums` holds four tiles: the first half of `a` with both of `b`, then the second. Where
    /// tile registers multiply, a row of `a` is one of the result; else `a` lies as `b` does, in pairs of terms.
    /// Where the products leave time for it, what lies in `ahead` is asked for, a line in each of [`STEPS`] for a tile: it is wanted next.
    ///
    /// # Panics
    /// Where a factor has fewer tiles.
    #[inline]
    pub fn multiply_add(
        &self,
        a: [&[Bf16]; 2],
        b: [&[Bf16]; 2],
        count: usize,
        ahead: &[Bf16],
        sums: &mut [f32; SUMS],
    ) {
        let enough = a.iter().chain(&b).all(|factor| factor.len() >= count * TILE);
        assert!(enough, "a factor has fewer than {count} tiles");
        if count == 0 {
            return;
        }
        // SAFETY: both conditions were just seen.
        unsafe {
            match self {
                Self::Amx(registers) => registers.multiply_add(a, b, count, sums),
                Self::Avx512(avx512) => avx512.multiply_add(a, b, count, ahead, sums),
            }
        }
    }

    /// `sums = a b`, a block, where the factors' tiles do not lie behind each other: of every step, one of `range`, both halves of `a` lie at its first
    /// place and both of `b` at its second.
    ///
    /// # Panics
    /// Where a factor is shorter than the steps reach.
    #[inline]
    pub fn multiply(
        &self,
        a: &[Bf16],
        b: &[Bf16],
        steps: &Steps,
        range: Range<usize>,
        sums: &mut [f32; SUMS],
    ) {
        let places = &steps.bytes[range];
        if places.is_empty() {
            sums.fill(0.0);
            return;
        }
        let enough = size_of_val(a) >= steps.reach[0] && size_of_val(b) >= steps.reach[1];
        assert!(enough, "a factor is shorter than the steps reach");
        // SAFETY: both conditions were just seen.
        unsafe {
            match self {
                Self::Amx(registers) => registers.multiply(a, b, places, sums),
                Self::Avx512(avx512) => avx512.multiply(a, b, places, sums),
            }
        }
    }
}

/// The channels of a block that there are, of so many in all: a bit each.
#[inline]
#[must_use]
pub fn mask(channels: usize, block: usize) -> __mmask32 {
    let there = channels - block * BLOCK;
    if there >= BLOCK { !0 } else { (1 << there) - 1 }
}

/// The channels of a pixel, zero where there is none.
///
/// # Safety
/// AVX-512 must be there, and the map must have the elements of `mask` from `at` on.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
pub unsafe fn load(map: &[Bf16], at: Option<usize>, mask: __mmask32) -> __m512i {
    match at {
        // SAFETY: the caller's; masked elements are not read.
        Some(at) => unsafe { _mm512_maskz_loadu_epi16(mask, map.as_ptr().add(at).cast()) },
        None => _mm512_setzero_si512(),
    }
}
