//! Power-average pooling: windows that overlap or leave gaps, and windows of zeros, which pass no gradient.

use super::{Case, CaseTable, DTypeClass, Fill, extents};
use stratus_engine::ops::{LpPoolBackward, LpPoolForward};
use stratus_graph::ops::LpPool2d;

pub(super) const TABLE: CaseTable = CaseTable { tests, benchmarks };

const UNIFORM: Fill = Fill::Uniform { low: -1.0, high: 1.0 };

fn tests() -> Vec<Case> {
    let pool = |kernel, stride| LpPool2d { kernel, stride };
    let pools = [
        pool([2, 2], [2, 2]),
        pool([3, 3], [1, 1]),
        pool([3, 2], [2, 1]),
        pool([1, 1], [1, 1]),
        pool([2, 4], [3, 5]),
    ];
    let shapes = [[2, 8, 12, 12], [1, 1, 5, 7], [3, 17, 6, 4], [1, 33, 9, 4], [1, 32, 4, 4], [1, 300, 3, 4]];
    let mut cases: Vec<Case> = pools
        .into_iter()
        .flat_map(|pool| shapes.iter().flat_map(move |&shape| kernels(pool, shape, UNIFORM)))
        .collect();
    cases.extend(kernels(pools[0], [2, 16, 8, 8], Fill::Integers { low: 0, high: 1 }));
    cases
}

fn benchmarks() -> Vec<Case> {
    kernels(LpPool2d { kernel: [3, 3], stride: [2, 2] }, [16, 64, 112, 112], UNIFORM)
}

/// Forward and backward, if the window fits.
fn kernels(pool: LpPool2d, shape: [usize; 4], fill: Fill) -> Vec<Case> {
    let Ok([height, width]) = pool.output_size([shape[2], shape[3]]) else { return Vec::new() };
    let pooled = [shape[0], shape[1], height, width];
    let zeros = if fill == UNIFORM { "" } else { " with zeros" };
    let name = |kernel: &str| {
        let LpPool2d { kernel: window, stride } = pool;
        format!("{kernel} {} window {window:?} stride {stride:?}{zeros}", extents(&shape))
    };
    let forward = Case::new(name("lp_pool"), LpPoolForward { pool })
        .filled("x", &shape, DTypeClass::Compute, fill)
        .output("y", &pooled, DTypeClass::Compute);
    // The backward kernel only divides by the norms.
    let norms = if fill == UNIFORM { Fill::Uniform { low: 0.5, high: 2.0 } } else { fill };
    let backward = Case::new(name("lp_pool_backward"), LpPoolBackward { pool })
        .filled("x", &shape, DTypeClass::Compute, fill)
        .filled("y", &pooled, DTypeClass::Compute, norms)
        .input("dy", &pooled, DTypeClass::Compute)
        .output("dx", &shape, DTypeClass::Compute);
    vec![forward, backward]
}
