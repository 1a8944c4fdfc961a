//! Tests of the drawn operations, and of pixels that do not change.

use super::*;
use proptest::prelude::*;

const ALL: ColourJitter = ColourJitter { brightness: 0.4, contrast: 1.5, saturation: 0.2, hue: 0.1 };

fn applied(pixels: &[u8], shape: [usize; 3], changes: &[ColourOp]) -> Vec<u8> {
    let mut pixels = pixels.to_vec();
    PixelsMut { pixels: &mut pixels, order: PixelOrder::Interleaved, shape, valid_columns: None }
        .apply(changes);
    pixels
}

#[test]
fn factors_are_uniform_and_the_order_is_random() {
    let mut orders = std::collections::HashMap::<Vec<usize>, u32>::new();
    let mut sums = [0.0; 4];
    const DRAWS: u32 = 24_000;
    for sample in 0..DRAWS {
        let changes = ALL.changes(3, 1, sample).unwrap();
        let mut order = Vec::new();
        for change in changes {
            let (position, [low, high], drawn) = match change {
                ColourOp::Brightness(factor) => (0, [0.6, 1.4], factor),
                ColourOp::Contrast(factor) => (1, [0.0, 2.5], factor),
                ColourOp::Saturation(factor) => (2, [0.8, 1.2], factor),
                ColourOp::Hue(share) => (3, [-0.1, 0.1], share),
            };
            assert!((low..=high).contains(&drawn), "{change:?}");
            sums[position] += (drawn - low) / (high - low);
            order.push(position);
        }
        *orders.entry(order).or_default() += 1;
    }
    assert!(sums.iter().all(|sum| (sum / f64::from(DRAWS) - 0.5).abs() < 0.01), "{sums:?}");
    assert_eq!(orders.len(), 24);
    assert!(orders.values().all(|count| (800..1200).contains(count)), "{orders:?}");
    assert_eq!(ALL.changes(3, 1, 7), ALL.changes(3, 1, 7));
    assert_ne!(ALL.changes(3, 1, 7), ALL.changes(3, 2, 7));
    assert_ne!(ALL.changes(3, 1, 7), ALL.changes(4, 1, 7));
    assert_eq!(ColourJitter::default().changes(3, 1, 7), None);
}

#[test]
fn disabled_operations_have_no_effect() {
    let hue = ColourJitter { hue: 0.5, ..ColourJitter::default() };
    for change in (0..100).flat_map(|sample| hue.changes(3, 1, sample).unwrap()) {
        match change {
            ColourOp::Hue(_) => {}
            ColourOp::Brightness(factor) | ColourOp::Contrast(factor) | ColourOp::Saturation(factor) => {
                assert_eq!(factor, 1.0);
            }
        }
    }
    assert!(ALL.is_valid() && hue.is_valid());
    assert!(!ColourJitter { hue: 0.51, ..ALL }.is_valid());
    assert!(!ColourJitter { contrast: -0.1, ..ALL }.is_valid());
    assert!(!ColourJitter { brightness: f64::NAN, ..ALL }.is_valid());
}

#[test]
fn contrast_uses_the_mean_of_valid_pixels() {
    // A row of 100 and 200 next to invalid pixels: their mean is 150, and a contrast of 0 leaves only the
    // mean.
    let valid_columns = [[1, 3]];
    for order in [PixelOrder::Planes, PixelOrder::Interleaved] {
        let mut pixels = [0, 100, 200, 0];
        PixelsMut { pixels: &mut pixels, order, shape: [1, 1, 4], valid_columns: Some(&valid_columns) }
            .apply(&[ColourOp::Contrast(0.0)]);
        assert_eq!(pixels, [150; 4]);
    }
}

#[test]
fn hue_wraps_around() {
    let red = [255, 0, 0];
    let third = |share: f64| applied(&red, [3, 1, 1], &[ColourOp::Hue(share)]);
    assert_eq!(third(1.0 / 3.0), [0, 255, 0]);
    assert_eq!(third(-1.0 / 3.0), [0, 0, 255]);
    assert_eq!(third(0.5), [0, 255, 255]);
    assert_eq!(third(1.0 / 6.0), [255, 255, 0]);
}

proptest! {
    #[test]
    fn unit_factors_change_nothing_and_greys_have_no_hue(pixel in any::<[u8; 3]>(), share in -0.5..0.5) {
        use ColourOp::{Brightness, Contrast, Hue, Saturation};
        let same = [Brightness(1.0), Contrast(1.0), Saturation(1.0), Hue(0.0)];
        prop_assert_eq!(applied(&pixel, [3, 1, 1], &same), pixel);
        let grey = [pixel[0]; 3];
        prop_assert_eq!(applied(&grey, [3, 1, 1], &[Hue(share)]), grey);
        let rotated = applied(&pixel, [3, 1, 1], &[Hue(share)]);
        prop_assert_eq!(rotated.iter().max(), pixel.iter().max());
        prop_assert_eq!(rotated.iter().min(), pixel.iter().min());
    }
}
