//! The optimiser as steps: each parameter is updated as soon as its gradient is made and nothing reads the old value any more, so that a
//! gradient's memory is free for the next layer's. The gradient of a large fully connected layer is not even stored.

use crate::differentiate::GRADIENT_SUFFIX;
use crate::lower::COPY_SUFFIX;
use crate::ops::{AdaptiveUpdate, Kernel, LinearUpdate, SgdUpdate};
use crate::{EngineError, Phase, Program, Role, Step, ValueId};
use serde::{Deserialize, Serialize};
use std::collections::HashMap;

/// What follows a parameter's name in the name of its velocity.
pub const MOMENTUM_SUFFIX: &str = ":momentum";

/// From so many weights on, a fully connected layer's gradient is used where it is made: with fewer it stays in a cache until the update reads it.
pub const LARGE: usize = 1 << 20;

/// The optimiser and its constants.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub enum Optimiser {
    /// See [`SgdUpdate`].
    Sgd(SgdUpdate),
    /// See [`AdaptiveUpdate`].
    Adaptive(AdaptiveUpdate),
}

impl Optimiser {
    /// What follows a parameter's name in the names of what is remembered of it.
    fn suffixes(&self) -> Vec<String> {
        match self {
            Self::Sgd(_) => vec![MOMENTUM_SUFFIX.to_owned()],
            Self::Adaptive(update) => update.rule.states().iter().map(|state| format!(":{state}")).collect(),
        }
    }

    fn kernel(&self) -> Kernel {
        match *self {
            Self::Sgd(sgd) => sgd.into(),
            Self::Adaptive(update) => update.into(),
        }
    }
}

/// Adds an update step for every parameter that has a gradient, and keeps every gradient.
///
/// # Errors
/// Only where verification fails.
pub fn update(differentiated: &Program, optimiser: Optimiser) -> Result<Program, EngineError> {
    update_joined(differentiated, optimiser, usize::MAX)
}

/// As [`update`]; by [`SgdUpdate`], fully connected layers of at least `large` weights are updated by the step that makes their gradient, whose time
/// counts as the update's.
///
/// # Errors
/// Only where verification fails.
pub fn update_joined(
    differentiated: &Program,
    optimiser: Optimiser,
    large: usize,
) -> Result<Program, EngineError> {
    let mut program = differentiated.clone();
    let by_name: HashMap<String, ValueId> =
        program.values.iter().enumerate().map(|(id, value)| (value.name.clone(), ValueId(id))).collect();
    let Some(hyper) = program.find_role(Role::Hyper) else {
        return Err(EngineError::Mismatch("a program without a learning rate cannot be updated".to_owned()));
    };
    let parameters: Vec<ValueId> = (0..program.values.len())
        .map(ValueId)
        .filter(|&id| program.value(id).role == Role::Parameter)
        .collect();
    let mut joined = false;
    let mut due: Vec<Vec<Step>> = vec![Vec::new(); program.steps.len()];
    for parameter in parameters {
        let value = program.value(parameter).clone();
        let Some(&gradient) = by_name.get(&format!("{}{GRADIENT_SUFFIX}", value.name)) else { continue };
        let copy = by_name.get(&format!("{}{COPY_SUFFIX}", value.name)).copied();
        let Some(made) = program.steps.iter().rposition(|step| step.outputs.contains(&gradient)) else {
            continue;
        };
        let last_read =
            [Some(parameter), copy].into_iter().flatten().flat_map(|id| program.readers(id)).max();
        let layers = program.steps[made].layers.clone();
        let mut updates = vec![parameter];
        for suffix in optimiser.suffixes() {
            let name = format!("{}{suffix}", value.name);
            updates.push(program.add_value(name, &value.shape, value.dtype, Role::Momentum));
        }
        let alone = program.section_of(made).is_none() && last_read.is_none_or(|read| read <= made);
        if let Optimiser::Sgd(sgd) = optimiser
            && let Kernel::LinearBackwardWeights(k) = program.steps[made].kernel
            && program.steps[made].outputs[0] == gradient
            && alone
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
        // What runs tile by tile has finished with its last step.
        let ready = made.max(last_read.unwrap_or(made));
        let ready = program.section_of(ready).map_or(ready, |section| section.steps().end - 1);
        due[ready].push(Step {
            kernel: optimiser.kernel(),
            phase: Phase::Update,
            layers,
            inputs: vec![gradient, hyper],
            updates,
            outputs: copy.into_iter().collect(),
        });
    }
    let counts: Vec<usize> = due.iter().map(Vec::len).collect();
    let steps = program.steps.iter().cloned().zip(due);
    let steps = steps.flat_map(|(step, updates)| std::iter::once(step).chain(updates)).collect();
    program.replace_steps(steps, |position| counts[position]);
    if joined {
        program.drop_unused_values();
    }
    program.verify("update")?;
    Ok(program)
}
