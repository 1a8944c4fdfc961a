//! Layers that the digits network does not have, in small networks with all programs of a training run:
//! against the reference, in every layout and precision.

use crate::common::network::{self, CLASSES, Run, WHOLE, numbers, offered, training_program};
use crate::common::{LAYOUTS, backend, choices, precisions};
use stratus_conformance::cases;
use stratus_engine::ops::KernelSpec;
use stratus_engine::reference::ReferenceBackend;
use stratus_engine::{Backend, Choices, Kernel, Precision, PrepareRequest, ValueId};
use stratus_graph::ops::{
    AdaptiveAvgPool2d, AvgPool2d, BatchNorm2d, Conv2d, Flatten, Linear, LocalResponseNorm, MaxPool2d, Relu,
};
use stratus_graph::{Graph, GraphBuilder, Op, Shape};

/// The layers in sequence, named by their kind and position.
fn chain(name: &str, input: [usize; 3], layers: Vec<Op>) -> Graph {
    let (mut graph, mut x) = GraphBuilder::new(name, Shape(input.to_vec()));
    for (position, op) in layers.into_iter().enumerate() {
        x = graph.add(&format!("layer{position}"), op, &[x]).unwrap();
    }
    graph.finish(x).unwrap()
}

fn linear(in_features: usize, out_features: usize) -> Op {
    Linear { in_features, out_features, bias: true }.into()
}

/// The end of a residual network: a map that is averaged, and read by a linear layer in its own layout.
/// `channels` need not fill a block.
fn averaged(channels: usize) -> Graph {
    let layers = vec![
        Conv2d::new(3, channels, 3, 1, 1).into(),
        BatchNorm2d::new(channels).into(),
        Relu.into(),
        AdaptiveAvgPool2d::GLOBAL.into(),
        Flatten.into(),
        linear(channels, CLASSES),
    ];
    chain("averaged", [3, 7, 6], layers)
}

/// Batch norm after a linear layer, whose outputs have the master precision, and after ReLU, whose outputs do
/// not.
fn vectors() -> Graph {
    let layers = vec![
        Conv2d::new(3, 8, 3, 2, 1).into(),
        AvgPool2d::new(3, 1, 1).into(),
        Flatten.into(),
        linear(8 * 4 * 3, 33),
        BatchNorm2d::new(33).into(),
        Relu.into(),
        BatchNorm2d::new(33).into(),
        linear(33, 17),
        BatchNorm2d::new(17).into(),
        linear(17, CLASSES),
    ];
    chain("vectors", [3, 7, 6], layers)
}

/// Depthwise and grouped convolutions, and response normalisation.
fn grouped() -> Graph {
    let grouped = |conv, groups| Conv2d { groups, ..conv };
    let norm = LocalResponseNorm { size: 5, alpha: 0.5, beta: 0.75, k: 1.0 };
    let layers = vec![
        Conv2d { bias: true, ..Conv2d::new(3, 32, 3, 1, 1) }.into(),
        norm.into(),
        grouped(Conv2d::new(32, 32, 3, 2, 1), 32).into(),
        BatchNorm2d::new(32).into(),
        Relu.into(),
        grouped(Conv2d { bias: true, ..Conv2d::new(32, 48, 3, 1, 1) }, 2).into(),
        MaxPool2d::new(2, 2, 0).into(),
        grouped(Conv2d::new(48, 17 * 3, 1, 1, 0), 3).into(),
        AdaptiveAvgPool2d { output: [2, 1] }.into(),
        Flatten.into(),
        linear(17 * 3 * 2, CLASSES),
    ];
    chain("grouped", [3, 11, 9], layers)
}

const BATCH: usize = 7;

/// A batch that is divisible into tiles.
const BATCH_IN_TILES: usize = 32;

/// The losses of two batches, a shorter one, and an evaluation; then all parameters.
fn train(backend: &dyn Backend, graph: &Graph, precision: Precision, layout: &str) -> (Vec<f64>, Vec<f64>) {
    follow(Run::new(backend, graph, precision, BATCH, Some(layout), WHOLE).unwrap())
}

fn follow(mut run: Run) -> (Vec<f64>, Vec<f64>) {
    let programs = [0, 1, 0, 2].into_iter().enumerate();
    let losses = programs.map(|(seed, program)| run.execute(program, seed).unwrap().loss).collect();
    let state = run.state().into_iter().flat_map(|tensor| tensor.values).map(f64::from).collect();
    (losses, state)
}

fn distance(from: &[f64], to: &[f64]) -> f64 {
    assert_eq!(from.len(), to.len());
    let norm = |values: &mut dyn Iterator<Item = f64>| values.map(|v| v * v).sum::<f64>().sqrt();
    norm(&mut from.iter().zip(to).map(|(a, b)| a - b)) / norm(&mut from.iter().copied())
}

/// The allowed distance of losses and state from the exact ones.
fn allowed(graph: &Graph, precision: Precision, exact: &(Vec<f64>, Vec<f64>)) -> [f64; 2] {
    if precision == Precision::F32 {
        return [1e-5, 1e-4];
    }
    let rounded = train(&ReferenceBackend, graph, precision, "plain");
    [(&exact.0, &rounded.0), (&exact.1, &rounded.1)].map(|(exact, got)| 2.0 * distance(exact, got) + 5e-3)
}

/// In f32 the reference's numbers up to rounding; in bf16 as close to the f32 reference as the bf16 reference
/// is.
#[test]
fn small_networks_match_the_reference() {
    let Some(backend) = backend(2) else { return };
    for graph in [averaged(16), averaged(5), averaged(33), vectors(), grouped(), network::siblings()] {
        let exact = train(&ReferenceBackend, &graph, Precision::F32, "plain");
        for precision in precisions(&backend) {
            let allowed = allowed(&graph, precision, &exact);
            for layout in LAYOUTS {
                let got = train(&backend, &graph, precision, layout);
                let differences = [distance(&exact.0, &got.0), distance(&exact.1, &got.1)];
                assert!(
                    differences[0] <= allowed[0] && differences[1] <= allowed[1],
                    "{} {precision} {layout}: losses and state differ by {differences:.7?} > {allowed:.7?}",
                    graph.name
                );
                assert_eq!(train(&backend, &graph, precision, layout), got, "{} {layout}", graph.name);
            }
        }
    }
}

/// The weight gradient of a linear layer as a transposed matrix product; the case tables have row-major
/// weights.
#[test]
fn products_for_transposed_weights_match_the_reference() {
    let Some(backend) = backend(2) else { return };
    // Enough features for oneDNN to prefer transposed weights.
    let layers = vec![Conv2d::new(3, 64, 3, 2, 1).into(), Flatten.into(), linear(1024, CLASSES)];
    let graph = chain("wide", [3, 7, 7], layers);
    let (forward, backward) = ("layer2:linear_forward", "layer2:linear_backward_weights");
    let exact = train(&ReferenceBackend, &graph, Precision::F32, "plain");
    let mut transposed = 0;
    for precision in precisions(&backend) {
        let program = training_program(&graph, precision, BATCH, WHOLE);
        let mut chosen = network::choices(&program, "nhwc");
        let allowed = allowed(&graph, precision, &exact);
        for way in offered(&backend, &program, &chosen, forward) {
            chosen.implementations = [(forward.to_owned(), way)].into();
            for product in offered(&backend, &program, &chosen, backward) {
                if !product.starts_with("product:") {
                    continue;
                }
                let mut chosen = chosen.clone();
                chosen.implementations.insert(backward.to_owned(), product);
                let run =
                    Run::with_choices(&backend, &graph, &program, Some("nhwc"), WHOLE, &chosen).unwrap();
                let plan = run.session.plan(0);
                let weights =
                    plan.program.values.iter().position(|value| value.name == "layer2.weight").unwrap();
                transposed += usize::from(plan.placements[weights].layout.strides[0] == 1);
                let got = follow(run);
                let differences = [distance(&exact.0, &got.0), distance(&exact.1, &got.1)];
                assert!(
                    differences[0] <= allowed[0] && differences[1] <= allowed[1],
                    "{precision} {chosen:?}: {differences:.7?}"
                );
            }
        }
    }
    assert!(transposed > 0, "no product was offered for transposed weights");
}

/// Fused updates of fully connected layers, with row-major and column-major weights, and in two steps for
/// blocked weights.
#[test]
fn fused_updates_match_the_reference() {
    let Some(backend) = backend(2) else { return };
    let layers = vec![Conv2d::new(3, 64, 3, 2, 1).into(), Flatten.into(), linear(1024, CLASSES)];
    let graph = chain("wide", [3, 7, 7], layers);
    let forward = "layer2:linear_forward";
    let exact = train(&ReferenceBackend, &graph, Precision::F32, "plain");
    for precision in precisions(&backend) {
        let program = network::training_joined(&graph, precision, BATCH);
        let allowed = allowed(&graph, precision, &exact);
        let mut seen = [0; 3];
        for layout in LAYOUTS {
            let mut chosen = network::choices(&program, layout);
            for way in offered(&backend, &program, &chosen, forward) {
                chosen.implementations = [(forward.to_owned(), way)].into();
                let run =
                    Run::with_choices(&backend, &graph, &program, Some(layout), WHOLE, &chosen).unwrap();
                let plan = run.session.plan(0);
                let joined =
                    plan.program.steps.iter().any(|step| matches!(step.kernel, Kernel::LinearUpdate(_)));
                let weights =
                    plan.program.values.iter().position(|value| value.name == "layer2.weight").unwrap();
                let by_columns = plan.placements[weights].layout.strides[0] == 1;
                seen[if joined { usize::from(by_columns) } else { 2 }] += 1;
                let got = follow(run);
                let differences = [distance(&exact.0, &got.0), distance(&exact.1, &got.1)];
                assert!(
                    differences[0] <= allowed[0] && differences[1] <= allowed[1],
                    "{precision} {layout} {chosen:?}: {differences:.7?}"
                );
            }
        }
        assert!(seen[0] + seen[1] > 0, "{precision}: nothing was fused: {seen:?}");
    }
}

/// Recomputed activations have the same bits.
#[test]
fn recomputation_is_bitwise_equal() {
    let Some(backend) = backend(2) else { return };
    for graph in [network::branches(), network::digits([3, 9, 8], 8), grouped(), network::siblings()] {
        for precision in precisions(&backend) {
            for layout in LAYOUTS {
                let run = |bytes| {
                    let program = network::training_within(bytes, &graph, precision, BATCH, WHOLE);
                    Run::with_choices(&backend, &graph, &program, Some(layout), WHOLE, &Choices::default())
                        .unwrap()
                };
                let (whole, less) = (run(usize::MAX), run(0));
                let again = |run: &Run| {
                    let program = &run.session.plan(0).program;
                    let ids = (0..program.values.len()).map(ValueId);
                    ids.filter(|&id| program.recomputed_from(id).is_some()).count()
                };
                assert!(again(&whole) == 0 && again(&less) > 0, "{}", graph.name);
                assert_eq!(follow(less), follow(whole), "{} {precision} {layout}", graph.name);
            }
        }
    }
}

/// Tiling, and choosing kernels by measuring, change the numbers by rounding only.
#[test]
fn tiling_and_measured_choices_match_the_reference() {
    let Some(backend) = backend(2) else { return };
    for (graph, cache_bytes) in [
        (averaged(33), 50_000),
        (vectors(), 5_000),
        (grouped(), 160_000),
        (grouped(), 50_000),
        (network::siblings(), 100_000),
    ] {
        let run = |layout, cache_bytes| {
            Run::new(&backend, &graph, Precision::F32, BATCH_IN_TILES, layout, cache_bytes).unwrap()
        };
        let expected = follow(run(Some("nhwc"), WHOLE));
        for layout in [Some("nhwc"), Some("nChw16c"), None] {
            let tiled = run(layout, cache_bytes);
            assert!(!tiled.session.plan(0).program.sections.is_empty(), "{} is not tiled", graph.name);
            let got = follow(tiled);
            let differences = [distance(&expected.0, &got.0), distance(&expected.1, &got.1)];
            assert!(
                differences[0] < 1e-5 && differences[1] < 1e-4,
                "{} {layout:?}: {differences:?}",
                graph.name
            );
        }
    }
}

/// Convolutions of one map are fused horizontally, in both layouts of their weights: row-major if training is
/// prepared first, and that chosen by evaluation, which does not fuse them, if that is first.
#[test]
fn joined_weights_match_the_reference_in_every_layout() {
    let Some(backend) = backend(2) else { return };
    let graph = network::siblings();
    let exact = train(&ReferenceBackend, &graph, Precision::F32, "plain");
    for precision in precisions(&backend) {
        let program = training_program(&graph, precision, BATCH, WHOLE);
        let joined = program.steps.iter().filter_map(|step| match step.kernel {
            Kernel::JoinWeights(_) => Some(step.inputs.len()),
            _ => None,
        });
        assert_eq!(joined.collect::<Vec<_>>(), [3], "{}", program.dump());
        let allowed = allowed(&graph, precision, &exact);
        let mut moved = Vec::new();
        for layout in LAYOUTS {
            for first in [0, 2] {
                let chosen = Choices::default();
                let run =
                    Run::preparing_first(first, &backend, &graph, &program, Some(layout), WHOLE, &chosen);
                let run = run.unwrap();
                let plan = &run.session.plan(0).program;
                let is_joined = |id: ValueId| {
                    let mut readers = plan.readers(id).map(|reader| &plan.steps[reader].kernel);
                    readers.any(|kernel| matches!(kernel, Kernel::JoinWeights(_)))
                };
                let reordered = |step: &&stratus_engine::Step| {
                    matches!(step.kernel, Kernel::Reorder(_)) && is_joined(step.outputs[0])
                };
                moved.push(plan.steps.iter().filter(reordered).count());
                let got = follow(run);
                let differences = [distance(&exact.0, &got.0), distance(&exact.1, &got.1)];
                assert!(
                    differences[0] <= allowed[0] && differences[1] <= allowed[1],
                    "{precision} {layout} {first}: {differences:.7?}"
                );
            }
        }
        assert!(moved[0] == 0 && moved[2] == 0 && moved[1] + moved[3] > 0, "{precision}: {moved:?}");
    }
}

/// The groups of a grouped parameter are a dimension of its kernel's layout; reading returns the values
/// written.
#[test]
fn grouped_parameters_are_read_as_written() {
    let Some(backend) = backend(2) else { return };
    let graph = grouped();
    for precision in precisions(&backend) {
        for layout in LAYOUTS {
            let mut run = Run::new(&backend, &graph, precision, BATCH, Some(layout), WHOLE).unwrap();
            let mut groups = 0;
            for parameter in graph.parameters.iter().filter(|parameter| parameter.shape.len() == 4) {
                let values: Vec<f32> = numbers(7).take(parameter.elements()).map(|v| v as f32).collect();
                run.session.write(&parameter.name, &values).unwrap();
                assert_eq!(run.session.read(&parameter.name).unwrap(), values, "`{}`", parameter.name);
                let plan = run.session.plan(0);
                let id = plan.program.values.iter().position(|value| value.name == parameter.name).unwrap();
                groups += usize::from(plan.placements[id].layout.shape.len() == 5);
            }
            assert_eq!(groups, 3, "{precision} {layout}: the groups must be a dimension");
        }
    }
}

/// Depthwise convolutions whose channels fill blocks run on dedicated kernels, in at least one layout of the
/// maps.
#[test]
fn no_depthwise_convolution_falls_back_to_a_reference_kernel() {
    let Some(backend) = backend(2) else { return };
    let mut checked = 0;
    for precision in precisions(&backend) {
        for case in cases::for_precision(precision) {
            let conv = match &case.kernel {
                Kernel::Conv2dForward(k) => k.conv,
                Kernel::Conv2dBackwardData(k) => k.conv,
                Kernel::Conv2dBackwardWeights(k) => k.conv,
                _ => continue,
            };
            if conv.groups == 1 {
                continue;
            }
            let names = LAYOUTS.map(|layout| {
                let request = PrepareRequest { choices: choices(&case, layout), ..Default::default() };
                let prepared = backend.prepare(&case.program(precision).unwrap(), &request).unwrap();
                let position =
                    prepared.program.steps.iter().position(|step| step.kernel == case.kernel).unwrap();
                prepared.steps[position].implementation.clone()
            });
            println!("{precision} {}: {} {names:?}", case.kernel.name(), case.name);
            let depthwise = conv.groups == conv.in_channels && conv.in_channels == conv.out_channels;
            if depthwise && conv.in_channels.is_multiple_of(16) && conv.dilation == [1, 1] {
                assert!(names.iter().any(|name| !name.starts_with("ref")), "`{}`: {names:?}", case.name);
                checked += 1;
            }
        }
    }
    assert!(checked >= 20, "{checked}");
}
