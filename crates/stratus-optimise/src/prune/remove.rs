//! The network without the channels of a selection.

use super::coupling::Coupling;
use super::operations::{ParameterAxes, Properties, Remaining, properties, resize};
use super::{ChannelGroup, PruneError, Selection, channel_groups};
use crate::{Model, ModelError};
use std::collections::BTreeMap;
use stratus_graph::{Graph, Initialisation, Node, Op, Operation, Parameter, ParameterSpec, TensorId};

/// The network without the selected channels, with the remaining values of its parameters. Layers and
/// parameters keep their names. Values of parameters that the network lacks are dropped.
///
/// # Errors
/// If the selection is not one of the network's groups or empties a group, or a parameter has no values or
/// the wrong number of values.
pub fn remove(model: &Model, selection: &Selection) -> Result<Model, PruneError> {
    let removal = Removal::new(&model.graph, selection)?;
    let mut values = BTreeMap::new();
    for node in &model.graph.nodes {
        let kept = removal.of(node);
        for (id, axes) in node.parameters.iter().zip(kept.properties.parameters) {
            let parameter = &model.graph.parameters[id.0];
            let remaining = gather(values_of(model, parameter)?, &parameter.shape, &kept.axes(*axes));
            values.insert(parameter.name.clone(), remaining);
        }
    }
    // Parameters that no layer owns.
    for parameter in &model.graph.parameters {
        if !values.contains_key(&parameter.name) {
            values.insert(parameter.name.clone(), values_of(model, parameter)?.to_vec());
        }
    }
    Ok(Model { graph: removal.graph()?, values })
}

/// [`remove`] for a network without weights.
///
/// # Errors
/// If the selection is not one of the network's groups or empties a group.
pub fn remove_from_graph(graph: &Graph, selection: &Selection) -> Result<Graph, PruneError> {
    Removal::new(graph, selection)?.graph()
}

/// The values of a parameter, as many as it has elements.
pub(super) fn values_of<'a>(model: &'a Model, parameter: &Parameter) -> Result<&'a [f32], ModelError> {
    let name = || parameter.name.clone();
    let values =
        model.values.get(&parameter.name).ok_or_else(|| ModelError::Missing { parameter: name() })?;
    if values.len() == parameter.elements() {
        return Ok(values);
    }
    Err(ModelError::Size { parameter: name(), values: values.len(), shape: parameter.shape.clone() })
}

/// A network with the channels that remain of each tensor.
struct Removal<'a> {
    graph: &'a Graph,
    /// The remaining channels of each tensor, in ascending order.
    kept: Vec<Vec<usize>>,
}

/// The remaining channels around a layer.
struct KeptOfLayer<'a> {
    properties: Properties,
    /// Remaining channels of the first input and of the output.
    input: &'a [usize],
    output: &'a [usize],
    /// Channels of the first input and of the output before the removal.
    channels: [usize; 2],
}

impl<'a> Removal<'a> {
    fn new(graph: &'a Graph, selection: &Selection) -> Result<Self, PruneError> {
        let groups = channel_groups(graph)?;
        check_selection(graph, &groups, selection)?;
        let channels = graph.tensors.iter().map(|shape| shape.0.first().copied().unwrap_or(0));
        let mut is_kept: Vec<Vec<bool>> = channels.map(|channels| vec![true; channels]).collect();
        for (&group, units) in &selection.removed {
            for channel in units.iter().flat_map(|&unit| &groups[group].units[unit].channels) {
                is_kept[channel.tensor.0][channel.index] = false;
            }
        }
        let positions =
            |flags: Vec<bool>| flags.iter().enumerate().filter(|(_, kept)| **kept).map(|(n, _)| n).collect();
        Ok(Self { graph, kept: is_kept.into_iter().map(positions).collect() })
    }

    fn of(&self, node: &Node) -> KeptOfLayer<'_> {
        let first = node.inputs.first().copied().unwrap_or(node.output);
        let channels = |id: TensorId| self.graph.shape(id).0.first().copied().unwrap_or(0);
        KeptOfLayer {
            properties: properties(&node.op),
            input: &self.kept[first.0],
            output: &self.kept[node.output.0],
            channels: [channels(first), channels(node.output)],
        }
    }

    /// The smaller network.
    fn graph(&self) -> Result<Graph, PruneError> {
        let mut graph = self.graph.clone();
        for (shape, kept) in graph.tensors.iter_mut().zip(&self.kept) {
            shape.0.iter_mut().take(1).for_each(|channels| *channels = kept.len());
        }
        for (node, before) in graph.nodes.iter_mut().zip(&self.graph.nodes) {
            node.op = resize(&before.op, self.of(before).remaining());
            let specs = node.op.parameters().into_iter().zip(before.op.parameters());
            for (id, (spec, spec_before)) in node.parameters.iter().zip(specs) {
                let parameter = &mut graph.parameters[id.0];
                let ops = [&before.op, &node.op];
                parameter.initialisation =
                    initialisation(parameter.initialisation, ops, [&spec_before, &spec]);
                parameter.shape = spec.shape;
            }
        }
        graph.verify()?;
        Ok(graph)
    }
}

/// The initialisation of a parameter of the smaller network. One that follows from the sizes of the layer
/// follows from its new sizes; others stay. Whitening needs all filters, so it becomes the default.
fn initialisation(found: Initialisation, ops: [&Op; 2], specs: [&ParameterSpec; 2]) -> Initialisation {
    let [kaiming_before, kaiming] = ops.map(|op| op.fan_out().map(Initialisation::kaiming_normal));
    let [before, after] = specs;
    match (found, before.initialisation, after.initialisation) {
        _ if before.shape == after.shape => found,
        (
            Initialisation::Dirac { bound },
            Initialisation::Uniform { bound: default },
            Initialisation::Uniform { bound: new },
        ) if bound == default => Initialisation::Dirac { bound: new },
        _ if found == before.initialisation || found == Initialisation::Whitening => after.initialisation,
        _ if Some(found) == kaiming_before => kaiming.unwrap_or(found),
        _ => found,
    }
}

/// Checks that the selected units exist and that a unit of each group remains.
fn check_selection(graph: &Graph, groups: &[ChannelGroup], selection: &Selection) -> Result<(), PruneError> {
    let mismatch = |problem: String| PruneError::Mismatch { network: graph.name.clone(), problem };
    for (&position, units) in &selection.removed {
        let group = groups.get(position).ok_or_else(|| {
            mismatch(format!("channel group {position} was selected, but there are {}", groups.len()))
        })?;
        let count = group.units.len();
        if let Some(unit) = units.last().filter(|unit| **unit >= count) {
            return Err(mismatch(format!(
                "unit {unit} of channel group {position} was selected, but it has {count}"
            )));
        }
        if units.len() == count {
            return Err(mismatch(format!("all {count} units of channel group {position} were selected")));
        }
    }
    Ok(())
}

impl KeptOfLayer<'_> {
    fn remaining(&self) -> Remaining {
        let first = match self.properties.coupling {
            Coupling::Sliced { first } => first,
            _ => 0,
        };
        let before_slice = self.input.partition_point(|&channel| channel < first);
        Remaining { input: self.input.len(), output: self.output.len(), before_slice }
    }

    /// The kept positions of a parameter's first two axes; `None` for an axis that stays.
    fn axes(&self, axes: ParameterAxes) -> [Option<Vec<usize>>; 2] {
        let of_group = |position: usize, kept: &[usize]| {
            Some(self.properties.coupling.kept_of_group(self.channels[position], kept))
        };
        match axes {
            ParameterAxes::OutputByInput => [Some(self.output.to_vec()), of_group(0, self.input)],
            ParameterAxes::InputByOutput => [Some(self.input.to_vec()), of_group(1, self.output)],
            ParameterAxes::PerChannel => [Some(self.output.to_vec()), None],
            ParameterAxes::Shared => [None, None],
        }
    }
}

/// The values at these positions of the first two axes of a row-major tensor.
fn gather(values: &[f32], shape: &[usize], axes: &[Option<Vec<usize>>; 2]) -> Vec<f32> {
    let Some(rows) = &axes[0] else { return values.to_vec() };
    let row: usize = shape.iter().skip(1).product();
    let rows = rows.iter().map(|&at| &values[at * row..(at + 1) * row]);
    let Some(columns) = &axes[1] else { return rows.flatten().copied().collect() };
    let cell: usize = shape.iter().skip(2).product();
    rows.flat_map(|row| columns.iter().flat_map(move |&at| &row[at * cell..(at + 1) * cell]))
        .copied()
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gather_selects_rows_and_columns() {
        let values: Vec<f32> = (0..12u8).map(f32::from).collect();
        let gather = |axes| gather(&values, &[2, 3, 2], &axes);
        assert_eq!(gather([Some(vec![1]), Some(vec![0, 2])]), [6.0, 7.0, 10.0, 11.0]);
        assert_eq!(gather([Some(vec![0]), None]), [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]);
        assert_eq!(gather([None, None]), values);
    }
}
