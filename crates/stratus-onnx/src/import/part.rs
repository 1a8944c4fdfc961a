//! The part of a graph that is imported: up to its logits, or up to a node that the user names.

use super::names::module;
use super::{display_name, operators};
use crate::error::{Parsed, Problem};
use crate::proto::{self, Node, is_onnx};
use std::collections::{HashMap, HashSet};
use stratus_base::printable;

/// The maximum number of nodes that a message suggests.
const MAX_SUGGESTIONS: usize = 4;
/// Operators whose output is no feature map, so that a network does not end with one.
const NO_FEATURES: [&str; 13] = [
    "Constant",
    "ConstantOfShape",
    "Shape",
    "Gather",
    "Cast",
    "Concat",
    "Unsqueeze",
    "Squeeze",
    "Slice",
    "Reshape",
    "Transpose",
    "Identity",
    "Expand",
];

/// The beginning of the note about a dropped sigmoid.
pub(super) const DROPPED_SIGMOID: &str = "dropped the last node, Sigmoid";

/// The end of the imported part.
pub(super) struct End<'a> {
    /// The name of the tensor.
    pub output: &'a str,
    /// The final softmax, which cross-entropy includes.
    pub softmax: Option<&'a Node<'a>>,
    /// True if a final sigmoid was dropped, which binary cross-entropy includes.
    pub drops_sigmoid: bool,
}

/// Finds the logits: the only output, or the input of a final softmax or sigmoid, which the loss includes.
/// With `until`, the output of that node.
pub(super) fn find_end<'a>(
    graph: &'a proto::Graph<'a>,
    opset: i64,
    until: Option<&str>,
    notes: &mut Vec<String>,
) -> Parsed<End<'a>> {
    if let Some(until) = until {
        return find_node(graph, until, notes);
    }
    let [output] = &graph.outputs[..] else {
        let names: Vec<String> = graph.outputs.iter().map(|output| printable(output.name)).collect();
        let remedy = if names.is_empty() {
            "export the network in inference mode, with its logits as the only output"
        } else {
            "import one of them, or the layers before them, with --until NODE"
        };
        let (count, names) = (names.len(), names.join(", "));
        let common = suggestions(&common_nodes(graph));
        let common = if common.is_empty() { String::new() } else { format!(", all computed from {common}") };
        return Err(Problem::UnsupportedModel {
            problem: format!("expected one output, found {count} ({names}){common}"),
            remedy,
        });
    };
    let producers: HashMap<&str, &Node<'a>> =
        graph.nodes.iter().filter_map(|node| Some((*node.outputs.first()?, node))).collect();
    let mut name = output.name;
    let (mut softmax, mut drops_sigmoid) = (None, false);
    // Each step visits another node, or a cycle, which the walk rejects later.
    for _ in 0..graph.nodes.len() {
        let Some(node) = producers.get(name).filter(|node| is_onnx(node.domain)) else { break };
        let Some(previous) = node.input(0).filter(|_| operators::check(node, opset).is_ok()) else { break };
        match node.operator {
            "Identity" => {}
            "Sigmoid" if softmax.is_none() && !drops_sigmoid => {
                notes.push(format!(
                    "{DROPPED_SIGMOID} `{}`: the loss includes it; train the network with \
                     --set train.loss=binary_cross_entropy",
                    printable(node.name)
                ));
                drops_sigmoid = true;
            }
            "Softmax" | "LogSoftmax" if softmax.is_none() && !drops_sigmoid => {
                notes.push(format!(
                    "dropped the last node, {} `{}`: the loss includes the softmax",
                    node.operator,
                    printable(node.name)
                ));
                softmax = Some(*node);
            }
            _ => break,
        }
        name = previous;
    }
    Ok(End { output: name, softmax, drops_sigmoid })
}

/// Finds the output of a node by the node's name, the name of its output, or that of its layer or of a module
/// that contains it, of which it is the last node.
fn find_node<'a>(graph: &'a proto::Graph<'a>, until: &str, notes: &mut Vec<String>) -> Parsed<End<'a>> {
    let named = |matches: &dyn Fn(&Node<'_>) -> bool| graph.nodes.iter().find(|node| matches(node));
    let node = named(&|node| !node.name.is_empty() && node.name == until)
        .or_else(|| named(&|node| node.outputs.contains(&until)))
        .or_else(|| graph.nodes.iter().rfind(|node| is_in_module(node, until)));
    let Some(node) = node else {
        let common = graph.nodes.iter().filter(|node| is_feature(node)).collect::<Vec<_>>();
        return Err(Problem::UnsupportedModel {
            problem: format!("no node is named `{}`", printable(until)),
            remedy: if common.is_empty() {
                "the model has no nodes"
            } else {
                "name a node or its output, as a viewer such as Netron shows it"
            },
        });
    };
    let output = node.outputs.iter().find(|name| **name == until).or_else(|| node.outputs.first());
    let output = output.copied().filter(|name| !name.is_empty());
    let output = output.ok_or_else(|| Problem::damaged(format!("`{}` has no output", printable(until))))?;
    let dropped = graph.nodes.len() - reachable_nodes(graph, output)?.len();
    let nodes = if dropped == 1 { "node" } else { "nodes" };
    let outputs: Vec<String> = graph
        .outputs
        .iter()
        .filter(|known| known.name != output)
        .map(|known| printable(known.name))
        .collect();
    let outputs =
        if outputs.is_empty() { String::new() } else { format!(", with the outputs {}", outputs.join(", ")) };
    let name = printable(display_name(node));
    notes.push(format!("imported up to {} `{name}`, dropped {dropped} {nodes}{outputs}", node.operator));
    Ok(End { output, softmax: None, drops_sigmoid: false })
}

/// Returns whether a node belongs to a module, by its path, as PyTorch and TensorFlow name nodes.
fn is_in_module(node: &Node<'_>, until: &str) -> bool {
    let is_named = |name| module(&Node { name, ..Node::default() }) == until;
    let mut containing = node.name.match_indices('/').map(|(end, _)| &node.name[..end]);
    !["Constant", "ConstantOfShape", "Shape"].contains(&node.operator)
        && (is_named(node.name) || containing.any(is_named))
}

/// Returns whether a network may end with a node.
fn is_feature(node: &Node<'_>) -> bool {
    is_onnx(node.domain) && !NO_FEATURES.contains(&node.operator)
}

/// The nodes that all outputs depend on, in order.
fn common_nodes<'a>(graph: &'a proto::Graph<'a>) -> Vec<&'a Node<'a>> {
    let reached: Vec<HashSet<usize>> = graph
        .outputs
        .iter()
        .filter_map(|output| reachable_nodes(graph, output.name).ok())
        .map(|nodes| nodes.into_iter().collect())
        .collect();
    let is_common =
        |position: &usize| !reached.is_empty() && reached.iter().all(|one| one.contains(position));
    (0..graph.nodes.len()).filter(is_common).map(|position| &graph.nodes[position]).collect()
}

/// The last of these nodes that a network may end with, for a message.
pub(super) fn suggestions(nodes: &[&Node<'_>]) -> String {
    let features = nodes.iter().rev().filter(|node| is_feature(node)).take(MAX_SUGGESTIONS);
    let names: Vec<String> = features.map(|node| format!("`{}`", printable(display_name(node)))).collect();
    names.join(", ")
}

/// The positions of the nodes that the output depends on, in order.
pub(super) fn reachable_nodes(graph: &proto::Graph<'_>, output: &str) -> Parsed<Vec<usize>> {
    let mut produced = HashSet::new();
    for node in &graph.nodes {
        if let Some(duplicate) = node.outputs.iter().find(|name| !name.is_empty() && !produced.insert(**name))
        {
            return Err(Problem::damaged(format!("duplicate output `{}`", printable(duplicate))));
        }
    }
    let mut needed = HashSet::from([output]);
    let mut live = Vec::new();
    for (position, node) in graph.nodes.iter().enumerate().rev() {
        if node.outputs.iter().any(|name| needed.contains(name)) {
            needed.extend(node.inputs.iter().filter(|name| !name.is_empty()));
            live.push(position);
        }
    }
    live.reverse();
    Ok(live)
}
