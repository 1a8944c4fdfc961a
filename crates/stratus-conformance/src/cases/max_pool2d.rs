//! Max pooling: windows that overlap, leave gaps or exceed the border.

use super::{Case, CaseTable, DTypeClass, Fill, extents};
use stratus_engine::ops::{MaxPoolBackward, MaxPoolForward};
use stratus_graph::ops::MaxPool2d;

pub(super) const TABLE: CaseTable = CaseTable { tests, benchmarks };

fn tests() -> Vec<Case> {
    let uniform = Fill::Uniform { low: -1.0, high: 1.0 };
    let pools = [
        MaxPool2d::new(2, 2, 0),
        MaxPool2d::new(3, 2, 1),
        MaxPool2d::new(3, 1, 1),
        MaxPool2d::new(2, 3, 1),
        MaxPool2d::new(1, 1, 0),
        MaxPool2d { kernel: [2, 4], stride: [1, 3], padding: [1, 2], ceil_mode: false },
        MaxPool2d { ceil_mode: true, ..MaxPool2d::new(3, 2, 0) },
        MaxPool2d { kernel: [2, 2], stride: [3, 3], padding: [1, 1], ceil_mode: true },
        MaxPool2d::new(15, 4, 7),
    ];
    let shapes = [
        [2, 8, 12, 12],
        [1, 1, 5, 7],
        [3, 17, 6, 4],
        [2, 3, 1, 1],
        [1, 33, 9, 3],
        [2, 32, 5, 6],
        [1, 48, 7, 4],
    ];
    let mut cases = Vec::new();
    for pool in pools {
        cases.extend(shapes.iter().flat_map(|&shape| kernels(pool, shape, uniform, false)));
    }
    // Few distinct values: the first of several maxima counts.
    cases.extend(kernels(MaxPool2d::new(3, 2, 1), [2, 4, 9, 9], Fill::Integers { low: -1, high: 1 }, false));
    // Windows of zeros, as after ReLU, and of negative values.
    for pool in [pools[0], pools[1], pools[2], pools[6], pools[8]] {
        for shape in shapes {
            for fill in [Fill::Integers { low: 0, high: 1 }, Fill::Uniform { low: -1.0, high: 0.1 }] {
                cases.extend(kernels(pool, shape, fill, true));
            }
        }
    }
    cases
}

fn benchmarks() -> Vec<Case> {
    let uniform = Fill::Uniform { low: -1.0, high: 1.0 };
    [(MaxPool2d::new(2, 2, 0), [64, 8, 28, 28]), (MaxPool2d::new(3, 2, 1), [16, 64, 112, 112])]
        .into_iter()
        .flat_map(|(pool, shape)| kernels(pool, shape, uniform, false))
        .collect()
}

/// Forward with and without index, and backward, if the window fits; with `mask_relu` only forward with index
/// and backward.
fn kernels(pool: MaxPool2d, shape: [usize; 4], fill: Fill, mask_relu: bool) -> Vec<Case> {
    let size = [shape[2], shape[3]];
    let Ok([height, width]) = pool.output_size(size) else { return Vec::new() };
    let y = [shape[0], shape[1], height, width];
    let name = |kernel: &str| {
        let ceil = if pool.ceil_mode { " ceil" } else { "" };
        let ties = if matches!(fill, Fill::Integers { .. }) { " ties" } else { "" };
        let cut = if mask_relu { " cut" } else { "" };
        format!(
            "{kernel} {} window {:?} stride {:?} padding {:?}{ceil}{ties}{cut}",
            extents(&shape),
            pool.kernel,
            pool.stride,
            pool.padding
        )
    };
    let forward = |kernel| {
        Case::new(name(kernel), MaxPoolForward { pool, mask_relu })
            .filled("x", &shape, DTypeClass::Compute, fill)
            .output("y", &y, DTypeClass::Compute)
    };
    let indices = Fill::PoolIndices { pool, size, mask_relu };
    let backward = Case::new(name("max_pool_backward"), MaxPoolBackward { pool })
        .input("dy", &y, DTypeClass::Compute)
        .filled("index", &y, DTypeClass::Index, indices)
        .output("dx", &shape, DTypeClass::Compute);
    let indexed = forward("max_pool_indexed").output("index", &y, DTypeClass::Index);
    if mask_relu { vec![indexed, backward] } else { vec![forward("max_pool"), indexed, backward] }
}
