//! Label images of every PNG colour type and depth, for every data set with masks: equal images give equal
//! masks, and ambiguous ones are rejected.

use std::fs;
use std::path::Path;

use crate::common::write_picture;
use png::{BitDepth, ColorType, Encoder};
use serde_json::json;
use stratus_data::datasets::IGNORED_PIXEL;
use stratus_data::{OpenOptions, Scratch, Split, open};

const VOID: u8 = IGNORED_PIXEL;
const WIDTH: usize = 5;
const CLASSES_OF_SHARDS: usize = 22;
const DEPTHS: [(BitDepth, usize); 5] = [
    (BitDepth::One, 1),
    (BitDepth::Two, 2),
    (BitDepth::Four, 4),
    (BitDepth::Eight, 8),
    (BitDepth::Sixteen, 16),
];

/// Encodes samples in rows of [`WIDTH`] pixels as a PNG.
fn store(colour: ColorType, depth: (BitDepth, usize), palette: &[[u8; 3]], samples: &[u16]) -> Vec<u8> {
    let channels = colour.samples();
    let height = samples.len() / (WIDTH * channels);
    let mut rows = Vec::new();
    for row in samples.chunks(WIDTH * channels) {
        match depth.1 {
            16 => row.iter().for_each(|sample| rows.extend(sample.to_be_bytes())),
            bits => {
                let mut bytes = vec![0; (row.len() * bits).div_ceil(8)];
                for (at, &sample) in row.iter().enumerate() {
                    assert!(sample < 1 << bits, "{sample} in {bits} bits");
                    bytes[at * bits / 8] |= (sample as u8) << (8 - bits - at * bits % 8);
                }
                rows.extend(bytes);
            }
        }
    }
    let mut file = Vec::new();
    let mut encoder = Encoder::new(&mut file, WIDTH as u32, height as u32);
    encoder.set_color(colour);
    encoder.set_depth(depth.0);
    if colour == ColorType::Indexed {
        encoder.set_palette(palette.concat());
    }
    encoder.write_header().unwrap().write_image_data(&rows).unwrap();
    file
}

/// A data set with label images.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Kind {
    CamvidLists,
    CamvidOriginal,
    Cityscapes,
    Shards,
}

const KINDS: [Kind; 4] = [Kind::CamvidLists, Kind::CamvidOriginal, Kind::Cityscapes, Kind::Shards];

/// The mask that such a data set reads from a label image.
fn mask_of(kind: Kind, file: &[u8]) -> Result<Vec<u8>, String> {
    let directory = tempfile::tempdir().unwrap();
    let root = directory.path();
    let size = u32::from_be_bytes(file[20..24].try_into().unwrap());
    let put = |image: &str, labels: &str| {
        write_picture(&root.join(image), [size, WIDTH as u32], 1);
        fs::create_dir_all(root.join(labels).parent().unwrap()).unwrap();
        fs::write(root.join(labels), file).unwrap();
    };
    let name = match kind {
        Kind::CamvidLists => {
            put("train/a.png", "trainannot/a.png");
            fs::write(root.join("train.txt"), "train/a.png trainannot/a.png").unwrap();
            "camvid"
        }
        Kind::CamvidOriginal => {
            put("701_StillsRaw_full/a.png", "LabeledApproved_full/a_L.png");
            fs::write(root.join("train.txt"), "701_StillsRaw_full/a.png LabeledApproved_full/a_L.png")
                .unwrap();
            "camvid"
        }
        Kind::Cityscapes => {
            let id = "train/ulm/ulm_000000_000019";
            put(&format!("leftImg8bit/{id}_leftImg8bit.png"), &format!("gtFine/{id}_gtFine_labelIds.png"));
            "cityscapes"
        }
        Kind::Shards => {
            put("a.png", "a.seg.png");
            let mut tar = tar::Builder::new(fs::File::create(root.join("train-000000.tar")).unwrap());
            for member in ["a.png", "a.seg.png"] {
                tar.append_path_with_name(root.join(member), member).unwrap();
            }
            tar.finish().unwrap();
            drop(tar);
            let bytes = |name: &str| fs::metadata(root.join(name)).unwrap().len();
            let (image, mask) = (bytes("a.png"), bytes("a.seg.png"));
            let index = json!({
                "format": "stratus-shards", "version": 1, "source": "made", "shape": null, "masks": true,
                "classes": (0..CLASSES_OF_SHARDS).map(|class| format!("c{class}")).collect::<Vec<_>>(),
                "normalisation": {"mean": [0.5, 0.5, 0.5], "std": [0.5, 0.5, 0.5]},
                "splits": {"train": [{
                    "name": "train-000000.tar", "bytes": bytes("train-000000.tar"), "sha256": "0".repeat(64),
                    "labels": [], "images": [[1, image]], "masks": [[2 + image.div_ceil(512), mask]],
                }]},
            });
            fs::write(root.join("index.json"), index.to_string()).unwrap();
            "shards"
        }
    };
    read(name, root)
}

fn read(name: &str, root: &Path) -> Result<Vec<u8>, String> {
    let options = OpenOptions { verify: false, ..OpenOptions::default() };
    let set = open(name, root, Split::Train, &options).map_err(|error| error.to_string())?;
    let mut scratch = Scratch::default();
    let sample = set.read(0, &mut scratch).map_err(|error| error.to_string())?;
    Ok(sample.mask.unwrap().to_vec())
}

/// Repeats the numbers in rows of [`WIDTH`].
fn picture(numbers: &[u8]) -> Vec<u8> {
    numbers.iter().copied().cycle().take(3 * WIDTH).collect()
}

/// PNG optimisers and converters change the colour type of an image: the mask must stay the same.
#[test]
fn camvid_matches_colours_in_every_png_type() {
    let colours =
        [[128, 128, 128], [128, 0, 0], [128, 64, 128], [64, 0, 128], [0, 0, 0], [192, 0, 128], [0, 128, 64]];
    let classes = [0, 1, 3, 8, VOID, 1, 1];
    for count in [2, 4, 7] {
        let of_pixel: Vec<u8> = picture(&(0..count as u8).collect::<Vec<_>>());
        let expected: Vec<u8> = of_pixel.iter().map(|&at| classes[usize::from(at)]).collect();
        let samples = |alpha: bool, scale: u16| -> Vec<u16> {
            let samples_of = |&at: &u8| {
                let colour = colours[usize::from(at)].map(|sample: u8| u16::from(sample) * scale);
                colour.into_iter().chain(alpha.then_some(u16::from(at) * scale))
            };
            of_pixel.iter().flat_map(samples_of).collect()
        };
        for kind in [Kind::CamvidLists, Kind::CamvidOriginal] {
            for (depth, scale) in [(DEPTHS[3], 1), (DEPTHS[4], 257)] {
                let rgb = store(ColorType::Rgb, depth, &[], &samples(false, scale));
                assert_eq!(mask_of(kind, &rgb), Ok(expected.clone()), "{kind:?} {count} {depth:?}");
                let rgba = store(ColorType::Rgba, depth, &[], &samples(true, scale));
                assert_eq!(mask_of(kind, &rgba), Ok(expected.clone()), "{kind:?} {count} {depth:?}");
            }
            for depth in DEPTHS.into_iter().take(4).filter(|(_, bits)| count <= 1 << bits) {
                for turn in 0..count {
                    // The order of palette entries is arbitrary.
                    let indices: Vec<u16> =
                        of_pixel.iter().map(|&at| ((usize::from(at) + turn) % count) as u16).collect();
                    let palette: Vec<_> = (0..count)
                        .map(|palette_index| colours[(palette_index + count - turn) % count])
                        .collect();
                    let file = store(ColorType::Indexed, depth, &palette, &indices);
                    assert_eq!(
                        mask_of(kind, &file),
                        Ok(expected.clone()),
                        "{kind:?} {count} {depth:?} {turn}"
                    );
                }
            }
        }
    }
    // Optimisers store sky alone, or sky with void of the original files, as grey.
    for (colour, samples) in [(ColorType::Grayscale, vec![128]), (ColorType::GrayscaleAlpha, vec![128, 7])] {
        for kind in [Kind::CamvidLists, Kind::CamvidOriginal] {
            let file = store(colour, DEPTHS[3], &[], &samples.repeat(WIDTH));
            assert_eq!(mask_of(kind, &file), Ok(vec![0; WIDTH]), "{kind:?}");
        }
    }
    let file = store(ColorType::Grayscale, DEPTHS[3], &[], &[0, 128, 0, 128, 0]);
    assert_eq!(mask_of(Kind::CamvidOriginal, &file), Ok(vec![VOID, 0, VOID, 0, VOID]));
    let black = store(ColorType::Grayscale, DEPTHS[0], &[], &[0; WIDTH]);
    assert_eq!(mask_of(Kind::CamvidOriginal, &black), Ok(vec![VOID; WIDTH]));
    assert_eq!(mask_of(Kind::CamvidLists, &black), Ok(vec![0; WIDTH]));
}

/// VOC's colour of a class: the bits of its index, spread over three channels from the highest bit down.
fn voc(number: u8) -> [u8; 3] {
    let bit = |channel: u8, at: u8| (u32::from(number) >> (3 * at + channel) & 1) << (7 - at);
    [0, 1, 2].map(|channel| (bit(channel, 0) | bit(channel, 1) | bit(channel, 2)) as u8)
}

#[test]
fn reads_indices_in_every_png_type() {
    assert_eq!([voc(1), voc(6), voc(20)], [[128, 0, 0], [0, 128, 128], [0, 64, 128]]);
    // Indices for every bit depth, and their classes.
    let sets: [(Kind, &[u8], &[u8]); 4] = [
        (Kind::CamvidLists, &[1, 0, 3, 2, 11, 9], &[1, 0, 3, 2, VOID, 9]),
        (Kind::CamvidOriginal, &[1, 2, 3, 9, 11, 4], &[1, 2, 3, 9, VOID, 4]),
        (Kind::Cityscapes, &[1, 0, 7, 11, 26, 255], &[VOID, VOID, 0, 2, 13, VOID]),
        (Kind::Shards, &[2, 1, 3, 14, 21, 255], &[2, 1, 3, 14, 21, VOID]),
    ];
    for (kind, all, classes) in sets {
        let of_pixel = picture(&[0, 1, 2, 3, 4, 5]);
        let numbers: Vec<u8> = of_pixel.iter().map(|&at| all[usize::from(at)]).collect();
        let expected: Vec<u8> = of_pixel.iter().map(|&at| classes[usize::from(at)]).collect();
        let check = |file: Vec<u8>, context: &str| {
            assert_eq!(mask_of(kind, &file), Ok(expected.clone()), "{kind:?} {context}");
        };
        let wide = |scale: u16| numbers.iter().map(move |&number| u16::from(number) * scale);
        for (depth, scale) in [(DEPTHS[3], 1), (DEPTHS[4], 1), (DEPTHS[4], 257)] {
            let grey: Vec<u16> = wide(scale).collect();
            check(store(ColorType::Grayscale, depth, &[], &grey), "grey");
            let alpha: Vec<u16> = wide(scale).flat_map(|number| [number, 9]).collect();
            check(store(ColorType::GrayscaleAlpha, depth, &[], &alpha), "grey and alpha");
            let coloured = matches!(kind, Kind::CamvidLists | Kind::CamvidOriginal);
            if !coloured && (depth.1 == 8 || scale == 257) {
                let rgb: Vec<u16> = wide(scale).flat_map(|number| [number; 3]).collect();
                check(store(ColorType::Rgb, depth, &[], &rgb), "grey as colours");
            }
        }
        // A display palette: a colour for each index.
        let palette: Vec<_> = (0..=255).map(voc).collect();
        let indices: Vec<u16> = wide(1).collect();
        check(store(ColorType::Indexed, DEPTHS[3], &palette, &indices), "VOC's palette");
        // The palette of a PNG optimiser: only the greys that occur.
        let mut greys = all.to_vec();
        greys.sort_unstable();
        let palette_index = |number: &u8| greys.iter().position(|grey| grey == number).unwrap() as u16;
        let indices: Vec<u16> = numbers.iter().map(palette_index).collect();
        let palette: Vec<_> = greys.iter().map(|&grey| [grey; 3]).collect();
        for depth in [DEPTHS[2], DEPTHS[3]] {
            check(store(ColorType::Indexed, depth, &palette, &indices), "a palette of greys");
        }
        // Each index at its own place, in grey.
        let palette: Vec<_> = (0..=255).map(|grey| [grey; 3]).collect();
        check(store(ColorType::Indexed, DEPTHS[3], &palette, &wide(1).collect::<Vec<_>>()), "all greys");
    }
}

/// Low bit depths with indices that are not also greys of the data set.
#[test]
fn low_bit_depths_are_indices() {
    for (kind, numbers, expected) in [
        (Kind::CamvidLists, [0u8, 1, 1, 0, 1], [0, 1, 1, 0, 1]),
        (Kind::CamvidLists, [0, 3, 2, 1, 3], [0, 3, 2, 1, 3]),
        (Kind::CamvidLists, [11, 3, 2, 1, 0], [VOID, 3, 2, 1, 0]),
        (Kind::CamvidOriginal, [1, 3, 2, 1, 3], [1, 3, 2, 1, 3]),
        (Kind::Cityscapes, [7, 8, 11, 7, 8], [0, 1, 2, 0, 1]),
        (Kind::Cityscapes, [0, 1, 0, 1, 1], [VOID; 5]),
    ] {
        let max = numbers.iter().max().unwrap();
        for depth in DEPTHS.into_iter().filter(|(_, bits)| usize::from(*max) < 1 << bits) {
            if kind == Kind::Cityscapes && max == &1 && depth.1 == 4 {
                continue;
            }
            let samples = numbers.map(u16::from);
            let file = store(ColorType::Grayscale, depth, &[], &samples);
            assert_eq!(mask_of(kind, &file), Ok(expected.to_vec()), "{kind:?} {numbers:?} {depth:?}");
        }
    }
}

#[test]
fn rejects_ambiguous_labels() {
    let grey = |value: u8| [value; 3];
    let indexed =
        |palette: &[[u8; 3]], indices: [u16; 5]| store(ColorType::Indexed, DEPTHS[3], palette, &indices);
    let cases = [
        // VOC's palette has colours of CamVid at other indices.
        (
            Kind::CamvidLists,
            indexed(&(0..12).map(voc).collect::<Vec<_>>(), [0, 0, 1, 3, 0]),
            "ambiguous label at row 0, column 0: ignored by its colour (colour [0, 0, 0]) or sky by its \
             index (label 0); store the labels as colours in an RGB image, or as indices in an 8-bit grey \
             image",
        ),
        // Training classes instead of ids, or colours stored as a palette.
        (
            Kind::Cityscapes,
            indexed(&[[128, 64, 128], [244, 35, 232], [70, 70, 70]], [0, 1, 2, 2, 2]),
            "ambiguous label at row 0, column 0: ignored by its index (label 0) or road by its colour \
             (colour [128, 64, 128]); store the labels as indices in an 8-bit grey image",
        ),
        // Black and white: classes 0 and 1 for display, or class 0 and ignored.
        (
            Kind::Shards,
            indexed(&[grey(0), grey(255)], [0, 0, 1, 1, 0]),
            "ambiguous label at row 0, column 2: 1 by its index (label 1) or ignored by its grey value \
             (label 255); store the labels as indices in an 8-bit grey image",
        ),
        (
            Kind::Shards,
            store(ColorType::Grayscale, DEPTHS[0], &[], &[0, 0, 1, 1, 0]),
            "ambiguous label at row 0, column 2: 1 by its index (label 1) or ignored by its grey value \
             (label 255); store the labels as indices in an 8-bit grey image",
        ),
        // Greys 0 and 17 with fewer bits, or ids 0 and 1.
        (
            Kind::Cityscapes,
            store(ColorType::Grayscale, DEPTHS[2], &[], &[0, 0, 1, 1, 0]),
            "ambiguous label at row 0, column 2: ignored by its index (label 1) or pole by its grey value \
             (label 17); store the labels as indices in an 8-bit grey image",
        ),
    ];
    for (kind, file, expected) in cases {
        let message = mask_of(kind, &file).unwrap_err();
        assert!(message.contains(expected), "{kind:?}: {message}");
    }
    // Cityscapes' own palette agrees with the indices, even if several share a colour.
    let mut palette = vec![grey(0); 34];
    (palette[7], palette[17], palette[18], palette[26]) = ([128, 64, 128], [153; 3], [153; 3], [0, 0, 142]);
    let file = indexed(&palette, [7, 17, 18, 26, 4]);
    assert_eq!(mask_of(Kind::Cityscapes, &file), Ok(vec![0, 5, VOID, 13, VOID]));
}

#[test]
fn reports_the_position_of_unknown_labels() {
    for (kind, file, expected) in [
        (
            Kind::CamvidOriginal,
            store(ColorType::Indexed, DEPTHS[3], &[[1, 2, 3]; 20], &[19, 19, 19, 19, 19]),
            "unknown label colour [1, 2, 3] at row 0, column 0",
        ),
        (
            Kind::Cityscapes,
            store(ColorType::Indexed, DEPTHS[3], &[[7; 3], [99; 3]], &[0, 1, 0, 0, 0]),
            "label 99 at row 0, column 1 is out of range; labels are ids 0 to 33, and 255 for ignored",
        ),
        (
            Kind::Cityscapes,
            store(ColorType::Rgb, DEPTHS[3], &[], &[[7, 7, 7], [7, 7, 8], [7; 3], [7; 3], [7; 3]].concat()),
            "colour image, expected a grey or palette image with labels ids 0 to 33, and 255 for ignored",
        ),
        (Kind::Shards, store(ColorType::Rgb, DEPTHS[3], &[], &[1, 2, 3].repeat(5)), "mask: colour image"),
        (
            Kind::Cityscapes,
            store(ColorType::Rgb, DEPTHS[4], &[], &[1; 15]),
            "PNG with 16 bits per channel, expected 8 or fewer",
        ),
    ] {
        let message = mask_of(kind, &file).unwrap_err();
        assert!(message.contains(expected), "{kind:?}: {message}");
    }
    for kind in KINDS {
        let file = store(ColorType::Grayscale, DEPTHS[3], &[], &[200; 5]);
        let message = mask_of(kind, &file).unwrap_err();
        assert!(message.contains("200"), "{kind:?}: {message}");
    }
}
