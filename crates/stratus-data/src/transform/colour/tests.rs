//! What is drawn, and what changes leave alone.

use super::*;
use proptest::prelude::*;

const ALL: ColourJitter = ColourJitter { brightness: 0.4, contrast: 1.5, saturation: 0.2, hue: 0.1 };

fn applied(pixels: &[u8], shape: [usize; 3], changes: &[Change]) -> Vec<u8> {
    let mut pixels = pixels.to_vec();
    Picture { pixels: &mut pixels, order: PixelOrder::Interleaved, shape, shown: None }.apply(changes);
    pixels
}

#[test]
fn factors_are_uniform_and_the_order_is_any() {
    let mut orders = std::collections::HashMap::<Vec<usize>, u32>::new();
    let mut sums = [0.0; 4];
    const DRAWS: u32 = 24_000;
    for sample in 0..DRAWS {
        let changes = ALL.changes(3, 1, sample).unwrap();
        let mut order = Vec::new();
        for change in changes {
            let (place, [low, high], drawn) = match change {
                Change::Brightness(factor) => (0, [0.6, 1.4], factor),
                Change::Contrast(factor) => (1, [0.0, 2.5], factor),
                Change::Saturation(factor) => (2, [0.8, 1.2], factor),
                Change::Hue(share) => (3, [-0.1, 0.1], share),
            };
            assert!((low..=high).contains(&drawn), "{change:?}");
            sums[place] += (drawn - low) / (high - low);
            order.push(place);
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
fn what_is_off_is_drawn_as_nothing() {
    let hue = ColourJitter { hue: 0.5, ..ColourJitter::default() };
    for change in (0..100).flat_map(|sample| hue.changes(3, 1, sample).unwrap()) {
        match change {
            Change::Hue(_) => {}
            Change::Brightness(factor) | Change::Contrast(factor) | Change::Saturation(factor) => {
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
fn the_mean_is_that_of_what_is_shown() {
    // A row of 100 and 200 beside pixels that show nothing: their mean is 150, and a contrast of 0 leaves
    // only it.
    let shown = [[1, 3]];
    for order in [PixelOrder::Planes, PixelOrder::Interleaved] {
        let mut pixels = [0, 100, 200, 0];
        Picture { pixels: &mut pixels, order, shape: [1, 1, 4], shown: Some(&shown) }
            .apply(&[Change::Contrast(0.0)]);
        assert_eq!(pixels, [150; 4]);
    }
}

#[test]
fn hues_go_round_the_circle() {
    let red = [255, 0, 0];
    let third = |share: f64| applied(&red, [3, 1, 1], &[Change::Hue(share)]);
    assert_eq!(third(1.0 / 3.0), [0, 255, 0]);
    assert_eq!(third(-1.0 / 3.0), [0, 0, 255]);
    assert_eq!(third(0.5), [0, 255, 255]);
    assert_eq!(third(1.0 / 6.0), [255, 255, 0]);
}

proptest! {
    #[test]
    fn factors_of_one_change_nothing_and_greys_have_no_hue(pixel in any::<[u8; 3]>(), share in -0.5..0.5) {
        let same =
            [Change::Brightness(1.0), Change::Contrast(1.0), Change::Saturation(1.0), Change::Hue(0.0)];
        prop_assert_eq!(applied(&pixel, [3, 1, 1], &same), pixel);
        let grey = [pixel[0]; 3];
        prop_assert_eq!(applied(&grey, [3, 1, 1], &[Change::Hue(share)]), grey);
        let turned = applied(&pixel, [3, 1, 1], &[Change::Hue(share)]);
        prop_assert_eq!(turned.iter().max(), pixel.iter().max());
        prop_assert_eq!(turned.iter().min(), pixel.iter().min());
    }
}
