//! Graph to forward program: every node becomes the steps of its operation, the loss is added at the end.

use crate::build::Lowering;
use crate::ops::{self, Convert, Kernel, LOSS_SCALE, LOSS_SCALE_NAME, METRICS, MIXED, SoftmaxCrossEntropy};
use crate::program::{Layer, Mode, Origin};
use crate::{DType, EngineError, Phase, Precision, Program, Role, Step, ValueId};
use stratus_graph::{Graph, TensorId};

/// The forward program of `graph` for batches of `batch`, with softmax cross-entropy as its loss.
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
        if let Kernel::SoftmaxCrossEntropy(loss) = &mut step.kernel {
            loss.smoothing = by;
        }
    }
    program.verify("smooth_labels")?;
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
    let labels = to.program.add_value("labels", &[to.batch], DType::I32, Role::Labels);
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

/// Adds one loss, in training with the gradient of its logits.
fn loss(
    to: &mut Lowering<'_>,
    name: String,
    output: TensorId,
    auxiliary: Option<f32>,
    [labels, metrics]: [ValueId; 2],
) -> Result<(), EngineError> {
    let logits = to.tensors[&output];
    let shape = to.shape(logits);
    if shape.len() != 2 {
        return Err(EngineError::Mismatch(format!(
            "network `{}` ends with {shape:?} a batch, softmax cross-entropy needs [batch, classes]",
            to.graph.name
        )));
    }
    let (mut updates, mut outputs) = (vec![], vec![]);
    if auxiliary.is_some() { &mut updates } else { &mut outputs }.push(metrics);
    if to.mode() == Mode::Train {
        let (origin, dtype) = (Origin::Gradient(logits), to.precision().compute());
        outputs.push(to.program.add_derived(origin, dtype, Role::Transient));
    }
    let layers = vec![to.program.layers.len()];
    to.program.layers.push(Layer { name, kind: "softmax_cross_entropy".to_owned() });
    let scale = loss_scale(to);
    let scaled = scale.is_some();
    let kernel = SoftmaxCrossEntropy { auxiliary, scaled, ..SoftmaxCrossEntropy::default() }.into();
    let (phase, inputs) = (Phase::Loss, [logits, labels].into_iter().chain(scale).collect());
    to.program.steps.push(Step { kernel, phase, layers, inputs, updates, outputs });
    Ok(())
}
