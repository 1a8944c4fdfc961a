//! A worker's end: what training calls, and the thread that exchanges meanwhile.

use crate::tree;
use crate::{ExchangeError, Transport};
use std::sync::mpsc::{Receiver, Sender, channel, sync_channel};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
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
            Self::F32(numbers, scratch) => tree::sum(transport, numbers, scratch),
            Self::F64(numbers, scratch) => tree::sum(transport, numbers, scratch),
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
    Gather(Vec<u8>, Answer),
    Broadcast(Vec<u8>, Answer),
    Leave(Answer),
}

type Answer = std::sync::mpsc::SyncSender<Result<Vec<u8>, ExchangeError>>;

/// What training and the thread share.
#[derive(Default)]
struct Shared {
    buckets: Mutex<Vec<Bucket>>,
    changed: Condvar,
    failed: Mutex<Option<ExchangeError>>,
}

impl Shared {
    fn buckets(&self) -> MutexGuard<'_, Vec<Bucket>> {
        self.buckets.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn failure(&self) -> Option<ExchangeError> {
        self.failed.lock().unwrap_or_else(PoisonError::into_inner).clone()
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
    pub fn gather(&self, own: &[u8]) -> Result<Vec<Vec<u8>>, ExchangeError> {
        let all = self.ask(|answer| Ask::Gather(own.to_vec(), answer))?;
        Ok(all.chunks(own.len().max(1)).map(<[u8]>::to_vec).collect())
    }

    /// What each worker says, in their order, however much that is.
    ///
    /// # Errors
    /// Where a worker is gone.
    pub fn share(&self, own: Vec<u8>) -> Result<Vec<Vec<u8>>, ExchangeError> {
        let lengths = self.gather(&(own.len() as u64).to_le_bytes())?;
        let number = |bytes: &Vec<u8>| {
            <[u8; 8]>::try_from(bytes.as_slice()).map_or(0, |bytes| u64::from_le_bytes(bytes) as usize)
        };
        let lengths: Vec<usize> = lengths.iter().map(number).collect();
        let mut padded = own;
        padded.resize(lengths.iter().copied().max().unwrap_or(0), 0);
        let mut all = self.gather(&padded)?;
        all.resize(self.size, Vec::new());
        all.iter_mut().zip(lengths).for_each(|(text, length)| text.truncate(length));
        Ok(all)
    }

    /// The bits that any worker sets, at all workers.
    ///
    /// # Errors
    /// Where a worker is gone.
    pub fn agree(&self, own: u64) -> Result<u64, ExchangeError> {
        let all = self.ask(|answer| Ask::Gather(own.to_le_bytes().to_vec(), answer))?;
        let (numbers, _) = all.as_chunks::<8>();
        Ok(numbers.iter().fold(0, |bits, number| bits | u64::from_le_bytes(*number)))
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
        self.shared.failure().unwrap_or_else(|| ExchangeError::Ended("its thread is gone".to_owned()))
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
    while let Ok(ask) = asked.recv() {
        let outcome = match ask {
            Ask::Sum(bucket, mut numbers) => {
                let outcome = numbers.sum(transport);
                let mut buckets = shared.buckets();
                if let Some(place) = buckets.get_mut(bucket) {
                    *place = Bucket::Done(numbers);
                }
                outcome
            }
            Ask::Gather(own, answer) => reply(tree::gather(transport, &own), &answer),
            Ask::Broadcast(own, answer) => reply(tree::broadcast(transport, own), &answer),
            Ask::Leave(answer) => {
                transport.leave();
                let _ = answer.send(Ok(Vec::new()));
                return;
            }
        };
        if let Err(error) = outcome {
            *shared.failed.lock().unwrap_or_else(PoisonError::into_inner) = Some(error);
            shared.changed.notify_all();
            return;
        }
        shared.changed.notify_all();
    }
}

fn reply(outcome: Result<Vec<u8>, ExchangeError>, answer: &Answer) -> Result<(), ExchangeError> {
    let failed = outcome.as_ref().err().cloned();
    let _ = answer.send(outcome);
    failed.map_or(Ok(()), Err)
}

impl Exchange for Workers {
    fn start(&self, bucket: usize, dtype: DType, values: &[&mut [u8]]) -> Result<(), String> {
        let mut buckets = self.shared.buckets();
        while buckets.len() <= bucket {
            buckets.push(Bucket::Idle(None));
        }
        let known = match std::mem::replace(&mut buckets[bucket], Bucket::Started) {
            Bucket::Idle(known) => known.filter(|numbers| numbers.is(dtype)),
            Bucket::Started | Bucket::Done(_) => return Err(format!("bucket {bucket} is on its way")),
        };
        drop(buckets);
        let mut numbers = known.or_else(|| Numbers::of(dtype)).ok_or("f32 and f64 are exchanged")?;
        numbers.take(values);
        self.send(Ask::Sum(bucket, numbers)).map_err(|error| error.to_string())
    }

    fn wait(&self, bucket: usize, values: &mut [&mut [u8]]) -> Result<(), String> {
        let mut buckets = self.shared.buckets();
        loop {
            if let Some(error) = self.shared.failure() {
                return Err(error.to_string());
            }
            match buckets.get_mut(bucket) {
                Some(place @ Bucket::Done(_)) => {
                    let Bucket::Done(numbers) = std::mem::replace(place, Bucket::Started) else { continue };
                    drop(buckets);
                    numbers.give(values);
                    self.shared.buckets()[bucket] = Bucket::Idle(Some(numbers));
                    return Ok(());
                }
                Some(Bucket::Started) => {}
                Some(Bucket::Idle(_)) | None => return Err(format!("bucket {bucket} was not started")),
            }
            let waited = self.shared.changed.wait(buckets);
            buckets = waited.unwrap_or_else(PoisonError::into_inner);
        }
    }
}

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
                        assert_eq!(worker.agree(1 << worker.rank()).unwrap(), 0b1111);
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
        assert!(worker.agree(0).unwrap_err().to_string().contains("worker 1 is gone"));
    }

    #[test]
    fn workers_are_a_power_of_two() {
        let three = workers(3).remove(0);
        let error = Workers::open(|| Ok(three)).err().unwrap();
        assert_eq!(error.to_string(), "there are 3 workers; their number is a power of two");
    }
}
