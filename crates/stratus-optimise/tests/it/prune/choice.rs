//! The choice of units.

use super::{model, settings, zoo_network};
use std::collections::{BTreeMap, BTreeSet};
use stratus_conformance::networks::Data;
use stratus_graph::layer_file::parse;
use stratus_graph::{Graph, NodeId};
use stratus_optimise::Model;
use stratus_optimise::prune::{
    Importance, Scores, Selection, Target, channel_groups, choose, multiply_adds, remove_from_graph,
};

/// Two convolutions without padding, whose maps have the same size, and a linear layer.
fn small() -> Graph {
    parse(
        "name = 'small'\ninput = [2, 4, 4]\n\
         [[layer]]\nname = 'a'\nop = 'conv2d'\nout_channels = 4\nkernel = 1\n\
         [[layer]]\nname = 'b'\nop = 'conv2d'\nout_channels = 8\nkernel = 1\n\
         [[layer]]\nname = 'pool'\nop = 'adaptive_avg_pool2d'\noutput = 1\n\
         [[layer]]\nname = 'flatten'\nop = 'flatten'\n\
         [[layer]]\nname = 'fc'\nop = 'linear'\nout_features = 4\n",
    )
    .unwrap()
}

fn every(share: f64) -> Target {
    Target { granularity: 1, ..Target::new(share) }
}

fn selection(rows: &[(usize, &[usize])]) -> Selection {
    let removed = rows.iter().map(|(group, units)| (*group, units.iter().copied().collect::<BTreeSet<_>>()));
    Selection { removed: removed.collect() }
}

#[test]
fn multiply_adds_are_those_of_weights() {
    // 16 pixels * (2 * 4 + 4 * 8) + 8 * 4.
    assert_eq!(multiply_adds(&small()), 672);
    let up = parse(
        "name = 'up'\ninput = [6, 4, 4]\n\
         [[layer]]\nname = 'up'\nop = 'conv_transpose2d'\nout_channels = 4\nkernel = [3, 2]\n\
         stride = 2\ngroups = 2\n",
    )
    .unwrap();
    assert_eq!(multiply_adds(&up), 16 * 6 * 2 * 6);
}

/// A unit of `a` costs 16 * (2 + 8) = 160 multiply-adds, one of `b` 16 * 4 + 4 = 68.
#[test]
fn units_are_chosen_by_importance_for_their_cost() {
    let graph = small();
    let with = |others: f64, a: f64, b: f64| {
        Scores(vec![vec![others, a, others, others], vec![9.0, 9.0, b, 9.0, 9.0, 9.0, 9.0, 9.0]])
    };
    // 0.1 / 160 * 4 / 3 is less than 0.05 / 68 * 8 / 7, although 0.1 is more.
    assert_eq!(choose(&graph, &with(1.0, 0.1, 0.05), &every(0.1)).unwrap(), selection(&[(0, &[1])]));
    assert_eq!(choose(&graph, &with(1.0, 0.1, 0.04), &every(0.1)).unwrap(), selection(&[(1, &[2])]));
    // Without unit 1 of `a`, one of `b` costs only 16 * 3 + 4: 0.75 / 160 * 4 / 2 is between 0.5 / 68 * 8 / 7
    // and 0.5 / 52 * 8 / 7.
    let chosen = choose(&graph, &with(0.75, 0.0, 0.5), &every(0.3)).unwrap();
    assert_eq!(chosen, selection(&[(0, &[1, 3])]));
}

/// With a measure that does not know the layers, none loses nearly all channels before the others lose some.
#[test]
fn all_layers_of_a_network_are_pruned() {
    for (name, width) in
        [("vgg16_bn", 64), ("resnet50", 64), ("densenet121", 64), ("convnext_tiny", 96), ("mobilenet_v2", 32)]
    {
        let graph = zoo_network(name, width, [64, 64]);
        let groups = channel_groups(&graph).unwrap();
        let model = Model { graph: graph.clone(), values: BTreeMap::new() };
        let scores = Importance::Random { seed: 1 }.scores(&model).unwrap();
        let selection = choose(&graph, &scores, &every(0.5)).unwrap();
        for (position, group) in groups.iter().enumerate() {
            let removed = selection.removed.get(&position).map_or(0, BTreeSet::len);
            let remaining = (group.units.len() - removed) as f64 / group.units.len() as f64;
            assert!(remaining > 0.3, "{name}: {remaining} of group {position} remain");
        }
    }
}

#[test]
fn ties_are_broken_by_position() {
    let graph = small();
    let scores = Scores(vec![vec![0.0; 4], vec![0.0; 8]]);
    // 3 of the 4 units of `a`, from the last.
    assert_eq!(choose(&graph, &scores, &every(0.7)).unwrap(), selection(&[(0, &[1, 2, 3])]));
    assert_eq!(choose(&graph, &scores, &every(0.0)).unwrap(), Selection::default());
}

#[test]
fn granularity_and_minimum_limit_what_remains() {
    let graph = small();
    let scores = Scores(vec![vec![1.0; 4], vec![1.0; 8]]);
    let largest = |target: Target| {
        let error = choose(&graph, &scores, &Target { share: 1.0, ..target }).unwrap_err();
        error.to_string()
    };
    // One unit of each group remains: 16 * (2 + 1) + 4 = 52 of 672. Shares are rounded down.
    assert_eq!(
        largest(every(1.0)),
        "cannot remove 100.0 % of the multiply-adds: at most 92.2 % can be removed in multiples of 1 channels"
    );
    // Four of each group: 16 * (8 + 16) + 16 = 400.
    let four = Target { granularity: 4, ..every(1.0) };
    assert!(largest(four).contains("at most 40.4 %"), "{}", largest(four));
    let minimum = Target { min_channels: 3, ..every(1.0) };
    // Three of each: 16 * (6 + 9) + 12 = 252.
    assert!(largest(minimum).contains("at most 62.5 %"), "{}", largest(minimum));
    assert_eq!(
        largest(Target::new(1.0)),
        "nothing can be pruned: no layer can lose channels and keep a multiple of 16"
    );
    let selection = choose(&graph, &scores, &Target { share: 0.625, ..minimum }).unwrap();
    assert_eq!(multiply_adds(&remove_from_graph(&graph, &selection).unwrap()), 252);
}

/// A unit of a convolution with 32 groups has 32 channels, so that any number of units is a multiple of 16.
#[test]
fn channels_of_a_unit_count_for_the_granularity() {
    let graph = zoo_network("resnext50_32x4d", 64, [64, 64]);
    let model = Model { graph: graph.clone(), values: BTreeMap::new() };
    let scores = Importance::Random { seed: 1 }.scores(&model).unwrap();
    let selection = choose(&graph, &scores, &Target::new(0.5)).unwrap();
    let groups = channel_groups(&graph).unwrap();
    let small = groups.iter().enumerate().filter(|(_, group)| group.units.len() == 4);
    let pruned = small.filter(|(position, _)| selection.removed.contains_key(position)).count();
    assert!(pruned > 2, "{pruned}");
}

#[test]
fn a_network_without_groups_cannot_be_pruned() {
    let graph = parse(
        "name = 'one'\ninput = [2, 4, 4]\n\
         [[layer]]\nname = 'a'\nop = 'conv2d'\nout_channels = 4\nkernel = 1\n",
    )
    .unwrap();
    let none = Scores(Vec::new());
    let message = choose(&graph, &none, &every(0.1)).unwrap_err().to_string();
    assert_eq!(message, "nothing can be pruned: no layer can lose channels and keep a multiple of 1");
    assert_eq!(choose(&graph, &none, &every(0.0)).unwrap(), Selection::default());
}

#[test]
fn invalid_targets_and_scores_are_errors() {
    let graph = small();
    let scores = Scores(vec![vec![1.0; 4], vec![1.0; 8]]);
    let message = |scores: &Scores, target| choose(&graph, scores, &target).unwrap_err().to_string();
    for (share, text) in [(f64::NAN, "NaN"), (-0.1, "-0.1"), (1.5, "1.5"), (f64::INFINITY, "inf")] {
        assert_eq!(message(&scores, every(share)), format!("invalid share {text}: must be from 0 to 1"));
    }
    let zero = Target { granularity: 0, ..every(0.3) };
    assert_eq!(message(&scores, zero), "invalid granularity 0: must be at least 1");
    let short = Scores(vec![vec![1.0; 4]]);
    assert_eq!(
        message(&short, every(0.3)),
        "network `small`: the scores are those of the units of another network"
    );
    let damaged = Scores(vec![vec![1.0, f64::NAN, 1.0, 1.0], vec![1.0; 8]]);
    assert_eq!(
        message(&damaged, every(0.3)),
        "network `small`: the score of a unit is negative or not finite"
    );
    let huge = Target { granularity: usize::MAX, min_channels: usize::MAX, ..every(0.3) };
    assert!(message(&scores, huge).starts_with("nothing can be pruned"));
}

#[test]
fn the_choice_is_a_function_of_its_arguments() {
    let graph = zoo_network("mobilenet_v3_small", 16, [64, 64]);
    let model = model(&graph, &Data::new(&graph, &settings(1)));
    for importance in [Importance::L1, Importance::Random { seed: 4 }] {
        let choose = || choose(&graph, &importance.scores(&model).unwrap(), &Target::new(0.3)).unwrap();
        assert_eq!(choose(), choose());
    }
    let seeded = |seed| {
        let scores = Importance::Random { seed }.scores(&model).unwrap();
        choose(&graph, &scores, &Target::new(0.3)).unwrap()
    };
    assert_ne!(seeded(1), seeded(2));
}

/// Units of the least magnitude are removed within each group.
#[test]
fn the_least_important_units_of_a_group_are_removed() {
    let graph = zoo_network("resnet18", 16, [32, 32]);
    let model = model(&graph, &Data::new(&graph, &settings(1)));
    let scores = Importance::L1.scores(&model).unwrap();
    let selection = choose(&graph, &scores, &every(0.5)).unwrap();
    assert!(selection.removed.len() > 5, "{selection:?}");
    for (&group, removed) in &selection.removed {
        let scores = scores.0[group].iter().enumerate();
        let (removed, kept): (Vec<_>, Vec<_>) = scores.partition(|(unit, _)| removed.contains(unit));
        let largest = removed.iter().map(|(_, score)| **score).fold(0.0, f64::max);
        assert!(kept.iter().all(|(_, score)| **score >= largest));
    }
}

/// The accounting of the search agrees with the network that results: one unit less, and the share is not
/// reached.
#[test]
fn no_more_is_removed_than_the_share_needs() {
    for name in ["resnet18", "densenet121", "mobilenet_v2", "erfnet", "convnext_tiny", "resnext50_32x4d"] {
        let graph = zoo_network(name, 32, [64, 64]);
        let model = Model { graph: graph.clone(), values: BTreeMap::new() };
        let scores = Importance::Random { seed: 2 }.scores(&model).unwrap();
        let selection = choose(&graph, &scores, &every(0.4)).unwrap();
        let share = |selection: &Selection| {
            let pruned = remove_from_graph(&graph, selection).unwrap();
            1.0 - multiply_adds(&pruned) as f64 / multiply_adds(&graph) as f64
        };
        let groups = channel_groups(&graph).unwrap();
        assert!(share(&selection) >= 0.4, "{name}");
        // The unit that was removed last is the most important removed one of some group.
        let before_last = selection.removed.iter().map(|(&group, units)| {
            let best =
                units.iter().max_by(|a, b| scores.0[group][**a].total_cmp(&scores.0[group][**b])).unwrap();
            let mut fewer = selection.clone();
            fewer.removed.get_mut(&group).unwrap().remove(best);
            share(&fewer)
        });
        assert!(before_last.fold(1.0, f64::min) < 0.4, "{name}");
        assert!(groups.iter().flat_map(|group| &group.producers).max() < Some(&NodeId(graph.nodes.len())));
    }
}
