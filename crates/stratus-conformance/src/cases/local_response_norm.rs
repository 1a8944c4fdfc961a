//! Local response normalisation: odd and even windows, windows wider than the channels, and every exponent
//! with a separate implementation. Squares have a larger weight than in any network, so that a wrong sum is
//! detected.

use super::{Case, CaseTable, DTypeClass, extents};
use stratus_engine::ops::{LrnBackward, LrnForward};
use stratus_graph::ops::LocalResponseNorm;

pub(super) const TABLE: CaseTable = CaseTable { tests, benchmarks };

fn tests() -> Vec<Case> {
    let norm = |size, alpha, beta, k| LocalResponseNorm { size, alpha, beta, k };
    let norms = [
        norm(5, 5e-4, 0.75, 2.0),
        norm(5, 4.0, 0.75, 1.0),
        norm(4, 3.0, 0.5, 0.5),
        norm(1, 2.0, 1.0, 1.0),
        norm(9, 5.0, 0.6, 1.5),
        norm(40, 9.0, 0.75, 1.0),
    ];
    let shapes = [[2, 16, 5, 7], [1, 1, 3, 3], [3, 17, 4, 5], [2, 5, 1, 1], [1, 33, 6, 2], [2, 96, 3, 3]];
    norms.into_iter().flat_map(|norm| shapes.iter().flat_map(move |&shape| kernels(norm, shape))).collect()
}

fn benchmarks() -> Vec<Case> {
    let alexnet = LocalResponseNorm { size: 5, alpha: 5e-4, beta: 0.75, k: 2.0 };
    let googlenet = LocalResponseNorm { size: 5, alpha: 1e-4, beta: 0.75, k: 1.0 };
    [kernels(alexnet, [16, 96, 55, 55]), kernels(googlenet, [16, 64, 56, 56])].concat()
}

fn kernels(norm: LocalResponseNorm, shape: [usize; 4]) -> Vec<Case> {
    let name = |kernel: &str| {
        let LocalResponseNorm { size, alpha, beta, k } = norm;
        format!("{kernel} {} size {size} alpha {alpha} beta {beta} k {k}", extents(&shape))
    };
    let forward = Case::new(name("local_response_norm"), LrnForward { norm })
        .input("x", &shape, DTypeClass::Compute)
        .output("y", &shape, DTypeClass::Compute);
    let backward = Case::new(name("local_response_norm_backward"), LrnBackward { norm })
        .input("x", &shape, DTypeClass::Compute)
        .input("dy", &shape, DTypeClass::Compute)
        .output("dx", &shape, DTypeClass::Compute);
    vec![forward, backward]
}
