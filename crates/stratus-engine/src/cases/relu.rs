//! The rectifier. After a linear layer it reads the master precision and writes the compute precision.

use super::{Case, Class, Table, extents};
use crate::ops::{ReluBackward, ReluForward};

pub(super) const TABLE: Table = Table { tests, benchmarks };

fn tests() -> Vec<Case> {
    let shapes: [&[usize]; 6] =
        [&[2, 8, 28, 28], &[1, 1, 1, 1], &[3, 17, 5, 7], &[2, 33, 4, 4], &[4, 10], &[1, 1]];
    shapes
        .iter()
        .flat_map(|shape| {
            let mut cases = kernels(shape, Class::Compute);
            if shape.len() == 2 {
                cases.extend(kernels(shape, Class::Master));
            }
            cases
        })
        .collect()
}

fn benchmarks() -> Vec<Case> {
    kernels(&[16, 256, 56, 56], Class::Compute)
}

/// Forward and backward; `x` and its gradient are of `class`.
fn kernels(shape: &[usize], class: Class) -> Vec<Case> {
    let name = |kernel: &str| {
        let of = if class == Class::Master { " of the master precision" } else { "" };
        format!("{kernel} {}{of}", extents(shape))
    };
    vec![
        Case::new(name("relu"), ReluForward).input("x", shape, class).output("y", shape, Class::Compute),
        Case::new(name("relu_backward"), ReluBackward)
            .input("y", shape, Class::Compute)
            .input("dy", shape, Class::Compute)
            .output("dx", shape, class),
    ]
}
