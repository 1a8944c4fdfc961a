//! Products on AVX-512: of pairs of bf16 by VDPBF16PS, and of `f32` by multiply-adds.
//!
//! VDPBF16PS adds two products of bf16 to each of 16 sums (Intel, "Intel 64 and IA-32 architectures software
//! developer's manual", volume 2). The sums of a strip of eight rows by 32 columns stay in 16 registers. A
//! step, a pair of terms (or one of `f32`), is two loads of `b` and eight broadcasts of `a` for 16
//! instructions.

use super::{BLOCK_SUMS, ByteOffsets, ROWS, TERMS, TILE, TILE_SUMS};
use crate::ffi::Context;
use crate::native::simd::{Bf16, Element, Isa, IsaLevel, prefetch_element};
use std::arch::x86_64::{
    __m512, __m512bh, _mm512_dpbf16_ps, _mm512_fmadd_ps, _mm512_loadu_ps, _mm512_loadu_si512,
    _mm512_set1_epi32, _mm512_set1_ps, _mm512_setzero_ps, _mm512_storeu_ps,
};

/// The rows whose sums are in registers at once.
const STRIP: usize = 8;

/// The sums of a strip, by row and half of the columns.
type Sums = [[__m512; 2]; STRIP];

/// A value proves that the CPU has VDPBF16PS.
#[derive(Clone, Copy, Debug)]
pub struct Avx512Bf16(());

impl Avx512Bf16 {
    /// Detects VDPBF16PS if oneDNN uses it.
    #[must_use]
    pub fn detect(context: &Context) -> Option<Self> {
        context.has_bf16().then_some(Self(()))
    }

    /// See [`TileMultiplier::multiply_add`](super::TileMultiplier::multiply_add).
    ///
    /// # Safety
    /// Every half of a factor has `count` tiles.
    #[inline]
    pub(super) unsafe fn multiply_add(
        self,
        a: [&[Bf16]; 2],
        b: [&[Bf16]; 2],
        count: usize,
        upcoming: &[Bf16],
        sums: &mut [f32; BLOCK_SUMS],
    ) {
        // SAFETY: `self` proves the instruction; the rest is upheld by the caller.
        unsafe { multiply_add(a, b, count, upcoming, sums) }
    }

    /// See [`TileMultiplier::multiply`](super::TileMultiplier::multiply).
    ///
    /// The factors have two tiles at every offset.
    #[inline]
    pub(super) unsafe fn multiply(
        self,
        a: &[Bf16],
        b: &[Bf16],
        offsets: &[ByteOffsets],
        sums: &mut [f32; BLOCK_SUMS],
    ) {
        // SAFETY: `self` proves the instruction; the rest is upheld by the caller.
        unsafe { multiply(a, b, offsets, sums) }
    }
}

/// A value proves AVX-512, for products of `f32`.
#[derive(Clone, Copy, Debug)]
pub struct Avx512F32(());

impl Avx512F32 {
    /// Detects AVX-512 if the level has it.
    #[must_use]
    pub fn detect(level: IsaLevel) -> Option<Self> {
        (level.isa() == Isa::Avx512).then_some(Self(()))
    }

    /// `sums += a b` as [`TileMultiplier::multiply_add`](super::TileMultiplier::multiply_add), of `f32`: both
    /// factors have a row of 16 per term.
    ///
    /// # Panics
    /// If a factor has fewer than `count` tiles of sixteen terms each.
    #[inline]
    pub fn multiply_add(
        self,
        a: [&[f32]; 2],
        b: [&[f32]; 2],
        count: usize,
        upcoming: &[f32],
        sums: &mut [f32; BLOCK_SUMS],
    ) {
        let enough = a.iter().chain(&b).all(|factor| factor.len() >= count * ROWS * ROWS);
        assert!(enough, "a factor has fewer than {count} tiles");
        // SAFETY: `self` proves AVX-512; the assertion guarantees the number of tiles.
        unsafe { multiply_add_f32(a, b, count, upcoming, sums) }
    }
}

/// The first row of every strip: half of `a`, row within it.
fn strips() -> impl Iterator<Item = (usize, usize)> {
    (0..2).flat_map(|half| (0..ROWS).step_by(STRIP).map(move |row| (half, row)))
}

/// # Safety
/// As the method of this name requires.
#[target_feature(enable = "avx512f,avx512bf16")]
unsafe fn multiply_add(
    a: [&[Bf16]; 2],
    b: [&[Bf16]; 2],
    count: usize,
    upcoming: &[Bf16],
    sums: &mut [f32; BLOCK_SUMS],
) {
    // SAFETY: upheld by the caller; the pointers are to a row of each factor, `a`'s at the strip.
    unsafe { for_each_row(a, b, count, upcoming, sums, |a, b, strip| add_pair(a, 2, b, strip)) }
}

/// # Safety
/// AVX-512 must be available, and `count` tiles of every half of a factor.
#[target_feature(enable = "avx512f")]
unsafe fn multiply_add_f32(
    a: [&[f32]; 2],
    b: [&[f32]; 2],
    count: usize,
    upcoming: &[f32],
    sums: &mut [f32; BLOCK_SUMS],
) {
    // SAFETY: as above.
    unsafe { for_each_row(a, b, count, upcoming, sums, |a, b, strip| add_term(a, b, strip)) }
}

/// Calls `add(a, b, sums)` for every strip of a block and every row of the factors' tiles: `a` points to the
/// strip's part of the row, `b` to its two halves. Each call prefetches one line of `upcoming`.
///
/// # Safety
/// AVX-512; every half of a factor has `count` tiles, of rows of 64 bytes that are terms or pairs of them.
#[inline(always)]
unsafe fn for_each_row<E: Element>(
    a: [&[E]; 2],
    b: [&[E]; 2],
    count: usize,
    upcoming: &[E],
    sums: &mut [f32; BLOCK_SUMS],
    add: impl Fn(*const E, [*const E; 2], &mut Sums),
) {
    let group = size_of::<f32>() / size_of::<E>();
    let line = ROWS * group;
    let mut next = 0;
    for (half, row) in strips() {
        let rows = &mut sums[2 * half * TILE_SUMS + row * ROWS..];
        // SAFETY: a tile has 16 rows of sums; the rest is upheld by the caller.
        unsafe {
            let a = a[half].as_ptr().add(row * group);
            let mut strip = load(rows);
            for at in (0..count * ROWS * line).step_by(line) {
                if next < upcoming.len() {
                    prefetch_element(upcoming, next);
                    next += line;
                }
                add(a.add(at), b.map(|half| half.as_ptr().add(at)), &mut strip);
            }
            store(rows, &strip);
        }
    }
}

/// # Safety
/// As the method of this name requires.
#[target_feature(enable = "avx512f,avx512bf16")]
unsafe fn multiply(a: &[Bf16], b: &[Bf16], offsets: &[ByteOffsets], sums: &mut [f32; BLOCK_SUMS]) {
    for (half, row) in strips() {
        let rows = &mut sums[2 * half * TILE_SUMS + row * ROWS..];
        let mut strip = [[_mm512_setzero_ps(); 2]; STRIP];
        for [from_a, from_b] in offsets {
            // SAFETY: both factors have two tiles at these offsets.
            unsafe {
                let a = a.as_ptr().byte_add(*from_a).add(half * TILE + row * TERMS);
                let b = b.as_ptr().byte_add(*from_b);
                add_tile(a, [b, b.add(TILE)], &mut strip);
            }
        }
        store(rows, &strip);
    }
}

/// Adds one tile of a strip's rows by two of columns; `a` is row-major.
///
/// `a` points to the strip's rows of a tile, each half of `b` to a tile.
#[inline]
#[target_feature(enable = "avx512f,avx512bf16")]
unsafe fn add_tile(a: *const Bf16, b: [*const Bf16; 2], strip: &mut Sums) {
    for pair in 0..TERMS / 2 {
        // SAFETY: upheld by the caller.
        unsafe { add_pair(a.add(2 * pair), TERMS, b.map(|half| half.add(pair * TERMS)), strip) };
    }
}

/// Adds a pair of terms of all columns and of the strip's rows, which are `row_stride` elements apart.
///
/// Four bytes of every row, and 64 of each half of the columns, must be readable.
#[inline]
#[target_feature(enable = "avx512f,avx512bf16")]
unsafe fn add_pair(a: *const Bf16, row_stride: usize, b: [*const Bf16; 2], strip: &mut Sums) {
    // SAFETY: upheld by the caller.
    unsafe {
        let left: __m512bh = std::mem::transmute(_mm512_loadu_si512(b[0].cast()));
        let right: __m512bh = std::mem::transmute(_mm512_loadu_si512(b[1].cast()));
        for (row, sums) in strip.iter_mut().enumerate() {
            let pair = a.add(row * row_stride).cast::<i32>().read_unaligned();
            let pair: __m512bh = std::mem::transmute(_mm512_set1_epi32(pair));
            sums[0] = _mm512_dpbf16_ps(sums[0], pair, left);
            sums[1] = _mm512_dpbf16_ps(sums[1], pair, right);
        }
    }
}

/// Adds a term of all columns and of the strip's rows, which are neighbours.
///
/// One number of every row, and 16 of each half of the columns, must be readable.
#[inline]
#[target_feature(enable = "avx512f")]
unsafe fn add_term(a: *const f32, b: [*const f32; 2], strip: &mut Sums) {
    // SAFETY: upheld by the caller.
    unsafe {
        let [left, right] = b.map(|half| _mm512_loadu_ps(half));
        for (row, sums) in strip.iter_mut().enumerate() {
            let value = _mm512_set1_ps(*a.add(row));
            sums[0] = _mm512_fmadd_ps(value, left, sums[0]);
            sums[1] = _mm512_fmadd_ps(value, right, sums[1]);
        }
    }
}

/// Loads the sums of a strip; `rows` starts in the tile of the left columns.
#[inline]
#[target_feature(enable = "avx512f")]
fn load(rows: &[f32]) -> Sums {
    let mut strip = [[_mm512_setzero_ps(); 2]; STRIP];
    for (row, sums) in strip.iter_mut().enumerate() {
        for (half, sum) in sums.iter_mut().enumerate() {
            // SAFETY: sixteen numbers.
            *sum = unsafe { _mm512_loadu_ps(rows[half * TILE_SUMS + row * ROWS..][..ROWS].as_ptr()) };
        }
    }
    strip
}

#[inline]
#[target_feature(enable = "avx512f")]
fn store(rows: &mut [f32], strip: &Sums) {
    for (row, sums) in strip.iter().enumerate() {
        for (half, sum) in sums.iter().enumerate() {
            // SAFETY: sixteen numbers.
            unsafe { _mm512_storeu_ps(rows[half * TILE_SUMS + row * ROWS..][..ROWS].as_mut_ptr(), *sum) };
        }
    }
}
