//! Per-pixel softmax and cross-entropy: few and many classes, one pixel, more pixels than a kernel processes
//! at a time, equal logits, large logits, class weights, smoothed labels, ignored pixels, parts of a batch,
//! two classes of one logit.

use super::loss_scale::numbers;
use super::{Case, CaseTable, DTypeClass, Fill, extents};
use stratus_engine::Role;
use stratus_engine::ops::{PIXEL_METRICS_FIELDS, PixelCrossEntropy};

pub(super) const TABLE: CaseTable = CaseTable { tests, benchmarks };

const PLAIN: PixelCrossEntropy = PixelCrossEntropy {
    auxiliary: None,
    main_weight: None,
    smoothing: 0.0,
    class_weighted: false,
    binary: false,
    predicts: false,
    loss_scaled: false,
    partial: false,
};

fn tests() -> Vec<Case> {
    let uniform = Fill::Uniform { low: -3.0, high: 3.0 };
    let weighted = PixelCrossEntropy { class_weighted: true, ..PLAIN };
    let mut cases = Vec::new();
    for shape in [[2, 11, 5, 7], [1, 2, 1, 1], [3, 16, 9, 9], [2, 21, 3, 67], [1, 1, 4, 4]] {
        cases.extend(kernels(shape, uniform, PLAIN, ""));
        cases.extend(kernels(shape, uniform, weighted, " weighted"));
    }
    cases.extend(kernels([2, 5, 8, 8], Fill::Integers { low: 0, high: 2 }, PLAIN, " ties"));
    cases.extend(kernels([1, 6, 8, 9], Fill::Uniform { low: -300.0, high: 300.0 }, weighted, " large"));
    let beside_a_teacher = PixelCrossEntropy { main_weight: Some(0.3), ..weighted };
    cases.extend(kernels([2, 6, 5, 7], uniform, beside_a_teacher, " beside a teacher"));
    for loss in [PLAIN, weighted] {
        let loss = PixelCrossEntropy { smoothing: 0.1, ..loss };
        let suffix = if loss.class_weighted { " weighted smoothed" } else { " smoothed" };
        cases.extend(kernels([2, 7, 6, 11], uniform, loss, suffix));
        let suffix = if loss.class_weighted { " partial weighted" } else { " partial" };
        let loss = PixelCrossEntropy { partial: true, smoothing: 0.0, ..loss };
        cases.extend(kernels([2, 7, 6, 11], uniform, loss, suffix));
    }
    cases.extend(binary());
    cases
}

/// Two classes of one logit.
fn binary() -> Vec<Case> {
    let uniform = Fill::Uniform { low: -3.0, high: 3.0 };
    let plain = PixelCrossEntropy { binary: true, ..PLAIN };
    let weighted = PixelCrossEntropy { class_weighted: true, ..plain };
    let smoothed = PixelCrossEntropy { smoothing: 0.1, ..weighted };
    let partial = PixelCrossEntropy { partial: true, ..plain };
    let mut cases = Vec::new();
    for shape in [[2, 1, 5, 7], [1, 1, 1, 1], [3, 1, 9, 9], [2, 1, 3, 67]] {
        cases.extend(kernels(shape, uniform, plain, " binary"));
    }
    let shape = [2, 1, 6, 11];
    cases.extend(kernels(shape, uniform, weighted, " binary weighted"));
    cases.extend(kernels(shape, uniform, smoothed, " binary weighted smoothed"));
    cases.extend(kernels(shape, uniform, partial, " binary partial"));
    let partial = PixelCrossEntropy { partial: true, ..smoothed };
    cases.extend(kernels(shape, uniform, partial, " binary partial weighted smoothed"));
    let beside_a_teacher = PixelCrossEntropy { main_weight: Some(0.3), ..plain };
    cases.extend(kernels(shape, uniform, beside_a_teacher, " binary beside a teacher"));
    cases.extend(kernels(shape, Fill::Integers { low: -1, high: 1 }, plain, " binary ties"));
    cases.extend(kernels(shape, Fill::Uniform { low: -1e4, high: 1e4 }, plain, " binary large"));
    cases
}

fn benchmarks() -> Vec<Case> {
    let weighted = PixelCrossEntropy { class_weighted: true, ..PLAIN };
    kernels([4, 11, 360, 480], Fill::Uniform { low: -3.0, high: 3.0 }, weighted, "")
}

/// With the gradient of the logits, with the predictions, and as an auxiliary loss.
fn kernels(shape: [usize; 4], fill: Fill, loss: PixelCrossEntropy, suffix: &str) -> Vec<Case> {
    let [n, channels, h, w] = shape;
    let classes = loss.classes(channels);
    let case = |kernel: &str, loss: PixelCrossEntropy| {
        let name = format!("{kernel} {}{suffix}", extents(&shape));
        let mut case = Case::new(name, loss).filled("logits", &shape, DTypeClass::Compute, fill).filled(
            "labels",
            &[n, h, w],
            DTypeClass::Label,
            Fill::Labels { classes: classes as u32 },
        );
        if loss.class_weighted {
            let weights = Fill::Uniform { low: 0.25, high: 4.0 };
            case = case.filled("class_weights", &[classes], DTypeClass::Master, weights);
        }
        if loss.loss_scaled {
            case = case.loss_scale(numbers(-6.0, 5.0, 0.0, 7.0)).loss_scaled_only();
        }
        let counts = Fill::Integers { low: 0, high: 900 };
        if loss.partial { case.filled("label_counts", &[classes], DTypeClass::Sums, counts) } else { case }
    };
    let metrics = [PIXEL_METRICS_FIELDS.len()];
    let gradient = |loss: PixelCrossEntropy| {
        let name = if loss.loss_scaled {
            "scaled pixel_cross_entropy_gradient"
        } else {
            "pixel_cross_entropy_gradient"
        };
        case(name, loss).output("metrics", &metrics, DTypeClass::Metrics).output(
            "dlogits",
            &shape,
            DTypeClass::Compute,
        )
    };
    let predictions = case("pixel_cross_entropy_predictions", PixelCrossEntropy { predicts: true, ..loss })
        .output("metrics", &metrics, DTypeClass::Metrics)
        .output("predictions", &[n, h, w], DTypeClass::Label);
    let auxiliary = |scaled: bool| {
        let loss = PixelCrossEntropy { auxiliary: Some(0.3), loss_scaled: scaled, ..loss };
        let name =
            if scaled { "scaled auxiliary_pixel_cross_entropy" } else { "auxiliary_pixel_cross_entropy" };
        case(name, loss)
            .update(
                "metrics",
                &metrics,
                Role::Metrics,
                Fill::Integers { low: 1, high: 9 },
                DTypeClass::Metrics,
            )
            .output("dlogits", &shape, DTypeClass::Compute)
    };
    vec![
        gradient(loss),
        gradient(PixelCrossEntropy { loss_scaled: true, ..loss }),
        predictions,
        auxiliary(false),
        auxiliary(true),
    ]
}
