//! Channel groups of small networks.

use super::zoo_network;
use stratus_graph::layer_file::parse;
use stratus_graph::{Graph, NodeId, ParameterId};
use stratus_optimise::prune::{ChannelGroup, PruneError, channel_groups};

/// A line per group: the number of units, the channels of each tensor in a unit, producers and readers.
fn described(graph: &Graph) -> Vec<String> {
    let layers =
        |ids: &[NodeId]| ids.iter().map(|id| graph.nodes[id.0].name.as_str()).collect::<Vec<_>>().join(" ");
    let describe = |group: &ChannelGroup| {
        let tensors = group.tensors.iter().map(|tensor| {
            let node = graph.nodes.iter().find(|node| node.output == tensor.tensor).unwrap();
            format!("{} {}", node.name, tensor.channels_per_unit)
        });
        let exact = if group.is_exact { "" } else { ", inexact" };
        let tensors = tensors.collect::<Vec<_>>().join(", ");
        let [producers, readers] = [&group.producers, &group.readers].map(|ids| layers(ids));
        format!("{} of [{tensors}]: {producers} -> {readers}{exact}", group.units.len())
    };
    channel_groups(graph).unwrap().iter().map(describe).collect()
}

#[test]
fn sums_unite_the_layers_of_a_residual_network() {
    let graph = parse(
        "name = 'residual'\ninput = [3, 8, 8]\n\
         [[layer]]\nname = 'stem'\nop = 'conv2d'\nout_channels = 8\nkernel = 3\n\
         [[layer]]\nname = 'inner'\nop = 'conv2d'\nout_channels = 6\nkernel = 1\n\
         [[layer]]\nname = 'outer'\nop = 'conv2d'\nout_channels = 8\nkernel = 1\n\
         [[layer]]\nname = 'sum'\nop = 'add'\ninputs = ['outer', 'stem']\n\
         [[layer]]\nname = 'norm'\nop = 'layer_norm2d'\n\
         [[layer]]\nname = 'flatten'\nop = 'flatten'\n\
         [[layer]]\nname = 'fc'\nop = 'linear'\nout_features = 4\n",
    )
    .unwrap();
    assert_eq!(
        described(&graph),
        [
            "8 of [stem 1, outer 1, sum 1, norm 1, flatten 36]: stem outer -> inner fc, inexact",
            "6 of [inner 1]: inner -> outer",
        ]
    );
}

/// The first down-sampler concatenates 13 filters and the three channels of the images, which stay. The
/// second one adds 48 filters to them.
#[test]
fn concatenations_have_a_group_for_each_input() {
    let graph = zoo_network("erfnet_encoder", 16, [32, 32]);
    let groups = channel_groups(&graph).unwrap();
    let tensor = |name: &str| graph.nodes.iter().find(|node| node.name == name).unwrap().output;
    let in_tensor = |name: &str| {
        let tensor = tensor(name);
        let has = |group: &&ChannelGroup| group.tensors.iter().any(|found| found.tensor == tensor);
        groups.iter().filter(has).map(|group| group.units.len()).collect::<Vec<_>>()
    };
    assert_eq!(in_tensor("encoder.initial_block.join"), [13]);
    assert_eq!(in_tensor("encoder.layers.0.join"), [13, 48]);
    assert_eq!(in_tensor("encoder.layers.6.join"), [13, 48, 64]);
    assert_eq!(in_tensor("encoder.output_conv"), [0; 0]);
}

#[test]
fn slices_split_a_group() {
    let graph = parse(
        "name = 'sliced'\ninput = [3, 8, 8]\n\
         [[layer]]\nname = 'conv'\nop = 'conv2d'\nout_channels = 8\nkernel = 3\n\
         [[layer]]\nname = 'slice'\nop = 'channel_slice'\nfirst = 2\nchannels = 5\n\
         [[layer]]\nname = 'out'\nop = 'conv2d'\nout_channels = 2\nkernel = 1\n",
    )
    .unwrap();
    assert_eq!(described(&graph), ["3 of [conv 1]: conv -> ", "5 of [conv 1, slice 1]: conv -> out"]);
}

/// All 32 groups of ResNeXt stay: a unit has a channel of each.
#[test]
fn grouped_convolutions_keep_their_groups() {
    let graph = zoo_network("resnext50_32x4d", 64, [64, 64]);
    let groups = channel_groups(&graph).unwrap();
    let conv = graph.nodes.iter().position(|node| node.name == "layer1.0.conv2").map(NodeId).unwrap();
    let read = groups.iter().find(|group| group.readers.contains(&conv)).unwrap();
    assert_eq!((read.units.len(), read.tensors[0].channels_per_unit), (4, 32));
    let produced = groups.iter().find(|group| group.producers.contains(&conv)).unwrap();
    assert_eq!((produced.units.len(), produced.tensors[0].channels_per_unit), (4, 32));
    assert_ne!(read, produced);
}

#[test]
fn depthwise_convolutions_read_and_produce_one_group() {
    let graph = zoo_network("mobilenet_v2", 32, [64, 64]);
    let groups = channel_groups(&graph).unwrap();
    let conv = graph.nodes.iter().position(|node| node.name == "features.2.conv.1.0").map(NodeId).unwrap();
    let of_conv = |group: &&ChannelGroup| group.readers.contains(&conv) && group.producers.contains(&conv);
    assert_eq!(groups.iter().filter(of_conv).map(|group| group.units.len()).collect::<Vec<_>>(), [96]);
}

/// Images and outputs belong to no group, neither directly nor through sums.
#[test]
fn channels_of_images_and_outputs_stay() {
    let graph = parse(
        "name = 'fixed'\ninput = [3, 8, 8]\n\
         [[layer]]\nname = 'conv'\nop = 'conv2d'\nout_channels = 3\nkernel = 1\n\
         [[layer]]\nname = 'sum'\nop = 'add'\ninputs = ['conv', 'input']\n\
         [[layer]]\nname = 'out'\nop = 'conv2d'\nout_channels = 5\nkernel = 1\n\
         [[layer]]\nname = 'shuffle'\nop = 'channel_shuffle'\ngroups = 5\n",
    )
    .unwrap();
    assert_eq!(channel_groups(&graph).unwrap(), []);
}

#[test]
fn a_shared_parameter_is_an_error() {
    let mut graph = parse(
        "name = 'tied'\ninput = [3, 8, 8]\n\
         [[layer]]\nname = 'a'\nop = 'conv2d'\nout_channels = 3\nkernel = 1\nbias = false\n\
         [[layer]]\nname = 'b'\nop = 'conv2d'\nout_channels = 3\nkernel = 1\nbias = false\n",
    )
    .unwrap();
    graph.nodes[1].parameters = vec![ParameterId(0)];
    let message = channel_groups(&graph).unwrap_err().to_string();
    assert_eq!(message, "network `tied`: several layers share the parameter `a.weight`");
}

#[test]
fn a_huge_network_is_an_error_without_memory() {
    let graph = parse(
        "name = 'huge'\ninput = [1, 200000, 200000]\n\
         [[layer]]\nname = 'flatten'\nop = 'flatten'\n",
    )
    .unwrap();
    assert!(matches!(channel_groups(&graph), Err(PruneError::TooLarge { channels: 40_000_000_002, .. })));
}

#[test]
fn an_invalid_network_is_an_error() {
    let mut graph = zoo_network("digits", 4, [28, 28]);
    graph.tensors[1].0[0] += 1;
    assert!(matches!(channel_groups(&graph), Err(PruneError::Graph(_))));
}
