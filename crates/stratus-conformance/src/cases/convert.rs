//! Moving values.

use super::{Case, Class, Fill, Table, extents};
use stratus_engine::Role;
use stratus_engine::ops::{Accumulate, Convert, Reorder};

pub(super) const TABLE: Table = Table { tests, benchmarks };

fn tests() -> Vec<Case> {
    let shapes: [&[usize]; 6] =
        [&[8, 1, 3, 3], &[2, 17, 5, 7], &[1, 1, 1, 1], &[10, 33], &[33], &[2, 3, 4, 5]];
    shapes.iter().flat_map(|shape| kernels(shape)).collect()
}

fn benchmarks() -> Vec<Case> {
    kernels(&[16, 64, 56, 56])
}

fn kernels(shape: &[usize]) -> Vec<Case> {
    let name = |kernel: &str| format!("{kernel} {}", extents(shape));
    let numbers = Fill::Uniform { low: -1.0, high: 1.0 };
    vec![
        Case::new(name("convert_to_compute"), Convert)
            .input("x", shape, Class::Master)
            .output("y", shape, Class::Compute)
            .mixed_only(),
        Case::new(name("convert_to_master"), Convert)
            .input("x", shape, Class::Compute)
            .output("y", shape, Class::Master)
            .mixed_only(),
        Case::new(name("reorder"), Reorder).input("x", shape, Class::Compute).output(
            "y",
            shape,
            Class::Compute,
        ),
        Case::new(name("accumulate"), Accumulate).input("x", shape, Class::Compute).update(
            "sum",
            shape,
            Role::Buffer,
            numbers,
            Class::Compute,
        ),
    ]
}
