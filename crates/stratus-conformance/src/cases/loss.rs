//! Softmax and cross-entropy: few and many classes, equal logits, large logits, labels that do not count,
//! smoothed labels, mixed samples, class weights.

use super::loss_scale::numbers;
use super::{Case, Class, Fill, Table, extents};
use stratus_engine::Role;
use stratus_engine::ops::{Kernel, METRICS, MIXED, SoftmaxCrossEntropy};

pub(super) const TABLE: Table = Table { tests, benchmarks };

fn tests() -> Vec<Case> {
    let uniform = Fill::Uniform { low: -3.0, high: 3.0 };
    let mut cases = Vec::new();
    for shape in [[2, 10], [64, 10], [1, 2], [7, 3], [5, 17], [3, 100], [2, 1]] {
        cases.extend(kernels(shape, uniform, PLAIN, ""));
    }
    cases.extend(kernels([9, 12], uniform, SMOOTHED, " smoothed"));
    cases.extend(kernels([16, 8], Fill::Whole { low: 0, high: 2 }, PLAIN, " ties"));
    cases.extend(kernels([6, 10], Fill::Uniform { low: -300.0, high: 300.0 }, PLAIN, " large"));
    let mixed = SoftmaxCrossEntropy { mixed: true, ..PLAIN };
    for shape in [[16, 10], [700, 7], [9, 2], [5, 1]] {
        cases.extend(kernels(shape, uniform, mixed, " mixed"));
    }
    cases.extend(kernels(
        [16, 12],
        uniform,
        SoftmaxCrossEntropy { mixed: true, ..SMOOTHED },
        " mixed smoothed",
    ));
    for loss in [PLAIN, SMOOTHED, mixed, SoftmaxCrossEntropy { mixed: true, ..SMOOTHED }] {
        let what = match (loss.mixed, loss.smoothing > 0.0) {
            (false, false) => " weighted",
            (false, true) => " weighted smoothed",
            (true, false) => " weighted mixed",
            (true, true) => " weighted mixed smoothed",
        };
        for shape in [[64, 10], [5, 17], [3, 100], [1, 2]] {
            cases.extend(kernels(shape, uniform, SoftmaxCrossEntropy { weighted: true, ..loss }, what));
        }
    }
    let weighted = SoftmaxCrossEntropy { weighted: true, ..PLAIN };
    let large = Fill::Uniform { low: -300.0, high: 300.0 };
    cases.extend(kernels([6, 10], large, weighted, " weighted large"));
    cases
}

fn benchmarks() -> Vec<Case> {
    kernels([64, 1000], Fill::Uniform { low: -3.0, high: 3.0 }, PLAIN, "")
}

const PLAIN: SoftmaxCrossEntropy =
    SoftmaxCrossEntropy { auxiliary: None, smoothing: 0.0, mixed: false, weighted: false, scaled: false };
const SMOOTHED: SoftmaxCrossEntropy = SoftmaxCrossEntropy { smoothing: 0.1, ..PLAIN };

/// With and without the gradient of the logits, and as an auxiliary loss.
fn kernels(shape: [usize; 2], fill: Fill, loss: SoftmaxCrossEntropy, what: &str) -> Vec<Case> {
    let classes = shape[1] as u32;
    let labels = if loss.mixed { Fill::Mixed { classes } } else { Fill::Labels { classes } };
    let each = if loss.mixed { &[shape[0], MIXED][..] } else { &shape[..1] };
    let case = |kernel: &str, auxiliary: Option<f32>| {
        let name = format!("{kernel} {}{what}", extents(&shape));
        let case = Case::new(name, SoftmaxCrossEntropy { auxiliary, ..loss })
            .filled("logits", &shape, Class::Master, fill)
            .filled("labels", each, Class::Label, labels);
        let weights = Fill::Uniform { low: 0.25, high: 4.0 };
        if loss.weighted { case.filled("class_weights", &shape[1..], Class::Master, weights) } else { case }
    };
    let own = |kernel: &str| case(kernel, None).output("metrics", &[METRICS.len()], Class::Metrics);
    let before = Fill::Whole { low: 1, high: 9 };
    let scaled = |mut case: Case| {
        case.kernel =
            SoftmaxCrossEntropy { auxiliary: auxiliary_of(&case.kernel), scaled: true, ..loss }.into();
        case.name = format!("scaled {}", case.name);
        case.loss_scale(numbers(-6.0, 5.0, 0.0, 7.0)).scaled_only()
    };
    let gradient = || own("softmax_cross_entropy_gradient").output("dlogits", &shape, Class::Compute);
    let auxiliary = || {
        case("auxiliary_cross_entropy", Some(0.3))
            .update("metrics", &[METRICS.len()], Role::Metrics, before, Class::Metrics)
            .output("dlogits", &shape, Class::Compute)
    };
    vec![own("softmax_cross_entropy"), gradient(), auxiliary(), scaled(gradient()), scaled(auxiliary())]
}

/// What the loss of a case is multiplied by as an auxiliary one.
fn auxiliary_of(kernel: &Kernel) -> Option<f32> {
    match kernel {
        Kernel::SoftmaxCrossEntropy(loss) => loss.auxiliary,
        _ => None,
    }
}
