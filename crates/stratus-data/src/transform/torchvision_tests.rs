//! Compares resizing, rotating, zooming and colour changes with torchvision and Pillow on the same image and
//! mask (scripts/fixtures/transforms.py).

use std::fs;
use std::path::Path;

use crate::buffer::IGNORED_LABEL;
use crate::dataset::{IGNORED, IGNORED_PIXEL, Sample};
use crate::geometry::{Orientation, Window};
use crate::transform::affine::Rotation;
use crate::transform::augment::Placement;
use crate::transform::colour::{ColourOp, PixelsMut};
use crate::transform::frame::{CropResizer, CropView, CroppedPixels};
use crate::transform::mask::{MaskWriter, StoredMask};
use crate::transform::pixels::PixelOrder;

const SIZE: [usize; 2] = [40, 56];
const WHOLE: Window = Window { top: 0.0, left: 0.0, height: 40.0, width: 56.0 };
/// Height and width that the whole image is resized to.
const RESIZED: [[usize; 2]; 3] = [[23, 31], [7, 50], [90, 61]];
/// Sizes that the mask is resized to: no centre falls between two pixels, for which Pillow may choose either
/// side.
const NEAREST: [[usize; 2]; 3] = [[16, 32], [48, 16], [96, 64]];
/// A crop with fractional bounds, and its resized size.
const PART: (Window, [usize; 2]) = (Window { top: 3.5, left: 5.25, height: 32.75, width: 42.5 }, [20, 24]);
/// Rotations in degrees, and zoom factors.
const TURNED: [(&str, f64, f64); 2] = [("turn_30", 30.0, 1.3), ("turn_-140", -140.0, 0.75)];

fn fixture(name: &str) -> Vec<u8> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/transforms");
    fs::read(folder.join(format!("{name}.raw"))).unwrap()
}

/// Converts interleaved RGB to planes.
fn planes(pixels: &[u8]) -> Vec<u8> {
    (0..3).flat_map(|channel| pixels.iter().skip(channel).step_by(3)).copied().collect()
}

/// The image as cropped, interleaved or as planes, and the valid columns of its rows.
fn cropped(view: CropView, output_size: [usize; 2], order: PixelOrder) -> (Vec<u8>, Vec<[usize; 2]>) {
    let picture = fixture("picture");
    let pixels = if order == PixelOrder::Planes { planes(&picture) } else { picture };
    let sample = Sample {
        pixels: &pixels,
        shape: [3, SIZE[0], SIZE[1]],
        dct_scaled: None,
        order,
        orientation: Orientation::default(),
        label: IGNORED,
        mask: None,
    };
    let mut crop_resizer = CropResizer::default();
    let CroppedPixels { pixels, valid_columns, .. } =
        crop_resizer.crop_and_resize(&sample, view, [3, output_size[0], output_size[1]]).unwrap();
    (pixels.to_vec(), valid_columns.unwrap_or_default().to_vec())
}

/// The classes of the mask, with `IGNORED_PIXEL` outside of it.
fn masked(view: CropView, output_size: [usize; 2]) -> Vec<u8> {
    let classes = fixture("mask");
    let mask = StoredMask { classes: &classes, size: SIZE, orientation: Orientation::default() };
    let mut labels = vec![77; output_size[0] * output_size[1]];
    MaskWriter::default().write(&mut labels, &mask, view, output_size, &Placement::default());
    let class = |label: i32| if label == IGNORED_LABEL { IGNORED_PIXEL } else { label as u8 };
    labels.into_iter().map(class).collect()
}

/// The maximum difference between two images.
fn max_difference(ours: &[u8], theirs: &[u8]) -> u8 {
    assert_eq!(ours.len(), theirs.len());
    ours.iter().zip(theirs).map(|(ours, theirs)| ours.abs_diff(*theirs)).max().unwrap()
}

/// Both sum integers with differently rounded coefficients: at most one level apart.
#[test]
fn resizing_matches_pillow() {
    let wholes = RESIZED
        .map(|output_size| (format!("resize_{}x{}", output_size[0], output_size[1]), WHOLE, output_size));
    let part = ("resize_part".to_owned(), PART.0, PART.1);
    for (name, window, output_size) in wholes.into_iter().chain([part]) {
        let expected = fixture(&name);
        let view = CropView { window, rotation: None };
        assert!(
            max_difference(&cropped(view, output_size, PixelOrder::Interleaved).0, &expected) <= 1,
            "{name}"
        );
        assert!(
            max_difference(&cropped(view, output_size, PixelOrder::Planes).0, &planes(&expected)) <= 1,
            "{name}"
        );
    }
}

#[test]
fn nearest_pixel_matches_pillow() {
    for output_size in NEAREST {
        let expected = fixture(&format!("nearest_{}x{}", output_size[0], output_size[1]));
        assert_eq!(
            masked(CropView { window: WHOLE, rotation: None }, output_size),
            expected,
            "{output_size:?}"
        );
    }
    assert_eq!(masked(CropView { window: PART.0, rotation: None }, PART.1), fixture("nearest_part"));
}

/// Pillow does not round the weights of the four pixels: at most one level apart.
#[test]
fn rotation_matches_torchvision() {
    for (name, degrees, zoom) in TURNED {
        let window = WHOLE.zoomed(zoom);
        let view = CropView { window, rotation: Some(Rotation::new(degrees)) };
        let classes = fixture(&format!("{name}_mask"));
        assert_eq!(masked(view, SIZE), classes, "{name}");
        let expected = fixture(name);
        let (pixels, valid_columns) = cropped(view, SIZE, PixelOrder::Interleaved);
        assert!(max_difference(&pixels, &expected) <= 1, "{name}");
        assert!(
            max_difference(&cropped(view, SIZE, PixelOrder::Planes).0, &planes(&expected)) <= 1,
            "{name}"
        );
        // Image and mask are valid at the same pixels.
        for (row, [first, end]) in valid_columns.into_iter().enumerate() {
            for column in 0..SIZE[1] {
                let class = classes[row * SIZE[1] + column];
                assert_eq!((first..end).contains(&column), class != IGNORED_PIXEL, "{name} {row} {column}");
            }
        }
    }
}

/// Sums are truncated to whole levels. If a sum is nearly a whole level, ours and torchvision's may differ,
/// because the mean grey and hues are not summed in the same order.
#[test]
fn colour_jitter_matches_torchvision() {
    for (name, change) in [
        ("brightness_0.6", ColourOp::Brightness(0.6)),
        ("brightness_1.4", ColourOp::Brightness(1.4)),
        ("contrast_0.5", ColourOp::Contrast(0.5)),
        ("contrast_1.5", ColourOp::Contrast(1.5)),
        ("saturation_0.3", ColourOp::Saturation(0.3)),
        ("saturation_1.7", ColourOp::Saturation(1.7)),
        ("hue_-0.1", ColourOp::Hue(-0.1)),
        ("hue_0.25", ColourOp::Hue(0.25)),
        ("hue_0.5", ColourOp::Hue(0.5)),
    ] {
        let expected = fixture(name);
        let mut pixels = fixture("picture");
        let mut planar = planes(&pixels);
        let shape = [3, SIZE[0], SIZE[1]];
        PixelsMut { pixels: &mut pixels, order: PixelOrder::Interleaved, shape, valid_columns: None }
            .apply(&[change]);
        assert!(max_difference(&pixels, &expected) <= 1, "{name}: {}", max_difference(&pixels, &expected));
        let apart = pixels.iter().zip(&expected).filter(|(ours, theirs)| ours != theirs).count();
        assert!(apart * 50 < pixels.len(), "{name}: {apart} of {} differ", pixels.len());
        PixelsMut { pixels: &mut planar, order: PixelOrder::Planes, shape, valid_columns: None }
            .apply(&[change]);
        assert_eq!(planar, planes(&pixels), "{name}");
    }
    let mut grey = fixture("grey");
    let expected = fixture("grey_contrast_1.5");
    let shape = [1, SIZE[0], SIZE[1]];
    let changes = [ColourOp::Saturation(1.7), ColourOp::Hue(0.3), ColourOp::Contrast(1.5)];
    PixelsMut { pixels: &mut grey, order: PixelOrder::Planes, shape, valid_columns: None }.apply(&changes);
    assert!(max_difference(&grey, &expected) <= 1);
}
