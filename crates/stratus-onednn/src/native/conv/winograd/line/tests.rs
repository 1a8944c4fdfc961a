//! Tests beyond the case tables: dilations, incomplete tiles, every instruction set, uninitialised scratch.

use super::*;
use crate::native::conv::direct::tests::{each_product, numbers};
use crate::native::conv::winograd::tests::{INT16_TOLERANCE, TOLERANCE, assert_close, cpus, elements};
use crate::native::conv::winograd::{Int16Products, Pass};
use crate::native::simd::Bf16;

/// A 3×1 (`axis` 0) or 1×3 convolution of a dilation, with the padding before and after a line.
fn line([inputs, outputs]: [usize; 2], axis: usize, dilation: usize, padding: [usize; 2]) -> Conv2d {
    let mut conv = Conv2d::new(inputs, outputs, 1, 1, 0);
    conv.kernel[axis] = TAPS;
    conv.dilation[axis] = dilation;
    (conv.padding_before[axis], conv.padding_after[axis]) = padding.into();
    conv
}

/// Compares all passes with the definition.
fn check<E: LaneElement + PartialEq>(conv: &Conv2d, batch: usize, input: [usize; 2], rounding: f32) {
    let [height, width] = conv.output_size(input).unwrap();
    let x = numbers(batch * input[0] * input[1] * conv.in_channels, 1);
    let dy = numbers(batch * height * width * conv.out_channels, 2);
    let weights = numbers(conv.weight_shape().iter().product(), 3);
    let bias = numbers(conv.out_channels, 4);
    let (mut y, mut dx, mut dw) = (vec![0.0; dy.len()], vec![0.0; x.len()], vec![0.0; weights.len()]);
    each_product(conv, batch, input, |from, weight, to| {
        y[to] += x[from] * weights[weight];
        dx[from] += dy[to] * weights[weight];
        dw[weight] += x[from] * dy[to];
    });
    let filters = conv.out_channels;
    let db: Vec<f32> = (0..filters).map(|o| dy.iter().skip(o).step_by(filters).sum()).collect();
    let with_bias: Vec<f32> = y.iter().enumerate().map(|(at, y)| (y + bias[at % filters]).max(0.0)).collect();
    let (x, dy, weights) = (elements::<E>(&x), elements::<E>(&dy), elements::<E>(&weights));
    for cpu in cpus() {
        let context = format!("{conv:?} {batch} {input:?} {:?} {:?}", cpu.level, cpu.team);
        // Scratch and results start as NaN: nothing may depend on their contents.
        let scratch = |bytes: usize| vec![f32::NAN; bytes / 4];
        let run = |pass, from: &[E], bias: &[f32], expected: &[f32]| {
            let on = |int16: Option<Int16Products>| {
                let kernel = LineConv::new(conv, pass, batch, input, int16, &cpu).unwrap();
                let mut got = vec![E::store(f32::NAN); expected.len()];
                let relu = !bias.is_empty();
                kernel.run(from, &weights, bias, relu, &mut got, &mut scratch(kernel.scratch_bytes()));
                let quantisation = if int16.is_some() { INT16_TOLERANCE } else { 0.0 };
                let tolerance = TOLERANCE + rounding + quantisation;
                assert_close(&got, expected, tolerance, &format!("{context} {pass:?} {int16:?}"));
                got
            };
            on(None);
            let one_by_one = on(Some(Int16Products::Portable));
            if let Some(int16) = Int16Products::detect(cpu.level) {
                assert!(on(Some(int16)) == one_by_one, "{context} {pass:?}: not bitwise equal");
            }
        };
        run(Pass::Forward, &x, &[], &y);
        run(Pass::Forward, &x, &bias, &with_bias);
        run(Pass::BackwardData, &dy, &[], &dx);
        let gradient = LineGradient::new(conv, batch, input, &cpu).unwrap();
        let (mut got, mut got_bias) = (vec![f32::NAN; dw.len()], vec![f32::NAN; filters]);
        gradient.run(&x, &dy, &mut got, &mut got_bias, &mut scratch(gradient.scratch_bytes()));
        assert_close(&got, &dw, TOLERANCE, &context);
        assert_eq!(got_bias, db, "{context}");
        let mut without_bias = vec![f32::NAN; dw.len()];
        gradient.run(&x, &dy, &mut without_bias, &mut [], &mut scratch(gradient.scratch_bytes()));
        assert!(got == without_bias, "{context}: not bitwise equal without a bias");
    }
}

#[test]
fn every_pass_matches_the_definition() {
    for axis in [0, 1] {
        for (conv, batch, [length, across]) in [
            (line([16, 16], axis, 1, [1, 1]), 1, [4, 1]),
            (line([16, 32], axis, 1, [1, 1]), 3, [9, 7]),
            // Tiles of all remainders.
            (line([32, 16], axis, 1, [1, 1]), 2, [10, 3]),
            (line([16, 16], axis, 1, [1, 1]), 2, [11, 3]),
            // Dilations: phases of different lengths, and taps mostly on the padding.
            (line([16, 48], axis, 2, [2, 2]), 2, [15, 5]),
            (line([48, 16], axis, 3, [3, 3]), 2, [23, 2]),
            (line([16, 16], axis, 16, [16, 16]), 1, [60, 2]),
            // Asymmetric padding: the output is shorter or longer than the input.
            (line([16, 16], axis, 1, [0, 0]), 2, [14, 4]),
            (line([16, 16], axis, 2, [0, 4]), 1, [24, 3]),
            (line([16, 16], axis, 2, [4, 5]), 1, [15, 3]),
            // Several blocks; more channels than a chunk of integers.
            (line([16, 16], axis, 1, [1, 1]), 1, [40, 61]),
            (line([144, 48], axis, 1, [1, 1]), 1, [16, 3]),
        ] {
            let input = if axis == 0 { [length, across] } else { [across, length] };
            check::<f32>(&conv, batch, input, 0.0);
            check::<Bf16>(&conv, batch, input, 2e-3);
        }
    }
}

#[test]
fn refuses_unsupported_convolutions() {
    let cpu = cpus().remove(0);
    let tall = line([32, 32], 0, 1, [1, 1]);
    for (conv, input) in [
        (Conv2d { groups: 2, ..tall }, [8, 8]),
        (Conv2d { stride: [2, 1], ..tall }, [8, 8]),
        (Conv2d { stride: [1, 2], ..tall }, [8, 8]),
        (Conv2d { kernel: [3, 2], ..tall }, [8, 8]),
        (Conv2d { kernel: [5, 1], ..tall }, [8, 8]),
        (Conv2d { padding_before: [1, 1], ..tall }, [8, 8]),
        (Conv2d { padding_after: [1, 1], ..tall }, [8, 8]),
        (Conv2d { padding_before: [3, 0], ..tall }, [8, 8]),
        (line([20, 32], 0, 1, [1, 1]), [8, 8]),
        (line([32, 8], 1, 1, [1, 1]), [8, 8]),
        // Most of the computed tile would be outside of the map.
        (tall, [1, 8]),
        (line([16, 16], 1, 16, [16, 16]), [8, 20]),
    ] {
        for pass in [Pass::Forward, Pass::BackwardData] {
            assert!(LineConv::new(&conv, pass, 1, input, None, &cpu).is_none(), "{conv:?} {input:?}");
        }
        assert!(LineGradient::new(&conv, 1, input, &cpu).is_none(), "{conv:?} {input:?}");
    }
    assert!(LineConv::new(&tall, Pass::Forward, 0, [8, 8], None, &cpu).is_none(), "an empty batch");
}
