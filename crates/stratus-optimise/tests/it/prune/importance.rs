//! Scores of units.

use super::{model, settings, zoo_network};
use std::collections::BTreeMap;
use stratus_conformance::networks::Data;
use stratus_graph::Graph;
use stratus_graph::layer_file::parse;
use stratus_optimise::Model;
use stratus_optimise::prune::{Importance, TaylorScores, channel_groups};

/// Two filters of two weights with a norm, then a linear layer.
fn small() -> Graph {
    parse(
        "name = 'small'\ninput = [2, 1, 1]\n\
         [[layer]]\nname = 'conv'\nop = 'conv2d'\nout_channels = 2\nkernel = 1\nbias = false\n\
         [[layer]]\nname = 'norm'\nop = 'batch_norm2d'\n\
         [[layer]]\nname = 'flatten'\nop = 'flatten'\n\
         [[layer]]\nname = 'fc'\nop = 'linear'\nout_features = 3\n",
    )
    .unwrap()
}

fn values(rows: &[(&str, &[f32])]) -> BTreeMap<String, Vec<f32>> {
    rows.iter().map(|(name, values)| ((*name).to_owned(), values.to_vec())).collect()
}

fn small_model() -> Model {
    let values = values(&[
        ("conv.weight", &[1.0, -2.0, 0.5, 0.5]),
        ("norm.weight", &[3.0, 1.0]),
        ("norm.bias", &[-1.0, 2.0]),
        ("norm.running_mean", &[9.0, 9.0]),
        ("norm.running_var", &[9.0, 9.0]),
        ("fc.weight", &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]),
        ("fc.bias", &[1.0, 1.0, 1.0]),
    ]);
    Model { graph: small(), values }
}

#[test]
fn magnitudes_of_filters_are_relative_to_their_group() {
    // |1| + |-2| = 3 and 0.5 + 0.5 = 1, of 4 in one layer; norms do not count.
    assert_eq!(Importance::L1.scores(&small_model()).unwrap().0, [[0.75, 0.25]]);
    let mut zero = small_model();
    zero.values.insert("conv.weight".to_owned(), vec![0.0; 4]);
    assert_eq!(Importance::L1.scores(&zero).unwrap().0, [[0.0, 0.0]]);
}

/// In a transposed convolution with groups the filters of an output channel are columns.
#[test]
fn filters_of_transposed_convolutions_are_columns() {
    let graph = parse(
        "name = 'transposed'\ninput = [4, 1, 1]\n\
         [[layer]]\nname = 'up'\nop = 'conv_transpose2d'\nout_channels = 6\nkernel = 1\n\
         groups = 2\nbias = false\n\
         [[layer]]\nname = 'flatten'\nop = 'flatten'\n\
         [[layer]]\nname = 'fc'\nop = 'linear'\nout_features = 3\n",
    )
    .unwrap();
    // Rows of group 0: 1 2 3, 1 2 3; of group 1: 10 20 30, 10 20 30. Units have a channel of both groups.
    let weight = [1.0, 2.0, 3.0, 1.0, 2.0, 3.0, 10.0, 20.0, 30.0, 10.0, 20.0, 30.0];
    let mut values = values(&[("up.weight", &weight), ("fc.bias", &[0.0; 3])]);
    values.insert("fc.weight".to_owned(), vec![1.0; 18]);
    let scores = Importance::L1.scores(&Model { graph, values }).unwrap();
    let [scores] = &scores.0[..] else { panic!("{scores:?}") };
    assert!(
        scores
            .iter()
            .zip([1.0 / 6.0, 1.0 / 3.0, 0.5])
            .all(|(found, expected)| (found - expected).abs() < 1e-12)
    );
}

/// A depthwise layer multiplies the channels of another: both have filters for a unit.
#[test]
fn filters_of_depthwise_layers_belong_to_their_channel() {
    let graph = parse(
        "name = 'depthwise'\ninput = [1, 1, 1]\n\
         [[layer]]\nname = 'first'\nop = 'conv2d'\nout_channels = 3\nkernel = 1\nbias = false\n\
         [[layer]]\nname = 'up'\nop = 'conv_transpose2d'\nout_channels = 6\nkernel = 1\n\
         groups = 3\nbias = false\n\
         [[layer]]\nname = 'last'\nop = 'conv2d'\nout_channels = 1\nkernel = 1\n",
    )
    .unwrap();
    let values = values(&[
        ("first.weight", &[1.0, 1.0, -2.0]),
        ("up.weight", &[1.0, 2.0, -3.0, 4.0, 5.0, -1.0]),
        ("last.weight", &[1.0; 6]),
        ("last.bias", &[0.0]),
    ]);
    let scores = Importance::L1.scores(&Model { graph, values }).unwrap();
    // A quarter and 3 of 16, a quarter and 7 of 16, half and 6 of 16, scaled to one layer.
    assert_eq!(scores.0, [[0.21875, 0.34375, 0.4375]]);
}

#[test]
fn random_scores_are_functions_of_seed_group_and_unit() {
    let graph = zoo_network("resnet18", 16, [32, 32]);
    let model = Model { graph, values: BTreeMap::new() };
    let scores = |seed| Importance::Random { seed }.scores(&model).unwrap().0;
    assert_eq!(scores(1), scores(1));
    let all: Vec<f64> = scores(1).concat();
    let different = scores(2).concat().iter().zip(&all).filter(|(one, other)| one != other).count();
    assert!(different * 10 > all.len() * 9);
    let distinct: std::collections::BTreeSet<u64> = all.iter().map(|score| score.to_bits()).collect();
    assert!(distinct.len() * 10 > all.len() * 9);
}

#[test]
fn taylor_scores_are_mean_squares_of_gradient_times_value() {
    let model = small_model();
    let mut taylor = TaylorScores::new(&model).unwrap();
    let gradients = |factor: f32| {
        values(&[
            ("conv.weight", &[factor, 1.0, 2.0, 2.0]),
            ("norm.weight", &[1.0, 0.0]),
            ("norm.bias", &[0.5, 1.0]),
            ("fc.weight", &[7.0; 6]),
            ("fc.bias", &[7.0; 3]),
        ])
    };
    taylor.add(&gradients(1.0)).unwrap();
    taylor.add(&gradients(3.0)).unwrap();
    // Unit 0: 1 - 2 + 3 - 0.5 = 1.5, then 3 - 2 + 3 - 0.5 = 3.5. Unit 1: 1 + 1 + 0 + 2 = 4 twice.
    let scores = Importance::Taylor(&taylor).scores(&model).unwrap();
    assert_eq!(scores.0, [[(1.5f64.powi(2) + 3.5f64.powi(2)) / 2.0, 16.0]]);
}

#[test]
fn incomplete_gradients_are_errors_and_change_nothing() {
    let model = small_model();
    let mut taylor = TaylorScores::new(&model).unwrap();
    let message = |result: Result<(), stratus_optimise::prune::PruneError>| result.unwrap_err().to_string();
    let complete = values(&[
        ("conv.weight", &[1.0; 4]),
        ("norm.weight", &[1.0; 2]),
        ("norm.bias", &[1.0; 2]),
        ("fc.weight", &[1.0; 6]),
        ("fc.bias", &[1.0; 3]),
    ]);
    let with = |name: &str, gradient: &[f32]| {
        let mut gradients = complete.clone();
        gradients.insert(name.to_owned(), gradient.to_vec());
        gradients
    };
    assert_eq!(
        message(taylor.add(&with("norm.bias", &[1.0]))),
        "the gradient of `norm.bias` has 1 values, expected 2"
    );
    assert_eq!(
        message(taylor.add(&with("norm.weight", &[1.0, f32::NAN]))),
        "`norm.weight` has a gradient that is not finite"
    );
    let mut missing = complete.clone();
    missing.remove("conv.weight");
    assert_eq!(message(taylor.add(&missing)), "the gradient of `conv.weight` has 0 values, expected 4");
    let error = Importance::Taylor(&taylor).scores(&model).unwrap_err().to_string();
    assert_eq!(error, "no gradients were added: importance by Taylor expansion needs at least one batch");
    taylor.add(&complete).unwrap();
    Importance::Taylor(&taylor).scores(&model).unwrap();
    let graph = zoo_network("digits", 4, [28, 28]);
    let other = super::model(&graph, &Data::new(&graph, &settings(1)));
    let error = Importance::Taylor(&taylor).scores(&other).unwrap_err().to_string();
    assert_eq!(error, "network `digits`: the gradients are those of another network");
}

#[test]
fn damaged_weights_are_errors() {
    let message = |change: fn(&mut Model)| {
        let mut model = small_model();
        change(&mut model);
        Importance::L1.scores(&model).unwrap_err().to_string()
    };
    assert_eq!(
        message(|model| drop(model.values.remove("conv.weight"))),
        "the weights have no `conv.weight`"
    );
    assert_eq!(
        message(|model| drop(model.values.insert("conv.weight".to_owned(), vec![1.0]))),
        "`conv.weight` has 1 values, but its shape is [2, 2, 1, 1]"
    );
    assert_eq!(
        message(|model| model.values.get_mut("fc.weight").unwrap()[0] = f32::INFINITY),
        "`fc.weight` has a value that is not finite"
    );
}

/// The totals of groups: a residual stage has the filters of several layers, a down-sampler a part of them.
#[test]
fn groups_count_by_the_layers_whose_filters_they_have() {
    let totals = |name: &str, width: usize, size: usize| {
        let graph = zoo_network(name, width, [size, size]);
        let model = model(&graph, &Data::new(&graph, &settings(1)));
        let sums = |importance: Importance<'_>| -> Vec<f64> {
            let scores = importance.scores(&model).unwrap().0;
            assert!(scores.iter().flatten().all(|&score| score > 0.0), "{name}");
            scores.iter().map(|scores| scores.iter().sum()).collect()
        };
        let [l1, random] = [Importance::L1, Importance::Random { seed: 1 }].map(sums);
        assert!(l1.iter().zip(&random).all(|(one, other)| (one - other).abs() < 1e-9), "{name}");
        assert_eq!(l1.len(), channel_groups(&graph).unwrap().len());
        l1
    };
    let close = |found: &[f64], expected: &[f64]| {
        let differs = found.iter().zip(expected).any(|(one, other)| (one - other).abs() > 1e-9);
        assert!(!differs, "{found:?} {expected:?}");
    };
    // Stem and two blocks, with the inner convolution of each.
    close(&totals("resnet18", 8, 32), &[3.0, 1.0, 1.0]);
    // Half of the filters of the factorised blocks and all of two down-samplers, besides those of the blocks.
    let erfnet = totals("erfnet_encoder", 16, 64);
    close(&erfnet[..1], &[1.0 + 5.0 * 13.0 / 64.0 + 8.0 * 13.0 / 128.0]);
    // The stem, and a depthwise convolution, which does not count.
    close(&totals("mobilenet_v2", 32, 32)[..1], &[1.0]);
    totals("densenet121", 8, 32);
    totals("convnext_tiny", 8, 32);
}
