//! Sixteen `f32` at a time with explicit instructions, for loops that the compiler does not vectorise well.
//!
//! Each operation is one or a few instructions. They are fast only if inlined into a function compiled for
//! the instructions ([`with_lanes!`]), and allowed only if the CPU has them: the type follows from an
//! [`IsaLevel`](super::simd::IsaLevel). One AVX-512 register, two AVX2 registers, or an array.

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

/// The number of lanes.
pub const LANES: usize = 16;

const HALF: usize = LANES / 2;

/// Sixteen `f32`.
///
/// # Safety
/// Operations may be called only if the CPU has the instructions that the type is named after.
pub unsafe trait Lanes: Copy {
    /// The number of sums of a product that fit in registers, which leaves room for its factors.
    const MAX_SUMS: usize;
    /// All lanes the same.
    ///
    /// # Safety
    /// See the trait. This applies to all functions below.
    unsafe fn splat(value: f32) -> Self;
    /// Loads sixteen.
    unsafe fn load(from: &[f32; LANES]) -> Self;
    /// Stores sixteen.
    unsafe fn store(self, to: &mut [f32; LANES]);
    /// Stores the first half.
    unsafe fn store_half(self, to: &mut [f32; LANES / 2]);
    /// Stores each lane [`LANES`]` / 2` times.
    unsafe fn store_repeated(self, to: &mut [[f32; LANES]; LANES / 2]);
    /// Loads bf16, exactly.
    unsafe fn load_bf16(from: &[Bf16; LANES]) -> Self;
    /// Stores bf16, rounded as [`Bf16::store`] does.
    unsafe fn store_bf16(self, to: &mut [Bf16; LANES]);
    /// [`Self::store`], non-temporal; `to` is aligned to its size. Call [`Self::end_stream`] after the
    /// last one.
    unsafe fn stream(self, to: &mut [f32; LANES]);
    /// [`Self::store_bf16`], non-temporal, as [`Self::stream`].
    unsafe fn stream_bf16(self, to: &mut [Bf16; LANES]);
    /// Makes streamed results visible to other threads.
    unsafe fn end_stream();
    /// `self * by + to`; fused if the CPU supports it.
    unsafe fn multiply_add(self, by: Self, to: Self) -> Self;
    /// The sum.
    unsafe fn add(self, other: Self) -> Self;
    /// `max(self, 0)`; NaN is propagated.
    unsafe fn relu(self) -> Self;
    /// The maximum; NaN is propagated, as in IEEE 754 `maximum`.
    unsafe fn maximum(self, other: Self) -> Self;
    /// The maximum of `self`, which is not negative, and `|other|`; NaN is propagated.
    unsafe fn maximum_magnitude(self, other: Self) -> Self;
    /// `yes` if `self == other`, else `no`.
    unsafe fn select_equal(self, other: Self, yes: Self, no: Self) -> Self;
    /// `yes` if `self <= 0`, else `no`, also for NaN.
    unsafe fn select_not_positive(self, yes: Self, no: Self) -> Self;
    /// `self + other` if the byte is `byte`, else `self`.
    unsafe fn add_where_byte(self, other: Self, bytes: &[u8; LANES], byte: u8) -> Self;
    /// `[self[0..8], other[0..8]]`.
    unsafe fn low_halves(self, other: Self) -> Self;
    /// `[self[8..16], other[8..16]]`.
    unsafe fn high_halves(self, other: Self) -> Self;
    /// In each four lanes, their lane `lane` in all of them.
    unsafe fn repeat_in_quads(self, lane: usize) -> Self;
    /// Loads bytes as numbers.
    unsafe fn load_u8(from: &[u8; LANES]) -> Self;
    /// Stores integers below 256 as bytes.
    unsafe fn store_u8(self, to: &mut [u8; LANES]);
    /// Stores the nearest integers, ties to even, of magnitudes below 32,768. NaN becomes an unspecified
    /// value.
    unsafe fn store_i16(self, to: &mut [i16; LANES]);
    /// [`Self::store_i16`], interleaved with the integers of `other`.
    unsafe fn store_i16_pairs(self, other: Self, to: &mut [[i16; 2]; LANES]);
    /// Transposes: lane `j` of row `i` becomes lane `i` of row `j`.
    #[inline(always)]
    unsafe fn transpose(rows: [Self; LANES]) -> [Self; LANES] {
        let mut lanes = [[0.0; LANES]; LANES];
        // SAFETY: upheld by the caller.
        unsafe {
            for (row, lanes) in rows.into_iter().zip(&mut lanes) {
                row.store(lanes);
            }
            std::array::from_fn(|column| Self::load(&std::array::from_fn(|row| lanes[row][column])))
        }
    }
}

/// Elements that are loaded and stored sixteen at a time, as `f32`.
pub trait LaneElement: Element {
    /// True if [`with_wide_lanes!`] compiles code for AVX2. It does not for bf16, which the backend supports
    /// only with AVX-512.
    const HAS_WIDE_KERNELS_ON_AVX2: bool;
    /// Loads their values.
    ///
    /// # Safety
    /// As [`Lanes`] requires.
    unsafe fn load_lanes<V: Lanes>(from: &[Self; LANES]) -> V;
    /// Stores the nearest elements.
    ///
    /// # Safety
    /// As [`Lanes`] requires.
    unsafe fn store_lanes<V: Lanes>(values: V, to: &mut [Self; LANES]);
    /// Stores the nearest elements with non-temporal stores: see [`Lanes::stream`].
    ///
    /// # Safety
    /// As [`Lanes`] and [`Lanes::stream`] require.
    unsafe fn stream_lanes<V: Lanes>(values: V, to: &mut [Self; LANES]);
}

impl LaneElement for f32 {
    const HAS_WIDE_KERNELS_ON_AVX2: bool = true;
    #[inline(always)]
    unsafe fn load_lanes<V: Lanes>(from: &[Self; LANES]) -> V {
        // SAFETY: upheld by the caller.
        unsafe { V::load(from) }
    }
    #[inline(always)]
    unsafe fn store_lanes<V: Lanes>(values: V, to: &mut [Self; LANES]) {
        // SAFETY: upheld by the caller.
        unsafe { values.store(to) }
    }
    #[inline(always)]
    unsafe fn stream_lanes<V: Lanes>(values: V, to: &mut [Self; LANES]) {
        // SAFETY: upheld by the caller.
        unsafe { values.stream(to) }
    }
}

impl LaneElement for Bf16 {
    const HAS_WIDE_KERNELS_ON_AVX2: bool = false;
    #[inline(always)]
    unsafe fn load_lanes<V: Lanes>(from: &[Self; LANES]) -> V {
        // SAFETY: upheld by the caller.
        unsafe { V::load_bf16(from) }
    }
    #[inline(always)]
    unsafe fn store_lanes<V: Lanes>(values: V, to: &mut [Self; LANES]) {
        // SAFETY: upheld by the caller.
        unsafe { values.store_bf16(to) }
    }
    #[inline(always)]
    unsafe fn stream_lanes<V: Lanes>(values: V, to: &mut [Self; LANES]) {
        // SAFETY: upheld by the caller.
        unsafe { values.stream_bf16(to) }
    }
}

/// Runs `$body`, compiled for the level, and returns, if the level is AVX-512, or AVX2 and `$on_avx2` is
/// true. `E` is the element of the enclosing function.
macro_rules! return_from_wide {
    ($level:ident, $body:ident, $on_avx2:expr, ($($argument:ident: $type:ty),*)) => {
        #[cfg(target_arch = "x86_64")]
        {
            use $crate::native::lanes;
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
            match $level.isa() {
                // SAFETY: the level proves that the CPU has these instructions.
                Isa::Avx512 => return unsafe { avx512::<E>($($argument),*) },
                Isa::Avx2 if const { $on_avx2 } => {
                    // SAFETY: as above.
                    return unsafe { avx2::<E>($($argument),*) };
                }
                _ => {}
            }
        }
    };
}
pub(crate) use return_from_wide;

/// Defines `$name(level, ...)`, which runs `$body`, compiled for the level. `$body` is an `#[inline(always)]`
/// unsafe function of two generic parameters: the [`Lanes`] of the level, and an element.
macro_rules! with_lanes {
    ($visibility:vis fn $name:ident / $body:ident ($($argument:ident: $type:ty),* $(,)?)) => {
        #[allow(clippy::too_many_arguments)] // Inner loops take slices and constants, not structures of them.
        $visibility fn $name<E: $crate::native::lanes::LaneElement>(
            level: $crate::native::simd::IsaLevel,
            $($argument: $type),*
        ) {
            $crate::native::lanes::return_from_wide!(level, $body, true, ($($argument: $type),*));
            let _ = level;
            // SAFETY: requires no special instructions.
            unsafe { $body::<$crate::native::lanes::Portable, E>($($argument),*) };
        }
    };
}
pub(crate) use with_lanes;

/// [`with_lanes!`] for large kernels, which are offered only on AVX-512 and, for `f32`, on AVX2. It omits the
/// other code, which would be most of the machine code. Tests run them at every level.
#[cfg(not(test))]
macro_rules! with_wide_lanes {
    ($visibility:vis fn $name:ident / $body:ident ($($argument:ident: $type:ty),* $(,)?)) => {
        /// # Panics
        /// Below AVX2; below AVX-512 for elements without
        /// [`HAS_WIDE_KERNELS_ON_AVX2`]($crate::native::lanes::LaneElement::HAS_WIDE_KERNELS_ON_AVX2).
        #[allow(clippy::too_many_arguments)] // Inner loops take slices and constants, not structures of them.
        $visibility fn $name<E: $crate::native::lanes::LaneElement>(
            level: $crate::native::simd::IsaLevel,
            $($argument: $type),*
        ) {
            $crate::native::lanes::return_from_wide!(
                level, $body, E::HAS_WIDE_KERNELS_ON_AVX2, ($($argument: $type),*)
            );
            #[cfg(not(target_arch = "x86_64"))]
            {
                $(let _ = $argument;)*
                let _ = $body::<$crate::native::lanes::Portable, E>;
            }
            unreachable!("no code for this element at level {}", level.name());
        }
    };
}
#[cfg(test)]
pub(crate) use with_lanes as with_wide_lanes;
#[cfg(not(test))]
pub(crate) use with_wide_lanes;
