//! Tiling: consecutive steps run together on a part of the batch small enough for the caches, then on the next part.
//!
//! Feature maps of a whole batch are larger than any cache: step by step, each is written to memory and read back. Between two points where all
//! samples must have been seen (the statistics of a batch norm, the loss, an update), steps need not wait for the batch: a section of them
//! goes through it tile by tile, and what one step writes is in the nearest caches when the next one reads it. What only a section touches
//! needs memory for one tile. Sums over the batch are added up in the order of the tiles, so that bits depend on the plan alone.

use crate::ops::{AddTiles, KernelSpec, Tiling};
use crate::program::{Origin, Section};
use crate::{EngineError, Program, Role, Step, Value, ValueId};
use std::collections::HashSet;
use std::ops::Range;

/// A step's weights may take this share of the caches: they are read again for every tile.
const WEIGHTS: usize = 4;

/// A tile may be smaller than the caches would hold by this factor, where the batch has no better divisor.
const SMALLEST: usize = 4;

/// Cuts a differentiated or an evaluation program into sections whose tiles fit `cache_bytes` and hold at least `fewest` samples.
///
/// # Errors
/// Only where verification fails.
pub fn tile(program: &Program, cache_bytes: usize, fewest: usize) -> Result<Program, EngineError> {
    let mut tiled = program.clone();
    tiled.sections.clear();
    tiled.steps.clear();
    let mut next = 0;
    for (steps, tiles, from_last) in sections(program, cache_bytes, fewest) {
        tiled.steps.extend_from_slice(&program.steps[next..steps.start]);
        next = steps.end;
        let first = tiled.steps.len();
        for step in &program.steps[steps.clone()] {
            push(&mut tiled, step);
        }
        let count = tiled.steps.len() - first;
        tiled.sections.push(Section { first, count, tiles, micro_batches: false, from_last });
        for id in local(program, &steps) {
            tiled.values[id.0].shape[0] /= tiles;
        }
    }
    tiled.steps.extend_from_slice(&program.steps[next..]);
    tiled.verify("tile")?;
    Ok(tiled)
}

/// Adds a step of a section; its sums over the batch become sums over a tile that are added up.
fn push(tiled: &mut Program, step: &Step) {
    let mut step = step.clone();
    let mut additions = Vec::new();
    if step.kernel.tiling() == Tiling::Sums {
        for output in &mut step.outputs {
            let (sum, dtype) = (Origin::Tile(*output), tiled.value(*output).dtype);
            let part = tiled.add_derived(sum, dtype, Role::Transient);
            additions.push(Step {
                kernel: AddTiles.into(),
                phase: step.phase,
                layers: step.layers.clone(),
                inputs: vec![part],
                updates: vec![],
                outputs: vec![*output],
            });
            *output = part;
        }
    }
    tiled.steps.push(step);
    tiled.steps.append(&mut additions);
}

/// The longest runs of steps that may go through the batch together, with the number of tiles for each, where that is more than one, and whether the
/// last tile is run first: every other one begins where the one before ended, at the samples whose maps are still in the caches.
///
/// Steps that make activations again have no say: sums over the batch must be added up in the tiles that they have without them. They join the
/// runs that they stand in or before, where they can, and else cut them in two.
fn sections(program: &Program, cache_bytes: usize, fewest: usize) -> Vec<(Range<usize>, usize, bool)> {
    let is_again = |step: &Step| {
        step.outputs.iter().chain(&step.updates).any(|id| program.recomputed_from(*id).is_some())
    };
    let positions: Vec<usize> =
        (0..program.steps.len()).filter(|position| !is_again(&program.steps[*position])).collect();
    let steps: Vec<&Step> = positions.iter().map(|position| &program.steps[*position]).collect();
    let mut found = Vec::new();
    let mut from_last = true;
    for run in runs(program, &steps, cache_bytes) {
        let Some(tiles) = tiles(program, &steps[run.clone()], cache_bytes, fewest) else { continue };
        from_last = !from_last;
        let before = run.start.checked_sub(1).map_or(0, |before| positions[before] + 1);
        let mut open: Option<usize> = None;
        let mut unfinished = HashSet::new();
        let end = positions[run.end - 1] + 1;
        for position in before..end {
            let step = &program.steps[position];
            let cuts =
                is_again(step) && (!may_run_in_tiles(program, step, cache_bytes) || waits(step, &unfinished));
            if cuts {
                found.extend(open.take().map(|first| (first..position, tiles, from_last)));
                continue;
            }
            open.get_or_insert(position);
            if step.kernel.tiling() != Tiling::PerSample {
                unfinished.extend(step.outputs.iter().chain(&step.updates).copied());
            }
        }
        found.extend(open.map(|first| (first..end, tiles, from_last)));
    }
    found
}

/// Whether a step needs what is not there before all tiles were.
fn waits(step: &Step, unfinished: &HashSet<ValueId>) -> bool {
    step.inputs.iter().chain(&step.updates).any(|id| unfinished.contains(id))
}

/// The longest runs of `steps` of which none waits for another.
fn runs(program: &Program, steps: &[&Step], cache_bytes: usize) -> Vec<Range<usize>> {
    let mut found = Vec::new();
    let mut open: Option<usize> = None;
    // What the open run adds up.
    let mut unfinished: HashSet<ValueId> = HashSet::new();
    for position in 0..=steps.len() {
        let step = steps.get(position).filter(|step| may_run_in_tiles(program, step, cache_bytes));
        if step.is_none_or(|step| waits(step, &unfinished)) {
            unfinished.clear();
            found.extend(open.take().map(|first| first..position));
        }
        if let Some(step) = step {
            open.get_or_insert(position);
            if step.kernel.tiling() != Tiling::PerSample {
                unfinished.extend(step.outputs.iter().chain(&step.updates).copied());
            }
        }
    }
    found
}

fn may_run_in_tiles(program: &Program, step: &Step, cache_bytes: usize) -> bool {
    let values = || step.operands().map(|id| program.value(id));
    let shared: usize = values().filter(|value| !value.per_sample).map(Value::bytes).sum();
    step.kernel.tiling() != Tiling::Whole
        && values().any(|value| value.per_sample)
        && shared <= cache_bytes / WEIGHTS
}

/// The fewest equal tiles of which one's operands fit the caches at every step; `None` where the whole batch does, or nothing suits.
fn tiles(program: &Program, steps: &[&Step], cache_bytes: usize, fewest: usize) -> Option<usize> {
    let of_step = |step: &Step| -> usize {
        step.operands().map(|id| program.value(id)).filter(|value| value.per_sample).map(Value::bytes).sum()
    };
    let largest = steps.iter().copied().map(of_step).max()?;
    let needed = largest.div_ceil(cache_bytes.max(1));
    let divides = |tiles: &usize| program.batch.is_multiple_of(*tiles);
    let tiles = (needed..=program.batch).find(divides)?;
    let samples = program.batch / tiles;
    (tiles > 1 && steps.len() > 1 && tiles <= SMALLEST * needed && samples >= fewest).then_some(tiles)
}

/// The values with a row per sample that live within one tile: no step outside of `steps` touches them.
fn local(program: &Program, steps: &Range<usize>) -> Vec<ValueId> {
    let touched = |range: Range<usize>| -> HashSet<ValueId> {
        program.steps[range].iter().flat_map(Step::operands).collect()
    };
    let outside = &touched(0..steps.start) | &touched(steps.end..program.steps.len());
    let is_local = |id: &ValueId| {
        let value = program.value(*id);
        value.per_sample && value.role == Role::Transient && !outside.contains(id)
    };
    let mut local: Vec<ValueId> = touched(steps.clone()).into_iter().filter(is_local).collect();
    local.sort_unstable();
    local
}
