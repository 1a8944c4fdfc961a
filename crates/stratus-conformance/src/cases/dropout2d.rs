//! Spatial dropout and stochastic depth: shares from none to nearly all, in different layers, of maps of any
//! size.

use super::{Case, Class, Fill, Table, extents};
use stratus_engine::ops::{Dropout2d, HYPER, KernelSpec};

pub(super) const TABLE: Table = Table { tests, benchmarks };

fn tests() -> Vec<Case> {
    let shapes = [[2, 8, 12, 12], [1, 2, 1, 1], [3, 17, 5, 7], [2, 33, 4, 4], [5, 40, 1, 1], [2, 128, 9, 11]];
    let of = |whole: bool| {
        // Of whole samples as many that some are kept.
        let more = if whole { 9 } else { 0 };
        let halves = shapes
            .iter()
            .map(move |&[n, c, h, w]| case(&[n + more, c, h, w], Dropout2d { p: 0.5, layer: 3, whole }));
        let others = [0.0, 0.1, 0.3, 0.9]
            .map(|p| case(&[4 * (1 + more), 20, 3, 5], Dropout2d { p, layer: u32::MAX, whole }));
        halves.chain(others)
    };
    [false, true].into_iter().flat_map(of).collect()
}

fn benchmarks() -> Vec<Case> {
    vec![case(&[6, 128, 45, 60], Dropout2d { p: 0.3, layer: 1, whole: false })]
}

fn case(shape: &[usize; 4], dropout: Dropout2d) -> Case {
    Case::new(format!("{} {} of {}", dropout.name(), dropout.p, extents(shape)), dropout)
        .input("x", shape, Class::Compute)
        .filled("hyper", &[HYPER.len()], Class::Hyper, Fill::Hyper)
        .output("y", shape, Class::Compute)
}
