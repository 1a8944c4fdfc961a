//! The table of layers as a tree: a row per block, with the sums of its layers, and a row per layer.

use std::collections::BTreeSet;
use stratus_base::text::counted;

use super::escape::escape;
use super::html::{Cell, Html};
use crate::report::{LayerNode, LayerTree, MAX_BLOCKS, RunReport};

const HEADS: [&str; 11] = [
    "layer",
    "kind",
    "forward ms",
    "backward ms",
    "update ms",
    "total ms",
    "median ms",
    "share %",
    "MFLOP",
    "GFLOP/s",
    "GB/s",
];

/// Maximum indentation of a name; deeper ones have the same.
const MAX_INDENT: usize = 8;

/// Adds the table of a run; `number` is its position in the page. The script folds the blocks below those
/// that are drawn in the chart of the time.
pub(super) fn table(html: &mut Html, run: &RunReport, number: usize) {
    let tree = &run.layers.tree;
    html.element("h4", "", "Per layer");
    if tree.nodes.iter().any(|node| node.row.is_none()) {
        let text = "A block is the sum of its layers; its rates are over the sum of their medians. Columns \
                    are sorted within blocks.";
        html.element("p", "note", text);
    }
    let open = ancestors(tree, &tree.cut(MAX_BLOCKS));
    html.raw(&format!(
        "<div class=\"scroll\"><table class=\"sortable tree\" data-tree=\"{number}\">\n<thead>"
    ));
    html.heads(&HEADS);
    html.raw("</thead>\n<tbody>\n");
    for (position, node) in tree.nodes.iter().enumerate() {
        let class = if node.row.is_none() { " class=\"block-row\"" } else { "" };
        let opened = if open.contains(&position) { " data-open" } else { "" };
        html.raw(&format!(
            "<tr{class} id=\"layer-{number}-{position}\" data-node=\"{position}\" data-level=\"{}\"{opened}>\
             <td class=\"tree-name l{}\" title=\"{}\">{}</td>",
            node.depth,
            node.depth.min(MAX_INDENT),
            escape(&node.name),
            escape(&node.label)
        ));
        html.cells(&cells(tree, position, node));
        html.raw("</tr>\n");
    }
    html.raw("</tbody></table></div>\n");
}

/// The blocks that contain any of some nodes.
fn ancestors(tree: &LayerTree, nodes: &[usize]) -> BTreeSet<usize> {
    let mut found = BTreeSet::new();
    for &node in nodes {
        let mut next = tree.nodes[node].parent;
        while let Some(parent) = next.filter(|parent| found.insert(*parent)) {
            next = tree.nodes[parent].parent;
        }
    }
    found
}

fn cells(tree: &LayerTree, position: usize, node: &LayerNode) -> Vec<Cell> {
    let kind = match node.row {
        Some(_) => node.kind.clone(),
        None => counted(tree.rows(position).len() as u64, "layer"),
    };
    let (time, work) = (&node.time, node.work.as_ref());
    vec![
        Cell::text(kind),
        Cell::number(Some(time.forward_ms), 3),
        Cell::number(Some(time.backward_ms), 3),
        Cell::number(Some(time.update_ms), 3),
        Cell::number(Some(time.total_ms), 3),
        Cell::number(time.median_ms, 3),
        Cell::number(Some(time.share_percent), 1),
        Cell::number(work.map(|work| work.flops as f64 / 1e6), 1),
        Cell::number(work.and_then(|work| work.gflops_per_s), 1),
        Cell::number(work.and_then(|work| work.gb_per_s), 1),
    ]
}
