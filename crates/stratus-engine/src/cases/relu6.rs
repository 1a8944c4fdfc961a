//! The rectifier with a ceiling: numbers below 0, between, and above 6.

use super::{Case, Class, Fill, Table, extents};
use crate::ops::{Relu6Backward, Relu6Forward};

pub(super) const TABLE: Table = Table { tests, benchmarks };

fn tests() -> Vec<Case> {
    let shapes: [&[usize]; 7] =
        [&[2, 8, 28, 28], &[1, 1, 1, 1], &[3, 17, 5, 7], &[2, 33, 4, 4], &[1, 5, 1, 1], &[4, 10], &[1, 1]];
    shapes
        .iter()
        .flat_map(|shape| {
            let mut cases = kernels(shape);
            if shape.len() == 2 {
                cases.push(forward(shape, Class::Master, " of the master precision"));
            }
            cases
        })
        .collect()
}

fn benchmarks() -> Vec<Case> {
    kernels(&[16, 144, 56, 56])
}

/// Forward with `x` of a class.
fn forward(shape: &[usize], class: Class, what: &str) -> Case {
    let name = format!("relu6 {}{what}", extents(shape));
    let numbers = Fill::Uniform { low: -4.0, high: 10.0 };
    Case::new(name, Relu6Forward).filled("x", shape, class, numbers).output("y", shape, Class::Compute)
}

/// Forward and backward in the compute precision.
fn kernels(shape: &[usize]) -> Vec<Case> {
    // Whole numbers: many outputs lie on the floor and on the ceiling, where no gradient passes.
    let backward = Case::new(format!("relu6_backward {}", extents(shape)), Relu6Backward)
        .filled("y", shape, Class::Compute, Fill::Whole { low: 0, high: 6 })
        .input("dy", shape, Class::Compute)
        .output("dx", shape, Class::Compute);
    vec![forward(shape, Class::Compute, ""), backward]
}
