//! Tests beyond the case tables: all kinds of chunks and thread groups, weights in other layouts,
//! uninitialised scratch.

use super::*;
use crate::native::conv::direct::tests::{each_product, numbers};
use crate::native::conv::panel_gradient::tests::{cases, units};
use crate::native::simd::{Element, IsaLevel};
use crate::native::threads::ThreadTeam;

fn bf16(values: &[f32]) -> Vec<Bf16> {
    values.iter().map(|&value| Bf16::store(value)).collect()
}

/// Compares both passes with the definition: all sums are exact until they are rounded to bf16.
fn check(unit: MatrixUnit, conv: &Conv2d, batch: usize, input: [usize; 2], layout: &Layout) {
    let [height, width] = conv.output_size(input).unwrap();
    let x = numbers(batch * input[0] * input[1] * conv.in_channels, 1);
    let dy = numbers(batch * height * width * conv.out_channels, 2);
    let plain = numbers(conv.weight_shape().iter().product(), 3);
    let bias = numbers(conv.out_channels, 4);
    let mut y: Vec<f32> = (0..dy.len()).map(|at| bias[at % bias.len()]).collect();
    let mut dx = vec![0.0; x.len()];
    each_product(conv, batch, input, |from, weight, to| {
        y[to] += x[from] * plain[weight];
        dx[from] += dy[to] * plain[weight];
    });
    let mut weights = vec![0.0; layout.elements()];
    layout.for_each(&layout.shape, |at, from| weights[at] = plain[from]);
    let [x, dy, weights] = [&x, &dy, &weights].map(|values| bf16(values));
    for threads in 1..=4 {
        let cpu = CpuContext { team: ThreadTeam::emulating(threads), level: IsaLevel::detect([true, true]) };
        let problem = ConvProblem { conv, batch, input, weights: layout, unit, cpu: &cpu };
        let run = |kernel: &PanelConv, from: &[Bf16], bias: &[f32], relu: bool, expected: &[f32]| {
            // Scratch starts as NaN: nothing may depend on its contents.
            let mut scratch = vec![Bf16::store(f32::NAN); kernel.scratch_bytes() / 2];
            let mut got = vec![Bf16::store(f32::NAN); expected.len()];
            kernel.run(from, &weights, bias, relu, &mut got, &mut scratch);
            let floor = if relu { 0.0 } else { f32::MIN };
            let expected = bf16(&expected.iter().map(|value| value.max(floor)).collect::<Vec<_>>());
            assert!(got == expected, "{conv:?} {input:?} {threads} threads {:?}", kernel.channels);
        };
        let forward = PanelConv::forward(problem).unwrap();
        run(&forward, &x, &bias, false, &y);
        run(&forward, &x, &bias, true, &y);
        let without: Vec<f32> = y.iter().enumerate().map(|(at, y)| y - bias[at % bias.len()]).collect();
        run(&forward, &x, &[], false, &without);
        run(&PanelConv::backward(problem).unwrap(), &dy, &[], false, &dx);
    }
}

#[test]
fn every_shape_matches_the_definition() {
    for unit in units() {
        for (conv, batch, input) in cases() {
            check(unit, &conv, batch, input, &Layout::plain(&conv.weight_shape()));
            check(unit, &conv, batch, input, &Layout::channels_last(&conv.weight_shape()));
        }
    }
}

#[test]
fn several_chunks_and_weights_beyond_l2_match_the_definition() {
    for (conv, batch, input) in [
        (Conv2d::new(256, 64, 3, 1, 1), 1, [40, 40]),
        (Conv2d::new(256, 256, 3, 2, 1), 9, [8, 8]),
        (Conv2d::new(512, 64, 3, 1, 1), 35, [4, 4]),
        // No tap reads every second pixel: its gradient is zero, for any number of images.
        (Conv2d::new(16, 16, 1, 2, 0), 30_000, [2, 2]),
    ] {
        for unit in units() {
            check(unit, &conv, batch, input, &Layout::plain(&conv.weight_shape()));
        }
    }
}

#[test]
fn refuses_unsupported_convolutions() {
    let refused = |conv: Conv2d, input, level| {
        let cpu = CpuContext { team: ThreadTeam::single(), level };
        let weights = Layout::plain(&conv.weight_shape());
        for unit in units() {
            let problem = ConvProblem { conv: &conv, batch: 1, input, weights: &weights, unit, cpu: &cpu };
            assert!(PanelConv::forward(problem).is_none(), "{conv:?}");
            assert!(PanelConv::backward(problem).is_none(), "{conv:?}");
        }
    };
    let [avx512, avx2] = [[true, true], [true, false]].map(IsaLevel::detect);
    refused(Conv2d { groups: 2, ..Conv2d::new(32, 32, 3, 1, 1) }, [8, 8], avx512);
    refused(Conv2d::new(3, 64, 3, 1, 1), [8, 8], avx512);
    refused(Conv2d::new(32, 32, 5, 1, 0), [4, 4], avx512);
    refused(Conv2d::new(32, 32, 3, 1, 1), [8, 8], avx2);
}
