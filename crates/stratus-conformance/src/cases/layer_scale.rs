//! Trained channel factors: odd channels, one pixel, more pixels than are summed at a time.

use super::{Case, CaseTable, DTypeClass, extents};
use stratus_engine::ops::{LayerScale, LayerScaleGradient};

pub(super) const TABLE: CaseTable = CaseTable { tests, benchmarks };

fn tests() -> Vec<Case> {
    let shapes = [
        [2, 8, 12, 12],
        [1, 2, 1, 1],
        [3, 17, 5, 7],
        [2, 33, 4, 4],
        [1, 1, 3, 2],
        [2, 272, 3, 3],
        [5, 96, 19, 17],
    ];
    shapes.iter().flat_map(kernels).collect()
}

fn benchmarks() -> Vec<Case> {
    // ConvNeXt-Tiny's first stage.
    kernels(&[32, 96, 56, 56]).to_vec()
}

fn kernels(shape: &[usize; 4]) -> [Case; 2] {
    let factors = [shape[1], 1, 1];
    let forward = Case::new(format!("layer_scale {}", extents(shape)), LayerScale)
        .input("x", shape, DTypeClass::Compute)
        .parameter("factors", &factors, DTypeClass::Master)
        .output("y", shape, DTypeClass::Compute);
    let gradient = Case::new(format!("layer_scale_gradient {}", extents(shape)), LayerScaleGradient)
        .input("x", shape, DTypeClass::Compute)
        .input("dy", shape, DTypeClass::Compute)
        .output("gradient", &factors, DTypeClass::Master);
    [forward, gradient]
}
