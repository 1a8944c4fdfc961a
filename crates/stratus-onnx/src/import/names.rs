//! Layers' names: those that the weights' names begin with, else the nodes', made fit for a layer file.

use crate::proto::{Graph, Node};
use crate::tensor::is_float;
use std::collections::{HashMap, HashSet};

/// The longest name, in bytes.
const LONGEST: usize = 120;
/// The last parts of the names of parameters.
const PARAMETERS: [&str; 6] = ["weight", "bias", "running_mean", "running_var", "layer_scale", "gamma"];
/// Operators that a module of PyTorch usually has to itself: its path is the better name.
const MODULES: [&str; 20] = [
    "Conv",
    "ConvTranspose",
    "Gemm",
    "MatMul",
    "BatchNormalization",
    "LayerNormalization",
    "Relu",
    "Gelu",
    "Sigmoid",
    "HardSigmoid",
    "HardSwish",
    "Swish",
    "Clip",
    "MaxPool",
    "AveragePool",
    "GlobalAveragePool",
    "Dropout",
    "Flatten",
    "LRN",
    "Resize",
];

/// What moves weights without changing a number.
const MOVES: [&str; 4] = ["Transpose", "Reshape", "Unsqueeze", "Squeeze"];

#[derive(Debug)]
pub(super) struct Names {
    taken: HashSet<String>,
    /// The number that the next of a name gets: a file may call everything alike.
    next: HashMap<String, usize>,
    /// The names of layers with weights, by the node's first output.
    weighted: HashMap<String, String>,
    /// Weights that several nodes read.
    shared: usize,
}

impl Names {
    pub fn new(graph: &Graph<'_>, live: &[usize]) -> Self {
        let mut uses: HashMap<&str, usize> =
            graph.initialisers.iter().map(|tensor| (tensor.name, 0)).collect();
        let nodes = || live.iter().map(|&node| &graph.nodes[node]);
        for name in nodes().flat_map(|node| &node.inputs) {
            uses.entry(name).and_modify(|count| *count += 1);
        }
        let weights =
            graph.initialisers.iter().filter(|tensor| !tensor.dimensions.is_empty() && is_float(tensor.kind));
        let shared = weights.filter(|tensor| uses[tensor.name] > 1).count();
        // How a layer file names the images.
        let mut names = Self {
            taken: HashSet::from(["input".to_owned()]),
            next: HashMap::new(),
            weighted: HashMap::new(),
            shared,
        };
        // A weight in another shape or order is known by its own name.
        let mut moved: HashMap<&str, &str> = HashMap::new();
        for node in nodes() {
            if let (true, [weight, ..], [output]) =
                (MOVES.contains(&node.operator), &node.inputs[..], &node.outputs[..])
                && let Some(weight) =
                    uses.contains_key(weight).then_some(*weight).or_else(|| moved.get(weight).copied())
            {
                moved.insert(output, weight);
                continue;
            }
            let named = node.inputs.iter().map(|name| *moved.get(name).unwrap_or(name));
            let own = named.filter(|name| uses.get(name) == Some(&1));
            let named = own.filter_map(|name| {
                let (layer, part) = name.rsplit_once('.')?;
                PARAMETERS.contains(&part).then(|| plain(layer)).filter(|layer| !layer.is_empty())
            });
            if let (Some(name), Some(output)) = (named.min_by_key(String::len), node.outputs.first()) {
                let name = names.unique(name);
                names.weighted.insert((*output).to_owned(), name);
            }
        }
        names
    }

    /// The name of a node's layer.
    pub fn of(&mut self, node: &Node<'_>) -> String {
        if let Some(name) = node.outputs.first().and_then(|output| self.weighted.get(*output)) {
            return name.clone();
        }
        let name = module(node);
        self.unique(if name.is_empty() { node.operator.to_lowercase() } else { name })
    }

    /// The name of a layer of several nodes, of which this is one: that of the module around them.
    pub fn around(&mut self, node: &Node<'_>, otherwise: &str) -> String {
        let path = node.name.rsplit_once('/').map_or("", |(path, _)| path);
        let name = module(&Node { name: path, ..Default::default() });
        self.unique(if name.is_empty() { otherwise.to_owned() } else { name })
    }

    /// A name like that of a layer there is.
    pub fn beside(&mut self, name: &str, part: &str) -> String {
        self.unique(format!("{name}.{part}"))
    }

    fn unique(&mut self, wanted: String) -> String {
        if self.taken.insert(wanted.clone()) {
            return wanted;
        }
        let number = self.next.entry(wanted.clone()).or_insert(2);
        loop {
            let name = format!("{wanted}_{number}");
            *number += 1;
            if self.taken.insert(name.clone()) {
                return name;
            }
        }
    }

    pub fn notes(&self) -> Option<String> {
        let tensors = match self.shared {
            0 => return None,
            1 => "a tensor of weights belongs".to_owned(),
            count => format!("{count} tensors of weights belong"),
        };
        Some(format!("{tensors} to several layers in the file; here each has a copy of its own"))
    }
}

/// What of a text a layer file takes for a name: letters, digits, `_`, `-`, `.`.
pub(super) fn plain(text: &str) -> String {
    let kept = |c: char| if c.is_ascii_alphanumeric() || "_-.".contains(c) { c } else { '_' };
    let name: String = text.chars().take(LONGEST).map(kept).collect();
    name.trim_matches(['.', '_']).to_owned()
}

/// The module of a node: PyTorch's exporters call nodes `/layer1/layer1.0/relu_1/Relu` or `node_relu_1`.
fn module(node: &Node<'_>) -> String {
    let mut parts: Vec<&str> = node.name.split('/').filter(|part| !part.is_empty()).collect();
    if let [.., _, last] = parts[..]
        && MODULES.contains(&last.trim_end_matches(|c: char| c.is_ascii_digit()).trim_end_matches('_'))
    {
        parts.pop();
    }
    let outer =
        |at: usize| parts.get(at + 1).and_then(|next| next.strip_prefix(parts[at])?.strip_prefix('.'));
    let kept: Vec<&str> = (0..parts.len()).filter(|&at| outer(at).is_none()).map(|at| parts[at]).collect();
    plain(kept.join(".").trim_start_matches("node_"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_of_modules() {
        for (name, expected) in [
            ("/layer1/layer1.0/relu_1/Relu", "layer1.0.relu_1"),
            ("/layer1/layer1.0/Add", "layer1.0.Add"),
            ("/features/features.3/conv/conv.1/Conv_2", "features.3.conv.1"),
            ("node_relu_3", "relu_3"),
            ("/Flatten", "Flatten"),
            ("StatefulPartitionedCall/model/re lu", "StatefulPartitionedCall.model.re_lu"),
            ("layer2.1.conv1", "layer2.1.conv1"),
            ("", ""),
            ("//", ""),
        ] {
            assert_eq!(module(&Node { name, ..Default::default() }), expected);
        }
        assert_eq!(plain(&"x/".repeat(200)).len(), LONGEST - 1);
    }
}
