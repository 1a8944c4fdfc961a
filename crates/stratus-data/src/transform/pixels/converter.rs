//! Writing the pixels of a sample into its batch: placement, normalisation, layout.

use half::{bf16, f16};

use super::stored::{BatchElement, IN_STEP, ScaleShiftPattern};
use super::{Element, Layout, Normalisation, PixelOrder, ScaleShift};
use crate::transform::augment::{Blank, Padding, Placement, Shift};
use crate::transform::frame::Framed;

/// Writes samples into a batch: normalised, or unchanged where elements are bytes.
#[derive(Clone, Debug)]
pub(crate) struct Converter {
    lines: Vec<ScaleShift>,
    pattern: Option<ScaleShiftPattern>,
    element: Element,
    layout: Layout,
    shape: [usize; 3],
}

impl Converter {
    /// `normalisation` must be valid for the `shape` (C, H, W).
    pub(crate) fn new(
        normalisation: &Normalisation,
        element: Element,
        layout: Layout,
        shape: [usize; 3],
    ) -> Self {
        let lines = normalisation.scale_shifts();
        Self { pattern: ScaleShiftPattern::new(&lines), lines, element, layout, shape }
    }

    /// Writes one sample with its placement to `out`, the aligned bytes of the sample in the batch.
    pub(crate) fn write(&self, out: &mut [u8], cut: Framed<'_>, placement: &Placement) {
        match self.element {
            Element::F32 => self.write_as::<f32>(bytemuck::pod_align_to_mut(out).1, cut, placement),
            Element::Bf16 => self.write_as::<bf16>(bytemuck::pod_align_to_mut(out).1, cut, placement),
            Element::F16 => self.write_as::<f16>(bytemuck::pod_align_to_mut(out).1, cut, placement),
            Element::U8 => self.write_as::<u8>(out, cut, placement),
        }
    }

    /// `out(c, y, x) = scale_shifts[c] · in(c, y + shift.rows, x + shift.columns)`, with the input mirrored
    /// first if so placed. Outside of the input it is that of pixel 0 or of the reflection; 0 for blank
    /// pixels and those outside the image.
    fn write_as<T: BatchElement>(&self, out: &mut [T], cut: Framed<'_>, placement: &Placement) {
        match (self.layout, cut.order, &self.pattern, self.lines.len()) {
            (Layout::Nhwc, PixelOrder::Interleaved, Some(pattern), 3) => {
                self.place_pixels::<T, 3>(pattern, out, cut.pixels, placement);
            }
            (Layout::Nhwc, PixelOrder::Interleaved, Some(pattern), 1) => {
                self.place_pixels::<T, 1>(pattern, out, cut.pixels, placement);
            }
            _ => self.place_channels(out, cut.pixels, cut.order, placement),
        }
        if let Some(shown) = cut.shown {
            self.blank_hidden(out, shown, placement);
        }
        if placement.padding == Padding::Reflect {
            self.reflect(out, placement.shift);
        }
        if let Some(Blank { rows, columns }) = placement.blank {
            (rows[0]..rows[1]).for_each(|row| self.blank(out, row, columns));
        }
    }

    /// Pixel by pixel: both sides are channels-last.
    fn place_pixels<T: BatchElement, const CHANNELS: usize>(
        &self,
        pattern: &ScaleShiftPattern,
        out: &mut [T],
        pixels: &[u8],
        placement: &Placement,
    ) {
        let [_, height, width] = self.shape;
        if placement.shift != Shift::default() {
            out.chunks_mut(IN_STEP).for_each(|out| pattern.convert_rest(out, &[0; IN_STEP]));
        } else if !placement.flip {
            return pattern.convert(out, pixels);
        }
        for Run { to, row, column, count } in visible_runs(height, width, placement.shift) {
            let out = &mut out[to * CHANNELS..(to + count) * CHANNELS];
            // Mirrored: the last input pixel of the run comes first.
            let first = row * width + if placement.flip { width - column - count } else { column };
            let source = &pixels[first * CHANNELS..(first + count) * CHANNELS];
            if placement.flip {
                pattern.convert_mirrored::<T, CHANNELS>(out, source);
            } else {
                pattern.convert(out, source);
            }
        }
    }

    /// Channel by channel.
    fn place_channels<T: BatchElement>(
        &self,
        out: &mut [T],
        pixels: &[u8],
        order: PixelOrder,
        placement: &Placement,
    ) {
        let [channels, height, width] = self.shape;
        let plane = height * width;
        for (channel, &scale_shift) in self.lines.iter().enumerate() {
            let (source, from_step) = match order {
                PixelOrder::Planes => (&pixels[channel * plane..], 1),
                PixelOrder::Interleaved => (&pixels[channel..], channels),
            };
            let (out, to_step) = match self.layout {
                Layout::Nchw => (&mut out[channel * plane..(channel + 1) * plane], 1),
                Layout::Nhwc => (&mut out[channel..], channels),
            };
            let whole = placement.shift == Shift::default();
            if !whole {
                out.iter_mut().step_by(to_step).for_each(|out| *out = T::of(0, scale_shift));
            }
            if whole && !placement.flip {
                convert(&mut out[..(plane - 1) * to_step + 1], to_step, source, from_step, scale_shift);
                continue;
            }
            for Run { to, row, column, count } in visible_runs(height, width, placement.shift) {
                let out = &mut out[to * to_step..(to + count - 1) * to_step + 1];
                if placement.flip {
                    // The run's last pixel is the first of what it mirrors.
                    let first = row * width + width - column - count;
                    let source = &source[first * from_step..(first + count - 1) * from_step + 1];
                    for (out, &pixel) in
                        out.iter_mut().step_by(to_step).zip(source.iter().step_by(from_step).rev())
                    {
                        *out = T::of(pixel, scale_shift);
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
            for scale_shift in visible.chunks_exact_mut(width * pixel) {
                copy_reflected(scale_shift, pixel, width, shift.columns);
            }
            copy_reflected(plane, width * pixel, height, shift.rows);
        }
    }

    /// Blanks output pixels outside the `shown` columns of their row, wherever they are placed.
    fn blank_hidden<T: BatchElement>(&self, out: &mut [T], shown: &[[usize; 2]], placement: &Placement) {
        let [_, height, width] = self.shape;
        for Run { to, row, column, count } in visible_runs(height, width, placement.shift) {
            let [first, end] = shown[row];
            let [first, end] = if placement.flip { [width - end, width - first] } else { [first, end] };
            // Within the run, which takes its pixels from `column` on.
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

/// `out[i × to_step] = line(source[i × from_step])` for every such place in `out`.
fn convert<T: BatchElement>(
    out: &mut [T],
    to_step: usize,
    source: &[u8],
    from_step: usize,
    scale_shift: ScaleShift,
) {
    match (to_step, from_step) {
        // Constant strides are vectorised.
        (1, 1) => out.iter_mut().zip(source).for_each(|(out, &pixel)| *out = T::of(pixel, scale_shift)),
        (1, 3) => {
            let triples = source.chunks(3);
            out.iter_mut().zip(triples).for_each(|(out, triple)| *out = T::of(triple[0], scale_shift));
        }
        _ => {
            let places = out.iter_mut().step_by(to_step).zip(source.iter().step_by(from_step));
            places.for_each(|(out, &pixel)| *out = T::of(pixel, scale_shift));
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
    let (to_row, from_row, lines) = overlap(height, shift.rows);
    let lines = if count == 0 { 0 } else { lines };
    (0..lines).map(move |scale_shift| Run {
        to: (to_row + scale_shift) * width + to_column,
        row: from_row + scale_shift,
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

/// Along an axis of `length`, output `i` is input `i + by`: the first output, the first input, and their
/// number.
fn overlap(length: usize, by: i32) -> (usize, usize, usize) {
    let distance = (by.unsigned_abs() as usize).min(length);
    let (to, from) = if by < 0 { (distance, 0) } else { (0, distance) };
    (to, from, length - distance)
}
