//! Multiply-adds of a network and of its layers with fewer channels.

use super::coupling::Coupling;
use super::operations::{ParameterAxes, properties};
use stratus_graph::{Graph, Node};

/// The multiply-adds of one sample's forward pass: those of convolutions, transposed convolutions and linear
/// layers, as usual in publications. Norms, activations, poolings and biases are not counted. Layers of
/// auxiliary outputs are, unless they were removed by [`Graph::for_inference`].
#[must_use]
pub fn multiply_adds(graph: &Graph) -> u64 {
    layer_multiply_adds(graph).map(|(_, count)| count).fold(0, u64::saturating_add)
}

/// The multiply-adds of each layer that [`multiply_adds`] counts, by its name.
pub fn layer_multiply_adds(graph: &Graph) -> impl Iterator<Item = (&str, u64)> {
    let channels = |tensor| graph.shape(tensor).0.first().copied().unwrap_or(0);
    graph.nodes.iter().filter_map(move |node| {
        let cost = LayerCost::of(graph, node)?;
        Some((&node.name[..], cost.multiply_adds(channels(node.inputs[0]), channels(node.output))))
    })
}

/// The multiply-adds of a layer as a function of its channels: `factor * in * out / groups`.
#[derive(Clone, Copy, Debug)]
pub(super) struct LayerCost {
    /// Uses of an element of the weight, times elements of a kernel.
    factor: u64,
    /// The number of groups, which stays.
    groups: u64,
    /// The output channels of a group, if whole groups are removed.
    out_of_group: Option<u64>,
}

impl LayerCost {
    /// The cost of a layer with a weight from input to output channels.
    pub(super) fn of(graph: &Graph, node: &Node) -> Option<Self> {
        let properties = properties(&node.op);
        let (position, axes) = properties.weight()?;
        let weight = &graph.parameters[node.parameters[position].0].shape;
        let kernel: usize = weight.iter().skip(2).product();
        let input = *node.inputs.first()?;
        // A transposed convolution uses its weights once per input pixel.
        let used = if axes == ParameterAxes::InputByOutput { input } else { node.output };
        let extents = |tensor| &graph.shape(tensor).0;
        let uses = extents(used).iter().skip(1).fold(1, |product: u64, &e| product.saturating_mul(e as u64));
        let groups = properties.coupling.groups();
        let out_of_group = match properties.coupling {
            Coupling::WholeGroups { .. } => extents(node.output).first().map(|&out| (out / groups) as u64),
            _ => None,
        };
        Some(Self { factor: uses.saturating_mul(kernel as u64), groups: groups as u64, out_of_group })
    }

    /// The multiply-adds with these channels of the first input and the output.
    pub(super) fn multiply_adds(&self, input: usize, output: usize) -> u64 {
        let out = self.out_of_group.unwrap_or(output as u64 / self.groups);
        self.factor.saturating_mul(input as u64).saturating_mul(out)
    }
}
