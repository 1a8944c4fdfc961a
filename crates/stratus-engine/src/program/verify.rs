//! Checks of a program after every pass.

use super::{Origin, Program, Role, Section, Value, ValueId};
use crate::EngineError;
use crate::Kernel;
use crate::ops::{KernelSpec, Tiling};
use std::collections::HashSet;

impl Program {
    /// Checks that values are written once and before they are read, that kernels accept their operands, and
    /// origins and sections.
    ///
    /// # Errors
    /// The first violation, with the pass, the step and the layer.
    pub fn verify(&self, pass: &'static str) -> Result<(), EngineError> {
        let mut names = HashSet::new();
        if let Some(twice) = self.values.iter().find(|value| !names.insert(&value.name)) {
            return Err(EngineError::Placement(format!(
                "after pass `{pass}`, two values are named `{}`",
                twice.name
            )));
        }
        let mut written: HashSet<ValueId> = (0..self.values.len())
            .map(ValueId)
            .filter(|&id| self.value(id).role != Role::Transient)
            .collect();
        for (position, step) in self.steps.iter().enumerate() {
            let invalid = |problem: String| EngineError::InvalidProgram {
                pass,
                step: position,
                kernel: step.kernel.name().to_owned(),
                layer: step
                    .layers
                    .iter()
                    .filter_map(|&l| self.layers.get(l))
                    .map(|l| l.name.as_str())
                    .collect::<Vec<_>>()
                    .join("+"),
                problem,
            };
            if step.layers.is_empty() || step.layers.iter().any(|&layer| layer >= self.layers.len()) {
                return Err(invalid("no layer".to_owned()));
            }
            let mut seen = HashSet::new();
            for id in step.operands() {
                if id.0 >= self.values.len() {
                    return Err(invalid(format!("value {} does not exist", id.0)));
                }
                if !seen.insert(id) {
                    return Err(invalid(format!("`{}` is an operand twice", self.value(id).name)));
                }
            }
            for &id in step.inputs.iter().chain(&step.updates) {
                if !written.contains(&id) {
                    return Err(invalid(format!("`{}` is read before it is written", self.value(id).name)));
                }
            }
            for &id in &step.outputs {
                if self.value(id).role.is_external() {
                    return Err(invalid(format!("writes the input `{}`", self.value(id).name)));
                }
                if !written.insert(id) && self.value(id).role == Role::Transient {
                    return Err(invalid(format!("`{}` is written twice", self.value(id).name)));
                }
            }
            let operands = self.operands(position);
            let operands: Vec<&Value> = operands.iter().collect();
            step.kernel
                .check(&operands, [step.inputs.len(), step.updates.len(), step.outputs.len()])
                .map_err(invalid)?;
        }
        self.verify_origins(pass)?;
        self.verify_sections(pass)
    }

    /// Checks that sections are in order and disjoint, divide the batch equally, and hold only steps that can
    /// run tile by tile: none needs the whole batch (in micro-batches: more than one), and none reads a sum
    /// before the section completes it. Values of a micro-batch are read only in their section.
    fn verify_sections(&self, pass: &'static str) -> Result<(), EngineError> {
        let mut end = 0;
        for section in &self.sections {
            let misplaced = section.first < end || section.steps().end > self.steps.len();
            end = section.steps().end;
            // Micro-batches run in order, like separate batches.
            let reversed = section.micro_batches && section.reversed;
            if misplaced || reversed || section.tiles < 2 || !self.batch.is_multiple_of(section.tiles) {
                return Err(EngineError::Placement(format!(
                    "after pass `{pass}`, {section:?} does not fit {} steps on batches of {}",
                    self.steps.len(),
                    self.batch
                )));
            }
            let mut unfinished = HashSet::new();
            for position in section.steps() {
                let step = &self.steps[position];
                let tiling = step.kernel.tiling();
                let early = step.inputs.iter().chain(&step.updates).find(|id| unfinished.contains(*id));
                // Before the last micro-batch, an all-reduce does nothing, and the result of a reorder is not
                // read.
                let waits = section.micro_batches
                    && matches!(step.kernel, Kernel::AllReduceBucket(_) | Kernel::Reorder(_));
                let is_reordered_sum = early.is_some() && waits;
                let early = early.filter(|_| !waits);
                let problem = match (tiling, early) {
                    (Tiling::WholeBatch, _) if !section.micro_batches => {
                        Some("needs the whole batch, but is in a tiled section".to_owned())
                    }
                    (_, Some(&id)) => {
                        Some(format!("reads `{}` before all tiles were added to it", self.value(id).name))
                    }
                    _ => None,
                };
                if let Some(problem) = problem {
                    return Err(EngineError::InvalidProgram {
                        pass,
                        step: position,
                        kernel: step.kernel.name().to_owned(),
                        layer: self.layer_name(step),
                        problem,
                    });
                }
                let adds_up = if section.micro_batches {
                    step.kernel.accumulates_tiles()
                } else {
                    tiling == Tiling::Accumulates
                };
                if adds_up || is_reordered_sum {
                    unfinished.extend(step.outputs.iter().chain(&step.updates).copied());
                }
            }
            if section.micro_batches {
                self.verify_micro_batches(pass, section)?;
            }
        }
        Ok(())
    }

    /// Checks that no step outside of a micro-batched section reads a value of one micro-batch.
    fn verify_micro_batches(&self, pass: &'static str, section: &Section) -> Result<(), EngineError> {
        let sums = self.sums_of_micro_batches(section);
        let inside = self.steps[section.steps()].iter();
        let per_micro_batch: HashSet<ValueId> = inside
            .flat_map(|step| step.outputs.iter().copied())
            .filter(|id| self.value(*id).role == Role::Transient && !sums.contains(id))
            .filter(|&id| !self.is_tiled(id, section.tiles))
            .collect();
        let outside =
            self.steps.iter().enumerate().filter(|(position, _)| !section.steps().contains(position));
        for (position, step) in outside {
            if let Some(&id) =
                step.inputs.iter().chain(&step.updates).find(|id| per_micro_batch.contains(*id))
            {
                return Err(EngineError::InvalidProgram {
                    pass,
                    step: position,
                    kernel: step.kernel.name().to_owned(),
                    layer: self.layer_name(step),
                    problem: format!("reads `{}`, which exists once per micro-batch", self.value(id).name),
                });
            }
        }
        Ok(())
    }

    /// Checks that the sources of values exist and have their shape, and that each has at most one gradient,
    /// one copy and one of each optimiser state.
    fn verify_origins(&self, pass: &'static str) -> Result<(), EngineError> {
        let mut seen = HashSet::new();
        for (position, value) in self.values.iter().enumerate() {
            let Some(origin) = value.origin else { continue };
            let invalid = |problem: String| {
                EngineError::Placement(format!("after pass `{pass}`, `{}` is {problem}", value.name))
            };
            let source = origin.source();
            if source.0 >= self.values.len() || source.0 == position {
                return Err(invalid(format!(
                    "a {} of value {}, which does not exist or is the value itself",
                    origin.label(),
                    source.0
                )));
            }
            let source = self.value(source);
            // A value that lives within a tile has fewer rows than its source.
            let rows = usize::from(value.per_sample);
            if value.per_sample != source.per_sample || value.shape.get(rows..) != source.shape.get(rows..) {
                return Err(invalid(format!(
                    "derived from `{}`, but their shapes are {:?} and {:?}",
                    source.name, value.shape, source.shape
                )));
            }
            let is_unique = matches!(
                origin,
                Origin::Gradient(_) | Origin::ComputeCopy(_) | Origin::OptimiserState { .. }
            );
            if is_unique && !seen.insert(origin) {
                return Err(invalid(format!("a second {} of `{}`", origin.label(), source.name)));
            }
        }
        Ok(())
    }
}
