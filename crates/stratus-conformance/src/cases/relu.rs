//! ReLU, without and with a ceiling of 6. After a linear layer it reads the master precision and writes the
//! compute precision, which gradients also have.

use super::{Case, CaseTable, DTypeClass, Fill, extents};
use stratus_engine::ops::{ReluBackward, ReluForward};

pub(super) const TABLE: CaseTable = CaseTable { tests, benchmarks };

const CEILINGS: [Option<f32>; 2] = [None, Some(6.0)];

fn tests() -> Vec<Case> {
    let shapes: [&[usize]; 7] =
        [&[2, 8, 28, 28], &[1, 1, 1, 1], &[3, 17, 5, 7], &[2, 33, 4, 4], &[1, 5, 1, 1], &[4, 10], &[1, 1]];
    let mut cases = Vec::new();
    for (ceiling, shape) in CEILINGS.into_iter().flat_map(|ceiling| shapes.map(|shape| (ceiling, shape))) {
        cases.extend(kernels(ceiling, shape));
        if shape.len() == 2 {
            cases.push(forward(ceiling, shape, DTypeClass::Master, " of the master precision"));
        }
    }
    cases
}

fn benchmarks() -> Vec<Case> {
    [kernels(None, &[16, 256, 56, 56]), kernels(CEILINGS[1], &[16, 144, 56, 56])].concat()
}

fn name(ceiling: Option<f32>) -> &'static str {
    if ceiling.is_some() { "relu6" } else { "relu" }
}

/// Forward with `x` of a type class: values below 0, between, and above the ceiling, if any.
fn forward(ceiling: Option<f32>, shape: &[usize], class: DTypeClass, suffix: &str) -> Case {
    let case = Case::new(format!("{} {}{suffix}", name(ceiling), extents(shape)), ReluForward { ceiling });
    let numbers = match ceiling {
        None => Fill::Uniform { low: -1.0, high: 1.0 },
        Some(_) => Fill::Uniform { low: -4.0, high: 10.0 },
    };
    case.filled("x", shape, class, numbers).output("y", shape, DTypeClass::Compute)
}

/// Forward and backward in the compute precision.
fn kernels(ceiling: Option<f32>, shape: &[usize]) -> Vec<Case> {
    // Integers up to the ceiling, so that many outputs are exactly 0 or the ceiling, where no gradient
    // passes.
    let outputs = match ceiling {
        None => Fill::Uniform { low: -1.0, high: 1.0 },
        Some(_) => Fill::Integers { low: 0, high: 6 },
    };
    let backward =
        Case::new(format!("{}_backward {}", name(ceiling), extents(shape)), ReluBackward { ceiling })
            .filled("y", shape, DTypeClass::Compute, outputs)
            .input("dy", shape, DTypeClass::Compute)
            .output("dx", shape, DTypeClass::Compute);
    vec![forward(ceiling, shape, DTypeClass::Compute, ""), backward]
}
