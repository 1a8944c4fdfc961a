//! The Gaussian error linear unit. After a linear layer it reads the master precision; gradients have the
//! compute precision.

use super::{Case, Class, Fill, Table, extents};
use stratus_engine::ops::{GeluBackward, GeluForward};

pub(super) const TABLE: Table = Table { tests, benchmarks };

fn tests() -> Vec<Case> {
    let shapes: [&[usize]; 7] =
        [&[2, 8, 28, 28], &[1, 1, 1, 1], &[3, 17, 5, 7], &[2, 33, 4, 4], &[1, 5, 1, 1], &[4, 10], &[1, 1]];
    let mut cases = Vec::new();
    for shape in shapes {
        cases.extend(kernels(shape, Class::Compute, ""));
        if shape.len() == 2 {
            cases.extend(kernels(shape, Class::Master, " of the master precision"));
        }
    }
    cases
}

fn benchmarks() -> Vec<Case> {
    kernels(&[16, 256, 56, 56], Class::Compute, "")
}

/// Forward and backward with `x` of a class: the bend, and the tails, where nearly nothing and nearly all
/// is let through.
fn kernels(shape: &[usize], class: Class, what: &str) -> Vec<Case> {
    let numbers = Fill::Uniform { low: -7.0, high: 5.0 };
    let forward = Case::new(format!("gelu {}{what}", extents(shape)), GeluForward)
        .filled("x", shape, class, numbers)
        .output("y", shape, Class::Compute);
    let backward = Case::new(format!("gelu_backward {}{what}", extents(shape)), GeluBackward)
        .filled("x", shape, class, numbers)
        .input("dy", shape, Class::Compute)
        .output("dx", shape, Class::Compute);
    vec![forward, backward]
}
