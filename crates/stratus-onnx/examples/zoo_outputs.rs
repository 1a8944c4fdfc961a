//! Writes every network of the zoo at a small size, whole and pruned at random by 30 %, and those with all
//! other operations, into a folder: its layer file, weights, images, and the outputs of the reference
//! backend. `scripts/check-onnx.sh` compares these with the outputs of onnxruntime for the exported networks.
//!
//!     cargo run -p stratus-onnx --example zoo_outputs FOLDER

#![allow(clippy::unwrap_used, reason = "an example fails by panicking")]

#[allow(dead_code, reason = "the tests use all of it")]
#[path = "../tests/it/common/mod.rs"]
mod common;

use common::{BATCH, CASES, images, logits, network, pruned, refs, weights};
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::path::Path;
use stratus_graph::ops::{Activation, Conv2d, Flatten, Prelu, example_networks};
use stratus_graph::{Graph, GraphBuilder, Shape, layer_file};
use stratus_weights::{NetworkMetadata, TensorRef, write_safetensors};

/// A network of the operations that no network of the zoo has, and that declare no examples.
const OTHERS: &str = "name = 'others'
input = [2, 7, 6]
[[layer]]
name = 'conv'
op = 'conv2d'
out_channels = 5
kernel = 3
[[layer]]
name = 'up'
op = 'conv_transpose2d'
out_channels = 4
kernel = [3, 2]
stride = 2
padding = [1, 0]
output_padding = [1, 0]
[[layer]]
name = 'spatial'
op = 'dropout2d'
[[layer]]
name = 'grouped'
op = 'conv_transpose2d'
out_channels = 6
kernel = 3
stride = [1, 2]
padding = 1
groups = 2
[[layer]]
name = 'gelu'
op = 'gelu'
[[layer]]
name = 'silu'
op = 'silu'
[[layer]]
name = 'swish'
op = 'hard_swish'
[[layer]]
name = 'squeeze'
op = 'adaptive_avg_pool2d'
output = 1
[[layer]]
name = 'gate'
op = 'hard_sigmoid'
[[layer]]
name = 'excited'
op = 'channel_scale'
inputs = ['swish', 'gate']
[[layer]]
name = 'shuffle'
op = 'channel_shuffle'
groups = 2
[[layer]]
name = 'part'
op = 'channel_slice'
first = 1
channels = 3
[[layer]]
name = 'joined'
op = 'concat'
inputs = ['part', 'shuffle']
[[layer]]
name = 'norm'
op = 'layer_norm2d'
[[layer]]
name = 'wide'
op = 'pointwise_linear'
out_channels = 9
bias = false
[[layer]]
name = 'scaled'
op = 'layer_scale'
[[layer]]
name = 'depth'
op = 'stochastic_depth'
[[layer]]
name = 'down'
op = 'resize'
scale = [0.7, 1.5]
[[layer]]
name = 'corners'
op = 'resize'
size = [5, 3]
align_corners = true
[[layer]]
name = 'back'
op = 'resize'
inputs = ['corners', 'input']
[[layer]]
name = 'copied'
op = 'resize'
scale = 2
nearest = true
[[layer]]
name = 'averaged'
op = 'avg_pool2d'
kernel = 2
padding_after = 1
count_include_pad = false
[[layer]]
name = 'flatten'
op = 'flatten'
[[layer]]
name = 'fc1'
op = 'linear'
out_features = 9
[[layer]]
name = 'sigmoid'
op = 'sigmoid'
[[layer]]
name = 'gelu1'
op = 'gelu'
[[layer]]
name = 'fc2'
op = 'linear'
out_features = 4
";

/// A network with every activation and its attributes at other values than the defaults.
fn activations() -> Graph {
    let (mut builder, images) = GraphBuilder::new("activations", Shape::image(3, 5, 4));
    let mut x = images;
    for (number, activation) in Activation::examples().into_iter().enumerate() {
        x = builder.add(&format!("conv{number}"), Conv2d::new(3, 3, 1, 1, 0), &[x]).unwrap();
        x = builder.add(&format!("{}{number}", activation.name()), activation, &[x]).unwrap();
    }
    x = builder.add("slope", Prelu { slopes: 1 }, &[x]).unwrap();
    x = builder.add("conv", Conv2d::new(3, 3, 1, 1, 0), &[x]).unwrap();
    x = builder.add("slopes", Prelu { slopes: 3 }, &[x]).unwrap();
    x = builder.add("flatten", Flatten, &[x]).unwrap();
    builder.finish(x).unwrap()
}

fn main() {
    let folder = std::env::args().nth(1).expect("the folder to write to");
    let folder = Path::new(&folder);
    fs::create_dir_all(folder).unwrap();
    let with_weights = |graph: Graph| {
        let weights = weights(&graph);
        (graph, weights)
    };
    let zoo = CASES.iter().flat_map(|&(name, width, size)| {
        let (graph, weights) = with_weights(network(name, width, size));
        let mut pruned = pruned(&graph, &weights);
        pruned.0.name += "-pruned";
        [(graph, weights), pruned]
    });
    let others = [layer_file::parse(OTHERS).unwrap(), activations()];
    let others = others.into_iter().chain(example_networks().unwrap()).map(with_weights);
    for (graph, weights) in zoo.chain(others) {
        let [_, height, width] = graph.input_shape().as_image().unwrap();
        let file = |extension: &str| folder.join(format!("{}-{height}x{width}.{extension}", graph.name));
        let save = |extension: &str, tensors: &[TensorRef<'_>], metadata: &BTreeMap<String, String>| {
            write_safetensors(&mut File::create(file(extension)).unwrap(), tensors, metadata).unwrap();
        };
        fs::write(file("toml"), layer_file::write(&graph).unwrap()).unwrap();
        let images = images(&graph);
        save("safetensors", &refs(&weights), &metadata(&graph).entries());
        let logits = logits(&graph, &weights, &images);
        let batch_shape = |sample: &Shape| [BATCH].iter().chain(&sample.0).copied().collect::<Vec<usize>>();
        let (input, output) = (batch_shape(graph.input_shape()), batch_shape(graph.shape(graph.output)));
        let tensors = [TensorRef::f32("input", &input, &images), TensorRef::f32("output", &output, &logits)];
        save("expected", &tensors, &BTreeMap::new());
    }
}

/// Metadata for a network.
fn metadata(graph: &Graph) -> NetworkMetadata {
    let (input, classes) = (graph.input_shape(), graph.shape(graph.output).0[0]);
    NetworkMetadata {
        class_names: (0..classes).map(|class| format!("class {class}, \"é\"")).collect(),
        mean: (0..input.0[0]).map(|channel| 0.1 + channel as f64 / 7.0).collect(),
        std: vec![0.225; input.0[0]],
        input_shape: input.0.clone(),
        ..NetworkMetadata::default()
    }
}
