//! Activation recomputation: trades time for memory (Chen et al., Training Deep Nets with Sublinear Memory
//! Cost, 2016).
//!
//! Activations that the backward pass reads stay in memory from the forward pass on; together they take most
//! of the memory of training. Instead of keeping a step's result, the step can be repeated right before its
//! result is read. Kernel, operands and random numbers are the same, so results are bitwise equal. Steps are
//! chosen at the peak of memory, in the order of bytes freed per operation: a batch norm or ReLU after a
//! convolution costs almost nothing.
//!
//! A pipeline stage keeps a copy of its activations for each part in flight ([`Stage::in_flight`]); those
//! that it recomputes have none.

#[cfg(doc)]
use crate::Stage;
use crate::memory::{self, Block};
use crate::program::Origin;
use crate::{EngineError, Phase, Program, Role, Step, ValueId};
use std::collections::{HashMap, HashSet};

/// Recomputes activations of a differentiated program until [`live_bytes`] is at most `bytes` or cannot be
/// reduced further.
///
/// # Errors
/// Only if verification fails.
pub fn recompute(program: &Program, bytes: usize) -> Result<Program, EngineError> {
    let Some(backward_start) = program.steps.iter().position(|step| is_backward(step.phase)) else {
        return Ok(program.clone());
    };
    let search = RecomputeSearch::new(program, backward_start);
    let (mut dropped, mut kept) = (HashSet::new(), HashSet::new());
    let mut best = program.clone();
    loop {
        let alive = alive(&best);
        let Some((peak, position)) = peak(&alive).filter(|(peak, _)| *peak > bytes) else { break };
        let Some(step) = search.cheapest(&best, position, &dropped, &kept) else { break };
        let together = search.with_required_sources(step, &dropped);
        dropped.extend(&together);
        let next = search.recomputing(&dropped);
        if live_bytes(&next) <= peak {
            best = next;
        } else {
            // Dropping its outputs would keep its inputs alive instead.
            together.iter().for_each(|step| _ = dropped.remove(step));
            kept.insert(step);
        }
    }
    best.verify("recompute")?;
    Ok(best)
}

/// The peak bytes of transient values, without scratch, padding of blocked layouts and savings of tiles. For
/// one part of a pipeline stage, the values of all parts in flight are counted.
#[must_use]
pub fn live_bytes(program: &Program) -> usize {
    peak(&alive(program)).map_or(0, |(bytes, _)| bytes)
}

fn is_backward(phase: Phase) -> bool {
    matches!(phase, Phase::BackwardData | Phase::BackwardWeights)
}

/// Bytes alive at each step.
fn alive(program: &Program) -> Vec<usize> {
    let mut spans: Vec<Option<(usize, usize)>> = vec![None; program.values.len()];
    for (position, step) in program.steps.iter().enumerate() {
        for id in step.operands() {
            spans[id.0].get_or_insert((position, position)).1 = position;
        }
    }
    let copies = program.live_copies_of_part();
    let values = program.values.iter().zip(spans).zip(copies);
    let blocks = values.filter(|((value, _), _)| value.role == Role::Transient);
    let blocks = blocks.filter_map(|((value, span), copies)| {
        let (first, last) = match copies {
            1 => span?,
            // Some part of the batch needs them at any time.
            _ => (0, program.steps.len() - 1),
        };
        Some(Block { bytes: copies * value.bytes(), first, last })
    });
    memory::alive(&blocks.collect::<Vec<_>>())
}

/// The peak bytes and the first step at which they are alive.
fn peak(alive: &[usize]) -> Option<(usize, usize)> {
    let peak = alive.iter().max()?;
    Some((*peak, alive.iter().position(|bytes| bytes == peak)?))
}

struct RecomputeSearch<'a> {
    program: &'a Program,
    /// The first step of the backward pass. The forward steps before it are the same in every candidate
    /// program.
    backward_start: usize,
    /// For each forward step, the steps that write its outputs: itself, and those that write the other slices
    /// of a concatenated map. `None` if repeating them would have side effects.
    producers: Vec<Option<Vec<usize>>>,
    /// For each forward step, the producers of inputs that the backward pass does not read.
    sources: Vec<Vec<usize>>,
}

impl<'a> RecomputeSearch<'a> {
    fn new(program: &'a Program, backward_start: usize) -> Self {
        let forward = &program.steps[..backward_start];
        let producers: Vec<_> = (0..backward_start).map(|index| producers(program, forward, index)).collect();
        let read = |step: &'a Step| step.inputs.iter().chain(&step.updates);
        let needed: HashSet<&ValueId> = program.steps[backward_start..].iter().flat_map(read).collect();
        let outputs =
            |(index, step): (usize, &'a Step)| step.outputs.iter().map(move |output| (output, index));
        let producer: HashMap<&ValueId, usize> = forward.iter().enumerate().flat_map(outputs).collect();
        let sources = producers.iter().map(|steps| {
            let inputs = steps.iter().flatten().flat_map(|&step| &forward[step].inputs);
            let sources =
                inputs.filter(|input| !needed.contains(input)).filter_map(|input| producer.get(input));
            sources.copied().filter(|&source| producers[source].is_some()).collect()
        });
        let sources = sources.collect();
        Self { program, backward_start, producers, sources }
    }

    /// The step `index` with the producers of inputs that nothing else in the backward pass reads, because
    /// keeping those inputs would cost more memory than is saved. A pooled map, for instance, is recomputed
    /// together with the map before it, which only the pooling reads.
    fn with_required_sources(&self, index: usize, dropped: &HashSet<usize>) -> Vec<usize> {
        let mut together = vec![index];
        let mut next = 0;
        while let Some(&index) = together.get(next) {
            next += 1;
            for source in &self.sources[index] {
                if !dropped.contains(source) && !together.contains(source) {
                    together.push(*source);
                }
            }
        }
        together
    }

    /// The step that frees the most bytes per operation among those whose outputs are alive at `position` of
    /// `now` and not used by the neighbouring steps.
    fn cheapest(
        &self,
        now: &Program,
        position: usize,
        dropped: &HashSet<usize>,
        kept: &HashSet<usize>,
    ) -> Option<usize> {
        // Around `position`, a value is idle between its last use before and its first use after.
        let (mut before, mut after) = (vec![None; now.values.len()], vec![None; now.values.len()]);
        for (at, step) in now.steps.iter().enumerate() {
            for id in step.operands() {
                if at <= position {
                    before[id.0] = Some(at);
                }
                if at >= position {
                    after[id.0].get_or_insert(at);
                }
            }
        }
        let is_idle = |id: &&ValueId| {
            let (before, after): (Option<usize>, Option<usize>) = (before[id.0], after[id.0]);
            before.is_some_and(|at| at < position && at < self.backward_start)
                && after.is_some_and(|at| at > position && at >= self.backward_start)
        };
        let copies = now.live_copies_of_part();
        let freed_bytes = |id: &ValueId| {
            // One copy is in use now, unless the value is idle.
            let freed = if is_idle(&id) { copies[id.0] } else { copies[id.0] - 1 };
            freed * now.value(*id).bytes()
        };
        let mut best: Option<(f64, usize)> = None;
        for (index, step) in self.program.steps[..self.backward_start].iter().enumerate() {
            if dropped.contains(&index) || kept.contains(&index) {
                continue;
            }
            let freed: usize = step.outputs.iter().map(freed_bytes).sum();
            if freed == 0 {
                continue;
            }
            if self.producers[index].is_none() {
                continue;
            }
            let together = self.with_required_sources(index, dropped);
            let producers = together.iter().filter_map(|&index| self.producers[index].as_ref()).flatten();
            let cost = |&index: &usize| {
                let operands = self.program.steps[index].operands();
                let touched: usize = operands.map(|id| self.program.value(id).bytes()).sum();
                self.program.step_flops(index) as f64 + touched as f64
            };
            let price = producers.map(cost).sum::<f64>() / freed as f64;
            if best.is_none_or(|(lowest, _)| price < lowest) {
                best = Some((price, index));
            }
        }
        best.map(|(_, index)| index)
    }

    /// The program in which the outputs of `dropped` are recomputed before the backward pass first reads
    /// them.
    fn recomputing(&self, dropped: &HashSet<usize>) -> Program {
        let producers = dropped.iter().flat_map(|&index| {
            let producers = self.producers[index].clone().unwrap_or_default();
            self.program.steps[index].outputs.iter().map(move |&output| (output, producers.clone()))
        });
        let mut rewriter = RecomputeRewriter {
            source: self.program,
            program: self.program.clone(),
            producers: producers.collect(),
            recomputed: HashMap::new(),
        };
        rewriter.program.steps.truncate(self.backward_start);
        for step in &self.program.steps[self.backward_start..] {
            let step = rewriter.reading(step);
            rewriter.program.steps.push(step);
        }
        rewriter.program
    }
}

/// The steps that write the outputs of step `index`: see [`RecomputeSearch::producers`].
fn producers(program: &Program, forward: &[Step], index: usize) -> Option<Vec<usize>> {
    let first = &forward[index];
    let adds = |step: &Step| step.updates.iter().any(|id| first.outputs.contains(id));
    let producers = forward.iter().enumerate().filter(|(at, step)| *at == index || adds(step));
    let is_pure = |step: &Step| {
        step.phase == Phase::Forward
            && step.updates.iter().all(|id| first.outputs.contains(id))
            && step.outputs.iter().all(|&id| program.value(id).role == Role::Transient)
    };
    producers.map(|(at, step)| is_pure(step).then_some(at)).collect()
}

/// Inserts recomputation into a program.
struct RecomputeRewriter<'a> {
    source: &'a Program,
    program: Program,
    /// For each dropped value, the steps that write it; the first outputs it, the others update it.
    producers: HashMap<ValueId, Vec<usize>>,
    /// For each dropped value, the recomputed one, once inserted.
    recomputed: HashMap<ValueId, ValueId>,
}

impl RecomputeRewriter<'_> {
    /// The step with recomputed inputs, whose producers are inserted before it.
    fn reading(&mut self, step: &Step) -> Step {
        let mut step = step.clone();
        for id in step.inputs.iter_mut().chain(&mut step.updates) {
            *id = self.current_version(*id);
        }
        step
    }

    /// The value itself, or the recomputed one if it is dropped.
    fn current_version(&mut self, id: ValueId) -> ValueId {
        if let Some(&recomputed) = self.recomputed.get(&id) {
            return recomputed;
        }
        let Some(producers) = self.producers.get(&id).cloned() else { return id };
        for producer in producers {
            // The values it updates are recomputed by then.
            let mut step = self.reading(&self.source.steps[producer]);
            for output in &mut step.outputs {
                let (dtype, role) = (self.source.value(*output).dtype, self.source.value(*output).role);
                let new = self.program.add_derived(Origin::Recomputed(*output), dtype, role);
                self.recomputed.insert(*output, new);
                *output = new;
            }
            // Reports attribute it to the backward pass.
            step.phase = Phase::BackwardData;
            self.program.steps.push(step);
        }
        self.recomputed[&id]
    }
}
