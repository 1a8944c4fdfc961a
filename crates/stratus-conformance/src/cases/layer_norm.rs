//! Layer normalisation over channels: one channel, which has no variance, channels that fill no vector, more
//! than a warp has lanes, one pixel, and pixels far from zero, whose variance must not be a difference of
//! squares.

use super::{Case, Class, Fill, Table, extents};
use stratus_engine::ops::{LayerNormBackward, LayerNormForward, LayerNormGradients};
use stratus_graph::ops::LayerNorm2d;

pub(super) const TABLE: Table = Table { tests, benchmarks };

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
    let name = |what: &str| format!("{what} {} epsilon {epsilon}{far}", extents(shape));
    let forward = Case::new(name("layer_norm"), LayerNormForward { norm })
        .filled("x", shape, Class::Compute, fill)
        .parameter("weight", &channels, Class::Master)
        .parameter("bias", &channels, Class::Master)
        .output("y", shape, Class::Compute);
    let backward = Case::new(name("layer_norm_backward"), LayerNormBackward { norm })
        .filled("x", shape, Class::Compute, fill)
        .input("dy", shape, Class::Compute)
        .parameter("weight", &channels, Class::Master)
        .output("dx", shape, Class::Compute);
    let gradients = Case::new(name("layer_norm_gradients"), LayerNormGradients { norm })
        .filled("x", shape, Class::Compute, fill)
        .input("dy", shape, Class::Compute)
        .output("dweight", &channels, Class::Master)
        .output("dbias", &channels, Class::Master);
    [forward, backward, gradients]
}
