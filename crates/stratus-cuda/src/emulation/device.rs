//! The device of the emulation: its memory is the process's, and work runs at once instead of being enqueued.
//! Its clock counts how often it was read; step times are those recorded by the kernels.

use super::group::EmulatedGroup;
use super::queues::EmulatedQueues;
use crate::exchange::{Exchange, direct_sum_bytes};
use crate::processor::Processor;
use crate::step_clock::StepClock;
use crate::timestamps::{RecordedSteps, words};
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Instant;
use stratus_engine::EngineError;
use stratus_engine::backend::StepKernel;
use stratus_engine::device::{Device, ProgramRun, RunTimes, StepTimer};
use stratus_engine::exchange::{Communicator, DeviceGroup, ExchangeStep};

/// Alignment of allocations in bytes.
const ALIGNMENT: usize = 256;

/// The emulated GPU's memory, and the times of its last run.
pub(crate) struct EmulatedDevice {
    clock: Arc<StepClock>,
    /// Runs the kernels of the other queues.
    processor: Arc<dyn Processor>,
    allocations: Vec<Allocation>,
    /// The nanoseconds of the last run's copies.
    copies: u64,
    /// The steps last recorded for each program and buffer.
    enqueued: HashMap<[usize; 2], RecordedSteps>,
    /// The last run, if its steps were timed.
    timed: Option<[usize; 2]>,
    /// The timestamps that the kernels of the last run wrote.
    words: Vec<u64>,
    /// The number of program runs after which the GPU is lost.
    fails_after: Option<u64>,
    /// True if the other queues run as late as possible.
    late_queues: bool,
    /// The group that it has joined, until it is decided whether the group sums.
    membership: Option<(EmulatedGroup, DeviceGroup)>,
    /// The exchange with other workers, if there are any.
    exchange: Option<Exchange<EmulatedQueues>>,
}

struct Allocation {
    memory: Vec<u8>,
    start: usize,
    bytes: usize,
}

fn failed(reason: String) -> EngineError {
    EngineError::Device { device: "the emulation".to_owned(), reason }
}

impl Allocation {
    fn address(&self) -> u64 {
        self.memory[self.start..].as_ptr().expose_provenance() as u64
    }

    /// The index in `memory` of a range of addresses, if this allocation contains it.
    fn position(&self, address: u64, bytes: usize) -> Option<usize> {
        let inside = usize::try_from(address.checked_sub(self.address())?).ok()?;
        (inside.checked_add(bytes)? <= self.bytes).then_some(self.start + inside)
    }
}

impl EmulatedDevice {
    /// Creates a device without memory. The queues beside its kernels run at once, or with `late_queues` as
    /// late as possible.
    pub fn new(clock: &Arc<StepClock>, processor: &Arc<dyn Processor>, late_queues: bool) -> Self {
        Self {
            clock: Arc::clone(clock),
            processor: Arc::clone(processor),
            allocations: Vec::new(),
            copies: 0,
            enqueued: HashMap::new(),
            timed: None,
            words: Vec::new(),
            fails_after: fails_after(),
            late_queues,
            membership: None,
            exchange: None,
        }
    }

    /// The exchange with other workers, which is created first if there is none.
    fn exchange(&mut self) -> Result<&mut Exchange<EmulatedQueues>, String> {
        Ok(match &mut self.exchange {
            Some(exchange) => exchange,
            none => {
                let queues = EmulatedQueues::new(self.late_queues, &self.processor);
                none.insert(Exchange::new(queues, &self.clock)?)
            }
        })
    }

    /// Runs the steps of a program, and what the other queues still have to do.
    fn run(
        &self,
        enqueue: &mut dyn FnMut(&mut dyn StepTimer) -> Result<(), EngineError>,
        timer: &mut dyn StepTimer,
    ) -> Result<(), EngineError> {
        if let Some(exchange) = &self.exchange {
            exchange.begin();
        }
        enqueue(timer)?;
        self.exchange.as_ref().map_or(Ok(()), Exchange::join).map_err(failed)
    }

    /// Writes bytes, if there are any.
    fn write_any(&mut self, address: u64, bytes: &[u8]) -> Result<(), EngineError> {
        if bytes.is_empty() { Ok(()) } else { self.write(address, bytes) }
    }

    /// The allocation that contains a range of addresses, and the index there.
    fn find(&self, address: u64, bytes: usize) -> Result<(usize, usize), EngineError> {
        let mut allocations = self.allocations.iter().enumerate();
        allocations
            .find_map(|(number, allocation)| Some((number, allocation.position(address, bytes)?)))
            .ok_or_else(|| failed(format!("no allocation has {bytes} bytes at {address:#x}")))
    }
}

impl Device for EmulatedDevice {
    fn allocate(&mut self, bytes: usize, purpose: &'static str) -> Result<u64, EngineError> {
        let out_of_memory = || EngineError::OutOfMemory { purpose: purpose.to_owned(), bytes, free: None };
        let padded = bytes.checked_add(ALIGNMENT).ok_or_else(out_of_memory)?;
        let memory = vec![0_u8; padded];
        let start = memory.as_ptr().align_offset(ALIGNMENT);
        let allocation = Allocation { memory, start, bytes };
        let address = allocation.address();
        self.allocations.push(allocation);
        Ok(address)
    }

    fn write(&mut self, address: u64, bytes: &[u8]) -> Result<(), EngineError> {
        let (number, start) = self.find(address, bytes.len())?;
        self.allocations[number].memory[start..start + bytes.len()].copy_from_slice(bytes);
        Ok(())
    }

    fn read(&self, address: u64, bytes: &mut [u8]) -> Result<(), EngineError> {
        let (number, start) = self.find(address, bytes.len())?;
        bytes.copy_from_slice(&self.allocations[number].memory[start..start + bytes.len()]);
        Ok(())
    }

    fn stage(&mut self, _buffer: usize, inputs: [(u64, &[u8]); 2]) -> Result<(), EngineError> {
        inputs.into_iter().try_for_each(|(address, bytes)| self.write_any(address, bytes))
    }

    fn join_group(&mut self, group: &DeviceGroup) -> Result<(), EngineError> {
        let membership = EmulatedGroup::join(group).map_err(failed)?;
        self.membership = Some((membership, group.clone()));
        Ok(())
    }

    fn sum_directly(&mut self, bucket_bytes: Option<usize>) -> Result<usize, EngineError> {
        let membership = self.membership.take();
        let Some(bucket_bytes) = bucket_bytes else { return Ok(0) };
        let (group, membership) = membership.ok_or_else(|| failed("it has joined no group".to_owned()))?;
        let bytes = direct_sum_bytes(bucket_bytes);
        let memory = self.allocate(bytes, "sums between GPUs")?;
        let processor = Arc::clone(&self.processor);
        let join = |exchange: &mut Exchange<EmulatedQueues>| {
            exchange.sum_directly(processor.as_ref(), (group, &membership), [memory, bucket_bytes as u64])
        };
        self.exchange().and_then(join).map_err(failed)?;
        Ok(bytes)
    }

    fn exchange_kernel(
        &mut self,
        step: ExchangeStep,
        exchange: &Arc<dyn Communicator>,
    ) -> Result<Box<dyn StepKernel>, EngineError> {
        self.exchange().and_then(|kernels| kernels.kernel(step, exchange)).map_err(failed)
    }

    fn launch(&mut self, run: ProgramRun<'_>) -> Result<(), EngineError> {
        let begin = Instant::now();
        run.inputs.into_iter().try_for_each(|(address, bytes)| self.write_any(address, bytes))?;
        self.copies = nanoseconds(begin);
        let key = [run.program, run.buffer];
        self.timed = None;
        if !run.timed {
            return self.run(run.enqueue, &mut UntimedSteps);
        }
        self.words = vec![0; words(run.steps)];
        let address = self.words.as_mut_ptr().expose_provenance() as u64;
        let ends = self.enqueued.get(&key).map(|before| before.ends.clone()).unwrap_or_default();
        self.clock.begin(address, run.steps, ends);
        if let Err(error) = self.run(run.enqueue, &mut TimedSteps(&self.clock)) {
            self.clock.cancel();
            return Err(error);
        }
        self.enqueued.insert(key, self.clock.end().map_err(failed)?);
        self.timed = Some(key);
        Ok(())
    }

    fn finish(&mut self, time: &mut dyn FnMut(usize, u64)) -> Result<RunTimes, EngineError> {
        if let Some(left) = &mut self.fails_after {
            *left = left.checked_sub(1).ok_or_else(|| failed("the GPU is lost".to_owned()))?;
        }
        self.exchange.as_ref().map_or(Ok(()), Exchange::check).map_err(EngineError::Exchange)?;
        if let Some(enqueued) = self.timed.take().and_then(|key| self.enqueued.get(&key)) {
            enqueued.times(std::hint::black_box(&self.words), time);
        }
        Ok(RunTimes { copy_nanos: self.copies })
    }

    fn timing_overhead(&self, program: usize) -> Option<[usize; 2]> {
        let overhead = |(key, enqueued): (&[usize; 2], &RecordedSteps)| {
            (key[0] == program).then(|| [enqueued.steps(), enqueued.markers])
        };
        self.enqueued.iter().find_map(overhead)
    }

    fn wait(&self) -> Result<(), EngineError> {
        Ok(())
    }
}

/// The number of program runs after which this worker's GPU is lost, from `STRATUS_EMULATED_GPU_FAILURE`,
/// which is `RANK:RUNS`, or `all:RUNS`.
fn fails_after() -> Option<u64> {
    let failure = std::env::var("STRATUS_EMULATED_GPU_FAILURE").ok()?;
    let (rank, runs) = failure.split_once(':')?;
    let own = std::env::var("PMI_RANK").unwrap_or_else(|_| "0".to_owned());
    (own == rank || rank == "all").then(|| runs.parse().ok())?
}

fn nanoseconds(since: Instant) -> u64 {
    u64::try_from(since.elapsed().as_nanos()).unwrap_or(u64::MAX)
}

/// Times the ends of steps.
struct TimedSteps<'a>(&'a StepClock);

impl StepTimer for TimedSteps<'_> {
    fn end_step(&mut self, slot: usize) -> Result<(), EngineError> {
        self.0.end_step(slot);
        Ok(())
    }
}

/// Ignores the ends of steps.
struct UntimedSteps;

impl StepTimer for UntimedSteps {
    fn end_step(&mut self, _slot: usize) -> Result<(), EngineError> {
        Ok(())
    }
}
