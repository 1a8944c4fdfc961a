//! From stored pixels to the numbers a network reads: element type, layout, normalisation.

use half::bf16;
use serde::{Deserialize, Serialize};

use crate::augment::Shift;

/// The type of an image's elements in a batch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Element {
    /// IEEE 754 single precision.
    #[default]
    F32,
    /// The upper half of an `f32`, rounded to nearest even.
    Bf16,
}

impl Element {
    /// Bytes of one element.
    #[must_use]
    pub fn bytes(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::Bf16 => 2,
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

    /// Whether there is one finite mean and one finite, positive deviation per channel.
    #[must_use]
    pub fn is_valid(&self, channels: usize) -> bool {
        self.mean.len() == channels
            && self.std.len() == channels
            && self.mean.iter().all(|mean| mean.is_finite())
            && self.std.iter().all(|std| std.is_finite() && *std > 0.0)
    }

    /// The same as one multiplication and one addition per pixel, the constants rounded once: `pixel * scale + offset`.
    fn lines(&self) -> Vec<Line> {
        let line = |(mean, std): (&f32, &f32)| {
            let (mean, std) = (f64::from(*mean), f64::from(*std));
            Line { scale: (1.0 / (255.0 * std)) as f32, offset: (-mean / std) as f32 }
        };
        self.mean.iter().zip(&self.std).map(line).collect()
    }
}

/// What a pixel of one channel becomes.
#[derive(Clone, Copy, Debug)]
struct Line {
    scale: f32,
    offset: f32,
}

impl Line {
    /// Multiplied, rounded, added, rounded: the same bits on every processor.
    #[inline(always)]
    fn of(self, pixel: u8) -> f32 {
        f32::from(pixel) * self.scale + self.offset
    }
}

/// An element of a batch.
trait Stored: Copy {
    fn store(value: f32) -> Self;
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

/// Writes normalised samples into a batch.
#[derive(Clone, Debug)]
pub(crate) struct Converter {
    lines: Vec<Line>,
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
        Self { lines: normalisation.lines(), element, layout, shape }
    }

    /// Writes one sample: `pixels` (C, H, W), moved by `shift`, to `out`, a sample's bytes in a batch, aligned for its elements.
    pub(crate) fn write(&self, out: &mut [u8], pixels: &[u8], shift: Shift) {
        let Self { lines, layout, shape, .. } = self;
        match self.element {
            Element::F32 => {
                place::<f32>(bytemuck::pod_align_to_mut(out).1, pixels, *shape, lines, *layout, shift);
            }
            Element::Bf16 => {
                place::<bf16>(bytemuck::pod_align_to_mut(out).1, pixels, *shape, lines, *layout, shift);
            }
        }
    }
}

/// Output (c, y, x) becomes `lines[c]` of the pixel (c, y + shift.rows, x + shift.columns), of 0 where there is none.
fn place<T: Stored>(
    out: &mut [T],
    pixels: &[u8],
    [channels, height, width]: [usize; 3],
    lines: &[Line],
    layout: Layout,
    shift: Shift,
) {
    let plane = height * width;
    for (channel, &line) in lines.iter().enumerate() {
        let background = T::store(line.of(0));
        let source = &pixels[channel * plane..(channel + 1) * plane];
        if layout == Layout::Nchw || channels == 1 {
            let out = &mut out[channel * plane..(channel + 1) * plane];
            if shift == Shift::default() {
                convert(out, source, line);
                continue;
            }
            out.fill(background);
            for Run { to, from, count } in visible_runs(height, width, shift) {
                convert(&mut out[to..to + count], &source[from..from + count], line);
            }
        } else {
            for out in out[channel..].iter_mut().step_by(channels) {
                *out = background;
            }
            for Run { to, from, count } in visible_runs(height, width, shift) {
                let run = out[to * channels + channel..].iter_mut().step_by(channels);
                for (out, &pixel) in run.zip(&source[from..from + count]) {
                    *out = T::store(line.of(pixel));
                }
            }
        }
    }
}

/// `out[i] = line(source[i])`.
fn convert<T: Stored>(out: &mut [T], source: &[u8], line: Line) {
    for (out, &pixel) in out.iter_mut().zip(source) {
        *out = T::store(line.of(pixel));
    }
}

/// A run of pixels that a shift leaves visible: where it begins in the output's and the input's plane, and its length.
struct Run {
    to: usize,
    from: usize,
    count: usize,
}

fn visible_runs(height: usize, width: usize, shift: Shift) -> impl Iterator<Item = Run> {
    let (to_column, from_column, count) = overlap(width, shift.columns);
    let (to_row, from_row, lines) = overlap(height, shift.rows);
    let lines = if count == 0 { 0 } else { lines };
    (0..lines).map(move |line| Run {
        to: (to_row + line) * width + to_column,
        from: (from_row + line) * width + from_column,
        count,
    })
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

    /// `place` by its definition, one element at a time.
    fn check(shape: [usize; 3], layout: Layout, shift: Shift) {
        let [channels, height, width] = shape;
        let pixels: Vec<u8> = (0..channels * height * width).map(|i| (i * 37 + 1) as u8).collect();
        let normalisation = Normalisation {
            mean: (0..channels).map(|c| c as f32 * 0.1 + 0.2).collect(),
            std: (0..channels).map(|c| c as f32 * 0.3 + 0.5).collect(),
        };
        let mut out = vec![f32::NAN; pixels.len()];
        let converter = Converter::new(&normalisation, Element::F32, layout, shape);
        converter.write(bytemuck::cast_slice_mut(&mut out), &pixels, shift);
        for c in 0..channels {
            for y in 0..height {
                for x in 0..width {
                    let (from_y, from_x) = (y as i32 + shift.rows, x as i32 + shift.columns);
                    let inside = (0..height as i32).contains(&from_y) && (0..width as i32).contains(&from_x);
                    let pixel = if inside {
                        pixels[(c * height + from_y as usize) * width + from_x as usize]
                    } else {
                        0
                    };
                    let expected = normalisation.lines()[c].of(pixel);
                    let exact = (f64::from(pixel) / 255.0 - f64::from(normalisation.mean[c]))
                        / f64::from(normalisation.std[c]);
                    assert!((f64::from(expected) - exact).abs() < 1e-6 * exact.abs().max(1.0));
                    let at = match layout {
                        Layout::Nchw => (c * height + y) * width + x,
                        Layout::Nhwc => (y * width + x) * channels + c,
                    };
                    assert_eq!(
                        out[at].to_bits(),
                        expected.to_bits(),
                        "{shape:?} {layout:?} {shift:?} {c} {y} {x}"
                    );
                }
            }
        }
    }

    #[test]
    fn every_pixel_lands_where_its_layout_and_shift_say() {
        for shape in [[1, 4, 5], [3, 4, 5], [2, 1, 1]] {
            for layout in [Layout::Nchw, Layout::Nhwc] {
                for rows in -5..=5 {
                    for columns in -6..=6 {
                        check(shape, layout, Shift { rows, columns });
                    }
                }
            }
        }
    }

    #[test]
    fn bf16_is_the_rounded_f32() {
        let normalisation = Normalisation { mean: vec![0.1307], std: vec![0.3081] };
        let pixels: Vec<u8> = (0..=255).collect();
        let mut out = vec![bf16::ZERO; 256];
        let converter = Converter::new(&normalisation, Element::Bf16, Layout::Nhwc, [1, 16, 16]);
        converter.write(bytemuck::cast_slice_mut(&mut out), &pixels, Shift::default());
        for (pixel, value) in pixels.iter().zip(&out) {
            assert_eq!(*value, bf16::from_f32(normalisation.lines()[0].of(*pixel)));
        }
    }

    #[test]
    fn a_normalisation_needs_every_channel_and_a_deviation() {
        assert!(Normalisation::unit(3).is_valid(3));
        assert!(!Normalisation::unit(3).is_valid(1));
        assert!(!Normalisation { mean: vec![0.0], std: vec![0.0] }.is_valid(1));
        assert!(!Normalisation { mean: vec![f32::NAN], std: vec![1.0] }.is_valid(1));
    }
}
