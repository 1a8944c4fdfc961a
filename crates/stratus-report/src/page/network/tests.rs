use super::*;
use crate::report::{DataEdge, NetworkLayer, NodeTime};

/// A layer or a block of a tree, whose parents come before it.
fn node(name: &str, parent: Option<usize>, row: Option<usize>, ms: f64) -> LayerNode {
    let label = name.rsplit('.').next().unwrap_or(name).to_owned();
    LayerNode {
        name: name.to_owned(),
        label,
        kind: row.map_or(String::new(), |_| "conv2d".to_owned()),
        parent,
        depth: usize::from(parent.is_some()),
        end: 0,
        row,
        time: NodeTime {
            total_ms: ms,
            total_ns: (ms * 1e6) as i128,
            share_percent: 10.0 * ms,
            ..NodeTime::default()
        },
        work: None,
        memory: None,
    }
}

/// A convolution, a residual block of two layers, and a classifier.
fn residual() -> (LayerTree, Network) {
    let mut nodes = vec![
        node("stem", None, Some(0), 1.0),
        node("block", None, None, 6.0),
        node("block.conv", Some(1), Some(1), 4.0),
        node("block.add", Some(1), Some(2), 2.0),
        node("<fc>", None, Some(3), 0.0),
    ];
    for (node, end) in nodes.iter_mut().zip([1, 4, 3, 4, 5]) {
        node.end = end;
    }
    let layers = (0..4).map(|row| NetworkLayer { row, ..NetworkLayer::default() }).collect();
    let layer = Endpoint::Layer;
    let edge = |from, to, shape: &str| DataEdge { from, to, shape: shape.to_owned(), bytes: 2048 };
    let edges = vec![
        edge(Endpoint::Images, layer(0), "3×32×32"),
        edge(layer(0), layer(1), "8×32×32"),
        edge(layer(0), layer(2), "8×32×32"),
        edge(layer(1), layer(2), "8×32×32"),
        edge(layer(2), layer(3), "8×32×32"),
        edge(layer(3), Endpoint::Loss, "10"),
    ];
    (LayerTree { nodes }, Network { stage: None, layers, edges })
}

/// The drawing, line by line. `UPDATE_DRAWING=1` writes it again; look at the difference.
#[test]
fn the_inside_of_a_residual_block_is_drawn() {
    let (tree, network) = residual();
    let drawing = Drawing::of_block(&tree, &network, 1).unwrap();
    let svg = drawing.draw(&tree, Some(0)).group("Inside of block");
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/src/page/network/residual.svg");
    if std::env::var_os("UPDATE_DRAWING").is_some() {
        std::fs::write(path, &svg).unwrap();
    }
    assert_eq!(svg, std::fs::read_to_string(path).unwrap());
}

#[test]
fn values_between_blocks_are_edges_between_blocks() {
    let (tree, network) = residual();
    let drawing = Drawing::new(&tree, &network, &[0, 1, 4], ["images", "loss"]).unwrap();
    let names: Vec<String> = drawing.nodes.iter().map(|node| drawing.name(&tree, node)).collect();
    assert_eq!(names, ["images", "stem", "block", "<fc>", "loss"]);
    // Both values from the stem to the block are one edge; those within the block are none.
    let ends: Vec<(usize, usize)> = drawing.edges.keys().copied().collect();
    assert_eq!(ends, [(0, 1), (1, 2), (2, 3), (3, 4)]);
    let svg = drawing.draw(&tree, None).standalone("Network", STYLE);
    assert!(svg.contains("&lt;fc&gt;") && !svg.contains("<fc>") && !svg.contains("href"), "{svg}");
    assert!(svg.contains("class=\"node block-node h6\"") && svg.contains("class=\"node h0\""), "{svg}");
}

/// Blocks that pass values back and forth, as layers named by their kind do, have edges that run backwards.
#[test]
fn blocks_that_read_each_other_are_drawn() {
    let (mut tree, mut network) = residual();
    tree.nodes[3].parent = None;
    network.edges.push(DataEdge {
        from: Endpoint::Layer(3),
        to: Endpoint::Layer(0),
        shape: "1".to_owned(),
        bytes: 4,
    });
    let drawing = Drawing::new(&tree, &network, &[0, 1, 4], ["images", "loss"]).unwrap();
    let svg = drawing.draw(&tree, Some(0)).group("Network");
    assert_eq!(svg.matches("class=\"edge back\"").count(), 1);
    // Positions outside of the tree and the network change nothing.
    network.edges.push(DataEdge { to: Endpoint::Layer(99), ..network.edges[0].clone() });
    network.layers[3].row = 99;
    assert!(Drawing::new(&tree, &network, &[0, 1, 4], ["images", "loss"]).is_some());
}

#[test]
fn networks_of_too_many_nodes_are_not_drawn() {
    let mut nodes: Vec<LayerNode> =
        (0..=MAX_NODES).map(|row| node(&format!("layer{row}"), None, Some(row), 1.0)).collect();
    for (position, node) in nodes.iter_mut().enumerate() {
        node.end = position + 1;
    }
    let tree = LayerTree { nodes };
    assert!(Drawing::of_network(&tree, &Network::default()).is_none());
}
