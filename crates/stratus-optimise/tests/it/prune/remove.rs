//! Removal of units from networks and their weights.

use super::{assert_sizes, channels, half_of_units, model, settings, zoo_network};
use stratus_conformance::networks::Data;
use stratus_graph::layer_file::{parse, write};
use stratus_graph::{Graph, Initialisation, Op};
use stratus_optimise::Model;
use stratus_optimise::prune::{PruneError, Selection, channel_groups, remove, remove_from_graph};

fn selection(rows: &[(usize, &[usize])]) -> Selection {
    Selection {
        removed: rows.iter().map(|(group, units)| (*group, units.iter().copied().collect())).collect(),
    }
}

/// A network whose weights have their positions as values.
fn numbered(graph: Graph) -> Model {
    let values = graph.parameters.iter().map(|parameter| {
        (parameter.name.clone(), (0..parameter.elements()).map(|position| position as f32).collect())
    });
    Model { values: values.collect(), graph }
}

#[test]
fn the_right_values_remain() {
    let graph = parse(
        "name = 'small'\ninput = [1, 1, 2]\n\
         [[layer]]\nname = 'conv'\nop = 'conv2d'\nout_channels = 3\nkernel = 1\n\
         [[layer]]\nname = 'norm'\nop = 'batch_norm2d'\n\
         [[layer]]\nname = 'flatten'\nop = 'flatten'\n\
         [[layer]]\nname = 'fc'\nop = 'linear'\nout_features = 2\n",
    )
    .unwrap();
    let pruned = remove(&numbered(graph), &selection(&[(0, &[1])])).unwrap();
    let values = |name: &str| &pruned.values[name][..];
    for name in ["conv.weight", "conv.bias", "norm.weight", "norm.running_mean", "norm.running_var"] {
        assert_eq!(values(name), [0.0, 2.0], "{name}");
    }
    // Features of channel 1 are 2 and 3 of six.
    assert_eq!(values("fc.weight"), [0.0, 1.0, 4.0, 5.0, 6.0, 7.0, 10.0, 11.0]);
    assert_eq!(values("fc.bias"), [0.0, 1.0]);
    assert_sizes(&pruned);
}

#[test]
fn columns_of_transposed_and_grouped_weights_remain() {
    let graph = parse(
        "name = 'grouped'\ninput = [1, 2, 2]\n\
         [[layer]]\nname = 'first'\nop = 'conv2d'\nout_channels = 4\nkernel = 1\nbias = false\n\
         [[layer]]\nname = 'up'\nop = 'conv_transpose2d'\nout_channels = 6\nkernel = 1\ngroups = 2\n\
         bias = false\n\
         [[layer]]\nname = 'last'\nop = 'conv2d'\nout_channels = 2\nkernel = 1\nbias = false\n",
    )
    .unwrap();
    // Without the second input and the first output of each group: inputs 0 1 | 2 3, outputs 0 1 2 | 3 4 5.
    let pruned = remove(&numbered(graph), &selection(&[(0, &[1]), (1, &[0])])).unwrap();
    assert_eq!(pruned.values["first.weight"], [0.0, 2.0]);
    assert_eq!(pruned.values["up.weight"], [1.0, 2.0, 7.0, 8.0]);
    assert_eq!(pruned.values["last.weight"], [1.0, 2.0, 4.0, 5.0, 7.0, 8.0, 10.0, 11.0]);
    let Op::ConvTranspose2d(up) = &pruned.graph.nodes[1].op else { panic!() };
    assert_eq!([up.in_channels, up.out_channels, up.groups], [2, 4, 2]);
}

#[test]
fn groups_of_depthwise_layers_and_instance_norms_shrink() {
    let graph = parse(
        "name = 'depthwise'\ninput = [1, 2, 2]\n\
         [[layer]]\nname = 'first'\nop = 'conv2d'\nout_channels = 4\nkernel = 1\n\
         [[layer]]\nname = 'wide'\nop = 'conv2d'\nout_channels = 8\nkernel = 1\ngroups = 4\n\
         [[layer]]\nname = 'norm'\nop = 'group_norm'\ngroups = 8\n\
         [[layer]]\nname = 'slice'\nop = 'channel_slice'\nfirst = 3\nchannels = 5\n\
         [[layer]]\nname = 'last'\nop = 'conv2d'\nout_channels = 2\nkernel = 1\n",
    )
    .unwrap();
    // Channels 2 and 3 of eight, of which the slice has the second, are a group of their own.
    let groups = channel_groups(&graph).unwrap();
    assert_eq!(groups.iter().map(|group| group.units.len()).collect::<Vec<_>>(), [1, 1, 2]);
    let pruned = remove(&numbered(graph), &selection(&[(2, &[0])])).unwrap();
    let attributes = |layer: usize| match &pruned.graph.nodes[layer].op {
        Op::Conv2d(conv) => vec![conv.in_channels, conv.out_channels, conv.groups],
        Op::GroupNorm(norm) => vec![norm.channels, norm.groups],
        Op::ChannelSlice(slice) => vec![slice.first, slice.channels],
        other => panic!("{other:?}"),
    };
    assert_eq!(attributes(1), [3, 6, 3]);
    assert_eq!(attributes(2), [6, 6]);
    assert_eq!(attributes(3), [3, 3]);
    assert_eq!(pruned.values["wide.bias"], [0.0, 1.0, 2.0, 3.0, 6.0, 7.0]);
    assert_eq!(pruned.values["last.weight"], [0.0, 3.0, 4.0, 5.0, 8.0, 9.0]);
}

#[test]
fn nothing_selected_changes_nothing() {
    let graph = zoo_network("googlenet", 8, [65, 70]);
    let model = numbered(graph);
    assert_eq!(remove(&model, &Selection::default()).unwrap(), model);
}

#[test]
fn pruned_networks_can_be_pruned_again() {
    let graph = zoo_network("mobilenet_v3_small", 16, [64, 64]);
    let mut model = numbered(graph);
    for round in 0..4 {
        let selection = half_of_units(&channel_groups(&model.graph).unwrap(), round, |_| true);
        let pruned = remove(&model, &selection).unwrap();
        assert_sizes(&pruned);
        assert!(pruned.graph.trained_parameters() < model.graph.trained_parameters());
        model = pruned;
    }
}

#[test]
fn frozen_layers_stay_frozen() {
    let mut graph = zoo_network("resnet18", 8, [32, 32]);
    graph.freeze(&["layer1", "conv1.weight"]).unwrap();
    let selection = half_of_units(&channel_groups(&graph).unwrap(), 1, |_| true);
    let pruned = remove_from_graph(&graph, &selection).unwrap();
    assert!(channels(&pruned.tensors[1]) < channels(&graph.tensors[1]));
    let frozen = |graph: &Graph| {
        let layers: Vec<bool> = graph.nodes.iter().map(|node| node.frozen).collect();
        (layers, graph.parameters.iter().map(|parameter| parameter.frozen).collect::<Vec<_>>())
    };
    assert_eq!(frozen(&pruned), frozen(&graph));
}

/// Initialisations that follow from the sizes of a layer follow from the new ones, so that the smaller
/// network can be trained from the beginning.
#[test]
fn initialisations_follow_the_sizes() {
    let graph = parse(
        "name = 'initialised'\ninput = [3, 4, 4]\n\
         [[layer]]\nname = 'white'\nop = 'conv2d'\nout_channels = 24\nkernel = 2\nweight_init = 'whitening'\n\
         [[layer]]\nname = 'default'\nop = 'conv2d'\nout_channels = 8\nkernel = 1\n\
         [[layer]]\nname = 'kaiming'\nop = 'conv2d'\nout_channels = 8\nkernel = 1\n\
         weight_init = 'kaiming_normal'\n\
         [[layer]]\nname = 'normal'\nop = 'conv2d'\nout_channels = 8\nkernel = 1\n\
         weight_init = { normal = 0.3 }\n\
         [[layer]]\nname = 'dirac'\nop = 'conv2d'\nout_channels = 8\nkernel = 1\nweight_init = 'dirac'\n\
         [[layer]]\nname = 'last'\nop = 'conv2d'\nout_channels = 2\nkernel = 1\n",
    )
    .unwrap();
    let groups = channel_groups(&graph).unwrap();
    let removed: Vec<(usize, &[usize])> = (0..groups.len()).map(|group| (group, &[0, 1, 2, 3][..])).collect();
    let pruned = remove_from_graph(&graph, &selection(&removed)).unwrap();
    let initial = |layer: &str| {
        let name = format!("{layer}.weight");
        pruned.parameters.iter().find(|parameter| parameter.name == name).unwrap().initialisation
    };
    let bound = |fan_in: f32| Initialisation::Uniform { bound: 1.0 / fan_in.sqrt() };
    assert_eq!(initial("white"), bound(12.0));
    assert_eq!(initial("default"), bound(20.0));
    assert_eq!(initial("kaiming"), Initialisation::kaiming_normal(4));
    assert_eq!(initial("normal"), Initialisation::Normal { std: 0.3 });
    assert_eq!(initial("dirac"), Initialisation::Dirac { bound: 0.5 });
    assert_eq!(parse(&write(&pruned).unwrap()).unwrap(), pruned);
}

#[test]
fn selections_of_other_networks_are_errors() {
    let graph = zoo_network("digits", 4, [28, 28]);
    let message =
        |rows: &[(usize, &[usize])]| remove_from_graph(&graph, &selection(rows)).unwrap_err().to_string();
    let count = channel_groups(&graph).unwrap().len();
    assert_eq!(
        message(&[(99, &[0])]),
        format!("network `digits`: channel group 99 was selected, but there are {count}")
    );
    assert_eq!(
        message(&[(0, &[0, 7])]),
        "network `digits`: unit 7 of channel group 0 was selected, but it has 4"
    );
    assert_eq!(
        message(&[(0, &[0, 1, 2, 3])]),
        "network `digits`: all 4 units of channel group 0 were selected"
    );
}

#[test]
fn missing_and_damaged_weights_are_errors() {
    let graph = zoo_network("digits", 4, [28, 28]);
    let data = Data::new(&graph, &settings(1));
    let selection = selection(&[(0, &[0])]);
    for name in graph.parameters.iter().map(|parameter| &parameter.name) {
        let mut damaged = model(&graph, &data);
        damaged.values.get_mut(name).unwrap().pop();
        let error = remove(&damaged, &selection).unwrap_err();
        assert!(matches!(&error, PruneError::Model(_)) && error.to_string().contains(&**name), "{error}");
        damaged.values.remove(name);
        let error = remove(&damaged, &selection).unwrap_err().to_string();
        assert_eq!(error, format!("the weights have no `{name}`"));
    }
}
