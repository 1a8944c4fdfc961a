//! Softmax and cross-entropy: few and many classes, equal logits, large logits, ignored labels, smoothed
//! labels, mixed samples, class weights, parts of a batch.

use super::loss_scale::numbers;
use super::{Case, CaseTable, DTypeClass, Fill, extents};
use stratus_engine::Role;
use stratus_engine::ops::{METRICS_FIELDS, MIXED_LABEL_LEN, SoftmaxCrossEntropy};

pub(super) const TABLE: CaseTable = CaseTable { tests, benchmarks };

fn tests() -> Vec<Case> {
    let uniform = Fill::Uniform { low: -3.0, high: 3.0 };
    let mut cases = Vec::new();
    for shape in [[2, 10], [64, 10], [1, 2], [7, 3], [5, 17], [3, 100], [2, 1]] {
        cases.extend(kernels(shape, uniform, PLAIN, ""));
    }
    cases.extend(kernels([9, 12], uniform, SMOOTHED, " smoothed"));
    cases.extend(kernels([16, 8], Fill::Integers { low: 0, high: 2 }, PLAIN, " ties"));
    cases.extend(kernels([6, 10], Fill::Uniform { low: -300.0, high: 300.0 }, PLAIN, " large"));
    let mixed = SoftmaxCrossEntropy { mixed_labels: true, ..PLAIN };
    for shape in [[16, 10], [700, 7], [9, 2], [5, 1]] {
        cases.extend(kernels(shape, uniform, mixed, " mixed"));
    }
    cases.extend(kernels(
        [16, 12],
        uniform,
        SoftmaxCrossEntropy { mixed_labels: true, ..SMOOTHED },
        " mixed smoothed",
    ));
    for loss in [PLAIN, SMOOTHED, mixed, SoftmaxCrossEntropy { mixed_labels: true, ..SMOOTHED }] {
        let suffix = match (loss.mixed_labels, loss.smoothing > 0.0) {
            (false, false) => " weighted",
            (false, true) => " weighted smoothed",
            (true, false) => " weighted mixed",
            (true, true) => " weighted mixed smoothed",
        };
        for shape in [[64, 10], [5, 17], [3, 100], [1, 2]] {
            cases.extend(kernels(
                shape,
                uniform,
                SoftmaxCrossEntropy { class_weighted: true, ..loss },
                suffix,
            ));
        }
    }
    let beside_a_teacher = SoftmaxCrossEntropy { main_weight: Some(0.3), ..PLAIN };
    cases.extend(kernels([19, 7], uniform, beside_a_teacher, " beside a teacher"));
    let weighted = SoftmaxCrossEntropy { class_weighted: true, ..PLAIN };
    let large = Fill::Uniform { low: -300.0, high: 300.0 };
    cases.extend(kernels([6, 10], large, weighted, " weighted large"));
    let partial = [
        (PLAIN, " partial"),
        (mixed, " partial mixed"),
        (weighted, " partial weighted"),
        (
            SoftmaxCrossEntropy { class_weighted: true, mixed_labels: true, ..SMOOTHED },
            " partial weighted mixed smoothed",
        ),
    ];
    for (loss, suffix) in partial {
        for shape in [[64, 10], [3, 700]] {
            cases.extend(kernels(shape, uniform, SoftmaxCrossEntropy { partial: true, ..loss }, suffix));
        }
    }
    cases
}

fn benchmarks() -> Vec<Case> {
    kernels([64, 1000], Fill::Uniform { low: -3.0, high: 3.0 }, PLAIN, "")
}

const PLAIN: SoftmaxCrossEntropy = SoftmaxCrossEntropy {
    auxiliary: None,
    main_weight: None,
    smoothing: 0.0,
    mixed_labels: false,
    class_weighted: false,
    loss_scaled: false,
    partial: false,
};
const SMOOTHED: SoftmaxCrossEntropy = SoftmaxCrossEntropy { smoothing: 0.1, ..PLAIN };

/// With and without the gradient of the logits, and as an auxiliary loss.
fn kernels(shape: [usize; 2], fill: Fill, loss: SoftmaxCrossEntropy, suffix: &str) -> Vec<Case> {
    let classes = shape[1] as u32;
    let labels = if loss.mixed_labels { Fill::Mixed { classes } } else { Fill::Labels { classes } };
    let each = if loss.mixed_labels { &[shape[0], MIXED_LABEL_LEN][..] } else { &shape[..1] };
    let case = |kernel: &str, loss: SoftmaxCrossEntropy| {
        let scaled = if loss.loss_scaled { "scaled " } else { "" };
        let mut case = Case::new(format!("{scaled}{kernel} {}{suffix}", extents(&shape)), loss)
            .filled("logits", &shape, DTypeClass::Master, fill)
            .filled("labels", each, DTypeClass::Label, labels);
        if loss.class_weighted {
            let weights = Fill::Uniform { low: 0.25, high: 4.0 };
            case = case.filled("class_weights", &shape[1..], DTypeClass::Master, weights);
        }
        if loss.loss_scaled {
            case = case.loss_scale(numbers(-6.0, 5.0, 0.0, 7.0)).loss_scaled_only();
        }
        let counts = Fill::Integers { low: 0, high: 90 };
        if loss.partial { case.filled("label_counts", &shape[1..], DTypeClass::Sums, counts) } else { case }
    };
    let metrics = [METRICS_FIELDS.len()];
    let main_loss = |kernel: &str, loss| case(kernel, loss).output("metrics", &metrics, DTypeClass::Metrics);
    let gradient = |scaled| {
        let loss = SoftmaxCrossEntropy { loss_scaled: scaled, ..loss };
        main_loss("softmax_cross_entropy_gradient", loss).output("dlogits", &shape, DTypeClass::Compute)
    };
    let auxiliary = |scaled| {
        let before = Fill::Integers { low: 1, high: 9 };
        case(
            "auxiliary_cross_entropy",
            SoftmaxCrossEntropy { auxiliary: Some(0.3), loss_scaled: scaled, ..loss },
        )
        .update("metrics", &metrics, Role::Metrics, before, DTypeClass::Metrics)
        .output("dlogits", &shape, DTypeClass::Compute)
    };
    vec![
        main_loss("softmax_cross_entropy", loss),
        gradient(false),
        auxiliary(false),
        gradient(true),
        auxiliary(true),
    ]
}
