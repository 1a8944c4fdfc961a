//! A window's pixels are those of the whole image, whatever the sampling, the scans and the library.

use crate::common::{decoders, sketches};
use proptest::prelude::*;
use stratus_jpeg::{Colours, Decoder, Header, Window};
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
