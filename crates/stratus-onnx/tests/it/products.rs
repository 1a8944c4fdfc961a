//! Import of products of two layer outputs.

use crate::limits::{field, message, model};
use stratus_onnx::{ImportOptions, Model};

/// A model of nodes, `operator inputs -> output`, with images `x` of two channels and the output `y`.
fn file(nodes: &[&str]) -> Vec<u8> {
    let node = |node: &&str| {
        let (reads, output) = node.split_once(" -> ").unwrap();
        let (operator, inputs) = reads.split_once(' ').unwrap();
        let inputs: Vec<u8> = inputs.split(' ').flat_map(|input| field(1, input.as_bytes())).collect();
        let name = format!("/act_{output}/{operator}");
        let rest =
            [field(2, output.as_bytes()), field(3, name.as_bytes()), field(4, operator.as_bytes())].concat();
        field(1, &[inputs, rest].concat())
    };
    let shape: Vec<u8> = [1, 2, 3, 3].iter().flat_map(|&dim| field(1, &[8, dim])).collect();
    let kind = field(2, &field(1, &[&[8, 1][..], &field(2, &shape)].concat()));
    let images = field(11, &[field(1, b"x"), kind].concat());
    let nodes: Vec<u8> = nodes.iter().flat_map(node).collect();
    model(&[nodes, images, field(12, &field(1, b"y"))].concat())
}

/// The name, operation and inputs of each layer. Input 0 is the images.
fn layers(nodes: &[&str]) -> Vec<String> {
    let graph = Model::from_bytes("f", file(nodes)).import(&ImportOptions::default()).unwrap().graph;
    let index = |id| graph.nodes.iter().position(|node| node.output == id).map_or(0, |at| at + 1);
    let layer = |node: &stratus_graph::Node| {
        let inputs: Vec<usize> = node.inputs.iter().map(|&id| index(id)).collect();
        format!("{} {} {inputs:?}", node.name, stratus_graph::Operation::kind(&node.op))
    };
    graph.nodes.iter().map(layer).collect()
}

#[test]
fn imports_products_with_the_sigmoid_as_silu() {
    for product in ["Mul r s -> m", "Mul s r -> m"] {
        let found = layers(&["Relu x -> r", "Sigmoid r -> s", product, "Flatten m -> y"]);
        assert_eq!(found, ["act_r relu [0]", "act_s silu [1]", "act_y flatten [2]"]);
    }
    let found = layers(&["Sigmoid x -> s", "Flatten s -> y"]);
    assert_eq!(found, ["act_s sigmoid [0]", "act_y flatten [1]"]);
}

#[test]
fn imports_hard_swish_with_any_slope() {
    // With ONNX's default `alpha` of 0.2, the argument is 1.2 times that of hard swish.
    let found = layers(&["Relu x -> r", "HardSigmoid r -> s", "Mul r s -> m", "Flatten m -> y"]);
    let expected = [
        "act_r relu [0]",
        "act_m.Mul.scaled scale [1]",
        "act_m.Mul hard_swish [2]",
        "act_m.Mul.scaled_2 scale [3]",
        "act_y flatten [4]",
    ];
    assert_eq!(found, expected);
    let found = layers(&["HardSigmoid x -> s", "Flatten s -> y"]);
    assert_eq!(found, ["act_s hard_sigmoid [0]", "act_y flatten [1]"]);
    let found = layers(&["HardSwish x -> s", "Flatten s -> y"]);
    assert_eq!(found, ["act_s hard_swish [0]", "act_y flatten [1]"]);
}

#[test]
fn imports_products_with_channel_factors_as_channel_scale() {
    for product in ["Mul r s -> m", "Mul s r -> m"] {
        let found =
            layers(&["Relu x -> r", "GlobalAveragePool r -> p", "Sigmoid p -> s", product, "Flatten m -> y"]);
        let expected = [
            "act_r relu [0]",
            "act_p adaptive_avg_pool2d [1]",
            "act_s sigmoid [2]",
            "act_m.Mul channel_scale [1, 3]",
            "act_y flatten [4]",
        ];
        assert_eq!(found, expected);
    }
    // A vector would be broadcast along the columns of the feature map.
    let found =
        message(file(&["GlobalAveragePool x -> p", "Flatten p -> f", "Mul x f -> m", "Flatten m -> y"]));
    assert!(found.contains("unsupported product of 2x3x3 and 2"), "{found}");
}

#[test]
fn keeps_a_sigmoid_with_other_readers() {
    let found = layers(&["Sigmoid x -> s", "Mul x s -> m", "Add m s -> a", "Flatten a -> y"]);
    let expected = ["act_s sigmoid [0]", "act_m.Mul silu [0]", "act_a.Add add [2, 1]", "act_y flatten [3]"];
    assert_eq!(found, expected);
}

#[test]
fn rejects_other_products() {
    for nodes in [
        &["Relu x -> r", "Sigmoid x -> s", "Mul r s -> m", "Flatten m -> y"][..],
        &["Relu x -> r", "Mul x r -> m", "Flatten m -> y"],
        &["Relu x -> r", "Mul r r -> m", "Flatten m -> y"],
    ] {
        let found = message(file(nodes));
        assert!(found.contains("expected x·sigmoid(x) or a per-channel scale"), "{found}");
    }
}
