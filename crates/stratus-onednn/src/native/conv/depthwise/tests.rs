//! Tests beyond the case tables: every instruction set, scratch full of NaN, every way in which rows are
//! divided into segments.

use super::*;
use crate::native::conv::direct::tests::{each_product_in_groups, numbers};
use crate::native::simd::IsaLevel;
use crate::native::threads::ThreadTeam;

fn check(conv: &Conv2d, batch: usize, input: [usize; 2]) {
    let [height, width] = conv.output_size(input).unwrap_or_default();
    let channels = conv.in_channels;
    let x = numbers(batch * input[0] * input[1] * channels, 1);
    let weights = numbers(conv.weight_shape().iter().product(), 2);
    let bias = numbers(channels, 3);
    let outputs = batch * height * width * channels;
    let mut y: Vec<f32> = (0..outputs).map(|at| bias[at % channels]).collect();
    each_product_in_groups(conv, batch, input, |from, weight, to| y[to] += x[from] * weights[weight]);
    let dy = numbers(outputs, 4);
    let (mut dx, mut gradient) = (vec![0.0; x.len()], vec![0.0; weights.len()]);
    each_product_in_groups(conv, batch, input, |from, weight, to| {
        dx[from] += dy[to] * weights[weight];
        gradient[weight] += x[from] * dy[to];
    });
    let sum = |channel: usize| dy.iter().skip(channel).step_by(channels).sum();
    let bias_gradient: Vec<f32> = (0..channels).map(sum).collect();
    for level in IsaLevel::all() {
        let cpu = CpuContext { team: ThreadTeam::single(), level };
        let kernel = DepthwiseConv::new(conv, batch, input, &cpu).unwrap();
        let scratch = |bytes: usize| vec![f32::NAN; bytes / size_of::<f32>()];
        let context = format!("{conv:?} {input:?} {}", level.name());
        let clipped = FusedActivation::Relu { ceiling: Some(2.0) };
        for activation in [FusedActivation::Identity, FusedActivation::RELU, clipped] {
            let mut results = vec![f32::NAN; y.len()];
            let mut room = scratch(kernel.correlation_scratch_bytes());
            kernel.forward(&x, &weights, &bias, activation, &mut results, &mut room);
            let expected: Vec<f32> = y.iter().map(|y| activation.value((*y).into()) as f32).collect();
            assert_eq!(results, expected, "{context}");
        }
        let mut results = vec![f32::NAN; dx.len()];
        let mut room = scratch(kernel.correlation_scratch_bytes());
        kernel.backward_data(&dy, &weights, &mut results, &mut room);
        assert_eq!(results, dx, "{context}");
        let (mut weight_results, mut bias_results) =
            (vec![f32::NAN; gradient.len()], vec![f32::NAN; channels]);
        let mut room = scratch(kernel.gradients_scratch_bytes());
        kernel.gradients(&x, &dy, &mut weight_results, &mut bias_results, &mut room);
        assert_eq!(weight_results, gradient, "{context}");
        assert_eq!(bias_results, bias_gradient, "{context}");
    }
}

#[test]
fn equals_the_definition_at_every_instruction_set() {
    let depthwise = |channels, kernel, stride, padding| Conv2d {
        groups: channels,
        ..Conv2d::new(channels, channels, kernel, stride, padding)
    };
    for channels in [16, 17, 40] {
        for (kernel, stride, padding) in
            [(3, 1, 1), (3, 2, 1), (5, 1, 2), (5, 2, 2), (7, 1, 3), (1, 1, 0), (2, 3, 0), (4, 3, 3)]
        {
            for input in [[7, 9], [14, 14], [3, 2], [1, 1]] {
                let conv = depthwise(channels, kernel, stride, padding);
                if conv.output_size(input).is_ok_and(|size| !size.contains(&0)) {
                    check(&conv, 2, input);
                }
            }
        }
        // Dilation, different extents, and padding on one side only.
        let conv = depthwise(channels, 3, 1, 2);
        check(&Conv2d { dilation: [2, 2], ..conv }, 1, [9, 8]);
        check(&Conv2d { dilation: [1, 3], stride: [2, 2], ..conv }, 1, [9, 12]);
        check(&Conv2d { padding_after: [0, 1], kernel: [3, 5], ..conv }, 2, [6, 11]);
        // Windows that are entirely on padding, more than the input has pixels; inputs that no window reads.
        check(&Conv2d { padding_before: [8, 8], padding_after: [1, 1], ..conv }, 1, [2, 2]);
        check(&Conv2d { kernel: [2, 2], dilation: [10, 10], ..depthwise(channels, 2, 1, 0) }, 1, [12, 12]);
        check(&Conv2d { padding_before: [5, 5], padding_after: [5, 5], ..conv }, 1, [2, 3]);
    }
}

/// A result of 16 MiB, aligned as in an arena: its stores bypass the caches.
#[test]
fn large_results_equal_the_definition_too() {
    let (channels, input) = (32, [256, 512]);
    let conv = Conv2d { groups: channels, ..Conv2d::new(channels, channels, 1, 1, 0) };
    let x = numbers(input[0] * input[1] * channels, 1);
    let weights = numbers(channels, 2);
    let expected: Vec<f32> = x.iter().zip(weights.iter().cycle()).map(|(x, weight)| x * weight).collect();
    let mut memory = vec![f32::NAN; x.len() + LANES];
    let start = memory.as_ptr().align_offset(64);
    for level in IsaLevel::all() {
        let cpu = CpuContext { team: ThreadTeam::single(), level };
        let kernel = DepthwiseConv::new(&conv, 1, input, &cpu).unwrap();
        let mut scratch = vec![f32::NAN; kernel.correlation_scratch_bytes() / size_of::<f32>()];
        let y = &mut memory[start..start + x.len()];
        assert!(size_of_val(y) >= LARGE_MAP_BYTES);
        kernel.forward(&x, &weights, &[], FusedActivation::Identity, y, &mut scratch);
        assert!(*y == expected, "{}", level.name());
        y.fill(f32::NAN);
    }
}
