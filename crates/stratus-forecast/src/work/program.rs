//! The work of Stratus, from the steps of a program.

use super::{ConvExtents, FEATURE_COUNT, Kernel, KernelFeatures, KernelKind, Pass, Work};
use stratus_engine::ops::{Kernel as Operation, KernelSpec, WorkKind};
use stratus_engine::{Program, Value, ValueId};
use stratus_graph::ops::Conv2d;

/// The work of a program. On `tensor_cores` (or AMX), no convolution uses minimal filtering.
#[must_use]
pub fn work(program: &Program, tensor_cores: bool) -> Work {
    Work { kernels: (0..program.steps.len()).map(|at| kernel(program, at, tensor_cores)).collect() }
}

/// The work of TensorFlow for a program without fusion, with separate kernels for biases and their gradients.
#[must_use]
pub fn tensorflow(program: &Program) -> Work {
    let mut kernels = Vec::new();
    for position in 0..program.steps.len() {
        let step = &program.steps[position];
        let mut main = kernel(program, position, false);
        if matches!(step.kernel, Operation::BatchNormStatistics(_) | Operation::BatchNormGradients(_)) {
            // TensorFlow runs this step and the following one as a single kernel.
            main.launches = 0.0;
        }
        kernels.push(main);
        let (map, kind, passes) = match &step.kernel {
            Operation::Conv2dForward(forward) if forward.conv.bias => {
                (step.outputs.first(), KernelKind::Elementwise, 2.0)
            }
            Operation::LinearForward(_) => (step.outputs.first(), KernelKind::Elementwise, 2.0),
            Operation::Conv2dBackwardWeights(backward) if backward.conv.bias => {
                (step.inputs.get(1), KernelKind::BiasGradient, 1.0)
            }
            Operation::LinearBackwardWeights(_) => (step.inputs.get(1), KernelKind::BiasGradient, 1.0),
            _ => continue,
        };
        let bytes = passes * map.map_or(0.0, |&id| program.value(id).bytes() as f64);
        kernels.push(Kernel {
            layer: program.layer_name(step),
            name: "bias".to_owned(),
            kind,
            flops: 0.0,
            bytes,
            product: None,
            launches: 1.0,
            features: [0.0; FEATURE_COUNT],
        });
    }
    Work { kernels }
}

fn kernel(program: &Program, position: usize, tensor_cores: bool) -> Kernel {
    let step = &program.steps[position];
    let tiles = program.tiles(position) as f64;
    let operands: Vec<&Value> = step.operands().map(|id| program.value(id)).collect();
    let convolution = convolution(&step.kernel, &operands).filter(|_| operands.len() > 2);
    let (kind, product) = match convolution {
        Some((extents, pass)) => {
            let kind = match extents.kind(pass) {
                KernelKind::Filtering if tensor_cores => KernelKind::Convolution,
                kind => kind,
            };
            let dense = matches!(kind, KernelKind::Filtering | KernelKind::Convolution);
            (kind, dense.then(|| extents.product(pass)))
        }
        None => (kind(&step.kernel), None),
    };
    let (flops, bytes) = (program.step_flops(position) as f64, bytes(program, position));
    let ends = [operands.first(), operands.last()].map(|value| value.map_or(&[][..], |value| &value.shape));
    Kernel {
        layer: program.layer_name(step),
        name: step.kernel.name().to_owned(),
        kind,
        flops,
        bytes,
        product,
        launches: tiles,
        features: sizes(ends, [flops, bytes], tiles),
    }
}

fn sizes([first, last]: [&[usize]; 2], [flops, bytes]: [f64; 2], tiles: f64) -> KernelFeatures {
    let at = |shape: &[usize], at: usize| shape.get(at).copied().unwrap_or(1) as f64;
    let pixels = |shape: &[usize]| shape.iter().skip(2).product::<usize>() as f64;
    let counts = [at(first, 0), at(first, 1), pixels(first), at(last, 0), at(last, 1), pixels(last)];
    let log = |number: f64| number.max(1.0).log2();
    let [samples, channels, pixels, last_samples, last_channels, last_pixels] = counts.map(log);
    [
        samples,
        channels,
        pixels,
        last_samples,
        last_channels,
        last_pixels,
        0.5 * log(flops),
        0.5 * log(bytes),
        log(tiles),
    ]
}

/// Bytes of the operands over all tiles, without padding.
fn bytes(program: &Program, position: usize) -> f64 {
    let (step, tiles) = (&program.steps[position], program.tiles(position));
    let seen = program.operands(position);
    let seen: Vec<&Value> = seen.iter().collect();
    let operand_bytes = |(at, id): (usize, ValueId)| {
        let value = program.value(id);
        // A value with the rows of a single tile is read once per tile.
        let every_tile = tiles > 1 && value.per_sample && !program.is_tiled(id, tiles);
        let bytes = value.bytes() as f64 * if every_tile { tiles as f64 } else { 1.0 };
        let touched = step.kernel.channels_touched(&seen, at).zip(value.shape.get(1));
        touched.map_or(bytes, |(touched, all)| bytes * touched as f64 / (*all).max(1) as f64)
    };
    step.operands().enumerate().map(operand_bytes).sum()
}

/// The extents of the forward pass of a convolution, and which of its kernels this is.
fn convolution(kernel: &Operation, operands: &[&Value]) -> Option<(ConvExtents, Pass)> {
    let last = operands.len().checked_sub(1)?;
    let (conv, x, y, pass) = match kernel {
        Operation::Conv2dForward(k) => (k.conv, operands[0], operands[last], Pass::Forward),
        Operation::Conv2dBackwardData(k) => (k.conv, operands[last], operands[0], Pass::BackwardData),
        Operation::Conv2dBackwardWeights(k) => {
            (k.conv, operands[0], *operands.get(1)?, Pass::BackwardWeights)
        }
        _ => return None,
    };
    Some((extents(&conv, x, y)?, pass))
}

fn extents(conv: &Conv2d, x: &Value, y: &Value) -> Option<ConvExtents> {
    let [batch, in_channels, in_height, in_width] = x.shape[..] else { return None };
    let [_, channels, height, width] = y.shape[..] else { return None };
    let map = |extents: [usize; 3]| extents.map(|extent| extent as f64);
    Some(ConvExtents {
        batch: batch as f64,
        input: map([in_channels, in_height, in_width]),
        output: map([channels, height, width]),
        kernel: conv.kernel.map(|taps| taps as f64),
        stride: conv.stride[0].max(conv.stride[1]) as f64,
        groups: conv.groups.max(1) as f64,
        dilated: conv.dilation != [1, 1],
    })
}

/// The kind of a kernel that is not a convolution.
fn kind(kernel: &Operation) -> KernelKind {
    match kernel {
        Operation::StemApply(_) | Operation::StemInference(_) | Operation::StemStatistics(_) => {
            KernelKind::FirstForward
        }
        Operation::StemGradients(_) => KernelKind::FirstWeights,
        Operation::BiasGradient(_) => KernelKind::BiasGradient,
        other => match other.work_kind() {
            WorkKind::Elementwise => KernelKind::Elementwise,
            WorkKind::MatrixProduct => KernelKind::Linear,
            WorkKind::Normalisation => KernelKind::Norm,
            WorkKind::Pooling => KernelKind::Pool,
            WorkKind::Update => KernelKind::Update,
        },
    }
}
