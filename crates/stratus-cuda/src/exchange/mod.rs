//! Communication between workers whose values are in GPU memory: through host memory, or for sums
//! directly (`direct`).
//!
//! Through host memory, two queues run beside the kernels. Values are copied to pinned host memory, the
//! process exchanges them, and the result is copied back:
//!
//! ```text
//! kernels    gradients 0 ┬ gradients 1 ┬ …              ┬ wait 0 ─ updates …
//! outgoing               └ copy, start └ copy, start    │
//! incoming                    └ wait, copy 0   └ wait, copy 1 …
//! ```
//!
//! The process's part is a host function in a stream ([`HostFunction`]), so that CUDA graphs contain it. The
//! driver may run the host functions of all streams in one thread, in any order that the streams allow. One
//! that waits for another worker therefore follows all earlier ones that another worker may wait for.

mod direct;

pub use direct::direct_sum_bytes;

use crate::processor::{Function, Processor, Shape};
use crate::step_clock::StepClock;
use direct::{DirectSums, StartDirectSum};
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, PoisonError};
use stratus_engine::DType;
use stratus_engine::backend::{Operands, StepKernel};
use stratus_engine::exchange::{Communicator, DeviceGroup, ExchangeAction, ExchangeStep};
use stratus_engine::ops::MAX_BUCKET_VALUES;

/// A queue of a device: on a GPU, a stream. Each runs its work in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Queue {
    /// The kernels.
    Kernels,
    /// Copies to the host, and host functions that start an exchange.
    Outgoing,
    /// Host functions that wait for an exchange, and copies to the device.
    Incoming,
    /// Sums that devices compute directly.
    Sums,
}

/// A range of device memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DeviceRange {
    /// Its address.
    pub address: u64,
    /// Its length in bytes.
    pub bytes: usize,
}

/// The membership of a device in a group of devices that exchange values directly.
pub(crate) trait Group: Send + Sync + 'static {
    /// Returns whether the group still works.
    ///
    /// # Errors
    /// The first error.
    fn check(&self) -> Result<(), String>;

    /// Gives the group up, unless it already failed: work in queues that waits for other devices ends.
    fn fail(&self, reason: &str);
}

/// Pinned host memory, which the device can copy from and to.
pub(crate) trait Staging: Send + Sync + 'static {
    /// Calls a function with the bytes.
    fn with_bytes(&self, function: &mut dyn FnMut(&mut [u8]));
}

/// The queues of a device.
pub(crate) trait Queues: Send + Sync + 'static {
    /// An event: a point in a queue.
    type Event: Send + Sync;
    /// Pinned host memory.
    type Staging: Staging;
    /// The membership of the device in a group.
    type Group: Group;

    /// Creates an event, which is not recorded yet.
    ///
    /// # Errors
    /// The driver's error message.
    fn event(&self) -> Result<Self::Event, String>;

    /// Allocates pinned host memory.
    ///
    /// # Errors
    /// The driver's error message.
    fn staging(&self, bytes: usize) -> Result<Self::Staging, String>;

    /// Records an event at the present end of a queue.
    ///
    /// # Errors
    /// The driver's error message.
    fn record(&self, event: &Self::Event, queue: Queue) -> Result<(), String>;

    /// Lets a queue wait for an event.
    ///
    /// # Errors
    /// The driver's error message.
    fn wait(&self, queue: Queue, event: &Self::Event) -> Result<(), String>;

    /// Copies the value at a device address to a range of host memory.
    ///
    /// # Errors
    /// The driver's error message.
    fn copy_out(
        &self,
        queue: Queue,
        address: u64,
        to: &Arc<Self::Staging>,
        range: Range<usize>,
    ) -> Result<(), String>;

    /// Copies a range of host memory to the value at a device address.
    ///
    /// # Errors
    /// The driver's error message.
    fn copy_in(
        &self,
        queue: Queue,
        from: &Arc<Self::Staging>,
        range: Range<usize>,
        address: u64,
    ) -> Result<(), String>;

    /// Copies bytes from a device address to another.
    ///
    /// # Errors
    /// The driver's error message.
    fn copy_within(&self, queue: Queue, from: u64, to: u64, bytes: usize) -> Result<(), String>;

    /// Launches a kernel. Each of `arguments` is a word that holds a parameter in its first bytes.
    ///
    /// # Errors
    /// The driver's error message.
    fn launch(
        &self,
        queue: Queue,
        function: Function,
        shape: Shape,
        arguments: Vec<u64>,
    ) -> Result<(), String>;

    /// Sends bytes to another device of a group, and receives bytes from it at the same time.
    ///
    /// # Errors
    /// The library's error message.
    fn send_receive(
        &self,
        queue: Queue,
        group: &Arc<Self::Group>,
        peer: usize,
        send: DeviceRange,
        receive: DeviceRange,
    ) -> Result<(), String>;

    /// Sums values over a group in place, in any order.
    ///
    /// # Errors
    /// The library's error message.
    fn all_reduce(
        &self,
        queue: Queue,
        group: &Arc<Self::Group>,
        values: DeviceRange,
        dtype: DType,
    ) -> Result<(), String>;

    /// Enqueues a host function.
    ///
    /// # Errors
    /// The driver's error message.
    fn call(&self, queue: Queue, call: &Arc<HostFunction>) -> Result<(), String>;

    /// Returns whether the present program uses a queue, so that [`Exchange::join`] must wait for it.
    fn is_in_use(&self, queue: Queue) -> bool;

    /// Starts a program: no queue is in use.
    fn begin(&self);

    /// Waits until the queues are empty.
    ///
    /// # Errors
    /// The driver's error message.
    fn synchronise(&self) -> Result<(), String>;
}

/// The first error of an exchange. Later host functions do nothing; the device reports it at the end of the
/// program.
#[derive(Debug, Default)]
pub(crate) struct ExchangeFailure(Mutex<Option<String>>);

impl ExchangeFailure {
    /// Returns the error, if there is one.
    ///
    /// # Errors
    /// That error.
    pub fn check(&self) -> Result<(), String> {
        let reason = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        reason.as_ref().map_or(Ok(()), |reason| Err(reason.clone()))
    }

    fn set(&self, reason: String) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(reason);
    }
}

/// A host function in a queue.
pub(crate) struct HostFunction(Box<dyn Fn() + Send + Sync>);

impl HostFunction {
    /// Runs it. It does not panic.
    pub fn run(&self) {
        (self.0)();
    }

    /// The host function that performs a step on the values in `staging`.
    fn new<S: Staging>(
        step: ExchangeStep,
        more: bool,
        exchange: &Arc<dyn Communicator>,
        staging: &Arc<S>,
        failure: &Arc<ExchangeFailure>,
    ) -> Arc<Self> {
        let (exchange, staging, failure) = (Arc::clone(exchange), Arc::clone(staging), Arc::clone(failure));
        Arc::new(Self(Box::new(move || {
            if failure.check().is_err() {
                return;
            }
            let mut outcome = Ok(());
            let perform = || {
                staging.with_bytes(&mut |bytes| {
                    let mut values: [&mut [u8]; MAX_BUCKET_VALUES] =
                        std::array::from_fn(|_| Default::default());
                    let mut rest = bytes;
                    for (value, &bytes) in values.iter_mut().zip(&step.value_bytes) {
                        let (first, tail) = rest.split_at_mut(bytes);
                        (*value, rest) = (first, tail);
                    }
                    outcome = step.perform(exchange.as_ref(), &mut values[..step.value_bytes.len()], more);
                });
            };
            // The driver calls this from C, which a panic must not cross.
            let panicked = catch_unwind(AssertUnwindSafe(perform)).is_err();
            match outcome {
                Err(reason) => failure.set(reason),
                Ok(()) if panicked => failure.set("the exchange panicked".to_owned()),
                Ok(()) => {}
            }
        })))
    }
}

/// The kernels of communication steps on one device.
pub(crate) struct Exchange<Q: Queues> {
    queues: Arc<Q>,
    clock: Arc<StepClock>,
    failure: Arc<ExchangeFailure>,
    /// The ends of the other queues in a program.
    ends: [Q::Event; 3],
    /// The sums that the devices compute, if they do.
    direct: Option<Arc<DirectSums<Q>>>,
    /// The buckets whose step that waits was not made yet.
    started: Vec<(usize, Arc<Bucket<Q>>)>,
}

impl<Q: Queues> Exchange<Q> {
    /// The exchange of a device with these queues.
    ///
    /// # Errors
    /// The driver's error message.
    pub fn new(queues: Q, clock: &Arc<StepClock>) -> Result<Self, String> {
        let ends = [queues.event()?, queues.event()?, queues.event()?];
        let (queues, clock) = (Arc::new(queues), Arc::clone(clock));
        Ok(Self { queues, clock, failure: Arc::default(), ends, direct: None, started: Vec::new() })
    }

    /// Lets the devices of a group that this one has joined compute the sums of all steps made from now on.
    /// `memory` is the address of the [bytes](direct_sum_bytes) for the largest bucket, whose size
    /// follows.
    ///
    /// # Errors
    /// The compiler's error message.
    pub fn sum_directly(
        &mut self,
        processor: &dyn Processor,
        membership: (Q::Group, &DeviceGroup),
        memory: [u64; 2],
    ) -> Result<(), String> {
        let direct = DirectSums::new(&self.queues, processor, membership, memory, &self.failure)?;
        self.direct = Some(Arc::new(direct));
        Ok(())
    }

    /// Ends the work that waits for other devices, since this worker ends before its program has.
    pub fn abandon(&self) {
        if let Some(direct) = &self.direct {
            direct.abandon("this worker ended during a program");
        }
    }

    /// Starts a program.
    pub fn begin(&self) {
        self.queues.begin();
    }

    /// Ends a program: lets the kernels wait for the other queues. A CUDA graph must end like this.
    ///
    /// # Errors
    /// The driver's error message.
    pub fn join(&self) -> Result<(), String> {
        for (queue, end) in [Queue::Outgoing, Queue::Incoming, Queue::Sums].into_iter().zip(&self.ends) {
            if self.queues.is_in_use(queue) {
                self.queues.record(end, queue)?;
                self.queues.wait(Queue::Kernels, end)?;
            }
        }
        Ok(())
    }

    /// Waits until the queues are empty.
    ///
    /// # Errors
    /// The driver's error message.
    pub fn synchronise(&self) -> Result<(), String> {
        self.queues.synchronise()
    }

    /// Returns the error of an exchange, once the program has ended.
    ///
    /// # Errors
    /// That error.
    pub fn check(&self) -> Result<(), String> {
        self.failure.check()?;
        self.direct.as_ref().map_or(Ok(()), |direct| direct.check())
    }

    /// The kernel of a step. The step that starts a bucket must be made before the one that waits for it.
    ///
    /// # Errors
    /// If memory cannot be allocated.
    pub fn kernel(
        &mut self,
        step: ExchangeStep,
        exchange: &Arc<dyn Communicator>,
    ) -> Result<Box<dyn StepKernel>, String> {
        let (queues, clock) = (Arc::clone(&self.queues), Arc::clone(&self.clock));
        let action = step.action;
        if let ExchangeAction::WaitAllReduce { bucket } = action {
            let position = self.started.iter().rposition(|(started, _)| *started == bucket);
            let position = position.ok_or_else(|| format!("bucket {bucket} is never started"))?;
            let (_, bucket) = self.started.remove(position);
            return Ok(Box::new(WaitAllReduce { queues, clock, bucket }));
        }
        if let (ExchangeAction::StartAllReduce { bucket, method }, Some(direct)) = (action, &self.direct) {
            let shared = Arc::new(Bucket { done: queues.event()?, addresses: Mutex::default() });
            self.started.push((bucket, Arc::clone(&shared)));
            return Ok(Box::new(StartDirectSum {
                direct: Arc::clone(direct),
                value_bytes: step.value_bytes,
                dtype: step.dtype,
                method,
                computed: queues.event()?,
                bucket: shared,
            }));
        }
        let values = Values::new(self.queues.as_ref(), step.value_bytes.clone())?;
        let call = |step, more| HostFunction::new(step, more, exchange, &values.staging, &self.failure);
        let events = [queues.event()?, queues.event()?];
        Ok(match action {
            ExchangeAction::StartAllReduce { bucket, .. } | ExchangeAction::WaitAllReduce { bucket } => {
                let wait = ExchangeStep { action: ExchangeAction::WaitAllReduce { bucket }, ..step.clone() };
                let calls = [call(step, false), call(wait, false)];
                let shared = Arc::new(Bucket { done: queues.event()?, addresses: Mutex::default() });
                self.started.push((bucket, Arc::clone(&shared)));
                Box::new(StartAllReduce { queues, values, calls, events, bucket: shared })
            }
            ExchangeAction::Send { .. } => {
                Box::new(SendMessage { call: call(step, false), queues, values, events })
            }
            ExchangeAction::Receive { .. } => {
                let calls = [call(step.clone(), false), call(step.clone(), true)];
                let sent = queues.event()?;
                Box::new(ReceiveMessage { queues, clock, step, values, calls, events, sent })
            }
        })
    }
}

/// The values of a step, and their copies in host memory.
struct Values<Q: Queues> {
    staging: Arc<Q::Staging>,
    ranges: Vec<Range<usize>>,
}

impl<Q: Queues> Values<Q> {
    fn new(queues: &Q, value_bytes: Vec<usize>) -> Result<Self, String> {
        let mut end = 0;
        let ranges = value_bytes.into_iter().map(|bytes| {
            end += bytes;
            end - bytes..end
        });
        let ranges = ranges.collect();
        Ok(Self { staging: Arc::new(queues.staging(end)?), ranges })
    }

    /// Copies the operands to host memory.
    fn copy_out(&self, queues: &Q, queue: Queue, operands: &Operands<'_>) -> Result<(), String> {
        let mut values = self.ranges.iter().enumerate().filter(|(_, range)| !range.is_empty());
        values.try_for_each(|(position, range)| {
            queues.copy_out(queue, operands.address(position), &self.staging, range.clone())
        })
    }

    /// Copies host memory to the operands.
    fn copy_in(&self, queues: &Q, queue: Queue, operands: &Operands<'_>) -> Result<(), String> {
        let mut values = self.ranges.iter().enumerate().filter(|(_, range)| !range.is_empty());
        values.try_for_each(|(position, range)| {
            queues.copy_in(queue, &self.staging, range.clone(), operands.address(position))
        })
    }
}

/// The state that the two steps of a bucket share.
struct Bucket<Q: Queues> {
    /// Its sums are in the device's memory.
    done: Q::Event,
    /// The addresses of its values.
    addresses: Mutex<[u64; MAX_BUCKET_VALUES]>,
}

fn addresses(operands: &Operands<'_>) -> [u64; MAX_BUCKET_VALUES] {
    std::array::from_fn(|position| operands.address(position))
}

/// Starts the all-reduce of a bucket. The sums replace the values when they arrive.
struct StartAllReduce<Q: Queues> {
    queues: Arc<Q>,
    values: Values<Q>,
    /// The calls that start it and wait for it.
    calls: [Arc<HostFunction>; 2],
    /// The values are computed; the exchange is started.
    events: [Q::Event; 2],
    bucket: Arc<Bucket<Q>>,
}

impl<Q: Queues> StepKernel for StartAllReduce<Q> {
    fn run(&mut self, operands: &mut Operands<'_>) -> Result<(), String> {
        let (queues, [computed, started]) = (self.queues.as_ref(), &self.events);
        *self.bucket.addresses.lock().unwrap_or_else(PoisonError::into_inner) = addresses(operands);
        queues.record(computed, Queue::Kernels)?;
        queues.wait(Queue::Outgoing, computed)?;
        self.values.copy_out(queues, Queue::Outgoing, operands)?;
        queues.call(Queue::Outgoing, &self.calls[0])?;
        queues.record(started, Queue::Outgoing)?;
        queues.wait(Queue::Incoming, started)?;
        queues.call(Queue::Incoming, &self.calls[1])?;
        self.values.copy_in(queues, Queue::Incoming, operands)?;
        queues.record(&self.bucket.done, Queue::Incoming)
    }
}

/// Waits for the all-reduce of a bucket.
struct WaitAllReduce<Q: Queues> {
    queues: Arc<Q>,
    clock: Arc<StepClock>,
    bucket: Arc<Bucket<Q>>,
}

impl<Q: Queues> StepKernel for WaitAllReduce<Q> {
    fn run(&mut self, operands: &mut Operands<'_>) -> Result<(), String> {
        let started = *self.bucket.addresses.lock().unwrap_or_else(PoisonError::into_inner);
        if started != addresses(operands) {
            return Err("the values of a bucket moved during its exchange".to_owned());
        }
        // The time until the next kernel is that of this step.
        self.clock.before_library()?;
        self.queues.wait(Queue::Kernels, &self.bucket.done)
    }
}

/// Sends values to another stage.
struct SendMessage<Q: Queues> {
    queues: Arc<Q>,
    values: Values<Q>,
    call: Arc<HostFunction>,
    /// The values are computed; they are copied.
    events: [Q::Event; 2],
}

impl<Q: Queues> StepKernel for SendMessage<Q> {
    fn run(&mut self, operands: &mut Operands<'_>) -> Result<(), String> {
        let (queues, [computed, copied]) = (self.queues.as_ref(), &self.events);
        queues.record(computed, Queue::Kernels)?;
        queues.wait(Queue::Outgoing, computed)?;
        self.values.copy_out(queues, Queue::Outgoing, operands)?;
        // Later kernels may reuse the memory of the values.
        queues.record(copied, Queue::Outgoing)?;
        queues.wait(Queue::Kernels, copied)?;
        queues.call(Queue::Outgoing, &self.call)
    }
}

/// Receives values from another stage.
struct ReceiveMessage<Q: Queues> {
    queues: Arc<Q>,
    clock: Arc<StepClock>,
    step: ExchangeStep,
    values: Values<Q>,
    /// The calls for the last message of an iteration, and for those before it.
    calls: [Arc<HostFunction>; 2],
    /// The memory of the values is free; the values are there.
    events: [Q::Event; 2],
    /// All messages so far are sent.
    sent: Q::Event,
}

impl<Q: Queues> StepKernel for ReceiveMessage<Q> {
    fn run(&mut self, operands: &mut Operands<'_>) -> Result<(), String> {
        let (queues, [free, received]) = (self.queues.as_ref(), &self.events);
        queues.record(free, Queue::Kernels)?;
        queues.wait(Queue::Incoming, free)?;
        if queues.is_in_use(Queue::Outgoing) {
            queues.record(&self.sent, Queue::Outgoing)?;
            queues.wait(Queue::Incoming, &self.sent)?;
        }
        let more = usize::from(self.step.expects_more(operands.tile()));
        queues.call(Queue::Incoming, &self.calls[more])?;
        self.values.copy_in(queues, Queue::Incoming, operands)?;
        queues.record(received, Queue::Incoming)?;
        self.clock.before_library()?;
        queues.wait(Queue::Kernels, received)
    }
}
