//! A batch in parts: one definition for any number of workers.
//!
//! The batch of all workers is cut into `parts` equal parts. Each has batch norm statistics and random
//! numbers of its own. The labels of all are counted first: these counts divide the loss. Gradients, metrics
//! and running statistics are summed along one binary tree over the parts ([`AddParts`]); of the last the
//! mean is taken. `workers` processes have a block of parts each: they process one after the other, and
//! exchange their sums. The result is that of one process which has all parts, bit by bit.
//!
//! A bucket of gradients is exchanged as soon as its last is made, while the backward pass goes on (Li et
//! al., "PyTorch distributed: experiences on accelerating data parallel training", 2020, section 3.2.3).

use super::label_counts::count_labels;
use crate::ops::{AddParts, BUCKET_VALUES, ExchangeSums, Scale};
use crate::program::{Layer, Origin, Section, Stage};
use crate::{DType, EngineError, Kernel, Phase, Program, Role, Step, ValueId};
use std::collections::HashMap;

/// How a batch is cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Parts {
    /// Into how many parts: a power of two.
    pub count: usize,
    /// Among how many workers they are shared out: a power of two, at most as many.
    pub workers: usize,
    /// Bytes from which on a bucket is exchanged.
    pub bucket_bytes: usize,
}

impl Parts {
    /// The parts of each worker.
    #[must_use]
    pub fn of_worker(&self) -> usize {
        self.count / self.workers.max(1)
    }
}

/// Turns a differentiated program for one part into that of a worker.
///
/// # Errors
/// Where the numbers do not fit, the program is cut into tiles, or verification fails.
pub fn parts(program: &Program, parts: Parts) -> Result<Program, EngineError> {
    let Parts { count, workers, .. } = parts;
    if !count.is_power_of_two() || !workers.is_power_of_two() || workers > count {
        return Err(EngineError::Mismatch(format!(
            "a batch of {count} parts cannot be shared out among {workers} workers: both are powers of two"
        )));
    }
    if !program.sections.is_empty() {
        return Err(EngineError::Mismatch("a program in tiles cannot be repeated for parts".to_owned()));
    }
    if count == 1 {
        return Ok(program.clone());
    }
    let program = &count_labels(program)?;
    let mut made = Maker::new(program, parts);
    made.steps(program);
    made.exchange();
    made.means();
    made.whole.verify("parts")?;
    Ok(made.whole)
}

/// What every part has of its own, and the sum over all: a gradient, running statistics, or the metrics.
struct Summed {
    part: ValueId,
    sum: ValueId,
}

/// The program of a worker, being made.
struct Maker {
    whole: Program,
    parts: Parts,
    /// Sums, in the order in which they are made, each with the position of the step that completes it.
    sums: Vec<(usize, ValueId)>,
    /// Running statistics: the value that outlives the iteration, and the sum of what the parts make of it.
    statistics: Vec<(ValueId, ValueId, Vec<usize>)>,
}

impl Maker {
    fn new(program: &Program, parts: Parts) -> Self {
        let mut whole = program.clone();
        let own = parts.of_worker();
        whole.parts = parts.count;
        whole.batch *= own;
        for value in whole.values.iter_mut().filter(|value| value.role.is_external()) {
            value.shape[0] *= own;
        }
        whole.steps.clear();
        Self { whole, parts, sums: Vec::new(), statistics: Vec::new() }
    }

    /// The steps of the parts, in a section where a worker has several.
    fn steps(&mut self, program: &Program) {
        let own = self.parts.of_worker();
        self.whole.steps.extend(program.steps.iter().filter(|step| runs_once(step)).cloned());
        let first = self.whole.steps.len();
        let mut replaced = self.part_values(program);
        let last_touch = last_touches(program, replaced.keys().copied());
        let gradients = gradients(program);
        for (position, step) in program.steps.iter().enumerate().filter(|(_, step)| !runs_once(step)) {
            let mut step = step.clone();
            for id in step.inputs.iter_mut().chain(&mut step.updates).chain(&mut step.outputs) {
                if let Some(summed) = replaced.get(id) {
                    *id = summed.part;
                }
            }
            let layers = step.layers.clone();
            let phase = step.phase;
            self.whole.steps.push(step);
            for &gradient in gradients.get(&position).into_iter().flatten() {
                let sum = if own > 1 { self.whole.split_into_tiles(gradient) } else { gradient };
                self.add(Summed { part: gradient, sum }, phase, &layers);
            }
            for &of in last_touch.get(&position).into_iter().flatten() {
                // Its last step: none that follows has to be given the part in its place.
                if let Some(summed) = replaced.remove(&of) {
                    self.add(summed, phase, &layers);
                }
            }
        }
        if own > 1 {
            let count = self.whole.steps.len() - first;
            self.whole.sections.push(Section {
                first,
                count,
                tiles: own,
                micro_batches: true,
                from_last: false,
                ahead: program.stage.map_or(1, Stage::ahead),
            });
        }
    }

    /// The values that each part has of its own in the place of those that outlive an iteration: running
    /// statistics, which begin as they were before the iteration, and metrics.
    fn part_values(&mut self, program: &Program) -> HashMap<ValueId, Summed> {
        let own = self.parts.of_worker();
        let mut replaced = HashMap::new();
        for id in (0..program.values.len()).map(ValueId) {
            let value = program.value(id).clone();
            let changes = |step: &&Step| step.updates.contains(&id) || step.outputs.contains(&id);
            let Some(first) = program.steps.iter().find(changes) else { continue };
            match value.role {
                Role::Metrics if own > 1 => {
                    let part = self.add_value(&value.name, "part", &value.shape, value.dtype);
                    replaced.insert(id, Summed { part, sum: id });
                }
                Role::Metrics => {
                    replaced.insert(id, Summed { part: id, sum: id });
                }
                Role::Buffer => {
                    let part = self.add_value(&value.name, "part", &value.shape, value.dtype);
                    let sum = match own > 1 {
                        true => self.add_value(&value.name, "sum", &value.shape, value.dtype),
                        false => part,
                    };
                    let copy = step(Scale { factor: 1.0 }, first.phase, &first.layers);
                    self.whole.steps.push(Step { inputs: vec![id], outputs: vec![part], ..copy });
                    self.statistics.push((id, sum, first.layers.clone()));
                    replaced.insert(id, Summed { part, sum });
                }
                _ => {}
            }
        }
        replaced
    }

    fn add_value(&mut self, of: &str, label: &str, shape: &[usize], dtype: DType) -> ValueId {
        self.whole.add_value(format!("{of}:{label}"), shape, dtype, Role::Transient)
    }

    /// Adds a part to its sum, where there are several.
    fn add(&mut self, Summed { part, sum }: Summed, phase: Phase, layers: &[usize]) {
        let own = self.parts.of_worker();
        if own > 1 {
            let add = AddParts { parts: own };
            let value = self.whole.value(part).clone();
            let of = self.whole.value(sum).name.clone();
            let levels = (0..add.levels())
                .map(|level| self.add_value(&of, &format!("level{level}"), &value.shape, value.dtype));
            let outputs = std::iter::once(sum).chain(levels.collect::<Vec<_>>()).collect();
            self.whole.steps.push(Step { inputs: vec![part], outputs, ..step(add, phase, layers) });
        }
        self.sums.push((self.whole.steps.len() - 1, sum));
    }

    /// The exchange with the other workers. The counts of labels are exchanged before the parts, which need
    /// them. Of the sums, each bucket starts when its last one is complete; the waits are behind the backward
    /// pass, in this order.
    fn exchange(&mut self) {
        if self.parts.workers < 2 {
            return;
        }
        let layer = self.whole.layers.len();
        self.whole.layers.push(Layer { name: EXCHANGE.to_owned(), kind: EXCHANGE.to_owned() });
        let mut behind: Vec<Vec<Step>> = vec![Vec::new(); self.whole.steps.len()];
        let mut waits = Vec::new();
        let half = |bucket, waits| step(ExchangeSums { bucket, waits }, Phase::Communication, &[layer]);
        let buckets = self.buckets();
        let counts = |step: &Step| matches!(step.kernel, Kernel::CountLabels(_));
        if let Some(position) = self.whole.steps.iter().position(counts) {
            let counts = self.whole.steps[position].outputs.clone();
            behind[position].push(Step { inputs: counts.clone(), ..half(buckets.len(), false) });
            behind[position].push(Step { updates: counts, ..half(buckets.len(), true) });
        }
        for (bucket, (complete, values)) in buckets.into_iter().enumerate() {
            let section = self.whole.section_of(complete);
            let complete = section.map_or(complete, |section| section.steps().end - 1);
            behind[complete].push(Step { inputs: values.clone(), ..half(bucket, false) });
            waits.push(Step { updates: values, ..half(bucket, true) });
        }
        let counts: Vec<usize> = behind.iter().map(Vec::len).collect();
        let steps = self.whole.steps.iter().cloned().zip(behind);
        let steps = steps.flat_map(|(step, starts)| std::iter::once(step).chain(starts)).collect();
        self.whole.replace_steps(steps, |position| counts[position]);
        self.whole.steps.append(&mut waits);
    }

    /// Sums of one type that are exchanged together, with the step that completes the last of them.
    fn buckets(&self) -> Vec<(usize, Vec<ValueId>)> {
        let mut buckets: Vec<(usize, Vec<ValueId>)> = Vec::new();
        let mut open: HashMap<DType, usize> = HashMap::new();
        let mut bytes: Vec<usize> = Vec::new();
        for &(complete, id) in &self.sums {
            let value = self.whole.value(id);
            let place = open.get(&value.dtype).copied().filter(|&bucket: &usize| {
                bytes[bucket] < self.parts.bucket_bytes && buckets[bucket].1.len() < BUCKET_VALUES
            });
            let bucket = place.unwrap_or_else(|| {
                buckets.push((complete, Vec::new()));
                bytes.push(0);
                buckets.len() - 1
            });
            open.insert(value.dtype, bucket);
            buckets[bucket].0 = complete;
            buckets[bucket].1.push(id);
            bytes[bucket] += value.bytes();
        }
        buckets
    }

    /// Running statistics are the mean of what the parts make of them.
    fn means(&mut self) {
        let factor = 1.0 / self.parts.count as f32;
        for (statistic, sum, layers) in std::mem::take(&mut self.statistics) {
            let mean = step(Scale { factor }, Phase::Forward, &layers);
            self.whole.steps.push(Step { inputs: vec![sum], outputs: vec![statistic], ..mean });
        }
    }
}

/// The name of the exchange in reports, where a layer's stands.
const EXCHANGE: &str = "exchange";

/// Whether a step runs once for all parts: it depends on parameters alone, or on the labels of the whole
/// batch.
pub(super) fn runs_once(step: &Step) -> bool {
    matches!(step.kernel, Kernel::JoinWeights(_) | Kernel::CountLabels(_))
}

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

/// The gradients of the parameters, by the last step that writes them.
pub(super) fn gradients(program: &Program) -> HashMap<usize, Vec<ValueId>> {
    let mut by_step: HashMap<usize, Vec<ValueId>> = HashMap::new();
    let of_parameter = |id: &ValueId| match program.value(*id).origin {
        Some(Origin::Gradient(of)) => program.value(of).role == Role::Parameter,
        _ => false,
    };
    for id in (0..program.values.len()).map(ValueId).filter(of_parameter) {
        let last =
            program.steps.iter().rposition(|step| step.outputs.contains(&id) || step.updates.contains(&id));
        if let Some(last) = last {
            by_step.entry(last).or_default().push(id);
        }
    }
    by_step
}
