//! The step of a moving average: of weights, and of vectors; early, with a short average, and late.

use super::{Case, Class, Fill, Table, extents};
use stratus_engine::Role;
use stratus_engine::ops::{EmaUpdate, HYPER};

pub(super) const TABLE: Table = Table { tests, benchmarks };

fn tests() -> Vec<Case> {
    let mut cases = Vec::new();
    for shape in [&[8, 1, 3, 3][..], &[32, 16, 3, 3], &[10, 1568], &[10], &[1], &[33, 17, 1, 1], &[257, 300]]
    {
        cases.push(ema(shape, 0.25));
    }
    // The iteration's number is less than the decay allows.
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
        .parameter("value", shape, Class::Master)
        .filled("hyper", &[HYPER.len()], Class::Hyper, Fill::Hyper)
        .update("average", shape, Role::Average, numbers, Class::Master)
}
