//! Products of matrices of bf16 on the tile registers of AMX.
//!
//! Intel, "Architecture instruction set extensions programming reference", chapter 3: eight registers of 16 rows of 64 bytes. One instruction adds
//! the product of a 16×32 and a 32×16 matrix of bf16 to a 16×16 matrix of `f32`; the second factor lies in pairs of rows, so that the two numbers
//! that are multiplied with neighbours of a row of the first are neighbours as well.

use super::simd::Bf16;
use crate::ffi::Context;
use std::arch::x86_64::{__m512i, __mmask32, _mm512_maskz_loadu_epi16, _mm512_setzero_si512};
use std::marker::PhantomData;
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

/// Elements between two panels of tiles beyond what they hold: with a power of two, lines of all of them would fall on the same few places of a
/// cache.
pub const GAP: usize = TERMS;

/// Tiles that the processor has and this process may use: a value of this type is the proof.
#[derive(Clone, Copy, Debug)]
pub struct Amx(());

/// A thread's tile registers, in the shape that products need, until this is dropped.
///
/// Registers belong to a thread: it cannot be sent to another.
pub struct Tiles(PhantomData<*mut ()>);

impl Amx {
    /// The proof, where the library uses AMX itself: it has then asked the processor, and the operating system for the registers' state, which is
    /// given to a process as a whole.
    #[must_use]
    pub fn of(context: &Context) -> Option<Self> {
        context.has_amx().then_some(Self(()))
    }

    /// Shapes the calling thread's registers. The library shapes them anew whenever it finds them otherwise than it needs them.
    #[must_use]
    pub fn tiles(self) -> Tiles {
        #[repr(C, align(64))]
        struct Configuration {
            palette: u8,
            start_row: u8,
            reserved: [u8; 14],
            bytes_of_a_row: [u16; 16],
            rows: [u8; 16],
        }
        let each = |register: usize, value: usize| if register < 8 { value } else { 0 };
        let configuration = Configuration {
            palette: 1,
            start_row: 0,
            reserved: [0; 14],
            bytes_of_a_row: std::array::from_fn(|register| each(register, 64) as u16),
            rows: std::array::from_fn(|register| each(register, ROWS) as u8),
        };
        // SAFETY: the registers are there; the configuration is 64 bytes of the documented form, which the instruction only reads.
        unsafe {
            std::arch::asm!("ldtilecfg [{}]", in(reg) &raw const configuration, options(nostack, preserves_flags));
        }
        Tiles(PhantomData)
    }
}

/// Where the tiles of two factors lie, step by step.
#[derive(Clone, Debug, Default)]
pub struct Steps {
    bytes: Vec<[usize; 2]>,
    /// Bytes of each factor that all steps together need.
    reach: [usize; 2],
}

impl Steps {
    /// Steps at these elements of the two factors.
    #[must_use]
    pub fn new(elements: &[[usize; 2]]) -> Self {
        let bytes: Vec<[usize; 2]> = elements.iter().map(|at| at.map(|at| at * size_of::<Bf16>())).collect();
        let ends = |factor: usize| bytes.iter().map(|at| at[factor] + 2 * TILE * size_of::<Bf16>()).max();
        Self { reach: [0, 1].map(|factor| ends(factor).unwrap_or(0)), bytes }
    }
}

impl Drop for Tiles {
    fn drop(&mut self) {
        // SAFETY: the registers were shaped by this thread; their contents are no longer needed.
        unsafe {
            std::arch::asm!("tilerelease", options(nomem, nostack, preserves_flags));
        }
    }
}

impl Tiles {
    /// `sums += a b`, a block. Each factor is given as its two halves: 16 rows of `a`, 16 columns of `b`; a half is `count` tiles behind each other,
    /// of 32 terms each. `sums` holds four tiles: the first half of `a` with both of `b`, then the second. The block behind it is likely to be next
    /// and is asked for meanwhile: sums of 512 by 512 channels are in no cache nearer than the third (docs/benchmarks/2026-11-22-amx.md).
    ///
    /// # Panics
    /// Where a factor has fewer tiles.
    #[inline]
    pub fn multiply_add(&self, a: [&[Bf16]; 2], b: [&[Bf16]; 2], count: usize, sums: &mut [f32; SUMS]) {
        let enough = a.iter().chain(&b).all(|factor| factor.len() >= count * TILE);
        assert!(enough, "a factor has fewer than {count} tiles");
        if count == 0 {
            return;
        }
        // SAFETY: `self` is the proof that this thread's registers are shaped; `count` tiles of 1 KiB each are read of every factor, four tiles of
        // 1 KiB are read and written in `sums`. All eight registers are named as overwritten.
        unsafe {
            std::arch::asm!(
                "tileloadd tmm0, [{c} + {row}]",
                "tileloadd tmm1, [{c} + {row} + 1024]",
                "tileloadd tmm2, [{c} + {row} + 2048]",
                "tileloadd tmm3, [{c} + {row} + 3072]",
                "2:",
                "tileloadd tmm4, [{a0} + {row}]",
                "tileloadd tmm6, [{b0} + {row}]",
                "tdpbf16ps tmm0, tmm4, tmm6",
                "tileloadd tmm7, [{b1} + {row}]",
                "tdpbf16ps tmm1, tmm4, tmm7",
                "tileloadd tmm5, [{a1} + {row}]",
                "tdpbf16ps tmm2, tmm5, tmm6",
                "tdpbf16ps tmm3, tmm5, tmm7",
                "prefetcht0 [{next}]",
                "prefetcht0 [{next} + 64]",
                "prefetcht0 [{next} + 128]",
                "prefetcht0 [{next} + 192]",
                "add {next}, 256",
                "add {a0}, 1024",
                "add {a1}, 1024",
                "add {b0}, 1024",
                "add {b1}, 1024",
                "dec {count}",
                "jnz 2b",
                "tilestored [{c} + {row}], tmm0",
                "tilestored [{c} + {row} + 1024], tmm1",
                "tilestored [{c} + {row} + 2048], tmm2",
                "tilestored [{c} + {row} + 3072], tmm3",
                a0 = inout(reg) a[0].as_ptr() => _,
                a1 = inout(reg) a[1].as_ptr() => _,
                b0 = inout(reg) b[0].as_ptr() => _,
                b1 = inout(reg) b[1].as_ptr() => _,
                count = inout(reg) count => _,
                next = inout(reg) sums.as_ptr_range().end => _,
                c = in(reg) sums.as_mut_ptr(),
                row = in(reg) 64usize,
                out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
                out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
                options(nostack),
            );
        }
    }

    /// `sums = a b`, a block, where the factors' tiles do not lie behind each other: of every step, one of `range`, both halves of `a` lie at its first
    /// place and both of `b` at its second. The other order of memory is that of [`Self::multiply_add`].
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
        let offsets = &steps.bytes[range];
        if offsets.is_empty() {
            sums.fill(0.0);
            return;
        }
        let enough = size_of_val(a) >= steps.reach[0] && size_of_val(b) >= steps.reach[1];
        assert!(enough, "a factor is shorter than the steps reach");
        // SAFETY: `self` is the proof that this thread's registers are shaped; two tiles of 1 KiB are read of either factor at every step's places,
        // which lie within it; four tiles of 1 KiB are written in `sums`. All eight registers are named as overwritten.
        unsafe {
            std::arch::asm!(
                "tilezero tmm0",
                "tilezero tmm1",
                "tilezero tmm2",
                "tilezero tmm3",
                "2:",
                "mov {p}, [{step}]",
                "mov {q}, [{step} + 8]",
                "add {p}, {a}",
                "add {q}, {b}",
                "tileloadd tmm4, [{p} + {row}]",
                "tileloadd tmm6, [{q} + {row}]",
                "tdpbf16ps tmm0, tmm4, tmm6",
                "tileloadd tmm7, [{q} + {row} + 1024]",
                "tdpbf16ps tmm1, tmm4, tmm7",
                "tileloadd tmm5, [{p} + {row} + 1024]",
                "tdpbf16ps tmm2, tmm5, tmm6",
                "tdpbf16ps tmm3, tmm5, tmm7",
                "add {step}, 16",
                "dec {count}",
                "jnz 2b",
                "tilestored [{c} + {row}], tmm0",
                "tilestored [{c} + {row} + 1024], tmm1",
                "tilestored [{c} + {row} + 2048], tmm2",
                "tilestored [{c} + {row} + 3072], tmm3",
                p = out(reg) _,
                q = out(reg) _,
                a = in(reg) a.as_ptr(),
                b = in(reg) b.as_ptr(),
                step = inout(reg) offsets.as_ptr() => _,
                count = inout(reg) offsets.len() => _,
                c = in(reg) sums.as_mut_ptr(),
                row = in(reg) 64usize,
                out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
                out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
                options(nostack),
            );
        }
    }
}

/// Tiles of sums that are kept in registers, beside one of either factor.
const KEPT: usize = 6;

impl Tiles {
    /// Adds to each tile of `sums` the product of `a`, `count` tiles behind each other of 32 terms each, and of what lies in `pairs` from its place
    /// in `places` on: of `channels` numbers in pairs per term, so that a row of a tile, two terms further on than the one before it, lies four times
    /// as many elements further on.
    ///
    /// # Panics
    /// Where a factor has fewer tiles.
    pub fn multiply_add_taps(
        &self,
        a: &[Bf16],
        pairs: &[Bf16],
        places: &[usize],
        channels: usize,
        count: usize,
        sums: &mut [f32],
    ) {
        let reach = count * TERMS * 2 * channels + TILE;
        let enough = places.iter().all(|place| place + reach <= pairs.len());
        assert!(enough && a.len() >= count * TILE, "a factor has fewer than {count} tiles");
        assert!(sums.len() >= places.len() * TILE_SUMS, "fewer sums than places");
        if count == 0 {
            return;
        }
        for (places, sums) in places.chunks(KEPT).zip(sums.chunks_mut(KEPT * TILE_SUMS)) {
            // Behind the last place, the last one is taken again, and its sums go nowhere.
            let mut spare = [0.0; TILE_SUMS];
            let place = |number: usize| pairs[places[number.min(places.len() - 1)]..].as_ptr();
            let mut to = |number: usize| match sums.get_mut(number * TILE_SUMS..) {
                Some(sums) if sums.len() >= TILE_SUMS => sums.as_mut_ptr(),
                _ => spare.as_mut_ptr(),
            };
            let to: [*mut f32; KEPT] = std::array::from_fn(&mut to);
            let from: [*const Bf16; KEPT] = std::array::from_fn(place);
            if places.len() <= KEPT / 2 {
                // SAFETY: see below.
                unsafe { self.add_three(a, from, to, channels, count) };
            } else {
                // SAFETY: `count` tiles of 1 KiB are read of `a`, and of `pairs` from each place on: the first assertion says that they are there. Each
                // pointer of `to` is a tile of 1 KiB: of `sums`, or the spare one where it stands for no place.
                unsafe { self.add_six(a, from, to, channels, count) };
            }
        }
    }
}

/// Defines a loop over the tiles of `a` that adds to the sums of some places: where place and sum stand in their lists, the sum's register, and that
/// of what it is multiplied by.
macro_rules! add_places {
    ($name:ident, $($at:literal $sums:literal $pairs:literal),*) => {
        impl Tiles {
            /// # Safety
            /// Of `count` tiles of `a`, and as many from each of the places on; the sums are tiles.
            unsafe fn $name(
                &self,
                a: &[Bf16],
                from: [*const Bf16; KEPT],
                to: [*mut f32; KEPT],
                channels: usize,
                count: usize,
            ) {
                // SAFETY: the caller's; `self` is the proof that this thread's registers are shaped. All eight are named as overwritten.
                unsafe {
                    std::arch::asm!(
                        $(
                            concat!("mov {p}, [{to} + ", $at, "]"),
                            concat!("tileloadd ", $sums, ", [{p} + {row}]"),
                        )*
                        "2:",
                        "tileloadd tmm6, [{a} + {row}]",
                        $(
                            concat!("mov {p}, [{from} + ", $at, "]"),
                            "add {p}, {at}",
                            concat!("tileloadd ", $pairs, ", [{p} + {stride}]"),
                            concat!("tdpbf16ps ", $sums, ", tmm6, ", $pairs),
                        )*
                        "add {a}, 1024",
                        "add {at}, {step}",
                        "dec {count}",
                        "jnz 2b",
                        $(
                            concat!("mov {p}, [{to} + ", $at, "]"),
                            concat!("tilestored [{p} + {row}], ", $sums),
                        )*
                        p = out(reg) _,
                        a = inout(reg) a.as_ptr() => _,
                        at = inout(reg) 0usize => _,
                        count = inout(reg) count => _,
                        from = in(reg) from.as_ptr(),
                        to = in(reg) to.as_ptr(),
                        row = in(reg) 64usize,
                        stride = in(reg) 4 * channels * size_of::<Bf16>(),
                        step = in(reg) TERMS * 2 * channels * size_of::<Bf16>(),
                        out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
                        out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
                        options(nostack),
                    );
                }
            }
        }
    };
}

add_places!(add_three, 0 "tmm0" "tmm7", 8 "tmm1" "tmm5", 16 "tmm2" "tmm7");
add_places!(
    add_six, 0 "tmm0" "tmm7", 8 "tmm1" "tmm7", 16 "tmm2" "tmm7", 24 "tmm3" "tmm7", 32 "tmm4" "tmm7", 40 "tmm5" "tmm7"
);

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
