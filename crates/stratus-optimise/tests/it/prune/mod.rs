//! Pruned networks: structure, outputs, importance and choice.

mod choice;
mod exact;
mod groups;
mod importance;
mod remove;
mod training;
mod zoo;

use std::collections::{BTreeMap, BTreeSet};
use stratus_conformance::networks::{Data, Settings, evaluate_with, output_distance};
use stratus_graph::zoo::{ModelConfig, find};
use stratus_graph::{Graph, Op, Shape};
use stratus_optimise::Model;
use stratus_optimise::prune::{ChannelGroup, Selection, channel_groups, remove};
use stratus_random::{Purpose, Stream};

/// The settings of an evaluation of one image.
pub fn settings(seed: u64) -> Settings {
    Settings {
        batch: 1,
        data: seed,
        class_weights: false,
        smoothing: false,
        ignored_labels: false,
        targets: false,
        recompute: false,
        tiles: false,
        layout: 0,
    }
}

/// A network of the zoo with ten classes.
pub fn zoo_network(name: &str, width: usize, [height, image_width]: [usize; 2]) -> Graph {
    let network = find(name).unwrap();
    let input = [(network.defaults)().input[0], height, image_width];
    (network.build)(&ModelConfig { input, classes: 10, width: Some(width) }).unwrap()
}

/// A network with random weights.
pub fn model(graph: &Graph, data: &Data) -> Model {
    let named = graph.parameters.iter().zip(&data.parameters).map(|(parameter, values)| {
        (parameter.name.clone(), values.iter().map(|&value| value as f32).collect::<Vec<f32>>())
    });
    Model { graph: graph.clone(), values: named.collect() }
}

/// The outputs of a network for the images of `data`, by the reference in double precision.
pub fn outputs(model: &Model, data: &Data) -> Vec<f64> {
    let values = model.graph.parameters.iter().map(|parameter| &model.values[&parameter.name]);
    let parameters = values.map(|values| values.iter().copied().map(f64::from).collect()).collect();
    evaluate_with(&model.graph, &settings(0), &Data { parameters, ..data.clone() }).unwrap()
}

/// About half of the units of the groups for which `is_pruned`, drawn at random, never a whole group.
pub fn half_of_units(
    groups: &[ChannelGroup],
    seed: u64,
    is_pruned: impl Fn(&ChannelGroup) -> bool,
) -> Selection {
    let mut selection = Selection::default();
    for (position, group) in groups.iter().enumerate().filter(|(_, group)| is_pruned(group)) {
        let mut stream = Stream::new(seed, Purpose::Test, position as u64, 0);
        let kept = stream.below(group.units.len() as u32) as usize;
        let units: BTreeSet<usize> =
            (0..group.units.len()).filter(|&unit| unit != kept && stream.below(2) == 0).collect();
        if !units.is_empty() {
            selection.removed.insert(position, units);
        }
    }
    selection
}

/// Sets the parameters that produce the selected units to zero: filters, biases, and weights and biases of
/// norms, in each layer that writes a channel of them. The axes are written down here from the definition of
/// each parameter's shape, independently of the crate's.
pub fn silence(model: &Model, groups: &[ChannelGroup], selection: &Selection) -> Model {
    let mut silent = model.clone();
    let mut removed: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
    for (&group, units) in &selection.removed {
        for channel in units.iter().flat_map(|&unit| &groups[group].units[unit].channels) {
            removed.entry(channel.tensor.0).or_default().push(channel.index);
        }
    }
    for node in &model.graph.nodes {
        let Some(channels) = removed.get(&node.output.0) else { continue };
        for id in &node.parameters {
            let parameter = &model.graph.parameters[id.0];
            let is_statistic = parameter.name.contains("running_");
            let is_shared = matches!(&node.op, Op::Prelu(prelu) if prelu.slopes == 1);
            if is_statistic || is_shared {
                continue;
            }
            let values = silent.values.get_mut(&parameter.name).unwrap();
            let is_weight = parameter.name.ends_with(".weight");
            match &node.op {
                Op::ConvTranspose2d(conv) if is_weight => {
                    let [read, written] = [conv.in_channels, conv.out_channels].map(|n| n / conv.groups);
                    let taps = conv.kernel[0] * conv.kernel[1];
                    for &channel in channels {
                        let (group, column) = (channel / written, channel % written);
                        for row in group * read..(group + 1) * read {
                            let cell = (row * written + column) * taps;
                            values[cell..cell + taps].fill(0.0);
                        }
                    }
                }
                _ => {
                    let row: usize = parameter.shape[1..].iter().product();
                    channels.iter().for_each(|&channel| values[channel * row..(channel + 1) * row].fill(0.0));
                }
            }
        }
    }
    silent
}

/// Returns whether a channel of zeros stays zero in all tensors of a group, by the operations alone.
pub fn zeros_stay(graph: &Graph, group: &ChannelGroup) -> bool {
    let is_moved = |op: &Op| match op {
        Op::Activation(activation) => ["sigmoid", "hard_sigmoid", "softplus"].contains(&activation.name()),
        _ => false,
    };
    group.is_exact
        && graph
            .nodes
            .iter()
            .filter(|node| is_moved(&node.op))
            .all(|node| group.tensors.iter().all(|tensor| tensor.tensor != node.output))
}

/// Removes units of zeros, which must not change the outputs. Returns how far the outputs move if the same
/// units are removed although they are not zero, and the number of removed units.
pub fn check_exactness(graph: &Graph, seed: u64, is_pruned: impl Fn(&ChannelGroup) -> bool) -> (f64, usize) {
    let data = Data::new(graph, &settings(seed));
    let model = model(graph, &data);
    let groups = channel_groups(graph).unwrap();
    let selection = half_of_units(&groups, seed, |group| group.is_exact && is_pruned(group));
    let silent = silence(&model, &groups, &selection);
    let pruned = remove(&silent, &selection).unwrap();
    let difference = output_distance(&outputs(&silent, &data), &outputs(&pruned, &data));
    assert!(difference < 1e-9, "{}: the outputs differ by {difference}", graph.name);
    let count = selection.removed.values().map(BTreeSet::len).sum();
    let pruned = remove(&model, &selection).unwrap();
    (output_distance(&outputs(&model, &data), &outputs(&pruned, &data)), count)
}

/// Asserts that every parameter of a model has the values of its shape.
pub fn assert_sizes(model: &Model) {
    assert_eq!(model.values.len(), model.graph.parameters.len());
    for parameter in &model.graph.parameters {
        assert_eq!(model.values[&parameter.name].len(), parameter.elements(), "{}", parameter.name);
    }
}

/// The first extent of a shape.
pub fn channels(shape: &Shape) -> usize {
    shape.0[0]
}
