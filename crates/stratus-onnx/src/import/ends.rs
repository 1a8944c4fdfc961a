//! Where a network begins and ends: the images, and the logits before a softmax.

use super::{Importer, LARGEST, Options, Order, Value, operators, refusal};
use crate::error::{Parsed, Problem};
use crate::proto::{self, Node, ValueInfo, is_onnx};
use crate::tensor;
use std::collections::HashMap;
use stratus_base::printable;

/// The name of the logits: the one output, before the softmax that the loss has of its own, and that softmax.
pub(super) fn output<'a>(
    graph: &'a proto::Graph<'a>,
    opset: i64,
    notes: &mut Vec<String>,
) -> Parsed<(&'a str, Option<&'a Node<'a>>)> {
    let [output] = &graph.outputs[..] else {
        let names: Vec<String> = graph.outputs.iter().map(|output| printable(output.name)).collect();
        return Err(Problem::Kind {
            what: format!("it has {} outputs ({})", names.len(), names.join(", ")),
            remedy: "export the network in inference mode, with its logits as the only output",
        });
    };
    let makers: HashMap<&str, &Node<'a>> =
        graph.nodes.iter().filter_map(|node| Some((*node.outputs.first()?, node))).collect();
    let mut name = output.name;
    let mut softmax = None;
    // Every step goes to another node, or round in a circle that the walk refuses.
    for _ in 0..graph.nodes.len() {
        let Some(node) = makers.get(name).filter(|node| is_onnx(node.domain)) else { break };
        let Some(before) = node.input(0).filter(|_| operators::check(node, opset).is_ok()) else { break };
        match node.operator {
            "Identity" => {}
            "Softmax" | "LogSoftmax" if softmax.is_none() => {
                notes.push(format!(
                    "the last node, {} `{}`, is left out: the loss has a softmax of its own",
                    node.operator,
                    printable(node.name)
                ));
                softmax = Some(*node);
            }
            _ => break,
        }
        name = before;
    }
    Ok((name, softmax))
}

/// What a network reads.
pub(super) struct Images<'a> {
    pub name: &'a str,
    pub order: Order,
    /// How many there are; 1 where that is open.
    pub batch: i64,
    /// Channels, height and width.
    pub shape: [usize; 3],
}

pub(super) fn images<'a>(
    graph: &'a proto::Graph<'a>,
    live: &[usize],
    initialisers: &HashMap<&str, Value>,
    options: &Options,
) -> Parsed<Images<'a>> {
    // Models of the first years list initialisers among the inputs.
    let inputs: Vec<&ValueInfo<'a>> =
        graph.inputs.iter().filter(|input| !initialisers.contains_key(input.name)).collect();
    let [input] = inputs[..] else {
        let names: Vec<String> = inputs.iter().map(|input| printable(input.name)).collect();
        return Err(Problem::Kind {
            what: format!("it has {} inputs ({})", names.len(), names.join(", ")),
            remedy: "a network here reads images and nothing else",
        });
    };
    let name = printable(input.name);
    if !tensor::is_float(input.kind) {
        return Err(Problem::Kind {
            what: format!("its input `{name}` is of ONNX's type {}", input.kind),
            remedy: "images are floating-point numbers here: export the network without its preprocessing",
        });
    }
    let first = live.iter().map(|&node| &graph.nodes[node]).find(|node| node.inputs.contains(&input.name));
    let last = first.is_some_and(|node| {
        node.operator == "Transpose" && node.attribute("perm").is_some_and(|perm| perm.ints == [0, 3, 1, 2])
    });
    let order = if last { Order::ChannelsLast } else { Order::Plain };
    let extents: [Option<i64>; 3] = match input.shape.as_deref() {
        Some(&[_, a, b, c]) => {
            if last {
                [c, a, b]
            } else {
                [a, b, c]
            }
        }
        None => [None; 3],
        Some(other) => {
            return Err(Problem::Kind {
                what: format!("its input `{name}` has {} dimensions", other.len()),
                remedy: "images have four: batch, channels, height, width",
            });
        }
    };
    let mut shape = [0; 3];
    for (axis, extent) in extents.into_iter().enumerate() {
        // Some writers have 0 or -1 for an extent that is open.
        let known = extent.filter(|&extent| extent > 0).and_then(|extent| usize::try_from(extent).ok());
        let given = options.input.map(|input| input[axis]);
        shape[axis] = match (known, given) {
            (Some(known), Some(given)) if known != given => {
                return Err(Problem::Kind {
                    what: format!(
                        "its input `{name}` has the {} {known}, {given} was given",
                        ["channels", "height", "width"][axis]
                    ),
                    remedy: "give --input as the model has it, or leave it out",
                });
            }
            (Some(extent), _) | (None, Some(extent)) => extent,
            (None, None) => {
                return Err(Problem::Kind {
                    what: format!(
                        "its input `{name}` leaves its {} open",
                        ["channels", "height", "width"][axis]
                    ),
                    remedy: "say how large images are: --input CHANNELS,HEIGHT,WIDTH",
                });
            }
        };
    }
    if shape.iter().any(|&extent| extent == 0 || extent > LARGEST) {
        return Err(Problem::Kind {
            what: format!("its input `{name}` has channels, height and width {shape:?}"),
            remedy: "each is from 1 to 1048576",
        });
    }
    let batch =
        input.shape.as_ref().and_then(|shape| *shape.first()?).filter(|&batch| batch > 0).unwrap_or(1);
    Ok(Images { name: input.name, order, batch, shape })
}

impl Importer<'_> {
    /// Whether the softmax that is left out is that of the loss: over the classes, of each sample or pixel.
    pub(super) fn over_classes(&self, node: &Node<'_>, rank: usize) -> Parsed<()> {
        // Up to set 12 all dimensions from the axis on are one.
        let joined = self.opset < 13;
        let axis = node.attribute("axis").map_or(if joined { 1 } else { -1 }, |axis| axis.int);
        let place = if axis < 0 { axis.saturating_add(rank as i64) } else { axis };
        if place == 1 && (rank == 2 || !joined) {
            return Ok(());
        }
        let reason = format!(
            "its `axis` is {axis}, of {rank} dimensions in operator set {}; only a softmax over the classes, \
             dimension 1, is left out: export the network up to its logits",
            self.opset
        );
        Err(Problem::Nodes(vec![refusal(node, reason)]))
    }
}
