//! The prefetching loader: worker threads fill a fixed number of batch buffers; the consumer receives them in
//! order.
//!
//! ```text
//!            ┌── recycle ◀── consumer ◀────────── next ──────────┐
//!   free buffers ──▶ open batches ──▶ parts, filled by workers ──▶ ready, by sequence number
//! ```
//!
//! The workers share out the rows of the oldest open batch, each taking a part of what is left. Where no rows
//! are left, a worker opens the next batch: it takes a free buffer first and then the number of the next
//! batch. So every assigned batch has its buffer, and the oldest one is always in progress: there is no
//! deadlock, whatever the numbers of workers and slots. A slow sample holds up its own batch alone, as long
//! as there are free buffers. Memory is bounded by the slots: where the consumer is slow, workers find no
//! free buffer and sleep. The content of a batch depends on (seed, epoch, batch) only.

mod config;
mod fill;
mod order;
mod ring;

use std::any::Any;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::{self, JoinHandle};

use self::config::Plan;
pub use self::config::{Decoding, LastBatch, LoaderConfig, LoaderError, Order, Position, Share, Turn};
use self::order::EpochOrder;
use self::ring::{Ring, Sequencer};
use crate::buffer::{BatchBuffer, IGNORED_LABEL};
use crate::datasets::Dataset;
use crate::decode::JpegLibrary;
use crate::transform::frame::Framing;
use crate::transform::mix::Mixer;
use crate::transform::pixels::Converter;

/// Delivers the batches of a data set in order, prepared ahead by worker threads. Dropping it ends the
/// threads.
#[derive(Debug)]
pub struct Loader {
    shared: Arc<Shared>,
    workers: Vec<JoinHandle<()>>,
    /// The sequence number of the next batch to deliver.
    next: u64,
}

struct Shared {
    dataset: Arc<dyn Dataset>,
    config: LoaderConfig,
    converter: Converter,
    /// Set where samples are mixed.
    mixer: Option<Mixer>,
    framing: Framing,
    /// Whether samples have the network's shape already: nothing is cropped or resized.
    as_stored: bool,
    /// Channels, height, width of an image in a batch.
    shape: [usize; 3],
    /// Samples that could not be decoded, and why.
    skipped: Mutex<BTreeMap<u32, String>>,
    /// The JPEG decoder in use, once a file was decoded.
    jpeg: OnceLock<JpegLibrary>,
    /// Distinguishes this loader's buffers from another's.
    id: u64,
    sample_bytes: usize,
    /// Labels per sample: 1; 3 where samples are mixed; one per pixel with masks.
    label_len: usize,
    batches_per_epoch: u64,
    /// The number of batches in all; sequence numbers are below it.
    batches: u64,
    ring: Mutex<Ring>,
    /// Signalled when there is something to do: a buffer is free, rows are to be filled, or it is the end.
    freed: Condvar,
    /// Signalled when more workers are wanted, and at the end.
    wanted: Condvar,
    /// Signalled when a batch becomes ready, after a failure, and after the last batch.
    filled: Condvar,
    sequencer: Mutex<Sequencer>,
}

impl Loader {
    /// Starts the workers; they begin to fill buffers at once.
    ///
    /// # Errors
    ///
    /// [`LoaderError::Configuration`] names the field that does not fit; [`LoaderError::Thread`].
    pub fn new(dataset: Arc<dyn Dataset>, config: LoaderConfig) -> Result<Self, LoaderError> {
        static LOADERS: AtomicU64 = AtomicU64::new(0);
        let (plan, normalisation) = Plan::new(dataset.as_ref(), &config)?;
        let shape @ [_, height, width] = plan.shape;
        let id = LOADERS.fetch_add(1, Ordering::Relaxed);
        let buffer = |_| BatchBuffer::new(config.rows(), plan.image_bytes, plan.label_count, id);
        let buffer_bytes = BatchBuffer::bytes_of(config.rows(), plan.image_bytes, plan.label_count);
        let free = (0..config.slots).map(buffer).collect::<Result<Vec<_>, _>>();
        let free = free.map_err(|_| LoaderError::Memory {
            bytes: buffer_bytes.saturating_mul(config.slots as u64),
            batch_size: config.rows(),
            slots: config.slots,
        })?;
        let order = EpochOrder::new(dataset.as_ref(), &config);
        let mut shared = Shared {
            converter: Converter::new(&normalisation, config.element, config.layout, shape),
            mixer: config.mix.is_on().then_some(Mixer {
                mix: config.mix,
                seed: config.seed,
                element: config.element,
                layout: config.layout,
                shape,
            }),
            framing: Framing {
                reduces: config.decoding == Decoding::Fast,
                ..Framing::new([height, width], config.resize, &config.augment, config.seed)
            },
            as_stored: dataset.sample_shape() == Some(shape)
                && config.resize.is_none()
                && !config.augment.cuts(),
            shape,
            skipped: Mutex::new(BTreeMap::new()),
            jpeg: OnceLock::new(),
            id,
            sample_bytes: plan.sample_bytes,
            label_len: plan.label_len,
            batches_per_epoch: plan.batches_per_epoch,
            batches: plan.batches,
            ring: Mutex::new(Ring::new(Vec::new(), 0, 0)),
            freed: Condvar::new(),
            wanted: Condvar::new(),
            filled: Condvar::new(),
            sequencer: Mutex::new(Sequencer { next: 0, order }),
            dataset,
            config,
        };
        let (rows, workers) = (shared.config.rows(), shared.config.workers);
        let parts = ring::parts(rows, workers, shared.least_rows());
        shared.ring = Mutex::new(Ring::new(free, parts, workers));
        let shared = Arc::new(shared);
        let mut loader = Self { shared, workers: Vec::new(), next: 0 };
        let threads = if loader.shared.config.elsewhere { 0 } else { loader.shared.config.workers };
        for worker in 0..threads {
            let shared = Arc::clone(&loader.shared);
            let thread = thread::Builder::new()
                .name(format!("loader-{worker}"))
                .spawn(move || shared.work(worker))
                .map_err(|cause| LoaderError::Thread { cause })?;
            loader.workers.push(thread);
        }
        Ok(loader)
    }

    /// Waits for the next batch and gives it; `None` after the last epoch. Hand it back with
    /// [`recycle`](Self::recycle).
    ///
    /// # Errors
    ///
    /// The first batch that could not be read gives its error; from then on [`LoaderError::Stopped`].
    /// [`LoaderError::Withheld`] where the consumer itself holds all buffers, which ends nothing.
    #[allow(
        clippy::should_implement_trait,
        reason = "an iterator would own its batches; these are lent and handed back"
    )]
    pub fn next(&mut self) -> Result<Option<BatchBuffer>, LoaderError> {
        if self.next == self.shared.batches {
            return Ok(None);
        }
        if self.shared.config.elsewhere {
            return self.next_place().map(Some);
        }
        let mut ring = lock(&self.shared.ring);
        let slots = ring.ready.len();
        let slot = (self.next % slots as u64) as usize;
        loop {
            if let Some(buffer) = ring.ready[slot].take() {
                self.next += 1;
                return Ok(Some(buffer));
            }
            if ring.stopped {
                return Err(LoaderError::Stopped);
            }
            if let Some(error) = ring.take_failure() {
                return Err(error);
            }
            if ring.filling == 0 && ring.free.is_empty() {
                return Err(LoaderError::Withheld { slots });
            }
            ring = wait(&self.shared.filled, ring);
        }
    }

    /// The next batch of samples that another process reads.
    fn next_place(&mut self) -> Result<BatchBuffer, LoaderError> {
        let (config, mut ring) = (&self.shared.config, lock(&self.shared.ring));
        let slots = ring.ready.len();
        let mut buffer = ring.free.pop().ok_or(LoaderError::Withheld { slots })?;
        let Position { epoch, batch } = self.shared.position(self.next);
        let before = config.batch_size as u64 * batch;
        let left = usize::try_from(self.samples_per_epoch().saturating_sub(before)).unwrap_or(usize::MAX);
        buffer.samples = config.share.rows(left.min(config.batch_size)).len();
        (buffer.epoch, buffer.index) = (epoch, batch);
        buffer.indices.clear();
        buffer.labels.fill(IGNORED_LABEL);
        self.next += 1;
        Ok(buffer)
    }

    /// Hands a buffer back to be filled again. A buffer of another loader is dropped.
    pub fn recycle(&self, buffer: BatchBuffer) {
        if buffer.owner == self.shared.id {
            lock(&self.shared.ring).free.push(buffer);
            self.shared.freed.notify_one();
        }
    }

    /// Bytes of memory of one batch.
    ///
    /// # Errors
    ///
    /// As [`new`](Self::new).
    pub fn batch_bytes(dataset: &dyn Dataset, config: &LoaderConfig) -> Result<u64, LoaderError> {
        let (plan, _) = Plan::new(dataset, config)?;
        Ok(BatchBuffer::bytes_of(config.rows(), plan.image_bytes, plan.label_count))
    }

    /// Lets only so many of the workers work, at least 1 and at most all, which is how it begins. The
    /// batches are the same.
    pub fn set_workers(&self, active: usize) {
        let mut ring = lock(&self.shared.ring);
        ring.active = active.clamp(1, self.shared.config.workers);
        drop(ring);
        // Those that may no longer work find out; one of the others takes what they were woken for.
        self.shared.freed.notify_all();
        self.shared.wanted.notify_all();
    }

    /// The position of the batch with this sequence number.
    #[must_use]
    pub fn position(&self) -> Position {
        self.shared.position(self.next)
    }

    /// Batches that it delivers in an epoch.
    #[must_use]
    pub fn batches_per_epoch(&self) -> u64 {
        self.shared.batches_per_epoch
    }

    /// Batches that it delivers in all.
    #[must_use]
    pub fn batches(&self) -> u64 {
        self.shared.batches
    }

    /// Samples of an epoch's batches, whoever gets them: all, or without those of an incomplete last batch.
    #[must_use]
    pub fn samples_per_epoch(&self) -> u64 {
        let (samples, batch) = (self.shared.dataset.len() as u64, self.shared.config.batch_size as u64);
        match self.shared.config.last {
            LastBatch::Drop => samples / batch * batch,
            LastBatch::Keep => samples,
        }
    }

    /// The configuration it was made with.
    #[must_use]
    pub fn config(&self) -> &LoaderConfig {
        &self.shared.config
    }

    /// The data set it reads.
    #[must_use]
    pub fn dataset(&self) -> &dyn Dataset {
        self.shared.dataset.as_ref()
    }

    /// The shape (C, H, W) of the images of a batch.
    #[must_use]
    pub fn shape(&self) -> [usize; 3] {
        self.shared.shape
    }

    /// Labels of a sample in a batch: 1, or where samples are mixed
    /// [`mix::LABELS`](crate::transform::mix::LABELS), or H × W, one for each pixel, where the data set has
    /// masks.
    #[must_use]
    pub fn label_len(&self) -> usize {
        self.shared.label_len
    }

    /// The samples that were met so far and could not be decoded, with what is wrong; empty where that ends
    /// the loader.
    #[must_use]
    pub fn skipped(&self) -> BTreeMap<u32, String> {
        lock(&self.shared.skipped).clone()
    }

    /// The reason that a sample could not be decoded; `None` for one that was, or was not met yet.
    #[must_use]
    pub fn problem_of(&self, sample: u32) -> Option<String> {
        lock(&self.shared.skipped).get(&sample).cloned()
    }

    /// What decodes the JPEG files among the samples; `None` where none was met so far.
    #[must_use]
    pub fn jpeg_library(&self) -> Option<&JpegLibrary> {
        self.shared.jpeg.get()
    }

    /// Bytes of memory held by all buffers, wherever they are, and by the order of the epoch; without the
    /// data set's own and the few samples each worker has at hand.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        let Shared { config, sample_bytes, label_len, .. } = self.shared.as_ref();
        let rows = config.rows();
        let buffer = BatchBuffer::bytes_of(rows, sample_bytes * rows, label_len * rows);
        buffer * config.slots as u64 + EpochOrder::bytes(self.dataset(), config.order)
    }
}

impl Drop for Loader {
    fn drop(&mut self) {
        lock(&self.shared.ring).stopped = true;
        self.shared.freed.notify_all();
        self.shared.wanted.notify_all();
        for worker in self.workers.drain(..) {
            // A worker catches its own panics; here nobody is left to tell.
            let _ = worker.join();
        }
    }
}

impl Shared {
    /// The place of the batch with this sequence number.
    fn position(&self, sequence: u64) -> Position {
        let (start, turn) = (self.config.start, self.config.turn);
        let batch = start.batch + sequence;
        // Without batches nobody asks for one.
        let per_epoch = self.batches_per_epoch.max(1);
        let epoch = start.epoch.saturating_add((batch / per_epoch) as u32);
        Position { epoch, batch: turn.first + batch % per_epoch * turn.of }
    }

    /// Labels of a sample before samples are mixed.
    fn stored_labels(&self) -> usize {
        if self.mixer.is_some() { 1 } else { self.label_len }
    }
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Shared")
            .field("dataset", &self.dataset.name())
            .field("config", &self.config)
            .finish_non_exhaustive()
    }
}

/// A poisoned lock is taken all the same: every change of the state is a single step.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn wait<'a, T>(condition: &Condvar, guard: MutexGuard<'a, T>) -> MutexGuard<'a, T> {
    condition.wait(guard).unwrap_or_else(PoisonError::into_inner)
}

/// The message of a panic.
fn said(payload: &(dyn Any + Send)) -> String {
    let text = payload.downcast_ref::<&str>().copied();
    text.or_else(|| payload.downcast_ref::<String>().map(String::as_str)).unwrap_or("no message").to_owned()
}
