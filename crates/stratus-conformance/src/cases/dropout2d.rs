//! Spatial dropout: shares from none to nearly all, in different layers, of maps of any size.

use super::{Case, Class, Fill, Table, extents};
use stratus_engine::ops::{Dropout2d, HYPER};

pub(super) const TABLE: Table = Table { tests, benchmarks };

fn tests() -> Vec<Case> {
    let shapes = [[2, 8, 12, 12], [1, 2, 1, 1], [3, 17, 5, 7], [2, 33, 4, 4], [5, 40, 1, 1], [2, 128, 9, 11]];
    let halves = shapes.iter().map(|shape| case(shape, Dropout2d { p: 0.5, layer: 3 }));
    let others = [0.0, 0.1, 0.3, 0.9].map(|p| case(&[4, 20, 3, 5], Dropout2d { p, layer: u32::MAX }));
    halves.chain(others).collect()
}

fn benchmarks() -> Vec<Case> {
    vec![case(&[6, 128, 45, 60], Dropout2d { p: 0.3, layer: 1 })]
}

fn case(shape: &[usize; 4], dropout: Dropout2d) -> Case {
    Case::new(format!("dropout2d {} of {}", dropout.p, extents(shape)), dropout)
        .input("x", shape, Class::Compute)
        .filled("hyper", &[HYPER.len()], Class::Hyper, Fill::Hyper)
        .output("y", shape, Class::Compute)
}
