//! Tests beyond the case tables: every instruction set, uninitialised scratch.

use super::*;
use crate::native::conv::direct::tests::{each_product_in_groups, numbers};
use crate::native::simd::IsaLevel;
use crate::native::threads::ThreadTeam;

fn check(conv: &Conv2d, batch: usize, input: [usize; 2]) {
    let [height, width] = conv.output_size(input).unwrap_or_default();
    let channels = conv.in_channels;
    let x = numbers(batch * input[0] * input[1] * channels, 1);
    let weights = numbers(conv.weight_shape().iter().product(), 2);
    let outputs = batch * height * width * channels;
    let dy = numbers(outputs, 4);
    let (mut y, mut dx, mut gradient) = (vec![0.0; outputs], vec![0.0; x.len()], vec![0.0; weights.len()]);
    each_product_in_groups(conv, batch, input, |from, weight, to| {
        y[to] += x[from] * weights[weight];
        dx[from] += dy[to] * weights[weight];
        gradient[weight] += x[from] * dy[to];
    });
    for level in IsaLevel::all() {
        let cpu = CpuContext { team: ThreadTeam::single(), level };
        let kernel = GroupedConv::new(conv, batch, input, &cpu).unwrap();
        let room = || vec![f32::NAN; kernel.scratch_bytes() / size_of::<f32>()];
        let context = format!("{conv:?} {input:?} {}", level.name());
        for relu in [false, true] {
            let mut results = vec![f32::NAN; y.len()];
            kernel.forward(&x, &weights, relu, &mut results, &mut room());
            let expected: Vec<f32> = y.iter().map(|y| if relu { y.max(0.0) } else { *y }).collect();
            assert_eq!(results, expected, "{context}");
        }
        let mut results = vec![f32::NAN; dx.len()];
        kernel.backward_data(&dy, &weights, &mut results, &mut room());
        assert_eq!(results, dx, "{context}");
        let mut results = vec![f32::NAN; gradient.len()];
        kernel.gradient(&x, &dy, &mut results, &mut room());
        assert_eq!(results, gradient, "{context}");
    }
}

#[test]
fn equals_the_definition_at_every_instruction_set() {
    for (channels, groups) in [(16, 4), (48, 12), (32, 4), (32, 2), (96, 3), (128, 2)] {
        let grouped = |kernel, stride, padding| Conv2d {
            groups,
            ..Conv2d::new(channels, channels, kernel, stride, padding)
        };
        for (kernel, stride, padding) in [(3, 1, 1), (3, 2, 1), (1, 1, 0), (5, 2, 2), (2, 3, 0)] {
            for input in [[5, 7], [9, 9], [2, 3]] {
                let conv = grouped(kernel, stride, padding);
                if conv.output_size(input).is_ok_and(|size| !size.contains(&0)) {
                    check(&conv, 2, input);
                }
            }
        }
        check(&Conv2d { dilation: [1, 2], stride: [2, 1], ..grouped(3, 1, 2) }, 1, [6, 8]);
        check(&Conv2d { padding_before: [8, 8], padding_after: [1, 1], ..grouped(3, 1, 1) }, 1, [2, 2]);
        check(&Conv2d { dilation: [10, 10], ..grouped(2, 1, 0) }, 1, [12, 12]);
        check(&Conv2d { padding_before: [4, 4], padding_after: [4, 4], ..grouped(3, 1, 1) }, 1, [2, 3]);
    }
}
