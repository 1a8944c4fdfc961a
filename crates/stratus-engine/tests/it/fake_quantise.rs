//! Training programs that round what int8 layers read.

use crate::common::{TestSession, fuse, inception, residual, sgd};
use std::collections::BTreeMap;
use stratus_engine::ops::{KernelSpec, Uint8Scale};
use stratus_engine::passes::differentiate::differentiate;
use stratus_engine::passes::fake_quantise::fake_quantise;
use stratus_engine::passes::lower::lower;
use stratus_engine::passes::micro_batch::split_into_micro_batches;
use stratus_engine::passes::parts::{BatchParts, split_into_parts};
use stratus_engine::passes::recompute::recompute;
use stratus_engine::passes::tile::tile;
use stratus_engine::passes::update::update;
use stratus_engine::program::Mode;
use stratus_engine::{Kernel, Precision, Program, Role};
use stratus_graph::ops::{Conv2d, ConvTranspose2d, Relu};
use stratus_graph::{Graph, GraphBuilder, Shape};

const BATCH: usize = 2;

/// A map that two layers read in int8, the second of them also through the first.
fn graph() -> Graph {
    let (mut graph, images) = GraphBuilder::new("rounded", Shape::image(1, 4, 5));
    let conv = |input, output, kernel: usize| Conv2d::new(input, output, kernel, 1, kernel / 2);
    let mut add = |name: &str, op: stratus_graph::Op, inputs: &[_]| graph.add(name, op, inputs).unwrap();
    let first = add("first", conv(1, 2, 1).into(), &[images]);
    let inner = add("inner", conv(2, 3, 3).into(), &[first]);
    let relu = add("relu", Relu.into(), &[inner]);
    let last = add("last", conv(3, 4, 1).into(), &[relu]);
    graph.finish(last).unwrap()
}

fn lowered(graph: &Graph, precision: Precision) -> Program {
    lower(graph, Mode::Train, precision, BATCH).unwrap()
}

fn scales(layers: &[&str], scale: Uint8Scale) -> BTreeMap<String, Uint8Scale> {
    layers.iter().map(|layer| ((*layer).to_owned(), scale)).collect()
}

/// All convolutions except those of the images.
fn convolutions(program: &Program) -> BTreeMap<String, Uint8Scale> {
    let scale = Uint8Scale { scale: 0.02, zero_point: 0 };
    let steps = program.steps.iter().filter(|step| {
        matches!(step.kernel, Kernel::Conv2dForward(_)) && program.value(step.inputs[0]).role != Role::Images
    });
    steps.map(|step| (program.layers[step.layers[0]].name.clone(), scale)).collect()
}

/// Integers, so that a scale of 1 changes no map; weights and images as in [`graph`].
fn fill_with_integers(test: &mut TestSession) {
    test.fill();
    test.write("images", &(0..BATCH * 20).map(|n| f64::from((n * 7 % 5) as u32)).collect::<Vec<_>>());
    test.write("first.weight", &[1.0, 3.0]);
}

/// `round(w / s) s` with `s = max |w| / limit` for each of the first dimension.
fn rounded(weights: &[f64], channels: usize, limit: f64) -> Vec<f64> {
    let channel = |weights: &[f64]| {
        let scale = weights.iter().fold(0.0_f64, |most, w| most.max(w.abs())) / limit;
        weights.iter().map(|w| (w / scale).round() * scale).collect::<Vec<_>>()
    };
    weights.chunks(weights.len() / channels).flat_map(channel).collect()
}

fn assert_close(got: &[f64], expected: &[f64], what: &str) {
    let largest = expected.iter().fold(1e-6_f64, |most, x| most.max(x.abs()));
    assert_eq!(got.len(), expected.len(), "{what}");
    for (got, expected) in got.iter().zip(expected) {
        assert!((got - expected).abs() < 1e-5 * largest, "{what}: {got}, expected {expected}");
    }
}

#[test]
fn gradients_pass_straight_through_the_rounding_of_weights() {
    let plain = lowered(&graph(), Precision::F32);
    let identity = Uint8Scale { scale: 1.0, zero_point: 0 };
    let faked = fake_quantise(&plain, &scales(&["inner"], identity), 7).unwrap();
    let mut faked = TestSession::new(&differentiate(&faked).unwrap());
    fill_with_integers(&mut faked);
    let mut expected = TestSession::new(&differentiate(&plain).unwrap());
    fill_with_integers(&mut expected);
    // The same numbers in both; they depend on the positions of values.
    for name in ["inner.weight", "last.weight"] {
        expected.write(name, &faked.read(name));
    }
    let weights = faked.read("inner.weight");
    let by_hand = rounded(&weights, 3, 7.0);
    assert!(weights.iter().zip(&by_hand).any(|(w, r)| (w - r).abs() > 0.01), "{weights:?}");
    expected.write("inner.weight", &by_hand);
    let losses = [faked.loss(), expected.loss()];
    assert_close(&losses[..1], &losses[1..], "loss");
    // The gradient at the rounded weights is that of the weights.
    for parameter in ["first.weight", "inner.weight", "last.weight"] {
        let gradient = faked.read_gradient(parameter);
        assert!(gradient.iter().any(|g| *g != 0.0), "{parameter}");
        assert_close(&gradient, &expected.read_gradient(parameter), parameter);
    }
    assert_eq!(faked.read("inner.weight"), weights);
}

#[test]
fn clipped_numbers_get_no_gradient() {
    let plain = lowered(&graph(), Precision::F32);
    // The map has the numbers 0 to 4, and 0 to 12 in its second channel: those above 6.375 are clipped, and 6
    // is not.
    let narrow = Uint8Scale { scale: 0.025, zero_point: 0 };
    let faked = fake_quantise(&plain, &scales(&["inner"], narrow), 127).unwrap();
    let mut observed = differentiate(&faked).unwrap();
    for value in observed.values.iter_mut().filter(|value| value.name == "first:y") {
        value.role = Role::Observed;
    }
    let mut test = TestSession::new(&observed);
    fill_with_integers(&mut test);
    test.loss();
    let map = test.read("first:y");
    let (inner, outer) = (test.read_gradient("inner:rounded_input"), test.read_gradient("first:y"));
    let expected: Vec<f64> =
        map.iter().zip(&inner).map(|(x, dy)| if (0.0..=6.3875).contains(x) { *dy } else { 0.0 }).collect();
    assert_close(&outer, &expected, "map");
    let clipped = map.iter().filter(|x| **x > 6.3875).count();
    assert!(clipped > 3 && clipped < map.len() / 2, "{map:?}");
    // dL/dw = Σ dL/dx i over the pixels of the images.
    let images = test.read("images");
    let by_hand: Vec<f64> = (0..2)
        .map(|channel| {
            let pixels = (0..BATCH).flat_map(|n| (0..20).map(move |at| (n, at)));
            pixels.map(|(n, at)| outer[(2 * n + channel) * 20 + at] * images[20 * n + at]).sum()
        })
        .collect();
    assert_close(&test.read_gradient("first.weight"), &by_hand, "first.weight");
}

#[test]
fn every_fusion_still_fits() {
    let names = |program: &Program| -> Vec<&str> {
        let names = program.steps.iter().map(|step| step.kernel.name());
        names.filter(|name| !name.starts_with("fake_quantise")).collect()
    };
    for graph in [residual(), inception()] {
        for precision in [Precision::F32, Precision::Bf16] {
            let plain = lowered(&graph, precision);
            let layers = convolutions(&plain);
            assert!(layers.len() > 2, "{layers:?}");
            let faked = fuse(&fake_quantise(&plain, &layers, 127).unwrap()).unwrap();
            let plain = fuse(&plain).unwrap();
            assert_eq!(names(&faked), names(&plain), "{}", graph.name);
            // The copies of rounded weights in bf16 are neither read nor written.
            let copies = faked.values.iter().filter(|value| value.role == Role::ComputeCopy);
            assert!(
                copies
                    .clone()
                    .all(|copy| { faked.readers(faked.find(&copy.name).unwrap()).next().is_some() })
            );
            let step = |program: &Program| update(&differentiate(program).unwrap(), sgd()).unwrap();
            let [faked, plain] = [step(&faked), step(&plain)];
            let updated = |program: &Program| {
                let steps = program.steps.iter().filter(|step| matches!(step.kernel, Kernel::SgdUpdate(_)));
                let mut names: Vec<String> =
                    steps.map(|step| program.value(step.updates[0]).name.clone()).collect();
                names.sort();
                names
            };
            assert_eq!(updated(&faked), updated(&plain));
            // A map is rounded once for all its readers.
            let rounds = |step: &&stratus_engine::Step| matches!(step.kernel, Kernel::FakeQuantise(_));
            let mut maps: Vec<_> = faked.steps.iter().filter(rounds).map(|step| step.inputs[0]).collect();
            let count = maps.len();
            maps.sort_unstable();
            maps.dedup();
            assert_eq!(maps.len(), count);
        }
    }
}

#[test]
fn the_batch_can_be_split_and_maps_recomputed() {
    let plain = lowered(&residual(), Precision::F32);
    let faked = fake_quantise(&plain, &convolutions(&plain), 127).unwrap();
    let whole = differentiate(&fuse(&faked).unwrap()).unwrap();
    let parts = BatchParts {
        count: 4,
        workers: 1,
        bucket_bytes: 1 << 20,
        synchronise_batch_norm: false,
        gradients: Default::default(),
    };
    for split in [split_into_micro_batches(&whole, 4).unwrap(), split_into_parts(&whole, parts).unwrap()] {
        let program = update(&split, sgd()).unwrap();
        let rounds = |at: &usize| matches!(program.steps[*at].kernel, Kernel::FakeQuantiseWeights(_));
        let positions: Vec<usize> = (0..program.steps.len()).filter(rounds).collect();
        assert!(!positions.is_empty() && positions.iter().all(|&at| program.section_of(at).is_none()));
        let mut test = TestSession::filled(&program);
        assert!(test.loss().is_finite());
    }
    let bits = |program: &Program| {
        let mut test = TestSession::filled(program);
        let loss = test.loss().to_bits();
        let parameters = program.values.iter().filter(|value| value.role == Role::Parameter);
        let gradients = parameters.flat_map(|value| test.read_gradient(&value.name)).map(f64::to_bits);
        (loss, gradients.collect::<Vec<_>>())
    };
    let again = recompute(&whole, 0).unwrap();
    assert!(again.steps.len() > whole.steps.len());
    assert!(bits(&again) == bits(&whole), "recomputed maps change the gradients");
}

#[test]
fn layers_without_int8_are_refused() {
    let plain = lowered(&graph(), Precision::F32);
    let refused = |program: &Program, layer: &str, scale| {
        fake_quantise(program, &scales(&[layer], scale), 127).unwrap_err().to_string()
    };
    let unsigned = Uint8Scale { scale: 0.1, zero_point: 0 };
    for (layer, scale, problem) in [
        ("first", unsigned, "`first` cannot run in int8: it reads the images"),
        ("absent", unsigned, "no convolution `absent`"),
        ("relu", unsigned, "no convolution `relu`"),
        ("inner", Uint8Scale { zero_point: 3, ..unsigned }, "its padded input has negative numbers"),
    ] {
        let error = refused(&plain, layer, scale);
        assert!(error.contains(problem), "{error}");
    }
    // A scale that is no number is refused by the check of every program.
    assert!(refused(&plain, "last", Uint8Scale { scale: f32::NAN, zero_point: 0 }).contains("above 0"));
    let large = lower(&graph(), Mode::Train, Precision::F32, 64).unwrap();
    let tiled = tile(&differentiate(&large).unwrap(), 8192, 1).unwrap();
    assert!(!tiled.sections.is_empty());
    assert!(refused(&tiled, "inner", unsigned).contains("a program without tiles"));
    let (mut other, images) = GraphBuilder::new("other", Shape::image(1, 4, 4));
    let first = other.add("first", Conv2d::new(1, 2, 1, 1, 0), &[images]).unwrap();
    let up = other.add("up", ConvTranspose2d::new(2, 3, 2, 2, 0, 0), &[first]).unwrap();
    let other = lowered(&other.finish(up).unwrap(), Precision::F32);
    assert!(refused(&other, "up", unsigned).contains("no int8 kernel"));
}
