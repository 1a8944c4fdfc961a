//! Every network of the zoo exported to ONNX and imported again, with the same layers, shapes, parameters,
//! cost, weights and outputs.

use crate::common::{CASES, images, logits, network, pruned, refs, weights};
use std::collections::BTreeMap;
use std::path::Path;
use stratus_graph::ops::{Activation, Flatten, Linear, example_networks};
use stratus_graph::zoo::NETWORKS;
use stratus_graph::{Graph, GraphBuilder, Shape, layer_file};
use stratus_onnx::{
    ImportOptions, ImportedNetwork, Int8Weights, Model, QuantisedLayers, WriteError, operation_rows,
    operator_set, write, write_quantised,
};
use stratus_testing::sample::sample;
use stratus_weights::{NetworkMetadata, Tensor, TensorRef};

fn exported(graph: &Graph, weights: &[Tensor]) -> Vec<u8> {
    let mut bytes = Vec::new();
    write(&mut bytes, graph, &refs(weights), &BTreeMap::new()).unwrap();
    bytes
}

fn imported(graph: &Graph, bytes: Vec<u8>) -> ImportedNetwork {
    let options = ImportOptions { name: graph.name.clone(), ..Default::default() };
    Model::from_bytes(format!("{}.onnx", graph.name), bytes).import(&options).unwrap()
}

/// The layers with the names of their inputs.
fn described(graph: &Graph) -> Vec<String> {
    let name =
        |tensor| graph.nodes.iter().find(|node| node.output == tensor).map_or("input", |node| &node.name);
    let layer = |node: &stratus_graph::Node| {
        let inputs: Vec<&str> = node.inputs.iter().map(|&tensor| name(tensor)).collect();
        format!(
            "{} {:?} of {inputs:?} to {} for {}",
            node.name,
            node.op,
            graph.shape(node.output),
            graph.node_flops(node)
        )
    };
    graph.nodes.iter().map(layer).collect()
}

#[test]
fn every_network_survives_a_round_trip() {
    for network in NETWORKS {
        assert!(CASES.iter().any(|(name, ..)| *name == network.name), "{} has no case", network.name);
    }
    for &(name, width, size) in CASES {
        let graph = network(name, width, size);
        let original = weights(&graph);
        let reimported = imported(&graph, exported(&graph, &original));
        let inference = graph.for_inference();
        assert_eq!(described(&reimported.graph), described(&inference), "{name}");
        assert_eq!(reimported.graph.trained_parameters(), inference.trained_parameters(), "{name}");
        assert_eq!(reimported.graph.forward_flops(), inference.forward_flops(), "{name}");
        assert_eq!(reimported.notes, Vec::<String>::new(), "{name}");
        assert_eq!(reimported.weights.len(), inference.parameters.len(), "{name}");
        for tensor in &reimported.weights {
            assert!(original.contains(tensor), "{name} {}", tensor.name);
        }
        let written = layer_file::write(&reimported.graph).unwrap();
        assert_eq!(layer_file::parse(&written).unwrap(), reimported.graph, "{name}");
    }
}

#[test]
fn pruned_networks_survive_a_round_trip() {
    for &(name, width, size) in CASES {
        let graph = network(name, width, size);
        let (graph, original) = pruned(&graph, &weights(&graph));
        let reimported = imported(&graph, exported(&graph, &original));
        assert_eq!(described(&reimported.graph), described(&graph.for_inference()), "{name}");
        assert_eq!(reimported.notes, Vec::<String>::new(), "{name}");
        for tensor in &reimported.weights {
            assert!(original.contains(tensor), "{name} {}", tensor.name);
        }
    }
}

#[test]
fn outputs_are_identical_after_a_round_trip() {
    for (name, width, size) in
        [("alexnet_bn", 8, [95, 127]), ("googlenet", 8, [65, 70]), ("mobilenet_v2", 8, [32, 32])]
    {
        let graph = network(name, width, size);
        let original = weights(&graph);
        let reimported = imported(&graph, exported(&graph, &original));
        let images = images(&graph);
        assert_eq!(
            logits(&reimported.graph, &reimported.weights, &images),
            logits(&graph, &original, &images),
            "{name}"
        );
    }
}

#[test]
fn networks_of_published_size_survive_a_round_trip() {
    // Small versions of all networks are exported and imported by the tests above.
    for network in sample(NETWORKS.iter().filter(|network| !network.name.contains("vgg")), 4, 0) {
        let graph = (network.build)(&(network.defaults)()).unwrap();
        let zeros: Vec<Vec<f32>> =
            graph.parameters.iter().map(|parameter| vec![0.0; parameter.elements()]).collect();
        let tensors: Vec<TensorRef<'_>> = graph
            .parameters
            .iter()
            .zip(&zeros)
            .map(|(p, values)| TensorRef::f32(&p.name, &p.shape, values))
            .collect();
        let mut bytes = Vec::new();
        write(&mut bytes, &graph, &tensors, &BTreeMap::new()).unwrap();
        assert_eq!(
            described(&imported(&graph, bytes).graph),
            described(&graph.for_inference()),
            "{}",
            network.name
        );
    }
}

fn small(layers: &str) -> Graph {
    let head = "name = 'net'\ninput = [2, 7, 9]\n";
    layer_file::parse(&format!("{head}{}", layers.replace('|', "\n[[layer]]\n").replace("; ", "\n"))).unwrap()
}

#[test]
fn layers_outside_the_zoo_survive_a_round_trip() {
    for layers in [
        "|name = 'c'; op = 'conv2d'; out_channels = 4; kernel = [3, 2]; padding = [2, 0]; padding_after = \
         [0, 3]; dilation = [1, 2]; groups = 2",
        "|name = 't'; op = 'conv_transpose2d'; out_channels = 4; kernel = [3, 2]; stride = 2; padding = \
         [1, 0]; output_padding = [1, 0]|name = 'd'; op = 'dropout2d'; p = 0.3|name = 'u'; op = \
         'conv_transpose2d'; out_channels = 6; kernel = 3; padding_after = [0, 2]; dilation = 2; groups = 2; \
         bias = false",
        "|name = 'c'; op = 'conv2d'; out_channels = 12; kernel = 1|name = 's'; op = 'channel_shuffle'; \
         groups = 3|name = 'a'; op = 'channel_slice'; channels = 5|name = 'b'; op = 'channel_slice'; \
         inputs = 's'; first = 5; channels = 7|name = 'k'; op = 'concat'; inputs = ['b', 'a']",
        "|name = 'n'; op = 'layer_norm2d'; epsilon = 0.000001|name = 'w'; op = 'pointwise_linear'; \
         out_channels = 7|name = 'v'; op = 'pointwise_linear'; out_channels = 3; bias = false|name = 'l'; \
         op = 'layer_scale'|name = 'm'; op = 'layer_norm2d'",
        "|name = 's'; op = 'hard_swish'|name = 'p'; op = 'adaptive_avg_pool2d'; output = 1|name = 'g'; op = \
         'hard_sigmoid'|name = 'x'; op = 'channel_scale'; inputs = ['s', 'g']|name = 'd'; op = \
         'stochastic_depth'; p = 0.2",
        "|name = 'p'; op = 'max_pool2d'; kernel = [2, 3]; stride = 3; padding = 1; ceil_mode = true",
        "|name = 'p'; op = 'max_pool2d'; kernel = 4; stride = 4; ceil_mode = true",
        "|name = 'p'; op = 'avg_pool2d'; kernel = [3, 4]; stride = 2; padding = [1, 2]; count_include_pad = \
         false",
        "|name = 'p'; op = 'avg_pool2d'; kernel = [3, 4]; stride = 2; padding = [1, 2]",
        "|name = 'p'; op = 'adaptive_avg_pool2d'; output = [7, 4]",
        "|name = 'p'; op = 'adaptive_avg_pool2d'; output = [3, 9]",
        "|name = 'p'; op = 'adaptive_avg_pool2d'; output = [9, 20]|name = 'q'; op = 'adaptive_avg_pool2d'; \
         output = [7, 9]",
        "|name = 'n'; op = 'batch_norm2d'; epsilon = 0.25; momentum = 0.01|name = 'r'; op = 'relu6'|name = \
         'd'; op = 'dropout'; p = 0.125",
        "|name = 'n'; op = 'batch_norm2d'|name = 'g'; op = 'gelu'|name = 'c'; op = 'conv2d'; out_channels = \
         3; kernel = 1|name = 'h'; op = 'gelu'",
        "|name = 'n.1'; op = 'batch_norm2d'|name = 'n.2'; op = 'silu'|name = 'g'; op = 'sigmoid'|name = 'c'; \
         op = 'conv2d'; out_channels = 3; kernel = 1|name = 'h'; op = 'silu'|name = 'g.sigmoid'; op = 'silu'",
        "|name = 'output'; op = 'relu'|name = 'f'; op = 'flatten'|name = 'l'; op = 'linear'; out_features = \
         3; bias = false|name = 'n'; op = 'batch_norm2d'|name = 'a'; op = 'add'; inputs = ['l', 'n']",
        "|name = 's'; op = 'scale'; factor = 0.17|name = 'a'; op = 'add'; inputs = ['input', 's']|name = \
         'f'; op = 'flatten'|name = 'l'; op = 'linear'; out_features = 3|name = 't'; op = 'scale'; factor = \
         -0.125",
        "|name = 'l'; op = 'local_response_norm'; size = 3; k = 2|name = 'c'; op = 'concat'; inputs = ['l', \
         'input', 'l']",
        "|name = 'r'; op = 'resize'; size = [5, 20]|name = 'c'; op = 'resize'; size = [3, 10]; align_corners \
         = true|name = 'r.sizes'; op = 'resize'; scale = [2, 0.7]|name = 'l'; op = 'resize'; inputs = \
         ['r.sizes', 'r']; align_corners = true|name = 's'; op = 'resize'; size = 5|name = 'i'; op = \
         'resize'; inputs = ['s', 'input']",
    ] {
        let graph = small(layers);
        let original = weights(&graph);
        let reimported = imported(&graph, exported(&graph, &original));
        assert_eq!(described(&reimported.graph), described(&graph));
        assert_eq!(reimported.weights, original);
    }
}

/// `make reference` writes the table.
#[test]
fn documentation_lists_the_activations() {
    let mut table = "| activation | operator | first operator set | attributes, and their values if a node \
                     omits them |\n|---|---|---|---|\n"
        .to_owned();
    for activation in Activation::all() {
        let Some(onnx) = activation.spec().onnx else { continue };
        let defaults = activation.attribute_names().iter().zip(onnx.defaults);
        let attributes: Vec<String> = defaults.map(|(name, value)| format!("`{name}` ({value})")).collect();
        let space = if attributes.is_empty() { "" } else { " " };
        let (name, operator, since) = (activation.name(), onnx.name, onnx.since);
        table += &format!("| `{name}` | `{operator}` | {since} |{space}{} |\n", attributes.join(", "));
    }
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/onnx.md");
    stratus_testing::page::expect_table(&page, &table);
}

/// `make reference` writes the table.
#[test]
fn documentation_lists_the_operations() {
    let mut table = "| layer | exported as | imported from |\n|---|---|---|\n".to_owned();
    for [kind, written_as, read_from] in operation_rows() {
        table += &format!("| `{kind}` | {written_as} | {read_from} |\n");
    }
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/onnx.md");
    stratus_testing::page::expect_table(&page, &table);
}

#[test]
fn every_example_of_an_operation_survives_a_round_trip() {
    for graph in example_networks().unwrap() {
        let original = weights(&graph);
        let reimported = imported(&graph, exported(&graph, &original));
        assert_eq!(described(&reimported.graph), described(&graph));
        assert_eq!(reimported.weights, original);
        assert_eq!(reimported.notes, Vec::<String>::new());
    }
}

#[test]
fn documentation_lists_the_operators() {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/onnx.md");
    stratus_testing::page::expect_table(&page, &stratus_onnx::operator_table());
}

#[test]
fn every_activation_survives_a_round_trip() {
    for activation in Activation::examples() {
        let (mut builder, images) = GraphBuilder::new("network", Shape::image(2, 3, 4));
        let x = builder.add("first", activation, &[images]).unwrap();
        let x = builder.add("flatten", Flatten, &[x]).unwrap();
        let x = builder.add("fc", Linear::new(24, 3), &[x]).unwrap();
        // A sigmoid at the end is not imported: the loss has it.
        let x = builder.add("second", activation, &[x]).unwrap();
        let x = builder.add("last", Linear::new(3, 2), &[x]).unwrap();
        let graph = builder.finish(x).unwrap();
        let original = weights(&graph);
        let reimported = imported(&graph, exported(&graph, &original));
        assert_eq!(described(&reimported.graph), described(&graph));
        let written = layer_file::write(&graph).unwrap();
        assert_eq!(layer_file::parse(&written).unwrap(), graph, "{written}");
    }
}

#[test]
fn trained_slopes_survive_a_round_trip() {
    let graph = small(
        "|name = 'a'; op = 'prelu'|name = 'b'; op = 'prelu'; per_channel = true|name = 'f'; op = 'flatten'|\
         name = 'l'; op = 'linear'; out_features = 3|name = 'c'; op = 'prelu'; per_channel = true",
    );
    let original = weights(&graph);
    let reimported = imported(&graph, exported(&graph, &original));
    assert_eq!(described(&reimported.graph), described(&graph));
    assert_eq!(reimported.weights, original);
}

/// Windows that begin after the image, and flattening a vector, have no effect.
#[test]
fn drops_layers_without_effect() {
    for layers in [
        "|name = 'p'; op = 'max_pool2d'; kernel = [7, 2]; stride = 9; ceil_mode = true|name = 'f'; op = \
         'flatten'|name = 'l'; op = 'linear'; out_features = 3",
        "|name = 'f'; op = 'flatten'|name = 'g'; op = 'flatten'|name = 'l'; op = 'linear'; out_features = 3",
    ] {
        let graph = small(layers);
        let original = weights(&graph);
        let reimported = imported(&graph, exported(&graph, &original));
        let images = images(&graph);
        assert_ne!(described(&reimported.graph), described(&graph));
        assert_eq!(
            logits(&reimported.graph, &reimported.weights, &images),
            logits(&graph, &original, &images)
        );
    }
}

#[test]
fn reports_layers_and_weights_that_cannot_be_exported() {
    let graph = small(
        "|name = 'a'; op = 'local_response_norm'; size = 4|name = 'b'; op = 'local_response_norm'; size = \
         2|name = 'c'; op = 'conv2d'; out_channels = 3; kernel = 1",
    );
    // A third of six rows is less than two, but two in f32.
    let third = small(
        "|name = 'a'; op = 'resize'; size = 6|name = 'b'; op = 'resize'; scale = \
                       0.33333333333333326",
    );
    assert_eq!(
        write(&mut Vec::new(), &third, &[], &BTreeMap::new()).unwrap_err().to_string(),
        "cannot be exported to ONNX: `b` (resize by 0.33333333333333326x0.33333333333333326)"
    );
    let original = weights(&graph);
    let problem = |graph: &Graph, tensors: &[TensorRef<'_>]| {
        write(&mut Vec::new(), graph, tensors, &BTreeMap::new()).unwrap_err()
    };
    assert_eq!(
        problem(&graph, &refs(&original)).to_string(),
        "cannot be exported to ONNX: `a` (local_response_norm size 4 alpha 0.0001 beta 0.75 k 1), \
         `b` (local_response_norm size 2 alpha 0.0001 beta 0.75 k 1)"
    );
    assert!(matches!(problem(&graph, &[]), WriteError::MissingParameter(name) if name == "c.weight"));
    let wrong = [TensorRef::f32("c.weight", &[3, 2], &[0.0; 6]), TensorRef::i64("c.bias", &[3], &[0; 3])];
    assert_eq!(
        problem(&graph, &wrong).to_string(),
        "parameter `c.weight` is f32 [3, 2], expected f32 [3, 2, 1, 1]"
    );
}

/// The bytes of a `metadata_props` entry, encoded by hand.
fn entry(key: &str, value: &str) -> Vec<u8> {
    let field = |number: u8, text: &[u8]| {
        assert!(text.len() < 128, "one byte of length");
        [&[number << 3 | 2, u8::try_from(text.len()).unwrap()], text].concat()
    };
    // `metadata_props` is field 14 of `ModelProto`; of `StringStringEntryProto` `key` is 1, `value` 2.
    field(14, &[field(1, key.as_bytes()), field(2, value.as_bytes())].concat())
}

#[test]
fn metadata_survives_a_round_trip() {
    let (name, width, size) = CASES[1];
    let graph = network(name, width, size);
    let original = weights(&graph);
    let metadata = NetworkMetadata {
        class_names: vec!["sky".to_owned(), "pole, \"thin\"".to_owned()],
        mean: vec![0.5, 0.25, 0.125],
        std: vec![0.25, 0.5, 1.0],
        input_shape: graph.input_shape().0.clone(),
        resize: Some(256),
        ..NetworkMetadata::default()
    };
    let written = |metadata: &BTreeMap<String, String>| {
        let mut bytes = Vec::new();
        write(&mut bytes, &graph, &refs(&original), metadata).unwrap();
        bytes
    };
    let bytes = written(&metadata.entries());
    let has = |entry: Vec<u8>| bytes.windows(entry.len()).any(|window| window == entry);
    assert!(has(entry("class_names", r#"["sky","pole, \"thin\""]"#)));
    assert!(has(entry("mean", "[0.5,0.25,0.125]")) && has(entry("std", "[0.25,0.5,1.0]")));
    assert!(has(entry("channel_order", "RGB")));
    assert!(has(entry("resize", "256")) && has(entry("crop", "center")));
    assert_eq!(imported(&graph, bytes).metadata, metadata);

    // Invalid values of another program are ignored with a note.
    let other = BTreeMap::from([("mean".to_owned(), "0.5".to_owned())]);
    let reimported = imported(&graph, written(&other));
    assert_eq!(reimported.metadata, NetworkMetadata::default());
    assert_eq!(reimported.notes.len(), 1);
    assert!(reimported.notes[0].contains("`mean` is not a valid list"), "{:?}", reimported.notes);
}

#[test]
fn the_operator_set_is_the_first_that_has_every_operator() {
    let of = |activation: &str| {
        operator_set(&small(&format!(
            "|name = 'a'; op = '{activation}'|name = 'f'; op = 'flatten'|name = 'fc'; op = 'linear'; \
             out_features = 2"
        )))
    };
    assert_eq!(["relu", "leaky_relu", "hard_swish", "mish"].map(of), [17, 17, 17, 18]);
}

/// Biases are 32-bit sums of products, unless the weights of a channel are so small that they do not fit.
#[test]
fn biases_of_tiny_int8_weights_remain_real() {
    let graph = small("|name = 'c'; op = 'conv2d'; out_channels = 2; kernel = 1");
    for (scale, is_sum) in [(0.01, true), (1e-12, false), (1e-38, false)] {
        let weights = Int8Weights {
            bytes: vec![127; 2 * graph.input_shape().0[0]],
            scales: vec![0.01, scale],
            biases: Some(vec![0.5, -3.0]),
        };
        let quantised =
            QuantisedLayers { maps: BTreeMap::new(), weights: BTreeMap::from([("c".to_owned(), weights)]) };
        let mut file = Vec::new();
        // Its f32 weights are not needed.
        write_quantised(&mut file, &graph, &[], &BTreeMap::new(), Some(&quantised)).unwrap();
        let has = |name: &str| file.windows(name.len()).any(|part| part == name.as_bytes());
        assert!(has("c.weight_bytes"));
        assert_eq!([has("c.bias_sums"), has("c.biases")], [is_sum, !is_sum], "{scale}");
    }
}
