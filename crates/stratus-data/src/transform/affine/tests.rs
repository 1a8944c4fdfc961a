//! Tests of exact rotations, of preshrinking, and of arbitrary images and views.

use super::*;
use crate::geometry::Orientation;
use crate::transform::frame::{CropResizer, CropView, CroppedPixels};
use crate::transform::pixels::PixelOrder;
use proptest::prelude::*;

fn sample(pixels: &[u8], shape: [usize; 3], orientation: Orientation) -> Sample<'_> {
    Sample { pixels, shape, dct_scaled: None, order: PixelOrder::Planes, orientation, label: 0, mask: None }
}

fn window([top, left]: [f64; 2], [height, width]: [f64; 2]) -> Window {
    Window { top, left, height, width }
}

#[test]
fn quarter_rotations_move_whole_pixels() {
    let pixels: Vec<u8> = (0..9).collect();
    let stored = sample(&pixels, [1, 3, 3], Orientation::default());
    for (degrees, expected) in [
        (0.0, [0, 1, 2, 3, 4, 5, 6, 7, 8]),
        (90.0, [2, 5, 8, 1, 4, 7, 0, 3, 6]),
        (-90.0, [6, 3, 0, 7, 4, 1, 8, 5, 2]),
        (180.0, [8, 7, 6, 5, 4, 3, 2, 1, 0]),
    ] {
        let view = CropView { window: window([0.0; 2], [3.0; 2]), rotation: Some(Rotation::new(degrees)) };
        let mut crop_resizer = CropResizer::default();
        let CroppedPixels { pixels, valid_columns, .. } =
            crop_resizer.crop_and_resize(&stored, view, [1, 3, 3]).unwrap();
        assert_eq!(pixels, expected, "{degrees}");
        assert_eq!(valid_columns, Some([[0, 3]; 3].as_slice()), "{degrees}");
    }
}

#[test]
fn rotation_does_not_depend_on_the_stored_orientation() {
    let upright: Vec<u8> = (0..48u8).map(|at| at * 5).collect();
    // Orientation 6: the stored columns are the upright rows, the last first.
    let stored: Vec<u8> = (0..48).map(|at| upright[(at % 8) * 6 + 5 - at / 8]).collect();
    let turned_by = |exif| Orientation::from_exif(exif);
    let on_its_side = sample(&stored, [1, 6, 8], turned_by(6));
    let upright = sample(&upright, [1, 8, 6], turned_by(1));
    for (degrees, zoom) in [(33.0, 1.0), (-120.0, 0.8), (77.0, 0.25)] {
        let view = CropView {
            window: window([0.0; 2], [8.0, 6.0]).zoomed(zoom),
            rotation: Some(Rotation::new(degrees)),
        };
        let (mut first, mut second) = (CropResizer::default(), CropResizer::default());
        let expected = first.crop_and_resize(&upright, view, [1, 8, 6]).unwrap();
        let found = second.crop_and_resize(&on_its_side, view, [1, 8, 6]).unwrap();
        assert_eq!(found.valid_columns, expected.valid_columns, "{degrees}");
        // Resizing a rotated image may round differently.
        let worst = found.pixels.iter().zip(expected.pixels).map(|(a, b)| a.abs_diff(*b)).max().unwrap();
        assert!(worst <= u8::from(zoom < 0.5), "{degrees}: {worst}");
    }
}

/// Without antialiasing most pixels would be 0 or 255.
#[test]
fn averages_when_shrinking_a_lot() {
    let checks: Vec<u8> = (0..64 * 64).map(|at| if (at / 64 + at % 64) % 2 == 0 { 255 } else { 0 }).collect();
    let stored = sample(&checks, [1, 64, 64], Orientation::default());
    for degrees in [0.0, 20.0, 135.0] {
        let view = CropView { window: window([8.0; 2], [48.0; 2]), rotation: Some(Rotation::new(degrees)) };
        let mut crop_resizer = CropResizer::default();
        let CroppedPixels { pixels, valid_columns, .. } =
            crop_resizer.crop_and_resize(&stored, view, [1, 8, 8]).unwrap();
        for (row, &[first, end]) in valid_columns.unwrap().iter().enumerate() {
            assert!(end - first >= 6);
            let valid_columns = &pixels[row * 8 + first..row * 8 + end];
            assert!(
                valid_columns.iter().all(|pixel| (118..=138).contains(pixel)),
                "{degrees}: {valid_columns:?}"
            );
        }
    }
}

proptest! {
    #[test]
    fn warps_any_image_in_any_view(
        size in [1usize..40, 1usize..40],
        output_size in [1usize..30, 1usize..30],
        exif in 1u16..9,
        degrees in -180.0..180.0,
        zoom in 0.0625..16.0,
        part in [0.0..1.0, 0.0..1.0],
    ) {
        let orientation = Orientation::from_exif(exif);
        let pixels = vec![200; size[0] * size[1]];
        let stored = sample(&pixels, [1, size[0], size[1]], orientation);
        let upright = stored.upright_size().map(|length| length as f64);
        let length = [0, 1].map(|axis| upright[axis] * (1.0 - part[axis] / 2.0));
        let start = [0, 1].map(|axis| part[axis] * (upright[axis] - length[axis]));
        let view = CropView {
            window: window(start, length).zoomed(zoom),
            rotation: Some(Rotation::new(degrees)),
        };
        let mut crop_resizer = CropResizer::default();
        let shape = [1, output_size[0], output_size[1]];
        let cropped = crop_resizer.crop_and_resize(&stored, view, shape).unwrap();
        let CroppedPixels { pixels, valid_columns, .. } = cropped;
        let valid_columns = valid_columns.unwrap();
        let affine = Affine::new(view.window, Rotation::new(degrees), output_size);
        for (at, pixel) in pixels.iter().enumerate() {
            let (row, column) = (at / output_size[1], at % output_size[1]);
            let inside = affine.pixel(row, column, stored.upright_size()).is_some();
            prop_assert_eq!((valid_columns[row][0]..valid_columns[row][1]).contains(&column), inside);
            // A uniform image stays uniform up to its edge.
            prop_assert_eq!(*pixel, if inside { 200 } else { 0 });
        }
    }
}
