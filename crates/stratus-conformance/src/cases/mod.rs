//! The cases, one table per operation: small ones of every kind for tests, and those of real networks for
//! benchmarks. A new operation is a file here.

mod activation;
mod adaptive;
mod add;
mod avg_pool2d;
mod batch_norm;
mod batch_norm_add;
mod channel_scale;
mod channels;
mod clip;
mod concat;
mod conv2d;
mod conv2d_inference;
mod conv_transpose2d;
mod convert;
mod count_labels;
mod distillation;
mod dropout;
mod dropout2d;
mod ema;
mod fake_quantise;
mod joined;
mod layer_norm;
mod layer_scale;
mod linear;
mod loss;
mod loss_scale;
mod max_pool2d;
mod pixel_loss;
mod pixels;
mod prelu;
mod quantised;
mod relu;
mod resize;
mod scale;
mod sgd;
mod stem;
mod target_loss;

use crate::{Case, DTypeClass, Fill, Operand};
use stratus_engine::Precision;

/// An operation's cases: small ones of every kind for tests, real ones for benchmarks.
struct CaseTable {
    tests: fn() -> Vec<Case>,
    benchmarks: fn() -> Vec<Case>,
}

macro_rules! operation_files {
    ({} $($module:ident: $operation:ident [$($kernel:ident),*];)*) => {
        $(mod $module;)*

        const TABLES: &[CaseTable] = &[
            $($module::TABLE,)*
            activation::TABLE,
            adaptive::TABLE,
            add::TABLE,
            avg_pool2d::TABLE,
            batch_norm::TABLE,
            batch_norm_add::TABLE,
            channel_scale::TABLE,
            channels::TABLE,
            clip::TABLE,
            concat::TABLE,
            conv2d::TABLE,
            conv_transpose2d::TABLE,
            convert::TABLE,
            count_labels::TABLE,
            distillation::TABLE,
            dropout::TABLE,
            dropout2d::TABLE,
            ema::TABLE,
            joined::TABLE,
            layer_norm::TABLE,
            layer_scale::TABLE,
            linear::TABLE,
            loss::TABLE,
            loss_scale::TABLE,
            max_pool2d::TABLE,
            pixel_loss::TABLE,
            pixels::TABLE,
            prelu::TABLE,
            relu::TABLE,
            resize::TABLE,
            scale::TABLE,
            sgd::TABLE,
            stem::TABLE,
            target_loss::TABLE,
        ];
    };
}

stratus_graph::with_operations!(operation_files);

/// Every test case. Not all run in every precision: see [`Case::precisions`] and [`for_precision`].
#[must_use]
pub fn all() -> Vec<Case> {
    TABLES.iter().flat_map(|table| (table.tests)()).collect()
}

/// Every test case of a precision.
#[must_use]
pub fn for_precision(precision: Precision) -> Vec<Case> {
    all().into_iter().filter(|case| case.precisions.contains(&precision)).collect()
}

/// The test cases of int8 inference, and of training for it, which only some backends have, in a precision:
/// that of the maps that are not in int8. Weights are at most `max_weight`, the backend's
/// [`max_int8_weight`](stratus_engine::Backend::max_int8_weight).
#[must_use]
pub fn quantised(precision: Precision, max_weight: i8) -> Vec<Case> {
    let cases = quantised::tests(max_weight).into_iter().chain(fake_quantise::tests());
    cases.filter(|case| case.precisions.contains(&precision)).collect()
}

/// The test cases of fused convolutions in inference, which only some backends have, in a precision: see
/// [`Fusions::inference`](stratus_engine::fusions::Fusions::inference).
#[must_use]
pub fn inference(precision: Precision) -> Vec<Case> {
    let cases = conv2d_inference::tests().into_iter();
    cases.filter(|case| case.precisions.contains(&precision)).collect()
}

/// Kernels at the sizes of real networks, for micro-benchmarks, in a precision.
#[must_use]
pub fn benchmarks(precision: Precision) -> Vec<Case> {
    let cases = TABLES.iter().flat_map(|table| (table.benchmarks)());
    cases.filter(|case| case.precisions.contains(&precision)).collect()
}

/// The text of a shape for names, such as `4x3x5x5`.
fn extents(shape: &[usize]) -> String {
    shape.iter().map(usize::to_string).collect::<Vec<_>>().join("x")
}
