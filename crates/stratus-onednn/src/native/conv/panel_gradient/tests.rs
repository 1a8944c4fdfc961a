//! Tests beyond the case tables: all kinds of chunks and thread groups, other layouts of the gradient,
//! uninitialised scratch.

use super::*;
use crate::library;
use crate::native::conv::direct::tests::{each_product, numbers};
use crate::native::conv::tiles::{Avx512F32, MatrixUnit, TERMS, TILE};
use crate::native::simd::{Bf16, Element, IsaLevel};
use crate::native::threads::ThreadTeam;
use stratus_graph::ops::Conv2d;

/// All bf16 units of this CPU; without any, these tests are skipped with a message.
pub fn units() -> Vec<MatrixUnit> {
    let units: Vec<MatrixUnit> = library::find().iter().flat_map(MatrixUnit::all).collect();
    if units.is_empty() {
        eprintln!("SKIPPED: no bf16");
    }
    units
}

/// The `f32` unit of this CPU.
fn floats() -> Option<Avx512F32> {
    let found = Avx512F32::detect(IsaLevel::detect([true, true]));
    if found.is_none() {
        eprintln!("SKIPPED: no AVX-512");
    }
    found
}

/// Two maps of small integers, and their weight gradient, in a layout.
pub fn maps_and_gradient(
    conv: &Conv2d,
    batch: usize,
    input: [usize; 2],
    layout: &Layout,
) -> ([Vec<f32>; 2], Vec<f32>) {
    let [height, width] = conv.output_size(input).unwrap();
    let x = numbers(batch * input[0] * input[1] * conv.in_channels, 1);
    let dy = numbers(batch * height * width * conv.out_channels, 2);
    let mut plain = vec![0.0; conv.weight_shape().iter().product()];
    each_product(conv, batch, input, |from, weight, to| plain[weight] += x[from] * dy[to]);
    let mut gradient = vec![0.0; layout.elements()];
    layout.for_each(&layout.shape, |at, from| gradient[at] = plain[from]);
    ([x, dy], gradient)
}

/// The maps in another element type.
pub fn rounded<E: Element>(maps: &[Vec<f32>; 2]) -> [Vec<E>; 2] {
    maps.each_ref().map(|map| map.iter().map(|&value| E::store(value)).collect())
}

/// Checks every available unit.
fn check_all(conv: &Conv2d, batch: usize, input: [usize; 2], layout: &Layout) {
    units().into_iter().for_each(|unit| check(unit, conv, batch, input, layout));
    floats().into_iter().for_each(|unit| check(unit, conv, batch, input, layout));
}

fn check<U: PanelArithmetic>(unit: U, conv: &Conv2d, batch: usize, input: [usize; 2], layout: &Layout) {
    let (maps, expected) = maps_and_gradient(conv, batch, input, layout);
    let filters = conv.out_channels;
    let bias: Vec<f32> = (0..filters).map(|o| maps[1].iter().skip(o).step_by(filters).sum()).collect();
    let [x, dy] = rounded(&maps);
    for threads in 1..=4 {
        let cpu = CpuContext { team: ThreadTeam::emulating(threads), level: IsaLevel::detect([true, true]) };
        let gradient =
            PanelGradient::new(ConvProblem { conv, batch, input, weights: layout, unit, cpu: &cpu }).unwrap();
        // Scratch starts as NaN: nothing may depend on its contents.
        let mut scratch = vec![f32::NAN; gradient.scratch_bytes() / 4];
        let (mut dw, mut db) = (vec![f32::NAN; layout.elements()], vec![f32::NAN; filters]);
        gradient.run(&x, &dy, &mut dw, &mut db, &mut scratch);
        assert!(dw == expected, "{conv:?} {input:?} {threads} threads");
        assert_eq!(db, bias, "{conv:?} {input:?} {threads} threads");
        dw.fill(f32::NAN);
        gradient.run(&x, &dy, &mut dw, &mut [], &mut scratch);
        assert!(dw == expected, "{conv:?} {input:?} {threads} threads, without bias");
    }
}

/// All kinds of convolutions, each with a batch and the size of its images.
pub fn cases() -> Vec<(Conv2d, usize, [usize; 2])> {
    vec![
        (Conv2d::new(32, 32, 3, 1, 1), 9, [4, 4]),
        (Conv2d::new(64, 96, 3, 1, 1), 5, [7, 7]),
        (Conv2d::new(16, 16, 1, 1, 0), 1, [1, 1]),
        // One tap: pixels are rearranged in rows of another length, if one fits.
        (Conv2d::new(40, 33, 1, 1, 0), 3, [7, 8]),
        (Conv2d::new(32, 64, 1, 1, 0), 4, [20, 20]),
        (Conv2d::new(33, 16, 1, 1, 0), 3, [7, 7]),
        (Conv2d { padding_after: [0, 1], ..Conv2d::new(16, 32, 1, 1, 0) }, 2, [4, 4]),
        (Conv2d::new(17, 40, 3, 1, 1), 2, [5, 9]),
        (Conv2d::new(48, 33, 3, 2, 1), 3, [8, 8]),
        (Conv2d::new(32, 32, 1, 2, 0), 3, [9, 7]),
        (Conv2d::new(16, 24, 5, 1, 2), 1, [40, 30]),
        (Conv2d::new(20, 16, 7, 3, 3), 2, [23, 22]),
        (Conv2d { dilation: [2, 3], ..Conv2d::new(32, 16, 3, 1, 2) }, 2, [11, 13]),
        (Conv2d { dilation: [3, 1], stride: [2, 1], ..Conv2d::new(16, 32, 3, 1, 1) }, 2, [13, 12]),
        (
            Conv2d {
                kernel: [1, 7],
                padding_before: [0, 3],
                padding_after: [0, 3],
                ..Conv2d::new(32, 64, 3, 1, 0)
            },
            2,
            [17, 17],
        ),
        (
            Conv2d {
                kernel: [4, 2],
                stride: [3, 2],
                padding_before: [3, 0],
                padding_after: [0, 1],
                ..Conv2d::new(16, 16, 3, 1, 0)
            },
            3,
            [10, 9],
        ),
    ]
}

#[test]
fn every_shape_matches_the_definition() {
    for (conv, batch, input) in cases() {
        check_all(&conv, batch, input, &Layout::plain(&conv.weight_shape()));
    }
}

#[test]
fn threads_with_separate_or_shared_sums_match_the_definition() {
    // 9 x 256 x 256 sums are too many for each thread to have its own.
    let conv = Conv2d::new(256, 256, 3, 1, 1);
    check_all(&conv, 2, [3, 3], &Layout::plain(&conv.weight_shape()));
    assert!(conv.weight_shape().iter().product::<usize>() * 4 > PRIVATE_SUMS_BYTES);
}

#[test]
fn the_gradient_has_the_requested_layout() {
    let conv = Conv2d::new(32, 48, 3, 1, 1);
    // oneDNN's `Adcb64a`: filters in blocks of 64, the last one padded.
    let blocked = Layout {
        tag: "Adcb64a".to_owned(),
        shape: vec![48, 32, 3, 3],
        padded: vec![64, 32, 3, 3],
        strides: vec![9 * 32 * 64, 64, 32 * 64, 3 * 32 * 64],
        blocks: vec![(0, 64)],
    };
    check_all(&conv, 3, [6, 6], &blocked);
    check_all(&conv, 3, [6, 6], &Layout::channels_last(&[48, 32, 3, 3]));
}

#[test]
fn refuses_unsupported_convolutions() {
    let refused = |conv: Conv2d, input, level| {
        let cpu = CpuContext { team: ThreadTeam::single(), level };
        let layout = Layout::plain(&conv.weight_shape());
        for unit in units() {
            let problem = ConvProblem { conv: &conv, batch: 1, input, weights: &layout, unit, cpu: &cpu };
            assert!(PanelGradient::new(problem).is_none(), "{conv:?}");
        }
        if let Some(unit) = floats() {
            let problem = ConvProblem { conv: &conv, batch: 1, input, weights: &layout, unit, cpu: &cpu };
            assert!(PanelGradient::new(problem).is_none(), "{conv:?}");
        }
    };
    let [avx512, avx2] = [[true, true], [true, false]].map(IsaLevel::detect);
    refused(Conv2d { groups: 2, ..Conv2d::new(32, 32, 3, 1, 1) }, [8, 8], avx512);
    refused(Conv2d::new(3, 64, 3, 1, 1), [8, 8], avx512);
    refused(Conv2d::new(64, 10, 3, 1, 1), [8, 8], avx512);
    refused(Conv2d::new(32, 32, 5, 1, 0), [4, 4], avx512);
    refused(Conv2d::new(32, 32, 3, 1, 1), [8, 8], avx2);
}

/// Compares both ways of packing, including the one whose unit this CPU lacks.
#[test]
fn both_ways_of_packing_hold_the_same_gradient() {
    let Some(unit) = units().pop() else { return };
    for (conv, batch, input) in cases() {
        let layout = Layout::plain(&conv.weight_shape());
        let (maps, _) = maps_and_gradient(&conv, batch, input, &layout);
        let [_, dy] = rounded(&maps);
        let cpu = CpuContext { team: ThreadTeam::single(), level: IsaLevel::detect([true, true]) };
        let problem = ConvProblem { conv: &conv, batch, input, weights: &layout, unit, cpu: &cpu };
        let gradient = PanelGradient::new(problem).unwrap();
        let filters = 0..gradient.blocks()[0];
        let [bias_floats, dy_floats, _] = gradient.scratch_floats(filters.len());
        for number in 0..gradient.chunks().iter().product() {
            let chunk = gradient.chunk(number);
            let [mut in_rows, mut in_pairs] = [0; 2].map(|_| vec![Bf16(0x7fc0); 2 * dy_floats]);
            let [mut row_sums, mut pair_sums] = [0; 2].map(|_| vec![0.0f32; bias_floats]);
            // SAFETY: a unit exists, and therefore AVX-512.
            unsafe {
                gradient.pack_output_by_filters(&chunk, &filters, &dy, &mut in_rows, Some(&mut row_sums));
                gradient.pack_output_by_terms(&chunk, &filters, &dy, &mut in_pairs, Some(&mut pair_sums));
            }
            let panel = PanelGradient::<MatrixUnit>::output_panel(chunk.terms);
            for half in 0..2 * filters.len() {
                for term in 0..chunk.terms.next_multiple_of(TERMS) {
                    let tile = half * panel + term / TERMS * TILE;
                    for filter in 0..ROWS {
                        let row = in_rows[tile + filter * TERMS + term % TERMS];
                        let pair = in_pairs[tile + term % TERMS / 2 * TERMS + 2 * filter + term % 2];
                        assert_eq!(
                            row, pair,
                            "{conv:?} {input:?}: half {half}, term {term}, filter {filter}"
                        );
                    }
                }
                let [rows, pairs] =
                    [&row_sums, &pair_sums].map(|sums| &sums[half * ROWS * ROWS..][..ROWS * ROWS]);
                for filter in 0..ROWS {
                    let row_sum: f32 = rows[filter * ROWS..][..ROWS].iter().sum();
                    assert_eq!(row_sum, pairs[filter..].iter().step_by(ROWS).sum::<f32>(), "{conv:?}");
                }
            }
        }
    }
}
