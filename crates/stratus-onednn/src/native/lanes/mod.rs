//! Sixteen `f32` at once, with the processor's own instructions: for loops in which the compiler does not find them by itself.
//!
//! Every operation is a bare instruction or two. They are only fast where they are inlined into a function that is compiled for those
//! instructions, and only allowed where the processor has them: the type to use follows from a [`Level`](super::simd::Level).

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
mod portable;
#[cfg(test)]
mod tests;

#[cfg(target_arch = "x86_64")]
pub use avx2::Avx2;
#[cfg(target_arch = "x86_64")]
pub use avx512::{Avx512, transpose};
pub use portable::Portable;

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
    unsafe fn relu(self) -> Self;
    /// The larger; NaN passes.
    unsafe fn maximum(self, other: Self) -> Self;
    /// The larger of this, which is not negative, and the other's magnitude; NaN passes.
    unsafe fn maximum_magnitude(self, other: Self) -> Self;
    /// `yes` where both are equal, `no` elsewhere.
    unsafe fn select_equal(self, other: Self, yes: Self, no: Self) -> Self;
    /// `yes` where it is at most 0, `no` elsewhere, also for NaN.
    unsafe fn select_not_positive(self, yes: Self, no: Self) -> Self;
    /// The sum where the byte is `byte`, itself elsewhere.
    unsafe fn add_where_byte(self, other: Self, bytes: &[u8; LANES], byte: u8) -> Self;
    /// The first half, and that of `other`.
    unsafe fn low_halves(self, other: Self) -> Self;
    /// The second half, and that of `other`.
    unsafe fn high_halves(self, other: Self) -> Self;
    /// Whole numbers from memory.
    unsafe fn load_u8(from: &[u8; LANES]) -> Self;
    /// Whole numbers below 256 to memory.
    unsafe fn store_u8(self, to: &mut [u8; LANES]);
    /// The nearest whole numbers, below 32,768, to memory; what NaN becomes means nothing.
    unsafe fn store_i16(self, to: &mut [i16; LANES]);
    /// The same, with the other's between them.
    unsafe fn store_i16_pairs(self, other: Self, to: &mut [[i16; 2]; LANES]);
    /// Rows as columns: lane `j` of row `i` becomes lane `i` of row `j`.
    #[inline(always)]
    unsafe fn transpose(rows: [Self; LANES]) -> [Self; LANES] {
        let mut lanes = [[0.0; LANES]; LANES];
        // SAFETY: the caller's.
        unsafe {
            for (row, lanes) in rows.into_iter().zip(&mut lanes) {
                row.store(lanes);
            }
            std::array::from_fn(|column| Self::load(&std::array::from_fn(|row| lanes[row][column])))
        }
    }
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
                use $crate::native::simd::Isa;
                match level.isa() {
                    // SAFETY: the level is the proof that the processor has these instructions.
                    Isa::Avx512 => return unsafe { avx512::<E>($($argument),*) },
                    // SAFETY: as above.
                    Isa::Avx2 => return unsafe { avx2::<E>($($argument),*) },
                    Isa::Baseline => {}
                }
            }
            let _ = level;
            // SAFETY: nothing is asked of the processor.
            unsafe { $body::<lanes::Portable, E>($($argument),*) };
        }
    };
}
pub(crate) use with_lanes;
