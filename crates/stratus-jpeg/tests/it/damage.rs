//! Damaged files, and files made to be trouble: an error, or pixels; never more.

use crate::common::{LIMITS, decoders, libraries, sketches};
use proptest::prelude::*;
use stratus_jpeg::{DecodeError, Decoder, Limits, Window};
use stratus_testing::damage::{each_byte, moved_piece, several_bytes};
use stratus_testing::jpeg::{Scans, Sketch};

fn sketch(factors: &[(u8, u8)], scans: Scans, restart: u16) -> Sketch {
    let factors = factors.to_vec();
    Sketch { height: 40, width: 36, factors, scans, restart, adobe: None, seed: 7 }
}

/// One of each kind.
fn files() -> Vec<Vec<u8>> {
    let colours = [(2, 2), (1, 1), (1, 1)];
    let sketches = [
        sketch(&[(1, 1)], Scans::Together, 0),
        sketch(&colours, Scans::Together, 2),
        sketch(&colours, Scans::Apart, 0),
        sketch(&colours, Scans::Progressive, 3),
        sketch(&[(1, 1); 4], Scans::Together, 0),
    ];
    sketches.iter().map(Sketch::write).collect()
}

/// Decodes all and a part of a file; both give an error, or as many pixels as they should.
fn attempt(decoder: &mut Decoder, file: &[u8], pixels: &mut Vec<u8>) -> Result<(), DecodeError> {
    let part = Window { top: 9, bottom: 20, left: 5, right: 30 };
    if let Ok(header) = decoder.decode(file, pixels, &|_| part) {
        assert_eq!(pixels.len(), 20.min(header.height) * header.width * header.colours.channels());
    }
    let header = decoder.decode(file, pixels, &Window::whole)?;
    assert_eq!(pixels.len(), header.height * header.width * header.colours.channels());
    Ok(())
}

#[test]
fn a_file_cut_anywhere_is_an_error() {
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
fn any_byte_may_be_another() {
    for mut decoder in decoders() {
        let mut pixels = Vec::new();
        let file = sketch(&[(2, 1), (1, 1), (1, 1)], Scans::Together, 3).write();
        let errors =
            each_byte(&file).filter(|file| attempt(&mut decoder, file, &mut pixels).is_err()).count();
        assert!(errors > file.len(), "{errors}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(3000))]

    #[test]
    fn damage_stays_in_its_file(
        damaged in prop_oneof![several_bytes(files()), moved_piece(files())],
        whole in sketches(40),
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

/// Segments of a kind taken out of a file.
fn without(file: &[u8], marker: u8) -> Vec<u8> {
    let mut left = file[..2].to_vec();
    let mut at = 2;
    while file[at + 1] != 0xda {
        let end = at + 2 + usize::from(u16::from_be_bytes([file[at + 2], file[at + 3]]));
        if file[at + 1] != marker {
            left.extend(&file[at..end]);
        }
        at = end;
    }
    [&left, &file[at..]].concat()
}

/// A file without tables is not decoded with those of the one before.
#[test]
fn tables_do_not_go_from_file_to_file() {
    let file = sketch(&[(1, 1)], Scans::Together, 0).write();
    for mut decoder in decoders() {
        let mut pixels = Vec::new();
        attempt(&mut decoder, &file, &mut pixels).unwrap();
        let quantisation = attempt(&mut decoder, &without(&file, 0xdb), &mut pixels);
        assert!(
            matches!(quantisation, Err(DecodeError::Refused { said }) if said.contains("uantization table"))
        );
        // The library then takes the tables that motion JPEG leaves out, which say something else.
        let mut whole = Vec::new();
        decoder.decode(&file, &mut whole, &Window::whole).unwrap();
        if attempt(&mut decoder, &without(&file, 0xc4), &mut pixels).is_ok() {
            assert_ne!(whole, pixels);
        }
    }
}

#[test]
fn bytes_that_belong_to_no_segment_do_no_harm() {
    let file = sketch(&[(1, 1)], Scans::Together, 0).write();
    let padded = [&file[..2], &[0; 10], &file[2..]].concat();
    for mut decoder in decoders() {
        let (mut whole, mut pixels) = (Vec::new(), Vec::new());
        decoder.decode(&file, &mut whole, &Window::whole).unwrap();
        decoder.decode(&padded, &mut pixels, &Window::whole).unwrap();
        assert_eq!(whole, pixels);
    }
}

#[test]
fn a_file_of_more_than_a_hundred_scans_is_refused() {
    let file = sketch(&[(1, 1); 3], Scans::Apart, 0).write();
    // The last colour again and again.
    let last = file.windows(2).rposition(|pair| pair == [0xff, 0xda]).unwrap();
    let (before, scan) = (&file[..file.len() - 2], &file[last..file.len() - 2]);
    let many = |count: usize| [before, &scan.repeat(count), &[0xff, 0xd9]].concat();
    for mut decoder in decoders() {
        let mut pixels = Vec::new();
        assert_eq!(attempt(&mut decoder, &many(97), &mut pixels), Ok(()));
        let said = "more than 100 scans".to_owned();
        assert_eq!(attempt(&mut decoder, &many(98), &mut pixels), Err(DecodeError::Refused { said }));
    }
}

#[test]
fn what_is_too_large_is_not_begun() {
    let mut file = sketch(&[(1, 1)], Scans::Progressive, 0).write();
    let frame = file.windows(2).position(|pair| pair == [0xff, 0xc2]).unwrap();
    file[frame + 5..frame + 9].copy_from_slice(&[0xff, 0xd0, 0xff, 0xd0]);
    for library in libraries() {
        let mut pixels = Vec::new();
        let mut decoder = Decoder::new(library.clone(), LIMITS);
        let refused = decoder.decode(&file, &mut pixels, &Window::whole).unwrap_err();
        assert_eq!(refused, DecodeError::TooLarge { height: 65_488, width: 65_488, limits: LIMITS });
        assert!(pixels.is_empty());
        let narrow = Limits { side: 30, pixels: 10_000 };
        let small = sketch(&[(1, 1)], Scans::Together, 0).write();
        let refused = Decoder::new(library, narrow).header(&small).unwrap_err();
        assert_eq!(refused.to_string(), "the image is 40×36: more than 30 pixels a side or 10000 in all");
    }
}
