//! A window's pixels are those of the whole image, whatever the sampling, the scans and the library.

use crate::common::{decoders, sketches};
use proptest::prelude::*;
use stratus_jpeg::{Colours, Decoder, Header, Reduction, Window};
use stratus_testing::jpeg::{Scans, Sketch};

/// The window's pixels, row by row.
fn part(pixels: &[u8], header: &Header, window: Window) -> Vec<u8> {
    let channels = header.colours.channels();
    let rows = pixels.chunks_exact(header.width * channels);
    let rows = rows.take(window.bottom).skip(window.top);
    rows.flat_map(|row| row[window.left * channels..window.right * channels].to_vec()).collect()
}

fn check(decoder: &mut Decoder, file: &[u8], places: &[f64; 4]) -> Result<(), TestCaseError> {
    let (mut whole, mut pixels) = (Vec::new(), vec![0xa5; 5000]);
    let header = decoder.decode(file, &mut whole, &Window::whole).unwrap();
    prop_assert_eq!(decoder.header(file).unwrap(), header);
    prop_assert_eq!(whole.len(), header.height * header.width * header.colours.channels());
    let between = |a: f64, b: f64, length: usize| {
        let ends = [a, b].map(|place| (place * (length + 1) as f64) as usize);
        let (first, end) = (ends[0].min(ends[1]), ends[0].max(ends[1]));
        if first == end { (first.min(length - 1), first.min(length - 1) + 1) } else { (first, end) }
    };
    let (top, bottom) = between(places[0], places[1], header.height);
    let (left, right) = between(places[2], places[3], header.width);
    let window = Window { top, bottom, left, right };
    // What is not decoded must not happen to be right.
    pixels.fill(0xa5);
    prop_assert_eq!(decoder.decode(file, &mut pixels, &|_| window).unwrap(), header);
    prop_assert_eq!(pixels.len(), bottom * header.width * header.colours.channels());
    let same = part(&pixels, &header, window) == part(&whole, &header, window);
    prop_assert!(same, "{:?} of {:?} by {:?}", window, header, decoder.library());
    Ok(())
}

/// The same of the image reduced: the squares that a window touches are those of all of it.
fn check_reduced(decoder: &mut Decoder, file: &[u8], places: &[f64; 4]) -> Result<(), TestCaseError> {
    for reduction in Reduction::ALL {
        let (mut whole, mut pixels) = (Vec::new(), Vec::new());
        let all = |header: &Header| (Window::whole(header), reduction);
        let (header, _) = decoder.decode_reduced(file, &mut whole, &all).unwrap();
        let [height, width] = reduction.of([header.height, header.width]);
        let reduced = Header { height, width, ..header };
        prop_assert_eq!(whole.len(), height * width * header.colours.channels());
        let [a, b] = [places[0], places[1]].map(|place| (place * header.height as f64) as usize);
        let [c, d] = [places[2], places[3]].map(|place| (place * header.width as f64) as usize);
        let window = Window { top: a.min(b), bottom: a.max(b) + 1, left: c.min(d), right: c.max(d) + 1 };
        pixels.resize(whole.len(), 0);
        pixels.fill(0xa5);
        decoder.decode_reduced(file, &mut pixels, &|_| (window, reduction)).unwrap();
        let by = reduction.by();
        let touched = Window {
            top: window.top / by,
            bottom: window.bottom.div_ceil(by),
            left: window.left / by,
            right: window.right.div_ceil(by),
        };
        prop_assert_eq!(pixels.len(), touched.bottom * width * header.colours.channels());
        let same = part(&pixels, &reduced, touched) == part(&whole, &reduced, touched);
        prop_assert!(same, "{:?} of {:?} by {:?}, {:?}", window, header, decoder.library(), reduction);
        if reduction == Reduction::Whole {
            let mut plain = Vec::new();
            decoder.decode(file, &mut plain, &Window::whole).unwrap();
            prop_assert!(plain == whole);
        }
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(700))]

    #[test]
    fn a_window_of_a_reduced_image_is_a_part_of_it(
        sketch in sketches(150),
        places in prop::array::uniform4(0.0..1.0),
    ) {
        let file = sketch.write();
        for mut decoder in decoders() {
            check_reduced(&mut decoder, &file, &places)?;
        }
    }

    #[test]
    fn small_images_are_reduced_too(sketch in sketches(20), places in prop::array::uniform4(0.0..1.0)) {
        let file = sketch.write();
        for mut decoder in decoders() {
            check_reduced(&mut decoder, &file, &places)?;
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1500))]

    #[test]
    fn a_window_is_a_part_of_the_whole(
        sketch in sketches(150),
        places in prop::array::uniform4(0.0..1.0),
    ) {
        let file = sketch.write();
        for mut decoder in decoders() {
            check(&mut decoder, &file, &places)?;
        }
    }

    /// Where all of it is one or two units.
    #[test]
    fn small_images_too(sketch in sketches(20), places in prop::array::uniform4(0.0..1.0)) {
        let file = sketch.write();
        for mut decoder in decoders() {
            check(&mut decoder, &file, &places)?;
        }
    }
}

fn grey(height: u16, width: u16) -> Sketch {
    Sketch { height, width, factors: vec![(1, 1)], scans: Scans::Together, restart: 0, adobe: None, seed: 1 }
}

/// A window of nothing, or beyond the image, is the nearest pixel.
#[test]
fn a_window_is_at_least_a_pixel() {
    let file = grey(70, 90).write();
    for mut decoder in decoders() {
        let (mut whole, mut pixels) = (Vec::new(), Vec::new());
        let header = decoder.decode(&file, &mut whole, &Window::whole).unwrap();
        assert_eq!(header, Header { height: 70, width: 90, colours: Colours::Grey });
        for (window, at) in [
            (Window { top: 5, bottom: 5, left: 40, right: 30 }, [4, 29]),
            (Window { top: 500, bottom: 600, left: 900, right: 900 }, [69, 89]),
            (Window { top: 0, bottom: 0, left: 0, right: 0 }, [0, 0]),
        ] {
            decoder.decode(&file, &mut pixels, &|_| window).unwrap();
            assert_eq!(pixels[at[0] * 90 + at[1]], whole[at[0] * 90 + at[1]], "{window:?}");
        }
    }
}

/// A pixel of an image reduced to an eighth is the mean of its square; of all reductions it is so about, but
/// where pixels were cut off at black or white.
#[test]
fn a_pixel_of_a_reduced_image_is_the_mean_of_its_square() {
    let mut compared = 0;
    for seed in 0..20 {
        let file = Sketch { seed, ..grey(64, 96) }.write();
        for mut decoder in decoders() {
            let (mut whole, mut pixels) = (Vec::new(), Vec::new());
            decoder.decode(&file, &mut whole, &Window::whole).unwrap();
            for reduction in Reduction::ALL {
                let all = |header: &Header| (Window::whole(header), reduction);
                decoder.decode_reduced(&file, &mut pixels, &all).unwrap();
                let by = reduction.by();
                let (mut sum, mut count) = (0.0, 0.0_f64);
                for (at, &pixel) in pixels.iter().enumerate() {
                    let (row, column) = (at / (96 / by), at % (96 / by));
                    let square = (0..by * by)
                        .map(|inner| whole[(row * by + inner / by) * 96 + column * by + inner % by]);
                    if square.clone().any(|pixel| pixel == 0 || pixel == 255) {
                        continue;
                    }
                    let mean = square.map(f64::from).sum::<f64>() / (by * by) as f64;
                    let off = (mean - f64::from(pixel)).abs();
                    assert!(reduction != Reduction::Eighth || off <= 1.0, "{mean}, not {pixel}");
                    (sum, count) = (sum + off, count + 1.0);
                    compared += 1;
                }
                // Noise in every frequency: the means of an image have much less of it.
                assert!(sum <= 3.0 * count, "{reduction:?}: {}", sum / count);
                assert!(reduction != Reduction::Whole || sum == 0.0);
            }
        }
    }
    assert!(compared > 10_000, "{compared}");
}

/// What a window saves is the reason for it: below it nothing is read.
#[test]
fn what_is_below_is_not_read() {
    let file = Sketch { factors: vec![(2, 2), (1, 1), (1, 1)], ..grey(160, 160) }.write();
    let cut = &file[..file.len() / 2];
    for mut decoder in decoders() {
        let (mut whole, mut pixels) = (Vec::new(), Vec::new());
        let header = decoder.decode(&file, &mut whole, &Window::whole).unwrap();
        let window = Window { bottom: 48, ..Window::whole(&header) };
        decoder.decode(cut, &mut pixels, &|_| window).unwrap();
        assert_eq!(part(&pixels, &header, window), part(&whole, &header, window));
        assert!(decoder.decode(cut, &mut pixels, &Window::whole).is_err());
    }
}
