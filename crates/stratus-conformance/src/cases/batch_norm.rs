//! Batch normalisation with every fusion: odd sizes with pixels that no pooling window covers, and one pixel,
//! which has no variance. Channel slices of a larger map: at its start, at its end and between.

use super::{Case, CaseTable, DTypeClass, Fill, Operand, extents};
use stratus_engine::ops::{
    BatchNormApply, BatchNormBackwardData, BatchNormGradients, BatchNormInference,
    BatchNormInferenceBackward, BatchNormStatistics, BatchNormStatisticsFromSums, BatchNormSums,
    ChannelOffsets, FusedActivation, FusedPool,
};
use stratus_engine::{Kernel, Role};
use stratus_graph::Operation;
use stratus_graph::ops::{Activation, BatchNorm2d, HardSwish, MaxPool2d, Relu6, Silu};

pub(super) const TABLE: CaseTable = CaseTable { tests, benchmarks };

/// The fused operations: an activation, and the pooling, if any.
type FusedWith = (FusedActivation, Option<FusedPool>);

const NONE: FusedActivation = FusedActivation::Identity;
const RELU: FusedActivation = FusedActivation::RELU;
const RELU6: FusedActivation = FusedActivation::Relu { ceiling: Some(Relu6::CEILING) };

/// Pooling with disjoint windows.
fn disjoint(window: [usize; 2]) -> Option<FusedPool> {
    Some(FusedPool::disjoint(window))
}

/// Pooling with overlapping square windows.
fn overlapping(kernel: usize, stride: usize, padding: usize, ceil_mode: bool) -> Option<FusedPool> {
    FusedPool::from_pool(&MaxPool2d { ceil_mode, ..MaxPool2d::new(kernel, stride, padding) })
}

fn tests() -> Vec<Case> {
    let fusions: [FusedWith; 11] = [
        (NONE, None),
        (RELU, None),
        (NONE, disjoint([2, 2])),
        (RELU, disjoint([2, 2])),
        (RELU, disjoint([3, 2])),
        (NONE, disjoint([1, 3])),
        (RELU, overlapping(3, 2, 1, false)),
        (NONE, overlapping(3, 2, 0, true)),
        (RELU, overlapping(3, 1, 1, false)),
        (NONE, overlapping(2, 1, 0, false)),
        (RELU, overlapping(5, 3, 2, true)),
    ];
    let shapes = [
        [2, 8, 28, 28],
        [2, 16, 14, 14],
        [2, 32, 7, 7],
        [1, 1, 7, 5],
        [3, 3, 4, 9],
        [2, 17, 6, 5],
        [4, 33, 3, 3],
        [1, 8, 1, 1],
        [5, 3, 1, 1],
    ];
    let mut cases = Vec::new();
    for shape in shapes {
        // A map of one pixel has no gradient, whatever the pooling.
        let one_pixel = [shape[0], shape[2], shape[3]] == [1; 3];
        let is_kept =
            |fused: &FusedWith| !(one_pixel && fused.1.is_some_and(|pool| pool.overlapping.is_some()));
        for fused in fusions.into_iter().filter(is_kept) {
            cases.extend(kernels(shape, fused, Fill::Uniform { low: -1.0, high: 1.5 }));
        }
    }
    for activation in fused_activations() {
        // More channels than a block of a kernel, fewer than a register, and padded blocks of channels.
        for shape in [[2, 16, 14, 14], [3, 3, 4, 9], [2, 17, 6, 5], [2, 1100, 2, 3], [4, 33, 3, 3]] {
            cases.extend(kernels(shape, (activation, None), WIDE));
        }
        for class in [DTypeClass::Compute, DTypeClass::Master] {
            cases.extend(vectors([7, 33], activation, class));
        }
        let (shape, first, map_channels) = SLICES[1];
        let whole = Some([first, map_channels]);
        for [x, y] in [[None, whole], [whole, None], [whole, Some([48, 48 + shape[1]])]] {
            cases.extend(parts(shape, activation, x, y));
        }
    }
    cases.extend([1, 6, 130].map(statistics_from_sums));
    // Vectors, after ReLU and after a linear layer.
    for shape in [[4, 10], [7, 33], [1, 5], [64, 17], [5, 130]] {
        for activation in [NONE, RELU] {
            for class in [DTypeClass::Compute, DTypeClass::Master] {
                cases.extend(vectors(shape, activation, class));
            }
        }
    }
    // Few distinct values: many windows have several maxima.
    cases.extend(kernels([2, 5, 8, 8], (RELU, disjoint([2, 2])), Fill::Integers { low: -1, high: 1 }));
    for (shape, first, map_channels) in SLICES {
        let whole = Some([first, map_channels]);
        // Another map, whose last channels are the slice.
        let other = Some([48, 48 + shape[1]]);
        for activation in [NONE, RELU] {
            for [x, y] in [[None, whole], [whole, None], [whole, other]] {
                cases.extend(parts(shape, activation, x, y));
            }
        }
    }
    cases
}

/// Inputs that reach every piece of an activation with kinks at -3 and 3, or at 0 and 6.
const WIDE: Fill = Fill::Uniform { low: -6.0, high: 9.0 };

/// The activations that are fused into a norm, except for ReLU.
fn fused_activations() -> impl Iterator<Item = FusedActivation> {
    let table = Activation::examples().into_iter().filter_map(FusedActivation::after_norm);
    table.chain([RELU6])
}

/// Shapes of channel slices, their first channel, and the channels of the whole map.
const SLICES: [([usize; 4], usize, usize); 7] = [
    ([2, 16, 5, 7], 0, 48),
    ([3, 32, 4, 6], 16, 96),
    ([2, 48, 14, 14], 32, 80),
    ([1, 160, 3, 3], 16, 192),
    ([2, 5, 6, 3], 16, 21),
    ([4, 1, 2, 2], 32, 33),
    ([2, 130, 1, 3], 16, 146),
];

fn benchmarks() -> Vec<Case> {
    let uniform = Fill::Uniform { low: -1.0, high: 1.5 };
    [
        ([64, 8, 28, 28], (RELU, disjoint([2, 2]))),
        ([64, 16, 14, 14], (RELU, disjoint([2, 2]))),
        ([64, 32, 7, 7], (RELU, None)),
        ([16, 64, 56, 56], (RELU, None)),
        ([16, 256, 56, 56], (NONE, None)),
        ([32, 96, 56, 56], (RELU6, None)),
        ([32, 96, 56, 56], (FusedActivation::Activation(Silu.into()), None)),
        ([32, 96, 56, 56], (FusedActivation::Activation(HardSwish.into()), None)),
        ([32, 64, 112, 112], (RELU, overlapping(3, 2, 1, false))),
        ([32, 192, 56, 56], (RELU, overlapping(3, 2, 0, true))),
    ]
    .into_iter()
    .flat_map(|(shape, fused)| kernels(shape, fused, uniform))
    .chain(vectors([64, 4096], RELU, DTypeClass::Master))
    .chain(parts([32, 32, 28, 28], RELU, None, Some([192, 256])))
    .chain(parts([32, 192, 14, 14], RELU, None, Some([0, 512])))
    .chain(parts([32, 96, 28, 28], RELU, Some([64, 176]), None))
    .chain(parts([32, 16, 28, 28], RELU, Some([160, 176]), None))
    .collect()
}

/// The kernels of a normalisation whose input or output is a channel slice of another map, given by its first
/// channel and the channels of that map.
fn parts(
    shape: [usize; 4],
    activation: FusedActivation,
    x: Option<[usize; 2]>,
    y: Option<[usize; 2]>,
) -> Vec<Case> {
    let mut cases = kernels(shape, (activation, None), Fill::Uniform { low: -1.0, high: 1.5 });
    if x.is_none() {
        // Statistics only read the input.
        let reads =
            |kernel: &Kernel| !matches!(kernel, Kernel::BatchNormStatistics(_) | Kernel::BatchNormSums(_));
        cases.retain(|case| reads(&case.kernel));
    }
    let slices = [("x", x), ("dx", x), ("y", y), ("dy", y)];
    let whole = |operand: &Operand| {
        let (_, slice) = slices.iter().find(|(name, _)| *name == operand.name)?;
        slice.map(|[_, map_channels]| vec![shape[0], map_channels, shape[2], shape[3]])
    };
    let parts = ChannelOffsets { x: x.map(|[first, _]| first), y: y.map(|[first, _]| first) };
    for case in &mut cases {
        for (operand_name, slice) in [("x", x), ("y", y)] {
            case.name += &slice
                .map(|[first, map_channels]| format!(" {operand_name} from {first} of {map_channels}"))
                .unwrap_or_default();
        }
        match &mut case.kernel {
            Kernel::BatchNormStatistics(kernel) => kernel.offset = parts.x,
            Kernel::BatchNormSums(kernel) => kernel.offset = parts.x,
            Kernel::BatchNormApply(kernel) => kernel.offsets = parts,
            Kernel::BatchNormInference(kernel) => kernel.offsets = parts,
            Kernel::BatchNormGradients(kernel) => kernel.offsets = parts,
            Kernel::BatchNormBackwardData(kernel) => kernel.offsets = parts,
            Kernel::BatchNormInferenceBackward(kernel) => kernel.offsets = parts,
            _ => {}
        }
        for operand in &mut case.inputs {
            operand.shape = whole(operand).unwrap_or_else(|| operand.shape.clone());
        }
        // The rest of the whole map must not change.
        for operand in case.outputs.extract_if(.., |operand| whole(operand).is_some()) {
            let fill = Fill::Uniform { low: -1.0, high: 1.0 };
            case.updates.push(Operand { shape: whole(&operand).unwrap_or_default(), fill, ..operand });
        }
    }
    cases
}

/// The statistics of four elements per channel, from their sums. These leave a variance of at least 1/16.
fn statistics_from_sums(channels: usize) -> Case {
    let kernel = BatchNormStatisticsFromSums { norm: BatchNorm2d::new(channels), count: 4 };
    let between = |low, high| Fill::Uniform { low, high };
    Case::new(format!("batch_norm_statistics_from_sums {channels}"), kernel)
        .filled("sums", &[2, channels], DTypeClass::Sums, between(0.5, 1.0))
        .update("running_mean", &[channels], Role::Buffer, between(-1.0, 1.0), DTypeClass::Master)
        .update("running_var", &[channels], Role::Buffer, between(0.5, 2.0), DTypeClass::Master)
        .output("mean", &[channels], DTypeClass::Master)
        .output("inverse_deviation", &[channels], DTypeClass::Master)
}

/// The kernels of a normalisation of vectors of a type class.
fn vectors(shape: [usize; 2], activation: FusedActivation, class: DTypeClass) -> Vec<Case> {
    let mut cases =
        kernels([shape[0], shape[1], 1, 1], (activation, None), Fill::Uniform { low: -1.0, high: 1.5 });
    for case in &mut cases {
        case.name = case.name.replace(&extents(&[shape[0], shape[1], 1, 1]), &extents(&shape));
        case.name += if class == DTypeClass::Master { " of the master precision" } else { "" };
        for operand in case.inputs.iter_mut().chain(&mut case.outputs).filter(|o| o.shape.len() == 4) {
            operand.shape = shape.to_vec();
            if operand.name == "x" {
                operand.dtype_class = class;
            }
        }
    }
    cases
}

/// The name of a pooling.
fn pool_name(pool: FusedPool) -> String {
    let window = extents(&pool.window);
    pool.overlapping.map_or_else(
        || format!(" pool {window}"),
        |MaxPool2d { stride, padding, ceil_mode, .. }| {
            let rounded = if ceil_mode { " ceil" } else { "" };
            format!(" pool {window} stride {} padding {}{rounded}", extents(&stride), extents(&padding))
        },
    )
}

/// The kernels of one normalisation, if the windows fit.
fn kernels(shape: [usize; 4], (activation, pool): FusedWith, fill: Fill) -> Vec<Case> {
    let y = pool.map_or(shape, |pool| pool.output_shape(shape));
    if y.contains(&0) {
        return Vec::new();
    }
    let channels = [shape[1]];
    let (norm, parts) = (BatchNorm2d::new(shape[1]), ChannelOffsets::default());
    let name = |kernel: &str| {
        let relu = match activation {
            FusedActivation::Identity => String::new(),
            FusedActivation::Relu { ceiling: None } => " relu".to_owned(),
            FusedActivation::Relu { ceiling: Some(ceiling) } => format!(" relu up to {ceiling}"),
            FusedActivation::Activation(activation) => {
                format!(" {} {}", activation.name(), activation.attributes()).trim_end().to_owned()
            }
        };
        let pool = pool.map(pool_name).unwrap_or_default();
        let ties = if matches!(fill, Fill::Integers { .. }) { " ties" } else { "" };
        format!("{kernel} {}{relu}{pool}{ties}", extents(&shape))
    };
    let between = |low, high| Fill::Uniform { low, high };
    let statistics = Case::new(name("batch_norm_statistics"), BatchNormStatistics { norm, offset: parts.x })
        .filled("x", &shape, DTypeClass::Compute, fill)
        .update("running_mean", &channels, Role::Buffer, between(-1.0, 1.0), DTypeClass::Master)
        .update("running_var", &channels, Role::Buffer, between(0.5, 2.0), DTypeClass::Master)
        .output("mean", &channels, DTypeClass::Master)
        .output("inverse_deviation", &channels, DTypeClass::Master)
        .output("moments", &[2, shape[1]], DTypeClass::Sums);
    // The other inputs: parameters and batch statistics.
    let around = |kernel: Case| {
        kernel
            .parameter("weight", &channels, DTypeClass::Master)
            .filled("bias", &channels, DTypeClass::Master, between(-0.4, 1.0))
            .filled("mean", &channels, DTypeClass::Master, between(-0.2, 0.2))
            .filled("inverse_deviation", &channels, DTypeClass::Master, between(0.8, 1.5))
    };
    let mut apply =
        Case::new(name("batch_norm_apply"), BatchNormApply { norm, activation, pool, offsets: parts });
    apply = around(apply.filled("x", &shape, DTypeClass::Compute, fill)).output("y", &y, DTypeClass::Compute);
    // For evaluation and for frozen layers.
    let running = |kernel: Case| {
        kernel
            .parameter("weight", &channels, DTypeClass::Master)
            .filled("bias", &channels, DTypeClass::Master, between(-0.4, 1.0))
            .filled("running_mean", &channels, DTypeClass::Master, between(-1.0, 1.0))
            .filled("running_var", &channels, DTypeClass::Master, between(0.5, 2.0))
    };
    let inference = BatchNormInference { norm, activation, pool, offsets: parts };
    let inference = |kernel: &str| {
        let case = Case::new(name(kernel), inference).filled("x", &shape, DTypeClass::Compute, fill);
        running(case).output("y", &y, DTypeClass::Compute)
    };
    let mut cases = vec![inference("batch_norm_inference")];
    let inference_backward = BatchNormInferenceBackward { norm, activation, pool, offsets: parts };
    let mut inference_backward = running(
        Case::new(name("batch_norm_inference_backward"), inference_backward)
            .filled("x", &shape, DTypeClass::Compute, fill)
            .input("dy", &y, DTypeClass::Compute),
    );
    let backward = |case: Case| {
        around(case.filled("x", &shape, DTypeClass::Compute, fill).input("dy", &y, DTypeClass::Compute))
    };
    let mut gradients = backward(Case::new(
        name("batch_norm_gradients"),
        BatchNormGradients { norm, activation, pool, offsets: parts },
    ));
    let mut data = backward(Case::new(
        name("batch_norm_backward_data"),
        BatchNormBackwardData { norm, activation, pool, offsets: parts },
    ))
    .filled("dweight", &channels, DTypeClass::Master, between(-20.0, 20.0))
    .filled("dbias", &channels, DTypeClass::Master, between(-20.0, 20.0));
    if let Some(pool) = pool {
        apply = apply.output("index", &y, DTypeClass::Index);
        let fill = Fill::PoolIndices {
            pool: pool.pool(),
            size: [shape[2], shape[3]],
            mask_relu: activation == RELU,
        };
        gradients = gradients.filled("index", &y, DTypeClass::Index, fill);
        data = data.filled("index", &y, DTypeClass::Index, fill);
        inference_backward = inference_backward.filled("index", &y, DTypeClass::Index, fill);
        cases.push(inference("batch_norm_inference with index").output("index", &y, DTypeClass::Index));
    }
    gradients = gradients
        .output("dweight", &channels, DTypeClass::Master)
        .output("dbias", &channels, DTypeClass::Master)
        .output("sums", &[2, shape[1]], DTypeClass::Sums);
    data = data.output("dx", &shape, DTypeClass::Compute);
    inference_backward = inference_backward.output("dx", &shape, DTypeClass::Compute);
    cases.extend([apply, gradients, data, inference_backward]);
    // Statistics do not depend on the fused layers.
    if activation == NONE && pool.is_none() {
        let sums = Case::new(name("batch_norm_sums"), BatchNormSums { norm, offset: parts.x })
            .filled("x", &shape, DTypeClass::Compute, fill)
            .output("sums", &[2, shape[1]], DTypeClass::Sums);
        cases.extend([statistics, sums]);
    }
    cases
}
