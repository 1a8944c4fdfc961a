//! The pixels of windows are bit-identical to the whole image for every sampling, scan order and library.

use crate::common::{decoders, synthetic_jpegs};
use proptest::prelude::*;
use stratus_jpeg::{DctScale, Decoder, Header, PixelFormat, Window};
use stratus_testing::jpeg::{ScanOrder, SyntheticJpeg};

/// The pixels of the window, row by row.
fn cut(pixels: &[u8], header: &Header, window: Window) -> Vec<u8> {
    let channels = header.pixel_format.channels();
    let rows = pixels.chunks_exact(header.width * channels);
    let rows = rows.take(window.bottom).skip(window.top);
    rows.flat_map(|row| row[window.left * channels..window.right * channels].to_vec()).collect()
}

fn check(decoder: &mut Decoder, file: &[u8], fractions: &[f64; 4]) -> Result<(), TestCaseError> {
    let (mut whole, mut pixels) = (Vec::new(), vec![0xa5; 5000]);
    let header = decoder.decode(file, &mut whole, &Window::whole).unwrap();
    prop_assert_eq!(decoder.header(file).unwrap(), header);
    prop_assert_eq!(whole.len(), header.height * header.width * header.pixel_format.channels());
    let between = |a: f64, b: f64, length: usize| {
        let ends = [a, b].map(|fraction| (fraction * (length + 1) as f64) as usize);
        let (first, end) = (ends[0].min(ends[1]), ends[0].max(ends[1]));
        if first == end { (first.min(length - 1), first.min(length - 1) + 1) } else { (first, end) }
    };
    let (top, bottom) = between(fractions[0], fractions[1], header.height);
    let (left, right) = between(fractions[2], fractions[3], header.width);
    let window = Window { top, bottom, left, right };
    // Overwrite the buffer, so that pixels that are not decoded cannot match.
    pixels.fill(0xa5);
    prop_assert_eq!(decoder.decode(file, &mut pixels, &|_| window).unwrap(), header);
    prop_assert_eq!(pixels.len(), bottom * header.width * header.pixel_format.channels());
    let same = cut(&pixels, &header, window) == cut(&whole, &header, window);
    prop_assert!(same, "{:?} of {:?} by {:?}", window, header, decoder.library());
    Ok(())
}

/// Checks that the pixels of a window at every DCT scale equal those of the whole image at that scale.
fn check_scaled(decoder: &mut Decoder, file: &[u8], fractions: &[f64; 4]) -> Result<(), TestCaseError> {
    for scale in DctScale::ALL {
        let (mut whole, mut pixels) = (Vec::new(), Vec::new());
        let all = |header: &Header| (Window::whole(header), scale);
        let (header, _) = decoder.decode_scaled(file, &mut whole, &all).unwrap();
        let [height, width] = scale.scaled_size([header.height, header.width]);
        let scaled = Header { height, width, ..header };
        prop_assert_eq!(whole.len(), height * width * header.pixel_format.channels());
        let [a, b] = [fractions[0], fractions[1]].map(|fraction| (fraction * header.height as f64) as usize);
        let [c, d] = [fractions[2], fractions[3]].map(|fraction| (fraction * header.width as f64) as usize);
        let window = Window { top: a.min(b), bottom: a.max(b) + 1, left: c.min(d), right: c.max(d) + 1 };
        pixels.resize(whole.len(), 0);
        pixels.fill(0xa5);
        decoder.decode_scaled(file, &mut pixels, &|_| (window, scale)).unwrap();
        let factor = scale.denominator();
        let touched = Window {
            top: window.top / factor,
            bottom: window.bottom.div_ceil(factor),
            left: window.left / factor,
            right: window.right.div_ceil(factor),
        };
        prop_assert_eq!(pixels.len(), touched.bottom * width * header.pixel_format.channels());
        let same = cut(&pixels, &scaled, touched) == cut(&whole, &scaled, touched);
        prop_assert!(same, "{:?} of {:?} by {:?}, {:?}", window, header, decoder.library(), scale);
        if scale == DctScale::Full {
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
    fn windows_of_scaled_images_match_the_whole_image(
        jpeg in synthetic_jpegs(150),
        fractions in prop::array::uniform4(0.0..1.0),
    ) {
        let file = jpeg.write();
        for mut decoder in decoders() {
            check_scaled(&mut decoder, &file, &fractions)?;
        }
    }

    #[test]
    fn windows_of_small_scaled_images_match_the_whole_image(
        jpeg in synthetic_jpegs(20),
        fractions in prop::array::uniform4(0.0..1.0),
    ) {
        let file = jpeg.write();
        for mut decoder in decoders() {
            check_scaled(&mut decoder, &file, &fractions)?;
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1500))]

    #[test]
    fn windows_match_the_whole_image(
        jpeg in synthetic_jpegs(150),
        fractions in prop::array::uniform4(0.0..1.0),
    ) {
        let file = jpeg.write();
        for mut decoder in decoders() {
            check(&mut decoder, &file, &fractions)?;
        }
    }

    /// Images of one or two MCUs.
    #[test]
    fn windows_of_small_images_match_the_whole_image(
        jpeg in synthetic_jpegs(20),
        fractions in prop::array::uniform4(0.0..1.0),
    ) {
        let file = jpeg.write();
        for mut decoder in decoders() {
            check(&mut decoder, &file, &fractions)?;
        }
    }
}

fn grey(height: u16, width: u16) -> SyntheticJpeg {
    SyntheticJpeg {
        height,
        width,
        factors: vec![(1, 1)],
        scans: ScanOrder::Interleaved,
        restart: 0,
        adobe: None,
        seed: 1,
    }
}

#[test]
fn windows_are_clipped_to_at_least_one_pixel() {
    let file = grey(70, 90).write();
    for mut decoder in decoders() {
        let (mut whole, mut pixels) = (Vec::new(), Vec::new());
        let header = decoder.decode(&file, &mut whole, &Window::whole).unwrap();
        assert_eq!(header, Header { height: 70, width: 90, pixel_format: PixelFormat::Grey });
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

/// Exact at one eighth, approximate at other scales. Squares with pixels clipped to black or white are
/// skipped.
#[test]
fn pixels_of_scaled_images_are_means_of_squares() {
    let mut compared = 0;
    for seed in 0..20 {
        let file = SyntheticJpeg { seed, ..grey(64, 96) }.write();
        for mut decoder in decoders() {
            let (mut whole, mut pixels) = (Vec::new(), Vec::new());
            decoder.decode(&file, &mut whole, &Window::whole).unwrap();
            for scale in DctScale::ALL {
                let all = |header: &Header| (Window::whole(header), scale);
                decoder.decode_scaled(&file, &mut pixels, &all).unwrap();
                let factor = scale.denominator();
                let (mut sum, mut count) = (0.0, 0.0_f64);
                for (at, &pixel) in pixels.iter().enumerate() {
                    let (row, column) = (at / (96 / factor), at % (96 / factor));
                    let square = (0..factor * factor).map(|inner| {
                        whole[(row * factor + inner / factor) * 96 + column * factor + inner % factor]
                    });
                    if square.clone().any(|pixel| pixel == 0 || pixel == 255) {
                        continue;
                    }
                    let mean = square.map(f64::from).sum::<f64>() / (factor * factor) as f64;
                    let difference = (mean - f64::from(pixel)).abs();
                    assert!(scale != DctScale::Eighth || difference <= 1.0, "{mean}, not {pixel}");
                    (sum, count) = (sum + difference, count + 1.0);
                    compared += 1;
                }
                // The test images have noise in every frequency, which means reduce.
                assert!(sum <= 3.0 * count, "{scale:?}: {}", sum / count);
                assert!(scale != DctScale::Full || sum == 0.0);
            }
        }
    }
    assert!(compared > 10_000, "{compared}");
}

#[test]
fn does_not_read_rows_below_the_window() {
    let file = SyntheticJpeg { factors: vec![(2, 2), (1, 1), (1, 1)], ..grey(160, 160) }.write();
    let truncated = &file[..file.len() / 2];
    for mut decoder in decoders() {
        let (mut whole, mut pixels) = (Vec::new(), Vec::new());
        let header = decoder.decode(&file, &mut whole, &Window::whole).unwrap();
        let window = Window { bottom: 48, ..Window::whole(&header) };
        decoder.decode(truncated, &mut pixels, &|_| window).unwrap();
        assert_eq!(cut(&pixels, &header, window), cut(&whole, &header, window));
        assert!(decoder.decode(truncated, &mut pixels, &Window::whole).is_err());
    }
}
