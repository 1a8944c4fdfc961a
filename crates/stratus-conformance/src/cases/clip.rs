//! Gradient clipping: sums of squares, begun and continued; norms above and below the limit, of a scaled loss
//! too; gradients that are scaled down.

use super::loss_scale::numbers;
use super::{Case, Class, Fill, Table, extents};
use stratus_engine::Role;
use stratus_engine::ops::{ClipFactor, ClipGradient, GRADIENT_NORM, SumOfSquares};

pub(super) const TABLE: Table = Table { tests, benchmarks };

/// Squares and a factor.
const NORM: Fill = Fill::Uniform { low: 0.25, high: 0.75 };

fn tests() -> Vec<Case> {
    let mut cases = Vec::new();
    for shape in [&[1][..], &[33], &[10, 1568], &[32, 16, 3, 3], &[33, 17, 1, 1], &[257, 129, 3, 3]] {
        cases.extend(kernels(shape));
    }
    for (what, max_norm) in [("clips", 0.1), ("leaves", 10.0)] {
        let case = |name: String, scaled| Case::new(name, ClipFactor { max_norm, scaled });
        cases.push(case(format!("clip_factor {what}"), false).norm(NORM));
        cases.push(
            case(format!("clip_factor scaled {what}"), true)
                .loss_scale(numbers(-16.0, 1.0, 0.0, 2.0))
                .norm(NORM)
                .scaled_only(),
        );
    }
    cases
}

fn benchmarks() -> Vec<Case> {
    kernels(&[512, 512, 3, 3])
}

fn kernels(shape: &[usize]) -> Vec<Case> {
    let of = extents(shape);
    let sum = |first| {
        let what = if first { "begun" } else { "continued" };
        Case::new(format!("sum_of_squares {what} {of}"), SumOfSquares { first }).input(
            "gradient",
            shape,
            Class::Master,
        )
    };
    let numbers = Fill::Uniform { low: -1.0, high: 1.0 };
    vec![
        sum(true).output("norm", &[GRADIENT_NORM.len()], Class::Sums),
        sum(false).norm(NORM),
        Case::new(format!("clip_gradient {of}"), ClipGradient)
            .filled("norm", &[GRADIENT_NORM.len()], Class::Sums, NORM)
            .update("gradient", shape, Role::Buffer, numbers, Class::Master),
    ]
}

impl Case {
    /// Adds the norm, changed.
    fn norm(self, fill: Fill) -> Self {
        self.update("norm", &[GRADIENT_NORM.len()], Role::Buffer, fill, Class::Sums)
    }
}
