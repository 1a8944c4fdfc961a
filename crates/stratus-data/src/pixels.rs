//! From stored pixels to the numbers a network reads: element type, layout, normalisation.

use half::{bf16, f16};
use serde::{Deserialize, Serialize};

use crate::augment::{Blank, Padding, Placement, Shift};
use crate::frame::Cut;

/// The type of an image's elements in a batch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Element {
    /// IEEE 754 single precision.
    #[default]
    F32,
    /// The upper half of an `f32`, rounded to nearest even.
    Bf16,
    /// IEEE 754 half precision, rounded to nearest even.
    F16,
    /// The pixel as it is, from 0 to 255: whoever reads it normalises it, by [`Normalisation::lines`]. What is no pixel but the mean cannot be one: see
    /// [`LoaderConfig::needs_numbers`](crate::LoaderConfig::needs_numbers).
    U8,
}

impl Element {
    /// Bytes of one element.
    #[must_use]
    pub fn bytes(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::Bf16 | Self::F16 => 2,
            Self::U8 => 1,
        }
    }
}

/// The order of a batch's elements in memory, outermost dimension first. With one channel both are the same bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Layout {
    /// Batch, channel, row, column.
    #[default]
    Nchw,
    /// Batch, row, column, channel.
    Nhwc,
}

/// The order of a stored sample's pixels. With one channel both are the same bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum PixelOrder {
    /// A plane per channel: (C, H, W).
    #[default]
    Planes,
    /// The channels of a pixel side by side: (H, W, C).
    Interleaved,
}

/// Per channel, what is subtracted from and then divides a pixel that was scaled to 0…1: `(x / 255 - mean) / std`, computed as
/// `x * scale + offset` in `f32`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Normalisation {
    /// One mean per channel.
    pub mean: Vec<f32>,
    /// One standard deviation per channel, above 0.
    pub std: Vec<f32>,
}

impl Normalisation {
    /// Scaling to 0…1 only.
    #[must_use]
    pub fn unit(channels: usize) -> Self {
        Self { mean: vec![0.0; channels], std: vec![1.0; channels] }
    }

    /// That of ImageNet's images in red, green and blue, as torchvision's networks are trained with.
    #[must_use]
    pub fn imagenet() -> Self {
        Self { mean: vec![0.485, 0.456, 0.406], std: vec![0.229, 0.224, 0.225] }
    }

    /// The same for images of another number of channels: one channel's numbers for all, or the means of several for one.
    #[must_use]
    pub fn for_channels(&self, channels: usize) -> Self {
        let spread = |numbers: &[f32]| {
            if numbers.len() == channels {
                return numbers.to_vec();
            }
            let sum: f64 = numbers.iter().copied().map(f64::from).sum();
            vec![(sum / numbers.len().max(1) as f64) as f32; channels]
        };
        Self { mean: spread(&self.mean), std: spread(&self.std) }
    }

    /// Whether there is one finite mean and one finite, positive deviation per channel.
    #[must_use]
    pub fn is_valid(&self, channels: usize) -> bool {
        self.mean.len() == channels
            && self.std.len() == channels
            && self.mean.iter().all(|mean| mean.is_finite())
            && self.std.iter().all(|std| std.is_finite() && *std > 0.0)
    }

    /// The same as one multiplication and one addition per pixel, the constants rounded once: `pixel * scale + offset`. One for each channel.
    #[must_use]
    pub fn lines(&self) -> Vec<Line> {
        let line = |(mean, std): (&f32, &f32)| {
            let (mean, std) = (f64::from(*mean), f64::from(*std));
            Line { scale: (1.0 / (255.0 * std)) as f32, offset: (-mean / std) as f32 }
        };
        self.mean.iter().zip(&self.std).map(line).collect()
    }
}

/// What a pixel of one channel becomes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Line {
    /// What it is multiplied by.
    pub scale: f32,
    /// What is added to the product.
    pub offset: f32,
}

impl Line {
    /// Multiplied, rounded, added, rounded: the same bits on every processor.
    #[inline(always)]
    #[must_use]
    pub fn of(self, pixel: u8) -> f32 {
        f32::from(pixel) * self.scale + self.offset
    }
}

/// An element of a batch.
pub(crate) trait Stored: Copy {
    /// The nearest to a finite number.
    fn store(value: f32) -> Self;

    /// What a pixel becomes.
    #[inline(always)]
    fn of(pixel: u8, line: Line) -> Self {
        Self::store(line.of(pixel))
    }
}

impl Stored for f32 {
    #[inline(always)]
    fn store(value: f32) -> Self {
        value
    }
}

impl Stored for bf16 {
    /// To nearest even; the value is finite, so that no case needs to be told apart and the loop is vectorised.
    #[inline(always)]
    fn store(value: f32) -> Self {
        let bits = value.to_bits();
        bf16::from_bits((bits.wrapping_add(0x7fff + ((bits >> 16) & 1)) >> 16) as u16)
    }
}

impl Stored for f16 {
    /// To nearest even. All of the three cases are computed and one is chosen, without a branch, so that the loop is vectorised.
    #[inline(always)]
    fn store(value: f32) -> Self {
        // 2^16: what is not less is infinite, and so becomes what is rounded up to it.
        const INFINITE: u32 = (127 + 16) << 23;
        // 2^-14: what is less has fewer digits. Where a number is added to it whose last digit is the last it may have, the sum is rounded there.
        const LEAST: u32 = (127 - 14) << 23;
        const ALIGNS: u32 = (127 - 14 + 13) << 23;
        let bits = value.to_bits();
        let sign = bits & 0x8000_0000;
        let size = bits ^ sign;
        let odd = (size >> 13) & 1;
        let usual = size.wrapping_sub((127 - 15) << 23).wrapping_add(0xfff + odd) >> 13;
        let small = (f32::from_bits(size) + f32::from_bits(ALIGNS)).to_bits().wrapping_sub(ALIGNS);
        let rounded = if size < LEAST { small } else { usual };
        let rounded = if size < INFINITE { rounded } else { 0x7c00 };
        f16::from_bits((rounded | sign >> 16) as u16)
    }
}

impl Stored for u8 {
    #[inline(always)]
    fn store(value: f32) -> Self {
        value.round() as u8
    }

    /// Itself, whatever the line.
    #[inline(always)]
    fn of(pixel: u8, _line: Line) -> Self {
        pixel
    }
}

/// Numbers that are converted in step: a whole number of vectors, and of pixels of 1 or 3 channels.
const IN_STEP: usize = 48;

/// The lines of pixels whose channels lie side by side, one after the other.
#[derive(Clone, Debug)]
struct Pattern {
    scales: [f32; IN_STEP],
    offsets: [f32; IN_STEP],
}

impl Pattern {
    /// None where a pixel's channels do not come round.
    fn new(lines: &[Line]) -> Option<Self> {
        if lines.is_empty() || !IN_STEP.is_multiple_of(lines.len()) {
            return None;
        }
        let line = |at: usize| lines[at % lines.len()];
        Some(Self {
            scales: std::array::from_fn(|at| line(at).scale),
            offsets: std::array::from_fn(|at| line(at).offset),
        })
    }

    /// Converts so many numbers, of which the first belongs to the first channel.
    #[inline(always)]
    fn convert_in_step<T: Stored>(&self, out: &mut [T; IN_STEP], source: &[u8; IN_STEP]) {
        for at in 0..IN_STEP {
            out[at] = T::of(source[at], Line { scale: self.scales[at], offset: self.offsets[at] });
        }
    }

    /// Converts fewer.
    fn convert_rest<T: Stored>(&self, out: &mut [T], source: &[u8]) {
        let lines = self.scales.iter().zip(&self.offsets);
        for ((out, &level), (&scale, &offset)) in out.iter_mut().zip(source).zip(lines) {
            *out = T::of(level, Line { scale, offset });
        }
    }

    /// Whole pixels, in their order.
    fn convert<T: Stored>(&self, out: &mut [T], source: &[u8]) {
        let (out, out_rest) = out.as_chunks_mut::<IN_STEP>();
        let (source, source_rest) = source.as_chunks::<IN_STEP>();
        out.iter_mut().zip(source).for_each(|(out, source)| self.convert_in_step(out, source));
        self.convert_rest(out_rest, source_rest);
    }

    /// Whole pixels of `CHANNELS`, the last one first.
    fn convert_mirrored<T: Stored, const CHANNELS: usize>(&self, out: &mut [T], source: &[u8]) {
        let mut mirrored = [0; IN_STEP];
        let mut parts = source.rchunks(IN_STEP);
        for out in out.chunks_mut(IN_STEP) {
            let part = parts.next().unwrap_or_default().as_chunks::<CHANNELS>().0;
            let places = mirrored.as_chunks_mut::<CHANNELS>().0;
            places.iter_mut().zip(part.iter().rev()).for_each(|(place, pixel)| *place = *pixel);
            match out.try_into() {
                Ok(out) => self.convert_in_step(out, &mirrored),
                Err(_) => self.convert_rest(out, &mirrored),
            }
        }
    }
}

/// Writes samples into a batch: normalised, or where its elements are bytes as they are.
#[derive(Clone, Debug)]
pub(crate) struct Converter {
    lines: Vec<Line>,
    pattern: Option<Pattern>,
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
        let lines = normalisation.lines();
        Self { pattern: Pattern::new(&lines), lines, element, layout, shape }
    }

    /// Writes one sample: pixels of the shape, placed as told, to `out`, a sample's bytes in a batch, aligned for its elements.
    pub(crate) fn write(&self, out: &mut [u8], cut: Cut<'_>, placement: &Placement) {
        match self.element {
            Element::F32 => self.write_as::<f32>(bytemuck::pod_align_to_mut(out).1, cut, placement),
            Element::Bf16 => self.write_as::<bf16>(bytemuck::pod_align_to_mut(out).1, cut, placement),
            Element::F16 => self.write_as::<f16>(bytemuck::pod_align_to_mut(out).1, cut, placement),
            Element::U8 => self.write_as::<u8>(out, cut, placement),
        }
    }

    /// Output (c, y, x) becomes `lines[c]` of the pixel (c, y + shift.rows, x + shift.columns) of the image, mirrored where it shall be;
    /// of 0, or of what the image mirrored in its edge has there, where there is none; and 0 where the pixel shows nothing or it is blank.
    fn write_as<T: Stored>(&self, out: &mut [T], cut: Cut<'_>, placement: &Placement) {
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

    /// Pixel by pixel, where their channels lie side by side in both.
    fn place_pixels<T: Stored, const CHANNELS: usize>(
        &self,
        pattern: &Pattern,
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
            // The run's last pixel is the first of what it mirrors.
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
    fn place_channels<T: Stored>(
        &self,
        out: &mut [T],
        pixels: &[u8],
        order: PixelOrder,
        placement: &Placement,
    ) {
        let [channels, height, width] = self.shape;
        let plane = height * width;
        for (channel, &line) in self.lines.iter().enumerate() {
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
                out.iter_mut().step_by(to_step).for_each(|out| *out = T::of(0, line));
            }
            if whole && !placement.flip {
                convert(&mut out[..(plane - 1) * to_step + 1], to_step, source, from_step, line);
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
                        *out = T::of(pixel, line);
                    }
                } else {
                    let source = &source[(row * width + column) * from_step..];
                    convert(out, to_step, source, from_step, line);
                }
            }
        }
    }

    /// Fills what a shift uncovers with the reflection of what it leaves visible.
    fn reflect<T: Stored>(&self, out: &mut [T], shift: Shift) {
        let [channels, height, width] = self.shape;
        let pixel = match self.layout {
            Layout::Nchw => 1,
            Layout::Nhwc => channels,
        };
        let (top, _, rows) = overlap(height, shift.rows);
        for plane in out.chunks_exact_mut(height * width * pixel) {
            let visible = &mut plane[top * width * pixel..(top + rows) * width * pixel];
            for line in visible.chunks_exact_mut(width * pixel) {
                copy_reflected(line, pixel, width, shift.columns);
            }
            copy_reflected(plane, width * pixel, height, shift.rows);
        }
    }

    /// Blanks the pixels of the output that show nothing: those outside the `shown` columns of their row, wherever they are placed.
    fn blank_hidden<T: Stored>(&self, out: &mut [T], shown: &[[usize; 2]], placement: &Placement) {
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

    /// Writes 0, the mean, to some columns of a row.
    fn blank<T: Stored>(&self, out: &mut [T], row: usize, [first, end]: [usize; 2]) {
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
fn convert<T: Stored>(out: &mut [T], to_step: usize, source: &[u8], from_step: usize, line: Line) {
    match (to_step, from_step) {
        // Known steps are vectorised.
        (1, 1) => out.iter_mut().zip(source).for_each(|(out, &pixel)| *out = T::of(pixel, line)),
        (1, 3) => {
            let triples = source.chunks(3);
            out.iter_mut().zip(triples).for_each(|(out, triple)| *out = T::of(triple[0], line));
        }
        _ => {
            let places = out.iter_mut().step_by(to_step).zip(source.iter().step_by(from_step));
            places.for_each(|(out, &pixel)| *out = T::of(pixel, line));
        }
    }
}

/// A run of pixels that a shift leaves visible: where it begins in the output's plane, where in the input, and its length.
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
    (0..lines).map(move |line| Run {
        to: (to_row + line) * width + to_column,
        row: from_row + line,
        column: from_column,
        count,
    })
}

/// Of `count` chunks of `len` elements, copies those that a shift by `by` leaves visible to the places on the other side of the edge.
fn copy_reflected<T: Copy>(values: &mut [T], len: usize, count: usize, by: i32) {
    let (first, _, visible) = overlap(count, by);
    let last = first + visible - 1;
    let uncovered =
        (0..first).map(|at| (at, 2 * first - at)).chain((last + 1..count).map(|at| (at, 2 * last - at)));
    for (to, from) in uncovered {
        values.copy_within(from * len..(from + 1) * len, to * len);
    }
}

/// Along an axis of `length`, output i takes input i + `by`: first output, first input and how many there are.
fn overlap(length: usize, by: i32) -> (usize, usize, usize) {
    let distance = (by.unsigned_abs() as usize).min(length);
    let (to, from) = if by < 0 { (distance, 0) } else { (0, distance) };
    (to, from, length - distance)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Writing by its definition, one element at a time.
    fn check(
        shape: [usize; 3],
        layout: Layout,
        order: PixelOrder,
        placement: &Placement,
        shown: Option<&[[usize; 2]]>,
    ) {
        let [channels, height, width] = shape;
        let pixels: Vec<u8> = (0..channels * height * width).map(|i| (i * 37 + 1) as u8).collect();
        let normalisation = Normalisation {
            mean: (0..channels).map(|c| c as f32 * 0.1 + 0.2).collect(),
            std: (0..channels).map(|c| c as f32 * 0.3 + 0.5).collect(),
        };
        let mut out = vec![f32::NAN; pixels.len()];
        let converter = Converter::new(&normalisation, Element::F32, layout, shape);
        converter.write(bytemuck::cast_slice_mut(&mut out), Cut { pixels: &pixels, order, shown }, placement);
        // What shows no pixel cannot be a byte.
        let bytes = (shown.is_none() && placement.blank.is_none()).then(|| {
            let mut bytes = vec![0xff; pixels.len()];
            let converter = Converter::new(&normalisation, Element::U8, layout, shape);
            converter.write(&mut bytes, Cut { pixels: &pixels, order, shown }, placement);
            bytes
        });
        for c in 0..channels {
            for y in 0..height {
                for x in 0..width {
                    let Placement { shift, flip, blank, padding } = *placement;
                    let (mut from_y, mut from_x) = (y as i32 + shift.rows, x as i32 + shift.columns);
                    if padding == Padding::Reflect {
                        let mirrored = |at: i32, length: usize| {
                            let last = length as i32 - 1;
                            last - (last - at.abs()).abs()
                        };
                        (from_y, from_x) = (mirrored(from_y, height), mirrored(from_x, width));
                    }
                    let inside = (0..height as i32).contains(&from_y) && (0..width as i32).contains(&from_x);
                    let mut hidden = false;
                    let pixel = if inside {
                        let (from_y, from_x) = (from_y as usize, from_x as usize);
                        let from_x = if flip { width - 1 - from_x } else { from_x };
                        hidden = shown.is_some_and(|shown| {
                            let [first, end] = shown[from_y];
                            !(first..end).contains(&from_x)
                        });
                        match order {
                            PixelOrder::Planes => pixels[(c * height + from_y) * width + from_x],
                            PixelOrder::Interleaved => pixels[(from_y * width + from_x) * channels + c],
                        }
                    } else {
                        0
                    };
                    let mut expected = normalisation.lines()[c].of(pixel);
                    let exact = (f64::from(pixel) / 255.0 - f64::from(normalisation.mean[c]))
                        / f64::from(normalisation.std[c]);
                    assert!((f64::from(expected) - exact).abs() < 1e-6 * exact.abs().max(1.0));
                    let blank = blank.is_some_and(|blank| {
                        (blank.rows[0]..blank.rows[1]).contains(&y)
                            && (blank.columns[0]..blank.columns[1]).contains(&x)
                    });
                    if blank || hidden {
                        expected = 0.0;
                    }
                    let at = match layout {
                        Layout::Nchw => (c * height + y) * width + x,
                        Layout::Nhwc => (y * width + x) * channels + c,
                    };
                    assert_eq!(
                        out[at].to_bits(),
                        expected.to_bits(),
                        "{shape:?} {layout:?} {order:?} {placement:?} {c} {y} {x}"
                    );
                    assert!(
                        bytes.as_ref().is_none_or(|bytes| bytes[at] == pixel),
                        "{shape:?} {layout:?} {order:?} {placement:?} {c} {y} {x} as bytes"
                    );
                }
            }
        }
    }

    #[test]
    fn every_pixel_lands_where_its_layout_and_placement_say() {
        for shape in [[1, 4, 5], [3, 4, 5], [2, 1, 1], [3, 3, 41], [1, 2, 103]] {
            let [_, height, width] = shape;
            // Triangles and empty rows.
            let shown: Vec<_> = (0..height).map(|row| [row.min(width / 2), width - row.min(width)]).collect();
            for layout in [Layout::Nchw, Layout::Nhwc] {
                for (order, flip) in [
                    (PixelOrder::Planes, false),
                    (PixelOrder::Planes, true),
                    (PixelOrder::Interleaved, false),
                    (PixelOrder::Interleaved, true),
                ] {
                    for rows in -5..=5 {
                        for columns in -6..=6 {
                            let shift = Shift { rows, columns };
                            let zero = Placement { flip, shift, ..Placement::default() };
                            let reflected = Placement { padding: Padding::Reflect, ..zero };
                            let small = |by: i32, length: usize| 2 * by.unsigned_abs() < length as u32;
                            let reflects = small(rows, height) && small(columns, width);
                            for placement in [Some(zero), reflects.then_some(reflected)].iter().flatten() {
                                check(shape, layout, order, placement, None);
                                check(shape, layout, order, placement, Some(&shown));
                            }
                        }
                    }
                    let blank = Some(Blank { rows: [0, height.min(2)], columns: [width / 2, width] });
                    let shift = Shift { rows: 1, columns: -1 };
                    check(
                        shape,
                        layout,
                        order,
                        &Placement { flip, shift, blank, ..Placement::default() },
                        Some(&shown),
                    );
                    check(shape, layout, order, &Placement { flip, blank, ..Placement::default() }, None);
                }
            }
        }
    }

    /// Every pixel as an element.
    fn every_pixel<T: bytemuck::Pod>(normalisation: &Normalisation, element: Element) -> Vec<T> {
        let pixels: Vec<u8> = (0..=255).collect();
        let mut out = vec![T::zeroed(); 256];
        let converter = Converter::new(normalisation, element, Layout::Nhwc, [1, 16, 16]);
        let cut = Cut { pixels: &pixels, order: PixelOrder::Planes, shown: None };
        converter.write(bytemuck::cast_slice_mut(&mut out), cut, &Placement::default());
        out
    }

    #[test]
    fn narrow_elements_are_the_rounded_f32_and_bytes_the_pixels() {
        let normalisation = Normalisation { mean: vec![0.1307], std: vec![0.3081] };
        let line = normalisation.lines()[0];
        let (bf16s, f16s) = (
            every_pixel::<bf16>(&normalisation, Element::Bf16),
            every_pixel::<f16>(&normalisation, Element::F16),
        );
        for (pixel, (bf16, f16)) in (0..=255).zip(bf16s.iter().zip(&f16s)) {
            assert_eq!(*bf16, bf16::from_f32(line.of(pixel)));
            assert_eq!(*f16, f16::from_f32(line.of(pixel)));
        }
        assert_eq!(every_pixel::<u8>(&normalisation, Element::U8), (0..=255).collect::<Vec<u8>>());
    }

    /// Every f16, what lies in the middle between it and the next, and the neighbours of both; then whatever comes.
    #[test]
    fn f16_is_rounded_to_nearest_even() {
        let check = |value: f32| {
            if value.is_nan() {
                return;
            }
            let (got, expected) = (<f16 as Stored>::store(value), f16::from_f32(value));
            assert_eq!(got.to_bits(), expected.to_bits(), "{value:e}: {got:e}, not {expected:e}");
        };
        for bits in 0..=0xffff_u16 {
            let value = f16::from_bits(bits).to_f32();
            if !value.is_finite() {
                continue;
            }
            // Half of the last place of an f16, also where that fades out.
            let middle = value + f32::from_bits((value.to_bits() & 0x7f80_0000).max(103 << 23)) / 2048.0;
            for near in [value, middle, (value + middle) / 2.0] {
                let bits = near.to_bits();
                [bits, bits.wrapping_add(1), bits.wrapping_sub(1)]
                    .map(f32::from_bits)
                    .into_iter()
                    .for_each(check);
            }
        }
        let mut bits = 1_u32;
        for _ in 0..1_000_000 {
            bits = bits.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            check(f32::from_bits(bits));
        }
        [65_519.996, 65_520.0, -65_536.0, 1e38, f32::INFINITY, 2e-45, -0.0, 2.98e-8, 2.981e-8]
            .into_iter()
            .for_each(check);
    }

    #[test]
    fn a_normalisation_needs_every_channel_and_a_deviation() {
        assert!(Normalisation::unit(3).is_valid(3));
        assert!(!Normalisation::unit(3).is_valid(1));
        assert!(!Normalisation { mean: vec![0.0], std: vec![0.0] }.is_valid(1));
        assert!(!Normalisation { mean: vec![f32::NAN], std: vec![1.0] }.is_valid(1));
    }

    #[test]
    fn a_normalisation_fits_any_number_of_channels() {
        let grey = Normalisation { mean: vec![0.5], std: vec![0.25] };
        assert_eq!(grey.for_channels(3), Normalisation { mean: vec![0.5; 3], std: vec![0.25; 3] });
        let colour = Normalisation { mean: vec![0.25, 0.5, 0.75], std: vec![0.5, 0.5, 0.5] };
        assert_eq!(colour.for_channels(3), colour);
        assert_eq!(colour.for_channels(1), Normalisation { mean: vec![0.5], std: vec![0.5] });
    }
}
