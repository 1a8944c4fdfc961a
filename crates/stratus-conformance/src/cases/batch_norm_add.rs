//! Batch normalisation fused with a sum: odd sizes, few channels, one pixel, and gradients with and without a
//! term to add.

use super::{Case, CaseTable, DTypeClass, Fill, extents};
use stratus_engine::Role;
use stratus_engine::ops::{BatchNormAddApply, BatchNormAddReluGradients};
use stratus_graph::ops::BatchNorm2d;

pub(super) const TABLE: CaseTable = CaseTable { tests, benchmarks };

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
            .filled("x", &shape, DTypeClass::Compute, between(-1.0, 1.5))
            .parameter("weight", &channels, DTypeClass::Master)
            .filled("bias", &channels, DTypeClass::Master, between(-0.4, 1.0))
            .filled("mean", &channels, DTypeClass::Master, between(-0.2, 0.2))
            .filled("inverse_deviation", &channels, DTypeClass::Master, between(0.8, 1.5))
            .input("a", &shape, DTypeClass::Compute)
            .output("y", &shape, DTypeClass::Compute)
    };
    let gradients = |adds: bool| {
        let kind = if adds { " adding" } else { "" };
        let name = format!("batch_norm_add_relu_gradients {}{kind}", extents(&shape));
        let mut case = Case::new(name, BatchNormAddReluGradients { norm })
            .filled("x", &shape, DTypeClass::Compute, between(-1.0, 1.5))
            // Integers, so that some are exactly 0.
            .filled("y", &shape, DTypeClass::Compute, Fill::Integers { low: -1, high: 2 })
            .filled("mean", &channels, DTypeClass::Master, between(-0.2, 0.2))
            .filled("inverse_deviation", &channels, DTypeClass::Master, between(0.8, 1.5));
        if adds {
            case = case.input("part", &shape, DTypeClass::Compute);
        }
        case.update("dy", &shape, Role::Buffer, between(-1.0, 1.0), DTypeClass::Compute)
            .output("dweight", &channels, DTypeClass::Master)
            .output("dbias", &channels, DTypeClass::Master)
            .output("sums", &[2, shape[1]], DTypeClass::Sums)
    };
    vec![forward(false), forward(true), gradients(false), gradients(true)]
}
