//! Every network of the zoo and random networks, pruned at random.

use super::{assert_sizes, half_of_units, model, settings, zoo_network};
use std::collections::BTreeMap;
use stratus_conformance::networks::{Data, random_network};
use stratus_graph::layer_file::{parse, write};
use stratus_graph::ops::example_networks;
use stratus_graph::zoo::NETWORKS;
use stratus_graph::{Graph, Operation};
use stratus_optimise::Model;
use stratus_optimise::prune::{
    Importance, PruneError, Scores, Target, channel_groups, choose, multiply_adds, remove, remove_from_graph,
};

/// Random scores of a network without weights.
fn random_scores(graph: &Graph, seed: u64) -> Scores {
    let model = Model { graph: graph.clone(), values: BTreeMap::new() };
    Importance::Random { seed }.scores(&model).unwrap()
}

/// Asserts that all but sizes of channels is as before.
fn assert_same_structure(before: &Graph, after: &Graph) {
    assert_eq!([before.input, before.output], [after.input, after.output]);
    assert_eq!(before.input_shape(), after.input_shape());
    assert_eq!(before.shape(before.output), after.shape(after.output));
    assert_eq!(before.auxiliary, after.auxiliary);
    for (one, other) in before.nodes.iter().zip(&after.nodes) {
        assert_eq!(one.op.kind(), other.op.kind());
        assert_eq!((&one.name, &one.inputs, one.output), (&other.name, &other.inputs, other.output));
        let [one, other] = [before.shape(one.output), after.shape(other.output)];
        assert_eq!(one.0[1..], other.0[1..]);
        assert!(other.0[0] <= one.0[0]);
    }
    let names = |graph: &Graph| graph.parameters.iter().map(|p| p.name.clone()).collect::<Vec<_>>();
    assert_eq!(names(before), names(after));
}

#[test]
fn networks_of_the_zoo_lose_30_percent_of_their_multiply_adds() {
    for network in NETWORKS {
        let graph = (network.build)(&(network.defaults)()).unwrap();
        let groups = channel_groups(&graph).unwrap();
        for granularity in [1, 8, 16] {
            let name = format!("{} in multiples of {granularity}", network.name);
            let target = Target { granularity, ..Target::new(0.3) };
            let selection = match choose(&graph, &random_scores(&graph, 7), &target) {
                Ok(selection) => selection,
                // Its layers have 16, 32 and 64 channels.
                Err(PruneError::Unreachable { largest, .. }) if network.name == "digits" => {
                    assert!(granularity == 16 && largest < 0.3, "{name}: {largest}");
                    continue;
                }
                Err(error) => panic!("{name}: {error}"),
            };
            let pruned = remove_from_graph(&graph, &selection).unwrap();
            assert_same_structure(&graph, &pruned);
            let removed = 1.0 - multiply_adds(&pruned) as f64 / multiply_adds(&graph) as f64;
            // Small networks have units of many multiply-adds.
            let max = if network.name == "digits" { 0.45 } else { 0.34 };
            assert!((0.3..max).contains(&removed), "{name}: {removed} removed");
            for (position, units) in &selection.removed {
                let group = &groups[*position];
                let remaining = group.units.len() - units.len();
                for tensor in &group.tensors {
                    assert!((remaining * tensor.channels_per_unit).is_multiple_of(granularity), "{name}");
                }
            }
            let text = write(&pruned).unwrap();
            assert_eq!(parse(&text).unwrap(), pruned, "{name}");
        }
    }
}

#[test]
fn weights_of_the_zoo_have_the_sizes_of_their_parameters() {
    for network in NETWORKS {
        let size = if network.name == "inception_v3" { 299 } else { 97 };
        let graph = zoo_network(network.name, 4, [size, size]);
        let model = model(&graph, &Data::new(&graph, &settings(1)));
        let selection = half_of_units(&channel_groups(&graph).unwrap(), 2, |_| true);
        let pruned = remove(&model, &selection).unwrap();
        assert_sizes(&pruned);
        assert_same_structure(&graph, &pruned.graph);
        let values = |model: &Model| model.values.values().map(Vec::len).sum::<usize>();
        let remaining = values(&pruned) as f64 / values(&model) as f64;
        // Most values are between two groups, of which half remain.
        assert!((0.1..0.9).contains(&remaining), "{}: {remaining}", network.name);
        // The removal does not depend on the weights.
        assert_eq!(remove_from_graph(&graph, &selection).unwrap(), pruned.graph);
    }
}

#[test]
fn every_operation_and_random_networks_can_be_pruned() {
    let random = (0..400).map(|seed| random_network(seed).graph().unwrap());
    let (mut pruned_networks, mut unreachable) = (0, 0);
    for (seed, graph) in (0..).zip(example_networks().unwrap().into_iter().chain(random)) {
        let scores = random_scores(&graph, seed);
        for (share, granularity) in [(0.1, 1), (0.4, 1), (0.3, 4)] {
            match choose(&graph, &scores, &Target { granularity, ..Target::new(share) }) {
                Ok(selection) => {
                    let pruned = remove_from_graph(&graph, &selection).unwrap();
                    assert_same_structure(&graph, &pruned);
                    let removed = 1.0 - multiply_adds(&pruned) as f64 / multiply_adds(&graph) as f64;
                    assert!(removed > share - 1e-12, "{}: {removed} of {share}", graph.name);
                    assert_eq!(parse(&write(&pruned).unwrap()).unwrap(), pruned);
                    pruned_networks += 1;
                }
                Err(PruneError::Unreachable { largest, .. }) => {
                    assert!(largest < share);
                    unreachable += 1;
                }
                Err(PruneError::NothingToPrune { .. }) => unreachable += 1,
                Err(error) => panic!("{}: {error}", graph.name),
            }
        }
    }
    assert!(pruned_networks > 400 && unreachable > 50, "{pruned_networks} {unreachable}");
}
