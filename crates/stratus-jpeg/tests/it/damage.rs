//! Damaged and hostile files, which must give an error or pixels, but no panic.

use crate::common::{LIMITS, decoders, libraries, synthetic_jpegs};
use proptest::prelude::*;
use stratus_jpeg::{DecodeError, Decoder, Limits, Window};
use stratus_testing::damage::{each_byte, replaced_bytes, with_moved_piece};
use stratus_testing::jpeg::{ScanOrder, SyntheticJpeg};

fn jpeg(factors: &[(u8, u8)], scans: ScanOrder, restart: u16) -> SyntheticJpeg {
    let factors = factors.to_vec();
    SyntheticJpeg { height: 40, width: 36, factors, scans, restart, adobe: None, seed: 7 }
}

/// One file of each kind.
fn files() -> Vec<Vec<u8>> {
    let colours = [(2, 2), (1, 1), (1, 1)];
    let synthetic_jpegs = [
        jpeg(&[(1, 1)], ScanOrder::Interleaved, 0),
        jpeg(&colours, ScanOrder::Interleaved, 2),
        jpeg(&colours, ScanOrder::NonInterleaved, 0),
        jpeg(&colours, ScanOrder::Progressive, 3),
        jpeg(&[(1, 1); 4], ScanOrder::Interleaved, 0),
    ];
    synthetic_jpegs.iter().map(SyntheticJpeg::write).collect()
}

/// Decodes a window and the whole image, and checks the number of pixels if there is no error.
fn attempt(decoder: &mut Decoder, file: &[u8], pixels: &mut Vec<u8>) -> Result<(), DecodeError> {
    let part = Window { top: 9, bottom: 20, left: 5, right: 30 };
    if let Ok(header) = decoder.decode(file, pixels, &|_| part) {
        assert_eq!(pixels.len(), 20.min(header.height) * header.width * header.pixel_format.channels());
    }
    let header = decoder.decode(file, pixels, &Window::whole)?;
    assert_eq!(pixels.len(), header.height * header.width * header.pixel_format.channels());
    Ok(())
}

#[test]
fn rejects_truncated_files() {
    for mut decoder in decoders() {
        let mut pixels = Vec::new();
        for file in files() {
            for end in 0..file.len() {
                assert!(attempt(&mut decoder, &file[..end], &mut pixels).is_err(), "{end} of {}", file.len());
            }
            attempt(&mut decoder, &file, &mut pixels).unwrap();
        }
    }
}

#[test]
fn survives_any_replaced_byte() {
    for mut decoder in decoders() {
        let mut pixels = Vec::new();
        let file = jpeg(&[(2, 1), (1, 1), (1, 1)], ScanOrder::Interleaved, 3).write();
        let failed: Vec<bool> =
            each_byte(&file).map(|file| attempt(&mut decoder, &file, &mut pixels).is_err()).collect();
        let errors = failed.iter().filter(|failed| **failed).count();
        assert!(errors * 4 > failed.len(), "{errors} of {}", failed.len());
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(3000))]

    #[test]
    fn damage_does_not_affect_the_next_file(
        damaged in prop_oneof![replaced_bytes(files()), with_moved_piece(files())],
        whole in synthetic_jpegs(40),
    ) {
        let whole = whole.write();
        for mut decoder in decoders() {
            let (mut before, mut after) = (Vec::new(), Vec::new());
            decoder.decode(&whole, &mut before, &Window::whole).unwrap();
            let _ = attempt(&mut decoder, &damaged, &mut after);
            decoder.decode(&whole, &mut after, &Window::whole).unwrap();
            prop_assert_eq!(&before, &after);
        }
    }
}

/// Removes the segments of a kind from a file.
fn without(file: &[u8], marker: u8) -> Vec<u8> {
    let mut kept = file[..2].to_vec();
    let mut at = 2;
    while file[at + 1] != 0xda {
        let end = at + 2 + usize::from(u16::from_be_bytes([file[at + 2], file[at + 3]]));
        if file[at + 1] != marker {
            kept.extend(&file[at..end]);
        }
        at = end;
    }
    [&kept, &file[at..]].concat()
}

#[test]
fn tables_of_the_previous_file_are_not_reused() {
    let file = jpeg(&[(1, 1)], ScanOrder::Interleaved, 0).write();
    for mut decoder in decoders() {
        let mut pixels = Vec::new();
        attempt(&mut decoder, &file, &mut pixels).unwrap();
        let refused = attempt(&mut decoder, &without(&file, 0xdb), &mut pixels);
        assert!(
            matches!(refused, Err(DecodeError::Refused { message }) if message.contains("uantization table"))
        );
        // The library then uses the default tables of motion JPEG, which differ.
        let mut whole = Vec::new();
        decoder.decode(&file, &mut whole, &Window::whole).unwrap();
        if attempt(&mut decoder, &without(&file, 0xc4), &mut pixels).is_ok() {
            assert_ne!(whole, pixels);
        }
    }
}

#[test]
fn ignores_stray_bytes_between_segments() {
    let file = jpeg(&[(1, 1)], ScanOrder::Interleaved, 0).write();
    let padded = [&file[..2], &[0; 10], &file[2..]].concat();
    for mut decoder in decoders() {
        let (mut whole, mut pixels) = (Vec::new(), Vec::new());
        decoder.decode(&file, &mut whole, &Window::whole).unwrap();
        decoder.decode(&padded, &mut pixels, &Window::whole).unwrap();
        assert_eq!(whole, pixels);
    }
}

#[test]
fn rejects_more_than_100_scans() {
    let file = jpeg(&[(1, 1); 3], ScanOrder::NonInterleaved, 0).write();
    // The last scan is repeated.
    let last = file.windows(2).rposition(|pair| pair == [0xff, 0xda]).unwrap();
    let (before, scan) = (&file[..file.len() - 2], &file[last..file.len() - 2]);
    let many = |count: usize| [before, &scan.repeat(count), &[0xff, 0xd9]].concat();
    for mut decoder in decoders() {
        let mut pixels = Vec::new();
        assert_eq!(attempt(&mut decoder, &many(97), &mut pixels), Ok(()));
        let message = "more than 100 scans".to_owned();
        assert_eq!(attempt(&mut decoder, &many(98), &mut pixels), Err(DecodeError::Refused { message }));
    }
}

#[test]
fn rejects_images_over_the_limits_before_decoding() {
    let mut file = jpeg(&[(1, 1)], ScanOrder::Progressive, 0).write();
    let frame = file.windows(2).position(|pair| pair == [0xff, 0xc2]).unwrap();
    file[frame + 5..frame + 9].copy_from_slice(&[0xff, 0xd0, 0xff, 0xd0]);
    for library in libraries() {
        let mut pixels = Vec::new();
        let mut decoder = Decoder::new(library.clone(), LIMITS);
        let refused = decoder.decode(&file, &mut pixels, &Window::whole).unwrap_err();
        assert_eq!(refused, DecodeError::TooLarge { height: 65_488, width: 65_488, limits: LIMITS });
        assert!(pixels.is_empty());
        let narrow = Limits { max_side: 30, max_pixels: 10_000 };
        let small = jpeg(&[(1, 1)], ScanOrder::Interleaved, 0).write();
        let refused = Decoder::new(library, narrow).header(&small).unwrap_err();
        assert_eq!(
            refused.to_string(),
            "image size 40×36 exceeds the limit of 30 pixels per side or 10000 in total"
        );
    }
}
