//! The session: one arena, several programs over it, and the loop over their steps.

use crate::backend::{Operands, PreparedStep, Tile};
use crate::device::Arena;
use crate::exchange::{Communicator, DeviceGroup, ExchangeStep};
use crate::ops::{ITERATION_SCALAR_FIELDS, KernelSpec, METRICS_FIELDS};
use crate::plan::{Location, Persistent, Plan, PreparedPlan, TileSpan};
use crate::program::MAX_OPERANDS;
use crate::{AlignedBytes, Backend, Clock, EngineError, Section};
use std::sync::Arc;

mod on_device;
mod values;

pub use on_device::DeviceSlot;
pub use values::{StateValue, View, checkpoint_values};

/// The scalars of one iteration.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct IterationScalars {
    /// The optimiser's learning rate.
    pub learning_rate: f32,
    /// The iteration, counted from 0 over the whole run. A resumed run continues the count, so dropout masks
    /// repeat.
    pub iteration: u64,
    /// The run's seed.
    pub seed: u64,
}

/// The metrics of a run. Means and counts are over the samples with a label.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Metrics {
    /// Mean loss.
    pub loss: f64,
    /// Samples with a label.
    pub samples: f64,
    /// Samples whose top class is correct.
    pub top1: f64,
    /// Samples whose class is among the top five.
    pub top5: f64,
}

/// The metrics of a run with a per-pixel loss, over the pixels with a label.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct PixelMetrics {
    /// Mean loss, weighted by the class weights.
    pub loss: f64,
    /// Pixels with a label.
    pub pixels: f64,
    /// Correctly predicted pixels.
    pub correct: f64,
    /// The sum of the class weights.
    pub weight: f64,
}

impl From<Metrics> for PixelMetrics {
    /// Converts the fields of a per-pixel loss: [`PIXEL_METRICS_FIELDS`](crate::ops::PIXEL_METRICS_FIELDS)
    /// are stored in place of [`METRICS_FIELDS`].
    fn from(Metrics { loss, samples, top1, top5 }: Metrics) -> Self {
        Self { loss, pixels: samples, correct: top1, weight: top5 }
    }
}

/// The metrics of a [`TargetLoss`](crate::ops::TargetLoss) over the present targets.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct TargetLossMetrics {
    /// Mean loss.
    pub loss: f64,
    /// Present targets.
    pub targets: f64,
    /// Labels: the number of correct outputs. Numbers: the sum of 1 minus the squared error of each target.
    pub score: f64,
    /// Samples with at least one target.
    pub samples: f64,
}

impl From<Metrics> for TargetLossMetrics {
    /// Converts the fields of such a loss: [`TARGET_METRICS_FIELDS`](crate::ops::TARGET_METRICS_FIELDS) are
    /// stored in place of [`METRICS_FIELDS`].
    fn from(Metrics { loss, samples, top1, top5 }: Metrics) -> Self {
        Self { loss, targets: samples, score: top1, samples: top5 }
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
struct OperandRange {
    start: usize,
    length: usize,
    /// Distance between tiles in bytes; 0 if all tiles use the same bytes.
    stride: usize,
    /// The number of tiles with separate memory.
    slots: usize,
    operand: usize,
}

struct LoadedStep {
    kernel: PreparedStep,
    /// Sorted by start, to split the arena.
    arena: Vec<OperandRange>,
    /// The operands that are the images and the labels, if any.
    external: [Option<usize>; 2],
    /// The section of the step; with one tile if it runs once.
    section: Section,
    /// The first part of this worker and the number of parts of all workers.
    parts: [usize; 2],
}

impl LoadedStep {
    /// The bytes of one tile of each operand, in the order of the operands.
    fn operand_bytes(&self, plan: &Plan, position: usize) -> Vec<usize> {
        let mut bytes = vec![0; plan.program.steps[position].operands().count()];
        let in_arena = self.arena.iter().map(|range| (range.operand, range.length));
        let inputs = self.external.into_iter().enumerate().filter_map(|(slot, operand)| {
            Some((operand?, plan.external(slot).map_or(0, |placement| placement.bytes) / self.section.tiles))
        });
        for (operand, length) in in_arena.chain(inputs) {
            if let Some(bytes) = bytes.get_mut(operand) {
                *bytes = length;
            }
        }
        bytes
    }

    fn tile(&self, turn: usize) -> Tile {
        let (position, tiles) = (self.section.tile_at(turn), self.section.tiles);
        let [first, parts] = self.parts;
        match self.section.micro_batches {
            in_parts if parts > 1 => {
                let position = if in_parts { position } else { 0 };
                Tile {
                    micro_batch: first + position,
                    micro_batches: parts,
                    separate_sums: true,
                    ..Tile::WHOLE
                }
            }
            true => Tile { micro_batch: position, micro_batches: tiles, ..Tile::WHOLE },
            false => Tile { run_index: turn, position, count: tiles, ..Tile::WHOLE },
        }
    }
}

struct LoadedProgram {
    plan: Plan,
    steps: Vec<LoadedStep>,
    /// See [`Program::execution_order`](crate::Program::execution_order).
    execution_order: Vec<(std::ops::Range<usize>, usize)>,
}

impl LoadedProgram {
    /// The communication step at a position; `None` for other steps.
    fn exchange_step(&self, position: usize) -> Option<ExchangeStep> {
        let bytes = self.steps[position].operand_bytes(&self.plan, position);
        ExchangeStep::of(&self.plan.program, position, bytes)
    }
}

/// Programs bound to one arena: allocates once, runs many times.
pub struct Session {
    arena: Arena,
    persistent: Persistent,
    programs: Vec<LoadedProgram>,
    /// Metrics of the last run on a device.
    metrics: Metrics,
    /// Slots and nanoseconds of the last run on a device.
    measured: Vec<(usize, u64)>,
    /// The program that runs on a device, and the slot of its first step.
    launched: Option<(usize, usize)>,
}

impl Session {
    /// Allocates the arena of `plans` in the process's memory and binds every step to it. All plans must be
    /// prepared with the same `persistent`.
    ///
    /// # Errors
    /// If memory cannot be allocated or a plan does not verify.
    pub fn new(plans: Vec<PreparedPlan>, persistent: Persistent) -> Result<Self, EngineError> {
        Self::with_device(None, plans, persistent)
    }

    /// Allocates the arena on the device of `backend`, which prepared the plans, or in the process's memory
    /// if it has none.
    ///
    /// # Errors
    /// Those of [`Session::new`], or if the device is unavailable.
    pub fn on_backend(
        backend: &dyn Backend,
        plans: Vec<PreparedPlan>,
        persistent: Persistent,
    ) -> Result<Self, EngineError> {
        Self::with_device(backend.device()?, plans, persistent)
    }

    fn with_device(
        device: Option<Box<dyn crate::Device>>,
        plans: Vec<PreparedPlan>,
        persistent: Persistent,
    ) -> Result<Self, EngineError> {
        let transient = plans.iter().map(|p| p.plan.transient_bytes).max().unwrap_or(0);
        let external = |slot| {
            let placements = plans.iter().filter_map(|p| p.plan.external(slot));
            placements.map(|placement| placement.bytes).max().unwrap_or(0)
        };
        let arena = Arena::new(device, persistent.bytes + transient, [external(0), external(1)])?;
        let mut programs = Vec::with_capacity(plans.len());
        for PreparedPlan { mut plan, kernels } in plans {
            // Later programs may have added persistent values.
            plan.persistent_bytes = persistent.bytes;
            plan.verify()?;
            let copies = plan.program.live_copies();
            let steps = kernels
                .into_iter()
                .enumerate()
                .map(|(position, kernel)| load_step(&plan, &copies, position, kernel))
                .collect::<Result<_, _>>()?;
            let execution_order = plan.program.execution_order();
            programs.push(LoadedProgram { plan, steps, execution_order });
        }
        let step_ends = programs
            .iter()
            .map(|p: &LoadedProgram| p.execution_order.iter().map(|(steps, _)| steps.len()).sum());
        let measured = Vec::with_capacity(step_ends.max().unwrap_or(0) + DeviceSlot::ALL.len() + 1);
        Ok(Self { arena, persistent, programs, metrics: Metrics::default(), measured, launched: None })
    }

    /// Lets the device of this session join those of other workers, which do the same at the same time.
    /// [`Self::connect`] then decides whether the devices sum.
    ///
    /// # Errors
    /// If there is no device, or it cannot join.
    pub fn join_group(&mut self, group: &DeviceGroup) -> Result<(), EngineError> {
        match &mut self.arena {
            Arena::Host(_) => Err(EngineError::InvalidRequest("only devices join a group".to_owned())),
            Arena::Device(arena) => arena.device.join_group(group),
        }
    }

    /// Connects this worker to the others; `first_part` is the index of its first batch part. If
    /// `sums_directly`, the devices of its group compute sums; else it leaves the group, if it has joined
    /// one.
    ///
    /// # Errors
    /// If the device cannot allocate memory for the exchange, or has joined no group.
    pub fn connect(
        &mut self,
        exchange: &Arc<dyn Communicator>,
        first_part: usize,
        sums_directly: bool,
    ) -> Result<(), EngineError> {
        if let Arena::Device(arena) = &mut self.arena {
            let buckets = self.programs.iter().map(|program| program.plan.largest_bucket_bytes());
            let largest = sums_directly.then(|| buckets.max().unwrap_or(0));
            arena.allocated += arena.device.sum_directly(largest)?;
        }
        for program in &mut self.programs {
            for position in 0..program.steps.len() {
                program.steps[position].parts[0] = first_part;
                let Some(step) = program.exchange_step(position) else { continue };
                let kernel = match &mut self.arena {
                    Arena::Host(_) => step.clone().on_host(exchange),
                    Arena::Device(arena) => arena.device.exchange_kernel(step.clone(), exchange)?,
                };
                program.steps[position].kernel.kernel = step.when_complete(kernel);
            }
        }
        Ok(())
    }

    /// Bytes of the arena: persistent values and the largest program's transient ones.
    #[must_use]
    pub fn arena_bytes(&self) -> usize {
        self.arena.bytes()
    }

    /// The number of slots that a run stamps: one for each step, and on a device those of [`DeviceSlot`].
    #[must_use]
    pub fn slots(&self, program: usize) -> usize {
        self.plan(program).program.steps.len() + self.device_slots().len()
    }

    /// The slots that follow those of the steps.
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

    /// The number of programs.
    #[must_use]
    pub fn programs(&self) -> usize {
        self.programs.len()
    }

    /// Memory for one batch of a program's inputs.
    ///
    /// # Errors
    /// If memory cannot be allocated.
    pub fn inputs(&self, program: usize) -> Result<Inputs, EngineError> {
        let bytes = |slot| self.plan(program).external(slot).map_or(0, |placement| placement.bytes);
        Ok(Inputs {
            images: AlignedBytes::zeroed(bytes(0), "a batch of images")?,
            labels: AlignedBytes::zeroed(bytes(1), "a batch of labels")?,
        })
    }

    /// Runs every step of a program. On a device, empty inputs stand for the staged batch or, if none is
    /// staged, for that of the previous run. Step `i` is stamped to slot `first_slot + i`, once per tile.
    ///
    /// # Errors
    /// If the inputs have the wrong size, or a kernel fails.
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

    /// Starts a program, like [`Session::run`]; on a device it returns while the program runs, and
    /// [`Session::finish`] waits for it.
    ///
    /// # Errors
    /// See [`Session::run`].
    pub fn launch(
        &mut self,
        program: usize,
        images: &mut [u8],
        labels: &mut [u8],
        clock: &mut Clock,
        first_slot: usize,
    ) -> Result<(), EngineError> {
        let LoadedProgram { plan, steps, execution_order } = &mut self.programs[program];
        let mut inputs = [images, labels];
        for (slot, given) in inputs.iter().enumerate() {
            let expected = plan.external(slot).map_or(0, |placement| placement.bytes);
            // Inputs on a device may be reused.
            let is_kept = given.is_empty() && !self.arena.is_host();
            if expected != given.len() && !is_kept {
                let input = ["images", "labels"][slot];
                return Err(EngineError::InvalidRequest(format!(
                    "expected {expected} bytes of {input}, got {}",
                    given.len()
                )));
            }
        }
        let arena = match &mut self.arena {
            Arena::Host(arena) => arena.as_mut_slice(),
            Arena::Device(_) => return self.launch_on_device(program, &inputs, clock, first_slot),
        };
        for (range, turn) in execution_order {
            for position in range.clone() {
                execute(plan, position, &mut steps[position], *turn, arena, &mut inputs)?;
                clock.stamp(first_slot + position);
            }
        }
        Ok(())
    }

    /// Runs one step of a program, all tiles of it, on the current contents of its operands: for measuring
    /// kernels.
    ///
    /// # Errors
    /// If the step is out of range, or its kernel fails.
    pub fn run_step(
        &mut self,
        program: usize,
        step: usize,
        images: &mut [u8],
        labels: &mut [u8],
    ) -> Result<(), EngineError> {
        let LoadedProgram { plan, steps, .. } = &mut self.programs[program];
        let Some(loaded) = steps.get_mut(step) else {
            return Err(EngineError::InvalidRequest(format!(
                "step {step} is out of range: the program has {} steps",
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

    /// Sets the scalars of the iteration.
    ///
    /// # Errors
    /// The device's error message.
    pub fn set_iteration_scalars(&mut self, values: IterationScalars) -> Result<(), EngineError> {
        let IterationScalars { learning_rate, iteration, seed } = values;
        // In halves, because a double holds 53 bits.
        let halves = [f64::from(seed as u32), f64::from((seed >> 32) as u32)];
        let scalars: [f64; ITERATION_SCALAR_FIELDS.len()] =
            [f64::from(learning_rate), iteration as f64, halves[0], halves[1]];
        match self.persistent.values.get("hyper").map(|placement| placement.location) {
            Some(Location::Persistent(start)) => self.arena.write(start, bytemuck::cast_slice(&scalars)),
            _ => Ok(()),
        }
    }

    /// The metrics of the last run.
    #[must_use]
    pub fn metrics(&self) -> Metrics {
        match self.arena {
            Arena::Host(_) => self.read_metrics().unwrap_or_default(),
            Arena::Device(_) => self.metrics,
        }
    }

    fn read_metrics(&self) -> Result<Metrics, EngineError> {
        let Some(placement) = self.persistent.values.get("metrics") else { return Ok(Metrics::default()) };
        let Location::Persistent(start) = placement.location else { return Ok(Metrics::default()) };
        let mut values = [0.0; METRICS_FIELDS.len()];
        self.arena.copy_to(start, bytemuck::cast_slice_mut(&mut values))?;
        let [loss, samples, top1, top5] = values;
        Ok(Metrics { loss, samples, top1, top5 })
    }
}

/// Splits the arena into the step's operands and runs its kernel.
#[inline]
fn execute(
    plan: &Plan,
    position: usize,
    step: &mut LoadedStep,
    turn: usize,
    arena: &mut [u8],
    inputs: &mut [&mut [u8]; 2],
) -> Result<(), EngineError> {
    let tile = step.section.tile_at(turn);
    let mut operands = Operands::new(step.tile(turn));
    let mut rest = arena;
    let mut consumed = 0;
    for range in &step.arena {
        let start = range.start + tile % range.slots * range.stride;
        let (_, tail) = rest.split_at_mut(start - consumed);
        let (slice, tail) = tail.split_at_mut(range.length);
        operands.set(range.operand, slice);
        rest = tail;
        consumed = start + range.length;
    }
    for (slice, operand) in inputs.iter_mut().zip(step.external) {
        if let Some(operand) = operand {
            let length = slice.len() / step.section.tiles;
            operands.set(operand, &mut slice[tile * length..][..length]);
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
        EngineError::KernelFailed {
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
    let section = plan.program.section_or_single(position);
    let mut arena = Vec::new();
    let mut external = [None; 2];
    let mut count = 0;
    for (operand, id) in step.operands().enumerate() {
        let placement = &plan.placements[id.0];
        count = operand + 1;
        let TileSpan { length, stride, slots } = plan.tile_span(id, section.tiles, copies[id.0]);
        match placement.location {
            Location::Persistent(start) => arena.push(OperandRange { start, length, stride, slots, operand }),
            Location::Transient(start) => {
                let start = plan.persistent_bytes + start;
                arena.push(OperandRange { start, length, stride, slots, operand });
            }
            Location::External(slot) => external[slot] = Some(operand),
        }
    }
    let (start, length) = plan.steps[position].scratch;
    if length > 0 {
        let start = plan.persistent_bytes + start;
        arena.push(OperandRange { start, length, stride: 0, slots: 1, operand: count });
        count += 1;
    }
    if count > MAX_OPERANDS {
        return Err(EngineError::Placement(format!(
            "step {position} has {count} operands; at most {MAX_OPERANDS} are supported"
        )));
    }
    arena.retain(|range| range.length > 0);
    arena.sort_by_key(|range| range.start);
    Ok(LoadedStep { kernel, arena, external, section, parts: [0, plan.program.batch_parts] })
}
