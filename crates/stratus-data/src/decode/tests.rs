//! Compares image files of every kind with Pillow, and tests damaged ones.

use super::*;
use crate::geometry::{DctScale, Orientation};
use proptest::prelude::*;
use std::fs;
use std::path::Path;
use stratus_testing::jpeg::{ScanOrder, SyntheticJpeg};

const FILES: [&str; 19] = [
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
    "lossy.webp",
    "lossless.webp",
    "lossy_alpha.webp",
    "lossless_alpha.webp",
    "lossless_palette.webp",
    "turned_webp.webp",
    "animated.webp",
    "animated_lossy.webp",
];

fn fixture(name: &str) -> Vec<u8> {
    fs::read(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/images").join(name)).unwrap()
}

/// A decoder for each JPEG library. On platforms for which the repository has libjpeg-turbo it must be
/// present: nothing is skipped silently.
fn decoders() -> Vec<ImageDecoder> {
    let mut libraries = vec![JpegLibrary::Zune];
    match stratus_jpeg::find() {
        Ok(library) => libraries.push(JpegLibrary::Turbo(library)),
        Err(error) if cfg!(all(target_os = "linux", target_arch = "x86_64")) => {
            panic!("run `make deps` first, which puts libjpeg-turbo under .deps: {error}")
        }
        Err(error) => eprintln!("SKIPPED with libjpeg-turbo: {error}"),
    }
    libraries.iter().map(ImageDecoder::new).collect()
}

/// Decodes to upright pixels.
fn upright(images: &mut ImageDecoder, file: &[u8]) -> (Vec<u8>, [usize; 3]) {
    let mut pixels = Vec::new();
    let Decoded { shape, orientation, .. } = images.decode(file, &mut pixels).unwrap();
    let sample = crate::dataset::Sample {
        pixels: &pixels,
        shape,
        dct_scaled: None,
        order: crate::transform::pixels::PixelOrder::Interleaved,
        orientation,
        label: 0,
        mask: None,
    };
    let [height, width] = sample.upright_size();
    let window = crate::geometry::Window { top: 0.0, left: 0.0, height: height as f64, width: width as f64 };
    let view = crate::transform::frame::CropView { window, rotation: None };
    let mut crop_resizer = crate::transform::frame::CropResizer::default();
    let upright =
        crop_resizer.crop_and_resize(&sample, view, [shape[0], height, width]).unwrap().pixels.to_vec();
    (upright, [shape[0], height, width])
}

#[test]
fn decodes_every_kind_of_file_like_pillow() {
    for (name, mut images) in
        FILES.into_iter().flat_map(|name| decoders().into_iter().map(move |images| (name, images)))
    {
        let (pixels, shape) = upright(&mut images, &fixture(name));
        let expected = fixture(&format!("{}.raw", name.rsplit_once('.').unwrap().0));
        let channels = expected.len() / (16 * 24);
        let size = if name.starts_with("turned") { [24, 16] } else { [16, 24] };
        assert_eq!(shape, [channels, size[0], size[1]], "{name}");
        assert_eq!(pixels.len(), expected.len(), "{name}");
        // The JPEG libraries round differently; PNG and WebP are exact.
        let tolerance = if name.ends_with(".jpg") { 3 } else { 0 };
        let worst = max_difference(&pixels, &expected);
        assert!(worst <= tolerance, "{name}: {worst} by {images:?}");
    }
}

fn max_difference(one: &[u8], other: &[u8]) -> u8 {
    one.iter().zip(other).map(|(a, b)| a.abs_diff(*b)).max().unwrap()
}

/// All libraries interpret the declared colours alike.
#[test]
fn jpeg_libraries_differ_by_rounding_only() {
    for (colours, adobe) in [(1, None), (3, None), (3, Some(0)), (3, Some(1)), (4, Some(0)), (4, Some(2))] {
        for scans in [ScanOrder::Interleaved, ScanOrder::Progressive] {
            let factors = vec![(1, 1); colours];
            let file =
                SyntheticJpeg { height: 61, width: 83, factors, scans, restart: 0, adobe, seed: 5 }.write();
            let decoded = decoders().into_iter().map(|mut images| {
                let mut pixels = Vec::new();
                (images.decode(&file, &mut pixels).unwrap(), pixels)
            });
            let decoded: Vec<_> = decoded.collect();
            for (described, pixels) in &decoded {
                assert_eq!(described.shape, [colours.min(3), 61, 83]);
                let worst = max_difference(pixels, &decoded[0].1);
                assert!(worst <= 3, "{colours} colours, {adobe:?}: {worst}");
            }
        }
    }
}

/// Some phones append a video to a photograph, whose bytes look like the beginnings of scans now and then.
#[test]
fn scans_after_the_end_of_a_progressive_image_do_not_count() {
    let video = [0xff, 0xda, 0].repeat(101);
    let file = [fixture("progressive.jpg"), video].concat();
    for mut images in decoders() {
        images.decode(&file, &mut Vec::new()).unwrap();
    }
}

/// Without its orientation, the rotated fixture is another image.
#[test]
fn returns_the_exif_orientation() {
    for mut images in decoders() {
        let mut pixels = Vec::new();
        for name in ["turned.jpg", "turned_webp.webp"] {
            let decoded = images.decode(&fixture(name), &mut pixels).unwrap();
            assert_eq!(decoded.shape, [3, 16, 24]);
            assert_eq!(decoded.orientation, Orientation::from_exif(6));
        }
    }
}

#[test]
fn decoded_regions_match_the_whole_image() {
    for (name, unit) in [
        ("tall_444.jpg", 8),
        ("tall_422.jpg", 8),
        ("tall_420.jpg", 16),
        ("tall_420_optimised.jpg", 16),
        ("tall_grey.jpg", 8),
        // Each scan contains data of every row.
        ("tall_progressive.jpg", 150),
    ] {
        for mut images in decoders() {
            let mut file = fixture(name);
            let before = file.clone();
            let (mut whole, mut part) = (Vec::new(), Vec::new());
            let described = images.decode(&file, &mut whole).unwrap();
            let [channels, height, width] = described.shape;
            assert_eq!((height, width), (150, 40));
            for end in [0, 1, unit - 1, unit, unit + 1, 50, 100, 149, 150, 1000] {
                for columns in [0..40, 0..3, 17..19, 30..40] {
                    let first = end.min(height) / 2;
                    let region = Region { rows: first..end, columns: columns.clone(), scale: DctScale::Full };
                    part.fill(0x5a);
                    assert_eq!(
                        images.decode_region(&mut file, &mut part, &|_| region.clone()).unwrap(),
                        described
                    );
                    assert_eq!(file, before, "{name}");
                    let rows = part.len() / (channels * width);
                    assert!(
                        (end.min(height)..=(end + 2 * unit).min(height)).contains(&rows),
                        "{name}: {rows} for {end}"
                    );
                    for row in first..end.min(height) {
                        let range =
                            (row * width + columns.start) * channels..(row * width + columns.end) * channels;
                        assert_eq!(part[range.clone()], whole[range], "{name}: row {row} of {region:?}");
                    }
                }
            }
        }
    }
}

#[test]
fn rejects_files_truncated_anywhere() {
    for mut images in decoders() {
        for name in FILES {
            let file = fixture(name);
            let mut pixels = Vec::new();
            for end in 0..file.len() {
                let cut = &file[..end];
                assert!(images.decode(cut, &mut pixels).is_err(), "{name} cut at {end} of {}", file.len());
                let mut cut = cut.to_vec();
                let first = Region { rows: 0..1, columns: 0..1, scale: DctScale::Full };
                assert!(
                    images.decode_region(&mut cut, &mut pixels, &|_| first.clone()).is_err(),
                    "{name} cut at {end}"
                );
                let probed = images.probe_ends(&cut, &cut, end);
                assert!(!matches!(probed, Ok(Some(_))), "{name} cut at {end}");
            }
            let [_, height, width] = images.decode(&file, &mut pixels).unwrap().shape;
            assert_eq!(images.probe_ends(&file, &file, file.len()), Ok(Some([height, width])), "{name}");
        }
    }
}

/// Bytes between the segments of a header, which libjpeg skips with a warning: the pixels are the same.
#[test]
fn skips_stray_bytes_between_jpeg_segments() {
    for name in ["colour.jpg", "grey.jpg", "progressive.jpg", "turned.jpg", "tall_420.jpg"] {
        let file = fixture(name);
        let mut begins = Vec::new();
        let mut at = 2;
        // All segments up to the first scan of a file without stray bytes.
        while file[at + 1] != 0xda {
            begins.push(at);
            at += 2 + usize::from(u16::from_be_bytes([file[at + 2], file[at + 3]]));
        }
        begins.push(at);
        for mut images in decoders() {
            let mut expected = Vec::new();
            let described = images.decode(&file, &mut expected).unwrap();
            for stray in [&b"\0"[..], b"\0\0\0\0", b"abc", b"\xff\xff\xff", b"\x07\xff\0\x07"] {
                // The first bytes identify the format.
                for &begin in &begins[1..] {
                    let mut damaged = [&file[..begin], stray, &file[begin..]].concat();
                    let mut pixels = Vec::new();
                    let context = format!("{name}: {stray:?} at {begin} by {images:?}");
                    assert_eq!(images.decode(&damaged, &mut pixels), Ok(described), "{context}");
                    assert_eq!(pixels, expected, "{context}");
                    let whole = Region::whole(described.shape);
                    let region = images.decode_region(&mut damaged, &mut pixels, &|_| whole.clone());
                    assert_eq!((region, &pixels), (Ok(described), &expected), "{context}");
                    let [_, height, width] = described.shape;
                    let probed = images.probe_ends(&damaged, &damaged, damaged.len());
                    assert_eq!(probed, Ok(Some([height, width])), "{context}");
                }
            }
        }
    }
}

/// A last chunk with another checksum, and invalid chunks after the image: no pixel depends on them.
#[test]
fn requires_but_ignores_trailing_chunks() {
    let file = fixture("colour_png.png");
    let mut images = ImageDecoder::default();
    let (mut expected, mut pixels) = (Vec::new(), Vec::new());
    let described = images.decode(&file, &mut expected).unwrap();
    let end = file.len() - 12;
    let wrong_sum = [&file[..file.len() - 1], &[0x83]].concat();
    let with = |chunk: &[u8]| [&file[..end], chunk, &file[end..]].concat();
    let unknown = with(b"\0\0\0\x01qqqq\x07\0\0\0\0");
    let needed = images.decode(&with(b"\0\0\0\0QqQq\0\0\0\0"), &mut pixels).unwrap_err();
    assert!(needed.contains("unsupported critical chunk QqQq"), "{needed}");
    for damaged in [wrong_sum, unknown] {
        assert_eq!(images.decode(&damaged, &mut pixels), Ok(described));
        assert_eq!(pixels, expected);
        for cut in end..damaged.len() {
            assert!(images.decode(&damaged[..cut], &mut pixels).is_err(), "{cut}");
        }
    }
    // The checksum of the pixels, which ends the image data, before the chunk's checksum and IEND.
    let mut damaged = file.clone();
    damaged[end - 5] ^= 1;
    let begin = file.windows(4).position(|kind| kind == b"IDAT").unwrap();
    let sum = crc(&damaged[begin..end - 4]);
    damaged[end - 4..end].copy_from_slice(&sum.to_be_bytes());
    let message = images.decode(&damaged, &mut pixels).unwrap_err();
    assert!(message.contains("deflate"), "{message}");
}

/// Image data in two runs: the second is ignored, whether it is needed or not.
#[test]
fn image_data_end_at_the_first_other_chunk() {
    let file = fixture("colour_png.png");
    let mut images = ImageDecoder::default();
    let (mut expected, mut pixels) = (Vec::new(), Vec::new());
    let described = images.decode(&file, &mut expected).unwrap();
    let begin = file.windows(4).position(|kind| kind == b"IDAT").unwrap() - 4;
    let data = &file[begin + 8..file.len() - 16];
    let chunk = |kind: &[u8], data: &[u8]| {
        let length = u32::try_from(data.len()).unwrap().to_be_bytes();
        let named = [kind, data].concat();
        [&length, named.as_slice(), &crc(&named).to_be_bytes()].concat()
    };
    let with = |parts: &[Vec<u8>]| [&file[..begin], &parts.concat(), &file[file.len() - 12..]].concat();
    let (half, text) = (data.len() / 2, chunk(b"tEXt", b"a\0b"));
    let (one, other) = (chunk(b"IDAT", &data[..half]), chunk(b"IDAT", &data[half..]));
    assert_eq!(images.decode(&with(&[one.clone(), other.clone()]), &mut pixels), Ok(described));
    assert_eq!(pixels, expected);
    assert!(images.decode(&with(&[one.clone(), text.clone(), other]), &mut pixels).is_err());
    let whole = chunk(b"IDAT", data);
    assert_eq!(images.decode(&with(&[whole, text, one]), &mut pixels), Ok(described));
    assert_eq!(pixels, expected);
}

/// An invalid palette that no pixel refers to.
#[test]
fn ignores_damaged_unneeded_chunks() {
    let file = fixture("colour_png.png");
    let mut images = ImageDecoder::default();
    let (mut expected, mut pixels) = (Vec::new(), Vec::new());
    let described = images.decode(&file, &mut expected).unwrap();
    let empty = b"\0\0\0\0PLTE\x4b\xa8\x89\x55";
    assert_eq!(u32::from_be_bytes(empty[8..].try_into().unwrap()), crc(b"PLTE"));
    // After the header, which takes 25 bytes.
    let with = [&file[..8 + 25], empty, &file[8 + 25..]].concat();
    assert_eq!(images.decode(&with, &mut pixels), Ok(described));
    assert_eq!(pixels, expected);
    let wrong_sum = [&file[..8 + 25], &empty[..11], &[7], &file[8 + 25..]].concat();
    assert!(images.decode(&wrong_sum, &mut pixels).is_err());
    // If pixels refer to the palette, it is needed.
    let indexed = fixture("palette.png");
    assert!(images.decode(&with_palette(&indexed, 0), &mut pixels).is_err());
}

/// A large file of which 250 kB have arrived is as much out of proportion as a bomb.
#[test]
fn the_cause_of_a_truncated_large_image_is_its_end() {
    let mut head = fixture("colour_png.png")[..33].to_vec();
    head[16..24].copy_from_slice(&[0, 0, 0x21, 0, 0, 0, 0x21, 0]);
    let sum = crc(&head[12..29]);
    head[29..].copy_from_slice(&sum.to_be_bytes());
    let data = |length: u32| [&length.to_be_bytes()[..], b"IDAT", &[0; 250_000]].concat();
    let cut = [&head[..], &data(100_000_000)].concat();
    let whole = [&head[..], &data(250_000), &[0; 8], b"IEND\xae\x42\x60\x82"].concat();
    let mut pixels = Vec::new();
    let mut problem = |file: &[u8]| ImageDecoder::default().decode(file, &mut pixels).unwrap_err();
    assert_eq!(problem(&cut), "the file ends before the image does");
    assert!(problem(&whole).contains("decoding takes 205 MiB"), "{}", problem(&whole));
    assert_eq!(decode_labels(&cut, &mut Vec::new()).unwrap_err(), "the file ends before the image does");
}

/// Padding after the end of the image.
#[test]
fn ignores_bytes_after_the_end() {
    for name in ["colour.jpg", "grey.jpg", "colour_png.png", "lossy.webp", "turned_webp.webp"] {
        for mut images in decoders() {
            let (mut expected, mut pixels) = (Vec::new(), Vec::new());
            let file = fixture(name);
            let described = images.decode(&file, &mut expected).unwrap();
            for padding in [1, 3, 5000, 20_000] {
                for byte in [0, 0xff, b'x'] {
                    let mut padded = file.clone();
                    padded.resize(file.len() + padding, byte);
                    assert_eq!(images.decode(&padded, &mut pixels), Ok(described), "{name} {padding}");
                    assert_eq!(pixels, expected);
                    let (mut encoded, mut decoded) = (Vec::new(), Vec::new());
                    let mut read = |at: u64, out: &mut [u8]| {
                        out.copy_from_slice(&padded[at as usize..][..out.len()]);
                        Ok(())
                    };
                    let [_, height, width] = described.shape;
                    let found = images.probe(&mut read, padded.len() as u64, &mut encoded, &mut decoded);
                    assert_eq!(found, Ok([height, width]), "{name} {padding}");
                }
            }
        }
    }
}

#[test]
fn rejects_non_images() {
    let mut pixels = Vec::new();
    let mut problem = |file: &[u8]| ImageDecoder::default().decode(file, &mut pixels).unwrap_err();
    assert_eq!(problem(b""), "the file is empty");
    assert_eq!(problem(b"plain text"), "not a JPEG, PNG or WebP file");
    for (file, name) in [
        (&b"GIF89a"[..], "a GIF image"),
        (b"\0\0\0\x18ftypheic\0\0\0\0mif1heic", "a HEIC image"),
        (b"\0\0\0\x1cftypmif1\0\0\0\0mif1avifmiaf", "an AVIF image"),
        (b"\0\0\0\x14ftypmif1\0\0\0\0mif1heic", "a HEIF image"),
        (b"II\x2a\0", "a TIFF image"),
        (b"BM\x36\0\0\0\0\0\0\0\x36", "a BMP image"),
        (b"\xff\x0a\0", "a JPEG XL image"),
    ] {
        assert_eq!(problem(file), format!("{name}, which is not supported: convert it to JPEG or PNG"));
    }
    let mut huge = fixture("colour_png.png");
    // Sets width and height of the header, and its checksum.
    huge[16..24].copy_from_slice(&[0, 1, 0, 0, 0, 1, 0, 0]);
    let sum = crc(&huge[12..29]);
    huge[29..33].copy_from_slice(&sum.to_be_bytes());
    let message = problem(&huge);
    assert!(message.contains("65536"), "{message}");
}

#[test]
fn reports_the_jpeg_library_after_the_first_jpeg() {
    for mut images in decoders() {
        let mut pixels = Vec::new();
        images.decode(&fixture("colour_png.png"), &mut pixels).unwrap();
        assert!(images.jpeg_library().is_none());
        images.decode(&fixture("colour.jpg"), &mut pixels).unwrap();
        let name = images.jpeg_library().unwrap().to_string();
        assert!(name.starts_with("zune-jpeg 0.") || name.starts_with("libjpeg-turbo "), "{name}");
    }
}

/// The parts of a WebP file: name, and content.
fn webp_chunks(file: &[u8]) -> Vec<([u8; 4], Vec<u8>)> {
    let (mut chunks, mut at) = (Vec::new(), 12);
    while at < file.len() {
        let bytes = u32::from_le_bytes(file[at + 4..at + 8].try_into().unwrap()) as usize;
        chunks.push((file[at..at + 4].try_into().unwrap(), file[at + 8..at + 8 + bytes].to_vec()));
        at += 8 + bytes.next_multiple_of(2);
    }
    chunks
}

/// The WebP file of these parts.
fn webp_of(chunks: &[([u8; 4], Vec<u8>)]) -> Vec<u8> {
    let mut content = b"WEBP".to_vec();
    for (kind, bytes) in chunks {
        content.extend_from_slice(kind);
        content.extend_from_slice(&u32::try_from(bytes.len()).unwrap().to_le_bytes());
        content.extend_from_slice(bytes);
        content.resize(content.len().next_multiple_of(2), 0);
    }
    [b"RIFF", &u32::try_from(content.len()).unwrap().to_le_bytes()[..], &content].concat()
}

/// Transparency is dropped and metadata do not matter, so they may be missing or damaged.
#[test]
fn ignores_webp_chunks_that_the_pixels_do_not_need() {
    let mut images = ImageDecoder::default();
    let (mut expected, mut pixels) = (Vec::new(), Vec::new());
    for (name, kind) in [("lossy_alpha.webp", b"ALPH"), ("turned_webp.webp", b"EXIF")] {
        let file = fixture(name);
        let chunks = webp_chunks(&file);
        assert_eq!(webp_of(&chunks), file);
        let described = images.decode(&file, &mut expected).unwrap();
        let at = chunks.iter().position(|(found, _)| found == kind).unwrap();
        for damage in ["missing", "damaged", "unknown"] {
            let mut changed = chunks.clone();
            match damage {
                "missing" => _ = changed.remove(at),
                "damaged" => changed[at].1.fill(0xff),
                _ => changed.insert(at, (*b"abcd", vec![1, 2, 3])),
            }
            let decoded = images.decode(&webp_of(&changed), &mut pixels).unwrap();
            assert_eq!((decoded.shape, &pixels), (described.shape, &expected), "{name} {damage}");
        }
    }
}

/// A file may not claim any size, nor any length.
#[test]
fn rejects_webp_images_out_of_proportion_and_of_another_size() {
    let mut images = ImageDecoder::default();
    let mut problem = |file: &[u8]| {
        let problem = images.decode(file, &mut Vec::new()).unwrap_err();
        assert!(!matches!(images.probe_ends(file, file, file.len()), Ok(Some(_))), "{problem}");
        problem
    };
    // The canvas of an extended image, in three bytes for each side minus one.
    let canvas = |sides: [u8; 6]| {
        let mut chunks = webp_chunks(&fixture("turned_webp.webp"));
        chunks[0].1[4..10].copy_from_slice(&sides);
        webp_of(&chunks)
    };
    assert!(problem(&canvas([0xff; 6])).contains("maximum side"));
    assert!(problem(&canvas([0xff, 0x27, 0, 0xff, 0x1f, 0])).contains("the file ends before the image does"));
    let mut flat = |side: u32| {
        let mut file = fixture("lossless.webp");
        // 14 bits of each side minus one, after the signature.
        file[21..25].copy_from_slice(&((side - 1) | (side - 1) << 14).to_le_bytes());
        problem(&file)
    };
    assert!(flat(16_384).contains("more than 134217728 pixels"));
    assert!(flat(8192).contains("decoding takes 576 MiB"));
    let other = images.decode(&canvas([23, 0, 0, 16, 0, 0]), &mut Vec::new()).unwrap_err();
    assert!(other.contains("size"), "{other}");
    // The frame of a small canvas claims another size, alone and in an animation.
    for name in ["turned_webp.webp", "animated_lossy.webp"] {
        let mut file = fixture(name);
        let at = file.windows(3).position(|bytes| bytes == [0x9d, 1, 0x2a]).unwrap() + 3;
        file[at..at + 4].fill(0xff);
        let other = images.decode(&file, &mut Vec::new()).unwrap_err();
        assert_eq!(other, "the WebP has an image of another size than 16×24");
    }
    let mut long = fixture("lossy.webp");
    long[4..8].copy_from_slice(&u32::MAX.to_le_bytes());
    assert_eq!(images.decode(&long, &mut Vec::new()).unwrap_err(), "the file ends before the image does");
}

/// Lossless WebP files have exact colours, as they are stored.
#[test]
fn label_images_may_be_lossless_webp() {
    let mut out = Vec::new();
    for name in ["lossless", "lossless_palette"] {
        let labels = decode_labels(&fixture(&format!("{name}.webp")), &mut out).unwrap();
        assert_eq!(labels, LabelImage { pixels: LabelPixels::Colours, height: 16, width: 24 });
        assert_eq!(out, fixture(&format!("{name}.raw")));
    }
    for name in ["lossy.webp", "lossy_alpha.webp", "animated.webp"] {
        let problem = decode_labels(&fixture(name), &mut out).unwrap_err();
        assert_eq!(problem, "label images must be PNG or lossless WebP without animation", "{name}");
    }
}

/// The checksum of PNG chunks (ISO 3309), bit by bit.
fn crc(bytes: &[u8]) -> u32 {
    !bytes.iter().fold(u32::MAX, |sum, &byte| {
        (0..8).fold(sum ^ u32::from(byte), |sum, _| (sum >> 1) ^ if sum & 1 == 1 { 0xedb8_8320 } else { 0 })
    })
}

proptest! {
    #[test]
    fn damaged_files_never_panic(
        file_index in 0..FILES.len(),
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..8),
    ) {
        let mut file = fixture(FILES[file_index]);
        for (position, byte) in changes {
            let at = position.index(file.len());
            file[at] = byte;
        }
        for mut images in decoders() {
            let mut pixels = Vec::new();
            if let Ok(decoded) = images.decode(&file, &mut pixels) {
                prop_assert_eq!(pixels.len(), decoded.shape.iter().product::<usize>());
            }
            let _ = images.probe_ends(&file, &file, file.len());
        }
    }
}

/// The PNG with a palette of `bytes` bytes.
fn with_palette(file: &[u8], bytes: usize) -> Vec<u8> {
    let at = file.windows(4).position(|kind| kind == b"PLTE").unwrap();
    let length = u32::from_be_bytes(file[at - 4..at].try_into().unwrap()) as usize;
    let chunk: Vec<u8> = b"PLTE".iter().chain(file[at + 4..].iter().cycle().take(bytes)).copied().collect();
    let length_now = u32::try_from(bytes).unwrap().to_be_bytes();
    let sum = crc32fast::hash(&chunk).to_be_bytes();
    [&file[..at - 4], &length_now, &chunk, &sum, &file[at + 4 + length + 4..]].concat()
}

#[test]
fn rejects_incomplete_palette_entries() {
    let file = fixture("palette.png");
    for bytes in 1..=50 {
        let damaged = with_palette(&file, bytes);
        for mut images in decoders() {
            let decoded = images.decode(&damaged, &mut Vec::new());
            let labels = decode_labels(&damaged, &mut Vec::new());
            assert_eq!(
                (decoded.is_ok(), labels.is_ok()),
                (bytes % 3 == 0, bytes % 3 == 0),
                "{bytes}: {decoded:?}, {labels:?}"
            );
        }
    }
}
