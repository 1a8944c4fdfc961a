//! Image files of every kind against what Pillow decodes from them, and damaged ones.

use super::*;
use proptest::prelude::*;
use std::fs;
use std::path::Path;

const FILES: [&str; 11] = [
    "colour.jpg",
    "progressive.jpg",
    "grey.jpg",
    "cmyk.jpg",
    "turned.jpg",
    "colour_png.png",
    "grey_png.png",
    "palette.png",
    "transparent.png",
    "bits.png",
    "deep.png",
];

fn fixture(name: &str) -> Vec<u8> {
    fs::read(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/images").join(name)).unwrap()
}

/// The pixels, upright.
fn upright(file: &[u8]) -> (Vec<u8>, [usize; 3]) {
    let mut pixels = Vec::new();
    let Decoded { shape, orientation } = decode(file, &mut pixels).unwrap();
    let sample = crate::datasets::Sample {
        pixels: &pixels,
        shape,
        order: crate::pixels::PixelOrder::Interleaved,
        orientation,
        label: 0,
        mask: None,
    };
    let [height, width] = sample.upright_size();
    let window = crate::frame::Window { top: 0.0, left: 0.0, height: height as f64, width: width as f64 };
    let view = crate::frame::View { window, turn: None };
    let mut framer = crate::frame::Framer::default();
    let upright = framer.cut(&sample, view, [shape[0], height, width]).unwrap().pixels.to_vec();
    (upright, [shape[0], height, width])
}

#[test]
fn every_kind_of_file_has_the_pixels_that_pillow_finds() {
    for name in FILES {
        let (pixels, shape) = upright(&fixture(name));
        let expected = fixture(&format!("{}.raw", name.rsplit_once('.').unwrap().0));
        let channels = expected.len() / (16 * 24);
        let size = if name == "turned.jpg" { [24, 16] } else { [16, 24] };
        assert_eq!(shape, [channels, size[0], size[1]], "{name}");
        assert_eq!(pixels.len(), expected.len(), "{name}");
        // The two JPEG libraries round differently; PNG has one answer.
        let most = if name.ends_with(".jpg") { 3 } else { 0 };
        let worst = pixels.iter().zip(&expected).map(|(a, b)| a.abs_diff(*b)).max().unwrap();
        assert!(worst <= most, "{name}: {worst}");
    }
}

/// What an orientation is for: without it the turned fixture is another image.
#[test]
fn orientation_is_passed_on() {
    let mut pixels = Vec::new();
    let decoded = decode(&fixture("turned.jpg"), &mut pixels).unwrap();
    assert_eq!(decoded.shape, [3, 16, 24]);
    assert_eq!(decoded.orientation, Orientation::from_exif(6));
}

#[test]
fn the_first_rows_are_those_of_the_whole_image() {
    for (name, unit) in [
        ("tall_444.jpg", 8),
        ("tall_422.jpg", 8),
        ("tall_420.jpg", 16),
        ("tall_420_optimised.jpg", 16),
        ("tall_grey.jpg", 8),
        // Each scan has something of every row.
        ("tall_progressive.jpg", 150),
    ] {
        let mut file = fixture(name);
        let before = file.clone();
        let (mut whole, mut part) = (Vec::new(), Vec::new());
        let described = decode(&file, &mut whole).unwrap();
        let [channels, height, width] = described.shape;
        assert_eq!((height, width), (150, 40));
        for rows in [0, 1, unit - 1, unit, unit + 1, 50, 100, 149, 150, 1000] {
            assert_eq!(decode_rows(&mut file, &mut part, &|_| rows).unwrap(), described, "{name}");
            assert_eq!(file, before, "{name}");
            let bytes = rows.min(height) * channels * width;
            assert!(part.len() >= bytes && part[..bytes] == whole[..bytes], "{name}: {rows} rows");
            let decoded = part.len() / (channels * width);
            assert!(decoded <= (rows + 2 * unit).min(height), "{name}: {decoded} rows for {rows}");
        }
    }
}

#[test]
fn a_file_cut_anywhere_is_an_error() {
    for name in FILES {
        let file = fixture(name);
        let mut pixels = Vec::new();
        for end in 0..file.len() {
            let cut = &file[..end];
            assert!(decode(cut, &mut pixels).is_err(), "{name} cut at {end} of {}", file.len());
            assert_ne!(looks_whole(cut, cut, end), Some(Ok(())), "{name} cut at {end}");
        }
        assert_eq!(looks_whole(&file, &file, file.len()), Some(Ok(())), "{name}");
    }
}

#[test]
fn what_is_no_image_is_told() {
    let mut pixels = Vec::new();
    let mut problem = |file: &[u8]| decode(file, &mut pixels).unwrap_err();
    assert_eq!(problem(b""), "the file is empty");
    assert_eq!(problem(b"GIF89a"), "neither a JPEG nor a PNG file");
    let mut huge = fixture("colour_png.png");
    // Width and height of the header, and its checksum.
    huge[16..24].copy_from_slice(&[0, 1, 0, 0, 0, 1, 0, 0]);
    let sum = crc(&huge[12..29]);
    huge[29..33].copy_from_slice(&sum.to_be_bytes());
    let message = problem(&huge);
    assert!(message.contains("65536"), "{message}");
}

/// The checksum of PNG's chunks (ISO 3309), bit by bit.
fn crc(bytes: &[u8]) -> u32 {
    !bytes.iter().fold(u32::MAX, |sum, &byte| {
        (0..8).fold(sum ^ u32::from(byte), |sum, _| (sum >> 1) ^ if sum & 1 == 1 { 0xedb8_8320 } else { 0 })
    })
}

proptest! {
    #[test]
    fn damaged_files_do_not_panic(
        which in 0..FILES.len(),
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..8),
    ) {
        let mut file = fixture(FILES[which]);
        for (place, byte) in changes {
            let at = place.index(file.len());
            file[at] = byte;
        }
        let mut pixels = Vec::new();
        if let Ok(decoded) = decode(&file, &mut pixels) {
            prop_assert_eq!(pixels.len(), decoded.shape.iter().product::<usize>());
        }
        let _ = looks_whole(&file, &file, file.len());
    }
}
