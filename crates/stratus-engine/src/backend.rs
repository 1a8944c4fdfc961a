//! Backends: they provide a kernel, an implementation name, layouts and scratch for every step.

use crate::device::{Device, DeviceMeter, Tracer};
use crate::fusions::Fusions;
use crate::program::MAX_OPERANDS;
use crate::{EngineError, Layout, Precision, Program};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// The choices among several layouts and implementations. Stored in the plan, so that a run can be repeated
/// bitwise.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Choices {
    /// Layout tag per value name.
    pub layouts: BTreeMap<String, String>,
    /// Implementation per step (`layer:kernel`), as an index or name of the backend.
    pub implementations: BTreeMap<String, String>,
}

/// Options for preparing a program.
#[derive(Clone, Debug, Default)]
pub struct PrepareRequest {
    /// Choices to reuse. The backend makes all others.
    pub choices: Choices,
    /// Layouts of persistent values that an earlier program of the session fixed, by name.
    pub fixed: BTreeMap<String, Layout>,
    /// True if candidates may be measured; otherwise the backend's rules choose.
    pub measure: bool,
}

/// A step ready to run.
pub struct PreparedStep {
    /// The backend's name for this implementation.
    pub implementation: String,
    /// Bytes of scratch, handed to the kernel as its last operand.
    pub scratch_bytes: usize,
    /// The kernel.
    pub kernel: Box<dyn StepKernel>,
}

/// A prepared program with everything that a plan needs.
pub struct PreparedProgram {
    /// The program, with layout changes inserted.
    pub program: Program,
    /// A layout per value.
    pub layouts: Vec<Layout>,
    /// A kernel per step.
    pub steps: Vec<PreparedStep>,
    /// All choices, requested or measured.
    pub choices: Choices,
}

/// A library of kernels.
pub trait Backend: Send + Sync {
    /// Its name on the command line.
    fn name(&self) -> &'static str;

    /// Library, version and instruction set, in short.
    fn describe(&self) -> String;

    /// A hash of the kernels' source. Speed and bits may differ between revisions.
    fn revision(&self) -> &'static str;

    /// The number of threads that kernels run on. Bits depend on it.
    fn threads(&self) -> usize;

    /// The device that holds a session's memory and runs its kernels; `None` for the process's own memory and
    /// CPU.
    ///
    /// # Errors
    /// If the device is unavailable.
    fn device(&self) -> Result<Option<Box<dyn Device>>, EngineError> {
        Ok(None)
    }

    /// The address of the device on its machine, by which processes that share it know it; `None` without
    /// one.
    fn device_address(&self) -> Option<String> {
        None
    }

    /// Orders the devices of several processes: by generation, then by speed. Kernels that an older device
    /// supports are supported by newer ones. Zeros if it is unknown.
    fn device_generation(&self) -> [u64; 2] {
        [0; 2]
    }

    /// The library by which devices of several workers sum values directly, with its version.
    ///
    /// # Errors
    /// The reason why this device cannot do so.
    fn direct_exchange(&self) -> Result<String, String> {
        Err("only GPUs exchange values directly".to_owned())
    }

    /// The bytes of device memory for direct sums of buckets of up to `bucket_bytes`; 0 if no device of this
    /// kind sums directly.
    fn direct_sum_bytes(&self, _bucket_bytes: usize) -> usize {
        0
    }

    /// A new identity for a group of devices, which its first member passes to all others.
    ///
    /// # Errors
    /// Those of [`Self::direct_exchange`].
    fn new_group_id(&self) -> Result<Vec<u8>, String> {
        self.direct_exchange().map(|_| Vec::new())
    }

    /// Starts tracing the device with the vendor's tools.
    ///
    /// # Errors
    /// If there is no device or no such tool.
    fn trace(&self) -> Result<Box<dyn Tracer>, String> {
        Err(format!("tracing needs a GPU; backend {} runs on the CPU", self.name()))
    }

    /// Measures the use of the device through the vendor's library; `None` if there is no device or no such
    /// library.
    fn meter(&self) -> Option<Box<dyn DeviceMeter>> {
        None
    }

    /// Bytes of device memory allocated since the device was opened, as counted by the driver; `None` without
    /// a device.
    fn device_bytes(&self) -> Option<u64> {
        None
    }

    /// The precisions that it supports on this machine.
    fn precisions(&self) -> Vec<Precision>;

    /// Returns whether tiles of the batch should fit the caches of its threads: see
    /// [`crate::passes::tile::tile`].
    fn prefers_tiling(&self) -> bool {
        false
    }

    /// Returns whether images should be passed as bytes, which its own kernel normalises: see
    /// [`crate::passes::images::with_byte_images`].
    fn prefers_byte_images(&self) -> bool {
        false
    }

    /// The largest magnitude of weights in signed bytes for which products with bytes are exact; `None` if it
    /// does not run in int8.
    fn max_int8_weight(&self) -> Option<i8> {
        None
    }

    /// The fusions that it profits from.
    fn fusions(&self) -> Fusions {
        Fusions::default()
    }

    /// Discards the timings measured so far, so that they are measured again.
    fn clear_timings(&self) {}

    /// Returns whether choices made for one batch size are reused for others instead of being measured again.
    fn reuses_choices_across_batch_sizes(&self) -> bool {
        false
    }

    /// The seconds taken so far by each phase of starting and preparing programs; phases may overlap. Empty
    /// if it does not measure them.
    fn startup_times(&self) -> Vec<(&'static str, f64)> {
        Vec::new()
    }

    /// Chooses kernels and layouts.
    ///
    /// # Errors
    /// If a step is not supported, naming the layer, or if a requested choice is not available.
    fn prepare(&self, program: &Program, request: &PrepareRequest) -> Result<PreparedProgram, EngineError>;
}

/// The prepared kernel of one step.
pub trait StepKernel: Send {
    /// Runs the kernel, or enqueues it on a device. Operands are the step's inputs, updates and outputs in
    /// order, then scratch.
    ///
    /// # Errors
    /// The error message of the library that the kernel calls.
    fn run(&mut self, operands: &mut Operands<'_>) -> Result<(), String>;
}

/// The part of the batch that a kernel runs on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tile {
    /// Its index in the order of execution.
    pub run_index: usize,
    /// Its position in the batch or micro-batch.
    pub position: usize,
    /// The number of equal tiles of the batch or micro-batch.
    pub count: usize,
    /// The index of its micro-batch.
    pub micro_batch: usize,
    /// The number of equal micro-batches. Each has its own statistics and loss.
    pub micro_batches: usize,
    /// True if each micro-batch has separate sums, which [`TreeSum`](crate::ops::TreeSum) steps combine.
    pub separate_sums: bool,
}

impl Tile {
    /// The whole batch.
    pub const WHOLE: Self =
        Self { run_index: 0, position: 0, count: 1, micro_batch: 0, micro_batches: 1, separate_sums: false };

    /// Returns whether statistics of the micro-batch start with this tile.
    #[must_use]
    pub fn is_first(self) -> bool {
        self.run_index == 0
    }

    /// Returns whether statistics of the micro-batch end with this tile.
    #[must_use]
    pub fn is_last(self) -> bool {
        self.run_index + 1 == self.count
    }

    /// Returns whether sums start with this tile: it is the first of the batch, or of its micro-batch if sums
    /// are separate.
    #[must_use]
    pub fn starts_sums(self) -> bool {
        self.run_index == 0 && (self.separate_sums || self.micro_batch == 0)
    }

    /// Its position in the whole batch, in units of its size.
    #[must_use]
    pub fn global_position(self) -> usize {
        self.micro_batch * self.count + self.position
    }
}

/// The memory of one step's operands: disjoint slices of host memory, or addresses on a [`Device`].
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

    /// The part of the batch that they hold.
    #[must_use]
    pub fn tile(&self) -> Tile {
        self.tile
    }

    /// Sets an operand's memory.
    pub fn set(&mut self, position: usize, slice: &'a mut [u8]) {
        self.slices[position] = slice;
    }

    /// Sets the device address of an operand.
    pub fn set_address(&mut self, position: usize, address: u64) {
        self.addresses[position] = address;
    }

    /// The device address of an operand; 0 if it is in host memory.
    #[must_use]
    pub fn address(&self, position: usize) -> u64 {
        self.addresses[position]
    }

    /// Takes an operand's memory; taking it again returns an empty slice.
    pub fn take(&mut self, position: usize) -> &'a mut [u8] {
        std::mem::take(&mut self.slices[position])
    }

    /// Takes an operand's memory as elements. Values are aligned to 64 bytes and hold whole elements.
    pub fn elements<T: bytemuck::Pod>(&mut self, position: usize) -> &'a mut [T] {
        let bytes = self.take(position);
        // An empty slice may be unaligned, so it must not be cast.
        if bytes.is_empty() { &mut [] } else { bytemuck::cast_slice_mut(bytes) }
    }
}

/// The key of a step in [`Choices::implementations`].
#[must_use]
pub fn step_key(program: &Program, step: &crate::Step) -> String {
    use crate::ops::KernelSpec;
    format!("{}:{}", program.layer_name(step), step.kernel.name())
}
