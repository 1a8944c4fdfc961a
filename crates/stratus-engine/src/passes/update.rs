//! Adds the optimiser's steps. Each parameter is updated as soon as its gradient is complete and its old
//! value is not read any more, so that gradients share memory. The gradient of a large fully connected layer
//! is never stored.

use crate::ops::{
    AdaptiveUpdate, AdjustLossScale, ClipFactor, ClipGradient, FindOverflow, GRADIENT_NORM_FIELDS,
    GRADIENT_NORM_NAME, GROWTH_INTERVAL, Kernel, LOSS_SCALE_NAME, LinearUpdate, SgdUpdate, StageTransfer,
    SumOfSquares,
};
use crate::program::{OptimiserState, Origin};
use crate::{DType, EngineError, Phase, Program, Role, Stage, Step, ValueId};
use serde::{Deserialize, Serialize};

/// The minimum number of weights for updating a fully connected layer in the step that computes its gradient.
/// The gradient of a smaller layer stays in a cache until the update reads it.
pub const MIN_FUSED_UPDATE_WEIGHTS: usize = 1 << 20;

/// The suffix of bias parameters, of layers and batch norms.
const BIAS: &str = ".bias";

/// The optimisers of a network's parameters.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Optimisers {
    /// For all parameters except biases.
    pub weights: Optimiser,
    /// For the biases of layers and batch norms.
    pub biases: Optimiser,
    /// The maximum global norm of gradients; `None` disables clipping.
    pub clip_norm: Option<f64>,
}

impl From<Optimiser> for Optimisers {
    fn from(optimiser: Optimiser) -> Self {
        Self { weights: optimiser, biases: optimiser, clip_norm: None }
    }
}

impl Optimisers {
    fn for_parameter(&self, parameter: &str) -> Optimiser {
        if parameter.ends_with(BIAS) { self.biases } else { self.weights }
    }
}

/// An optimiser and its constants.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub enum Optimiser {
    /// See [`SgdUpdate`].
    Sgd(SgdUpdate),
    /// See [`AdaptiveUpdate`].
    Adaptive(AdaptiveUpdate),
}

impl Optimiser {
    /// The state of each parameter.
    #[must_use]
    pub fn states(&self) -> &'static [OptimiserState] {
        match self {
            Self::Sgd(_) => &[OptimiserState::Momentum],
            Self::Adaptive(update) => update.rule.states(),
        }
    }

    /// The optimiser with `factor` times the learning rate and `1 / factor` of the weight decay, so that a
    /// parameter without gradient decays as before.
    #[must_use]
    pub fn with_scaled_rate(self, factor: f64) -> Self {
        match self {
            Self::Sgd(sgd) => Self::Sgd(SgdUpdate {
                rate_factor: (f64::from(sgd.rate_factor) * factor) as f32,
                weight_decay: (f64::from(sgd.weight_decay) / factor) as f32,
                ..sgd
            }),
            Self::Adaptive(update) => Self::Adaptive(AdaptiveUpdate {
                rate_factor: update.rate_factor * factor,
                weight_decay: update.weight_decay / factor,
                ..update
            }),
        }
    }

    /// The kernel of its step; `loss_scaled` is whether gradients are those of a scaled loss.
    fn kernel(&self, scaled: bool) -> Kernel {
        match *self {
            Self::Sgd(sgd) => SgdUpdate { loss_scaled: scaled, ..sgd }.into(),
            Self::Adaptive(update) => AdaptiveUpdate { loss_scaled: scaled, ..update }.into(),
        }
    }
}

/// Adds an update step for every parameter that has a gradient, and keeps every gradient. If the loss is
/// scaled or gradients are clipped, updates follow all gradients, because an overflow in any of them cancels
/// all updates, and the norm is that of all.
///
/// # Errors
/// Only if verification fails.
pub fn update(differentiated: &Program, optimisers: impl Into<Optimisers>) -> Result<Program, EngineError> {
    update_with_threshold(differentiated, optimisers, usize::MAX)
}

/// [`update`] that, with [`SgdUpdate`], updates fully connected layers of at least `min_fused_weights`
/// weights in the step that computes their gradient, whose time counts to the update.
///
/// # Errors
/// Only if verification fails.
pub fn update_with_threshold(
    differentiated: &Program,
    optimisers: impl Into<Optimisers>,
    min_fused_weights: usize,
) -> Result<Program, EngineError> {
    let optimisers = optimisers.into();
    let mut program = differentiated.clone();
    let Some(scalars) = program.find_role(Role::IterationScalars) else {
        return Err(EngineError::InvalidRequest(
            "cannot add updates to a program without a learning rate".to_owned(),
        ));
    };
    let parameters: Vec<ValueId> = (0..program.values.len())
        .map(ValueId)
        .filter(|&id| program.value(id).role == Role::Parameter)
        .collect();
    let scale = program.find(LOSS_SCALE_NAME);
    let norm = optimisers.clip_norm.map(|max_norm| {
        let value =
            program.add_value(GRADIENT_NORM_NAME, &[GRADIENT_NORM_FIELDS.len()], DType::F64, Role::Transient);
        (value, max_norm)
    });
    let waits = scale.is_some() || norm.is_some();
    // Gradients become complete in an order that depends on parts, workers and stages. The norm is summed
    // after all of them, parameter by parameter, so that its bits do not depend on these.
    let mut sums = Vec::new();
    let mut fused = false;
    let mut last = None;
    let mut after_all = Vec::new();
    let mut due: Vec<Vec<Step>> = vec![Vec::new(); program.steps.len()];
    for parameter in parameters {
        let value = program.value(parameter).clone();
        let optimiser = optimisers.for_parameter(&value.name);
        let Some(gradient) = program.gradient_of(parameter) else { continue };
        let copy = program.copy_of(parameter);
        // With several workers, the all-reduce is the last step that writes the gradient.
        let writes = |step: &Step| step.outputs.contains(&gradient) || step.updates.contains(&gradient);
        let Some(completing) = program.steps.iter().rposition(writes) else {
            continue;
        };
        let last_read =
            [Some(parameter), copy].into_iter().flatten().flat_map(|id| program.readers(id)).max();
        let computes = program.steps.iter().find(|step| step.outputs.contains(&gradient));
        let layers = computes.unwrap_or(&program.steps[completing]).layers.clone();
        let mut updates = vec![parameter];
        for &state in optimiser.states() {
            let origin = Origin::OptimiserState { parameter, state };
            updates.push(program.add_derived(origin, value.dtype, Role::OptimiserState));
        }
        let runs_once_after_reads =
            program.section_of(completing).is_none() && last_read.is_none_or(|read| read <= completing);
        if let Optimiser::Sgd(sgd) = optimiser
            && let Kernel::LinearBackwardWeights(k) = program.steps[completing].kernel
            && program.steps[completing].outputs[0] == gradient
            && runs_once_after_reads
            && !waits
            && value.elements() >= min_fused_weights
        {
            let step = &mut program.steps[completing];
            step.kernel = LinearUpdate { linear: k.linear, sgd }.into();
            step.phase = Phase::Update;
            step.inputs.push(scalars);
            step.updates = updates;
            step.outputs.splice(..1, copy);
            fused = true;
            continue;
        }
        // A value that a section writes is complete after its last step.
        let ready = completing.max(last_read.unwrap_or(completing));
        let ready = program.section_of(ready).map_or(ready, |section| section.steps().end - 1);
        let update = Step {
            kernel: optimiser.kernel(scale.is_some()),
            phase: Phase::Update,
            layers,
            inputs: [gradient, scalars].into_iter().chain(scale).collect(),
            updates,
            outputs: copy.into_iter().collect(),
        };
        if !waits {
            due[ready].push(update);
            continue;
        }
        let step = |kernel: Kernel, inputs: &[ValueId], updates: &[ValueId]| {
            step_beside(&update, kernel, inputs, updates)
        };
        if let Some(scale) = scale {
            due[ready].push(step(FindOverflow.into(), &[gradient], &[scale]));
        }
        if let Some((norm, _)) = norm {
            sums.push(step(SumOfSquares { first: false }.into(), &[gradient], &[norm]));
            after_all.push(step(ClipGradient.into(), &[norm], &[gradient]));
        }
        after_all.push(update);
        last = last.max(Some(ready));
    }
    if let (Some(Stage { index, .. }), Some(_), None) = (program.stage, norm, last) {
        return Err(EngineError::InvalidRequest(format!(
            "stage {index} of `{}` trains nothing, so its gradients cannot be clipped by the norm of all \
             stages; hint: use fewer stages or disable clipping",
            program.network
        )));
    }
    if let (Some(last), Some(last_update)) = (last, after_all.last().cloned()) {
        if let Some((norm, max_norm)) = norm {
            start_sum(&mut sums);
            let norm = match program.stage {
                Some(stage) => norm_of_stages(&mut program, stage, norm, &mut sums, &mut after_all),
                None => norm,
            };
            due[last].append(&mut sums);
            let kernel = ClipFactor { max_norm, loss_scaled: scale.is_some() }.into();
            due[last].push(step_beside(&last_update, kernel, scale.as_slice(), &[norm]));
        }
        due[last].append(&mut after_all);
        if let Some(scale) = scale {
            let kernel = AdjustLossScale { growth_interval: GROWTH_INTERVAL }.into();
            due[last].push(step_beside(&last_update, kernel, &[], &[scale]));
        }
    }
    let counts: Vec<usize> = due.iter().map(Vec::len).collect();
    let steps = program.steps.iter().cloned().zip(due);
    let steps = steps.flat_map(|(step, updates)| std::iter::once(step).chain(updates)).collect();
    program.replace_steps(steps, |position| counts[position]);
    if fused || norm.is_some() {
        program.drop_unused_values();
    }
    program.verify("update")?;
    Ok(program)
}

/// Computes the gradient norm over all stages of a pipeline, in the order of the unpartitioned network: each
/// stage continues the sum of the previous one, and the last stage sends it back. Returns the value of the
/// total.
fn norm_of_stages(
    program: &mut Program,
    stage: Stage,
    norm: ValueId,
    sums: &mut Vec<Step>,
    after_all: &mut [Step],
) -> ValueId {
    let layer = program.layers.len() - 1;
    let step = |stage, sends, inputs: &[ValueId], outputs: &[ValueId]| Step {
        kernel: StageTransfer { stage, message: NORM_MESSAGE, sends, backward: false }.into(),
        phase: Phase::Communication,
        layers: vec![layer],
        inputs: inputs.to_vec(),
        updates: vec![],
        outputs: outputs.to_vec(),
    };
    if stage.index > 0 {
        if let Some(first) = sums.first_mut() {
            first.kernel = SumOfSquares { first: false }.into();
            first.updates = std::mem::take(&mut first.outputs);
        }
        sums.insert(0, step(stage.index - 1, false, &[], &[norm]));
    }
    let mut total = norm;
    if !stage.is_last() {
        sums.push(step(stage.index + 1, true, &[norm], &[]));
        let name = format!("{GRADIENT_NORM_NAME}:all");
        total = program.add_value(name, &[GRADIENT_NORM_FIELDS.len()], DType::F64, Role::Transient);
        sums.push(step(stage.index + 1, false, &[], &[total]));
    }
    if stage.index > 0 {
        sums.push(step(stage.index - 1, true, &[total], &[]));
    }
    for clip in after_all.iter_mut().filter(|step| matches!(step.kernel, Kernel::ClipGradient(_))) {
        clip.inputs = vec![total];
    }
    total
}

/// The message index of the norm, above those of the parts.
const NORM_MESSAGE: usize = 1024;

/// A step for the layers of an update.
fn step_beside(update: &Step, kernel: Kernel, inputs: &[ValueId], updates: &[ValueId]) -> Step {
    let (phase, layers) = (Phase::Update, update.layers.clone());
    Step { kernel, phase, layers, inputs: inputs.to_vec(), updates: updates.to_vec(), outputs: vec![] }
}

/// Makes the first sum of squares in execution order start the sum.
fn start_sum(sums: &mut [Step]) {
    if let Some(step) = sums.first_mut() {
        step.kernel = SumOfSquares { first: true }.into();
        step.outputs = std::mem::take(&mut step.updates);
    }
}
