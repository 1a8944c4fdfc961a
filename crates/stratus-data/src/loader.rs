//! The prefetching loader: worker threads fill a fixed number of batch buffers; the consumer receives them in
//! order.
//!
//! ```text
//!            ┌── recycle ◀── consumer ◀── next ──┐
//!   free buffers ──▶ worker: assign, fill ──▶ ready, by sequence number
//! ```
//!
//! A worker takes a free buffer first and then the number of the next batch. So every assigned batch has its
//! buffer, and the oldest one is always in progress: there is no deadlock, whatever the numbers of workers
//! and slots. Memory is bounded by the slots: where the consumer is slow, workers find no free buffer and
//! sleep. The content of a batch depends on (seed, epoch, batch) only.

mod config;
mod order;

use std::any::Any;
use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::{self, JoinHandle};

use stratus_base::AlignedBytes;

use self::config::Plan;
pub use self::config::{LastBatch, LoaderConfig, LoaderError, Order, Position};
use self::order::EpochOrder;
use crate::buffer::{BatchBuffer, IGNORED_LABEL};
use crate::datasets::{Dataset, IGNORED_PIXEL, Sample, Scratch};
use crate::decode::JpegLibrary;
use crate::error::DataError;
use crate::transform::augment::Augment;
use crate::transform::colour::Picture;
use crate::transform::frame::{Framed, Framer, Framing, Orientation, Region};
use crate::transform::mask::{MaskWriter, StoredMask, greatest_class};
use crate::transform::mix::Mixer;
use crate::transform::pixels::{Converter, PixelOrder};

/// Bytes of pixels that a worker gathers before it converts them: they fit the L1 cache.
const STAGED_BYTES: usize = 16 << 10;

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
    /// Signalled when a buffer becomes free, and at the end.
    freed: Condvar,
    /// Signalled when a batch becomes ready, and when a worker ends.
    filled: Condvar,
    sequencer: Mutex<Sequencer>,
}

/// The buffers. Batches that are assigned and not delivered are at most `slots` consecutive ones.
struct Ring {
    free: Vec<BatchBuffer>,
    /// Batch `s` is at `s % slots`.
    ready: Vec<Option<BatchBuffer>>,
    /// The number of buffers that workers hold.
    filling: usize,
    /// Tells the workers to end.
    stopped: bool,
    /// The failure of the earliest batch.
    failure: Option<(u64, LoaderError)>,
}

/// Assigns batches to workers, in order.
struct Sequencer {
    next: u64,
    order: EpochOrder,
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
        let buffer = |_| BatchBuffer::new(config.batch_size, plan.image_bytes, plan.label_count, id);
        let buffer_bytes = BatchBuffer::bytes_of(config.batch_size, plan.image_bytes, plan.label_count);
        let free = (0..config.slots).map(buffer).collect::<Result<_, _>>();
        let ring = Ring {
            free: free.map_err(|_| LoaderError::Memory {
                bytes: buffer_bytes.saturating_mul(config.slots as u64),
                batch_size: config.batch_size,
                slots: config.slots,
            })?,
            ready: (0..config.slots).map(|_| None).collect(),
            filling: 0,
            stopped: false,
            failure: None,
        };
        let order = EpochOrder::new(dataset.as_ref(), &config);
        let shared = Arc::new(Shared {
            converter: Converter::new(&normalisation, config.element, config.layout, shape),
            mixer: config.mix.is_on().then_some(Mixer {
                mix: config.mix,
                seed: config.seed,
                element: config.element,
                layout: config.layout,
                shape,
            }),
            framing: Framing::new([height, width], config.resize, &config.augment, config.seed),
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
            ring: Mutex::new(ring),
            freed: Condvar::new(),
            filled: Condvar::new(),
            sequencer: Mutex::new(Sequencer { next: 0, order }),
            dataset,
            config,
        });
        let mut loader = Self { shared, workers: Vec::new(), next: 0 };
        for worker in 0..loader.shared.config.workers {
            let shared = Arc::clone(&loader.shared);
            let thread = thread::Builder::new()
                .name(format!("loader-{worker}"))
                .spawn(move || shared.work())
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
            // Nobody is at work on an earlier batch than the one that failed.
            if ring.filling == 0
                && let Some((_, error)) = ring.failure.take()
            {
                ring.stopped = true;
                return Err(error);
            }
            if ring.filling == 0 && ring.free.is_empty() {
                return Err(LoaderError::Withheld { slots });
            }
            ring = wait(&self.shared.filled, ring);
        }
    }

    /// Hands a buffer back to be filled again. A buffer of another loader is dropped.
    pub fn recycle(&self, buffer: BatchBuffer) {
        if buffer.owner == self.shared.id {
            lock(&self.shared.ring).free.push(buffer);
            self.shared.freed.notify_one();
        }
    }

    /// The position of the batch with this sequence number.
    #[must_use]
    pub fn position(&self) -> Position {
        self.shared.position(self.next)
    }

    /// Batches in an epoch.
    #[must_use]
    pub fn batches_per_epoch(&self) -> u64 {
        self.shared.batches_per_epoch
    }

    /// Samples delivered in an epoch: all, or without those of an incomplete last batch.
    #[must_use]
    pub fn samples_per_epoch(&self) -> u64 {
        let whole = self.shared.batches_per_epoch.saturating_mul(self.shared.config.batch_size as u64);
        whole.min(self.shared.dataset.len() as u64)
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
        let batch_size = config.batch_size;
        let buffer = BatchBuffer::bytes_of(batch_size, sample_bytes * batch_size, label_len * batch_size);
        buffer * config.slots as u64 + EpochOrder::bytes(self.dataset(), config.order)
    }
}

impl Drop for Loader {
    fn drop(&mut self) {
        lock(&self.shared.ring).stopped = true;
        self.shared.freed.notify_all();
        for worker in self.workers.drain(..) {
            // A worker catches its own panics; here nobody is left to tell.
            let _ = worker.join();
        }
    }
}

impl Shared {
    /// The loop of a worker thread.
    fn work(&self) {
        let mut worker = WorkerState::default();
        while let Some(mut buffer) = self.take_free() {
            let Some(sequence) = self.assign(&mut buffer) else {
                let mut ring = lock(&self.ring);
                ring.filling -= 1;
                ring.free.push(buffer);
                self.filled.notify_all();
                return;
            };
            let outcome = catch_unwind(AssertUnwindSafe(|| self.fill(&mut buffer, &mut worker)));
            let mut ring = lock(&self.ring);
            ring.filling -= 1;
            let at = Position { epoch: buffer.epoch, batch: buffer.index };
            let failure = match outcome {
                Ok(Ok(())) => {
                    let slot = (sequence % ring.ready.len() as u64) as usize;
                    ring.ready[slot] = Some(buffer);
                    self.filled.notify_all();
                    continue;
                }
                Ok(Err(cause)) => LoaderError::Data { at, cause },
                Err(payload) => LoaderError::Panicked { at, message: said(payload.as_ref()) },
            };
            if ring.failure.as_ref().is_none_or(|(earliest, _)| sequence < *earliest) {
                ring.failure = Some((sequence, failure));
            }
            self.filled.notify_all();
            drop(ring);
            self.freed.notify_all();
            return;
        }
    }

    /// Waits for a free buffer; `None` at the end.
    fn take_free(&self) -> Option<BatchBuffer> {
        let mut ring = lock(&self.ring);
        loop {
            if ring.stopped || ring.failure.is_some() {
                return None;
            }
            if let Some(buffer) = ring.free.pop() {
                ring.filling += 1;
                return Some(buffer);
            }
            ring = wait(&self.freed, ring);
        }
    }

    /// Assigns the next batch to `buffer` and returns its sequence number; `None` after the last.
    fn assign(&self, buffer: &mut BatchBuffer) -> Option<u64> {
        let mut sequencer = lock(&self.sequencer);
        let sequence = sequencer.next;
        if sequence == self.batches {
            return None;
        }
        sequencer.next += 1;
        let Position { epoch, batch } = self.position(sequence);
        let len = self.dataset.len();
        // Below `len`, as there is such a batch.
        let first = batch as usize * self.config.batch_size;
        let samples = first..len.min(first + self.config.batch_size);
        buffer.epoch = epoch;
        buffer.index = batch;
        buffer.samples = samples.len();
        buffer.indices.clear();
        sequencer.order.visit(self.dataset.as_ref(), sequence, epoch, samples, &mut buffer.indices);
        Some(sequence)
    }

    /// The place of the batch with this sequence number.
    fn position(&self, sequence: u64) -> Position {
        let start = self.config.start;
        let batch = start.batch + sequence;
        let epochs = batch / self.batches_per_epoch;
        Position { epoch: start.epoch.saturating_add(epochs as u32), batch: batch % self.batches_per_epoch }
    }

    fn fill(&self, buffer: &mut BatchBuffer, worker: &mut WorkerState) -> Result<(), DataError> {
        let image_bytes = self.sample_bytes * self.config.batch_size;
        if buffer.images.len() != image_bytes
            || buffer.labels.len() != self.label_len * self.config.batch_size
        {
            // The fields are public: the consumer may have replaced them.
            return Err(DataError::Buffer { expected: image_bytes, found: buffer.images.len() });
        }
        let BatchBuffer { images, labels, indices, epoch, samples, .. } = buffer;
        let (images, no_images) = images.split_at_mut(*samples * self.sample_bytes);
        let (all_labels, no_labels) = labels.split_at_mut(*samples * self.label_len);
        // Before they are mixed, samples have one class each.
        let stored_labels = if self.mixer.is_some() { 1 } else { self.label_len };
        let labels = &mut all_labels[..*samples * stored_labels];
        let expected = self.shape.iter().product::<usize>();
        let group = STAGED_BYTES / expected;
        if self.as_stored && group > 1 && !self.dataset.masks() {
            let images = images.chunks_mut(self.sample_bytes * group);
            for ((images, labels), indices) in images.zip(labels.chunks_mut(group)).zip(indices.chunks(group))
            {
                self.fill_gathered(images, labels, indices, *epoch, worker)?;
            }
        } else {
            let images = images.chunks_exact_mut(self.sample_bytes);
            let labels = labels.chunks_exact_mut(stored_labels);
            for ((image, labels), &index) in images.zip(labels).zip(indices.iter()) {
                if !self.fill_one(image, labels, index, *epoch, worker)? {
                    image.fill(0);
                    labels.fill(IGNORED_LABEL);
                }
            }
        }
        if let Some(mixer) = &self.mixer {
            mixer.mix(images, all_labels, indices, *epoch, &mut worker.last);
        }
        no_images.fill(0);
        no_labels.fill(IGNORED_LABEL);
        if let (None, Some(library)) = (self.jpeg.get(), worker.scratch.images.jpeg_library()) {
            self.jpeg.get_or_init(|| library.clone());
        }
        Ok(())
    }

    /// Samples are scattered in memory. Copying a few at a time keeps many more cache misses in flight than
    /// converting one by one.
    fn fill_gathered(
        &self,
        images: &mut [u8],
        labels: &mut [i32],
        indices: &[u32],
        epoch: u32,
        worker: &mut WorkerState,
    ) -> Result<(), DataError> {
        let expected = self.shape.iter().product::<usize>();
        let [_, height, width] = self.shape;
        let Augment { colour, .. } = self.config.augment;
        worker.staged.clear();
        worker.orders.clear();
        for (label, &index) in labels.iter_mut().zip(indices) {
            let read = self.dataset.read(index as usize, &mut worker.scratch);
            let Some(sample) = self.unless_skipped(read, index)? else {
                *label = IGNORED_LABEL;
                worker.orders.push(None);
                worker.staged.resize(worker.staged.len() + expected, 0);
                continue;
            };
            sample.check(self.dataset.as_ref(), index as usize)?;
            *label = self.label_of(&sample, index)?;
            worker.orders.push(Some(sample.order));
            worker.staged.extend_from_slice(sample.pixels);
        }
        let samples =
            images.chunks_exact_mut(self.sample_bytes).zip(worker.staged.chunks_exact_mut(expected));
        for ((image, pixels), (&index, &order)) in samples.zip(indices.iter().zip(&worker.orders)) {
            let Some(order) = order else {
                image.fill(0);
                continue;
            };
            if let Some(changes) = colour.changes(self.config.seed, epoch, index) {
                Picture { pixels, order, shape: self.shape, shown: None }.apply(&changes);
            }
            let placement = self.config.augment.placement(self.config.seed, epoch, index, [height, width]);
            self.converter.write(image, Framed { pixels, order, shown: None }, &placement);
        }
        Ok(())
    }

    /// Reads, crops and writes one sample and its label or mask; false where it cannot be decoded and is
    /// skipped.
    fn fill_one(
        &self,
        image: &mut [u8],
        labels: &mut [i32],
        index: u32,
        epoch: u32,
        worker: &mut WorkerState,
    ) -> Result<bool, DataError> {
        let [_, height, width] = self.shape;
        let region = |shape: [usize; 3], orientation| match self.dataset.masks() || self.as_stored {
            true => Region::of(shape),
            false => self.framing.region(shape, orientation, epoch, index),
        };
        let read = self.dataset.read_region(index as usize, &mut worker.scratch, &region);
        let read = read.and_then(|sample| Ok((sample, self.mask_of(&sample, index)?)));
        let Some((sample, mask)) = self.unless_skipped(read, index)? else { return Ok(false) };
        let rows = region(sample.shape, sample.orientation).rows.end;
        sample.check_rows(self.dataset.as_ref(), index as usize, rows)?;
        let view = self.framing.view(sample.upright_size(), epoch, index);
        let placement = self.config.augment.placement(self.config.seed, epoch, index, [height, width]);
        match mask {
            Some(mask) => {
                let (size, wanted) = ([height, width], self.config.mask_size.unwrap_or([height, width]));
                worker.mask_writer.write_coarse(labels, wanted, &mask, view, size, &placement);
            }
            None => labels.fill(self.label_of(&sample, index)?),
        }
        let mut cut = if self.as_stored && sample.orientation == Orientation::default() {
            Framed { pixels: sample.pixels, order: sample.order, shown: None }
        } else {
            worker.framer.cut(&sample, view, self.shape)?
        };
        if let Some(changes) = self.config.augment.colour.changes(self.config.seed, epoch, index) {
            let Framed { pixels, order, shown } = cut;
            worker.staged.clear();
            worker.staged.extend_from_slice(pixels);
            Picture { pixels: &mut worker.staged, order, shape: self.shape, shown }.apply(&changes);
            cut.pixels = &worker.staged;
        }
        self.converter.write(image, cut, &placement);
        Ok(true)
    }

    /// The sample, or `None` where it cannot be decoded and is skipped, which is recorded.
    fn unless_skipped<T>(&self, read: Result<T, DataError>, index: u32) -> Result<Option<T>, DataError> {
        match read {
            Ok(sample) => Ok(Some(sample)),
            Err(DataError::BadSample { problem, .. }) if self.config.skip_bad => {
                lock(&self.skipped).entry(index).or_insert(problem);
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    /// Checks the mask of a sample: its size is that of the image, and its classes exist.
    fn mask_of<'a>(&self, sample: &Sample<'a>, index: u32) -> Result<Option<StoredMask<'a>>, DataError> {
        if !self.dataset.masks() {
            return Ok(None);
        }
        let bad =
            |problem| Err(DataError::BadSample { sample: self.dataset.sample_name(index as usize), problem });
        let [_, height, width] = sample.shape;
        let Some(classes) = sample.mask else { return bad("it has no mask".to_owned()) };
        if Some(classes.len()) != height.checked_mul(width) {
            let problem = format!("its mask has {} pixels, but its image {height}×{width}", classes.len());
            return bad(problem);
        }
        match greatest_class(classes) {
            Some(class) if usize::from(class) >= self.dataset.classes() => bad(format!(
                "a pixel of its mask has class {class}, but classes go from 0 to {}, and {IGNORED_PIXEL} is \
                 for no class",
                self.dataset.classes().saturating_sub(1)
            )),
            _ => Ok(Some(StoredMask { classes, size: [height, width], orientation: sample.orientation })),
        }
    }

    fn label_of(&self, sample: &Sample<'_>, index: u32) -> Result<i32, DataError> {
        let classes = self.dataset.classes();
        let class = i32::try_from(sample.label).ok().filter(|_| (sample.label as usize) < classes);
        class.ok_or_else(|| DataError::LabelOutOfRange {
            origin: self.dataset.name().to_owned(),
            index: index as usize,
            label: sample.label,
            classes,
        })
    }
}

/// A worker's scratch memory, kept between samples.
#[derive(Debug, Default)]
struct WorkerState {
    scratch: Scratch,
    framer: Framer,
    mask_writer: MaskWriter,
    /// The staged pixels of a few samples, or of one whose colours change, and their pixel orders (`None`: no
    /// sample).
    staged: Vec<u8>,
    orders: Vec<Option<PixelOrder>>,
    /// An image before it was mixed.
    last: AlignedBytes,
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
