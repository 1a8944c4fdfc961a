//! Multiplication by a fixed number: of feature maps and gradients in the compute precision, of logits in
//! the master precision.

use super::{Case, Class, Table, extents};
use stratus_engine::ops::Scale;

pub(super) const TABLE: Table = Table { tests, benchmarks };

fn tests() -> Vec<Case> {
    let shapes: [&[usize]; 5] = [&[2, 8, 28, 28], &[3, 17, 5, 7], &[1, 1, 1, 1], &[4, 10], &[1, 1]];
    let mut cases = Vec::new();
    for shape in shapes {
        for factor in [0.111, -3.0] {
            cases.push(kernel(shape, Class::Compute, factor, ""));
            if shape.len() == 2 {
                cases.push(kernel(shape, Class::Master, factor, " of the master precision"));
            }
        }
    }
    cases
}

fn benchmarks() -> Vec<Case> {
    vec![kernel(&[16, 256, 56, 56], Class::Compute, 0.5, "")]
}

fn kernel(shape: &[usize], class: Class, factor: f32, what: &str) -> Case {
    Case::new(format!("scale {} by {factor}{what}", extents(shape)), Scale { factor })
        .input("x", shape, class)
        .output("y", shape, class)
}
