//! Stems: images and kernels of odd sizes, several channels, and outputs that no pooling window covers.

use super::{Case, CaseTable, DTypeClass, Fill, extents};
use stratus_engine::Role;
use stratus_engine::ops::{Stem, StemApply, StemGradients, StemInference, StemStatistics};
use stratus_graph::ops::{BatchNorm2d, Conv2d, MaxPool2d};

pub(super) const TABLE: CaseTable = CaseTable { tests, benchmarks };

fn tests() -> Vec<Case> {
    let dense = |channels, filters, kernel, padding| Conv2d::new(channels, filters, kernel, 1, padding);
    let one_sided =
        Conv2d { kernel: [2, 5], padding_before: [0, 3], padding_after: [1, 1], ..dense(1, 8, 1, 0) };
    [
        (dense(1, 8, 3, 1), 2, [28, 28]),
        (dense(1, 16, 3, 1), 3, [9, 7]),
        (dense(1, 24, 4, 0), 1, [5, 20]),
        (dense(3, 8, 2, 1), 2, [6, 33]),
        (dense(3, 8, 1, 0), 5, [2, 2]),
        (one_sided, 2, [12, 17]),
        (dense(2, 16, 2, 0), 2, [3, 65]),
    ]
    .into_iter()
    .flat_map(|(conv, batch, size)| {
        [false, true].into_iter().flat_map(move |relu| kernels(conv, relu, batch, size))
    })
    .collect()
}

fn benchmarks() -> Vec<Case> {
    kernels(Conv2d::new(1, 8, 3, 1, 1), true, 256, [28, 28])
}

/// The kernels of one stem.
fn kernels(conv: Conv2d, relu: bool, batch: usize, size: [usize; 2]) -> Vec<Case> {
    let norm = BatchNorm2d::new(conv.out_channels);
    let (Some(stem), Ok([height, width])) = (Stem::new(conv, norm, relu, Stem::POOL), conv.output_size(size))
    else {
        return Vec::new();
    };
    let images = [batch, conv.in_channels, size[0], size[1]];
    let (weight, channels, taps) = (conv.weight_shape(), [conv.out_channels], stem.taps());
    let y = Stem::POOL.output_shape([batch, conv.out_channels, height, width]);
    let name = |kernel: &str| {
        let relu = if relu { " relu" } else { "" };
        format!("{kernel} {} by {}{relu}", extents(&images), extents(&weight))
    };
    let between = |low, high| Fill::Uniform { low, high };
    let around = |case: Case| {
        case.input("images", &images, DTypeClass::Compute).parameter("weight", &weight, DTypeClass::Compute)
    };
    let statistics = around(Case::new(name("stem_statistics"), StemStatistics { stem }))
        .update("running_mean", &channels, Role::Buffer, between(-1.0, 1.0), DTypeClass::Master)
        .update("running_var", &channels, Role::Buffer, between(0.5, 2.0), DTypeClass::Master)
        .output("mean", &channels, DTypeClass::Master)
        .output("inverse_deviation", &channels, DTypeClass::Master)
        .output("correlation", &[taps + 1, taps], DTypeClass::Sums);
    let normalised = |case: Case, mean, deviation| {
        around(case)
            .parameter("norm_weight", &channels, DTypeClass::Master)
            .filled("norm_bias", &channels, DTypeClass::Master, between(-0.4, 1.0))
            .filled(mean, &channels, DTypeClass::Master, between(-0.2, 0.2))
            .filled(deviation, &channels, DTypeClass::Master, between(0.8, 1.5))
    };
    let apply = normalised(Case::new(name("stem_apply"), StemApply { stem }), "mean", "inverse_deviation")
        .output("y", &y, DTypeClass::Compute)
        .output("index", &y, DTypeClass::Index);
    let inference =
        normalised(Case::new(name("stem_inference"), StemInference { stem }), "running_mean", "running_var")
            .output("y", &y, DTypeClass::Compute);
    let window = Stem::POOL.window;
    let pool = MaxPool2d { kernel: window, stride: window, padding: [0, 0], ceil_mode: false };
    let gradients = around(Case::new(name("stem_gradients"), StemGradients { stem }))
        .input("dy", &y, DTypeClass::Compute)
        .parameter("norm_weight", &channels, DTypeClass::Master)
        .filled("mean", &channels, DTypeClass::Master, between(-0.2, 0.2))
        .filled("inverse_deviation", &channels, DTypeClass::Master, between(0.8, 1.5))
        .filled("correlation", &[taps + 1, taps], DTypeClass::Sums, between(-20.0, 20.0))
        .filled(
            "index",
            &y,
            DTypeClass::Index,
            Fill::PoolIndices { pool, size: [height, width], mask_relu: relu },
        )
        .output("dweight", &weight, DTypeClass::Master)
        .output("dnorm_weight", &channels, DTypeClass::Master)
        .output("dnorm_bias", &channels, DTypeClass::Master)
        .output("sums", &[conv.out_channels, taps + 1], DTypeClass::Sums);
    // Statistics do not depend on ReLU.
    let mut cases = if relu { Vec::new() } else { vec![statistics] };
    cases.extend([apply, inference, gradients]);
    cases
}
