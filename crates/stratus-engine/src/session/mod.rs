//! The session: one arena, several programs over it, and the loop over their steps.

use crate::backend::{MAX_OPERANDS, Operands, PreparedStep, Tile};
use crate::device::Arena;
use crate::exchange::{self, Exchange};
use crate::ops::{HYPER, KernelSpec, METRICS};
use crate::plan::{Location, PartBytes, Persistent, Plan, PreparedPlan};
use crate::{AlignedBytes, Backend, Clock, EngineError, Section};
use std::sync::Arc;

mod on_device;
mod values;

pub use on_device::DeviceSlot;
pub use values::{StateValue, View, state_of};

/// The scalars of one iteration.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Hyper {
    /// The optimiser's learning rate.
    pub learning_rate: f32,
    /// The iteration, counted from 0 over the whole run. A resumed run continues the count, so dropout masks
    /// repeat.
    pub iteration: u64,
    /// The run's seed.
    pub seed: u64,
}

/// What a run of a program measured. Means and counts are over the samples with a label.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Metrics {
    /// Mean loss.
    pub loss: f64,
    /// Samples that counted.
    pub samples: f64,
    /// Samples whose best class was right.
    pub top1: f64,
    /// Samples whose class was among the best five.
    pub top5: f64,
}

/// What a run of a program with a loss per pixel measured, over the pixels with a label.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct PixelMetrics {
    /// Mean loss, weighted as the classes are.
    pub loss: f64,
    /// Pixels that counted.
    pub pixels: f64,
    /// Pixels whose predicted class was right.
    pub right: f64,
    /// The sum of their class weights.
    pub weight: f64,
}

impl From<Metrics> for PixelMetrics {
    /// The numbers of a program with a loss per pixel: [`PIXEL_METRICS`](crate::ops::PIXEL_METRICS) stand
    /// where [`METRICS`] do.
    fn from(Metrics { loss, samples, top1, top5 }: Metrics) -> Self {
        Self { loss, pixels: samples, right: top1, weight: top5 }
    }
}

/// The memory of one program's inputs. It is filled outside the session, on any thread.
#[derive(Debug)]
pub struct Inputs {
    /// Images in the plan's type and layout.
    pub images: AlignedBytes,
    /// Labels, i32.
    pub labels: AlignedBytes,
}

/// One operand's bytes within the arena.
#[derive(Clone, Copy, Debug)]
struct Range {
    start: usize,
    length: usize,
    /// Stride from tile to tile in bytes: `length`, or 0 where every tile uses the same bytes.
    stride: usize,
    /// After how many tiles the first one's bytes are used again.
    places: usize,
    operand: usize,
}

struct LoadedStep {
    kernel: PreparedStep,
    /// Sorted by start, for splitting the arena.
    arena: Vec<Range>,
    /// Which operand, if any, is the images and which the labels.
    external: [Option<usize>; 2],
    /// How the batch is cut; into one tile where it runs once.
    section: Section,
    /// The first of this worker's parts, and into how many the batch of all workers is cut.
    parts: [usize; 2],
}

impl LoadedStep {
    fn tile(&self, turn: usize) -> Tile {
        let (place, tiles) = (self.section.place(turn), self.section.tiles);
        let [first, parts] = self.parts;
        match self.section.micro_batches {
            in_parts if parts > 1 => {
                let place = if in_parts { place } else { 0 };
                Tile { micro_batch: first + place, micro_batches: parts, apart: true, ..Tile::WHOLE }
            }
            true => Tile { micro_batch: place, micro_batches: tiles, ..Tile::WHOLE },
            false => Tile { index: turn, place, count: tiles, ..Tile::WHOLE },
        }
    }
}

struct LoadedProgram {
    plan: Plan,
    steps: Vec<LoadedStep>,
    /// What is run in order: see [`Program::passes`](crate::Program::passes).
    passes: Vec<(std::ops::Range<usize>, usize)>,
}

/// Allocates once, runs many times.
pub struct Session {
    arena: Arena,
    persistent: Persistent,
    programs: Vec<LoadedProgram>,
    /// What the last run on a device measured.
    metrics: Metrics,
    /// What a device said of the last run: slots and nanoseconds.
    measured: Vec<(usize, u64)>,
    /// What a device was told to run: the program, and the slot of its first step.
    launched: Option<(usize, usize)>,
}

impl Session {
    /// Allocates the arena of `plans` in the process's memory and binds every step to it. All plans were
    /// prepared with the same `persistent`.
    ///
    /// # Errors
    /// Where memory cannot be had or a plan does not verify.
    pub fn new(plans: Vec<PreparedPlan>, persistent: Persistent) -> Result<Self, EngineError> {
        Self::on(None, plans, persistent)
    }

    /// The same where the backend that prepared the plans has its memory.
    ///
    /// # Errors
    /// As [`Session::new`], and where there is no device.
    pub fn of(
        backend: &dyn Backend,
        plans: Vec<PreparedPlan>,
        persistent: Persistent,
    ) -> Result<Self, EngineError> {
        Self::on(backend.device()?, plans, persistent)
    }

    fn on(
        device: Option<Box<dyn crate::Device>>,
        plans: Vec<PreparedPlan>,
        persistent: Persistent,
    ) -> Result<Self, EngineError> {
        let transient = plans.iter().map(|p| p.plan.transient_bytes).max().unwrap_or(0);
        let external = |slot| {
            let places = plans.iter().filter_map(|p| p.plan.external(slot));
            places.map(|place| place.bytes).max().unwrap_or(0)
        };
        let arena = Arena::new(device, persistent.bytes + transient, [external(0), external(1)])?;
        let mut programs = Vec::with_capacity(plans.len());
        for PreparedPlan { mut plan, kernels } in plans {
            // A later program may have added persistent values.
            plan.persistent_bytes = persistent.bytes;
            plan.verify()?;
            let copies = plan.program.copies();
            let steps = kernels
                .into_iter()
                .enumerate()
                .map(|(position, kernel)| load_step(&plan, &copies, position, kernel))
                .collect::<Result<_, _>>()?;
            let passes = plan.program.passes();
            programs.push(LoadedProgram { plan, steps, passes });
        }
        let marks =
            programs.iter().map(|p: &LoadedProgram| p.passes.iter().map(|(steps, _)| steps.len()).sum());
        let measured = Vec::with_capacity(marks.max().unwrap_or(0) + DeviceSlot::ALL.len() + 1);
        Ok(Self { arena, persistent, programs, metrics: Metrics::default(), measured, launched: None })
    }

    /// Connects this worker with the others; `first_part` is the number of its first part.
    pub fn connect(&mut self, exchange: &Arc<dyn Exchange>, first_part: usize) {
        for LoadedProgram { plan, steps, .. } in &mut self.programs {
            for (position, loaded) in steps.iter_mut().enumerate() {
                loaded.parts[0] = first_part;
                exchange::connect(&plan.program, position, &mut loaded.kernel, exchange);
            }
        }
    }

    /// Bytes of the arena: persistent values and the largest program's transient ones.
    #[must_use]
    pub fn arena_bytes(&self) -> usize {
        self.arena.bytes()
    }

    /// The slots that a run of a program stamps: one for each step, and on a device those of [`DeviceSlot`].
    #[must_use]
    pub fn slots(&self, program: usize) -> usize {
        self.plan(program).program.steps.len() + self.device_slots().len()
    }

    /// The slots behind those of the steps.
    #[must_use]
    pub fn device_slots(&self) -> &'static [DeviceSlot] {
        match self.arena {
            Arena::Host(_) => &[],
            Arena::Device(_) => &DeviceSlot::ALL,
        }
    }

    /// The plan of a program.
    #[must_use]
    pub fn plan(&self, program: usize) -> &Plan {
        &self.programs[program].plan
    }

    /// How many programs there are.
    #[must_use]
    pub fn programs(&self) -> usize {
        self.programs.len()
    }

    /// Memory for one batch of a program's inputs.
    ///
    /// # Errors
    /// Where memory cannot be had.
    pub fn inputs(&self, program: usize) -> Result<Inputs, EngineError> {
        let bytes = |slot| self.plan(program).external(slot).map_or(0, |placement| placement.bytes);
        Ok(Inputs {
            images: AlignedBytes::zeroed(bytes(0), "a batch of images")?,
            labels: AlignedBytes::zeroed(bytes(1), "a batch of labels")?,
        })
    }

    /// Runs every step of a program. On a device, inputs of no bytes are those that were staged, or else
    /// those of the run before. Step `i` is stamped to slot `first_slot + i`, once per tile.
    ///
    /// # Errors
    /// Where the inputs are not this program's, or a kernel fails.
    pub fn run(
        &mut self,
        program: usize,
        images: &mut [u8],
        labels: &mut [u8],
        clock: &mut Clock,
        first_slot: usize,
    ) -> Result<(), EngineError> {
        self.launch(program, images, labels, clock, first_slot)?;
        self.finish(clock, None)
    }

    /// Begins to run a program, as [`Session::run`] does; on a device this returns while it runs, and
    /// [`Session::finish`] waits for it.
    ///
    /// # Errors
    /// As [`Session::run`].
    pub fn launch(
        &mut self,
        program: usize,
        images: &mut [u8],
        labels: &mut [u8],
        clock: &mut Clock,
        first_slot: usize,
    ) -> Result<(), EngineError> {
        let LoadedProgram { plan, steps, passes } = &mut self.programs[program];
        let mut inputs = [images, labels];
        for (slot, given) in inputs.iter().enumerate() {
            let needed = plan.external(slot).map_or(0, |placement| placement.bytes);
            // What lies on a device may be taken again.
            let is_kept = given.is_empty() && !self.arena.is_host();
            if needed != given.len() && !is_kept {
                let what = ["images", "labels"][slot];
                return Err(EngineError::Mismatch(format!(
                    "the program takes {needed} bytes of {what}, got {}",
                    given.len()
                )));
            }
        }
        let arena = match &mut self.arena {
            Arena::Host(arena) => arena.as_mut_slice(),
            Arena::Device(_) => return self.launch_on_device(program, &inputs, clock, first_slot),
        };
        for (range, turn) in passes {
            for position in range.clone() {
                execute(plan, position, &mut steps[position], *turn, arena, &mut inputs)?;
                clock.stamp(first_slot + position);
            }
        }
        Ok(())
    }

    /// Runs one step of a program alone, all tiles of it, on whatever its operands hold: for measuring
    /// kernels.
    ///
    /// # Errors
    /// Where there is no such step, or its kernel fails.
    pub fn run_step(
        &mut self,
        program: usize,
        step: usize,
        images: &mut [u8],
        labels: &mut [u8],
    ) -> Result<(), EngineError> {
        let LoadedProgram { plan, steps, .. } = &mut self.programs[program];
        let Some(loaded) = steps.get_mut(step) else {
            return Err(EngineError::Mismatch(format!(
                "the program has {} steps, none is number {step}",
                plan.steps.len()
            )));
        };
        for turn in 0..loaded.section.tiles {
            match &mut self.arena {
                Arena::Host(arena) => {
                    let inputs = &mut [&mut *images, &mut *labels];
                    execute(plan, step, loaded, turn, arena.as_mut_slice(), inputs)?;
                }
                Arena::Device(arena) => {
                    let inputs = arena.inputs[arena.last];
                    on_device::enqueue(plan, step, loaded, turn, arena.address, inputs)?;
                }
            }
        }
        match &self.arena {
            Arena::Host(_) => Ok(()),
            Arena::Device(arena) => arena.device.wait(),
        }
    }

    /// Sets the numbers that change from iteration to iteration.
    ///
    /// # Errors
    /// What a device said.
    pub fn set_hyper(&mut self, hyper: Hyper) -> Result<(), EngineError> {
        let Hyper { learning_rate, iteration, seed } = hyper;
        // Halves: a double holds 53 bits.
        let halves = [f64::from(seed as u32), f64::from((seed >> 32) as u32)];
        let numbers: [f64; HYPER.len()] = [f64::from(learning_rate), iteration as f64, halves[0], halves[1]];
        match self.persistent.values.get("hyper").map(|place| place.location) {
            Some(Location::Persistent(start)) => self.arena.write(start, bytemuck::cast_slice(&numbers)),
            _ => Ok(()),
        }
    }

    /// What the last run measured.
    #[must_use]
    pub fn metrics(&self) -> Metrics {
        match self.arena {
            Arena::Host(_) => self.read_metrics().unwrap_or_default(),
            Arena::Device(_) => self.metrics,
        }
    }

    fn read_metrics(&self) -> Result<Metrics, EngineError> {
        let Some(place) = self.persistent.values.get("metrics") else { return Ok(Metrics::default()) };
        let Location::Persistent(start) = place.location else { return Ok(Metrics::default()) };
        let mut values = [0.0; METRICS.len()];
        self.arena.copy_to(start, bytemuck::cast_slice_mut(&mut values))?;
        let [loss, samples, top1, top5] = values;
        Ok(Metrics { loss, samples, top1, top5 })
    }
}

/// Cuts the arena into the step's operands and runs its kernel.
#[inline]
fn execute(
    plan: &Plan,
    position: usize,
    step: &mut LoadedStep,
    turn: usize,
    arena: &mut [u8],
    inputs: &mut [&mut [u8]; 2],
) -> Result<(), EngineError> {
    let place = step.section.place(turn);
    let mut operands = Operands::new(step.tile(turn));
    let mut rest = arena;
    let mut consumed = 0;
    for range in &step.arena {
        let start = range.start + place % range.places * range.stride;
        let (_, tail) = rest.split_at_mut(start - consumed);
        let (slice, tail) = tail.split_at_mut(range.length);
        operands.set(range.operand, slice);
        rest = tail;
        consumed = start + range.length;
    }
    for (slice, operand) in inputs.iter_mut().zip(step.external) {
        if let Some(operand) = operand {
            let length = slice.len() / step.section.tiles;
            operands.set(operand, &mut slice[place * length..][..length]);
        }
    }
    run_kernel(plan, position, step, &mut operands)
}

#[inline]
fn run_kernel(
    plan: &Plan,
    position: usize,
    step: &mut LoadedStep,
    operands: &mut Operands<'_>,
) -> Result<(), EngineError> {
    step.kernel.kernel.run(operands).map_err(|reason| {
        let failed = &plan.program.steps[position];
        EngineError::Failed {
            kernel: failed.kernel.name().to_owned(),
            layer: plan.program.layer_name(failed),
            reason,
        }
    })
}

fn load_step(
    plan: &Plan,
    copies: &[usize],
    position: usize,
    kernel: PreparedStep,
) -> Result<LoadedStep, EngineError> {
    let step = &plan.program.steps[position];
    let section = plan.program.pass_of(position);
    let mut arena = Vec::new();
    let mut external = [None; 2];
    let mut count = 0;
    for (operand, id) in step.operands().enumerate() {
        let placement = &plan.placements[id.0];
        count = operand + 1;
        let PartBytes { length, stride, places } = plan.part_bytes(id, section.tiles, copies[id.0]);
        match placement.location {
            Location::Persistent(start) => arena.push(Range { start, length, stride, places, operand }),
            Location::Transient(start) => {
                let start = plan.persistent_bytes + start;
                arena.push(Range { start, length, stride, places, operand });
            }
            Location::External(slot) => external[slot] = Some(operand),
        }
    }
    let (start, length) = plan.steps[position].scratch;
    if length > 0 {
        let start = plan.persistent_bytes + start;
        arena.push(Range { start, length, stride: 0, places: 1, operand: count });
        count += 1;
    }
    if count > MAX_OPERANDS {
        return Err(EngineError::Placement(format!(
            "step {position} has {count} operands, at most {MAX_OPERANDS} are possible"
        )));
    }
    arena.retain(|range| range.length > 0);
    arena.sort_by_key(|range| range.start);
    Ok(LoadedStep { kernel, arena, external, section, parts: [0, plan.program.parts] })
}
