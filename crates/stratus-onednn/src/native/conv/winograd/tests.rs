//! Tests beyond the case tables: all kinds of blocks and thread groups, every instruction set, uninitialised
//! scratch.

use super::*;
use crate::native::conv::direct::tests::{each_product, numbers};
use crate::native::elementwise::CpuContext;
use crate::native::simd::{Bf16, Element, IsaLevel};
use crate::native::threads::ThreadTeam;

/// The tolerance for small integers, relative to the norm of the result.
pub(super) const TOLERANCE: f32 = 3e-6;

/// The tolerance for 13-bit products, about the error of storing maps in bf16.
pub(super) const INT16_TOLERANCE: f32 = 2e-3;

pub(super) fn cpus() -> Vec<CpuContext> {
    let cpu = |threads, level| CpuContext { team: ThreadTeam::emulating(threads), level };
    let highest = IsaLevel::detect([true, true]);
    let levels = IsaLevel::all().into_iter().map(|level| cpu(2, level));
    levels.chain([1, 3, 4].map(|threads| cpu(threads, highest))).collect()
}

pub(super) fn elements<E: LaneElement>(values: &[f32]) -> Vec<E> {
    values.iter().map(|&value| E::store(value)).collect()
}

/// `within`: the largest distance, relative to the norm of `expected`.
pub(super) fn assert_close<E: LaneElement>(got: &[E], expected: &[f32], within: f32, context: &str) {
    let norm = |values: &mut dyn Iterator<Item = f32>| {
        values.map(|value| f64::from(value) * f64::from(value)).sum::<f64>().sqrt()
    };
    let distance = norm(&mut got.iter().zip(expected).map(|(got, expected)| got.load() - expected));
    let whole = norm(&mut expected.iter().copied());
    assert!(distance <= f64::from(within) * whole, "{context}: {distance:e} of {whole:e}");
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
        let unset = |count: usize| vec![E::store(f32::NAN); count];
        let scratch = |bytes: usize| vec![f32::NAN; bytes / 4];
        let run = |pass, from: &[E], bias: &[f32], expected: &[f32]| {
            let on = |int16: Option<Int16Products>| {
                let kernel = WinogradConv::new(conv, pass, batch, input, int16, &cpu).unwrap();
                let mut got = unset(expected.len());
                let relu = !bias.is_empty();
                kernel.run(from, &weights, bias, relu, &mut got, &mut scratch(kernel.scratch_bytes()));
                let quantisation = if int16.is_some() { INT16_TOLERANCE } else { 0.0 };
                assert_close(
                    &got,
                    expected,
                    TOLERANCE + rounding + quantisation,
                    &format!("{context} {pass:?} {int16:?}"),
                );
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
        let gradient = WinogradGradient::new(conv, batch, input, &cpu).unwrap();
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
    for (conv, batch, input) in [
        (Conv2d::new(16, 16, 3, 1, 1), 1, [4, 4]),
        (Conv2d::new(16, 32, 3, 1, 1), 3, [7, 9]),
        (Conv2d::new(48, 16, 3, 1, 0), 2, [13, 6]),
        (Conv2d::new(32, 48, 3, 1, 2), 2, [6, 11]),
        (Conv2d { padding_before: [1, 0], padding_after: [0, 2], ..Conv2d::new(16, 16, 3, 1, 1) }, 2, [9, 8]),
        // More tiles than a block, and fewer rows of them than threads.
        (Conv2d::new(16, 16, 3, 1, 1), 1, [8, 900]),
        (Conv2d::new(32, 16, 3, 1, 1), 9, [20, 20]),
        // Channels that do not fill their last register.
        (Conv2d::new(24, 40, 3, 1, 1), 2, [7, 9]),
        (Conv2d::new(16, 24, 3, 1, 1), 1, [9, 30]),
        (Conv2d::new(72, 24, 5, 1, 2), 1, [6, 6]),
        // 5x5.
        (Conv2d::new(16, 16, 5, 1, 2), 1, [4, 4]),
        (Conv2d::new(16, 32, 5, 1, 2), 3, [7, 9]),
        (Conv2d { padding_before: [1, 0], padding_after: [0, 4], ..Conv2d::new(48, 16, 5, 1, 0) }, 2, [9, 8]),
        (Conv2d::new(16, 16, 5, 1, 2), 1, [8, 500]),
    ] {
        check::<f32>(&conv, batch, input, 0.0);
        check::<Bf16>(&conv, batch, input, 2e-3);
    }
}

/// Enough weights to be prefetched; channels that do not fill a chunk.
#[test]
fn prefetched_weights_match_the_definition() {
    let conv = Conv2d::new(360, 352, 3, 1, 1);
    let cpu = CpuContext { team: ThreadTeam::single(), level: IsaLevel::detect([true, true]) };
    let x: Vec<Bf16> = elements(&numbers(36 * conv.in_channels, 1));
    let weights: Vec<Bf16> = elements(&numbers(conv.weight_shape().iter().product(), 2));
    let run = |int16: Option<Int16Products>| {
        let kernel = WinogradConv::new(&conv, Pass::Forward, 1, [6, 6], int16, &cpu).unwrap();
        let mut y = vec![Bf16::store(f32::NAN); 36 * conv.out_channels];
        kernel.run(&x, &weights, &[], false, &mut y, &mut vec![f32::NAN; kernel.scratch_bytes() / 4]);
        y
    };
    let expected: Vec<f32> = run(None).iter().map(|y| y.load()).collect();
    let one_by_one = run(Some(Int16Products::Portable));
    assert_close(&one_by_one, &expected, TOLERANCE + 2e-3 + INT16_TOLERANCE, "int16");
    if let Some(int16) = Int16Products::detect(cpu.level) {
        assert!(run(Some(int16)) == one_by_one, "not bitwise equal");
    }
}

/// Patches of zeros, of tiny numbers, and with NaN, which affects only its tile.
#[test]
fn patches_of_every_magnitude_are_scaled() {
    let conv = Conv2d::new(16, 16, 3, 1, 1);
    let weights: Vec<Bf16> = elements(&vec![1.0; conv.weight_shape().iter().product()]);
    let [height, width] = [12, 12];
    let cpu = CpuContext { team: ThreadTeam::single(), level: IsaLevel::detect([true, true]) };
    let pixel = |at: usize| at / 16;
    for (value, expected) in [(0.0, 0.0), (1e-36, 0.0), (1e-30, 1e-30), (-1e37, -1e37), (f32::NAN, f32::NAN)]
    {
        let x: Vec<Bf16> =
            (0..height * width * 16).map(|at| Bf16::store(if at == 0 { value } else { 0.0 })).collect();
        let int16 = Int16Products::detect(cpu.level).unwrap_or(Int16Products::Portable);
        let kernel = WinogradConv::new(&conv, Pass::Forward, 1, [height, width], Some(int16), &cpu).unwrap();
        let mut y = vec![Bf16::store(f32::NAN); x.len()];
        kernel.run(&x, &weights, &[], false, &mut y, &mut vec![f32::NAN; kernel.scratch_bytes() / 4]);
        for (at, y) in y.iter().enumerate() {
            let (row, column) = (pixel(at) / width, pixel(at) % width);
            let y = y.load();
            match (row.max(column), expected.is_nan()) {
                // Within its tile, all outputs of a NaN are NaN.
                (0..=1, true) => assert!(y.is_nan(), "{row} {column}: {y}"),
                (0..=1, false) => {
                    assert!((y - expected).abs() <= 1e-2 * expected.abs(), "{row} {column}: {y}");
                }
                (2..=3, true) => {}
                (2..=3, false) => assert!(y.abs() <= 1e-2 * expected.abs(), "{row} {column}: {y}"),
                _ => assert_eq!(y, 0.0, "{row} {column}"),
            }
        }
    }
}

#[test]
fn sums_shared_by_all_threads_match_the_definition() {
    check::<f32>(&Conv2d::new(160, 112, 3, 1, 1), 4, [20, 28], 0.0);
}

/// Many channels and few tiles; also channels that do not fill a panel or a register.
#[test]
fn a_single_block_of_tiles_matches_the_definition() {
    check::<f32>(&Conv2d::new(160, 192, 3, 1, 1), 2, [4, 8], 0.0);
    check::<Bf16>(&Conv2d::new(136, 144, 3, 1, 1), 1, [7, 7], 2e-3);
    check::<f32>(&Conv2d::new(144, 136, 5, 1, 2), 1, [6, 4], 0.0);
}

#[test]
fn refuses_unsupported_convolutions() {
    let cpu = CpuContext { team: ThreadTeam::single(), level: IsaLevel::detect([true, true]) };
    let dense = Conv2d::new(32, 32, 3, 1, 1);
    for (conv, input) in [
        (Conv2d { groups: 2, ..dense }, [8, 8]),
        (Conv2d { stride: [1, 2], ..dense }, [8, 8]),
        (Conv2d { dilation: [2, 1], ..dense }, [8, 8]),
        (Conv2d { kernel: [3, 5], ..dense }, [8, 8]),
        (Conv2d { padding_after: [1, 3], ..dense }, [8, 8]),
        (Conv2d::new(20, 32, 3, 1, 1), [8, 8]),
        (Conv2d::new(32, 8, 3, 1, 1), [8, 8]),
        // Most of the computed tile would be outside of the map.
        (dense, [2, 2]),
        (dense, [1, 9]),
    ] {
        for pass in [Pass::Forward, Pass::BackwardData] {
            assert!(WinogradConv::new(&conv, pass, 1, input, None, &cpu).is_none(), "{conv:?} {input:?}");
        }
        assert!(WinogradGradient::new(&conv, 1, input, &cpu).is_none(), "{conv:?} {input:?}");
    }
}
