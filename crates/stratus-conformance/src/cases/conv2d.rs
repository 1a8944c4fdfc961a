//! Convolutions: every attribute, and channel counts around the widths of vector registers.

use super::{Case, CaseTable, DTypeClass, extents};
use stratus_engine::ops::{Conv2dBackwardData, Conv2dBackwardWeights, Conv2dForward};
use stratus_graph::ops::Conv2d;

pub(super) const TABLE: CaseTable = CaseTable { tests, benchmarks };

/// The case of a convolution: attributes, batch, height and width.
type ConvCase = (Conv2d, usize, [usize; 2]);

fn tests() -> Vec<Case> {
    let dense = Conv2d::new;
    let bias = |conv| Conv2d { bias: true, ..conv };
    let grouped = |conv, groups| Conv2d { groups, ..conv };
    let geometries: Vec<ConvCase> = vec![
        // The digits network.
        (dense(1, 8, 3, 1, 1), 2, [28, 28]),
        (dense(8, 16, 3, 1, 1), 2, [14, 14]),
        (dense(16, 32, 3, 1, 1), 2, [7, 7]),
        // Channels around the vector widths.
        (bias(dense(1, 1, 3, 1, 1)), 1, [5, 5]),
        (bias(dense(3, 17, 3, 1, 1)), 2, [9, 11]),
        (dense(3, 64, 7, 2, 3), 1, [23, 21]),
        (bias(dense(17, 33, 3, 1, 1)), 3, [6, 5]),
        (dense(33, 16, 3, 2, 1), 2, [7, 8]),
        (dense(32, 32, 3, 1, 1), 1, [8, 8]),
        // One tap, and one pixel.
        (bias(dense(16, 32, 1, 1, 0)), 2, [5, 7]),
        (dense(8, 24, 1, 2, 0), 2, [9, 9]),
        (bias(dense(3, 5, 1, 2, 0)), 1, [4, 6]),
        (dense(64, 16, 1, 1, 0), 1, [1, 1]),
        // Channels that do not fill registers.
        (dense(17, 5, 1, 1, 0), 2, [5, 3]),
        (bias(dense(24, 40, 1, 1, 0)), 2, [6, 7]),
        (bias(dense(4, 4, 3, 1, 1)), 1, [1, 1]),
        (dense(2, 3, 5, 5, 2), 1, [1, 1]),
        // Even and large kernels, strides larger than the kernel, kernels as large as the image.
        (dense(4, 8, 2, 2, 0), 2, [8, 8]),
        (dense(4, 6, 4, 2, 1), 2, [8, 10]),
        (dense(3, 8, 2, 3, 0), 1, [11, 11]),
        (bias(dense(6, 10, 5, 1, 0)), 2, [5, 5]),
        // Everything asymmetric.
        (
            Conv2d {
                kernel: [3, 5],
                stride: [2, 1],
                padding_before: [0, 2],
                padding_after: [1, 3],
                ..bias(dense(5, 7, 3, 1, 0))
            },
            2,
            [8, 9],
        ),
        (
            Conv2d { kernel: [1, 7], padding_before: [0, 3], padding_after: [0, 3], ..dense(8, 8, 1, 1, 0) },
            1,
            [6, 9],
        ),
        (Conv2d { padding_before: [0, 0], padding_after: [1, 1], ..dense(16, 16, 3, 2, 0) }, 1, [8, 8]),
        // Taps that are on the padding at every output, in rows of more than one.
        (Conv2d { padding_before: [0, 2], padding_after: [0, 2], ..bias(dense(2, 5, 3, 3, 0)) }, 1, [3, 2]),
        (Conv2d { padding_before: [2, 0], padding_after: [2, 0], ..dense(17, 18, 3, 3, 0) }, 2, [2, 3]),
        (Conv2d { stride: [1, 2], dilation: [1, 2], ..dense(3, 5, 2, 1, 2) }, 2, [2, 1]),
        // One output in a row, and unread pixels after it.
        (bias(dense(1, 5, 1, 2, 0)), 1, [1, 2]),
        (dense(3, 4, 2, 3, 0), 2, [3, 4]),
        // Dilated.
        (Conv2d { dilation: [2, 2], ..dense(8, 8, 3, 1, 2) }, 2, [9, 9]),
        (
            Conv2d {
                dilation: [1, 3],
                padding_before: [1, 0],
                padding_after: [0, 4],
                ..bias(dense(4, 6, 3, 2, 0))
            },
            1,
            [7, 12],
        ),
        // Dense 3x3 with whole registers of channels and all kinds of edges.
        (bias(dense(16, 48, 3, 1, 1)), 2, [7, 9]),
        (
            Conv2d { padding_before: [2, 0], padding_after: [0, 1], ..bias(dense(48, 16, 3, 1, 0)) },
            3,
            [6, 13],
        ),
        // Grouped and depthwise.
        (grouped(dense(8, 12, 3, 1, 1), 4), 2, [6, 6]),
        (grouped(bias(dense(32, 32, 3, 2, 1)), 2), 1, [7, 7]),
        (grouped(dense(16, 16, 3, 1, 1), 16), 2, [8, 8]),
        (grouped(bias(dense(33, 33, 3, 2, 1)), 33), 1, [6, 7]),
        (grouped(dense(3, 6, 3, 1, 1), 3), 1, [5, 5]),
        (grouped(Conv2d { dilation: [2, 2], ..dense(8, 8, 3, 1, 2) }, 8), 1, [6, 6]),
        // Groups whose channels do not fill a block: an odd number, one pixel, and ResNeXt's few.
        (grouped(dense(10, 6, 3, 1, 1), 2), 1, [5, 4]),
        (grouped(bias(dense(6, 4, 1, 1, 0)), 2), 3, [1, 1]),
        (grouped(dense(64, 64, 3, 1, 1), 32), 1, [5, 5]),
        (grouped(dense(128, 128, 3, 2, 1), 32), 1, [4, 5]),
        (grouped(dense(34, 34, 5, 1, 2), 2), 1, [4, 4]),
        (grouped(dense(96, 64, 5, 1, 2), 2), 1, [5, 5]),
        // Dense 3x3 with input and output channels that do not fill their last register.
        (bias(dense(24, 40, 3, 1, 1)), 2, [7, 9]),
        // Enough pixels that sums over them are split.
        (dense(8, 16, 3, 1, 1), 3, [28, 28]),
        // Dense 5x5 with whole registers of channels and all kinds of edges.
        (bias(dense(32, 16, 5, 1, 2)), 2, [7, 9]),
        (
            Conv2d { padding_before: [4, 0], padding_after: [0, 3], ..bias(dense(16, 48, 5, 1, 0)) },
            3,
            [6, 13],
        ),
    ];
    // ERFNet's: three taps in one dimension, dilated or not, with lines of all remainders of a tile of four.
    let lines = [0, 1].into_iter().flat_map(move |axis| {
        [
            (bias(line([16, 16], axis, 1)), 2, [9, 10]),
            (line([64, 32], axis, 2), 1, [11, 15]),
            (bias(line([16, 48], axis, 4)), 3, [13, 14]),
            (line([128, 128], axis, 8), 1, [32, 33]),
            (bias(line([32, 32], axis, 16)), 2, [60, 61]),
            // Channels that do not fill a register, and groups.
            (line([20, 24], axis, 1), 2, [9, 8]),
            (bias(grouped(line([32, 32], axis, 2), 2)), 2, [12, 13]),
        ]
    });
    // MobileNet's: around the blocks of 16 channels, with either stride.
    let depthwise = [5, 16, 17, 32, 96].into_iter().flat_map(|channels| {
        [1, 2].map(|stride| (grouped(dense(channels, channels, 3, stride, 1), channels), 2, [9, 8]))
    });
    // EfficientNet's and ConvNeXt's, and dilated ones.
    let wide = [(5, 1, 1), (5, 2, 1), (7, 1, 1), (3, 1, 2), (3, 2, 2)].into_iter().flat_map(
        |(kernel, stride, dilation)| {
            let padding = dilation * (kernel / 2);
            [16, 40].map(|channels| {
                let conv = dense(channels, channels, kernel, stride, padding);
                (grouped(bias(Conv2d { dilation: [dilation; 2], ..conv }), channels), 2, [9, 7])
            })
        },
    );
    // ResNeXt's: 4 to 32 channels a group, with either stride.
    let in_groups = [(32, 8), (48, 6), (64, 4), (64, 2)].into_iter().flat_map(|(channels, groups)| {
        [1, 2].map(|stride| (grouped(dense(channels, channels, 3, stride, 1), groups), 2, [9, 7]))
    });
    let geometries = geometries.into_iter().chain(lines).chain(depthwise).chain(wide).chain(in_groups);
    geometries.enumerate().flat_map(|(row, geometry)| kernels(geometry, row % 2 == 0)).collect()
}

fn benchmarks() -> Vec<Case> {
    let dense = Conv2d::new;
    let geometries: Vec<ConvCase> = vec![
        (dense(1, 8, 3, 1, 1), 64, [28, 28]),
        (dense(8, 16, 3, 1, 1), 64, [14, 14]),
        (dense(16, 32, 3, 1, 1), 64, [7, 7]),
        (dense(64, 64, 3, 1, 1), 16, [56, 56]),
        (dense(256, 64, 1, 1, 0), 16, [56, 56]),
        (dense(128, 128, 3, 2, 1), 16, [56, 56]),
        (dense(512, 512, 3, 1, 1), 16, [7, 7]),
        (Conv2d { groups: 96, ..dense(96, 96, 3, 1, 1) }, 16, [56, 56]),
        (Conv2d { groups: 96, ..dense(96, 96, 3, 2, 1) }, 16, [112, 112]),
        (Conv2d { groups: 240, ..dense(240, 240, 5, 1, 2) }, 16, [28, 28]),
        (Conv2d { groups: 96, ..dense(96, 96, 7, 1, 3) }, 16, [56, 56]),
        (Conv2d { groups: 32, ..dense(128, 128, 3, 1, 1) }, 16, [56, 56]),
        // ERFNet's at 480×360.
        (line([16; 2], 0, 1), 4, [180, 240]),
        (line([16; 2], 1, 1), 4, [180, 240]),
        (line([64; 2], 0, 1), 4, [90, 120]),
        (line([64; 2], 1, 1), 4, [90, 120]),
        (line([128; 2], 0, 2), 4, [45, 60]),
        (line([128; 2], 1, 2), 4, [45, 60]),
        (line([128; 2], 0, 16), 4, [45, 60]),
        (line([128; 2], 1, 16), 4, [45, 60]),
    ];
    geometries.into_iter().flat_map(|geometry| kernels(geometry, false)).collect()
}

/// Three taps along dimension `axis`, with the padding that keeps the map's size.
fn line(channels: [usize; 2], axis: usize, dilation: usize) -> Conv2d {
    let mut conv = Conv2d::new(channels[0], channels[1], 1, 1, 0);
    (conv.kernel[axis], conv.dilation[axis]) = (3, dilation);
    (conv.padding_before[axis], conv.padding_after[axis]) = (dilation, dilation);
    conv
}

/// The kernels of a convolution; the forward kernel also with ReLU if `relu`.
fn kernels((conv, batch, size): ConvCase, relu: bool) -> Vec<Case> {
    let Ok([height, width]) = conv.output_size(size) else { return Vec::new() };
    let x = [batch, conv.in_channels, size[0], size[1]];
    let y = [batch, conv.out_channels, height, width];
    let weight = conv.weight_shape();
    let name = |kernel: &str| {
        let mut name = format!("{kernel} {} * {} stride {:?}", extents(&x), extents(&weight), conv.stride);
        if conv.padding_before != [0, 0] || conv.padding_after != [0, 0] {
            name += &format!(" padding {:?} {:?}", conv.padding_before, conv.padding_after);
        }
        if conv.dilation != [1, 1] {
            name += &format!(" dilation {:?}", conv.dilation);
        }
        if conv.groups > 1 {
            name += &format!(" groups {}", conv.groups);
        }
        name + if conv.bias { " bias" } else { "" }
    };
    let forward = |relu: bool| {
        let kernel = if relu { "conv2d_relu" } else { "conv2d" };
        let mut case = Case::new(name(kernel), Conv2dForward { conv, relu })
            .input("x", &x, DTypeClass::Compute)
            .parameter("weight", &weight, DTypeClass::Compute);
        if conv.bias {
            case = case.parameter("bias", &[conv.out_channels], DTypeClass::Master);
        }
        case.output("y", &y, DTypeClass::Compute)
    };
    let data = Case::new(name("conv2d_backward_data"), Conv2dBackwardData { conv })
        .input("dy", &y, DTypeClass::Compute)
        .parameter("weight", &weight, DTypeClass::Compute)
        .output("dx", &x, DTypeClass::Compute);
    let mut weights = Case::new(name("conv2d_backward_weights"), Conv2dBackwardWeights { conv })
        .input("x", &x, DTypeClass::Compute)
        .input("dy", &y, DTypeClass::Compute)
        .output("dweight", &weight, DTypeClass::Master);
    if conv.bias {
        weights = weights.output("dbias", &[conv.out_channels], DTypeClass::Master);
    }
    let mut cases = vec![forward(false)];
    cases.extend(relu.then(|| forward(true)));
    cases.extend([data, weights]);
    cases
}
