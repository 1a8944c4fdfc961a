//! Arithmetic of window gradients: a lane is one `f32`, or two neighbouring outputs of bf16.

use super::{Band, LANES, ThreadScratch, WindowGradient};
use crate::native::simd::Element;
use std::arch::x86_64::{__m512, __m512i};

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
pub struct TwoRegisters(pub(super) [u16; 2]);

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
    pub(super) fn all(self) -> u32 {
        u32::from(self.0[0]) | u32::from(self.0[1]) << LANES
    }
}

/// The lanes of two registers.
pub const TWO: usize = 2 * LANES;
