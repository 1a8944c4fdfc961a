//! The rectifier. After a linear layer it reads the master precision and writes the compute precision; gradients have the latter.

use super::{Case, Class, Table, extents};
use crate::ops::{ReluBackward, ReluForward};

pub(super) const TABLE: Table = Table { tests, benchmarks };

fn tests() -> Vec<Case> {
    let shapes: [&[usize]; 6] =
        [&[2, 8, 28, 28], &[1, 1, 1, 1], &[3, 17, 5, 7], &[2, 33, 4, 4], &[4, 10], &[1, 1]];
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
    kernels(&[16, 256, 56, 56])
}

/// Forward with `x` of a class.
fn forward(shape: &[usize], class: Class, what: &str) -> Case {
    let name = format!("relu {}{what}", extents(shape));
    Case::new(name, ReluForward).input("x", shape, class).output("y", shape, Class::Compute)
}

/// Forward and backward in the compute precision.
fn kernels(shape: &[usize]) -> Vec<Case> {
    let backward = Case::new(format!("relu_backward {}", extents(shape)), ReluBackward)
        .input("y", shape, Class::Compute)
        .input("dy", shape, Class::Compute)
        .output("dx", shape, Class::Compute);
    vec![forward(shape, Class::Compute, ""), backward]
}
