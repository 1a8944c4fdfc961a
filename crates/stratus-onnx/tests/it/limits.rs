//! Models over the limits, and other files.

use stratus_onnx::{ImportOptions, Model};

/// A message with one field of bytes.
pub fn field(number: u8, content: &[u8]) -> Vec<u8> {
    let mut bytes = vec![number << 3 | 2];
    let mut length = content.len();
    while length >= 0x80 {
        bytes.push(length as u8 | 0x80);
        length >>= 7;
    }
    bytes.push(length as u8);
    bytes.extend(content);
    bytes
}

pub fn model(graph: &[u8]) -> Vec<u8> {
    model_of(17, graph)
}

/// A model of an operator set.
pub fn model_of(opset: u8, graph: &[u8]) -> Vec<u8> {
    [field(8, &[0x10, opset]), field(7, graph)].concat()
}

pub fn message(bytes: Vec<u8>) -> String {
    Model::from_bytes("f", bytes).import(&ImportOptions::default()).unwrap_err().problem.to_string()
}

#[test]
fn rejects_models_over_the_limits() {
    assert_eq!(message(model(&[0x0a, 0].repeat(100_001))), "more than 100000 nodes");
    assert_eq!(message(model(&[0x2a, 0].repeat(100_001))), "more than 100000 initialisers");
    let node = field(1, &[0x2a, 0].repeat(65));
    assert_eq!(message(model(&node)), "more than 64 attributes of a node");
    let tensor = field(5, &[8, 1].repeat(17));
    assert_eq!(message(model(&tensor)), "more than 16 dimensions of a tensor");
    // Nested messages are far deeper than any stack.
    let mut deep = Vec::new();
    for _ in 0..2_000 {
        deep = field(11, &field(5, &field(1, &deep)));
    }
    assert!(!message(model(&deep)).is_empty());
}

#[test]
fn rejects_other_files_and_operator_sets() {
    for other in [&b""[..], b"PK\x03\x04 a zip archive", b"{\"json\": true}", b"<html>", &[0; 100]] {
        let found = message(other.to_vec());
        assert!(found.starts_with("not an ONNX model, or damaged: "), "{found}");
    }
    assert!(message(model(b"")).starts_with("expected one output, found 0"));
    let old = [field(8, &[0x10, 6]), field(7, b"")].concat();
    assert!(
        message(old).starts_with("unsupported operator set 6; export it with an operator set from 7 to 27")
    );
}

/// A linear layer with the weight `w`.
fn linear(input: &str, output: &str) -> Vec<u8> {
    let mut node = field(1, input.as_bytes());
    node.extend([field(1, b"w"), field(2, output.as_bytes()), field(4, b"Gemm")].concat());
    field(1, &node)
}

/// A model of nodes that read images `x` of `channels` channels, with the weight `w` and the output `y`.
fn vectors(nodes: &[u8], channels: u8, weight: &[u8], dimensions: [u8; 2]) -> Vec<u8> {
    let tensor =
        [&[8, dimensions[0], 8, dimensions[1], 16, 1][..], &field(8, b"w"), &field(9, weight)].concat();
    let shape: Vec<u8> = [1, channels, 1, 1].iter().flat_map(|&dim| field(1, &[8, dim])).collect();
    let kind = field(2, &field(1, &[&[8, 1][..], &field(2, &shape)].concat()));
    let images = field(11, &[field(1, b"x"), kind].concat());
    model(&[nodes, &field(5, &tensor), &images, &field(12, &field(1, b"y"))].concat())
}

fn flatten() -> Vec<u8> {
    field(1, &[field(1, b"x"), field(2, b"n0"), field(4, b"Flatten")].concat())
}

#[test]
fn limits_the_copies_of_shared_weights() {
    let mut nodes = flatten();
    for layer in 0..9_000 {
        let output = if layer == 8_999 { "y".to_owned() } else { format!("n{}", layer + 1) };
        nodes.extend(linear(&format!("n{layer}"), &output));
    }
    let small = Model::from_bytes("f", vectors(&nodes, 4, &[0; 64], [4, 4]));
    let small = small.import(&ImportOptions::default()).unwrap();
    assert_eq!(small.graph.nodes.len(), 9_001);
    assert_eq!(small.notes, ["copied a weight that several layers share: each layer has its own copy"]);
    let large = Model::from_bytes("f", vectors(&nodes, 16, &[0; 1024], [16, 16]));
    let limited = ImportOptions { max_bytes: Some(1 << 20), ..ImportOptions::default() };
    let found = large.import(&limited).unwrap_err().problem.to_string();
    let expected = "`w` needs 1 KiB of memory; 1 MiB of 1 MiB are in use; a weight is shared by several \
                    layers, each of which has a copy; import it on a machine with more free memory";
    assert!(found.starts_with(expected), "{found}");
    // Every weight of a file fits, also if several layers share numbers.
    large.import(&ImportOptions::default()).unwrap();
}

#[test]
fn rejects_empty_weights() {
    let nodes = [flatten(), linear("n0", "y")].concat();
    let found = message(vectors(&nodes, 4, &[], [4, 0]));
    assert!(found.contains("the weight [0, 4] is empty"), "{found}");
}
