//! Instruction sets, elements, prefetching, streaming stores.

/// The instruction sets that kernels are compiled for, in ascending order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Isa {
    /// The compiler's target.
    Baseline,
    /// AVX2 and FMA.
    Avx2,
    /// AVX-512 with F, BW, VL and DQ.
    Avx512,
}

/// An instruction set that the CPU was detected to have; a value proves it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct IsaLevel(Isa);

impl IsaLevel {
    /// All levels that the CPU supports, in ascending order.
    #[must_use]
    pub fn all() -> Vec<Self> {
        let mut levels = vec![Self(Isa::Baseline)];
        #[cfg(target_arch = "x86_64")]
        {
            use std::arch::is_x86_feature_detected as has;
            if has!("avx2") && has!("fma") {
                levels.push(Self(Isa::Avx2));
                if has!("avx512f") && has!("avx512bw") && has!("avx512vl") && has!("avx512dq") {
                    levels.push(Self(Isa::Avx512));
                }
            }
        }
        levels
    }

    /// The highest level that the CPU supports and `[avx2, avx512]` permits.
    #[must_use]
    pub fn detect([avx2, avx512]: [bool; 2]) -> Self {
        let permitted = |level: &Self| match level.0 {
            Isa::Baseline => true,
            Isa::Avx2 => avx2,
            Isa::Avx512 => avx512,
        };
        Self::all().into_iter().filter(permitted).max().unwrap_or(Self(Isa::Baseline))
    }

    /// The instruction set.
    #[must_use]
    pub fn isa(self) -> Isa {
        self.0
    }

    /// The name in plans.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self.0 {
            Isa::Baseline => "baseline",
            Isa::Avx2 => "avx2",
            Isa::Avx512 => "avx512",
        }
    }
}

/// Defines `$name(level, ...)`, which runs `$body`, an `#[inline(always)]` function with the same arguments,
/// compiled for the level. Generic parameters are given twice, with and without bounds.
macro_rules! multiversion {
    (
        $visibility:vis fn $name:ident / $body:ident [$($bounds:tt)*] [$($generics:tt)*]
        ($($argument:ident: $type:ty),* $(,)?)
    ) => {
        #[allow(clippy::too_many_arguments)] // Inner loops take slices and constants, not structures of them.
        $visibility fn $name<$($bounds)*>(level: $crate::native::simd::IsaLevel, $($argument: $type),*) {
            #[cfg(target_arch = "x86_64")]
            {
                #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,fma,avx2")]
                fn avx512<$($bounds)*>($($argument: $type),*) {
                    $body::<$($generics)*>($($argument),*);
                }
                #[target_feature(enable = "avx2,fma")]
                fn avx2<$($bounds)*>($($argument: $type),*) {
                    $body::<$($generics)*>($($argument),*);
                }
                use $crate::native::simd::Isa;
                match level.isa() {
                    // SAFETY: the level proves that the CPU has these instructions.
                    Isa::Avx512 => return unsafe { avx512::<$($generics)*>($($argument),*) },
                    // SAFETY: as above.
                    Isa::Avx2 => return unsafe { avx2::<$($generics)*>($($argument),*) },
                    Isa::Baseline => {}
                }
            }
            let _ = level;
            $body::<$($generics)*>($($argument),*);
        }
    };
}
pub(crate) use multiversion;

/// An element type whose arithmetic is in `f32`.
pub trait Element: bytemuck::Pod + Send + Sync {
    /// The value as `f32`.
    fn load(self) -> f32;
    /// The nearest element.
    fn store(value: f32) -> Self;
}

impl Element for f32 {
    #[inline(always)]
    fn load(self) -> f32 {
        self
    }
    #[inline(always)]
    fn store(value: f32) -> Self {
        value
    }
}

/// bf16: the upper half of the bits of an `f32`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(transparent)]
pub struct Bf16(pub u16);

// SAFETY: a transparent wrapper of u16: any bits are valid, there is no padding.
unsafe impl bytemuck::Zeroable for Bf16 {}
// SAFETY: as above.
unsafe impl bytemuck::Pod for Bf16 {}

impl Element for Bf16 {
    #[inline(always)]
    fn load(self) -> f32 {
        f32::from_bits(u32::from(self.0) << 16)
    }
    /// Rounds to nearest, ties to even; NaN stays NaN.
    #[inline(always)]
    fn store(value: f32) -> Self {
        let bits = value.to_bits();
        let rounded = (bits.wrapping_add(0x7fff + ((bits >> 16) & 1)) >> 16) as u16;
        let nan = (bits >> 16) as u16 | 0x40;
        Self(if bits & 0x7fff_ffff > 0x7f80_0000 { nan } else { rounded })
    }
}

/// The size of a cache line in bytes.
pub const CACHE_LINE: usize = 64;

/// The prefetch distance in bytes. On a Zen 5 in a virtual machine, two threads read 43 GB/s with the
/// hardware prefetcher alone, and 80 to 90 with prefetches 2 to 16 KiB ahead (docs/benchmarks/kernels.md).
const PREFETCH_DISTANCE: usize = 4096;

/// Prefetches the element [`PREFETCH_DISTANCE`] after `near`, for kernels that read a map in order.
#[inline(always)]
pub fn prefetch_ahead<E>(near: &[E]) {
    prefetch(near, PREFETCH_DISTANCE / size_of::<E>());
}

/// The prefetch distance in elements for rows `step` elements apart: [`PREFETCH_DISTANCE`], rounded up to
/// whole steps.
#[inline(always)]
pub fn steps_ahead<E>(step: usize) -> usize {
    PREFETCH_DISTANCE.div_ceil((step * size_of::<E>()).max(1)) * step
}

/// Prefetches the row that starts `ahead` elements after the start of `near`, with its length.
#[inline(always)]
pub fn prefetch_step<E>(near: &[E], ahead: usize) {
    prefetch(near, ahead.saturating_sub(near.len()));
}

/// Prefetches into L1 the range of `near`'s length that starts `distance` elements after its end.
///
/// When a kernel computes between two rows of a map outside of the caches, the hardware prefetcher pauses as
/// well.
#[inline(always)]
pub fn prefetch<E>(near: &[E], distance: usize) {
    let start = near.as_ptr_range().end.wrapping_add(distance).cast();
    prefetch_lines::<true>(start, size_of_val(near));
}

/// Prefetches the elements in `range` into L1, as far as `map` has them.
#[inline(always)]
pub fn prefetch_l1<E>(map: &[E], range: std::ops::Range<usize>) {
    let part = map.get(range.start..range.end.min(map.len())).unwrap_or_default();
    prefetch_lines::<true>(part.as_ptr().cast(), size_of_val(part));
}

/// Prefetches all of `part` into L2.
#[inline(always)]
pub fn prefetch_l2<T>(part: &[T]) {
    prefetch_lines::<false>(part.as_ptr().cast(), size_of_val(part));
}

/// Prefetches `bytes` from `start`, which may be outside of any allocation, into L1 or else L2.
#[inline(always)]
fn prefetch_lines<const L1: bool>(start: *const i8, bytes: usize) {
    #[cfg(target_arch = "x86_64")]
    for line in (0..bytes).step_by(CACHE_LINE) {
        use std::arch::x86_64::{_MM_HINT_T0, _MM_HINT_T1, _mm_prefetch};
        let line = start.wrapping_add(line);
        // SAFETY: a hint: it reads nothing, and unmapped addresses are ignored.
        unsafe { if L1 { _mm_prefetch::<_MM_HINT_T0>(line) } else { _mm_prefetch::<_MM_HINT_T1>(line) } };
    }
    let _ = (start, bytes);
}

/// Prefetches the cache line of an element into L1.
#[inline(always)]
pub fn prefetch_element<E: Element>(map: &[E], at: usize) {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: a hint: it reads nothing, and unmapped addresses are ignored.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(map.as_ptr().wrapping_add(at).cast()) };
    }
    let _ = (map, at);
}

/// Copies with non-temporal stores, for results too large to be in the caches when they are read. Avoids
/// reading the overwritten lines.
pub fn stream<E: Element>(level: IsaLevel, from: &[E], to: &mut [E]) {
    assert_eq!(from.len(), to.len(), "source and target differ in length");
    #[cfg(target_arch = "x86_64")]
    if level.isa() == Isa::Avx512 {
        let (from, to): (&[u8], &mut [u8]) = (bytemuck::cast_slice(from), bytemuck::cast_slice_mut(to));
        // SAFETY: the level proves AVX-512; both slices have the same length.
        unsafe { stream_avx512(from, to) };
        return;
    }
    let _ = level;
    to.copy_from_slice(from);
}

/// # Safety
/// AVX-512 must be available, and both slices must have the same length.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f")]
unsafe fn stream_avx512(from: &[u8], to: &mut [u8]) {
    use std::arch::x86_64::{_mm_sfence, _mm512_loadu_si512, _mm512_stream_si512};
    let head = to.as_ptr().align_offset(64).min(to.len());
    let lines = (to.len() - head) / 64;
    to[..head].copy_from_slice(&from[..head]);
    for line in 0..lines {
        let at = head + line * 64;
        // SAFETY: `at + 64 <= len` of both slices; `to + at` is a multiple of 64.
        unsafe {
            _mm512_stream_si512(
                to.as_mut_ptr().add(at).cast(),
                _mm512_loadu_si512(from.as_ptr().add(at).cast()),
            );
        }
    }
    let tail = head + lines * 64;
    to[tail..].copy_from_slice(&from[tail..]);
    // Non-temporal stores are weakly ordered: they must be visible before the work is reported as finished.
    _mm_sfence();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn streaming_copies_at_every_alignment() {
        let from: Vec<f32> = (0..1000u16).map(f32::from).collect();
        for level in IsaLevel::all() {
            for (start, length) in [(0, 0), (0, 1), (1, 15), (3, 16), (5, 17), (0, 64), (7, 500), (15, 985)] {
                let mut to = vec![-1.0; 1000];
                stream(level, &from[start..start + length], &mut to[start..start + length]);
                for (i, &value) in to.iter().enumerate() {
                    let copied = (start..start + length).contains(&i);
                    assert_eq!(value, if copied { i as f32 } else { -1.0 });
                }
            }
        }
    }

    #[test]
    fn levels_respect_the_permitted_instruction_sets() {
        assert_eq!(IsaLevel::detect([false, false]).name(), "baseline");
        assert!(IsaLevel::detect([true, false]).isa() <= Isa::Avx2);
        assert_eq!(Some(IsaLevel::detect([true, true])), IsaLevel::all().into_iter().max());
    }

    #[test]
    fn bf16_rounds_like_the_half_crate() {
        let mut bits = 1u32;
        for _ in 0..200_000 {
            bits = bits.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            let value = f32::from_bits(bits);
            let (ours, theirs) = (Bf16::store(value), half::bf16::from_f32(value));
            assert_eq!(ours.0, theirs.to_bits(), "{value}");
            assert_eq!(ours.load().to_bits(), theirs.to_f32().to_bits(), "{value}");
        }
    }
}
