//! The memory of a session on a GPU, and the execution of its programs.
//!
//! ```text
//! run 1   enqueues the steps one by one, so that the libraries load their kernels
//! run 2   captures the steps as a CUDA graph, and launches it
//! run 3…  launches the graph as a whole, so that the host's time per step no longer counts
//! ```
//!
//! Kernels record the times of steps (`timestamps.rs`), which are copied to the process after the last step.
//!
//! Initialisation inside a library may not be capturable. If a capture fails, that run enqueues its steps one
//! by one, which completes more of the initialisation, and the next run captures again.

use crate::exchange::{Exchange, direct_sum_bytes};
use crate::ffi::driver::{CapturedGraph, DeviceMemory, Event, Gpu, PinnedBuffer};
use crate::ffi::nccl::NcclGroup;
use crate::ffi::queues::GpuQueues;
use crate::processor::Processor;
use crate::step_clock::StepClock;
use crate::timestamps::{RecordedSteps, words};
use std::collections::HashMap;
use std::sync::Arc;
use stratus_engine::backend::StepKernel;
use stratus_engine::device::{ProgramRun, RunTimes, StepTimer};
use stratus_engine::exchange::{Communicator, DeviceGroup, ExchangeStep};
use stratus_engine::{Device, EngineError};

/// The GPU that a session runs on.
pub(crate) struct GpuDevice {
    gpu: Arc<Gpu>,
    clock: Arc<StepClock>,
    /// Compiles the kernels of the exchange.
    processor: Arc<dyn Processor>,
    memory: Vec<DeviceMemory>,
    programs: HashMap<GraphKey, ProgramState>,
    /// Events before and after the copies of the inputs, or the wait for them.
    copies: [Event; 2],
    /// Page-locked staging memory for inputs: `[buffer][images, labels]`.
    pinned: [[Option<PinnedBuffer>; 2]; 2],
    /// The run launched last.
    launched: Option<GraphKey>,
    /// True from the launch of a program until it has ended.
    is_running: bool,
    /// The group that it has joined, until it is decided whether the group sums.
    membership: Option<(NcclGroup, DeviceGroup)>,
    /// The exchange with other workers, if there are any.
    exchange: Option<Exchange<GpuQueues>>,
}

/// The key of a captured CUDA graph.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct GraphKey {
    program: usize,
    /// The buffer with its inputs.
    buffer: usize,
    /// True if its steps are timed.
    timed: bool,
}

/// The state of a program that has run before.
#[derive(Default)]
struct ProgramState {
    graph: Option<CapturedGraph>,
    /// The timestamps of its kernels, if steps are timed.
    times: Option<Times>,
    enqueued: RecordedSteps,
    /// The number of failed captures.
    failed_captures: u32,
}

/// The timestamps of kernels in GPU memory, and page-locked memory to which they are copied.
struct Times {
    words: DeviceMemory,
    copy: PinnedBuffer,
}

impl Times {
    fn new(gpu: &Arc<Gpu>, steps: usize) -> Result<Self, String> {
        let bytes = words(steps) * size_of::<u64>();
        Ok(Self { words: DeviceMemory::zeroed(gpu, bytes)?, copy: PinnedBuffer::new(gpu, bytes)? })
    }
}

/// The number of failed captures of a program after which the next failure is an error.
const MAX_FAILED_CAPTURES: u32 = 3;

impl GpuDevice {
    /// Creates a device without memory.
    ///
    /// # Errors
    /// The driver's error message.
    pub fn new(
        gpu: &Arc<Gpu>,
        clock: &Arc<StepClock>,
        processor: &Arc<dyn Processor>,
    ) -> Result<Self, String> {
        let copies = [Event::new(gpu)?, Event::new(gpu)?];
        Ok(Self {
            gpu: Arc::clone(gpu),
            clock: Arc::clone(clock),
            processor: Arc::clone(processor),
            memory: Vec::new(),
            programs: HashMap::new(),
            copies,
            pinned: Default::default(),
            launched: None,
            is_running: false,
            membership: None,
            exchange: None,
        })
    }

    /// The exchange with other workers, which is created first if there is none.
    fn exchange(&mut self) -> Result<&mut Exchange<GpuQueues>, String> {
        Ok(match &mut self.exchange {
            Some(exchange) => exchange,
            none => none.insert(Exchange::new(GpuQueues::new(&self.gpu)?, &self.clock)?),
        })
    }

    fn failed(&self, reason: String) -> EngineError {
        EngineError::Device { device: self.gpu.name.clone(), reason }
    }

    /// Starts copying bytes to the device, in the copy stream.
    fn send(&mut self, buffer: usize, slot: usize, address: u64, bytes: &[u8]) -> Result<(), EngineError> {
        let failed = |reason: String| EngineError::Device { device: self.gpu.name.clone(), reason };
        let pinned = &mut self.pinned[buffer][slot];
        if pinned.as_ref().is_none_or(|pinned| pinned.bytes() < bytes.len()) {
            *pinned = Some(PinnedBuffer::new(&self.gpu, bytes.len()).map_err(failed)?);
        }
        let Some(pinned) = pinned else { return Ok(()) };
        let memory = containing(&self.memory, address).map_err(failed)?;
        pinned.send(bytes, memory, address).map_err(failed)
    }
}

impl Drop for GpuDevice {
    fn drop(&mut self) {
        if let Some(exchange) = &self.exchange {
            if self.is_running {
                // Other devices may never answer.
                exchange.abandon();
            }
            // The memory that it copies is freed next.
            if exchange.synchronise().is_err() {
                exchange.abandon();
            }
        }
    }
}

/// The allocation that contains an address.
fn containing(memory: &[DeviceMemory], address: u64) -> Result<&DeviceMemory, String> {
    let found = memory.iter().find(|memory| memory.contains(address));
    found.ok_or_else(|| "address outside of the session's allocations".to_owned())
}

/// Records the ends of steps, if they are timed.
struct GpuStepTimer<'a>(Option<&'a StepClock>);

impl StepTimer for GpuStepTimer<'_> {
    fn end_step(&mut self, slot: usize) -> Result<(), EngineError> {
        if let Some(clock) = self.0 {
            clock.end_step(slot);
        }
        Ok(())
    }
}

impl ProgramState {
    /// Enqueues `steps` steps, timed if `clock` is given, and the end of the exchange.
    fn enqueue(
        &mut self,
        clock: Option<&StepClock>,
        exchange: Option<&Exchange<GpuQueues>>,
        steps: usize,
        enqueue: &mut dyn FnMut(&mut dyn StepTimer) -> Result<(), EngineError>,
    ) -> Result<(), CaptureError> {
        if let (Some(clock), Some(times)) = (clock, &self.times) {
            clock.begin(times.words.address(), steps, self.enqueued.ends.clone());
        }
        if let Some(exchange) = exchange {
            exchange.begin();
        }
        let enqueued = enqueue(&mut GpuStepTimer(clock)).map_err(CaptureError);
        let joined = exchange.map_or(Ok(()), Exchange::join);
        if let Some(clock) = clock {
            match enqueued {
                Ok(()) => self.enqueued = clock.end()?,
                Err(_) => clock.cancel(),
            }
        }
        enqueued.and_then(|()| Ok(joined?))
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
    fn allocate(&mut self, bytes: usize, purpose: &'static str) -> Result<u64, EngineError> {
        let memory = DeviceMemory::zeroed(&self.gpu, bytes).map_err(|_| EngineError::OutOfMemory {
            purpose: format!("{purpose} on {}", self.gpu.name),
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

    fn join_group(&mut self, group: &DeviceGroup) -> Result<(), EngineError> {
        let membership = NcclGroup::join(&self.gpu, group).map_err(|reason| self.failed(reason))?;
        self.membership = Some((membership, group.clone()));
        Ok(())
    }

    fn sum_directly(&mut self, bucket_bytes: Option<usize>) -> Result<usize, EngineError> {
        let membership = self.membership.take();
        let Some(bucket_bytes) = bucket_bytes else { return Ok(0) };
        let (group, membership) =
            membership.ok_or_else(|| self.failed("it has joined no group".to_owned()))?;
        let bytes = direct_sum_bytes(bucket_bytes);
        let memory = self.allocate(bytes, "sums between GPUs")?;
        let processor = Arc::clone(&self.processor);
        let join = |exchange: &mut Exchange<GpuQueues>| {
            exchange.sum_directly(processor.as_ref(), (group, &membership), [memory, bucket_bytes as u64])
        };
        self.exchange().and_then(join).map_err(|reason| self.failed(reason))?;
        Ok(bytes)
    }

    fn exchange_kernel(
        &mut self,
        step: ExchangeStep,
        exchange: &Arc<dyn Communicator>,
    ) -> Result<Box<dyn StepKernel>, EngineError> {
        let kernel = self.exchange().and_then(|kernels| kernels.kernel(step, exchange));
        kernel.map_err(|reason| self.failed(reason))
    }

    fn launch(&mut self, run: ProgramRun<'_>) -> Result<(), EngineError> {
        let ProgramRun { program, buffer, is_staged, inputs, timed, steps, enqueue } = run;
        let gpu = Arc::clone(&self.gpu);
        let failed = |reason: String| EngineError::Device { device: gpu.name.clone(), reason };
        if timed {
            self.copies[0].record().map_err(failed)?;
        }
        let has_inputs = inputs.iter().any(|(_, bytes)| !bytes.is_empty());
        self.stage(buffer, inputs)?;
        if has_inputs || is_staged {
            for pinned in self.pinned[buffer].iter().flatten() {
                pinned.await_copy().map_err(failed)?;
            }
        }
        if timed {
            self.copies[1].record().map_err(failed)?;
        }
        self.is_running = true;
        let key = GraphKey { program, buffer, timed };
        let first = !self.programs.contains_key(&key);
        let state = self.programs.entry(key).or_default();
        let clock = timed.then_some(&*self.clock);
        let exchange = self.exchange.as_ref();
        if timed && state.times.is_none() {
            state.times = Some(Times::new(&gpu, steps).map_err(failed)?);
        }
        if state.graph.is_none() {
            let graph = match first {
                true => None,
                false => {
                    match CapturedGraph::capture(&gpu, || state.enqueue(clock, exchange, steps, enqueue)) {
                        Ok(graph) => Some(graph),
                        Err(CaptureError(error)) if state.failed_captures == MAX_FAILED_CAPTURES => {
                            return Err(error);
                        }
                        Err(_) => {
                            state.failed_captures += 1;
                            None
                        }
                    }
                }
            };
            match graph {
                Some(graph) => state.graph = Some(graph),
                None => {
                    state.enqueue(clock, exchange, steps, enqueue).map_err(|CaptureError(error)| error)?;
                }
            }
        }
        if let Some(graph) = &state.graph {
            graph.launch().map_err(failed)?;
        }
        if let Some(Times { words, copy }) = &mut state.times {
            copy.receive(words).map_err(failed)?;
        }
        self.launched = Some(key);
        Ok(())
    }

    fn finish(&mut self, time: &mut dyn FnMut(usize, u64)) -> Result<RunTimes, EngineError> {
        let failed = |reason: String| EngineError::Device { device: self.gpu.name.clone(), reason };
        self.gpu.wait().map_err(failed)?;
        self.is_running = false;
        self.exchange.as_ref().map_or(Ok(()), Exchange::check).map_err(EngineError::Exchange)?;
        let Some(key) = self.launched.take().filter(|key| key.timed) else {
            return Ok(RunTimes::default());
        };
        let Some(state) = self.programs.get(&key) else { return Ok(RunTimes::default()) };
        if let Some(times) = &state.times {
            state.enqueued.times(times.copy.received().map_err(failed)?, time);
        }
        Ok(RunTimes { copy_nanos: self.copies[1].since(&self.copies[0]).map_err(failed)? })
    }

    fn timing_overhead(&self, program: usize) -> Option<[usize; 2]> {
        let overhead = |(key, state): (&GraphKey, &ProgramState)| {
            let is_recorded = key.program == program && key.timed && state.graph.is_some();
            is_recorded.then(|| [state.enqueued.steps(), state.enqueued.markers])
        };
        self.programs.iter().find_map(overhead)
    }

    fn wait(&self) -> Result<(), EngineError> {
        self.gpu.wait().map_err(|reason| self.failed(reason))
    }
}
