//! The loss by the logits of a teacher: rows and maps, few and many classes, one class, temperatures, equal
//! and large logits, ignored and mixed labels, parts of a batch.

use super::loss_scale::numbers;
use super::{Case, CaseTable, DTypeClass, Fill, extents};
use stratus_engine::Role;
use stratus_engine::ops::{DistillationFunction, DistillationLoss, METRICS_FIELDS, MIXED_LABEL_LEN};

pub(super) const TABLE: CaseTable = CaseTable { tests, benchmarks };

const PLAIN: DistillationLoss = DistillationLoss {
    function: DistillationFunction::Softmax,
    weight: 0.5,
    temperature: 2.0,
    mixed_labels: false,
    loss_scaled: false,
    partial: false,
};

const UNIFORM: Fill = Fill::Uniform { low: -3.0, high: 3.0 };

fn tests() -> Vec<Case> {
    let mut cases = Vec::new();
    for shape in [&[2, 10][..], &[70, 10], &[1, 2], &[129, 3], &[5, 17], &[3, 700], &[2, 1]] {
        cases.extend(kernels(shape, UNIFORM, PLAIN, ""));
    }
    for shape in [[2, 11, 5, 7], [1, 2, 1, 1], [3, 16, 9, 9], [2, 21, 3, 67], [1, 1, 4, 4]] {
        cases.extend(kernels(&shape, UNIFORM, PLAIN, ""));
    }
    let partial = DistillationLoss { partial: true, ..PLAIN };
    let mixed = DistillationLoss { mixed_labels: true, ..PLAIN };
    cases.extend(kernels(&[64, 10], UNIFORM, partial, " partial"));
    cases.extend(kernels(&[2, 7, 6, 11], UNIFORM, partial, " partial"));
    cases.extend(kernels(&[90, 7], UNIFORM, mixed, " mixed"));
    cases.extend(kernels(&[16, 12], UNIFORM, DistillationLoss { partial: true, ..mixed }, " partial mixed"));
    for (temperature, suffix) in [(1.0, " temperature 1"), (20.0, " temperature 20")] {
        let loss = DistillationLoss { temperature, weight: 1.0, ..PLAIN };
        cases.extend(kernels(&[9, 12], UNIFORM, loss, suffix));
        cases.extend(kernels(&[2, 5, 4, 9], UNIFORM, loss, suffix));
    }
    cases.extend(kernels(&[16, 8], Fill::Integers { low: 0, high: 2 }, PLAIN, " ties"));
    cases.extend(kernels(&[6, 10], Fill::Uniform { low: -300.0, high: 300.0 }, PLAIN, " large"));
    cases
}

fn benchmarks() -> Vec<Case> {
    [&[64, 1000][..], &[4, 11, 360, 480]]
        .into_iter()
        .flat_map(|shape| kernels(shape, UNIFORM, PLAIN, ""))
        .collect()
}

/// With and without a loss scale.
fn kernels(shape: &[usize], fill: Fill, loss: DistillationLoss, suffix: &str) -> Vec<Case> {
    let classes = shape[1] as u32;
    let (labels, label_shape) = match shape {
        [n, _] if loss.mixed_labels => (Fill::Mixed { classes }, vec![*n, MIXED_LABEL_LEN]),
        _ => (Fill::Labels { classes }, [&shape[..1], &shape[2..]].concat()),
    };
    // Logits of samples have the master precision.
    let class = if shape.len() == 2 { DTypeClass::Master } else { DTypeClass::Compute };
    let case =
        |loss_scaled: bool| {
            let loss = DistillationLoss { loss_scaled, ..loss };
            let scaled = if loss_scaled { "scaled " } else { "" };
            let mut case = Case::new(format!("{scaled}distillation_loss {}{suffix}", extents(shape)), loss)
                .filled("logits", shape, class, fill)
                .filled("teacher", shape, class, fill)
                .filled("labels", &label_shape, DTypeClass::Label, labels);
            if loss_scaled {
                case = case.loss_scale(numbers(-6.0, 5.0, 0.0, 7.0)).loss_scaled_only();
            }
            if loss.partial {
                let counts = Fill::Integers { low: 0, high: 90 };
                case = case.filled("label_counts", &shape[1..2], DTypeClass::Sums, counts);
            }
            let before = Fill::Integers { low: 1, high: 9 };
            let slopes = Fill::Uniform { low: -0.1, high: 0.1 };
            case.update("metrics", &[METRICS_FIELDS.len()], Role::Metrics, before, DTypeClass::Metrics)
                .update("dlogits", shape, Role::Buffer, slopes, DTypeClass::Compute)
        };
    vec![case(false), case(true)]
}
