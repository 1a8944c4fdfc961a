//! The native f32 convolutions on an emulated GPU: every tile by name, split sums, and the error of sums.

use crate::common::{by_name, compare_by_name, emulated, kernels};
use stratus_conformance::{Case, cases};
use stratus_cuda::Cuda;
use stratus_engine::{Kernel, Precision};
use stratus_graph::ops::Conv2d;
use stratus_testing::sample::sample;

const TILES: [&str; 5] = ["128x128", "128x64", "64x64", "128x32", "32x128"];

/// Runs a case by every tile, in `make test` by two of the five, starting with `offset`, on a number of
/// multiprocessors. Returns whether split sums were added.
fn check(case: &Case, multiprocessors: u32, offset: usize) -> bool {
    let (orders, expected) = (emulated(multiprocessors), case.expected(Precision::F32).unwrap());
    for tile in sample(TILES, 3, offset) {
        let name = format!("stratus:f32:{tile}");
        let compared = compare_by_name(case, Precision::F32, &name, &expected, &orders);
        compared.unwrap_or_else(|error| panic!("{tile} `{}`: {error}", case.name));
    }
    orders[0].launched().contains(&("conv_f32", "add_exactly".to_owned()))
}

/// Plans take the fastest tile by estimate; here each is requested by name.
#[test]
fn every_tile_matches_the_reference() {
    let dense = |case: &Case| match &case.kernel {
        Kernel::Conv2dForward(kernel) => kernel.conv.groups == 1,
        Kernel::Conv2dBackwardData(kernel) => kernel.conv.groups == 1,
        Kernel::Conv2dBackwardWeights(kernel) => kernel.conv.groups == 1,
        _ => false,
    };
    for (position, case) in cases::for_precision(Precision::F32).iter().filter(|case| dense(case)).enumerate()
    {
        check(case, 3, position);
    }
}

/// Several tiles along both sides, the last of them partly filled, and depths of several stages.
#[test]
fn products_of_several_tiles_match_the_reference() {
    for conv in [Conv2d::new(136, 140, 3, 1, 1), Conv2d::new(131, 133, 3, 2, 1)] {
        for (position, case) in kernels(conv, 2, [9, 8]).iter().enumerate() {
            check(case, 1, position);
        }
    }
}

/// On many multiprocessors, which few tiles would leave idle without split-K.
#[test]
fn split_products_match_the_reference() {
    let mut split = false;
    for (conv, batch, size) in [
        (Conv2d::new(64, 32, 3, 1, 1), 3, [14, 13]),
        (Conv2d::new(61, 70, 3, 2, 1), 4, [17, 16]),
        (Conv2d { dilation: [2, 3], stride: [2, 3], ..Conv2d::new(64, 68, 3, 1, 2) }, 8, [16, 15]),
        (Conv2d::new(512, 8, 1, 2, 0), 9, [5, 5]),
        (Conv2d::new(24, 160, 3, 2, 1), 4, [9, 10]),
        (Conv2d::new(20, 300, 1, 2, 0), 2, [9, 10]),
    ] {
        for (position, case) in kernels(conv, batch, size).iter().enumerate() {
            split |= check(case, 64, position);
        }
    }
    assert!(split, "no product was split");
}

/// The error of sums of thousands of products, relative to the norm: sequential f32 sums would have an error
/// of 1e-6.
#[test]
fn long_sums_are_accurate() {
    const MAX_ERROR: f64 = 2e-7;
    let forward = kernels(Conv2d::new(512, 512, 3, 1, 1), 1, [5, 5]);
    let weights = kernels(Conv2d::new(16, 32, 3, 1, 1), 4, [32, 32]);
    let cuda = Cuda::emulated_with(1, false).unwrap();
    for (position, case) in [&forward[0], &forward[1], &weights[2]].into_iter().enumerate() {
        let expected = case.expected(Precision::F32).unwrap();
        for tile in sample(TILES, 3, position) {
            let choices = by_name(case, Precision::F32, &format!("stratus:f32:{tile}"), &cuda);
            let got = case.run(&cuda, Precision::F32, choices).unwrap();
            let squares = |values: &mut dyn Iterator<Item = f64>| values.map(|x| x * x).sum::<f64>();
            let norm = squares(&mut expected[0].iter().copied());
            let error = squares(&mut got[0].iter().zip(&expected[0]).map(|(got, expected)| got - expected));
            let error = (error / norm).sqrt();
            println!("{tile} `{}`: {error:.3e}", case.name);
            assert!(error < MAX_ERROR, "{tile} `{}`: {error:.3e}", case.name);
        }
    }
}
