//! The buffers of a loader, and the loop of its workers.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};

use super::fill::WorkerState;
use super::order::EpochOrder;
use super::{LoaderError, Position, Shared, lock, panic_message, wait};
use crate::buffer::{BatchBuffer, BatchMemory, IGNORED_LABEL};
use crate::error::DataError;

/// The buffers of a loader. At most `slots` consecutive batches are assigned but not yet delivered.
pub(super) struct BufferRing {
    pub(super) free: Vec<BatchBuffer>,
    /// Ready batches; batch `s` is at `s % slots`.
    pub(super) ready: Vec<Option<BatchBuffer>>,
    /// Batches that are being filled, the oldest first.
    open: VecDeque<OpenBatch>,
    /// Unused lists of chunks.
    spare: Vec<Vec<RowChunk>>,
    /// The number of buffers that are neither free, ready nor lent.
    pub(super) filling: usize,
    /// The number of buffers that are being assigned a batch.
    opening: usize,
    /// The number of chunks being filled and of batches being assembled.
    busy: usize,
    /// The number of active workers: those with lower numbers may take chunks.
    pub(super) active: usize,
    /// The number of active workers that wait for work.
    waiting: usize,
    /// True if all batches were assigned.
    ended: bool,
    /// True if the workers must end.
    pub(super) stopped: bool,
    /// The earliest failure.
    failure: Option<Failure>,
}

/// Assigns batches to workers, in order.
pub(super) struct Sequencer {
    pub(super) next: u64,
    pub(super) order: EpochOrder,
}

/// An error with its position: batch and row.
struct Failure {
    at: (u64, usize),
    error: LoaderError,
}

/// A batch that is being filled.
struct OpenBatch {
    sequence: u64,
    /// Holds only the padding rows until the batch is assembled.
    buffer: BatchBuffer,
    /// The rows that are not taken yet.
    images: BatchMemory<u8>,
    labels: BatchMemory<i32>,
    /// The number of rows taken.
    taken: usize,
    /// The filled chunks, in any order.
    filled: Vec<RowChunk>,
    /// The number of rows in them.
    done: usize,
}

/// Consecutive rows of a batch that one worker fills.
pub(super) struct RowChunk {
    sequence: u64,
    pub(super) epoch: u32,
    /// The first row.
    first: usize,
    /// The number of rows.
    rows: usize,
    pub(super) images: BatchMemory<u8>,
    pub(super) labels: BatchMemory<i32>,
}

/// The next task of a worker.
enum Task {
    /// Assigns a batch to a buffer.
    Open(BatchBuffer),
    Fill(RowChunk),
    Wait,
    End,
}

impl BufferRing {
    /// Creates a ring of free buffers. `max_chunks` is the maximum number of chunks per batch.
    pub(super) fn new(free: Vec<BatchBuffer>, max_chunks: usize, active: usize) -> Self {
        let slots = free.len();
        Self {
            free,
            ready: (0..slots).map(|_| None).collect(),
            open: VecDeque::with_capacity(slots),
            spare: (0..slots).map(|_| Vec::with_capacity(max_chunks)).collect(),
            filling: 0,
            opening: 0,
            busy: 0,
            active,
            waiting: 0,
            ended: false,
            stopped: false,
            failure: None,
        }
    }

    /// The oldest batch with untaken rows; after a failure, only if they are before it.
    fn next_open_batch(&mut self) -> Option<&mut OpenBatch> {
        let bound = self.failure.as_ref().map(|failure| failure.at);
        let open = self.open.iter_mut().find(|open| open.taken < open.buffer.samples)?;
        bound.is_none_or(|bound| (open.sequence, open.taken) < bound).then_some(open)
    }

    /// Takes the failure for the consumer, once everything before it is done.
    pub(super) fn take_failure(&mut self) -> Option<LoaderError> {
        if self.busy > 0 || self.opening > 0 || self.next_open_batch().is_some() {
            return None;
        }
        let failure = self.failure.take()?;
        self.stopped = true;
        Some(failure.error)
    }

    fn fail(&mut self, at: (u64, usize), error: LoaderError) {
        if self.failure.as_ref().is_none_or(|earliest| at < earliest.at) {
            self.failure = Some(Failure { at, error });
        }
    }
}

impl OpenBatch {
    /// Splits off the next rows: a share of the remaining ones, so that chunks shrink towards the end and all
    /// workers finish together.
    fn take(&mut self, shared: &Shared, indices: &mut Vec<u32>) -> RowChunk {
        let remaining = self.buffer.samples - self.taken;
        let rows = chunk_rows(remaining, shared.config.workers, shared.min_chunk_rows());
        let first = self.taken;
        self.taken += rows;
        indices.clear();
        indices.extend_from_slice(&self.buffer.indices[first..self.taken]);
        RowChunk {
            sequence: self.sequence,
            epoch: self.buffer.epoch,
            first,
            rows,
            images: self.images.split_to(rows * shared.sample_bytes),
            labels: self.labels.split_to(rows * shared.stored_labels()),
        }
    }

    /// Joins the chunks. Returns the buffer, and the empty list of chunks for reuse.
    fn assemble(mut self) -> (BatchBuffer, Vec<RowChunk>) {
        self.filled.sort_unstable_by_key(|chunk| chunk.first);
        for chunk in self.filled.drain(..) {
            self.images.unsplit(chunk.images);
            self.labels.unsplit(chunk.labels);
        }
        self.images.unsplit(std::mem::take(&mut self.buffer.images));
        self.labels.unsplit(std::mem::take(&mut self.buffer.labels));
        (BatchBuffer { images: self.images, labels: self.labels, ..self.buffer }, self.filled)
    }
}

/// The number of rows that a worker takes when `remaining` are left.
fn chunk_rows(remaining: usize, workers: usize, min_rows: usize) -> usize {
    remaining.div_ceil(workers).max(min_rows).min(remaining)
}

/// The number of chunks of a batch.
pub(super) fn chunk_count(rows: usize, workers: usize, min_rows: usize) -> usize {
    let mut remaining = rows;
    std::iter::from_fn(|| {
        let rows = chunk_rows(remaining, workers, min_rows);
        remaining -= rows;
        (rows > 0).then_some(())
    })
    .count()
}

impl Shared {
    /// The loop of worker `number`.
    pub(super) fn work(&self, number: usize) {
        let mut worker = WorkerState::default();
        let max_rows = chunk_rows(self.config.rows(), self.config.workers, self.min_chunk_rows());
        worker.indices.reserve(max_rows);
        let mut ring = lock(&self.ring);
        loop {
            match self.next_task(&mut ring, number, &mut worker) {
                Task::End => return,
                Task::Wait if number < ring.active => {
                    ring.waiting += 1;
                    ring = wait(&self.work_available, ring);
                    ring.waiting -= 1;
                }
                Task::Wait => ring = wait(&self.workers_wanted, ring),
                Task::Open(buffer) => {
                    drop(ring);
                    let opened = self.open(buffer);
                    ring = lock(&self.ring);
                    ring.opening -= 1;
                    self.register_opened(&mut ring, opened);
                }
                Task::Fill(mut chunk) => {
                    drop(ring);
                    let outcome = catch_unwind(AssertUnwindSafe(|| self.fill(&mut chunk, &mut worker)));
                    let failure = match outcome {
                        Ok(Ok(())) => None,
                        Ok(Err(cause)) => {
                            Some(LoaderError::Data { at: self.position(chunk.sequence), cause })
                        }
                        Err(payload) => Some(self.panicked(chunk.sequence, payload.as_ref())),
                    };
                    ring = lock(&self.ring);
                    let complete = match failure {
                        None => self.complete_chunk(&mut ring, chunk),
                        Some(error) => {
                            ring.fail((chunk.sequence, chunk.first), error);
                            None
                        }
                    };
                    if let Some(batch) = complete {
                        drop(ring);
                        let sequence = batch.sequence;
                        let (mut buffer, chunks) = batch.assemble();
                        let mixed = catch_unwind(AssertUnwindSafe(|| self.mix(&mut buffer, &mut worker)));
                        ring = lock(&self.ring);
                        ring.spare.push(chunks);
                        match mixed {
                            Ok(()) => {
                                let slot = (sequence % ring.ready.len() as u64) as usize;
                                ring.filling -= 1;
                                ring.ready[slot] = Some(buffer);
                                self.batch_ready.notify_all();
                            }
                            Err(payload) => {
                                let error = self.panicked(sequence, payload.as_ref());
                                ring.fail((sequence, buffer.samples), error);
                            }
                        }
                    }
                    ring.busy -= 1;
                    if ring.failure.is_some() {
                        self.batch_ready.notify_all();
                        self.work_available.notify_all();
                    }
                }
            }
        }
    }

    /// Chooses the next task. Old batches come first; a new one is opened if they have no rows left.
    fn next_task(&self, ring: &mut BufferRing, number: usize, worker: &mut WorkerState) -> Task {
        if ring.stopped {
            return Task::End;
        }
        let over = ring.ended || ring.failure.is_some();
        let active = number < ring.active;
        if active && let Some(open) = ring.next_open_batch() {
            let chunk = open.take(self, &mut worker.indices);
            ring.busy += 1;
            // More work is pending: pass the wake-up on.
            if ring.waiting > 0 && (ring.next_open_batch().is_some() || !over && !ring.free.is_empty()) {
                self.work_available.notify_one();
            }
            return Task::Fill(chunk);
        }
        if over {
            return if ring.opening == 0 && active { Task::End } else { Task::Wait };
        }
        match active.then(|| ring.free.pop()).flatten() {
            Some(buffer) => {
                ring.filling += 1;
                ring.opening += 1;
                Task::Open(buffer)
            }
            None => Task::Wait,
        }
    }

    /// Assigns the next batch to a buffer. Returns the buffer if there are no more batches, and an error if
    /// its memory was replaced.
    fn open(&self, mut buffer: BatchBuffer) -> OpenOutcome {
        let Some(sequence) = self.assign(&mut buffer) else { return OpenOutcome::None(buffer) };
        let image_bytes = self.sample_bytes * self.config.rows();
        if buffer.images.len() != image_bytes || buffer.labels.len() != self.label_len * self.config.rows() {
            // The fields are public, so the consumer may have replaced them.
            let cause = DataError::ReplacedBuffer { expected: image_bytes, found: buffer.images.len() };
            return OpenOutcome::Failed(sequence, LoaderError::Data { at: self.position(sequence), cause });
        }
        let samples = buffer.samples;
        buffer.images[samples * self.sample_bytes..].fill(0);
        buffer.labels[samples * self.label_len..].fill(IGNORED_LABEL);
        OpenOutcome::Batch(OpenBatch {
            sequence,
            images: buffer.images.split_to(samples * self.sample_bytes),
            labels: buffer.labels.split_to(samples * self.stored_labels()),
            buffer,
            taken: 0,
            filled: Vec::new(),
            done: 0,
        })
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
        // Below `len`, because this batch exists.
        let first = batch as usize * self.config.batch_size;
        let rows = self.config.slice.rows(self.config.batch_size.min(len - first));
        let samples = first + rows.start..first + rows.end;
        buffer.epoch = epoch;
        buffer.index = batch;
        buffer.samples = samples.len();
        buffer.indices.clear();
        sequencer.order.append_indices(self.dataset.as_ref(), sequence, epoch, samples, &mut buffer.indices);
        Some(sequence)
    }

    /// Makes the rows of an opened batch available.
    fn register_opened(&self, ring: &mut BufferRing, opened: OpenOutcome) {
        match opened {
            OpenOutcome::Batch(mut batch) => {
                batch.filled = ring.spare.pop().unwrap_or_default();
                if ring.waiting > 0 && batch.buffer.samples > self.min_chunk_rows() {
                    self.work_available.notify_all();
                }
                let at = ring.open.partition_point(|open| open.sequence < batch.sequence);
                ring.open.insert(at, batch);
            }
            OpenOutcome::None(buffer) => {
                ring.filling -= 1;
                ring.free.push(buffer);
                ring.ended = true;
                self.batch_ready.notify_all();
                self.work_available.notify_all();
            }
            OpenOutcome::Failed(sequence, error) => {
                ring.fail((sequence, 0), error);
                self.batch_ready.notify_all();
                self.work_available.notify_all();
            }
        }
    }

    /// Takes back a filled chunk. Returns its batch if it is complete.
    fn complete_chunk(&self, ring: &mut BufferRing, chunk: RowChunk) -> Option<OpenBatch> {
        let at = ring.open.iter().position(|open| open.sequence == chunk.sequence)?;
        let open = &mut ring.open[at];
        open.done += chunk.rows;
        open.filled.push(chunk);
        if open.done < open.buffer.samples {
            return None;
        }
        ring.open.remove(at)
    }

    /// Mixes the samples of a batch, if enabled.
    fn mix(&self, buffer: &mut BatchBuffer, worker: &mut WorkerState) {
        let BatchBuffer { images, labels, indices, epoch, samples, .. } = buffer;
        if let Some(mixer) = &self.mixer {
            let images = &mut images[..*samples * self.sample_bytes];
            let group = *samples / self.config.slice.count.max(1);
            let labels = &mut labels[..*samples * self.label_len];
            mixer.mix(images, labels, indices, (*epoch, group), &mut worker.last);
        }
    }

    fn panicked(&self, sequence: u64, payload: &(dyn std::any::Any + Send)) -> LoaderError {
        LoaderError::Panicked { at: self.position(sequence), message: panic_message(payload) }
    }
}

/// The outcome of assigning a batch to a buffer.
enum OpenOutcome {
    Batch(OpenBatch),
    /// There are no more batches.
    None(BatchBuffer),
    /// The batch with this number cannot be filled.
    Failed(u64, LoaderError),
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Large chunks come first, so that there are few; small ones last, so that workers finish together.
    #[test]
    fn chunks_shrink_towards_the_end_and_cover_all_rows() {
        for (rows, workers, min_rows, expected) in [
            (128, 1, 1, &[128][..]),
            (10, 2, 1, &[5, 3, 1, 1]),
            (10, 2, 4, &[5, 4, 1]),
            (3, 16, 1, &[1, 1, 1]),
            (0, 4, 1, &[]),
            (5, 4, 100, &[5]),
        ] {
            let mut left = rows;
            let mut taken = Vec::new();
            while left > 0 {
                taken.push(chunk_rows(left, workers, min_rows));
                left -= taken[taken.len() - 1];
            }
            assert_eq!(taken, expected, "{rows} rows, {workers} workers, at least {min_rows}");
            assert_eq!(chunk_count(rows, workers, min_rows), expected.len());
        }
        assert!(chunk_count(256, 16, 1) < 80);
    }
}
