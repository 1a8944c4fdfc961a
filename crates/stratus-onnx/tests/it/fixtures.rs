//! Models of other programs, created by `scripts/fixtures/onnx_models.py`: their layers, and outputs compared
//! with onnxruntime.

use crate::common::{BATCH, logits, relative_difference};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use stratus_graph::ops::{AvgPool2d, Conv2d, ConvTranspose2d, Dropout, GroupNorm, Resize, ResizeTo, Scale};
use stratus_graph::{Graph, Op, Operation, layer_file};
use stratus_onnx::{ImportOptions, ImportedNetwork, Model};

#[derive(serde::Deserialize)]
struct Expected {
    input: Vec<usize>,
    logits: Vec<f32>,
}

fn path(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(name)
}

fn import(name: &str) -> ImportedNetwork {
    let options = ImportOptions { name: name.to_owned(), ..Default::default() };
    Model::open(path(&format!("{name}.onnx")))
        .unwrap()
        .import(&options)
        .unwrap_or_else(|error| panic!("{error}"))
}

/// The images, by the formula of the script.
fn images(graph: &Graph) -> Vec<f32> {
    let count = BATCH * graph.input_shape().elements();
    (0..count).map(|i| ((i * 7919 % 2003) as f64 / 1001.5 - 1.0) as f32).collect()
}

fn layers(graph: &Graph) -> Vec<String> {
    graph.nodes.iter().map(|node| format!("{} {}", node.name, node.op.kind())).collect()
}

fn op<'a>(graph: &'a Graph, name: &str) -> &'a Op {
    &graph.nodes.iter().find(|node| node.name == name).unwrap_or_else(|| panic!("{:?}", layers(graph))).op
}

#[test]
fn outputs_match_onnxruntime() {
    let text = std::fs::read_to_string(path("expected.json")).unwrap();
    let expected: BTreeMap<String, Expected> = serde_json::from_str(&text).unwrap();
    assert_eq!(expected.len(), 14);
    for (name, Expected { input, logits: reference }) in expected {
        let imported = import(&name);
        let channels_last = name == "tensorflow";
        let mut images = images(&imported.graph);
        let mut shape = imported.graph.input_shape().0.clone();
        if channels_last {
            // The formula gives images in the order of the file, which is channels-last.
            let [c, h, w] = shape[..] else { panic!("{shape:?}") };
            let pixels = h * w;
            let from = |i: usize| i / (c * pixels) * c * pixels + i % pixels * c + i / pixels % c;
            images = (0..images.len()).map(|i| images[from(i)]).collect();
            shape.rotate_left(1);
        }
        assert_eq!(shape, input, "{name}");
        let found = logits(&imported.graph, &imported.weights, &images);
        let difference = relative_difference(&found, &reference);
        assert!(difference < 2e-6, "{name} is off by {difference}");
        let written = layer_file::write(&imported.graph).unwrap();
        assert_eq!(layer_file::parse(&written).unwrap(), imported.graph, "{name}");
    }
}

#[test]
fn names_layers_like_pytorch() {
    let training = import("torchscript_training").graph;
    assert_eq!(
        layers(&training),
        [
            "conv1 conv2d",
            "bn1 batch_norm2d",
            "relu relu",
            "maxpool max_pool2d",
            "layer1.0.conv1 conv2d",
            "layer1.0.bn1 batch_norm2d",
            "layer1.0.relu relu",
            "layer1.0.conv2 conv2d",
            "layer1.0.bn2 batch_norm2d",
            "layer1.0.Add add",
            "layer1.0.relu_1 relu",
            "avgpool avg_pool2d",
            "Reshape flatten",
            "dropout dropout",
            "fc linear",
        ]
    );
    assert_eq!(op(&training, "bn1").attributes(), "epsilon 0.001 momentum 0.01");
    assert_eq!(*op(&training, "dropout"), Dropout { p: 0.3 }.into());
    assert_eq!(*op(&training, "avgpool"), AvgPool2d::new(2, 2, 0).into());
    assert_eq!(op(&training, "maxpool").attributes(), "3x3 stride 2x2 padding 1x1 ceil");
    // Folded batch norms become biases.
    for name in ["torchscript", "dynamo"] {
        let graph = import(name).graph;
        assert_eq!(*op(&graph, "conv1"), Conv2d { bias: true, ..Conv2d::new(2, 4, 3, 2, 1) }.into());
        let keys: Vec<&str> = graph.parameters.iter().map(|parameter| parameter.name.as_str()).collect();
        assert!(keys.contains(&"layer1.0.conv2.weight") && keys.contains(&"fc.bias"), "{keys:?}");
        assert!(graph.nodes.iter().all(|node| !matches!(node.op, Op::BatchNorm2d(_))), "{name}");
    }
}

/// PyTorch exports a group norm as several nodes, without weights as factors of 1 and terms of 0.
#[test]
fn imports_norms_of_pytorch() {
    let norm = |groups| GroupNorm::new(4, groups);
    let plain = |groups| GroupNorm { affine: false, ..norm(groups) };
    let third = GroupNorm { epsilon: 1e-3, ..plain(4) };
    let named = [norm(2), third, norm(1), plain(4), norm(4)];
    let graph = import("torchscript_norms").graph;
    for (number, norm) in (1..).zip(named) {
        assert_eq!(*op(&graph, &format!("norm{number}")), norm.into());
    }
    // This exporter writes factors and terms for every channel of the second norm too.
    let graph = import("dynamo_norms").graph;
    let found: Vec<&Op> =
        graph.nodes.iter().map(|node| &node.op).filter(|op| matches!(op, Op::GroupNorm(_))).collect();
    let affine = |op: &&Op| matches!(op, Op::GroupNorm(norm) if norm.affine);
    assert_eq!((found.len(), found.iter().copied().filter(affine).count()), (5, 4), "{found:?}");
}

/// Scales stay scales. If the size is computed from the shape of another feature map, that is the second
/// input.
#[test]
fn imports_resizes_of_pytorch() {
    let scaled = Resize { to: ResizeTo::Scale([1.5, 2.5]), align_corners: false, nearest: false };
    let corners = Resize { align_corners: true, ..Resize::to_size([7, 5]) };
    for (name, whole) in
        [("torchscript_resized", Resize::LIKE), ("dynamo_resized", Resize::to_size([10, 13]))]
    {
        let graph = import(name).graph;
        let resizes = graph.nodes.iter().filter(|node| matches!(node.op, Op::Resize(_)));
        let found: Vec<(&Op, usize)> = resizes.map(|node| (&node.op, node.inputs.len())).collect();
        let inputs = if whole == Resize::LIKE { 2 } else { 1 };
        let expected =
            [(scaled.into(), 1), (corners.into(), 1), (whole.into(), inputs), (whole.into(), inputs)];
        assert_eq!(found, expected.each_ref().map(|(op, inputs)| (op, *inputs)), "{name}");
    }
    assert_eq!(*op(&import("torchscript_resized").graph, "up"), scaled.into());
}

#[test]
fn imports_transposed_convolutions_of_pytorch() {
    let graph = import("torchscript_decoder").graph;
    let up1 = ConvTranspose2d { bias: true, ..ConvTranspose2d::new(6, 4, 3, 2, 1, 1) };
    assert_eq!(*op(&graph, "up1"), up1.into());
    let up2 = ConvTranspose2d {
        kernel: [3, 2],
        stride: [2, 3],
        groups: 2,
        ..ConvTranspose2d::new(4, 6, 3, 2, 0, 0)
    };
    assert_eq!(*op(&graph, "up2"), up2.into());
}

#[test]
fn imports_models_of_tensorflow() {
    let ImportedNetwork { graph, notes, .. } = import("tensorflow");
    assert_eq!(
        layers(&graph),
        [
            "net.conv1.Conv2D conv2d",
            "net.relu1 relu6",
            "net.pool1 max_pool2d",
            "net.depthwise conv2d",
            "net.relu2 relu",
            "flatten.Reshape flatten",
            "net.dense linear",
        ]
    );
    let conv =
        Conv2d { padding_before: [0, 1], padding_after: [1, 2], bias: true, ..Conv2d::new(2, 4, 3, 2, 0) };
    assert_eq!(*op(&graph, "net.conv1.Conv2D"), conv.into());
    assert_eq!(notes, ["dropped the last node, Softmax `softmax`: the loss includes the softmax"]);
}

#[test]
fn imports_products_with_a_scalar_as_scale() {
    let ImportedNetwork { graph, .. } = import("scaled");
    for (name, factor) in [("residual", 0.17), ("halved", 0.5), ("cooled", 0.125)] {
        assert_eq!(*op(&graph, name), Scale { factor }.into(), "{name}");
    }
}

#[test]
fn lists_all_unsupported_nodes() {
    let error =
        Model::open(path("refused.onnx")).unwrap().import(&ImportOptions::default()).unwrap_err().to_string();
    let (head, nodes) = error.split_once('\n').unwrap();
    assert!(head.ends_with("refused.onnx: 4 nodes cannot be imported:"), "{error}");
    assert_eq!(
        nodes,
        "Softsign `act`: unsupported operator: no layer computes this function\n\
         Conv `three_d`: its weight has 3 dimensions, expected 4\n\
         com.example.Swish `custom`: unsupported domain, only ai.onnx\n\
         Tan `e`: unsupported operator: no layer computes this function\n\
         import the layers before them with --until NODE: `uneven`, `conv`, `normalise`"
    );
}

#[test]
fn rejects_external_weights_of_a_model_in_memory() {
    let bytes = std::fs::read(path("dynamo.onnx")).unwrap();
    let message =
        Model::from_bytes("m.onnx", bytes).import(&ImportOptions::default()).unwrap_err().to_string();
    assert!(
        message.contains("are in \"dynamo.onnx.data\", which is not a file in the model's folder"),
        "{message}"
    );
}
