//! Turns that are known, sparse places, and any image in any view.

use super::*;
use crate::transform::frame::{Framed, Orientation, View};
use crate::transform::pixels::PixelOrder;
use proptest::prelude::*;

fn sample(pixels: &[u8], shape: [usize; 3], orientation: Orientation) -> Sample<'_> {
    Sample { pixels, shape, reduced: None, order: PixelOrder::Planes, orientation, label: 0, mask: None }
}

fn window([top, left]: [f64; 2], [height, width]: [f64; 2]) -> Window {
    Window { top, left, height, width }
}

#[test]
fn quarter_turns_move_whole_pixels() {
    let pixels: Vec<u8> = (0..9).collect();
    let stored = sample(&pixels, [1, 3, 3], Orientation::default());
    for (degrees, expected) in [
        (0.0, [0, 1, 2, 3, 4, 5, 6, 7, 8]),
        (90.0, [2, 5, 8, 1, 4, 7, 0, 3, 6]),
        (-90.0, [6, 3, 0, 7, 4, 1, 8, 5, 2]),
        (180.0, [8, 7, 6, 5, 4, 3, 2, 1, 0]),
    ] {
        let view = View { window: window([0.0; 2], [3.0; 2]), turn: Some(Turn::new(degrees)) };
        let mut framer = Framer::default();
        let Framed { pixels, shown, .. } = framer.cut(&stored, view, [1, 3, 3]).unwrap();
        assert_eq!(pixels, expected, "{degrees}");
        assert_eq!(shown, Some([[0, 3]; 3].as_slice()), "{degrees}");
    }
}

#[test]
fn an_image_that_is_turned_and_stored_on_its_side_is_that_stored_upright() {
    let upright: Vec<u8> = (0..48u8).map(|at| at * 5).collect();
    // Orientation 6: the stored columns are the upright rows, the last first.
    let stored: Vec<u8> = (0..48).map(|at| upright[(at % 8) * 6 + 5 - at / 8]).collect();
    let turned_by = |exif| Orientation::from_exif(exif);
    let on_its_side = sample(&stored, [1, 6, 8], turned_by(6));
    let upright = sample(&upright, [1, 8, 6], turned_by(1));
    for (degrees, zoom) in [(33.0, 1.0), (-120.0, 0.8), (77.0, 0.25)] {
        let view = View { window: window([0.0; 2], [8.0, 6.0]).zoomed(zoom), turn: Some(Turn::new(degrees)) };
        let (mut first, mut second) = (Framer::default(), Framer::default());
        let expected = first.cut(&upright, view, [1, 8, 6]).unwrap();
        let found = second.cut(&on_its_side, view, [1, 8, 6]).unwrap();
        assert_eq!(found.shown, expected.shown, "{degrees}");
        // Resizing a turned image may round differently.
        let worst = found.pixels.iter().zip(expected.pixels).map(|(a, b)| a.abs_diff(*b)).max().unwrap();
        assert!(worst <= u8::from(zoom < 0.5), "{degrees}: {worst}");
    }
}

/// Without antialiasing most pixels would be 0 or 255.
#[test]
fn what_is_shrunk_a_lot_is_averaged() {
    let checks: Vec<u8> = (0..64 * 64).map(|at| if (at / 64 + at % 64) % 2 == 0 { 255 } else { 0 }).collect();
    let stored = sample(&checks, [1, 64, 64], Orientation::default());
    for degrees in [0.0, 20.0, 135.0] {
        let view = View { window: window([8.0; 2], [48.0; 2]), turn: Some(Turn::new(degrees)) };
        let mut framer = Framer::default();
        let Framed { pixels, shown, .. } = framer.cut(&stored, view, [1, 8, 8]).unwrap();
        for (row, &[first, end]) in shown.unwrap().iter().enumerate() {
            assert!(end - first >= 6);
            let shown = &pixels[row * 8 + first..row * 8 + end];
            assert!(shown.iter().all(|pixel| (118..=138).contains(pixel)), "{degrees}: {shown:?}");
        }
    }
}

proptest! {
    #[test]
    fn any_image_in_any_view(
        size in [1usize..40, 1usize..40],
        wanted in [1usize..30, 1usize..30],
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
        let view = View {
            window: window(start, length).zoomed(zoom),
            turn: Some(Turn::new(degrees)),
        };
        let mut framer = Framer::default();
        let Framed { pixels, shown, .. } = framer.cut(&stored, view, [1, wanted[0], wanted[1]]).unwrap();
        let shown = shown.unwrap();
        let affine = Affine::new(view.window, Turn::new(degrees), wanted);
        for (at, pixel) in pixels.iter().enumerate() {
            let (row, column) = (at / wanted[1], at % wanted[1]);
            let inside = affine.pixel(row, column, stored.upright_size()).is_some();
            prop_assert_eq!((shown[row][0]..shown[row][1]).contains(&column), inside);
            // An even image stays even up to its edge.
            prop_assert_eq!(*pixel, if inside { 200 } else { 0 });
        }
    }
}
