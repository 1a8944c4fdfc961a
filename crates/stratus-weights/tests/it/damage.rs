//! Damaged and hostile files: an answer or an error, never a panic, never memory beyond the file's own size.

use crate::common::{bytes, one_tensor, ramp};
use proptest::prelude::*;
use stratus_testing::allocator::largest_request;
use stratus_testing::damage;
use stratus_weights::WeightsFile;

const FILES: [&str; 8] = [
    "small.pth",
    "types.pth",
    "types_protocol4.pth",
    "nested.pth",
    "zip64.pth",
    "malicious.pth",
    "small.safetensors",
    "types.safetensors",
];

/// Opens a file and reads all it can; whatever it holds, this returns.
fn exercise(bytes: Vec<u8>) {
    if let Ok(file) = WeightsFile::from_bytes("damaged", bytes) {
        for tensor in file.tensors() {
            if let Ok(values) = file.read(tensor) {
                assert_eq!(values.len(), tensor.elements());
            }
            let _ = file.read_i64(tensor);
        }
    }
    // The files have 5 kB; the largest buffer is the one for an entry of the archive's directory.
    let largest = largest_request();
    assert!(largest < 1 << 20, "{largest} bytes were asked for at once");
}

#[test]
fn a_file_cut_short_is_an_error() {
    for name in FILES {
        let whole = bytes(name);
        for length in 0..whole.len() {
            let cut = WeightsFile::from_bytes("cut", whole[..length].to_vec());
            assert!(cut.is_err(), "{name} cut to {length} bytes was taken");
        }
    }
}

#[test]
fn every_byte_may_have_any_of_some_values() {
    for name in FILES {
        let whole = bytes(name);
        for damaged in damage::each_byte(&whole) {
            exercise(damaged);
        }
    }
}

#[test]
fn headers_that_lie_are_refused() {
    let safetensors = |length: u64, header: &str| {
        let bytes = [&length.to_le_bytes()[..], header.as_bytes()].concat();
        exercise(bytes.clone());
        WeightsFile::from_bytes("f", bytes).unwrap_err().problem.to_string()
    };
    assert!(
        safetensors(u64::MAX, "{").starts_with("there are more than 33554432 bytes in the header: refused")
    );
    assert!(
        safetensors(1 << 20, "{").starts_with("the file is damaged: 1048576 bytes from byte 8 are wanted")
    );
    let huge = r#"{"a":{"dtype":"F32","shape":[4611686018427387904,8],"data_offsets":[0,4]}}"#;
    assert!(safetensors(huge.len() as u64, huge).starts_with("the file is damaged: the header is not valid"));
    let more = r#"{"a":{"dtype":"F32","shape":[9],"data_offsets":[0,36]}}"#;
    assert!(
        safetensors(more.len() as u64, more).starts_with("the file is damaged: its header tells of 99 bytes")
    );
    let deep = "{\"a\":".to_string() + &"[".repeat(100_000);
    assert!(
        safetensors(deep.len() as u64, &deep).starts_with("the file is damaged: the header is not valid")
    );
}

#[test]
fn storages_that_lie_are_refused() {
    let problem = |elements, offset, shape: &[i64], strides: &[i64]| {
        let file = one_tensor(&ramp(6), elements, offset, shape, strides);
        WeightsFile::from_bytes("f", file).unwrap_err().problem.to_string()
    };
    assert!(
        problem(1 << 40, 0, &[6], &[1])
            .starts_with("tensor t: its storage has 24 bytes for 1099511627776 elements")
    );
    assert!(problem(i64::MAX, 0, &[6], &[1]).starts_with("tensor t: its storage has 24 bytes for"));
    for (offset, shape, strides) in [
        (0, &[7][..], &[1][..]),
        (1, &[6], &[1]),
        (0, &[1 << 40], &[0]),
        (0, &[2, 3], &[4, 1]),
        (0, &[2, 3], &[i64::MAX, 1]),
        (0, &[i64::MAX, i64::MAX], &[0, 0]),
        (0, &[2], &[1, 1]),
        (-1, &[2], &[1]),
        (7, &[0], &[1]),
    ] {
        let found = problem(6, offset, shape, strides);
        assert!(found.contains("that is not within its storage"), "{offset} {shape:?} {strides:?}: {found}");
    }
    assert!(problem(6, 0, &[-2], &[1]).contains("has a shape of no numbers"));
    assert!(problem(6, 0, &[1; 17], &[1; 17]).starts_with("there are more than 16 extents of a tensor"));
}

fn files() -> Vec<Vec<u8>> {
    FILES.map(bytes).to_vec()
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 3000,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn several_bytes_may_have_any_value(damaged in damage::several_bytes(files())) {
        exercise(damaged);
    }

    #[test]
    fn pieces_may_move(damaged in damage::moved_piece(files())) {
        exercise(damaged);
    }

    #[test]
    fn a_view_gives_the_elements_that_its_strides_name(
        storage in 0..40usize,
        offset in 0..12i64,
        view in prop::collection::vec((0..5i64, 0..9i64), 0..4),
    ) {
        let (shape, strides): (Vec<i64>, Vec<i64>) = view.into_iter().unzip();
        let values = ramp(storage);
        let bytes = one_tensor(&values, storage as i64, offset, &shape, &strides);
        // All indices, row-major.
        let mut places = vec![offset];
        for (&extent, &stride) in shape.iter().zip(&strides) {
            places = places.iter().flat_map(|place| (0..extent).map(move |i| place + i * stride)).collect();
        }
        let inside = places.len() <= storage
            && offset <= storage as i64
            && places.iter().all(|&place| place < storage as i64);
        match WeightsFile::from_bytes("f", bytes) {
            Ok(file) => {
                prop_assert!(inside);
                let expected: Vec<f32> = places.iter().map(|&place| values[place as usize]).collect();
                prop_assert_eq!(file.read(&file.tensors()[0]).unwrap(), expected);
            }
            Err(error) => prop_assert!(!inside, "{}", error),
        }
    }
}
