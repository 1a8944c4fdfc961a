//! The prefetching loader: worker threads fill a fixed number of batch buffers; the consumer receives them in
//! order.
//!
//! ```text
//!            ┌── recycle ◀── consumer ◀────────── next ──────────┐
//!   free buffers ──▶ open batches ──▶ parts, filled by workers ──▶ ready, by sequence number
//! ```
//!
//! The workers share the rows of the oldest open batch, each taking a chunk of the remaining rows. If no rows
//! remain, a worker opens the next batch: it first takes a free buffer and then the number of the next batch.
//! So every assigned batch has its buffer, and the oldest one is always in progress: there is no deadlock,
//! regardless of the numbers of workers and slots. A slow sample delays only its own batch, as long as there
//! are free buffers. Memory is bounded by the slots: if the consumer is slow, workers find no free buffer and
//! sleep. The content of a batch depends only on (seed, epoch, batch).

mod config;
mod fill;
mod order;
mod ring;
mod shared;
mod worker;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, OnceLock};
use std::thread::{self, JoinHandle};

use self::config::Plan;
pub use self::config::{
    BatchSlice, BatchStride, Decoding, LastBatch, LoaderConfig, LoaderError, Order, Position, TargetScale,
};
use self::order::EpochOrder;
use self::ring::{BufferRing, chunk_count};
use self::shared::{Sequencer, Shared, lock, wait};
use crate::buffer::{BatchBuffer, IGNORED_LABEL};
use crate::dataset::Dataset;
use crate::decode::JpegLibrary;
use crate::transform::frame::CropSampler;
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

impl Loader {
    /// Starts the workers; they begin to fill buffers at once.
    ///
    /// # Errors
    ///
    /// [`LoaderError::Configuration`] with the invalid field; [`LoaderError::Memory`];
    /// [`LoaderError::Thread`].
    pub fn new(dataset: Arc<dyn Dataset>, config: LoaderConfig) -> Result<Self, LoaderError> {
        static LOADERS: AtomicU64 = AtomicU64::new(0);
        let (plan, normalisation) = Plan::new(dataset.as_ref(), &config)?;
        let shape @ [_, height, width] = plan.shape;
        let id = LOADERS.fetch_add(1, Ordering::Relaxed);
        let buffer = |_| BatchBuffer::new(config.rows(), plan.image_bytes, plan.label_count, id);
        let buffer_bytes = BatchBuffer::byte_size(config.rows(), plan.image_bytes, plan.label_count);
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
                targets: dataset.target_kind().map(|_| plan.label_len),
            }),
            crop_sampler: CropSampler {
                allow_dct_scaling: config.decoding == Decoding::Fast,
                ..CropSampler::new([height, width], config.resize, &config.augment, config.seed)
            },
            as_stored: dataset.sample_shape() == Some(shape)
                && config.resize.is_none()
                && !config.augment.crops_at_random(),
            shape,
            skipped: Mutex::new(BTreeMap::new()),
            jpeg: OnceLock::new(),
            id,
            sample_bytes: plan.sample_bytes,
            label_len: plan.label_len,
            batches_per_epoch: plan.batches_per_epoch,
            batches: plan.batches,
            ring: Mutex::new(BufferRing::new(Vec::new(), 0, 0)),
            work_available: Condvar::new(),
            workers_wanted: Condvar::new(),
            batch_ready: Condvar::new(),
            sequencer: Mutex::new(Sequencer { next: 0, order }),
            dataset,
            config,
        };
        let (rows, workers) = (shared.config.rows(), shared.config.workers);
        let parts = chunk_count(rows, workers, shared.min_chunk_rows());
        shared.ring = Mutex::new(BufferRing::new(free, parts, workers));
        let shared = Arc::new(shared);
        let mut loader = Self { shared, workers: Vec::new(), next: 0 };
        let threads = if loader.shared.config.positions_only { 0 } else { loader.shared.config.workers };
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

    /// Waits for the next batch and returns it; `None` after the last epoch. Hand it back with
    /// [`recycle`](Self::recycle).
    ///
    /// # Errors
    ///
    /// The error of the first batch that could not be read, and from then on [`LoaderError::Stopped`].
    /// [`LoaderError::NoFreeBuffer`] if the consumer itself holds all buffers; the loader can continue then.
    #[allow(
        clippy::should_implement_trait,
        reason = "an iterator would own its batches; these are lent and handed back"
    )]
    pub fn next(&mut self) -> Result<Option<BatchBuffer>, LoaderError> {
        if self.next == self.shared.batches {
            return Ok(None);
        }
        if self.shared.config.positions_only {
            return self.next_position_only().map(Some);
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
                return Err(LoaderError::NoFreeBuffer { slots });
            }
            ring = wait(&self.shared.batch_ready, ring);
        }
    }

    /// The position of the next batch, whose samples another process reads.
    fn next_position_only(&mut self) -> Result<BatchBuffer, LoaderError> {
        let (config, mut ring) = (&self.shared.config, lock(&self.shared.ring));
        let slots = ring.ready.len();
        let mut buffer = ring.free.pop().ok_or(LoaderError::NoFreeBuffer { slots })?;
        let Position { epoch, batch } = self.shared.position(self.next);
        let before = config.batch_size as u64 * batch;
        let left = usize::try_from(self.samples_per_epoch().saturating_sub(before)).unwrap_or(usize::MAX);
        let rows = config.slice.rows(left.min(config.batch_size));
        buffer.samples = rows.len();
        (buffer.epoch, buffer.index) = (epoch, batch);
        buffer.indices.clear();
        if config.order == Order::Sequential {
            // Evaluations compare outputs with the targets of these samples.
            buffer.indices.extend(rows.map(|row| (before + row as u64) as u32));
        }
        buffer.labels.fill(IGNORED_LABEL);
        self.next += 1;
        Ok(buffer)
    }

    /// Hands a buffer back to be filled again. Buffers of other loaders are dropped.
    pub fn recycle(&self, buffer: BatchBuffer) {
        if buffer.owner == self.shared.id {
            lock(&self.shared.ring).free.push(buffer);
            self.shared.work_available.notify_one();
        }
    }

    /// The memory of one batch, in bytes.
    ///
    /// # Errors
    ///
    /// Like [`new`](Self::new).
    pub fn batch_bytes(dataset: &dyn Dataset, config: &LoaderConfig) -> Result<u64, LoaderError> {
        let (plan, _) = Plan::new(dataset, config)?;
        Ok(BatchBuffer::byte_size(config.rows(), plan.image_bytes, plan.label_count))
    }

    /// Sets the number of active workers, 1 to all (initially all). The content of batches does not change.
    pub fn set_active_workers(&self, active: usize) {
        let mut ring = lock(&self.shared.ring);
        ring.active = active.clamp(1, self.shared.config.workers);
        drop(ring);
        // Wakes all workers: deactivated ones sleep, an active one takes the pending task.
        self.shared.work_available.notify_all();
        self.shared.workers_wanted.notify_all();
    }

    /// The position of the next batch.
    #[must_use]
    pub fn position(&self) -> Position {
        self.shared.position(self.next)
    }

    /// The number of batches that this loader delivers per epoch.
    #[must_use]
    pub fn batches_per_epoch(&self) -> u64 {
        self.shared.batches_per_epoch
    }

    /// The total number of batches that this loader delivers.
    #[must_use]
    pub fn batches(&self) -> u64 {
        self.shared.batches
    }

    /// The number of samples per epoch, for all workers together: all, or without an incomplete last batch.
    #[must_use]
    pub fn samples_per_epoch(&self) -> u64 {
        let (samples, batch) = (self.shared.dataset.len() as u64, self.shared.config.batch_size as u64);
        match self.shared.config.last {
            LastBatch::Drop => samples / batch * batch,
            LastBatch::Keep => samples,
        }
    }

    /// The configuration.
    #[must_use]
    pub fn config(&self) -> &LoaderConfig {
        &self.shared.config
    }

    /// The data set.
    #[must_use]
    pub fn dataset(&self) -> &dyn Dataset {
        self.shared.dataset.as_ref()
    }

    /// The shape (C, H, W) of the images of a batch.
    #[must_use]
    pub fn shape(&self) -> [usize; 3] {
        self.shared.shape
    }

    /// The number of labels per sample: 1;
    /// [`mix::LABELS_PER_SAMPLE`](crate::transform::mix::LABELS_PER_SAMPLE) if samples are mixed; H × W with
    /// masks; the number of [targets](Dataset::target_kind).
    #[must_use]
    pub fn label_len(&self) -> usize {
        self.shared.label_len
    }

    /// The samples that could not be decoded so far, with the cause; empty if damaged samples are errors.
    #[must_use]
    pub fn skipped(&self) -> BTreeMap<u32, String> {
        lock(&self.shared.skipped).clone()
    }

    /// The reason why a sample could not be decoded; `None` for samples that were decoded or not read yet.
    #[must_use]
    pub fn skip_reason(&self, sample: u32) -> Option<String> {
        lock(&self.shared.skipped).get(&sample).cloned()
    }

    /// The library that decodes JPEG files; `None` before the first one.
    #[must_use]
    pub fn jpeg_library(&self) -> Option<&JpegLibrary> {
        self.shared.jpeg.get()
    }

    /// The memory of all buffers and of the epoch order, in bytes, without the data set and the scratch
    /// memory of the workers.
    #[must_use]
    pub fn memory_bytes(&self) -> u64 {
        let Shared { config, sample_bytes, label_len, .. } = self.shared.as_ref();
        let rows = config.rows();
        let buffer = BatchBuffer::byte_size(rows, sample_bytes * rows, label_len * rows);
        buffer * config.slots as u64 + EpochOrder::memory_bytes(self.dataset(), config.order)
    }
}

impl Drop for Loader {
    fn drop(&mut self) {
        lock(&self.shared.ring).stopped = true;
        self.shared.work_available.notify_all();
        self.shared.workers_wanted.notify_all();
        for worker in self.workers.drain(..) {
            // Workers catch their own panics.
            let _ = worker.join();
        }
    }
}
