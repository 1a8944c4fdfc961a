//! Graph to forward program: every node becomes the steps of its operation, the loss is added at the end.

use crate::build::Lowering;
use crate::ops::{
    self, CLASS_WEIGHTS, Convert, Flatten, Kernel, LOSS_SCALE, LOSS_SCALE_NAME, METRICS, MIXED,
    PixelCrossEntropy, SoftmaxCrossEntropy,
};
use crate::program::{Layer, Mode, Origin};
use crate::{DType, EngineError, Phase, Precision, Program, Role, Step, ValueId};
use stratus_graph::{Graph, TensorId};

/// The name of the value that holds the class of every pixel, i32 `[N, H, W]`, as the last run of an
/// evaluation program predicted it.
pub const PREDICTIONS: &str = "predictions";

/// The forward program of `graph` for batches of `batch`, with softmax cross-entropy as its loss: of each
/// sample where the network ends with `[classes]`, of each pixel where it ends with `[classes, H, W]`. Labels
/// are `[N]` or `[N, H, W]`.
///
/// In [`Mode::Train`] the loss step also writes the gradient of the logits, from which
/// [`differentiate`](super::differentiate::differentiate) goes on, and auxiliary outputs have losses too.
///
/// # Errors
/// Where the graph has an operation that cannot be lowered, or the batch is empty.
pub fn lower(graph: &Graph, mode: Mode, precision: Precision, batch: usize) -> Result<Program, EngineError> {
    if batch == 0 {
        return Err(EngineError::Mismatch(
            "a batch of 0 samples cannot be run; train.batch_size is at least 1".to_owned(),
        ));
    }
    let trimmed;
    let graph = if mode == Mode::Train {
        graph
    } else {
        // What only auxiliary losses need is trained and not evaluated.
        trimmed = graph.for_inference();
        &trimmed
    };
    let mut to = Lowering::new(graph, mode, precision, batch);
    for (position, node) in graph.nodes.iter().enumerate() {
        to.layer = position;
        ops::lower(node, &mut to)?;
    }
    losses(&mut to)?;
    let program = to.program;
    program.verify("lower")?;
    Ok(program)
}

/// The same program with its labels smoothed: see [`SoftmaxCrossEntropy`].
///
/// # Errors
/// Where there is no such smoothing.
pub fn smooth_labels(mut program: Program, by: f32) -> Result<Program, EngineError> {
    for step in &mut program.steps {
        match &mut step.kernel {
            Kernel::SoftmaxCrossEntropy(loss) => loss.smoothing = by,
            Kernel::PixelCrossEntropy(loss) => loss.smoothing = by,
            _ => {}
        }
    }
    program.verify("smooth_labels")?;
    Ok(program)
}

/// The same program with a weight for each class in its losses, to be written to the value
/// [`CLASS_WEIGHTS`].
///
/// # Errors
/// Where it has no loss.
pub fn weigh_classes(mut program: Program) -> Result<Program, EngineError> {
    let logits = program.steps.iter().find(|step| step.phase == Phase::Loss).map(|step| step.inputs[0]);
    let Some(&[_, classes, ..]) = logits.map(|logits| program.value(logits).shape.as_slice()) else {
        return Err(EngineError::Mismatch(format!(
            "`{}` has no loss, whose classes could have weights",
            program.network
        )));
    };
    let dtype = program.precision.master();
    let weights = program.add_value(CLASS_WEIGHTS, &[classes], dtype, Role::Constant);
    for step in &mut program.steps {
        let position = match &mut step.kernel {
            Kernel::SoftmaxCrossEntropy(loss) => {
                loss.weighted = true;
                loss.positions()[0]
            }
            Kernel::PixelCrossEntropy(loss) => {
                loss.weighted = true;
                loss.positions()[0]
            }
            _ => continue,
        };
        step.inputs.insert(position, weights);
    }
    program.verify("weigh_classes")?;
    Ok(program)
}

/// The same program for samples that are mixed of two: see [`SoftmaxCrossEntropy`].
///
/// # Errors
/// Only where verification fails.
pub fn mix_labels(mut program: Program) -> Result<Program, EngineError> {
    for step in &mut program.steps {
        if let Kernel::SoftmaxCrossEntropy(loss) = &mut step.kernel {
            loss.mixed = true;
        }
    }
    for labels in program.values.iter_mut().filter(|value| value.role == Role::Labels) {
        labels.shape.push(MIXED);
    }
    program.verify("mix_labels")?;
    Ok(program)
}

/// The program that updates the copies in the compute precision from their master weights. Empty where there
/// are no copies.
///
/// # Errors
/// Only where verification fails.
pub fn refresh(train: &Program) -> Result<Program, EngineError> {
    let mut program = Program {
        network: train.network.clone(),
        mode: Mode::Refresh,
        precision: train.precision,
        batch: train.batch,
        parts: 1,
        stage: None,
        layers: vec![Layer { name: "parameters".to_owned(), kind: "convert".to_owned() }],
        values: Vec::new(),
        steps: Vec::new(),
        sections: Vec::new(),
    };
    for copy in train.values.iter().filter(|value| value.role == Role::Copy) {
        let Some(Origin::Copy(master)) = copy.origin else {
            return Err(EngineError::Placement(format!("`{}` is a copy of nothing", copy.name)));
        };
        let master = train.value(master);
        let from = program.add_value(&master.name, &master.shape, master.dtype, master.role);
        let to = program.add_derived(Origin::Copy(from), copy.dtype, copy.role);
        program.steps.push(Step {
            kernel: Convert.into(),
            phase: Phase::Layout,
            layers: vec![0],
            inputs: vec![from],
            updates: vec![],
            outputs: vec![to],
        });
    }
    program.verify("refresh")?;
    Ok(program)
}

/// Adds the loss of the network's output; in training also the weighted losses of its auxiliary outputs,
/// which the reported loss includes.
fn losses(to: &mut Lowering<'_>) -> Result<(), EngineError> {
    // One for each sample, or for each pixel.
    let pixels = to.graph.shape(to.graph.output).0.get(1..).unwrap_or_default();
    let shape: Vec<usize> = [to.batch].iter().chain(pixels).copied().collect();
    let labels = to.program.add_value("labels", &shape, DType::I32, Role::Labels);
    let metrics = to.program.add_value("metrics", &[METRICS.len()], DType::F64, Role::Metrics);
    loss(to, "loss".to_owned(), to.graph.output, None, [labels, metrics])?;
    if to.mode() == Mode::Train {
        to.hyper();
        for (auxiliary, number) in to.graph.auxiliary.iter().zip(1..) {
            let name = format!("loss.aux{number}");
            loss(to, name, auxiliary.output, Some(auxiliary.weight), [labels, metrics])?;
        }
    }
    Ok(())
}

/// The scale of the loss, where it has one: in training in f16.
fn loss_scale(to: &mut Lowering<'_>) -> Option<ValueId> {
    let wanted = to.mode() == Mode::Train && to.precision() == Precision::F16;
    let program = &mut to.program;
    wanted.then(|| {
        program.find(LOSS_SCALE_NAME).unwrap_or_else(|| {
            program.add_value(LOSS_SCALE_NAME, &[LOSS_SCALE.len()], DType::F32, Role::Momentum)
        })
    })
}

/// The logits of an output. Where the graph says that they are a vector, they are a matrix in the master
/// precision: a map that was flattened, or a vector that an activation made in the compute precision, becomes
/// one by a step.
fn logits(to: &mut Lowering<'_>, output: TensorId) -> ValueId {
    let made = to.tensors[&output];
    let extents = &to.graph.shape(output).0;
    let shape: Vec<usize> = [to.batch].iter().chain(extents).copied().collect();
    let master = to.precision().master();
    if extents.len() != 1 || (to.shape(made) == shape && to.dtype(made) == master) {
        return made;
    }
    let layer = to.graph.nodes.iter().position(|node| node.output == output).unwrap_or(0);
    let name = format!("{}:logits", to.program.layers[layer].name);
    let matrix = to.program.add_samples(name, &shape, master);
    to.program.steps.push(Step {
        kernel: Flatten.into(),
        phase: Phase::Forward,
        layers: vec![layer],
        inputs: vec![made],
        updates: vec![],
        outputs: vec![matrix],
    });
    matrix
}

/// Adds one loss, in training with the gradient of its logits.
fn loss(
    to: &mut Lowering<'_>,
    name: String,
    output: TensorId,
    auxiliary: Option<f32>,
    [labels, metrics]: [ValueId; 2],
) -> Result<(), EngineError> {
    let logits = logits(to, output);
    let scale = loss_scale(to);
    let (scaled, predicts) = (scale.is_some(), to.mode() == Mode::Evaluate);
    let kernel: Kernel = match to.shape(logits)[..] {
        [_, _] => SoftmaxCrossEntropy { auxiliary, scaled, ..SoftmaxCrossEntropy::default() }.into(),
        [_, _, _, _] => {
            PixelCrossEntropy { auxiliary, scaled, predicts, ..PixelCrossEntropy::default() }.into()
        }
        ref shape => {
            return Err(EngineError::Mismatch(format!(
                "network `{}` ends with {shape:?} a batch, softmax cross-entropy needs [batch, classes] or \
                 [batch, classes, height, width]",
                to.graph.name
            )));
        }
    };
    let (mut updates, mut outputs) = (vec![], vec![]);
    if auxiliary.is_some() { &mut updates } else { &mut outputs }.push(metrics);
    if let Kernel::PixelCrossEntropy(PixelCrossEntropy { predicts: true, .. }) = kernel {
        let shape = to.program.value(labels).shape.clone();
        outputs.push(to.program.add_samples(PREDICTIONS, &shape, DType::I32));
    }
    if to.mode() == Mode::Train {
        let (origin, dtype) = (Origin::Gradient(logits), to.precision().compute());
        outputs.push(to.program.add_derived(origin, dtype, Role::Transient));
    }
    let layers = vec![to.program.layers.len()];
    to.program.layers.push(Layer { name, kind: "softmax_cross_entropy".to_owned() });
    let (phase, inputs) = (Phase::Loss, [logits, labels].into_iter().chain(scale).collect());
    to.program.steps.push(Step { kernel, phase, layers, inputs, updates, outputs });
    Ok(())
}
