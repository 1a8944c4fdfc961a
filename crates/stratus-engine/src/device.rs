//! Devices with their own memory, and the arena of a session.

use crate::backend::StepKernel;
use crate::exchange::{Communicator, DeviceGroup, ExchangeStep};
use crate::{AlignedBytes, EngineError};
use std::borrow::Cow;
use std::sync::Arc;
use stratus_base::Throttling;

/// The current use of a device by all programs. Unknown values are `None`.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct DeviceUsage {
    /// The percentage of roughly the last second in which a kernel ran.
    pub busy_percent: Option<f64>,
    /// Bytes of its memory in use.
    pub memory_bytes: Option<u64>,
    /// The power draw.
    pub watts: Option<f64>,
    /// The clock of its processors in MHz.
    pub mhz: Option<u32>,
    /// The temperature of the chip in degrees Celsius.
    pub celsius: Option<u32>,
    /// The reasons for which the clock is lower than it could be.
    pub throttling: Option<Throttling>,
}

/// Measures the use of a device.
pub trait DeviceMeter: Send {
    /// The current use.
    fn usage(&mut self) -> DeviceUsage;

    /// Joules since the device's driver was loaded; `None` if they are not counted.
    fn joules(&mut self) -> Option<f64> {
        None
    }
}

/// Records when the work enqueued so far ends.
pub trait StepTimer {
    /// Ends a step: the time since the end of the previous one counts to `slot`.
    ///
    /// # Errors
    /// The device's error message.
    fn end_step(&mut self, slot: usize) -> Result<(), EngineError>;
}

/// Enqueues the steps of a program and calls the timer after each.
pub type EnqueueSteps<'a> = &'a mut dyn FnMut(&mut dyn StepTimer) -> Result<(), EngineError>;

/// One run of a program.
pub struct ProgramRun<'a> {
    /// The index of the program. With the same buffer, its steps enqueue the same work every time.
    pub program: usize,
    /// The input buffer that it reads, 0 or 1.
    pub buffer: usize,
    /// True if the buffer was staged, so that the queue waits for the copy.
    pub is_staged: bool,
    /// The inputs to copy first: device addresses and bytes. Empty if they are already on the device.
    pub inputs: [(u64, &'a [u8]); 2],
    /// True if each step is timed.
    pub timed: bool,
    /// The number of step ends: one for each execution of a step.
    pub steps: usize,
    /// Enqueues the steps. It may be called once for many runs.
    pub enqueue: EnqueueSteps<'a>,
}

/// Times of a run on a device, in nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RunTimes {
    /// Copying the inputs, or waiting for those that were staged.
    pub copy_nanos: u64,
}

/// Device memory and an in-order queue of work.
pub trait Device: Send {
    /// Allocates zeroed memory aligned to 256 bytes; it is freed with the device.
    ///
    /// # Errors
    /// If there is not enough memory; `purpose` is named in the message.
    fn allocate(&mut self, bytes: usize, purpose: &'static str) -> Result<u64, EngineError>;

    /// Copies bytes to the device after all queued work. `bytes` may be changed afterwards.
    ///
    /// # Errors
    /// The device's error message.
    fn write(&mut self, address: u64, bytes: &[u8]) -> Result<(), EngineError>;

    /// Waits for the queue and copies bytes from the device.
    ///
    /// # Errors
    /// The device's error message, or that of the queued work.
    fn read(&self, address: u64, bytes: &mut [u8]) -> Result<(), EngineError>;

    /// Starts copying inputs into one of the two buffers, in parallel with the queue. The bytes may be
    /// changed afterwards.
    ///
    /// # Errors
    /// The device's error message.
    fn stage(&mut self, buffer: usize, inputs: [(u64, &[u8]); 2]) -> Result<(), EngineError>;

    /// Joins the devices of other workers, which do the same at the same time.
    ///
    /// # Errors
    /// If the library fails, or the others do not join.
    fn join_group(&mut self, group: &DeviceGroup) -> Result<(), EngineError>;

    /// Lets the devices of the group compute the sums of buckets of up to this size, and returns the bytes
    /// that are allocated for it. `None` leaves the group instead.
    ///
    /// # Errors
    /// If there is no group, or memory cannot be allocated.
    fn sum_directly(&mut self, bucket_bytes: Option<usize>) -> Result<usize, EngineError>;

    /// The kernel of a communication step on values of this device. If the exchange fails, the program runs
    /// to its end, and [`Device::finish`] returns the error.
    ///
    /// # Errors
    /// If memory cannot be allocated.
    fn exchange_kernel(
        &mut self,
        step: ExchangeStep,
        exchange: &Arc<dyn Communicator>,
    ) -> Result<Box<dyn StepKernel>, EngineError>;

    /// Starts a program. Only one runs at a time: call [`Device::finish`] before the next.
    ///
    /// # Errors
    /// The device's error message.
    fn launch(&mut self, run: ProgramRun<'_>) -> Result<(), EngineError>;

    /// Waits for the program to end. `time` is called for every step end, in order, with its slot and
    /// nanoseconds.
    ///
    /// # Errors
    /// The device's error message.
    fn finish(&mut self, time: &mut dyn FnMut(usize, u64)) -> Result<RunTimes, EngineError>;

    /// The number of step ends in a program's timed runs, and the number of queued operations that only
    /// record times. `None` if not known yet.
    fn timing_overhead(&self, _program: usize) -> Option<[usize; 2]> {
        None
    }

    /// Waits for the queue.
    ///
    /// # Errors
    /// The error of the queued work.
    fn wait(&self) -> Result<(), EngineError>;
}

/// The time span of a kernel, in nanoseconds of the device's clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KernelSpan {
    /// Start.
    pub start: u64,
    /// End.
    pub end: u64,
}

/// A trace of the kernels on a device, by the vendor's tools.
pub trait Tracer {
    /// The kernels that ran since the trace started or since the last call, in order of start.
    ///
    /// # Errors
    /// The tool's error message.
    fn take(&mut self) -> Result<Vec<KernelSpan>, String>;
}

/// The arena of a session.
pub(crate) enum Arena {
    /// In the process's memory.
    Host(AlignedBytes),
    /// On a device.
    Device(DeviceArena),
}

/// The arena on a device and its input buffers.
pub(crate) struct DeviceArena {
    pub device: Box<dyn Device>,
    pub address: u64,
    pub bytes: usize,
    /// Total bytes.
    pub allocated: usize,
    /// Addresses of images and labels, double-buffered: one batch is copied while another is processed.
    pub inputs: [[u64; 2]; 2],
    /// The buffer of the last run.
    pub last: usize,
    /// The buffer of a staged batch.
    pub staged: Option<usize>,
}

impl Arena {
    pub fn new(
        device: Option<Box<dyn Device>>,
        bytes: usize,
        inputs: [usize; 2],
    ) -> Result<Self, EngineError> {
        const ARENA: &str = "the plan's arena";
        let Some(mut device) = device else { return Ok(Self::Host(AlignedBytes::zeroed(bytes, ARENA)?)) };
        let address = device.allocate(bytes, ARENA)?;
        let mut buffer = || -> Result<_, EngineError> {
            let images = device.allocate(inputs[0], "a batch of images")?;
            Ok([images, device.allocate(inputs[1], "a batch of labels")?])
        };
        let allocated = bytes + 2 * inputs.iter().sum::<usize>();
        let inputs = [buffer()?, buffer()?];
        Ok(Self::Device(DeviceArena { device, address, bytes, allocated, inputs, last: 0, staged: None }))
    }

    pub fn is_host(&self) -> bool {
        matches!(self, Self::Host(_))
    }

    pub fn bytes(&self) -> usize {
        match self {
            Self::Host(bytes) => bytes.len(),
            Self::Device(arena) => arena.bytes,
        }
    }

    /// Copies a range of the arena.
    pub fn copy_to(&self, start: usize, to: &mut [u8]) -> Result<(), EngineError> {
        match self {
            Self::Host(arena) => {
                to.copy_from_slice(&arena.as_slice()[start..start + to.len()]);
                Ok(())
            }
            Self::Device(arena) => arena.device.read(arena.address + start as u64, to),
        }
    }

    /// Elements of a range of the arena, borrowed on the host, copied from a device.
    pub fn read_as<T: bytemuck::Pod>(&self, start: usize, bytes: usize) -> Result<Cow<'_, [T]>, EngineError> {
        if let Self::Host(arena) = self {
            return Ok(Cow::Borrowed(bytemuck::cast_slice(&arena.as_slice()[start..start + bytes])));
        }
        let mut copy = vec![T::zeroed(); bytes / size_of::<T>()];
        self.copy_to(start, bytemuck::cast_slice_mut(&mut copy))?;
        Ok(Cow::Owned(copy))
    }

    /// Swaps two ranges, which must not overlap.
    pub fn swap(&mut self, starts: [usize; 2], bytes: usize) -> Result<(), EngineError> {
        match self {
            Self::Host(arena) => {
                let [low, high] = [starts[0].min(starts[1]), starts[0].max(starts[1])];
                let (before, from_high) = arena.as_mut_slice().split_at_mut(high);
                before[low..low + bytes].swap_with_slice(&mut from_high[..bytes]);
                Ok(())
            }
            Self::Device(_) => {
                let mut parts = [vec![0; bytes], vec![0; bytes]];
                for (start, part) in starts.into_iter().zip(&mut parts) {
                    self.copy_to(start, part)?;
                }
                self.write(starts[0], &parts[1])?;
                self.write(starts[1], &parts[0])
            }
        }
    }

    pub fn write(&mut self, start: usize, bytes: &[u8]) -> Result<(), EngineError> {
        match self {
            Self::Host(arena) => {
                arena.as_mut_slice()[start..start + bytes.len()].copy_from_slice(bytes);
                Ok(())
            }
            Self::Device(arena) => arena.device.write(arena.address + start as u64, bytes),
        }
    }
}
