//! The session: one arena, several programs over it, and the loop over their steps.

use crate::backend::{MAX_OPERANDS, Operands, PreparedStep, Tile};
use crate::device::Arena;
use crate::exchange::{self, Exchange};
use crate::ops::{HYPER, KernelSpec, METRICS};
use crate::plan::{Location, Persistent, Placement, Plan, PreparedPlan};
use crate::program::{OptimiserState, Origin};
use crate::{AlignedBytes, Backend, Clock, DType, EngineError, Layout, Role, Section};
use std::borrow::Cow;
use std::sync::Arc;

mod on_device;

pub use on_device::DeviceSlot;

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

/// A value that outlives an iteration, of all programs of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StateValue<'a> {
    /// Its name, by which [`Session::read`] and [`Session::write`] know it.
    pub name: &'a str,
    /// Logical extents.
    pub shape: &'a [usize],
    /// What it is for.
    pub role: Role,
    /// For the state of an optimiser: the name of the parameter, and which state it is.
    pub optimiser_state: Option<(&'a str, OptimiserState)>,
    /// For a moving average: the name of the value that it is the average of.
    pub average_of: Option<&'a str>,
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
    /// What is run in order: ranges of steps, and how often.
    passes: Vec<(std::ops::Range<usize>, usize)>,
}

/// The steps in the order in which they run: each section tile by tile, everything between once.
fn passes(program: &crate::Program) -> Vec<(std::ops::Range<usize>, usize)> {
    let mut passes = Vec::new();
    let mut next = 0;
    for section in &program.sections {
        passes.push((next..section.first, 1));
        passes.push((section.steps(), section.tiles));
        next = section.steps().end;
    }
    passes.push((next..program.steps.len(), 1));
    passes.retain(|(steps, _)| !steps.is_empty());
    passes
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
            let steps = kernels
                .into_iter()
                .enumerate()
                .map(|(position, kernel)| load_step(&plan, position, kernel))
                .collect::<Result<_, _>>()?;
            let passes = passes(&plan.program);
            programs.push(LoadedProgram { plan, steps, passes });
        }
        let marks = programs
            .iter()
            .map(|p: &LoadedProgram| p.passes.iter().map(|(steps, tiles)| steps.len() * tiles).sum());
        let measured = Vec::with_capacity(marks.max().unwrap_or(0) + DeviceSlot::ALL.len() + 1);
        Ok(Self { arena, persistent, programs, metrics: Metrics::default(), measured, launched: None })
    }

    /// Connects this worker with the others; `first_part` is the number of its first part.
    pub fn connect(&mut self, exchange: &Arc<dyn Exchange>, first_part: usize) {
        for LoadedProgram { plan, steps, .. } in &mut self.programs {
            for (step, loaded) in plan.program.steps.iter().zip(steps) {
                loaded.parts[0] = first_part;
                exchange::connect(&plan.program, step, &mut loaded.kernel, exchange);
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
        for (range, tiles) in passes {
            for turn in 0..*tiles {
                for position in range.clone() {
                    execute(plan, position, &mut steps[position], turn, arena, &mut inputs)?;
                    clock.stamp(first_slot + position);
                }
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

    /// Everything a checkpoint keeps: parameters, buffers, their averages and the state of the optimiser.
    pub fn state(&self) -> impl Iterator<Item = StateValue<'_>> + '_ {
        let mut seen = std::collections::HashSet::new();
        let values = self.programs.iter().flat_map(|program| {
            let program = &program.plan.program;
            program.values.iter().map(move |value| (program, value))
        });
        values
            .filter(move |(_, value)| {
                let is_kept = matches!(
                    value.role,
                    Role::Parameter | Role::Frozen | Role::Buffer | Role::Momentum | Role::Average
                );
                is_kept && seen.insert(value.name.clone())
            })
            .map(|(program, value)| StateValue {
                name: &value.name,
                shape: &value.shape,
                role: value.role,
                optimiser_state: match value.origin {
                    Some(Origin::OptimiserState { of, state }) => Some((&program.value(of).name, state)),
                    _ => None,
                },
                average_of: match value.origin {
                    Some(Origin::Average(of)) => Some(&program.value(of).name),
                    _ => None,
                },
            })
    }

    /// Copies a persistent f32 value out, in row-major order of its logical shape.
    ///
    /// # Errors
    /// Where there is none of that name, or it has another type.
    pub fn read(&self, name: &str) -> Result<Vec<f32>, EngineError> {
        let view = self.view(name)?;
        let mut plain = vec![0.0; view.len()];
        view.read(0, &mut plain);
        Ok(plain)
    }

    /// A persistent f32 value where it lies, or on a device as it is now.
    ///
    /// # Errors
    /// Where there is none of that name, or it has another type.
    pub fn view(&self, name: &str) -> Result<View<'_>, EngineError> {
        let (place, shape) = self.find(name)?;
        let values = match place.location {
            Location::Persistent(start) => self.arena.read_as(start, place.bytes)?,
            _ => Cow::Borrowed(&[][..]),
        };
        Ok(View { layout: &place.layout, values, elements: shape.iter().product() })
    }

    /// Sets a persistent f32 value from row-major order. Run the refresh program afterwards, where there is
    /// one.
    ///
    /// # Errors
    /// Where there is none of that name, or the sizes differ.
    pub fn write(&mut self, name: &str, plain: &[f32]) -> Result<(), EngineError> {
        let (place, shape) = self.find(name)?;
        let (place, shape) = (place.clone(), shape.to_vec());
        if plain.len() != shape.iter().product::<usize>() {
            return Err(EngineError::Mismatch(format!(
                "`{name}` has shape {shape:?}, {} values were given",
                plain.len()
            )));
        }
        let Location::Persistent(start) = place.location else { return Ok(()) };
        let mut values = vec![0.0_f32; place.bytes / size_of::<f32>()];
        place.layout.for_each(&shape, |to, from| values[to] = plain[from]);
        self.arena.write(start, bytemuck::cast_slice(&values))
    }

    /// Exchanges the contents of two persistent f32 values. Run the refresh program afterwards, where there
    /// is one.
    ///
    /// # Errors
    /// Where there is none of such a name, or they lie differently.
    pub fn swap(&mut self, first: &str, second: &str) -> Result<(), EngineError> {
        let (one, other) = (self.find(first)?.0, self.find(second)?.0);
        let (bytes, is_alike) = (one.bytes, one.layout.same_bytes(&other.layout));
        match (&one.location, &other.location) {
            (&Location::Persistent(one), &Location::Persistent(other)) if is_alike => {
                self.arena.swap([one, other], bytes)
            }
            _ => Err(EngineError::Mismatch(format!("`{first}` and `{second}` lie differently"))),
        }
    }

    fn find(&self, name: &str) -> Result<(&Placement, &[usize]), EngineError> {
        let missing = || EngineError::Mismatch(format!("the network has no parameter `{name}`"));
        let value = self
            .programs
            .iter()
            .flat_map(|program| &program.plan.program.values)
            .find(|value| value.name == name)
            .ok_or_else(missing)?;
        if value.dtype != DType::F32 {
            return Err(EngineError::Mismatch(format!("`{name}` is {}, not f32", value.dtype)));
        }
        Ok((self.persistent.values.get(name).ok_or_else(missing)?, &value.shape))
    }

    /// Fills the arena with one byte, for tests: what no kernel writes can be told from what one did.
    ///
    /// # Errors
    /// What a device said.
    pub fn fill(&mut self, byte: u8) -> Result<(), EngineError> {
        match &mut self.arena {
            Arena::Host(arena) => {
                arena.as_mut_slice().fill(byte);
                Ok(())
            }
            Arena::Device(arena) => {
                let bytes = vec![byte; arena.bytes];
                arena.device.write(arena.address, &bytes)
            }
        }
    }

    /// Sets a value of a program of any type from row-major order, and its padding to zero, for tests.
    ///
    /// # Errors
    /// Where the sizes differ, or the caller provides the value's memory.
    pub fn write_value(&mut self, program: usize, value: usize, plain: &[f64]) -> Result<(), EngineError> {
        let plan = &self.programs[program].plan;
        let (place, described) = (&plan.placements[value], &plan.program.values[value]);
        let start = match place.location {
            Location::Persistent(start) => start,
            Location::Transient(start) => self.persistent.bytes + start,
            Location::External(_) => {
                return Err(EngineError::Mismatch(format!("`{}` is not in the arena", described.name)));
            }
        };
        if plain.len() != described.elements() {
            return Err(EngineError::Mismatch(format!(
                "`{}` has shape {:?}, {} values were given",
                described.name,
                described.shape,
                plain.len()
            )));
        }
        let mut bytes = vec![0; place.bytes];
        place
            .layout
            .for_each(&described.shape, |to, from| described.dtype.store(&mut bytes, to, plain[from]));
        self.arena.write(start, &bytes)
    }

    /// Reads a value of a program of any type in row-major order; see [`Session::raw`].
    ///
    /// # Errors
    /// What a device said.
    pub fn read_value(&self, program: usize, value: usize) -> Result<Vec<f64>, EngineError> {
        let plan = &self.programs[program].plan;
        let (place, described) = (&plan.placements[value], &plan.program.values[value]);
        let bytes = self.raw(program, value)?;
        let mut plain = vec![f64::NAN; described.elements()];
        if !bytes.is_empty() {
            place
                .layout
                .for_each(&described.shape, |from, to| plain[to] = described.dtype.load(&bytes, from));
        }
        Ok(plain)
    }

    /// Reads a value of a program in row-major order as f32 into `to`, which keeps its memory; see
    /// [`Session::raw`]. Numbers of more bits are rounded.
    ///
    /// # Errors
    /// What a device said.
    pub fn read_f32(&self, program: usize, value: usize, to: &mut Vec<f32>) -> Result<(), EngineError> {
        let plan = &self.programs[program].plan;
        let (place, described) = (&plan.placements[value], &plan.program.values[value]);
        let bytes = self.raw(program, value)?;
        to.clear();
        if described.dtype == DType::F32 && place.layout.is_row_major() {
            to.extend(bytes.chunks_exact(size_of::<f32>()).map(bytemuck::pod_read_unaligned::<f32>));
            return Ok(());
        }
        to.resize(described.elements(), f32::NAN);
        if !bytes.is_empty() {
            place
                .layout
                .for_each(&described.shape, |from, at| to[at] = described.dtype.load(&bytes, from) as f32);
        }
        Ok(())
    }

    /// Reads an i32 value of a program in row-major order into `to`, which keeps its memory; see
    /// [`Session::raw`].
    ///
    /// # Errors
    /// Where it has another type or layout, or what a device said.
    pub fn read_labels(&self, program: usize, value: usize, to: &mut Vec<i32>) -> Result<(), EngineError> {
        let plan = &self.programs[program].plan;
        let (place, described) = (&plan.placements[value], &plan.program.values[value]);
        if described.dtype != DType::I32 || !place.layout.is_row_major() {
            return Err(EngineError::Mismatch(format!(
                "`{}` is {} in layout {}, not i32 in row-major order",
                described.name, described.dtype, place.layout.tag
            )));
        }
        let bytes = self.raw(program, value)?;
        to.clear();
        to.extend(bytes.chunks_exact(size_of::<i32>()).map(bytemuck::pod_read_unaligned::<i32>));
        Ok(())
    }

    /// Reads any value of a program as it lies. Transient ones hold what the last step that used their bytes
    /// left: after a run, the inputs of the last step are whole.
    ///
    /// # Errors
    /// What a device said.
    pub fn raw(&self, program: usize, value: usize) -> Result<Cow<'_, [u8]>, EngineError> {
        let plan = &self.programs[program].plan;
        let place = &plan.placements[value];
        let start = match place.location {
            Location::Persistent(start) => start,
            Location::Transient(start) => self.persistent.bytes + start,
            Location::External(_) => return Ok(Cow::Borrowed(&[])),
        };
        self.arena.read_as(start, place.bytes)
    }
}

/// A value of a session, read in row-major order of its logical shape.
#[derive(Clone, Debug)]
pub struct View<'a> {
    layout: &'a Layout,
    values: Cow<'a, [f32]>,
    elements: usize,
}

impl View<'_> {
    /// Elements, without padding.
    #[must_use]
    #[allow(clippy::len_without_is_empty, reason = "a value has elements")]
    pub fn len(&self) -> usize {
        self.elements
    }

    /// Copies out as many elements as `out` holds, from `first` on; both must lie within the value.
    pub fn read(&self, first: usize, out: &mut [f32]) {
        let range = first..first + out.len();
        if self.layout.is_row_major() {
            out.copy_from_slice(&self.values[range]);
        } else {
            self.layout.for_each_of(range, |from, plain| out[plain - first] = self.values[from]);
        }
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
        let start = range.start + place * range.stride;
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

fn load_step(plan: &Plan, position: usize, kernel: PreparedStep) -> Result<LoadedStep, EngineError> {
    let step = &plan.program.steps[position];
    let section = plan.program.pass_of(position);
    let mut arena = Vec::new();
    let mut external = [None; 2];
    let mut count = 0;
    for (operand, id) in step.operands().enumerate() {
        let placement = &plan.placements[id.0];
        count = operand + 1;
        let (length, stride) = plan.part_bytes(id, section.tiles);
        match placement.location {
            Location::Persistent(start) => arena.push(Range { start, length, stride, operand }),
            Location::Transient(start) => {
                let start = plan.persistent_bytes + start;
                arena.push(Range { start, length, stride, operand });
            }
            Location::External(slot) => external[slot] = Some(operand),
        }
    }
    let (start, length) = plan.steps[position].scratch;
    if length > 0 {
        let start = plan.persistent_bytes + start;
        arena.push(Range { start, length, stride: 0, operand: count });
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
