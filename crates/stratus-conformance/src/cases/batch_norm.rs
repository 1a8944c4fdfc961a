//! Batch normalisation with every fusion: odd sizes leave a rest that no pooling window covers, one pixel
//! has no variance. As part of a larger map: at its beginning, its end and between.

use super::{Case, Class, Fill, Operand, Table, extents};
use stratus_engine::ops::{
    BatchNormApply, BatchNormBackwardData, BatchNormGradients, BatchNormInference,
    BatchNormInferenceBackward, BatchNormStatistics, FusedPool, Parts,
};
use stratus_engine::{Kernel, Role};
use stratus_graph::ops::{BatchNorm2d, MaxPool2d};

pub(super) const TABLE: Table = Table { tests, benchmarks };

/// Whether the result is rectified, and how it is pooled.
type Fused = (bool, Option<FusedPool>);

/// Pooling by windows that lie side by side.
fn apart(window: [usize; 2]) -> Option<FusedPool> {
    Some(FusedPool::disjoint(window))
}

/// Pooling by square windows that overlap.
fn overlapping(kernel: usize, stride: usize, padding: usize, ceil_mode: bool) -> Option<FusedPool> {
    FusedPool::from_pool(&MaxPool2d { ceil_mode, ..MaxPool2d::new(kernel, stride, padding) })
}

fn tests() -> Vec<Case> {
    let fusions: [Fused; 11] = [
        (false, None),
        (true, None),
        (false, apart([2, 2])),
        (true, apart([2, 2])),
        (true, apart([3, 2])),
        (false, apart([1, 3])),
        (true, overlapping(3, 2, 1, false)),
        (false, overlapping(3, 2, 0, true)),
        (true, overlapping(3, 1, 1, false)),
        (false, overlapping(2, 1, 0, false)),
        (true, overlapping(5, 3, 2, true)),
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
        // A map of one pixel has no gradient, however it is pooled.
        let one_pixel = [shape[0], shape[2], shape[3]] == [1; 3];
        let is_kept = |fused: &Fused| !(one_pixel && fused.1.is_some_and(|pool| pool.overlapping.is_some()));
        for fused in fusions.into_iter().filter(is_kept) {
            cases.extend(kernels(shape, fused, Fill::Uniform { low: -1.0, high: 1.5 }));
        }
    }
    // Vectors, behind a rectifier and behind a linear layer.
    for shape in [[4, 10], [7, 33], [1, 5], [64, 17], [5, 130]] {
        for relu in [false, true] {
            for class in [Class::Compute, Class::Master] {
                cases.extend(vectors(shape, relu, class));
            }
        }
    }
    // Few different numbers: many windows have several winners.
    cases.extend(kernels([2, 5, 8, 8], (true, apart([2, 2])), Fill::Whole { low: -1, high: 1 }));
    for (shape, first, of) in PARTS {
        let whole = Some([first, of]);
        // Another map, which ends with the part.
        let other = Some([48, 48 + shape[1]]);
        for relu in [false, true] {
            for [x, y] in [[None, whole], [whole, None], [whole, other]] {
                cases.extend(parts(shape, relu, x, y));
            }
        }
    }
    cases
}

/// The shapes of parts, the channels of the whole map before them, and those of all of it.
const PARTS: [([usize; 4], usize, usize); 7] = [
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
        ([64, 8, 28, 28], (true, apart([2, 2]))),
        ([64, 16, 14, 14], (true, apart([2, 2]))),
        ([64, 32, 7, 7], (true, None)),
        ([16, 64, 56, 56], (true, None)),
        ([16, 256, 56, 56], (false, None)),
        ([32, 64, 112, 112], (true, overlapping(3, 2, 1, false))),
        ([32, 192, 56, 56], (true, overlapping(3, 2, 0, true))),
    ]
    .into_iter()
    .flat_map(|(shape, fused)| kernels(shape, fused, uniform))
    .chain(vectors([64, 4096], true, Class::Master))
    .chain(parts([32, 32, 28, 28], true, None, Some([192, 256])))
    .chain(parts([32, 192, 14, 14], true, None, Some([0, 512])))
    .chain(parts([32, 96, 28, 28], true, Some([64, 176]), None))
    .chain(parts([32, 16, 28, 28], true, Some([160, 176]), None))
    .collect()
}

/// The kernels of a normalisation of which the input or the result is the channels of another map: from
/// which on, and how many that has.
fn parts(shape: [usize; 4], relu: bool, x: Option<[usize; 2]>, y: Option<[usize; 2]>) -> Vec<Case> {
    let mut cases = kernels(shape, (relu, None), Fill::Uniform { low: -1.0, high: 1.5 });
    if x.is_none() {
        // The statistics are those of the map alone.
        cases.retain(|case| !matches!(case.kernel, Kernel::BatchNormStatistics(_)));
    }
    let places = [("x", x), ("dx", x), ("y", y), ("dy", y)];
    let whole = |operand: &Operand| {
        let (_, place) = places.iter().find(|(name, _)| *name == operand.name)?;
        place.map(|[_, of]| vec![shape[0], of, shape[2], shape[3]])
    };
    let parts = Parts { x: x.map(|[first, _]| first), y: y.map(|[first, _]| first) };
    for case in &mut cases {
        for (what, place) in [("x", x), ("y", y)] {
            case.name +=
                &place.map(|[first, of]| format!(" {what} from {first} of {of}")).unwrap_or_default();
        }
        match &mut case.kernel {
            Kernel::BatchNormStatistics(kernel) => kernel.part = parts.x,
            Kernel::BatchNormApply(kernel) => kernel.parts = parts,
            Kernel::BatchNormInference(kernel) => kernel.parts = parts,
            Kernel::BatchNormGradients(kernel) => kernel.parts = parts,
            Kernel::BatchNormBackwardData(kernel) => kernel.parts = parts,
            Kernel::BatchNormInferenceBackward(kernel) => kernel.parts = parts,
            _ => {}
        }
        for operand in &mut case.inputs {
            operand.shape = whole(operand).unwrap_or_else(|| operand.shape.clone());
        }
        // What was written of the whole before stays as it is.
        for operand in case.outputs.extract_if(.., |operand| whole(operand).is_some()) {
            let fill = Fill::Uniform { low: -1.0, high: 1.0 };
            case.updates.push(Operand { shape: whole(&operand).unwrap_or_default(), fill, ..operand });
        }
    }
    cases
}

/// The kernels of a normalisation of vectors of a class.
fn vectors(shape: [usize; 2], relu: bool, class: Class) -> Vec<Case> {
    let mut cases = kernels([shape[0], shape[1], 1, 1], (relu, None), Fill::Uniform { low: -1.0, high: 1.5 });
    for case in &mut cases {
        case.name = case.name.replace(&extents(&[shape[0], shape[1], 1, 1]), &extents(&shape));
        case.name += if class == Class::Master { " of the master precision" } else { "" };
        for operand in case.inputs.iter_mut().chain(&mut case.outputs).filter(|o| o.shape.len() == 4) {
            operand.shape = shape.to_vec();
            if operand.name == "x" {
                operand.class = class;
            }
        }
    }
    cases
}

/// How a pooling is told from others.
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

/// The kernels of one normalisation, where the windows fit.
fn kernels(shape: [usize; 4], (relu, pool): Fused, fill: Fill) -> Vec<Case> {
    let y = pool.map_or(shape, |pool| pool.output_shape(shape));
    if y.contains(&0) {
        return Vec::new();
    }
    let channels = [shape[1]];
    let (norm, parts) = (BatchNorm2d::new(shape[1]), Parts::default());
    let name = |kernel: &str| {
        let relu = if relu { " relu" } else { "" };
        let pool = pool.map(pool_name).unwrap_or_default();
        let whole = if matches!(fill, Fill::Whole { .. }) { " ties" } else { "" };
        format!("{kernel} {}{relu}{pool}{whole}", extents(&shape))
    };
    let between = |low, high| Fill::Uniform { low, high };
    let statistics = Case::new(name("batch_norm_statistics"), BatchNormStatistics { norm, part: parts.x })
        .filled("x", &shape, Class::Compute, fill)
        .update("running_mean", &channels, Role::Buffer, between(-1.0, 1.0), Class::Master)
        .update("running_var", &channels, Role::Buffer, between(0.5, 2.0), Class::Master)
        .output("mean", &channels, Class::Master)
        .output("inverse_deviation", &channels, Class::Master)
        .output("moments", &[2, shape[1]], Class::Sums);
    // What normalises: the map, its parameters, and the statistics of its batch.
    let around = |kernel: Case| {
        kernel
            .parameter("weight", &channels, Class::Master)
            .filled("bias", &channels, Class::Master, between(-0.4, 1.0))
            .filled("mean", &channels, Class::Master, between(-0.2, 0.2))
            .filled("inverse_deviation", &channels, Class::Master, between(0.8, 1.5))
    };
    let mut apply = Case::new(name("batch_norm_apply"), BatchNormApply { norm, relu, pool, parts });
    apply = around(apply.filled("x", &shape, Class::Compute, fill)).output("y", &y, Class::Compute);
    // In evaluation, and in training where the layer is frozen.
    let running = |kernel: Case| {
        kernel
            .parameter("weight", &channels, Class::Master)
            .filled("bias", &channels, Class::Master, between(-0.4, 1.0))
            .filled("running_mean", &channels, Class::Master, between(-1.0, 1.0))
            .filled("running_var", &channels, Class::Master, between(0.5, 2.0))
    };
    let inference = BatchNormInference { norm, relu, pool, parts };
    let inference = |what: &str| {
        let case = Case::new(name(what), inference).filled("x", &shape, Class::Compute, fill);
        running(case).output("y", &y, Class::Compute)
    };
    let mut cases = vec![inference("batch_norm_inference")];
    let inference_backward = BatchNormInferenceBackward { norm, relu, pool, parts };
    let mut inference_backward = running(
        Case::new(name("batch_norm_inference_backward"), inference_backward)
            .filled("x", &shape, Class::Compute, fill)
            .input("dy", &y, Class::Compute),
    );
    let backward =
        |case: Case| around(case.filled("x", &shape, Class::Compute, fill).input("dy", &y, Class::Compute));
    let mut gradients =
        backward(Case::new(name("batch_norm_gradients"), BatchNormGradients { norm, relu, pool, parts }));
    let mut data = backward(Case::new(
        name("batch_norm_backward_data"),
        BatchNormBackwardData { norm, relu, pool, parts },
    ))
    .filled("dweight", &channels, Class::Master, between(-20.0, 20.0))
    .filled("dbias", &channels, Class::Master, between(-20.0, 20.0));
    if let Some(pool) = pool {
        apply = apply.output("index", &y, Class::Index);
        let fill = Fill::Window { pool: pool.pool(), size: [shape[2], shape[3]], cut: relu };
        gradients = gradients.filled("index", &y, Class::Index, fill);
        data = data.filled("index", &y, Class::Index, fill);
        inference_backward = inference_backward.filled("index", &y, Class::Index, fill);
        cases.push(inference("batch_norm_inference with index").output("index", &y, Class::Index));
    }
    gradients = gradients
        .output("dweight", &channels, Class::Master)
        .output("dbias", &channels, Class::Master)
        .output("sums", &[2, shape[1]], Class::Sums);
    data = data.output("dx", &shape, Class::Compute);
    inference_backward = inference_backward.output("dx", &shape, Class::Compute);
    cases.extend([apply, gradients, data, inference_backward]);
    // They are the same whatever comes behind.
    if !relu && pool.is_none() {
        cases.push(statistics);
    }
    cases
}
