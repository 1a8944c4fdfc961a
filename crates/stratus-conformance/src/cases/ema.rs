//! Steps of a moving average of weights and vectors, early, with a short average, and late.

use super::{Case, CaseTable, DTypeClass, Fill, extents};
use stratus_engine::Role;
use stratus_engine::ops::{EmaUpdate, ITERATION_SCALAR_FIELDS};

pub(super) const TABLE: CaseTable = CaseTable { tests, benchmarks };

fn tests() -> Vec<Case> {
    let mut cases = Vec::new();
    for shape in [&[8, 1, 3, 3][..], &[32, 16, 3, 3], &[10, 1568], &[10], &[1], &[33, 17, 1, 1], &[257, 300]]
    {
        cases.push(ema(shape, 0.25));
    }
    // The iteration is so early that the decay is limited by it.
    cases.push(ema(&[17, 5], 0.999));
    cases.push(ema(&[17, 5], 0.0));
    cases
}

fn benchmarks() -> Vec<Case> {
    vec![ema(&[512, 512, 3, 3], 0.999)]
}

fn ema(shape: &[usize], decay: f64) -> Case {
    let numbers = Fill::Uniform { low: -1.0, high: 1.0 };
    Case::new(format!("ema {} decay {decay}", extents(shape)), EmaUpdate { decay })
        .parameter("value", shape, DTypeClass::Master)
        .filled(
            "hyper",
            &[ITERATION_SCALAR_FIELDS.len()],
            DTypeClass::IterationScalars,
            Fill::IterationScalars,
        )
        .update("average", shape, Role::Average, numbers, DTypeClass::Master)
}
