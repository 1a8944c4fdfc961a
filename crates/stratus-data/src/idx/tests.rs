use std::io::Write;

use flate2::{Compression, write::GzEncoder};
use proptest::prelude::*;

use super::*;

const IMAGES: ExpectedFormat = ExpectedFormat { element: IdxElement::U8, dimensions: 3 };

fn image_file(dimensions: &[usize]) -> Vec<u8> {
    let mut bytes = header(IdxElement::U8, dimensions);
    bytes.extend((0..dimensions.iter().product::<usize>()).map(|i| (i * 7) as u8));
    bytes
}

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

fn parse_images(bytes: &[u8]) -> Result<Idx, IdxError> {
    parse(bytes, Path::new("images"), IMAGES)
}

#[test]
fn reads_plain_and_gzipped_files_alike() {
    let file = image_file(&[3, 2, 4]);
    let plain = parse_images(&file).unwrap();
    assert_eq!(plain.dimensions, [3, 2, 4]);
    assert_eq!(plain.data, file[16..]);
    assert_eq!(plain.sha256(), sha256_hex([file.as_slice()]));
    assert_eq!(parse_images(&gzip(&file)).unwrap(), plain);
    // A gzip file may consist of several members (RFC 1952).
    let halves = [gzip(&file[..11]), gzip(&file[11..])].concat();
    assert_eq!(parse_images(&halves).unwrap(), plain);
}

#[test]
fn accepts_zero_images() {
    assert_eq!(parse_images(&image_file(&[0, 28, 28])).unwrap().data.len(), 0);
}

/// Checks the message of every defect.
#[test]
fn reports_each_defect_by_its_own_error() {
    let file = image_file(&[3, 2, 4]);
    let with = |index: usize, value: u8| {
        let mut changed = file.clone();
        changed[index] = value;
        changed
    };
    let longer = [file.as_slice(), &[0]].concat();
    let mut bad_crc = gzip(&file);
    let crc = bad_crc.len() - 8;
    bad_crc[crc] ^= 1;
    let cases: Vec<(&str, Vec<u8>, &str)> = vec![
        ("empty", vec![], "images: truncated: 0 bytes unpacked, expected 4; fetch it again"),
        (
            "cut header",
            file[..9].to_vec(),
            "images: truncated: 9 bytes unpacked, expected 16; fetch it again",
        ),
        (
            "cut data",
            file[..39].to_vec(),
            "images: truncated: 39 bytes unpacked, expected 40; fetch it again",
        ),
        (
            "cut in gzip",
            gzip(&file[..39]),
            "images: truncated: 39 bytes unpacked, expected 40; fetch it again",
        ),
        (
            "longer",
            longer.clone(),
            "images: longer than the 40 bytes that its header declares; fetch it again",
        ),
        (
            "longer in gzip",
            gzip(&longer),
            "images: longer than the 40 bytes that its header declares; fetch it again",
        ),
        (
            "magic",
            with(0, 1),
            "images: not an idx file: begins with bytes [01, 00, 08, 03], expected 00 00 and an element \
             type; check the path",
        ),
        (
            "unknown type",
            with(2, 10),
            "images: not an idx file: begins with bytes [00, 00, 0a, 03], expected 00 00 and an element \
             type; check the path",
        ),
        (
            "other type",
            with(2, 0x0d),
            "images: holds 32-bit floats (0x0d), expected unsigned bytes (0x08); check that images and \
             labels are not swapped",
        ),
        (
            "dimensions",
            with(3, 1),
            "images: has 1 dimensions, expected 3; check that images and labels are not swapped",
        ),
        (
            "absurd size",
            header(IdxElement::U8, &[u32::MAX as usize; 3]),
            "images: the header declares [4294967295, 4294967295, 4294967295] × 1 bytes, but the maximum is \
             4 GiB; the file is damaged",
        ),
        (
            "declares 4 GB in 16 bytes",
            header(IdxElement::U8, &[60_000, 256, 256]),
            "images: truncated: 16 bytes unpacked, expected 3932160016; fetch it again",
        ),
    ];
    for (name, bytes, message) in cases {
        assert_eq!(parse_images(&bytes).unwrap_err().to_string(), message, "{name}");
    }
    let error = parse_images(&bad_crc).unwrap_err();
    assert!(matches!(error, IdxError::Corrupt { .. }), "{error}");
    let cut = gzip(&file);
    let error = parse_images(&cut[..cut.len() - 12]).unwrap_err();
    assert!(matches!(error, IdxError::Truncated { .. } | IdxError::Corrupt { .. }), "{error}");
}

/// A megabyte of zeros after a header that declares 40 bytes: nothing beyond the declared size is unpacked.
#[test]
fn stops_a_gzip_bomb_at_the_declared_size() {
    let bomb = gzip(&[image_file(&[3, 2, 4]), vec![0; 1 << 20]].concat());
    assert!(matches!(parse_images(&bomb), Err(IdxError::TrailingBytes { expected: 40, .. })));
}

#[test]
fn rejects_directories_and_missing_files() {
    let directory = tempfile::tempdir().unwrap();
    assert!(matches!(read(directory.path(), IMAGES), Err(IdxError::Read { .. })));
    assert!(matches!(read(&directory.path().join("none"), IMAGES), Err(IdxError::Read { .. })));
}

/// Accepted bytes have exactly the declared size.
fn check_any(bytes: &[u8]) {
    for element in IdxElement::ALL {
        for dimensions in 0..5 {
            if let Ok(idx) = parse(bytes, Path::new("any"), ExpectedFormat { element, dimensions }) {
                assert_eq!(idx.data.len(), idx.dimensions.iter().product::<usize>() * element.bytes());
            }
        }
    }
}

proptest! {
    #[test]
    fn random_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..64)) {
        check_any(&bytes);
        check_any(&[&GZIP_MAGIC, bytes.as_slice()].concat());
        check_any(&gzip(&bytes));
        check_any(&[&[0, 0, 8, 3], bytes.as_slice()].concat());
    }

    #[test]
    fn mutated_files_never_panic(
        changes in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
        keep in any::<prop::sample::Index>(),
        packed: bool,
    ) {
        let mut bytes = image_file(&[3, 2, 4]);
        if packed {
            bytes = gzip(&bytes);
        }
        for (index, value) in changes {
            let index = index.index(bytes.len());
            bytes[index] = value;
        }
        check_any(&bytes);
        check_any(&bytes[..keep.index(bytes.len())]);
    }

    #[test]
    fn reads_back_written_files(dimensions in proptest::collection::vec(0usize..6, 3), packed: bool) {
        let file = image_file(&dimensions);
        let read = parse_images(&if packed { gzip(&file) } else { file.clone() }).unwrap();
        prop_assert_eq!(read.dimensions, dimensions);
        prop_assert_eq!(&read.data, &file[16..]);
    }
}

#[test]
fn refuses_gzip_that_declares_content_out_of_proportion() {
    let bomb = gzip(&[header(IdxElement::U8, &[60_000, 60, 60]), vec![0; 216_000_000]].concat());
    let error = parse_images(&bomb).unwrap_err();
    let IdxError::Disproportionate { declared: 216_000_000, found, .. } = error else { panic!("{error}") };
    assert_eq!(found, bomb.len() as u64);
}

/// The beginning of a large file is as much out of proportion, but its cause is another one.
#[test]
fn a_truncated_file_that_declares_much_is_named_truncated() {
    let content = [header(IdxElement::U8, &[60_000, 60, 60]), vec![0; 2_000_000]].concat();
    let whole = gzip(&content);
    for (file, least) in [(&whole[..], content.len() as u64), (&whole[..whole.len() / 2], 900_000)] {
        let error = parse_images(file).unwrap_err();
        let IdxError::Truncated { expected: 216_000_016, found, .. } = error else { panic!("{error}") };
        assert!((least..=content.len() as u64).contains(&found), "{found}");
    }
}
