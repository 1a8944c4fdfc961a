//! The layers of a network as a tree of blocks, by the dots of their names. The time of a block is the sum of
//! its layers' times.

use std::collections::HashMap;
use std::ops::Range;

use serde::Serialize;

use super::cost::RooflineData;
use super::network::{Network, NetworkLayer, NodeMemory};
use crate::accounting::{Accounting, LayerCost};

/// Maximum number of blocks and layers of curves, charts and tables of a whole network.
pub(crate) const MAX_BLOCKS: usize = 24;
/// Maximum number of blocks around a layer; further dots belong to its label.
const MAX_DEPTH: usize = 16;

/// The layers of a network, and the blocks that contain them.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct LayerTree {
    /// Each block is followed by everything in it, in the order of the first steps.
    pub nodes: Vec<LayerNode>,
}

/// A block or a layer.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct LayerNode {
    /// The dotted path of a block; of a layer its name, as in the accounting.
    pub name: String,
    /// The name without that of the surrounding block; fused layers are joined by `+`.
    pub label: String,
    /// The kind of a layer; empty for a block.
    pub kind: String,
    /// The surrounding block.
    pub parent: Option<usize>,
    /// The number of surrounding blocks.
    pub depth: usize,
    /// The position after the last node in it.
    pub end: usize,
    /// The row of a layer in the accounting; `None` for a block.
    pub row: Option<usize>,
    /// Its time.
    pub time: NodeTime,
    /// Its arithmetic and memory traffic; `None` if the plan cannot be read.
    pub work: Option<NodeWork>,
    /// Its memory; `None` if the plan cannot be read.
    pub memory: Option<NodeMemory>,
}

/// The time of a block or a layer, in mean milliseconds per iteration.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct NodeTime {
    /// Computing outputs.
    pub forward_ms: f64,
    /// Computing gradients of inputs.
    pub backward_data_ms: f64,
    /// Computing gradients of parameters.
    pub backward_weights_ms: f64,
    /// Computing all gradients.
    pub backward_ms: f64,
    /// Updating parameters.
    pub update_ms: f64,
    /// All of these.
    pub total_ms: f64,
    /// The sum over the counted iterations, in nanoseconds.
    pub total_ns: i128,
    /// Median milliseconds per iteration of a layer. Medians do not add up: `None` for a block.
    pub median_ms: Option<f64>,
    /// Percent of the wall time.
    pub share_percent: f64,
}

/// The arithmetic and memory traffic of a block or a layer, per iteration.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct NodeWork {
    /// Floating-point operations.
    pub flops: u64,
    /// Bytes of operands.
    pub bytes: u64,
    /// GFLOP/s over the sum of the layers' median times.
    pub gflops_per_s: Option<f64>,
    /// 10⁹ bytes/s over the sum of the layers' median times.
    pub gb_per_s: Option<f64>,
}

impl LayerTree {
    /// The tree of the layers of an accounting.
    pub(crate) fn new(
        accounting: &Accounting,
        work: Option<&RooflineData>,
        network: Option<&Network>,
    ) -> Self {
        let mut tree = Self { nodes: outline(&accounting.layers) };
        let memory = network.map(|network| network.by_row(accounting.layers.len()));
        for position in 0..tree.nodes.len() {
            let rows = tree.rows(position);
            let node = &mut tree.nodes[position];
            node.time = time(accounting, &rows);
            node.work = work.map(|work| work_of(work, accounting, &rows));
            node.memory = memory.as_ref().map(|layers| memory_of(layers, &rows));
        }
        tree
    }

    /// The positions of everything in a block, or of a layer itself.
    #[must_use]
    pub fn within(&self, position: usize) -> Range<usize> {
        position..self.nodes.get(position).map_or(position, |node| node.end)
    }

    /// The rows of the layers of a block, or that of a layer, in the accounting.
    #[must_use]
    pub fn rows(&self, position: usize) -> Vec<usize> {
        self.nodes[self.within(position)].iter().filter_map(|node| node.row).collect()
    }

    /// The outermost blocks and layers for `None`, else those directly in a block.
    pub fn children(&self, block: Option<usize>) -> impl Iterator<Item = usize> + '_ {
        let mut next = block.map_or(0, |block| block + 1);
        let end = block.map_or(self.nodes.len(), |block| self.within(block).end);
        std::iter::from_fn(move || {
            let position = next;
            next = self.nodes.get(position).filter(|_| position < end)?.end;
            Some(position)
        })
    }

    /// The name of a block or a layer with the path of its block written once: `layer1.0.bn2+relu2` for the
    /// layers `layer1.0.bn2` and `layer1.0.relu2`.
    #[must_use]
    pub fn path(&self, position: usize) -> String {
        let node = &self.nodes[position];
        match node.parent {
            Some(parent) => format!("{}.{}", self.nodes[parent].name, node.label),
            None => node.label.clone(),
        }
    }

    /// A selection of blocks and layers that contains every layer exactly once: those of the deepest level
    /// that has at most `max` of them. As long as the result does not exceed `max`, the slowest block that
    /// contains blocks is then replaced by its contents. More than `max` are returned only if the outermost
    /// level has more.
    #[must_use]
    pub fn cut(&self, max: usize) -> Vec<usize> {
        let level = |depth: usize| {
            let is_at = |node: &LayerNode| node.depth == depth || node.depth < depth && node.row.is_some();
            (0..self.nodes.len()).filter(move |position| is_at(&self.nodes[*position])).collect::<Vec<_>>()
        };
        let deepest = self.nodes.iter().map(|node| node.depth).max().unwrap_or(0);
        let mut chosen = level(0);
        for depth in 1..=deepest {
            let next = level(depth);
            if next.len() > max {
                break;
            }
            chosen = next;
        }
        loop {
            let has_blocks = |position: &usize| {
                self.children(Some(*position)).any(|child| self.nodes[child].row.is_none())
            };
            let longest = chosen
                .iter()
                .copied()
                .filter(has_blocks)
                .max_by_key(|position| (self.nodes[*position].time.total_ns, usize::MAX - position));
            let Some(longest) = longest else { return chosen };
            let children: Vec<usize> = self.children(Some(longest)).collect();
            if chosen.len() + children.len() - 1 > max {
                return chosen;
            }
            let at = chosen.partition_point(|position| *position < longest);
            chosen.splice(at..=at, children);
        }
    }
}

/// A block while names are read.
#[derive(Default)]
struct Block<'a> {
    children: Vec<Child>,
    blocks: HashMap<&'a str, usize>,
}

#[derive(Clone, Copy)]
enum Child {
    Block(usize),
    Layer(usize),
}

/// The tree without times. Layers that are fused across blocks belong to the block that contains all of them.
fn outline(layers: &[LayerCost]) -> Vec<LayerNode> {
    let mut blocks = vec![Block::default()];
    let mut paths = vec![String::new()];
    for (row, layer) in layers.iter().enumerate() {
        let mut at = 0;
        for part in common_path(&layer.layers) {
            let next = blocks.len();
            let known = *blocks[at].blocks.entry(part).or_insert(next);
            if known == next {
                let path = if at == 0 { part.to_owned() } else { format!("{}.{part}", paths[at]) };
                blocks[at].children.push(Child::Block(next));
                blocks.push(Block::default());
                paths.push(path);
            }
            at = known;
        }
        blocks[at].children.push(Child::Layer(row));
    }
    let mut nodes = Vec::new();
    emit(&Outline { layers, blocks: &blocks, paths: &paths }, 0, None, &mut nodes);
    nodes
}

struct Outline<'a> {
    layers: &'a [LayerCost],
    blocks: &'a [Block<'a>],
    paths: &'a [String],
}

/// Adds the contents of a block. A block with a single block or layer in it is left out.
fn emit(outline: &Outline<'_>, block: usize, parent: Option<usize>, nodes: &mut Vec<LayerNode>) {
    let outer = parent.map(|parent| nodes[parent].name.clone());
    let depth = parent.map_or(0, |parent| nodes[parent].depth + 1);
    let label = |name: &str| {
        let rest = outer.as_ref().and_then(|outer| name.strip_prefix(outer.as_str())?.strip_prefix('.'));
        rest.unwrap_or(name).to_owned()
    };
    for mut child in outline.blocks[block].children.iter().copied() {
        while let Child::Block(inner) = child
            && let [only] = outline.blocks[inner].children[..]
        {
            child = only;
        }
        let position = nodes.len();
        let (name, label, kind, row) = match child {
            Child::Block(inner) => {
                let path = &outline.paths[inner];
                (path.clone(), label(path), String::new(), None)
            }
            Child::Layer(row) => {
                let layer = &outline.layers[row];
                let labels: Vec<String> = layer.layers.iter().map(|name| label(name)).collect();
                (layer.layer.clone(), labels.join("+"), layer.kind.clone(), Some(row))
            }
        };
        nodes.push(LayerNode {
            name,
            label,
            kind,
            parent,
            depth,
            end: position + 1,
            row,
            time: NodeTime::default(),
            work: None,
            memory: None,
        });
        if let Child::Block(inner) = child {
            emit(outline, inner, Some(position), nodes);
            nodes[position].end = nodes.len();
        }
    }
}

/// The names of the blocks that contain all of some layers.
fn common_path(layers: &[String]) -> Vec<&str> {
    let blocks = |name: &'_ str| name.rsplit_once('.').map(|(blocks, _)| blocks.len());
    let Some((first, rest)) = layers.split_first() else { return Vec::new() };
    let Some(length) = blocks(first) else { return Vec::new() };
    let mut path: Vec<&str> = first[..length].split('.').take(MAX_DEPTH).collect();
    for name in rest {
        let Some(length) = blocks(name) else { return Vec::new() };
        let common = path.iter().zip(name[..length].split('.')).take_while(|(a, b)| **a == *b).count();
        path.truncate(common);
    }
    path
}

fn time(accounting: &Accounting, rows: &[usize]) -> NodeTime {
    let layers = || rows.iter().map(|row| &accounting.layers[*row]);
    let mean_ms = |ns: i128| ns as f64 / 1e6 / accounting.iterations.max(1) as f64;
    let sum = |ns: fn(&LayerCost) -> i128| layers().map(ns).sum::<i128>();
    let total_ns = sum(|layer| layer.total.total_ns);
    let wall_ns = accounting.wall.total_ns;
    NodeTime {
        forward_ms: mean_ms(sum(|layer| layer.forward.total_ns)),
        backward_data_ms: mean_ms(sum(|layer| layer.backward_data.total_ns)),
        backward_weights_ms: mean_ms(sum(|layer| layer.backward_weights.total_ns)),
        backward_ms: mean_ms(sum(|layer| layer.backward.total_ns)),
        update_ms: mean_ms(sum(|layer| layer.update.total_ns)),
        total_ms: mean_ms(total_ns),
        total_ns,
        median_ms: match rows {
            [row] => Some(accounting.layers[*row].total.median_ms),
            _ => None,
        },
        share_percent: if wall_ns == 0 { 0.0 } else { 100.0 * total_ns as f64 / wall_ns as f64 },
    }
}

fn work_of(work: &RooflineData, accounting: &Accounting, rows: &[usize]) -> NodeWork {
    let layers = || rows.iter().filter_map(|row| work.layers.get(*row));
    let flops = layers().fold(0_u64, |sum, layer| sum.saturating_add(layer.flops));
    let bytes = layers().fold(0_u64, |sum, layer| sum.saturating_add(layer.bytes));
    let ms: f64 = rows.iter().map(|row| accounting.layers[*row].total.median_ms).sum();
    let rate = |count: u64| (count > 0 && ms > 0.0).then(|| count as f64 / ms / 1e6);
    NodeWork { flops, bytes, gflops_per_s: rate(flops), gb_per_s: rate(bytes) }
}

fn memory_of(layers: &[Option<&NetworkLayer>], rows: &[usize]) -> NodeMemory {
    let mut sum = NodeMemory::default();
    for memory in rows.iter().filter_map(|row| layers.get(*row).copied().flatten()).map(|layer| layer.memory)
    {
        sum.parameters = sum.parameters.saturating_add(memory.parameters);
        sum.persistent_bytes = sum.persistent_bytes.saturating_add(memory.persistent_bytes);
        sum.activation_bytes = sum.activation_bytes.saturating_add(memory.activation_bytes);
    }
    sum
}
