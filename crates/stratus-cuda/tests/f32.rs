//! Our f32 convolutions on an emulated GPU: every tile asked for by its name, sums in parts, and how exact sums are.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use stratus_cuda::Cuda;
use stratus_engine::backend::step_key;
use stratus_engine::cases::{self, Case, Class, Fill, Operand};
use stratus_engine::ops::{Conv2dBackwardData, Conv2dBackwardWeights, Conv2dForward};
use stratus_engine::plan::{Persistent, Plan};
use stratus_engine::reference::ReferenceBackend;
use stratus_engine::{Choices, Kernel, Precision, Role};
use stratus_graph::ops::Conv2d;

const TILES: [&str; 5] = ["128x128", "128x64", "64x64", "128x32", "32x128"];

/// A kernel's case, of inputs and outputs.
fn case(kernel: impl Into<Kernel>, name: &str, inputs: [Operand; 2], output: Operand) -> Case {
    Case {
        name: name.to_owned(),
        kernel: kernel.into(),
        inputs: inputs.into(),
        updates: Vec::new(),
        outputs: vec![Operand { fill: Fill::Garbage, role: Role::Buffer, ..output }],
        precisions: vec![Precision::F32],
    }
}

/// The three kernels of a convolution.
fn kernels(conv: Conv2d, batch: usize, size: [usize; 2]) -> [Case; 3] {
    let [height, width] = conv.output_size(size).unwrap();
    let operand = |name, shape: &[usize], class, role| {
        let fill = Fill::Uniform { low: -1.0, high: 1.0 };
        Operand { name, shape: shape.to_vec(), class, role, fill }
    };
    let map = |name, channels, [height, width]: [usize; 2]| {
        operand(name, &[batch, channels, height, width], Class::Compute, Role::Buffer)
    };
    let weight = |class, role| operand("weight", &conv.weight_shape(), class, role);
    let x = || map("x", conv.in_channels, size);
    let y = || map("y", conv.out_channels, [height, width]);
    let read = || weight(Class::Compute, Role::Parameter);
    let name = format!("{batch}x{size:?} {conv:?}");
    [
        case(Conv2dForward { conv, relu: false }, &format!("forward {name}"), [x(), read()], y()),
        case(Conv2dBackwardData { conv }, &format!("backward_data {name}"), [y(), read()], x()),
        case(
            Conv2dBackwardWeights { conv },
            &format!("backward_weights {name}"),
            [x(), y()],
            weight(Class::Master, Role::Buffer),
        ),
    ]
}

/// The choice of a tile for a case's step, which must be what runs.
fn by_tile(case: &Case, tile: &str, cuda: &Cuda) -> Choices {
    let name = format!("stratus:f32:{tile}");
    let program = case.program(Precision::F32).unwrap();
    let key = step_key(&program, &program.steps[0]);
    let choices = Choices { implementations: [(key, name.clone())].into(), ..Choices::default() };
    let prepared = Plan::prepare(cuda, &program, choices.clone(), false, &mut Persistent::default()).unwrap();
    let runs = prepared.plan.steps.iter().any(|step| step.implementation == name);
    assert!(runs, "`{}` is not run by {name}", case.name);
    choices
}

/// Runs a case by every tile on some multiprocessors, forwards and backwards: the same bits, near the reference.
fn check(case: &Case, multiprocessors: u32) {
    let orders = [false, true].map(|backwards| Cuda::emulated_with(multiprocessors, backwards).unwrap());
    let expected = cases::run(&ReferenceBackend, case, Precision::F32, Choices::default()).unwrap();
    for tile in TILES {
        let choices = by_tile(case, tile, &orders[0]);
        let [got, again] =
            orders.each_ref().map(|cuda| cases::run(cuda, case, Precision::F32, choices.clone()).unwrap());
        if let Err(error) = case.compare(Precision::F32, &expected, &got) {
            panic!("{tile} `{}`: {error}", case.name);
        }
        let bits =
            |results: &[Vec<f64>]| -> Vec<u64> { results.iter().flatten().map(|x| x.to_bits()).collect() };
        assert_eq!(bits(&got), bits(&again), "{tile} `{}` hangs on the order of the threads", case.name);
    }
}

/// Plans take what is the fastest by estimate; here each is asked for by name.
#[test]
fn every_tile_follows_the_reference() {
    let dense = |case: &Case| match &case.kernel {
        Kernel::Conv2dForward(kernel) => kernel.conv.groups == 1,
        Kernel::Conv2dBackwardData(kernel) => kernel.conv.groups == 1,
        Kernel::Conv2dBackwardWeights(kernel) => kernel.conv.groups == 1,
        _ => false,
    };
    cases::of(Precision::F32).iter().filter(|case| dense(case)).for_each(|case| check(case, 3));
}

/// Several tiles on either side, the last of them not filled, and depths of several runs.
#[test]
fn products_of_several_tiles() {
    for conv in [Conv2d::new(136, 140, 3, 1, 1), Conv2d::new(131, 133, 3, 2, 1)] {
        kernels(conv, 2, [9, 8]).iter().for_each(|case| check(case, 1));
    }
}

/// On many multiprocessors, where few tiles would leave most of them idle.
#[test]
fn products_in_parts() {
    let before = Cuda::launched_in_emulation().contains(&("conv_f32", "add_exactly".to_owned()));
    for (conv, batch, size) in [
        (Conv2d::new(64, 32, 3, 1, 1), 3, [14, 13]),
        (Conv2d::new(61, 70, 3, 2, 1), 4, [17, 16]),
        (Conv2d { dilation: [2, 3], stride: [2, 3], ..Conv2d::new(64, 68, 3, 1, 2) }, 8, [16, 15]),
        (Conv2d::new(512, 8, 1, 2, 0), 9, [5, 5]),
        (Conv2d::new(24, 160, 3, 2, 1), 4, [9, 10]),
        (Conv2d::new(20, 300, 1, 2, 0), 2, [9, 10]),
    ] {
        kernels(conv, batch, size).iter().for_each(|case| check(case, 64));
    }
    let reached = Cuda::launched_in_emulation().contains(&("conv_f32", "add_exactly".to_owned()));
    assert!(before || reached, "nothing was added up");
}

/// The error of sums of thousands, relative to the norm: one f32 after the other would be off by 1e-6.
#[test]
fn long_sums_are_exact() {
    const MOST: f64 = 2e-7;
    let forward = kernels(Conv2d::new(512, 512, 3, 1, 1), 1, [5, 5]);
    let weights = kernels(Conv2d::new(16, 32, 3, 1, 1), 4, [32, 32]);
    let cuda = Cuda::emulated_with(1, false).unwrap();
    for case in [&forward[0], &forward[1], &weights[2]] {
        let expected = cases::run(&ReferenceBackend, case, Precision::F32, Choices::default()).unwrap();
        for tile in TILES {
            let got = cases::run(&cuda, case, Precision::F32, by_tile(case, tile, &cuda)).unwrap();
            let squares = |values: &mut dyn Iterator<Item = f64>| values.map(|x| x * x).sum::<f64>();
            let norm = squares(&mut expected[0].iter().copied());
            let error = squares(&mut got[0].iter().zip(&expected[0]).map(|(got, expected)| got - expected));
            let error = (error / norm).sqrt();
            println!("{tile} `{}`: {error:.3e}", case.name);
            assert!(error < MOST, "{tile} `{}`: {error:.3e}", case.name);
        }
    }
}
