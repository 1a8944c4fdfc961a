//! Gradient clipping: sums of squares, started and continued; norms above and below the limit, also with a
//! scaled loss; gradients that are scaled down.

use super::loss_scale::numbers;
use super::{Case, CaseTable, DTypeClass, Fill, extents};
use stratus_engine::Role;
use stratus_engine::ops::{ClipFactor, ClipGradient, GRADIENT_NORM_FIELDS, SumOfSquares};

pub(super) const TABLE: CaseTable = CaseTable { tests, benchmarks };

/// The sum of squares and a factor.
const NORM: Fill = Fill::Uniform { low: 0.25, high: 0.75 };

fn tests() -> Vec<Case> {
    let mut cases = Vec::new();
    for shape in [&[1][..], &[33], &[10, 1568], &[32, 16, 3, 3], &[33, 17, 1, 1], &[257, 129, 3, 3]] {
        cases.extend(kernels(shape));
    }
    for (effect, max_norm) in [("clips", 0.1), ("leaves", 10.0)] {
        let case = |name: String, scaled| Case::new(name, ClipFactor { max_norm, loss_scaled: scaled });
        cases.push(case(format!("clip_factor {effect}"), false).norm(NORM));
        cases.push(
            case(format!("clip_factor scaled {effect}"), true)
                .loss_scale(numbers(-16.0, 1.0, 0.0, 2.0))
                .norm(NORM)
                .loss_scaled_only(),
        );
    }
    cases
}

fn benchmarks() -> Vec<Case> {
    kernels(&[512, 512, 3, 3])
}

fn kernels(shape: &[usize]) -> Vec<Case> {
    let size = extents(shape);
    let sum = |first| {
        let state = if first { "begun" } else { "continued" };
        Case::new(format!("sum_of_squares {state} {size}"), SumOfSquares { first }).input(
            "gradient",
            shape,
            DTypeClass::Master,
        )
    };
    let numbers = Fill::Uniform { low: -1.0, high: 1.0 };
    vec![
        sum(true).output("norm", &[GRADIENT_NORM_FIELDS.len()], DTypeClass::Sums),
        sum(false).norm(NORM),
        Case::new(format!("clip_gradient {size}"), ClipGradient)
            .filled("norm", &[GRADIENT_NORM_FIELDS.len()], DTypeClass::Sums, NORM)
            .update("gradient", shape, Role::Buffer, numbers, DTypeClass::Master),
    ]
}

impl Case {
    /// Adds the norm as an update.
    fn norm(self, fill: Fill) -> Self {
        self.update("norm", &[GRADIENT_NORM_FIELDS.len()], Role::Buffer, fill, DTypeClass::Sums)
    }
}
