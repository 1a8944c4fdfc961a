//! Batch norm with the statistics of the whole batch, for any number of workers.
//!
//! Sums of each part are added along the tree of the parts, before the map is normalised and before its
//! gradient is computed. A worker with several parts therefore runs each part up to the sums of a norm, then
//! each part up to those of the next: one section between two norms. Maps that a later section reads are
//! kept for all parts.
//!
//! The gradient of the input needs the sums of the parameters' gradients, divided by the elements of the
//! batch. The kernel divides by those of a part, so it is given the mean of these gradients over the parts,
//! which are a power of two: the quotient has the same bits.

use super::{PartSum, WorkerProgramBuilder, step};
use crate::ops::{BatchNormStatisticsFromSums, BatchNormSums, KernelSpec, Scale, SumMethod};
use crate::{EngineError, Kernel, Phase, Program, Role, Step, ValueId};
use std::collections::{BTreeSet, HashMap};

impl WorkerProgramBuilder {
    /// Returns whether a step ends a section, because later steps need its sums over all parts.
    pub(super) fn is_synchronised(&self, program: &Program, position: usize) -> bool {
        let step = &program.steps[position];
        self.parts.synchronise_batch_norm
            && match step.kernel {
                Kernel::BatchNormStatistics(_) => true,
                Kernel::BatchNormGradients(_) | Kernel::BatchNormAddReluGradients(_) => {
                    program.readers(step.outputs[0]).next().is_some()
                }
                _ => false,
            }
    }

    /// Returns whether running statistics, which `first` changes first, are those of the whole batch.
    pub(super) fn is_synchronised_statistic(&self, first: &Step) -> bool {
        self.parts.synchronise_batch_norm && matches!(first.kernel, Kernel::BatchNormStatistics(_))
    }

    /// Adds a step that [`Self::is_synchronised`], and the sums over all parts. The section that begins at
    /// `first` ends, and the next begins. `means` receives the values that later steps read in place of
    /// others.
    ///
    /// # Errors
    /// If the step does not have the operands of its kernel.
    pub(super) fn add_synchronised(
        &mut self,
        step: Step,
        first: &mut usize,
        means: &mut HashMap<ValueId, ValueId>,
    ) -> Result<(), EngineError> {
        match step.kernel {
            Kernel::BatchNormStatistics(_) => self.add_statistics(&step, *first)?,
            _ => self.add_gradients(step, *first, means),
        }
        *first = self.program.steps.len();
        Ok(())
    }

    /// Adds the statistics of the whole batch, in place of those of a part.
    fn add_statistics(&mut self, part: &Step, first: usize) -> Result<(), EngineError> {
        let (Kernel::BatchNormStatistics(statistics), &[x], &[mean, inverse_deviation, sums]) =
            (&part.kernel, &part.inputs[..], &part.outputs[..])
        else {
            return Err(EngineError::InvalidProgram {
                pass: "split_into_parts",
                step: self.program.steps.len(),
                kernel: part.kernel.name().to_owned(),
                layer: self.program.layer_name(part),
                problem: "statistics need one input and three outputs".to_owned(),
            });
        };
        let (norm, layers) = (statistics.norm, part.layers.as_slice());
        let map = self.program.value(x);
        let elements = map.elements() / map.shape.get(1).copied().unwrap_or(1).max(1);
        let count = (elements * self.parts.count) as u64;
        let of_part = BatchNormSums { norm, offset: statistics.offset };
        let of_part = step(of_part, part.phase, layers);
        self.program.steps.push(Step { inputs: vec![x], outputs: vec![sums], ..of_part });
        let sum = self.sum_over_parts(sums, part.phase, layers);
        self.close_section(first);
        self.all_reduce_now(vec![sum]);
        self.program.steps.push(Step {
            inputs: vec![sum],
            updates: part.updates.clone(),
            outputs: vec![mean, inverse_deviation],
            ..step(BatchNormStatisticsFromSums { norm, count }, part.phase, layers)
        });
        Ok(())
    }

    /// Adds the gradients of a norm's parameters, and their means over the parts, which the gradient of the
    /// norm's input needs.
    fn add_gradients(&mut self, part: Step, first: usize, means: &mut HashMap<ValueId, ValueId>) {
        let (phase, layers, gradients) = (part.phase, part.layers.clone(), part.outputs[..2].to_vec());
        self.program.steps.push(part);
        let sums: Vec<ValueId> =
            gradients.iter().map(|&gradient| self.sum_over_parts(gradient, phase, &layers)).collect();
        self.close_section(first);
        self.all_reduce_now(sums.clone());
        let factor = 1.0 / self.parts.count as f32;
        for (gradient, sum) in gradients.into_iter().zip(sums) {
            let value = self.program.value(sum).clone();
            let mean = self.add_value(&value.name, "mean", &value.shape, value.dtype);
            let scale = step(Scale { factor }, Phase::BackwardData, &layers);
            self.program.steps.push(Step { inputs: vec![sum], outputs: vec![mean], ..scale });
            means.insert(gradient, mean);
        }
    }

    /// Adds a part to its sum over this worker's parts; returns the sum.
    fn sum_over_parts(&mut self, part: ValueId, phase: Phase, layers: &[usize]) -> ValueId {
        let sum = self.sum_of(part);
        self.add_part(PartSum { part, sum }, phase, layers);
        sum
    }

    /// Adds the all-reduce of a bucket, and waits for it.
    fn all_reduce_now(&mut self, values: Vec<ValueId>) {
        if self.parts.workers < 2 {
            return;
        }
        let [start, wait] =
            [false, true].map(|waits| self.exchange(self.norm_buckets, waits, SumMethod::default()));
        self.norm_buckets += 1;
        self.program.steps.push(Step { inputs: values.clone(), ..start });
        self.program.steps.push(Step { updates: values, ..wait });
    }

    /// Gives maps that several sections use the rows of all parts of this worker.
    pub(super) fn keep_maps_between_sections(&mut self) {
        let per_worker = self.parts.per_worker();
        let mut sections: HashMap<ValueId, BTreeSet<usize>> = HashMap::new();
        for section in &self.program.sections {
            for id in self.program.steps[section.steps()].iter().flat_map(Step::operands) {
                sections.entry(id).or_default().insert(section.first);
            }
        }
        for (id, _) in sections.into_iter().filter(|(_, sections)| sections.len() > 1) {
            let value = &mut self.program.values[id.0];
            if value.per_sample && value.role == Role::Transient {
                value.shape[0] *= per_worker;
            }
        }
    }
}
