//! From stored pixels to the numbers a network reads: element type, layout, normalisation.

use half::bf16;
use serde::{Deserialize, Serialize};

use crate::augment::{Blank, Placement, Shift};

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

    /// Writes one sample: `pixels` of the shape, in the given order, placed as told, to `out`, a sample's bytes in a batch, aligned for its
    /// elements.
    pub(crate) fn write(&self, out: &mut [u8], pixels: &[u8], order: PixelOrder, placement: &Placement) {
        match self.element {
            Element::F32 => {
                self.place::<f32>(bytemuck::pod_align_to_mut(out).1, pixels, order, placement);
            }
            Element::Bf16 => {
                self.place::<bf16>(bytemuck::pod_align_to_mut(out).1, pixels, order, placement);
            }
        }
    }

    /// Output (c, y, x) becomes `lines[c]` of the pixel (c, y + shift.rows, x + shift.columns) of the image, mirrored where it shall be;
    /// of 0 where there is none; and 0 where it is blank.
    fn place<T: Stored>(&self, out: &mut [T], pixels: &[u8], order: PixelOrder, placement: &Placement) {
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
                out.iter_mut().step_by(to_step).for_each(|out| *out = T::store(line.of(0)));
            }
            if whole && !placement.flip {
                convert(&mut out[..(plane - 1) * to_step + 1], to_step, source, from_step, line);
            } else {
                for Run { to, row, column, count } in visible_runs(height, width, placement.shift) {
                    let out = &mut out[to * to_step..(to + count - 1) * to_step + 1];
                    if placement.flip {
                        // The run's last pixel is the first of what it mirrors.
                        let first = row * width + width - column - count;
                        let source = &source[first * from_step..(first + count - 1) * from_step + 1];
                        for (out, &pixel) in
                            out.iter_mut().step_by(to_step).zip(source.iter().step_by(from_step).rev())
                        {
                            *out = T::store(line.of(pixel));
                        }
                    } else {
                        let source = &source[(row * width + column) * from_step..];
                        convert(out, to_step, source, from_step, line);
                    }
                }
            }
            if let Some(Blank { rows, columns }) = placement.blank {
                for row in rows[0]..rows[1] {
                    let blank = &mut out[(row * width + columns[0]) * to_step..];
                    blank
                        .iter_mut()
                        .step_by(to_step)
                        .take(columns[1] - columns[0])
                        .for_each(|out| *out = T::store(0.0));
                }
            }
        }
    }
}

/// `out[i × to_step] = line(source[i × from_step])` for every such place in `out`.
fn convert<T: Stored>(out: &mut [T], to_step: usize, source: &[u8], from_step: usize, line: Line) {
    match (to_step, from_step) {
        // Known steps are vectorised.
        (1, 1) => out.iter_mut().zip(source).for_each(|(out, &pixel)| *out = T::store(line.of(pixel))),
        (1, 3) => {
            let triples = source.chunks(3);
            out.iter_mut().zip(triples).for_each(|(out, triple)| *out = T::store(line.of(triple[0])));
        }
        _ => {
            let places = out.iter_mut().step_by(to_step).zip(source.iter().step_by(from_step));
            places.for_each(|(out, &pixel)| *out = T::store(line.of(pixel)));
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
    fn check(shape: [usize; 3], layout: Layout, order: PixelOrder, placement: &Placement) {
        let [channels, height, width] = shape;
        let pixels: Vec<u8> = (0..channels * height * width).map(|i| (i * 37 + 1) as u8).collect();
        let normalisation = Normalisation {
            mean: (0..channels).map(|c| c as f32 * 0.1 + 0.2).collect(),
            std: (0..channels).map(|c| c as f32 * 0.3 + 0.5).collect(),
        };
        let mut out = vec![f32::NAN; pixels.len()];
        let converter = Converter::new(&normalisation, Element::F32, layout, shape);
        converter.write(bytemuck::cast_slice_mut(&mut out), &pixels, order, placement);
        for c in 0..channels {
            for y in 0..height {
                for x in 0..width {
                    let Placement { shift, flip, blank } = *placement;
                    let (from_y, from_x) = (y as i32 + shift.rows, x as i32 + shift.columns);
                    let inside = (0..height as i32).contains(&from_y) && (0..width as i32).contains(&from_x);
                    let pixel = if inside {
                        let (from_y, from_x) = (from_y as usize, from_x as usize);
                        let from_x = if flip { width - 1 - from_x } else { from_x };
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
                    if blank.is_some_and(|blank| {
                        (blank.rows[0]..blank.rows[1]).contains(&y)
                            && (blank.columns[0]..blank.columns[1]).contains(&x)
                    }) {
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
                }
            }
        }
    }

    #[test]
    fn every_pixel_lands_where_its_layout_and_placement_say() {
        for shape in [[1, 4, 5], [3, 4, 5], [2, 1, 1]] {
            let [_, height, width] = shape;
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
                            check(shape, layout, order, &Placement { flip, shift, blank: None });
                        }
                    }
                    let blank = Some(Blank { rows: [0, height.min(2)], columns: [width / 2, width] });
                    let shift = Shift { rows: 1, columns: -1 };
                    check(shape, layout, order, &Placement { flip, shift, blank });
                    check(shape, layout, order, &Placement { flip, shift: Shift::default(), blank });
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
        let (order, placement) = (PixelOrder::Planes, Placement::default());
        converter.write(bytemuck::cast_slice_mut(&mut out), &pixels, order, &placement);
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

    #[test]
    fn a_normalisation_fits_any_number_of_channels() {
        let grey = Normalisation { mean: vec![0.5], std: vec![0.25] };
        assert_eq!(grey.for_channels(3), Normalisation { mean: vec![0.5; 3], std: vec![0.25; 3] });
        let colour = Normalisation { mean: vec![0.25, 0.5, 0.75], std: vec![0.5, 0.5, 0.5] };
        assert_eq!(colour.for_channels(3), colour);
        assert_eq!(colour.for_channels(1), Normalisation { mean: vec![0.5], std: vec![0.5] });
    }
}
