//! Tests beyond the case tables: bands, other layouts of the gradient, uninitialised scratch.

use super::*;
use crate::native::conv::panel_gradient::tests::{maps_and_gradient, rounded, units};
use crate::native::simd::IsaLevel;
use crate::native::threads::ThreadTeam;
use stratus_engine::Layout;
use stratus_graph::ops::Conv2d;

/// The AMX unit; without it these tests are skipped with a message.
fn amx() -> Option<MatrixUnit> {
    let found = units().into_iter().find(|unit| matches!(unit, MatrixUnit::Amx(_)));
    if found.is_none() {
        eprintln!("SKIPPED: no AMX");
    }
    found
}

fn check(unit: MatrixUnit, conv: &Conv2d, batch: usize, input: [usize; 2], layout: &Layout) {
    let (maps, expected) = maps_and_gradient(conv, batch, input, layout);
    let [x, dy] = rounded(&maps);
    for threads in 1..=4 {
        let cpu = CpuContext { team: ThreadTeam::emulating(threads), level: IsaLevel::detect([true, true]) };
        let problem = ConvProblem { conv, batch, input, weights: layout, unit, cpu: &cpu };
        let gradient = TapGradient::new(problem).unwrap();
        // Scratch starts as NaN: nothing may depend on its contents.
        let mut scratch = vec![f32::NAN; gradient.scratch_bytes() / 4];
        let mut dw = vec![f32::NAN; layout.elements()];
        gradient.run(&x, &dy, &mut dw, &mut scratch);
        assert!(dw == expected, "{conv:?} {input:?} {threads} threads");
    }
}

#[test]
fn every_shape_matches_the_definition() {
    let Some(unit) = amx() else { return };
    let one_sided = Conv2d {
        kernel: [2, 5],
        padding_before: [0, 3],
        padding_after: [1, 1],
        ..Conv2d::new(8, 32, 1, 1, 0)
    };
    for (conv, batch, input) in [
        (Conv2d::new(8, 16, 3, 1, 1), 5, [14, 14]),
        (Conv2d::new(16, 32, 3, 1, 1), 3, [7, 7]),
        (Conv2d::new(16, 16, 1, 1, 0), 2, [1, 1]),
        (Conv2d::new(8, 48, 1, 1, 0), 1, [5, 9]),
        (Conv2d::new(8, 16, 5, 1, 2), 2, [6, 3]),
        (Conv2d::new(16, 16, 4, 1, 0), 2, [9, 8]),
        (one_sided, 2, [7, 18]),
        // Several bands, the last of them shorter.
        (Conv2d::new(16, 16, 3, 1, 1), 2, [90, 61]),
        (Conv2d::new(8, 16, 3, 1, 1), 1, [23, 1100]),
    ] {
        check(unit, &conv, batch, input, &Layout::plain(&conv.weight_shape()));
        check(unit, &conv, batch, input, &Layout::channels_last(&conv.weight_shape()));
        check(unit, &conv, batch, input, &in_blocks(&conv));
    }
}

/// oneDNN's `ABcd16b16a`: with 8 channels, half of a block is padding, which is zero.
fn in_blocks(conv: &Conv2d) -> Layout {
    let [rows, columns] = conv.kernel;
    let taps = rows * columns;
    Layout {
        tag: "ABcd16b16a".to_owned(),
        shape: conv.weight_shape().to_vec(),
        padded: vec![conv.out_channels, ROWS, rows, columns],
        strides: vec![taps * ROWS * ROWS, taps * ROWS * ROWS, columns * ROWS * ROWS, ROWS * ROWS],
        blocks: vec![(1, ROWS), (0, ROWS)],
    }
}

#[test]
fn refuses_unsupported_convolutions() {
    let Some(unit) = amx() else { return };
    let refused = |conv: Conv2d, level| {
        let cpu = CpuContext { team: ThreadTeam::single(), level };
        let weights = Layout::plain(&conv.weight_shape());
        let problem =
            ConvProblem { conv: &conv, batch: 1, input: [8, 8], weights: &weights, unit, cpu: &cpu };
        assert!(TapGradient::new(problem).is_none(), "{conv:?}");
    };
    let [avx512, avx2] = [[true, true], [true, false]].map(IsaLevel::detect);
    refused(Conv2d::new(12, 16, 3, 1, 1), avx512);
    refused(Conv2d::new(8, 20, 3, 1, 1), avx512);
    refused(Conv2d::new(8, 16, 3, 2, 1), avx512);
    refused(Conv2d { bias: true, ..Conv2d::new(8, 16, 3, 1, 1) }, avx512);
    refused(Conv2d { dilation: [2, 2], ..Conv2d::new(8, 16, 3, 1, 1) }, avx512);
    refused(Conv2d { groups: 2, ..Conv2d::new(16, 32, 3, 1, 1) }, avx512);
    refused(Conv2d::new(16, 256, 3, 1, 1), avx512);
    refused(Conv2d::new(8, 16, 3, 1, 1), avx2);
}
