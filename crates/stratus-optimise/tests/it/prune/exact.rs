//! The removal of channels of zeros does not change the outputs.

use super::{check_exactness, zeros_stay, zoo_network};
use stratus_conformance::networks::random_network;
use stratus_graph::layer_file::parse;
use stratus_graph::ops::example_networks;
use stratus_optimise::prune::channel_groups;

/// Networks of the zoo, their widths and the sizes of their images: residual sums, groups, dense
/// concatenations, depthwise convolutions, squeeze-and-excitation, vectors, auxiliary outputs, pyramids,
/// down-samplers and transposed convolutions.
const NETWORKS: &[(&str, usize, [usize; 2])] = &[
    ("digits", 4, [28, 28]),
    ("alexnet", 8, [95, 127]),
    ("vgg11_bn", 4, [32, 32]),
    ("resnet18", 8, [32, 32]),
    ("resnet50", 8, [32, 32]),
    ("resnext50_32x4d", 16, [32, 32]),
    ("densenet121", 8, [32, 32]),
    ("squeezenet1_1", 8, [35, 40]),
    ("googlenet", 8, [65, 70]),
    ("mobilenet_v2", 8, [32, 32]),
    ("mobilenet_v3_small", 8, [32, 32]),
    ("efficientnet_b0", 8, [32, 32]),
    ("convnext_tiny", 8, [32, 32]),
    ("deeplabv3plus_resnet18", 8, [48, 35]),
    ("erfnet", 4, [33, 47]),
];

#[test]
fn networks_of_the_zoo_compute_the_same_without_channels_of_zeros() {
    for &(name, width, size) in NETWORKS {
        let graph = zoo_network(name, width, size);
        let (moved, count) = check_exactness(&graph, 3, |_| true);
        assert!(count > 10, "{name}: {count} units");
        // Otherwise the comparison shows nothing.
        assert!(moved > 1e-4, "{name}: outputs move by {moved}");
    }
}

/// The outputs of auxiliary heads, each instead of the network's.
#[test]
fn auxiliary_heads_compute_the_same_without_channels_of_zeros() {
    let graph = zoo_network("googlenet", 8, [65, 70]);
    assert_eq!(graph.auxiliary.len(), 2);
    for auxiliary in &graph.auxiliary {
        let mut head = graph.clone();
        head.output = auxiliary.output;
        head.auxiliary.clear();
        let (moved, count) = check_exactness(&head, 5, |_| true);
        assert!(moved > 1e-4 && count > 10, "{moved} {count}");
    }
}

/// A network of layers between a convolution to `channels` channels and a linear layer.
fn network(name: &str, channels: usize, layers: &str) -> String {
    format!(
        "name = '{name}'\ninput = [3, 6, 5]\n\
         [[layer]]\nname = 'first'\nop = 'conv2d'\nout_channels = {channels}\nkernel = 3\npadding = 1\n\
         {layers}\n\
         [[layer]]\nname = 'flatten'\nop = 'flatten'\n\
         [[layer]]\nname = 'last'\nop = 'linear'\nout_features = 5\n"
    )
}

/// Layers by their names, operations and attributes.
fn layers(rows: &[(&str, &str, &str)]) -> String {
    let layer = |(name, op, rest): &(&str, &str, &str)| {
        format!("[[layer]]\nname = '{name}'\nop = '{op}'\n{}\n", rest.replace("; ", "\n"))
    };
    rows.iter().map(layer).collect()
}

#[test]
fn small_networks_compute_the_same_without_channels_of_zeros() {
    let networks = [
        (
            "shuffled",
            12,
            layers(&[
                ("shuffle", "channel_shuffle", "groups = 2"),
                ("left", "channel_slice", "channels = 6; inputs = 'shuffle'"),
                ("right", "channel_slice", "first = 6; channels = 6; inputs = 'shuffle'"),
                ("expand", "conv2d", "out_channels = 8; kernel = 1"),
                ("depthwise", "conv2d", "out_channels = 8; kernel = 3; padding = 1; groups = 8"),
                ("norm", "batch_norm2d", ""),
                ("reduce", "conv2d", "out_channels = 6; kernel = 1"),
                ("join", "concat", "inputs = ['left', 'reduce']"),
                ("again", "channel_shuffle", "groups = 2"),
            ]),
        ),
        (
            "multiplied",
            6,
            layers(&[
                ("multiply", "conv2d", "out_channels = 18; kernel = 3; padding = 1; groups = 6"),
                ("relu", "relu", ""),
                ("divide", "conv2d", "out_channels = 6; kernel = 3; padding = 1; groups = 6; bias = false"),
                ("norm", "batch_norm2d", ""),
                ("up", "conv_transpose2d", "out_channels = 12; kernel = 2; stride = 2; groups = 6"),
                ("point", "pointwise_linear", "out_channels = 12"),
                ("down", "conv_transpose2d", "out_channels = 4; kernel = 2; groups = 4"),
            ]),
        ),
        (
            "grouped",
            12,
            layers(&[
                ("conv", "conv2d", "out_channels = 18; kernel = 3; padding = 1; groups = 3"),
                ("prelu", "prelu", "per_channel = true"),
                ("up", "conv_transpose2d", "out_channels = 12; kernel = 2; stride = 2; groups = 3"),
                ("scale", "layer_scale", "initial = 0.5"),
                ("instance", "group_norm", "groups = 12"),
                ("point", "pointwise_linear", "out_channels = 9"),
                ("slope", "prelu", ""),
            ]),
        ),
        (
            "vectors",
            8,
            layers(&[
                ("pool", "adaptive_avg_pool2d", "output = [3, 2]"),
                ("vector", "flatten", ""),
                ("vector_norm", "batch_norm2d", ""),
                ("hidden", "linear", "out_features = 20"),
                ("hidden_norm", "batch_norm2d", ""),
                ("gelu", "gelu", ""),
                ("slopes", "prelu", "per_channel = true"),
            ]),
        ),
        (
            "excited",
            10,
            layers(&[
                ("pool", "adaptive_avg_pool2d", "output = 1"),
                ("squeeze", "conv2d", "out_channels = 4; kernel = 1"),
                ("relu", "relu", ""),
                ("excite", "conv2d", "out_channels = 10; kernel = 1"),
                ("sigmoid", "sigmoid", ""),
                ("scale", "channel_scale", "inputs = ['first', 'sigmoid']"),
                ("dropout", "dropout2d", ""),
            ]),
        ),
        (
            "sums",
            8,
            layers(&[
                ("one", "conv2d", "out_channels = 8; kernel = 1"),
                ("sum", "add", "inputs = ['one', 'first']"),
                ("twice", "add", "inputs = ['sum', 'sum']"),
                ("joined", "concat", "inputs = ['twice', 'twice', 'one']"),
                ("slice", "channel_slice", "first = 4; channels = 12"),
                ("half", "scale", "factor = 0.5"),
                ("large", "resize", "scale = 2.0"),
                ("like", "resize", "inputs = ['large', 'first']"),
                ("power", "lp_pool2d", "kernel = 2"),
            ]),
        ),
    ];
    for (name, channels, layers) in networks {
        let text = network(name, channels, &layers);
        let graph = parse(&text).unwrap_or_else(|error| panic!("{name}: {error}\n{text}"));
        let mut units = 0;
        for seed in 0..8 {
            let (moved, count) = check_exactness(&graph, seed, |_| true);
            assert!(count == 0 || moved > 1e-6, "{name}: outputs move by {moved}");
            units += count;
        }
        assert!(units > 20, "{name}: {units} units");
    }
}

#[test]
fn every_operation_computes_the_same_without_channels_of_zeros() {
    let mut pruned = 0;
    for graph in example_networks().unwrap() {
        let (moved, count) = check_exactness(&graph, 1, |group| zeros_stay(&graph, group));
        assert!(count == 0 || moved > 1e-6, "{}: outputs move by {moved}", graph.name);
        pruned += usize::from(count > 0);
    }
    assert!(pruned >= 3, "{pruned}");
}

#[test]
fn random_networks_compute_the_same_without_channels_of_zeros() {
    let (mut pruned, mut moving) = (0, 0);
    for seed in 0..400 {
        let graph = random_network(seed).graph().unwrap();
        if !channel_groups(&graph).unwrap().iter().any(|group| zeros_stay(&graph, group)) {
            continue;
        }
        let (moved, count) = check_exactness(&graph, seed, |group| zeros_stay(&graph, group));
        pruned += usize::from(count > 0);
        moving += usize::from(moved > 1e-6);
    }
    assert!(pruned > 150 && moving > 100, "{pruned} networks pruned, outputs of {moving} move");
}
