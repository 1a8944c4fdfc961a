//! SGD updates, with and without a copy in the compute precision.

use super::{Case, CaseTable, DTypeClass, Fill, extents};
use stratus_engine::Role;
use stratus_engine::ops::{ITERATION_SCALAR_FIELDS, SgdUpdate};

pub(super) const TABLE: CaseTable = CaseTable { tests, benchmarks };

const SGD: SgdUpdate =
    SgdUpdate { momentum: 0.9, weight_decay: 1e-4, nesterov: false, rate_factor: 1.0, loss_scaled: false };

fn tests() -> Vec<Case> {
    let mut cases = Vec::new();
    for shape in [&[8, 1, 3, 3][..], &[32, 16, 3, 3], &[10, 1568], &[10], &[1], &[33, 17, 1, 1]] {
        cases.extend(kernels(shape, SGD));
    }
    cases.extend(kernels(&[17], SgdUpdate { momentum: 0.0, weight_decay: 0.0, ..SGD }));
    cases.extend(kernels(&[33, 17], SgdUpdate { nesterov: true, ..SGD }));
    cases.extend(kernels(&[19], SgdUpdate { rate_factor: 4.0, ..SGD }));
    cases
}

fn benchmarks() -> Vec<Case> {
    kernels(&[512, 512, 3, 3], SGD)
}

fn kernels(shape: &[usize], sgd: SgdUpdate) -> Vec<Case> {
    let numbers = Fill::Uniform { low: -1.0, high: 1.0 };
    let case = |kernel: &str| {
        let rule = if sgd.nesterov { "nesterov" } else { "momentum" };
        let rate = if sgd.rate_factor > 1.0 { " faster" } else { "" };
        Case::new(format!("{kernel} {} {rule} {}{rate}", extents(shape), sgd.momentum), sgd)
            .input("gradient", shape, DTypeClass::Master)
            .filled(
                "hyper",
                &[ITERATION_SCALAR_FIELDS.len()],
                DTypeClass::IterationScalars,
                Fill::IterationScalars,
            )
            .update("parameter", shape, Role::Parameter, numbers, DTypeClass::Master)
            .update("velocity", shape, Role::OptimiserState, numbers, DTypeClass::Master)
    };
    let [scaled, skipped] = case("sgd").with_loss_scaling(SgdUpdate { loss_scaled: true, ..sgd }, shape);
    vec![
        scaled,
        skipped,
        case("sgd"),
        case("sgd_with_copy").output("copy", shape, DTypeClass::Compute).mixed_precision_only(),
    ]
}
