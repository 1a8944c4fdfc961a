//! Depthwise convolutions beyond those of the case tables, on an emulated GPU: other kernels, strides and
//! paddings, and maps large enough that a thread has several rows.

use crate::common::kernels;
use stratus_cuda::Cuda;
use stratus_engine::{Choices, Precision};
use stratus_graph::ops::Conv2d;

/// Compares all three passes in all precisions, on this many multiprocessors.
fn check(conv: Conv2d, batch: usize, size: [usize; 2], multiprocessors: usize) {
    let cuda = Cuda::emulated_with(multiprocessors as u32, false).unwrap();
    for case in kernels(conv, batch, size) {
        for precision in [Precision::F32, Precision::Bf16, Precision::F16] {
            let got = case.run(&cuda, precision, Choices::default()).unwrap();
            let expected = case.expected(precision).unwrap();
            case.compare(precision, &expected, &got).unwrap();
        }
    }
    let reached = cuda.launched();
    assert!(reached.contains(&("depthwise", "depthwise".to_owned())), "{reached:?}");
    assert!(
        !reached.iter().any(|(file, kernel)| *file == "conv" && kernel.starts_with("conv_")),
        "{reached:?}"
    );
}

/// A convolution of this many channels, with a square kernel.
fn square(channels: usize, kernel: usize, stride: usize, padding: usize) -> Conv2d {
    Conv2d { groups: channels, ..Conv2d::new(channels, channels, kernel, stride, padding) }
}

#[test]
fn threads_with_several_rows_match_the_reference() {
    check(square(32, 3, 1, 1), 3, [37, 30], 1);
    check(square(32, 3, 2, 1), 3, [51, 46], 1);
    check(square(24, 3, 2, 0), 6, [50, 45], 1);
}

#[test]
fn large_and_small_kernels_match_the_reference() {
    check(square(8, 5, 1, 2), 2, [9, 11], 2);
    check(square(12, 5, 2, 2), 2, [12, 11], 2);
    check(square(6, 7, 1, 3), 1, [10, 9], 2);
    check(square(10, 1, 1, 0), 2, [5, 6], 2);
    check(square(4, 2, 2, 0), 2, [6, 7], 2);
}

#[test]
fn strides_larger_than_the_kernel_and_dilations_match_the_reference() {
    check(square(8, 2, 3, 0), 2, [11, 10], 2);
    check(square(8, 3, 4, 1), 2, [17, 14], 2);
    check(Conv2d { stride: [3, 1], ..square(4, 3, 1, 1) }, 2, [11, 10], 2);
    check(Conv2d { stride: [1, 3], dilation: [2, 2], ..square(4, 3, 1, 2) }, 2, [9, 13], 2);
    check(Conv2d { stride: [2, 2], dilation: [3, 2], ..square(4, 3, 1, 3) }, 2, [12, 13], 2);
}

#[test]
fn uneven_padding_matches_the_reference() {
    check(Conv2d { padding_before: [0, 0], padding_after: [1, 1], ..square(8, 3, 2, 0) }, 2, [8, 10], 2);
    check(Conv2d { padding_before: [4, 5], padding_after: [3, 0], ..square(8, 3, 1, 0) }, 2, [5, 6], 2);
    let long = Conv2d { kernel: [1, 7], padding_before: [0, 3], padding_after: [0, 2], ..square(8, 1, 1, 0) };
    check(long, 2, [6, 9], 2);
    check(Conv2d { kernel: [4, 3], padding_before: [5, 1], padding_after: [2, 4], ..long }, 1, [6, 9], 2);
}

#[test]
fn many_channels_match_the_reference() {
    check(square(160, 3, 1, 1), 2, [7, 7], 3);
    check(square(67, 3, 2, 1), 2, [7, 7], 3);
    check(square(1, 3, 1, 1), 3, [9, 9], 3);
}
