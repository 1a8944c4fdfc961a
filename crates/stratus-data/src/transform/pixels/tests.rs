//! Compares pixels of every layout with their definition, element by element.

use half::{bf16, f16};

use super::stored::BatchElement;
use super::*;
use crate::transform::augment::{Padding, PixelRect, Placement, Shift};
use crate::transform::frame::CroppedPixels;

/// Compares the converter with the definition, element by element.
fn check(
    shape: [usize; 3],
    layout: Layout,
    order: PixelOrder,
    placement: &Placement,
    valid_columns: Option<&[[usize; 2]]>,
) {
    let [channels, height, width] = shape;
    let pixels: Vec<u8> = (0..channels * height * width).map(|i| (i * 37 + 1) as u8).collect();
    let normalisation = Normalisation {
        mean: (0..channels).map(|c| c as f32 * 0.1 + 0.2).collect(),
        std: (0..channels).map(|c| c as f32 * 0.3 + 0.5).collect(),
    };
    let mut out = vec![f32::NAN; pixels.len()];
    let converter = Converter::new(&normalisation, Element::F32, layout, shape);
    converter.write(
        bytemuck::cast_slice_mut(&mut out),
        CroppedPixels { pixels: &pixels, order, valid_columns },
        placement,
    );
    // Blank pixels cannot be bytes.
    let bytes = (valid_columns.is_none() && placement.cutout.is_none()).then(|| {
        let mut bytes = vec![0xff; pixels.len()];
        let converter = Converter::new(&normalisation, Element::U8, layout, shape);
        converter.write(&mut bytes, CroppedPixels { pixels: &pixels, order, valid_columns }, placement);
        bytes
    });
    for c in 0..channels {
        for y in 0..height {
            for x in 0..width {
                let Placement { shift, flip, cutout: blank, padding } = *placement;
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
                    hidden = valid_columns.is_some_and(|valid_columns| {
                        let [first, end] = valid_columns[from_y];
                        !(first..end).contains(&from_x)
                    });
                    match order {
                        PixelOrder::Planes => pixels[(c * height + from_y) * width + from_x],
                        PixelOrder::Interleaved => pixels[(from_y * width + from_x) * channels + c],
                    }
                } else {
                    0
                };
                let mut expected = normalisation.scale_shifts()[c].normalise(pixel);
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
fn writes_every_pixel_by_layout_and_placement() {
    for shape in [[1, 4, 5], [3, 4, 5], [2, 1, 1], [3, 3, 41], [1, 2, 103]] {
        let [_, height, width] = shape;
        // Triangular and empty rows of valid pixels.
        let valid_columns: Vec<_> =
            (0..height).map(|row| [row.min(width / 2), width - row.min(width)]).collect();
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
                            check(shape, layout, order, placement, Some(&valid_columns));
                        }
                    }
                }
                let blank = Some(PixelRect { rows: [0, height.min(2)], columns: [width / 2, width] });
                let shift = Shift { rows: 1, columns: -1 };
                check(
                    shape,
                    layout,
                    order,
                    &Placement { flip, shift, cutout: blank, ..Placement::default() },
                    Some(&valid_columns),
                );
                check(shape, layout, order, &Placement { flip, cutout: blank, ..Placement::default() }, None);
            }
        }
    }
}

/// Every pixel value as an element.
fn every_pixel<T: bytemuck::Pod>(normalisation: &Normalisation, element: Element) -> Vec<T> {
    let pixels: Vec<u8> = (0..=255).collect();
    let mut out = vec![T::zeroed(); 256];
    let converter = Converter::new(normalisation, element, Layout::Nhwc, [1, 16, 16]);
    let cut = CroppedPixels { pixels: &pixels, order: PixelOrder::Planes, valid_columns: None };
    converter.write(bytemuck::cast_slice_mut(&mut out), cut, &Placement::default());
    out
}

#[test]
fn narrow_elements_are_rounded_f32_and_bytes_are_pixels() {
    let normalisation = Normalisation { mean: vec![0.1307], std: vec![0.3081] };
    let scale_shift = normalisation.scale_shifts()[0];
    let (bf16s, f16s) = (
        every_pixel::<bf16>(&normalisation, Element::Bf16),
        every_pixel::<f16>(&normalisation, Element::F16),
    );
    for (pixel, (bf16, f16)) in (0..=255).zip(bf16s.iter().zip(&f16s)) {
        assert_eq!(*bf16, bf16::from_f32(scale_shift.normalise(pixel)));
        assert_eq!(*f16, f16::from_f32(scale_shift.normalise(pixel)));
    }
    assert_eq!(every_pixel::<u8>(&normalisation, Element::U8), (0..=255).collect::<Vec<u8>>());
}

/// Every f16, the midpoint to the next one, and the neighbours of both; then random values.
#[test]
fn rounds_f16_to_nearest_even() {
    let check = |value: f32| {
        if value.is_nan() {
            return;
        }
        let (got, expected) = (<f16 as BatchElement>::store(value), f16::from_f32(value));
        assert_eq!(got.to_bits(), expected.to_bits(), "{value:e}: {got:e}, not {expected:e}");
    };
    for bits in 0..=0xffff_u16 {
        let value = f16::from_bits(bits).to_f32();
        if !value.is_finite() {
            continue;
        }
        // Half a unit in the last place of an f16, including subnormals.
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
fn normalisation_needs_every_channel_and_a_positive_deviation() {
    assert!(Normalisation::unit(3).is_valid(3));
    assert!(!Normalisation::unit(3).is_valid(1));
    assert!(!Normalisation { mean: vec![0.0], std: vec![0.0] }.is_valid(1));
    assert!(!Normalisation { mean: vec![f32::NAN], std: vec![1.0] }.is_valid(1));
}

#[test]
fn normalisation_adapts_to_any_channel_count() {
    let grey = Normalisation { mean: vec![0.5], std: vec![0.25] };
    assert_eq!(grey.for_channels(3), Normalisation { mean: vec![0.5; 3], std: vec![0.25; 3] });
    let colour = Normalisation { mean: vec![0.25, 0.5, 0.75], std: vec![0.5, 0.5, 0.5] };
    assert_eq!(colour.for_channels(3), colour);
    assert_eq!(colour.for_channels(1), Normalisation { mean: vec![0.5], std: vec![0.5] });
}
