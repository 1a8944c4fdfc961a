//! Products on AMX: eight tile registers of 16 rows of 64 bytes.
//!
//! TDPBF16PS adds the product of a 16×32 and a 32×16 matrix of bf16 to a 16×16 matrix of `f32`, the second
//! factor in pairs of terms (Intel, "Architecture instruction set extensions programming reference", chapter
//! 3). Per 2×2 block four registers hold sums and four the tiles of both factors: four loads of 1 KiB for
//! four products.

use super::{BLOCK_SUMS, ByteOffsets, ROWS, TERMS, TILE, TILE_SUMS};
use crate::ffi::Context;
use crate::native::simd::Bf16;
use std::marker::PhantomData;

/// A value proves that the CPU has AMX and the process may use it.
#[derive(Clone, Copy, Debug)]
pub struct Amx(());

/// The calling thread's tile registers, configured for products until this is dropped. They belong to the
/// thread, so this is not `Send`.
pub struct Registers(PhantomData<*mut ()>);

impl Amx {
    /// Detects AMX if oneDNN uses it: oneDNN has then checked the CPU, and requested the registers' state
    /// from the operating system, which grants it to the whole process.
    #[must_use]
    pub fn detect(context: &Context) -> Option<Self> {
        // Tests may run where the instructions are emulated (`scripts/amx/test.sh`).
        let emulated = cfg!(test) && std::env::var_os("STRATUS_EMULATED_AMX").is_some();
        (context.has_amx() || emulated).then_some(Self(()))
    }

    /// Configures the calling thread's registers. oneDNN reconfigures them whenever it finds another
    /// configuration.
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
        // SAFETY: AMX is available; the configuration is 64 bytes of the documented form, which the
        // instruction only reads.
        unsafe {
            std::arch::asm!(
                "ldtilecfg [{}]",
                in(reg) &raw const configuration,
                options(nostack, preserves_flags)
            );
        }
        Registers(PhantomData)
    }
}

impl Drop for Registers {
    fn drop(&mut self) {
        // SAFETY: the registers were configured by this thread; their contents are no longer needed.
        unsafe {
            std::arch::asm!("tilerelease", options(nomem, nostack, preserves_flags));
        }
    }
}

impl Registers {
    /// See [`TileMultiplier::multiply_add`](super::TileMultiplier::multiply_add). Prefetches the block after
    /// `sums`, which is likely to be next: sums of 512×512 channels do not fit L2
    /// (docs/benchmarks/kernels.md).
    ///
    /// # Safety
    /// Every half of a factor has `count` tiles, and there is at least one.
    #[inline]
    pub(super) unsafe fn multiply_add(
        &self,
        a: [&[Bf16]; 2],
        b: [&[Bf16]; 2],
        count: usize,
        sums: &mut [f32; BLOCK_SUMS],
    ) {
        // SAFETY: `self` proves that this thread's registers are configured; `count` tiles of 1 KiB each are
        // read of every factor, four tiles of 1 KiB are read and written in `sums`. All eight registers are
        // clobbered.
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

    /// See [`TileMultiplier::multiply`](super::TileMultiplier::multiply).
    ///
    /// # Safety
    /// The factors have two tiles at every offset, and there is at least one.
    #[inline]
    pub(super) unsafe fn multiply(
        &self,
        a: &[Bf16],
        b: &[Bf16],
        offsets: &[ByteOffsets],
        sums: &mut [f32; BLOCK_SUMS],
    ) {
        // SAFETY: `self` proves that this thread's registers are configured; two tiles of 1 KiB are read of
        // either factor at every step's offsets, which are within it; four tiles of 1 KiB are written in
        // `sums`. All eight registers are clobbered.
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

/// The tiles of sums in registers, in addition to one tile of each factor.
const MAX_SUMS: usize = 6;

impl Registers {
    /// For every tap `t`: `sums[t] += a × b(t)`, where `b(t)` starts at `pairs[offsets[t]..]` and `a` is
    /// `count` consecutive tiles.
    ///
    /// `pairs` has `2 * channels` elements per term: each term's channels interleaved with the next term's. A
    /// row of a tile is two terms after the one before it, which is `4 * channels` elements.
    ///
    /// # Panics
    /// If a factor has fewer tiles.
    pub fn multiply_add_taps(
        &self,
        a: &[Bf16],
        pairs: &[Bf16],
        offsets: &[usize],
        channels: usize,
        count: usize,
        sums: &mut [f32],
    ) {
        let reach = count * TERMS * 2 * channels + TILE;
        let enough = offsets.iter().all(|offset| offset + reach <= pairs.len());
        assert!(enough && a.len() >= count * TILE, "a factor has fewer than {count} tiles");
        assert!(sums.len() >= offsets.len() * TILE_SUMS, "fewer sums than offsets");
        if count == 0 {
            return;
        }
        for (offsets, sums) in offsets.chunks(MAX_SUMS).zip(sums.chunks_mut(MAX_SUMS * TILE_SUMS)) {
            // Beyond the last tap, the last one is repeated; its sums are discarded.
            let mut spare = [0.0; TILE_SUMS];
            let from_offset = |number: usize| pairs[offsets[number.min(offsets.len() - 1)]..].as_ptr();
            let mut to = |number: usize| match sums.get_mut(number * TILE_SUMS..) {
                Some(sums) if sums.len() >= TILE_SUMS => sums.as_mut_ptr(),
                _ => spare.as_mut_ptr(),
            };
            let to: [*mut f32; MAX_SUMS] = std::array::from_fn(&mut to);
            let from: [*const Bf16; MAX_SUMS] = std::array::from_fn(from_offset);
            if offsets.len() <= MAX_SUMS / 2 {
                // SAFETY: see below.
                unsafe { self.add_three(a, from, to, channels, count) };
            } else {
                // SAFETY: `count` tiles of 1 KiB are read of `a`, and of `pairs` from each offset, as
                // guaranteed by the first assertion. Each pointer of `to` is a tile of 1 KiB: of `sums`, or
                // the spare one.
                unsafe { self.add_six(a, from, to, channels, count) };
            }
        }
    }
}

/// Defines a loop over the tiles of `a` for several taps. For each tap: byte offset of its pointers in `from`
/// and `to`, register of its sums, register of its factor.
macro_rules! tap_loop {
    ($name:ident, $($at:literal $sums:literal $pairs:literal),*) => {
        impl Registers {
            /// `count` tiles of `a`, and of each pointer of `from`; each pointer of `to` is a tile of sums.
            unsafe fn $name(
                &self,
                a: &[Bf16],
                from: [*const Bf16; MAX_SUMS],
                to: [*mut f32; MAX_SUMS],
                channels: usize,
                count: usize,
            ) {
                // SAFETY: upheld by the caller; `self` proves that this thread's registers are configured.
                // All eight are clobbered.
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

tap_loop!(add_three, 0 "tmm0" "tmm7", 8 "tmm1" "tmm5", 16 "tmm2" "tmm7");
tap_loop!(
    add_six, 0 "tmm0" "tmm7", 8 "tmm1" "tmm7", 16 "tmm2" "tmm7", 24 "tmm3" "tmm7", 32 "tmm4" "tmm7",
    40 "tmm5" "tmm7"
);
