//! Conversions.

use super::{Case, CaseTable, DTypeClass, Fill, extents};
use stratus_engine::Role;
use stratus_engine::ops::{Accumulate, Convert, Flatten, Reorder};

pub(super) const TABLE: CaseTable = CaseTable { tests, benchmarks };

fn tests() -> Vec<Case> {
    let shapes: [&[usize]; 6] =
        [&[8, 1, 3, 3], &[2, 17, 5, 7], &[1, 1, 1, 1], &[10, 33], &[33], &[2, 3, 4, 5]];
    let maps = [[3, 5, 1, 1], [2, 17, 1, 1], [2, 3, 4, 5], [1, 33, 2, 3]];
    let flattened = maps.into_iter().flat_map(flattening);
    shapes.iter().flat_map(|shape| kernels(shape)).chain(flattened).collect()
}

/// A map as a matrix of logits, and the gradient of the matrix as that of a map.
fn flattening(map: [usize; 4]) -> [Case; 2] {
    let matrix = [map[0], map[1..].iter().product()];
    let case = |name: &str| Case::new(format!("{name} {}", extents(&map)), Flatten);
    [
        case("flatten").input("x", &map, DTypeClass::Compute).output("y", &matrix, DTypeClass::Master),
        case("unflatten").input("dy", &matrix, DTypeClass::Compute).output("dx", &map, DTypeClass::Compute),
    ]
}

fn benchmarks() -> Vec<Case> {
    kernels(&[16, 64, 56, 56])
}

fn kernels(shape: &[usize]) -> Vec<Case> {
    let name = |kernel: &str| format!("{kernel} {}", extents(shape));
    let numbers = Fill::Uniform { low: -1.0, high: 1.0 };
    vec![
        Case::new(name("convert_to_compute"), Convert)
            .input("x", shape, DTypeClass::Master)
            .output("y", shape, DTypeClass::Compute)
            .mixed_precision_only(),
        Case::new(name("convert_to_master"), Convert)
            .input("x", shape, DTypeClass::Compute)
            .output("y", shape, DTypeClass::Master)
            .mixed_precision_only(),
        Case::new(name("reorder"), Reorder).input("x", shape, DTypeClass::Compute).output(
            "y",
            shape,
            DTypeClass::Compute,
        ),
        Case::new(name("accumulate"), Accumulate).input("x", shape, DTypeClass::Compute).update(
            "sum",
            shape,
            Role::Buffer,
            numbers,
            DTypeClass::Compute,
        ),
    ]
}
