//! Predicts a program's run time by timing its steps without allocating a session.
//!
//! The steps run in order, with the shapes, layouts and kernels of the real plan, on operands in a scratch
//! buffer (`scratch.rs`). Even for networks of gigabytes it is only as large as the caches and the largest
//! step.
//!
//! - Operands that a training step finds in a cache are cached here, others are not.
//! - At most three tiles of a section run: the first, the second and the last.
//! - If the time budget is short, repeated steps are timed once. The step before a timed one then runs
//!   untimed, so that its output is in the caches.
//! - The first run of a kernel, whose code is not cached, is ignored if there are others.
//! - Communication with other workers does not run, and takes no time here.
//! - The median of a kernel's times counts. Interruptions would affect a training step too: the excess of all
//!   timings over their medians is distributed over the steps.

mod scratch;

use crate::ops::KernelSpec;
use crate::plan::{Location, Plan, PreparedPlan, TileSpan};
use crate::{Backend, EngineError, Phase, PreparedStep, Role, Section, Tile};
use scratch::{ElementClass, OperandRequest, Scratch};
use std::collections::{BTreeMap, HashMap};
use std::time::{Duration, Instant};

/// The maximum number of runs of a program.
const MAX_ROUNDS: usize = 24;
/// Shares of the time budget: until the first, every step runs; until the second, every distinct step runs
/// twice.
const FULL_ROUNDS_BUDGET_SHARE: f64 = 0.35;
const SECOND_TIMING_BUDGET_SHARE: f64 = 0.7;

/// The predicted time of a program.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ProgramTime {
    /// Seconds of each step, over all tiles.
    pub steps: Vec<f64>,
    /// Half the interquartile range of the step times, relative to the total; `None` if no step was timed
    /// often enough.
    pub spread: Option<f64>,
    /// The number of timings.
    pub timings: usize,
}

impl ProgramTime {
    /// The total seconds of all steps.
    #[must_use]
    pub fn seconds(&self) -> f64 {
        self.steps.iter().sum()
    }
}

/// The class of a tile in a section. The first finds its weights uncached; the last may finish sums.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum TileClass {
    First,
    Middle,
    Last,
}

/// The times of equal steps in seconds, by [`TileClass`].
#[derive(Clone, Debug, Default)]
struct StepTimings([Vec<f64>; 3]);

/// A step with its kernel and operands.
struct ProfiledStep {
    kernel: PreparedStep,
    /// Index of its times in [`StepProfiler::times`].
    group: usize,
    /// Its operands in tile 0, and the distance to the next tile in bytes.
    operands: Vec<(OperandRequest, usize)>,
    section: Section,
}

struct ProfiledProgram {
    plan: Plan,
    steps: Vec<ProfiledStep>,
}

/// Times the steps of plans.
pub struct StepProfiler {
    programs: Vec<ProfiledProgram>,
    times: Vec<StepTimings>,
    scratch: Scratch,
}

impl StepProfiler {
    /// A profiler for the plans of one session, prepared by `backend`. `cold_bytes` must exceed the size of
    /// the caches.
    ///
    /// # Errors
    /// If the backend computes on a device, or memory cannot be allocated.
    pub fn new(
        backend: &dyn Backend,
        plans: Vec<PreparedPlan>,
        cold_bytes: usize,
    ) -> Result<Self, EngineError> {
        if backend.device()?.is_some() {
            return Err(EngineError::Device {
                device: backend.describe(),
                reason: "kernels on a device cannot be timed individually".to_owned(),
            });
        }
        let mut groups: HashMap<String, usize> = HashMap::new();
        let mut programs = Vec::with_capacity(plans.len());
        for PreparedPlan { plan, kernels } in plans {
            let mut steps = Vec::with_capacity(kernels.len());
            for (position, kernel) in kernels.into_iter().enumerate() {
                let count = groups.len();
                let group = *groups.entry(description(&plan, position)).or_insert(count);
                let (operands, section) =
                    (operands(&plan, position), plan.program.section_or_single(position));
                steps.push(ProfiledStep { kernel, group, operands, section });
            }
            programs.push(ProfiledProgram { plan, steps });
        }
        let scratch = Scratch::new(capacities(&programs, cold_bytes))?;
        Ok(Self { programs, times: vec![StepTimings::default(); groups.len()], scratch })
    }

    /// Returns the plans.
    #[must_use]
    pub fn into_plans(self) -> Vec<PreparedPlan> {
        let prepared_plan = |program: ProfiledProgram| PreparedPlan {
            plan: program.plan,
            kernels: program.steps.into_iter().map(|step| step.kernel).collect(),
        };
        self.programs.into_iter().map(prepared_plan).collect()
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

    /// The number of distinct steps of a program.
    #[must_use]
    pub fn distinct_steps(&self, program: usize) -> usize {
        let mut groups: Vec<usize> = self.programs[program].steps.iter().map(|step| step.group).collect();
        groups.sort_unstable();
        groups.dedup();
        groups.len()
    }

    /// Times the steps of a program for `budget`, but at least until each distinct step ran once.
    ///
    /// # Errors
    /// If a kernel fails.
    pub fn measure(&mut self, program: usize, budget: Duration) -> Result<(), EngineError> {
        let start = Instant::now();
        let passes = execution_order(&self.programs[program].plan);
        for round in 0..MAX_ROUNDS {
            let mut has_run_before = true;
            for (at, steps) in passes.iter().enumerate() {
                let spent = start.elapsed().as_secs_f64() / budget.as_secs_f64().max(1e-9);
                if round > 0 && spent > 1.0 {
                    return Ok(());
                }
                let enough = match spent {
                    _ if round > 0 || spent < FULL_ROUNDS_BUDGET_SHARE => usize::MAX,
                    _ if spent < SECOND_TIMING_BUDGET_SHARE => 2,
                    _ => 1,
                };
                let ProfiledProgram { plan, steps: all } = &self.programs[program];
                let groups = steps
                    .clone()
                    .filter(|&position| !is_communication(plan, position))
                    .map(|position| all[position].group);
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

    /// Runs a section or a step; untimed, only its last tile.
    fn run(&mut self, program: usize, steps: std::ops::Range<usize>, timed: bool) -> Result<(), EngineError> {
        let Self { programs, times, scratch } = self;
        let ProfiledProgram { plan, steps: all } = &mut programs[program];
        let tiles = all.get(steps.start).map_or(1, |step| step.section.tiles);
        let mut turns = vec![(0, TileClass::First), (1, TileClass::Middle), (tiles - 1, TileClass::Last)];
        turns.retain(|(turn, class)| match class {
            TileClass::First => timed || tiles == 1,
            TileClass::Middle => timed && tiles > 2,
            TileClass::Last => *turn > 0,
        });
        for (turn, class) in turns {
            for position in steps.clone() {
                if is_communication(plan, position) {
                    continue;
                }
                let ProfiledStep { kernel, group, operands, section } = &mut all[position];
                let tile_index = section.tile_at(turn);
                let request: Vec<OperandRequest> = operands
                    .iter()
                    .map(|(first, stride)| {
                        let (part, start, value) = first.key;
                        OperandRequest { key: (part, start + tile_index * stride, value), ..*first }
                    })
                    .collect();
                let (result, seconds) = scratch.with(&request, tile(section, turn), |operands| {
                    let start = Instant::now();
                    let result = kernel.kernel.run(operands);
                    (result, start.elapsed().as_secs_f64())
                });
                result.map_err(|reason| {
                    let failed = &plan.program.steps[position];
                    EngineError::KernelFailed {
                        kernel: failed.kernel.name().to_owned(),
                        layer: plan.program.layer_name(failed),
                        reason,
                    }
                })?;
                if timed {
                    times[*group].0[class as usize].push(seconds);
                }
            }
        }
        Ok(())
    }

    /// The predicted time of a program whose distinct steps were all timed.
    #[must_use]
    pub fn time(&self, program: usize) -> ProgramTime {
        let mut time = ProgramTime::default();
        let (mut spread, mut seconds) = (0.0, 0.0);
        let (mut measured_total, mut median_total) = (0.0, 0.0);
        for step in &self.programs[program].steps {
            let times = &self.times[step.group];
            let tiles = step.section.tiles as f64;
            let weights = [1.0, (tiles - 2.0).max(0.0), f64::from(u8::from(step.section.tiles > 1))];
            let mut all_tiles = 0.0;
            for (times, weight) in times.0.iter().zip(weights).filter(|(_, weight)| *weight > 0.0) {
                let counted = counted(times);
                let median = quantile(&counted, 0.5);
                all_tiles += weight * median;
                if counted.len() > 2 {
                    spread += weight * 0.5 * (quantile(&counted, 0.75) - quantile(&counted, 0.25));
                    seconds += weight * median;
                    measured_total += counted.iter().sum::<f64>();
                    median_total += median * counted.len() as f64;
                }
                time.timings += times.len();
            }
            time.steps.push(all_tiles);
        }
        if median_total > 0.0 {
            time.steps.iter_mut().for_each(|seconds| *seconds *= measured_total / median_total);
        }
        time.spread = (seconds > 0.0).then(|| spread / seconds);
        time
    }
}

/// The sorted times, without the first one if there are others.
fn counted(times: &[f64]) -> Vec<f64> {
    let mut counted = times[usize::from(times.len() > 1)..].to_vec();
    counted.sort_by(f64::total_cmp);
    counted
}

/// The quantile of sorted values, linearly interpolated; 0 if empty.
fn quantile(sorted: &[f64], part: f64) -> f64 {
    let Some(last) = sorted.len().checked_sub(1) else { return 0.0 };
    let at = part * last as f64;
    let below = at.floor() as usize;
    let above = (below + 1).min(last);
    sorted[below] + (at - below as f64) * (sorted[above] - sorted[below])
}

/// The tile of a turn.
fn tile(section: &Section, turn: usize) -> Tile {
    let (position, tiles) = (section.tile_at(turn), section.tiles);
    match section.micro_batches {
        true => Tile { micro_batch: position, micro_batches: tiles, ..Tile::WHOLE },
        false => Tile { run_index: turn, position, count: tiles, ..Tile::WHOLE },
    }
}

/// The execution order: sections, and single steps between them.
fn execution_order(plan: &Plan) -> Vec<std::ops::Range<usize>> {
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

/// Returns whether a step communicates with other workers.
fn is_communication(plan: &Plan, position: usize) -> bool {
    plan.program.steps[position].phase == Phase::Communication
}

/// A description of everything that a step's time depends on.
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
    let section = plan.program.section_or_single(position);
    let planned = &plan.steps[position];
    format!(
        "{:?} {operands:?} {} {} {:?}",
        step.kernel,
        planned.implementation,
        planned.scratch.1,
        (section.tiles, section.micro_batches)
    )
}

/// A step's operands, scratch included, in tile 0, and the distance to the next tile in bytes.
fn operands(plan: &Plan, position: usize) -> Vec<(OperandRequest, usize)> {
    let step = &plan.program.steps[position];
    let tiles = plan.program.tiles(position);
    let mut operands = Vec::new();
    for (operand, id) in step.operands().enumerate() {
        let placement = &plan.placements[id.0];
        let TileSpan { length: bytes, stride, .. } = plan.tile_span(id, tiles, 1);
        let (part, start) = match placement.location {
            Location::Persistent(start) => (0, start),
            Location::Transient(start) => (1, start),
            Location::External(slot) => (2 + slot as u8, 0),
        };
        // Targets of a loss must be valid, as labels.
        let class = match plan.program.value(id) {
            value if value.role == Role::Labels => ElementClass::Indices,
            value => ElementClass::from_dtype(value.dtype),
        };
        let value = (class == ElementClass::Indices).then_some(id.0);
        let is_written = operand >= step.inputs.len();
        let is_read = operand < step.inputs.len() + step.updates.len();
        let request =
            OperandRequest { class, key: (part, start, value), bytes, operand, is_read, is_written };
        operands.push((request, stride));
    }
    let (start, bytes) = plan.steps[position].scratch;
    let operand = operands.len();
    let key = (1, start, None);
    operands.push((
        OperandRequest {
            class: ElementClass::Scratch,
            key,
            bytes,
            operand,
            is_read: false,
            is_written: false,
        },
        0,
    ));
    operands.retain(|(request, _)| request.bytes > 0);
    operands
}

/// The capacity of each ring: its operands, at most `cold_bytes`, plus the largest step.
fn capacities(programs: &[ProfiledProgram], cold_bytes: usize) -> [usize; ElementClass::ALL.len()] {
    let mut all: [BTreeMap<scratch::OperandKey, usize>; ElementClass::ALL.len()] = Default::default();
    let mut largest = [0; ElementClass::ALL.len()];
    for step in programs.iter().flat_map(|program| &program.steps) {
        let mut step_bytes = [0; ElementClass::ALL.len()];
        for (request, stride) in &step.operands {
            let class = request.class as usize;
            let (part, start, value) = request.key;
            let tiles = if *stride > 0 { step.section.tiles } else { 1 };
            for tile in 0..tiles {
                let bytes = all[class].entry((part, start + tile * stride, value)).or_default();
                *bytes = request.bytes.next_multiple_of(4096).max(*bytes);
            }
            step_bytes[class] += request.bytes.next_multiple_of(4096);
        }
        for (largest, bytes) in largest.iter_mut().zip(step_bytes) {
            *largest = bytes.max(*largest);
        }
    }
    std::array::from_fn(|class| all[class].values().sum::<usize>().min(cold_bytes) + largest[class])
}

#[cfg(test)]
mod tests;
