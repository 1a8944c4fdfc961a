//! The names of layers: the prefixes of their weights' names, or else the nodes' names, valid in layer files.

use super::operators::activation_of;
use crate::proto::{Graph, Node};
use crate::tensor::is_float;
use std::collections::{HashMap, HashSet};

/// The maximum length of a name.
const MAX_NAME_CHARS: usize = 120;
/// The last components of parameter names.
const PARAMETER_SUFFIXES: [&str; 6] =
    ["weight", "bias", "running_mean", "running_var", "layer_scale", "gamma"];
/// Operators that are usually the only one of a PyTorch module, so that the module's path is the better name.
/// The operators of activations and of [`crate::ops`] are treated in the same way.
const MODULE_OPERATORS: [&str; 16] = [
    "Conv",
    "ConvTranspose",
    "Gemm",
    "MatMul",
    "BatchNormalization",
    "LayerNormalization",
    "Relu",
    "Swish",
    "Clip",
    "PRelu",
    "MaxPool",
    "AveragePool",
    "GlobalAveragePool",
    "Dropout",
    "Flatten",
    "Resize",
];

/// Operators that reshape or reorder weights without changing values.
const RELAYOUT_OPERATORS: [&str; 4] = ["Transpose", "Reshape", "Unsqueeze", "Squeeze"];

#[derive(Debug)]
pub(crate) struct Names {
    taken: HashSet<String>,
    /// The next number to append to a duplicate name.
    next: HashMap<String, usize>,
    /// The names of layers with weights, by the first output of the node.
    weighted: HashMap<String, String>,
    /// The number of weights that several nodes read.
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
        // Layer files reserve the name of the images.
        let mut names = Self {
            taken: HashSet::from(["input".to_owned()]),
            next: HashMap::new(),
            weighted: HashMap::new(),
            shared,
        };
        // A reshaped or reordered weight keeps its name.
        let mut moved: HashMap<&str, &str> = HashMap::new();
        for node in nodes() {
            if let (true, [weight, ..], [output]) =
                (RELAYOUT_OPERATORS.contains(&node.operator), &node.inputs[..], &node.outputs[..])
                && let Some(weight) =
                    uses.contains_key(weight).then_some(*weight).or_else(|| moved.get(weight).copied())
            {
                moved.insert(output, weight);
                continue;
            }
            let named = node.inputs.iter().map(|name| *moved.get(name).unwrap_or(name));
            let unshared = named.filter(|name| uses.get(name) == Some(&1));
            let named = unshared.filter_map(|name| {
                let (layer, part) = name.rsplit_once('.')?;
                PARAMETER_SUFFIXES.contains(&part).then(|| sanitised(layer)).filter(|layer| !layer.is_empty())
            });
            if let (Some(name), Some(output)) = (named.min_by_key(String::len), node.outputs.first()) {
                let name = names.unique(name);
                names.weighted.insert((*output).to_owned(), name);
            }
        }
        names
    }

    /// Returns a name for the layer of a node.
    pub fn for_node(&mut self, node: &Node<'_>) -> String {
        if let Some(name) = node.outputs.first().and_then(|output| self.weighted.get(*output)) {
            return name.clone();
        }
        let name = module(node);
        self.unique(if name.is_empty() { node.operator.to_lowercase() } else { name })
    }

    /// The name of the layer whose weights a node reads.
    pub fn weighted(&self, node: &Node<'_>) -> Option<String> {
        node.outputs.first().and_then(|output| self.weighted.get(*output)).cloned()
    }

    /// Returns a name for a layer of several nodes: that of the module that contains `node`.
    pub fn for_module(&mut self, node: &Node<'_>, otherwise: &str) -> String {
        let path = node.name.rsplit_once('/').map_or("", |(path, _)| path);
        let name = module(&Node { name: path, ..Default::default() });
        self.unique(if name.is_empty() { otherwise.to_owned() } else { name })
    }

    /// Returns the name of an existing layer with a suffix.
    pub fn with_suffix(&mut self, name: &str, suffix: &str) -> String {
        self.unique(format!("{name}.{suffix}"))
    }

    fn unique(&mut self, base: String) -> String {
        if self.taken.insert(base.clone()) {
            return base;
        }
        let number = self.next.entry(base.clone()).or_insert(2);
        loop {
            let name = format!("{base}_{number}");
            *number += 1;
            if self.taken.insert(name.clone()) {
                return name;
            }
        }
    }

    /// The number of weights that several nodes read.
    pub fn shared_weights(&self) -> usize {
        self.shared
    }

    pub fn notes(&self) -> Option<String> {
        let tensors = match self.shared {
            0 => return None,
            1 => "copied a weight".to_owned(),
            count => format!("copied {count} weights"),
        };
        Some(format!("{tensors} that several layers share: each layer has its own copy"))
    }
}

/// Replaces characters that are not allowed in the names of layer files: letters, digits, `_`, `-`, `.` are.
pub(super) fn sanitised(text: &str) -> String {
    let kept = |c: char| if c.is_ascii_alphanumeric() || "_-.".contains(c) { c } else { '_' };
    let name: String = text.chars().take(MAX_NAME_CHARS).map(kept).collect();
    name.trim_matches(['.', '_']).to_owned()
}

fn is_module_operator(operator: &str) -> bool {
    MODULE_OPERATORS.contains(&operator)
        || activation_of(operator).is_some()
        || crate::ops::signatures().any(|(name, ..)| *name == operator)
}

/// The module of a node. PyTorch's exporters name nodes `/layer1/layer1.0/relu_1/Relu` or `node_relu_1`.
pub(super) fn module(node: &Node<'_>) -> String {
    let mut parts: Vec<&str> = node.name.split('/').filter(|part| !part.is_empty()).collect();
    if let [.., _, last] = parts[..]
        && is_module_operator(last.trim_end_matches(|c: char| c.is_ascii_digit()).trim_end_matches('_'))
    {
        parts.pop();
    }
    let outer =
        |at: usize| parts.get(at + 1).and_then(|next| next.strip_prefix(parts[at])?.strip_prefix('.'));
    let kept: Vec<&str> = (0..parts.len()).filter(|&at| outer(at).is_none()).map(|at| parts[at]).collect();
    sanitised(kept.join(".").trim_start_matches("node_"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_layers_after_modules() {
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
        assert_eq!(sanitised(&"x/".repeat(200)).len(), MAX_NAME_CHARS - 1);
    }
}
