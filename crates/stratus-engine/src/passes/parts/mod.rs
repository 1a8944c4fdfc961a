//! Data parallelism over batch parts, with the same definition for any number of workers.
//!
//! The batch of all workers is split into `parts` equal parts, each with its own batch norm statistics and
//! random numbers. The labels of all parts are counted first: these counts divide the loss. Gradients,
//! metrics and running statistics are summed along one binary tree over the parts ([`TreeSum`]); for running
//! statistics the mean is used. Each of the `workers` processes has a block of parts, processes them in
//! sequence, and all-reduces the sums. The result is bitwise equal to that of one process with all parts.
//!
//! Batch norm can also use the statistics of the whole batch, whose sums are added along the same tree.
//!
//! The all-reduce of a bucket of gradients starts as soon as its last gradient is complete, while the
//! backward pass continues (Li et al., "PyTorch distributed: experiences on accelerating data parallel
//! training", 2020, section 3.2.3).

mod synchronise;

use super::batch_split::{add_section, expect_untiled, gradients, runs_once, without_repeated_steps};
use super::label_counts::count_labels;
use crate::ops::{AllReduceBucket, MAX_BUCKET_VALUES, Scale, SumMethod, TreeSum};
use crate::program::Layer;
use crate::{DType, EngineError, Kernel, Phase, Program, Role, Step, ValueId};
use std::collections::HashMap;

/// The parts of a batch and their distribution to workers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BatchParts {
    /// The number of parts: a power of two.
    pub count: usize,
    /// The number of workers: a power of two, at most `count`.
    pub workers: usize,
    /// The size from which a bucket is complete.
    pub bucket_bytes: usize,
    /// True if batch norm uses the statistics of the whole batch; otherwise those of each part.
    pub synchronise_batch_norm: bool,
    /// How gradients are summed over the workers; all other sums are exact.
    pub gradients: SumMethod,
}

impl BatchParts {
    /// The number of parts of each worker.
    #[must_use]
    pub fn per_worker(&self) -> usize {
        self.count / self.workers.max(1)
    }
}

/// Turns a differentiated program for one part into that of a worker.
///
/// # Errors
/// If the parts cannot be distributed, the program is tiled, or verification fails.
pub fn split_into_parts(program: &Program, parts: BatchParts) -> Result<Program, EngineError> {
    let BatchParts { count, workers, .. } = parts;
    if !count.is_power_of_two() || !workers.is_power_of_two() || workers > count {
        return Err(EngineError::InvalidRequest(format!(
            "cannot split {count} batch parts among {workers} workers: both must be powers of two and \
             parts ≥ workers"
        )));
    }
    expect_untiled(program, "parts")?;
    if count == 1 {
        return Ok(program.clone());
    }
    let program = &count_labels(program)?;
    let mut builder = WorkerProgramBuilder::new(program, parts);
    builder.add_steps(program)?;
    builder.keep_maps_between_sections();
    builder.add_all_reduces();
    builder.add_means();
    builder.program.verify("split_into_parts")?;
    Ok(builder.program)
}

/// The per-part value and the sum over all parts: a gradient, running statistics, or the metrics.
struct PartSum {
    part: ValueId,
    sum: ValueId,
}

/// A sum over the parts of this worker.
struct CompleteSum {
    /// The position of the step that completes it.
    position: usize,
    value: ValueId,
    /// How it is summed over the workers.
    method: SumMethod,
}

/// A bucket: sums of one type that are exchanged together.
struct Bucket {
    /// The position of the step that completes the last sum.
    position: usize,
    values: Vec<ValueId>,
    method: SumMethod,
}

/// Builds the program of a worker.
struct WorkerProgramBuilder {
    program: Program,
    parts: BatchParts,
    /// Sums in order of completion.
    sums: Vec<CompleteSum>,
    /// Running statistics: the persistent value, the sum over the parts, and the layers.
    statistics: Vec<(ValueId, ValueId, Vec<usize>)>,
    /// The number of buckets that batch norms use.
    norm_buckets: usize,
    /// The index of the exchange in the layers, if there are several workers.
    exchange_layer: Option<usize>,
}

impl WorkerProgramBuilder {
    fn new(program: &Program, parts: BatchParts) -> Self {
        let mut worker_program = without_repeated_steps(program, parts.per_worker());
        worker_program.batch_parts = parts.count;
        let exchange_layer = (parts.workers > 1).then(|| {
            worker_program.layers.push(Layer { name: EXCHANGE.to_owned(), kind: EXCHANGE.to_owned() });
            worker_program.layers.len() - 1
        });
        let (sums, statistics) = (Vec::new(), Vec::new());
        Self { program: worker_program, parts, sums, statistics, norm_buckets: 0, exchange_layer }
    }

    /// Adds the steps of the parts, in sections if a worker has several.
    fn add_steps(&mut self, program: &Program) -> Result<(), EngineError> {
        let mut first = self.program.steps.len();
        let mut replaced = self.part_values(program);
        let mut means = HashMap::new();
        let last_touch = last_touches(program, replaced.keys().copied());
        let gradients = gradients(program);
        for (position, step) in program.steps.iter().enumerate().filter(|(_, step)| !runs_once(step)) {
            let mut step = step.clone();
            for id in step.inputs.iter_mut().chain(&mut step.updates).chain(&mut step.outputs) {
                if let Some(summed) = replaced.get(id) {
                    *id = summed.part;
                }
            }
            for id in &mut step.inputs {
                *id = means.get(id).copied().unwrap_or(*id);
            }
            if self.is_synchronised(program, position) {
                self.add_synchronised(step, &mut first, &mut means)?;
                continue;
            }
            let layers = step.layers.clone();
            let phase = step.phase;
            self.program.steps.push(step);
            for &gradient in gradients.get(&position).into_iter().flatten() {
                let sum = self.sum_of(gradient);
                self.add_to_sum(PartSum { part: gradient, sum }, self.parts.gradients, phase, &layers);
            }
            for &value in last_touch.get(&position).into_iter().flatten() {
                // This is its last step, so later steps do not need the replacement.
                if let Some(summed) = replaced.remove(&value) {
                    self.add_to_sum(summed, SumMethod::default(), phase, &layers);
                }
            }
        }
        self.close_section(first);
        Ok(())
    }

    /// Makes a section of the steps from `first` on, if a worker has several parts.
    fn close_section(&mut self, first: usize) {
        let per_worker = self.parts.per_worker();
        if per_worker > 1 && first < self.program.steps.len() {
            add_section(&mut self.program, first, per_worker);
        }
    }

    /// The value of the sum of a gradient over this worker's parts.
    fn sum_of(&mut self, gradient: ValueId) -> ValueId {
        if self.parts.per_worker() > 1 { self.program.make_partial_sum(gradient) } else { gradient }
    }

    /// The per-part values that replace persistent ones: running statistics, initialised with those before
    /// the iteration, and metrics.
    fn part_values(&mut self, program: &Program) -> HashMap<ValueId, PartSum> {
        let per_worker = self.parts.per_worker();
        let mut replaced = HashMap::new();
        for id in (0..program.values.len()).map(ValueId) {
            let value = program.value(id).clone();
            let changes = |step: &&Step| step.updates.contains(&id) || step.outputs.contains(&id);
            let Some(first) = program.steps.iter().find(changes) else { continue };
            match value.role {
                Role::Metrics if per_worker > 1 => {
                    let part = self.add_value(&value.name, "part", &value.shape, value.dtype);
                    replaced.insert(id, PartSum { part, sum: id });
                }
                Role::Metrics => {
                    replaced.insert(id, PartSum { part: id, sum: id });
                }
                Role::Buffer if self.is_synchronised_statistic(first) => {}
                Role::Buffer => {
                    let part = self.add_value(&value.name, "part", &value.shape, value.dtype);
                    let sum = match per_worker > 1 {
                        true => self.add_value(&value.name, "sum", &value.shape, value.dtype),
                        false => part,
                    };
                    let copy = step(Scale { factor: 1.0 }, first.phase, &first.layers);
                    self.program.steps.push(Step { inputs: vec![id], outputs: vec![part], ..copy });
                    self.statistics.push((id, sum, first.layers.clone()));
                    replaced.insert(id, PartSum { part, sum });
                }
                _ => {}
            }
        }
        replaced
    }

    fn add_value(&mut self, source: &str, label: &str, shape: &[usize], dtype: DType) -> ValueId {
        self.program.add_value(format!("{source}:{label}"), shape, dtype, Role::Transient)
    }

    /// Adds a part to its sum, if there are several parts. The sum is then all-reduced in a bucket.
    fn add_to_sum(&mut self, summed: PartSum, method: SumMethod, phase: Phase, layers: &[usize]) {
        let value = summed.sum;
        self.add_part(summed, phase, layers);
        self.sums.push(CompleteSum { position: self.program.steps.len() - 1, value, method });
    }

    /// Adds a part to its sum, if there are several parts.
    fn add_part(&mut self, PartSum { part, sum }: PartSum, phase: Phase, layers: &[usize]) {
        let per_worker = self.parts.per_worker();
        if per_worker > 1 {
            let add = TreeSum { parts: per_worker };
            let value = self.program.value(part).clone();
            let name = self.program.value(sum).name.clone();
            let levels = (0..add.levels())
                .map(|level| self.add_value(&name, &format!("level{level}"), &value.shape, value.dtype));
            let outputs = std::iter::once(sum).chain(levels.collect::<Vec<_>>()).collect();
            self.program.steps.push(Step { inputs: vec![part], outputs, ..step(add, phase, layers) });
        }
    }

    /// Adds the all-reduce steps. Label counts are reduced before the parts, which need them. Each bucket of
    /// sums starts when its last sum is complete; the waiting steps follow the backward pass, in the same
    /// order.
    fn add_all_reduces(&mut self) {
        if self.parts.workers < 2 {
            return;
        }
        let mut following: Vec<Vec<Step>> = vec![Vec::new(); self.program.steps.len()];
        let mut waits = Vec::new();
        let exact = SumMethod::default();
        let buckets = self.buckets();
        let all_reduce_step =
            |bucket, waits, method| self.exchange(self.norm_buckets + bucket, waits, method);
        let counts = |step: &Step| matches!(step.kernel, Kernel::CountLabels(_));
        if let Some(position) = self.program.steps.iter().position(counts) {
            let counts = self.program.steps[position].outputs.clone();
            let [start, wait] = [false, true].map(|waits| all_reduce_step(buckets.len(), waits, exact));
            following[position].push(Step { inputs: counts.clone(), ..start });
            following[position].push(Step { updates: counts, ..wait });
        }
        for (bucket, Bucket { position: complete, values, method }) in buckets.into_iter().enumerate() {
            let [start, wait] = [false, true].map(|waits| all_reduce_step(bucket, waits, method));
            following[complete].push(Step { inputs: values.clone(), ..start });
            waits.push(Step { updates: values, ..wait });
        }
        let counts: Vec<usize> = following.iter().map(Vec::len).collect();
        let steps = self.program.steps.iter().cloned().zip(following);
        let steps = steps.flat_map(|(step, starts)| std::iter::once(step).chain(starts)).collect();
        self.program.replace_steps(steps, |position| counts[position]);
        self.program.steps.append(&mut waits);
    }

    /// One step of the all-reduce of a bucket, without its values.
    fn exchange(&self, bucket: usize, waits: bool, method: SumMethod) -> Step {
        let layers: Vec<usize> = self.exchange_layer.into_iter().collect();
        step(AllReduceBucket { bucket, waits, method }, Phase::Communication, &layers)
    }

    /// The buckets: sums of one type and method.
    fn buckets(&self) -> Vec<Bucket> {
        let mut buckets: Vec<Bucket> = Vec::new();
        let mut open: HashMap<(DType, SumMethod), usize> = HashMap::new();
        let mut bytes: Vec<usize> = Vec::new();
        for &CompleteSum { position, value: id, method } in &self.sums {
            let value = self.program.value(id);
            let kind = (value.dtype, method);
            let existing = open.get(&kind).copied().filter(|&bucket: &usize| {
                bytes[bucket] < self.parts.bucket_bytes && buckets[bucket].values.len() < MAX_BUCKET_VALUES
            });
            let bucket = existing.unwrap_or_else(|| {
                buckets.push(Bucket { position, values: Vec::new(), method });
                bytes.push(0);
                buckets.len() - 1
            });
            open.insert(kind, bucket);
            buckets[bucket].position = position;
            buckets[bucket].values.push(id);
            bytes[bucket] += value.bytes();
        }
        buckets
    }

    /// Sets running statistics to the mean over the parts.
    fn add_means(&mut self) {
        let factor = 1.0 / self.parts.count as f32;
        for (statistic, sum, layers) in std::mem::take(&mut self.statistics) {
            let mean = step(Scale { factor }, Phase::Forward, &layers);
            self.program.steps.push(Step { inputs: vec![sum], outputs: vec![statistic], ..mean });
        }
    }
}

/// The layer name of communication steps in reports.
const EXCHANGE: &str = "exchange";

fn step(kernel: impl Into<Kernel>, phase: Phase, layers: &[usize]) -> Step {
    let layers = layers.to_vec();
    Step { kernel: kernel.into(), phase, layers, inputs: vec![], updates: vec![], outputs: vec![] }
}

/// Values by the last step that touches them.
fn last_touches(program: &Program, ids: impl Iterator<Item = ValueId>) -> HashMap<usize, Vec<ValueId>> {
    let mut by_step: HashMap<usize, Vec<ValueId>> = HashMap::new();
    let mut ids: Vec<ValueId> = ids.collect();
    ids.sort_unstable();
    for id in ids {
        if let Some(last) = program.steps.iter().rposition(|step| step.operands().any(|other| other == id)) {
            by_step.entry(last).or_default().push(id);
        }
    }
    by_step
}
