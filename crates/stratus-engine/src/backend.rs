//! What a backend provides: a kernel, an implementation name, layouts and scratch for every step.

use crate::device::{Device, DeviceMeter, Tracer};
use crate::passes::fuse::Fusions;
use crate::{EngineError, Layout, Precision, Program};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// The most operands a step may have, scratch included.
pub const MAX_OPERANDS: usize = 16;

/// The choices among several layouts and implementations. Kept in the plan, so that a run can be repeated
/// with the same bits.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Choices {
    /// Layout tag per value name.
    pub layouts: BTreeMap<String, String>,
    /// Implementation per step (`layer:kernel`), as the backend counts or names them.
    pub implementations: BTreeMap<String, String>,
}

/// How a program is to be prepared.
#[derive(Clone, Debug, Default)]
pub struct PrepareRequest {
    /// Choices to repeat. What they do not name, the backend chooses.
    pub choices: Choices,
    /// Layouts of persistent values that an earlier program of the session has fixed, by name.
    pub fixed: BTreeMap<String, Layout>,
    /// Whether candidates may be measured; otherwise the backend's rules choose.
    pub measure: bool,
}

/// A step ready to run.
pub struct PreparedStep {
    /// The library's name of the kernel.
    pub implementation: String,
    /// Bytes of scratch, handed to the kernel as its last operand.
    pub scratch_bytes: usize,
    /// The kernel.
    pub kernel: Box<dyn StepKernel>,
}

/// A program with everything a plan needs.
pub struct Prepared {
    /// The program, with layout changes inserted.
    pub program: Program,
    /// A layout per value.
    pub layouts: Vec<Layout>,
    /// A kernel per step.
    pub steps: Vec<PreparedStep>,
    /// Everything that was chosen, by request or by measuring.
    pub choices: Choices,
}

/// A library of kernels.
pub trait Backend: Send + Sync {
    /// Its name on the command line.
    fn name(&self) -> &'static str;

    /// Library, version and instruction set, in a few words.
    fn describe(&self) -> String;

    /// Tells these kernels from those of another build: where they differ, so may speed and bits.
    fn revision(&self) -> &'static str;

    /// The threads its kernels run on. Bits depend on it.
    fn threads(&self) -> usize;

    /// The device that a session's memory lies on and its kernels run on; `None` where that is the process's
    /// own memory and processor.
    ///
    /// # Errors
    /// Where it cannot be had.
    fn device(&self) -> Result<Option<Box<dyn Device>>, EngineError> {
        Ok(None)
    }

    /// Begins to trace its device with the vendor's tools.
    ///
    /// # Errors
    /// Where there is no device, or no such tool.
    fn trace(&self) -> Result<Box<dyn Tracer>, String> {
        Err(format!("{} has no device that could be traced", self.name()))
    }

    /// Measures how its device is used, by the vendor's library; `None` where there is no device, or no such
    /// library.
    fn meter(&self) -> Option<Box<dyn DeviceMeter>> {
        None
    }

    /// Bytes of its device's memory that have been taken since it was opened, as the driver counts; `None`
    /// where there is no device.
    fn device_bytes(&self) -> Option<u64> {
        None
    }

    /// What it can compute in, on this machine.
    fn precisions(&self) -> Vec<Precision>;

    /// Whether it is worth fitting tiles of the batch into the caches of its threads: see
    /// [`crate::passes::tile::tile`].
    fn gains_from_tiles(&self) -> bool {
        false
    }

    /// Whether batches are best handed to it as the bytes of their pixels, which its own kernel normalises:
    /// see [`crate::passes::images::images_as_bytes`].
    fn gains_from_bytes(&self) -> bool {
        false
    }

    /// Which fusions it gains from.
    fn fusions(&self) -> Fusions {
        Fusions::default()
    }

    /// Forgets what it has measured, so that it is measured again.
    fn forget_measured(&self) {}

    /// Whether a program for another batch size is best given the same choices: measuring them would take
    /// longer than they could save.
    fn repeats_choices_for_other_batches(&self) -> bool {
        false
    }

    /// The seconds that phases of its start and of preparing programs have taken so far, by their names; some
    /// overlap. Empty where it does not take them.
    fn phases(&self) -> Vec<(&'static str, f64)> {
        Vec::new()
    }

    /// Chooses kernels and layouts.
    ///
    /// # Errors
    /// Where a step cannot be run, naming the layer, or where a requested choice cannot be repeated.
    fn prepare(&self, program: &Program, request: &PrepareRequest) -> Result<Prepared, EngineError>;
}

/// One step's kernel with all that was prepared for it.
pub trait StepKernel: Send {
    /// Runs it, or on a device puts it into the queue. Operands are the step's inputs, updates and outputs in
    /// order, then scratch.
    ///
    /// # Errors
    /// What the library said.
    fn run(&mut self, operands: &mut Operands<'_>) -> Result<(), String>;
}

/// Which part of the batch a kernel is run on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tile {
    /// Its index in the order of execution.
    pub index: usize,
    /// Its index in the batch or micro-batch.
    pub place: usize,
    /// Into how many equal tiles the batch, or a micro-batch, is cut.
    pub count: usize,
    /// The number of its micro-batch, from 0.
    pub micro_batch: usize,
    /// Into how many equal micro-batches the batch is cut. Each has statistics and a loss of its own.
    pub micro_batches: usize,
    /// Whether sums of a micro-batch are its own, and added to those of the others by steps that do nothing
    /// else: see [`AddParts`](crate::ops::AddParts).
    pub apart: bool,
}

impl Tile {
    /// The whole batch.
    pub const WHOLE: Self =
        Self { index: 0, place: 0, count: 1, micro_batch: 0, micro_batches: 1, apart: false };

    /// Whether a kernel that takes statistics of the micro-batch begins with it.
    #[must_use]
    pub fn is_first(self) -> bool {
        self.index == 0
    }

    /// Whether a kernel that takes statistics of the micro-batch ends with it.
    #[must_use]
    pub fn is_last(self) -> bool {
        self.index + 1 == self.count
    }

    /// Whether sums begin with it: nothing of the whole batch was run before it, or of its micro-batch where
    /// each has sums of its own.
    #[must_use]
    pub fn is_first_of_all(self) -> bool {
        self.index == 0 && (self.apart || self.micro_batch == 0)
    }

    /// Its place in the whole batch: how many parts of its size come before it.
    #[must_use]
    pub fn in_batch(self) -> usize {
        self.micro_batch * self.count + self.place
    }
}

/// The memory of one step's operands: disjoint ranges, of the process or, by their addresses, of a
/// [`Device`].
pub struct Operands<'a> {
    slices: [&'a mut [u8]; MAX_OPERANDS],
    addresses: [u64; MAX_OPERANDS],
    tile: Tile,
}

impl<'a> Operands<'a> {
    /// No operands yet.
    #[must_use]
    pub fn new(tile: Tile) -> Self {
        Self { slices: std::array::from_fn(|_| Default::default()), addresses: [0; MAX_OPERANDS], tile }
    }

    /// Which part of the batch they are.
    #[must_use]
    pub fn tile(&self) -> Tile {
        self.tile
    }

    /// Sets an operand's memory.
    pub fn set(&mut self, position: usize, slice: &'a mut [u8]) {
        self.slices[position] = slice;
    }

    /// Sets where an operand lies on a device.
    pub fn set_address(&mut self, position: usize, address: u64) {
        self.addresses[position] = address;
    }

    /// Where an operand lies on a device; 0 of what lies in the process's memory.
    #[must_use]
    pub fn address(&self, position: usize) -> u64 {
        self.addresses[position]
    }

    /// Takes an operand's memory; a second taking gives an empty slice.
    pub fn take(&mut self, position: usize) -> &'a mut [u8] {
        std::mem::take(&mut self.slices[position])
    }

    /// Takes an operand's memory as elements. Values begin at multiples of 64 bytes and hold whole elements.
    pub fn elements<T: bytemuck::Pod>(&mut self, position: usize) -> &'a mut [T] {
        let bytes = self.take(position);
        // An empty slice lies nowhere in particular: it may not be cast.
        if bytes.is_empty() { &mut [] } else { bytemuck::cast_slice_mut(bytes) }
    }
}

/// The key of a step in [`Choices::implementations`].
#[must_use]
pub fn step_key(program: &Program, step: &crate::Step) -> String {
    use crate::ops::KernelSpec;
    format!("{}:{}", program.layer_name(step), step.kernel.name())
}
