//! Products on the tile registers of AMX.
//!
//! Intel, "Architecture instruction set extensions programming reference", chapter 3: eight registers of 16 rows of 64 bytes. One instruction adds
//! the product of a 16×32 and a 32×16 matrix of bf16 to a 16×16 matrix of `f32`; the second factor lies in pairs of rows, so that the two numbers
//! that are multiplied with neighbours of a row of the first are neighbours as well.

use super::{Places, ROWS, SUMS, TERMS, TILE, TILE_SUMS};
use crate::ffi::Context;
use crate::native::simd::Bf16;
use std::marker::PhantomData;

/// Tiles that the processor has and this process may use: a value of this type is the proof.
#[derive(Clone, Copy, Debug)]
pub struct Amx(());

/// A thread's tile registers, in the shape that products need, until this is dropped.
///
/// Registers belong to a thread: it cannot be sent to another.
pub struct Registers(PhantomData<*mut ()>);

impl Amx {
    /// The proof, where the library uses AMX itself: it has then asked the processor, and the operating system for the registers' state, which is
    /// given to a process as a whole.
    #[must_use]
    pub fn of(context: &Context) -> Option<Self> {
        // Tests may run where the instructions are emulated (`scripts/amx/test.sh`).
        let emulated = cfg!(test) && std::env::var_os("STRATUS_EMULATED_AMX").is_some();
        (context.has_amx() || emulated).then_some(Self(()))
    }

    /// Shapes the calling thread's registers. The library shapes them anew whenever it finds them otherwise than it needs them.
    #[must_use]
    pub fn registers(self) -> Registers {
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
        Registers(PhantomData)
    }
}

impl Drop for Registers {
    fn drop(&mut self) {
        // SAFETY: the registers were shaped by this thread; their contents are no longer needed.
        unsafe {
            std::arch::asm!("tilerelease", options(nomem, nostack, preserves_flags));
        }
    }
}

impl Registers {
    /// See [`Tiles::multiply_add`](super::Tiles::multiply_add). The block behind `sums` is likely to be next and is asked for meanwhile: sums of 512 by
    /// 512 channels are in no cache nearer than the third (docs/benchmarks/kernels.md).
    ///
    /// # Safety
    /// Every half of a factor has `count` tiles, and there is at least one.
    #[inline]
    pub(super) unsafe fn multiply_add(
        &self,
        a: [&[Bf16]; 2],
        b: [&[Bf16]; 2],
        count: usize,
        sums: &mut [f32; SUMS],
    ) {
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

    /// See [`Tiles::multiply`](super::Tiles::multiply). The other order of memory is that of [`Self::multiply_add`].
    ///
    /// # Safety
    /// The factors reach behind two tiles at every place, and there is at least one place.
    #[inline]
    pub(super) unsafe fn multiply(&self, a: &[Bf16], b: &[Bf16], places: &[Places], sums: &mut [f32; SUMS]) {
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
                step = inout(reg) places.as_ptr() => _,
                count = inout(reg) places.len() => _,
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

impl Registers {
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
        impl Registers {
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
