//! Losses of several targets per sample: labels and numbers, few and many, missing ones, smoothed labels,
//! weights, large outputs, parts of a batch.

use super::loss_scale::numbers;
use super::{Case, CaseTable, DTypeClass, Fill, extents};
use stratus_engine::Role;
use stratus_engine::ops::{TARGET_METRICS_FIELDS, TARGET_WEIGHT_ROWS, TargetFunction, TargetLoss};

pub(super) const TABLE: CaseTable = CaseTable { tests, benchmarks };

const LABELS: TargetLoss = TargetLoss {
    function: TargetFunction::BinaryCrossEntropy,
    auxiliary: None,
    main_weight: None,
    smoothing: 0.0,
    class_weighted: false,
    loss_scaled: false,
    partial: false,
};

const UNIFORM: Fill = Fill::Uniform { low: -3.0, high: 3.0 };

fn tests() -> Vec<Case> {
    let mut cases = Vec::new();
    for function in [TargetFunction::BinaryCrossEntropy, TargetFunction::SquaredError, TargetFunction::Huber]
    {
        let plain = TargetLoss { function, ..LABELS };
        let weighted = TargetLoss { class_weighted: true, ..plain };
        for shape in [[2, 10], [64, 9], [1, 1], [7, 3], [1, 37], [130, 1]] {
            cases.extend(kernels(shape, UNIFORM, plain, ""));
        }
        for shape in [[64, 9], [1, 2], [3, 1000]] {
            cases.extend(kernels(shape, UNIFORM, weighted, " weighted"));
        }
        let beside_a_teacher = TargetLoss { main_weight: Some(0.3), ..plain };
        cases.extend(kernels([19, 7], UNIFORM, beside_a_teacher, " beside a teacher"));
        cases.extend(kernels([64, 9], UNIFORM, TargetLoss { partial: true, ..plain }, " partial"));
        let part = TargetLoss { partial: true, ..weighted };
        cases.extend(kernels([3, 700], UNIFORM, part, " partial weighted"));
        cases.extend(kernels([5, 6], UNIFORM, plain, MISSING));
    }
    // Squares of such differences are not numbers of f16.
    let large = Fill::Uniform { low: -1e4, high: 1e4 };
    for function in [TargetFunction::BinaryCrossEntropy, TargetFunction::Huber] {
        cases.extend(kernels([6, 10], large, TargetLoss { function, ..LABELS }, " large"));
    }
    let smoothed = TargetLoss { smoothing: 0.1, ..LABELS };
    cases.extend(kernels([9, 12], UNIFORM, smoothed, " smoothed"));
    cases.extend(kernels([6, 10], large, smoothed, " smoothed large"));
    let all = TargetLoss { class_weighted: true, partial: true, ..smoothed };
    cases.extend(kernels([20, 33], UNIFORM, all, " partial weighted smoothed"));
    // Half of the logits are 0, which means no.
    cases.extend(kernels([16, 8], Fill::Integers { low: 0, high: 1 }, LABELS, " ties"));
    cases
}

fn benchmarks() -> Vec<Case> {
    kernels([64, 1000], UNIFORM, LABELS, "")
}

/// The suffix of cases whose targets are all missing.
const MISSING: &str = " missing";

/// With and without the gradient of the outputs, and as an auxiliary loss.
fn kernels(shape: [usize; 2], fill: Fill, loss: TargetLoss, suffix: &str) -> Vec<Case> {
    let targets = match loss.function {
        _ if suffix == MISSING => Fill::Missing,
        TargetFunction::BinaryCrossEntropy => Fill::Targets { low: 0.0, high: 1.0 },
        TargetFunction::SquaredError | TargetFunction::Huber => Fill::Targets { low: -2.0, high: 2.0 },
    };
    let name = loss.function.name();
    let case = |kernel: String, loss: TargetLoss| {
        let scaled = if loss.loss_scaled { "scaled " } else { "" };
        let mut case = Case::new(format!("{scaled}{kernel} {}{suffix}", extents(&shape)), loss)
            .filled("outputs", &shape, DTypeClass::Master, fill)
            .filled("targets", &shape, DTypeClass::Single, targets);
        if loss.class_weighted {
            let weights = Fill::Uniform { low: 0.25, high: 4.0 };
            case = case.filled("weights", &[TARGET_WEIGHT_ROWS, shape[1]], DTypeClass::Master, weights);
        }
        if loss.loss_scaled {
            case = case.loss_scale(numbers(-6.0, 5.0, 0.0, 7.0)).loss_scaled_only();
        }
        let counts = Fill::Integers { low: 0, high: 90 };
        if loss.partial { case.filled("label_counts", &shape[1..], DTypeClass::Sums, counts) } else { case }
    };
    let metrics = [TARGET_METRICS_FIELDS.len()];
    let main_loss = |kernel, loss| case(kernel, loss).output("metrics", &metrics, DTypeClass::Metrics);
    let gradient = |scaled| {
        let loss = TargetLoss { loss_scaled: scaled, ..loss };
        main_loss(format!("{name}_gradient"), loss).output("gradient", &shape, DTypeClass::Compute)
    };
    let auxiliary = |scaled| {
        let loss = TargetLoss { auxiliary: Some(0.3), loss_scaled: scaled, ..loss };
        let before = Fill::Integers { low: 1, high: 9 };
        case(format!("auxiliary_{name}"), loss)
            .update("metrics", &metrics, Role::Metrics, before, DTypeClass::Metrics)
            .output("gradient", &shape, DTypeClass::Compute)
    };
    vec![main_loss(name.to_owned(), loss), gradient(false), auxiliary(false), gradient(true), auxiliary(true)]
}
