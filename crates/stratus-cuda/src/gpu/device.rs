//! The memory of a session on a GPU, and the running of its programs.
//!
//! ```text
//! run 1   enqueues the steps one by one, so that the libraries load their kernels
//! run 2   captures the steps as a CUDA graph, and launches it
//! run 3…  launches the graph as a whole, so that the host's time per step no longer counts
//! ```
//!
//! An event before the first step and one after each step give the times of steps, without holding the stream
//! up.
//!
//! Initialisation inside a library may not be captured. Where a capture fails, that run enqueues its steps
//! one by one, which completes more of the initialisation, and the next run captures again.

use crate::ffi::driver::{CapturedGraph, Event, Gpu, Memory, Pinned};
use std::collections::HashMap;
use std::sync::Arc;
use stratus_engine::device::{DeviceTime, Marks, Run};
use stratus_engine::{Device, EngineError};

/// The GPU that a session runs on.
pub(crate) struct GpuDevice {
    gpu: Arc<Gpu>,
    memory: Vec<Memory>,
    programs: HashMap<GraphKey, ProgramState>,
    /// Before and after the copies of the inputs, or the wait for them.
    copies: [Event; 2],
    /// Page-locked memory that inputs are copied through: `[buffer][images, labels]`.
    pinned: [[Option<Pinned>; 2]; 2],
    /// The run that was launched last.
    launched: Option<GraphKey>,
}

/// What a CUDA graph is captured for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct GraphKey {
    program: usize,
    /// The buffer that it reads its inputs from.
    buffer: usize,
    /// Whether its steps are timed.
    timed: bool,
}

/// The state of a program that was run before.
#[derive(Default)]
struct ProgramState {
    /// The first event is before the first step, each other one after a step.
    events: Vec<Event>,
    /// The slot of each step's time.
    slots: Vec<usize>,
    graph: Option<CapturedGraph>,
    /// Captures that failed.
    failed_captures: u32,
}

/// Failed captures of a program before the next failure is an error.
const MOST_FAILED_CAPTURES: u32 = 3;

impl GpuDevice {
    /// A device without memory yet.
    ///
    /// # Errors
    /// The driver's message.
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

    /// Begins to copy bytes to the device, in the copy stream.
    fn send(&mut self, buffer: usize, slot: usize, address: u64, bytes: &[u8]) -> Result<(), EngineError> {
        let failed = |reason: String| EngineError::Device { device: self.gpu.name.clone(), reason };
        let pinned = &mut self.pinned[buffer][slot];
        if pinned.as_ref().is_none_or(|pinned| pinned.bytes() < bytes.len()) {
            *pinned = Some(Pinned::new(&self.gpu, bytes.len()).map_err(failed)?);
        }
        let Some(pinned) = pinned else { return Ok(()) };
        let memory = containing(&self.memory, address).map_err(failed)?;
        pinned.send(bytes, memory, address).map_err(failed)
    }
}

/// The allocation that contains an address.
fn containing(memory: &[Memory], address: u64) -> Result<&Memory, String> {
    let found = memory.iter().find(|memory| memory.contains(address));
    found.ok_or_else(|| "an address is in no allocation of the session".to_owned())
}

/// Records the events between steps, where steps are timed.
struct EventRecorder<'a> {
    gpu: &'a Arc<Gpu>,
    program: &'a mut ProgramState,
    /// The next event of `program`.
    next: usize,
    timed: bool,
    capturing: bool,
}

impl EventRecorder<'_> {
    fn record(&mut self) -> Result<(), String> {
        if !self.timed {
            return Ok(());
        }
        if self.next == self.program.events.len() {
            self.program.events.push(Event::new(self.gpu)?);
        }
        self.program.events[self.next].record(self.capturing)?;
        self.next += 1;
        Ok(())
    }
}

impl Marks for EventRecorder<'_> {
    fn mark(&mut self, slot: usize) -> Result<(), EngineError> {
        self.record().map_err(|reason| EngineError::Device { device: self.gpu.name.clone(), reason })?;
        if self.timed {
            self.program.slots.push(slot);
        }
        Ok(())
    }
}

/// An error during a capture.
struct CaptureError(EngineError);

impl From<String> for CaptureError {
    fn from(reason: String) -> Self {
        Self(EngineError::Device { device: "the GPU's stream".to_owned(), reason })
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
        containing(&self.memory, address)
            .and_then(|memory| memory.write(address, bytes))
            .map_err(|reason| self.failed(reason))
    }

    fn read(&self, address: u64, bytes: &mut [u8]) -> Result<(), EngineError> {
        if bytes.is_empty() {
            return Ok(());
        }
        containing(&self.memory, address)
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
        let has_inputs = inputs.iter().any(|(_, bytes)| !bytes.is_empty());
        self.stage(buffer, inputs)?;
        if has_inputs || is_staged {
            for pinned in self.pinned[buffer].iter().flatten() {
                pinned.await_copy().map_err(failed)?;
            }
        }
        if timed {
            self.copies[1].record(false).map_err(failed)?;
        }
        let key = GraphKey { program, buffer, timed };
        let first = !self.programs.contains_key(&key);
        let state = self.programs.entry(key).or_default();
        if state.graph.is_none() {
            let mut enqueue_steps = |state: &mut ProgramState, capturing: bool| {
                state.slots.clear();
                let mut events = EventRecorder { gpu: &gpu, program: state, next: 0, timed, capturing };
                events.record()?;
                enqueue(&mut events).map_err(CaptureError)
            };
            let graph = match first {
                true => None,
                false => match CapturedGraph::of(&gpu, || enqueue_steps(state, true)) {
                    Ok(graph) => Some(graph),
                    Err(CaptureError(error)) if state.failed_captures == MOST_FAILED_CAPTURES => {
                        return Err(error);
                    }
                    Err(_) => {
                        state.failed_captures += 1;
                        None
                    }
                },
            };
            match graph {
                Some(graph) => state.graph = Some(graph),
                None => enqueue_steps(state, false).map_err(|CaptureError(error)| error)?,
            }
        }
        if let Some(graph) = &state.graph {
            graph.launch().map_err(failed)?;
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
        let Some(state) = self.programs.get(&key) else { return Ok(DeviceTime::default()) };
        for (pair, &slot) in state.events.windows(2).zip(&state.slots) {
            time(slot, pair[1].since(&pair[0]).map_err(failed)?);
        }
        Ok(DeviceTime { copies: self.copies[1].since(&self.copies[0]).map_err(failed)? })
    }

    fn wait(&self) -> Result<(), EngineError> {
        self.gpu.wait().map_err(|reason| self.failed(reason))
    }
}
