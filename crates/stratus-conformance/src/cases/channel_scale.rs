//! Per-sample channel factors: odd channels, one pixel, and maps of more pixels than a block sums.

use super::{Case, CaseTable, DTypeClass, extents};
use stratus_engine::ops::{ChannelScale, ChannelScaleGradient, ChannelScaleMeanBackward};

pub(super) const TABLE: CaseTable = CaseTable { tests, benchmarks };

fn tests() -> Vec<Case> {
    let shapes = [
        [2, 8, 12, 12],
        [1, 2, 1, 1],
        [3, 17, 5, 7],
        [2, 33, 4, 4],
        [5, 40, 1, 1],
        [1, 1, 3, 2],
        [2, 272, 3, 3],
        [7, 16, 1, 9],
    ];
    shapes.iter().flat_map(kernels).collect()
}

fn benchmarks() -> Vec<Case> {
    // MobileNetV3's first and last blocks.
    [[32, 16, 56, 56], [32, 576, 7, 7]].iter().flat_map(kernels).collect()
}

fn kernels(shape: &[usize; 4]) -> [Case; 3] {
    let [n, c, ..] = *shape;
    let each = [n, c, 1, 1];
    let forward = Case::new(format!("channel_scale {}", extents(shape)), ChannelScale)
        .input("x", shape, DTypeClass::Compute)
        .input("factors", &each, DTypeClass::Compute)
        .output("y", shape, DTypeClass::Compute);
    let gradient = Case::new(format!("channel_scale_gradient {}", extents(shape)), ChannelScaleGradient)
        .input("x", shape, DTypeClass::Compute)
        .input("dy", shape, DTypeClass::Compute)
        .output("gradient", &each, DTypeClass::Compute);
    let mean = Case::new(format!("channel_scale_mean_backward {}", extents(shape)), ChannelScaleMeanBackward)
        .input("dy", shape, DTypeClass::Compute)
        .input("factors", &each, DTypeClass::Compute)
        .input("dmean", &each, DTypeClass::Compute)
        .output("dx", shape, DTypeClass::Compute);
    [forward, gradient, mean]
}
