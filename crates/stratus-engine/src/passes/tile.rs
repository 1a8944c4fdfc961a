//! Tiling: a section of consecutive steps runs on one tile of the batch that fits the caches, then on the
//! next.
//!
//! Feature maps of a whole batch are larger than any cache: step by step, each is written to memory and read
//! back. Between two points that need the whole batch (the statistics of a batch norm, the loss, an update),
//! steps can go through the batch tile by tile: the output of one step is still in the nearest cache when the
//! next reads it. Values used in only one section need memory for one tile. Sums over the batch are added in
//! the order of the tiles, so bits depend only on the plan.

use crate::ops::{AddTiles, KernelSpec, Tiling};
use crate::program::{Origin, Phase, Section};
use crate::{EngineError, Program, Role, Step, Value, ValueId};
use std::collections::{HashMap, HashSet, VecDeque};
use std::ops::Range;

/// The maximum share of the caches for a step's weights, as a divisor: every tile reads them.
const WEIGHT_CACHE_DIVISOR: usize = 4;

/// The maximum factor by which a tile may be smaller than the caches, if the batch has no better divisor.
const MAX_TILE_SHRINK: usize = 4;

/// Divides a differentiated or an evaluation program into sections whose tiles fit `cache_bytes` and have at
/// least `min_samples` samples.
///
/// # Errors
/// Only if verification fails.
pub fn tile(program: &Program, cache_bytes: usize, min_samples: usize) -> Result<Program, EngineError> {
    divide(program, sections(program, cache_bytes, min_samples))
}

/// As [`tile`], for a pipeline stage of the program `whole`: each step runs on the tiles that it would have
/// there, so that bits do not depend on the cut.
///
/// # Errors
/// Only if verification fails.
pub fn tile_stage(
    stage: &Program,
    whole: &Program,
    cache_bytes: usize,
    min_samples: usize,
) -> Result<Program, EngineError> {
    let sections = sections(whole, cache_bytes, min_samples);
    let written = |step: &Step| step.outputs.iter().chain(&step.updates).next().copied();
    // The sections of the steps that write a value, in their order: all of them are in one stage.
    let mut sections_of_value: HashMap<&str, VecDeque<Option<usize>>> = HashMap::new();
    for (position, step) in whole.steps.iter().enumerate() {
        let Some(id) = written(step) else { continue };
        let section = sections.iter().position(|(steps, ..)| steps.contains(&position));
        sections_of_value.entry(&whole.value(id).name).or_default().push_back(section);
    }
    let mut section_of_step = |step: &Step| -> Option<usize> {
        if step.phase == Phase::Communication {
            return None;
        }
        sections_of_value.get_mut(stage.value(written(step)?).name.as_str())?.pop_front()?
    };
    let mut own: Vec<TileSection> = Vec::new();
    let mut last = None;
    for (position, step) in stage.steps.iter().enumerate() {
        let section = section_of_step(step);
        match (section, own.last_mut()) {
            (Some(_), Some((steps, ..))) if section == last => steps.end = position + 1,
            (Some(section), _) => {
                let (_, tiles, from_last) = sections[section];
                own.push((position..position + 1, tiles, from_last));
            }
            (None, _) => {}
        }
        last = section;
    }
    divide(stage, own)
}

/// The steps of a section, the number of its tiles, and whether the last tile runs first.
type TileSection = (Range<usize>, usize, bool);

/// Divides a program into `sections`.
fn divide(program: &Program, sections: Vec<TileSection>) -> Result<Program, EngineError> {
    let mut tiled = program.clone();
    tiled.sections.clear();
    tiled.steps.clear();
    let mut next = 0;
    for (steps, tiles, from_last) in sections {
        tiled.steps.extend_from_slice(&program.steps[next..steps.start]);
        next = steps.end;
        let first = tiled.steps.len();
        for step in &program.steps[steps.clone()] {
            push(&mut tiled, step);
        }
        let count = tiled.steps.len() - first;
        tiled.sections.push(Section {
            first,
            count,
            tiles,
            micro_batches: false,
            reversed: from_last,
            in_flight: 1,
        });
        for id in tile_local_values(program, &steps) {
            tiled.values[id.0].shape[0] /= tiles;
        }
    }
    tiled.steps.extend_from_slice(&program.steps[next..]);
    tiled.verify("tile")?;
    Ok(tiled)
}

/// Adds a step of a section. Its sums over the batch become partial sums of a tile, each accumulated by an
/// [`AddTiles`].
fn push(tiled: &mut Program, step: &Step) {
    let mut step = step.clone();
    let mut additions = Vec::new();
    if step.kernel.tiling() == Tiling::PartialSums {
        for output in &mut step.outputs {
            let (sum, dtype) = (Origin::PartialSum(*output), tiled.value(*output).dtype);
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

/// The longest runs of steps that can share more than one tile. The last tile runs first in every other
/// section, because the maps of its samples are still in the caches.
///
/// Recomputed steps do not affect the boundaries of sections, because sums over the batch must have the same
/// tiles with and without recomputation. They join the run that contains or follows them, or else split it.
fn sections(program: &Program, cache_bytes: usize, min_samples: usize) -> Vec<TileSection> {
    let is_recomputed = |step: &Step| {
        step.outputs.iter().chain(&step.updates).any(|id| program.recomputed_from(*id).is_some())
    };
    let positions: Vec<usize> =
        (0..program.steps.len()).filter(|position| !is_recomputed(&program.steps[*position])).collect();
    let steps: Vec<&Step> = positions.iter().map(|position| &program.steps[*position]).collect();
    let mut found = Vec::new();
    let mut from_last = true;
    for run in runs(program, &steps, cache_bytes) {
        let Some(tiles) = tiles(program, &steps[run.clone()], cache_bytes, min_samples) else { continue };
        from_last = !from_last;
        let before = run.start.checked_sub(1).map_or(0, |before| positions[before] + 1);
        let mut open: Option<usize> = None;
        let mut unfinished = HashSet::new();
        let end = positions[run.end - 1] + 1;
        for position in before..end {
            let step = &program.steps[position];
            let splits = is_recomputed(step)
                && (!may_run_in_tiles(program, step, cache_bytes) || reads_partial_sum(step, &unfinished));
            if splits {
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

/// Returns whether a step reads a sum that is complete only after all tiles.
fn reads_partial_sum(step: &Step, unfinished: &HashSet<ValueId>) -> bool {
    step.inputs.iter().chain(&step.updates).any(|id| unfinished.contains(id))
}

/// The longest runs of `steps` in which none reads the complete sum of another.
fn runs(program: &Program, steps: &[&Step], cache_bytes: usize) -> Vec<Range<usize>> {
    let mut found = Vec::new();
    let mut open: Option<usize> = None;
    // The sums of the open run.
    let mut unfinished: HashSet<ValueId> = HashSet::new();
    for position in 0..=steps.len() {
        let step = steps.get(position).filter(|step| may_run_in_tiles(program, step, cache_bytes));
        if step.is_none_or(|step| reads_partial_sum(step, &unfinished)) {
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
    step.kernel.tiling() != Tiling::WholeBatch
        && values().any(|value| value.per_sample)
        && shared <= cache_bytes / WEIGHT_CACHE_DIVISOR
}

/// The minimum number of equal tiles whose operands fit the caches at every step; `None` if the whole batch
/// fits or no divisor of the batch is suitable.
fn tiles(program: &Program, steps: &[&Step], cache_bytes: usize, min_samples: usize) -> Option<usize> {
    let sample_bytes = |step: &Step| -> usize {
        step.operands().map(|id| program.value(id)).filter(|value| value.per_sample).map(Value::bytes).sum()
    };
    let largest = steps.iter().copied().map(sample_bytes).max()?;
    let needed = largest.div_ceil(cache_bytes.max(1));
    let divides = |tiles: &usize| program.batch.is_multiple_of(*tiles);
    let tiles = (needed..=program.batch).find(divides)?;
    let samples = program.batch / tiles;
    (tiles > 1 && steps.len() > 1 && tiles <= MAX_TILE_SHRINK * needed && samples >= min_samples)
        .then_some(tiles)
}

/// The per-sample values that only `steps` use, which need memory for one tile.
fn tile_local_values(program: &Program, steps: &Range<usize>) -> Vec<ValueId> {
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
