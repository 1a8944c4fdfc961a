//! Int8 inference: every form of the sum, of the output and of the window, channels that do and do not
//! fill registers.

use super::{Case, DTypeClass, Fill, extents};
use stratus_engine::Precision;
use stratus_engine::ops::{Addend, Quantise, QuantisedConv2d, Uint8Scale};
use stratus_graph::ops::Conv2d;

/// A map that is never negative, and one that is.
const SCALES: [Uint8Scale; 2] =
    [Uint8Scale { scale: 0.013, zero_point: 0 }, Uint8Scale { scale: 0.021, zero_point: 97 }];

const BYTES: Fill = Fill::Integers { low: 0, high: 255 };

/// The cases, with weights up to `max_weight`: processors without VNNI add products in 16 bits, which larger
/// weights overflow.
pub(super) fn tests(max_weight: i8) -> Vec<Case> {
    let mut cases = Vec::new();
    for shape in [[2, 16, 5, 7], [1, 3, 9, 9], [3, 64, 8, 8], [1, 1, 1, 1]] {
        for bytes in SCALES {
            let name = format!("quantise {} zero {}", extents(&shape), bytes.zero_point);
            let wide = Fill::Uniform { low: -4.0, high: 4.0 };
            cases.push(
                in_cpu_precisions(Case::new(name, Quantise { bytes }))
                    .filled("x", &shape, DTypeClass::Compute, wide)
                    .output("y", &shape, DTypeClass::Bytes),
            );
        }
    }
    for conv in convolutions() {
        for addend in [Addend::None, Addend::Real, Addend::Bytes(SCALES[0]), Addend::Bytes(SCALES[1])] {
            for output in [None, Some(SCALES[0]), Some(SCALES[1])] {
                for relu in [false, true] {
                    cases.push(convolution(QuantisedConv2d { conv, relu, addend, output }, max_weight));
                }
            }
        }
    }
    cases
}

/// Restricts a case to the precisions of CPUs.
pub(super) fn in_cpu_precisions(mut case: Case) -> Case {
    case.precisions = vec![Precision::F32, Precision::Bf16];
    case.without_gradients()
}

fn convolutions() -> Vec<Conv2d> {
    let dense = |input, output, kernel, stride, padding| Conv2d {
        bias: true,
        ..Conv2d::new(input, output, kernel, stride, padding)
    };
    vec![
        dense(64, 32, 1, 1, 0),
        dense(16, 48, 3, 1, 1),
        dense(32, 64, 3, 2, 1),
        dense(3, 20, 3, 2, 1),
        dense(24, 10, 1, 2, 0),
        // ERFNet's taps.
        Conv2d {
            kernel: [3, 1],
            padding_before: [2, 0],
            padding_after: [2, 0],
            dilation: [2, 1],
            ..dense(64, 64, 3, 1, 0)
        },
        Conv2d { groups: 2, ..dense(32, 32, 3, 1, 1) },
        Conv2d { groups: 48, ..dense(48, 48, 3, 1, 1) },
    ]
}

fn convolution(kernel: QuantisedConv2d, max_weight: i8) -> Case {
    let QuantisedConv2d { conv, relu, addend, output } = kernel;
    let x = [2, conv.in_channels, 9, 11];
    let [height, width] = conv.output_size([x[2], x[3]]).unwrap_or([1, 1]);
    let y = [x[0], conv.out_channels, height, width];
    let vector = [conv.out_channels];
    let parts = [
        extents(&conv.weight_shape()),
        format!("of {}, stride {}, dilation {}", extents(&x), conv.stride[0], conv.dilation[0]),
        match addend {
            Addend::None => "alone".to_owned(),
            Addend::Real => "adds".to_owned(),
            Addend::Bytes(bytes) => format!("adds bytes of {}", bytes.zero_point),
        },
        output.map_or("real".to_owned(), |bytes| format!("to bytes of {}", bytes.zero_point)),
        if relu { "relu" } else { "" }.to_owned(),
    ];
    // Sums of some hundred products reach a few thousand: the scale brings them to the range of the bytes.
    let terms: usize = conv.weight_shape()[1..].iter().product();
    let high = 1.0 / (60.0 * terms as f32).sqrt() / 30.0;
    let case = in_cpu_precisions(Case::new(format!("quantised_conv2d {}", parts.join(", ")), kernel))
        .filled("x", &x, DTypeClass::Bytes, BYTES)
        .filled(
            "weight",
            &conv.weight_shape(),
            DTypeClass::SignedBytes,
            Fill::Integers { low: -i32::from(max_weight), high: i32::from(max_weight) },
        )
        .filled("scale", &vector, DTypeClass::Single, Fill::Uniform { low: high / 4.0, high })
        .filled("bias", &vector, DTypeClass::Single, Fill::Uniform { low: -1.0, high: 1.0 });
    let case = match addend {
        Addend::None => case,
        Addend::Real => case.input("addend", &y, DTypeClass::Compute),
        Addend::Bytes(_) => case.filled("addend", &y, DTypeClass::Bytes, BYTES),
    };
    case.output("y", &y, if output.is_some() { DTypeClass::Bytes } else { DTypeClass::Compute })
}
