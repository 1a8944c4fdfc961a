//! Tests beyond the case tables: every instruction set, uninitialised scratch.

use super::*;
use crate::native::simd::IsaLevel;
use crate::native::threads::ThreadTeam;

/// Small integers, whose products and sums are exact in any order.
pub fn numbers(count: usize, seed: u32) -> Vec<f32> {
    let mut state = seed;
    let mut next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 29) as f32 - 3.0
    };
    (0..count).map(|_| next()).collect()
}

/// [`each_product`] of a convolution in groups, of as many input as output channels.
pub fn each_product_in_groups(
    conv: &Conv2d,
    batch: usize,
    input: [usize; 2],
    mut body: impl FnMut(usize, usize, usize),
) {
    let group = conv.in_channels / conv.groups;
    let single = Conv2d { in_channels: group, out_channels: group, groups: 1, ..*conv };
    let weights: usize = single.weight_shape().iter().product();
    each_product(&single, batch, input, |x, weight, y| {
        for number in 0..conv.groups {
            let at = |index: usize| index / group * conv.in_channels + number * group + index % group;
            body(at(x), number * weights + weight, at(y));
        }
    });
}

/// Calls `body(x index, weight index, y index)` for every product of a convolution.
pub fn each_product(
    conv: &Conv2d,
    batch: usize,
    input: [usize; 2],
    mut body: impl FnMut(usize, usize, usize),
) {
    let [height, width] = conv.output_size(input).unwrap_or_default();
    let [kh, kw] = conv.kernel;
    for (n, y, x, o) in (0..batch)
        .flat_map(|n| (0..height).map(move |y| (n, y)))
        .flat_map(|(n, y)| (0..width).map(move |x| (n, y, x)))
        .flat_map(|(n, y, x)| (0..conv.out_channels).map(move |o| (n, y, x, o)))
    {
        for (i, ky, kx) in (0..conv.in_channels)
            .flat_map(|i| (0..kh).map(move |ky| (i, ky)))
            .flat_map(|(i, ky)| (0..kw).map(move |kx| (i, ky, kx)))
        {
            let row = (y * conv.stride[0] + ky * conv.dilation[0]).checked_sub(conv.padding_before[0]);
            let column = (x * conv.stride[1] + kx * conv.dilation[1]).checked_sub(conv.padding_before[1]);
            let (Some(row), Some(column)) = (row, column) else { continue };
            if row < input[0] && column < input[1] {
                let from = ((n * input[0] + row) * input[1] + column) * conv.in_channels + i;
                let weight = ((o * conv.in_channels + i) * kh + ky) * kw + kx;
                body(from, weight, ((n * height + y) * width + x) * conv.out_channels + o);
            }
        }
    }
}

fn check(conv: &Conv2d, batch: usize, input: [usize; 2]) {
    let [height, width] = conv.output_size(input).unwrap_or_default();
    let outputs = batch * height * width * conv.out_channels;
    let x = numbers(batch * input[0] * input[1] * conv.in_channels, 1);
    let weights = numbers(conv.weight_shape().iter().product(), 2);
    let bias = numbers(conv.out_channels, 3);
    let mut y: Vec<f32> = (0..outputs).map(|at| bias[at % conv.out_channels]).collect();
    each_product(conv, batch, input, |from, weight, to| y[to] += x[from] * weights[weight]);
    let mut gradient = vec![0.0; weights.len()];
    each_product(conv, batch, input, |from, weight, to| gradient[weight] += x[from] * y[to]);
    let bias_gradient: Vec<f32> =
        (0..bias.len()).map(|o| y.iter().skip(o).step_by(bias.len()).sum()).collect();
    for level in IsaLevel::all() {
        let cpu = CpuContext { team: ThreadTeam::single(), level };
        let Some(direct) = DirectConv::new(conv, batch, input, &cpu) else {
            panic!("{conv:?} is not supported")
        };
        // Scratch starts as NaN: nothing may depend on its contents.
        let mut scratch = vec![f32::NAN; direct.forward_scratch_bytes() / 4];
        let mut got = vec![f32::NAN; outputs];
        direct.forward(&x, &weights, &bias, false, &mut got, &mut scratch);
        assert_eq!(got, y, "{level:?} {conv:?} {input:?}");
        direct.forward(&x, &weights, &bias, true, &mut got, &mut scratch);
        assert!(
            got.iter().zip(&y).all(|(got, y)| *got == y.max(0.0)),
            "{level:?} {conv:?} {input:?} with ReLU"
        );
        let mut scratch = vec![f32::NAN; direct.gradients_scratch_bytes() / 4];
        let (mut dw, mut db) = (vec![f32::NAN; weights.len()], vec![f32::NAN; bias.len()]);
        direct.gradients(&x, &y, &mut dw, &mut db, &mut scratch);
        assert_eq!(dw, gradient, "{level:?} {conv:?} {input:?}");
        assert_eq!(db, bias_gradient, "{level:?} {conv:?} {input:?}");
    }
}

#[test]
fn every_level_matches_the_definition() {
    for (conv, batch, input) in [
        (Conv2d::new(1, 8, 3, 1, 1), 2, [28, 28]),
        (Conv2d::new(1, 8, 3, 1, 1), 1, [1, 1]),
        (Conv2d::new(2, 16, 3, 1, 1), 2, [5, 7]),
        (Conv2d::new(3, 8, 1, 1, 0), 1, [4, 3]),
        (Conv2d::new(3, 24, 7, 2, 3), 1, [23, 20]),
        (Conv2d::new(1, 8, 2, 3, 0), 2, [11, 11]),
        (Conv2d::new(2, 8, 5, 1, 0), 1, [5, 33]),
        (Conv2d::new(1, 8, 5, 4, 2), 3, [3, 2]),
        (
            Conv2d {
                kernel: [3, 5],
                stride: [2, 1],
                padding_before: [0, 2],
                padding_after: [1, 3],
                ..Conv2d::new(3, 8, 3, 1, 0)
            },
            2,
            [8, 9],
        ),
    ] {
        check(&Conv2d { bias: true, ..conv }, batch, input);
    }
}

#[test]
fn refuses_unsupported_convolutions() {
    let refused = |conv: Conv2d, input| {
        let cpu = CpuContext { team: ThreadTeam::single(), level: IsaLevel::detect([true, true]) };
        assert!(DirectConv::new(&conv, 1, input, &cpu).is_none(), "{conv:?}");
    };
    refused(Conv2d::new(1, 12, 3, 1, 1), [8, 8]);
    refused(Conv2d::new(64, 64, 3, 1, 1), [8, 8]);
    refused(Conv2d { dilation: [2, 1], ..Conv2d::new(1, 8, 3, 1, 1) }, [8, 8]);
    refused(Conv2d { groups: 2, ..Conv2d::new(2, 8, 3, 1, 1) }, [8, 8]);
    refused(Conv2d::new(1, 8, 5, 1, 0), [4, 4]);
}
