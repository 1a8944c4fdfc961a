//! The data of the layers for the script. Times are in the cells of the table of layers.

use serde::Serialize;

use crate::report::{LayerKernel, NodeMemory, RunReport};

/// The layers of a run.
#[derive(Default, Serialize)]
pub(super) struct LayerData<'a> {
    /// Blocks and layers, as in the tree.
    nodes: Vec<NodeData<'a>>,
    /// Facts about layers, by their rows in the accounting; empty if the plan cannot be read.
    details: Vec<Option<LayerDetails<'a>>>,
}

#[derive(Serialize)]
struct NodeData<'a> {
    name: &'a str,
    parent: Option<usize>,
    end: usize,
    row: Option<usize>,
    memory: Option<NodeMemory>,
}

#[derive(Serialize)]
struct LayerDetails<'a> {
    device: &'a str,
    inputs: &'a [String],
    outputs: &'a [String],
    kernels: &'a [LayerKernel],
}

impl<'a> LayerData<'a> {
    pub(super) fn new(run: &'a RunReport) -> Self {
        let nodes = run.layers.tree.nodes.iter().map(|node| NodeData {
            name: &node.name,
            parent: node.parent,
            end: node.end,
            row: node.row,
            memory: node.memory,
        });
        let rows = &run.accounting.layers;
        let network = run.layers.network.as_ref();
        let layers = network.map_or(Vec::new(), |network| network.by_row(rows.len()));
        let details = layers.into_iter().zip(rows).map(|(layer, row)| {
            layer.map(|layer| LayerDetails {
                device: &row.device,
                inputs: &layer.inputs,
                outputs: &layer.outputs,
                kernels: &layer.kernels,
            })
        });
        Self { nodes: nodes.collect(), details: details.collect() }
    }
}
