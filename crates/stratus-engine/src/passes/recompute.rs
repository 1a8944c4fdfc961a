//! Activation recomputation: trades time for memory (Chen et al., Training Deep Nets with Sublinear Memory
//! Cost, 2016).
//!
//! Activations that the backward pass reads stay in memory from the forward pass on; together they are most
//! of what training needs. Instead of keeping a step's result, the step can run a second time right before
//! its result is read. Kernel, operands and random numbers are the same, so the bits are too. Steps are
//! chosen at the peak of memory, in the order of bytes freed per operation: a batch norm or ReLU after a
//! convolution costs almost nothing.

use crate::memory::{self, Block};
use crate::program::Origin;
use crate::{EngineError, Phase, Program, Role, Step, ValueId};
use std::collections::{HashMap, HashSet};

/// Recomputes activations of a differentiated program until [`live_bytes`] is at most `bytes`, or nothing
/// more can be gained.
///
/// # Errors
/// Only where verification fails.
pub fn recompute(program: &Program, bytes: usize) -> Result<Program, EngineError> {
    let Some(turn) = program.steps.iter().position(|step| is_backward(step.phase)) else {
        return Ok(program.clone());
    };
    let search = Search::new(program, turn);
    let (mut dropped, mut kept) = (HashSet::new(), HashSet::new());
    let mut best = program.clone();
    loop {
        let alive = alive(&best);
        let Some((peak, position)) = peak(&alive).filter(|(peak, _)| *peak > bytes) else { break };
        let Some(step) = search.cheapest(&best, position, &dropped, &kept) else { break };
        let together = search.with_sources(step, &dropped);
        dropped.extend(&together);
        let next = search.without(&dropped);
        if live_bytes(&next) <= peak {
            best = next;
        } else {
            // Its inputs would have to be kept instead.
            together.iter().for_each(|step| _ = dropped.remove(step));
            kept.insert(step);
        }
    }
    best.verify("recompute")?;
    Ok(best)
}

/// Peak bytes of transient values, without scratch, padding of blocked layouts and what tiles save.
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
    let values = program.values.iter().zip(spans).filter(|(value, _)| value.role == Role::Transient);
    let blocks = values.filter_map(|(value, span)| {
        let (first, last) = span?;
        Some(Block { bytes: value.bytes(), first, last })
    });
    memory::alive(&blocks.collect::<Vec<_>>())
}

/// The most bytes, and the first step at which they are alive.
fn peak(alive: &[usize]) -> Option<(usize, usize)> {
    let peak = alive.iter().max()?;
    Some((*peak, alive.iter().position(|bytes| bytes == peak)?))
}

struct Search<'a> {
    program: &'a Program,
    /// The first step of the backward pass. The forward steps before it are the same in every candidate
    /// program.
    turn: usize,
    /// Per forward step, the steps that write its outputs: itself, and those that add the other parts of a
    /// concatenated map. `None` where running them twice would change anything else.
    producers: Vec<Option<Vec<usize>>>,
    /// Per forward step, the producers of inputs that the backward pass does not read.
    sources: Vec<Vec<usize>>,
}

impl<'a> Search<'a> {
    fn new(program: &'a Program, turn: usize) -> Self {
        let forward = &program.steps[..turn];
        let producers: Vec<_> = (0..turn).map(|number| producers(program, forward, number)).collect();
        let read = |step: &'a Step| step.inputs.iter().chain(&step.updates);
        let needed: HashSet<&ValueId> = program.steps[turn..].iter().flat_map(read).collect();
        let made =
            |(number, step): (usize, &'a Step)| step.outputs.iter().map(move |output| (output, number));
        let producer: HashMap<&ValueId, usize> = forward.iter().enumerate().flat_map(made).collect();
        let sources = producers.iter().map(|steps| {
            let inputs = steps.iter().flatten().flat_map(|&step| &forward[step].inputs);
            let sources =
                inputs.filter(|input| !needed.contains(input)).filter_map(|input| producer.get(input));
            sources.copied().filter(|&source| producers[source].is_some()).collect()
        });
        let sources = sources.collect();
        Self { program, turn, producers, sources }
    }

    /// A step whose outputs are to be dropped, with the producers of inputs that nothing else of the backward
    /// pass reads: keeping those inputs would cost more bytes than are gained. A pooled map, for instance, is
    /// recomputed together with the map before it, which only the pooling reads.
    fn with_sources(&self, number: usize, dropped: &HashSet<usize>) -> Vec<usize> {
        let mut together = vec![number];
        let mut next = 0;
        while let Some(&number) = together.get(next) {
            next += 1;
            for source in &self.sources[number] {
                if !dropped.contains(source) && !together.contains(source) {
                    together.push(*source);
                }
            }
        }
        together
    }

    /// The step that frees the most bytes per operation among those whose outputs are alive at `position` of
    /// `now` and used neither right before nor right after it.
    fn cheapest(
        &self,
        now: &Program,
        position: usize,
        dropped: &HashSet<usize>,
        kept: &HashSet<usize>,
    ) -> Option<usize> {
        // Around `position`, a value is not needed between the last use before it and the first one behind
        // it.
        let (mut before, mut behind) = (vec![None; now.values.len()], vec![None; now.values.len()]);
        for (at, step) in now.steps.iter().enumerate() {
            for id in step.operands() {
                if at <= position {
                    before[id.0] = Some(at);
                }
                if at >= position {
                    behind[id.0].get_or_insert(at);
                }
            }
        }
        let is_idle = |id: &&ValueId| {
            let (before, behind): (Option<usize>, Option<usize>) = (before[id.0], behind[id.0]);
            before.is_some_and(|at| at < position && at < self.turn)
                && behind.is_some_and(|at| at > position && at >= self.turn)
        };
        let mut best: Option<(f64, usize)> = None;
        for (number, step) in self.program.steps[..self.turn].iter().enumerate() {
            if dropped.contains(&number) || kept.contains(&number) {
                continue;
            }
            let freed: usize = step.outputs.iter().filter(is_idle).map(|id| now.value(*id).bytes()).sum();
            if freed == 0 {
                continue;
            }
            if self.producers[number].is_none() {
                continue;
            }
            let together = self.with_sources(number, dropped);
            let producers = together.iter().filter_map(|&number| self.producers[number].as_ref()).flatten();
            let cost = |&number: &usize| {
                let operands = self.program.steps[number].operands();
                let touched: usize = operands.map(|id| self.program.value(id).bytes()).sum();
                self.program.step_flops(number) as f64 + touched as f64
            };
            let price = producers.map(cost).sum::<f64>() / freed as f64;
            if best.is_none_or(|(lowest, _)| price < lowest) {
                best = Some((price, number));
            }
        }
        best.map(|(_, number)| number)
    }

    /// The program in which the outputs of `dropped` are recomputed before the backward pass first reads
    /// them.
    fn without(&self, dropped: &HashSet<usize>) -> Program {
        let producers = dropped.iter().flat_map(|&number| {
            let producers = self.producers[number].clone().unwrap_or_default();
            self.program.steps[number].outputs.iter().map(move |&output| (output, producers.clone()))
        });
        let mut rewritten = Rewritten {
            source: self.program,
            program: self.program.clone(),
            producers: producers.collect(),
            recomputed: HashMap::new(),
        };
        rewritten.program.steps.truncate(self.turn);
        for step in &self.program.steps[self.turn..] {
            let step = rewritten.reading(step);
            rewritten.program.steps.push(step);
        }
        rewritten.program
    }
}

/// The steps that write the outputs of step `number`: see [`Search::producers`].
fn producers(program: &Program, forward: &[Step], number: usize) -> Option<Vec<usize>> {
    let first = &forward[number];
    let adds = |step: &Step| step.updates.iter().any(|id| first.outputs.contains(id));
    let producers = forward.iter().enumerate().filter(|(at, step)| *at == number || adds(step));
    let is_pure = |step: &Step| {
        step.phase == Phase::Forward
            && step.updates.iter().all(|id| first.outputs.contains(id))
            && step.outputs.iter().all(|&id| program.value(id).role == Role::Transient)
    };
    producers.map(|(at, step)| is_pure(step).then_some(at)).collect()
}

/// The program while recomputation is inserted.
struct Rewritten<'a> {
    source: &'a Program,
    program: Program,
    /// Per dropped value, the steps that write it; the first has it as an output, the others update it.
    producers: HashMap<ValueId, Vec<usize>>,
    /// Per dropped value, the recomputed one, as far as it is inserted.
    recomputed: HashMap<ValueId, ValueId>,
}

impl Rewritten<'_> {
    /// The step, reading recomputed values, whose producers are inserted before it.
    fn reading(&mut self, step: &Step) -> Step {
        let mut step = step.clone();
        for id in step.inputs.iter_mut().chain(&mut step.updates) {
            *id = self.at_hand(*id);
        }
        step
    }

    /// A value, or the recomputed one where it is dropped.
    fn at_hand(&mut self, id: ValueId) -> ValueId {
        if let Some(&made) = self.recomputed.get(&id) {
            return made;
        }
        let Some(producers) = self.producers.get(&id).cloned() else { return id };
        for producer in producers {
            // By then, what it updates is recomputed.
            let mut step = self.reading(&self.source.steps[producer]);
            for output in &mut step.outputs {
                let (dtype, role) = (self.source.value(*output).dtype, self.source.value(*output).role);
                let new = self.program.add_derived(Origin::Recomputed(*output), dtype, role);
                self.recomputed.insert(*output, new);
                *output = new;
            }
            // Reports count it to the backward pass.
            step.phase = Phase::BackwardData;
            self.program.steps.push(step);
        }
        self.recomputed[&id]
    }
}
