//! Writes the pixels of a sample into its batch: placement, normalisation, layout.

use half::{bf16, f16};

use super::format::{Element, Layout, Normalisation, PixelOrder, ScaleShift};
use super::stored::{BatchElement, STEP_ELEMENTS, ScaleShiftPattern};
use crate::transform::augment::{Padding, PixelRect, Placement, Shift};
use crate::transform::frame::CroppedPixels;

/// Writes samples into a batch: normalised, or unchanged where elements are bytes.
#[derive(Clone, Debug)]
pub(crate) struct Converter {
    scale_shifts: Vec<ScaleShift>,
    pattern: Option<ScaleShiftPattern>,
    element: Element,
    layout: Layout,
    shape: [usize; 3],
}

impl Converter {
    /// Creates a converter. `normalisation` must be valid for the `shape` (C, H, W).
    pub(crate) fn new(
        normalisation: &Normalisation,
        element: Element,
        layout: Layout,
        shape: [usize; 3],
    ) -> Self {
        let scale_shifts = normalisation.scale_shifts();
        Self { pattern: ScaleShiftPattern::new(&scale_shifts), scale_shifts, element, layout, shape }
    }

    /// Writes one sample with its placement to `out`, the aligned bytes of the sample in the batch.
    pub(crate) fn write(&self, out: &mut [u8], cropped: CroppedPixels<'_>, placement: &Placement) {
        match self.element {
            Element::F32 => self.write_as::<f32>(bytemuck::pod_align_to_mut(out).1, cropped, placement),
            Element::Bf16 => self.write_as::<bf16>(bytemuck::pod_align_to_mut(out).1, cropped, placement),
            Element::F16 => self.write_as::<f16>(bytemuck::pod_align_to_mut(out).1, cropped, placement),
            Element::U8 => self.write_as::<u8>(out, cropped, placement),
        }
    }

    /// Writes `out(c, y, x) = scale_shifts[c] · in(c, y + shift.rows, x + shift.columns)`, with the input
    /// mirrored first if requested. Positions outside of the input get the value of pixel 0, or of the
    /// reflected pixel. Blank pixels, and those outside the image, get 0.
    fn write_as<T: BatchElement>(&self, out: &mut [T], cropped: CroppedPixels<'_>, placement: &Placement) {
        match (self.layout, cropped.order, &self.pattern, self.scale_shifts.len()) {
            (Layout::Nhwc, PixelOrder::Interleaved, Some(pattern), 3) => {
                self.place_pixels::<T, 3>(pattern, out, cropped.pixels, placement);
            }
            (Layout::Nhwc, PixelOrder::Interleaved, Some(pattern), 1) => {
                self.place_pixels::<T, 1>(pattern, out, cropped.pixels, placement);
            }
            _ => self.place_channels(out, cropped.pixels, cropped.order, placement),
        }
        if let Some(valid_columns) = cropped.valid_columns {
            self.blank_outside(out, valid_columns, placement);
        }
        if placement.padding == Padding::Reflect {
            self.reflect(out, placement.shift);
        }
        if let Some(PixelRect { rows, columns }) = placement.cutout {
            (rows[0]..rows[1]).for_each(|row| self.blank(out, row, columns));
        }
    }

    /// Writes pixel by pixel; input and output are channels-last.
    fn place_pixels<T: BatchElement, const CHANNELS: usize>(
        &self,
        pattern: &ScaleShiftPattern,
        out: &mut [T],
        pixels: &[u8],
        placement: &Placement,
    ) {
        let [_, height, width] = self.shape;
        if placement.shift != Shift::default() {
            out.chunks_mut(STEP_ELEMENTS).for_each(|out| pattern.convert_rest(out, &[0; STEP_ELEMENTS]));
        } else if !placement.flip {
            return pattern.convert(out, pixels);
        }
        for Run { to, row, column, count } in visible_runs(height, width, placement.shift) {
            let out = &mut out[to * CHANNELS..(to + count) * CHANNELS];
            // If mirrored, the last input pixel of the run comes first.
            let first = row * width + if placement.flip { width - column - count } else { column };
            let source = &pixels[first * CHANNELS..(first + count) * CHANNELS];
            if placement.flip {
                pattern.convert_mirrored::<T, CHANNELS>(out, source);
            } else {
                pattern.convert(out, source);
            }
        }
    }

    /// Writes channel by channel.
    fn place_channels<T: BatchElement>(
        &self,
        out: &mut [T],
        pixels: &[u8],
        order: PixelOrder,
        placement: &Placement,
    ) {
        let [channels, height, width] = self.shape;
        let plane = height * width;
        for (channel, &scale_shift) in self.scale_shifts.iter().enumerate() {
            let (source, from_step) = match order {
                PixelOrder::Planes => (&pixels[channel * plane..], 1),
                PixelOrder::Interleaved => (&pixels[channel..], channels),
            };
            let (out, to_step) = match self.layout {
                Layout::Nchw => (&mut out[channel * plane..(channel + 1) * plane], 1),
                Layout::Nhwc => (&mut out[channel..], channels),
            };
            let is_unshifted = placement.shift == Shift::default();
            if !is_unshifted {
                out.iter_mut().step_by(to_step).for_each(|out| *out = T::from_pixel(0, scale_shift));
            }
            if is_unshifted && !placement.flip {
                convert(&mut out[..(plane - 1) * to_step + 1], to_step, source, from_step, scale_shift);
                continue;
            }
            for Run { to, row, column, count } in visible_runs(height, width, placement.shift) {
                let out = &mut out[to * to_step..(to + count - 1) * to_step + 1];
                if placement.flip {
                    // The last input pixel of the run comes first.
                    let first = row * width + width - column - count;
                    let source = &source[first * from_step..(first + count - 1) * from_step + 1];
                    for (out, &pixel) in
                        out.iter_mut().step_by(to_step).zip(source.iter().step_by(from_step).rev())
                    {
                        *out = T::from_pixel(pixel, scale_shift);
                    }
                } else {
                    let source = &source[(row * width + column) * from_step..];
                    convert(out, to_step, source, from_step, scale_shift);
                }
            }
        }
    }

    /// Fills the uncovered area with the reflection of the visible one.
    fn reflect<T: BatchElement>(&self, out: &mut [T], shift: Shift) {
        let [channels, height, width] = self.shape;
        let pixel = match self.layout {
            Layout::Nchw => 1,
            Layout::Nhwc => channels,
        };
        let (top, _, rows) = overlap(height, shift.rows);
        for plane in out.chunks_exact_mut(height * width * pixel) {
            let visible = &mut plane[top * width * pixel..(top + rows) * width * pixel];
            for row in visible.chunks_exact_mut(width * pixel) {
                copy_reflected(row, pixel, width, shift.columns);
            }
            copy_reflected(plane, width * pixel, height, shift.rows);
        }
    }

    /// Blanks output pixels outside the `valid_columns` of their row, after placement.
    fn blank_outside<T: BatchElement>(
        &self,
        out: &mut [T],
        valid_columns: &[[usize; 2]],
        placement: &Placement,
    ) {
        let [_, height, width] = self.shape;
        for Run { to, row, column, count } in visible_runs(height, width, placement.shift) {
            let [first, end] = valid_columns[row];
            let [first, end] = if placement.flip { [width - end, width - first] } else { [first, end] };
            // Clamp to the run, whose pixels start at `column`.
            let [first, end] = [first, end].map(|at| at.saturating_sub(column).min(count));
            let (out_row, out_column) = (to / width, to % width);
            self.blank(out, out_row, [out_column, out_column + first]);
            self.blank(out, out_row, [out_column + end, out_column + count]);
        }
    }

    /// Writes 0, the normalised mean, to some columns of a row.
    fn blank<T: BatchElement>(&self, out: &mut [T], row: usize, [first, end]: [usize; 2]) {
        let [channels, height, width] = self.shape;
        let [first, end] = [first, end].map(|column| row * width + column);
        match self.layout {
            Layout::Nhwc => out[first * channels..end * channels].fill(T::store(0.0)),
            Layout::Nchw => {
                let planes = out.chunks_exact_mut(height * width);
                planes.for_each(|plane| plane[first..end].fill(T::store(0.0)));
            }
        }
    }
}

/// Writes `out[i × to_step] = normalised(source[i × from_step])` for every `i` in `out`.
fn convert<T: BatchElement>(
    out: &mut [T],
    to_step: usize,
    source: &[u8],
    from_step: usize,
    scale_shift: ScaleShift,
) {
    match (to_step, from_step) {
        // Constant strides are vectorised.
        (1, 1) => {
            out.iter_mut().zip(source).for_each(|(out, &pixel)| *out = T::from_pixel(pixel, scale_shift));
        }
        (1, 3) => {
            let triples = source.chunks(3);
            out.iter_mut()
                .zip(triples)
                .for_each(|(out, triple)| *out = T::from_pixel(triple[0], scale_shift));
        }
        _ => {
            let pairs = out.iter_mut().step_by(to_step).zip(source.iter().step_by(from_step));
            pairs.for_each(|(out, &pixel)| *out = T::from_pixel(pixel, scale_shift));
        }
    }
}

/// A run of pixels that remain visible after a shift: its start in the output plane, its position in the
/// input, and its length.
struct Run {
    to: usize,
    row: usize,
    column: usize,
    count: usize,
}

fn visible_runs(height: usize, width: usize, shift: Shift) -> impl Iterator<Item = Run> {
    let (to_column, from_column, count) = overlap(width, shift.columns);
    let (to_row, from_row, rows) = overlap(height, shift.rows);
    let rows = if count == 0 { 0 } else { rows };
    (0..rows).map(move |row| Run {
        to: (to_row + row) * width + to_column,
        row: from_row + row,
        column: from_column,
        count,
    })
}

/// Copies the `count` chunks of `len` elements that remain visible after a shift by `by` to their reflected
/// positions beyond the edge.
fn copy_reflected<T: Copy>(values: &mut [T], len: usize, count: usize, by: i32) {
    let (first, _, visible) = overlap(count, by);
    let last = first + visible - 1;
    let uncovered =
        (0..first).map(|at| (at, 2 * first - at)).chain((last + 1..count).map(|at| (at, 2 * last - at)));
    for (to, from) in uncovered {
        values.copy_within(from * len..(from + 1) * len, to * len);
    }
}

/// The overlap of an axis of `length` with itself shifted by `by`: the first output index, the first input
/// index, and the number of positions.
fn overlap(length: usize, by: i32) -> (usize, usize, usize) {
    let distance = (by.unsigned_abs() as usize).min(length);
    let (to, from) = if by < 0 { (distance, 0) } else { (0, distance) };
    (to, from, length - distance)
}
