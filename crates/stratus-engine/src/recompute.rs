//! Activations that are made again: a pass that trades time for memory.
//!
//! What the forward pass makes and the backward pass reads is alive in between, and all of it together is most of what training needs. A step that
//! only computes can be run once more, right before its result is read: the result need not be kept. Its kernel, operands and random numbers are
//! the same, and so are its bits. Steps are chosen where most is alive, those first that give the most bytes for the least arithmetic: a batch
//! norm or a rectifier behind a convolution costs almost nothing. (Chen et al., Training Deep Nets with Sublinear Memory Cost, 2016.)

use crate::memory::{self, Block};
use crate::program::Origin;
use crate::{EngineError, Phase, Program, Role, Step, ValueId};
use std::collections::{HashMap, HashSet};

/// Makes activations of a differentiated program again until no more than `bytes` are alive at once, or until nothing more can be gained. What
/// is alive comes to [`live_bytes`].
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
            // What it reads would have to be kept for it instead.
            together.iter().for_each(|step| _ = dropped.remove(step));
            kept.insert(step);
        }
    }
    best.verify("recompute")?;
    Ok(best)
}

/// The most bytes of transient values that are alive at one step, without scratch, blocks' padding and what tiles save.
#[must_use]
pub fn live_bytes(program: &Program) -> usize {
    peak(&alive(program)).map_or(0, |(bytes, _)| bytes)
}

fn is_backward(phase: Phase) -> bool {
    matches!(phase, Phase::BackwardData | Phase::BackwardWeights)
}

/// Per step, the bytes of what is alive.
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
    /// The first step of the backward pass: those before it stand in every program at the same place.
    turn: usize,
    /// Per step before it, the steps that make its results: itself, and where these are maps made in parts, those that add the other parts.
    /// `None` where running them a second time changes more than these.
    makers: Vec<Option<Vec<usize>>>,
    /// Per step, those that make what it reads and the backward pass does not.
    sources: Vec<Vec<usize>>,
}

impl<'a> Search<'a> {
    fn new(program: &'a Program, turn: usize) -> Self {
        let forward = &program.steps[..turn];
        let makers: Vec<_> = (0..turn).map(|number| makers(program, forward, number)).collect();
        let read = |step: &'a Step| step.inputs.iter().chain(&step.updates);
        let needed: HashSet<&ValueId> = program.steps[turn..].iter().flat_map(read).collect();
        let made =
            |(number, step): (usize, &'a Step)| step.outputs.iter().map(move |output| (output, number));
        let maker: HashMap<&ValueId, usize> = forward.iter().enumerate().flat_map(made).collect();
        let sources = makers.iter().map(|steps| {
            let inputs = steps.iter().flatten().flat_map(|&step| &forward[step].inputs);
            let sources = inputs.filter(|input| !needed.contains(input)).filter_map(|input| maker.get(input));
            sources.copied().filter(|&source| makers[source].is_some()).collect()
        });
        let sources = sources.collect();
        Self { program, turn, makers, sources }
    }

    /// A step that is to be dropped, and those that make what it reads, as far as nothing else of the backward pass needs it: kept for it alone, it would
    /// take more bytes than is gained. (A pooled map is made again together with the map before it, which only the pooling reads.)
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

    /// The step whose results are alive at `position` of `now` and not needed around it, that gives most bytes for the least arithmetic.
    fn cheapest(
        &self,
        now: &Program,
        position: usize,
        dropped: &HashSet<usize>,
        kept: &HashSet<usize>,
    ) -> Option<usize> {
        // Around `position`, a value is not needed between the last use before it and the first one behind it.
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
            if self.makers[number].is_none() {
                continue;
            }
            let together = self.with_sources(number, dropped);
            let makers = together.iter().filter_map(|&number| self.makers[number].as_ref()).flatten();
            let cost = |&number: &usize| {
                let operands = self.program.steps[number].operands();
                let touched: usize = operands.map(|id| self.program.value(id).bytes()).sum();
                self.program.step_flops(number) as f64 + touched as f64
            };
            let price = makers.map(cost).sum::<f64>() / freed as f64;
            if best.is_none_or(|(lowest, _)| price < lowest) {
                best = Some((price, number));
            }
        }
        best.map(|(_, number)| number)
    }

    /// The program in which the results of some steps are made again before the backward pass first reads them.
    fn without(&self, dropped: &HashSet<usize>) -> Program {
        let makers = dropped.iter().flat_map(|&number| {
            let makers = self.makers[number].clone().unwrap_or_default();
            self.program.steps[number].outputs.iter().map(move |&output| (output, makers.clone()))
        });
        let mut again = Again {
            source: self.program,
            program: self.program.clone(),
            makers: makers.collect(),
            made: HashMap::new(),
        };
        again.program.steps.truncate(self.turn);
        for step in &self.program.steps[self.turn..] {
            let step = again.reading(step);
            again.program.steps.push(step);
        }
        again.program
    }
}

/// The steps that make the results of the step with a number: see [`Search`].
fn makers(program: &Program, forward: &[Step], number: usize) -> Option<Vec<usize>> {
    let first = &forward[number];
    let adds = |step: &Step| step.updates.iter().any(|id| first.outputs.contains(id));
    let makers = forward.iter().enumerate().filter(|(at, step)| *at == number || adds(step));
    let is_pure = |step: &Step| {
        step.phase == Phase::Forward
            && step.updates.iter().all(|id| first.outputs.contains(id))
            && step.outputs.iter().all(|&id| program.value(id).role == Role::Transient)
    };
    makers.map(|(at, step)| is_pure(step).then_some(at)).collect()
}

/// A program in the making.
struct Again<'a> {
    source: &'a Program,
    program: Program,
    /// The steps that make what is not kept: the first one has it as its output.
    makers: HashMap<ValueId, Vec<usize>>,
    /// What was made in its place so far.
    made: HashMap<ValueId, ValueId>,
}

impl Again<'_> {
    /// The step, with what it reads made before it.
    fn reading(&mut self, step: &Step) -> Step {
        let mut step = step.clone();
        for id in step.inputs.iter_mut().chain(&mut step.updates) {
            *id = self.at_hand(*id);
        }
        step
    }

    /// A value, or what is made in its place.
    fn at_hand(&mut self, id: ValueId) -> ValueId {
        if let Some(&made) = self.made.get(&id) {
            return made;
        }
        let Some(makers) = self.makers.get(&id).cloned() else { return id };
        for maker in makers {
            // What it updates is made again by then.
            let mut step = self.reading(&self.source.steps[maker]);
            for output in &mut step.outputs {
                let (dtype, role) = (self.source.value(*output).dtype, self.source.value(*output).role);
                let new = self.program.add_derived(Origin::Recomputed(*output), dtype, role);
                self.made.insert(*output, new);
                *output = new;
            }
            // It is what the backward pass costs more.
            step.phase = Phase::BackwardData;
            self.program.steps.push(step);
        }
        self.made[&id]
    }
}
