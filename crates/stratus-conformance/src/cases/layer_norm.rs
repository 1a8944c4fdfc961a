//! Layer normalisation over channels: one channel, which has no variance; channels that do not fill a vector;
//! more than a warp has lanes; one pixel; and pixels far from zero, whose variance must not be computed as a
//! difference of squares.

use super::{Case, CaseTable, DTypeClass, Fill, extents};
use stratus_engine::ops::{LayerNormBackward, LayerNormForward, LayerNormGradients};
use stratus_graph::ops::LayerNorm2d;

pub(super) const TABLE: CaseTable = CaseTable { tests, benchmarks };

const UNIFORM: Fill = Fill::Uniform { low: -1.0, high: 1.5 };

fn tests() -> Vec<Case> {
    let shapes = [
        [2, 16, 5, 7],
        [1, 1, 3, 3],
        [3, 17, 4, 5],
        [2, 5, 1, 1],
        [1, 96, 6, 3],
        [2, 130, 2, 2],
        [1, 520, 1, 3],
        [5, 32, 13, 11],
    ];
    let mut cases: Vec<Case> = shapes.iter().flat_map(|shape| kernels(shape, 1e-5, UNIFORM)).collect();
    cases.extend(kernels(&[2, 24, 4, 3], 0.5, UNIFORM));
    cases.extend(kernels(&[2, 24, 4, 3], 1e-6, Fill::Uniform { low: 10.0, high: 12.0 }));
    cases
}

fn benchmarks() -> Vec<Case> {
    // ConvNeXt-Tiny's first and third stages.
    [[32, 96, 56, 56], [32, 384, 14, 14]].iter().flat_map(|shape| kernels(shape, 1e-6, UNIFORM)).collect()
}

fn kernels(shape: &[usize; 4], epsilon: f32, fill: Fill) -> [Case; 3] {
    let channels = [shape[1]];
    let norm = LayerNorm2d { channels: shape[1], epsilon };
    let far = if fill == UNIFORM { "" } else { " far from zero" };
    let name = |kernel: &str| format!("{kernel} {} epsilon {epsilon}{far}", extents(shape));
    let forward = Case::new(name("layer_norm"), LayerNormForward { norm })
        .filled("x", shape, DTypeClass::Compute, fill)
        .parameter("weight", &channels, DTypeClass::Master)
        .parameter("bias", &channels, DTypeClass::Master)
        .output("y", shape, DTypeClass::Compute);
    let backward = Case::new(name("layer_norm_backward"), LayerNormBackward { norm })
        .filled("x", shape, DTypeClass::Compute, fill)
        .input("dy", shape, DTypeClass::Compute)
        .parameter("weight", &channels, DTypeClass::Master)
        .output("dx", shape, DTypeClass::Compute);
    let gradients = Case::new(name("layer_norm_gradients"), LayerNormGradients { norm })
        .filled("x", shape, DTypeClass::Compute, fill)
        .input("dy", shape, DTypeClass::Compute)
        .output("dweight", &channels, DTypeClass::Master)
        .output("dbias", &channels, DTypeClass::Master);
    // With one channel the output is only the bias.
    let forward = if shape[1] == 1 { forward.without_gradients() } else { forward };
    [forward, backward, gradients]
}
