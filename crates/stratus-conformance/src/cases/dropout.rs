//! Dropout: over feature maps and features, shares from none to nearly all, in different layers.

use super::{Case, Class, Fill, Table, extents};
use stratus_engine::ops::{Dropout, HYPER};

pub(super) const TABLE: Table = Table { tests, benchmarks };

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
    let mut cases: Vec<Case> =
        shapes.iter().map(|shape| case(shape, Dropout { p: 0.5, layer: 3 }, Class::Compute, "")).collect();
    for p in [0.0, 0.1, 0.999] {
        cases.push(case(&[2, 20, 3, 5], Dropout { p, layer: 0 }, Class::Compute, ""));
        cases.push(case(&[7, 129], Dropout { p, layer: u32::MAX }, Class::Compute, ""));
    }
    cases.push(case(&[7, 129], Dropout { p: 0.5, layer: 1 }, Class::Master, " of the master precision"));
    cases
}

fn benchmarks() -> Vec<Case> {
    [&[64, 4096][..], &[64, 256, 6, 6]]
        .into_iter()
        .map(|shape| case(shape, Dropout { p: 0.5, layer: 1 }, Class::Compute, ""))
        .collect()
}

fn case(shape: &[usize], dropout: Dropout, class: Class, what: &str) -> Case {
    let name = format!("dropout {} of {}{what}", dropout.p, extents(shape));
    Case::new(name, dropout)
        .input("x", shape, class)
        .filled("hyper", &[HYPER.len()], Class::Hyper, Fill::Hyper)
        .output("y", shape, Class::Compute)
}
