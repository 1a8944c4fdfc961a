//! Average pooling: windows that overlap, leave gaps or exceed the border; bins that share pixels, and more
//! bins than pixels.

use super::{Case, CaseTable, DTypeClass, extents};
use stratus_engine::ops::{AvgPoolBackward, AvgPoolForward, AvgPooling};
use stratus_graph::ops::{AdaptiveAvgPool2d, AvgPool2d};

pub(super) const TABLE: CaseTable = CaseTable { tests, benchmarks };

fn bins(vertical: usize, horizontal: usize) -> AvgPooling {
    AvgPooling::Bins(AdaptiveAvgPool2d { output: [vertical, horizontal] })
}

fn windows(kernel: usize, stride: usize, padding: usize) -> AvgPooling {
    AvgPooling::Windows(AvgPool2d::new(kernel, stride, padding))
}

fn tests() -> Vec<Case> {
    let uncounted = |pool| AvgPooling::Windows(AvgPool2d { count_include_pad: false, ..pool });
    let after = |after, pool| AvgPooling::Windows(AvgPool2d { padding_after: Some(after), ..pool });
    let all = [
        windows(2, 2, 0),
        windows(3, 1, 1),
        windows(3, 2, 1),
        windows(5, 3, 0),
        windows(1, 1, 0),
        windows(2, 3, 1),
        uncounted(AvgPool2d::new(3, 2, 1)),
        uncounted(AvgPool2d { kernel: [2, 4], stride: [1, 3], padding: [1, 2], ..AvgPool2d::new(1, 1, 0) }),
        after([0, 1], AvgPool2d::new(2, 1, 0)),
        after([1, 1], AvgPool2d { count_include_pad: false, ..AvgPool2d::new(2, 2, 0) }),
        after([0, 2], AvgPool2d { count_include_pad: false, ..AvgPool2d::new(3, 2, 1) }),
        bins(1, 1),
        bins(2, 3),
        bins(6, 6),
    ];
    let shapes = [
        [2, 8, 12, 12],
        [1, 1, 5, 7],
        [3, 17, 6, 4],
        [2, 5, 1, 1],
        [1, 33, 9, 3],
        // Whole blocks of 16 channels, and incomplete ones.
        [1, 32, 4, 3],
        [2, 83, 7, 7],
    ];
    all.into_iter()
        .flat_map(|pooling| shapes.iter().flat_map(move |&shape| kernels(pooling, shape)))
        .collect()
}

fn benchmarks() -> Vec<Case> {
    [
        // The last layers of ResNet and GoogLeNet, AlexNet's bins, GoogLeNet's auxiliary classifiers,
        // Inception's branches.
        (bins(1, 1), [64, 2048, 7, 7]),
        (bins(1, 1), [64, 1024, 7, 7]),
        (bins(6, 6), [64, 256, 6, 6]),
        (windows(5, 3, 0), [64, 512, 14, 14]),
        (windows(3, 1, 1), [16, 192, 35, 35]),
    ]
    .into_iter()
    .flat_map(|(pooling, shape)| kernels(pooling, shape))
    .collect()
}

/// Forward and backward, if the window fits.
fn kernels(pooling: AvgPooling, shape: [usize; 4]) -> Vec<Case> {
    let Ok([height, width]) = pooling.output_size([shape[2], shape[3]]) else { return Vec::new() };
    let y = [shape[0], shape[1], height, width];
    let attributes = match pooling {
        AvgPooling::Windows(pool) => {
            let uncounted = if pool.count_include_pad { "" } else { " not counted" };
            let AvgPool2d { kernel, stride, padding, .. } = pool;
            let after = pool.padding_after.map_or(String::new(), |after| format!(" after {after:?}"));
            format!("window {kernel:?} stride {stride:?} padding {padding:?}{after}{uncounted}")
        }
        AvgPooling::Bins(pool) => format!("to {}", extents(&pool.output)),
    };
    let name = |kernel: &str| format!("{kernel} {} {attributes}", extents(&shape));
    let forward = Case::new(name("avg_pool"), AvgPoolForward { pooling })
        .input("x", &shape, DTypeClass::Compute)
        .output("y", &y, DTypeClass::Compute);
    let backward = Case::new(name("avg_pool_backward"), AvgPoolBackward { pooling })
        .input("dy", &y, DTypeClass::Compute)
        .output("dx", &shape, DTypeClass::Compute);
    vec![forward, backward]
}
