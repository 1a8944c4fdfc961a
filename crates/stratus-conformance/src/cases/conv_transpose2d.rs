//! Transposed convolutions, which reuse the kernels of convolutions, and the separate bias.

use super::{Case, CaseTable, DTypeClass, Fill, extents};
use stratus_engine::Role;
use stratus_engine::ops::{AddBias, BiasGradient, Conv2dBackwardData, Conv2dBackwardWeights, Conv2dForward};
use stratus_graph::Operation;
use stratus_graph::ops::ConvTranspose2d;

pub(super) const TABLE: CaseTable = CaseTable { tests, benchmarks };

/// The case of a transposed convolution: attributes, batch, height and width of the input.
type ConvCase = (ConvTranspose2d, usize, [usize; 2]);

fn tests() -> Vec<Case> {
    let new = ConvTranspose2d::new;
    let geometries: Vec<ConvCase> = vec![
        // ERFNet's decoder: upsampling, and the last layer to few classes.
        (new(16, 8, 3, 2, 1, 1), 2, [5, 7]),
        (new(64, 16, 3, 2, 1, 1), 1, [4, 6]),
        (new(16, 12, 2, 2, 0, 0), 2, [6, 5]),
        // Every remainder of the size, and windows that leave gaps.
        (new(5, 17, 3, 2, 1, 0), 2, [4, 3]),
        (new(17, 5, 4, 2, 1, 0), 1, [3, 5]),
        (new(4, 6, 2, 3, 0, 2), 2, [3, 4]),
        (new(33, 16, 3, 1, 1, 0), 1, [6, 5]),
        (new(8, 3, 1, 2, 0, 1), 1, [3, 1]),
        // Everything asymmetric.
        (
            ConvTranspose2d {
                kernel: [3, 5],
                stride: [2, 3],
                padding_before: [0, 2],
                padding_after: [1, 1],
                output_padding: [0, 2],
                dilation: [2, 1],
                ..new(6, 10, 3, 2, 0, 0)
            },
            2,
            [4, 3],
        ),
        (ConvTranspose2d { groups: 4, ..new(8, 12, 3, 2, 1, 1) }, 2, [3, 4]),
        (ConvTranspose2d { groups: 16, ..new(16, 16, 4, 2, 1, 0) }, 1, [4, 4]),
    ];
    let mut cases: Vec<Case> = geometries.into_iter().flat_map(kernels).collect();
    let shapes = [[2, 8, 6, 5], [1, 1, 1, 1], [3, 17, 5, 7], [2, 33, 1, 3], [1, 128, 9, 9], [2, 12, 40, 41]];
    cases.extend(shapes.iter().flat_map(biases));
    cases
}

fn benchmarks() -> Vec<Case> {
    let new = ConvTranspose2d::new;
    let geometries: Vec<ConvCase> = vec![
        (new(128, 64, 3, 2, 1, 1), 6, [45, 60]),
        (new(64, 16, 3, 2, 1, 1), 6, [90, 120]),
        (new(16, 11, 2, 2, 0, 0), 6, [180, 240]),
    ];
    let mut cases: Vec<Case> = geometries.into_iter().flat_map(kernels).collect();
    cases.extend(biases(&[6, 16, 180, 240]));
    cases
}

fn kernels((op, batch, size): ConvCase) -> Vec<Case> {
    let Ok([height, width]) = op.output_size(size) else { return Vec::new() };
    let conv = op.transposed();
    let x = [batch, op.in_channels, size[0], size[1]];
    let y = [batch, op.out_channels, height, width];
    let weight = op.weight_shape();
    let attributes = op.attributes();
    let name = |kernel: &str| format!("{kernel} {} * {} {attributes}", extents(&x), extents(&weight));
    vec![
        Case::new(name("conv_transpose2d"), Conv2dBackwardData { conv })
            .input("x", &x, DTypeClass::Compute)
            .parameter("weight", &weight, DTypeClass::Compute)
            .output("y", &y, DTypeClass::Compute),
        Case::new(name("conv_transpose2d_backward_data"), Conv2dForward { conv, relu: false })
            .input("dy", &y, DTypeClass::Compute)
            .parameter("weight", &weight, DTypeClass::Compute)
            .output("dx", &x, DTypeClass::Compute),
        Case::new(name("conv_transpose2d_backward_weights"), Conv2dBackwardWeights { conv })
            .input("dy", &y, DTypeClass::Compute)
            .input("x", &x, DTypeClass::Compute)
            .output("dweight", &weight, DTypeClass::Master),
    ]
}

fn biases(shape: &[usize; 4]) -> [Case; 2] {
    let between = Fill::Uniform { low: -1.0, high: 1.0 };
    [
        Case::new(format!("add_bias to {}", extents(shape)), AddBias)
            .parameter("bias", &shape[1..2], DTypeClass::Master)
            .update("y", shape, Role::Buffer, between, DTypeClass::Compute),
        Case::new(format!("bias_gradient of {}", extents(shape)), BiasGradient)
            .input("dy", shape, DTypeClass::Compute)
            .output("dbias", &shape[1..2], DTypeClass::Master),
    ]
}
