//! Batch normalisation with a sum behind it: odd sizes, few channels, one pixel, and gradients with and
//! without a part that is still to be added.

use super::{Case, Class, Fill, Table, extents};
use stratus_engine::Role;
use stratus_engine::ops::{BatchNormAddApply, BatchNormAddReluGradients};
use stratus_graph::ops::BatchNorm2d;

pub(super) const TABLE: Table = Table { tests, benchmarks };

fn tests() -> Vec<Case> {
    let shapes = [
        [2, 8, 28, 28],
        [2, 32, 7, 7],
        [1, 1, 7, 5],
        [3, 3, 4, 9],
        [2, 17, 6, 5],
        [4, 33, 3, 3],
        [5, 3, 1, 1],
    ];
    shapes.into_iter().flat_map(kernels).collect()
}

fn benchmarks() -> Vec<Case> {
    kernels([16, 256, 56, 56])
}

fn kernels(shape: [usize; 4]) -> Vec<Case> {
    let (norm, channels) = (BatchNorm2d::new(shape[1]), [shape[1]]);
    let between = |low, high| Fill::Uniform { low, high };
    let forward = |relu: bool| {
        let kind = if relu { " relu" } else { "" };
        let name = format!("batch_norm_add_apply {}{kind}", extents(&shape));
        Case::new(name, BatchNormAddApply { norm, relu })
            .filled("x", &shape, Class::Compute, between(-1.0, 1.5))
            .parameter("weight", &channels, Class::Master)
            .filled("bias", &channels, Class::Master, between(-0.4, 1.0))
            .filled("mean", &channels, Class::Master, between(-0.2, 0.2))
            .filled("inverse_deviation", &channels, Class::Master, between(0.8, 1.5))
            .input("a", &shape, Class::Compute)
            .output("y", &shape, Class::Compute)
    };
    let gradients = |adds: bool| {
        let kind = if adds { " adding" } else { "" };
        let name = format!("batch_norm_add_relu_gradients {}{kind}", extents(&shape));
        let mut case = Case::new(name, BatchNormAddReluGradients { norm })
            .filled("x", &shape, Class::Compute, between(-1.0, 1.5))
            // Whole numbers: some lie on the floor itself.
            .filled("y", &shape, Class::Compute, Fill::Whole { low: -1, high: 2 })
            .filled("mean", &channels, Class::Master, between(-0.2, 0.2))
            .filled("inverse_deviation", &channels, Class::Master, between(0.8, 1.5));
        if adds {
            case = case.input("part", &shape, Class::Compute);
        }
        case.update("dy", &shape, Role::Buffer, between(-1.0, 1.0), Class::Compute)
            .output("dweight", &channels, Class::Master)
            .output("dbias", &channels, Class::Master)
            .output("sums", &[2, shape[1]], Class::Sums)
    };
    vec![forward(false), forward(true), gradients(false), gradients(true)]
}
