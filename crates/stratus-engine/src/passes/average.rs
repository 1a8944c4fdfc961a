//! Adds the exponential moving average of weights and running statistics. Each averaging step directly
//! follows the last step that changes its value, which is then still cached. Statistics are averaged too, as
//! in the recipes of torchvision and timm, because those of the last weights would not fit the averaged ones.

use crate::ops::EmaUpdate;
use crate::program::Origin;
use crate::{EngineError, Phase, Program, Role, Step, ValueId};

/// Adds the average of every trained parameter, and of every running statistic that the program changes; see
/// [`EmaUpdate`].
///
/// # Errors
/// If the program updates nothing.
pub fn average(updated: &Program, decay: f64) -> Result<Program, EngineError> {
    let mut program = updated.clone();
    let Some(scalars) = program.find_role(Role::IterationScalars) else {
        return Err(EngineError::InvalidRequest("cannot average a program without updates".to_owned()));
    };
    let mut following: Vec<Vec<Step>> = vec![Vec::new(); program.steps.len()];
    for id in (0..program.values.len()).map(ValueId) {
        let value = program.value(id);
        if !matches!(value.role, Role::Parameter | Role::Buffer) {
            continue;
        }
        let dtype = value.dtype;
        let changes = |step: &Step| step.updates.contains(&id) || step.outputs.contains(&id);
        let Some(last) = program.steps.iter().rposition(changes) else { continue };
        let layers = program.steps[last].layers.clone();
        // A value that a section changes is complete after its last step.
        let last = program.section_of(last).map_or(last, |section| section.steps().end - 1);
        let average = program.add_derived(Origin::Average(id), dtype, Role::Average);
        following[last].push(Step {
            kernel: EmaUpdate { decay }.into(),
            phase: Phase::Update,
            layers,
            inputs: vec![id, scalars],
            updates: vec![average],
            outputs: vec![],
        });
    }
    let counts: Vec<usize> = following.iter().map(Vec::len).collect();
    let steps = program.steps.iter().cloned().zip(following);
    let steps = steps.flat_map(|(step, averages)| std::iter::once(step).chain(averages)).collect();
    program.replace_steps(steps, |position| counts[position]);
    program.verify("average")?;
    Ok(program)
}
