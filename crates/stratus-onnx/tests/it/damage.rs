//! Damaged and hostile files: a network or an error, never a panic, never memory far beyond the file's own
//! size.

use proptest::prelude::*;
use std::path::Path;
use stratus_onnx::{Model, Options};
use stratus_testing::allocator::largest_request;
use stratus_testing::damage;

const FILES: [&str; 7] =
    ["torchscript", "torchscript_mobile", "torchscript_training", "tensorflow", "parts", "scaled", "refused"];

fn bytes(name: &str) -> Vec<u8> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/fixtures/{name}.onnx"));
    std::fs::read(path).unwrap()
}

/// Imports a file; whatever it holds, this returns, and what is a network is one.
fn exercise(bytes: Vec<u8>) -> bool {
    let imported = Model::from_bytes("damaged", bytes).import(&Options::default());
    if let Ok(imported) = &imported {
        imported.graph.verify().unwrap();
        assert_eq!(imported.weights.len(), imported.graph.parameters.len());
        for (tensor, parameter) in imported.weights.iter().zip(&imported.graph.parameters) {
            assert_eq!((&tensor.name, &tensor.shape), (&parameter.name, &parameter.shape));
        }
    }
    // The files have 20 kB at most.
    let largest = largest_request();
    assert!(largest < 1 << 20, "{largest} bytes were asked for at once");
    imported.is_ok()
}

#[test]
fn a_file_cut_short_is_answered() {
    for name in FILES {
        let whole = bytes(name);
        assert_eq!(exercise(whole.clone()), name != "refused", "{name}");
        // A file that ends between two fields is one that says less: it may still be a network.
        let taken = (0..whole.len()).filter(|&length| exercise(whole[..length].to_vec())).count();
        assert!(taken <= 3, "{name}: {taken} cut files were taken");
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
}
