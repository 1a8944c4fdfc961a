//! Folded networks compute what they computed before.

use std::collections::BTreeMap;
use stratus_conformance::networks::{
    Data, Settings, evaluate_reference, evaluate_with, output_distance, random_network, read_network,
};
use stratus_graph::ops::{
    BatchNorm2d, Concat, Conv2d, ConvTranspose2d, Dropout, Flatten, LayerScale, Linear, MaxPool2d,
    PointwiseLinear, Relu, Scale, StochasticDepth, example_networks,
};
use stratus_graph::{Graph, GraphBuilder, Op, Shape};
use stratus_optimise::{FoldedModel, Model, fold};

/// A network with random weights.
fn model(graph: &Graph, data: &Data) -> Model {
    let named = graph.parameters.iter().zip(&data.parameters).map(|(parameter, values)| {
        (parameter.name.clone(), values.iter().map(|&value| value as f32).collect::<Vec<f32>>())
    });
    let values: BTreeMap<_, _> = named.collect();
    Model::for_inference(graph, values).unwrap()
}

/// The data of a folded network: the same images, its own weights.
fn data_of(folded: &Model, data: &Data) -> Data {
    let values = folded.graph.parameters.iter().map(|parameter| &folded.values[&parameter.name]);
    let parameters = values.map(|values| values.iter().copied().map(f64::from).collect()).collect();
    Data { parameters, ..data.clone() }
}

/// Folds a network and checks that its outputs change by rounding only. `None` if they depend too much on
/// rounding to be compared.
fn fold_and_compare(graph: &Graph, settings: &Settings) -> Option<FoldedModel> {
    let graph = graph.for_inference();
    let expected = evaluate_reference(&graph, settings).unwrap()?;
    let folded = fold(model(&graph, &expected.data)).unwrap();
    let got = evaluate_with(&folded.model.graph, settings, &data_of(&folded.model, &expected.data)).unwrap();
    let distance = output_distance(&expected.outputs, &got);
    assert!(distance <= expected.tolerance, "{}: {distance} > {}", graph.name, expected.tolerance);
    Some(folded)
}

fn settings(batch: usize) -> Settings {
    let (_, mut settings) = read_network(&random_network(0).text()).unwrap();
    settings.batch = batch;
    settings
}

fn removed(graph: &Graph) -> Vec<String> {
    fold_and_compare(graph, &settings(2)).expect("the network does not depend on rounding").removed
}

/// A network for images of six channels with 7x6 pixels, of layers in sequence.
fn sequence(layers: &[(&str, Op)]) -> Graph {
    let (mut graph, mut x) = GraphBuilder::new("sequence", Shape::image(6, 7, 6));
    for (name, op) in layers {
        x = graph.add(name, op.clone(), &[x]).unwrap();
    }
    graph.finish(x).unwrap()
}

fn grouped(groups: usize, bias: bool) -> Conv2d {
    Conv2d { groups, bias, ..Conv2d::new(6, 12, 3, 1, 1) }
}

#[test]
fn norms_become_part_of_every_kind_of_product() {
    let norm = || Op::from(BatchNorm2d::new(12));
    let transposed = |groups| ConvTranspose2d { groups, ..ConvTranspose2d::new(6, 12, 3, 2, 1, 1) };
    let products: [Op; 8] = [
        grouped(1, false).into(),
        grouped(1, true).into(),
        grouped(6, false).into(),
        grouped(3, true).into(),
        transposed(1).into(),
        transposed(2).into(),
        ConvTranspose2d { bias: true, ..transposed(6) }.into(),
        PointwiseLinear { bias: false, ..PointwiseLinear::new(6, 12) }.into(),
    ];
    for product in products {
        let graph = sequence(&[("product", product.clone()), ("norm", norm()), ("relu", Relu.into())]);
        assert_eq!(removed(&graph), ["norm"], "{product:?}");
        let folded = fold_and_compare(&graph, &settings(1)).unwrap().model;
        let names: Vec<&str> = folded.graph.parameters.iter().map(|p| p.name.as_str()).collect();
        assert_eq!(names, ["product.weight", "product.bias"], "{product:?}");
    }
    let linear = Linear { bias: false, ..Linear::new(6 * 7 * 6, 5) };
    let graph =
        sequence(&[("flatten", Flatten.into()), ("fc", linear.into()), ("norm", BatchNorm2d::new(5).into())]);
    assert_eq!(removed(&graph), ["norm"]);
}

#[test]
fn chains_are_folded_and_layers_without_effect_removed() {
    let graph = sequence(&[
        ("drop1", Dropout { p: 0.3 }.into()),
        ("conv", grouped(1, false).into()),
        ("drop2", Dropout { p: 0.3 }.into()),
        ("norm1", BatchNorm2d::new(12).into()),
        ("scale", LayerScale::new(12).into()),
        ("half", Scale { factor: 0.5 }.into()),
        ("norm2", BatchNorm2d::new(12).into()),
        ("depth", StochasticDepth { p: 0.2 }.into()),
    ]);
    let expected = ["drop1", "drop2", "norm1", "scale", "half", "norm2", "depth"];
    assert_eq!(removed(&graph), expected);
    // Without a product before them, two norms become one.
    let graph = sequence(&[("norm1", BatchNorm2d::new(6).into()), ("norm2", BatchNorm2d::new(6).into())]);
    assert_eq!(removed(&graph), ["norm2"]);
}

#[test]
fn norms_stay_where_something_else_reads_their_input() {
    let (mut graph, x) = GraphBuilder::new("read_twice", Shape::image(6, 7, 6));
    let conv = graph.add("conv", grouped(1, false), &[x]).unwrap();
    let norm = graph.add("norm", BatchNorm2d::new(12), &[conv]).unwrap();
    let joined = graph.add("joined", Concat, &[conv, norm]).unwrap();
    assert!(removed(&graph.finish(joined).unwrap()).is_empty());
    // A maximum is not linear.
    let pool = MaxPool2d::new(2, 2, 0);
    let graph = sequence(&[("pool", pool.into()), ("norm", BatchNorm2d::new(6).into())]);
    assert!(removed(&graph).is_empty());
}

#[test]
fn concatenations_pass_norms_on_if_all_inputs_take_them() {
    let network = |second: Op, channels: usize| {
        let (mut graph, x) = GraphBuilder::new("joined", Shape::image(6, 8, 6));
        let first = graph.add("first", Conv2d::new(6, 4, 3, 2, 1), &[x]).unwrap();
        let second = graph.add("second", second, &[x]).unwrap();
        let joined = graph.add("joined", Concat, &[first, second]).unwrap();
        let norm = graph.add("norm", BatchNorm2d::new(4 + channels), &[joined]).unwrap();
        graph.finish(norm).unwrap()
    };
    assert_eq!(removed(&network(Conv2d::new(6, 5, 3, 2, 1).into(), 5)), ["norm"]);
    assert!(removed(&network(MaxPool2d::new(2, 2, 0).into(), 6)).is_empty());
}

#[test]
fn values_that_overflow_are_not_folded() {
    let graph = sequence(&[("conv", grouped(1, false).into()), ("norm", BatchNorm2d::new(12).into())]);
    let mut model = model(&graph, &Data::new(&graph, &settings(1)));
    model.values.insert("conv.weight".to_owned(), vec![1e30; 12 * 6 * 9]);
    model.values.insert("norm.weight".to_owned(), vec![1e30; 12]);
    let folded = fold(model.clone()).unwrap();
    assert_eq!(folded.model, model);
    assert!(folded.removed.is_empty());
}

#[test]
fn missing_values_are_an_error() {
    let graph = sequence(&[("conv", grouped(1, false).into())]);
    let error = Model::for_inference(&graph, BTreeMap::new()).unwrap_err();
    assert_eq!(error.to_string(), "the weights have no `conv.weight`");
    let short = BTreeMap::from([("conv.weight".to_owned(), vec![0.0; 3])]);
    let error = Model::for_inference(&graph, short).unwrap_err();
    assert_eq!(error.to_string(), "`conv.weight` has 3 values, but its shape is [12, 6, 3, 3]");
}

#[test]
fn every_operation_and_random_networks_compute_the_same() {
    let mut compared = 0;
    for seed in 0..150 {
        let (graph, settings) = read_network(&random_network(seed).text()).unwrap();
        compared += usize::from(fold_and_compare(&graph, &settings).is_some());
    }
    assert!(compared > 100, "only {compared} networks could be compared");
    for graph in example_networks().unwrap() {
        fold_and_compare(&graph, &settings(2));
    }
}
