//! Normalisation of pixels: every number of channels, images that do and do not fill vectors.

use super::{Case, CaseTable, DTypeClass, Fill, extents};
use stratus_engine::ops::NormalisePixels;

pub(super) const TABLE: CaseTable = CaseTable { tests, benchmarks };

/// Torchvision's values for ImageNet's three channels, and another.
const SCALE_SHIFT: [[f32; 2]; 4] = [
    [0.017_124_753, -2.117_904],
    [0.017_507_004, -2.035_714_4],
    [0.017_429_193, -1.804_444_4],
    [0.003_921_569, 0.0],
];

fn tests() -> Vec<Case> {
    let shapes: [&[usize]; 12] = [
        &[2, 1, 28, 28],
        &[1, 1, 5, 7],
        &[1, 1, 1, 1],
        &[3, 2, 4, 4],
        &[1, 2, 3, 3],
        &[2, 3, 16, 16],
        &[16, 3, 5, 7],
        &[3, 3, 5, 7],
        &[1, 3, 1, 1],
        &[2, 4, 4, 4],
        &[1, 4, 3, 5],
        &[5, 3, 1, 16],
    ];
    shapes.iter().map(|shape| kernel(shape)).collect()
}

fn benchmarks() -> Vec<Case> {
    vec![kernel(&[64, 3, 224, 224]), kernel(&[64, 1, 28, 28])]
}

fn kernel(shape: &[usize]) -> Case {
    Case::new(format!("normalise_pixels {}", extents(shape)), NormalisePixels { scale_shift: SCALE_SHIFT })
        .filled("images", shape, DTypeClass::Pixel, Fill::Integers { low: 0, high: 255 })
        .output("y", shape, DTypeClass::Compute)
}
