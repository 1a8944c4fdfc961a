//! Convolutions in inference: every activation, with and without bias and sum, and the forms of convolution
//! that have kernels of their own.

use super::quantised::in_cpu_precisions;
use super::{Case, DTypeClass, extents};
use stratus_engine::ops::{Conv2dInference, FusedActivation};
use stratus_graph::ops::{Activation, Conv2d};

/// The cases.
pub(super) fn tests() -> Vec<Case> {
    let mut cases = Vec::new();
    let all = Activation::all().into_iter().map(FusedActivation::Activation);
    let rectifiers = [None, Some(1.5)].map(|ceiling| FusedActivation::Relu { ceiling });
    let activations: Vec<_> = [FusedActivation::Identity].into_iter().chain(rectifiers).chain(all).collect();
    for (number, conv) in convolutions().into_iter().enumerate() {
        for &activation in &activations {
            for adds in [false, true] {
                let bias = (number + usize::from(adds)).is_multiple_of(2);
                cases.push(case(Conv2dInference { conv: Conv2d { bias, ..conv }, adds, activation }));
            }
        }
    }
    cases
}

fn convolutions() -> Vec<Conv2d> {
    let grouped = |channels, groups, kernel, stride, padding| Conv2d {
        groups,
        ..Conv2d::new(channels, channels, kernel, stride, padding)
    };
    vec![
        Conv2d::new(3, 20, 3, 2, 1),
        Conv2d::new(24, 40, 1, 1, 0),
        Conv2d::new(32, 48, 3, 1, 1),
        Conv2d::new(17, 5, 1, 2, 0),
        grouped(40, 40, 3, 1, 1),
        grouped(17, 17, 5, 2, 2),
        grouped(32, 8, 3, 1, 1),
        grouped(48, 6, 3, 2, 1),
    ]
}

fn case(kernel: Conv2dInference) -> Case {
    let Conv2dInference { conv, adds, activation } = kernel;
    let x = [2, conv.in_channels, 9, 7];
    let [height, width] = conv.output_size([x[2], x[3]]).unwrap_or([1, 1]);
    let y = [x[0], conv.out_channels, height, width];
    let parts = [
        extents(&conv.weight_shape()),
        format!("stride {}", conv.stride[0]),
        if conv.bias { "bias" } else { "no bias" }.to_owned(),
        if adds { "adds" } else { "alone" }.to_owned(),
        match activation {
            FusedActivation::Identity => "no activation".to_owned(),
            FusedActivation::Relu { ceiling: None } => "relu".to_owned(),
            FusedActivation::Relu { ceiling: Some(ceiling) } => format!("relu to {ceiling}"),
            FusedActivation::Activation(activation) => activation.name().to_owned(),
        },
    ];
    let case = in_cpu_precisions(Case::new(format!("conv2d_inference {}", parts.join(", ")), kernel))
        .input("x", &x, DTypeClass::Compute)
        .input("weight", &conv.weight_shape(), DTypeClass::Compute);
    let case = if conv.bias { case.input("bias", &[conv.out_channels], DTypeClass::Single) } else { case };
    let case = if adds { case.input("addend", &y, DTypeClass::Compute) } else { case };
    case.output("y", &y, DTypeClass::Compute)
}
