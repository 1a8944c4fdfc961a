//! The images that a network reads, and the softmax after its logits.

use super::{DimOrder, ImportOptions, Importer, MAX_DIM, Value, unsupported_node};
use crate::error::{Parsed, Problem};
use crate::proto::{self, Node, ValueInfo};
use crate::tensor::{self, kind};
use std::collections::HashMap;
use stratus_base::printable;

/// The input of a network.
pub(super) struct InputSpec<'a> {
    pub name: &'a str,
    pub order: DimOrder,
    /// The batch size; 1 if it is dynamic.
    pub batch: i64,
    /// The channels, height and width.
    pub shape: [usize; 3],
    /// The size of the model's own images, if it is fixed and another was given.
    pub replaced: Option<[usize; 2]>,
}

/// Returns whether the first node that reads the images moves their channels to the front.
pub(super) fn is_channels_last<'a>(nodes: impl IntoIterator<Item = &'a Node<'a>>, images: &str) -> bool {
    let reader = nodes.into_iter().find(|node| node.inputs.contains(&images));
    reader.is_some_and(|node| {
        node.operator == "Transpose" && node.attribute("perm").is_some_and(|perm| perm.ints == [0, 3, 1, 2])
    })
}

pub(super) fn input_spec<'a>(
    graph: &'a proto::Graph<'a>,
    live: &[usize],
    initialisers: &HashMap<&str, Value>,
    options: &ImportOptions,
) -> Parsed<InputSpec<'a>> {
    // Old models list initialisers among the inputs.
    let inputs: Vec<&ValueInfo<'a>> =
        graph.inputs.iter().filter(|input| !initialisers.contains_key(input.name)).collect();
    let [input] = inputs[..] else {
        let names: Vec<String> = inputs.iter().map(|input| printable(input.name)).collect();
        return Err(Problem::UnsupportedModel {
            problem: format!("expected one input, found {} ({})", names.len(), names.join(", ")),
            remedy: "export the network with images as its only input",
        });
    };
    let name = printable(input.name);
    if !tensor::is_float(input.kind) {
        return Err(Problem::UnsupportedModel {
            problem: format!(
                "its input `{name}` has type {}, expected floating point",
                kind::name(input.kind)
            ),
            remedy: "export the network without its preprocessing",
        });
    }
    let channels_last = is_channels_last(live.iter().map(|&node| &graph.nodes[node]), input.name);
    let order = if channels_last { DimOrder::ChannelsLast } else { DimOrder::ChannelsFirst };
    let dims: [Option<i64>; 3] = match input.shape.as_deref() {
        Some(&[_, a, b, c]) => {
            if channels_last {
                [c, a, b]
            } else {
                [a, b, c]
            }
        }
        None => [None; 3],
        Some(other) => {
            return Err(Problem::UnsupportedModel {
                problem: format!("its input `{name}` has {} dimensions, expected 4", other.len()),
                remedy: "images are [batch, channels, height, width]",
            });
        }
    };
    let mut shape = [0; 3];
    for (axis, dim) in dims.into_iter().enumerate() {
        // Some writers use 0 or -1 for a dynamic dimension.
        let known = dim.filter(|&dim| dim > 0).and_then(|dim| usize::try_from(dim).ok());
        let given = options.input.map(|input| input[axis]);
        shape[axis] = match (known, given) {
            (Some(_), Some(given)) if axis > 0 => given,
            (Some(known), Some(given)) if known != given => {
                return Err(Problem::UnsupportedModel {
                    problem: format!(
                        "its input `{name}` has {} {known}, not {given}",
                        ["channels", "height", "width"][axis]
                    ),
                    remedy: "pass the --input of the model, or omit it",
                });
            }
            (Some(dim), _) | (None, Some(dim)) => dim,
            (None, None) => {
                return Err(Problem::UnsupportedModel {
                    problem: format!(
                        "its input `{name}` has dynamic {}",
                        ["channels", "height", "width"][axis]
                    ),
                    remedy: "pass the image size: --input CHANNELS,HEIGHT,WIDTH",
                });
            }
        };
    }
    if shape.iter().any(|&dim| dim == 0 || dim > MAX_DIM) {
        return Err(Problem::UnsupportedModel {
            problem: format!("its input `{name}` has channels, height and width {shape:?}"),
            remedy: "each must be from 1 to 1048576",
        });
    }
    let batch =
        input.shape.as_ref().and_then(|shape| *shape.first()?).filter(|&batch| batch > 0).unwrap_or(1);
    let fixed = [1, 2].map(|axis| dims[axis].filter(|&dim| dim > 0).map_or(shape[axis], |dim| dim as usize));
    let replaced = (fixed != shape[1..]).then_some(fixed);
    Ok(InputSpec { name: input.name, order, batch, shape, replaced })
}

impl Importer<'_> {
    /// Checks that the dropped softmax is that of the loss: over the classes, for each sample or pixel.
    pub(super) fn check_softmax_axis(&self, node: &Node<'_>, shape: &[usize]) -> Parsed<()> {
        let rank = shape.len() + 1;
        // Up to set 12, the softmax is over all dimensions from the axis on; of a map of one pixel these are
        // the classes.
        let joined = self.opset < 13;
        let axis = node.attribute("axis").map_or(if joined { 1 } else { -1 }, |axis| axis.int);
        let position = if axis < 0 { axis.saturating_add(rank as i64) } else { axis };
        if position == 1 && (!joined || shape[1..].iter().all(|&dim| dim == 1)) {
            return Ok(());
        }
        let reason = format!(
            "unsupported `axis` {axis} of {rank} dimensions in operator set {}, expected the classes, \
             dimension 1: export the network up to its logits",
            self.opset
        );
        let nodes = vec![unsupported_node(node, reason)];
        Err(Problem::UnsupportedNodes { nodes, last_supported: String::new() })
    }
}
