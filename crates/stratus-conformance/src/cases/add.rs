//! Sums of two values, and of one with itself. After linear layers both have the master precision.

use super::{Case, CaseTable, DTypeClass, extents};
use stratus_engine::ops::AddForward;

pub(super) const TABLE: CaseTable = CaseTable { tests, benchmarks };

fn tests() -> Vec<Case> {
    let shapes: [&[usize]; 8] = [
        &[2, 8, 28, 28],
        &[1, 1, 1, 1],
        &[3, 17, 5, 7],
        &[2, 33, 4, 4],
        &[1, 5, 1, 1],
        &[1, 64, 3, 3],
        &[4, 10],
        &[1, 1],
    ];
    let mut cases: Vec<Case> = shapes.iter().flat_map(|shape| kernels(shape)).collect();
    cases.push(
        Case::new("add 4x10 of the master precision".to_owned(), AddForward { relu: true })
            .input("a", &[4, 10], DTypeClass::Master)
            .input("b", &[4, 10], DTypeClass::Master)
            .output("y", &[4, 10], DTypeClass::Compute),
    );
    cases
}

fn benchmarks() -> Vec<Case> {
    kernels(&[16, 256, 56, 56])
}

/// With and without ReLU, and a value with itself.
fn kernels(shape: &[usize]) -> Vec<Case> {
    let case = |kernel: &str, relu: bool| {
        Case::new(format!("{kernel} {}", extents(shape)), AddForward { relu }).input(
            "a",
            shape,
            DTypeClass::Compute,
        )
    };
    let both = |case: Case| case.input("b", shape, DTypeClass::Compute);
    let cases = [both(case("add", false)), both(case("add_relu", true)), case("add_twice", false)];
    cases.into_iter().map(|case| case.output("y", shape, DTypeClass::Compute)).collect()
}
