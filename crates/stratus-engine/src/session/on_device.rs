//! A session on a device: programs run there asynchronously, and inputs are copied while they run.

use super::{LoadedProgram, LoadedStep, Session, run_kernel};
use crate::backend::Operands;
use crate::device::{Arena, DeviceArena, ProgramRun, StepTimer};
use crate::{Clock, EngineError, Plan};

/// Further slots of a run on a device, after those of its steps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeviceSlot {
    /// Copying the inputs to the device.
    Copies,
    /// The device is idle, or has finished and the process has not noticed yet.
    Idle,
}

impl DeviceSlot {
    /// All of them, in order.
    pub const ALL: [Self; 2] = [Self::Copies, Self::Idle];
}

impl Session {
    /// Allocated device memory in bytes: the arena and two input buffers; `None` without a device.
    #[must_use]
    pub fn device_bytes(&self) -> Option<usize> {
        match &self.arena {
            Arena::Host(_) => None,
            Arena::Device(arena) => Some(arena.allocated),
        }
    }

    /// The number of step ends in a program's timed runs, and the number of queued operations that only
    /// record times; `None` without a device, or if not known yet.
    #[must_use]
    pub fn timing_overhead(&self, program: usize) -> Option<[usize; 2]> {
        match &self.arena {
            Arena::Host(_) => None,
            Arena::Device(arena) => arena.device.timing_overhead(program),
        }
    }

    /// Starts copying a batch to the device, in parallel with the running program; the next run without
    /// inputs uses it. Does nothing without a device: pass the inputs to the run.
    ///
    /// # Errors
    /// If the inputs have the wrong size, or a batch is already staged.
    pub fn stage(&mut self, program: usize, images: &[u8], labels: &[u8]) -> Result<(), EngineError> {
        let plan = &self.programs[program].plan;
        let expected = [0, 1].map(|slot| plan.external(slot).map_or(0, |placement| placement.bytes));
        let Arena::Device(arena) = &mut self.arena else { return Ok(()) };
        if expected != [images.len(), labels.len()] {
            return Err(EngineError::InvalidRequest(format!(
                "expected {expected:?} bytes of images and labels, got {:?}",
                [images.len(), labels.len()]
            )));
        }
        if arena.staged.is_some() {
            return Err(EngineError::InvalidRequest("a batch is already staged".to_owned()));
        }
        let buffer = 1 - arena.last;
        let [to_images, to_labels] = arena.inputs[buffer];
        arena.device.stage(buffer, [(to_images, images), (to_labels, labels)])?;
        arena.staged = Some(buffer);
        Ok(())
    }

    pub(super) fn launch_on_device(
        &mut self,
        program: usize,
        inputs: &[&mut [u8]; 2],
        clock: &Clock,
        first_slot: usize,
    ) -> Result<(), EngineError> {
        let Arena::Device(arena) = &mut self.arena else { return Ok(()) };
        let LoadedProgram { plan, steps, execution_order } = &mut self.programs[program];
        let DeviceArena { device, address, inputs: addresses, last, staged, .. } = arena;
        let is_given = inputs.iter().any(|bytes| !bytes.is_empty());
        let (buffer, is_staged) = match (&staged, is_given) {
            (Some(buffer), false) => (*buffer, true),
            // The staged batch keeps its buffer.
            (Some(buffer), true) => (1 - *buffer, false),
            (None, _) => (*last, false),
        };
        if is_staged {
            *staged = None;
        }
        *last = buffer;
        let (address, addresses) = (*address, addresses[buffer]);
        let mut enqueue_all = |timer: &mut dyn StepTimer| {
            for (range, turn) in execution_order.iter() {
                for position in range.clone() {
                    enqueue(plan, position, &mut steps[position], *turn, address, addresses)?;
                    timer.end_step(first_slot + position)?;
                }
            }
            Ok(())
        };
        let run = ProgramRun {
            program,
            buffer,
            is_staged,
            inputs: [(addresses[0], &*inputs[0]), (addresses[1], &*inputs[1])],
            timed: clock.is_enabled(),
            steps: execution_order.iter().map(|(range, _)| range.len()).sum(),
            enqueue: &mut enqueue_all,
        };
        device.launch(run)?;
        self.launched = Some((program, first_slot));
        Ok(())
    }

    /// Waits for the program on a device, and divides the time since the last stamp as the device measured
    /// it. `meanwhile` is a slot and the nanoseconds that the process waited for something else: that much of
    /// the device's idle time counts to the slot.
    ///
    /// # Errors
    /// The device's error message.
    pub fn finish(&mut self, clock: &mut Clock, meanwhile: Option<(usize, u64)>) -> Result<(), EngineError> {
        let Arena::Device(arena) = &mut self.arena else { return Ok(()) };
        let Some((program, first_slot)) = self.launched.take() else { return Ok(()) };
        self.measured.clear();
        let measured = &mut self.measured;
        let time = arena.device.finish(&mut |slot, nanoseconds| measured.push((slot, nanoseconds)))?;
        self.metrics = self.read_metrics()?;
        let after_steps = first_slot + self.programs[program].plan.program.steps.len();
        self.measured.push((after_steps + DeviceSlot::Copies as usize, time.copy_nanos));
        self.measured.extend(meanwhile);
        clock.share(&self.measured, after_steps + DeviceSlot::Idle as usize);
        Ok(())
    }
}

/// Enqueues a step on a device.
pub(super) fn enqueue(
    plan: &Plan,
    position: usize,
    step: &mut LoadedStep,
    turn: usize,
    arena: u64,
    inputs: [u64; 2],
) -> Result<(), EngineError> {
    let tile = step.section.tile_at(turn);
    let mut operands = Operands::new(step.tile(turn));
    for range in &step.arena {
        let start = range.start + tile % range.slots * range.stride;
        operands.set_address(range.operand, arena + start as u64);
    }
    for (slot, operand) in step.external.into_iter().enumerate() {
        if let Some(operand) = operand {
            let bytes = plan.external(slot).map_or(0, |placement| placement.bytes) / step.section.tiles;
            operands.set_address(operand, inputs[slot] + (tile * bytes) as u64);
        }
    }
    run_kernel(plan, position, step, &mut operands)
}
