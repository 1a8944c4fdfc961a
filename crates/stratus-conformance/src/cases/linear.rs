//! Linear layers on vectors and on feature maps in their layout, and their update.

use super::{Case, CaseTable, DTypeClass, Fill, extents};
use stratus_engine::Role;
use stratus_engine::ops::{
    ITERATION_SCALAR_FIELDS, LinearBackwardData, LinearBackwardWeights, LinearForward, LinearUpdate,
    SgdUpdate,
};
use stratus_graph::ops::Linear;

pub(super) const TABLE: CaseTable = CaseTable { tests, benchmarks };

fn tests() -> Vec<Case> {
    let mut cases = Vec::new();
    for (x, out_features, bias) in [
        (&[2, 32, 7, 7][..], 10, true),
        (&[4, 24], 10, false),
        (&[1, 1], 1, true),
        (&[1, 17], 33, true),
        (&[3, 3, 5, 2], 7, false),
        (&[5, 17, 2, 3], 16, true),
        (&[2, 8, 1, 1], 3, true),
        (&[16, 64], 128, true),
    ] {
        cases.extend(kernels(x, out_features, bias));
        cases.extend(updates(x, out_features, bias));
    }
    // More rows than are updated at once.
    cases.extend(updates(&[2, 8192], 150, true));
    cases
}

fn benchmarks() -> Vec<Case> {
    let large = updates(&[64, 256, 6, 6], 4096, true);
    [kernels(&[64, 32, 7, 7], 10, true), kernels(&[64, 2048], 1000, true), large].concat()
}

/// The three kernels.
fn kernels(x: &[usize], out_features: usize, bias: bool) -> Vec<Case> {
    let linear = Linear { in_features: x[1..].iter().product(), out_features, bias };
    let (y, weight) = ([x[0], out_features], [out_features, linear.in_features]);
    let name = |kernel: &str| {
        let bias = if bias { " bias" } else { "" };
        format!("{kernel} {} to {out_features}{bias}", extents(x))
    };
    let mut forward = Case::new(name("linear"), LinearForward { linear })
        .input("x", x, DTypeClass::Compute)
        .parameter("weight", &weight, DTypeClass::Compute);
    let data = Case::new(name("linear_backward_data"), LinearBackwardData { linear })
        .input("dy", &y, DTypeClass::Compute)
        .parameter("weight", &weight, DTypeClass::Compute)
        .output("dx", x, DTypeClass::Compute);
    let mut weights = Case::new(name("linear_backward_weights"), LinearBackwardWeights { linear })
        .input("x", x, DTypeClass::Compute)
        .input("dy", &y, DTypeClass::Compute)
        .output("dweight", &weight, DTypeClass::Master);
    if bias {
        forward = forward.parameter("bias", &[out_features], DTypeClass::Master);
        weights = weights.output("dbias", &[out_features], DTypeClass::Master);
    }
    vec![forward.output("y", &y, DTypeClass::Master), data, weights]
}

/// The gradient with the optimiser's step, with and without a copy in the compute precision.
fn updates(x: &[usize], out_features: usize, bias: bool) -> Vec<Case> {
    let linear = Linear { in_features: x[1..].iter().product(), out_features, bias };
    let sgd = SgdUpdate {
        momentum: 0.9,
        weight_decay: 1e-4,
        nesterov: false,
        rate_factor: 1.0,
        loss_scaled: false,
    };
    let (y, weight) = ([x[0], out_features], [out_features, linear.in_features]);
    let numbers = Fill::Uniform { low: -1.0, high: 1.0 };
    let case = |copied: bool| {
        let copy = if copied { " with copy" } else { "" };
        let bias = if bias { " bias" } else { "" };
        let name = format!("linear_update {} to {out_features}{bias}{copy}", extents(x));
        Case::new(name, LinearUpdate { linear, sgd })
            .input("x", x, DTypeClass::Compute)
            .input("dy", &y, DTypeClass::Compute)
            .filled(
                "hyper",
                &[ITERATION_SCALAR_FIELDS.len()],
                DTypeClass::IterationScalars,
                Fill::IterationScalars,
            )
            .update("parameter", &weight, Role::Parameter, numbers, DTypeClass::Master)
            .update("velocity", &weight, Role::OptimiserState, numbers, DTypeClass::Master)
    };
    let biased =
        |case: Case| if bias { case.output("dbias", &[out_features], DTypeClass::Master) } else { case };
    let copied = case(true).output("copy", &weight, DTypeClass::Compute).mixed_precision_only();
    vec![biased(case(false)), biased(copied)]
}
