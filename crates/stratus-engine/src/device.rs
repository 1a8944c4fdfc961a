//! Devices with memory of their own: what a session does there.

use crate::{AlignedBytes, EngineError};
use std::borrow::Cow;

/// How a device is used at a moment, by whichever programs. What is not known is none.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct DeviceUsage {
    /// The time of the last second or so in which it ran a kernel, in percent.
    pub busy_percent: Option<f64>,
    /// Bytes of its memory in use.
    pub memory_bytes: Option<u64>,
    /// The power that it draws.
    pub watts: Option<f64>,
}

/// Measures how a device is used.
pub trait DeviceMeter: Send {
    /// How it is used now.
    fn usage(&mut self) -> DeviceUsage;
}

/// Notes when the work that was put into a device's queue so far ends.
pub trait Marks {
    /// Gives the time since the last mark to `slot`.
    ///
    /// # Errors
    /// What the device said.
    fn mark(&mut self, slot: usize) -> Result<(), EngineError>;
}

/// Puts the steps of a program into a device's queue, with a mark behind each.
pub type Enqueue<'a> = &'a mut dyn FnMut(&mut dyn Marks) -> Result<(), EngineError>;

/// One run of a program.
pub struct Run<'a> {
    /// Which program it is; with the same buffer, its steps put the same work into the queue every time.
    pub program: usize,
    /// Which of the two buffers of inputs it reads.
    pub buffer: usize,
    /// Whether that was staged: the queue waits until it is there.
    pub is_staged: bool,
    /// What is copied to the device first: addresses there, and bytes; none of what is there already.
    pub inputs: [(u64, &'a [u8]); 2],
    /// Whether the time of each step is asked for.
    pub timed: bool,
    /// How many marks there are: one behind every step, as often as it runs.
    pub marks: usize,
    /// Puts the steps into the queue. It may be called once for many runs.
    pub enqueue: Enqueue<'a>,
}

/// What a run took on a device, in nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DeviceTime {
    /// Copying the inputs, or waiting for those that were staged.
    pub copies: u64,
}

/// Memory, and a queue of work that is done in its order.
pub trait Device: Send {
    /// Allocates memory that begins at a multiple of 256 bytes and holds zeros; it is freed with the device.
    ///
    /// # Errors
    /// Where there is not as much; `what` says what for.
    fn allocate(&mut self, bytes: usize, what: &'static str) -> Result<u64, EngineError>;

    /// Copies bytes to the device, behind everything in the queue. `bytes` may be changed afterwards.
    ///
    /// # Errors
    /// What the device said.
    fn write(&mut self, address: u64, bytes: &[u8]) -> Result<(), EngineError>;

    /// Waits for the queue, and copies bytes from the device.
    ///
    /// # Errors
    /// What the device said, or what went wrong in the queue.
    fn read(&self, address: u64, bytes: &mut [u8]) -> Result<(), EngineError>;

    /// Begins to copy inputs into one of the two buffers, beside the queue. The bytes may be changed
    /// afterwards.
    ///
    /// # Errors
    /// What the device said.
    fn stage(&mut self, buffer: usize, inputs: [(u64, &[u8]); 2]) -> Result<(), EngineError>;

    /// Begins to run a program. One at a time: [`Device::finish`] comes before the next.
    ///
    /// # Errors
    /// What the device said.
    fn launch(&mut self, run: Run<'_>) -> Result<(), EngineError>;

    /// Waits for the program to end. `time` is called for every mark, in order, with its slot and
    /// nanoseconds.
    ///
    /// # Errors
    /// What the device said.
    fn finish(&mut self, time: &mut dyn FnMut(usize, u64)) -> Result<DeviceTime, EngineError>;

    /// Of a program's timed runs: how many marks they have, and how much of the work in the queue does
    /// nothing but take times. `None` where that is not known, or not yet.
    fn marks(&self, _program: usize) -> Option<[usize; 2]> {
        None
    }

    /// Waits for the queue.
    ///
    /// # Errors
    /// What went wrong in it.
    fn wait(&self) -> Result<(), EngineError>;
}

/// When a kernel ran on a device, in nanoseconds of the device's clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KernelSpan {
    /// It began.
    pub start: u64,
    /// It ended.
    pub end: u64,
}

/// A trace of what runs on a device, by the vendor's tools.
pub trait Tracer {
    /// The kernels that ran since it began, or since they were taken before, in the order in which they
    /// began.
    ///
    /// # Errors
    /// What the tool said.
    fn take(&mut self) -> Result<Vec<KernelSpan>, String>;
}

/// The arena of a session.
pub(crate) enum Arena {
    /// In the process's memory.
    Host(AlignedBytes),
    /// On a device.
    Device(DeviceArena),
}

/// The arena on a device, and the inputs beside it.
pub(crate) struct DeviceArena {
    pub device: Box<dyn Device>,
    pub address: u64,
    pub bytes: usize,
    /// Bytes in all.
    pub allocated: usize,
    /// Images and labels, twice: one batch is copied while another is worked on.
    pub inputs: [[u64; 2]; 2],
    /// The buffer of the last run.
    pub last: usize,
    /// The buffer of a batch that waits for its run.
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

    /// Copies a part of it.
    pub fn copy_to(&self, start: usize, to: &mut [u8]) -> Result<(), EngineError> {
        match self {
            Self::Host(arena) => {
                to.copy_from_slice(&arena.as_slice()[start..start + to.len()]);
                Ok(())
            }
            Self::Device(arena) => arena.device.read(arena.address + start as u64, to),
        }
    }

    /// Numbers of a part of it, where they lie or copied.
    pub fn read_as<T: bytemuck::Pod>(&self, start: usize, bytes: usize) -> Result<Cow<'_, [T]>, EngineError> {
        if let Self::Host(arena) = self {
            return Ok(Cow::Borrowed(bytemuck::cast_slice(&arena.as_slice()[start..start + bytes])));
        }
        let mut copy = vec![T::zeroed(); bytes / size_of::<T>()];
        self.copy_to(start, bytemuck::cast_slice_mut(&mut copy))?;
        Ok(Cow::Owned(copy))
    }

    /// Exchanges two parts of it, which do not overlap.
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
