//! Resizing, rotating, zooming and changing colours against what torchvision and Pillow make of the same
//! picture and mask (scripts/fixtures/transforms.py).

use std::fs;
use std::path::Path;

use crate::buffer::IGNORED_LABEL;
use crate::datasets::{IGNORED, IGNORED_PIXEL, Sample};
use crate::transform::affine::Turn;
use crate::transform::augment::Placement;
use crate::transform::colour::{Change, Picture};
use crate::transform::frame::{Framed, Framer, Orientation, View, Window};
use crate::transform::mask::{MaskWriter, StoredMask};
use crate::transform::pixels::PixelOrder;

const SIZE: [usize; 2] = [40, 56];
const WHOLE: Window = Window { top: 0.0, left: 0.0, height: 40.0, width: 56.0 };
/// Height and width of what the whole is resized to.
const RESIZED: [[usize; 2]; 3] = [[23, 31], [7, 50], [90, 61]];
/// As above of the mask: no centre falls between two pixels, where Pillow's sums may come down on either
/// side.
const NEAREST: [[usize; 2]; 3] = [[16, 32], [48, 16], [96, 64]];
/// A part that begins and ends between pixels, and what it is resized to.
const PART: (Window, [usize; 2]) = (Window { top: 3.5, left: 5.25, height: 32.75, width: 42.5 }, [20, 24]);
/// Degrees and factors.
const TURNED: [(&str, f64, f64); 2] = [("turn_30", 30.0, 1.3), ("turn_-140", -140.0, 0.75)];

fn fixture(name: &str) -> Vec<u8> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/transforms");
    fs::read(folder.join(format!("{name}.raw"))).unwrap()
}

/// Channel planes of pixels of three.
fn planes(pixels: &[u8]) -> Vec<u8> {
    (0..3).flat_map(|channel| pixels.iter().skip(channel).step_by(3)).copied().collect()
}

/// The picture as the framer cuts it, pixel by pixel or plane by plane, and which columns of its rows show
/// something.
fn cut(view: View, wanted: [usize; 2], order: PixelOrder) -> (Vec<u8>, Vec<[usize; 2]>) {
    let picture = fixture("picture");
    let pixels = if order == PixelOrder::Planes { planes(&picture) } else { picture };
    let sample = Sample {
        pixels: &pixels,
        shape: [3, SIZE[0], SIZE[1]],
        reduced: None,
        order,
        orientation: Orientation::default(),
        label: IGNORED,
        mask: None,
    };
    let mut framer = Framer::default();
    let Framed { pixels, shown, .. } = framer.cut(&sample, view, [3, wanted[0], wanted[1]]).unwrap();
    (pixels.to_vec(), shown.unwrap_or_default().to_vec())
}

/// The classes of the mask, `IGNORED_PIXEL` where nothing of it is shown.
fn masked(view: View, wanted: [usize; 2]) -> Vec<u8> {
    let classes = fixture("mask");
    let mask = StoredMask { classes: &classes, size: SIZE, orientation: Orientation::default() };
    let mut labels = vec![77; wanted[0] * wanted[1]];
    MaskWriter::default().write(&mut labels, &mask, view, wanted, &Placement::default());
    let class = |label: i32| if label == IGNORED_LABEL { IGNORED_PIXEL } else { label as u8 };
    labels.into_iter().map(class).collect()
}

/// The greatest difference between two images.
fn worst(ours: &[u8], theirs: &[u8]) -> u8 {
    assert_eq!(ours.len(), theirs.len());
    ours.iter().zip(theirs).map(|(ours, theirs)| ours.abs_diff(*theirs)).max().unwrap()
}

/// Both sum in integers, with coefficients that are rounded at different places: a level apart at most.
#[test]
fn resizing_is_pillows() {
    let wholes = RESIZED.map(|wanted| (format!("resize_{}x{}", wanted[0], wanted[1]), WHOLE, wanted));
    let part = ("resize_part".to_owned(), PART.0, PART.1);
    for (name, window, wanted) in wholes.into_iter().chain([part]) {
        let expected = fixture(&name);
        let view = View { window, turn: None };
        assert!(worst(&cut(view, wanted, PixelOrder::Interleaved).0, &expected) <= 1, "{name}");
        assert!(worst(&cut(view, wanted, PixelOrder::Planes).0, &planes(&expected)) <= 1, "{name}");
    }
}

#[test]
fn the_nearest_pixel_is_pillows() {
    for wanted in NEAREST {
        let expected = fixture(&format!("nearest_{}x{}", wanted[0], wanted[1]));
        assert_eq!(masked(View { window: WHOLE, turn: None }, wanted), expected, "{wanted:?}");
    }
    assert_eq!(masked(View { window: PART.0, turn: None }, PART.1), fixture("nearest_part"));
}

/// Pillow's shares of the four pixels are not rounded: a level apart at most.
#[test]
fn turned_images_and_masks_are_torchvisions() {
    for (name, degrees, zoom) in TURNED {
        let window = WHOLE.zoomed(zoom);
        let view = View { window, turn: Some(Turn::new(degrees)) };
        let classes = fixture(&format!("{name}_mask"));
        assert_eq!(masked(view, SIZE), classes, "{name}");
        let expected = fixture(name);
        let (pixels, shown) = cut(view, SIZE, PixelOrder::Interleaved);
        assert!(worst(&pixels, &expected) <= 1, "{name}");
        assert!(worst(&cut(view, SIZE, PixelOrder::Planes).0, &planes(&expected)) <= 1, "{name}");
        // What is shown of the image is what is shown of the mask.
        for (row, [first, end]) in shown.into_iter().enumerate() {
            for column in 0..SIZE[1] {
                let class = classes[row * SIZE[1] + column];
                assert_eq!((first..end).contains(&column), class != IGNORED_PIXEL, "{name} {row} {column}");
            }
        }
    }
}

/// Sums are cut down to whole levels: where one is nearly a whole level, ours and torchvision's may fall on
/// either side, as the mean grey and hues are not summed in the same order.
#[test]
fn colours_are_torchvisions() {
    for (name, change) in [
        ("brightness_0.6", Change::Brightness(0.6)),
        ("brightness_1.4", Change::Brightness(1.4)),
        ("contrast_0.5", Change::Contrast(0.5)),
        ("contrast_1.5", Change::Contrast(1.5)),
        ("saturation_0.3", Change::Saturation(0.3)),
        ("saturation_1.7", Change::Saturation(1.7)),
        ("hue_-0.1", Change::Hue(-0.1)),
        ("hue_0.25", Change::Hue(0.25)),
        ("hue_0.5", Change::Hue(0.5)),
    ] {
        let expected = fixture(name);
        let mut pixels = fixture("picture");
        let mut planar = planes(&pixels);
        let shape = [3, SIZE[0], SIZE[1]];
        Picture { pixels: &mut pixels, order: PixelOrder::Interleaved, shape, shown: None }.apply(&[change]);
        assert!(worst(&pixels, &expected) <= 1, "{name}: {}", worst(&pixels, &expected));
        let apart = pixels.iter().zip(&expected).filter(|(ours, theirs)| ours != theirs).count();
        assert!(apart * 50 < pixels.len(), "{name}: {apart} of {} differ", pixels.len());
        Picture { pixels: &mut planar, order: PixelOrder::Planes, shape, shown: None }.apply(&[change]);
        assert_eq!(planar, planes(&pixels), "{name}");
    }
    let mut grey = fixture("grey");
    let expected = fixture("grey_contrast_1.5");
    let shape = [1, SIZE[0], SIZE[1]];
    let changes = [Change::Saturation(1.7), Change::Hue(0.3), Change::Contrast(1.5)];
    Picture { pixels: &mut grey, order: PixelOrder::Planes, shape, shown: None }.apply(&changes);
    assert!(worst(&grey, &expected) <= 1);
}
