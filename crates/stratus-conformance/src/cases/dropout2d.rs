//! Spatial dropout and stochastic depth: probabilities from zero to nearly one, in different layers, for maps
//! of any size.

use super::{Case, CaseTable, DTypeClass, Fill, extents};
use stratus_engine::ops::{Dropout2d, ITERATION_SCALAR_FIELDS, KernelSpec};

pub(super) const TABLE: CaseTable = CaseTable { tests, benchmarks };

fn tests() -> Vec<Case> {
    let shapes = [[2, 8, 12, 12], [1, 2, 1, 1], [3, 17, 5, 7], [2, 33, 4, 4], [5, 40, 1, 1], [2, 128, 9, 11]];
    let cases_for = |whole_samples: bool| {
        // If whole samples are dropped, there are enough for some to be kept.
        let more = if whole_samples { 9 } else { 0 };
        let halves = shapes.iter().map(move |&[n, c, h, w]| {
            case(&[n + more, c, h, w], Dropout2d { p: 0.5, layer: 3, whole_samples })
        });
        let others = [0.0, 0.1, 0.3, 0.9]
            .map(|p| case(&[4 * (1 + more), 20, 3, 5], Dropout2d { p, layer: u32::MAX, whole_samples }));
        halves.chain(others)
    };
    [false, true].into_iter().flat_map(cases_for).collect()
}

fn benchmarks() -> Vec<Case> {
    vec![case(&[6, 128, 45, 60], Dropout2d { p: 0.3, layer: 1, whole_samples: false })]
}

fn case(shape: &[usize; 4], dropout: Dropout2d) -> Case {
    Case::new(format!("{} {} of {}", dropout.name(), dropout.p, extents(shape)), dropout)
        .input("x", shape, DTypeClass::Compute)
        .filled(
            "hyper",
            &[ITERATION_SCALAR_FIELDS.len()],
            DTypeClass::IterationScalars,
            Fill::IterationScalars,
        )
        .output("y", shape, DTypeClass::Compute)
}
