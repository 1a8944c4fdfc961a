//! The optimiser's steps. Each parameter is updated right after its gradient is written and its old value was
//! last read, so gradients share memory. The gradient of a large fully connected layer is never stored.

use crate::ops::{
    AdaptiveUpdate, AdjustLossScale, ClipFactor, ClipGradient, FindOverflow, GRADIENT_NORM,
    GRADIENT_NORM_NAME, GROWS_AFTER, Kernel, LOSS_SCALE_NAME, LinearUpdate, SgdUpdate, SumOfSquares,
    Transfer,
};
use crate::program::{OptimiserState, Origin};
use crate::{DType, EngineError, Phase, Program, Role, Stage, Step, ValueId};
use serde::{Deserialize, Serialize};

/// Weights from which on a fully connected layer is updated by the step that computes its gradient. The
/// gradient of a smaller layer stays in a cache until the update reads it.
pub const LARGE: usize = 1 << 20;

/// What the names of bias parameters end with: layers' and batch norms'.
const BIAS: &str = ".bias";

/// The optimiser of a network's parameters.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Optimisers {
    /// For all parameters but biases.
    pub weights: Optimiser,
    /// For the biases of layers and batch norms.
    pub biases: Optimiser,
    /// The global norm that gradients are clipped to; `None`: they are not.
    pub clip_norm: Option<f64>,
}

impl From<Optimiser> for Optimisers {
    fn from(optimiser: Optimiser) -> Self {
        Self { weights: optimiser, biases: optimiser, clip_norm: None }
    }
}

impl Optimisers {
    fn of(&self, parameter: &str) -> Optimiser {
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
    /// The states it keeps for each parameter.
    #[must_use]
    pub fn states(&self) -> &'static [OptimiserState] {
        match self {
            Self::Sgd(_) => &[OptimiserState::Momentum],
            Self::Adaptive(update) => update.rule.states(),
        }
    }

    /// The same with `factor` times the learning rate and `1 / factor` of the weight decay, so that a
    /// parameter without gradient shrinks as before.
    #[must_use]
    pub fn faster(self, factor: f64) -> Self {
        match self {
            Self::Sgd(sgd) => Self::Sgd(SgdUpdate {
                rate: (f64::from(sgd.rate) * factor) as f32,
                weight_decay: (f64::from(sgd.weight_decay) / factor) as f32,
                ..sgd
            }),
            Self::Adaptive(update) => Self::Adaptive(AdaptiveUpdate {
                rate: update.rate * factor,
                weight_decay: update.weight_decay / factor,
                ..update
            }),
        }
    }

    /// The kernel of its step; `scaled` says whether gradients are those of a scaled loss.
    fn kernel(&self, scaled: bool) -> Kernel {
        match *self {
            Self::Sgd(sgd) => SgdUpdate { scaled, ..sgd }.into(),
            Self::Adaptive(update) => AdaptiveUpdate { scaled, ..update }.into(),
        }
    }
}

/// Adds an update step for every parameter that has a gradient, and keeps every gradient. Where the loss is
/// scaled or gradients are clipped, the updates come after all gradients: an overflow in any of them cancels
/// all updates, and the norm is that of all.
///
/// # Errors
/// Only where verification fails.
pub fn update(differentiated: &Program, optimisers: impl Into<Optimisers>) -> Result<Program, EngineError> {
    update_joined(differentiated, optimisers, usize::MAX)
}

/// As [`update`]. With [`SgdUpdate`], fully connected layers of at least `large` weights are updated by the
/// step that computes their gradient; its time counts as the update's.
///
/// # Errors
/// Only where verification fails.
pub fn update_joined(
    differentiated: &Program,
    optimisers: impl Into<Optimisers>,
    large: usize,
) -> Result<Program, EngineError> {
    let optimisers = optimisers.into();
    let mut program = differentiated.clone();
    let Some(hyper) = program.find_role(Role::Hyper) else {
        return Err(EngineError::Mismatch("a program without a learning rate cannot be updated".to_owned()));
    };
    let parameters: Vec<ValueId> = (0..program.values.len())
        .map(ValueId)
        .filter(|&id| program.value(id).role == Role::Parameter)
        .collect();
    let scale = program.find(LOSS_SCALE_NAME);
    let norm = optimisers.clip_norm.map(|max_norm| {
        let value =
            program.add_value(GRADIENT_NORM_NAME, &[GRADIENT_NORM.len()], DType::F64, Role::Transient);
        (value, max_norm)
    });
    let waits = scale.is_some() || norm.is_some();
    // Gradients are complete in an order that depends on the parts, the workers and the stages. The norm is
    // summed after all of them, parameter by parameter: so it has the same bits however a batch is trained.
    let mut sums = Vec::new();
    let mut joined = false;
    let mut last = None;
    let mut after_all = Vec::new();
    let mut due: Vec<Vec<Step>> = vec![Vec::new(); program.steps.len()];
    for parameter in parameters {
        let value = program.value(parameter).clone();
        let optimiser = optimisers.of(&value.name);
        let Some(gradient) = program.gradient_of(parameter) else { continue };
        let copy = program.copy_of(parameter);
        // Of several workers, the exchange completes it.
        let makes = |step: &Step| step.outputs.contains(&gradient) || step.updates.contains(&gradient);
        let Some(made) = program.steps.iter().rposition(makes) else {
            continue;
        };
        let last_read =
            [Some(parameter), copy].into_iter().flatten().flat_map(|id| program.readers(id)).max();
        let computes = program.steps.iter().find(|step| step.outputs.contains(&gradient));
        let layers = computes.unwrap_or(&program.steps[made]).layers.clone();
        let mut updates = vec![parameter];
        for &state in optimiser.states() {
            let origin = Origin::OptimiserState { of: parameter, state };
            updates.push(program.add_derived(origin, value.dtype, Role::Momentum));
        }
        let alone = program.section_of(made).is_none() && last_read.is_none_or(|read| read <= made);
        if let Optimiser::Sgd(sgd) = optimiser
            && let Kernel::LinearBackwardWeights(k) = program.steps[made].kernel
            && program.steps[made].outputs[0] == gradient
            && alone
            && !waits
            && value.elements() >= large
        {
            let step = &mut program.steps[made];
            step.kernel = LinearUpdate { linear: k.linear, sgd }.into();
            step.phase = Phase::Update;
            step.inputs.push(hyper);
            step.updates = updates;
            step.outputs.splice(..1, copy);
            joined = true;
            continue;
        }
        // A value that a section writes is complete after its last step.
        let ready = made.max(last_read.unwrap_or(made));
        let ready = program.section_of(ready).map_or(ready, |section| section.steps().end - 1);
        let update = Step {
            kernel: optimiser.kernel(scale.is_some()),
            phase: Phase::Update,
            layers,
            inputs: [gradient, hyper].into_iter().chain(scale).collect(),
            updates,
            outputs: copy.into_iter().collect(),
        };
        if !waits {
            due[ready].push(update);
            continue;
        }
        let step = |kernel: Kernel, inputs: &[ValueId], updates: &[ValueId]| {
            beside(&update, kernel, inputs, updates)
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
    if let (Some(Stage { number, .. }), Some(_), None) = (program.stage, norm, last) {
        return Err(EngineError::Mismatch(format!(
            "stage {number} of `{}` trains nothing, and gradients are to be clipped by the norm of all \
             stages: take fewer stages, or do not clip",
            program.network
        )));
    }
    if let (Some(last), Some(of)) = (last, after_all.last().cloned()) {
        if let Some((norm, max_norm)) = norm {
            begin_sum(&mut sums);
            let norm = match program.stage {
                Some(stage) => norm_of_stages(&mut program, stage, norm, &mut sums, &mut after_all),
                None => norm,
            };
            due[last].append(&mut sums);
            let kernel = ClipFactor { max_norm, scaled: scale.is_some() }.into();
            due[last].push(beside(&of, kernel, scale.as_slice(), &[norm]));
        }
        due[last].append(&mut after_all);
        if let Some(scale) = scale {
            let kernel = AdjustLossScale { grows_after: GROWS_AFTER }.into();
            due[last].push(beside(&of, kernel, &[], &[scale]));
        }
    }
    let counts: Vec<usize> = due.iter().map(Vec::len).collect();
    let steps = program.steps.iter().cloned().zip(due);
    let steps = steps.flat_map(|(step, updates)| std::iter::once(step).chain(updates)).collect();
    program.replace_steps(steps, |position| counts[position]);
    if joined || norm.is_some() {
        program.drop_unused_values();
    }
    program.verify("update")?;
    Ok(program)
}

/// The norm of the gradients of all stages of a pipeline, in the order of the uncut network: each stage goes
/// on with the sum of the stage before it, and the last one's goes back. Returns the value of the sum of all.
fn norm_of_stages(
    program: &mut Program,
    stage: Stage,
    own: ValueId,
    sums: &mut Vec<Step>,
    after_all: &mut [Step],
) -> ValueId {
    let layer = program.layers.len() - 1;
    let step = |stage, sends, inputs: &[ValueId], outputs: &[ValueId]| Step {
        kernel: Transfer { stage, message: NORM, sends, backward: false }.into(),
        phase: Phase::Communication,
        layers: vec![layer],
        inputs: inputs.to_vec(),
        updates: vec![],
        outputs: outputs.to_vec(),
    };
    if stage.number > 0 {
        if let Some(first) = sums.first_mut() {
            first.kernel = SumOfSquares { first: false }.into();
            first.updates = std::mem::take(&mut first.outputs);
        }
        sums.insert(0, step(stage.number - 1, false, &[], &[own]));
    }
    let mut all = own;
    if !stage.is_last() {
        sums.push(step(stage.number + 1, true, &[own], &[]));
        let name = format!("{GRADIENT_NORM_NAME}:all");
        all = program.add_value(name, &[GRADIENT_NORM.len()], DType::F64, Role::Transient);
        sums.push(step(stage.number + 1, false, &[], &[all]));
    }
    if stage.number > 0 {
        sums.push(step(stage.number - 1, true, &[all], &[]));
    }
    for clip in after_all.iter_mut().filter(|step| matches!(step.kernel, Kernel::ClipGradient(_))) {
        clip.inputs = vec![all];
    }
    all
}

/// The message of the norm, which is none of those of the parts.
const NORM: usize = 1024;

/// A step of the layers of an update.
fn beside(update: &Step, kernel: Kernel, inputs: &[ValueId], updates: &[ValueId]) -> Step {
    let (phase, layers) = (Phase::Update, update.layers.clone());
    Step { kernel, phase, layers, inputs: inputs.to_vec(), updates: updates.to_vec(), outputs: vec![] }
}

/// Has the first sum of squares, in the order in which they run, begin the sum.
fn begin_sum(sums: &mut [Step]) {
    if let Some(step) = sums.first_mut() {
        step.kernel = SumOfSquares { first: true }.into();
        step.outputs = std::mem::take(&mut step.updates);
    }
}
