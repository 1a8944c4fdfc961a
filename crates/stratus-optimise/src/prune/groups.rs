//! Channels that can only be removed together, derived from a network's operations.

use super::PruneError;
use super::coupling::{DisjointSets, Span};
use super::operations::properties;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use stratus_graph::{Graph, NodeId, TensorId};

/// The maximum number of channels and features of all tensors together.
pub(super) const MAX_CHANNELS: usize = 1 << 24;

/// A channel of a feature map, or a feature of a vector.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Channel {
    /// The tensor.
    pub tensor: TensorId,
    /// The position among its channels or features.
    pub index: usize,
}

/// Channels that can only be removed together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unit {
    /// Its channels, sorted.
    pub channels: Vec<Channel>,
}

/// A tensor with channels of a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct GroupTensor {
    /// The tensor.
    pub tensor: TensorId,
    /// The number of its channels in each unit.
    pub channels_per_unit: usize,
}

/// Units that consist of channels of the same tensors. At least one of them always remains.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChannelGroup {
    /// The units, in the order of their first channels.
    pub units: Vec<Unit>,
    /// The tensors, in their order in the graph.
    pub tensors: Vec<GroupTensor>,
    /// The convolutions and linear layers with filters for these channels, in execution order.
    pub producers: Vec<NodeId>,
    /// The convolutions and linear layers that read these channels, in execution order.
    pub readers: Vec<NodeId>,
    /// False if a norm computes statistics over these channels, so that the removal of a channel of zeros
    /// changes the others.
    pub is_exact: bool,
}

/// Units to remove: their positions in groups, by the position of the group in [`channel_groups`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Selection {
    /// The positions of the removed units, by group.
    pub removed: BTreeMap<usize, BTreeSet<usize>>,
}

/// The channel groups of a network, in the order of their first channels.
///
/// # Errors
/// If the network is not valid or too large, or layers share a parameter.
pub fn channel_groups(graph: &Graph) -> Result<Vec<ChannelGroup>, PruneError> {
    graph.verify()?;
    check_ownership(graph)?;
    let spans = spans(graph)?;
    let mut groups = group_units(units(graph, &spans));
    add_layers(graph, &mut groups);
    Ok(groups)
}

/// Checks that no two layers own a parameter.
fn check_ownership(graph: &Graph) -> Result<(), PruneError> {
    let mut owned = vec![false; graph.parameters.len()];
    for id in graph.nodes.iter().flat_map(|node| &node.parameters) {
        if std::mem::replace(&mut owned[id.0], true) {
            return Err(PruneError::SharedParameter {
                network: graph.name.clone(),
                parameter: graph.parameters[id.0].name.clone(),
            });
        }
    }
    Ok(())
}

/// The element that stands for all channels that must stay: those of images and outputs.
const FIXED: usize = 0;

/// The elements of each tensor's channels, after [`FIXED`].
fn spans(graph: &Graph) -> Result<Vec<Span>, PruneError> {
    let mut end = FIXED + 1;
    let spans = graph.tensors.iter().map(|shape| {
        let (start, length) = (end, shape.0.first().copied().unwrap_or(0));
        end = end.saturating_add(length);
        Span { start, length }
    });
    let spans = spans.collect();
    if end > MAX_CHANNELS {
        let network = graph.name.clone();
        return Err(PruneError::TooLarge { network, channels: end, max: MAX_CHANNELS });
    }
    Ok(spans)
}

/// The units of a network, in the order of their first channels.
fn units(graph: &Graph, spans: &[Span]) -> Vec<Unit> {
    let elements = spans.last().map_or(FIXED + 1, |last| last.start + last.length);
    let mut sets = DisjointSets::new(elements);
    for node in &graph.nodes {
        let inputs: Vec<Span> = node.inputs.iter().map(|id| spans[id.0]).collect();
        properties(&node.op).coupling.unite(&inputs, spans[node.output.0], &mut sets);
    }
    let auxiliary = graph.auxiliary.iter().map(|auxiliary| auxiliary.output);
    for id in [graph.input, graph.output].into_iter().chain(auxiliary) {
        let Span { start, length } = spans[id.0];
        (start..start + length).for_each(|element| sets.unite(FIXED, element));
    }
    let written: BTreeSet<TensorId> = graph.nodes.iter().map(|node| node.output).collect();
    let mut units: Vec<Unit> = Vec::new();
    let mut positions = vec![usize::MAX; elements];
    for (tensor, span) in spans.iter().enumerate() {
        let tensor = TensorId(tensor);
        if !written.contains(&tensor) {
            continue;
        }
        for index in 0..span.length {
            let set = sets.representative(span.start + index);
            if set == FIXED {
                continue;
            }
            if positions[set] == usize::MAX {
                positions[set] = units.len();
                units.push(Unit { channels: Vec::new() });
            }
            units[positions[set]].channels.push(Channel { tensor, index });
        }
    }
    units
}

/// The groups of units with the same tensors.
fn group_units(units: Vec<Unit>) -> Vec<ChannelGroup> {
    let mut groups: Vec<ChannelGroup> = Vec::new();
    let mut positions: HashMap<Vec<GroupTensor>, usize> = HashMap::new();
    for unit in units {
        let runs = unit.channels.chunk_by(|one, next| one.tensor == next.tensor);
        let tensors: Vec<GroupTensor> =
            runs.map(|run| GroupTensor { tensor: run[0].tensor, channels_per_unit: run.len() }).collect();
        let position = *positions.entry(tensors).or_insert_with_key(|tensors| {
            groups.push(ChannelGroup {
                units: Vec::new(),
                tensors: tensors.clone(),
                producers: Vec::new(),
                readers: Vec::new(),
                is_exact: true,
            });
            groups.len() - 1
        });
        groups[position].units.push(unit);
    }
    groups
}

/// Adds the layers that produce and read each group.
fn add_layers(graph: &Graph, groups: &mut [ChannelGroup]) {
    let mut of_tensor: Vec<Vec<usize>> = vec![Vec::new(); graph.tensors.len()];
    for (position, group) in groups.iter().enumerate() {
        group.tensors.iter().for_each(|tensor| of_tensor[tensor.tensor.0].push(position));
    }
    for (position, node) in graph.nodes.iter().enumerate() {
        let properties = properties(&node.op);
        for &group in &of_tensor[node.output.0] {
            groups[group].is_exact &= !properties.mixes_channels;
        }
        if properties.weight().is_none() {
            continue;
        }
        of_tensor[node.output.0].iter().for_each(|&group| groups[group].producers.push(NodeId(position)));
        let read = node.inputs.first().map_or(&[][..], |input| &of_tensor[input.0]);
        read.iter().for_each(|&group| groups[group].readers.push(NodeId(position)));
    }
}
