//! A session on a device: programs run there asynchronously, and inputs are copied while they run.

use super::{LoadedProgram, LoadedStep, Session, run_kernel};
use crate::backend::Operands;
use crate::device::{Arena, DeviceArena, Marks, Run};
use crate::{Clock, EngineError, Plan};

/// What a run on a device takes beside its steps: the slots behind theirs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeviceSlot {
    /// Copying the inputs to the device.
    Copies,
    /// The device has nothing to do, or has finished and the process does not know yet.
    Idle,
}

impl DeviceSlot {
    /// All of them, in order.
    pub const ALL: [Self; 2] = [Self::Copies, Self::Idle];
}

impl Session {
    /// Bytes of a device's memory that were allocated: the arena, and inputs twice; `None` where there is no
    /// device.
    #[must_use]
    pub fn device_bytes(&self) -> Option<usize> {
        match &self.arena {
            Arena::Host(_) => None,
            Arena::Device(arena) => Some(arena.allocated),
        }
    }

    /// The marks of a program's timed runs on a device, and how much of its work does nothing but take times;
    /// `None` where there is no device, or that is not known yet.
    #[must_use]
    pub fn device_marks(&self, program: usize) -> Option<[usize; 2]> {
        match &self.arena {
            Arena::Host(_) => None,
            Arena::Device(arena) => arena.device.marks(program),
        }
    }

    /// Begins to copy a batch to the device, beside what runs there: the next run without inputs is of this
    /// batch. Nothing happens where there is no device, and the inputs are to be given to the run.
    ///
    /// # Errors
    /// Where the inputs are not this program's, or a batch is staged already.
    pub fn stage(&mut self, program: usize, images: &[u8], labels: &[u8]) -> Result<(), EngineError> {
        let plan = &self.programs[program].plan;
        let needed = [0, 1].map(|slot| plan.external(slot).map_or(0, |placement| placement.bytes));
        let Arena::Device(arena) = &mut self.arena else { return Ok(()) };
        if needed != [images.len(), labels.len()] {
            return Err(EngineError::Mismatch(format!(
                "the program takes {needed:?} bytes of images and labels, got {:?}",
                [images.len(), labels.len()]
            )));
        }
        if arena.staged.is_some() {
            return Err(EngineError::Mismatch("a batch is staged already".to_owned()));
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
        let LoadedProgram { plan, steps, passes } = &mut self.programs[program];
        let DeviceArena { device, address, inputs: places, last, staged, .. } = arena;
        let is_given = inputs.iter().any(|bytes| !bytes.is_empty());
        let (buffer, is_staged) = match (&staged, is_given) {
            (Some(buffer), false) => (*buffer, true),
            // What is staged stays where it is.
            (Some(buffer), true) => (1 - *buffer, false),
            (None, _) => (*last, false),
        };
        if is_staged {
            *staged = None;
        }
        *last = buffer;
        let (address, places) = (*address, places[buffer]);
        let mut enqueue_all = |marks: &mut dyn Marks| {
            for (range, turn) in passes.iter() {
                for position in range.clone() {
                    enqueue(plan, position, &mut steps[position], *turn, address, places)?;
                    marks.mark(first_slot + position)?;
                }
            }
            Ok(())
        };
        let run = Run {
            program,
            buffer,
            is_staged,
            inputs: [(places[0], &*inputs[0]), (places[1], &*inputs[1])],
            timed: clock.is_enabled(),
            marks: passes.iter().map(|(range, _)| range.len()).sum(),
            enqueue: &mut enqueue_all,
        };
        device.launch(run)?;
        self.launched = Some((program, first_slot));
        Ok(())
    }

    /// Waits for the program launched on a device, and divides the time since the last stamp as the device
    /// measured it. `meanwhile` is a slot and the nanoseconds that the process waited for something else: as
    /// much of the device's idle time counts to that slot.
    ///
    /// # Errors
    /// What a device said.
    pub fn finish(&mut self, clock: &mut Clock, meanwhile: Option<(usize, u64)>) -> Result<(), EngineError> {
        let Arena::Device(arena) = &mut self.arena else { return Ok(()) };
        let Some((program, first_slot)) = self.launched.take() else { return Ok(()) };
        self.measured.clear();
        let measured = &mut self.measured;
        let time = arena.device.finish(&mut |slot, nanoseconds| measured.push((slot, nanoseconds)))?;
        self.metrics = self.read_metrics()?;
        let behind = first_slot + self.programs[program].plan.program.steps.len();
        self.measured.push((behind + DeviceSlot::Copies as usize, time.copies));
        self.measured.extend(meanwhile);
        clock.share(&self.measured, behind + DeviceSlot::Idle as usize);
        Ok(())
    }
}

/// Puts a step into a device's queue.
pub(super) fn enqueue(
    plan: &Plan,
    position: usize,
    step: &mut LoadedStep,
    turn: usize,
    arena: u64,
    inputs: [u64; 2],
) -> Result<(), EngineError> {
    let place = step.section.place(turn);
    let mut operands = Operands::new(step.tile(turn));
    for range in &step.arena {
        let start = range.start + place % range.places * range.stride;
        operands.set_address(range.operand, arena + start as u64);
    }
    for (slot, operand) in step.external.into_iter().enumerate() {
        if let Some(operand) = operand {
            let bytes = plan.external(slot).map_or(0, |placement| placement.bytes) / step.section.tiles;
            operands.set_address(operand, inputs[slot] + (place * bytes) as u64);
        }
    }
    run_kernel(plan, position, step, &mut operands)
}
