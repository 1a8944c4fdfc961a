//! Element types of a batch, and the vectorised conversion of pixels.

use half::{bf16, f16};

use super::format::ScaleShift;

/// An element of a batch.
pub(crate) trait BatchElement: Copy {
    /// Rounds a finite number.
    fn store(value: f32) -> Self;

    /// Normalises a pixel.
    #[inline(always)]
    fn from_pixel(pixel: u8, scale_shift: ScaleShift) -> Self {
        Self::store(scale_shift.normalise(pixel))
    }
}

impl BatchElement for f32 {
    #[inline(always)]
    fn store(value: f32) -> Self {
        value
    }
}

impl BatchElement for bf16 {
    /// Rounds to nearest even. The value is finite, so no case distinction prevents vectorisation.
    #[inline(always)]
    fn store(value: f32) -> Self {
        let bits = value.to_bits();
        bf16::from_bits((bits.wrapping_add(0x7fff + ((bits >> 16) & 1)) >> 16) as u16)
    }
}

impl BatchElement for f16 {
    /// Rounds to nearest even. All three cases are computed and one is selected without a branch, so that the
    /// loop is vectorised.
    #[inline(always)]
    fn store(value: f32) -> Self {
        // 2^16: anything not below it rounds to infinity.
        const OVERFLOW_BITS: u32 = (127 + 16) << 23;
        // 2^-14: smaller numbers are subnormal. Adding a number whose last bit is the smallest subnormal
        // rounds them to it.
        const MIN_NORMAL_BITS: u32 = (127 - 14) << 23;
        const SUBNORMAL_ROUNDING_BITS: u32 = (127 - 14 + 13) << 23;
        let bits = value.to_bits();
        let sign = bits & 0x8000_0000;
        let size = bits ^ sign;
        let odd = (size >> 13) & 1;
        let normal = size.wrapping_sub((127 - 15) << 23).wrapping_add(0xfff + odd) >> 13;
        let subnormal = (f32::from_bits(size) + f32::from_bits(SUBNORMAL_ROUNDING_BITS))
            .to_bits()
            .wrapping_sub(SUBNORMAL_ROUNDING_BITS);
        let rounded = if size < MIN_NORMAL_BITS { subnormal } else { normal };
        let rounded = if size < OVERFLOW_BITS { rounded } else { 0x7c00 };
        f16::from_bits((rounded | sign >> 16) as u16)
    }
}

impl BatchElement for u8 {
    #[inline(always)]
    fn store(value: f32) -> Self {
        value.round() as u8
    }

    /// The pixel itself, without normalisation.
    #[inline(always)]
    fn from_pixel(pixel: u8, _: ScaleShift) -> Self {
        pixel
    }
}

/// Elements per vectorised step: a whole number of vectors, and of pixels with 1 or 3 channels.
pub(super) const STEP_ELEMENTS: usize = 48;

/// Scales and offsets of channels-last pixels, repeated to one step.
#[derive(Clone, Debug)]
pub(super) struct ScaleShiftPattern {
    scales: [f32; STEP_ELEMENTS],
    offsets: [f32; STEP_ELEMENTS],
}

impl ScaleShiftPattern {
    /// Creates the pattern; `None` if a step is not a whole number of pixels.
    pub(super) fn new(scale_shifts: &[ScaleShift]) -> Option<Self> {
        if scale_shifts.is_empty() || !STEP_ELEMENTS.is_multiple_of(scale_shifts.len()) {
            return None;
        }
        let scale_shift = |at: usize| scale_shifts[at % scale_shifts.len()];
        Some(Self {
            scales: std::array::from_fn(|at| scale_shift(at).scale),
            offsets: std::array::from_fn(|at| scale_shift(at).offset),
        })
    }

    /// Converts one step; the first element belongs to the first channel.
    #[inline(always)]
    fn convert_in_step<T: BatchElement>(&self, out: &mut [T; STEP_ELEMENTS], source: &[u8; STEP_ELEMENTS]) {
        for at in 0..STEP_ELEMENTS {
            out[at] =
                T::from_pixel(source[at], ScaleShift { scale: self.scales[at], offset: self.offsets[at] });
        }
    }

    /// Converts fewer elements than a step.
    pub(super) fn convert_rest<T: BatchElement>(&self, out: &mut [T], source: &[u8]) {
        let scale_shifts = self.scales.iter().zip(&self.offsets);
        for ((out, &level), (&scale, &offset)) in out.iter_mut().zip(source).zip(scale_shifts) {
            *out = T::from_pixel(level, ScaleShift { scale, offset });
        }
    }

    /// Converts whole pixels, in order.
    pub(super) fn convert<T: BatchElement>(&self, out: &mut [T], source: &[u8]) {
        let (out, out_rest) = out.as_chunks_mut::<STEP_ELEMENTS>();
        let (source, source_rest) = source.as_chunks::<STEP_ELEMENTS>();
        out.iter_mut().zip(source).for_each(|(out, source)| self.convert_in_step(out, source));
        self.convert_rest(out_rest, source_rest);
    }

    /// Converts whole pixels of `CHANNELS` channels, the last one first.
    pub(super) fn convert_mirrored<T: BatchElement, const CHANNELS: usize>(
        &self,
        out: &mut [T],
        source: &[u8],
    ) {
        let mut mirrored = [0; STEP_ELEMENTS];
        let mut parts = source.rchunks(STEP_ELEMENTS);
        for out in out.chunks_mut(STEP_ELEMENTS) {
            let part = parts.next().unwrap_or_default().as_chunks::<CHANNELS>().0;
            let pixels = mirrored.as_chunks_mut::<CHANNELS>().0;
            pixels.iter_mut().zip(part.iter().rev()).for_each(|(out, pixel)| *out = *pixel);
            match out.try_into() {
                Ok(out) => self.convert_in_step(out, &mirrored),
                Err(_) => self.convert_rest(out, &mirrored),
            }
        }
    }
}
