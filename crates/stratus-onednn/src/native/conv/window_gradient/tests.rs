//! Tests beyond the case tables: all kinds of bands, blocks and strips, other layouts of the gradient,
//! uninitialised scratch.

use super::*;
use crate::library;
use crate::native::conv::panel_gradient::tests::{maps_and_gradient, rounded};
use crate::native::conv::tiles::{Avx512Bf16, Avx512F32};
use crate::native::simd::IsaLevel;
use crate::native::threads::ThreadTeam;
use stratus_graph::ops::Conv2d;

/// Checks bf16 and `f32` arithmetic; prints a message if the CPU has none.
fn check_all(conv: &Conv2d, batch: usize, input: [usize; 2], layout: &Layout) {
    match library::find().ok().and_then(|context| Avx512Bf16::detect(&context)) {
        Some(unit) => check(unit, conv, batch, input, layout),
        None => eprintln!("SKIPPED: no bf16"),
    }
    match Avx512F32::detect(IsaLevel::detect([true, true])) {
        Some(unit) => check(unit, conv, batch, input, layout),
        None => eprintln!("SKIPPED: no AVX-512"),
    }
}

fn check<U: WindowArithmetic>(unit: U, conv: &Conv2d, batch: usize, input: [usize; 2], layout: &Layout) {
    let (maps, expected) = maps_and_gradient(conv, batch, input, layout);
    let filters = conv.out_channels;
    let bias: Vec<f32> = (0..filters).map(|o| maps[1].iter().skip(o).step_by(filters).sum()).collect();
    let [x, dy] = rounded(&maps);
    for threads in 1..=4 {
        let cpu = CpuContext { team: ThreadTeam::emulating(threads), level: IsaLevel::detect([true, true]) };
        let problem = ConvProblem { conv, batch, input, weights: layout, unit, cpu: &cpu };
        let gradient = WindowGradient::new(problem).unwrap();
        // Scratch starts as NaN: nothing may depend on its contents.
        let mut scratch = vec![f32::NAN; gradient.scratch_bytes() / 4];
        let (mut dw, mut db) = (vec![f32::NAN; layout.elements()], vec![f32::NAN; filters]);
        gradient.run(&x, &dy, &mut dw, &mut db, &mut scratch);
        assert!(dw == expected, "{conv:?} {input:?} {threads} threads");
        assert_eq!(db, bias, "{conv:?} {input:?} {threads} threads");
        gradient.run(&x, &dy, &mut dw, &mut [], &mut scratch);
        assert!(dw == expected, "{conv:?} {input:?} {threads} threads, without bias");
    }
}

#[test]
fn every_shape_matches_the_definition() {
    for (conv, batch, input) in [
        // The first layers of residual networks, of AlexNet and of VGG.
        (Conv2d::new(3, 64, 7, 2, 3), 2, [40, 37]),
        (Conv2d::new(3, 64, 11, 4, 2), 2, [63, 67]),
        (Conv2d::new(3, 16, 3, 1, 1), 1, [33, 40]),
        // One to six registers at a time, and several strips of them.
        (Conv2d::new(1, 8, 3, 1, 1), 3, [5, 5]),
        (Conv2d::new(1, 16, 5, 1, 2), 3, [9, 8]),
        (Conv2d::new(4, 24, 3, 1, 0), 2, [7, 9]),
        (Conv2d::new(6, 8, 3, 2, 1), 1, [11, 13]),
        (Conv2d::new(3, 40, 5, 1, 2), 2, [6, 6]),
        (Conv2d::new(15, 8, 5, 1, 1), 1, [8, 8]),
        // Outputs that read only padding, and inputs that no output reads.
        (Conv2d::new(2, 8, 3, 1, 2), 2, [2, 3]),
        (Conv2d::new(3, 8, 2, 3, 0), 2, [10, 11]),
        (Conv2d { padding_before: [5, 4], padding_after: [0, 6], ..Conv2d::new(3, 8, 3, 2, 0) }, 1, [6, 5]),
        (
            Conv2d {
                kernel: [1, 7],
                padding_before: [0, 3],
                padding_after: [0, 3],
                ..Conv2d::new(5, 16, 3, 1, 0)
            },
            2,
            [9, 17],
        ),
        (Conv2d::new(1, 8, 1, 1, 0), 1, [1, 1]),
    ] {
        check_all(&conv, batch, input, &Layout::plain(&conv.weight_shape()));
    }
}

#[test]
fn the_gradient_has_the_requested_layout() {
    let conv = Conv2d::new(3, 16, 5, 2, 2);
    check_all(&conv, 2, [11, 12], &Layout::channels_last(&conv.weight_shape()));
    // oneDNN's `ABcd16b16a`: the block of channels is padded with zeros.
    let blocked = Layout {
        tag: "ABcd16b16a".to_owned(),
        shape: conv.weight_shape().to_vec(),
        padded: vec![16, 16, 5, 5],
        strides: vec![25 * 256, 25 * 256, 5 * 256, 256],
        blocks: vec![(1, 16), (0, 16)],
    };
    check_all(&conv, 2, [11, 12], &blocked);
}

#[test]
fn refuses_unsupported_convolutions() {
    let Some(unit) = Avx512F32::detect(IsaLevel::detect([true, true])) else {
        eprintln!("SKIPPED: no AVX-512");
        return;
    };
    let refused = |conv: Conv2d, batch, input, level| {
        let cpu = CpuContext { team: ThreadTeam::single(), level };
        let weights = Layout::plain(&conv.weight_shape());
        let problem = ConvProblem { conv: &conv, batch, input, weights: &weights, unit, cpu: &cpu };
        assert!(WindowGradient::new(problem).is_none(), "{conv:?}");
    };
    let [avx512, avx2] = [[true, true], [true, false]].map(IsaLevel::detect);
    let dense = Conv2d::new(3, 16, 3, 1, 1);
    refused(Conv2d { dilation: [2, 2], ..dense }, 1, [8, 8], avx512);
    refused(Conv2d::new(16, 16, 3, 1, 1), 1, [8, 8], avx512);
    refused(Conv2d::new(3, 12, 3, 1, 1), 1, [8, 8], avx512);
    refused(Conv2d::new(15, 16, 7, 1, 1), 1, [8, 8], avx512);
    refused(dense, 0, [8, 8], avx512);
    refused(dense, 1, [8, 8], avx2);
}
