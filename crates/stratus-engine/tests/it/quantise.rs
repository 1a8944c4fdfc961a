//! Evaluation programs that run in int8.

use crate::common::{TestSession, fuse, numbers};
use std::collections::{BTreeMap, BTreeSet};
use stratus_engine::ops::{Addend, KernelSpec, QuantisedConv2d, Uint8Scale};
use stratus_engine::passes::lower::lower;
use stratus_engine::passes::quantise::{Obstacle, QuantisedProgram, quantisable, quantise};
use stratus_engine::program::Mode;
use stratus_engine::{DType, Kernel, Precision, Program, Role};
use stratus_graph::ops::{Add, Conv2d, ConvTranspose2d, MaxPool2d, Relu};
use stratus_graph::{Graph, GraphBuilder, Shape};

/// A residual block, a map with negative numbers, and readers that cannot run in int8.
fn graph() -> Graph {
    let (mut graph, images) = GraphBuilder::new("bytes", Shape::image(3, 8, 10));
    let conv = |input, output, kernel: usize| Conv2d {
        bias: true,
        ..Conv2d::new(input, output, kernel, 1, kernel / 2)
    };
    let mut add = |name: &str, op: stratus_graph::Op, inputs: &[_]| graph.add(name, op, inputs).unwrap();
    let first = add("first", conv(3, 8, 3).into(), &[images]);
    let first = add("first.relu", Relu.into(), &[first]);
    let inner = add("inner", conv(8, 8, 3).into(), &[first]);
    let inner = add("inner.relu", Relu.into(), &[inner]);
    let last = add("last", conv(8, 8, 1).into(), &[inner]);
    let sum = add("sum", Add.into(), &[last, first]);
    let sum = add("sum.relu", Relu.into(), &[sum]);
    let mixed = add("mixed", conv(8, 8, 1).into(), &[sum]);
    let pointwise = add("pointwise", conv(8, 4, 1).into(), &[mixed]);
    let padded = add("padded", conv(8, 4, 3).into(), &[mixed]);
    let both = add("both", Add.into(), &[padded, pointwise]);
    let pooled = add("pool", MaxPool2d::new(2, 2, 0).into(), &[both]);
    let up = add("up", ConvTranspose2d::new(4, 5, 2, 2, 0, 0).into(), &[pooled]);
    graph.finish(up).unwrap()
}

const LAYERS: [&str; 4] = ["inner", "last", "mixed", "pointwise"];

fn real_program() -> Program {
    fuse(&lower(&graph(), Mode::Evaluate, Precision::F32, 2).unwrap()).unwrap()
}

/// The program whose maps can be read after a run.
fn observed(program: &Program) -> Program {
    let mut observed = program.clone();
    for value in observed.values.iter_mut().filter(|value| value.role == Role::Transient) {
        value.role = Role::Observed;
    }
    observed
}

/// The scales of all maps, from their smallest and largest numbers.
fn scales(program: &Program) -> BTreeMap<String, Uint8Scale> {
    let observed = observed(program);
    let mut test = TestSession::filled(&observed);
    test.loss();
    let maps = observed.values.iter().filter(|value| value.role == Role::Observed && value.shape.len() == 4);
    maps.filter(|map| map.dtype == DType::F32)
        .map(|map| {
            let values = test.read(&map.name);
            let [low, high] = [f64::min, f64::max].map(|pick| values.iter().copied().fold(0.0, pick) as f32);
            (map.name.clone(), Uint8Scale::of_range(low, high).unwrap())
        })
        .collect()
}

fn layers(names: &[&str]) -> BTreeSet<String> {
    names.iter().map(|name| (*name).to_owned()).collect()
}

fn quantised(names: &[&str]) -> QuantisedProgram {
    let program = real_program();
    quantise(&program, &scales(&program), &layers(names)).unwrap()
}

/// The kernel of the step that computes a layer first.
fn kernel(program: &Program, layer: &str) -> QuantisedConv2d {
    let of_layer = |step: &&stratus_engine::Step| program.layers[step.layers[0]].name == layer;
    let kernels = program.steps.iter().filter(of_layer).map(|step| &step.kernel);
    let mut found = kernels.filter_map(|kernel| match kernel {
        Kernel::QuantisedConv2d(kernel) => Some(*kernel),
        _ => None,
    });
    found.next().unwrap()
}

#[test]
fn convolutions_take_what_follows_and_keep_maps_in_bytes() {
    let QuantisedProgram { program, layers, maps } = quantised(&LAYERS);
    let names: Vec<&str> = program.steps.iter().map(|step| step.kernel.name()).collect();
    assert_eq!(
        names,
        [
            "conv2d_relu_forward",
            "quantise",
            "quantised_conv2d_relu",
            "quantised_conv2d_add_relu",
            "quantised_conv2d",
            "conv2d_forward",
            "quantise",
            "quantised_conv2d_add",
            "max_pool_forward",
            "conv2d_backward_data",
            "pixel_cross_entropy",
        ]
    );
    let dtype = |name: &str| program.value(program.find(name).unwrap()).dtype;
    // Only int8 convolutions read these.
    assert_eq!([dtype("inner.relu:y"), dtype("sum.relu:y")], [DType::U8; 2]);
    // Others read these too.
    assert_eq!([dtype("first.relu:y"), dtype("mixed:y"), dtype("both:y")], [DType::F32; 3]);
    let stored: Vec<(&str, bool)> = maps.iter().map(|(name, map)| (name.as_str(), map.is_stored)).collect();
    let expected =
        [("first.relu:y", false), ("inner.relu:y", true), ("mixed:y", false), ("sum.relu:y", true)];
    assert_eq!(stored, expected);
    assert_eq!(kernel(&program, "last").addend, Addend::Real);
    assert!(kernel(&program, "inner").output.is_some() && kernel(&program, "mixed").output.is_none());
    assert_eq!(layers.iter().map(|layer| layer.layer.as_str()).collect::<Vec<_>>(), LAYERS);
    // The parameters of these layers are no longer read.
    assert!(program.find("inner.weight").is_none() && program.find("first.weight").is_some());
}

#[test]
fn sums_of_maps_in_bytes_are_read_in_bytes() {
    // Both summands of `sum` are read by int8 convolutions only if the first layer is quantised too.
    let mut program = real_program();
    let images = program.find("images").unwrap();
    program.values[images.0].role = Role::Buffer;
    let mut scales = scales(&program);
    scales.insert("images".to_owned(), Uint8Scale { scale: 0.01, zero_point: 0 });
    let names = ["first", "inner", "last"];
    let quantised = quantise(&program, &scales, &layers(&names)).unwrap().program;
    assert_eq!(kernel(&quantised, "last").addend, Addend::Bytes(scales["first.relu:y"]));
    assert_eq!(kernel(&quantised, "first").output, Some(scales["first.relu:y"]));
}

#[test]
fn results_are_those_of_real_numbers_up_to_the_step_of_a_byte() {
    let program = real_program();
    let real = observed(&program);
    let mut expected = TestSession::filled(&real);
    expected.loss();
    let QuantisedProgram { program, layers, .. } = quantised(&LAYERS);
    let mut bytes = TestSession::filled(&observed(&program));
    for parameter in program.values.iter().filter(|value| value.role == Role::Parameter) {
        bytes.write(&parameter.name, &expected.read(&parameter.name));
    }
    for layer in &layers {
        let weight = expected.read(&layer.parameters[0]);
        let bias = expected.read(&layer.parameters[1]);
        let per_channel = weight.len() / layer.conv.out_channels;
        let mut constants = [Vec::new(), Vec::new(), Vec::new()];
        for (channel, weights) in weight.chunks(per_channel).enumerate() {
            let scale = weights.iter().fold(0.0_f64, |largest, w| largest.max(w.abs())) / 127.0;
            let rounded: Vec<f64> = weights.iter().map(|w| (w / scale).round()).collect();
            let product = scale * f64::from(layer.input.scale);
            let zero = f64::from(layer.input.zero_point) * rounded.iter().sum::<f64>();
            constants[0].extend(rounded);
            constants[1].push(product);
            constants[2].push(bias[channel] - product * zero);
        }
        for (name, values) in layer.constants.iter().zip(&constants) {
            bytes.write(name, values);
        }
    }
    bytes.loss();
    for map in ["sum.relu:y", "both:y", "up:y"] {
        let expected = expected.read(map);
        let mut got = bytes.read(map);
        if program.value(program.find(map).unwrap()).dtype == DType::U8 {
            let scale = scales(&real_program())[map];
            got.iter_mut().for_each(|byte| *byte = scale.real(*byte));
        }
        let largest = expected.iter().fold(0.0_f64, |largest, x| largest.max(x.abs()));
        for (expected, got) in expected.iter().zip(&got) {
            assert!((expected - got).abs() < 0.03 * largest, "{map}: {got}, expected {expected}");
        }
        assert_ne!(expected, got);
    }
}

#[test]
fn layers_that_cannot_compute_with_bytes_say_why() {
    let program = real_program();
    let scales = scales(&program);
    let obstacles: BTreeMap<String, Option<Obstacle>> =
        quantisable(&program, &scales).into_iter().map(|found| (found.layer, found.obstacle)).collect();
    let expected = [
        ("first", Some(Obstacle::ReadsImages)),
        ("inner", None),
        ("last", None),
        ("mixed", None),
        ("padded", Some(Obstacle::PaddedNegativeInput)),
        ("pointwise", None),
        ("up", Some(Obstacle::NoKernel)),
    ];
    assert_eq!(obstacles, expected.map(|(layer, obstacle)| (layer.to_owned(), obstacle)).into());
    let refused = |layer: &str| quantise(&program, &scales, &layers(&[layer])).unwrap_err().to_string();
    assert!(refused("padded").contains("`padded` cannot run in int8: its padded input"));
    assert!(refused("absent").contains("no convolution `absent`"));
    let without = quantise(&program, &BTreeMap::new(), &layers(&["inner"])).unwrap_err().to_string();
    assert!(without.contains("the range of its input is unknown"), "{without}");
    let training = lower(&graph(), Mode::Train, Precision::F32, 2).unwrap();
    assert!(quantise(&training, &scales, &layers(&[])).is_err());
}

#[test]
fn bytes_stand_for_numbers_around_zero() {
    for (low, high) in [(0.0, 5.0), (-1.0, 3.0), (-4.0, 0.0), (2.0, 3.0), (-1e-30, 1.0)] {
        let scale = Uint8Scale::of_range(low, high).unwrap();
        assert_eq!(scale.real(scale.byte(0.0)), 0.0);
        let step = f64::from(scale.scale);
        for number in numbers(200, 3, 1.0) {
            let number = number.clamp(f64::from(low.min(0.0)), f64::from(high.max(0.0)));
            let error = scale.real(scale.byte(number)) - number;
            assert!(error.abs() <= 0.5001 * step, "{low} {high} {number}");
        }
        assert_eq!([scale.byte(f64::INFINITY), scale.byte(f64::NEG_INFINITY)], [255.0, 0.0]);
        assert_eq!(scale.byte(f64::NAN), 0.0);
    }
    for (low, high) in [(0.0, 0.0), (f32::MIN, f32::MAX), (f32::NAN, f32::NAN)] {
        assert_eq!(Uint8Scale::of_range(low, high), None, "{low} {high}");
    }
}
