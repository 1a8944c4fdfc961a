//! Graph to forward program: every node becomes the steps of its operation, the loss is added at the end.

use crate::build::Lowering;
pub use crate::build::output_name;
use crate::ops::{
    self, CLASS_WEIGHTS, Convert, Flatten, Kernel, LOSS_SCALE_FIELDS, LOSS_SCALE_NAME, METRICS_FIELDS,
    MIXED_LABEL_LEN, PixelCrossEntropy, SoftmaxCrossEntropy, TARGET_WEIGHT_ROWS, TargetFunction, TargetLoss,
};
use crate::program::{Layer, Mode, Origin};
use crate::{DType, EngineError, Phase, Precision, Program, Role, Step, Value, ValueId};
use serde::{Deserialize, Serialize};
use stratus_graph::{Graph, TensorId};

/// The name of the predictions' value: the class of every pixel, i32 `[N, H, W]`, of the last run of an
/// evaluation program.
pub const PREDICTIONS: &str = "predictions";

/// The forward program of `graph` for batches of `batch`, with softmax cross-entropy as its loss: per sample
/// if the network's output is `[classes]`, per pixel if it is `[classes, H, W]`. Labels are `[N]` or `[N, H,
/// W]`.
///
/// In [`Mode::Train`] the loss step also writes the gradient of the logits, from which
/// [`differentiate`](super::differentiate::differentiate) starts, and auxiliary outputs have losses too.
///
/// # Errors
/// If an operation is not supported, or the batch is empty.
pub fn lower(graph: &Graph, mode: Mode, precision: Precision, batch: usize) -> Result<Program, EngineError> {
    if batch == 0 {
        return Err(EngineError::InvalidRequest(
            "invalid `train.batch_size` 0: must be at least 1".to_owned(),
        ));
    }
    let trimmed;
    let graph = if mode == Mode::Train {
        graph
    } else {
        // Layers that only auxiliary losses need are not evaluated.
        trimmed = graph.for_inference();
        &trimmed
    };
    let mut lowering = Lowering::new(graph, mode, precision, batch);
    for (position, node) in graph.nodes.iter().enumerate() {
        lowering.layer = position;
        ops::lower(node, &mut lowering)?;
    }
    losses(&mut lowering)?;
    let program = lowering.program;
    program.verify("lower")?;
    Ok(program)
}

/// The loss of a network's outputs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LossFunction {
    /// Softmax cross-entropy of one class per sample or pixel.
    #[default]
    CrossEntropy,
    /// Binary cross-entropy of several labels per sample, or of one logit per pixel for masks of two classes.
    BinaryCrossEntropy,
    /// Squared error of several numbers per sample.
    SquaredError,
    /// Huber loss of several numbers per sample.
    Huber,
}

impl LossFunction {
    /// The function of an output and its target; `None` for one class per sample.
    #[must_use]
    pub fn target_function(self) -> Option<TargetFunction> {
        match self {
            Self::CrossEntropy => None,
            Self::BinaryCrossEntropy => Some(TargetFunction::BinaryCrossEntropy),
            Self::SquaredError => Some(TargetFunction::SquaredError),
            Self::Huber => Some(TargetFunction::Huber),
        }
    }
}

/// The program of [`lower`] with another loss, before any other change.
///
/// For outputs `[N, T]`, all losses become [`TargetLoss`]es, and labels are f32 `[N, T]`. For outputs `[N, 1,
/// H, W]`, binary cross-entropy makes the losses [binary](PixelCrossEntropy::binary); labels stay.
///
/// # Errors
/// If the loss does not fit an output's shape.
pub fn with_loss(mut program: Program, function: LossFunction) -> Result<Program, EngineError> {
    let Some(function) = function.target_function() else { return Ok(program) };
    for position in 0..program.steps.len() {
        let step = &program.steps[position];
        let shape = step.inputs.first().map(|&output| program.value(output).shape.clone());
        let kernel: Kernel = match (&step.kernel, shape.as_deref()) {
            (Kernel::SoftmaxCrossEntropy(loss), Some(shape)) => {
                let labels = step.inputs[1].0;
                program.values[labels].shape = shape.to_vec();
                program.values[labels].dtype = DType::F32;
                let SoftmaxCrossEntropy { auxiliary, loss_scaled, .. } = *loss;
                TargetLoss { function, auxiliary, loss_scaled, ..TargetLoss::default() }.into()
            }
            (Kernel::PixelCrossEntropy(loss), Some([_, 1, _, _])) if function.uses_labels() => {
                PixelCrossEntropy { binary: true, ..*loss }.into()
            }
            (Kernel::PixelCrossEntropy(_), shape) => {
                let binary = if function.uses_labels() { " or [batch, 1, height, width]" } else { "" };
                return Err(EngineError::InvalidRequest(format!(
                    "network `{}`: the output is {:?}, but {} needs [batch, targets]{binary}",
                    program.network,
                    shape.unwrap_or_default(),
                    function.name()
                )));
            }
            _ => continue,
        };
        let step = &mut program.steps[position];
        step.kernel = kernel;
        for &layer in &step.layers {
            program.layers[layer].kind = function.name().to_owned();
        }
    }
    program.verify("with_loss")?;
    Ok(program)
}

/// The program with label smoothing: see [`SoftmaxCrossEntropy`]. Losses of numbers have no labels to smooth,
/// and stay.
///
/// # Errors
/// If the smoothing is out of range.
pub fn with_label_smoothing(mut program: Program, smoothing: f32) -> Result<Program, EngineError> {
    for step in &mut program.steps {
        match &mut step.kernel {
            Kernel::SoftmaxCrossEntropy(loss) => loss.smoothing = smoothing,
            Kernel::PixelCrossEntropy(loss) => loss.smoothing = smoothing,
            Kernel::TargetLoss(loss) if loss.function.uses_labels() => loss.smoothing = smoothing,
            _ => {}
        }
    }
    program.verify("with_label_smoothing")?;
    Ok(program)
}

/// The program with class weights in its losses, to be written to the value [`CLASS_WEIGHTS`]: `[classes]`,
/// or `[2, T]` for several targets per sample, see [`TargetLoss`].
///
/// # Errors
/// If it has no loss.
pub fn with_class_weights(mut program: Program) -> Result<Program, EngineError> {
    let logits = program.steps.iter().find(|step| step.phase == Phase::Loss).map(|step| step.inputs[0]);
    let Some(&[_, channels, ..]) = logits.map(|logits| program.value(logits).shape.as_slice()) else {
        return Err(EngineError::InvalidRequest(format!(
            "class weights need a loss, but `{}` has none",
            program.network
        )));
    };
    let dtype = program.precision.master();
    let shape = program.steps.iter().find_map(|step| match step.kernel {
        Kernel::PixelCrossEntropy(loss) => Some(vec![loss.classes(channels)]),
        Kernel::TargetLoss(_) => Some(vec![TARGET_WEIGHT_ROWS, channels]),
        _ => None,
    });
    let shape = shape.unwrap_or_else(|| vec![channels]);
    let weights = program.add_value(CLASS_WEIGHTS, &shape, dtype, Role::Constant);
    for step in &mut program.steps {
        let position = match &mut step.kernel {
            Kernel::SoftmaxCrossEntropy(loss) => {
                loss.class_weighted = true;
                loss.positions()[0]
            }
            Kernel::PixelCrossEntropy(loss) => {
                loss.class_weighted = true;
                loss.positions()[0]
            }
            Kernel::TargetLoss(loss) => {
                loss.class_weighted = true;
                loss.positions()[0]
            }
            _ => continue,
        };
        step.inputs.insert(position, weights);
    }
    program.verify("with_class_weights")?;
    Ok(program)
}

/// The program for mixed samples: see [`SoftmaxCrossEntropy`]. Targets of a [`TargetLoss`] are mixed before
/// they are written, so that such a program stays.
///
/// # Errors
/// Only if verification fails.
pub fn with_mixed_labels(mut program: Program) -> Result<Program, EngineError> {
    for step in &mut program.steps {
        if let Kernel::SoftmaxCrossEntropy(loss) = &mut step.kernel {
            loss.mixed_labels = true;
        }
    }
    let has_classes = |value: &&mut Value| value.role == Role::Labels && value.dtype == DType::I32;
    for labels in program.values.iter_mut().filter(has_classes) {
        labels.shape.push(MIXED_LABEL_LEN);
    }
    program.verify("with_mixed_labels")?;
    Ok(program)
}

/// The program that updates parameter copies in the compute precision from their masters; empty if there are
/// no copies.
///
/// # Errors
/// Only if verification fails.
pub fn refresh_copies(train: &Program) -> Result<Program, EngineError> {
    let mut program = Program {
        network: train.network.clone(),
        mode: Mode::RefreshCopies,
        precision: train.precision,
        batch: train.batch,
        batch_parts: 1,
        stage: None,
        layers: vec![Layer { name: "parameters".to_owned(), kind: "convert".to_owned() }],
        values: Vec::new(),
        steps: Vec::new(),
        sections: Vec::new(),
    };
    for copy in train.values.iter().filter(|value| value.role == Role::ComputeCopy) {
        let Some(Origin::ComputeCopy(master)) = copy.origin else {
            return Err(EngineError::Placement(format!("the copy `{}` has no source", copy.name)));
        };
        let master = train.value(master);
        let from = program.add_value(&master.name, &master.shape, master.dtype, master.role);
        let to = program.add_derived(Origin::ComputeCopy(from), copy.dtype, copy.role);
        program.steps.push(Step {
            kernel: Convert.into(),
            phase: Phase::Layout,
            layers: vec![0],
            inputs: vec![from],
            updates: vec![],
            outputs: vec![to],
        });
    }
    program.verify("refresh_copies")?;
    Ok(program)
}

/// Adds the loss of the network's output; in training also the weighted losses of its auxiliary outputs,
/// which the reported loss includes.
fn losses(lowering: &mut Lowering<'_>) -> Result<(), EngineError> {
    // One label per sample or per pixel.
    let pixels = lowering.graph.shape(lowering.graph.output).0.get(1..).unwrap_or_default();
    let shape: Vec<usize> = [lowering.batch].iter().chain(pixels).copied().collect();
    let labels = lowering.program.add_value("labels", &shape, DType::I32, Role::Labels);
    let metrics = lowering.program.add_value("metrics", &[METRICS_FIELDS.len()], DType::F64, Role::Metrics);
    loss(lowering, "loss".to_owned(), lowering.graph.output, None, [labels, metrics])?;
    if lowering.mode() == Mode::Train {
        lowering.iteration_scalars();
        for (auxiliary, number) in lowering.graph.auxiliary.iter().zip(1..) {
            let name = format!("loss.aux{number}");
            loss(lowering, name, auxiliary.output, Some(auxiliary.weight), [labels, metrics])?;
        }
    }
    Ok(())
}

/// The loss scale, for training in f16.
fn loss_scale(lowering: &mut Lowering<'_>) -> Option<ValueId> {
    let needs_scale = lowering.mode() == Mode::Train && lowering.precision() == Precision::F16;
    let program = &mut lowering.program;
    needs_scale.then(|| {
        program.find(LOSS_SCALE_NAME).unwrap_or_else(|| {
            program.add_value(LOSS_SCALE_NAME, &[LOSS_SCALE_FIELDS.len()], DType::F32, Role::OptimiserState)
        })
    })
}

/// The logits of an output. If they are a vector in the graph, they must be a matrix in the master precision;
/// a flattened map, or a vector that an activation computed in the compute precision, is converted by a step.
fn logits(lowering: &mut Lowering<'_>, output: TensorId) -> ValueId {
    let logits = lowering.tensors[&output];
    let extents = &lowering.graph.shape(output).0;
    let shape: Vec<usize> = [lowering.batch].iter().chain(extents).copied().collect();
    let master = lowering.precision().master();
    if extents.len() != 1 || (lowering.shape(logits) == shape && lowering.dtype(logits) == master) {
        return logits;
    }
    let layer = lowering.graph.nodes.iter().position(|node| node.output == output).unwrap_or(0);
    let name = format!("{}:logits", lowering.program.layers[layer].name);
    let matrix = lowering.program.add_samples(name, &shape, master);
    lowering.program.steps.push(Step {
        kernel: Flatten.into(),
        phase: Phase::Forward,
        layers: vec![layer],
        inputs: vec![logits],
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
        [_, _] => {
            SoftmaxCrossEntropy { auxiliary, loss_scaled: scaled, ..SoftmaxCrossEntropy::default() }.into()
        }
        [_, _, _, _] => {
            PixelCrossEntropy { auxiliary, loss_scaled: scaled, predicts, ..PixelCrossEntropy::default() }
                .into()
        }
        ref shape => {
            return Err(EngineError::InvalidRequest(format!(
                "network `{}`: the output is {shape:?}, but softmax cross-entropy needs [batch, classes] or \
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
