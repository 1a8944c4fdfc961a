//! Sums that the devices of several workers compute directly, without the memory of their processes.
//!
//! ```text
//! kernels    gradients 0 ┬ gradients 1 ┬ …                    ┬ wait 0 ─ updates …
//! sums                   └ pack, exchange, add, …, unpack 0   └ pack, …
//! ```
//!
//! A bucket's values are packed into one range of device memory. The exact sum follows the schedule of the
//! processes ([`Halving`]), with messages between devices and the additions in kernels of our own: the same
//! bits. All buckets use the same memory, one after the other.

use super::{Bucket, DeviceRange, ExchangeFailure, Group, Queue, Queues, addresses};
use crate::processor::{Function, Processor, Shape, Source};
use std::ops::Range;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::sync::{Arc, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;
use stratus_engine::DType;
use stratus_engine::backend::{Operands, StepKernel};
use stratus_engine::exchange::{ALIGNED_UNIT, DeviceGroup, Halving, Round};
use stratus_engine::ops::SumMethod;

/// The alignment of messages in bytes, with which they are fastest.
const ALIGNMENT: usize = 16;
/// Threads of a block of a kernel.
const THREADS: usize = 256;
/// Blocks of a kernel for each multiprocessor: few, since the backward pass uses the GPU too.
const BLOCKS_PER_MULTIPROCESSOR: usize = 2;
/// The time between two checks whether the group has failed.
const CHECK_INTERVAL: Duration = Duration::from_millis(500);

/// The bytes of a GPU's memory for direct sums of buckets of up to `bucket_bytes`.
#[must_use]
pub fn direct_sum_bytes(bucket_bytes: usize) -> usize {
    // Half of the values, or all of them as bf16; each part is rounded up to a unit.
    let scratch = bucket_bytes.div_ceil(2) + 4 * ALIGNED_UNIT * size_of::<f64>();
    padded(bucket_bytes) + padded(scratch)
}

/// The membership of a device in a group, and its memory and kernels for sums.
pub(crate) struct DirectSums<Q: Queues> {
    queues: Arc<Q>,
    group: Arc<Q::Group>,
    rank: usize,
    size: usize,
    /// The address of the packed values of a bucket.
    packed: u64,
    /// The address of values that were received, or of rounded values to send and those received.
    scratch: u64,
    kernels: SumKernels,
    failure: Arc<ExchangeFailure>,
    _watch: Watch,
}

/// The kernels of `exchange.cu`.
struct SumKernels {
    add_f32: Function,
    add_f64: Function,
    add_rounded: Function,
    round: Function,
    widen: Function,
    max_blocks: usize,
}

impl SumKernels {
    fn new(processor: &dyn Processor) -> Result<Self, String> {
        let source = |dtype| Source::of_text("exchange", include_str!("../source/exchange.cu"), dtype, 1);
        let (single, double) = (source(DType::F32), source(DType::F64));
        Ok(Self {
            add_f32: processor.function(&single, "add_received")?,
            add_f64: processor.function(&double, "add_received")?,
            add_rounded: processor.function(&single, "add_rounded")?,
            round: processor.function(&single, "round_values")?,
            widen: processor.function(&single, "widen_values")?,
            max_blocks: BLOCKS_PER_MULTIPROCESSOR * processor.multiprocessors().max(1) as usize,
        })
    }
}

impl<Q: Queues> DirectSums<Q> {
    /// The sums of a device that has joined a group. `memory` is the address of
    /// [`direct_sum_bytes`] bytes, aligned to 256.
    ///
    /// # Errors
    /// The compiler's error message.
    pub fn new(
        queues: &Arc<Q>,
        processor: &dyn Processor,
        (group, DeviceGroup { rank, size, .. }): (Q::Group, &DeviceGroup),
        [memory, bucket_bytes]: [u64; 2],
        failure: &Arc<ExchangeFailure>,
    ) -> Result<Self, String> {
        let group = Arc::new(group);
        Ok(Self {
            queues: Arc::clone(queues),
            rank: *rank,
            size: *size,
            packed: memory,
            scratch: memory + padded(bucket_bytes as usize) as u64,
            kernels: SumKernels::new(processor)?,
            failure: Arc::clone(failure),
            _watch: Watch::start(&group, failure)?,
            group,
        })
    }

    /// Returns whether the group still works.
    ///
    /// # Errors
    /// The error of the group.
    pub fn check(&self) -> Result<(), String> {
        self.group.check()
    }

    /// Ends the work in the queue that other devices will not answer.
    pub fn abandon(&self, reason: &str) {
        self.group.fail(reason);
    }

    /// Sums `count` packed values over the group.
    fn sum(&self, count: usize, dtype: DType, method: SumMethod) -> Result<(), String> {
        match method {
            SumMethod { as_bf16: false, any_order: false } => self.sum_along_tree(count, dtype),
            SumMethod { as_bf16: true, any_order: false } => self.sum_rounded(count),
            SumMethod { as_bf16: false, any_order: true } => {
                self.all_reduce(range(self.packed, 0..count, dtype.bytes()), dtype)
            }
            SumMethod { as_bf16: true, any_order: true } => {
                self.launch(self.kernels.round, count, [self.packed, self.scratch])?;
                self.all_reduce(range(self.scratch, 0..count, DType::Bf16.bytes()), DType::Bf16)?;
                self.launch(self.kernels.widen, count, [self.scratch, self.packed])
            }
        }
    }

    fn schedule(&self, length: usize) -> Halving {
        Halving { length, rank: self.rank, size: self.size, unit: ALIGNED_UNIT }
    }

    fn sum_along_tree(&self, count: usize, dtype: DType) -> Result<(), String> {
        let (schedule, bytes) = (self.schedule(count), dtype.bytes());
        let add = if dtype == DType::F64 { self.kernels.add_f64 } else { self.kernels.add_f32 };
        for round in 0..schedule.rounds() {
            let Round { peer, send, receive } = schedule.reduce(round);
            let received = range(self.scratch, 0..receive.len(), bytes);
            self.exchange(peer, range(self.packed, send, bytes), received)?;
            let sums = range(self.packed, receive.clone(), bytes).address;
            self.launch(add, receive.len(), [sums, self.scratch])?;
        }
        for round in (0..schedule.rounds()).rev() {
            let Round { peer, send, receive } = schedule.gather(round);
            self.exchange(peer, range(self.packed, send, bytes), range(self.packed, receive, bytes))?;
        }
        Ok(())
    }

    /// As [`sum_along_tree`](Self::sum_along_tree), with messages in bf16. Each device rounds the sums that
    /// it has itself as the others receive them.
    fn sum_rounded(&self, count: usize) -> Result<(), String> {
        if self.size < 2 {
            return Ok(());
        }
        let schedule = self.schedule(count);
        let [single, half] = [DType::F32, DType::Bf16].map(DType::bytes);
        let received = self.scratch + (schedule.max_sent() * half).next_multiple_of(ALIGNMENT) as u64;
        let values = |positions: &Range<usize>| range(self.packed, positions.clone(), single).address;
        let exchange = |Round { peer, send, receive }: &Round| -> Result<(), String> {
            self.launch(self.kernels.round, send.len(), [values(send), self.scratch])?;
            let sent = range(self.scratch, 0..send.len(), half);
            self.exchange(*peer, sent, range(received, 0..receive.len(), half))
        };
        for round in 0..schedule.rounds() {
            let round = schedule.reduce(round);
            exchange(&round)?;
            self.launch(self.kernels.add_rounded, round.receive.len(), [values(&round.receive), received])?;
        }
        let own = schedule.own_range();
        self.launch(self.kernels.round, own.len(), [values(&own), self.scratch])?;
        self.launch(self.kernels.widen, own.len(), [self.scratch, values(&own)])?;
        for round in (0..schedule.rounds()).rev() {
            let round = schedule.gather(round);
            exchange(&round)?;
            self.launch(self.kernels.widen, round.receive.len(), [received, values(&round.receive)])?;
        }
        Ok(())
    }

    fn exchange(&self, peer: usize, send: DeviceRange, receive: DeviceRange) -> Result<(), String> {
        match send.bytes + receive.bytes {
            0 => Ok(()),
            _ => self.noted(self.queues.send_receive(Queue::Sums, &self.group, peer, send, receive)),
        }
    }

    fn all_reduce(&self, values: DeviceRange, dtype: DType) -> Result<(), String> {
        match values.bytes {
            0 => Ok(()),
            _ => self.noted(self.queues.all_reduce(Queue::Sums, &self.group, values, dtype)),
        }
    }

    /// Notes an error of the group's library as the failure of the exchange: another worker may be lost
    /// before [`Self::check`] knows it.
    fn noted(&self, enqueued: Result<(), String>) -> Result<(), String> {
        enqueued.inspect_err(|reason| self.failure.set(reason.clone()))
    }

    /// Launches a kernel on `count` values at two addresses. It records no timestamps, since it is not part
    /// of a step.
    fn launch(&self, function: Function, count: usize, [first, second]: [u64; 2]) -> Result<(), String> {
        if count == 0 {
            return Ok(());
        }
        let blocks = count.div_ceil(THREADS).min(self.kernels.max_blocks);
        let shape = Shape { grid: [blocks as u32, 1, 1], block: [THREADS as u32, 1, 1], shared: 0 };
        self.queues.launch(Queue::Sums, function, shape, vec![first, second, count as u64, 0, 0])
    }
}

/// The device memory of values at positions from an address on.
fn range(address: u64, positions: Range<usize>, bytes: usize) -> DeviceRange {
    DeviceRange { address: address + (positions.start * bytes) as u64, bytes: positions.len() * bytes }
}

fn padded(bytes: usize) -> usize {
    bytes.next_multiple_of(256)
}

/// Starts the sum of a bucket on the device. The sums replace the values.
pub(super) struct StartDirectSum<Q: Queues> {
    pub direct: Arc<DirectSums<Q>>,
    /// The bytes of each value.
    pub value_bytes: Vec<usize>,
    pub dtype: DType,
    pub method: SumMethod,
    /// The values are computed.
    pub computed: Q::Event,
    pub bucket: Arc<Bucket<Q>>,
}

impl<Q: Queues> StartDirectSum<Q> {
    fn enqueue(&self, operands: &Operands<'_>) -> Result<(), String> {
        let DirectSums { queues, packed, .. } = self.direct.as_ref();
        let mut end = *packed;
        let mut slots = [(0, 0, 0); stratus_engine::ops::MAX_BUCKET_VALUES];
        for ((position, &bytes), slot) in self.value_bytes.iter().enumerate().zip(&mut slots) {
            *slot = (operands.address(position), end, bytes);
            end += bytes as u64;
        }
        let values = || slots.iter().filter(|(.., bytes)| *bytes > 0);
        values().try_for_each(|&(value, slot, bytes)| queues.copy_within(Queue::Sums, value, slot, bytes))?;
        let count = (end - packed) as usize / self.dtype.bytes();
        self.direct.sum(count, self.dtype, self.method)?;
        values().try_for_each(|&(value, slot, bytes)| queues.copy_within(Queue::Sums, slot, value, bytes))
    }
}

impl<Q: Queues> StepKernel for StartDirectSum<Q> {
    fn run(&mut self, operands: &mut Operands<'_>) -> Result<(), String> {
        let queues = self.direct.queues.as_ref();
        *self.bucket.addresses.lock().unwrap_or_else(PoisonError::into_inner) = addresses(operands);
        queues.record(&self.computed, Queue::Kernels)?;
        queues.wait(Queue::Sums, &self.computed)?;
        if let Err(reason) = self.enqueue(operands) {
            // If the exchange failed, the program runs to its end, which reports it.
            let DirectSums { failure, .. } = self.direct.as_ref();
            match failure.check().and_then(|()| self.direct.check()) {
                Err(lost) => failure.set(lost),
                Ok(()) => return Err(reason),
            }
        }
        queues.record(&self.bucket.done, Queue::Sums)
    }
}

/// A thread that looks for errors of a group, since a device would wait forever for one that is lost.
struct Watch {
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Watch {
    fn start<G: Group>(group: &Arc<G>, failure: &Arc<ExchangeFailure>) -> Result<Self, String> {
        let (stop, stopped) = channel();
        let (group, failure) = (Arc::clone(group), Arc::clone(failure));
        let watch = move || {
            while matches!(stopped.recv_timeout(CHECK_INTERVAL), Err(RecvTimeoutError::Timeout)) {
                if let Err(reason) = group.check() {
                    failure.set(reason.clone());
                    group.fail(&reason);
                    return;
                }
            }
        };
        let thread = std::thread::Builder::new().name("group".to_owned()).spawn(watch);
        Ok(Self { stop: Some(stop), thread: Some(thread.map_err(|error| error.to_string())?) })
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
