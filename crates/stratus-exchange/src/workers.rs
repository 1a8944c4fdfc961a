//! A worker's end: what training calls, and the thread that exchanges meanwhile.

use crate::messages::Messages;
use crate::tree;
use crate::{ExchangeError, Pending, Transport};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, TryRecvError, channel, sync_channel};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;
use stratus_engine::DType;
use stratus_engine::exchange::Exchange;

/// A bucket's numbers, and as many again to receive into.
enum Numbers {
    F32(Vec<f32>, Vec<f32>),
    F64(Vec<f64>, Vec<f64>),
}

impl Numbers {
    fn of(dtype: DType) -> Option<Self> {
        match dtype {
            DType::F32 => Some(Self::F32(Vec::new(), Vec::new())),
            DType::F64 => Some(Self::F64(Vec::new(), Vec::new())),
            _ => None,
        }
    }

    fn is(&self, dtype: DType) -> bool {
        matches!((self, dtype), (Self::F32(..), DType::F32) | (Self::F64(..), DType::F64))
    }

    /// Copies values in, one behind the other. Memory grows at the first time alone.
    fn take(&mut self, values: &[&mut [u8]]) {
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
        };
        let mut rest = memory;
        for value in values {
            let (start, behind) = rest.split_at_mut(value.len().min(rest.len()));
            start.copy_from_slice(&value[..start.len()]);
            rest = behind;
        }
    }

    /// Copies them out again.
    fn give(&self, values: &mut [&mut [u8]]) {
        let mut rest: &[u8] = match self {
            Self::F32(numbers, _) => bytemuck::cast_slice(numbers),
            Self::F64(numbers, _) => bytemuck::cast_slice(numbers),
        };
        for value in values {
            let (start, behind) = rest.split_at(value.len().min(rest.len()));
            value[..start.len()].copy_from_slice(start);
            rest = behind;
        }
    }

    fn sum(&mut self, transport: &mut dyn Transport) -> Result<(), ExchangeError> {
        match self {
            Self::F32(numbers, scratch) => tree::all_reduce(transport, numbers, scratch),
            Self::F64(numbers, scratch) => tree::all_reduce(transport, numbers, scratch),
        }
    }
}

/// Where a bucket is.
enum Bucket {
    /// Nothing is on its way; its memory, once it had some.
    Idle(Option<Numbers>),
    /// On its way.
    Started,
    /// Added up.
    Done(Numbers),
}

/// What the thread is asked for.
enum Ask {
    Sum(usize, Numbers),
    AnyBits(u64),
    AllGather(Vec<u8>, Answer),
    Broadcast(Vec<u8>, Answer),
    Send(usize, u16, Vec<u8>),
    Receive(usize, u16, Vec<u8>),
    Leave(Answer),
}

type Answer = std::sync::mpsc::SyncSender<Result<Vec<u8>, ExchangeError>>;

/// What training and the thread share. One lock for all of it, so that who waits misses no change.
#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
    /// Whether training waits for a message, so that the thread looks often.
    waits: AtomicBool,
}

#[derive(Default)]
struct State {
    buckets: Vec<Bucket>,
    messages: Messages,
    /// The answer to [`Ask::AnyBits`].
    bits: Option<u64>,
    /// Why nothing is exchanged any more.
    failed: Option<ExchangeError>,
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until `look` finds something, or the exchange has failed.
    fn wait<T>(&self, mut look: impl FnMut(&mut State) -> Option<T>) -> Result<T, ExchangeError> {
        let mut state = self.state();
        loop {
            if let Some(found) = look(&mut state) {
                return Ok(found);
            }
            if let Some(error) = &state.failed {
                return Err(error.clone());
            }
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn change(&self, change: impl FnOnce(&mut State)) {
        change(&mut self.state());
        self.changed.notify_all();
    }
}

/// One worker among those that train together.
pub struct Workers {
    rank: usize,
    size: usize,
    asks: Mutex<Option<Sender<Ask>>>,
    shared: std::sync::Arc<Shared>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Workers {
    /// Opens a transport on a thread of its own, which alone uses it.
    ///
    /// # Errors
    /// What opening says, and where workers are not a power of two.
    pub fn open<T: Transport + 'static>(
        open: impl FnOnce() -> Result<T, ExchangeError> + Send + 'static,
    ) -> Result<Self, ExchangeError> {
        let (asks, asked) = channel();
        let (ready, opened) = sync_channel(1);
        let shared = std::sync::Arc::new(Shared::default());
        let of_thread = std::sync::Arc::clone(&shared);
        let run = move || match open() {
            Ok(mut transport) => {
                let _ = ready.send(Ok((transport.rank(), transport.size())));
                serve(&mut transport, &asked, &of_thread);
            }
            Err(error) => {
                let _ = ready.send(Err(error));
            }
        };
        let thread = std::thread::Builder::new()
            .name("exchange".to_owned())
            .spawn(run)
            .map_err(|error| ExchangeError::Ended(error.to_string()))?;
        let (rank, size) = opened.recv().map_err(|_| ExchangeError::Ended("it panicked".to_owned()))??;
        if !size.is_power_of_two() {
            return Err(ExchangeError::Size(size));
        }
        let (asks, thread) = (Mutex::new(Some(asks)), Mutex::new(Some(thread)));
        Ok(Self { rank, size, asks, shared, thread })
    }

    /// This worker's number, from 0.
    #[must_use]
    pub fn rank(&self) -> usize {
        self.rank
    }

    /// How many there are.
    #[must_use]
    pub fn size(&self) -> usize {
        self.size
    }

    /// What each worker says, in their order. All say equally much, at the same point of their work.
    ///
    /// # Errors
    /// Where a worker is gone.
    pub fn all_gather(&self, own: &[u8]) -> Result<Vec<Vec<u8>>, ExchangeError> {
        let all = self.ask(|answer| Ask::AllGather(own.to_vec(), answer))?;
        Ok(all.chunks(own.len().max(1)).map(<[u8]>::to_vec).collect())
    }

    /// What each worker says, in their order, however much that is.
    ///
    /// # Errors
    /// Where a worker is gone.
    pub fn all_gather_any(&self, own: Vec<u8>) -> Result<Vec<Vec<u8>>, ExchangeError> {
        let lengths = self.all_gather(&(own.len() as u64).to_le_bytes())?;
        let number = |bytes: &Vec<u8>| {
            <[u8; 8]>::try_from(bytes.as_slice()).map_or(0, |bytes| u64::from_le_bytes(bytes) as usize)
        };
        let lengths: Vec<usize> = lengths.iter().map(number).collect();
        let mut padded = own;
        padded.resize(lengths.iter().copied().max().unwrap_or(0), 0);
        let mut all = self.all_gather(&padded)?;
        all.resize(self.size, Vec::new());
        all.iter_mut().zip(lengths).for_each(|(text, length)| text.truncate(length));
        Ok(all)
    }

    /// The bits that any worker sets, at all workers. Once an iteration, so that it allocates nothing here.
    ///
    /// # Errors
    /// Where a worker is gone.
    pub fn any_bits(&self, own: u64) -> Result<u64, ExchangeError> {
        self.send(Ask::AnyBits(own))?;
        self.shared.wait(|state| state.bits.take())
    }

    /// What the first worker says.
    ///
    /// # Errors
    /// Where a worker is gone.
    pub fn broadcast(&self, own: Vec<u8>) -> Result<Vec<u8>, ExchangeError> {
        self.ask(|answer| Ask::Broadcast(own, answer))
    }

    /// Leaves the others, when all do. A worker that is dropped without it is taken for dead, and ends them.
    ///
    /// # Errors
    /// Where a worker is gone.
    pub fn leave(&self) -> Result<(), ExchangeError> {
        self.ask(Ask::Leave).map(drop)
    }

    /// Sends values to a worker as one message of a kind. They are copied; where enough of the kind are on
    /// their way, it waits.
    ///
    /// # Errors
    /// Where a worker is gone.
    pub fn send_to(&self, peer: usize, kind: u16, values: &[&mut [u8]]) -> Result<(), ExchangeError> {
        let mut bytes = self.shared.wait(|state| state.messages.memory_to_send(peer, kind))?;
        bytes.clear();
        values.iter().for_each(|value| bytes.extend_from_slice(value));
        self.send(Ask::Send(peer, kind, bytes))
    }

    /// Waits for a message of a kind, of as many bytes as `values` hold, and writes it there. With `more` the
    /// next one may arrive meanwhile.
    ///
    /// # Errors
    /// Where a worker is gone, or the message has another size.
    pub fn receive_from(
        &self,
        peer: usize,
        kind: u16,
        more: bool,
        values: &mut [&mut [u8]],
    ) -> Result<(), ExchangeError> {
        let length = values.iter().map(|value| value.len()).sum();
        let memory = self.shared.state().messages.memory_to_receive(peer, kind, length);
        if let Some(memory) = memory {
            self.send(Ask::Receive(peer, kind, memory))?;
        }
        self.shared.waits.store(true, Ordering::Relaxed);
        let bytes = self.shared.wait(|state| state.messages.arrived(peer, kind));
        self.shared.waits.store(false, Ordering::Relaxed);
        let bytes = bytes?;
        if bytes.len() != length {
            return Err(ExchangeError::Sizes { peer, theirs: bytes.len(), ours: length });
        }
        let mut rest = bytes.as_slice();
        for value in values {
            let (start, behind) = rest.split_at(value.len());
            value.copy_from_slice(start);
            rest = behind;
        }
        let next = {
            let messages = &mut self.shared.state().messages;
            messages.read(peer, kind, bytes);
            more.then(|| messages.memory_to_receive(peer, kind, length)).flatten()
        };
        next.map_or(Ok(()), |memory| self.send(Ask::Receive(peer, kind, memory)))
    }

    fn ask(&self, ask: impl FnOnce(Answer) -> Ask) -> Result<Vec<u8>, ExchangeError> {
        let (answer, answered) = sync_channel(1);
        self.send(ask(answer))?;
        answered.recv().unwrap_or_else(|_| Err(self.ended()))
    }

    fn send(&self, ask: Ask) -> Result<(), ExchangeError> {
        let asks = self.asks.lock().unwrap_or_else(PoisonError::into_inner);
        let sent = asks.as_ref().is_some_and(|asks| asks.send(ask).is_ok());
        if sent { Ok(()) } else { Err(self.ended()) }
    }

    fn ended(&self) -> ExchangeError {
        let failed = self.shared.state().failed.clone();
        failed.unwrap_or_else(|| ExchangeError::Ended("its thread is gone".to_owned()))
    }
}

impl std::fmt::Debug for Workers {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "worker {} of {}", self.rank, self.size)
    }
}

impl Drop for Workers {
    fn drop(&mut self) {
        // The thread ends when nothing can be asked any more.
        drop(self.asks.get_mut().unwrap_or_else(PoisonError::into_inner).take());
        if let Some(thread) = self.thread.get_mut().unwrap_or_else(PoisonError::into_inner).take() {
            let _ = thread.join();
        }
    }
}

/// Does what is asked, in its order, until a transport fails or nobody can ask any more.
fn serve(transport: &mut dyn Transport, asked: &Receiver<Ask>, shared: &Shared) {
    let mut looks = 0;
    loop {
        let ask = match next(transport, asked, shared, &mut looks) {
            Next::Ask(ask) => ask,
            Next::Look => match transport.progress() {
                Ok(None) => {
                    looks += 1;
                    continue;
                }
                Ok(Some(message)) => {
                    looks = 0;
                    shared.change(|state| state.messages.done(message));
                    continue;
                }
                Err(error) => {
                    shared.change(|state| state.failed = Some(error));
                    return;
                }
            },
            Next::Over => return,
        };
        let outcome = match ask {
            Ask::Sum(bucket, mut numbers) => numbers.sum(transport).map(|()| {
                shared.change(|state| state.buckets[bucket] = Bucket::Done(numbers));
            }),
            Ask::AnyBits(own) => {
                tree::any_bits(transport, own).map(|bits| shared.change(|state| state.bits = Some(bits)))
            }
            Ask::AllGather(own, answer) => reply(tree::all_gather(transport, &own), &answer),
            Ask::Broadcast(own, answer) => reply(tree::broadcast(transport, own), &answer),
            Ask::Send(peer, kind, bytes) => transport.start_send(peer, kind, bytes),
            Ask::Receive(peer, kind, memory) => transport.start_receive(peer, kind, memory),
            Ask::Leave(answer) => {
                // What is still on its way is wanted by another worker.
                while transport.pending() != Pending::Nothing && transport.progress().is_ok() {}
                transport.leave();
                let _ = answer.send(Ok(Vec::new()));
                return;
            }
        };
        if let Err(error) = outcome {
            shared.change(|state| state.failed = Some(error));
            return;
        }
    }
}

/// What the thread does next.
enum Next {
    Ask(Ask),
    /// It looks after messages.
    Look,
    /// Nobody can ask any more.
    Over,
}

/// How often the thread looks after messages at once, before it sleeps in between.
const LOOKS: u32 = 200;
/// The same while bytes are on their way: both ends have to look after them.
const LOOKS_WHILE_MOVING: u32 = 20_000;
/// How long it sleeps: while training waits for a message, and while it computes.
const SLEEP: [Duration; 2] = [Duration::from_micros(50), Duration::from_micros(300)];

/// What to do next: what is asked; or a look after messages, at once or after a while.
fn next(transport: &dyn Transport, asked: &Receiver<Ask>, shared: &Shared, looks: &mut u32) -> Next {
    let pending = transport.pending();
    if pending == Pending::Nothing {
        *looks = 0;
        return asked.recv().map_or(Next::Over, Next::Ask);
    }
    let waits = shared.waits.load(Ordering::Relaxed);
    let most = match (pending, waits) {
        (Pending::Moving, _) => LOOKS_WHILE_MOVING,
        (_, true) => LOOKS,
        (_, false) => 0,
    };
    let asked = if *looks < most {
        if *looks % 16 == 15 {
            std::thread::yield_now();
        }
        asked.try_recv()
    } else {
        let sleep = SLEEP[usize::from(!waits)];
        asked.recv_timeout(sleep).map_err(|error| match error {
            RecvTimeoutError::Timeout => TryRecvError::Empty,
            RecvTimeoutError::Disconnected => TryRecvError::Disconnected,
        })
    };
    match asked {
        Ok(ask) => Next::Ask(ask),
        Err(TryRecvError::Empty) => Next::Look,
        Err(TryRecvError::Disconnected) => Next::Over,
    }
}

fn reply(outcome: Result<Vec<u8>, ExchangeError>, answer: &Answer) -> Result<(), ExchangeError> {
    let failed = outcome.as_ref().err().cloned();
    let _ = answer.send(outcome);
    failed.map_or(Ok(()), Err)
}

impl Exchange for Workers {
    fn send(&self, to: usize, message: usize, values: &[&mut [u8]]) -> Result<(), String> {
        self.send_to(to, kind(message)?, values).map_err(|error| error.to_string())
    }

    fn receive(
        &self,
        from: usize,
        message: usize,
        more: bool,
        values: &mut [&mut [u8]],
    ) -> Result<(), String> {
        self.receive_from(from, kind(message)?, more, values).map_err(|error| error.to_string())
    }

    fn start(&self, bucket: usize, dtype: DType, values: &[&mut [u8]]) -> Result<(), String> {
        let mut state = self.shared.state();
        while state.buckets.len() <= bucket {
            state.buckets.push(Bucket::Idle(None));
        }
        let known = match &mut state.buckets[bucket] {
            Bucket::Idle(known) => known.take().filter(|numbers| numbers.is(dtype)),
            Bucket::Started | Bucket::Done(_) => return Err(format!("bucket {bucket} is on its way")),
        };
        state.buckets[bucket] = Bucket::Started;
        drop(state);
        let mut numbers = known.or_else(|| Numbers::of(dtype)).ok_or("f32 and f64 are exchanged")?;
        numbers.take(values);
        self.send(Ask::Sum(bucket, numbers)).map_err(|error| error.to_string())
    }

    fn wait(&self, bucket: usize, values: &mut [&mut [u8]]) -> Result<(), String> {
        let done = |state: &mut State| match state.buckets.get_mut(bucket) {
            Some(Bucket::Started) => None,
            Some(place @ Bucket::Done(_)) => match std::mem::replace(place, Bucket::Started) {
                Bucket::Done(numbers) => Some(Some(numbers)),
                Bucket::Idle(_) | Bucket::Started => None,
            },
            Some(Bucket::Idle(_)) | None => Some(None),
        };
        let numbers = self.shared.wait(done).map_err(|error| error.to_string())?;
        let numbers = numbers.ok_or_else(|| format!("bucket {bucket} was not started"))?;
        numbers.give(values);
        self.shared.state().buckets[bucket] = Bucket::Idle(Some(numbers));
        Ok(())
    }
}

/// The kind of a step's message.
fn kind(message: usize) -> Result<u16, String> {
    let kind = u16::try_from(message).ok().and_then(|message| message.checked_add(STEPS));
    kind.filter(|kind| *kind <= MOST_KINDS).ok_or_else(|| format!("message {message} is one too many"))
}

/// Kinds of messages below this one are not those of steps.
const STEPS: u16 = 16;
/// MPI has tags up to 32767 at least, and each kind takes two.
const MOST_KINDS: u16 = 16_000;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::in_process::workers;

    fn all(size: usize) -> Vec<Workers> {
        workers(size).into_iter().map(|transport| Workers::open(|| Ok(transport)).unwrap()).collect()
    }

    #[test]
    fn buckets_are_added_up_beside_each_other() {
        std::thread::scope(|scope| {
            for worker in all(4) {
                scope.spawn(move || {
                    for round in 0..3 {
                        let own = (worker.rank() + 1) as f32 + round as f32;
                        let (mut first, mut second) = ([own; 5], [own * 0.5; 2]);
                        let mut exact = [f64::from(own); 3];
                        let bytes: &mut [&mut [u8]] =
                            &mut [bytemuck::bytes_of_mut(&mut first), bytemuck::bytes_of_mut(&mut second)];
                        worker.start(0, DType::F32, bytes).unwrap();
                        let metrics: &mut [&mut [u8]] = &mut [bytemuck::bytes_of_mut(&mut exact)];
                        worker.start(1, DType::F64, metrics).unwrap();
                        assert!(worker.start(1, DType::F64, metrics).is_err());
                        worker.wait(0, bytes).unwrap();
                        assert_eq!(worker.any_bits(1 << worker.rank()).unwrap(), 0b1111);
                        worker.wait(1, metrics).unwrap();
                        assert!(worker.wait(1, metrics).is_err());
                        let sum = 10.0 + 4.0 * round as f32;
                        assert_eq!((first, second), ([sum; 5], [sum * 0.5; 2]));
                        assert_eq!(exact, [f64::from(sum); 3]);
                    }
                });
            }
        });
    }

    #[test]
    fn a_worker_that_is_gone_ends_the_others() {
        let mut workers = all(2);
        drop(workers.pop());
        let mut values = [1.0f32];
        let values: &mut [&mut [u8]] = &mut [bytemuck::bytes_of_mut(&mut values)];
        let worker = &workers[0];
        let _ = worker.start(0, DType::F32, values);
        assert!(worker.wait(0, values).unwrap_err().contains("worker 1 is gone"));
        assert!(worker.any_bits(0).unwrap_err().to_string().contains("worker 1 is gone"));
    }

    #[test]
    fn workers_are_a_power_of_two() {
        let three = workers(3).remove(0);
        let error = Workers::open(|| Ok(three)).err().unwrap();
        assert_eq!(error.to_string(), "there are 3 workers; their number is a power of two");
    }
}
