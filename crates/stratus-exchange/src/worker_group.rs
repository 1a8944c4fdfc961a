//! One worker's end of a group: the interface that training calls, and the thread that exchanges data.

use crate::messages::MessagePool;
use crate::{ExchangeError, TransferState, Transport};
use crate::{rounded, tree};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, TryRecvError, channel, sync_channel};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;
use stratus_engine::DType;
use stratus_engine::exchange::Communicator;
use stratus_engine::ops::SumMethod;

/// The values of a bucket, and scratch to receive into.
enum BucketBuffer {
    F32(Vec<f32>, Vec<f32>),
    F64(Vec<f64>, Vec<f64>),
    /// f32 values that are sent as bf16.
    Rounded(Vec<f32>, Vec<u16>),
}

impl BucketBuffer {
    fn new(dtype: DType, method: SumMethod) -> Option<Self> {
        match (dtype, method.as_bf16) {
            (DType::F32, false) => Some(Self::F32(Vec::new(), Vec::new())),
            (DType::F64, false) => Some(Self::F64(Vec::new(), Vec::new())),
            (DType::F32, true) => Some(Self::Rounded(Vec::new(), Vec::new())),
            _ => None,
        }
    }

    /// Returns whether it holds values of a type that are summed by a method.
    fn is_for(&self, dtype: DType, method: SumMethod) -> bool {
        match self {
            Self::F32(..) => dtype == DType::F32 && !method.as_bf16,
            Self::F64(..) => dtype == DType::F64 && !method.as_bf16,
            Self::Rounded(..) => dtype == DType::F32 && method.as_bf16,
        }
    }

    /// Copies values in, one after the other. Allocates only when a bucket grows.
    fn pack(&mut self, values: &[&mut [u8]]) {
        let bytes: usize = values.iter().map(|value| value.len()).sum();
        let memory: &mut [u8] = match self {
            Self::F32(numbers, scratch) => {
                let count = bytes / size_of::<f32>();
                numbers.resize(count, 0.0);
                scratch.resize(count.div_ceil(2), 0.0);
                bytemuck::cast_slice_mut(numbers)
            }
            Self::F64(numbers, scratch) => {
                let count = bytes / size_of::<f64>();
                numbers.resize(count, 0.0);
                scratch.resize(count.div_ceil(2), 0.0);
                bytemuck::cast_slice_mut(numbers)
            }
            Self::Rounded(numbers, scratch) => {
                let count = bytes / size_of::<f32>();
                numbers.resize(count, 0.0);
                scratch.resize(rounded::scratch_length(count), 0);
                bytemuck::cast_slice_mut(numbers)
            }
        };
        let mut rest = memory;
        for value in values {
            let (start, tail) = rest.split_at_mut(value.len().min(rest.len()));
            start.copy_from_slice(&value[..start.len()]);
            rest = tail;
        }
    }

    /// Copies the values out again.
    fn unpack(&self, values: &mut [&mut [u8]]) {
        let mut rest: &[u8] = match self {
            Self::F32(numbers, _) | Self::Rounded(numbers, _) => bytemuck::cast_slice(numbers),
            Self::F64(numbers, _) => bytemuck::cast_slice(numbers),
        };
        for value in values {
            let (start, tail) = rest.split_at(value.len().min(rest.len()));
            value[..start.len()].copy_from_slice(start);
            rest = tail;
        }
    }

    /// Sums over the workers that compute the same one of `stages` stages.
    fn sum(&mut self, transport: &mut dyn Transport, stages: usize) -> Result<(), ExchangeError> {
        match self {
            Self::F32(numbers, scratch) => tree::all_reduce(transport, numbers, scratch, stages),
            Self::F64(numbers, scratch) => tree::all_reduce(transport, numbers, scratch, stages),
            Self::Rounded(numbers, scratch) => rounded::all_reduce(transport, numbers, scratch, stages),
        }
    }
}

/// The state of a bucket.
enum Bucket {
    /// Not in flight; its buffer, once allocated.
    Idle(Option<BucketBuffer>),
    /// In flight.
    Started,
    /// Summed.
    Done(BucketBuffer),
}

/// A request to the exchange thread.
enum Request {
    Sum(usize, BucketBuffer),
    AllReduceOr(u64),
    AllGather(Vec<u8>, ReplySender),
    Broadcast(Vec<u8>, ReplySender),
    Send(usize, u16, Vec<u8>),
    Receive(usize, u16, Vec<u8>),
    Leave(ReplySender),
}

type ReplySender = std::sync::mpsc::SyncSender<Result<Vec<u8>, ExchangeError>>;

/// The state shared by training and the exchange thread. A single lock guards it, so that a waiting thread
/// misses no change.
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
    /// The number of pipeline stages.
    stages: AtomicUsize,
    /// True while training waits for a message; the thread then polls more often.
    is_receiving: AtomicBool,
}

impl Default for Shared {
    fn default() -> Self {
        Self {
            state: Mutex::default(),
            changed: Condvar::default(),
            stages: AtomicUsize::new(1),
            is_receiving: AtomicBool::default(),
        }
    }
}

#[derive(Default)]
struct State {
    buckets: Vec<Bucket>,
    messages: MessagePool,
    /// The reply to [`Request::AllReduceOr`].
    bits: Option<u64>,
    /// The error that ended the exchange.
    failed: Option<ExchangeError>,
}

impl Shared {
    fn stages(&self) -> usize {
        self.stages.load(Ordering::Relaxed)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until `find` returns a value, or the exchange has failed.
    fn wait<T>(&self, mut find: impl FnMut(&mut State) -> Option<T>) -> Result<T, ExchangeError> {
        let mut state = self.state();
        loop {
            if let Some(found) = find(&mut state) {
                return Ok(found);
            }
            if let Some(error) = &state.failed {
                return Err(error.clone());
            }
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn update(&self, change: impl FnOnce(&mut State)) {
        change(&mut self.state());
        self.changed.notify_all();
    }
}

/// The size up to which texts of any length are gathered, for all workers together. There are up to three
/// copies for a moment.
const MAX_GATHERED_BYTES: u64 = 64 << 20;
/// The maximum ratio of the sizes of two workers' texts above this. Workers gather texts of the same kind:
/// the scores of 1,000 classes have 2 MB on each.
const MAX_GATHERED_RATIO: u64 = 4;

/// The maximum size of the text of each of `workers` workers, if that of this worker has `own_bytes` bytes.
fn max_gathered_bytes(workers: usize, own_bytes: u64) -> u64 {
    (MAX_GATHERED_BYTES / workers as u64).max(own_bytes.saturating_mul(MAX_GATHERED_RATIO))
}

/// One worker's membership in the group of workers that train together.
pub struct WorkerGroup {
    rank: usize,
    size: usize,
    requests: Mutex<Option<Sender<Request>>>,
    shared: std::sync::Arc<Shared>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl WorkerGroup {
    /// Opens a transport on a new thread, which alone uses it.
    ///
    /// # Errors
    /// If the transport cannot be opened, or the number of workers is not a power of two.
    pub fn open<T: Transport + 'static>(
        open: impl FnOnce() -> Result<T, ExchangeError> + Send + 'static,
    ) -> Result<Self, ExchangeError> {
        let (requests, request_queue) = channel();
        let (ready, opened) = sync_channel(1);
        let shared = std::sync::Arc::new(Shared::default());
        let thread_shared = std::sync::Arc::clone(&shared);
        let run = move || match open() {
            Ok(mut transport) => {
                let _ = ready.send(Ok((transport.rank(), transport.size())));
                serve(&mut transport, &request_queue, &thread_shared);
            }
            Err(error) => {
                let _ = ready.send(Err(error));
            }
        };
        let thread = std::thread::Builder::new()
            .name("exchange".to_owned())
            .spawn(run)
            .map_err(|error| ExchangeError::Disconnected(error.to_string()))?;
        let (rank, size) =
            opened.recv().map_err(|_| ExchangeError::Disconnected("it panicked".to_owned()))??;
        if !size.is_power_of_two() {
            return Err(ExchangeError::NotPowerOfTwo(size));
        }
        let (requests, thread) = (Mutex::new(Some(requests)), Mutex::new(Some(thread)));
        Ok(Self { rank, size, requests, shared, thread })
    }

    /// The rank of this worker, from 0.
    #[must_use]
    pub fn rank(&self) -> usize {
        self.rank
    }

    /// The number of workers.
    #[must_use]
    pub fn size(&self) -> usize {
        self.size
    }

    /// Divides the workers into pipelines of `stages` stages, a power of two that divides their number:
    /// worker `r` computes stage `r % stages`. By default, every worker computes the whole network. All
    /// workers must call this before they exchange values.
    pub fn set_stages(&self, stages: usize) {
        debug_assert!(stages.is_power_of_two() && self.size.is_multiple_of(stages), "{stages} stages");
        self.shared.stages.store(stages, Ordering::Relaxed);
    }

    /// The rank of the worker that computes a stage of this worker's pipeline.
    #[must_use]
    pub fn rank_of_stage(&self, stage: usize) -> usize {
        let stages = self.shared.stages();
        self.rank - self.rank % stages + stage
    }

    /// Gathers the same number of bytes from each worker, in rank order. All workers must call this at the
    /// same point.
    ///
    /// # Errors
    /// If a worker has disconnected.
    pub fn all_gather(&self, bytes: &[u8]) -> Result<Vec<Vec<u8>>, ExchangeError> {
        let all = self.ask(|reply| Request::AllGather(bytes.to_vec(), reply))?;
        Ok(all.chunks(bytes.len().max(1)).map(<[u8]>::to_vec).collect())
    }

    /// Gathers any number of bytes from each worker, in rank order.
    ///
    /// # Errors
    /// If a worker has disconnected, or announces more than four times the bytes of this worker, and with
    /// these the texts of all workers, padded to the longest, exceed 64 MiB.
    pub fn all_gatherv(&self, bytes: Vec<u8>) -> Result<Vec<Vec<u8>>, ExchangeError> {
        let lengths = self.all_gather(&(bytes.len() as u64).to_le_bytes())?;
        let limit = max_gathered_bytes(self.size, bytes.len() as u64);
        let number = |(peer, bytes): (usize, &Vec<u8>)| {
            let bytes = <[u8; 8]>::try_from(bytes.as_slice()).map_or(0, u64::from_le_bytes);
            if bytes > limit {
                return Err(ExchangeError::TooLarge { peer, bytes, limit });
            }
            Ok(bytes as usize)
        };
        let lengths: Vec<usize> = lengths.iter().enumerate().map(number).collect::<Result<_, _>>()?;
        let mut padded = bytes;
        padded.resize(lengths.iter().copied().max().unwrap_or(0), 0);
        let mut all = self.all_gather(&padded)?;
        all.resize(self.size, Vec::new());
        all.iter_mut().zip(lengths).for_each(|(text, length)| text.truncate(length));
        Ok(all)
    }

    /// Returns the bitwise OR of a value over all workers. It is called in every iteration, so it does not
    /// allocate.
    ///
    /// # Errors
    /// If a worker has disconnected.
    pub fn all_reduce_or(&self, bits: u64) -> Result<u64, ExchangeError> {
        self.send(Request::AllReduceOr(bits))?;
        self.shared.wait(|state| state.bits.take())
    }

    /// Sends the first worker's bytes to all workers.
    ///
    /// # Errors
    /// If a worker has disconnected.
    pub fn broadcast(&self, bytes: Vec<u8>) -> Result<Vec<u8>, ExchangeError> {
        self.ask(|reply| Request::Broadcast(bytes, reply))
    }

    /// Shuts down; all workers must call this. A worker that is dropped without it counts as failed and makes
    /// the others fail.
    ///
    /// # Errors
    /// If a worker has disconnected.
    pub fn leave(&self) -> Result<(), ExchangeError> {
        self.ask(Request::Leave).map(drop)
    }

    /// Sends copies of values to a worker as one message of a kind. Waits while too many of that kind are in
    /// flight.
    ///
    /// # Errors
    /// If a worker has disconnected.
    pub fn send_to(&self, peer: usize, kind: u16, values: &[&mut [u8]]) -> Result<(), ExchangeError> {
        let mut bytes = self.shared.wait(|state| state.messages.acquire_send_buffer(peer, kind))?;
        bytes.clear();
        values.iter().for_each(|value| bytes.extend_from_slice(value));
        self.send(Request::Send(peer, kind, bytes))
    }

    /// Waits for a message of a kind with exactly the length of `values`, and copies it there. With `more`,
    /// also starts to receive the next message.
    ///
    /// # Errors
    /// If a worker has disconnected, or the message has a different length.
    pub fn receive_from(
        &self,
        peer: usize,
        kind: u16,
        more: bool,
        values: &mut [&mut [u8]],
    ) -> Result<(), ExchangeError> {
        let length = values.iter().map(|value| value.len()).sum();
        let buffer = self.shared.state().messages.acquire_receive_buffer(peer, kind, length);
        if let Some(buffer) = buffer {
            self.send(Request::Receive(peer, kind, buffer))?;
        }
        self.shared.is_receiving.store(true, Ordering::Relaxed);
        let bytes = self.shared.wait(|state| state.messages.take_arrived(peer, kind));
        self.shared.is_receiving.store(false, Ordering::Relaxed);
        let bytes = bytes?;
        if bytes.len() != length {
            return Err(ExchangeError::LengthMismatch { peer, theirs: bytes.len(), ours: length });
        }
        let mut rest = bytes.as_slice();
        for value in values {
            let (start, tail) = rest.split_at(value.len());
            value.copy_from_slice(start);
            rest = tail;
        }
        let next = {
            let messages = &mut self.shared.state().messages;
            messages.release_receive_buffer(peer, kind, bytes);
            more.then(|| messages.acquire_receive_buffer(peer, kind, length)).flatten()
        };
        next.map_or(Ok(()), |buffer| self.send(Request::Receive(peer, kind, buffer)))
    }

    fn ask(&self, request: impl FnOnce(ReplySender) -> Request) -> Result<Vec<u8>, ExchangeError> {
        let (sender, reply) = sync_channel(1);
        self.send(request(sender))?;
        reply.recv().unwrap_or_else(|_| Err(self.failure()))
    }

    fn send(&self, request: Request) -> Result<(), ExchangeError> {
        let requests = self.requests.lock().unwrap_or_else(PoisonError::into_inner);
        let sent = requests.as_ref().is_some_and(|requests| requests.send(request).is_ok());
        if sent { Ok(()) } else { Err(self.failure()) }
    }

    fn failure(&self) -> ExchangeError {
        let failed = self.shared.state().failed.clone();
        failed.unwrap_or_else(|| ExchangeError::Disconnected("its thread has ended".to_owned()))
    }
}

impl std::fmt::Debug for WorkerGroup {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "worker {} of {}", self.rank, self.size)
    }
}

impl Drop for WorkerGroup {
    fn drop(&mut self) {
        // Closing the request queue ends the thread.
        drop(self.requests.get_mut().unwrap_or_else(PoisonError::into_inner).take());
        if let Some(thread) = self.thread.get_mut().unwrap_or_else(PoisonError::into_inner).take() {
            let _ = thread.join();
        }
    }
}

/// Serves requests in order, until the transport fails or the request queue is closed.
fn serve(transport: &mut dyn Transport, request_queue: &Receiver<Request>, shared: &Shared) {
    let mut polls = 0;
    loop {
        let request = match next_action(transport, request_queue, shared, &mut polls) {
            Action::Serve(request) => request,
            Action::Poll => match transport.progress() {
                Ok(None) => {
                    polls += 1;
                    continue;
                }
                Ok(Some(message)) => {
                    polls = 0;
                    shared.update(|state| state.messages.complete(message));
                    continue;
                }
                Err(error) => {
                    shared.update(|state| state.failed = Some(error));
                    return;
                }
            },
            Action::Exit => return,
        };
        let outcome = match request {
            Request::Sum(bucket, mut numbers) => numbers.sum(transport, shared.stages()).map(|()| {
                shared.update(|state| state.buckets[bucket] = Bucket::Done(numbers));
            }),
            Request::AllReduceOr(bits) => tree::all_reduce_or(transport, bits)
                .map(|bits| shared.update(|state| state.bits = Some(bits))),
            Request::AllGather(bytes, sender) => reply(tree::all_gather(transport, &bytes), &sender),
            Request::Broadcast(bytes, sender) => reply(tree::broadcast(transport, bytes), &sender),
            Request::Send(peer, kind, bytes) => transport.start_send(peer, kind, bytes),
            Request::Receive(peer, kind, buffer) => transport.start_receive(peer, kind, buffer),
            Request::Leave(sender) => {
                // Completes the messages in flight, for which another worker waits.
                while transport.transfer_state() != TransferState::Idle && transport.progress().is_ok() {}
                transport.leave();
                let _ = sender.send(Ok(Vec::new()));
                return;
            }
        };
        if let Err(error) = outcome {
            shared.update(|state| state.failed = Some(error));
            return;
        }
    }
}

/// The next action of the exchange thread.
enum Action {
    Serve(Request),
    /// Make progress on messages in flight.
    Poll,
    /// The request queue is closed.
    Exit,
}

/// The maximum number of polls without sleeping while training waits for a message.
const MAX_POLLS: u32 = 200;
/// The maximum number of polls without sleeping during a transfer, for which both ends must poll.
const MAX_POLLS_WHILE_TRANSFERRING: u32 = 20_000;
/// The time between later polls: while training waits for a message, and while it computes.
const POLL_INTERVALS: [Duration; 2] = [Duration::from_micros(50), Duration::from_micros(300)];

/// The next request, or a poll of the messages in flight, at once or after a sleep.
fn next_action(
    transport: &dyn Transport,
    request_queue: &Receiver<Request>,
    shared: &Shared,
    polls: &mut u32,
) -> Action {
    let pending = transport.transfer_state();
    if pending == TransferState::Idle {
        *polls = 0;
        return request_queue.recv().map_or(Action::Exit, Action::Serve);
    }
    let is_receiving = shared.is_receiving.load(Ordering::Relaxed);
    let max_polls = match (pending, is_receiving) {
        (TransferState::Transferring, _) => MAX_POLLS_WHILE_TRANSFERRING,
        (_, true) => MAX_POLLS,
        (_, false) => 0,
    };
    let request = if *polls < max_polls {
        if *polls % 16 == 15 {
            std::thread::yield_now();
        }
        request_queue.try_recv()
    } else {
        let sleep = POLL_INTERVALS[usize::from(!is_receiving)];
        request_queue.recv_timeout(sleep).map_err(|error| match error {
            RecvTimeoutError::Timeout => TryRecvError::Empty,
            RecvTimeoutError::Disconnected => TryRecvError::Disconnected,
        })
    };
    match request {
        Ok(request) => Action::Serve(request),
        Err(TryRecvError::Empty) => Action::Poll,
        Err(TryRecvError::Disconnected) => Action::Exit,
    }
}

fn reply(outcome: Result<Vec<u8>, ExchangeError>, sender: &ReplySender) -> Result<(), ExchangeError> {
    let failed = outcome.as_ref().err().cloned();
    let _ = sender.send(outcome);
    failed.map_or(Ok(()), Err)
}

impl Communicator for WorkerGroup {
    fn send(&self, to: usize, message: usize, values: &[&mut [u8]]) -> Result<(), String> {
        self.send_to(self.rank_of_stage(to), step_kind(message)?, values).map_err(|error| error.to_string())
    }

    fn receive(
        &self,
        from: usize,
        message: usize,
        more: bool,
        values: &mut [&mut [u8]],
    ) -> Result<(), String> {
        self.receive_from(self.rank_of_stage(from), step_kind(message)?, more, values)
            .map_err(|error| error.to_string())
    }

    fn start_all_reduce(
        &self,
        bucket: usize,
        dtype: DType,
        method: SumMethod,
        values: &[&mut [u8]],
    ) -> Result<(), String> {
        let mut state = self.shared.state();
        while state.buckets.len() <= bucket {
            state.buckets.push(Bucket::Idle(None));
        }
        let buffer = match &mut state.buckets[bucket] {
            Bucket::Idle(buffer) => buffer.take().filter(|buffer| buffer.is_for(dtype, method)),
            Bucket::Started | Bucket::Done(_) => return Err(format!("bucket {bucket} is still in flight")),
        };
        state.buckets[bucket] = Bucket::Started;
        drop(state);
        let mut buffer = buffer
            .or_else(|| BucketBuffer::new(dtype, method))
            .ok_or("only f32 and f64 can be exchanged, and only f32 as bf16")?;
        buffer.pack(values);
        self.send(Request::Sum(bucket, buffer)).map_err(|error| error.to_string())
    }

    fn wait_all_reduce(&self, bucket: usize, values: &mut [&mut [u8]]) -> Result<(), String> {
        let done = |state: &mut State| match state.buckets.get_mut(bucket) {
            Some(Bucket::Started) => None,
            Some(slot @ Bucket::Done(_)) => match std::mem::replace(slot, Bucket::Started) {
                Bucket::Done(numbers) => Some(Some(numbers)),
                Bucket::Idle(_) | Bucket::Started => None,
            },
            Some(Bucket::Idle(_)) | None => Some(None),
        };
        let numbers = self.shared.wait(done).map_err(|error| error.to_string())?;
        let numbers = numbers.ok_or_else(|| format!("bucket {bucket} was not started"))?;
        numbers.unpack(values);
        self.shared.state().buckets[bucket] = Bucket::Idle(Some(numbers));
        Ok(())
    }
}

/// The kind of a program step's message.
fn step_kind(message: usize) -> Result<u16, String> {
    let kind = u16::try_from(message).ok().and_then(|message| message.checked_add(FIRST_STEP_KIND));
    kind.filter(|kind| *kind <= MAX_KIND)
        .ok_or_else(|| format!("message {message} exceeds the number of message kinds"))
}

/// The first kind of the messages of program steps; lower kinds have other uses.
const FIRST_STEP_KIND: u16 = 16;
/// The maximum kind: MPI guarantees tags up to 32767, and each kind takes two.
const MAX_KIND: u16 = 16_000;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::in_process::transports;

    const EXACT: SumMethod = SumMethod { as_bf16: false, any_order: false };

    fn open_all(size: usize) -> Vec<WorkerGroup> {
        transports(size).into_iter().map(|transport| WorkerGroup::open(|| Ok(transport)).unwrap()).collect()
    }

    #[test]
    fn buckets_are_summed_concurrently() {
        std::thread::scope(|scope| {
            for worker in open_all(4) {
                scope.spawn(move || {
                    for round in 0..3 {
                        let own = (worker.rank() + 1) as f32 + round as f32;
                        let (mut first, mut second) = ([own; 5], [own * 0.5; 2]);
                        let mut exact = [f64::from(own); 3];
                        let bytes: &mut [&mut [u8]] =
                            &mut [bytemuck::bytes_of_mut(&mut first), bytemuck::bytes_of_mut(&mut second)];
                        worker.start_all_reduce(0, DType::F32, EXACT, bytes).unwrap();
                        let metrics: &mut [&mut [u8]] = &mut [bytemuck::bytes_of_mut(&mut exact)];
                        worker.start_all_reduce(1, DType::F64, EXACT, metrics).unwrap();
                        assert!(worker.start_all_reduce(1, DType::F64, EXACT, metrics).is_err());
                        worker.wait_all_reduce(0, bytes).unwrap();
                        assert_eq!(worker.all_reduce_or(1 << worker.rank()).unwrap(), 0b1111);
                        worker.wait_all_reduce(1, metrics).unwrap();
                        assert!(worker.wait_all_reduce(1, metrics).is_err());
                        let sum = 10.0 + 4.0 * round as f32;
                        assert_eq!((first, second), ([sum; 5], [sum * 0.5; 2]));
                        assert_eq!(exact, [f64::from(sum); 3]);
                    }
                });
            }
        });
    }

    #[test]
    fn a_disconnected_worker_makes_the_others_fail() {
        let mut workers = open_all(2);
        drop(workers.pop());
        let mut values = [1.0f32];
        let values: &mut [&mut [u8]] = &mut [bytemuck::bytes_of_mut(&mut values)];
        let worker = &workers[0];
        let _ = worker.start_all_reduce(0, DType::F32, EXACT, values);
        assert!(worker.wait_all_reduce(0, values).unwrap_err().contains("worker 1 has disconnected"));
        assert!(worker.all_reduce_or(0).unwrap_err().to_string().contains("worker 1 has disconnected"));
    }

    #[test]
    fn a_gathered_text_of_impossible_length_is_an_error() {
        // The second length is the least that is refused: two workers share 64 MiB.
        for length in [u64::MAX, (32 << 20) + 1] {
            let workers = open_all(2);
            std::thread::scope(|scope| {
                scope.spawn(|| workers[0].all_gather(&length.to_le_bytes()).unwrap());
                let error = workers[1].all_gatherv(b"names".to_vec()).unwrap_err().to_string();
                assert!(error.starts_with(&format!("worker 0 announced {length} bytes")), "{error}");
            });
        }
    }

    #[test]
    fn scores_of_many_classes_are_gathered_by_any_number_of_workers() {
        // A count and a comma for each of 1,000 × 1,000 pairs of classes.
        let scores = 2 << 20;
        assert!((0..=10).all(|power| max_gathered_bytes(1 << power, scores) >= 2 * scores));
    }

    #[test]
    fn rejects_a_number_of_workers_that_is_not_a_power_of_two() {
        let three = transports(3).remove(0);
        let error = WorkerGroup::open(|| Ok(three)).err().unwrap();
        assert_eq!(error.to_string(), "3 workers: the number of workers must be a power of two");
    }
}
