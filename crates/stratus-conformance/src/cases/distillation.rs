//! The loss by the logits of a teacher: rows and maps, few and many classes, one class, temperatures, equal
//! and large logits, ignored and mixed labels, parts of a batch, outputs that are compared one by one.

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
    cases.extend(by_output());
    cases
}

/// Outputs that are compared one by one.
fn by_output() -> Vec<Case> {
    let mut cases = Vec::new();
    let sigmoid = DistillationLoss { function: DistillationFunction::Sigmoid, ..PLAIN };
    let squared = DistillationLoss { function: DistillationFunction::SquaredError, ..PLAIN };
    for (loss, suffix) in [(sigmoid, " sigmoid"), (squared, " squared")] {
        for shape in [[2, 10], [70, 9], [1, 1], [3, 700]] {
            cases.extend(kernels(&shape, UNIFORM, loss, suffix));
        }
        let partial = DistillationLoss { partial: true, ..loss };
        cases.extend(kernels(&[64, 10], UNIFORM, partial, &format!("{suffix} partial")));
        cases.extend(kernels(&[16, 8], Fill::Integers { low: 0, high: 2 }, loss, &format!("{suffix} ties")));
    }
    for shape in [[2, 1, 5, 7], [1, 1, 1, 1], [3, 1, 9, 9], [2, 1, 3, 67]] {
        cases.extend(kernels(&shape, UNIFORM, sigmoid, " sigmoid"));
    }
    let partial = DistillationLoss { partial: true, ..sigmoid };
    cases.extend(kernels(&[2, 1, 6, 11], UNIFORM, partial, " sigmoid partial"));
    for (temperature, suffix) in [(1.0, " sigmoid temperature 1"), (20.0, " sigmoid temperature 20")] {
        let loss = DistillationLoss { temperature, weight: 1.0, ..sigmoid };
        cases.extend(kernels(&[9, 12], UNIFORM, loss, suffix));
    }
    let large = Fill::Uniform { low: -300.0, high: 300.0 };
    cases.extend(kernels(&[6, 10], large, sigmoid, " sigmoid large"));
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
    let is_softmax = loss.function == DistillationFunction::Softmax;
    let targets = !is_softmax && shape.len() == 2;
    // The length of label counts: a map of one logit has two classes.
    let counted = if is_softmax || targets { shape[1] } else { 2 };
    let (labels, label_shape) = match shape {
        _ if targets => (Fill::Targets { low: 0.0, high: 1.0 }, shape.to_vec()),
        [n, _, h, w] if !is_softmax => (Fill::Labels { classes: 2 }, vec![*n, *h, *w]),
        [n, _] if loss.mixed_labels => (Fill::Mixed { classes }, vec![*n, MIXED_LABEL_LEN]),
        _ => (Fill::Labels { classes }, [&shape[..1], &shape[2..]].concat()),
    };
    // Logits of samples have the master precision.
    let class = if shape.len() == 2 { DTypeClass::Master } else { DTypeClass::Compute };
    let label_class = if targets { DTypeClass::Single } else { DTypeClass::Label };
    let case =
        |loss_scaled: bool| {
            let loss = DistillationLoss { loss_scaled, ..loss };
            let scaled = if loss_scaled { "scaled " } else { "" };
            let mut case = Case::new(format!("{scaled}distillation_loss {}{suffix}", extents(shape)), loss)
                .filled("logits", shape, class, fill)
                .filled("teacher", shape, class, fill)
                .filled("labels", &label_shape, label_class, labels);
            if loss_scaled {
                case = case.loss_scale(numbers(-6.0, 5.0, 0.0, 7.0)).loss_scaled_only();
            }
            if loss.partial {
                let counts = Fill::Integers { low: 0, high: 90 };
                case = case.filled("label_counts", &[counted], DTypeClass::Sums, counts);
            }
            let before = Fill::Integers { low: 1, high: 9 };
            let slopes = Fill::Uniform { low: -0.1, high: 0.1 };
            case.update("metrics", &[METRICS_FIELDS.len()], Role::Metrics, before, DTypeClass::Metrics)
                .update("dlogits", shape, Role::Buffer, slopes, DTypeClass::Compute)
        };
    vec![case(false), case(true)]
}
