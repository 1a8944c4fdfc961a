//! What a program would take, before it runs: its steps timed without the memory of a session.
//!
//! The steps run in their order, at the shapes, layouts and kernels of the real plan, on operands in a
//! scratch (`scratch.rs`): of a network of gigabytes only as much as caches hold, and the largest step.
//!
//! - Operands that a training step finds in a cache are in it here, others are in none.
//! - Of a section at most three tiles run: the first, the second and the last.
//! - Where time is short, steps that are equal to others are not repeated. The step before one that is timed
//!   then runs too, and is not timed: it leaves its output in the caches.
//! - A kernel's first run, which finds its code in no cache, does not count where there is another.
//! - The middle one of a kernel's times is taken. What interrupts kernels now and then would interrupt a step
//!   too: all that all times were longer than the middle ones is shared out among the steps.

mod scratch;

use crate::ops::KernelSpec;
use crate::plan::{Location, PartBytes, Plan, PreparedPlan};
use crate::{Backend, EngineError, PreparedStep, Section, Tile};
use scratch::{Kind, Needed, Scratch};
use std::collections::{BTreeMap, HashMap};
use std::time::{Duration, Instant};

/// Runs of a program at most.
const MOST_ROUNDS: usize = 24;
/// Parts of the time up to which every step runs, and up to which each kind of step runs twice.
const ALL_UP_TO: f64 = 0.35;
const TWICE_UP_TO: f64 = 0.7;

/// The seconds of a program.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ProgramTime {
    /// Of each of its steps, all tiles.
    pub steps: Vec<f64>,
    /// How far times of the same step lay apart: half of what the middle half of them spans, in parts of all
    /// seconds; `None` where no step was timed often enough.
    pub spread: Option<f64>,
    /// How many times were taken.
    pub timings: usize,
}

impl ProgramTime {
    /// The seconds of all steps.
    #[must_use]
    pub fn seconds(&self) -> f64 {
        self.steps.iter().sum()
    }
}

/// Which tile of a section: the first finds its weights in no cache, the last may end sums.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Turn {
    First,
    Middle,
    Last,
}

/// The times of steps that are equal.
#[derive(Clone, Debug, Default)]
struct Times([Vec<f64>; 3]);

/// A step with its kernel and operands.
struct ProbedStep {
    kernel: PreparedStep,
    /// In which of [`Probe::times`] its times are.
    group: usize,
    /// Its operands in the tile at place 0, and the bytes to that of the next place.
    operands: Vec<(Needed, usize)>,
    section: Section,
}

struct ProbedProgram {
    plan: Plan,
    steps: Vec<ProbedStep>,
}

/// Times the steps of plans.
pub struct Probe {
    programs: Vec<ProbedProgram>,
    times: Vec<Times>,
    scratch: Scratch,
}

impl Probe {
    /// For the plans of one session, which `backend` has made. Caches hold less than `cold_bytes`.
    ///
    /// # Errors
    /// Where the backend computes on a device, or there is no memory.
    pub fn new(
        backend: &dyn Backend,
        plans: Vec<PreparedPlan>,
        cold_bytes: usize,
    ) -> Result<Self, EngineError> {
        if backend.device()?.is_some() {
            return Err(EngineError::Device {
                device: backend.describe(),
                reason: "its kernels cannot be timed one by one".to_owned(),
            });
        }
        let mut groups: HashMap<String, usize> = HashMap::new();
        let mut programs = Vec::with_capacity(plans.len());
        for PreparedPlan { plan, kernels } in plans {
            let mut steps = Vec::with_capacity(kernels.len());
            for (position, kernel) in kernels.into_iter().enumerate() {
                let count = groups.len();
                let group = *groups.entry(description(&plan, position)).or_insert(count);
                let (operands, section) = (operands(&plan, position), plan.program.pass_of(position));
                steps.push(ProbedStep { kernel, group, operands, section });
            }
            programs.push(ProbedProgram { plan, steps });
        }
        let scratch = Scratch::new(capacities(&programs, cold_bytes))?;
        Ok(Self { programs, times: vec![Times::default(); groups.len()], scratch })
    }

    /// The plans, to be run.
    #[must_use]
    pub fn into_plans(self) -> Vec<PreparedPlan> {
        let of_program = |program: ProbedProgram| PreparedPlan {
            plan: program.plan,
            kernels: program.steps.into_iter().map(|step| step.kernel).collect(),
        };
        self.programs.into_iter().map(of_program).collect()
    }

    /// Bytes of the scratch.
    #[must_use]
    pub fn scratch_bytes(&self) -> usize {
        self.scratch.bytes()
    }

    /// The plan of a program.
    #[must_use]
    pub fn plan(&self, program: usize) -> &Plan {
        &self.programs[program].plan
    }

    /// How many of a program's steps differ.
    #[must_use]
    pub fn kinds(&self, program: usize) -> usize {
        let mut groups: Vec<usize> = self.programs[program].steps.iter().map(|step| step.group).collect();
        groups.sort_unstable();
        groups.dedup();
        groups.len()
    }

    /// Times the steps of a program: for `budget`, or for as long as it takes to run each kind of step once.
    ///
    /// # Errors
    /// If a kernel fails.
    pub fn measure(&mut self, program: usize, budget: Duration) -> Result<(), EngineError> {
        let begun = Instant::now();
        let passes = passes(&self.programs[program].plan);
        for round in 0..MOST_ROUNDS {
            let mut has_run_before = true;
            for (at, steps) in passes.iter().enumerate() {
                let spent = begun.elapsed().as_secs_f64() / budget.as_secs_f64().max(1e-9);
                if round > 0 && spent > 1.0 {
                    return Ok(());
                }
                let enough = match spent {
                    _ if round > 0 || spent < ALL_UP_TO => usize::MAX,
                    _ if spent < TWICE_UP_TO => 2,
                    _ => 1,
                };
                let groups = self.programs[program].steps[steps.clone()].iter().map(|step| step.group);
                if groups.map(|group| self.times[group].0[0].len()).all(|count| count >= enough) {
                    has_run_before = false;
                    continue;
                }
                if let (false, Some(before)) = (has_run_before, at.checked_sub(1)) {
                    self.run(program, passes[before].clone(), false)?;
                }
                self.run(program, steps.clone(), true)?;
                has_run_before = true;
            }
        }
        Ok(())
    }

    /// Runs a section or a step; where it is not timed, its last tile alone.
    fn run(&mut self, program: usize, steps: std::ops::Range<usize>, timed: bool) -> Result<(), EngineError> {
        let Self { programs, times, scratch } = self;
        let ProbedProgram { plan, steps: all } = &mut programs[program];
        let tiles = all.get(steps.start).map_or(1, |step| step.section.tiles);
        let mut turns = vec![(0, Turn::First), (1, Turn::Middle), (tiles - 1, Turn::Last)];
        turns.retain(|(turn, which)| match which {
            Turn::First => timed || tiles == 1,
            Turn::Middle => timed && tiles > 2,
            Turn::Last => *turn > 0,
        });
        for (turn, which) in turns {
            for position in steps.clone() {
                let ProbedStep { kernel, group, operands, section } = &mut all[position];
                let place = section.place(turn);
                let needed: Vec<Needed> = operands
                    .iter()
                    .map(|(first, stride)| {
                        let (part, start, value) = first.key;
                        Needed { key: (part, start + place * stride, value), ..*first }
                    })
                    .collect();
                let (result, seconds) = scratch.with(&needed, tile(section, turn), |operands| {
                    let begun = Instant::now();
                    let result = kernel.kernel.run(operands);
                    (result, begun.elapsed().as_secs_f64())
                });
                result.map_err(|reason| {
                    let failed = &plan.program.steps[position];
                    EngineError::Failed {
                        kernel: failed.kernel.name().to_owned(),
                        layer: plan.program.layer_name(failed),
                        reason,
                    }
                })?;
                if timed {
                    times[*group].0[which as usize].push(seconds);
                }
            }
        }
        Ok(())
    }

    /// The seconds of a program's steps, of which each kind was timed.
    #[must_use]
    pub fn time(&self, program: usize) -> ProgramTime {
        let mut time = ProgramTime::default();
        let (mut apart, mut seconds) = (0.0, 0.0);
        let (mut taken, mut middles) = (0.0, 0.0);
        for step in &self.programs[program].steps {
            let times = &self.times[step.group];
            let tiles = step.section.tiles as f64;
            let weights = [1.0, (tiles - 2.0).max(0.0), f64::from(u8::from(step.section.tiles > 1))];
            let mut all_tiles = 0.0;
            for (times, weight) in times.0.iter().zip(weights).filter(|(_, weight)| *weight > 0.0) {
                let counted = counted(times);
                let middle = quantile(&counted, 0.5);
                all_tiles += weight * middle;
                if counted.len() > 2 {
                    apart += weight * 0.5 * (quantile(&counted, 0.75) - quantile(&counted, 0.25));
                    seconds += weight * middle;
                    taken += counted.iter().sum::<f64>();
                    middles += middle * counted.len() as f64;
                }
                time.timings += times.len();
            }
            time.steps.push(all_tiles);
        }
        if middles > 0.0 {
            time.steps.iter_mut().for_each(|seconds| *seconds *= taken / middles);
        }
        time.spread = (seconds > 0.0).then(|| apart / seconds);
        time
    }
}

/// The times that count, in order of size: without the first, where there are others.
fn counted(times: &[f64]) -> Vec<f64> {
    let mut counted = times[usize::from(times.len() > 1)..].to_vec();
    counted.sort_by(f64::total_cmp);
    counted
}

/// Of sorted values; between two of them in proportion. 0 of none.
fn quantile(sorted: &[f64], part: f64) -> f64 {
    let Some(last) = sorted.len().checked_sub(1) else { return 0.0 };
    let at = part * last as f64;
    let below = at.floor() as usize;
    let above = (below + 1).min(last);
    sorted[below] + (at - below as f64) * (sorted[above] - sorted[below])
}

/// Which part of the batch a step runs on.
fn tile(section: &Section, turn: usize) -> Tile {
    let (place, tiles) = (section.place(turn), section.tiles);
    match section.micro_batches {
        true => Tile { micro_batch: place, micro_batches: tiles, ..Tile::WHOLE },
        false => Tile { index: turn, place, count: tiles, ..Tile::WHOLE },
    }
}

/// What runs in order: sections, and between them single steps.
fn passes(plan: &Plan) -> Vec<std::ops::Range<usize>> {
    let mut passes = Vec::new();
    let mut next = 0;
    for section in &plan.program.sections {
        passes.extend((next..section.first).map(|step| step..step + 1));
        passes.push(section.steps());
        next = section.steps().end;
    }
    passes.extend((next..plan.program.steps.len()).map(|step| step..step + 1));
    passes
}

/// Everything that a step's time depends on.
fn description(plan: &Plan, position: usize) -> String {
    let step = &plan.program.steps[position];
    let seen = plan.program.operands(position);
    let operands: Vec<_> = step
        .operands()
        .zip(&seen)
        .map(|(id, value)| {
            let layout = &plan.placements[id.0].layout;
            (&value.shape, value.dtype, &layout.tag, &layout.strides)
        })
        .collect();
    let section = plan.program.pass_of(position);
    let planned = &plan.steps[position];
    format!(
        "{:?} {operands:?} {} {} {:?}",
        step.kernel,
        planned.implementation,
        planned.scratch.1,
        (section.tiles, section.micro_batches)
    )
}

/// A step's operands, scratch included, in the tile at place 0, and the bytes to the next place.
fn operands(plan: &Plan, position: usize) -> Vec<(Needed, usize)> {
    let step = &plan.program.steps[position];
    let tiles = plan.program.tiles(position);
    let mut operands = Vec::new();
    for (operand, id) in step.operands().enumerate() {
        let placement = &plan.placements[id.0];
        let PartBytes { length: bytes, stride, .. } = plan.part_bytes(id, tiles, 1);
        let (part, start) = match placement.location {
            Location::Persistent(start) => (0, start),
            Location::Transient(start) => (1, start),
            Location::External(slot) => (2 + slot as u8, 0),
        };
        let kind = Kind::of(plan.program.value(id).dtype);
        let value = (kind == Kind::Positions).then_some(id.0);
        let is_written = operand >= step.inputs.len();
        let is_read = operand < step.inputs.len() + step.updates.len();
        let needed = Needed { kind, key: (part, start, value), bytes, operand, is_read, is_written };
        operands.push((needed, stride));
    }
    let (start, bytes) = plan.steps[position].scratch;
    let operand = operands.len();
    let key = (1, start, None);
    operands
        .push((Needed { kind: Kind::Working, key, bytes, operand, is_read: false, is_written: false }, 0));
    operands.retain(|(needed, _)| needed.bytes > 0);
    operands
}

/// The bytes of each ring: what is used within `cold_bytes`, and the largest step.
fn capacities(programs: &[ProbedProgram], cold_bytes: usize) -> [usize; Kind::ALL.len()] {
    let mut all: [BTreeMap<scratch::Key, usize>; Kind::ALL.len()] = Default::default();
    let mut largest = [0; Kind::ALL.len()];
    for step in programs.iter().flat_map(|program| &program.steps) {
        let mut of_step = [0; Kind::ALL.len()];
        for (needed, stride) in &step.operands {
            let kind = needed.kind as usize;
            let (part, start, value) = needed.key;
            let places = if *stride > 0 { step.section.tiles } else { 1 };
            for place in 0..places {
                let bytes = all[kind].entry((part, start + place * stride, value)).or_default();
                *bytes = needed.bytes.next_multiple_of(4096).max(*bytes);
            }
            of_step[kind] += needed.bytes.next_multiple_of(4096);
        }
        for (largest, bytes) in largest.iter_mut().zip(of_step) {
            *largest = bytes.max(*largest);
        }
    }
    std::array::from_fn(|kind| all[kind].values().sum::<usize>().min(cold_bytes) + largest[kind])
}

#[cfg(test)]
mod tests;
