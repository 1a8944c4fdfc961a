//! Multiplication by a constant: of feature maps and gradients in the compute precision, of logits in the
//! master precision.

use super::{Case, CaseTable, DTypeClass, extents};
use stratus_engine::ops::Scale;

pub(super) const TABLE: CaseTable = CaseTable { tests, benchmarks };

fn tests() -> Vec<Case> {
    let shapes: [&[usize]; 5] = [&[2, 8, 28, 28], &[3, 17, 5, 7], &[1, 1, 1, 1], &[4, 10], &[1, 1]];
    let mut cases = Vec::new();
    for shape in shapes {
        for factor in [0.111, -3.0] {
            cases.push(kernel(shape, DTypeClass::Compute, factor, ""));
            if shape.len() == 2 {
                cases.push(kernel(shape, DTypeClass::Master, factor, " of the master precision"));
            }
        }
    }
    cases
}

fn benchmarks() -> Vec<Case> {
    vec![kernel(&[16, 256, 56, 56], DTypeClass::Compute, 0.5, "")]
}

fn kernel(shape: &[usize], class: DTypeClass, factor: f32, suffix: &str) -> Case {
    Case::new(format!("scale {} by {factor}{suffix}", extents(shape)), Scale { factor })
        .input("x", shape, class)
        .output("y", shape, class)
}
