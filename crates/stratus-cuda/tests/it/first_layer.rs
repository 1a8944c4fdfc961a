//! Convolutions of at most four channels beyond those of the case tables, on an emulated GPU: those of the
//! first layers of networks, with small images and batches, and with sizes that no tile divides.

use crate::common::{compare_by_name, emulated};
use stratus_conformance::{Case, DTypeClass, Fill, Operand};
use stratus_cuda::Cuda;
use stratus_engine::ops::{Conv2dBackwardWeights, Conv2dForward};
use stratus_engine::{Choices, Kernel, Precision, Role};
use stratus_graph::ops::Conv2d;

/// The precisions of tensor cores.
const PRECISIONS: [Precision; 2] = [Precision::Bf16, Precision::F16];

/// The tilings of the kernels.
const FORWARD: [&str; 3] = ["8x2", "4x2", "4x1"];
const GRADIENT: [&str; 2] = ["128", "256"];

/// An operand with numbers between -1 and 1.
fn operand(name: &'static str, shape: &[usize], class: DTypeClass, role: Role) -> Operand {
    Operand {
        name,
        shape: shape.to_vec(),
        dtype_class: class,
        role,
        fill: Fill::Uniform { low: -1.0, high: 1.0 },
    }
}

fn case(kernel: impl Into<Kernel>, name: String, inputs: Vec<Operand>, outputs: Vec<Operand>) -> Case {
    let kernel = kernel.into();
    let outputs = outputs.into_iter().map(|output| Operand { fill: Fill::Garbage, ..output }).collect();
    Case {
        name,
        kernel,
        inputs,
        updates: Vec::new(),
        outputs,
        precisions: PRECISIONS.to_vec(),
        has_gradients: true,
    }
}

/// The forward pass and the weight gradient of a convolution.
fn kernels(conv: Conv2d, relu: bool, batch: usize, size: [usize; 2]) -> [Case; 2] {
    let [height, width] = conv.output_size(size).unwrap();
    let x = operand("x", &[batch, conv.in_channels, size[0], size[1]], DTypeClass::Compute, Role::Buffer);
    let y = operand("y", &[batch, conv.out_channels, height, width], DTypeClass::Compute, Role::Buffer);
    let weight = |class, role| operand("weight", &conv.weight_shape(), class, role);
    let bias = |role| conv.bias.then(|| operand("bias", &[conv.out_channels], DTypeClass::Master, role));
    let name = format!("{batch}x{size:?} {conv:?}");
    let read =
        [x.clone(), weight(DTypeClass::Compute, Role::Parameter)].into_iter().chain(bias(Role::Parameter));
    let gradients = [weight(DTypeClass::Master, Role::Buffer)].into_iter().chain(bias(Role::Buffer));
    [
        case(Conv2dForward { conv, relu }, format!("forward {name}"), read.collect(), vec![y.clone()]),
        case(Conv2dBackwardWeights { conv }, format!("gradient {name}"), vec![x, y], gradients.collect()),
    ]
}

/// Compares a case on the named implementation.
fn compare(case: &Case, split: &str, multiprocessors: u32) {
    let name = format!("stratus:first:{split}");
    let orders = emulated(multiprocessors);
    for precision in PRECISIONS {
        let compared = compare_by_name(case, precision, &name, &case.expected(precision).unwrap(), &orders);
        compared.unwrap_or_else(|error| panic!("{precision} {name} `{}`: {error}", case.name));
    }
}

fn check(conv: Conv2d, batch: usize, size: [usize; 2], multiprocessors: u32) {
    let [_, gradient] = kernels(conv, false, batch, size);
    for split in GRADIENT.iter().filter(|_| conv.out_channels.is_multiple_of(8)) {
        compare(&gradient, split, multiprocessors);
    }
    for relu in [false, true] {
        let [forward, _] = kernels(conv, relu, batch, size);
        for split in FORWARD {
            // More outputs do not fit their sums in registers.
            if split.ends_with("x1") || conv.out_channels <= 64 {
                compare(&forward, split, multiprocessors);
            }
        }
    }
}

/// A convolution with bias.
fn biased(channels: [usize; 2], kernel: usize, stride: usize, padding: usize) -> Conv2d {
    Conv2d { bias: true, ..Conv2d::new(channels[0], channels[1], kernel, stride, padding) }
}

#[test]
fn the_first_layer_of_resnet_matches_the_reference() {
    check(Conv2d::new(3, 64, 7, 2, 3), 2, [47, 45], 2);
    check(Conv2d::new(3, 64, 7, 2, 3), 1, [64, 64], 64);
}

#[test]
fn the_first_layer_of_alexnet_matches_the_reference() {
    check(biased([3, 64], 11, 4, 2), 2, [67, 75], 2);
    check(biased([3, 40], 11, 4, 0), 1, [51, 43], 2);
    check(biased([3, 96], 7, 2, 1), 1, [31, 33], 2);
}

#[test]
fn the_first_layer_of_vgg_matches_the_reference() {
    check(biased([3, 64], 3, 1, 1), 2, [37, 30], 2);
    check(biased([3, 128], 3, 1, 1), 1, [18, 23], 3);
}

#[test]
fn the_first_layer_of_digits_matches_the_reference() {
    check(Conv2d::new(1, 8, 3, 1, 1), 3, [28, 28], 2);
    check(biased([1, 16], 5, 1, 0), 2, [28, 28], 2);
    check(biased([1, 6], 5, 1, 2), 2, [13, 9], 2);
}

#[test]
fn any_channels_outputs_and_taps_match_the_reference() {
    check(biased([2, 17], 3, 2, 1), 2, [9, 40], 2);
    check(biased([4, 24], 2, 2, 0), 2, [30, 12], 2);
    check(biased([4, 7], 1, 1, 0), 2, [5, 7], 2);
    check(biased([3, 1], 4, 3, 1), 2, [11, 14], 2);
    check(biased([3, 33], 5, 1, 2), 1, [1, 1], 2);
}

#[test]
fn different_sizes_per_side_match_the_reference() {
    let uneven = Conv2d { padding_before: [0, 2], padding_after: [3, 1], ..biased([3, 12], 3, 2, 0) };
    check(uneven, 2, [20, 23], 2);
    check(Conv2d { kernel: [1, 7], stride: [3, 1], ..uneven }, 2, [20, 23], 2);
    check(Conv2d { kernel: [3, 2], dilation: [2, 4], ..uneven }, 2, [19, 21], 2);
}

#[test]
fn nan_is_propagated_through_relu() {
    let [mut forward, _] = kernels(biased([3, 8], 3, 1, 1), true, 1, [9, 7]);
    forward.inputs[2].fill = Fill::Uniform { low: f32::NAN, high: f32::NAN };
    let cuda = Cuda::emulated().unwrap();
    for precision in PRECISIONS {
        let got = forward.run(&cuda, precision, Choices::default()).unwrap();
        assert!(got.iter().flatten().all(|y| y.is_nan()), "{precision}");
    }
    assert!(cuda.launched().contains(&("conv_first", "conv_first".to_owned())));
}
