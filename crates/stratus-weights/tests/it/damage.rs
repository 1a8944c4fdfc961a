//! Damaged and hostile files, which must give a value or an error, but no panic and no large allocation.

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

/// Opens a file and reads all tensors. Must return for any content.
fn exercise(bytes: Vec<u8>) {
    if let Ok(file) = WeightsFile::from_bytes("damaged", bytes) {
        for tensor in file.tensors() {
            if let Ok(values) = file.read(tensor) {
                assert_eq!(values.len(), tensor.elements());
            }
            let _ = file.read_i64(tensor);
        }
    }
    // The files have 5 kB; the largest buffer is for an entry of the archive's directory.
    let largest = largest_request();
    assert!(largest < 1 << 20, "an allocation of {largest} bytes");
}

#[test]
fn rejects_truncated_files() {
    for name in FILES {
        let whole = bytes(name);
        for length in 0..whole.len() {
            let cut = WeightsFile::from_bytes("cut", whole[..length].to_vec());
            assert!(cut.is_err(), "{name} truncated to {length} bytes was accepted");
        }
    }
}

#[test]
fn survives_any_replaced_byte() {
    for name in FILES {
        let whole = bytes(name);
        for damaged in damage::each_byte(&whole) {
            exercise(damaged);
        }
    }
}

#[test]
fn rejects_inconsistent_headers() {
    let safetensors = |length: u64, header: &str| {
        let bytes = [&length.to_le_bytes()[..], header.as_bytes()].concat();
        exercise(bytes.clone());
        WeightsFile::from_bytes("f", bytes).unwrap_err().problem.to_string()
    };
    assert!(safetensors(u64::MAX, "{").starts_with("more than 4194304 bytes in the header; save only"));
    assert!(safetensors(1 << 20, "{").starts_with("the file is damaged: expected 1048576 bytes at byte 8"));
    let huge = r#"{"a":{"dtype":"F32","shape":[4611686018427387904,8],"data_offsets":[0,4]}}"#;
    assert!(safetensors(huge.len() as u64, huge).starts_with("the file is damaged: invalid header"));
    let more = r#"{"a":{"dtype":"F32","shape":[9],"data_offsets":[0,36]}}"#;
    assert!(
        safetensors(more.len() as u64, more)
            .starts_with("the file is damaged: expected 99 bytes by its header")
    );
    let deep = "{\"a\":".to_string() + &"[".repeat(100_000);
    assert!(safetensors(deep.len() as u64, &deep).starts_with("the file is damaged: invalid header"));
}

#[test]
fn rejects_inconsistent_storages() {
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
        assert!(found.contains("outside its storage"), "{offset} {shape:?} {strides:?}: {found}");
    }
    assert!(problem(6, 0, &[-2], &[1]).contains("has a shape with an invalid dimension"));
    assert!(problem(6, 0, &[1; 17], &[1; 17]).starts_with("more than 16 dimensions of a tensor"));
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
    fn survives_several_replaced_bytes(damaged in damage::replaced_bytes(files())) {
        exercise(damaged);
    }

    #[test]
    fn survives_moved_pieces(damaged in damage::with_moved_piece(files())) {
        exercise(damaged);
    }

    #[test]
    fn views_select_elements_by_stride(
        storage in 0..40usize,
        offset in 0..12i64,
        view in prop::collection::vec((0..5i64, 0..9i64), 0..4),
    ) {
        let (shape, strides): (Vec<i64>, Vec<i64>) = view.into_iter().unzip();
        let values = ramp(storage);
        let bytes = one_tensor(&values, storage as i64, offset, &shape, &strides);
        // The positions of all indices, row-major.
        let mut positions = vec![offset];
        for (&dim, &stride) in shape.iter().zip(&strides) {
            positions =
                positions.iter().flat_map(|position| (0..dim).map(move |i| position + i * stride)).collect();
        }
        let inside = positions.len() <= storage
            && offset <= storage as i64
            && positions.iter().all(|&position| position < storage as i64);
        match WeightsFile::from_bytes("f", bytes) {
            Ok(file) => {
                prop_assert!(inside);
                let expected: Vec<f32> =
                    positions.iter().map(|&position| values[position as usize]).collect();
                prop_assert_eq!(file.read(&file.tensors()[0]).unwrap(), expected);
            }
            Err(error) => prop_assert!(!inside, "{}", error),
        }
    }
}
