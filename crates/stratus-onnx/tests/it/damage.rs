//! Damaged and hostile files, which must give a network or an error, but no panic and no large allocation.

use proptest::prelude::*;
use std::path::Path;
use stratus_onnx::{ImportOptions, Model};
use stratus_testing::allocator::largest_request;
use stratus_testing::damage;

const FILES: [&str; 7] =
    ["torchscript", "torchscript_mobile", "torchscript_training", "tensorflow", "parts", "scaled", "refused"];

fn bytes(name: &str) -> Vec<u8> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/fixtures/{name}.onnx"));
    std::fs::read(path).unwrap()
}

/// Imports a file and verifies the network if there is no error. Must return for any content.
fn exercise(bytes: Vec<u8>) -> bool {
    let imported = Model::from_bytes("damaged", bytes).import(&ImportOptions::default());
    if let Ok(imported) = &imported {
        imported.graph.verify().unwrap();
        assert_eq!(imported.weights.len(), imported.graph.parameters.len());
        for (tensor, parameter) in imported.weights.iter().zip(&imported.graph.parameters) {
            assert_eq!((&tensor.name, &tensor.shape), (&parameter.name, &parameter.shape));
        }
    }
    // The files have 20 kB at most.
    let largest = largest_request();
    assert!(largest < 1 << 20, "an allocation of {largest} bytes");
    imported.is_ok()
}

#[test]
fn survives_truncated_files() {
    for name in FILES {
        let whole = bytes(name);
        assert_eq!(exercise(whole.clone()), name != "refused", "{name}");
        // A file truncated between two fields may still be a network.
        let accepted = (0..whole.len()).filter(|&length| exercise(whole[..length].to_vec())).count();
        assert!(accepted <= 3, "{name}: {accepted} truncated files were accepted");
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
}
