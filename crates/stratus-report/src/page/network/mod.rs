//! The network as a graph: the data flow between blocks, coloured by time, and that within each block.

mod layout;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::fmt::Write as _;

use super::charts::STYLE;
use super::html::Html;
use super::svg::{Anchor, Svg};
use crate::names::shorten;
use crate::report::{Endpoint, LayerNode, LayerTree, MAX_BLOCKS, Network, RunReport};
use layout::{NODE_HEIGHT, place};
use stratus_base::text::{bytes, counted};

/// Maximum number of nodes of a drawing.
const MAX_NODES: usize = 150;
/// Maximum number of edges of a drawing.
const MAX_EDGES: usize = 1000;
/// Maximum number of drawings of the insides of blocks.
const MAX_INSIDES: usize = 80;
/// The width of a node.
const NODE_WIDTH: f64 = 212.0;
/// The width of an input or an output.
const PORT_WIDTH: f64 = 110.0;
/// Maximum number of letters of a name.
const MAX_LETTERS: usize = 28;
/// The number of colours, from the least to the most time.
const COLOURS: usize = 6;
/// The place of the first rank, below the legend.
const TOP: f64 = 44.0;
/// Maximum number of shapes that a tooltip lists.
const MAX_SHAPES: usize = 4;

/// The network of a run as an SVG file; `None` if its plan cannot be read, or if it is too large.
#[must_use]
pub fn network_svg(run: &RunReport) -> Option<String> {
    let network = run.layers.network.as_ref()?;
    let drawing = Drawing::of_network(&run.layers.tree, network)?;
    Some(drawing.draw(&run.layers.tree, None).standalone("Network", STYLE))
}

/// Adds the drawings of a run; `number` is its position in the page.
pub(super) fn section(html: &mut Html, run: &RunReport, number: usize) {
    let tree = &run.layers.tree;
    if tree.nodes.is_empty() {
        return;
    }
    html.element("h3", "", "Network");
    let Some(network) = &run.layers.network else {
        let text = "There is no drawing, since the plan of this run cannot be read.";
        return html.element("p", "note", text);
    };
    let Some(drawing) = Drawing::of_network(tree, network) else {
        let text = format!(
            "The network is not drawn: it has more than {MAX_NODES} layers outside of blocks, or more than \
             {MAX_EDGES} values between them."
        );
        return html.element("p", "note", &text);
    };
    let stage = network.stage.map_or(String::new(), |(index, count)| {
        format!(" This is stage {} of {count} of the pipeline.", index + 1)
    });
    let text = format!(
        "The data flow of the forward pass, with shapes per sample. Layers that are computed together are \
         one node; nodes with a thick border are blocks. Orange edges skip nodes: residual connections, \
         concatenations.{stage}"
    );
    html.element("p", "note", &text);
    html.raw(&format!("<div class=\"network\" data-network=\"{number}\">\n"));
    html.open("div", "scroll graph");
    let label = "Network: blocks and the data flow between them";
    html.raw(&drawing.draw(tree, Some(number)).group(label));
    html.close("div");
    let blocks: Vec<usize> =
        tree.cut(MAX_BLOCKS).into_iter().filter(|node| tree.nodes[*node].row.is_none()).collect();
    if !blocks.is_empty() {
        html.open("div", "insides");
        html.element("h4", "", "Inside the blocks");
        let open =
            blocks.iter().copied().max_by_key(|node| (tree.nodes[*node].time.total_ns, usize::MAX - node));
        let mut insides = Insides { tree, network, number, open, left: MAX_INSIDES };
        for block in blocks {
            insides.add(html, block);
        }
        if insides.left == 0 {
            let text = format!("Only the first {MAX_INSIDES} blocks are drawn.");
            html.element("p", "note", &text);
        }
        html.close("div");
    }
    html.raw("</div>\n");
}

/// The drawings of the insides of blocks.
struct Insides<'a> {
    tree: &'a LayerTree,
    network: &'a Network,
    /// The position of the run in the page.
    number: usize,
    /// The block whose drawing is shown at first.
    open: Option<usize>,
    /// The number of drawings that may still be added.
    left: usize,
}

impl Insides<'_> {
    /// Adds the drawing of the inside of a block, and those of the blocks in it.
    fn add(&mut self, html: &mut Html, block: usize) {
        if self.left == 0 {
            return;
        }
        self.left -= 1;
        let Self { tree, network, .. } = *self;
        let open = if self.open == Some(block) { " open" } else { "" };
        html.raw(&format!("<details data-block=\"{block}\"{open}>"));
        html.element("summary", "", &tree.nodes[block].name);
        match Drawing::of_block(tree, network, block) {
            Some(drawing) => {
                html.open("div", "scroll graph");
                let label = format!("Inside of {}", tree.nodes[block].name);
                html.raw(&drawing.draw(tree, Some(self.number)).group(&label));
                html.close("div");
            }
            None => {
                let text = format!(
                    "Not drawn: it has more than {MAX_NODES} parts, or more than {MAX_EDGES} values between \
                     them."
                );
                html.element("p", "note", &text);
            }
        }
        for child in tree.children(Some(block)).filter(|child| tree.nodes[*child].row.is_none()) {
            self.add(html, child);
        }
        html.close("details");
    }
}

/// A node of a drawing.
#[derive(Clone, Debug, PartialEq)]
enum DrawnNode {
    /// A block or a layer of the tree.
    Layer(usize),
    /// The images, the loss, or everything outside of the drawn block.
    Port(&'static str),
}

/// The values between two nodes of a drawing.
#[derive(Clone, Debug, Default, PartialEq)]
struct DrawnEdge {
    /// Shapes with the bytes of the batch, the largest first.
    shapes: Vec<(String, u64)>,
}

/// Nodes and edges of a drawing.
#[derive(Debug, Default)]
struct Drawing {
    nodes: Vec<DrawnNode>,
    edges: BTreeMap<(usize, usize), DrawnEdge>,
}

impl Drawing {
    /// The whole network; `None` if it is too large.
    fn of_network(tree: &LayerTree, network: &Network) -> Option<Self> {
        Self::new(tree, network, &tree.cut(MAX_BLOCKS), ["images", "loss"])
    }

    /// The inside of a block; `None` if it is too large.
    fn of_block(tree: &LayerTree, network: &Network, block: usize) -> Option<Self> {
        let members: Vec<usize> = tree.children(Some(block)).collect();
        Self::new(tree, network, &members, ["input", "output"])
    }

    /// The data flow between nodes of the tree that do not contain each other. All other sources and targets
    /// are the two `ports`.
    fn new(tree: &LayerTree, network: &Network, members: &[usize], ports: [&'static str; 2]) -> Option<Self> {
        if members.len() > MAX_NODES {
            return None;
        }
        let mut member_of_row: BTreeMap<usize, usize> = BTreeMap::new();
        for &member in members {
            member_of_row.extend(tree.rows(member).into_iter().map(|row| (row, member)));
        }
        let member_of = |layer: usize| member_of_row.get(&network.layers.get(layer)?.row).copied();
        // The nodes in the order of their first steps, between the ports.
        let mut nodes = vec![DrawnNode::Port(ports[0])];
        let mut place_of: BTreeMap<usize, usize> = BTreeMap::new();
        for member in (0..network.layers.len()).filter_map(member_of) {
            place_of.entry(member).or_insert_with(|| {
                nodes.push(DrawnNode::Layer(member));
                nodes.len() - 1
            });
        }
        let last = nodes.len();
        nodes.push(DrawnNode::Port(ports[1]));
        let end = |end: Endpoint, port: usize| match end {
            Endpoint::Layer(layer) => member_of(layer).map_or(port, |member| place_of[&member]),
            Endpoint::Images | Endpoint::Loss => port,
        };
        let mut edges: BTreeMap<(usize, usize), DrawnEdge> = BTreeMap::new();
        for edge in &network.edges {
            let (from, to) = (end(edge.from, 0), end(edge.to, last));
            if from == to || (from, to) == (0, last) {
                continue;
            }
            let shapes = &mut edges.entry((from, to)).or_default().shapes;
            if !shapes.iter().any(|(shape, _)| *shape == edge.shape) {
                shapes.push((edge.shape.clone(), edge.bytes));
            }
        }
        if edges.len() > MAX_EDGES {
            return None;
        }
        for edge in edges.values_mut() {
            edge.shapes.sort_by(|a, b| b.1.cmp(&a.1).then_with(|| a.0.cmp(&b.0)));
        }
        Some(Self { nodes, edges })
    }

    /// Draws it; with the number of a run, the nodes are links to the rows of the run's table of layers.
    fn draw(&self, tree: &LayerTree, run: Option<usize>) -> Svg {
        let widths: Vec<f64> = self
            .nodes
            .iter()
            .map(|node| if matches!(node, DrawnNode::Layer(_)) { NODE_WIDTH } else { PORT_WIDTH })
            .collect();
        let ends: Vec<(usize, usize)> = self.edges.keys().copied().collect();
        let layout = place(&widths, &ends, TOP);
        let mut svg = Svg::new(layout.width.max(320.0).ceil(), layout.height.ceil());
        let longest = self.members().map(|node| tree.nodes[node].time.total_ms).fold(0.0, f64::max);
        legend(&mut svg, longest);
        for ((ends, edge), route) in self.edges.iter().zip(&layout.routes) {
            let class = match route.ranks {
                0 => "edge back",
                1 => "edge",
                _ => "edge skip",
            };
            svg.path(class, &curve(&route.points), &self.edge_title(tree, *ends, edge));
            if let Some([x, y]) = route.points.last() {
                let arrow = format!("M{x:.1} {y:.1}l-3.5 -6h7z");
                svg.path(&class.replace("edge", "arrow"), &arrow, "");
            }
        }
        self.shapes(&mut svg, &layout);
        let names: Vec<String> = self.nodes.iter().map(|node| self.name(tree, node)).collect();
        let names = shorten(&names, MAX_LETTERS);
        for (((node, name), width), [x, y]) in self.nodes.iter().zip(names).zip(&widths).zip(&layout.nodes) {
            let area = [x - width / 2.0, *y, *width, NODE_HEIGHT];
            match node {
                DrawnNode::Port(_) => {
                    svg.rect("port", area, "");
                    svg.text("label", [*x, y + NODE_HEIGHT / 2.0 + 4.0], Anchor::Middle, &name);
                }
                DrawnNode::Layer(position) => {
                    let layer = &tree.nodes[*position];
                    let kind = if layer.row.is_none() { "node block-node" } else { "node" };
                    let class = format!("{kind} h{}", colour(layer.time.total_ms, longest));
                    let title = node_title(tree, *position);
                    svg.open_node(&class, run.map(|run| (run, *position)));
                    svg.rect("", area, &title);
                    svg.text("label", [*x, y + 17.0], Anchor::Middle, name.trim_end());
                    svg.text("value", [*x, y + 33.0], Anchor::Middle, &value(layer));
                    svg.close_node(run.is_some());
                }
            }
        }
        svg
    }

    fn members(&self) -> impl Iterator<Item = usize> + '_ {
        self.nodes.iter().filter_map(|node| match node {
            DrawnNode::Layer(position) => Some(*position),
            DrawnNode::Port(_) => None,
        })
    }

    /// The name of a node; within a block without that of the block.
    fn name(&self, tree: &LayerTree, node: &DrawnNode) -> String {
        match node {
            DrawnNode::Port(name) => (*name).to_owned(),
            DrawnNode::Layer(position) => {
                let layer = &tree.nodes[*position];
                let is_inside = self.nodes.first() == Some(&DrawnNode::Port("input"));
                if is_inside { layer.label.clone() } else { tree.path(*position) }
            }
        }
    }

    /// Writes the shapes: below a node whose edges all have the same, else where an edge is the only one that
    /// enters a node.
    fn shapes(&self, svg: &mut Svg, layout: &layout::Layout) {
        let mut entering = vec![0_usize; self.nodes.len()];
        self.edges.keys().for_each(|(_, to)| entering[*to] += 1);
        for (node, [x, y]) in layout.nodes.iter().enumerate() {
            let leaving: Vec<_> = self.edges.iter().filter(|((from, _), _)| *from == node).collect();
            let Some(shape) = leaving.first().and_then(|(_, edge)| edge.shapes.first()) else { continue };
            if leaving.iter().all(|(_, edge)| edge.shapes.len() == 1 && edge.shapes[0].0 == shape.0) {
                svg.text("shape", [x + 6.0, y + NODE_HEIGHT + 15.0], Anchor::Start, &shape.0);
                continue;
            }
            for ((_, to), edge) in leaving {
                if let Some((shape, _)) = edge.shapes.first().filter(|_| entering[*to] == 1) {
                    let [x, y] = layout.nodes[*to];
                    svg.text("shape", [x + 6.0, y - 9.0], Anchor::Start, shape);
                }
            }
        }
    }

    fn edge_title(&self, tree: &LayerTree, (from, to): (usize, usize), edge: &DrawnEdge) -> String {
        let name = |node: usize| self.name(tree, &self.nodes[node]);
        let listed = edge.shapes.iter().take(MAX_SHAPES);
        let shapes: Vec<String> =
            listed.map(|(shape, held)| format!("{shape} ({} a batch)", bytes(*held))).collect();
        let more = match edge.shapes.len().saturating_sub(MAX_SHAPES) {
            0 => String::new(),
            more => format!(" and {more} more"),
        };
        format!("{} → {}: {}{more}", name(from), name(to), shapes.join(", "))
    }
}

/// The colour of a value, from 0 for nothing to [`COLOURS`] for the largest.
fn colour(value: f64, largest: f64) -> usize {
    if value.is_nan() || value <= 0.0 || largest <= 0.0 {
        return 0;
    }
    ((value / largest * COLOURS as f64).ceil() as usize).clamp(1, COLOURS)
}

fn value(node: &LayerNode) -> String {
    format!("{:.3} ms · {:.1} %", node.time.total_ms, node.time.share_percent)
}

fn node_title(tree: &LayerTree, position: usize) -> String {
    let node = &tree.nodes[position];
    let kind = match node.row {
        Some(_) => node.kind.clone(),
        None => format!("block of {}", counted(tree.rows(position).len() as u64, "layer")),
    };
    format!("{}, {kind}: {}", node.name, value(node))
}

/// Adds the scale of the colours.
fn legend(svg: &mut Svg, longest: f64) {
    svg.text("tick", [16.0, 20.0], Anchor::Start, "0");
    for colour in 1..=COLOURS {
        svg.rect(&format!("key h{colour}"), [28.0 + 20.0 * (colour - 1) as f64, 9.0, 20.0, 14.0], "");
    }
    svg.text("tick scale", [156.0, 20.0], Anchor::Start, &format!("{longest:.3} ms per iteration"));
}

/// The path of an edge: curves between the ranks, straight lines within them.
fn curve(points: &[[f64; 2]]) -> String {
    let mut path = String::new();
    for (position, [x, y]) in points.iter().enumerate() {
        // Writing to a String cannot fail.
        let _ = match position.checked_sub(1).map(|before| points[before]) {
            None => write!(path, "M{x:.1} {y:.1}"),
            Some([from_x, from_y]) if (from_x - x).abs() > 0.05 && (from_y - y).abs() > 0.05 => {
                let middle = (from_y + y) / 2.0;
                write!(path, "C{from_x:.1} {middle:.1} {x:.1} {middle:.1} {x:.1} {y:.1}")
            }
            Some(_) => write!(path, "L{x:.1} {y:.1}"),
        };
    }
    path
}
