//! The data flow of networks of the zoo, read from their plans and compared with their graphs; its drawings.

use std::collections::BTreeSet;
use std::path::Path;

use crate::page::{drawn, slot};
use stratus_engine::passes::differentiate::differentiate;
use stratus_engine::passes::fuse::fuse;
use stratus_engine::passes::lower::lower;
use stratus_engine::plan::Persistent;
use stratus_engine::program::Mode;
use stratus_engine::reference::ReferenceBackend;
use stratus_engine::{Backend as _, Plan, Precision, Program};
use stratus_graph::{Graph, zoo};
use stratus_report::page;
use stratus_report::report::{Endpoint, Report, RunReport};
use stratus_run::timeline::{self, Phase, Purpose, TimelineWriter};
use stratus_run::{RunDir, atomic};

fn graph(name: &str) -> Graph {
    let network = zoo::find(name).unwrap();
    (network.build)(&(network.defaults)()).unwrap()
}

fn plan(program: &Program) -> Plan {
    let backend = ReferenceBackend;
    assert_eq!(backend.threads(), 1);
    let mut persistent = Persistent::default();
    let choices = stratus_engine::backend::Choices::default();
    Plan::prepare(&backend, program, choices, false, &mut persistent).unwrap().plan
}

fn phase(phase: stratus_engine::Phase) -> Phase {
    use stratus_engine::Phase as Engine;
    match phase {
        Engine::Forward => Phase::Forward,
        Engine::Teacher => Phase::Teacher,
        Engine::Loss => Phase::Loss,
        Engine::BackwardData => Phase::BackwardData,
        Engine::BackwardWeights => Phase::BackwardWeights,
        Engine::Update => Phase::Update,
        Engine::Layout => Phase::Layout,
        Engine::Communication => Phase::Communication,
    }
}

/// A run with the plan of a program, and two iterations in which the step at position `n` takes `n + 1` µs.
fn run(root: &Path, program: &Program) -> RunDir {
    let run = RunDir::create(root, "net").unwrap();
    atomic::write(&run.experiment(), b"[train]\nbatch_size = 2\n").unwrap();
    run.prepare().unwrap();
    let plan = plan(program);
    let slots: Vec<_> = plan
        .program
        .steps
        .iter()
        .map(|step| {
            let names: Vec<&str> =
                step.layers.iter().map(|layer| plan.program.layers[*layer].name.as_str()).collect();
            slot(&names, &plan.program.layer_kind(step), phase(step.phase))
        })
        .collect();
    let ns: Vec<u64> = (1..=slots.len() as u64).map(|step| 1000 * step).collect();
    atomic::write_json(&run.plan(), &std::collections::BTreeMap::from([("train", &plan)])).unwrap();
    let program = timeline::Program { name: "train".into(), purpose: Purpose::Train, batch_size: 2, slots };
    let mut timeline = TimelineWriter::open(&run.timeline()).unwrap();
    let id = timeline.register(&program).unwrap();
    for iteration in 1..=2 {
        timeline.append(id, 1, iteration, ns.iter().sum(), &ns).unwrap();
    }
    run
}

fn report(run: &RunDir) -> Report {
    let report = Report::read(&[run.path().to_owned()], Some(0), None);
    // These runs have no epochs.
    assert!(report.problems.iter().all(|problem| problem.what == "epochs"), "{:?}", report.problems);
    report
}

/// The rows of the accounting that compute a layer of the graph.
fn rows_of(run: &RunReport, name: &str) -> BTreeSet<usize> {
    let rows = run.accounting.layers.iter().enumerate();
    rows.filter(|(_, row)| row.layers.iter().any(|layer| layer == name)).map(|(row, _)| row).collect()
}

/// The edges between rows, by the graph: from the nearest layers with a row.
fn expected_edges(run: &RunReport, graph: &Graph) -> Vec<(BTreeSet<usize>, BTreeSet<usize>)> {
    let mut sources: Vec<Vec<BTreeSet<usize>>> = vec![Vec::new(); graph.tensors.len()];
    let mut edges = Vec::new();
    for node in &graph.nodes {
        let rows = rows_of(run, &node.name);
        let read: Vec<BTreeSet<usize>> =
            node.inputs.iter().flat_map(|tensor| sources[tensor.0].clone()).collect();
        if rows.is_empty() {
            sources[node.output.0] = read;
            continue;
        }
        edges
            .extend(read.into_iter().filter(|from| from.is_disjoint(&rows)).map(|from| (from, rows.clone())));
        sources[node.output.0] = vec![rows];
    }
    edges
}

#[track_caller]
fn check(name: &str, fused: bool) {
    let graph = graph(name);
    let mut program = lower(&graph, Mode::Train, Precision::F32, 2).unwrap();
    if fused {
        program = fuse(&program).unwrap();
    }
    let root = tempfile::tempdir().unwrap();
    let run = run(root.path(), &differentiate(&program).unwrap());
    let report = report(&run);
    let run = &report.runs[0];
    let network = run.layers.network.as_ref().unwrap();
    assert_eq!(network.layers.len(), run.accounting.layers.len(), "{name}");
    let row = |end: Endpoint| match end {
        Endpoint::Layer(layer) => Some(network.layers[layer].row),
        Endpoint::Images | Endpoint::Loss => None,
    };
    let read: BTreeSet<(usize, usize)> =
        network.edges.iter().filter_map(|edge| Some((row(edge.from)?, row(edge.to)?))).collect();
    let expected = expected_edges(run, &graph);
    assert!(!expected.is_empty());
    for (from, to) in &expected {
        let found = read.iter().any(|(a, b)| from.contains(a) && to.contains(b));
        assert!(found, "{name}: no edge {from:?} → {to:?}");
    }
    for (a, b) in &read {
        // Two rows may compute parts of one layer: the statistics of a batch norm, and the rest.
        let layers = |row: &usize| &run.accounting.layers[*row].layers;
        let found = layers(a).iter().any(|layer| layers(b).contains(layer))
            || expected.iter().any(|(from, to)| from.contains(a) && to.contains(b));
        let within = |row: &usize| &run.accounting.layers[*row].layer;
        assert!(found, "{name}: an edge {} → {} that the graph lacks", within(a), within(b));
    }
    let ends = |end: Endpoint| network.edges.iter().filter(|edge| edge.from == end || edge.to == end).count();
    assert!(ends(Endpoint::Images) >= 1);
    assert_eq!(ends(Endpoint::Loss), 1 + graph.auxiliary.len(), "{name}");
    // Parameters of the blocks add up to those of the network.
    let tree = &run.layers.tree;
    let parameters: u64 = tree.children(None).map(|node| tree.nodes[node].memory.unwrap().parameters).sum();
    assert_eq!(parameters, graph.trained_parameters() as u64, "{name}");
    check_drawings(run, &page::render(&report));
}

/// Every node of the cut is drawn once, with its name, and every block in it has a drawing of its inside.
#[track_caller]
fn check_drawings(run: &RunReport, page: &str) {
    let tree = &run.layers.tree;
    let svg = page::network_svg(run).unwrap();
    let cut = tree.cut(24);
    assert_eq!(svg.matches("<g class=\"node").count(), cut.len());
    assert!(svg.contains(">images</text>") && svg.contains(">loss</text>"));
    let (paths, arrows) =
        (svg.matches("<path class=\"edge").count(), svg.matches("<path class=\"arrow").count());
    assert!(paths >= cut.len() && paths == arrows, "{paths} edges");
    for node in &cut {
        assert!(page.contains(&format!("href=\"#layer-0-{node}\"")));
        assert!(page.contains(&format!("id=\"layer-0-{node}\"")));
    }
    let is_block = |node: &usize| tree.nodes[*node].row.is_none();
    let blocks: usize = cut.iter().map(|node| tree.within(*node).filter(is_block).count()).sum();
    assert_eq!(page.matches("<details data-block=").count(), blocks.min(80));
    let details = &drawn(page)["runs"][0]["layers"];
    assert_eq!(details["nodes"].as_array().unwrap().len(), tree.nodes.len());
    assert_eq!(details["details"].as_array().unwrap().len(), run.accounting.layers.len());
}

#[test]
fn the_data_flow_is_that_of_the_graph() {
    for name in ["digits", "resnet18_cifar", "googlenet", "efficientnet_b0", "erfnet"] {
        check(name, false);
        check(name, true);
    }
    check("densenet121", true);
}

/// A residual block of resnet18: its shortcut is an edge that skips nodes, with the shape of the input.
#[test]
fn a_residual_connection_is_drawn() {
    let program = lower(&graph("resnet18_cifar"), Mode::Train, Precision::F32, 2).unwrap();
    let root = tempfile::tempdir().unwrap();
    let run = run(root.path(), &differentiate(&fuse(&program).unwrap()).unwrap());
    let report = report(&run);
    let page = page::render(&report);
    let tree = &report.runs[0].layers.tree;
    let block = tree.nodes.iter().position(|node| node.name == "layer1.0").unwrap();
    let inside = page.split(&format!("<details data-block=\"{block}\"")).nth(1).unwrap();
    let inside = &inside[..inside.find("</svg>").unwrap()];
    assert_eq!(inside.matches("class=\"edge skip\"").count(), 1, "{inside}");
    assert!(inside.contains("64×32×32"), "{inside}");
    let details = &drawn(&page)["runs"][0]["layers"]["details"];
    let conv = report.runs[0].accounting.layers.iter().position(|row| row.layer == "layer1.0.conv1").unwrap();
    assert_eq!(details[conv]["inputs"], serde_json::json!(["64×32×32"]));
    assert_eq!(details[conv]["outputs"], serde_json::json!(["64×32×32"]));
    assert_eq!(details[conv]["kernels"][0]["phase"], "forward");
    assert_eq!(tree.nodes[block].memory.unwrap().parameters, 2 * (64 * 64 * 9 + 2 * 64));
}
