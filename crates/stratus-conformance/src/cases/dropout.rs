//! Dropout of feature maps and features, with probabilities from zero to nearly one, in different layers.

use super::{Case, CaseTable, DTypeClass, Fill, extents};
use stratus_engine::ops::{Dropout, ITERATION_SCALAR_FIELDS};

pub(super) const TABLE: CaseTable = CaseTable { tests, benchmarks };

fn tests() -> Vec<Case> {
    let shapes: [&[usize]; 10] = [
        &[2, 8, 12, 12],
        &[1, 1, 1, 1],
        &[3, 17, 5, 7],
        &[2, 33, 4, 4],
        &[1, 5, 3, 1],
        &[5, 40, 1, 1],
        &[4, 10],
        &[3, 1027],
        &[1, 1],
        &[2, 3, 130, 131],
    ];
    let mut cases: Vec<Case> = shapes
        .iter()
        .map(|shape| case(shape, Dropout { p: 0.5, layer: 3 }, DTypeClass::Compute, ""))
        .collect();
    for p in [0.0, 0.1, 0.999] {
        cases.push(case(&[2, 20, 3, 5], Dropout { p, layer: 0 }, DTypeClass::Compute, ""));
        cases.push(case(&[7, 129], Dropout { p, layer: u32::MAX }, DTypeClass::Compute, ""));
    }
    cases.push(case(&[7, 129], Dropout { p: 0.5, layer: 1 }, DTypeClass::Master, " of the master precision"));
    cases
}

fn benchmarks() -> Vec<Case> {
    [&[64, 4096][..], &[64, 256, 6, 6]]
        .into_iter()
        .map(|shape| case(shape, Dropout { p: 0.5, layer: 1 }, DTypeClass::Compute, ""))
        .collect()
}

fn case(shape: &[usize], dropout: Dropout, class: DTypeClass, suffix: &str) -> Case {
    let name = format!("dropout {} of {}{suffix}", dropout.p, extents(shape));
    Case::new(name, dropout)
        .input("x", shape, class)
        .filled(
            "hyper",
            &[ITERATION_SCALAR_FIELDS.len()],
            DTypeClass::IterationScalars,
            Fill::IterationScalars,
        )
        .output("y", shape, DTypeClass::Compute)
}
