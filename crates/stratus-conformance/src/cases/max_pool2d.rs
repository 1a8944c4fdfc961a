//! Max-pooling: windows that overlap, leave gaps, hang over the border.

use super::{Case, Class, Fill, Table, extents};
use stratus_engine::ops::{MaxPoolBackward, MaxPoolForward};
use stratus_graph::ops::MaxPool2d;

pub(super) const TABLE: Table = Table { tests, benchmarks };

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
    // Few different numbers: the first of several winners counts.
    cases.extend(kernels(MaxPool2d::new(3, 2, 1), [2, 4, 9, 9], Fill::Whole { low: -1, high: 1 }, false));
    // Windows of zeros, as behind a rectifier, and of less.
    for pool in [pools[0], pools[1], pools[2], pools[6], pools[8]] {
        for shape in shapes {
            for fill in [Fill::Whole { low: 0, high: 1 }, Fill::Uniform { low: -1.0, high: 0.1 }] {
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

/// Forward with and without index, and backward, where the window fits; with index and backward alone where
/// winners are `cut` off.
fn kernels(pool: MaxPool2d, shape: [usize; 4], fill: Fill, cut: bool) -> Vec<Case> {
    let size = [shape[2], shape[3]];
    let Ok([height, width]) = pool.output_size(size) else { return Vec::new() };
    let y = [shape[0], shape[1], height, width];
    let name = |kernel: &str| {
        let ceil = if pool.ceil_mode { " ceil" } else { "" };
        let whole = if matches!(fill, Fill::Whole { .. }) { " ties" } else { "" };
        let cut = if cut { " cut" } else { "" };
        format!(
            "{kernel} {} window {:?} stride {:?} padding {:?}{ceil}{whole}{cut}",
            extents(&shape),
            pool.kernel,
            pool.stride,
            pool.padding
        )
    };
    let forward = |kernel| {
        Case::new(name(kernel), MaxPoolForward { pool, cut })
            .filled("x", &shape, Class::Compute, fill)
            .output("y", &y, Class::Compute)
    };
    let indices = Fill::Window { pool, size, cut };
    let backward = Case::new(name("max_pool_backward"), MaxPoolBackward { pool })
        .input("dy", &y, Class::Compute)
        .filled("index", &y, Class::Index, indices)
        .output("dx", &shape, Class::Compute);
    let indexed = forward("max_pool_indexed").output("index", &y, Class::Index);
    if cut { vec![indexed, backward] } else { vec![forward("max_pool"), indexed, backward] }
}
