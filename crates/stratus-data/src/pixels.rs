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

/// Per channel, what is subtracted from and then divides a pixel that was scaled to 0…1: `(x / 255 - mean) / std`.
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

    /// What each of the 256 pixel values becomes, per channel.
    fn tables<T>(&self, convert: impl Fn(f32) -> T) -> Vec<[T; 256]> {
        let channel = |(mean, std): (&f32, &f32)| {
            std::array::from_fn(|value| convert((value as f32 / 255.0 - mean) / std))
        };
        self.mean.iter().zip(&self.std).map(channel).collect()
    }
}

/// Writes normalised samples into a batch: a table look-up per pixel.
#[derive(Clone, Debug)]
pub(crate) struct Converter {
    tables: Tables,
    layout: Layout,
    shape: [usize; 3],
}

#[derive(Clone, Debug)]
enum Tables {
    F32(Vec<[f32; 256]>),
    Bf16(Vec<[bf16; 256]>),
}

impl Converter {
    /// `normalisation` must be valid for the `shape` (C, H, W).
    pub(crate) fn new(
        normalisation: &Normalisation,
        element: Element,
        layout: Layout,
        shape: [usize; 3],
    ) -> Self {
        let tables = match element {
            Element::F32 => Tables::F32(normalisation.tables(|value| value)),
            Element::Bf16 => Tables::Bf16(normalisation.tables(bf16::from_f32)),
        };
        Self { tables, layout, shape }
    }

    /// Writes one sample: `pixels` (C, H, W), moved by `shift`, to `out`, a sample's bytes in a batch, aligned for its elements.
    pub(crate) fn write(&self, out: &mut [u8], pixels: &[u8], shift: Shift) {
        match &self.tables {
            Tables::F32(tables) => {
                place(bytemuck::pod_align_to_mut(out).1, pixels, self.shape, tables, self.layout, shift);
            }
            Tables::Bf16(tables) => {
                place(bytemuck::pod_align_to_mut(out).1, pixels, self.shape, tables, self.layout, shift);
            }
        }
    }
}

/// Output (c, y, x) becomes `tables[c]` of the pixel (c, y + shift.rows, x + shift.columns), of 0 where there is none.
fn place<T: Copy>(
    out: &mut [T],
    pixels: &[u8],
    [channels, height, width]: [usize; 3],
    tables: &[[T; 256]],
    layout: Layout,
    shift: Shift,
) {
    let plane = height * width;
    for (channel, table) in tables.iter().enumerate() {
        let source = &pixels[channel * plane..(channel + 1) * plane];
        if layout == Layout::Nchw || channels == 1 {
            let out = &mut out[channel * plane..(channel + 1) * plane];
            if shift == Shift::default() {
                look_up(out, source, table);
                continue;
            }
            out.fill(table[0]);
            for Run { to, from, count } in visible_runs(height, width, shift) {
                look_up(&mut out[to..to + count], &source[from..from + count], table);
            }
        } else {
            for out in out[channel..].iter_mut().step_by(channels) {
                *out = table[0];
            }
            for Run { to, from, count } in visible_runs(height, width, shift) {
                let run = out[to * channels + channel..].iter_mut().step_by(channels);
                for (out, &pixel) in run.zip(&source[from..from + count]) {
                    *out = table[usize::from(pixel)];
                }
            }
        }
    }
}

/// `out[i] = table[source[i]]`.
fn look_up<T: Copy>(out: &mut [T], source: &[u8], table: &[T; 256]) {
    for (out, &pixel) in out.iter_mut().zip(source) {
        *out = table[usize::from(pixel)];
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
                    let expected = (f32::from(pixel) / 255.0 - normalisation.mean[c]) / normalisation.std[c];
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
            assert_eq!(*value, bf16::from_f32((f32::from(*pixel) / 255.0 - 0.1307) / 0.3081));
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
