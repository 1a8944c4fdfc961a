//! The memory of a session on a GPU, and the running of its programs.
//!
//! The first run of a program puts its steps into the queue one by one, so that the libraries load what they need; the second one records them, and from
//! then on the recording is launched as a whole: what a step costs the processor no longer counts. Between steps stand marks, which tell when they were
//! reached and do not hold the queue up.
//!
//! What a library does for the first time may be nothing that can be recorded. Then the steps are put into the queue once more one by one, which leaves
//! less to be done for the first time, and the next run is recorded.

use crate::ffi::driver::{Event, Gpu, Memory, Pinned, Recording};
use std::collections::HashMap;
use std::sync::Arc;
use stratus_engine::device::{DeviceTime, Marks, Run};
use stratus_engine::{Device, EngineError};

/// A GPU that a session has its memory on.
pub(crate) struct GpuDevice {
    gpu: Arc<Gpu>,
    memory: Vec<Memory>,
    programs: HashMap<Key, Program>,
    /// Before and behind the copies of the inputs, or the wait for them.
    copies: [Event; 2],
    /// What inputs are copied through: for each buffer images and labels.
    pinned: [[Option<Pinned>; 2]; 2],
    launched: Option<Key>,
}

/// What a recording was made for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Key {
    program: usize,
    /// Which buffer it reads its inputs from.
    buffer: usize,
    /// Whether its steps are timed.
    timed: bool,
}

/// What is known of a program that was run.
#[derive(Default)]
struct Program {
    /// The first mark stands before the first step, each other one behind a step.
    marks: Vec<Event>,
    slots: Vec<usize>,
    recording: Option<Recording>,
    /// How many recordings came to nothing.
    refused: u32,
}

/// How many recordings of a program may come to nothing before that is an error.
const MOST_REFUSED: u32 = 3;

impl GpuDevice {
    pub fn new(gpu: &Arc<Gpu>) -> Result<Self, String> {
        let copies = [Event::new(gpu)?, Event::new(gpu)?];
        Ok(Self {
            gpu: Arc::clone(gpu),
            memory: Vec::new(),
            programs: HashMap::new(),
            copies,
            pinned: Default::default(),
            launched: None,
        })
    }

    fn failed(&self, reason: String) -> EngineError {
        EngineError::Device { device: self.gpu.name.clone(), reason }
    }

    /// Begins to copy bytes to the device, beside the queue.
    fn send(&mut self, buffer: usize, slot: usize, address: u64, bytes: &[u8]) -> Result<(), EngineError> {
        let failed = |reason: String| EngineError::Device { device: self.gpu.name.clone(), reason };
        let pinned = &mut self.pinned[buffer][slot];
        if pinned.as_ref().is_none_or(|pinned| pinned.bytes() < bytes.len()) {
            *pinned = Some(Pinned::new(&self.gpu, bytes.len()).map_err(failed)?);
        }
        let Some(pinned) = pinned else { return Ok(()) };
        let memory = holding(&self.memory, address).map_err(failed)?;
        pinned.send(bytes, memory, address).map_err(failed)
    }
}

/// The memory that an address lies in.
fn holding(memory: &[Memory], address: u64) -> Result<&Memory, String> {
    let found = memory.iter().find(|memory| memory.holds(address));
    found.ok_or_else(|| "an address lies in no memory of the session".to_owned())
}

/// Sets marks behind steps, or none where no time is asked for.
struct Setter<'a> {
    gpu: &'a Arc<Gpu>,
    program: &'a mut Program,
    next: usize,
    timed: bool,
    recording: bool,
}

impl Setter<'_> {
    fn set(&mut self) -> Result<(), String> {
        if !self.timed {
            return Ok(());
        }
        if self.next == self.program.marks.len() {
            self.program.marks.push(Event::new(self.gpu)?);
        }
        self.program.marks[self.next].record(self.recording)?;
        self.next += 1;
        Ok(())
    }
}

impl Marks for Setter<'_> {
    fn mark(&mut self, slot: usize) -> Result<(), EngineError> {
        self.set().map_err(|reason| EngineError::Device { device: self.gpu.name.clone(), reason })?;
        if self.timed {
            self.program.slots.push(slot);
        }
        Ok(())
    }
}

/// An error on its way out of a recording.
struct Failure(EngineError);

impl From<String> for Failure {
    fn from(reason: String) -> Self {
        Self(EngineError::Device { device: "the GPU's queue".to_owned(), reason })
    }
}

impl Device for GpuDevice {
    fn allocate(&mut self, bytes: usize, what: &'static str) -> Result<u64, EngineError> {
        let memory = Memory::zeroed(&self.gpu, bytes).map_err(|_| EngineError::OutOfMemory {
            what: format!("{what} on {}", self.gpu.name),
            bytes,
            free: self.gpu.free_bytes().ok(),
        })?;
        let address = memory.address();
        self.memory.push(memory);
        Ok(address)
    }

    fn write(&mut self, address: u64, bytes: &[u8]) -> Result<(), EngineError> {
        if bytes.is_empty() {
            return Ok(());
        }
        holding(&self.memory, address)
            .and_then(|memory| memory.write(address, bytes))
            .map_err(|reason| self.failed(reason))
    }

    fn read(&self, address: u64, bytes: &mut [u8]) -> Result<(), EngineError> {
        if bytes.is_empty() {
            return Ok(());
        }
        holding(&self.memory, address)
            .and_then(|memory| memory.read(address, bytes))
            .map_err(|reason| self.failed(reason))
    }

    fn stage(&mut self, buffer: usize, inputs: [(u64, &[u8]); 2]) -> Result<(), EngineError> {
        for (slot, (address, bytes)) in inputs.into_iter().enumerate() {
            if !bytes.is_empty() {
                self.send(buffer, slot, address, bytes)?;
            }
        }
        Ok(())
    }

    fn launch(&mut self, run: Run<'_>) -> Result<(), EngineError> {
        let Run { program, buffer, is_staged, inputs, timed, enqueue } = run;
        let gpu = Arc::clone(&self.gpu);
        let failed = |reason: String| EngineError::Device { device: gpu.name.clone(), reason };
        if timed {
            self.copies[0].record(false).map_err(failed)?;
        }
        let given = inputs.iter().any(|(_, bytes)| !bytes.is_empty());
        self.stage(buffer, inputs)?;
        if given || is_staged {
            for pinned in self.pinned[buffer].iter().flatten() {
                pinned.await_copy().map_err(failed)?;
            }
        }
        if timed {
            self.copies[1].record(false).map_err(failed)?;
        }
        let key = Key { program, buffer, timed };
        let first = !self.programs.contains_key(&key);
        let known = self.programs.entry(key).or_default();
        if known.recording.is_none() {
            let mut put = |known: &mut Program, recording: bool| {
                known.slots.clear();
                let mut setter = Setter { gpu: &gpu, program: known, next: 0, timed, recording };
                setter.set()?;
                enqueue(&mut setter).map_err(Failure)
            };
            let recording = match first {
                true => None,
                false => match Recording::of(&gpu, || put(known, true)) {
                    Ok(recording) => Some(recording),
                    Err(Failure(error)) if known.refused == MOST_REFUSED => return Err(error),
                    Err(_) => {
                        known.refused += 1;
                        None
                    }
                },
            };
            match recording {
                Some(recording) => known.recording = Some(recording),
                None => put(known, false).map_err(|Failure(error)| error)?,
            }
        }
        if let Some(recording) = &known.recording {
            recording.launch().map_err(failed)?;
        }
        self.launched = Some(key);
        Ok(())
    }

    fn finish(&mut self, time: &mut dyn FnMut(usize, u64)) -> Result<DeviceTime, EngineError> {
        let failed = |reason: String| EngineError::Device { device: self.gpu.name.clone(), reason };
        self.gpu.wait().map_err(failed)?;
        let Some(key) = self.launched.take().filter(|key| key.timed) else {
            return Ok(DeviceTime::default());
        };
        let Some(known) = self.programs.get(&key) else { return Ok(DeviceTime::default()) };
        for (pair, &slot) in known.marks.windows(2).zip(&known.slots) {
            time(slot, pair[1].since(&pair[0]).map_err(failed)?);
        }
        Ok(DeviceTime { copies: self.copies[1].since(&self.copies[0]).map_err(failed)? })
    }

    fn wait(&self) -> Result<(), EngineError> {
        self.gpu.wait().map_err(|reason| self.failed(reason))
    }
}
